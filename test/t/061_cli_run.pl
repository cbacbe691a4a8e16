# leaselock run: a command under a lease.  Tests what it passes to the command
# and back, and that the command does not outlive the lease, whatever dies or
# hangs.
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IO::Socket::UNIX;
use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
# short leases, so that some can be lost
my $node = new_node('run', "leaselock.min_lease = '1 s'\nleaselock.waiter_timeout = '4 s'\n");
use_server($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($rc, $out, $err, $answer, $run);

# The command of most tests: appends the time to a file, repeatedly, until a
# file of that name with ".end" exists.  With a further argument it records
# TERM and continues.
append_to_file("$dir/beat", <<'SCRIPT');
echo "$$ $LEASELOCK_TICKET" >"$1.pid"
if [ "$2" ]; then trap 'echo "term $(date +%s.%N)" >>"$1"' TERM; fi
until [ -e "$1.end" ]; do date +%s.%N >>"$1"; sleep 0.05; done
exit 5
SCRIPT

sub beat { return ('sh', "$dir/beat", "$dir/$_[0]", @_[ 1 .. $#_ ]) }
sub contents { return -e "$dir/$_[0]" ? slurp_file("$dir/$_[0]") : '' }
sub end { append_to_file("$dir/$_[0].end", ''); return }
sub beats { my ($beat) = @_; return wait_until(sub { contents($beat) =~ /\n/ }) }

# a zombie process counts as dead
sub alive
{
	my ($pid) = contents("$_[0].pid") =~ /(\d+)/;
	return kill(0, $pid) && !(-e "/proc/$pid/stat" && slurp_file("/proc/$pid/stat") =~ /\) Z /);
}

sub last_beat { return (contents($_[0]) =~ /^(\d+\.\d+)$/mg)[-1] }

# When the lease of the command ends, or ended, by the server's clock
sub expiry
{
	my ($ticket) = contents("$_[0].pid") =~ / (\S+)/;
	return $node->safe_psql('postgres',
		"SELECT extract(epoch FROM expires_at) FROM leaselock.lease_get('$ticket')");
}

sub holders
{
	my ($name) = @_;
	return $node->safe_psql('postgres',
		"SELECT count(*) FROM leaselock.lease_status WHERE name = '$name' AND owner IS NOT NULL AND NOT lapsed");
}

# stops or continues all processes of the server
sub signal_server
{
	my ($signal, @pids) = @_;
	kill $signal, @pids;
	return;
}

sub server_pids
{
	return (slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/,
		split /\n/, $node->safe_psql('postgres',
			'SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()'));
}

# ---------------------------------------------------------------------
# What is passed to the command and back
# ---------------------------------------------------------------------

($rc, $out, $err) = cli(qw(run job --scope s --owner o -- sh -c),
	'echo "$LEASELOCK_NAME|$LEASELOCK_SCOPE|$LEASELOCK_FENCE|$LEASELOCK_TICKET"; leaselock status job --scope s --json; exit 7');
is($rc, 7, "the command's exit status is passed back");
my ($environment, $json) = split /\n/, $out;
my ($fence) = $json =~ /"fence":(\d+)/;
like($environment, qr/^job\|s\|$fence\|[0-9a-f-]{36}$/, 'name, scope, fence and ticket are in its environment');
like($json, qr/"owner":"o".*"depth":1/, 'the lock is held while it runs');
is($err, '', 'nothing is printed on standard error');
is(holders('job'), '0', 'the lock is free after the command');

is((cli(qw(run job -- sh -c), 'kill -9 $$'))[0], 128 + 9, 'a command ended by a signal gives 128 plus its number');
($rc, $out, $err) = cli(qw(run job -- no-such-command));
is($rc, 127, 'a missing command gives status 127');
like($err, qr/no-such-command/, 'the missing command is named');
append_to_file("$dir/data", '');
is((cli('run', 'job', '--', "$dir/data"))[0], 126, 'a command that cannot be executed gives status 126');
is(holders('job'), '0', 'the lock is free afterwards');
($rc, $out) = cli(qw(run --owner o -- -job -- printf), '[%s]', '', '--', ' a  b ', q{"'\\});
is($out, q{[][--][ a  b ]["'\\]}, 'arguments are passed unchanged; a name may start with a dash');
if (-d '/proc/self/fd')
{
	my @list = qw(ls /proc/self/fd);
	IPC::Run::run(\@list, '<', \'', '>', \$out, '2>', \$err);
	is((cli(qw(run job --), @list))[1], $out, 'the command inherits no additional open files');
}

my $text = "one\ntwo\n";
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
IPC::Run::run([qw(leaselock run job -- cat)], '<', \$text, '>', \$out);
is($out, $text, 'standard input is passed on');

$run = start_cli(qw(run job -- sh -c), <<'SCRIPT', 'sh', "$dir/signals");
for name in HUP USR1 USR2 WINCH; do trap "echo $name >>$1" $name; done
trap 'exit 6' TERM
echo ready >"$1"
while :; do sleep 0.05; done
SCRIPT
ok(wait_until(sub { contents('signals') eq "ready\n" }), 'a command that catches signals starts');
foreach my $name (qw(HUP USR1 USR2 WINCH))
{
	$run->{run}->signal($name);
	ok(wait_until(sub { contents('signals') =~ /$name/ }), "$name is passed on");
}
$run->{run}->signal('TERM');
is(finish($run), 6, 'TERM is passed on, and the exit status is passed back');

# ---------------------------------------------------------------------
# Two commands
# ---------------------------------------------------------------------

my $first = start_cli(qw(run pair --lease-seconds 60 --), beat('first'));
ok(beats('first'), 'the first command runs');
($rc, $out, $err) = cli(qw(run pair -- touch), "$dir/both");
is($rc, 1, 'a second command gets status 1');
like($err, qr/^leaselock: "pair" is held by ".*"$/m, 'the message names the holder');
is((cli(qw(run pair --quiet -- touch), "$dir/both"))[2], '', 'with --quiet nothing is printed');
($rc, $out, $err) = cli(qw(run pair --wait-seconds 0.5 -- touch), "$dir/both");
is($rc, 1, 'a wait that times out gives status 1');
like($err, qr/^leaselock: gave up after 0\.5 s: "pair" is held by ".*"$/m, 'the message says how long it waited');
ok(!-e "$dir/both", 'no second command has been started');

my $waits = q{SELECT ticket FROM leaselock.lease_tickets WHERE name = 'pair' AND state = 'waiting'};
my $second = start_cli(qw(run pair --wait-seconds 60 --), beat('second'));
ok($node->poll_query_until('postgres', "SELECT EXISTS ($waits)"), 'another command waits');
my $third = start_cli(qw(run pair --wait-seconds 60 -- touch), "$dir/both");
ok($node->poll_query_until('postgres', "SELECT count(*) = 2 FROM ($waits) t"), 'a third command waits');
my $tickets = $node->safe_psql('postgres', "$waits ORDER BY 1");
$third->{run}->signal('TERM');
is(finish($third), 128 + 15, 'TERM ends the wait');
ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($waits) t"), 'its place in the queue is given up');

$node->restart;
ok($node->poll_query_until('postgres', qq{
		SELECT count(*) = 1 FROM ($waits) t}), 'a restart of the server does not end the other wait');
like($tickets, qr/\Q${\ $node->safe_psql('postgres', $waits)}\E/, 'the waiter keeps its ticket');
ok(contents('second') eq '', 'it still waits');
end('first');
is(finish($first), 5, 'the first command finishes normally after the restart');
ok(beats('second'), 'then the second runs');
cmp_ok((contents('second') =~ /^(\d+\.\d+)/)[0], '>', last_beat('first'), 'it started after the end of the first');
end('second');
is(finish($second), 5, 'the second command finishes normally');

# ---------------------------------------------------------------------
# The lease is kept
# ---------------------------------------------------------------------

$run = start_cli(qw(run kept --lease-seconds 12 --), beat('kept'));
ok(beats('kept'), 'a command that outlasts its lease starts');
my $expiry = expiry('kept');
ok(wait_until(sub { expiry('kept') > $expiry }), 'the lease is renewed');
$node->stop('immediate');
$node->start;
$expiry = expiry('kept');
ok(wait_until(sub { expiry('kept') > $expiry }), 'the lease is renewed after a server crash');
ok(alive('kept'), 'the command is still running');
end('kept');
is(finish($run), 5, 'the command finishes normally');
is(holders('kept'), '0', 'then the lock is free');

# Seven expiries: of the six times between them the shortest tells that a renewal
# is not made later, and the longest that it is not made earlier; a busy machine
# makes some of them longer.
$run = start_cli(qw(run third --lease-seconds 3 --), beat('third'));
ok(beats('third'), 'a command with a short lease starts');
my @expiry;
wait_until(sub {
	my $now = expiry('third');
	push @expiry, $now if !@expiry || $now > $expiry[-1];
	return @expiry > 6;
});
my @between = sort { $a <=> $b } map { $expiry[$_] - $expiry[ $_ - 1 ] } 1 .. $#expiry;
ok(@between == 6 && $between[0] < 1.4 && $between[-1] > 0.9, 'the lease is renewed whenever a third of it has passed')
  or diag("@between");
end('third');
is(finish($run), 5, 'the command finishes normally');

$run = start_cli(qw(run left --lease-seconds 60 -- sh -c), <<'SCRIPT', 'sh', "$dir/beat", "$dir/left");
sh "$1" "$2" &
exit 3
SCRIPT
ok(wait_until(sub { $run->{run}->pump_nb; $run->{err} =~ /the command has ended/ }),
	'a command ends and leaves a process running');
ok(beats('left'), 'the process continues to work');
is(holders('left'), '1', 'the lease is kept for the process');
end('left');
is(finish($run), 3, 'run ends after the process, with the status of the command');
is(holders('left'), '0', 'then the lock is free');

# ---------------------------------------------------------------------
# The lease is lost
# ---------------------------------------------------------------------

$run = start_cli(qw(run broken --lease-seconds 3 --), beat('broken'));
ok(beats('broken'), 'a command whose lease will be broken starts');
$node->safe_psql('postgres', q{
	SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_status WHERE name = 'broken'});
is(finish($run), 2, 'the command is ended');
like($run->{err}, qr/the lease on "broken" is broken/, 'the program reports why');
ok(!alive('broken'), 'the command no longer runs');

$run = start_cli(qw(run stopped --lease-seconds 4 --grace 1 --), beat('stopped'));
ok(beats('stopped'), 'a command whose server will stop starts');
$node->stop('immediate');
is(finish($run), 2, 'the command is ended when the lease cannot be renewed');
like($run->{err}, qr/could not be renewed in time/, 'the program reports why');
ok(!alive('stopped'), 'the command no longer runs');
$node->start;
cmp_ok(last_beat('stopped'), '<', expiry('stopped'), 'it ended before its lease');

$run = start_cli(qw(run grace --lease-seconds 8 --), beat('grace', 'stubborn'));
ok(beats('grace'), 'a command that ignores TERM, without --grace, starts');
$node->stop('immediate');
is(finish($run), 2, 'the command is ended when the lease cannot be renewed');
$node->start;
my ($told) = contents('grace') =~ /^term (\d+\.\d+)$/m;
ok($told && last_beat('grace') - $told > 1 && last_beat('grace') - $told < 3,
	'without --grace a quarter of the lease lies between TERM and KILL') or diag(last_beat('grace') - ($told // 0));

$run = start_cli(qw(run frozen --lease-seconds 4 --grace 1 --), beat('frozen', 'stubborn'));
ok(beats('frozen'), 'a command that ignores TERM and whose server will hang starts');
my @pids = server_pids();
signal_server('STOP', @pids);
$rc = eval { finish($run) };
signal_server('CONT', @pids);
is($rc, 2, 'the command is ended when the lease cannot be renewed');
like($run->{err}, qr/in time and was killed/, 'the program reports the KILL');
my ($term) = contents('frozen') =~ /^term (\d+\.\d+)$/m;
ok($term, 'the command got TERM first');
cmp_ok($term // 0, '<', last_beat('frozen'), 'it continued after TERM');
cmp_ok(last_beat('frozen'), '<', expiry('frozen'), 'it ended before its lease');
ok(!alive('frozen'), 'the command no longer runs');

$run = start_cli(qw(run killed --lease-seconds 60 -- sh -c), <<'SCRIPT', 'sh', "$dir/beat", "$dir/killed");
sh "$1" "$2-child" &
sh "$1" "$2"
SCRIPT
ok(beats('killed') && beats('killed-child'), 'a command with a child starts');
$run->{run}->signal('KILL');
is(finish($run), -9, 'the program is killed');
ok(wait_until(sub { !alive('killed') && !alive('killed-child') }), 'the command and its child are ended, too');
is(holders('killed'), '1', 'the lease is not released');

$run = start_cli(qw(run halted --lease-seconds 4 --grace 1 --), beat('halted', 'stubborn'));
ok(beats('halted'), 'a command whose program will be stopped starts');
$run->{run}->signal('STOP');
ok(wait_until(sub { !alive('halted') }), 'the watchdog ends the command');
$run->{run}->signal('CONT');
is(finish($run), 2, 'the program reports it when it continues');
cmp_ok(last_beat('halted'), '<', expiry('halted'), 'it ended before its lease');

# ---------------------------------------------------------------------
# One of two hosts accepts connections and does not answer
# ---------------------------------------------------------------------

my $silence = PostgreSQL::Test::Utils::tempdir_short();
my $silent = IO::Socket::UNIX->new(Local => "$silence/.s.PGSQL." . $node->port, Listen => 50)
  or die "no socket: $!";
# a quarter of the lease, which is the time for a renewal, is less than
# connect_timeout
$run = start_cli('-d', "host=$silence," . $node->host . ' connect_timeout=3 application_name=moved',
	qw(run moved --lease-seconds 8 --grace 1 --), beat('moved'));
ok(beats('moved'), 'the lock is acquired from the second host');
my $first_expiry = expiry('moved');
is($node->safe_psql('postgres',
	q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'moved'}),
	'1', 'its connection is lost');
ok(wait_until(sub { expiry('moved') > $first_expiry || !alive('moved') }) && alive('moved'),
	'the lease is renewed on the second host, although the first one takes all the time of a renewal');
end('moved');
is(finish($run), 5, 'the command ends when it is told to');
close $silent;

# ---------------------------------------------------------------------
# The server hangs at the end
# ---------------------------------------------------------------------

$run = start_cli(qw(run late --lease-seconds 60 --), beat('late'));
ok(beats('late'), 'a command whose server will hang at its end starts');
@pids = server_pids();
signal_server('STOP', @pids);
end('late');
$rc = eval { finish($run) };
signal_server('CONT', @pids);
is($rc, 5, "the command's exit status is passed back");
like($run->{err}, qr/could not release the lease/, 'the program warns that the lease is not released');

# ---------------------------------------------------------------------
# On a terminal
# ---------------------------------------------------------------------

SKIP:
{
	skip 'no terminal is available here', 6
	  if !eval { local $SIG{__WARN__} = sub { }; require IO::Pty; IO::Pty->new };
	my $screen = '';
	my $keys = '';
	my $terminal = sub {
		return IPC::Run::start([ 'leaselock', @_ ], '<pty<', \$keys, '>pty>', \$screen,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)) };
	my $shows = sub {
		my ($run, $pattern) = @_;
		return wait_until(sub { $run->pump_nb; $screen =~ $pattern }) };

	my $holder = start_cli(qw(run tty --owner holder --), beat('tty'));
	beats('tty');
	my $reader = $terminal->(qw(-d postgres run tty --wait-seconds 60 -- sh -c), 'read line; echo "[$line]"');
	ok($shows->($reader, qr/waiting up to (\d+ s|1 min), position 1: "tty", held by "holder"/), 'the status line of a wait is shown');
	end('tty');
	finish($holder);
	$keys .= "typed\n";
	ok($shows->($reader, qr/\[typed\]/), 'the command reads from the terminal');
	$reader->finish;
	is($reader->full_result(0), 0, 'the command finishes normally');

	$screen = '';
	my $sleeper = $terminal->(qw(-d postgres run tty -- sh -c), 'echo ready; exec sleep 1000');
	ok($shows->($sleeper, qr/ready/), 'a command starts on a terminal');
	$keys .= "\cC";
	$sleeper->pump_nb;
	$sleeper->finish;
	is($sleeper->full_result(0) >> 8, 128 + 2, 'Control-C on the terminal interrupts it');
	is(holders('tty'), '0', 'its lock is free');
}

is_deeply([ internal_errors($node) ], [], 'no internal error');
$node->stop;

done_testing();
