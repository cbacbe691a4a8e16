# The program leaselock: its subcommands, their output and exit status, and how
# they connect
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IO::Select;
use IO::Socket::UNIX;
use JSON::PP;
use LeaseTest;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $node = new_node('cli');
use_server($node);

my $unknown = '00000000-0000-0000-0000-000000000000';
my ($rc, $out, $err, $answer);

# ---------------------------------------------------------------------
# Usage
# ---------------------------------------------------------------------

($rc, $out, $err) = cli('--help');
is("$rc|$err", '0|', '--help: success');
like($out, qr/leaselock run NAME.*-- COMMAND/s, '--help: lists the subcommands');
($rc, $out, $err) = cli('--version');
like("$rc|$out$err", qr/^0\|leaselock \d+\.\d+$/, '--version');

my $too_long = 'x' x 256;
foreach (
	[ 'no subcommand', [], qr/no subcommand.* acquire, .*\brun\b/ ],
	[ 'an unknown subcommand', ['take'], qr/"take".* acquire, get, heartbeat, release, status, .*run/ ],
	[ 'an unknown option', [ 'status', '--what' ], qr/--what/ ],
	[ 'an option without its value', [ 'status', '--scope' ], qr/--scope/ ],
	[ 'an option of another subcommand', [ 'get', $unknown, '--fence', '1' ], qr/get does not take --fence/ ],
	[ 'no name', [ 'acquire', '--owner', 'o' ], qr/NAME/ ],
	[ 'no owner', [ 'acquire', 'n' ], qr/--owner/ ],
	[ 'no fence', [ 'break', 'n' ], qr/--fence.*status n/ ],
	[ 'lapsed leases in a queue', [qw(status --queue --all)], qr/--queue.*--all/ ],
	[ 'get with --queue', [ 'get', $unknown, '--queue' ], qr/get does not take --queue/ ],
	[ 'no ticket', ['release'], qr/TICKET/ ],
	[ 'one argument too many', [ 'get', $unknown, 'more' ], qr/"more"/ ],
	[ 'a ticket that is not a uuid', [ 'get', "${unknown}0" ], qr/TICKET .*"${unknown}0"/ ],
	[ 'a request that is not a uuid', [qw(acquire n --owner o --request-uuid u)], qr/--request-uuid .*"u"/ ],
	[ 'a fence that is not a number', [qw(break n --fence 1e3)], qr/--fence .*1 to 9223372036854775807.*"1e3"/ ],
	[ 'a fence that is too large', [qw(break n --fence 9223372036854775808)], qr/"9223372036854775808"/ ],
	[ 'a lease that is not a number', [qw(acquire n --owner o --lease-seconds 1min)], qr/--lease-seconds .*0\.001 to .*"1min"/ ],
	[ 'a lease of zero seconds', [qw(acquire n --owner o --lease-seconds 0)], qr/--lease-seconds .*"0"/ ],
	[ 'an empty lease', [ qw(acquire n --owner o --lease-seconds), '' ], qr/--lease-seconds .*""/ ],
	[ 'a lease that the server refuses', [qw(acquire n --owner o --lease-seconds 301)], qr/"lease".*5 s to 300 s/ ],
	[ 'a negative wait', [qw(acquire n --owner o --wait-seconds -1)], qr/--wait-seconds .*"-1"/ ],
	[ 'an infinite wait that is not "inf"', [qw(acquire n --owner o --wait-seconds infinity)], qr/--wait-seconds .*"infinity"/ ],
	[ 'an interval of zero seconds', [qw(status --watch --interval 0)], qr/--interval .*0\.1 to/ ],
	[ 'a grace time that is too long', [qw(run n --lease-seconds 10 --grace 6 -- true)], qr/--grace .*0 to 5.*"6"/ ],
	[ 'an empty name', [ 'status', '' ], qr/NAME .*1 to 255 bytes/ ],
	[ 'a name that is too long', [ 'status', $too_long ], qr/NAME .*256/ ],
	[ 'a control character', [ 'status', "a\tb" ], qr/NAME .*control.*byte 2 is 9/ ],
	[ 'a trailing space', [ 'acquire', 'n', '--owner', 'o ' ], qr/--owner .*"o "/ ],
	[ 'a bad scope', [ 'status', '--scope', '' ], qr/--scope/ ],
	[ 'run without "--"', [qw(run n true)], qr/"--" before the COMMAND "true"/ ],
	[ 'run without a command', [qw(run n --)], qr/COMMAND/ ],
	[ 'run without a name', [qw(run -- true)], qr/COMMAND|NAME/ ])
{
	my ($test, $arguments, $message) = @$_;

	# only the server knows its limits
	$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS leaselock')
	  if $test =~ /server/;
	($rc, $out, $err) = cli(@$arguments);
	is("$rc|$out", '3|', "usage: $test");
	like($err, $message, "usage: $test: the message names the error");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.lease_tickets'),
	'0', 'none of these calls has acquired a lock');

# ---------------------------------------------------------------------
# A ticket's life
# ---------------------------------------------------------------------

($rc, $out, $err) = cli(qw(acquire nightly --owner host-a));
is("$rc|$err", '0|', 'acquire: held');
my %value = $out =~ /^(\w+) +(.*)$/mg;
is_deeply([ @value{qw(state scope name owner depth remaining next_call)} ],
	[ qw(held public nightly host-a 1), '1 min', '20 s' ],
	'acquire: one line per column, 60 s by default');
my ($ticket, $fence) = @value{qw(ticket fence)};

($rc, $answer) = cli_json('get', $ticket);
is($rc, 0, 'get: held');
is_deeply([ @$answer{qw(ticket state fence request_id)} ],
	[ $ticket, 'held', $fence, $value{request_id} ], 'get: returns the same ticket as JSON');
is($node->safe_psql('postgres', "SELECT row_to_json(t)->>'expires_at' FROM leaselock.lease_get('$ticket') t"),
	$answer->{expires_at}, "get: prints the server's answer");

($rc, $answer) = cli_json(qw(acquire nightly --owner host-b));
is("$rc|$answer->{state}|$answer->{holder}", '1|contended|host-a', 'acquire: contended');
($rc, $answer) = cli_json(qw(acquire nightly --owner host-a --request-uuid), $value{request_id});
is("$rc|$answer->{ticket}|$answer->{depth}", "0|$ticket|1", 'acquire: a repeated request finds its ticket');
($rc, $out, $err) = cli(qw(acquire nightly --owner host-b --request-uuid), $value{request_id});
is("$rc|$out", '3|', "acquire: another identity's request is refused");
like($err, qr/LS002/, 'acquire: the message has the SQLSTATE');
($rc, $answer) = cli_json(qw(acquire nightly --owner host-a --scope other --lease-seconds 7.5));
is("$rc|$answer->{scope}|$answer->{remaining_ms}", '0|other|7500', 'acquire: takes a scope and a lease of 7.5 s');

($rc, $answer) = cli_json('heartbeat', $answer->{ticket});
is("$rc|$answer->{state}|$answer->{remaining_ms}", '0|held|7500', 'heartbeat: keeps the last requested length');
($rc, $answer) = cli_json('heartbeat', $answer->{ticket}, '--lease-seconds', '90');
is("$rc|$answer->{remaining_ms}", '0|90000', 'heartbeat: takes another length');

($rc, $answer) = cli_json('release', $ticket);
is("$rc|$answer->{state}", '0|released', 'release');
is((cli('release', $ticket))[0], 0, 'release: can be repeated');
is((cli('get', $ticket))[0], 2, 'get: a released ticket gives status 2');
is((cli('heartbeat', $ticket))[0], 2, 'heartbeat: a released ticket gives status 2');
($rc, $answer) = cli_json('get', $unknown);
is("$rc|$answer->{state}", '2|gone', 'get: an unknown ticket is gone');
is((cli($_, $unknown))[0], 2, "$_: an unknown ticket is gone") foreach qw(heartbeat release);

# ---------------------------------------------------------------------
# Waiting
# ---------------------------------------------------------------------

($rc, $answer) = cli_json(qw(acquire nightly --owner host-a));
my $held = $answer->{ticket};
($rc, $answer) = cli_json(qw(acquire nightly --owner host-b --wait-seconds 0.3));
is("$rc|$answer->{state}", '1|timed_out', 'acquire: the wait times out');
my $timed_out = $answer->{ticket};
is((cli('get', $timed_out))[0], 1, 'get: the ticket has timed out');

my $waiter = start_cli(qw(acquire nightly --owner host-b --wait-seconds 300 --json));
my $waits = q{SELECT ticket FROM leaselock.lease_tickets WHERE state = 'waiting'};
ok($node->poll_query_until('postgres', "SELECT EXISTS ($waits)"), 'acquire: the request waits');
my $waiting = $node->safe_psql('postgres', $waits);
is((cli('get', $waiting))[0], 1, 'get: a waiting ticket gives status 1');
cli('release', $held);
is(finish($waiter), 0, 'acquire: the waiter gets the lock');
$answer = decode_json($waiter->{out});
is("$answer->{ticket}|$answer->{state}", "$waiting|held", 'acquire: the waiting ticket is held');
$held = $waiting;

$waiter = start_cli(qw(acquire nightly --owner host-c --wait-seconds 300));
ok($node->poll_query_until('postgres', "SELECT EXISTS ($waits)"), 'acquire: another request waits');
$waiting = $node->safe_psql('postgres', $waits);
$waiter->{run}->signal('TERM');
is(finish($waiter), 128 + 15, 'acquire: TERM ends the wait');
($rc, $answer) = cli_json('get', $waiting);
is("$rc|$answer->{state}", '2|cancelled', 'acquire: the place in the queue is given up');

# a waits for a lock of b; then b would wait for a lock of a
cli(qw(acquire left --owner a));
cli(qw(acquire right --owner b));
$node->safe_psql('postgres', q{SELECT leaselock.lease_acquire('right', 'a', wait => '60 s')});
($rc, $out, $err) = cli(qw(acquire left --owner b --wait-seconds 60));
is($rc, 1, 'acquire: a deadlock gives status 1');
like($out, qr/^state +deadlock$/m, 'acquire: the state is deadlock');
like($err, qr/NOTICE:.*deadlock/, "acquire: the server's notice is printed");

# ---------------------------------------------------------------------
# break
# ---------------------------------------------------------------------

($rc, $answer) = cli_json(qw(status nightly));
$fence = $answer->{fence};
($rc, $answer) = cli_json(qw(break nightly --fence), $fence - 1);
is_deeply([ $rc, @$answer{qw(broken name scope fence)} ],
	[ 2, JSON::PP::false, 'nightly', 'public', $fence - 1 ], 'break: another fence breaks nothing');
$node->safe_psql('postgres', 'CREATE ROLE somebody LOGIN');
($rc, $out, $err) = cli(qw(-U somebody break nightly --fence), $fence);
is("$rc|$out", '4|', 'break: only operators may break');
like($err, qr/42501/, 'break: the message has the SQLSTATE');
($rc, $out, $err) = cli(qw(break nightly --fence), $fence);
is("$rc|$out|$err", "0|broken\n|", 'break: ends the present grant');
($rc, $answer) = cli_json('get', $held);
is("$rc|$answer->{state}", '2|broken', 'get: broken');
is((cli('release', $held))[0], 2, 'release: a broken ticket gives status 2');

($rc, $answer) = cli_json(qw(acquire nightly --owner host-a));
$node->append_conf('postgresql.conf', "leaselock.clock_offset = '10 min'");
$node->reload;
ok($node->poll_query_until('postgres', "SELECT current_setting('leaselock.clock_offset', true) = '10 min'"),
	'the clock advances by 10 min');
my ($later, $expired) = cli_json('get', $answer->{ticket});
is("$later|$expired->{state}", '2|expired', 'get: expired');
is((cli('release', $answer->{ticket}))[0], 2, 'release: an expired ticket gives status 2');

# ---------------------------------------------------------------------
# status
# ---------------------------------------------------------------------

($rc, $out) = cli(qw(acquire b --owner long-owner --scope s));
($rc, $out) = cli(qw(acquire a --owner o --scope s));
($rc, $out) = cli(qw(status --scope s));
is($rc, 0, 'status: success');
my @lines = map { s/\d{12,}/FENCE/r =~ s/ [\d.]+ s +(?:\d+ s|1 min)  held$/ AGE REST held/r =~ s/ +/ /gr } split /\n/, $out;
my $role = $node->safe_psql('postgres', 'SELECT current_user');
is_deeply(\@lines,
	[   'scope name owner role fence depth waiters held remaining state note',
		"s a o $role FENCE 1 0 AGE REST held", "s b long-owner $role FENCE 1 0 AGE REST held" ],
	'status: one row per lock of the scope, in order');
@lines = split /\n/, $out;
is(index($lines[0], 'role'), index($lines[$_], $role), "status: row $_ is aligned") foreach 1, 2;
($rc, $out) = cli('status', '--json');
is(join(' ', map { decode_json($_)->{name} } grep { /"scope":"s"/ } split /\n/, $out),
	'a b', 'status: JSON has one object per line');
is($node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.lease_status WHERE NOT lapsed'),
	scalar(split /\n/, $out), 'status: covers all scopes');
($rc, $answer) = cli_json(qw(status a --scope s));
is("$rc|$answer->{owner}", '0|o', 'status: shows one lock');
($rc, $out, $err) = cli(qw(status a --json));
is("$rc|$out|$err", '2||', 'status: a free lock gives status 2');

my $watch = start_cli(qw(status a --scope s --watch --interval 0.1));
ok(wait_until(sub { $watch->{run}->pump_nb; () = $watch->{out} =~ /^s +a +o /mg; }),
	'status --watch: shows the lock');
ok(wait_until(sub { $watch->{run}->pump_nb; $watch->{out} =~ /(?:^s +a +o .*){3}/ms }),
	'status --watch: repeats the status');
my $said = $watch->{out};
$node->stop('fast');
ok(wait_until(sub { $watch->{run}->pump_nb; substr($watch->{out}, length $said) =~ /failed|closed/ }),
	'status --watch: continues while the server is down');
$said = $watch->{out};
$node->start;
ok(wait_until(sub { $watch->{run}->pump_nb; substr($watch->{out}, length $said) =~ /^s +a +o /m }),
	'status --watch: continues when the server is back');
$watch->{run}->signal('TERM');
is(finish($watch), 128 + 15, 'status --watch: ends on a signal');

SKIP:
{
	skip 'no /dev/full', 1 if !-e '/dev/full';
	my $connection = sprintf 'host=%s port=%d dbname=postgres', $node->host, $node->port;
	is(system("leaselock -d '$connection' status >/dev/full 2>&1") >> 8,
		4, 'an answer that cannot be written gives status 4');
}

# ---------------------------------------------------------------------
# Odd names
# ---------------------------------------------------------------------

foreach my $name (
	'with space', "it's", 'a "b"', 'back\\slash', '%s%n%d', '$HOME `id` ;', '-leading', '--json', '--',
	"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x94\x92", '{"a":1}', 'y' x 255, "c1 \xC2\x9B31m")
{
	my $show = length $name > 40 ? 'one of 255 bytes' : $name =~ s/[^ -~]+/<UTF-8>/gr;

	utf8::decode(my $wide = $name);
	($rc, $answer) = cli_json('acquire', '--owner', $name, '--scope', $name, '--', $name);
	is_deeply([ $rc, @$answer{qw(name owner scope)} ], [ 0, $wide, $wide, $wide ], "name: $show");
	($rc, $answer) = cli_json('status', '--scope', $name, '--', $name);
	is_deeply([ $rc, $answer->{name} ], [ 0, $wide ], "name: $show, in status");
}
($rc, $out) = cli('status', "c1 \xC2\x9B31m", '--scope', "c1 \xC2\x9B31m");
like($out, qr/c1 \?31m  c1 \?31m/, 'control characters are replaced in text output');

# ---------------------------------------------------------------------
# Connecting
# ---------------------------------------------------------------------

my ($host, $port) = ($node->host, $node->port);
my $nowhere = PostgreSQL::Test::Utils::tempdir_short();
$node->safe_psql('postgres', 'CREATE DATABASE second');
$node->safe_psql('second', 'CREATE EXTENSION leaselock');
$node->safe_psql('second', q{SELECT leaselock.lease_acquire('here', 'o')});
my $services = "$nowhere/services";
append_to_file($services, "[lease]\nhost=$host\nport=$port\ndbname=second\n");
(my $uri = $host) =~ s/([^\w.-])/sprintf '%%%02X', ord $1/ge;

# each of these connects to the database that has the lock
foreach (
	[ 'options', { PGHOST => $nowhere, PGPORT => 1, PGDATABASE => 'no' }, '-h', $host, '-p', $port, '-d', 'second' ],
	[ 'long options', {}, "--host=$host", "--port=$port", '--dbname=second', '--username=somebody' ],
	[ 'a connection string', { PGHOST => $nowhere }, '-d', "host=$host port=$port dbname=second" ],
	[ 'a URI', { PGHOST => $nowhere }, '-d', "postgresql://$uri:$port/second" ],
	[ 'the environment', { PGHOST => $host, PGPORT => $port, PGDATABASE => 'second' } ],
	[ 'a service', { PGHOST => '', PGPORT => '', PGDATABASE => '', PGSERVICEFILE => $services, PGSERVICE => 'lease' } ],
	[ 'a service in a connection string', { PGHOST => '', PGPORT => '', PGDATABASE => '', PGSERVICEFILE => $services }, '-d', 'service=lease' ],
	[ 'a list of hosts', {}, '-d', "host=$nowhere,$host port=1,$port dbname=second" ])
{
	my ($test, $environment, @options) = @$_;
	my ($ok, $text) = ('', '');

	local %ENV = (%ENV, PGHOST => $host, PGPORT => $port, PGDATABASE => 'postgres', %$environment);
	delete $ENV{$_} foreach grep { $ENV{$_} eq '' } keys %$environment;
	IPC::Run::run([ 'leaselock', @options, 'status', 'here', '--json' ], '<', \'', '>', \$text, '2>', \$err);
	is($? >> 8, 0, "connecting by $test") or diag($err);
}

foreach (
	[ 'no server', qr/No such file/, '-h', $nowhere ],
	[ 'no database', qr/3D000/, '-d', 'nothing' ],
	[ 'no role', qr/28000/, '-U', 'nobody at all' ],
	[ 'a bad connection string', qr/invalid/, '-d', 'host=' . $nowhere . ' wrong=1' ],
	[ 'no extension', qr/42P01.*CREATE EXTENSION leaselock/s, '-d', 'template1' ])
{
	my ($test, $message, @options) = @$_;

	($rc, $out, $err) = cli(@options, 'status');
	is("$rc|$out", '4|', "connecting: $test");
	like($err, $message, "connecting: $test: the message gives the reason");
	($rc) = cli(@options, qw(run n --wait-seconds 300 -- true)) if $test =~ /database|role|extension/;
	is($rc, 4, "run: $test is not retried") if $test =~ /database|role|extension/;
}

# a server that accepts connections and sends nothing
my $silent = IO::Socket::UNIX->new(Local => "$nowhere/.s.PGSQL.$port", Listen => 5)
  or die "no socket: $!";
($rc, $out, $err) = cli('-d', "host=$nowhere port=$port connect_timeout=1", 'status');
is("$rc|$out", '4|', 'connecting: a silent server gives status 4');
like($err, qr/timeout/, 'connecting: connect_timeout applies');
is((cli('-d', "host=$nowhere,$host dbname=second connect_timeout=1", qw(status here)))[0],
	0, 'connecting: the next host of the list is tried');

delete $ENV{PGAPPNAME};
$waiter = start_cli(qw(-d second acquire here --owner p --wait-seconds 300));
ok($node->poll_query_until('postgres', q{
		SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'leaselock')}),
	'connections have an application name');
$waiter->{run}->signal('TERM');
finish($waiter);

# ---------------------------------------------------------------------
# A lost answer
# ---------------------------------------------------------------------

# Forwards the traffic between client and server, except the answer to the
# first lease_acquire: there it closes the connection.
my $proxy_dir = PostgreSQL::Test::Utils::tempdir_short();
my $listener = IO::Socket::UNIX->new(Local => "$proxy_dir/.s.PGSQL.$port", Listen => 5)
  or die "no socket: $!";
my $proxy;
END { kill 'KILL', $proxy if $proxy }
$proxy = fork // die "no process: $!";
if ($proxy == 0)
{
	my $lose = 1;
	while (my $client = $listener->accept)
	{
		my $server = IO::Socket::UNIX->new(Peer => "$host/.s.PGSQL.$port") or POSIX::_exit(1);
		my $select = IO::Select->new($client, $server);
		my $asked = 0;
		while ($select->count == 2)
		{
			foreach my $from ($select->can_read)
			{
				my $to = $from == $client ? $server : $client;
				my $size = sysread $from, my $bytes, 8192;
				$asked = 1 if $size && $from == $client && $bytes =~ /lease_acquire/;
				if (!$size || ($asked && $lose && $from == $server))
				{
					$lose = 0 if $asked;
					$select->remove($client, $server);
					last;
				}
				syswrite $to, $bytes;
			}
		}
		close $_ foreach $client, $server;
	}
	POSIX::_exit(0);
}
($rc, $out, $err) = cli('-h', $proxy_dir, '-d', 'second', qw(acquire lost --owner o --json));
is($rc, 0, 'a request whose answer was lost is repeated');
like($err, qr/trying again/, 'the program reports the retry');
is(decode_json($out)->{depth}, 1, 'the lock was acquired once');
is($node->safe_psql('second', q{SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'lost'}),
	'1', 'there is one ticket');
kill 'KILL', $proxy;
waitpid $proxy, 0;
undef $proxy;

# on the command line names are UTF-8, whatever the database's encoding
$node->safe_psql('postgres', q{CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
$node->safe_psql('latin', 'CREATE EXTENSION leaselock');
($rc, $answer) = cli_json('-d', 'latin', 'acquire', "\xC3\xA4", '--owner', 'o');
is_deeply([ $rc, $answer->{name} ], [ 0, "\xE4" ], 'a name works in a database with another encoding');
is($node->safe_psql('latin', 'SELECT octet_length(name) FROM leaselock.lease_status'),
	'1', 'the server converts the name');

is_deeply([ internal_errors($node) ], [], 'no internal error');
$node->stop;

done_testing();
