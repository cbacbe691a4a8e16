# Checks the guarantees under faults, from the client's side.  Clients work
# with a few locks while a nemesis kills and stops processes, cancels queries,
# holds transactions open and moves the server's clock.  Every client logs each
# call and its answer; the test then checks the log.
#
# LEASELOCK_HISTORY_SECONDS (40) sets how long the clients work.
# LEASELOCK_HISTORY_SEED repeats the random choices (the timing differs).
#
# Native only: it runs for most of a minute and loads a machine that three majors share.

use strict;
use warnings FATAL => 'all';

use IPC::Open3;
use IO::Select;
use List::Util qw(min);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $seconds = $ENV{LEASELOCK_HISTORY_SECONDS} || 40;
my $seed = $ENV{LEASELOCK_HISTORY_SEED} || int(time * 1000) % 1_000_000_000;
my $clients = 8;
my @locks = qw(red green blue);
my $waiter_timeout = 4;

# ---------------------------------------------------------------------
# The checker.  An event is a hash:
#   client, owner, lock, op    who made which call
#   asked, told                times of call and answer, by the clients' clock
#   state                      the state in the answer; "?": no answer
#   ticket, fence, expires, depth, lease    as answered; expires is server time
#   answered                   whether a call of lease_wait returned
# The nemesis adds  op => 'crash' (asked, told) and op => 'clock' (offset).
# ---------------------------------------------------------------------

# The latest reading of the server's clock, or of a lock's time, up to a given
# moment
sub latest_reading
{
	my ($history, $when) = @_;
	my $offset = 0;

	foreach my $clock (@{ $history->{clock} })
	{
		$offset = $clock->{offset}
		  if $clock->{asked} <= $when && $clock->{offset} > $offset;
	}
	return $when + $offset;
}

sub earliest_reading
{
	my ($history, $when) = @_;
	my $offset = 0;

	foreach my $clock (@{ $history->{clock} })
	{
		$offset = $clock->{offset}
		  if $clock->{asked} <= $when && $clock->{offset} < $offset;
	}
	return $when + $offset;
}

sub crashed_between
{
	my ($history, $from, $to) = @_;
	return
	  grep { $_->{told} >= $from && $_->{asked} <= $to } @{ $history->{crash} };
}

# The latest expiry of a ticket that is in force at a given moment.  A grant
# survives a crash.  A renewal, or the first call for a promoted ticket, may be
# lost with synchronous_commit = off.
sub expiry_known
{
	my ($history, $ticket, $when) = @_;
	my $expires;

	foreach my $event (@{ $ticket->{events} })
	{
		next
		  if $event->{told} > $when
		  || $event->{state} ne 'held'
		  || !$event->{expires};
		next
		  if !($event->{op} eq 'acquire' && $event->{first})
		  && crashed_between($history, $event->{asked}, $when);
		$expires = $event->{expires}
		  if !defined $expires || $event->{expires} > $expires;
	}
	return $expires;
}

# Groups the events of a log by ticket and by grant
sub read_history
{
	my (@events) = @_;
	my %history = (clock => [], crash => [], tickets => {}, grants => {}, writes => []);

	foreach my $event (sort { $a->{asked} <=> $b->{asked} } @events)
	{
		if ($event->{op} eq 'clock' || $event->{op} eq 'crash')
		{
			push @{ $history{ $event->{op} } }, $event;
			next;
		}
		if ($event->{op} eq 'write')
		{
			push @{ $history{writes} }, $event;
			next;
		}
		if ($event->{op} eq 'release_all')
		{
			$_->{ended} //= $event->{asked}
			  foreach grep { $_->{owner} eq $event->{owner} } values %{ $history{tickets} };
			next;
		}
		next unless $event->{ticket};
		my $ticket = $history{tickets}{ $event->{ticket} } //=
		  { map { $_ => $event->{$_} } qw(ticket owner lock client) };
		push @{ $ticket->{events} }, $event;
		$ticket->{begun} //= $event->{begun} // $event->{asked};
		$ticket->{ended} //= $event->{asked} if $event->{op} eq 'release';
		$ticket->{released} //= $event->{told} if $event->{state} eq 'released';
		if ($event->{state} eq 'waiting')
		{
			$ticket->{queued} //= $event->{told};
			$ticket->{queue_asked} //= $event->{asked};
		}
		next unless $event->{state} eq 'held';
		$ticket->{granted} //= $event;
		$ticket->{fence} //= $event->{fence};
		my $grant = $history{grants}{ $event->{lock} }{ $event->{fence} } //=
		  { owner => $event->{owner}, first => $event, begun => $ticket->{begun} };
		push @{ $grant->{owners} }, $event->{owner};
		$grant->{tickets}{ $event->{ticket} } = $ticket;
		$grant->{first} = $event if $event->{told} < $grant->{first}{told};
		$grant->{begun} = $ticket->{begun} if $ticket->{begun} < $grant->{begun};
	}
	return \%history;
}

# Whether a ticket's hold may have been ended before a given moment
sub may_be_released
{
	my ($ticket, $when) = @_;
	return defined $ticket->{ended} && $ticket->{ended} <= $when;
}

# Returns a list of everything that is wrong with a log.  $rows are the writes
# in the table, as [lock, version, fence].
sub check_history
{
	my ($events, $rows) = @_;
	my $history = read_history(@$events);
	my @wrong;

	foreach my $lock (sort keys %{ $history->{grants} })
	{
		my $grants = $history->{grants}{$lock};
		my @fences = sort { $a <=> $b } keys %$grants;

		foreach my $fence (@fences)
		{
			my %owners = map { $_ => 1 } @{ $grants->{$fence}{owners} };
			push @wrong, "exclusion: $lock: fence $fence of " . join(' and ', sort keys %owners)
			  if keys %owners > 1;
		}
		for (my $i = 1; $i < @fences; $i++)
		{
			my $later = $grants->{ $fences[$i] };

			# compare with all earlier grants, since any of them may have been
			# long
			for (my $j = 0; $j < $i; $j++)
			{
				my $earlier = $grants->{ $fences[$j] };

				# a lower fence, requested only after this one was answered
				push @wrong, "fences: $lock: $fences[$j] after $fences[$i]"
				  if $later->{first}{told} < $earlier->{begun};
				next if $earlier->{owner} eq $later->{owner};

				# the lock's time when the later grant was answered
				next unless $later->{first}{expires};
				my $start = $later->{first}{expires} - $later->{first}{lease};
				foreach my $ticket (values %{ $earlier->{tickets} })
				{
					next if may_be_released($ticket, $later->{first}{told});
					my $expires = expiry_known($history, $ticket, $later->{first}{asked});
					push @wrong,
					  sprintf('exclusion: %s: %s had it until %.3f, %s from %.3f',
						$lock, $earlier->{owner}, $expires, $later->{owner}, $start)
					  if defined $expires && $expires > $start + 0.002;
				}
			}
		}
	}

	# no acknowledged grant is missing
	foreach my $ticket (values %{ $history->{tickets} })
	{
		foreach my $event (@{ $ticket->{events} })
		{
			next
			  if $event->{op} eq 'release'
			  || $event->{state} =~ /^(?:held|waiting|\?)$/
			  || may_be_released($ticket, $event->{told});
			my $expires = expiry_known($history, $ticket, $event->{asked});
			push @wrong,
			  sprintf('missing: %s: the ticket of %s is %s, but was held until %.3f',
				$ticket->{lock}, $ticket->{owner}, $event->{state}, $expires)
			  if defined $expires
			  && latest_reading($history, $event->{told}) < $expires - 0.01;
		}
		my %fences = map { $_->{fence} => 1 }
		  grep { $_->{state} eq 'held' } @{ $ticket->{events} };
		push @wrong, "fences: $ticket->{lock}: one ticket with several"
		  if keys %fences > 1;
	}

	# First in, first out: a ticket that was passed over is never granted, so
	# of two granted tickets the first in the queue must have the lower fence.
	# (A further ticket of a holder shares the existing grant.)
	my @waited = sort { $a->{queued} <=> $b->{queued} }
	  grep { defined $_->{queued} } values %{ $history->{tickets} };
	for (my $j = 0; $j < @waited; $j++)
	{
		my $first = $waited[$j];

		# the crash may have removed its place, and a retry queued it again
		next
		  if !defined $first->{fence}
		  || crashed_between($history, $first->{queue_asked}, $first->{granted}{told});
		foreach my $second (values %{ $history->{tickets} })
		{
			next
			  if $second->{lock} ne $first->{lock}
			  || $second->{owner} eq $first->{owner}
			  || !defined $second->{fence}
			  || $history->{grants}{ $second->{lock} }{ $second->{fence} }{begun} <= $first->{queued};
			push @wrong, "order: $first->{lock}: $second->{owner} came after $first->{owner}, and was granted before"
			  if $second->{fence} < $first->{fence};
		}
	}

	# a waiter that polled in time does not time out
	foreach my $ticket (@waited)
	{
		my $heard;
		foreach my $event (@{ $ticket->{events} })
		{
			if ($event->{state} eq 'waiting')
			{
				$heard = $event;
			}
			elsif ($event->{op} eq 'wait' && !$event->{answered})
			{
				# the wait ends with its backend
				$heard = undef;
			}
			elsif ($event->{state} =~ /^(?:timed_out|gone)$/ && defined $heard)
			{
				next if crashed_between($history, $ticket->{queue_asked}, $event->{told});
				my $until = earliest_reading($history, $heard->{asked}) + $heard->{patience};
				# nor does it wait longer than requested; a retry does not
				# extend the wait
				my ($wait) = grep { defined } map { $_->{wait} } @{ $ticket->{events} };
				$until = min($until, earliest_reading($history, $ticket->{begun}) + $wait)
				  if defined $wait;
				push @wrong, "order: $ticket->{lock}: $ticket->{owner} was heard from and is $event->{state}"
				  if latest_reading($history, $event->{told}) < $until - 0.01;
				last;
			}
		}
	}

	# depth: at least the tickets of the grant that are certainly live, at most
	# those that are not released
	foreach my $ticket (values %{ $history->{tickets} })
	{
		foreach my $event (grep { $_->{state} eq 'held' && $_->{depth} } @{ $ticket->{events} })
		{
			my ($least, $most) = (1, 1);
			foreach my $other (values %{ $history->{grants}{ $ticket->{lock} }{ $event->{fence} }{tickets} })
			{
				next if $other == $ticket || $other->{begun} > $event->{told};
				my $expires = expiry_known($history, $other, $event->{asked});
				$least++
				  if defined $expires
				  && !may_be_released($other, $event->{told})
				  && latest_reading($history, $event->{told}) < $expires - 0.01;
				$most++
				  unless defined $other->{released}
				  && $other->{released} < $event->{asked}
				  && !crashed_between($history, $other->{ended}, $event->{told});
			}
			push @wrong, "depth: $ticket->{lock}: $ticket->{owner} is told $event->{depth}, not $least to $most"
			  if $event->{depth} < $least || $event->{depth} > $most;
		}
	}

	# writes: fences grow with the table's versions and are not older than the
	# newest grant
	my %last;
	foreach my $row (sort { $a->[0] cmp $b->[0] || $a->[1] <=> $b->[1] } @$rows)
	{
		my ($lock, $version, $fence) = @$row;
		push @wrong, "write: $lock: version $version of $fence after $last{$lock}"
		  if defined $last{$lock} && $fence < $last{$lock};
		$last{$lock} = $fence if !defined $last{$lock} || $fence > $last{$lock};
	}
	foreach my $write (@{ $history->{writes} })
	{
		next unless $write->{state} eq 'written';
		foreach my $fence (keys %{ $history->{grants}{ $write->{lock} } // {} })
		{
			push @wrong, "write: $write->{lock}: $write->{fence} committed after $fence was granted"
			  if $fence > $write->{fence}
			  && $history->{grants}{ $write->{lock} }{$fence}{first}{told} < $write->{asked};
		}
	}
	return sort @wrong;
}

# ---------------------------------------------------------------------
# The checker itself
# ---------------------------------------------------------------------

sub event
{
	my ($time, $owner, $op, $state, %more) = @_;
	return { client => $owner, owner => $owner, lock => 'l', op => $op, asked => $time, told => $time + 0.01,
		state => $state, ticket => "ticket of $owner", lease => 10, patience => 4, first => $op eq 'acquire', %more };
}

my @good = (
	event(0, 'a', 'acquire', 'held', fence => 5, expires => 10),
	event(1, 'b', 'acquire', 'waiting'),
	event(2, 'c', 'acquire', 'waiting'),
	event(3, 'a', 'release', 'released'),
	event(4, 'b', 'get', 'held', fence => 6, expires => 14),
	event(5, 'b', 'release', 'released'),
	event(5.5, 'c', 'get', 'held', fence => 7, expires => 15.5));
my @rows = ([ 'l', 1, 5 ], [ 'l', 2, 5 ], [ 'l', 3, 6 ]);
my @bad = (
	[ 'a correct history passes', qr/^$/, [@good], \@rows ],
	[ 'two owners at the same time', qr/^exclusion: l: a had it/,
		[ $good[0], event(2, 'b', 'acquire', 'held', fence => 6, expires => 12) ], [] ],
	[ 'a grant during a renewed lease', qr/^exclusion: l: a had it/,
		[ $good[0], event(5, 'a', 'renew', 'held', fence => 5, expires => 15),
			event(12, 'b', 'acquire', 'held', fence => 6, expires => 22) ], [] ],
	[ 'a crash may lose a renewal', qr/^$/,
		[ $good[0], event(5, 'a', 'renew', 'held', fence => 5, expires => 15), { op => 'crash', asked => 6, told => 7 },
			event(12, 'b', 'acquire', 'held', fence => 6, expires => 22) ], [] ],
	[ 'one fence for two owners', qr/^exclusion: l: fence 5/,
		[ $good[0], event(20, 'b', 'acquire', 'held', fence => 5, expires => 30) ], [] ],
	[ 'a fence lower than an earlier one', qr/^fences: l: 4 after 5/,
		[ $good[0], event(20, 'b', 'acquire', 'held', fence => 4, expires => 30) ], [] ],
	[ 'a lost grant', qr/^missing: l/,
		[ $good[0], { op => 'crash', asked => 1, told => 2 }, event(3, 'a', 'get', 'gone') ], [] ],
	[ 'a moved clock may end a grant', qr/^$/,
		[ $good[0], { op => 'clock', asked => 1, offset => 30 }, event(3, 'a', 'get', 'expired') ], [] ],
	[ 'a waiter granted before an earlier one', qr/^order: l: c came after b/,
		[ @good[ 0 .. 3 ], event(4, 'c', 'get', 'held', fence => 6, expires => 14), event(4.5, 'c', 'release', 'released'),
			event(5, 'b', 'get', 'held', fence => 7, expires => 15) ], [] ],
	[ 'a waiter that timed out too early', qr/^order: l: b was heard from/, [ @good[ 0, 1 ], event(2, 'b', 'get', 'timed_out') ], [] ],
	[ 'a depth that is too high', qr/^depth/,
		[ event(0, 'a', 'acquire', 'held', fence => 5, expires => 10, depth => 2) ], [] ],
	[ 'a depth that is too low', qr/^depth/,
		[ $good[0], event(1, 'a', 'acquire', 'held', fence => 5, expires => 11, depth => 1, ticket => 'another') ], [] ],
	[ 'a row with a stale fence', qr/^write: l: version 3 of 5 after 6/, [@good], [ [ 'l', 1, 5 ], [ 'l', 2, 6 ], [ 'l', 3, 5 ] ] ],
	[ 'a commit with a stale fence', qr/^write: l: 5 committed after 6/, [ @good, event(5, 'a', 'write', 'written', fence => 5) ], [] ]);
foreach my $case (@bad)
{
	my ($name, $expected, $events, $table) = @$case;
	like(join("\n", check_history($events, $table)), $expected, "the checker: $name");
}

# ---------------------------------------------------------------------
# The server
# ---------------------------------------------------------------------

my $node = PostgreSQL::Test::Cluster->new('history');
$node->init;
# commits stay in the WAL buffers until a flush, so that a crash loses what may
# be lost
$node->append_conf('postgresql.conf', qq{
max_connections = 60
session_preload_libraries = 'leaselock'
leaselock.min_lease = '200 ms'
leaselock.waiter_timeout = '$waiter_timeout s'
leaselock.lock_timeout = '1 s'
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 1GB
restart_after_crash = on
autovacuum = off
log_statement = none
log_line_prefix = '%m [%p] %e %q%a '
});

my $work = PostgreSQL::Test::Utils::tempdir();
my ($faketime) = glob('/usr/lib/*/faketime/libfaketime.so.1');
my $clock_file = "$work/clock";

sub start_server
{
	my $preload = $ENV{LD_PRELOAD};

	if (defined $faketime)
	{
		$ENV{LD_PRELOAD} = $faketime;
		$ENV{FAKETIME_TIMESTAMP_FILE} = $clock_file;
		$ENV{FAKETIME_CACHE_DURATION} = 1;
		$ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;
	}
	my $started = $node->start(fail_ok => 1);
	if (defined $preload) { $ENV{LD_PRELOAD} = $preload }
	else { delete $ENV{LD_PRELOAD} }
	return $started;
}

sub write_file
{
	my ($file, $text) = @_;

	open(my $handle, '>', "$file.new") or die "$file: $!";
	print $handle $text;
	close($handle);
	rename("$file.new", $file) or die "$file: $!";
	return;
}

write_file($clock_file, "+0\n");
start_server() or die 'the server does not start';
note(defined $faketime ? 'the clock is moved by libfaketime' : 'the clock is moved by leaselock.clock_offset');
note("seed $seed, $seconds s");
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE target (name text PRIMARY KEY, version int NOT NULL, fence bigint NOT NULL);
CREATE TABLE journal (name text, version int, fence bigint);
CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.journal VALUES (NEW.name, NEW.version, NEW.fence);
	RETURN NULL;
END $$;
CREATE TRIGGER note_write AFTER UPDATE ON target FOR EACH ROW EXECUTE FUNCTION note_write();
CHECKPOINT;
});
$node->safe_psql('postgres', "SET synchronous_commit = on; INSERT INTO target VALUES ('$_', 0, 0)") foreach @locks;

# ---------------------------------------------------------------------
# A client: a process with its own psql, which it restarts when the connection
# is lost
# ---------------------------------------------------------------------

sub open_session
{
	my ($client) = @_;

	foreach (1 .. 200)
	{
		my $pid = open3(my $in, my $out, undef, 'psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-d',
			$node->connstr('postgres') . " application_name=client$client->{number}");
		my $session = { pid => $pid, in => $in, out => $out, buffer => '' };
		write_file("$work/pid.$client->{number}", $pid);
		$client->{session} = $session;
		my ($answered) = ask($client, 'SELECT 1');
		return if $answered;
		sleep(0.1);
	}
	die "client $client->{number} cannot connect";
}

sub close_session
{
	my ($client) = @_;
	my $session = delete $client->{session} or return;

	close($session->{in});
	close($session->{out});
	kill 'KILL', $session->{pid};
	waitpid($session->{pid}, 0);
	return;
}

# Runs statements; returns whether there was an answer, and the answer
sub ask
{
	my ($client, $sql) = @_;
	my $session = $client->{session};
	my $until = time + 60;

	local $SIG{PIPE} = 'IGNORE';
	{
		no warnings;
		syswrite($session->{in}, "$sql;\n\\echo done\n");
	}
	$session->{buffer} = '';
	while ($session->{buffer} !~ /^done\n/m)
	{
		my $bytes;
		$bytes = sysread($session->{out}, $session->{buffer}, 65536, length $session->{buffer})
		  if IO::Select->new($session->{out})->can_read(1);
		if ((defined $bytes && $bytes == 0) || time > $until)
		{
			print { $client->{log} } "stuck\t$sql\n" if time > $until;
			close_session($client);
			return (0, '');
		}
	}
	my $answer = $session->{buffer} =~ s/^done\n//mr;
	return (1, $answer);
}

# Logs a call for a ticket.  An error counts as no answer.
sub call
{
	my ($client, $op, $sql, %more) = @_;
	my %event = (client => $client->{number}, op => $op, state => '?', patience => $waiter_timeout, %more);

	open_session($client) unless $client->{session};
	$event{asked} = time;
	my ($answered, $answer) = ask($client, $sql);
	$event{told} = time;
	if ($answered && $answer !~ /ERROR|FATAL|PANIC/ && $answer =~ /^row\|(.*)$/m)
	{
		my @fields = split /\|/, $1, -1;
		@event{qw(state ticket fence expires depth)} = @fields[ 0 .. 4 ];
	}
	elsif ($answered && $answer !~ /ERROR|FATAL|PANIC/)
	{
		$event{answered} = 1;
	}
	elsif ($answer =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5})/)
	{
		$event{error} = $1;
	}
	delete @event{ grep { !defined $event{$_} || $event{$_} eq '' } keys %event };
	print { $client->{log} } join("\t", map { "$_=$event{$_}" } sort keys %event), "\n";
	return \%event;
}

my $columns = q{'row', state, ticket, fence, extract(epoch FROM expires_at), depth};

sub uuid
{
	return join '-', map { my $n = $_; join '', map { sprintf '%x', int rand 16 } 1 .. $n } 8, 4, 4, 4, 12;
}

sub acquire
{
	my ($client, $lock, $lease, $wait, %more) = @_;
	my $owner = $more{owner};
	my $request = uuid();
	my $begun = time;
	my $event;

	# a request without an answer is repeated with the same id
	foreach my $try (1 .. 20)
	{
		$event = call($client, 'acquire',
			"SELECT $columns FROM leaselock.lease_acquire('$lock', '$owner', '$lease s', '$wait s', request_id => '$request')",
			lock => $lock, lease => $lease, wait => $wait, begun => $begun, $try == 1 ? (first => 1) : (), %more);
		return $event if $event->{state} ne '?';
		sleep(0.05);
	}
	return $event;
}

sub ticket_call
{
	my ($client, $op, $ticket, %more) = @_;
	return call($client, $op, "SELECT $columns FROM leaselock.lease_$op('$ticket->{ticket}')",
		ticket => $ticket->{ticket}, lock => $ticket->{lock}, lease => $ticket->{lease}, owner => $ticket->{owner}, %more);
}

sub insist
{
	my ($client, $op, $ticket) = @_;
	my $event;

	foreach (1 .. 20)
	{
		$event = ticket_call($client, $op, $ticket);
		last if $event->{state} ne '?';
		sleep(0.05);
	}
	return $event;
}

# Three ways to wait: polling, lease_wait, and lease_acquire_wait
sub wait_for_turn
{
	my ($client, $ticket, $until) = @_;
	my $event = $ticket;
	my $served = rand() < 0.4;

	while ($event->{state} =~ /^(?:waiting|\?)$/ && time < $until)
	{
		if ($served)
		{
			call($client, 'wait', "CALL leaselock.lease_wait('$ticket->{ticket}', '2 s')", ticket => $ticket->{ticket}, lock => $ticket->{lock}, owner => $ticket->{owner});
		}
		else { sleep(0.1 + rand(0.4)) }
		$event = ticket_call($client, 'get', $ticket);
	}
	return $event;
}

# A fenced write, with a stall between the check and the write or before COMMIT
sub fenced_write
{
	my ($client, $ticket, $stall) = @_;
	my %event = (client => $client->{number}, owner => $ticket->{owner}, op => 'write', lock => $ticket->{lock},
		fence => $ticket->{fence}, state => '?');
	my $update = "UPDATE target SET version = version + 1, fence = $ticket->{fence} WHERE name = '$ticket->{lock}'";

	open_session($client) unless $client->{session};
	my ($answered, $answer) = ask($client, "BEGIN; SELECT leaselock.fence_assert('$ticket->{lock}', $ticket->{fence}, allow_lapsed => true)");
	sleep($stall);
	($answered, $answer) = ask($client, $update) if $answered && $answer !~ /ERROR/;
	$event{asked} = time;
	if ($answered)
	{
		my $failed = $answer =~ /ERROR/;
		($answered, $answer) = ask($client, 'COMMIT');
		$event{state} = $failed || $answer =~ /ERROR/ ? 'refused' : 'written' if $answered;
	}
	$event{told} = time;
	print { $client->{log} } join("\t", map { "$_=$event{$_}" } sort keys %event), "\n";
	return;
}

sub work
{
	my ($client, $until) = @_;
	my $lock = $locks[ rand @locks ];
	my $owner = "owner$client->{number}";
	my $lease = 1 + int rand 3;
	my $event;

	if (rand() < 0.2)
	{
		# wait in one call, which returns nothing before it ends
		my $request = uuid();
		$event = call($client, 'acquire_wait', "CALL leaselock.lease_acquire_wait('$lock', '$owner', '$lease s', '3 s', request_id => '$request')",
			lock => $lock, owner => $owner);
		$event = acquire_again($client, $lock, $owner, $lease, $request, $event->{asked});
	}
	else
	{
		$event = acquire($client, $lock, $lease, rand() < 0.8 ? 20 : 0, owner => $owner);
	}
	$event = wait_for_turn($client, $event, $until) if $event->{ticket} && $event->{state} eq 'waiting';
	if ($event->{state} ne 'held')
	{
		insist($client, 'release', $event) if $event->{ticket};
		return;
	}

	# some clients stall during their work, past the end of the lease
	sleep(rand() < 0.2 ? $lease + rand 1 : rand 0.1) if rand() < 0.6;
	$event = { %$event, %{ ticket_call($client, rand() < 0.5 ? 'renew' : 'get', $event) }, fence => $event->{fence} } if rand() < 0.6;
	if (rand() < 0.3 && $event->{state} eq 'held' && $event->{expires})
	{
		my $second = acquire($client, $lock, $lease, 0, owner => $owner);
		insist($client, 'release', $second) if $second->{ticket};
	}
	fenced_write($client, $event, rand() < 0.25 ? $lease + 0.5 + rand 1 : rand 0.05) if rand() < 0.8;
	ticket_call($client, 'get', $event);

	# some do not release
	insist($client, 'release', $event) if rand() < 0.85;
	return;
}

# The outcome of a request; a known id does not request anything new
sub acquire_again
{
	my ($client, $lock, $owner, $lease, $request, $begun) = @_;
	my $event;

	foreach (1 .. 20)
	{
		$event = call($client, 'acquire',
			"SELECT $columns FROM leaselock.lease_acquire('$lock', '$owner', '$lease s', '0 s', request_id => '$request')",
			lock => $lock, lease => $lease, wait => 3, owner => $owner, begun => $begun);
		last if $event->{state} ne '?';
		sleep(0.05);
	}
	return $event;
}

sub run_client
{
	my ($number, $until) = @_;

	srand($seed + $number);
	open(my $log, '>', "$work/log.$number") or die $!;
	$log->autoflush(1);
	my $client = { number => $number, log => $log };
	work($client, $until) while time < $until;
	# a final call of every client
	foreach (1 .. 20)
	{
		my $event = call($client, 'release_all', "SELECT 'row', 'released' FROM leaselock.lease_release_all('owner$number')", owner => "owner$number");
		last if $event->{state} ne '?';
		sleep(0.1);
	}
	print $log "end\n";
	close_session($client);
	return;
}

# ---------------------------------------------------------------------
# The nemesis
# ---------------------------------------------------------------------

my @events;
my %count;
my $offset = 0;

sub try_sql
{
	my ($sql) = @_;
	my ($stdout, $stderr) = ('', '');
	my $result = $node->psql('postgres', $sql, stdout => \$stdout, stderr => \$stderr, timeout => 20, timed_out => \my $late);
	return defined $result && $result == 0 ? $stdout : undef;
}

sub await_server
{
	foreach (1 .. 200)
	{
		return if defined try_sql('SELECT 1');
		sleep(0.1);
	}
	die 'the server does not come back';
}

my $some_backend = q{SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'client%' ORDER BY random() LIMIT 1};
my %nemesis = (
	terminate => sub { try_sql("SELECT pg_terminate_backend(($some_backend))") },
	cancel => sub { try_sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'client%' AND state = 'active'") },
	kill_client => sub {
		my $number = 1 + int rand $clients;
		my $pid = slurp_file("$work/pid.$number");

		# the process may have ended by itself, and its pid may have been
		# reused
		open(my $command, '<', "/proc/$pid/cmdline") or return;
		kill 'KILL', $pid if (<$command> // '') =~ /application_name=client$number\b/;
	},
	kill_backend => sub {
		my $asked = time;
		my $pid = try_sql($some_backend);
		return unless $pid;
		kill 'KILL', $pid;
		sleep(0.3);
		await_server();
		push @events, { op => 'crash', asked => $asked, told => time };
	},
	stop => sub {
		my $asked = time;
		$node->stop('immediate');
		sleep(rand 0.5);
		start_server() or die 'the server does not start again';
		push @events, { op => 'crash', asked => $asked, told => time };
	},
	hold_open => sub {
		my $lock = $locks[ rand @locks ];
		my @calls = ("SELECT leaselock.try_lock('$lock', 'nemesis', '1 s')",
			"SELECT leaselock.lease_acquire('$lock', 'nemesis', '1 s', '500 ms')");
		try_sql("BEGIN; $calls[rand @calls]; SELECT pg_sleep(" . rand(1.5) . '); ' . (rand() < 0.5 ? 'COMMIT' : 'ROLLBACK'));
	},
	clock => sub {
		$offset += (rand() < 0.5 ? -1 : 1) * (1 + int rand 40);
		push @events, { op => 'clock', asked => time, offset => $offset };
		if (defined $faketime)
		{
			write_file($clock_file, sprintf("%+d\n", $offset));
		}
		else
		{
			try_sql("ALTER SYSTEM SET leaselock.clock_offset = '$offset s'");
			try_sql('SELECT pg_reload_conf()');
		}
	});

my $begun = time;
my $until = $begun + $seconds;
my @pids;
foreach my $number (1 .. $clients)
{
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		eval { run_client($number, $until); 1 } or print STDERR "client $number: $@";
		POSIX::_exit($@ ? 1 : 0);
	}
	push @pids, $pid;
}
srand($seed);
# first without clock changes and then with them, since clock changes excuse
# many deviations
my @plan = qw(terminate cancel kill_client kill_backend stop hold_open hold_open);
while (time < $until - 3)
{
	sleep(0.5 + rand 1);
	my @now = time > $begun + $seconds * 0.6 ? (@plan, qw(clock clock clock)) : @plan;
	my $what = $now[ rand @now ];
	$nemesis{$what}->();
	$count{$what}++;
}
note('nemesis: ' . join(', ', map { "$_ $count{$_}" } sort keys %count));
await_server();

# ---------------------------------------------------------------------
# The end
# ---------------------------------------------------------------------

my $patience = time + 60;
my $ended = 0;
while ($ended < @pids && time < $patience)
{
	my $pid = waitpid(-1, POSIX::WNOHANG());
	if ($pid > 0 && grep { $_ == $pid } @pids) { $ended++ }
	else { sleep(0.1) }
}
is($ended, scalar @pids, 'every client finishes');
kill 'KILL', @pids if $ended < @pids;

my ($stuck, $last_words, %states, %errors) = (0, 0);
foreach my $number (1 .. $clients)
{
	foreach my $line (split /\n/, slurp_file("$work/log.$number"))
	{
		if ($line eq 'end') { $last_words++; next }
		if ($line =~ /^stuck/) { $stuck++; diag($line); next }
		my $event = { map { split /=/, $_, 2 } split /\t/, $line };
		$states{"$event->{op} $event->{state}"}++;
		$errors{ $event->{error} }++ if $event->{error};
		push @events, $event;
	}
}
is($stuck, 0, 'no call hangs');
is($last_words, $clients, 'every client wrote its last log line');
note('answers: ' . join(', ', map { "$_ $states{$_}" } sort keys %states));
note('errors: ' . join(', ', map { "$_ $errors{$_}" } sort keys %errors));

my @table = map { [ split /\|/ ] }
  split /\n/, $node->safe_psql('postgres', 'SELECT name, version, fence FROM journal');
my @wrong = check_history(\@events, \@table);
is(scalar @wrong, 0, 'the history keeps every guarantee')
  or diag(join("\n", @wrong > 20 ? @wrong[ 0 .. 19 ] : @wrong));
cmp_ok($states{'acquire held'} // 0, '>', 10, 'locks were acquired');
cmp_ok($states{'get held'} // 0, '>', 10, 'locks were acquired after a wait');
cmp_ok($states{'write written'} // 0, '>', 10, 'rows were written');
cmp_ok(scalar @table, '>', 10, 'the rows are in the table');
is(scalar(grep { !/^(?:57014|57P01|57P02|57P03|55P03|08006|08003|LS001|40P01)$/ } keys %errors), 0,
	'only errors that the nemesis causes occur');

# leases of killed clients run out by themselves
if (!defined $faketime)
{
	$node->safe_psql('postgres', "ALTER SYSTEM SET leaselock.clock_offset = '" . ($offset + 400) . " s'");
	$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
}
else
{
	write_file($clock_file, sprintf("%+d\n", $offset + 400));
	$node->poll_query_until('postgres',
		'SELECT extract(epoch FROM clock_timestamp()) > ' . (time + $offset + 390))
	  or die 'the clock does not move';
}
foreach my $lock (@locks)
{
	is( $node->safe_psql('postgres', qq{
			CALL leaselock.lease_acquire_wait('$lock', 'last', wait => '20 s')}) =~ /\|held\|(\d+)\|/ ? 'held' : 'not',
		'held', "$lock: can be acquired at the end");
	is($node->safe_psql('postgres', "SELECT leaselock.lease_release_all('last')"), '1', "$lock: can be released again");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.lease_status'), '0', 'no holder or waiter is left');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM leaselock.locks WHERE role IS NOT NULL OR tickets <> 0}),
	'0', 'no lock has a holder or a ticket count left');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no advisory lock is left');
unlike(slurp_file($node->logfile), qr/(?:XX\d\d\d|PANIC|TRAP)/, 'no internal error in the server log');

$node->stop;

done_testing();
