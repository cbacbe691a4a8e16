# Through PgBouncer in transaction mode: each call of a client runs in a
# different server process.
#
# Native only: PgBouncer is not in the trees of the other majors.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest qw(cli);
use IPC::Run;
use LeaseTest ();
use McpTest qw(start_mcp initialize tool end_mcp);
use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);

my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
plan skip_all => 'PgBouncer is NOT INSTALLED: connection poolers are not tested'
  if !$program;
my ($version) = `$program --version` =~ /(\d+\.\d+)/;
my ($major, $minor) = split /\./, $version;
# since 1.21 PgBouncer tracks prepared statements and prepares them where
# needed
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
CREATE ROLE worker;
CREATE ROLE app LOGIN IN ROLE worker;
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
statements = host=@{[ $node->host ]} port=@{[ $node->port ]} user=app dbname=postgres pool_mode=statement
narrow = host=@{[ $node->host ]} port=@{[ $node->port ]} user=app dbname=postgres pool_size=1
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

# only a cluster object can create sessions
{
	package Pooled;
	our @ISA = ('PostgreSQL::Test::Cluster');
	sub session { return PostgreSQL::Test::BackgroundPsql->new(0, [@_]) }
}

# the server process of the previous call; 0 if it does not matter
my $before = 0;

# A client of the pooler, in one of its databases
sub client
{
	my ($database) = @_;
	my $client = Pooled::session('psql', '-XAtq', '-d', $connstr . ($database ? " dbname=$database" : ''), '-f', '-');

	$client->query_safe('\set VERBOSITY sqlstate');
	return $client;
}

# Runs a query that may fail; returns its output followed by the errors
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

# as many server connections as the pool allows, because all are open at the
# same time
my @clients = map { client() } 1 .. $pool_size;
$_->query_safe('BEGIN') foreach @clients;
my %server = map { $_->query_safe('SELECT pg_backend_pid()') => 1 } @clients;
$_->query_safe('COMMIT') foreach @clients;
is(scalar keys %server, $pool_size, "$pool_size server connections");

# ---------------------------------------------------------------------
# One client, each call on another server connection
# ---------------------------------------------------------------------

my ($one, $two) = @clients;

# The fields of the row; the server process must differ from the previous one
sub row
{
	my ($client, $what, $sql) = @_;
	my ($pid, @fields) = split /\|/, $client->query_safe($sql =~ s/SELECT /SELECT pg_backend_pid(), /r), -1;

	isnt($pid, $before, "$what: runs on another server connection");
	ok($server{$pid}, "$what: the connection belongs to the pool");
	$before = $pid;
	return @fields == 1 ? $fields[0] : @fields;
}

my $request = '6f0d7a2e-4d3f-4c55-9d5a-7a0f5a3f2f10';
my ($state, $ticket, $fence) = row($one, 'lease_acquire',
	"SELECT state, ticket, fence FROM leaselock.lease_acquire('lock', 'one', request_id => '$request')");
is($state, 'held', 'a lock is acquired');
is_deeply(
	[ row($one, 'a retry', "SELECT ticket, depth FROM leaselock.lease_acquire('lock', 'one', request_id => '$request')") ],
	[ $ticket, 1 ], 'a retry finds the ticket');
is(row($one, 'lease_get', "SELECT state FROM leaselock.lease_get('$ticket')"), 'held', 'the ticket is looked up');
is(row($one, 'lease_renew', "SELECT state FROM leaselock.lease_renew('$ticket', '90 s')"), 'held', 'the ticket is renewed');
is(row($two, 'lease_acquire', "SELECT state FROM leaselock.lease_acquire('lock', 'two')"), 'contended',
	'another owner label of the same role is another identity');
is(row($two, 'try_lock', "SELECT leaselock.try_lock('lock', 'two', '1 min')"), '', 'try_lock agrees');

# a fenced transaction: one server process from BEGIN to COMMIT
$one->query_safe('BEGIN');
row($one, 'fence_assert', "SELECT 1 FROM leaselock.fence_assert('lock', $fence)");
$one->query_safe("INSERT INTO written VALUES (0, 1, $fence)");
is($one->query_safe('SELECT pg_backend_pid()'), $before, 'a transaction keeps its server connection');
is(outcome($one, 'COMMIT'), '', 'a fenced transaction commits');
is($one->query_safe('SELECT count(*) FROM written'), 1, 'the row is written');

# the queue: a waiter polls over changing connections, and is promoted
my ($waiting, $its) = row($two, 'lease_acquire', "SELECT state, ticket FROM leaselock.lease_acquire('lock', 'two', wait => '60 s')");
is($waiting, 'waiting', 'another owner queues');
is(row($two, 'a poll', "SELECT state FROM leaselock.lease_get('$its')"), 'waiting', 'the waiter polls') foreach 1 .. 3;

# the holder starts a fenced transaction and loses the lock before the commit
$one->query_safe("BEGIN; SELECT leaselock.fence_assert('lock', $fence)");
$one->query_safe("INSERT INTO written VALUES (0, 1, $fence)");
is(row($clients[2], 'lease_release', "SELECT state FROM leaselock.lease_release('$ticket')"),
	'released', 'the lock is released over another connection');
is(outcome($one, 'COMMIT'), 'LS001', 'COMMIT through the pooler fails');
is($one->query_safe('SELECT count(*) FROM written'), 1, 'nothing is written');
my ($now, $its_fence) = row($two, 'a poll', "SELECT state, fence FROM leaselock.lease_get('$its')");
is($now, 'held', 'the waiter gets the lock');
cmp_ok($its_fence, '>', $fence, 'the grant has a greater fence');

row($two, 'lease_acquire', "SELECT state FROM leaselock.lease_acquire('more $_', 'two')") foreach 1 .. 3;
is(row($two, 'lease_release_all', "SELECT leaselock.lease_release_all('two')"), 4,
	'tickets from four connections are released');

my $hold = row($one, 'try_lock', "SELECT leaselock.try_lock('named', 'one', '1 h')");
is(row($one, 'try_lock', "SELECT leaselock.try_lock('named', 'one', '1 h')"), $hold, 'a repeated try_lock finds its hold');
is(row($one, 'renew_lock', "SELECT leaselock.renew_lock('named', 'one', '1 h')"), 't', 'the hold is renewed');
is(row($one, 'release_lock', "SELECT leaselock.release_lock('named', 'one')"), 't', 'the hold is released');

# ---------------------------------------------------------------------
# Waiting in one call
# ---------------------------------------------------------------------

like(outcome($one, "CALL leaselock.lease_acquire_wait('call', 'one')"), qr/^[0-9a-f-]{36}\|held\|\d+\|/,
	'CALL lease_acquire_wait gets a free lock');
$two->query_until(qr/calling/, "\\echo calling\nCALL leaselock.lease_acquire_wait('call', 'two');\n");
$node->poll_query_until('postgres', q{
	SELECT count(*) = 1 FROM leaselock.lease_tickets WHERE name = 'call' AND state = 'waiting'})
  or die 'no ticket is waiting';
ok($server{ $node->safe_psql('postgres', q{
		SELECT pid FROM pg_stat_activity WHERE query LIKE 'CALL %' AND state = 'active'})},
	'a wait occupies one connection of the pool');
is(row($one, 'lease_release_all, beside it', "SELECT leaselock.lease_release_all('one')"), 1, 'one ticket is released');
like(outcome($two, ''), qr/\|held\|/, 'the wait ends with the lock');
is(row($two, 'lease_release_all', "SELECT leaselock.lease_release_all('two')"), 1, 'one ticket is released');
is(outcome($one, "BEGIN; CALL leaselock.lease_acquire_wait('call', 'one'); ROLLBACK"), '2D000',
	'the call is refused in a transaction, as without a pooler');
outcome($one, 'ROLLBACK');

# the pooler notices a waiting client that disconnects
my $leaver = client();
row($one, 'lease_acquire', "SELECT state FROM leaselock.lease_acquire('call', 'one')");
$leaver->query_until(qr/calling/, "\\echo calling\nCALL leaselock.lease_acquire_wait('call', 'leaver');\n");
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM leaselock.lease_tickets WHERE name = 'call' AND state = 'waiting'})
  or die 'no ticket is waiting';
$leaver->{run}->kill_kill;
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM leaselock.lease_tickets WHERE name = 'call' AND state = 'waiting'}),
	'a waiter whose client disconnects leaves the queue');
row($one, 'lease_release_all', "SELECT leaselock.lease_release_all('one')");

# a pool of one connection: the wait occupies it, so the release comes too late
my ($holder, $narrow) = (client('narrow'), client('narrow'));
is(outcome($holder, "SELECT state FROM leaselock.lease_acquire('narrow', 'one')"), 'held', 'a lock is held');
$narrow->query_until(qr/calling/, "\\echo calling\nCALL leaselock.lease_acquire_wait('narrow', 'two', wait => '2 s');\n");
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM leaselock.lease_tickets WHERE name = 'narrow' AND state = 'waiting'})
  or die 'no ticket is waiting';
is(outcome($holder, "SELECT leaselock.lease_release_all('one')"), 1, 'a release without a free connection is carried out ...');
like(outcome($narrow, ''), qr/\|timed_out\|/, '... after the wait');
$_->quit foreach $holder, $narrow;

# ---------------------------------------------------------------------
# Identity of a client
# ---------------------------------------------------------------------

is(row($one, 'lease_acquire', "SELECT state FROM leaselock.lease_acquire('identity', 'label')"), 'held', 'a lock is held');
is(row($two, 'lease_acquire', "SELECT depth FROM leaselock.lease_acquire('identity', 'label')"), 2, 'clients with one label are one owner');
is(outcome($two, q{BEGIN; SET LOCAL ROLE worker; SELECT state FROM leaselock.lease_acquire('identity', 'label'); COMMIT}),
	'contended', 'after SET LOCAL ROLE the same label is another identity');
is(row($two, 'afterwards', 'SELECT current_user'), 'app', 'no changed role remains') foreach 1 .. $pool_size;
is(row($one, 'lease_release_all', "SELECT leaselock.lease_release_all('label')"), 2, 'both tickets are released');

# ---------------------------------------------------------------------
# Statement mode
# ---------------------------------------------------------------------

my $statements = client('statements');
$fence = outcome($statements, "SELECT fence FROM leaselock.lease_acquire('statement', 'one')");
is(outcome($statements, "INSERT INTO written SELECT 9, 1, $fence FROM leaselock.fence_assert('statement', $fence)"), '',
	'statement mode: a fenced write in one statement succeeds');
is(outcome($statements, "INSERT INTO written SELECT 9, 1, 1 FROM leaselock.fence_assert('statement', 1)"), 'LS001',
	'statement mode: a stale fence is refused');
is($node->safe_psql('postgres', 'SELECT count(*) FROM written WHERE lock = 9'), 1, 'statement mode: only the first row is written');
is(outcome($statements, "SELECT leaselock.lease_release_all('one')"), 1, 'statement mode: the ticket is released');
$statements->quit;
run_log([ 'psql', '-Xc', 'BEGIN', "$connstr dbname=statements" ], '>', \my $printed, '2>', \my $refusal);
like($refusal, qr/transaction blocks not allowed/, 'statement mode: the pooler refuses a transaction');

# ---------------------------------------------------------------------
# Prepared statements
# ---------------------------------------------------------------------

# within one transaction these work with every version
is(outcome($one, q{
		BEGIN;
		PREPARE p AS SELECT state FROM leaselock.lease_acquire($1, $2, request_id => $3);
		EXECUTE p('prepared', 'one', '6f0d7a2e-4d3f-4c55-9d5a-7a0f5a3f2f11');
		DEALLOCATE p;
		COMMIT}), 'held', 'PREPARE and EXECUTE work in one transaction');
row($one, 'lease_release_all', "SELECT leaselock.lease_release_all('one')");

# Eight clients share the connections.  "extended": with parameters but no
# named statements; "prepared": each client prepares each statement once.
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
	unlike($err, qr/ERROR|FATAL|abort/, 'pgbench reports no error');
	my ($written, $different, $clients) = split /\|/, $node->safe_psql('postgres', q{
		SELECT count(*), count(DISTINCT (lock, fence)), count(DISTINCT client) FROM written});
	cmp_ok($written, '>', 50, 'fenced writes were made')
	  and note("$written of 3200 tries");
	is($different, $written, 'each write has its own fence');
	cmp_ok($clients, '>', 1, 'several clients wrote');
}
note $prepares
  ? 'statements that a driver prepares were tested'
  : "PgBouncer $version has no prepared statements in transaction mode: only unnamed ones were tested";

# ---------------------------------------------------------------------
# An agent
# ---------------------------------------------------------------------

SKIP:
{
	my (undef, undef, $missing) = grep({ -x "$_/leaselock" } split /:/, $ENV{PATH}) ? cli('mcp') : ('', '', 'not built');
	skip 'LEASELOCK MCP IS NOT BUILT', 1 if $missing =~ /not (?:built|available)/;
	my $agent = initialize(start_mcp([ '--answer-within', 0.1, '-d', $connstr ]));
	my ($first, $second) = map {
		tool($agent, 'acquire_lock', { lock_name => 'agent', owner => $_, lease_seconds => 5, keep_seconds => 600, wait_seconds => 200 })
	} qw(first second);
	is("$first->{state} $second->{state}", 'held waiting', 'an agent acquires, and another queues');
	is(tool($agent, 'release_lock_ticket', { ticket => $first->{ticket} })->{state}, 'released', 'the first releases');
	ok($node->poll_query_until('postgres', q{SELECT depth = 1 AND owner = 'second' AND remaining_ms > 0 FROM leaselock.lease_peek('agent')}), 'the second has its turn');
	# once when it claims its turn, and then by a renewal
	foreach my $time (1, 2)
	{
		my $expires = $node->safe_psql('postgres', q{SELECT expires_at FROM leaselock.lease_peek('agent')});
		ok($node->poll_query_until('postgres', "SELECT expires_at > '$expires' FROM leaselock.lease_peek('agent')"), "its lease is renewed, $time");
	}
	is(tool($agent, 'release_lock_ticket', { ticket => $second->{ticket} })->{state}, 'released', 'the second releases');
	is(end_mcp($agent), 0, 'the agents\' server ends');
}

# ---------------------------------------------------------------------

is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no server connection holds an advisory lock');
is($node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.lease_tickets'), '0', 'no ticket is left');
$_->quit foreach @clients;
$pooler->kill_kill;
undef $pooler;
is_deeply([ grep { / XX\w{3} / || /PANIC:/ } split /\n/, slurp_file($node->logfile) ],
	[], 'no internal error in the log');
$node->stop;

done_testing();
