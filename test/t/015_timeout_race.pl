# statement_timeout strikes while the release promotes the waiter.  Whichever
# comes first, the lock is then either held by a ticket that the client finds
# by its request id, or free; it is never stuck.
#
# One major: the order of the queue does not depend on the server's version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('timeout_race', 'log_min_error_statement = panic');
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE outcome (round int, error text, owner text, owner_fence bigint,
	state text, fence bigint, depth int, locks int);
});

my $races = 500;

# The holder: gets the lock, keeps it for some milliseconds, releases it.
my $holder = q{
CALL leaselock.lease_acquire_wait('race', 'holder', wait => '60 s') \gset
SELECT pg_sleep(0.002);
SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(':ticket');
};

# The waiter queues behind it with a timeout of about that length; every other
# time it waits for a ticket that it has queued before.  It waits in sessions
# that do nothing else, because the timeout would also strike the statement
# that resets it.  Another session then checks what has become of the lock and
# of the request, which a retry must find, and releases everything.
my $bench = start_pgbench($node, '-c 1 -t 1000000', holder => $holder);
ok( $node->poll_query_until('postgres',
		q{SELECT count(*) > 10 FROM leaselock.tickets WHERE owner = 'holder'}),
	'the holder comes and goes');

my $calm = session($node);
my @hurried = map { session($node) } 1 .. 5;
foreach my $ms (1 .. 5)
{
	my $session = $hurried[ $ms - 1 ];
	$session->{backend} = outcome($session, 'SELECT pg_backend_pid()');
	outcome($session, "SET statement_timeout = '$ms ms'");
}
my %codes;
foreach my $round (1 .. $races)
{
	my $request = sprintf "'00000000-0000-0000-0000-%012d'", $round;
	my $waiter = $hurried[ $round % 5 ];
	my $call = "lease_acquire_wait('race', 'waiter', wait => '60 s', request_id => $request)";

	if ($round % 2)
	{
		my $own = outcome($calm, qq{
			SELECT ticket FROM leaselock.lease_acquire('race', 'waiter', wait => '60 s',
				request_id => $request)});
		$call = "lease_wait('$own')";
	}
	my ($code) = outcome($waiter, "CALL leaselock.$call") =~ /^(\w{5})$/m;
	$code //= '00000';
	$codes{$code}++;
	outcome($calm, qq{
WITH seen AS MATERIALIZED (SELECT (SELECT owner FROM leaselock.lease_peek('race')) AS owner,
		(SELECT fence FROM leaselock.lease_peek('race')) AS fence)
INSERT INTO outcome SELECT $round, '$code', s.owner, s.fence, a.state, a.fence, a.depth,
	(SELECT count(*) FROM pg_locks WHERE pid = $waiter->{backend} AND objsubid = 19535)
	FROM seen s, leaselock.lease_acquire('race', 'waiter', request_id => $request) a;
SELECT leaselock.lease_release_all('waiter');
});
}
is(join(' ', sort grep { $_ ne '00000' } keys %codes),
	'57014', 'the waiter gets no error but the timeout');
$_->quit foreach $calm, @hurried;

# The holder still works, then ends.
my $turns = $node->safe_psql('postgres',
	q{SELECT count(*) FROM leaselock.tickets WHERE owner = 'holder' AND state = 'r'});
ok( $node->poll_query_until('postgres', qq{
		SELECT count(*) > $turns + 10 FROM leaselock.tickets
		WHERE owner = 'holder' AND state = 'r'}),
	'the holder still gets its turn');
$bench->{run}->signal('TERM');
eval { $bench->{run}->finish };
ok( $node->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}),
	'the holder is gone');
unlike($bench->{err}, qr/ERROR/, 'the holder gets no error');

note("outcomes (error, holder, ticket):\n" . $node->safe_psql('postgres', q{
	SELECT CASE WHEN round % 2 = 1 THEN 'lease_wait' ELSE 'lease_acquire_wait' END,
		error, coalesce(owner, 'free'), state, count(*)
	FROM outcome GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4}));
is($node->safe_psql('postgres', 'SELECT count(*) FROM outcome'),
	$races, "$races races");
is( $node->safe_psql('postgres', q{
		SELECT count(DISTINCT error) FROM outcome WHERE error IN ('00000', '57014')}),
	'2', 'each side wins some races');
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM outcome WHERE error = '00000' AND state <> 'held'}),
	'0', 'a wait that succeeds leaves a held ticket');
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM outcome WHERE owner = 'waiter' AND (state <> 'held'
			OR fence <> owner_fence OR depth <> 1)}),
	'0', 'a lock that the waiter holds is found by the request id');
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM outcome WHERE round % 2 = 0 AND error = '57014'
			AND state NOT IN ('cancelled', 'released', 'contended', 'held')}),
	'0', 'lease_acquire_wait gives up its ticket when it times out');
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM outcome WHERE round % 2 = 1 AND error = '57014'
			AND state NOT IN ('waiting', 'held')}),
	'0', 'lease_wait leaves its ticket queued or held when it times out');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outcome WHERE locks > 0'),
	'0', 'no liveness lock is left after a wait');

# The holder's last grant runs out, in case the holder was cut off in the
# middle.
is( $node->safe_psql('postgres', q{
		SELECT leaselock.lease_release_all('holder') IN (0, 1);
		SELECT count(*) FROM leaselock.lease_peek('race');
		SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	"t\n0\n0", 'in the end the lock is free, and no lock is left over');
like( $node->safe_psql('postgres',
		q{CALL leaselock.lease_acquire_wait('race', 'newcomer', wait => '60 s')}),
	qr/\|held\|/, 'a newcomer gets it');

# pgbench was cut off in the middle, which has nothing to do with the lock
is_deeply(
	[ grep { !/ 57014 / && !/connection to client lost/ } logged_errors($node) ],
	[], 'no other error in the server log');

$node->stop;

done_testing();
