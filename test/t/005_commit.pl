# A fence that was checked is verified when the transaction commits: with real
# sessions, in every way in which a client can commit, behind a commit that
# stalls, and without hanging when another transaction is in the way.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('commit', 'max_prepared_transactions = 5', allows_streaming => 1);
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE doc (name text, fence bigint);

-- waits until the session that keeps the gate opens it
CREATE FUNCTION gate() RETURNS boolean LANGUAGE sql AS
	'SELECT pg_advisory_lock_shared(1); SELECT pg_advisory_unlock_shared(1)';

CREATE PROCEDURE write_doc(name text, fence bigint) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leaselock.fence_assert(name, fence);
	INSERT INTO doc VALUES (name, fence);
	PERFORM gate();
	COMMIT;
	INSERT INTO doc VALUES (name || ': after the commit', fence);
END $$;
});

# How many rows of the lock's name have been committed
sub committed
{
	my ($name) = @_;
	return $node->safe_psql('postgres',
		"SELECT count(*) FROM doc WHERE name LIKE '$name%'");
}

# ticket and fence of a new grant
sub grant
{
	my ($name) = @_;
	return split /\|/, $node->safe_psql('postgres',
		"SELECT ticket, fence FROM leaselock.lease_acquire('$name', 'holder')");
}

my $holder = session($node, "LOAD 'leaselock'");
# another session of the holder's identity
my $helper = session($node, "LOAD 'leaselock'");
# for this session every lease has lapsed
my $taker = session($node, "LOAD 'leaselock'",
	"SET leaselock.clock_offset = '61 s'");

sub try_take
{
	my ($name) = @_;
	return outcome($taker, "SELECT state, ticket IS NOT NULL
		FROM leaselock.lease_acquire('$name', 'taker')");
}

sub check_and_write
{
	my ($name, $fence, $isolation) = @_;

	outcome($holder, 'BEGIN ISOLATION LEVEL ' . ($isolation // 'READ COMMITTED'));
	is( outcome($holder, "SELECT leaselock.fence_check('$name', $fence)"),
		't', "$name: the fence is current");
	is(outcome($holder, "INSERT INTO doc VALUES ('$name', $fence)"),
		'', "$name: the row is written");
	return;
}

# ---------------------------------------------------------------------
# Checked, superseded, committed
# ---------------------------------------------------------------------

foreach my $isolation ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $name = "block \L$isolation";
	my ($ticket, $fence) = grant($name);

	check_and_write($name, $fence, $isolation);
	is(try_take($name), 'held|t', "$name: the taker does not wait");
	is(outcome($holder, 'COMMIT'), 'LS001', "$name: the commit is refused");
	is(committed($name), '0', "$name: nothing is written");
}

# not superseded: the commit goes through, even when the lease has lapsed in
# the meantime and somebody has seen the lapse
my ($ticket, $fence) = grant('lapse');
check_and_write('lapse', $fence);
is( outcome($taker, "SELECT state FROM leaselock.lease_get('$ticket')"),
	'expired', 'lapse: the lease has run out');
is(outcome($holder, 'COMMIT'), '', 'lapse: the commit goes through');
is(committed('lapse'), '1', 'lapse: the row is there');

# a release by another session of the same identity ends the grant, too
($ticket, $fence) = grant('released');
check_and_write('released', $fence);
is( outcome($helper, "SELECT state FROM leaselock.lease_release('$ticket')"),
	'released', 'released: the release does not wait');
is(outcome($holder, 'COMMIT'), 'LS001', 'released: the commit is refused');

# a check that was rolled back with its savepoint is not verified
($ticket, $fence) = grant('savepoint');
outcome($holder, 'BEGIN; SAVEPOINT s');
is( outcome($holder, "SELECT leaselock.fence_check('savepoint', $fence)"),
	't', 'savepoint: the fence is current');
outcome($holder, "ROLLBACK TO s; INSERT INTO doc VALUES ('savepoint', $fence)");
is(try_take('savepoint'), 'held|t', 'savepoint: the fence is superseded');
is(outcome($holder, 'COMMIT'), '', 'savepoint: the commit goes through');

# ---------------------------------------------------------------------
# The same with every protocol, in a block, in autocommit and in a procedure
# ---------------------------------------------------------------------

my $gate = $node->background_psql('postgres');
my %form = (
	block => q{
BEGIN;
SELECT leaselock.fence_assert('%1$s', %2$s);
INSERT INTO doc VALUES ('%1$s', %2$s);
SELECT gate();
COMMIT;
},
	autocommit => q{
INSERT INTO doc SELECT '%1$s', %2$s FROM
	(SELECT CASE WHEN leaselock.fence_check('%1$s', %2$s) THEN gate() END) s;
},
	procedure => q{
CALL write_doc('%1$s', %2$s);
});

foreach my $protocol (qw(simple extended prepared))
{
	foreach my $form (sort keys %form)
	{
		foreach my $superseded (0, 1)
		{
			my $name = "$form $protocol"
			  . ($superseded ? ' superseded' : ' control');
			($ticket, $fence) = grant($name);
			my $offset = -s $node->logfile;
			$gate->query_safe('SELECT pg_advisory_lock(1)');
			my $client = start_pgbench($node, "-t 1 -M $protocol",
				$name =~ s/ /_/gr => sprintf($form{$form}, $name, $fence));
			clients_at_gate($node, 1)
			  or die "$name: the client has not come to the gate";
			if ($superseded)
			{
				is(try_take($name), 'held|t', "$name: the taker does not wait");
			}
			$gate->query_safe('SELECT pg_advisory_unlock(1)');

			if ($superseded)
			{
				ok(!$client->{run}->finish, "$name: the client fails");
				like( slurp_file($node->logfile, $offset),
					qr/ LS001 \S+ ERROR:/, "$name: the error is LS001");
				is(committed($name), '0', "$name: nothing is written");
			}
			else
			{
				ok($client->{run}->finish, "$name: the client succeeds")
				  or diag($client->{err});
				is( committed($name),
					$form eq 'procedure' ? '2' : '1',
					"$name: the row is there");
			}
		}
	}
}
$gate->quit;

# ---------------------------------------------------------------------
# A commit that has been verified but is not finished holds up a takeover
# ---------------------------------------------------------------------

# it waits for a standby that does not exist
($ticket, $fence) = grant('standby');
my $conf = "synchronous_standby_names = '%s'\n";
$node->append_conf('postgresql.conf', sprintf($conf, 'absent'));
$node->reload;
$node->poll_query_until('postgres', 'SHOW synchronous_standby_names', 'absent')
  or die 'the standby has not been made known';
# once this has run, the checkpointer has read the settings
$node->safe_psql('postgres', 'CHECKPOINT');

check_and_write('standby', $fence);
# the taker's own commits are not to wait for the standby
outcome($taker, 'SET synchronous_commit = local');
begin($holder, 'COMMIT');
ok( $node->poll_query_until('postgres', q{
		SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'}),
	'standby: the commit waits for the standby');
is(try_take('standby'), 'contended|f', 'standby: the taker is told to try again');
is( outcome($taker, q{
		SELECT leaselock.try_lock('standby', 'taker', '1 min') IS NULL}),
	't', 'standby: try_lock does not give it the lock either');
is(outcome($taker, q{SELECT count(*) FROM doc WHERE name = 'standby'}),
	'0', 'standby: the row is not visible yet');
is( outcome($helper, qq{
		SET synchronous_commit = local;
		SELECT state FROM leaselock.lease_renew('$ticket')}),
	'held', 'standby: the holder can still renew');

$node->append_conf('postgresql.conf', sprintf($conf, ''));
$node->reload;
is(awaited($holder), '', 'standby: the commit ends when no standby is required');
is(try_take('standby'), 'held|t', 'standby: the taker gets the lock');
is(outcome($taker, q{SELECT count(*) FROM doc WHERE name = 'standby'}),
	'1', 'standby: the taker sees the row');

# the unfinished commit is a prepared transaction
($ticket, $fence) = grant('prepared');
check_and_write('prepared', $fence);
is(outcome($holder, q{PREPARE TRANSACTION 'fenced'}),
	'', 'prepared: the transaction is prepared');
is(try_take('prepared'), 'contended|f', 'prepared: the taker is told to try again');
is(outcome($helper, q{COMMIT PREPARED 'fenced'}),
	'', 'prepared: it commits');
is(try_take('prepared'), 'held|t', 'prepared: the taker gets the lock');
is(outcome($taker, q{SELECT count(*) FROM doc WHERE name = 'prepared'}),
	'1', 'prepared: the taker sees the row');

($ticket, $fence) = grant('unprepared');
check_and_write('unprepared', $fence);
is(try_take('unprepared'), 'held|t', 'unprepared: the taker does not wait');
is(outcome($holder, q{PREPARE TRANSACTION 'fenced'}),
	'LS001', 'unprepared: a superseded transaction cannot be prepared');
is(outcome($holder, 'ROLLBACK') . committed('unprepared'),
	'0', 'unprepared: nothing is left of it');
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'),
	'0', 'no prepared transaction is left');

# ---------------------------------------------------------------------
# A commit behind an open change of the grant does not hang
# ---------------------------------------------------------------------

# the change is a takeover or a release
my %change = (
	takeover => sub {
		return outcome($taker, qq{BEGIN; SELECT state
			FROM leaselock.lease_acquire('$_[0]', 'taker')});
	},
	release => sub {
		return outcome($taker, qq{BEGIN; SET LOCAL leaselock.clock_offset = 0;
			SELECT state FROM leaselock.lease_release('$_[1]')});
	});
my $waits = q{SELECT count(*) = 1 FROM pg_locks
	WHERE locktype = 'advisory' AND NOT granted};

foreach my $change (sort keys %change)
{
	# the session has no timeout of its own that could end the commit
	($ticket, $fence) = grant("$change rolled back");
	outcome($holder, q{SET leaselock.lock_timeout = '200 ms'});
	check_and_write("$change rolled back", $fence);
	like($change{$change}->("$change rolled back", $ticket),
		qr/^(held|released)$/, "$change: the grant is being changed");
	is(outcome($holder, 'COMMIT'),
		'55P03', "$change: the commit ends after leaselock.lock_timeout");
	is(committed("$change rolled back"), '0', "$change: nothing is written");
	is(outcome($holder, 'SHOW lock_timeout'),
		'0', "$change: the session's own lock_timeout is unchanged");
	outcome($taker, 'ROLLBACK');
	check_and_write("$change rolled back", $fence);
	is(outcome($holder, 'COMMIT'),
		'', "$change: once that is rolled back, the commit goes through");
	is(committed("$change rolled back"), '1', "$change: the row is there");

	# the session's lock_timeout is shorter
	($ticket, $fence) = grant("$change and lock_timeout");
	outcome($holder, q{SET leaselock.lock_timeout = '1 h'});
	outcome($holder, q{SET lock_timeout = '200 ms'});
	check_and_write("$change and lock_timeout", $fence);
	$change{$change}->("$change and lock_timeout", $ticket);
	is(outcome($holder, 'COMMIT'),
		'55P03', "$change: a shorter lock_timeout of the session applies");
	is(outcome($holder, 'SHOW lock_timeout'),
		'200ms', "$change: lock_timeout is unchanged");
	outcome($taker, 'ROLLBACK');
	outcome($holder, 'RESET lock_timeout');

	# the change is committed while the commit waits for it
	($ticket, $fence) = grant("$change committed");
	check_and_write("$change committed", $fence);
	$change{$change}->("$change committed", $ticket);
	begin($holder, 'COMMIT');
	ok( $node->poll_query_until('postgres', $waits),
		"$change: the commit waits");
	is(outcome($taker, 'COMMIT'), '', "$change: the change is committed");
	is(awaited($holder), 'LS001', "$change: the commit is then refused");
	is(committed("$change committed"), '0', "$change: nothing is written");

	# the change is rolled back while the commit waits for it
	($ticket, $fence) = grant("$change undone");
	check_and_write("$change undone", $fence);
	$change{$change}->("$change undone", $ticket);
	begin($holder, 'COMMIT');
	ok( $node->poll_query_until('postgres', $waits),
		"$change: the commit waits");
	outcome($taker, 'ROLLBACK');
	is(awaited($holder), '', "$change: the commit goes through after the rollback");
	is(committed("$change undone"), '1', "$change: the row is there");

	# the waiting commit is cancelled
	($ticket, $fence) = grant("$change cancelled");
	check_and_write("$change cancelled", $fence);
	my $pid = outcome($holder, 'SELECT pg_backend_pid()');
	$change{$change}->("$change cancelled", $ticket);
	begin($holder, 'COMMIT');
	ok( $node->poll_query_until('postgres', $waits),
		"$change: the commit waits");
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	is(awaited($holder), '57014', "$change: the commit can be cancelled");
	is(committed("$change cancelled"), '0', "$change: nothing is written");
	outcome($taker, 'ROLLBACK');
}

$_->quit foreach $holder, $helper, $taker;

my @internal = grep { / XX\w{3} / || / (?:FATAL|PANIC):/ }
  split /\n/, slurp_file($node->logfile);
is_deeply(\@internal, [], 'no internal error in the server log');

$node->stop;

done_testing();
