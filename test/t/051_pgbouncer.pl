# Through PgBouncer in transaction mode: each call of one client is carried out by
# another server process.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaseTest ();
use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);

my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
plan skip_all => 'PgBouncer is NOT INSTALLED: nothing is tested through a pooler'
  if !$program;
my ($version) = `$program --version` =~ /(\d+\.\d+)/;
my ($major, $minor) = split /\./, $version;
# since 1.21 it knows what a client has prepared, and prepares it where it is needed
my $prepares = $major > 1 || $minor >= 21;
note "PgBouncer $version";

my $pool_size = 4;
my $node = PostgreSQL::Test::Cluster->new('pooled');
$node->init;
$node->append_conf('postgresql.conf', qq{
fsync = off
autovacuum = off
log_statement = none
log_line_prefix = '%m [%p] %e %q%a '
});
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE app LOGIN;
CREATE TABLE written (lock int, client int, fence bigint);
GRANT ALL ON written TO app;
});

# ---------------------------------------------------------------------
# The pooler
# ---------------------------------------------------------------------

my $dir = PostgreSQL::Test::Utils::tempdir_short;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $prepared = $prepares ? 'max_prepared_statements = 100' : '';
append_to_file("$dir/pgbouncer.ini", qq{
[databases]
postgres = host=@{[ $node->host ]} port=@{[ $node->port ]} user=app dbname=postgres
[pgbouncer]
pool_mode = transaction
default_pool_size = $pool_size
server_round_robin = 1
auth_type = any
listen_port = $port
unix_socket_dir = $dir
ignore_startup_parameters = extra_float_digits
$prepared
});
my $log = "$PostgreSQL::Test::Utils::log_path/051_pgbouncer.log";
my $pooler = IPC::Run::start([ $program, "$dir/pgbouncer.ini" ], '>', $log, '2>&1');
END { $pooler->kill_kill if $pooler; }

my $connstr = "host=$dir port=$port dbname=postgres user=app";
foreach my $try (1 .. 100)
{
	last if run_log([ 'psql', '-XAtqc', 'SELECT 1', $connstr ], '>', \my $out, '2>', \my $err);
	die 'PgBouncer does not start' if $try == 100 || !$pooler->pumpable;
	usleep(100_000);
}

# only a cluster may make sessions
{
	package Pooled;
	our @ISA = ('PostgreSQL::Test::Cluster');
	sub session { return PostgreSQL::Test::BackgroundPsql->new(0, [@_]) }
}

# the server process of the call before, 0 if it does not matter
my $before = 0;

# A client of the pooler
sub client
{
	my $client = Pooled::session('psql', '-XAtq', '-d', $connstr, '-f', '-');

	$client->query_safe('\set VERBOSITY sqlstate');
	return $client;
}

# Runs a query that may fail; returns its output, with the errors after it
sub outcome
{
	my ($client, $sql) = @_;

	$before = 0;
	$client->{stderr} = '';
	my $output = $client->query($sql);
	$output = join "\n", grep { $_ ne '' } $output,
	  $client->{stderr} =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5})/g;
	$client->{stderr} = '';
	return $output;
}

# as many server connections as the pool may have, because all are needed at once
my @clients = map { client() } 1 .. $pool_size;
$_->query_safe('BEGIN') foreach @clients;
my %server = map { $_->query_safe('SELECT pg_backend_pid()') => 1 } @clients;
$_->query_safe('COMMIT') foreach @clients;
is(scalar keys %server, $pool_size, "$pool_size server connections");

# ---------------------------------------------------------------------
# One client, each call on another server connection
# ---------------------------------------------------------------------

my ($one, $two) = @clients;

# The fields of the row; the server process must be another than before
sub row
{
	my ($client, $what, $sql) = @_;
	my ($pid, @fields) = split /\|/, $client->query_safe($sql =~ s/SELECT /SELECT pg_backend_pid(), /r), -1;

	isnt($pid, $before, "$what: on another server connection");
	ok($server{$pid}, "$what: of the pool");
	$before = $pid;
	return @fields == 1 ? $fields[0] : @fields;
}

my $request = '6f0d7a2e-4d3f-4c55-9d5a-7a0f5a3f2f10';
my ($state, $ticket, $fence) = row($one, 'lease_acquire',
	"SELECT state, ticket, fence FROM leaselock.lease_acquire('lock', 'one', request_id => '$request')");
is($state, 'held', 'acquired');
is_deeply(
	[ row($one, 'a retry', "SELECT ticket, depth FROM leaselock.lease_acquire('lock', 'one', request_id => '$request')") ],
	[ $ticket, 1 ], 'a retry finds the ticket');
is(row($one, 'lease_get', "SELECT state FROM leaselock.lease_get('$ticket')"), 'held', 'asked for');
is(row($one, 'lease_renew', "SELECT state FROM leaselock.lease_renew('$ticket', '90 s')"), 'held', 'renewed');
is(row($two, 'lease_acquire', "SELECT state FROM leaselock.lease_acquire('lock', 'two')"), 'contended',
	'another owner of the same role is somebody else');
is(row($two, 'try_lock', "SELECT leaselock.try_lock('lock', 'two', '1 min')"), '', 'with try_lock, too');

# a fenced transaction: one server process from BEGIN to COMMIT
$one->query_safe('BEGIN');
row($one, 'fence_assert', "SELECT 1 FROM leaselock.fence_assert('lock', $fence)");
$one->query_safe("INSERT INTO written VALUES (0, 1, $fence)");
is($one->query_safe('SELECT pg_backend_pid()'), $before, 'a transaction keeps its server connection');
is(outcome($one, 'COMMIT'), '', 'a fenced transaction commits');
is($one->query_safe('SELECT count(*) FROM written'), 1, 'and has written');

# the queue: a waiter polls from connection to connection, and is promoted
my ($waiting, $its) = row($two, 'lease_acquire', "SELECT state, ticket FROM leaselock.lease_acquire('lock', 'two', wait => '60 s')");
is($waiting, 'waiting', 'queued');
is(row($two, 'a poll', "SELECT state FROM leaselock.lease_get('$its')"), 'waiting', 'polled') foreach 1 .. 3;

# the holder opens a fenced transaction, and loses the lock before it commits
$one->query_safe("BEGIN; SELECT leaselock.fence_assert('lock', $fence)");
$one->query_safe("INSERT INTO written VALUES (0, 1, $fence)");
is(row($clients[2], 'lease_release', "SELECT state FROM leaselock.lease_release('$ticket')"),
	'released', 'released over another connection');
is(outcome($one, 'COMMIT'), 'LS001', 'COMMIT through the pooler fails');
is($one->query_safe('SELECT count(*) FROM written'), 1, 'and nothing was written');
my ($now, $its_fence) = row($two, 'a poll', "SELECT state, fence FROM leaselock.lease_get('$its')");
is($now, 'held', 'the waiter has its turn');
cmp_ok($its_fence, '>', $fence, 'with a greater fence');

row($two, 'lease_acquire', "SELECT state FROM leaselock.lease_acquire('more $_', 'two')") foreach 1 .. 3;
is(row($two, 'lease_release_all', "SELECT leaselock.lease_release_all('two')"), 4,
	'the tickets of four connections are released');

my $hold = row($one, 'try_lock', "SELECT leaselock.try_lock('named', 'one', '1 h')");
is(row($one, 'try_lock', "SELECT leaselock.try_lock('named', 'one', '1 h')"), $hold, 'a named lock is known again');
is(row($one, 'renew_lock', "SELECT leaselock.renew_lock('named', 'one', '1 h')"), 't', 'renewed');
is(row($one, 'release_lock', "SELECT leaselock.release_lock('named', 'one')"), 't', 'released');

# ---------------------------------------------------------------------
# Waiting in one call
# ---------------------------------------------------------------------

like(outcome($one, "CALL leaselock.lease_acquire_wait('call', 'one')"), qr/^[0-9a-f-]{36}\|held\|\d+\|/,
	'CALL lease_acquire_wait gets a free lock');
$two->query_until(qr/calling/, "\\echo calling\nCALL leaselock.lease_acquire_wait('call', 'two');\n");
$node->poll_query_until('postgres', q{
	SELECT count(*) = 1 FROM leaselock.lease_tickets WHERE name = 'call' AND state = 'waiting'})
  or die 'nobody waits';
ok($server{ $node->safe_psql('postgres', q{
		SELECT pid FROM pg_stat_activity WHERE query LIKE 'CALL %' AND state = 'active'})},
	'a wait keeps one connection of the pool');
is(row($one, 'lease_release_all, beside it', "SELECT leaselock.lease_release_all('one')"), 1, 'released');
like(outcome($two, ''), qr/\|held\|/, 'and the wait is over');
is(row($two, 'lease_release_all', "SELECT leaselock.lease_release_all('two')"), 1, 'released');
is(outcome($one, "BEGIN; CALL leaselock.lease_acquire_wait('call', 'one'); ROLLBACK"), '2D000',
	'refused in a transaction, as without a pooler');
outcome($one, 'ROLLBACK');

# a waiter whose client leaves is noticed by the pooler
my $leaver = client();
row($one, 'lease_acquire', "SELECT state FROM leaselock.lease_acquire('call', 'one')");
$leaver->query_until(qr/calling/, "\\echo calling\nCALL leaselock.lease_acquire_wait('call', 'leaver');\n");
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM leaselock.lease_tickets WHERE name = 'call' AND state = 'waiting'})
  or die 'nobody waits';
$leaver->{run}->kill_kill;
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM leaselock.lease_tickets WHERE name = 'call' AND state = 'waiting'}),
	'a waiter whose client went away leaves the queue');
row($one, 'lease_release_all', "SELECT leaselock.lease_release_all('one')");

# ---------------------------------------------------------------------
# Prepared statements
# ---------------------------------------------------------------------

# in one transaction they work with every version
is(outcome($one, q{
		BEGIN;
		PREPARE p AS SELECT state FROM leaselock.lease_acquire($1, $2, request_id => $3);
		EXECUTE p('prepared', 'one', '6f0d7a2e-4d3f-4c55-9d5a-7a0f5a3f2f11');
		DEALLOCATE p;
		COMMIT}), 'held', 'PREPARE and EXECUTE in one transaction');
row($one, 'lease_release_all', "SELECT leaselock.lease_release_all('one')");

# Eight clients share the connections.  "extended": parameters, but no statement
# is kept; "prepared": each is prepared once for each client.
append_to_file("$dir/work.sql", q{\set n random(1, 3)
SELECT state = 'held' AS held, coalesce(ticket::text, '') AS ticket, coalesce(fence, 0) AS fence
	FROM leaselock.lease_acquire('lock ' || :n, 'client ' || :client_id, '60 s') \gset
\if :held
SELECT 1 / (state = 'held')::int FROM leaselock.lease_get(:ticket);
BEGIN;
SELECT leaselock.fence_assert('lock ' || :n, :fence);
INSERT INTO written VALUES (:n, :client_id, :fence);
COMMIT;
SELECT 1 / (state = 'held')::int FROM leaselock.lease_renew(:ticket);
SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(:ticket);
\endif
});
foreach my $mode ('extended', $prepares ? 'prepared' : ())
{
	$node->safe_psql('postgres', 'TRUNCATE written');
	my ($out, $err) = ('', '');
	local $ENV{PGOPTIONS};
	delete $ENV{PGOPTIONS};
	ok(run_log([ 'pgbench', '-n', '-M', $mode, '-c', '8', '-t', '400', '-f', "$dir/work.sql", $connstr ],
			'>', \$out, '2>', \$err), "pgbench, protocol $mode")
	  or diag $err;
	unlike($err, qr/ERROR|FATAL|abort/, 'without an error');
	my ($written, $different, $clients) = split /\|/, $node->safe_psql('postgres', q{
		SELECT count(*), count(DISTINCT (lock, fence)), count(DISTINCT client) FROM written});
	cmp_ok($written, '>', 50, 'there were fenced writes')
	  and note("$written of 3200 tries");
	is($different, $written, 'each under a fence of its own');
	cmp_ok($clients, '>', 1, 'of several clients');
}
note $prepares
  ? 'statements that a driver prepares were tested'
  : "PgBouncer $version has no prepared statements in transaction mode: only unnamed ones were tested";

# ---------------------------------------------------------------------

is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no lock is left in the server connections');
is($node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.lease_tickets'), '0', 'and no ticket');
$_->quit foreach @clients;
$pooler->kill_kill;
undef $pooler;
is_deeply([ grep { / XX\w{3} / || /PANIC:/ } split /\n/, slurp_file($node->logfile) ],
	[], 'no internal error in the log');
$node->stop;

done_testing();
