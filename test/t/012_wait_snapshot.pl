# What a waiting session holds: its virtual transaction id and the lock that
# marks it as alive, but no snapshot and no transaction id.  It therefore holds
# back neither CREATE INDEX CONCURRENTLY nor VACUUM.  This is true while it
# waits for its turn and while it waits for a place in the queue, at all
# isolation levels.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('wait_snapshot');
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE other (n int);
INSERT INTO other SELECT generate_series(1, 1000);
CREATE PROCEDURE wait_for(ticket uuid, INOUT state text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE fence bigint; expires_at timestamptz;
BEGIN
	CALL leaselock.lease_wait(ticket, NULL, state, fence, expires_at);
END $$;
});

# ---------------------------------------------------------------------
# Sessions that wait, in every way they can
# ---------------------------------------------------------------------

my %holder;
my %session;

# the ticket of a new wait for the lock
sub queued
{
	my ($name) = @_;
	return $node->safe_psql('postgres', qq{
		SELECT ticket FROM leaselock.lease_acquire('$name', 'waiter', wait => '200 s')});
}

my %wait = (
	'lease_wait' => sub { "CALL leaselock.lease_wait('" . queued($_[0]) . "')" },
	'lease_acquire_wait' => sub {
		"CALL leaselock.lease_acquire_wait('$_[0]', 'waiter', wait => '200 s')";
	},
	'procedure' => sub { "CALL wait_for('" . queued($_[0]) . "')" },
	'cursor loop' => sub { qq{
DO \$\$
DECLARE n int; s text; f bigint; e timestamptz;
BEGIN
	FOR n IN SELECT o.n FROM other o LIMIT 1 LOOP
		CALL leaselock.lease_wait('} . queued($_[0]) . q{', NULL, s, f, e);
	END LOOP;
	RAISE EXCEPTION '%', s;
END $$};
	},
	'serializable' => sub {
		"CALL leaselock.lease_acquire_wait('$_[0]', 'waiter', wait => '200 s')";
	});

foreach my $name (sort keys %wait)
{
	$holder{$name} = $node->safe_psql('postgres', qq{
		SELECT ticket FROM leaselock.lease_acquire('$name', 'holder', lease => '300 s')});
	$session{$name} = session($node);
	outcome($session{$name}, q{SET default_transaction_isolation = serializable})
	  if $name eq 'serializable';
	$session{$name}->{pid} =
	  outcome($session{$name}, 'SELECT pg_backend_pid()');
	begin($session{$name}, $wait{$name}->($name));
}
ok( $node->poll_query_until('postgres', q{
		SELECT count(*) = 5 FROM leaselock.tickets WHERE place IS NOT NULL AND waiter_pid IS NOT NULL}),
	'all sessions wait');

# asleep(PID, EXPECTED): what the backend holds while it sleeps: EXPECTED if
# that is seen five times in a row, else what was seen last.  The backend looks
# once a second, and its columns are not read at one moment, so it may be
# caught in the middle of a look.
my $watch = session($node);

sub asleep
{
	my ($pid, $expected) = @_;
	my $seen = 0;
	my $row = '';

	foreach my $try (1 .. 400)
	{
		my $now = outcome($watch, qq{
			SELECT state, wait_event_type, wait_event, backend_xmin IS NULL,
				backend_xid IS NULL,
				(SELECT string_agg(format('%s %s %s %s', locktype, mode,
					granted, objsubid), ', ' ORDER BY locktype)
				FROM pg_locks l WHERE l.pid = a.pid)
			FROM pg_stat_activity a WHERE pid = $pid AND wait_event IS NOT NULL});
		$row = $now if $now ne '';
		$seen = $now eq $expected ? $seen + 1 : 0;
		last if $seen == 5;
		outcome($watch, 'SELECT pg_sleep(0.01)');
	}
	return $row;
}

my $sleeping = 'active|Extension|'
  . ($node->pg_version >= 17 ? 'LeaseWait' : 'Extension')
  . '|t|t|advisory ShareLock t 19535, virtualxid ExclusiveLock t ';
foreach my $name (sort keys %wait)
{
	is(asleep($session{$name}->{pid}, $sleeping),
		$sleeping, "$name: what a waiter holds");
}

# ---------------------------------------------------------------------
# They hold nobody back
# ---------------------------------------------------------------------

is( outcome(session($node, "SET statement_timeout = '10 s'"),
		'CREATE INDEX CONCURRENTLY other_n ON other (n)'),
	'', 'an index is created concurrently');
is( $node->safe_psql('postgres',
		q{SELECT indisvalid FROM pg_index WHERE indexrelid = 'other_n'::regclass}),
	't', 'the index is valid');
$node->safe_psql('postgres', 'DELETE FROM other WHERE n > 1');
my ($ret, $out, $err) = $node->psql('postgres', 'VACUUM VERBOSE other');
is($ret, 0, 'the table is vacuumed');
like(
	$err,
	qr/ 0 are dead but not yet removable/,
	'the rows that were deleted meanwhile are removed');

is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM leaselock.tickets WHERE place IS NOT NULL AND waiter_pid IS NOT NULL}),
	'5', 'they wait all the time');

# ---------------------------------------------------------------------

foreach my $name (sort keys %wait)
{
	$node->safe_psql('postgres',
		"SELECT leaselock.lease_release('$holder{$name}')");
	my $answer = awaited($session{$name});
	# the DO block reports its state by an error, whose text is not shown
	like($answer, $name eq 'cursor loop' ? qr/^P0001$/ : qr/\bheld\b/,
		"$name: returns after the release");
	is( $node->safe_psql('postgres',
			"SELECT owner FROM leaselock.lease_peek('$name')"),
		'waiter', "$name: the waiter holds the lock");
	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM pg_locks WHERE pid = $session{$name}->{pid}}),
		'0', "$name: the session no longer holds a server lock");
	$session{$name}->quit;
}

# ---------------------------------------------------------------------
# Waiting for a place in the queue, behind an open transaction
# ---------------------------------------------------------------------

my $queueing = 'active|Lock|virtualxid|t|t|advisory ShareLock t 19535, '
  . 'virtualxid ExclusiveLock t , virtualxid ShareLock f ';

# What the open transaction has done, keyed by what the call then needs from it
my %open = (
	'queue' => q{SELECT FROM leaselock.lease_acquire('LOCK', 'other', wait => '200 s')},
	'ticket' => q{SELECT FROM leaselock.lease_acquire('LOCK', 'waiter', wait => '200 s', request_id => 'REQUEST')},
	'grant' => q{SELECT FROM leaselock.lease_renew((SELECT ticket FROM leaselock.tickets
		WHERE name = 'LOCK' AND owner = 'waiter' AND state = 'h'))});

foreach my $level ('read committed', 'repeatable read', 'serializable')
{
	foreach my $what (sort keys %open)
	{
		my $name = "$what, $level";
		my $request = $node->safe_psql('postgres', 'SELECT gen_random_uuid()');
		my $owner = $what eq 'grant' ? 'waiter' : 'holder';
		my $held = $node->safe_psql('postgres', qq{
			SELECT ticket FROM leaselock.lease_acquire('$name', '$owner', lease => '300 s')});
		my $other = session($node, 'BEGIN',
			$open{$what} =~ s/LOCK/$name/r =~ s/REQUEST/$request/r);
		my $waiter = session($node, "SET default_transaction_isolation = '$level'");
		my $pid = outcome($waiter, 'SELECT pg_backend_pid()');

		begin($waiter, qq{CALL leaselock.lease_acquire_wait('$name', 'waiter', wait => '200 s',
			request_id => '$request')});
		is(asleep($pid, $queueing), $queueing, "$name: what a waiter holds");

		outcome($other, 'ROLLBACK');
		$node->poll_query_until('postgres', qq{
			SELECT count(*) = 1 FROM leaselock.tickets WHERE request_id = '$request'})
		  or die "$name: no place";
		$node->safe_psql('postgres', "SELECT leaselock.lease_release('$held')");
		like(awaited($waiter), qr/\|held\|/, "$name: the call continues when that is over");
		$_->quit foreach $other, $waiter;
	}
}

# the wait is measured from the start of the call, over all of it
$node->safe_psql('postgres', q{SELECT FROM leaselock.lease_acquire('over', 'holder', lease => '300 s')});
my $other = session($node, 'BEGIN', $open{queue} =~ s/LOCK/over/r);
my $late = session($node);
my $late_pid = outcome($late, 'SELECT pg_backend_pid()');
like( outcome($late, q{CALL leaselock.lease_acquire_wait('over', 'waiter', wait => '1500 ms')}),
	qr/^\|contended\|/, 'a wait for a place runs out');
like( outcome($late, q{CALL leaselock.lease_acquire_wait('over', 'waiter', wait => '0 s')}),
	qr/^\|contended\|/, 'without a wait there is no place');
begin($late, q{CALL leaselock.lease_acquire_wait('over', 'waiter', wait => '200 s')});
asleep($late_pid, $queueing);
$node->safe_psql('postgres', "SELECT pg_cancel_backend($late_pid)");
is(awaited($late), '57014', 'a wait for a place is cancelled');
$_->quit foreach $other, $late, $watch;
is( $node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no lock is left');
is_deeply([ internal_errors($node) ], [], 'no internal error in the log');

$node->stop;

done_testing();
