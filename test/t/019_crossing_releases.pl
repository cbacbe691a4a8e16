# Releases and waits that cross: the wait is queued while the release commits,
# so that the releaser does not see the waiter, and the waiter does not see
# that the lock is free.  No waiter sleeps until its second is over (promise
# 8).  A waiter that did so, and then found the lock released, writes that to
# the server's log (DEBUG1).
#
# One major: the order of the queue does not depend on the server's version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('crossing_releases', 'log_min_messages = debug1');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my $turn = q{
CALL leaselock.lease_acquire_wait('LOCK', 'client :client_id', '300 s', '300 s') \gset
RELEASE
};

# Three clients queue again as soon as they have released.  What crosses is the
# statement that releases, or the COMMIT some time after it.
foreach my $kind (
	[ 'statement', 1500, q{SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(':ticket');} ],
	[ 'block', 1500, q{BEGIN;
SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(':ticket');
COMMIT;} ],
	[ 'release_all', 1500, q{SELECT 1 / leaselock.lease_release_all('client :client_id');} ])
{
	my ($lock, $turns, $release) = @$kind;
	my $begin = -s $node->logfile;
	my $clients = start_pgbench($node, "-c 3 -j 3 -t $turns",
		$lock => $turn =~ s/LOCK/$lock/r =~ s/RELEASE/$release/r);

	$clients->{run}->finish or diag($clients->{err});
	is($clients->{err}, '', "$lock: no error");
	is( $node->safe_psql('postgres', "SELECT count(*) FROM leaselock.tickets WHERE name = '$lock' AND fence IS NOT NULL"),
		3 * $turns, "$lock: every client had all its turns");
	cmp_ok( $node->safe_psql('postgres', "SELECT count(*) FROM leaselock.tickets WHERE name = '$lock' AND wait_until IS NOT NULL"),
		'>', 300, "$lock: many turns came by waiting");
	is( scalar(() = slurp_file($node->logfile, $begin) =~ /nobody woke the waiter/g),
		0, "$lock: no waiter had to wake up by itself");
}

is_deeply([ internal_errors($node) ], [], 'no internal error in the log');
$node->stop;

done_testing();
