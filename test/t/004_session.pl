# A session keeps nothing that matters.  A call leaves no plan, memory context
# or lock behind, a lease outlives its connection, the extension can be dropped
# and created again under a session that has used it, and rows can move.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('session');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

# ---------------------------------------------------------------------
# Repeated calls
# ---------------------------------------------------------------------

my $fence = $node->safe_psql('postgres',
	q{SELECT fence FROM leaselock.lease_acquire('kept', 'keeper', lease => '300 s')});
$node->safe_psql('postgres', q{
-- a call that is refused
CREATE FUNCTION refused() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leaselock.lease_acquire('kept', 'keeper', lease => '1 s');
	RETURN false;
EXCEPTION WHEN invalid_parameter_value THEN
	RETURN true;
END $$;
-- calls that are rolled back with their savepoint
CREATE FUNCTION undone(fence bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leaselock.fence_assert('kept', fence);
	PERFORM leaselock.lease_acquire('undone', 'keeper');
	RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
	RETURN true;
END $$;
});

# Eighteen calls in ten statements that return no row if all is well.  Each
# statement is a transaction of its own.
my @calls = (
	q{SELECT 1 FROM leaselock.lease_acquire('loop', 'me') a,
		leaselock.lease_renew(a.ticket) r, leaselock.lease_get(r.ticket) g,
		leaselock.lease_release(g.ticket) e WHERE e.state <> 'released'},
	q{SELECT 1 WHERE leaselock.try_lock('named', 'me', '1 h') IS NULL},
	q{SELECT 1 WHERE NOT leaselock.renew_lock('named', 'me', '1 h')},
	q{SELECT 1 WHERE NOT leaselock.release_lock('named', 'me')},
	qq{SELECT 1 WHERE NOT leaselock.fence_check('kept', $fence)},
	q{SELECT 1 FROM leaselock.lease_acquire('kept', 'rival') a,
		leaselock.try_lock('kept', 'rival', '1 h') t
		WHERE a.state <> 'contended' OR t IS NOT NULL},
	q{SELECT 1 WHERE leaselock.lease_release_all('nobody') <> 0},
	q{SELECT 1 FROM leaselock.lease_peek('kept'), leaselock.lease_status s
		WHERE s.name = 'kept' AND s.owner <> 'keeper'},
	q{SELECT 1 WHERE NOT refused()},
	qq{SELECT 1 WHERE NOT undone($fence)});

my $session = $node->background_psql('postgres');

sub repeat_calls
{
	my ($times) = @_;
	my $values = join ', ', map { "(\$call\$$_\$call\$)" } @calls;

	return $session->query_safe(
		"SELECT call FROM generate_series(1, $times), (VALUES $values) c(call) \\gexec");
}

# The session's memory contexts and locks, counted by kind.  The server creates
# its cache of tablespaces when it first cleans an index page, so that one does
# not count.
sub contexts
{
	return $session->query_safe(q{
		SELECT name, left(ident, 60), count(*) FROM pg_backend_memory_contexts
		WHERE name <> 'TableSpace cache'
		GROUP BY 1, 2 ORDER BY 1, 2});
}

sub locks
{
	return $session->query_safe(q{
		SELECT locktype, classid, objid, objsubid, mode, count(*) FROM pg_locks
		WHERE pid = pg_backend_pid() AND locktype IN ('advisory', 'transactionid')
		GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5});
}

sub top_memory
{
	return $session->query_safe(q{
		SELECT sum(used_bytes) FROM pg_backend_memory_contexts
		WHERE name IN ('TopMemoryContext', 'CacheMemoryContext')});
}

contexts();
locks();
top_memory();
# incremental pruning may do the same during any call
$session->query_safe(q{SELECT leaselock.lease_prune('36500 days')});
is(repeat_calls(10), '', 'calls of every kind give the expected answers');
my $contexts = contexts();
my $bytes = top_memory();
is(locks(), '', 'no lock is left after the first calls');
is(repeat_calls(1000), '', '10 000 more calls give the expected answers');
is(contexts(), $contexts, 'no plan and no memory context is left');
is(locks(), '', 'no lock is left');
cmp_ok(top_memory() - $bytes, '<', 64 * 1024,
	'the long-lived memory contexts have hardly grown');

# The same in one transaction: calls that write nothing keep no lock of their
# own, and a fence is remembered only once.
my $block = qq{
DO \$\$
BEGIN
	FOR i IN 1..%d LOOP
		PERFORM leaselock.fence_assert('kept', $fence);
		PERFORM leaselock.lease_acquire('kept', 'rival');
		PERFORM leaselock.try_lock('kept', 'rival', '1 h');
		PERFORM leaselock.renew_lock('kept', 'rival', '1 h');
		PERFORM leaselock.lease_get('00000000-0000-0000-0000-000000000000');
	END LOOP;
END \$\$};
$session->query_safe('BEGIN');
$session->query_safe(sprintf($block, 10));
$contexts = contexts();
my $held = locks();
$session->query_safe(sprintf($block, 2000));
is(contexts(), $contexts, '10 000 calls in a transaction: no context is left');
is(locks(), $held, '10 000 calls in a transaction: no further lock is kept');
$session->query_safe('COMMIT');
is(locks(), '', 'no lock is left after the transaction');

# ---------------------------------------------------------------------
# The extension is dropped and created under the session
# ---------------------------------------------------------------------

my $acquire =
	q{SELECT state, fence FROM leaselock.lease_acquire('kept', 'keeper')};

# Checks that an answer to $acquire is a new grant, and remembers its fence
sub granted
{
	my ($answer, $what) = @_;

	like($answer, qr/^held\|\d+$/, "$what: the lock is granted");
	my $new = $answer =~ s/\D+//r;
	cmp_ok($new, '>', $fence, "$what: with a greater fence");
	$fence = $new;
	return;
}

$session->query_safe('DROP EXTENSION leaselock');
$session->query_safe('CREATE EXTENSION leaselock');
granted($session->query_safe($acquire), 'dropped and created');

$session->query_safe('BEGIN');
$session->query_safe('DROP EXTENSION leaselock');
$session->query_safe('ROLLBACK');
is($session->query_safe($acquire),
	"held|$fence", 'dropped and rolled back: the lock is held as before');

$session->query_safe('DROP EXTENSION leaselock');
$session->query_safe('BEGIN');
$session->query_safe('CREATE EXTENSION leaselock');
granted($session->query_safe($acquire), 'created, not committed');
$session->query_safe('ROLLBACK');
$session->query_safe('CREATE EXTENSION leaselock');
granted($session->query_safe($acquire), 'created again after a rollback');

$session->query_safe('BEGIN; SAVEPOINT before');
$session->query_safe('DROP EXTENSION leaselock; CREATE EXTENSION leaselock');
$session->query_safe($acquire);
$session->query_safe('ROLLBACK TO before');
is($session->query_safe($acquire),
	"held|$fence", 'dropped, created and rolled back to a savepoint');
$session->query_safe('COMMIT');
$session->quit;

# The commit cannot verify a fence that was checked before the drop.  It may be
# refused, but not with an internal error.
$session = session($node);
outcome($session, 'BEGIN');
is(outcome($session, "SELECT leaselock.fence_check('kept', $fence)"),
	't', 'a fence is checked');
outcome($session, 'DROP EXTENSION leaselock');
like(outcome($session, 'COMMIT'),
	qr/^(LS001)?$/, 'the extension is dropped before the commit');
outcome($session, 'CREATE EXTENSION IF NOT EXISTS leaselock');
like(outcome($session, $acquire), qr/^held\|\d+$/, 'the session still works');
$session->quit;

# ---------------------------------------------------------------------
# A lease is not tied to a connection
# ---------------------------------------------------------------------

my ($ticket, $first) = split /\|/, $node->safe_psql('postgres',
	q{SELECT ticket, fence FROM leaselock.lease_acquire('pooled', 'worker')});
is( $node->safe_psql('postgres',
		"SELECT state, fence FROM leaselock.lease_renew('$ticket')"),
	"held|$first", 'renewed by another backend');
is( $node->safe_psql('postgres',
		"SELECT state, fence FROM leaselock.lease_release('$ticket')"),
	"released|$first", 'released by a third backend');

$session = session($node);
($ticket, $fence) = split /\|/, outcome($session,
	q{SELECT ticket, fence FROM leaselock.lease_acquire('pooled', 'worker')});
foreach my $call (
	"SELECT state, fence, depth FROM leaselock.lease_get('$ticket')",
	"SELECT state, fence, depth FROM leaselock.lease_renew('$ticket')")
{
	is(outcome($session, 'DISCARD ALL'), '', 'DISCARD ALL');
	is(outcome($session, $call), "held|$fence|1", 'the ticket is held afterwards');
}
outcome($session, 'DISCARD ALL');
is( outcome($session,
		"SELECT state FROM leaselock.lease_release('$ticket')"),
	'released', 'the ticket can be released after another one');

# the holder's backend dies while it has a named hold and a ticket
($ticket, $fence) = split /\|/, outcome($session, q{
	SELECT ticket, fence FROM leaselock.lease_acquire('orphan', 'worker')});
my $named = outcome($session,
	q{SELECT leaselock.try_lock('orphan named', 'worker', '1 min')});
my $pid = outcome($session, 'SELECT pg_backend_pid()');
is($node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)"),
	't', "the holder's backend is terminated");
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"),
	"the holder's backend is gone");
$session->quit;
my $try = q{
SELECT state FROM leaselock.lease_acquire('orphan', 'rival');
SELECT leaselock.try_lock('orphan named', 'rival', '1 min') IS NULL;
};
my $later = q{LOAD 'leaselock'; SET leaselock.clock_offset = '%d s'; };
is($node->safe_psql('postgres', $try),
	"contended\nt", 'its leases last, so nobody else gets the locks');
is( $node->safe_psql('postgres', sprintf($later, 30) . $try),
	"contended\nt", 'nobody else gets them 30 seconds later');
is( $node->safe_psql('postgres', qq{
		SELECT state FROM leaselock.lease_get('$ticket');
		SELECT state FROM leaselock.lease_release('$ticket')}),
	"held\nreleased", 'its ticket is released by another connection');
is( $node->safe_psql('postgres',
		q{SELECT state FROM leaselock.lease_acquire('orphan', 'rival')}),
	'held', 'the lock is then free at once');
is( $node->safe_psql('postgres', sprintf($later, 120) . qq{
		SELECT leaselock.try_lock('orphan named', 'rival', '1 min') > $named}),
	't', 'the named hold ends when its time is up');

# ---------------------------------------------------------------------
# Time zones
# ---------------------------------------------------------------------

# what two sessions on either side of the date line report about a lock
my $shown = q{
SELECT fence, extract(epoch FROM expires_at), extract(epoch FROM expires_at - granted_at),
	remaining_ms BETWEEN 1 AND %d, lapsed
	FROM leaselock.lease_peek('%s')};
my %in = map {
	my $in = session($node);
	outcome($in, "SET TimeZone = '$_'");
	($_ => $in);
} 'Asia/Seoul', 'America/New_York';

$fence = outcome($in{'Asia/Seoul'},
	q{SELECT fence FROM leaselock.lease_acquire('zoned', 'east')});
is( outcome($in{'America/New_York'},
		q{SELECT state, holder FROM leaselock.lease_acquire('zoned', 'west')}),
	'contended|east', 'a lease granted in Seoul is valid in New York');
my $east = outcome($in{'Asia/Seoul'}, sprintf($shown, 60_000, 'zoned'));
like($east, qr/^$fence\|[\d.]+\|60\.0+\|t\|f$/, 'it lasts one minute');
is(outcome($in{'America/New_York'}, sprintf($shown, 60_000, 'zoned')),
	$east, 'both sessions see the same');

$named = outcome($in{'America/New_York'},
	q{SELECT leaselock.try_lock('zoned day', 'west', '1 day')});
is( outcome($in{'Asia/Seoul'},
		q{SELECT leaselock.try_lock('zoned day', 'east', '1 day') IS NULL}),
	't', 'a hold taken in New York is valid in Seoul');
my $west = outcome($in{'America/New_York'},
	sprintf($shown, 86_400_000, 'zoned day'));
like($west, qr/^$named\|[\d.]+\|86400\.0+\|t\|f$/, 'it lasts 24 hours');
is(outcome($in{'Asia/Seoul'}, sprintf($shown, 86_400_000, 'zoned day')),
	$west, 'both sessions see the same');

foreach my $zone (sort keys %in)
{
	outcome($in{$zone}, q{SET leaselock.clock_offset = '61 s'});
	is(outcome($in{$zone}, q{SELECT lapsed FROM leaselock.lease_peek('zoned')}),
		't', "the lease has lapsed in $zone");
}
like( outcome($in{'America/New_York'},
		q{SELECT state, fence FROM leaselock.lease_acquire('zoned', 'west')}),
	qr/^held\|/, 'the lock can then be acquired in New York');
$_->quit foreach values %in;

# ---------------------------------------------------------------------
# Rows that have moved since the session saw them
# ---------------------------------------------------------------------

my $seer = session($node);
my $take = q{SELECT count(*) FROM generate_series(1, 500) i,
	leaselock.try_lock('place ' || i, 'seer', '5 s') fence WHERE fence IS NOT NULL};
my $size = q{SELECT pg_relation_size('leaselock.locks')};

# Removes the rows of lapsed holds, and the pages that become empty.
sub remove_rows
{
	$node->safe_psql('postgres', q{
		LOAD 'leaselock';
		SET leaselock.clock_offset = '2 h';
		SELECT leaselock.lease_prune('1 h');
		SELECT leaselock.lease_prune('1 h')});
	$node->safe_psql('postgres', 'VACUUM leaselock.locks');
	return;
}

is(outcome($seer, $take), 500, 'a session has seen 500 rows');
my $before = $node->safe_psql('postgres', $size);
$node->safe_psql('postgres', q{CREATE TABLE before AS
	SELECT name, fence FROM leaselock.locks WHERE name LIKE 'place %'});
remove_rows();
cmp_ok($node->safe_psql('postgres', $size), '<', $before, 'their pages are gone');
is(outcome($seer, $take), 500, 'the session takes the locks again');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM before b
		JOIN leaselock.lease_status s USING (name) WHERE s.fence > b.fence}),
	500, 'the fences are greater');

remove_rows();
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM generate_series(1, 500) i,
			leaselock.try_lock('elsewhere ' || i, 'other', '1 h') fence WHERE fence IS NOT NULL}),
	500, 'rows of other locks have taken their place');
is(outcome($seer, $take), 500, 'the session takes the locks once more');
is( $node->safe_psql('postgres', q{
		SELECT string_agg(o, ' ' ORDER BY o) FROM (SELECT owner || ' ' || count(DISTINCT name) AS o
			FROM leaselock.lease_status WHERE name LIKE 'place %' OR name LIKE 'elsewhere %' GROUP BY owner) s}),
	'other 500 seer 500', 'each owner holds its own locks');

$node->safe_psql('postgres', 'VACUUM FULL leaselock.locks');
is( outcome($seer, q{SELECT count(*) FROM generate_series(1, 500) i
		WHERE leaselock.renew_lock('place ' || i, 'seer', '1 h')}),
	500, 'the session finds its rows in a rewritten table');
$seer->quit;

$node->stop;

done_testing();
