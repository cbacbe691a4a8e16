# What a waiting session holds: its virtual transaction id and the lock that
# says that it lives; no snapshot, no transaction id.  So it holds back neither
# CREATE INDEX CONCURRENTLY nor VACUUM.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no signals to stop a process with'
  if $PostgreSQL::Test::Utils::windows_os;

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
		SELECT count(*) = 5 FROM leaselock.tickets WHERE waiting AND waiter_pid IS NOT NULL}),
	'all wait');

# What the backend holds, while it is stopped in its sleep.  A look is short,
# so it is caught asleep soon.
sub asleep
{
	my ($pid) = @_;

	foreach my $try (1 .. 200)
	{
		kill 'STOP', $pid or die "could not stop $pid: $!";
		my $row = $node->safe_psql('postgres', qq{
			SELECT state, wait_event_type, wait_event, backend_xmin IS NULL,
				backend_xid IS NULL,
				(SELECT string_agg(format('%s %s %s %s', locktype, mode,
					granted, objsubid), ', ' ORDER BY locktype)
				FROM pg_locks l WHERE l.pid = a.pid)
			FROM pg_stat_activity a WHERE pid = $pid AND wait_event IS NOT NULL});
		kill 'CONT', $pid;
		return $row if $row ne '';
		$node->safe_psql('postgres', 'SELECT pg_sleep(0.01)');
	}
	return 'never asleep';
}

my $event = $node->pg_version >= 17 ? 'LeaseWait' : 'Extension';
foreach my $name (sort keys %wait)
{
	is( asleep($session{$name}->{pid}),
		"active|Extension|$event|t|t|advisory ShareLock t 19535, "
		  . 'virtualxid ExclusiveLock t ',
		"$name: what a waiter holds");
}

# ---------------------------------------------------------------------
# Nobody is held back by them
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
		SELECT count(*) FROM leaselock.tickets WHERE waiting AND waiter_pid IS NOT NULL}),
	'5', 'they wait all the while');

# ---------------------------------------------------------------------

foreach my $name (sort keys %wait)
{
	$node->safe_psql('postgres',
		"SELECT leaselock.lease_release('$holder{$name}')");
	my $answer = awaited($session{$name});
	# the DO block tells its state by an error, whose text is not shown
	like($answer, $name eq 'cursor loop' ? qr/^P0001$/ : qr/\bheld\b/,
		"$name: returns after the release");
	is( $node->safe_psql('postgres',
			"SELECT owner FROM leaselock.lease_peek('$name')"),
		'waiter', "$name: with the lock");
	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM pg_locks WHERE pid = $session{$name}->{pid}}),
		'0', "$name: it holds no lock any more");
	$session{$name}->quit;
}

$node->stop;

done_testing();
