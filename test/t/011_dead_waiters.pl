# Dead waiters do not jam the queue: together they delay those behind them by
# no more than leaselock.waiter_timeout, and not at all if they waited in the
# server.
#
# One major: the order of the queue does not depend on the server's version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('dead_waiters', 'max_connections = 350');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

# Runs a query at a time given in seconds from now, by the clock of the leases.
# waiter_timeout is 20 s.
sub at
{
	my ($seconds, $sql) = @_;
	return $node->safe_psql('postgres',
		"LOAD 'leaselock'; SET leaselock.clock_offset = '$seconds s'; $sql");
}

# ---------------------------------------------------------------------
# 300 waiters that poll
# ---------------------------------------------------------------------

# a holder, 299 waiters that are never heard from again, and the last one;
# returns the tickets of the two that stay alive
sub queue_up
{
	my ($name, $lease) = @_;
	my $holder = $node->safe_psql('postgres', qq{
		SELECT ticket FROM leaselock.lease_acquire('$name', 'holder', lease => '$lease')});

	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM generate_series(1, 299) i,
				leaselock.lease_acquire('$name', 'dead ' || i, wait => '300 s') a
			WHERE a.state = 'waiting'}),
		'299', "$name: 299 wait");
	my ($last, $state, $position) = split /\|/, $node->safe_psql('postgres', qq{
		SELECT ticket, state, position
		FROM leaselock.lease_acquire('$name', 'last', wait => '300 s')});
	is("$state $position", 'waiting 100', "$name: the last waits behind them");
	return ($holder, $last);
}

my $poll = q{SELECT state, position FROM leaselock.lease_get('%s')};

# all 299 die, then the lock is released: the first is promoted, never polls,
# and loses the lock while the others fall silent
my ($holder, $last) = queue_up('released early', '60 s');
is(at(0, "SELECT state FROM leaselock.lease_release('$holder')"),
	'released', 'released early: the holder releases');
is( $node->safe_psql('postgres',
		q{SELECT owner FROM leaselock.lease_peek('released early')}),
	'dead 1', 'released early: the lock goes to the first');
is(at(5, sprintf($poll, $last)),
	'waiting|100', 'released early: the last waits after 5 s');
is(at(9.5, sprintf($poll, $last)),
	'waiting|100', 'released early: the last waits after 9.5 s');
is(at(10.5, sprintf($poll, $last)), 'waiting|100',
	'released early: the last waits after 10.5 s, when the first has lost the lock');
is(at(15, sprintf($poll, $last)),
	'waiting|100', 'released early: the last waits after 15 s');
like(at(20.5, sprintf($poll, $last)),
	qr/^held\|$/, 'released early: the last has its turn when waiter_timeout is over');

# the lock is released when all are dead
($holder, $last) = queue_up('released late', '300 s');
is(at(10, sprintf($poll, $last)),
	'waiting|100', 'released late: the last waits');
is(at(20.5, sprintf($poll, $last)),
	'waiting|1', 'released late: the others are no longer counted');
is(at(20.5, "SELECT state FROM leaselock.lease_release('$holder')"),
	'released', 'released late: the holder releases');
is( at(20.5, q{SELECT owner, waiters FROM leaselock.lease_peek('released late')}),
	'last|0', 'released late: the lock goes to the last at once');
is(at(20.5, sprintf($poll, $last)), 'held|', 'released late: the last sees that it holds the lock');

# the holder's lease runs out when all are dead
($holder, $last) = queue_up('lapsed', '30 s');
is(at($_, sprintf($poll, $last)), 'waiting|100', "lapsed: the last waits, $_ s")
  foreach 8, 16;
is(at(24, sprintf($poll, $last)), 'waiting|1', 'lapsed: the last is now first');
is(at(30.5, sprintf($poll, $last)), 'held|', 'lapsed: the last then gets the lock');

# the holder's lease ran out earlier: the last waits until the others are dead,
# and no longer
($holder, $last) = queue_up('lapsed early', '10 s');
is(at(10.5, sprintf($poll, $last)),
	'waiting|100', 'lapsed early: the last waits');
is(at(19, sprintf($poll, $last)),
	'waiting|100', 'lapsed early: the last waits while the others may be alive');
is(at(20.5, sprintf($poll, $last)),
	'held|', 'lapsed early: the last gets the lock once they are dead');

# a dead ticket is itself timed out, even when its owner comes back
is( at(21, q{
		SELECT count(*) FROM leaselock.tickets t, leaselock.lease_get(t.ticket) g
		WHERE t.owner LIKE 'dead%' AND t.owner <> 'dead 1' AND g.state <> 'timed_out'}),
	'0', 'the dead ones are timed out');
is( at(21, q{
		SELECT name, owner FROM leaselock.lease_status ORDER BY name}),
	"lapsed|last\nlapsed early|last\nreleased early|last\nreleased late|last",
	'the dead ones take nothing from the last');

# ---------------------------------------------------------------------
# 300 waiters in the server
# ---------------------------------------------------------------------

my $last_one = $node->background_psql('postgres');
($holder) = $node->safe_psql('postgres', q{
	SELECT ticket FROM leaselock.lease_acquire('served', 'holder', lease => '300 s')});
my $clients = start_pgbench(
	$node,
	'-c 299 -j 2 -t 1',
	waiter => q{CALL leaselock.lease_acquire_wait('served', 'client :client_id', wait => '200 s')});
ok( $node->poll_query_until('postgres',
		q{SELECT waiters = 299 FROM leaselock.lease_status WHERE name = 'served'}),
	'served: 299 wait');
$last_one->query_until(qr/blocking: \n/, q{
\echo 'blocking: '
CALL leaselock.lease_acquire_wait('served', 'last', wait => '200 s');
});
ok( $node->poll_query_until('postgres',
		q{SELECT waiters = 300 FROM leaselock.lease_status WHERE name = 'served'}),
	'served: the last waits, too');
is( $node->safe_psql('postgres', q{
		SELECT owner FROM leaselock.tickets WHERE name = 'served' AND place IS NOT NULL
		ORDER BY place DESC LIMIT 1}),
	'last', 'served: the last is behind them');

is( $node->safe_psql('postgres', q{
		WITH waiter AS MATERIALIZED (SELECT waiter_pid FROM leaselock.tickets
			WHERE name = 'served' AND place IS NOT NULL AND owner LIKE 'client%')
		SELECT count(*) FROM waiter WHERE pg_terminate_backend(waiter_pid)}),
	'299', 'served: 299 backends are terminated');
ok( $node->poll_query_until('postgres', q{
		SELECT count(*) = 0 FROM pg_stat_activity WHERE pid <> pg_backend_pid()
			AND query LIKE '%''served'', ''client%'}),
	'served: they are gone');
$clients->{run}->finish;
is( $node->safe_psql('postgres', q{
		SELECT owner, waiters FROM leaselock.lease_peek('served')}),
	'holder|1', 'served: one waiter is left');
is( $node->safe_psql('postgres', qq{
		SELECT state FROM leaselock.lease_release('$holder')}),
	'released', 'served: the holder releases');
is( $node->safe_psql('postgres', q{
		SELECT owner, waiters, lapsed FROM leaselock.lease_peek('served')}),
	'last|0|f', 'served: the lock goes to the last at once');
like($last_one->query_safe(''), qr/\|held\|\d+\|/, 'served: the last sees that it holds the lock');
$last_one->quit;
is( $node->safe_psql('postgres', q{
		SELECT g.state, count(*) FROM leaselock.tickets t, leaselock.lease_get(t.ticket) g
		WHERE t.name = 'served' GROUP BY 1 ORDER BY 1}),
	"held|1\nreleased|1\ntimed_out|299", 'served: the dead ones are timed out');
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no lock is left over');

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');

$node->stop;

done_testing();
