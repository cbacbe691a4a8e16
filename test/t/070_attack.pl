# An attack: four sessions make random calls at all isolation levels, while
# others cancel queries, terminate sessions, rebuild and rewrite the tables,
# and drop and re-create the extension.  Then the test checks the guarantees:
# one holder at a time, fences in commit order, no stale write, no waiter
# stuck, no lock left, sound indexes, no internal error and no crash.
#
# LEASELOCK_ATTACK_SECONDS (20) sets how long the attack lasts.
# LEASELOCK_SEED repeats the random choices (the timing differs).
#
# Native only: it loads the machine, which three majors share.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use IO::Select;
use IPC::Open3;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $seconds = $ENV{LEASELOCK_ATTACK_SECONDS} || 20;
my $seed = $ENV{LEASELOCK_SEED} || int(time * 1000) % 2**31;
my $workers = 4;
my @locks = qw(red green blue);
my @levels = ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE');

note "LEASELOCK_SEED=$seed, $seconds s";

# leases short enough to run out during work
my $node = new_node('attack', qq{
max_connections = 40
max_prepared_transactions = 20
track_commit_timestamp = on
deadlock_timeout = '100 ms'
client_min_messages = warning
log_min_error_statement = panic
session_preload_libraries = 'leaselock'
leaselock.min_lease = '100 ms'
leaselock.waiter_timeout = '1 s'
leaselock.lock_timeout = '500 ms'
leaselock.ticket_retention = '1 s'
leaselock.max_waiters = 6
});

# One row for each grant that an acquisition made or joined, and for each
# fenced write, committed in the same transaction
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE ordinary LOGIN;
CREATE TABLE journal (lock text, fence bigint, identity text, kind text);
GRANT SELECT, INSERT ON journal TO ordinary;
});

# ---------------------------------------------------------------------
# Random choices
# ---------------------------------------------------------------------

sub any { return $_[ rand @_ ] }
sub chance { return rand() < $_[0] }
sub ms { my ($least, $most) = @_; return int($least + rand($most - $least)) . ' ms' }

sub uuid
{
	return join '-', map { join '', map { sprintf '%x', int rand 16 } 1 .. $_ } 8, 4, 4, 4, 12;
}

# ---------------------------------------------------------------------
# A client: a process with its own psql, which it restarts when the connection
# is lost
# ---------------------------------------------------------------------

sub open_session
{
	my ($client) = @_;

	$client->{block} = 0;
	foreach (1 .. 100)
	{
		my $pid = open3(my $in, my $out, undef, 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d',
			$node->connstr('postgres') . " application_name=$client->{name} user=$client->{role}");

		$client->{session} = { pid => $pid, in => $in, out => $out };
		return if defined ask($client, 'SELECT 1');
		sleep 0.1;
	}
	die "$client->{name} cannot connect";
}

sub close_session
{
	my ($client) = @_;
	my $session = delete $client->{session} or return;

	close $session->{in};
	close $session->{out};
	waitpid $session->{pid}, 0;
	return;
}

# Runs statements; returns the output of psql, or undef if the connection is
# lost
sub ask
{
	my ($client, $sql) = @_;
	my $session = $client->{session};
	my $buffer = '';

	local $SIG{PIPE} = 'IGNORE';
	{
		no warnings;
		syswrite($session->{in}, "$sql;\n\\echo done\n");
	}
	while ($buffer !~ /^done\n/m)
	{
		# no statement here takes that long
		IO::Select->new($session->{out})->can_read(40)
		  or die "$client->{name} hangs in: $sql";
		if (!sysread($session->{out}, $buffer, 65536, length $buffer))
		{
			$client->{last_words} = $buffer;
			close_session($client);
			return undef;
		}
	}
	return $buffer =~ s/^done\n//mr;
}

# SQLSTATEs that any statement may return: it may be cancelled or its session
# terminated at any time
my %always = map { $_ => 1 } qw(57014 57P01 08006);

# While the extension is dropped and created: its schema, functions or tables
# may be missing, or a table may disappear after its lookup.  Not at a COMMIT:
# there the checked fence is stale.
my %dropped = map { $_ => 1 } qw(3F000 42883 42P01 42704 55000);

# The server's own errors when a function or type is dropped between analysis
# and execution of a query.  Not at the end of a wait, where the extension
# checks for this first.
my $server_says = qr/^cache lookup failed for (?:function|type) \d+$|^could not open relation with OID \d+$/;

# run(CLIENT, KIND, SQL, MAY...): runs it and counts the outcome; returns the
# output, or undef after an error
sub run
{
	my ($client, $kind, $sql, @may) = @_;
	my %may = map { $_ => 1 } @may;
	my $state = '00000';

	# a block that changes a lock verifies its checked fence of that lock at
	# once
	$may{LS001} = 1 if $client->{block};
	my $where = $client->{block} && $kind !~ /block|^(?:commit|rollback|prepare|savepoint|fence_|write)/ ? ' in a block' : '';

	open_session($client) unless $client->{session};
	my $output = ask($client, $sql);
	my $said = $output // $client->{last_words};
	$client->{block} = 0 if !defined $output;
	$client->{failed} = 1;
	$state = '08006' if !defined $output;
	foreach my $line (split /\n/, $said)
	{
		next if $line !~ /^(?:psql:\S+ )?(ERROR|FATAL|PANIC|WARNING):  (\w{5}): (.*)/;
		my ($level, $message) = ($1, $3);

		$state = $2;
		$client->{count}{"server says\t$message, $kind, @{[ $said =~ /LOCATION:  (\w+)/ ]}" =~ s/\d+/N/gr}++ if $state =~ /^XX/;
		next
		  if $level ne 'PANIC' && $may{$state}
		  || $level =~ /ERROR|FATAL/ && ($always{$state}
			|| $client->{drops} && $kind !~ /^(?:commit|prepare)$/ && ($dropped{$state}
				|| $state eq 'XX000' && $message =~ $server_says && !($kind =~ /_wait$/ && $said =~ /LOCATION:  internal_get_result_type/)));
		print { $client->{log} } "bad\t$kind\t$line, after: $sql\n";
	}
	$client->{count}{"$kind$where\t$state"}++;
	$client->{last} = $state;
	return undef if $state ne '00000';
	$client->{failed} = 0;
	return $output;
}

# ---------------------------------------------------------------------
# The work of a worker
# ---------------------------------------------------------------------

# SQLSTATEs that any call may return: a lock is busy for too long, two
# transactions deadlock
my @busy = qw(55P03 40P01);

sub owner
{
	my ($client) = @_;
	return chance(0.85) ? "worker $client->{number}" : 'shared';
}

# Remembers a ticket or fence for later use, perhaps after it has become stale
sub remember
{
	my ($client, $what, $entry) = @_;
	my $list = $client->{$what} //= [];

	push @$list, $entry;
	shift @$list if @$list > 6;
	return;
}

sub known
{
	my ($client, $what) = @_;
	my $list = $client->{$what} // [];

	return undef if !@$list;
	return chance(0.6) ? $list->[-1] : any(@$list);
}

# "identity" is the identity of the call: its role and label
my $journal = q{INSERT INTO journal SELECT '%s', fence, '%s@' || current_user, 'grant' FROM a WHERE fence IS NOT NULL};

sub acquire
{
	my ($client, $lock, $lease, $wait) = @_;
	my $owner = owner($client);
	my $request = uuid();
	my @block = $client->{block} ? '55P03' : ();

	$lock //= any(@locks);
	$lease //= ms(150, 4000);
	$wait //= chance(0.5) ? '0' : ms(50, 3000);
	my $insert = sprintf $journal, $lock, $owner;
	my $call = sprintf q{leaselock.lease_acquire('%s', '%s', '%s', '%s', request_id => '%s')},
	  $lock, $owner, $lease, $wait, $request;
	my $out = run($client, $wait eq '0' ? 'acquire' : 'acquire, waiting',
		"WITH a AS MATERIALIZED (SELECT state, ticket, fence FROM $call), j AS ($insert) SELECT 'row', state, ticket, fence FROM a",
		'53400', '40P01', $wait eq '0' ? @block : '55P03');

	if (!defined $out)
	{
		# the call may have succeeded; a retry only looks up the request
		remember($client, 'requests', [ $lock, $owner, $request ]);
		return;
	}
	my (undef, $state, $ticket, $fence) = split /\|/, $out =~ s/\n//r, -1;
	$client->{count}{"answers\tacquire $state"}++;
	remember($client, 'tickets', [ $ticket, $lock, $owner ]) if $ticket ne '';
	remember($client, 'fences', [ $lock, $fence, $owner ]) if $fence ne '';
	return;
}

# A lookup does not keep others from the lock, so its fence is not journalled
sub retry
{
	my ($client) = @_;
	my $known = known($client, 'requests') or return;
	my ($lock, $owner, $request) = @$known;
	my $out = run($client, 'retry',
		"SELECT state, ticket, fence FROM leaselock.lease_acquire('$lock', '$owner', '200 ms', '0', request_id => '$request')", @busy, '53400') // return;
	my ($state, $ticket, $fence) = split /\|/, $out =~ s/\n//r, -1;

	remember($client, 'tickets', [ $ticket, $lock, $owner ]) if $ticket ne '';
	remember($client, 'fences', [ $lock, $fence, $owner ]) if $fence ne '';
	return;
}

sub ticket_call
{
	my ($client) = @_;
	my $known = known($client, 'tickets') or return acquire($client);
	my ($ticket, $lock, $owner) = @$known;
	my $call = any('get', 'get', 'renew', 'release', 'release');
	my $out = run($client, $call, "SELECT state, fence FROM leaselock.lease_$call('$ticket')", @busy) // return;
	my ($state, $fence) = split /\|/, $out =~ s/\n//r, -1;

	$client->{count}{"answers\t$call $state"}++;
	remember($client, 'fences', [ $lock, $fence, $owner ]) if $state eq 'held';
	return;
}

sub hold
{
	my ($client) = @_;
	my $lock = any(@locks);
	my $owner = owner($client);
	my $insert = sprintf $journal, $lock, $owner;

	if (chance(0.4))
	{
		my $call = any("renew_lock('$lock', '$owner', '" . ms(100, 3000) . "')", "release_lock('$lock', '$owner')");
		run($client, $call =~ s/_.*//r . '_lock', "SELECT leaselock.$call", @busy);
		return;
	}
	# a repeated call writes nothing, and so keeps nobody from the lock: only a
	# new grant is journalled
	# new grant is journalled
	my $out = run($client, 'try_lock',
		"SELECT leaselock.try_lock('$lock', '$owner', '" . ms(100, 3000) . "')", '40P01', $client->{block} ? '55P03' : ());
	remember($client, 'fences', [ $lock, $out =~ s/\n//r, $owner ]) if ($out // '') =~ /\d/;
	return;
}

sub wait_call
{
	my ($client) = @_;
	my $known = known($client, 'tickets');

	if ($client->{block})
	{
		run($client, 'wait in a block', sprintf(q{CALL leaselock.lease_acquire_wait('%s', '%s')}, any(@locks), owner($client)), '2D000');
		return;
	}
	if ($known && chance(0.5))
	{
		run($client, 'lease_wait', "CALL leaselock.lease_wait('$known->[0]', '" . ms(0, 400) . "')", @busy);
	}
	else
	{
		my $lock = any(@locks);
		my $owner = owner($client);
		my $out = run($client, 'lease_acquire_wait', sprintf(q{CALL leaselock.lease_acquire_wait('%s', '%s', '%s', '%s')},
				$lock, $owner, ms(150, 2000), ms(0, 600)), @busy, '53400');
		if (($out // '') =~ /^([-0-9a-f]{36})\|(\w+)\|(\d*)/)
		{
			$client->{count}{"answers\tacquire_wait $2"}++;
			remember($client, 'tickets', [ $1, $lock, $owner ]);
			remember($client, 'fences', [ $lock, $3, $owner ]) if $3 ne '';
		}
	}
	no_lock_left($client);
	return;
}

# Outside a transaction a session has no lock of the extension, whatever the
# result of its call
sub no_lock_left
{
	my ($client) = @_;
	my $out = run($client, 'look for locks', q{
		SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'}) // return;

	print { $client->{log} } "left\t$client->{name} has a lock outside a transaction\n" if $out ne "0\n";
	return;
}

sub write_row
{
	my ($client, $known) = @_;

	$known //= known($client, 'fences') or return;
	my ($lock, $fence, $owner) = @$known;
	my $lapsed = chance(0.5) ? 'true' : 'false';
	my $row = "'$lock', $fence, '$owner\@' || current_user, 'write'";
	my @may = (@busy, 'LS001', $client->{level} ne 'READ COMMITTED' ? '40001' : ());

	if (chance(0.5))
	{
		run($client, 'fence_check', "INSERT INTO journal SELECT $row WHERE leaselock.fence_check('$lock', $fence, allow_lapsed => $lapsed)", @may);
		return;
	}
	defined run($client, 'fence_assert', "SELECT leaselock.fence_assert('$lock', $fence, allow_lapsed => $lapsed)", @may) or return;
	run($client, 'write', "INSERT INTO journal VALUES ($row)");
	return;
}

sub operate
{
	my ($client) = @_;
	my $may = $client->{role} eq 'ordinary' ? '42501' : '40P01';
	my $lock = any(@locks);

	if (chance(0.4))
	{
		run($client, 'lease_prune', "SELECT leaselock.lease_prune('0 s', " . any(1, 10, 1000) . ')', @busy, $may);
		return;
	}
	my $known = known($client, 'fences') or return;
	run($client, 'lease_break',
		any("SELECT leaselock.lease_break('$known->[0]', $known->[1])",
			"SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$lock') WHERE fence IS NOT NULL"), @busy, $may);
	return;
}

sub look
{
	my ($client) = @_;
	my $lock = any(@locks);

	run($client, 'look', any("SELECT * FROM leaselock.lease_peek('$lock')", 'SELECT * FROM leaselock.lease_status',
			'SELECT * FROM leaselock.lease_tickets'), '40P01');
	return;
}

sub release_all
{
	my ($client) = @_;
	run($client, 'release_all', sprintf(q{SELECT leaselock.lease_release_all('%s')}, owner($client)), @busy);
	return;
}

sub one_call
{
	my ($client) = @_;
	return any((\&acquire) x 6, (\&ticket_call) x 7, (\&hold) x 3, (\&write_row) x 4, \&retry, \&wait_call, \&operate, \&look, \&release_all)->($client);
}

# Writes under a lease that runs out before the COMMIT, and may be taken over
sub write_late
{
	my ($client) = @_;
	my $before = $client->{count}{"answers\tacquire held"} // 0;

	acquire($client, any(@locks), '100 ms', '0');
	return if ($client->{count}{"answers\tacquire held"} // 0) == $before;
	$client->{level} = any(@levels);
	defined run($client, 'begin', "BEGIN ISOLATION LEVEL $client->{level}") or return;
	@$client{ 'block', 'failed' } = (1, 0);
	write_row($client, $client->{fences}[-1]);
	sleep 0.1 + rand 0.2 if $client->{block} && !$client->{failed};
	end_block($client) if $client->{block};
	$client->{level} = 'READ COMMITTED';
	return;
}

# A transaction block, with savepoints
sub block
{
	my ($client) = @_;

	$client->{level} = any(@levels);
	defined run($client, 'begin', "BEGIN ISOLATION LEVEL $client->{level}") or return;
	@$client{ 'block', 'failed' } = (1, 0);
	foreach (1 .. 1 + int rand 4)
	{
		my $savepoint = chance(0.5) && defined run($client, 'savepoint', 'SAVEPOINT s');

		last if !$client->{block} || $client->{failed};
		any((\&one_call) x 2, \&write_row, \&acquire)->($client);
		if ($savepoint && $client->{block} && ($client->{failed} || chance(0.2)))
		{
			$client->{failed} = 0;
			run($client, 'rollback to', 'ROLLBACK TO s');
		}
		last if !$client->{block} || $client->{failed};
	}
	end_block($client) if $client->{block};
	$client->{level} = 'READ COMMITTED';
	return;
}

sub end_block
{
	my ($client) = @_;
	my $end = any(('COMMIT') x 5, 'ROLLBACK', 'PREPARE TRANSACTION');
	my $ended;

	# meanwhile leases run out, and others take over
	sleep rand 0.05 if !$client->{failed} && chance(0.3);

	if ($client->{failed})
	{
		$ended = run($client, 'rollback', 'ROLLBACK');
	}
	elsif ($end =~ /^PREPARE/)
	{
		my $name = "$client->{name} " . ++$client->{prepared_count};

		# without an answer the transaction may be prepared
		push @{ $client->{prepared} }, $name;
		$ended = run($client, 'prepare', "$end '$name'", @busy, 'LS001', '0A000', '40001');
		sleep rand 0.1 if defined $ended && chance(0.5);
	}
	else
	{
		$ended = run($client, lc $end, $end, @busy, 'LS001');
	}
	# a ROLLBACK cancelled before it started leaves the block open; 25P01: the
	# block had ended
	$ended = run($client, 'rollback, again', 'ROLLBACK', '25P01')
	  while !defined $ended && $client->{block} && $client->{last} ne '25P01';
	$client->{block} = 0;
	return;
}

# Finishes the prepared transactions
sub finish_prepared
{
	my ($client) = @_;

	while (my $name = shift @{ $client->{prepared} })
	{
		my $end = any('COMMIT', 'COMMIT', 'ROLLBACK');
		my $out;

		# 42704: it was not prepared; 55000: its session still works on it
		foreach (1 .. 50)
		{
			$out = run($client, lc "$end prepared", "$end PREPARED '$name'", '42704', '55000');
			last if defined $out || ($client->{last} // '') eq '42704';
			my $there = run($client, 'look for prepared', "SELECT count(*) FROM pg_prepared_xacts WHERE gid = '$name'");
			last if ($there // '') eq "0\n";
			sleep 0.02;
		}
	}
	return;
}

sub work
{
	my ($number, $until, $drops) = @_;
	my $client = { number => $number, name => "worker$number", role => $number > 2 ? 'ordinary' : 'postgres_user',
		level => 'READ COMMITTED', drops => $drops, prepared => [] };

	$client->{role} = getpwuid($>) if $client->{role} eq 'postgres_user';
	return ($client, sub {
		while (time < $until)
		{
			my $limited = chance(0.1);

			run($client, 'set', 'SET statement_timeout = ' . int(1 + rand 30)) if $limited;
			chance(0.4) ? block($client) : chance(0.03) ? write_late($client) : one_call($client);
			run($client, 'set', 'RESET statement_timeout') if $limited;
			finish_prepared($client);
			no_lock_left($client) if chance(0.03);
			sleep rand 0.2 if chance(0.01);
		}
	});
}

# ---------------------------------------------------------------------
# The disturbing clients
# ---------------------------------------------------------------------

sub disturb
{
	my ($until, $drops) = @_;
	my $client = { name => 'killer', role => scalar getpwuid($>), level => '', drops => $drops };

	return ($client, sub {
		my $some = q{FROM pg_stat_activity WHERE application_name ~ '^worker' %s ORDER BY random() LIMIT 1};

		while (time < $until)
		{
			sleep 0.01 + rand 0.06;
			my $what = chance(0.04) ? 'terminate' : 'cancel';
			my $which = sprintf $some, chance(0.5) ? q{AND state = 'active'} : '';
			run($client, $what, "SELECT pg_${what}_backend(pid) FROM (SELECT pid $which) s");
		}
	});
}

sub maintain
{
	my ($until, $drops) = @_;
	my $client = { name => 'maintenance', role => scalar getpwuid($>), level => '', drops => $drops };
	my @tables = map { "leaselock.$_" } qw(locks locks tickets tickets tickets blockers scopes floor);
	my @indexes = map { "leaselock.$_" } qw(locks_pkey tickets_request tickets_ticket tickets_place tickets_waiter blockers_owner);
	# two holders of one lock would be seen here, if the query comes at the
	# right time
	my $look = q{
		WITH s AS MATERIALIZED (SELECT * FROM leaselock.lease_status),
		t AS MATERIALIZED (SELECT * FROM leaselock.lease_tickets),
		l AS MATERIALIZED (SELECT ctid, xmin, xmax, * FROM leaselock.locks),
		seen AS (
			SELECT 'lease_status' AS by, name FROM s GROUP BY name HAVING count(*) > 1
			UNION ALL
			SELECT 'lease_tickets', name FROM t WHERE state = 'held' GROUP BY name HAVING count(DISTINCT (role, owner)) > 1
			UNION ALL
			SELECT 'locks', name FROM l GROUP BY name HAVING count(*) > 1)
		SELECT 'seen by ' || by || ': ' || name FROM seen
		UNION ALL
		SELECT 'lease_status ' || to_json(s) FROM s WHERE name IN (SELECT name FROM seen)
		UNION ALL
		SELECT 'lease_tickets ' || to_json(t) FROM t WHERE name IN (SELECT name FROM seen)
		UNION ALL
		SELECT 'locks ' || to_json(l) FROM l WHERE name IN (SELECT name FROM seen)
		UNION ALL
		SELECT 'tickets ' || to_json(k) FROM (SELECT ctid, xmin, xmax, * FROM leaselock.tickets) k WHERE name IN (SELECT name FROM seen)};

	return ($client, sub {
		while (time < $until)
		{
			my @sql = any(
				[ 'reindex concurrently', 'REINDEX TABLE CONCURRENTLY ' . any(@tables) ],
				[ 'reindex concurrently', 'REINDEX INDEX CONCURRENTLY ' . any(@indexes) ],
				[ 'reindex', 'REINDEX TABLE ' . any(@tables) ],
				[ 'vacuum full', 'VACUUM FULL ' . any(@tables) ],
				[ 'vacuum', 'VACUUM ' . any(@tables) ],
				[ 'cluster', any('CLUSTER leaselock.locks USING locks_pkey', 'CLUSTER leaselock.tickets USING tickets_ticket') ],
				[ 'create index concurrently', 'CREATE INDEX CONCURRENTLY dba ON ' . any('leaselock.tickets (state)', 'leaselock.tickets USING hash (owner)', 'leaselock.locks (fence)') ],
				(map { [ 'look', $look ] } 1 .. 4),
				(map { $drops ? [ 'drop and create extension', any(
						'DROP EXTENSION IF EXISTS leaselock; CREATE EXTENSION leaselock',
						'BEGIN; DROP EXTENSION IF EXISTS leaselock; CREATE EXTENSION leaselock; COMMIT',
						'BEGIN; DROP EXTENSION IF EXISTS leaselock; CREATE EXTENSION leaselock; ROLLBACK') ] : () } 1 .. 3));
			my ($kind, $sql) = @{ $sql[0] };

			run($client, 'set', q{SET lock_timeout = '700 ms'; SET statement_timeout = } . (chance(0.4) ? int(10 + rand 100) : 2000));
			my $out = run($client, $kind, $sql, '55P03', '40P01', '25P02', '42710', '58P01');
			if ($kind eq 'look')
			{
				print { $client->{log} } "left\ttwo holders, $_\n" foreach split /\n/, $out // '';
			}
			run($client, 'set', q{ROLLBACK; RESET statement_timeout; SET lock_timeout = '5 s'}, '25P01')
			  if $kind =~ /extension/;
			if ($kind =~ /concurrently/)
			{
				# the invalid index that a cancelled command left
				run($client, 'set', q{RESET statement_timeout});
				run($client, 'drop index', q{
					SELECT format('DROP INDEX IF EXISTS %s', indexrelid::regclass)
					FROM pg_index JOIN pg_class t ON t.oid = indrelid LEFT JOIN pg_class o ON o.reltoastrelid = t.oid
					WHERE coalesce(o.relnamespace, t.relnamespace) = (SELECT oid FROM pg_namespace WHERE nspname = 'leaselock')
						AND (NOT indisvalid OR indexrelid::regclass::text = 'leaselock.dba') \gexec} . "\nSELECT 1", '55P03', '40P01');
			}
		}
	});
}

# ---------------------------------------------------------------------
# The attack: in the first phase the extension stays, in the second it is
# dropped and created
# ---------------------------------------------------------------------

my (%count, @bad, @left);
my $files = PostgreSQL::Test::Utils::tempdir();

sub attack
{
	my ($phase, $length, $drops) = @_;
	my $until = time + $length;
	my @children;

	foreach my $n (1 .. $workers + 2)
	{
		my $pid = fork // die "fork: $!";
		if ($pid != 0)
		{
			push @children, $pid;
			next;
		}
		# the child must not run the node's destructor or any test
		my $done = eval {
			srand $seed * 100 + $phase * 10 + $n;
			my ($client, $run) =
			    $n <= $workers ? work($n, $until, $drops)
			  : $n == $workers + 1 ? disturb($until, $drops)
			  : maintain($until, $drops);
			open($client->{log}, '>', "$files/$phase.$n") or die $!;
			$client->{log}->autoflush(1);
			$run->();
			close_session($client);
			print { $client->{log} } "count\t$_\t$client->{count}{$_}\n" foreach sort keys %{ $client->{count} };
			print { $client->{log} } "end\n";
			1;
		};
		warn "client $n: $@" if !$done;
		require POSIX;
		POSIX::_exit($done ? 0 : 1);
	}
	foreach my $pid (@children)
	{
		waitpid $pid, 0;
	}
	foreach my $n (1 .. $workers + 2)
	{
		my $log = slurp_file("$files/$phase.$n");

		like($log, qr/^end$/m, "phase $phase: client $n finishes");
		foreach my $line (split /\n/, $log)
		{
			my ($what, $kind, $state, $number) = split /\t/, $line, 4;
			$count{$kind}{$state} += $number if $what eq 'count';
			push @bad, "$kind: $state" if $what eq 'bad';
			push @left, $kind if $what eq 'left';
		}
	}
	return;
}

attack(1, $seconds / 2, 0);
attack(2, $seconds / 2, 1);

my $calls = 0;
foreach my $kind (sort keys %count)
{
	note sprintf '%-25s %s', $kind, join ', ', map { "$_: $count{$kind}{$_}" } sort keys %{ $count{$kind} };
	next if $kind =~ /answers|server says/;
	$calls += $_ foreach values %{ $count{$kind} };
}
note "statements: $calls";

is(scalar @bad, 0, 'only expected errors occur')
  or diag "LEASELOCK_SEED=$seed\n" . join "\n", splice @bad, 0, 20;
is_deeply(\@left, [], 'no session keeps a lock, and no lock has two holders');

# the test proves nothing unless these happened
foreach my $happened (
	[ 'cancel', '00000' ], [ 'terminate', '00000' ], [ 'commit', '00000' ], [ 'commit', 'LS001' ], [ 'prepare', '00000' ],
	[ 'reindex concurrently', '00000' ], [ 'vacuum full', '00000' ], [ 'drop and create extension', '00000' ],
	[ 'lease_acquire_wait', '57014' ], [ 'lease_prune', '00000' ], [ 'lease_break', '00000' ],
	[ 'answers', 'acquire held' ], [ 'answers', 'acquire waiting' ], [ 'answers', 'acquire_wait held' ])
{
	my ($kind, $state) = @$happened;
	cmp_ok($count{$kind}{$state} // 0, '>', 0, "this happened: $kind, $state");
}

# ---------------------------------------------------------------------
# Final checks
# ---------------------------------------------------------------------

sub value
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name ~ '^(worker|killer|maintenance)'}), 'all sessions have ended');
value("COMMIT PREPARED '$_'") foreach split /\n/, value('SELECT gid FROM pg_prepared_xacts');
value('CREATE EXTENSION IF NOT EXISTS leaselock');

is(value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no advisory lock is left, so no mark of a waiter either');

# a row counts if its transaction committed
my $ordered = q{SELECT lock, fence, identity, kind, pg_xact_commit_timestamp(xmin) AS at FROM journal};
my ($grants, $writes) = split /\|/, value(q{SELECT count(*) FILTER (WHERE kind = 'grant'), count(*) FILTER (WHERE kind = 'write') FROM journal});
note("journal: $grants grants, $writes writes under a fence");
cmp_ok($grants, '>', 5 * $seconds, 'grants were made');
cmp_ok($writes, '>', 2 * $seconds, 'rows were written');
is(value("SELECT count(*) FROM ($ordered) j WHERE at IS NULL"), '0', 'every row has a commit time');
is( value(qq{
		SELECT string_agg(format('%s: %s of %s after %s, a %s', lock, fence, identity, before, kind), '; ') FROM (
			SELECT *, max(fence) OVER (PARTITION BY lock ORDER BY at, fence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
			FROM ($ordered) j) s
		WHERE before > fence}),
	'', 'fences grow in commit order, and no stale write was committed');
is( value(q{
		SELECT string_agg(format('%s: %s', lock, fence), '; ')
		FROM (SELECT lock, fence FROM journal GROUP BY 1, 2 HAVING count(DISTINCT identity) > 1) s}),
	'', 'each fence belongs to one identity');
is( value(q{SELECT count(*) FROM (SELECT name FROM leaselock.lease_tickets WHERE state = 'held'
		GROUP BY name HAVING count(DISTINCT (role, owner)) > 1) s}), '0', 'each lock has at most one holder');
is(value(q{SELECT count(*) FROM (SELECT scope, name FROM leaselock.lease_status GROUP BY 1, 2 HAVING count(*) > 1) s}),
	'0', 'lease_status shows each lock once');

# a new waiter gets the lock, because all others have stopped polling
foreach my $lock (@locks)
{
	like(value("CALL leaselock.lease_acquire_wait('$lock', 'the last', wait => '60 s')"), qr/\|held\|/, "$lock: a new waiter gets the lock");
	is( value("SELECT fence > coalesce((SELECT max(fence) FROM journal WHERE lock = '$lock'), 0) FROM leaselock.lease_peek('$lock')"),
		't', "$lock: its fence is above all used ones");
}
my $later = q{SET leaselock.clock_offset = '10 min'; };
is(value($later . q{SELECT count(*) FROM leaselock.lease_tickets}), '0', 'no ticket lasts forever');
is(value($later . q{SELECT count(*) FROM leaselock.lease_status WHERE NOT lapsed OR waiters > 0}), '0', 'no hold lasts forever');
like(value($later . q{SELECT leaselock.lease_prune('0 s', 1000000)}), qr/^\d+$/, 'lease_prune removes them');
is(value($later . q{SELECT leaselock.lease_prune('0 s', 1000000)}), '0', 'one call removes everything');
is(value(q{SELECT (SELECT count(*) FROM leaselock.tickets), (SELECT count(*) FROM leaselock.locks)}), '0|0', 'no row is left');
is(value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no advisory lock is left');

value("DROP INDEX $_") foreach split /\n/, value(q{
	SELECT indexrelid::regclass FROM pg_index JOIN pg_class c ON c.oid = indexrelid
	WHERE relnamespace = 'leaselock'::regnamespace AND NOT indisvalid});
is_deeply([ unsound($node) ], [], 'amcheck finds no damage');

# two errors are the server's: REINDEX TABLE CONCURRENTLY on an index left by a
# cancelled command, and the parser's error, with a position, for a function
# that has been dropped
is_deeply([ grep { !/cannot reindex invalid index|:  cache lookup failed for (?:function|type) \d+(?: at character \d+)?$|:  could not open relation with OID \d+$/ } internal_errors($node) ],
	[], 'no internal error in the server log');
is_deeply([ crashes($node) ], [], 'no crash');
$node->stop;

done_testing();
