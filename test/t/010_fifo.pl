# First in, first out: 50 waiters on one lock are granted it in the order in
# which they were queued, however they wait, through hundreds of releases; and
# nobody overtakes them meanwhile.
#
# One major: the order of the queue does not depend on the server's version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('fifo', 'max_connections = 100');

# A ticket loses its place when its turn comes.  Tickets are queued one after
# the other, under a lock, and the time of the request is read under that lock,
# so it gives the same order.
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE VIEW queued AS
	SELECT name, ticket, requested_at AS place FROM leaselock.tickets
	WHERE wait_until IS NOT NULL;
CREATE TABLE journal (tick bigserial, what text, name text, ticket uuid, fence bigint);
});

# A waiter's script: gets the lock, records that once the gate is open,
# releases it
sub waiter
{
	my ($name, $owner, $acquire) = @_;
	return sprintf($acquire, "'$name', '$owner :client_id', wait => '120 s'") . qq{
SELECT pg_advisory_lock_shared(1);
SELECT pg_advisory_unlock_shared(1);
INSERT INTO journal (what, name, ticket, fence) SELECT 'enter', '$name', ':ticket', :fence
	WHERE ':state' = 'held';
INSERT INTO journal (what, name, ticket, fence) VALUES ('leave', '$name', ':ticket', :fence);
SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(':ticket');
};
}

my $in_one = q{CALL leaselock.lease_acquire_wait(%s) \gset
};
my $in_two = q{SELECT ticket FROM leaselock.lease_acquire(%s) \gset
CALL leaselock.lease_wait(':ticket') \gset
};

# Checks each grant of a lock by what it wrote to the journal
sub check_journal
{
	my ($name, $grants) = @_;

	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM (SELECT FROM journal WHERE name = '$name'
				GROUP BY fence HAVING count(*) FILTER (WHERE what = 'enter') = 1
				AND count(*) FILTER (WHERE what = 'leave') = 1) s}),
		$grants, "$name: every grant begins and ends once");
	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM (
				SELECT what, fence, lag(what) OVER w AS before, lag(fence) OVER w AS earlier
				FROM journal WHERE name = '$name' WINDOW w AS (ORDER BY tick)) j
			WHERE (what = 'enter' AND before IS DISTINCT FROM 'leave' AND before IS NOT NULL)
				OR (what = 'leave' AND (before <> 'enter' OR earlier <> fence))}),
		'0', "$name: the grants follow one after the other");
	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM (
				SELECT t.fence, lag(t.fence) OVER (ORDER BY q.place) AS before
				FROM queued q JOIN leaselock.tickets t USING (ticket)
				WHERE q.name = '$name') s
			WHERE fence IS NULL OR before >= fence}),
		'0', "$name: granted in the order in which they were queued");
	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM (
				SELECT row_number() OVER (ORDER BY j.tick) AS turn,
					row_number() OVER (ORDER BY q.place) AS place
				FROM queued q JOIN journal j USING (ticket)
				WHERE q.name = '$name' AND j.what = 'enter') s
			WHERE turn <> place}),
		'0', "$name: they started to work in that order");
	return;
}

# ---------------------------------------------------------------------
# One turn each: all are queued before the first release
# ---------------------------------------------------------------------

my $holder = $node->safe_psql('postgres', q{
	SELECT ticket FROM leaselock.lease_acquire('once', 'holder', lease => '300 s')});
my $gate = session($node);
outcome($gate, 'SELECT pg_advisory_lock(1)');
my $clients = start_pgbench(
	$node,
	'-c 50 -j 2 -t 1',
	once_in_one => waiter('once', 'one', $in_one),
	once_in_two => waiter('once', 'two', $in_two));
ok( $node->poll_query_until('postgres',
		q{SELECT waiters = 50 FROM leaselock.lease_peek('once')}),
	'once: all are queued');
is( $node->safe_psql('postgres', q{
		SELECT count(DISTINCT position), min(position), max(position),
			bool_and(q.row_number = t.position)
		FROM leaselock.lease_tickets t
		JOIN (SELECT ticket, row_number() OVER (ORDER BY place) FROM queued) q USING (ticket)
		WHERE t.name = 'once' AND t.state = 'waiting'}),
	'50|1|50|t', 'once: each waiter has a position of its own');
is( $node->safe_psql('postgres',
		"SELECT state FROM leaselock.lease_release('$holder')"),
	'released', 'once: the holder releases');
is( $node->safe_psql('postgres', q{
		SELECT state FROM leaselock.lease_acquire('once', 'newcomer');
		SELECT leaselock.try_lock('once', 'newcomer', '1 min') IS NULL}),
	"contended\nt", 'once: a newcomer does not overtake');
outcome($gate, 'SELECT pg_advisory_unlock(1)');
$gate->quit;
ok($clients->{run}->finish, 'once: all clients succeed')
  or diag($clients->{err});
check_journal('once', 50);
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM leaselock.lease_peek('once')}),
	'0', 'once: the lock is free in the end');

# ---------------------------------------------------------------------
# Many turns: whoever has had a turn goes to the end of the queue
# ---------------------------------------------------------------------

$clients = start_pgbench(
	$node,
	'-c 50 -j 2 -t 20',
	often_in_one => waiter('often', 'one', $in_one),
	often_in_two => waiter('often', 'two', $in_two));
ok( $node->poll_query_until('postgres', q{
		SELECT count(*) > 0 FROM leaselock.lease_peek('often') WHERE waiters > 20}),
	'often: there is a queue');

# newcomers that do not wait, while there is a queue
my $overtaken = $node->safe_psql('postgres', q{
	SELECT count(*) FROM generate_series(1, 100) i,
		leaselock.lease_acquire('often', 'newcomer ' || i) a,
		leaselock.try_lock('often', 'newcomer ' || i, '1 min') t,
		leaselock.lease_peek('often') p
	WHERE (a.state <> 'contended' OR t IS NOT NULL) AND p.waiters > 0});
is($overtaken, '0', 'often: newcomers do not overtake');
ok($clients->{run}->finish, 'often: all clients succeed')
  or diag($clients->{err});
my $queued = $node->safe_psql('postgres',
	q{SELECT count(*) FROM queued WHERE name = 'often'});
note("often: $queued of 1000 acquires were queued");
cmp_ok($queued, '>=', 500, 'often: most had to wait');
check_journal('often', 1000);
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM leaselock.lease_peek('often')}),
	'0', 'often: the lock is free in the end');
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no lock is left over');
is_deeply([ logged_errors($node) ], [], 'no error in the server log');

$node->stop;

done_testing();
