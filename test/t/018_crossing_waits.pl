# Waits that cross, queued at the same moment so that neither saw the other:
# exactly one of them is refused, and the others continue.
#
# One major: the order of the queue does not depend on the server's version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('crossing');
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
-- waits until the session that keeps the gate opens it
CREATE FUNCTION gate() RETURNS boolean LANGUAGE sql AS
	'SELECT pg_advisory_lock_shared(1); SELECT pg_advisory_unlock_shared(1); SELECT true';
});

sub value
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

my $gate = session($node);

# The sessions of the owners 0, 1, ...; enough for the largest ring
my @session = map { session($node) } 0 .. 5;

# Each owner of a ring holds a lock of its own, in a scope of its own.
sub own_locks
{
	my ($round, @ring) = @_;

	foreach my $owner (@ring)
	{
		is( outcome($session[$owner], qq{SELECT state FROM leaselock.lease_acquire(
					'$round', 'owner $owner', lease => '300 s', scope => 'scope $owner')}),
			'held', "$round: owner $owner holds a lock");
	}
	return;
}

# The owner that each owner of a ring waits for
sub next_of
{
	my ($owner, @ring) = @_;
	my %next = map { $ring[$_] => $ring[ ($_ + 1) % @ring ] } 0 .. $#ring;
	return $next{$owner};
}

# One of the waits has ended with "deadlock".  The wait behind it continues
# when the refused owner releases its lock, and so on round the ring.
sub one_refused
{
	my ($round, @ring) = @_;
	my $rings = join ', ', map { "'scope $_'" } @ring;

	ok( $node->poll_query_until('postgres', qq{
			SELECT count(*) = $#ring FROM leaselock.tickets
			WHERE name = '$round' AND place IS NOT NULL AND scope IN ($rings)}),
		"$round: a wait is refused");
	my ($refused) =
	  grep { !value(qq{SELECT count(*) FROM leaselock.tickets
			WHERE name = '$round' AND owner = 'owner $_' AND place IS NOT NULL}) } @ring;
	my $answer = awaited($session[$refused]);
	like($answer, qr/\bdeadlock\b/, "$round: owner $refused gets state deadlock");

	# nobody else is refused
	is( value(qq{SELECT count(*) FROM leaselock.tickets
			WHERE name = '$round' AND place IS NOT NULL AND scope IN ($rings)}),
		$#ring, "$round: the others keep waiting");

	# whoever has what it wants releases everything
	my %prior = map { next_of($_, @ring) => $_ } @ring;
	my $owner = $refused;
	foreach my $turn (1 .. $#ring)
	{
		outcome($session[$owner],
			"SELECT leaselock.lease_release_all('owner $owner')");
		$owner = $prior{$owner};
		like(awaited($session[$owner]), qr/\bheld\b/,
			"$round: owner $owner gets the lock");
	}
	outcome($session[$owner],
		"SELECT leaselock.lease_release_all('owner $owner')");
	return $refused;
}

# ---------------------------------------------------------------------
# Queued in transactions that do not see each other, then lease_wait
# ---------------------------------------------------------------------

my $round = 0;
foreach my $case ([ 0, 1 ], [ 1, 0 ], [ 0, 1, 2 ], [ 2, 1, 0 ], [ 0, 2, 4, 1, 3, 5 ])
{
	my @ring = @$case;
	my $name = 'blind ' . ++$round;
	my %ticket;

	own_locks($name, @ring);
	foreach my $owner (@ring)
	{
		my $next = next_of($owner, @ring);
		outcome($session[$owner], 'BEGIN');
		my ($state, $ticket) = split /\|/, outcome($session[$owner], qq{
			SELECT state, ticket FROM leaselock.lease_acquire('$name', 'owner $owner',
				wait => '200 s', scope => 'scope $next')});
		is($state, 'waiting', "$name: owner $owner queues for owner $next");
		$ticket{$owner} = $ticket;
	}
	outcome($session[$_], 'COMMIT') foreach @ring;
	my $newest = value(sprintf q{SELECT right(owner, 1) FROM leaselock.tickets
		WHERE name = '%s' AND place IS NOT NULL ORDER BY requested_at DESC, ticket DESC LIMIT 1}, $name);
	is(value("SELECT count(*) FROM leaselock.tickets WHERE name = '$name' AND place IS NOT NULL"),
		scalar @ring, "$name: all are queued");
	begin($session[$_], "CALL leaselock.lease_wait('$ticket{$_}')") foreach @ring;
	my $refused = one_refused($name, @ring);
	is($refused, $newest, "$name: the newest wait is refused");
	is( value("SELECT state FROM leaselock.tickets WHERE ticket = '$ticket{$refused}'"),
		'd', "$name: its ticket records the deadlock");
}

# ---------------------------------------------------------------------
# lease_acquire_wait through a gate, two rings at once
# ---------------------------------------------------------------------

foreach my $times (1 .. 4)
{
	my $name = "gate $times";
	my @rings = $times % 2 ? ([ 0, 1 ], [ 2, 3 ], [ 4, 5 ]) : ([ 0, 1, 2 ], [ 5, 4, 3 ]);
	my $all = 0;

	own_locks($name, @$_) foreach @rings;
	outcome($gate, 'SELECT pg_advisory_lock(1)');
	foreach my $ring (@rings)
	{
		foreach my $owner (@$ring)
		{
			my $next = next_of($owner, @$ring);
			begin($session[$owner], qq{SELECT gate();
				CALL leaselock.lease_acquire_wait('$name', 'owner $owner', wait => '200 s',
					scope => 'scope $next')});
			$all++;
		}
	}
	ok(clients_at_gate($node, $all), "$name: all are at the gate");
	outcome($gate, 'SELECT pg_advisory_unlock(1)');
	foreach my $ring (@rings)
	{
		one_refused($name, @$ring);
	}
}

is( value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no lock is left over');
is( value(q{SELECT count(*) FROM leaselock.lease_status}),
	'0', 'no lease is left over');
is_deeply([ logged_errors($node) ], [], 'no error in the server log');

$_->quit foreach $gate, @session;
$node->stop;

done_testing();
