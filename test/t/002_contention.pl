# Many clients on one lock: one of them holds it, the others learn that it is
# taken, and none of them gets an error.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('contention', qq{
max_connections = 250
leaselock.lock_timeout = '5min'
});
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE outcome (name text, client int, fence bigint);
CREATE TABLE seed (n int);
INSERT INTO seed VALUES (1);
});

# ---------------------------------------------------------------------
# 200 first acquires of a name that nobody has used, all at once
# ---------------------------------------------------------------------

my $gate = $node->background_psql('postgres');

foreach my $case (
	[ 'ticket', 'read committed', q{SELECT fence FROM
		leaselock.lease_acquire('fresh ticket', 'client ' || :client_id)} ],
	[ 'snapshot', 'serializable', q{SELECT fence FROM
		leaselock.lease_acquire('fresh snapshot', 'client ' || :client_id)} ],
	[ 'named', 'read committed', q{SELECT
		leaselock.try_lock('fresh named', 'client ' || :client_id, '1 min')} ])
{
	my ($name, $isolation, $acquire) = @$case;
	my $what = "200 first acquires ($name, $isolation)";
	my $offset = -s $node->logfile;

	# All clients stop at the gate, with a snapshot where the isolation level
	# keeps one, and pass it together.
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my $clients = start_pgbench(
		$node,
		'-c 200 -j 2 -t 1',
		"first_$name" => qq{
BEGIN ISOLATION LEVEL $isolation;
SELECT count(*) FROM seed;
SELECT pg_advisory_xact_lock_shared(1);
INSERT INTO outcome SELECT '$name', :client_id, ($acquire);
COMMIT;
});
	ok(clients_at_gate($node, 200), "$what: all are at the gate");
	$gate->query_safe('SELECT pg_advisory_unlock(1)');
	ok($clients->{run}->finish, "$what: all clients succeed")
	  or diag($clients->{err});

	is( $node->safe_psql('postgres', qq{
			SELECT count(*), count(fence) FROM outcome WHERE name = '$name'}),
		'200|1', "$what: exactly one client gets the lock");
	is( $node->safe_psql('postgres', qq{
			SELECT owner = 'client ' || client, s.fence = o.fence
			FROM leaselock.lease_peek('fresh $name') s, outcome o
			WHERE o.name = '$name' AND o.fence IS NOT NULL}),
		't|t', "$what: that client is the holder");
	is_deeply([ logged_errors($node, $offset) ],
		[], "$what: no error in the server log");
}
$gate->quit;

# ---------------------------------------------------------------------
# Eight clients on one lock, with transactions that keep their snapshot
# ---------------------------------------------------------------------

# Every client draws a number when it learns that it holds the lock, and
# another before it releases the lock: the stretches between the two must not
# overlap.  The journal is append-only, so that only the lock can cause a
# serialization failure.
my $steps = q{
SELECT (state = 'held')::int AS held, coalesce(fence, 0) AS fence,
	coalesce(ticket::text, '') AS ticket
	FROM leaselock.lease_acquire('one', 'client :client_id') \gset
\if :held
INSERT INTO journal (what, client, fence) VALUES ('enter', :client_id, :fence);
SELECT 1 / (state = 'held')::int FROM leaselock.lease_renew(':ticket');
SELECT 1 / (state = 'held')::int FROM leaselock.lease_get(':ticket');
};
my $release = q{
INSERT INTO journal (what, client, fence) VALUES ('leave', :client_id, :fence);
SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(':ticket');
\endif
};
my $apart = $steps . q{
BEGIN;
SELECT 1 / leaselock.fence_check('one', :fence)::int;
INSERT INTO journal (what, client, fence) VALUES ('write', :client_id, :fence);
COMMIT;
} . $release;
my $together = "BEGIN;\nSELECT count(*) FROM seed;\n$steps$release\nCOMMIT;\n";
my $named = q{
BEGIN;
SELECT count(*) FROM seed;
SELECT coalesce(leaselock.try_lock('one', 'client :client_id', '1 min'), 0) AS fence \gset
\if :fence > 0
INSERT INTO journal (what, client, fence) VALUES ('enter', :client_id, :fence);
SELECT 1 / leaselock.renew_lock('one', 'client :client_id', '1 min')::int;
INSERT INTO journal (what, client, fence) VALUES ('leave', :client_id, :fence);
SELECT 1 / leaselock.release_lock('one', 'client :client_id')::int;
\endif
COMMIT;
};

foreach my $isolation ('serializable', 'repeatable read')
{
	my $offset = -s $node->logfile;
	my $level = $isolation =~ s/ /\\ /r;

	$node->safe_psql('postgres', q{
		DROP TABLE IF EXISTS journal;
		CREATE TABLE journal (tick bigserial, what text, client int, fence bigint)});
	{
		local $ENV{PGOPTIONS} = "-c default_transaction_isolation=$level";
		$node->pgbench(
			'-n -c 8 -j 2 -t 250 --max-tries=1',
			0,
			[
				qr/processed: 2000\/2000/,
				qr/number of failed transactions: 0 /
			],
			[qr/^$/],
			"eight clients, $isolation",
			{
				"apart_" . substr($isolation, 0, 3) => $apart,
				"together_" . substr($isolation, 0, 3) => $together,
				"named_" . substr($isolation, 0, 3) => $named
			});
	}
	is_deeply([ logged_errors($node, $offset) ],
		[], "eight clients, $isolation: no error in the server log");

	# one row per stretch
	$node->safe_psql('postgres', q{
		DROP TABLE IF EXISTS stretch;
		CREATE TABLE stretch AS
			SELECT fence, min(tick) FILTER (WHERE what = 'enter') AS enter,
				max(tick) FILTER (WHERE what = 'leave') AS leave,
				count(*) FILTER (WHERE what = 'enter') AS enters,
				count(*) FILTER (WHERE what = 'leave') AS leaves,
				max(tick) FILTER (WHERE what = 'write') AS write,
				count(DISTINCT client) AS clients
			FROM journal GROUP BY fence});
	my ($stretches, $clients) = split /\|/, $node->safe_psql('postgres',
		'SELECT count(*), (SELECT count(DISTINCT client) FROM journal) FROM stretch');
	note("eight clients, $isolation: $stretches grants, to $clients clients");
	cmp_ok($stretches, '>=', 8, "eight clients, $isolation: grants were made");
	is( $node->safe_psql('postgres', q{
			SELECT count(*) FROM stretch WHERE enters <> 1 OR leaves <> 1
				OR clients <> 1 OR write NOT BETWEEN enter AND leave}),
		'0', "eight clients, $isolation: every fence belongs to one grant");
	is( $node->safe_psql('postgres', q{
			SELECT count(*) FROM (SELECT enter, lag(leave) OVER (ORDER BY enter) AS before
				FROM stretch) s WHERE before > enter}),
		'0', "eight clients, $isolation: no two clients held the lock at the same time");
	is( $node->safe_psql('postgres', q{
			SELECT count(*) FROM (SELECT fence, lag(fence) OVER (ORDER BY enter) AS before
				FROM stretch) s WHERE before >= fence}),
		'0', "eight clients, $isolation: fences grew");
	is( $node->safe_psql('postgres',
			q{SELECT count(*) FROM leaselock.lease_peek('one')}),
		'0', "eight clients, $isolation: the lock is free in the end");
}

# ---------------------------------------------------------------------
# A lapsed lock is taken over although 32 clients of the old holder keep
# renewing and committing
# ---------------------------------------------------------------------

$node->safe_psql('postgres', q{
CREATE TABLE renewed (state text);
CREATE TABLE looked (call text, state text);
CREATE TABLE written (passed boolean);
CREATE TABLE taken (owner text, fence bigint);
});

# Long texts: few versions of the lock's row fit into a page.
my $name = 'busy' x 63;
my $owner = 'holder' x 42;
my $scope = 'scope' x 51;
my $request = 'c0ffee00-0000-4000-8000-000000000001';
my $acquire = qq{leaselock.lease_acquire('$name', '$owner',
	scope => '$scope', request_id => '$request')};
my ($ticket, $fence) = split /\|/,
  $node->safe_psql('postgres', "SELECT ticket, fence FROM $acquire");
my $offset = -s $node->logfile;

my $committer = qq{
INSERT INTO renewed SELECT state FROM leaselock.lease_renew('$ticket');
INSERT INTO looked
	SELECT 'get', state FROM leaselock.lease_get('$ticket') UNION ALL
	SELECT 'retry', state FROM $acquire;
BEGIN;
INSERT INTO written VALUES
	(leaselock.fence_check('$name', $fence, '$scope', allow_lapsed => %s));
COMMIT;
};
my $taker = qq{
INSERT INTO taken SELECT owner, fence
	FROM leaselock.lease_acquire('$name', 'taker :client_id', scope => '$scope')
	WHERE state = 'held';
};

# An old snapshot prevents the reuse of the space of old row versions, so that
# the lock's row moves from page to page while all these clients look for it.
my $old = $node->background_psql('postgres');
$old->query_safe(
	'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM seed');

# they run until they are stopped below
my $committers;
{
	local $ENV{PGAPPNAME} = 'committers';
	$committers = start_pgbench(
		$node,
		'-c 32 -j 2 -t 10000000',
		strict => sprintf($committer, 'false'),
		lapsed => sprintf($committer, 'true'));
}
ok( $node->poll_query_until('postgres',
		'SELECT count(*) >= 3200 FROM written'),
	'32 committers write');

$node->pgbench('-n -c 4 -j 1 -t 100', 0, [qr/processed: 400\/400/], [qr/^$/],
	'takers try while the lease lasts',
	{ taker_early => $taker });
is($node->safe_psql('postgres', 'SELECT count(*) FROM taken'),
	'0', 'nobody takes a lock whose holder renews it');
is( $node->safe_psql('postgres', q{
		SELECT 'renew', state, count(*) FROM renewed WHERE state <> 'held' GROUP BY 2
		UNION ALL
		SELECT call, state, count(*) FROM looked WHERE state <> 'held' GROUP BY 1, 2
		UNION ALL
		SELECT 'check', 'refused', count(*) FROM written WHERE NOT passed GROUP BY 2}),
	'', 'the holder never sees its lock as lost');
is_deeply([ logged_errors($node, $offset) ],
	[], 'no error in the server log before the lease lapses');
$old->quit;

# the server's clock moves forward by more than any lease
$node->append_conf('postgresql.conf', "leaselock.clock_offset = '301 s'");
$node->reload;
ok( $node->poll_query_until('postgres', q{
		SELECT current_setting('leaselock.clock_offset', true) IS NOT NULL}),
	'the clock has moved');

$node->pgbench('-n -c 4 -j 1 -t 500', 0, [qr/processed: 2000\/2000/], [qr/^$/],
	'takers try after the lease has lapsed',
	{ taker_late => $taker });
note('calls that got the lock: '
	  . $node->safe_psql('postgres', 'SELECT count(*) FROM taken'));
ok($committers->{run}->pumpable, 'the committers ran all the time');
is( $node->safe_psql('postgres', qq{
		SELECT count(DISTINCT owner), count(DISTINCT fence), min(fence) > $fence
		FROM taken}),
	'1|1|t', 'exactly one taker got the lock, with a greater fence');
is( $node->safe_psql('postgres', qq{
		SELECT leaselock.fence_check('$name', $fence, '$scope', allow_lapsed => true)}),
	'f', 'the old fence is stale');

is_deeply([ grep { !/ LS001 committers ERROR:/ } logged_errors($node, $offset) ],
	[], 'the only errors in the server log are stale fences of the committers');

$committers->{run}->kill_kill;
ok( $node->poll_query_until('postgres', q{
		SELECT count(*) = 0 FROM pg_stat_activity
		WHERE application_name = 'committers'}),
	'the committers are gone');

$node->stop;

done_testing();
