# The tables stay bounded in use, without lease_prune and without autovacuum:
# one-shot names by the ten thousand, by tickets and by named holds, crashed
# holders, dead waiters, and sessions that make one call each.
#
# The bound: no table has more than twice as many rows as are live or retained,
# and the files have stopped growing after two rounds, which is how long it
# takes to remove what another kind of use has left behind.
#
# Native only: tens of thousands of calls, independent of the server version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('bounded', 'fsync = off');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my $hours = 0;
my $round = 0;

# Moves the clock forward, beyond leases, waits and the retention of tickets.
sub move_on
{
	$hours += 3;
	$node->safe_psql('postgres', qq{
		LOAD 'leaselock';
		ALTER SYSTEM SET leaselock.clock_offset = '${hours}h';
		SELECT pg_reload_conf()});
	$node->append_conf('postgresql.conf', "session_preload_libraries = 'leaselock'")
	  if $hours == 3;
	$node->reload if $hours == 3;
	return;
}

sub rows
{
	return split /\|/, $node->safe_psql('postgres',
		'SELECT (SELECT count(*) FROM leaselock.locks), (SELECT count(*) FROM leaselock.tickets)');
}

sub size
{
	return $node->safe_psql('postgres', q{VACUUM leaselock.locks; VACUUM leaselock.tickets;
		SELECT pg_total_relation_size('leaselock.locks') + pg_total_relation_size('leaselock.tickets')});
}

# Runs a script with new names in each round, and measures after each round.
# kept: how many rows a round leaves that are live or retained, at most.
sub bounded
{
	my ($what, $kept, $rounds, $play) = @_;
	my @sizes;
	my $most = 0;

	for (1 .. $rounds)
	{
		move_on();
		$round++;
		$play->($round);
		my ($locks, $tickets) = rows();
		push @sizes, size();
		my $now = $locks > $tickets ? $locks : $tickets;
		$most = $now if $_ > 2 && $now > $most;
		diag("$what, round $round: $locks locks, $tickets tickets, $sizes[-1] bytes");
	}
	cmp_ok($most, '<=', 2 * $kept, "$what: no more than twice the rows that are live or retained");
	cmp_ok($sizes[-1], '<=', 1.5 * $sizes[2], "$what: the files have stopped growing");
	return;
}

sub pgbench
{
	my ($what, $options, $transactions, $script) = @_;

	$node->pgbench(
		"-n -c 2 -j 1 -t $transactions -D round=$round -D step=0 $options", 0,
		[ qr/processed: (\d+)\/\1/, qr/number of failed transactions: 0 / ],
		[qr/^$/],
		"$what, round $round",
		{ 'bounded_' . ($what =~ s/\W/_/gr) . "_$round" => $script });
	return;
}

# ten thousand names in each round
bounded('one-shot tickets', 10_000, 4, sub {
	pgbench('one-shot tickets', '', 5000, q{
\set step :step + 1
SELECT 1 / (r.state = 'released')::int FROM leaselock.lease_acquire('ticket :round :client_id :step', 'w') a, leaselock.lease_release(a.ticket) r;
}); });

bounded('one-shot named locks', 10_000, 4, sub {
	pgbench('one-shot named locks', '', 5000, q{
\set step :step + 1
SELECT 1 / (leaselock.try_lock('hold :round :client_id :step', 'w', '1 min') > 0)::int;
SELECT 1 / leaselock.release_lock('hold :round :client_id :step', 'w')::int;
}); });

bounded('crashed holders', 2000, 4, sub {
	pgbench('crashed holders', '', 500, q{
\set step :step + 1
SELECT 1 / (state = 'held')::int FROM leaselock.lease_acquire('crash :round :client_id :step', 'w');
SELECT 1 / (leaselock.try_lock('crash hold :round :client_id :step', 'w', '1 min') > 0)::int;
}); });

bounded('dead waiters', 2000, 4, sub {
	pgbench('dead waiters', '', 500, q{
\set step :step + 1
SELECT 1 / (state = 'held')::int FROM leaselock.lease_acquire('queue :round :client_id :step', 'w', '5 s');
SELECT 1 / (state = 'waiting')::int FROM leaselock.lease_acquire('queue :round :client_id :step', 'dead', '60 s', '60 s');
}); });

# one lock, with a queue of its own that dies in each round
bounded('one queue', 1000, 4, sub {
	pgbench('one queue', '', 500, q{
\set step :step + 1
SELECT count(*) FROM leaselock.lease_acquire('one queue', 'w :client_id :step', '60 s', '60 s');
}); });

# one call per connection
bounded('a call a connection', 400, 4, sub {
	pgbench('a call a connection', '-C', 200, q{
\set n random(1, 1000000000)
SELECT 1 / (state = 'held')::int FROM leaselock.lease_acquire('single :round :client_id :n', 'w');
}); });

# what is live stays, whatever the others leave behind
my $fence = $node->safe_psql('postgres', q{SELECT leaselock.try_lock('kept', 'w', '1000 days')});
for (1 .. 3)
{
	move_on();
	$round++;
	pgbench('beside a live one', '', 250, q{
\set step :step + 1
SELECT 1 / (leaselock.try_lock('beside :round :client_id :step', 'w', '1 min') > 0)::int;
});
}
is($node->safe_psql('postgres', q{SELECT owner, fence FROM leaselock.lease_peek('kept')}),
	"w|$fence", 'what is held is not pruned');

# and lease_prune removes everything at once
move_on();
$node->safe_psql('postgres', q{SELECT leaselock.release_lock('kept', 'w')});
my ($calls, $removed) = (0, 0);
move_on();
while ((my $n = $node->safe_psql('postgres', q{SELECT leaselock.lease_prune('1 h')})) > 0)
{
	$calls++;
	$removed += $n;
	last if $calls > 100;
}
is(join('|', rows()), '0|0', "lease_prune removes the rest ($removed rows in $calls calls)");
is($node->safe_psql('postgres', q{SELECT count(*) FROM leaselock.blockers}), '0',
	'lease_prune removes the blockers, too');
cmp_ok($node->safe_psql('postgres', q{SELECT leaselock.try_lock('kept', 'w', '1 min')}), '>', $fence,
	'the fence is greater than before');

$node->stop;

done_testing();
