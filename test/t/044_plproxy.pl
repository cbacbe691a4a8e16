# Sharding: three databases, each with its own leases and documents, and a
# fourth database from which PL/Proxy routes each call by the lock's name.  The
# test also asserts what does not work this way.
#
# Native only: PL/Proxy is not in the trees of the other majors.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $libdir = `pg_config --pkglibdir`);
plan skip_all => 'PL/Proxy is NOT INSTALLED: sharding over several databases is not tested'
  if !-e "$libdir/plproxy.so";

my @shards = map { "shard$_" } 0 .. 2;
# so that no lease or wait ends on a slow machine
my $node = new_node('proxied', q{
fsync = off
leaselock.waiter_timeout = '300 s'
});
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach @shards, 'proxy';
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE ROLE other LOGIN');

# ---------------------------------------------------------------------
# The shards: a document and its lock are in one database
# ---------------------------------------------------------------------

foreach my $shard (@shards)
{
	$node->safe_psql($shard, q{
CREATE EXTENSION leaselock;
CREATE TABLE document (name text PRIMARY KEY, body text, fence bigint NOT NULL);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON document
	FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'name');
CREATE FUNCTION put_document(its_name text, new_body text, its_fence bigint) RETURNS void
BEGIN ATOMIC
	INSERT INTO document VALUES (its_name, new_body, its_fence)
		ON CONFLICT (name) DO UPDATE SET body = excluded.body, fence = excluded.fence;
END;
GRANT ALL ON document TO app, other;
});
}

# ---------------------------------------------------------------------
# The proxy: functions of the same names, routed by the lock's name
# ---------------------------------------------------------------------

my $where = join ', ', map { "p$_ 'host=" . $node->host . ' port=' . $node->port . " dbname=shard$_'" } 0 .. 2;
my $columns = 'ticket, state, fence, "position", depth, holder, next_call_ms';
my $out = 'OUT ticket uuid, OUT state text, OUT fence bigint, OUT "position" int, OUT depth int, OUT holder text, OUT next_call_ms bigint';

# proxy(SIGNATURE, WHERE, QUERY)
sub proxy
{
	my ($signature, $on, $query) = @_;
	return "CREATE FUNCTION $signature LANGUAGE plproxy AS \$\$ CLUSTER 'leases'; RUN ON $on; $query; \$\$;\n";
}

$node->safe_psql('proxy', "CREATE EXTENSION plproxy;
CREATE SERVER leases FOREIGN DATA WRAPPER plproxy OPTIONS (modular_mapping '1', $where);
CREATE USER MAPPING FOR postgres SERVER leases OPTIONS (user 'app');
CREATE USER MAPPING FOR app SERVER leases OPTIONS (user 'app');
CREATE USER MAPPING FOR other SERVER leases OPTIONS (user 'other');
GRANT USAGE ON FOREIGN SERVER leases TO app, other;
CREATE SCHEMA leaselock;
GRANT USAGE ON SCHEMA leaselock TO PUBLIC;
" . proxy(qq{leaselock.lease_acquire(its_name text, its_owner text, its_lease interval DEFAULT '300 s', its_wait interval DEFAULT '0 s', its_request uuid DEFAULT NULL, $out)},
	'hashtext(its_name)', qq{SELECT $columns FROM leaselock.lease_acquire(its_name, its_owner, its_lease, its_wait, 'public', its_request)})
  . (join '', map { proxy("leaselock.$_(its_name text, its_ticket uuid, $out)", 'hashtext(its_name)', "SELECT $columns FROM leaselock.$_(its_ticket)") }
	  qw(lease_get lease_renew lease_release))
  . proxy("leaselock.lease_get_anywhere(its_ticket uuid, $out) RETURNS SETOF record", 'ALL', "SELECT $columns FROM leaselock.lease_get(its_ticket)")
  . proxy('leaselock.lease_release_all(its_owner text) RETURNS SETOF int', 'ALL', 'SELECT leaselock.lease_release_all(its_owner)')
  . proxy('leaselock.release_all_of_one(its_name text, its_owner text) RETURNS int', 'hashtext(its_name)', 'SELECT leaselock.lease_release_all(its_owner)')
  . proxy('leaselock.lease_status(OUT name text, OUT owner text) RETURNS SETOF record', 'ALL', 'SELECT s.name, s.owner FROM leaselock.lease_status s')
  . proxy('leaselock.fence_assert(its_name text, its_fence bigint) RETURNS void', 'hashtext(its_name)', 'SELECT leaselock.fence_assert(its_name, its_fence)')
  . proxy('leaselock.wait_by_select(its_name text, its_ticket uuid, OUT state text)', 'hashtext(its_name)', 'SELECT state FROM leaselock.lease_wait(its_ticket)')
  . proxy('put_document(its_name text, its_body text, its_fence bigint) RETURNS void', 'hashtext(its_name)', 'SELECT put_document(its_name, its_body, its_fence)'));

# Sessions of the proxy's database: by default as a role that connects to the
# shards as app
sub proxied
{
	my ($user) = @_;
	my $session = $node->background_psql('proxy', on_error_stop => 0, extra_params => [ '-U', $user // 'postgres' ]);

	# PL/Proxy raises a notice for each connection that it opens again
	$session->query_safe($_) foreach '\set VERBOSITY sqlstate', 'SET client_min_messages = error';
	return $session;
}

my $proxy = proxied();

# ask(SQL): the columns of one row; in scalar context the line that psql prints
sub ask
{
	my $row = $proxy->query_safe($_[0]);
	return wantarray ? split(/\|/, $row, -1) : $row;
}

# on_shards(SQL): the answers of all shards, joined by commas
sub on_shards
{
	my ($sql) = @_;
	return join ',', map { $node->safe_psql($_, $sql) } @shards;
}

# ---------------------------------------------------------------------
# One lock, one database
# ---------------------------------------------------------------------

is(ask("SELECT count(*) FROM generate_series(1, 30) n, leaselock.lease_acquire('doc.' || n, 'worker') l WHERE l.state = 'held'"), 30, 'thirty locks are acquired');
my %on = map { $_ => [ split /\n/, $node->safe_psql($_, 'SELECT name FROM leaselock.locks ORDER BY name COLLATE "C"') ] } @shards;
is(join(',', sort map { @$_ } values %on), join(',', sort map { "doc.$_" } 1 .. 30), 'each document is in exactly one database');
cmp_ok(scalar(@{ $on{$_} }), '>', 1, "$_ has several of the documents") foreach @shards;
is(ask('SELECT count(*) FROM leaselock.lease_status() WHERE owner = \'worker\''), 30, 'the status from all databases shows all locks');

my $name = $on{shard1}[0];
is(ask("SELECT state, holder FROM leaselock.lease_acquire('$name', 'late')"), 'contended|worker', 'another owner is routed to the same lock');

my $request = '6f0d7a2e-4d3f-4c55-9d5a-7a0f5a3f2f44';
my ($ticket) = ask("SELECT ticket FROM leaselock.lease_acquire('request', 'worker', its_request => '$request')");
is(ask("SELECT ticket, depth FROM leaselock.lease_acquire('request', 'worker', its_request => '$request')"), "$ticket|1", 'a retry finds its ticket');
is(ask("SELECT state FROM leaselock.lease_renew('request', '$ticket')"), 'held', 'the ticket is renewed');
is(ask("SELECT state FROM leaselock.lease_release('request', '$ticket')"), 'released', 'the ticket is released');

is(ask('SELECT sum(n) FROM leaselock.lease_release_all(\'worker\') n'), 30, 'lease_release_all, run on all databases, releases all locks');
is(on_shards('SELECT count(*) FROM leaselock.lease_status'), '0,0,0', 'no lock is held');

# ---------------------------------------------------------------------
# A queue by poll
# ---------------------------------------------------------------------

my %t;
my $fence;
($t{one}, my $state, $fence) = ask("SELECT ticket, state, fence FROM leaselock.lease_acquire('$name', 'one')");
foreach my $owner ('two', 'three')
{
	($t{$owner}, $state) = ask("SELECT ticket, state FROM leaselock.lease_acquire('$name', '$owner', its_wait => '300 s')");
	is($state, 'waiting', "$owner is queued");
}
is(ask("SELECT state, position FROM leaselock.lease_get('$name', '$t{two}')"), 'waiting|1', 'the first waiter polls');
is(ask("SELECT state, position FROM leaselock.lease_get('$name', '$t{three}')"), 'waiting|2', 'the second waiter polls');
is(ask("SELECT state FROM leaselock.lease_release('$name', '$t{one}')"), 'released', 'the first holder releases');
is(ask("SELECT state FROM leaselock.lease_get('$name', '$t{three}')"), 'waiting', 'the second waiter still waits');
($state, my $next) = ask("SELECT state, fence FROM leaselock.lease_get('$name', '$t{two}')");
is($state, 'held', 'the first waiter gets the lock');
cmp_ok($next, '>', $fence, 'the grant has a greater fence');

# ---------------------------------------------------------------------
# A fenced write, in the database of its data
# ---------------------------------------------------------------------

is(outcome($proxy, "SELECT put_document('$name', 'by two', $next)"), '', 'the holder writes');
is(on_shards("SELECT count(*) FROM document WHERE name = '$name'"), '0,1,0', 'the row is in the database of its lock');
is(outcome($proxy, "SELECT put_document('$name', 'by one', $fence)"), 'LS001', 'a write of the previous holder is refused');
is(on_shards('SELECT string_agg(body, \',\') FROM document'), ',by two,', 'it has written nothing');
my ($rc, $stdout, $stderr) = $node->psql('proxy', "SELECT put_document('$name', 'by one', $fence)");
like($stderr, qr/stale fence $fence for lock "\Q$name\E".*newest fence of the lock is $next.*Stop this work/s, 'message, detail and hint reach the client');

# the write waits for a row lock, and its lease is taken over meanwhile
my $blocker = $node->background_psql('shard1');
$blocker->query_safe("BEGIN; SELECT FROM document WHERE name = '$name' FOR UPDATE");
begin($proxy, "SELECT put_document('$name', 'too late', $next)");
$node->poll_query_until('shard1', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'app' AND wait_event_type = 'Lock'})
  or die 'the write does not wait';
is($node->safe_psql('shard1', "SELECT leaselock.lease_break('$name', $next)"), 't', 'the lease is broken during a write');
$blocker->query_safe('COMMIT');
is(awaited($proxy), 'LS001', 'the write is refused at commit, on the shard');
is(on_shards('SELECT string_agg(body, \',\') FROM document'), ',by two,', 'it has written nothing');
$blocker->quit;
is(ask("SELECT state FROM leaselock.lease_get('$name', '$t{three}')"), 'held', 'the next owner gets the lock');
is(ask('SELECT sum(n) FROM leaselock.lease_release_all(\'three\') n'), 1, 'the lock is released');

# ---------------------------------------------------------------------
# A database that is down affects only its own locks
# ---------------------------------------------------------------------

$node->safe_psql('postgres', q{
	ALTER DATABASE shard2 ALLOW_CONNECTIONS false;
	SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = 'shard2'});
isnt(outcome($proxy, "SELECT state FROM leaselock.lease_acquire('$on{shard2}[0]', 'worker')"), 'held', 'a call for a lock of a stopped database fails');
is(outcome($proxy, "SELECT state FROM leaselock.lease_acquire('$on{$_}[0]', 'worker')"), 'held', "a lock of $_ is not affected")
  foreach 'shard0', 'shard1';
$node->safe_psql('postgres', 'ALTER DATABASE shard2 ALLOW_CONNECTIONS true');
is(outcome($proxy, "SELECT state FROM leaselock.lease_acquire('$on{shard2}[0]', 'worker')"), 'held', 'after a restart the lock can be acquired');
is(ask('SELECT sum(n) FROM leaselock.lease_release_all(\'worker\') n'), 3, 'the locks are released');

# ---------------------------------------------------------------------
# What does not work: waiting in one call
# ---------------------------------------------------------------------

($ticket) = ask("SELECT ticket FROM leaselock.lease_acquire('$name', 'one')");
is(outcome($proxy, "SELECT leaselock.wait_by_select('$name', '$ticket')"), '42809', 'lease_wait is a procedure, which a SELECT cannot call');
is(outcome($proxy, q{
		CREATE FUNCTION leaselock.wait_by_call(its_name text, its_ticket uuid, OUT state text) LANGUAGE plproxy AS
		$$ CLUSTER 'leases'; RUN ON hashtext(its_name); CALL leaselock.lease_wait(its_ticket); $$}), 'XX000', 'PL/Proxy has no CALL');
$node->safe_psql('shard1', q{
	CREATE FUNCTION wait_inside(its_ticket uuid, OUT state text) LANGUAGE plpgsql AS
	$$ DECLARE fence bigint; expires_at timestamptz; BEGIN CALL leaselock.lease_wait(its_ticket, '1 s', state, fence, expires_at); END $$});
$proxy->query_safe(proxy('wait_inside(its_name text, its_ticket uuid, OUT state text)', 'hashtext(its_name)', 'SELECT w.state FROM wait_inside(its_ticket) w'));
my ($waiting) = ask("SELECT ticket FROM leaselock.lease_acquire('$name', 'two', its_wait => '300 s')");
is(outcome($proxy, "SELECT wait_inside('$name', '$waiting')"), '2D000', 'a function on the shard cannot wait either, because it cannot commit');
ask("SELECT state FROM leaselock.lease_release('$name', '$_')") foreach $waiting, $ticket;

# ---------------------------------------------------------------------
# What does not work: a transaction of the proxy
# ---------------------------------------------------------------------

$proxy->query_safe('CREATE TABLE local (fence bigint)');
($ticket, $fence) = ask("SELECT ticket, fence FROM leaselock.lease_acquire('$name', 'one')");
is(outcome($proxy, "BEGIN; SELECT leaselock.fence_assert('$name', $fence); INSERT INTO local VALUES ($fence)"), '', 'a fence is checked on the shard, and a row is written on the proxy');
$node->safe_psql('shard1', "SELECT leaselock.lease_break('$name', $fence)");
is(outcome($proxy, 'COMMIT; SELECT fence FROM local'), $fence, 'the lease is broken, and the COMMIT SUCCEEDS: that check proved nothing');
is(outcome($proxy, "SELECT leaselock.fence_assert('$name', $fence)"), 'LS001', 'the next check fails');

is(outcome($proxy, "BEGIN; SELECT state FROM leaselock.lease_acquire('$name', 'undone'); ROLLBACK"), 'held', 'a lock is acquired in a proxy transaction that is rolled back');
is(ask("SELECT state || ' ' || holder FROM leaselock.lease_acquire('$name', 'one')"), 'contended undone', 'THE LEASE STAYS: each call is a transaction of the shard');
ask('SELECT sum(n) FROM leaselock.lease_release_all(\'undone\') n');

# ---------------------------------------------------------------------
# What does not work: detecting a cycle over two databases
# ---------------------------------------------------------------------

# cycle(X, Y): the states of A, which holds X and waits for Y, and of B, which
# holds Y and waits for X
sub cycle
{
	my ($x, $y) = @_;
	my @states;
	ask("SELECT state FROM leaselock.lease_acquire('$x', 'A')");
	ask("SELECT state FROM leaselock.lease_acquire('$y', 'B')");
	foreach (([ $y, 'A' ], [ $x, 'B' ]))
	{
		my ($what, $owner) = @$_;
		my ($its, $its_state) = ask("SELECT ticket, state FROM leaselock.lease_acquire('$what', '$owner', its_wait => '120 s')");
		$t{$owner} = $its;
		push @states, $its_state;
	}
	return join ',', @states;
}

my ($x, $y) = ($on{shard0}[0], $on{shard1}[0]);
is(cycle($x, $on{shard0}[1]), 'waiting,deadlock', 'in one database the wait that closes the cycle is refused');
ask("SELECT sum(n) FROM leaselock.lease_release_all('$_') n") foreach 'A', 'B';
is(cycle($x, $y), 'waiting,waiting', 'over two databases both WAIT');
is(join('|', ask("SELECT state FROM leaselock.lease_get('$y', '$t{A}')"), ask("SELECT state FROM leaselock.lease_get('$x', '$t{B}')")), 'waiting|waiting', 'both keep waiting');
# only new sessions have the clock offset; a new client session opens new proxy
# connections
$node->safe_psql('postgres', "ALTER DATABASE $_ SET leaselock.clock_offset = '121 s'") foreach 'shard0', 'shard1';
my $later = proxied();
is($later->query_safe("SELECT state FROM leaselock.lease_get('$y', '$t{A}')"), 'timed_out', 'one wait times out');
is($later->query_safe("SELECT sum(n) FROM leaselock.lease_release_all('A') n"), 1, 'its owner then releases its lock');
is($later->query_safe("SELECT state FROM leaselock.lease_acquire('$x', 'B')"), 'held', 'the other owner gets that lock');
$later->query_safe("SELECT sum(n) FROM leaselock.lease_release_all('B') n");
$later->quit;
$node->safe_psql('postgres', "ALTER DATABASE $_ RESET leaselock.clock_offset") foreach 'shard0', 'shard1';

# ---------------------------------------------------------------------
# What does not work: a ticket or an owner without the lock's name
# ---------------------------------------------------------------------

my %lease = map { $_ => (ask("SELECT ticket FROM leaselock.lease_acquire('$on{$_}[0]', 'worker')"))[0] } @shards;
is(ask("SELECT state FROM leaselock.lease_get('$on{shard0}[0]', '$lease{shard1}')"), 'gone', 'a ticket looked up on another database is gone');
is($proxy->query_safe("SELECT string_agg(state, ',' ORDER BY state) FROM leaselock.lease_get_anywhere('$lease{shard1}')"),
	'gone,gone,held', 'only one of the databases knows the ticket');
is(ask("SELECT leaselock.release_all_of_one('$on{shard0}[0]', 'worker')"), 1, 'lease_release_all on one database releases the locks there');
is(on_shards(q{SELECT count(*) FROM leaselock.lease_status}), '0,1,1', 'it releases nothing elsewhere');
is($node->safe_psql('shard1', 'SELECT count(leaselock.lease_break(name, fence)) FROM leaselock.lease_status'), 1, 'an operator breaks on the database of the lock');
is(on_shards(q{SELECT count(*) FROM leaselock.lease_status}), '0,0,1', 'only that lock is broken');
$node->safe_psql('shard0', q{SELECT leaselock.lease_scope_create('public', 'other')});
is(outcome($proxy, "SELECT state FROM leaselock.lease_acquire('$on{shard0}[0]', 'worker')"), '42501', 'a scope registered on one database is closed there');
is(outcome($proxy, "SELECT state FROM leaselock.lease_acquire('$on{shard1}[0]', 'worker')"), 'held', 'IS OPEN on the others');
$node->safe_psql('shard0', q{SELECT leaselock.lease_scope_drop('public')});
is(ask('SELECT sum(n) FROM leaselock.lease_release_all(\'worker\') n'), 2, 'the locks are released');

# ---------------------------------------------------------------------
# A document that moves to another database
# ---------------------------------------------------------------------

my $moved = $on{shard0}[1];
($ticket, $fence) = ask("SELECT ticket, fence FROM leaselock.lease_acquire('$moved', 'worker')");
ask("SELECT state FROM leaselock.lease_release('$moved', '$ticket')");
# the other server's clock is behind
my $behind = "LOAD 'leaselock'; SET leaselock.clock_offset = '-1 h';";
is(node_outcome($node, "$behind SELECT fence < $fence FROM leaselock.lease_acquire('lower', 'worker')", 'shard1'), 't', 'fences of a server whose clock is behind are lower');
is(node_outcome($node, "$behind SELECT leaselock.fence_bump() > $fence", 'shard1'), 't', 'fence_bump raises their floor');
is(node_outcome($node, "$behind SELECT fence > $fence FROM leaselock.lease_acquire('$moved', 'worker')", 'shard1'), 't', 'then they are greater than all earlier fences');
is(node_outcome($node, "$behind SELECT put_document('$moved', 'late', $fence)", 'shard1'), 'LS001', 'a fence of the old database is refused in the new one');
is(node_outcome($node, "$behind SELECT sum(leaselock.lease_release_all('worker'))", 'shard1'), 2, 'the locks are released');

# ---------------------------------------------------------------------
# The identity: the role of the proxy's connection
# ---------------------------------------------------------------------

my %as = map { $_ => proxied($_) } 'app', 'other';
is($proxy->query_safe("SELECT state || depth FROM leaselock.lease_acquire('$name', 'worker')"), 'held1', 'a role mapped to app acquires the lock');
is($as{app}->query_safe("SELECT state || depth FROM leaselock.lease_acquire('$name', 'worker')"), 'held2', 'app with the same label is the same owner');
is($as{other}->query_safe("SELECT state FROM leaselock.lease_acquire('$name', 'worker')"), 'contended', 'a role mapped to another role is another identity');
$_->quit foreach values %as;

$proxy->quit;
is_deeply([ internal_errors($node) ], [ grep { /wait_by_call/ } internal_errors($node) ], 'the only internal error is the one that PL/Proxy raises for CALL');
$node->stop;

done_testing();
