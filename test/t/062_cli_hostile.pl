# The program leaselock against a hostile server: every command with every
# message of the protocol, truncated, repeated and out of order.  It ends in
# time and without a signal, and its output contains no control characters.
#
# LEASELOCK_SEED repeats the data sent; LEASELOCK_HOSTILE_CASES sets the number
# of random cases.
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use HostileServer;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

need_program();

my $seed = $ENV{LEASELOCK_SEED} || int(time * 1000) % 2**31;
my $cases = $ENV{LEASELOCK_HOSTILE_CASES} || 120;
note "LEASELOCK_SEED=$seed LEASELOCK_HOSTILE_CASES=$cases";

# how many run at once; they mostly wait
my $at_once = 60;

my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $ticket = '01a22b43-617b-7e88-a5e0-f9af01cea561';

my %commands = (
	acquire => [qw(acquire n --owner o)],
	'acquire with a wait' => [qw(acquire n --owner o --wait-seconds 1 --json)],
	get => [ 'get', $ticket ],
	heartbeat => [ 'heartbeat', $ticket, '--json' ],
	release => [ 'release', $ticket ],
	status => ['status'],
	'status as JSON' => [qw(status --json)],
	'status of a lock' => [qw(status n)],
	'status of a queue' => [qw(status --queue)],
	'status again and again' => [qw(status --watch --interval 0.1)],
	'events as JSON' => [qw(events --json)],
	break => [qw(break n --fence 5)],
	run => [qw(run n --lease-seconds 2 --wait-seconds 1 -- true)],
	'run with a long command' => [qw(run n --lease-seconds 2 -- sleep 2)],
);

# ---------------------------------------------------------------------
# What is sent
# ---------------------------------------------------------------------

# columns and rows as the query expects them
sub asked
{
	my ($query) = @_;

	return (\@queue_columns, queue_row()) if $query =~ /lease_tickets/;
	return (\@status_columns, status_row()) if $query =~ /lease_status|lease_peek\(\$1, \$2\)/;
	return (\@event_columns, event_row()) if $query =~ /lease_events/;
	return (\@break_columns, break_row()) if $query =~ /lease_break/;
	return (\@ticket_columns, ticket_row(state => $query =~ /lease_release/ ? 'released' : 'held'));
}

sub good { return answer(asked($_[0])) }

# the same with one message inserted before the last, which ends the query
sub good_and
{
	my ($query, @more) = @_;
	my @messages = good($query);

	return (@messages[ 0 .. $#messages - 1 ], @more, $messages[-1]);
}

# a ticket with these changes
sub changed
{
	my (%change) = @_;
	return sub { answer(\@ticket_columns, ticket_row(%change)) };
}

my $min = '-9223372036854775808';
my $max = '9223372036854775807';

# Invalid answers to any query
my %nonsense = (
	'only ReadyForQuery' => sub { message('Z', 'I') },
	'no table' => sub { message('1', ''), message('2', ''), message('C', "SELECT 1\0"), message('Z', 'I') },
	'no columns' => sub { answer([], row()) },
	'one column' => sub { answer(['x'], row('1')) },
	'one column too many' => sub { my ($columns, @rows) = asked($_[0]); answer([ @$columns, 'x' ], map { row(('1') x (@$columns + 1)) } @rows) },
	'other columns' => sub { my ($columns) = asked($_[0]); answer([ map { "$_$evil" } @$columns ], row(map { $evil } @$columns)) },
	'columns without values' => sub { my ($columns) = asked($_[0]); answer($columns, row(map { undef } @$columns)) },
	'empty values' => sub { my ($columns) = asked($_[0]); answer($columns, row(map { '' } @$columns)) },
	'values of another length' => sub { my ($columns) = asked($_[0]); answer($columns, row('held')) },
	'a transaction that is still open' => sub { my @messages = good($_[0]); @messages[ 0 .. $#messages - 1 ], message('Z', 'T') },
	'two tables' => sub { my @messages = good($_[0]); @messages[ 0 .. $#messages - 1 ], @messages[ 2 .. $#messages ] },
	'an error after the row' => sub { good_and($_[0], failure('40001', "could not serialize$evil")) },
	'an error with invalid fields' => sub { failure($evil, $evil, D => $evil, H => $evil), message('Z', 'I') },
	'a long error' => sub { failure('XX000', "x$evil" x 5000, D => 'y' x 100_000), message('Z', 'I') },
	'an error without fields' => sub { message('E', "\0"), message('Z', 'I') },
	'COPY IN' => sub { message('1', ''), message('2', ''), message('G', "\0\0\0") },
	'COPY OUT' => sub { message('1', ''), message('2', ''), message('H', "\0\0\0"), (message('d', $evil)) x 3, message('c', ''), message('C', "COPY 3\0"), message('Z', 'I') },
	'COPY BOTH' => sub { message('1', ''), message('2', ''), message('W', "\0\0\0") },
	'an empty query' => sub { message('1', ''), message('2', ''), message('I', ''), message('Z', 'I') },
	'a suspended portal' => sub { my @messages = good($_[0]); (@messages[ 0 .. $#messages - 2 ], message('s', ''), $messages[-1]) },
	'bytes' => sub { join '', map { chr(($_ * 167 + 13) % 256) } 1 .. 4000 },
);

# Invalid answers to a query for a ticket
my %nonsense_ticket = (
	'an unknown state' => changed(state => "hold$evil"),
	'no state' => changed(state => undef),
	'a ticket that is not a uuid' => changed(ticket => 't' x 5000),
	'no ticket' => changed(ticket => undef),
	'no fence' => changed(fence => undef),
	'a fence of 0' => changed(fence => 0),
	'a fence that is too large' => changed(fence => '9' x 30),
	'a lease without a length' => changed(remaining_ms => undef),
	'a lease that has ended' => changed(remaining_ms => $min),
	'a lease without end' => changed(remaining_ms => $max),
	'a lease whose length is not a number' => changed(remaining_ms => "1$evil"),
	'no time of the next call' => changed(next_call_ms => undef),
	'a next call in the distant past' => changed(next_call_ms => $min),
	'a next call in the infinite future' => changed(next_call_ms => $max),
	'a wait without end' => changed(state => 'waiting', fence => undef, remaining_ms => $max, next_call_ms => $max),
	'a wait with a next call in the distant past' => changed(state => 'waiting', next_call_ms => $min),
	'a position that is not a number' => changed(position => $evil),
	'an answer that is not JSON' => changed(json => $evil),
);

# message types, valid and invalid
my @noise = (
	'R', 'S', 'K', 'Z', 'T', 'D', 'C', 'E', 'N', 'A', '1', '2', '3', 'n', 't', 's', 'I', 'G', 'H',
	'W', 'd', 'c', 'V', 'v', "\0", 'x', "\x9B");

sub random_bytes
{
	my ($most) = @_;
	return join '', map { rand() < 0.3 ? substr($evil, int rand length $evil, 1) : chr int rand 256 } 1 .. int rand $most;
}

sub random_message
{
	my ($query) = @_;
	my @known = (
		greeting(), good($query), notice($evil x 3), failure('57P01', $evil), failure('22023', $evil),
		message('A', pack('N', 1) . "a\0b\0"), message('S', "$evil\0$evil\0"), message('G', "\0\0\0"),
		message('H', "\0\0\0"), message('W', "\0\0\0"), message('d', $evil), message('c', ''),
		message('Z', 'E'), message('R', pack 'N', 3), message('R', pack 'NA4', 5, 'salt'),
		message('R', pack('N', 10) . "SCRAM-SHA-256\0\0"), columns(map { "c$_" } 1 .. 300));

	return $known[ rand @known ] if rand() < 0.5;
	return message($noise[ rand @noise ], random_bytes(rand() < 0.1 ? 40_000 : 60));
}

# some changes to a list of messages
sub spoil
{
	my ($query, @messages) = @_;

	foreach (1 .. 1 + int rand 4)
	{
		my $at = int rand @messages;
		my $kind = int rand 8;
		if ($kind == 0) { splice @messages, $at, 1 }
		elsif ($kind == 1) { splice @messages, $at, 0, ($messages[$at]) x (rand() < 0.1 ? 1000 : 1 + rand 3) }
		elsif ($kind == 2) { splice @messages, $at, 0, map { random_message($query) } 0 .. rand 3 }
		elsif ($kind == 3) { $messages[$at] = random_message($query) }
		elsif ($kind == 4) { @messages[ $at, 0 ] = @messages[ 0, $at ] }
		elsif ($kind == 5) { substr $messages[$at], rand length $messages[$at], 1, chr int rand 256 }
		elsif ($kind == 6) { substr $messages[$at], rand length $messages[$at], length $messages[$at], '' }
		elsif ($kind == 7) { substr $messages[$at], 1, 4, pack 'N', rand() < 0.5 ? rand 2**32 : rand 60 }
		push @messages, '' if !@messages;
	}
	my $bytes = join '', @messages;
	substr $bytes, rand length $bytes, length $bytes, '' if rand() < 0.2;
	return $bytes;
}

sub play_chance
{
	my ($number, $query) = @_;

	# every connection gets the same answer to the same query
	srand($seed + 1000 * $number + length($query // ''));
	my $spoilt = rand() < (defined $query ? 0.7 : 0.2);
	my @messages = defined $query ? good($query) : greeting();
	my $bytes = $spoilt ? spoil($query // 'lease_get', @messages) : join '', @messages;

	# in some cases the program must find the end itself, if there is time for
	# it
	return [ $bytes, !$spoilt || (rand() < 0.2 && $cases > 1000) ? 'stays' : 'close' ];
}

# Selected by the name of the database
my %answers = (%nonsense, %nonsense_ticket);
my @nonsense = sort keys %answers;
my %plays = (
	good => sub { [ join('', good($_[0])), 'stays' ] },
	held_then_closed => sub { [ $_[0] =~ /lease_release/ ? '' : join('', good($_[0])), 'close' ] },
	fails_over => sub {
		my ($query, $count) = @_;
		[ join('', $count == 1 ? answer(\@ticket_columns, ticket_row(state => 'waiting', fence => undef)) :
			  $count == 2 ? (failure('25006', 'a standby'), message('Z', 'I')) : good($query)), 'stays' ] },
	long_lease => sub { [ $_[0] =~ /lease_acquire/ ? join('', answer(\@ticket_columns, ticket_row(remaining_ms => 3 * 10**12, next_call_ms => 10**12))) : '', 'stays' ] },
	silent => sub { [ '', 'silent' ] },
	closes => sub { [ '', 'close' ] },
	waits => sub { [ join('', answer(\@ticket_columns, ticket_row(
		state => 'waiting', fence => undef, position => 1, next_call_ms => 0, holder => "h$evil"))), 'stays' ] },
	notices => sub { [ join('', notice("n$evil", D => $evil) x 1000, good($_[0])), 'stays' ] },
	refuses => sub { [ join('', failure('42501', "permission denied$evil\nmore", D => "d$evil", H => "h$evil"), message('Z', 'I')), 'stays' ] },
	locks => sub { [ join('', answer(\@status_columns, (status_row(scope => 's', owner => 'o', json => '{}')) x 60_000)), 'stays' ] },
);

start_hostile($dir, sub {
	my ($database, $query, $count) = @_;

	return play_chance($1, $query) if $database =~ /^chance(\d+)$/;
	return [ join('', greeting()), 'stays' ] if !defined $query && $database ne 'refuses_at_once';
	return [ message('E', "SFATAL\0VFATAL\0C28000\0Mgo away$evil\0\0"), 'close' ] if $database eq 'refuses_at_once';
	return [ join('', $answers{ $nonsense[$1] }->($query)), 'stays' ] if $database =~ /^nonsense(\d+)$/;
	return $plays{$database}->($query, $count);
});

# run_cases(CASES): each case is [ NAME, DATABASE, COMMAND, OPTIONS... ]
sub run_cases
{
	my (@list) = @_;
	return run_many($at_once, map {
		my ($name, $database, $command, %options) = @$_;
		[ [ '-d', connection_string($dir, $database), @$command ], %options ]
	} @list);
}

sub ordered { return map { [ $_, $commands{$_} ] } sort keys %commands }

# What must hold for every client; returns what is wrong with it, if anything
sub faults
{
	my ($client) = @_;
	my @faults;

	push @faults, 'it hangs' if $client->{rc} eq 'hangs';
	push @faults, "signal $client->{rc}" if $client->{rc} ne 'hangs' && $client->{rc} < 0;
	foreach my $stream (qw(out err))
	{
		my $controls = control_characters($client->{$stream});
		push @faults, "$stream has $controls" if $controls ne '';
	}
	push @faults, 'nothing is said' if $client->{rc} eq '4' && $client->{err} !~ /^leaselock: ./m;
	return join ', ', @faults;
}

# ---------------------------------------------------------------------
# Silent servers take the longest
# ---------------------------------------------------------------------

# status and events time out after 30 s, so they are left to the long run
my @silent = grep { $_->[0] !~ /^(status(?! of)|events)/ || $cases > 1000 } ordered();
my @waiting = map { spawn_cli([ '-d', connection_string($dir, 'silent'), @{ $_->[1] } ]) } @silent;

# ---------------------------------------------------------------------
# Valid answers
# ---------------------------------------------------------------------

foreach (
	[ 'acquire', 0 ], [ 'get', 0 ], [ 'heartbeat', 0 ], [ 'release', 0 ], [ 'status', 0 ],
	[ 'status as JSON', 0 ], [ 'status of a lock', 0 ], [ 'events as JSON', 0 ], [ 'break', 0 ], [ 'run', 0 ])
{
	my ($name, $code) = @$_;
	my ($client) = run_cases([ $name, 'good', $commands{$name} ]);
	is("$client->{rc}|$client->{err}", "$code|", "a valid answer: $name");
	is(faults($client), '', "a valid answer: $name: no control characters");
	is(eval { JSON::PP->new->utf8->decode($client->{out})->{owner} } // $client->{out},
		"\e[2J\e]0;pwned\a\x{FFFD}2J\x{9B}31m\x{7F}\x{08}\r\t\x{FFFD}\x{FFFD}\x{FFFD}\x{FFFD}\x{FFFD}\xE4\x{FFFD}",
		"a valid answer: $name: JSON with all values")
	  if "@{ $commands{$name} }" =~ /--json/;
}

my ($client) = run_cases([ 'status', 'locks', ['status'] ]);
is("$client->{rc}|" . ($client->{out} =~ tr/\n//), '0|60001', 'status shows 60 000 locks');

# it has started to write and is blocked, because nobody reads
foreach my $watch ([], [qw(--watch)])
{
	pipe my $read, my $write or die "no pipe: $!";
	my $writer = spawn_cli([ '-d', connection_string($dir, 'locks'), 'status', @$watch ],
		out => $write, close => [$read]);
	close $write;
	sysread $read, my $byte, 1;
	kill 'INT', $writer->{pid};
	reap_cli($writer);
	is($writer->{rc}, @$watch ? 128 + 2 : -2, "status @$watch with 60 000 locks and no reader: INT ends it");
}

# ---------------------------------------------------------------------
# Invalid answers
# ---------------------------------------------------------------------

my @once = grep { $_->[0] !~ /again/ } ordered();
my @tickets = grep { $_->[0] =~ /acquire|get|heartbeat|release|run$/ } ordered();

# the name of the test, the database, the commands, the expected status and
# message
my @groups = map {
	[ "an invalid answer: $nonsense[$_]", "nonsense$_",
		$nonsense_ticket{ $nonsense[$_] } ? \@tickets : [ ordered() ], 4, qr/./ ]
} 0 .. $#nonsense;
push @groups,
  [ 'a server that closes the connection', 'closes', [ ordered() ], 4, qr/closed the connection/ ],
  [ 'a server that refuses', 'refuses', [ ordered() ], 4, qr/permission denied.*more \(42501\)/ ],
  [ 'a server that refuses the connection', 'refuses_at_once', [ ordered() ], 4, qr/28000.*go away/ ],
  [ 'a server with many notices', 'notices', \@once, 0, qr/NOTICE: / ],
  [ 'a server that does not end a wait', 'waits', [ grep { $_->[0] =~ /acquire|run$/ } ordered() ],
	4, qr/request [-0-9a-f]{36} may have been granted/ ];
my @clients = run_cases(map { my $database = $_->[1]; map { [ $_->[0], $database, $_->[1] ] } @{ $_->[2] } } @groups);
foreach (@groups)
{
	my ($test, $database, $commands, $code, $pattern) = @$_;
	my @bad;
	foreach my $command (@$commands)
	{
		my $done = shift @clients;
		my $faults = join ', ', grep { $_ ne '' } faults($done),
		  $done->{rc} ne $code ? "status $done->{rc}" : '',
		  $done->{err} !~ $pattern || length $done->{err} > 100_000 ? "says $done->{err}" : '';
		push @bad, "$command->[0]: $faults" if $faults ne '';
	}
	is(join("\n", @bad), '', $test);
}

($client) = run_cases([ 'notices', 'notices', [ 'status', '--quiet' ] ]);
is($client->{err}, '', 'notices: --quiet suppresses them');

($client) = run_cases([ 'failover', 'fails_over', [qw(acquire n --owner o --wait-seconds 60)] ]);
is($client->{rc} . faults($client), '0', 'a wait continues when the server is a standby for a while');
like($client->{err}, qr/trying again: .*25006/, 'the program reports it');

($client) = run_cases([ 'a lease', 'long_lease', [qw(run n --lease-seconds 2 -- sleep 1000)] ]);
is($client->{rc} . faults($client), '2', 'a longer lease than requested, and no answer to a renewal: the command is ended');

SKIP:
{
	skip 'no /dev/full', 2 if !-e '/dev/full';
	($client) = run_cases([ 'full', 'held_then_closed', $commands{acquire}, out => '/dev/full' ]);
	is($client->{rc} . faults($client), '4', 'an answer that cannot be written, with the server gone: status 4');
	like($client->{err}, qr/request [-0-9a-f]{36} has been granted/, 'the request is named');
}

# ---------------------------------------------------------------------
# On a terminal
# ---------------------------------------------------------------------

SKIP:
{
	skip 'no terminal is available here', 4
	  if !eval { local $SIG{__WARN__} = sub { }; require IO::Pty; IO::Pty->new };
	foreach (
		[ 'waits', $commands{'acquire with a wait'}, qr/waiting up to \d+ s, position 1: "n", held by "h/ ],
		[ 'good', $commands{'status again and again'}, qr/s\?.*n +o\?/ ])
	{
		my ($database, $command, $pattern) = @$_;
		my ($keys, $screen) = ('', '');
		my $run = IPC::Run::start([ 'leaselock', '-d', connection_string($dir, $database), @$command ],
			'<pty<', \$keys, '>pty>', \$screen, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
		ok(wait_until(sub { $run->pump_nb; $screen =~ $pattern }), "server \"$database\", on a terminal: the line is shown");
		$run->signal('INT');
		$run->finish;
		# remove the program's own cursor movements and the terminal's newlines
		$screen =~ s/\r\e\[K|\e\[H\e\[J|\r\n//g;
		is(control_characters($screen), '', "server \"$database\", on a terminal: no control characters from it");
	}
}

# ---------------------------------------------------------------------
# Random cases
# ---------------------------------------------------------------------

# commands that repeat are ended by a signal at the end
my @names = map { $_->[0] } @once;
my ($others, $watches) = ($cases - int($cases / @names), int($cases / @names));
my @list = map { my $name = $names[ ($_ + $seed) % @names ]; [ $name, "chance$_", $commands{$name} ] } 1 .. $others;
push @list, map { [ 'status again and again', "chance$_", $commands{'status again and again'} ] } $others + 1 .. $others + $watches;
my @watching = map { spawn_cli([ '-d', connection_string($dir, $_->[1]), @{ $_->[2] } ]) } @list[ $others .. $#list ];
@clients = run_cases(@list[ 0 .. $others - 1 ]);
kill 'INT', $_->{pid} foreach @watching;
push @clients, map { reap_cli($_) } @watching;
my %rc;
my @bad;
foreach (0 .. $#list)
{
	my $faults = faults($clients[$_]);
	push @bad, "$list[$_][1], $list[$_][0]: $faults\n$clients[$_]{err}" if $faults ne '';
	$rc{ $clients[$_]{rc} }++;
}
is(join("\n", splice @bad, 0, 10), '', "$cases random cases have no faults");
note 'exit statuses: ' . join ', ', map { "$_: $rc{$_}" } sort keys %rc;
ok(keys %rc > 1, 'the random cases end with several exit statuses');

# ---------------------------------------------------------------------
# Commands with silent servers have ended
# ---------------------------------------------------------------------

foreach (0 .. $#silent)
{
	my $done = reap_cli($waiting[$_]);
	is($done->{rc} . faults($done), '4', "a silent server: $silent[$_][0] gives status 4");
	like($done->{err}, qr/is not responding/, 'the program reports it');
}

done_testing();
