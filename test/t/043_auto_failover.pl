# An automatic failover: pg_auto_failover with a monitor and two nodes on this
# machine.  The test kills the primary under load, and the other node takes
# over.  The held ticket survives with its fence, waiters keep their places,
# new fences are greater, and a stale fence is refused.  Two commands run under
# "leaselock run": the command whose lease outlives the failover never notices
# it; the command whose lease is too short is ended in time.  Then the new
# primary hangs instead of dying, with the same results; when it continues, it
# acknowledges and keeps nothing stale.
#
# Three independent records show that no lock has two holders: a kernel lock
# that each command and its children keep while they live, the times at which
# the commands worked, by the machine's monotonic clock, and the server's
# events.
#
# Native only: pg_auto_failover is not in the trees of the other majors

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

chomp(my $libdir = `pg_config --pkglibdir`);
my ($autoctl) = grep { -x } map { "$_/pg_autoctl" } split /:/, $ENV{PATH};
plan skip_all => 'pg_auto_failover IS NOT INSTALLED: automatic failover is not tested'
  if !$autoctl || !-e "$libdir/pgautofailover.so";
need_program();

my $dir = PostgreSQL::Test::Utils::tempdir;
my $logs = $PostgreSQL::Test::Utils::log_path;
chomp(my $superuser = `id -un`);

# Timings of the monitor in ms, as the documentation recommends.  While nodes
# are set up and the load starts, a slow report from a node must not cause a
# failover.
my %tuned = (
	health_check_period => 1000,
	health_check_timeout => 1000,
	health_check_retry_delay => 500,
	node_considered_unhealthy_timeout => 5000,
	primary_demote_timeout => 5000);
my %patient = (%tuned, health_check_timeout => 10000, node_considered_unhealthy_timeout => 120000);

# One lease outlives the failover even on a busy machine.  The other ends
# before the monitor can have acted, because the monitor waits for
# primary_demote_timeout after it has found the primary missing.
my $long_lease = 150;
my $short_lease = 6;
my $grace = 2;
my $waiter_timeout = '120 s';

# ---------------------------------------------------------------------
# Services and processes
# ---------------------------------------------------------------------

my (%service, %port, @others);

# where pg_autoctl keeps its state
$ENV{HOME} = $dir;
$ENV{"XDG_$_"} = $dir foreach 'CONFIG_HOME', 'DATA_HOME', 'RUNTIME_DIR';
# how it reaches its own server
delete $ENV{PGPORT};
@ENV{qw(PGHOST PG_REGRESS_SOCK_DIR)} = ('127.0.0.1', PostgreSQL::Test::Utils::tempdir_short);
$ENV{PGCONNECT_TIMEOUT} = 3;

# start_service(NAME, COMMAND): starts it in the background, with its output in
# its own file
sub start_service
{
	my ($name, @command) = @_;

	$service{$name} = IPC::Run::start(\@command, '<', '/dev/null',
		'>>', "$logs/043_auto_failover_$name.log", '2>&1');
	return;
}

# descendants(PID): the process and all processes below it
sub descendants
{
	my ($pid) = @_;
	my %children;

	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		open my $file, '<', $stat or next;
		my $line = <$file> // next;
		push @{ $children{$2} }, $1 if $line =~ /^(\d+) \(.*\) \S (\d+) /s;
	}
	my @found = ($pid);
	for (my $i = 0; $i < @found; $i++) { push @found, @{ $children{ $found[$i] } // [] } }
	return @found;
}

# has_ended(RUN): whether a process started by IPC::Run has ended
sub has_ended
{
	my ($run) = @_;
	my ($pid) = map { $_->{PID} } @{ $run->{KIDS} };
	return !-e "/proc/$pid/stat" || slurp_file("/proc/$pid/stat") =~ /\) Z /;
}

# comes(SUB, CLIENT): waits until SUB returns something true, while all
# services run; a service that ends by itself makes the test pointless.
# Returns false after a time-out, or if the client has ended.
sub comes
{
	my ($condition, $client) = @_;
	my $is_over;

	return wait_until(sub {
		my $result = $condition->();
		die "a service has ended" if !$result && grep { has_ended($_) } values %service;
		$is_over = !$result && $client && has_ended($client->{run});
		return $result || $is_over;
	}) && !$is_over;
}

# stop_service(NAME): stops all its processes, which keep their connections and
# do not answer; the kernel accepts new ones.  Returns the processes, children
# first.
sub stop_service
{
	my ($name) = @_;
	my ($top) = map { $_->{PID} } @{ $service{$name}{KIDS} };
	my (@pids, $count);

	do
	{
		$count = @pids;
		@pids = descendants($top);
		kill 'STOP', @pids;
	} while (@pids > $count);
	return reverse @pids;
}

# kill_service(NAME): takes a node away, as if its machine had failed.  All
# processes are stopped before the first is killed, so that none can restart or
# inform another.
sub kill_service
{
	my ($name) = @_;
	return if !$service{$name};
	kill 'KILL', stop_service($name);
	(delete $service{$name})->finish;
	return;
}

# a signal that ends the test also ends what it has started
$SIG{$_} = sub { die "ended by SIG$_[0]\n" } foreach qw(INT TERM);

END
{
	my $status = $?;
	foreach my $client (@others)
	{
		# the watchdog of a killed program ends the command
		eval { $client->{run}->kill_kill(grace => 0) };
	}
	kill_service($_) foreach sort keys %service;
	$? = $status;
}

# ---------------------------------------------------------------------
# The nodes
# ---------------------------------------------------------------------

$port{$_} = PostgreSQL::Test::Cluster::get_free_port() foreach 'monitor', 'node1', 'node2';

# query(NODE, SQL, DATABASE): the output of psql; undef on failure, with the
# message in $error
my $error;

sub query
{
	my ($name, $sql, $database) = @_;
	my ($out, $err) = ('', '');
	my $connstr = "host=127.0.0.1 port=$port{$name} user=$superuser dbname=" . ($database // 'jobs');

	IPC::Run::run([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=sqlstate', '-d', $connstr, '-c', $sql ],
		"<", "/dev/null", ">", \$out, "2>", \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$error = $err;
	chomp $out;
	return $? == 0 ? $out : undef;
}

sub sql
{
	my ($name, $sql, $database) = @_;
	return query($name, $sql, $database) // die "$name: $sql: $error";
}

sub sqlstate
{
	my ($name, $sql) = @_;
	return query($name, $sql) // ($error =~ /(?:ERROR|FATAL):\s+(\w{5})/ ? $1 : $error);
}

sub tune
{
	my (%settings) = @_;
	sql("monitor", $_, "pg_auto_failover")
	  foreach (map { "ALTER SYSTEM SET pgautofailover.$_ = $settings{$_}" } sort keys %settings), "SELECT pg_reload_conf()";
	return;
}

# states(): the states that the monitor has reported and assigned
sub states
{
	return query('monitor', q{
		SELECT string_agg(format('%s: %s', nodename, CASE WHEN reportedstate = goalstate
			THEN reportedstate::text ELSE 'changes' END), ', ' ORDER BY nodename)
		FROM pgautofailover.node}, 'pg_auto_failover') // '';
}

sub reaches
{
	my ($wanted, $what) = @_;
	my $reached = comes(sub { states() eq $wanted });
	ok($reached, $what) or die "the monitor has: " . states();
	return;
}

my $began = time;
# not through pg_autoctl, which would wait for the disk; the monitor is a copy
# of the node
system_or_bail('initdb', '--no-sync', '--auth', 'trust', '--pgdata', "$dir/node1");
append_to_file("$dir/node1/postgresql.conf", qq{
fsync = off
shared_buffers = 32MB
log_line_prefix = '%m [%p] %e %q%a '
checkpoint_completion_target = 0
restart_after_crash = off
});
PostgreSQL::Test::RecursiveCopy::copypath("$dir/node1", "$dir/monitor");
chmod 0700, "$dir/monitor";
append_to_file("$dir/monitor/postgresql.conf", join '', map { "pgautofailover.$_ = $patient{$_}\n" } sort keys %patient);

my @common = ('--hostname', '127.0.0.1', '--skip-pg-hba', '--no-ssl', '--run');
start_service('monitor', 'pg_autoctl', 'create', 'monitor',
	'--pgdata', "$dir/monitor", '--pgport', $port{monitor}, @common);
ok(comes(sub { (query('monitor', 'SELECT count(*) FROM pgautofailover.formation', 'pg_auto_failover') // '') eq '1' }),
	'the monitor is created');
foreach my $name ('node1', 'node2')
{
	start_service($name, 'pg_autoctl', 'create', 'postgres',
		'--pgdata', "$dir/$name", '--pgport', $port{$name}, '--listen', '127.0.0.1',
		'--name', $name, '--dbname', 'jobs', @common, '--monitor',
		"postgres://autoctl_node\@127.0.0.1:$port{monitor}/pg_auto_failover?sslmode=prefer");
	reaches('node1: single', 'the first node is up') if $name eq 'node1';
}
reaches('node1: primary, node2: secondary', 'the second node becomes a standby');
ok(comes(sub { (query('node1', q{SELECT string_agg(sync_state, ',') FROM pg_stat_replication}) // '') eq 'quorum' }),
	'the standby is synchronous');
note sprintf 'set up in %.1f s', time - $began;

sql('node1', $_) foreach
  'CREATE EXTENSION leaselock',
  q{CREATE TABLE written (at timestamptz DEFAULT clock_timestamp(), name text, host text, fence bigint)},
  # settings of the database are replicated to the standby
  "ALTER DATABASE jobs SET leaselock.waiter_timeout = '$waiter_timeout'",
  "ALTER DATABASE jobs SET leaselock.events = 'all'";

# ---------------------------------------------------------------------
# Two hosts, and their commands
# ---------------------------------------------------------------------

# nodes(NAMES): the connection string of the nodes, in this order
sub nodes
{
	my (@names) = @_;
	return 'host=' . join(',', map { '127.0.0.1' } @names) . ' port=' . join(',', @port{@names})
	  . " user=$superuser dbname=jobs target_session_attrs=read-write connect_timeout=3";
}

my $everywhere = nodes('node1', 'node2');

# The command: records what happens, by the monotonic clock and by the clock
# that leases use, and writes to the database under its fence.  Both processes,
# and each psql, hold the kernel lock.
append_to_file("$dir/work", <<'SCRIPT');
use strict;
use warnings;
use Fcntl qw(:flock);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC time usleep);

my ($dir, $host, $connstr) = @ARGV;
my ($name, $fence, $ticket) = @ENV{map { "LEASELOCK_$_" } 'NAME', 'FENCE', 'TICKET'};
$^F = 100;
open my $alone, '>>', "$dir/$name.alone" or die;
open my $record, '>>', "$dir/$name.record" or die;

sub record
{
	syswrite $record, sprintf("%.6f %.6f %d %s %s %s\n",
		clock_gettime(CLOCK_MONOTONIC), time, $fence, $ticket, $host, shift);
}

record(flock($alone, LOCK_EX | LOCK_NB) ? 'begins' : 'is not alone');
my $writer = fork // die;
while (!$writer)
{
	system 'psql', '-XAtq', '-d', $connstr, '-c', qq{
		INSERT INTO written (name, host, fence)
		SELECT '$name', '$host', $fence FROM leaselock.fence_assert('$name', $fence)};
	usleep(100_000);
}
until (-e "$dir/$name.$host.end")
{
	record('works');
	usleep(20_000);
}
record('ends');
kill 'KILL', $writer;
waitpid $writer, 0;
SCRIPT

my %client;

# start_host(LOCK, HOST, OPTIONS): starts a command under a lease
sub start_host
{
	my ($name, $host, @options) = @_;
	my $client = start_cli('run', $name, '--owner', $host, '-d', $everywhere, @options,
		'--', $^X, "$dir/work", $dir, $host, $everywhere);

	push @others, $client;
	return $client{"$name $host"} = $client;
}

# end_host(LOCK, HOST): lets its command end; returns the exit status
sub end_host
{
	my ($name, $host) = @_;

	append_to_file("$dir/$name.$host.end", '');
	return finish($client{"$name $host"});
}

# record(LOCK): the records of its commands, ordered by time
sub record
{
	my ($name) = @_;
	my @lines = -e "$dir/$name.record" ? slurp_file("$dir/$name.record") =~ /(.*)\n/g : ();
	my @record;

	foreach my $line (@lines)
	{
		my %entry;
		@entry{qw(clock time fence ticket host what)} = split / /, $line, 6;
		push @record, \%entry;
	}
	return sort { $a->{clock} <=> $b->{clock} } @record;
}

sub of_host
{
	my ($name, $host) = @_;
	return grep { $_->{host} eq $host } record($name);
}

sub begins
{
	my ($name, $host) = @_;
	return comes(sub { scalar of_host($name, $host) }, $client{"$name $host"});
}

# queue(NODE): the waiters for "job", with their tickets and places
sub queue
{
	my ($node) = @_;
	return sql($node, q{
		SELECT string_agg(format('%s %s %s', owner, position, ticket), ', ' ORDER BY position)
		FROM leaselock.lease_tickets WHERE name = 'job' AND state = 'waiting'});
}

sub waits
{
	my ($name, $owner, $node) = @_;
	return comes(sub { sql($node // 'node1', qq{
			SELECT count(*) FROM leaselock.lease_tickets
			WHERE name = '$name' AND owner = '$owner' AND state = 'waiting'}) eq '1' });
}

start_host('job', 'host-1', '--lease-seconds', $long_lease);
ok(begins('job', 'host-1'), 'the command with the long lease starts');
start_host('job', 'host-2', '--lease-seconds', $long_lease, '--wait-seconds', 290);
ok(waits('job', 'host-2'), 'another host waits for the lock');
my $request = "request_id => '22222222-2222-4222-8222-222222222222'";
my $poll = "SELECT state, position FROM leaselock.lease_acquire('job', 'polls', wait => '290 s', $request)";
is(sql('node1', $poll), 'waiting|2', 'a waiter polls with its request id');
my ($ticket, $fence) = split /\|/, sql('node1',
	q{SELECT ticket, fence FROM leaselock.lease_acquire('held', 'keeper', '300 s')});
my $queue = queue('node1');

# ---------------------------------------------------------------------
# Load
# ---------------------------------------------------------------------

# psql prints one line for each acknowledged call
my @load;
foreach my $number (0 .. 2)
{
	my $me = "client $number";
	my %client = map { $_ => "$dir/load$number.$_" } 'in', 'out', 'err';
	my $in = '';

	foreach my $turn (1 .. 6000)
	{
		$in .= qq{
SELECT 'ticket', ticket, fence FROM leaselock.lease_acquire('load $number $turn', '$me', '300 s');
SELECT ticket AS mine, fence AS fence, state = 'held' AS held FROM leaselock.lease_acquire('shared', '$me', request_id => gen_random_uuid()) \\gset
\\if :held
BEGIN;
INSERT INTO written (name, host, fence) SELECT 'shared', '$number-$turn', :fence FROM leaselock.fence_assert('shared', :fence);
COMMIT;
\\echo written|$number-$turn|:fence
SELECT FROM leaselock.lease_release(:'mine');
\\endif
};
	}
	append_to_file($client{in}, $in);
	$client{run} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $everywhere, '-f', $client{in} ],
		'>', $client{out}, '2>', $client{err});
	push @load, \%client;
	push @others, \%client;
}
ok(comes(sub { !grep { (() = slurp_file($_->{out}) =~ /written/g) < 20 } @load }), 'clients are at work');

# ---------------------------------------------------------------------
# The primary dies
# ---------------------------------------------------------------------

tune(%tuned);
start_host('short', 'host-1', '--lease-seconds', $short_lease, '--grace', $grace);
ok(begins('short', 'host-1'), 'the command with the short lease starts');
start_host('short', 'host-2', '--lease-seconds', $long_lease, '--wait-seconds', 290);
ok(waits('short', 'host-2'), 'another host waits for the lock');
is(states(), 'node1: primary, node2: secondary', 'both nodes are healthy before the failure');

my $killed = time;
kill_service('node1');
# a continued program checks its lease at once, so only one is renewed
# meanwhile
$client{'job host-1'}{run}->signal('CONT');

# what the new primary answers until it is promoted
my (%said, $answer);
ok(comes(sub {
		$answer = sqlstate('node2', q{SELECT state FROM leaselock.lease_acquire('new', 'newcomer', '300 s')});
		$said{$answer}++ if $answer =~ /^\w+$/;
		return $answer eq 'held' }),
	'the other node takes over');
my $takeover = time - $killed;
is(join(' ', grep { !/^(?:held|25006)$/ } keys %said), '', 'the other node grants nothing before');
note 'until then: ', join ', ', map { "$_: $said{$_}" } sort keys %said;

# ---------------------------------------------------------------------
# Tickets, waiters and fences
# ---------------------------------------------------------------------

is(sql('node2', "SELECT state, fence FROM leaselock.lease_get('$ticket')"), "held|$fence", 'a held ticket survives with its fence');
is(sql('node2', "SELECT state, fence FROM leaselock.lease_renew('$ticket')"), "held|$fence", 'the ticket can be renewed');
is(sql('node2', $poll), 'waiting|2', 'a waiter that polls keeps its place');
is(queue('node2'), $queue, 'the other host keeps its place too, and both keep their tickets');
is(sql('node2', q{SELECT state, position FROM leaselock.lease_acquire('job', 'newcomer', wait => '290 s')}),
	'waiting|3', 'a new waiter queues behind them');

$_->{run}->finish foreach @load;
my (@rows, %told);
foreach my $client (@load)
{
	like(slurp_file($client->{err}), qr/connection|terminat|shut/, 'a client was at work');
	foreach my $line (slurp_file($client->{out}) =~ /(.*)\n/g)
	{
		my ($kind, $subject, $fence) = split /\|/, $line;
		$told{$kind}++;
		push @rows, "('$kind', '$subject', $fence)";
	}
}
append_to_file("$dir/told.sql", "CREATE TABLE told (kind text, subject text, fence bigint);\nINSERT INTO told VALUES\n" . join(",\n", @rows) . ";\n");
system_or_bail('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $everywhere, '-f', "$dir/told.sql");
cmp_ok($told{$_} // 0, '>', 50, "acknowledged: $_") foreach 'ticket', 'written';
is(sql('node2', q{
	SELECT count(*) FROM told t, leaselock.lease_get(subject::uuid) g
	WHERE kind = 'ticket' AND (g.state, g.fence) IS DISTINCT FROM ('held', t.fence)}),
	'0', 'no acknowledged grant is missing');
is(sql('node2', q{
	SELECT count(*) FROM told t LEFT JOIN written w ON w.name = 'shared' AND t.subject = w.host
	WHERE kind = 'written' AND w.fence IS DISTINCT FROM t.fence}),
	'0', 'no acknowledged write is missing');

my $greatest = sql('node2', qq{SELECT greatest(max(t.fence), (SELECT max(fence) FROM written WHERE at < to_timestamp($killed))) FROM told t});
cmp_ok(sql('node2', q{SELECT fence FROM leaselock.lease_peek('new')}), '>', $greatest,
	'a fence of the new primary is greater than all fences of the old one');
is(sql('node2', q{SELECT count(*) FROM leaselock.lease_peek('shared') p, leaselock.lease_break(p.name, p.fence) WHERE p.owner IS NOT NULL}) =~ /^[01]$/,
	1, 'the lock that all clients used is free');
cmp_ok(sql('node2', q{SELECT fence FROM leaselock.lease_acquire('shared', 'newcomer')}), '>', $greatest,
	'it is granted with a greater fence');

# ---------------------------------------------------------------------
# The lease that was too short
# ---------------------------------------------------------------------

is(finish($client{'short host-1'}), 2, 'the command with the short lease is ended');
like($client{'short host-1'}{err}, qr/"short" could not be renewed in time/, 'the program reports why');
my @short = of_host('short', 'host-1');
cmp_ok($short[-1]{time}, '>', $killed, 'it was at work when the primary was killed');
my $expiry = sql('node2', "SELECT extract(epoch FROM expires_at) FROM leaselock.lease_get('$short[0]{ticket}')");
cmp_ok($short[-1]{time}, '<', $expiry, 'it ended before its lease');
ok(begins('short', 'host-2'), 'then the other host gets the lock');
my ($next) = of_host('short', 'host-2');
cmp_ok($next->{fence}, '>', $short[0]{fence}, 'the grant has a greater fence');

my $stale = qq{INSERT INTO written (name, host, fence)
	SELECT 'short', 'stale', f FROM (VALUES ($short[0]{fence})) v(f), leaselock.fence_assert('short', f)};
is(sqlstate('node2', $stale), 'LS001', "the first command's fence is refused");
is(sqlstate('node2', $stale =~ s/', f\)/', f, allow_lapsed => true)/r), 'LS001', 'it is refused even with allow_lapsed');
is(sql('node2', q{SELECT count(*) FROM written WHERE host = 'stale'}), '0', 'the stale fence has written nothing');

# ---------------------------------------------------------------------
# The lease that was long enough
# ---------------------------------------------------------------------

my ($job) = of_host('job', 'host-1');
ok(comes(sub { sql('node2', qq{
		SELECT count(*) FROM written WHERE name = 'job' AND fence = $job->{fence}
		AND at > to_timestamp($killed) + '$takeover s'}) > 0 }, $client{'job host-1'}),
	'the command with the long lease writes to the new primary');
ok(comes(sub { sql('node2', qq{
		SELECT count(*) FROM leaselock.lease_events(max_rows => 1000000)
		WHERE kind = 'renewed' AND name = 'job' AND at > to_timestamp($killed)}) > 0 }, $client{'job host-1'}),
	'its lease is renewed on the new primary');
is(end_host('job', 'host-1'), 0, 'it exits with status 0');
like($client{'job host-1'}{err}, qr/renew the lease on "job".*"job" .*renewed again/s, 'it had to retry the renewal');
my @ends = grep { $_->{what} eq 'ends' } of_host('job', 'host-1');
is(scalar @ends, 1, 'it ended only once, when told to');
ok(begins('job', 'host-2'), 'then the other host gets the lock');
is(sql('node2', $poll), 'waiting|1', 'the next waiter moves up');
is(end_host($_, 'host-2'), 0, "the other host's command exits with status 0: $_") foreach 'job', 'short';
is(sql('node2', $poll), 'held|', 'the polling waiter gets the lock');
is(sql('node2', q{SELECT string_agg(owner || ' ' || position, ', ') FROM leaselock.lease_tickets WHERE name = 'job' AND state = 'waiting'}),
	'newcomer 1', 'the last waiter is next');

# ---------------------------------------------------------------------
# The dead node comes back
# ---------------------------------------------------------------------

my $returned = time;
%said = ();
start_service('node1', 'pg_autoctl', 'run', '--pgdata', "$dir/node1");
ok(comes(sub {
		$answer = sqlstate('node1', q{SELECT state FROM leaselock.lease_acquire('back', 'newcomer')});
		$said{$answer}++ if $answer =~ /^\w+$/;
		return states() eq 'node1: secondary, node2: primary' }),
	'the old primary comes back as a standby');
is(join(' ', grep { !/^25006$/ } keys %said), '', 'it grants nothing while it rejoins');
my $return = time - $returned;
ok(comes(sub { (query('node1', q{SELECT fence FROM leaselock.lease_peek('held')}) // '') eq $fence }), 'the standby has the leases');

# ---------------------------------------------------------------------
# The primary hangs
# ---------------------------------------------------------------------

my $hung_began = time;
# clients must get past the node that hangs
$everywhere = nodes('node2', 'node1');
start_host('hung job', 'host-1', '--lease-seconds', $long_lease);
ok(begins('hung job', 'host-1'), 'a command with a long lease starts on the new primary');
start_host('hung short', 'host-1', '--lease-seconds', $short_lease, '--grace', $grace);
ok(begins('hung short', 'host-1'), 'a command with a short lease starts');
my ($hung) = of_host('hung short', 'host-1');
start_host('hung short', 'host-2', '--lease-seconds', $long_lease, '--wait-seconds', 290);
ok(waits('hung short', 'host-2', 'node2'), 'another host waits for its lock');

# a transaction that has written under the fence of the short lease
my %late = (in => "BEGIN;\nINSERT INTO written (name, host, fence) SELECT 'hung short', 'late', $hung->{fence}
	FROM leaselock.fence_assert('hung short', $hung->{fence});\n\\echo written\n", out => '', err => '');
$late{run} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', nodes('node2') ],
	'<', \$late{in}, '>', \$late{out}, '2>', \$late{err}, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
push @others, \%late;
$late{run}->pump until $late{out} =~ /written/ || $late{err} ne '';
is($late{err}, '', 'a fenced write waits for its COMMIT');

my $hangs = time;
my @stopped = stop_service('node2');
$client{'hung job host-1'}{run}->signal('CONT');
ok(comes(sub { sqlstate('node1', q{SELECT state FROM leaselock.lease_acquire('newer', 'newcomer', '300 s')}) eq 'held' }),
	'the other node takes over from a primary that hangs');
my $hung_takeover = time - $hangs;
is(finish($client{'hung short host-1'}), 2, 'the command with the short lease is ended');
my ($hung_end) = map { $_->{time} } (of_host('hung short', 'host-1'))[-1];
my $hung_expiry = sql('node1', "SELECT extract(epoch FROM expires_at) FROM leaselock.lease_get('$hung->{ticket}')");
cmp_ok($hung_end, '<', $hung_expiry, 'it ended before its lease');
ok(begins('hung short', 'host-2'), 'the other host gets its lock, although its connection hung');
my $hung_next = time - $hangs;
ok(comes(sub { sql('node1', qq{
		SELECT count(*) FROM leaselock.lease_events(max_rows => 1000000)
		WHERE kind = 'renewed' AND name = 'hung job' AND at > to_timestamp($hangs)}) > 0 }, $client{'hung job host-1'}),
	'the long lease is renewed on the new primary');
my $hung_renewed = sql('node1', qq{
	SELECT round(extract(epoch FROM min(at))::numeric - $hangs, 1) FROM leaselock.lease_events(max_rows => 1000000)
	WHERE kind = 'renewed' AND name = 'hung job' AND at > to_timestamp($hangs)});
is(end_host('hung job', 'host-1'), 0, 'its command ends when it is told to');
is(end_host('hung short', 'host-2'), 0, 'so does that of the other host');

# The server goes on before its keeper, and finds a COMMIT that was sent while
# it hung.
$late{in} .= "COMMIT;\n\\echo committed\n";
$late{run}->pump_nb;
my $continued = time;
%said = ();
kill 'CONT', $_ foreach @stopped;
ok(comes(sub {
		$answer = sqlstate('node2', q{SELECT state FROM leaselock.lease_acquire('back', 'newcomer')});
		$said{$answer}++ if $answer =~ /^\w+$/;
		return states() eq 'node1: primary, node2: secondary' }),
	'the primary that hung becomes a standby');
my $hung_return = time - $continued;
is(join(' ', grep { !/^(?:25006|57P0\d)$/ } keys %said), '', 'it grants nothing when it continues');
note 'until then: ', join ', ', map { "$_: $said{$_}" } sort keys %said;
eval { $late{run}->finish };
is($late{out}, "written\n", 'the late COMMIT is not acknowledged');
note $late{err};
is(sql($_, q{SELECT count(*) FROM written WHERE host = 'late'}), '0', "$_: the late write is not there") foreach 'node1', 'node2';

# ---------------------------------------------------------------------
# No lock has had two holders
# ---------------------------------------------------------------------

is(join(', ', map { "$_->{host} $_->{what}" } grep { $_->{what} ne 'works' } record('hung job')),
	'host-1 begins, host-1 ends', 'the command that outlived the hang has not been disturbed');
foreach my $name ('job', 'short', 'hung short')
{
	my @record = record($name);

	is(join(', ', map { "$_->{host} $_->{what}" } grep { $_->{what} =~ /begins|alone/ } @record),
		'host-1 begins, host-2 begins', "$name: each command got the kernel lock");
	my ($last) = map { $_->{clock} } (of_host($name, 'host-1'))[-1];
	my ($first) = map { $_->{clock} } of_host($name, 'host-2');
	cmp_ok($last, '<', $first, "$name: the first command ended before the second began");
	is(sql('node1', qq{
		SELECT count(*) FROM (SELECT fence < max(fence) OVER (ORDER BY at) AS is_late FROM written WHERE name = '$name') w WHERE is_late}),
		'0', "$name: no write follows a write with a greater fence");
	# one grant for each waiter, too; the last grant has no end
	is(sql('node1', qq{
		WITH grants AS (
			SELECT fence, min(at) FILTER (WHERE kind IN ('granted', 'promoted')) AS since,
				max(at) FILTER (WHERE kind IN ('released', 'expired', 'broken')) AS until
			FROM leaselock.lease_events(max_rows => 1000000)
			WHERE name = '$name' AND fence IS NOT NULL GROUP BY fence)
		SELECT count(*), count(*) FILTER (WHERE since < before) FROM (
			SELECT since, lag(coalesce(until, 'infinity')) OVER (ORDER BY fence) AS before FROM grants) g}),
		($name eq 'job' ? 3 : 2) . '|0', "$name: by the server's events, the grants do not overlap");
	is(sql('node1', qq{
		SELECT count(*) FROM leaselock.lease_events(max_rows => 1000000)
		WHERE name = '$name' AND kind IN ('timed_out', 'cancelled', 'broken', 'deadlock')}),
		'0', "$name: no place or grant was lost for another reason");
}

my @internal;
foreach my $log (glob "$dir/node?/log/*.log")
{
	push @internal, grep { / XX\w{3} / || /PANIC:|TRAP:/ } split /\n/, slurp_file($log);
}
is_deeply(\@internal, [], 'no internal error in the log');

# ---------------------------------------------------------------------
# Measured
# ---------------------------------------------------------------------

my $gap = sql('node1', qq{
	SELECT round(extract(epoch FROM max(gap))::numeric, 1)
	FROM (SELECT at - lag(at) OVER (ORDER BY at) AS gap FROM written WHERE fence = $job->{fence}) w});
my $unrenewed = sql('node1', qq{
	SELECT round(extract(epoch FROM min(at))::numeric - $killed, 1) FROM leaselock.lease_events(max_rows => 1000000)
	WHERE kind = 'renewed' AND name = 'job' AND at > to_timestamp($killed)});
note sprintf 'from the kill of the primary to the first grant of the other node: %.1f s', $takeover;
note "longest gap between the writes of the command that survived: $gap s";
note "its lease was renewed $unrenewed s after the kill of the primary";
note sprintf 'the command with the short lease ended %.1f s after the kill, %.1f s before its lease',
  $short[-1]{time} - $killed, $expiry - $short[-1]{time};
note sprintf 'the other host began %.1f s after the kill', $next->{time} - $killed;
note sprintf 'the old primary was a standby %.1f s after it came back', $return;
note sprintf 'from the hang of the primary to the first grant of the other node: %.1f s', $hung_takeover;
note sprintf 'after a hang, the command with the short lease ended after %.1f s, %.1f s before its lease',
  $hung_end - $hangs, $hung_expiry - $hung_end;
note sprintf 'after a hang, the other host began after %.1f s, and the long lease was renewed after %.1f s',
  $hung_next, $hung_renewed;
note sprintf 'the primary that hung was a standby %.1f s after it went on', $hung_return;
note sprintf 'the hang took %.1f s of the test', $continued + $hung_return - $hung_began;
note sprintf 'acknowledged before: %d grants, %d writes', @told{ 'ticket', 'written' };
note sprintf 'total: %.1f s', time - $began;

done_testing();
