# A waiter returns as soon as its turn comes, woken by whoever gave it the turn
# or by the end of the holder's lease, and not by the one-second limit of its
# sleep.
#
# One major: the order of the queue does not depend on the server's version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('wakeup', 'max_connections = 50');
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE journal (lock text, client int, fence bigint, waited boolean, due timestamptz,
	at timestamptz DEFAULT clock_timestamp());
});

# If the wake-ups were lost, each turn that came by waiting would take one
# slice of sleep, so this many turns in a row would take that many seconds.
# The bound is a quarter of that, and far above what a slow machine needs.
sub prompt
{
	my ($lock, $what) = @_;
	my ($turns, $seconds, $median, $worst) = split /\|/, $node->safe_psql('postgres', qq{
		SELECT count(*), extract(epoch FROM sum(at - due)),
			round(1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM at - due))::numeric, 2),
			round(1000 * max(extract(epoch FROM at - due))::numeric, 2)
		FROM journal WHERE lock = '$lock' AND waited});

	note("$what: $turns turns after a wait; delay median $median ms, worst $worst ms, together $seconds s");
	cmp_ok($turns, '>=', 6, "$what: enough turns came by waiting");
	cmp_ok($seconds, '<', $turns / 4, "$what: the waiters did not sleep through them");
	return;
}

sub run_clients
{
	my ($options, $name, $script) = @_;
	my $clients = start_pgbench($node, $options, $name => $script);

	$clients->{run}->finish or diag($clients->{err});
	is($clients->{err}, '', "$name: no error");
	return;
}

# ---------------------------------------------------------------------
# Hand-overs between two clients by release
# ---------------------------------------------------------------------

# Each client keeps the lock until the other queues behind it, so every turn
# but the first comes by waiting.  A turn is due when the other client has
# released, and the time is recorded just before that.
$node->safe_psql('postgres', q{
CREATE TABLE released (lock text, fence bigint, at timestamptz DEFAULT clock_timestamp());

-- until somebody waits, for half a second at the most (the last waits in vain)
CREATE PROCEDURE until_wanted(lock text) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..100 LOOP
		EXIT WHEN (SELECT waiters > 0 FROM leaselock.lease_peek(lock));
		COMMIT;
		PERFORM pg_sleep(0.005);
	END LOOP;
END $$;
});
my $turn = q{
CALL leaselock.lease_acquire_wait('LOCK', 'client :client_id', wait => '120 s') \gset
INSERT INTO journal (lock, client, fence) VALUES ('LOCK', :client_id, :fence);
CALL until_wanted('LOCK');
INSERT INTO released VALUES ('LOCK', :fence);
RELEASE
};

foreach my $kind (
	[ 'release', q{SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(':ticket');} ],
	[ 'release_all', q{SELECT 1 / (leaselock.lease_release_all('client :client_id') = 1)::int;} ])
{
	my ($lock, $release) = @$kind;
	my $script = $turn =~ s/LOCK/$lock/gr =~ s/RELEASE/$release/r;

	run_clients('-c 2 -j 2 -t 50', $lock, $script);
	is( $node->safe_psql('postgres', qq{
			SELECT count(*), count(DISTINCT fence), count(*) FILTER (WHERE client = before)
			FROM (SELECT *, lag(client) OVER (ORDER BY fence) AS before
				FROM journal WHERE lock = '$lock') j}) =~ s/\|[01]$/|0/r,
		'100|100|0', "$lock: 100 turns, one after the other");
	$node->safe_psql('postgres', qq{
		UPDATE journal j SET waited = true, due = (SELECT r.at FROM released r
			WHERE r.lock = j.lock AND r.fence < j.fence ORDER BY r.fence DESC LIMIT 1)
		WHERE lock = '$lock' AND fence > (SELECT min(fence) FROM journal WHERE lock = '$lock')});
	prompt($lock, $lock);
}

# ---------------------------------------------------------------------
# A cancel at the head of the queue of a free lock, and a release of a named
# hold
# ---------------------------------------------------------------------

my $waiter = $node->background_psql('postgres');

sub begin_wait
{
	my ($lock) = @_;
	$waiter->query_until(qr/waiting: \n/, qq{
\\echo 'waiting: '
CALL leaselock.lease_acquire_wait('$lock', 'waiter', wait => '120 s') \\gset
INSERT INTO journal (lock, client, fence, waited) VALUES (regexp_replace('$lock', ' \\d+', ''), 0, :fence, true);
});
	$node->poll_query_until('postgres', qq{
		SELECT count(*) = 1 FROM leaselock.tickets WHERE name = '$lock' AND owner = 'waiter'
			AND place IS NOT NULL AND waiter_pid IS NOT NULL})
	  or die 'the waiter does not wait';
	return;
}

foreach my $round (1 .. 6)
{
	$node->safe_psql('postgres',
		"SELECT leaselock.try_lock('named $round', 'holder', '1 h')");
	begin_wait("named $round");
	my $due = $node->safe_psql('postgres', qq{
		SELECT clock_timestamp();
		SELECT 1 / leaselock.release_lock('named $round', 'holder')::int}) =~ s/\n.*//r;
	$waiter->query_safe('');
	$node->safe_psql('postgres',
		"UPDATE journal SET due = '$due' WHERE lock = 'named' AND due IS NULL");
}
prompt('named', 'release of a named hold');

# The lock is free because its holder's lease has lapsed, and the first in the
# queue, which polls, gives up: then it is the turn of the waiter behind it.
$node->append_conf('postgresql.conf', "leaselock.min_lease = '50 ms'");
$node->reload;
foreach my $round (1 .. 6)
{
	my $lock = "cancel $round";
	$node->safe_psql('postgres', qq{
		SELECT leaselock.lease_acquire('$lock', 'holder', lease => '50 ms')});
	my $ticket = $node->safe_psql('postgres', qq{
		SELECT ticket FROM leaselock.lease_acquire('$lock', 'first', wait => '100 s')});
	begin_wait($lock);
	my $due = $node->safe_psql('postgres', qq{
		SELECT pg_sleep(0.06) \\gset
		SELECT clock_timestamp();
		SELECT leaselock.lease_release('$ticket') \\gset
	}) =~ s/\n.*//r;
	$waiter->query_safe('');
	$node->safe_psql('postgres',
		"UPDATE journal SET due = '$due' WHERE lock = 'cancel' AND due IS NULL");
}
prompt('cancel', 'cancel of the first');

# The same when the first waiter's cancel is not yet committed as the holder
# releases: nobody is promoted, and the waiter behind has its turn with the
# commit.
my $first = $node->background_psql('postgres');
foreach my $round (1 .. 6)
{
	my $lock = "late $round";
	$node->safe_psql('postgres', qq{
		SELECT leaselock.lease_acquire('$lock', 'holder', lease => '300 s')});
	my $ticket = $first->query_safe(
		"SELECT ticket FROM leaselock.lease_acquire('$lock', 'first', wait => '100 s')");
	begin_wait($lock);
	$first->query_safe("BEGIN; SELECT leaselock.lease_release('$ticket') \\gset");
	is( $node->safe_psql('postgres', qq{
			SELECT leaselock.lease_release_all('holder');
			SELECT owner IS NULL, waiters FROM leaselock.lease_peek('$lock')}),
		"1\nt|2", "$lock: the lock is free and the first's cancel not committed")
	  if $round == 1;
	$node->safe_psql('postgres', "SELECT leaselock.lease_release_all('holder')")
	  if $round > 1;
	my $due = $first->query_safe("SELECT clock_timestamp(); COMMIT");
	$waiter->query_safe('');
	$node->safe_psql('postgres',
		"UPDATE journal SET due = '$due' WHERE lock = 'late' AND due IS NULL");
}
$first->quit;
prompt('late', 'cancel of the first, committed after the release');
$waiter->quit;

# ---------------------------------------------------------------------
# Lapse: nobody does anything, and the waiter wakes by itself
# ---------------------------------------------------------------------

# Every client acquires for 0.1 s and walks away; the next one has its turn
# when that time is over.  With two clients, one waits at a time; with four,
# others wait behind it.
foreach my $case ([ 'lapse', 2, 8 ], [ 'lapse of many', 4, 4 ])
{
	my ($lock, $clients, $turns) = @$case;
	my $all = $clients * $turns;

	run_clients("-c $clients -j 2 -t $turns", $lock, qq{
CALL leaselock.lease_acquire_wait('$lock', 'client :client_id', lease => '100 ms', wait => '60 s') \\gset
INSERT INTO journal (lock, client, fence) VALUES ('$lock', :client_id, :fence);
\\sleep 110 ms
});
	is( $node->safe_psql('postgres', qq{
			SELECT count(*), count(DISTINCT fence) FROM journal WHERE lock = '$lock'}),
		"$all|$all", "$lock: $all turns");
	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM leaselock.tickets t, leaselock.tickets u
			WHERE t.name = '$lock' AND u.name = '$lock' AND t.fence < u.fence
				AND u.expires_at - '100 ms'::interval < t.expires_at}),
		'0', "$lock: no turn begins before the previous one is over");
	$node->safe_psql('postgres', qq{
		UPDATE journal j SET due = d.due, waited = true FROM (
			SELECT t.fence, t.requested_at, lag(t.expires_at) OVER (ORDER BY fence) AS due
			FROM leaselock.tickets t WHERE t.name = '$lock') d
		WHERE j.lock = '$lock' AND d.fence = j.fence AND d.requested_at < d.due});
	prompt($lock, $lock);
}

is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no lock is left over');
is_deeply([ logged_errors($node) ], [], 'no error in the server log');

$node->stop;

done_testing();
