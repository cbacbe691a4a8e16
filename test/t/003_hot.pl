# Acquire, renew and release of existing names are HOT updates, so that the
# indexes do not grow and the space is reused without a vacuum.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('hot');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

# 100 names, each used once by tickets and once by a named hold
my $names = q{(SELECT 'hot ' || client || ' ' || n AS lock
	FROM generate_series(0, 3) client, generate_series(1, 25) n) names};
is( $node->safe_psql('postgres', qq{
		SELECT count(*) FROM $names, leaselock.lease_acquire(lock, 'warm') a,
			leaselock.lease_release(a.ticket) r WHERE r.state = 'released'}),
	'100', '100 names exist');
is( $node->safe_psql('postgres', qq{
		SELECT count(leaselock.try_lock(lock, 'warm', '1 min')) FROM $names}),
	'100', '100 names are held by name');
is( $node->safe_psql('postgres', qq{
		SELECT count(*) FROM $names WHERE leaselock.release_lock(lock, 'warm')}),
	'100', '100 names are free again');
ok( $node->poll_query_until('postgres', q{
		SELECT n_tup_upd >= 300 FROM pg_stat_user_tables
		WHERE relid = 'leaselock.locks'::regclass}),
	'the statistics have arrived');

my $cycles = 850;    # per client: 4 * 850 * 3 = 10 200 calls

my $ticket_script = q{
\set n 1 + mod(:step, 25)
SELECT ticket, 1 / (state = 'held')::int AS ok
	FROM leaselock.lease_acquire('hot :client_id :n', 'client :client_id') \gset
SELECT 1 / (state = 'held')::int FROM leaselock.lease_renew(':ticket');
SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(':ticket');
\set step :step + 1
};
my $named_script = q{
\set n 1 + mod(:step, 25)
SELECT 1 / (leaselock.try_lock('hot :client_id :n', 'client :client_id', '1 min') > 0)::int;
SELECT 1 / leaselock.renew_lock('hot :client_id :n', 'client :client_id', '1 min')::int;
SELECT 1 / leaselock.release_lock('hot :client_id :n', 'client :client_id')::int;
\set step :step + 1
};

# inserted, updated, HOT updated tuples of a table
sub counts
{
	my ($table) = @_;
	return split /\|/, $node->safe_psql('postgres', qq{
		SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
		WHERE relid = 'leaselock.$table'::regclass});
}

sub size
{
	my ($relation) = @_;
	return $node->safe_psql('postgres',
		"SELECT pg_relation_size('leaselock.$relation')");
}

# Runs a script and shows how many of the updates were HOT.  The statistics of
# the clients arrive after they have ended: at_least is the number of updates
# that leaselock.locks must show by then, one for each call.
sub hot_share
{
	my ($what, $script) = @_;
	my %before = map { $_ => [ counts($_) ] } qw(locks tickets);
	my $at_least = $before{locks}[1] + 4 * $cycles * 3;
	my ($all, $hot) = (0, 0);

	$node->pgbench(
		"-n -c 4 -j 1 -t $cycles -D step=0", 0,
		[ qr/processed: (\d+)\/\1/, qr/number of failed transactions: 0 / ],
		[qr/^$/],
		"$what: " . (4 * $cycles * 3) . ' calls',
		{ "hot_" . ($what =~ s/\W/_/gr) => $script });
	ok( $node->poll_query_until('postgres', qq{
			SELECT n_tup_upd >= $at_least FROM pg_stat_user_tables
			WHERE relid = 'leaselock.locks'::regclass}),
		"$what: the statistics have arrived");

	foreach my $table (qw(locks tickets))
	{
		my @after = counts($table);
		my ($inserted, $updated, $hot_updated) =
		  map { $after[$_] - $before{$table}[$_] } 0 .. 2;

		diag(sprintf('%s: leaselock.%s: %d inserted, %d updated, %d of them HOT (%.1f %%)',
				$what, $table, $inserted, $updated, $hot_updated,
				$updated ? 100 * $hot_updated / $updated : 100));
		$all += $updated;
		$hot += $hot_updated;
		cmp_ok($hot_updated, '>=', 0.95 * $updated,
			"$what: at least 95 % of the updates of $table are HOT");
	}
	cmp_ok($hot, '>=', 0.95 * $all, "$what: at least 95 % of all updates are HOT");
	return;
}

my $heap = size('locks');
my $index = size('locks_pkey');

hot_share('tickets', $ticket_script);
hot_share('named holds', $named_script);

cmp_ok(size('locks'), '<=', 2 * $heap, 'leaselock.locks has at most doubled in size');
is(size('locks_pkey'), $index, 'its index has not grown');
is($node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.locks'),
	'100', 'it has one row per name');
is($node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.lease_status'),
	'0', 'nothing is held in the end');

$node->stop;

done_testing();
