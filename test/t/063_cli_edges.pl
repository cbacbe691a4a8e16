# The program leaselock in unusual surroundings: closed descriptors, output
# that cannot be written, names and messages with control characters, signals
# of every kind, refusals.
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use Config;
use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use JSON::PP;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $node = new_node('edges', undef, extra => [ '--encoding=UTF8', '--no-locale' ]);
use_server($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($program) = grep { -x $_ } map { "$_/leaselock" } split /:/, $ENV{PATH};
my ($client, $rc, $out, $err, $answer);

sub held_by
{
	my ($name) = @_;
	return $node->safe_psql('postgres',
		"SELECT owner FROM leaselock.lease_status WHERE name = '$name' AND owner IS NOT NULL");
}

sub run_one { return reap_cli(spawn_cli(@_)) }

# ---------------------------------------------------------------------
# Closed descriptors
# ---------------------------------------------------------------------

foreach my $closed ([0], [1], [2], [ 0, 1 ], [ 0, 2 ], [ 1, 2 ], [ 0, 1, 2 ])
{
	my %closed = map { $_ => 1 } @$closed;
	my $which = "@$closed closed";

	$client = run_one([qw(run n -- /nonexistent)], closed => $closed);
	is($client->{rc}, 127, "$which: run of a missing command");
	$client = run_one([ qw(run n -- sh -c), 'exit 7' ], closed => $closed);
	is($client->{rc}, 7, "$which: run");
	$client = run_one([qw(acquire n --owner o)], closed => $closed);
	is($client->{rc}, $closed{1} ? 4 : 0, "$which: acquire");
	like($client->{err}, qr/could not write the answer: .*\n.*been released/, "$which: acquire says why")
	  if $closed{1} && !$closed{2};
	is(held_by('n'), $closed{1} ? '' : 'o', "$which: acquire: the lock is held only if the answer was written");
	$node->safe_psql('postgres', q{SELECT leaselock.lease_release_all('o')});
	is(run_one([qw(status)], closed => $closed)->{rc}, $closed{1} ? 4 : 0, "$which: status");
	is(run_one([qw(acquire)], closed => $closed)->{rc}, 3, "$which: a wrong command line");

	if (-d '/proc/self/fd')
	{
		unlink "$dir/fds";
		run_one([ qw(run n -- sh -c), 'for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd; done >"$0"', "$dir/fds" ],
			closed => $closed);
		# the shell's own file gets descriptor 1 if that is free
		is(join(' ', grep { $_ ne '1' } split /\n/, slurp_file("$dir/fds")),
			join(' ', grep { !$closed{$_} && $_ != 1 } 0 .. 2), "$which: the command has them closed, too");
	}
}

# ---------------------------------------------------------------------
# Output that cannot be written
# ---------------------------------------------------------------------

my $request = '11111111-1111-4111-8111-111111111111';
my @ways = ([ 'a closed pipe', undef ]);
push @ways, [ 'a full device', '/dev/full' ] if -e '/dev/full';
foreach (@ways)
{
	my ($way, $file) = @$_;
	my $run = sub {
		my ($arguments) = @_;
		return run_one($arguments, out => $file) if $file;
		pipe my $read, my $write or die "no pipe: $!";
		close $read;
		return run_one($arguments, out => $write);
	};

	foreach my $json ([], ['--json'])
	{
		$client = $run->([ qw(acquire full --owner o), @$json ]);
		is($client->{rc}, 4, "$way: acquire @$json");
		like($client->{err}, qr/could not write the answer: .*\n.*the lock has been released\n/, "$way: acquire @$json: the message says that the lock was released");
		is(held_by('full'), '', "$way: acquire @$json: nobody holds the lock");
	}

	# this ticket may have been reported before
	$client = $run->([ qw(acquire full --owner o --request-uuid), $request ]);
	is($client->{rc}, 4, "$way: acquire with a request");
	like($client->{err}, qr/request $request has been granted/, "$way: the request can be repeated");
	($rc, $answer) = cli_json(qw(acquire full --owner o --request-uuid), $request);
	is("$rc|$answer->{state}|$answer->{depth}", '0|held|1', "$way: the repeated request finds its ticket");

	foreach my $command ([ 'get', $answer->{ticket} ], [ 'heartbeat', $answer->{ticket} ], [ 'release', $answer->{ticket} ],
		[qw(break full --fence 1 --json)])
	{
		$client = $run->($command);
		is("$client->{rc}|" . ($client->{err} =~ /could not write the answer/), '4|1', "$way: $command->[0]");
	}
	is(held_by('full'), '', "$way: the lock is released nevertheless");
	$request =~ tr/1/2/;
}
is(run_one([$_], -e '/dev/full' ? (out => '/dev/full') : (closed => [1]))->{rc}, 4, "$_: output that cannot be written gives status 4")
  foreach qw(--help --version status);

# ---------------------------------------------------------------------
# Control characters for a terminal
# ---------------------------------------------------------------------

my $evil = "\xC2\x9B2J\xC2\x9D0;pwn\xC2\x9C";
my $evil_sql = q{U&'\009b2J\009d0;pwn\009c'};
$node->safe_psql('postgres', qq{SELECT leaselock.lease_acquire('c1', $evil_sql)});
$node->safe_psql('postgres', qq{SELECT leaselock.lease_acquire('c2', 'b')});
$node->safe_psql('postgres', qq{SELECT leaselock.lease_acquire($evil_sql, $evil_sql)});
$node->safe_psql('postgres', qq{SELECT leaselock.lease_acquire('c2', $evil_sql, wait => '60 s')});
foreach (
	[ 'a holder, by run', 1, qr/held by "\?2J\?0;pwn\?"/, qw(run c1 -- true) ],
	[ 'a holder, by acquire', 1, qr/holder +\?2J\?0;pwn\?$/m, qw(acquire c1 --owner o) ],
	[ 'the status', 0, qr/c1 +\?2J\?0;pwn\?/, 'status' ],
	[ 'a notice of the server', 1, qr/NOTICE: .*\?2J/, 'acquire', $evil, qw(--owner b --wait-seconds 5) ],
	[ 'a name that begins with a space', 3, qr/" \?2J/, 'status', " $evil" ],
	[ 'an error of the server', 4, qr/\?2J\?0;pwn\?/, '-U', $evil, 'status' ],
	[ 'an error of libpq', 4, qr/\?\[2J\?2J/, '-h', "/\e[2J$evil", 'status' ],
	[ 'a bad connection string', 4, qr/\?2J/, '-d', "$evil=1", 'status' ],
	[ 'a subcommand', 3, qr/\?\[2J\?/, "\e[2J\x7F" ],
	[ 'a long option', 3, qr/--\?\[2J\?/, "--\e[2J\x9B" ],
	[ 'an unknown option', 3, qr/-\?/, "-\x9B" ],
	[ 'a value', 3, qr/"1\?2J/, 'acquire', 'n', '--owner', 'o', '--lease-seconds', "1$evil" ],
	[ 'bytes', 3, qr/"\?\?\?"/, 'run', 'n', '--grace', "\xFF\xC1\x9B", '--', 'true' ],
	[ 'an excess argument', 3, qr/"a\?b"/, 'status', 'n', "a\nb" ],
	[ 'a command', 127, qr/"\/\?\[2J\?2J/, 'run', 'n', '--', "/\e[2J$evil" ])
{
	my ($test, $code, $pattern, @arguments) = @$_;

	$client = run_one(\@arguments);
	is("$client->{rc}|" . control_characters($client->{out} . $client->{err}), "$code|", "control characters: $test");
	# of two commands the last message may differ
	like($client->{out} . $client->{err}, $pattern, "control characters: $test: the rest of the text is shown");
}
($rc, $out) = cli(qw(status c1 --json));
is(control_characters($out), '', 'control characters: JSON');
is(decode_json($out)->{owner}, "\x{9B}2J\x{9D}0;pwn\x{9C}", 'control characters: JSON keeps the value');
($rc, $out) = cli('acquire', "a\x7Fb", '--owner', 'o');
is($rc, 3, 'DEL is refused in a name');

# in other encodings than UTF-8 the same byte may be a control character after
# any other byte
{
	local $ENV{PGCLIENTENCODING} = 'LATIN1';
	$node->safe_psql('postgres', q{SELECT leaselock.lease_acquire('latin', U&'\00c3\009b2J\00e4')});
	($rc, $out) = cli(qw(status latin));
	like($out, qr/latin +\xC3\?2J\xE4 /, 'control characters: in LATIN1');
	($rc, $out) = cli(qw(status latin --json));
	like($out, qr/"\xC3\\u009b2J\xE4"/, 'nothing to obey: JSON in LATIN1');
}

# ---------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------

{
	local $ENV{PGOPTIONS} = '-c default_transaction_read_only=on';
	foreach my $command ([qw(acquire ro --owner o)], [qw(run ro --wait-seconds 300 -- true)])
	{
		$client = run_one($command);
		is($client->{rc}, 4, "$command->[0] in a read-only transaction");
		is(() = $client->{err} =~ /^leaselock: /mg, 1, "$command->[0] in a read-only transaction: one line is printed");
		like($client->{err}, qr/25006/, "$command->[0] in a read-only transaction: the line has the reason");
	}
}
foreach (
	[ 'a bad connection string', {}, '-d', 'wrong=1' ],
	[ 'a statement timeout', { PGOPTIONS => '-c statement_timeout=1' }, '-d', 'postgres' ])
{
	my ($test, $environment, @options) = @$_;
	my $holder = $test =~ /statement/ ? session($node, 'BEGIN', q{SELECT leaselock.try_lock('slow', 'h', '1 min')}) : undef;

	local %ENV = (%ENV, %$environment);
	$client = run_one([ @options, qw(run slow --wait-seconds 300 -- true) ]);
	is($client->{rc}, 4, "$test is not retried");
	$holder->quit if $holder;
}

# a name that the server's encoding, or any encoding, cannot represent is an
# error in the command line
$node->safe_psql('postgres', q{CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
$node->safe_psql('latin', 'CREATE EXTENSION leaselock');
foreach (
	[ 'postgres', "\xFF", '22021' ],
	[ 'postgres', "\xED\xA0\x80", '22021' ],
	[ 'latin', "\xE2\x82\xAC", '22P05' ])
{
	my ($database, $name, $sqlstate) = @$_;
	foreach my $command (
		[ 'acquire', $name, '--owner', 'o' ], [ qw(acquire n --owner), $name ], [ qw(acquire n --owner o --scope), $name ],
		[ 'run', $name, '--wait-seconds', '300', '--', 'true' ], [ 'status', $name ], [ 'status', '--scope', $name ],
		[ 'break', $name, '--fence', '1' ])
	{
		($rc, $out, $err) = cli('-d', $database, @$command);
		is("$rc|" . join(' ', $err =~ /\((\w{5})\)/), "3|$sqlstate", "a name that cannot be represented: $sqlstate, $command->[0]");
	}
}
{
	local $ENV{PGOPTIONS} = '-c statement_timeout=nonsense';
	is((cli('status'))[0], 4, 'a setting that the server refuses is not a usage error');
}

# ---------------------------------------------------------------------
# Signals
# ---------------------------------------------------------------------

my $holder = (cli_json(qw(acquire held --owner holder --lease-seconds 300)))[1]{ticket};
my %number;
@number{ split ' ', $Config{sig_name} } = split ' ', $Config{sig_num};
my @signals = grep { $number{$_} }
  qw(HUP INT QUIT TERM USR1 USR2 ALRM VTALRM PROF ABRT TRAP SYS XCPU POLL PWR STKFLT RTMIN RTMAX);
my @waiters;
foreach my $signal (@signals)
{
	push @waiters, [ "acquire, SIG$signal", $number{$signal}, spawn_cli([ qw(acquire held --wait-seconds 300 --owner), "acquire $signal" ]) ];
	push @waiters, [ "run, SIG$signal", $number{$signal}, spawn_cli([ qw(run held --wait-seconds 300 --owner), "run $signal", qw(-- true) ]) ];
}
# these signals only mean that something could not be written
my @stays = map { spawn_cli([ qw(acquire held --wait-seconds 300 --owner), $_ ]) } qw(PIPE XFSZ);
my $watch = spawn_cli([qw(status --watch)]);
ok($node->poll_query_until('postgres', 'SELECT count(*) = ' . (@waiters + @stays) . q{
	FROM leaselock.lease_tickets WHERE name = 'held' AND state = 'waiting'}), 'all requests wait');
kill $number{PIPE}, $stays[0]{pid};
kill $number{XFSZ}, $stays[1]{pid};
kill $_->[1], $_->[2]{pid} foreach @waiters;
ok(wait_until(sub { -s $watch->{out} }), 'status --watch runs');
kill 'USR1', $watch->{pid};
foreach (@waiters)
{
	my ($test, $signo, $waiter) = @$_;
	is(reap_cli($waiter)->{rc}, 128 + $signo, "$test: ends the wait");
}
is(reap_cli($watch)->{rc}, 128 + $number{USR1}, 'status --watch, SIGUSR1: ends');
is($node->safe_psql('postgres', q{SELECT string_agg(owner, ' ' ORDER BY owner) FROM leaselock.lease_tickets
	WHERE name = 'held' AND state = 'waiting'}), 'PIPE XFSZ', 'all their places in the queue are given up');
kill 'TERM', $_->{pid} foreach @stays;
is(reap_cli($_)->{rc}, 128 + 15, 'PIPE and XFSZ do not end a wait') foreach @stays;

# a wait continues even if nobody reads its messages
{
	pipe my $read, my $write or die "no pipe: $!";
	close $read;
	my $waiter = spawn_cli([ qw(acquire held --wait-seconds 300 --owner o) ], err => $write);
	close $write;
	ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM leaselock.lease_tickets WHERE state = 'waiting')}),
		'a request whose standard error has no reader waits');
	$node->restart;
	ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM leaselock.lease_tickets WHERE state = 'waiting')}),
		'it still waits after a message could not be written');
	cli('release', $holder);
	is(reap_cli($waiter)->{rc}, 0, 'it gets the lock');
}

# passed on while the command runs, and reset to the inherited setting for it
unlink "$dir/ready";
$client = spawn_cli([ qw(run passed -- sh -c), 'trap "exit 9" VTALRM; : >"$0"; while :; do sleep 0.05; done', "$dir/ready" ]);
ok(wait_until(sub { -e "$dir/ready" }), 'a command runs');
kill $number{VTALRM}, $client->{pid};
is(reap_cli($client)->{rc}, 9, 'VTALRM is passed on');
is(run_one([ qw(run passed -- sh -c), 'kill -PIPE $$' ])->{rc}, 128 + 13, 'the command has the inherited setting of SIGPIPE');

# ---------------------------------------------------------------------
# A request that already waits for longer
# ---------------------------------------------------------------------

$holder = (cli_json(qw(acquire longer --owner holder --lease-seconds 300)))[1]{ticket};
$node->safe_psql('postgres', qq{SELECT leaselock.lease_acquire('longer', 'o', wait => '300 s', request_id => '$request')});
($rc, $answer) = cli_json(qw(acquire longer --owner o --wait-seconds 0.5 --request-uuid), $request);
is("$rc|$answer->{state}", '1|cancelled', 'a request repeated with a shorter wait: --wait-seconds applies');

# ---------------------------------------------------------------------
# Commands that exist and cannot be executed
# ---------------------------------------------------------------------

mkdir "$dir/$_" foreach qw(with without);
append_to_file("$dir/with/foo", "#!/bin/sh\nexit 0\n");
foreach my $path ('', ':', ':/bin', '/bin:', '/bin::/usr/bin', "$dir/with", "/nowhere:$dir/with:/bin")
{
	foreach my $here (qw(with without))
	{
		my $code = $here eq 'with' || $path =~ /with/ ? 126 : 127;
		local $ENV{PATH} = $path;
		$client = run_one([qw(run n -- foo)], dir => "$dir/$here", program => $program);
		is($client->{rc}, $code, "PATH \"" . ($path =~ s/\Q$dir\E/DIR/r) . "\", in a directory $here it");
		like($client->{err}, $code == 126 ? qr/Permission denied/ : qr/No such file/, 'the message gives the reason');
	}
}
{
	local $ENV{PATH} = ':/bin';
	chmod 0755, "$dir/with/foo";
	is(run_one([qw(run n -- foo)], dir => "$dir/with", program => $program)->{rc}, 0, 'a command that can be executed is found there');
}

is_deeply([ internal_errors($node) ], [], 'no internal error');
$node->stop;

done_testing();
