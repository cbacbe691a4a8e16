# A failover that nobody makes by hand: pg_auto_failover with a monitor and two nodes
# on this machine.  The primary is killed under load, and the other node takes over.
# The held ticket lives on with its fence, waiters keep their places, new fences are
# greater, a stale one is refused, and two commands under "leaselock run" go on or
# end: the one whose lease outlives the failover never notices, the one whose lease
# is too short ends in time.
#
# That no lock has two holders is told by three records that do not know of each
# other: a lock of the kernel's that each command and its children keep as long as
# they live, the times at which the commands were seen to work, by the machine's
# clock that nobody sets, and the events of the server.
#
# Native only: pg_auto_failover is not in the trees of the other majors

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IPC::Run;
use LeaseTest;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

chomp(my $libdir = `pg_config --pkglibdir`);
my ($autoctl) = grep { -x } map { "$_/pg_autoctl" } split /:/, $ENV{PATH};
plan skip_all => 'pg_auto_failover IS NOT INSTALLED: no failover by itself is tested'
  if !$autoctl || !-e "$libdir/pgautofailover.so";
need_program();

my $dir = PostgreSQL::Test::Utils::tempdir;
my $logs = $PostgreSQL::Test::Utils::log_path;
chomp(my $superuser = `id -un`);

# How fast the monitor is: as the documentation advises, in ms.  While nodes are set
# up and the load begins, a node that is slow to report is no reason for a failover.
my %tuned = (
	health_check_period => 1000,
	health_check_timeout => 1000,
	health_check_retry_delay => 500,
	node_considered_unhealthy_timeout => 5000,
	primary_demote_timeout => 5000);
my %patient = (%tuned, health_check_timeout => 10000, node_considered_unhealthy_timeout => 120000);

# The lease that outlives the failover, also on a machine that is busy, and the one
# that is over before the monitor can have acted: it waits for primary_demote_timeout
# after it has found the primary missing.
my $long_lease = 150;
my $short_lease = 6;
my $grace = 2;
my $waiter_timeout = '120 s';

# ---------------------------------------------------------------------
# Services and processes
# ---------------------------------------------------------------------

my (%service, %port, @others);

# where pg_autoctl keeps what it must know again
$ENV{HOME} = $dir;
$ENV{"XDG_$_"} = $dir foreach 'CONFIG_HOME', 'DATA_HOME', 'RUNTIME_DIR';
# and how it reaches its own server
delete $ENV{PGPORT};
@ENV{qw(PGHOST PG_REGRESS_SOCK_DIR)} = ('127.0.0.1', PostgreSQL::Test::Utils::tempdir_short);
$ENV{PGCONNECT_TIMEOUT} = 3;

# start_service(NAME, COMMAND): in the background, its output in a file of its own
sub start_service
{
	my ($name, @command) = @_;

	$service{$name} = IPC::Run::start(\@command, '<', '/dev/null',
		'>>', "$logs/043_auto_failover_$name.log", '2>&1');
	return;
}

# descendants(PID): it, and what it and its children have started
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

# has_ended(NAME): a service that ends by itself could not do its work
sub has_ended
{
	my ($pid) = map { $_->{PID} } @{ $service{$_[0]}{KIDS} };
	return !-e "/proc/$pid/stat" || slurp_file("/proc/$pid/stat") =~ /\) Z /;
}

# comes(SUB): waits until it returns something true, as long as all services are there
sub comes
{
	my ($condition) = @_;

	return wait_until(sub {
		my $result = $condition->();
		die "a service has ended" if !$result && grep { has_ended($_) } keys %service;
		return $result;
	});
}

# kill_service(NAME): the node is gone, as when its machine is.  All are stopped
# before the first dies, so that none is started or told meanwhile.
sub kill_service
{
	my ($name) = @_;
	my $run = delete $service{$name} or return;
	my ($top) = map { $_->{PID} } @{ $run->{KIDS} };
	my (@pids, $count);

	do
	{
		$count = @pids;
		@pids = descendants($top);
		kill 'STOP', @pids;
	} while (@pids > $count);
	kill 'KILL', reverse @pids;
	$run->finish;
	return;
}

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

# query(NODE, SQL, DATABASE): as psql prints it; undef if that fails, and then $error
# has what it says
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

# states(): what the monitor knows, and wants
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
foreach my $name ('monitor', 'node1')
{
	# not through pg_autoctl, which would wait for the disk
	system_or_bail('initdb', '--no-sync', '--auth', 'trust', '--pgdata', "$dir/$name");
	append_to_file("$dir/$name/postgresql.conf", qq{
fsync = off
shared_buffers = 32MB
log_line_prefix = '%m [%p] %e %q%a '
checkpoint_completion_target = 0
restart_after_crash = off
});
}
append_to_file("$dir/monitor/postgresql.conf", join '', map { "pgautofailover.$_ = $patient{$_}\n" } sort keys %patient);

my @common = ('--hostname', '127.0.0.1', '--skip-pg-hba', '--no-ssl', '--run');
start_service('monitor', 'pg_autoctl', 'create', 'monitor',
	'--pgdata', "$dir/monitor", '--pgport', $port{monitor}, @common);
ok(comes(sub { (query('monitor', 'SELECT count(*) FROM pgautofailover.formation', 'pg_auto_failover') // '') eq '1' }),
	'a monitor');
foreach my $name ('node1', 'node2')
{
	start_service($name, 'pg_autoctl', 'create', 'postgres',
		'--pgdata', "$dir/$name", '--pgport', $port{$name}, '--listen', '127.0.0.1',
		'--name', $name, '--dbname', 'jobs', @common, '--monitor',
		"postgres://autoctl_node\@127.0.0.1:$port{monitor}/pg_auto_failover?sslmode=prefer");
	reaches('node1: single', 'a node') if $name eq 'node1';
}
reaches('node1: primary, node2: secondary', 'a primary and a standby');
ok(comes(sub { (query('node1', q{SELECT string_agg(sync_state, ',') FROM pg_stat_replication}) // '') eq 'quorum' }),
	'which is synchronous');
note sprintf 'set up in %.1f s', time - $began;

sql('node1', $_) foreach
  'CREATE EXTENSION leaselock',
  q{CREATE TABLE written (at timestamptz DEFAULT clock_timestamp(), name text, host text, fence bigint)},
  # what is set for the database goes to the standby
  "ALTER DATABASE jobs SET leaselock.waiter_timeout = '$waiter_timeout'",
  "ALTER DATABASE jobs SET leaselock.events = 'all'";

# ---------------------------------------------------------------------
# Two hosts, and their commands
# ---------------------------------------------------------------------

my $everywhere = "host=127.0.0.1,127.0.0.1 port=$port{node1},$port{node2} user=$superuser dbname=jobs "
  . 'target_session_attrs=read-write connect_timeout=3';

# The command: notes what happens, by the clock that nobody sets and by the one that
# leases are judged by, and writes to the database under its fence.  Both processes,
# and each psql, have the kernel's lock.
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

# start_host(LOCK, HOST, OPTIONS): a command under a lease
sub start_host
{
	my ($name, $host, @options) = @_;
	my $client = start_cli('run', $name, '--owner', $host, '-d', $everywhere, @options,
		'--', $^X, "$dir/work", $dir, $host, $everywhere);

	push @others, $client;
	return $client{"$name $host"} = $client;
}

# end_host(LOCK, HOST): lets its command end; the status
sub end_host
{
	my ($name, $host) = @_;

	append_to_file("$dir/$name.$host.end", '');
	return finish($client{"$name $host"});
}

# record(LOCK): what its commands have noted, in that order in time
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
	return comes(sub { scalar of_host($name, $host) });
}

# queue(NODE): who waits for "job", with which ticket and place
sub queue
{
	my ($node) = @_;
	return sql($node, q{
		SELECT string_agg(format('%s %s %s', owner, position, ticket), ', ' ORDER BY position)
		FROM leaselock.lease_tickets WHERE name = 'job' AND state = 'waiting'});
}

sub waits
{
	my ($name, $owner) = @_;
	return comes(sub { sql('node1', qq{
			SELECT count(*) FROM leaselock.lease_tickets
			WHERE name = '$name' AND owner = '$owner' AND state = 'waiting'}) eq '1' });
}

start_host('job', 'host-1', '--lease-seconds', $long_lease);
ok(begins('job', 'host-1'), 'a command with a lease that is long enough');
start_host('job', 'host-2', '--lease-seconds', $long_lease, '--wait-seconds', 290);
ok(waits('job', 'host-2'), 'another host waits for it');
my $request = "request_id => '22222222-2222-4222-8222-222222222222'";
my $poll = "SELECT state, position FROM leaselock.lease_acquire('job', 'polls', wait => '290 s', $request)";
is(sql('node1', $poll), 'waiting|2', 'and a waiter that polls, by its request');
my ($ticket, $fence) = split /\|/, sql('node1',
	q{SELECT ticket, fence FROM leaselock.lease_acquire('held', 'keeper', '300 s')});
my $queue = queue('node1');

# ---------------------------------------------------------------------
# Load
# ---------------------------------------------------------------------

# psql prints a line for each call that was acknowledged
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
ok(begins('short', 'host-1'), 'a command with a lease that is too short');
start_host('short', 'host-2', '--lease-seconds', $long_lease, '--wait-seconds', 290);
ok(waits('short', 'host-2'), 'another host waits for it');
is(states(), 'node1: primary, node2: secondary', 'all is well until here');

my $killed = time;
kill_service('node1');
# a program that goes on looks after its lease at once, so one is renewed meanwhile
$client{'job host-1'}{run}->signal('CONT');

# what the new primary says until it is one
my (%said, $answer);
ok(comes(sub {
		$answer = sqlstate('node2', q{SELECT state FROM leaselock.lease_acquire('new', 'newcomer', '300 s')});
		$said{$answer}++ if $answer =~ /^\w+$/;
		return $answer eq 'held' }),
	'the other node takes over');
my $takeover = time - $killed;
is(join(' ', grep { !/^(?:held|25006)$/ } keys %said), '', 'and grants nothing before');
note 'until then: ', join ', ', map { "$_: $said{$_}" } sort keys %said;

# ---------------------------------------------------------------------
# Tickets, waiters and fences
# ---------------------------------------------------------------------

is(sql('node2', "SELECT state, fence FROM leaselock.lease_get('$ticket')"), "held|$fence", 'a held ticket lives on, with its fence');
is(sql('node2', "SELECT state, fence FROM leaselock.lease_renew('$ticket')"), "held|$fence", 'and is renewed');
is(sql('node2', $poll), 'waiting|2', 'a waiter that polls keeps its place');
is(queue('node2'), $queue, 'and so does the other host; both with the tickets that they had');
is(sql('node2', q{SELECT state, position FROM leaselock.lease_acquire('job', 'newcomer', wait => '290 s')}),
	'waiting|3', 'who comes now is behind them');

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
	'0', 'no grant that was acknowledged is missing');
is(sql('node2', q{
	SELECT count(*) FROM told t LEFT JOIN written w ON w.name = 'shared' AND t.subject = w.host
	WHERE kind = 'written' AND w.fence IS DISTINCT FROM t.fence}),
	'0', 'nor a write');

my $greatest = sql('node2', qq{SELECT greatest(max(t.fence), (SELECT max(fence) FROM written WHERE at < to_timestamp($killed))) FROM told t});
cmp_ok(sql('node2', q{SELECT fence FROM leaselock.lease_peek('new')}), '>', $greatest,
	'a fence of the new primary is greater than all of the old one');
is(sql('node2', q{SELECT count(*) FROM leaselock.lease_peek('shared') p, leaselock.lease_break(p.name, p.fence) WHERE p.owner IS NOT NULL}) =~ /^[01]$/,
	1, 'the lock that all took is free');
cmp_ok(sql('node2', q{SELECT fence FROM leaselock.lease_acquire('shared', 'newcomer')}), '>', $greatest,
	'and granted with a greater fence');

# ---------------------------------------------------------------------
# The lease that was too short
# ---------------------------------------------------------------------

is(finish($client{'short host-1'}), 2, 'the command whose lease was too short is ended');
like($client{'short host-1'}{err}, qr/"short" could not be renewed in time/, 'which is said');
my @short = of_host('short', 'host-1');
cmp_ok($short[-1]{time}, '>', $killed, 'it was at work when the primary died');
my $expiry = sql('node2', "SELECT extract(epoch FROM expires_at) FROM leaselock.lease_get('$short[0]{ticket}')");
cmp_ok($short[-1]{time}, '<', $expiry, 'and ended before its lease');
ok(begins('short', 'host-2'), 'then the other host has its turn');
my ($next) = of_host('short', 'host-2');
cmp_ok($next->{fence}, '>', $short[0]{fence}, 'with a greater fence');

my $stale = qq{INSERT INTO written (name, host, fence)
	SELECT 'short', 'stale', f FROM (VALUES ($short[0]{fence})) v(f), leaselock.fence_assert('short', f)};
is(sqlstate('node2', $stale), 'LS001', 'the fence of the first is refused');
is(sqlstate('node2', $stale =~ s/', f\)/', f, allow_lapsed => true)/r), 'LS001', 'in any case');
is(sql('node2', q{SELECT count(*) FROM written WHERE host = 'stale'}), '0', 'nothing is written by it');

# ---------------------------------------------------------------------
# The lease that was long enough
# ---------------------------------------------------------------------

my ($job) = of_host('job', 'host-1');
ok(comes(sub { sql('node2', qq{
		SELECT count(*) FROM written WHERE name = 'job' AND fence = $job->{fence}
		AND at > to_timestamp($killed) + '$takeover s'}) > 0 }),
	'the command whose lease was long enough writes to the new primary');
ok(comes(sub { sql('node2', qq{
		SELECT count(*) FROM leaselock.lease_events(max_rows => 1000000)
		WHERE kind = 'renewed' AND name = 'job' AND at > to_timestamp($killed)}) > 0 }),
	'its lease is renewed there');
is(end_host('job', 'host-1'), 0, 'it ends well');
like($client{'job host-1'}{err}, qr/renew the lease on "job".*"job" .*renewed again/s, 'after it had to try again');
my @ends = grep { $_->{what} eq 'ends' } of_host('job', 'host-1');
is(scalar @ends, 1, 'when it was told to');
ok(begins('job', 'host-2'), 'then the other host has its turn');
is(sql('node2', $poll), 'waiting|1', 'and the next one moves up');
is(end_host($_, 'host-2'), 0, "the other host ends well: $_") foreach 'job', 'short';
is(sql('node2', $poll), 'held|', 'the waiter that polls has its turn');
is(sql('node2', q{SELECT string_agg(owner || ' ' || position, ', ') FROM leaselock.lease_tickets WHERE name = 'job' AND state = 'waiting'}),
	'newcomer 1', 'and who came last is the next');

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
is(join(' ', grep { !/^25006$/ } keys %said), '', 'and grants nothing on the way');
my $return = time - $returned;
ok(comes(sub { (query('node1', q{SELECT fence FROM leaselock.lease_peek('held')}) // '') eq $fence }), 'it knows the leases');

# ---------------------------------------------------------------------
# No lock has had two holders
# ---------------------------------------------------------------------

foreach my $name ('job', 'short')
{
	my @record = record($name);

	is(join(', ', map { "$_->{host} $_->{what}" } grep { $_->{what} =~ /begins|alone/ } @record),
		'host-1 begins, host-2 begins', "$name: each command had the kernel's lock");
	my ($last) = map { $_->{clock} } (of_host($name, 'host-1'))[-1];
	my ($first) = map { $_->{clock} } of_host($name, 'host-2');
	cmp_ok($last, '<', $first, "$name: the one had ended before the other began");
	is(sql('node2', qq{
		SELECT count(*) FROM (SELECT fence < max(fence) OVER (ORDER BY at) AS is_late FROM written WHERE name = '$name') w WHERE is_late}),
		'0', "$name: no write came after one with a greater fence");
	# a grant of each of the waiters, too; that of the last has no end
	is(sql('node2', qq{
		WITH grants AS (
			SELECT fence, min(at) FILTER (WHERE kind IN ('granted', 'promoted')) AS since,
				max(at) FILTER (WHERE kind IN ('released', 'expired', 'broken')) AS until
			FROM leaselock.lease_events(max_rows => 1000000)
			WHERE name = '$name' AND fence IS NOT NULL GROUP BY fence)
		SELECT count(*), count(*) FILTER (WHERE since < before) FROM (
			SELECT since, lag(coalesce(until, 'infinity')) OVER (ORDER BY fence) AS before FROM grants) g}),
		($name eq 'job' ? 3 : 2) . '|0', "$name: by the server, the grants follow each other");
	is(sql('node2', qq{
		SELECT count(*) FROM leaselock.lease_events(max_rows => 1000000)
		WHERE name = '$name' AND kind IN ('timed_out', 'cancelled', 'broken', 'deadlock')}),
		'0', "$name: and nobody has lost a place or a grant to anything else");
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

my $gap = sql('node2', qq{
	SELECT round(extract(epoch FROM max(gap))::numeric, 1)
	FROM (SELECT at - lag(at) OVER (ORDER BY at) AS gap FROM written WHERE fence = $job->{fence}) w});
my $unrenewed = sql('node2', qq{
	SELECT round(extract(epoch FROM min(at))::numeric - $killed, 1) FROM leaselock.lease_events(max_rows => 1000000)
	WHERE kind = 'renewed' AND name = 'job' AND at > to_timestamp($killed)});
note sprintf 'from the death of the primary until the other node grants: %.1f s', $takeover;
note "longest gap between the writes of the command that survived: $gap s";
note "its lease was renewed $unrenewed s after the death of the primary";
note sprintf 'the command whose lease was too short ended %.1f s after the death, %.1f s before its lease',
  $short[-1]{time} - $killed, $expiry - $short[-1]{time};
note sprintf 'the other host began %.1f s after the death', $next->{time} - $killed;
note sprintf 'the old primary was a standby %.1f s after it came back', $return;
note sprintf 'acknowledged before: %d grants, %d writes', @told{ 'ticket', 'written' };
note sprintf 'all of it: %.1f s', time - $began;

done_testing();
