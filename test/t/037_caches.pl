# What a session remembers from one call to the next is never older than what
# others have committed in between.  These are the cases that take DDL, a
# restore, another server, or a look at what is on disk; the specs cache_*
# cover the others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Only commits and, until it is stopped, the WAL writer flush WAL.
my $node = new_node('caches', q{
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
leaselock.waiter_timeout = '300 s'
}, allows_streaming => 'logical');
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE team;
CREATE ROLE stranger;
CREATE ROLE restorer;
ALTER DATABASE postgres OWNER TO restorer;
CREATE TABLE written (at pg_lsn);
});

my $first = session($node);

# for this session every lease has run out
my $later = session($node, "LOAD 'leaselock'",
	"SET leaselock.clock_offset = '61 s'");

sub other { return $node->safe_psql('postgres', @_) }

sub acquire
{
	my ($session, $owner) = @_;
	return outcome($session,
		"SELECT state, depth FROM leaselock.lease_acquire('job', '$owner')");
}

# fills everything that the first session remembers, and shows that nobody
# waits
sub warm
{
	return outcome($first, q{SELECT state, depth, (SELECT waiters FROM leaselock.lease_peek('job'))
		FROM leaselock.lease_acquire('job', 'first')});
}

sub peek
{
	my ($session) = @_;
	return outcome($session, q{SELECT owner, waiters FROM leaselock.lease_peek('job')});
}

# another owner queues behind the first, which sees it and hands the lock over
sub hand_over
{
	my ($what) = @_;

	is( other(q{SELECT state FROM leaselock.lease_acquire('job', 'other', wait => '300 s')}),
		'waiting', "$what: another waits");
	is(peek($first), 'first|1', "$what: the first sees the waiter");
	outcome($first, q{SELECT leaselock.lease_release_all('first')});
	is(peek($first), 'other|0', "$what: the first hands the lock over");
	other(q{SELECT leaselock.lease_release_all('other')});
	return;
}

# ---------------------------------------------------------------------
# The extension is dropped and created again
# ---------------------------------------------------------------------

is(warm(), 'held|1|0', 'the first holds the lock');
my $ticket = outcome($first, q{SELECT ticket FROM leaselock.lease_acquire('job', 'first')});
outcome($first, q{PREPARE get AS SELECT state FROM leaselock.lease_get($1)});
is(outcome($first, "EXECUTE get('$ticket')"), 'held', 'the first finds its ticket');

other('DROP EXTENSION leaselock');
is(outcome($first, "EXECUTE get('$ticket')"), '3F000', 'dropped: there is nothing to call');
other('CREATE EXTENSION leaselock');
is(outcome($first, "EXECUTE get('$ticket')"), 'gone', 'created: no ticket is left');
is(warm(), 'held|1|0', 'created: nobody held the lock');
hand_over('created');

other(q{SELECT leaselock.lease_scope_create('taken', 'team'); SELECT leaselock.fence_bump()});
outcome($first, 'SET ROLE stranger');
is( outcome($first, q{SELECT leaselock.try_lock('job', 'first', '1 h', 'taken')}),
	'42501', 'a scope is registered');
other('BEGIN; DROP EXTENSION leaselock; CREATE EXTENSION leaselock; COMMIT');
is( outcome($first, q{SELECT leaselock.try_lock('job', 'first', '1 h', 'taken') > 0}),
	't', 'created in one transaction: no scope is registered');
outcome($first, 'RESET ROLE');

# a transaction that only reads does not keep the extension from being dropped
is(warm(), 'held|1|0', 'the first holds the lock');
outcome($first, 'BEGIN');
is(peek($first), 'first|0', 'in a transaction: the first holds the lock');
other('BEGIN; DROP EXTENSION leaselock; CREATE EXTENSION leaselock; COMMIT');
# taking a new lock makes the backend learn of functions that were replaced
outcome($first, 'LOCK TABLE written IN ACCESS SHARE MODE');
is(peek($first), '', 'in a transaction: the lock is gone');
is(warm(), 'held|1|0', 'in a transaction: the lock can be acquired');
outcome($first, 'COMMIT');
hand_over('in a transaction');

# its own drop, rolled back
is(warm(), 'held|1|0', 'the first holds the lock');
outcome($first, 'BEGIN');
outcome($first, 'DROP EXTENSION leaselock');
outcome($first, 'CREATE EXTENSION leaselock');
is(peek($first), '', 'dropped by itself: the lock is gone');
outcome($first, 'ROLLBACK');
is(peek($first), 'first|0', 'dropped by itself, rolled back: the lock is back');
hand_over('dropped by itself, rolled back');

# A call that waits for a table in the meantime continues with what exists
# then: as a waiter of the new extension it is known to be alive
is(warm(), 'held|1|0', 'the first holds the lock');
my $dropper = session($node);
is( outcome($dropper, q{BEGIN; DROP EXTENSION leaselock; CREATE EXTENSION leaselock;
	SELECT leaselock.try_lock('job', 'other', '1 h') > 0}),
	't', 'under a wait: another has the lock in the next extension');
begin($first, q{CALL leaselock.lease_acquire_wait('job', 'first', wait => '300 s')});
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'relation' AND NOT granted})
  or die 'the first does not wait for a table';
outcome($dropper, 'COMMIT');
$dropper->quit;
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM leaselock.tickets}) or die 'the first does not queue';
is(other(q{SELECT owner, waiters FROM leaselock.lease_peek('job')}), 'other|1', 'under a wait: the first waits, and others see that');
other(q{SELECT leaselock.release_lock('job', 'other')});
like(awaited($first), qr/\|held\|/, 'under a wait: the first is handed the lock');
is(other(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'under a wait: no lock is left');
hand_over('under a wait');

# ---------------------------------------------------------------------
# The type of the answers changes
# ---------------------------------------------------------------------

warm();
other('ALTER TYPE leaselock.lease_ticket RENAME ATTRIBUTE owner TO who');
is( outcome($first, q{SELECT state, who FROM leaselock.lease_acquire('job', 'first')}),
	'held|first', 'an attribute is renamed');
foreach my $change ('ALTER ATTRIBUTE depth TYPE bigint', 'ADD ATTRIBUTE more int')
{
	other("ALTER TYPE leaselock.lease_ticket $change");
	is(acquire($first, 'first'), '55000', "$change: the answer does not match");
	other('BEGIN; DROP EXTENSION leaselock; CREATE EXTENSION leaselock; COMMIT');
	is(warm(), 'held|1|0', "$change: the answer of the next extension does");
}

# ---------------------------------------------------------------------
# A restore, by the owner of the database
# ---------------------------------------------------------------------

sub restore
{
	my ($what, $table, $row) = @_;
	my ($rc, $out, $err) = $node->psql('postgres',
		"SET ROLE restorer; COPY $table FROM STDIN;\n$row\n\\.\n");
	is($err, '', "$what: COPY succeeds");
	return;
}

sub fence
{
	my ($session, $lock) = @_;
	return outcome($session, "SELECT leaselock.try_lock('$lock', 'first', '1 h')");
}

outcome($first, q{SELECT leaselock.lease_release_all('first')});
my $high = fence($first, 'floor 1') + 1_000_000_000_000_000;
restore('floor', 'leaselock.floor', "$high\t0");
cmp_ok(fence($first, 'floor 2'), '>', $high, 'floor: the next fence is above it');
$high += 100_000_000_000_000_000;
other("SET ROLE restorer; INSERT INTO leaselock.floor VALUES ($high, 0)");
cmp_ok(fence($first, 'floor 3'), '>', $high, 'floor: by INSERT, too');
# what pg_restore --disable-triggers does
$high += 100_000_000_000_000_000;
other(qq{ALTER TABLE leaselock.floor DISABLE TRIGGER ALL;
	INSERT INTO leaselock.floor VALUES ($high, 0);
	ALTER TABLE leaselock.floor ENABLE ALWAYS TRIGGER announce});
cmp_ok(fence($first, 'floor 4'), '>', $high, 'floor: without triggers, too');
$high += 100_000_000_000_000_000;
other("SET session_replication_role = replica; INSERT INTO leaselock.floor VALUES ($high, 0)");
cmp_ok(fence($first, 'floor 5'), '>', $high, 'floor: as a replica, too');
other('TRUNCATE leaselock.floor');

outcome($first, 'SET ROLE stranger');
is( outcome($first, q{SELECT leaselock.try_lock('job', 'first', '1 h', 'copied') > 0}),
	't', 'scopes: the scope is open');
restore('scopes', 'leaselock.scopes',
	"copied\tteam\t0\t00000000-0000-0000-0000-000000000000");
is( outcome($first, q{SELECT leaselock.try_lock('job', 'first', '1 h', 'copied')}),
	'42501', 'scopes: the scope is registered');
outcome($first, 'RESET ROLE');
other('TRUNCATE leaselock.scopes');

# ---------------------------------------------------------------------
# More messages than the server keeps for a session that does not read them
# ---------------------------------------------------------------------

warm();
other(q{SELECT FROM leaselock.lease_acquire('job', 'other', wait => '300 s');
	DO $$ BEGIN
		FOR i IN 1..600 LOOP
			EXECUTE format('CREATE TABLE noise_%s (a int, b int, c int)', i);
		END LOOP;
	END $$;
	DO $$ BEGIN
		FOR i IN 1..600 LOOP
			EXECUTE format('DROP TABLE noise_%s', i);
		END LOOP;
	END $$});
is(peek($first), 'first|1', 'messages lost: the first sees the waiter');
outcome($first, q{SELECT leaselock.lease_release_all('first')});
is(peek($first), 'other|0', 'messages lost: the first hands the lock over');
other(q{SELECT leaselock.lease_release_all('other')});

# ---------------------------------------------------------------------
# A commit that does not wait for the disk, and the next one
# ---------------------------------------------------------------------

my $walwriter = other(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
kill 'STOP', $walwriter or die "could not stop the WAL writer: $!";
END { kill 'CONT', $walwriter if $walwriter }

# whether all WAL up to a position is on disk
sub on_disk
{
	my ($lsn) = @_;
	return outcome($first, "SELECT pg_current_wal_flush_lsn() >= '$lsn'");
}

# in the first session a setting is unchanged, and an ordinary write waits for
# the disk if it should
sub is_as_before
{
	my ($what, $setting) = @_;
	$setting //= 'on';

	is(outcome($first, 'SHOW synchronous_commit'),
		$setting, "$what: synchronous_commit is $setting again");
	my $lsn = outcome($first,
		'INSERT INTO written VALUES (NULL) RETURNING pg_current_wal_insert_lsn()');
	is(on_disk($lsn), $setting eq 'off' ? 'f' : 't',
		"$what: the next write is " . ($setting eq 'off' ? 'not ' : '') . 'on disk');
	return;
}

# a new ticket, on pages so empty that reading them writes nothing: a commit
# that has written more than a release waits for the disk
sub get_ticket
{
	other('VACUUM FULL leaselock.locks, leaselock.tickets');
	return outcome($first, q{SELECT ticket FROM leaselock.lease_acquire('job', 'first')});
}

sub end_of_wal { return outcome($first, 'SELECT pg_current_wal_insert_lsn()') }

# A release alone is not on disk, and that does not affect what follows
$ticket = get_ticket();
is(outcome($first, "SELECT state FROM leaselock.lease_release('$ticket')"), 'released', 'release');
is(on_disk(end_of_wal()), 'f', 'release: is not on disk');
is_as_before('release');
# the next release is not on disk either
$ticket = get_ticket();
my $next = outcome($first, q{SELECT ticket FROM leaselock.lease_acquire('next', 'first')});
outcome($first, "SELECT FROM leaselock.lease_release('$ticket')");
is(outcome($first, "SELECT state FROM leaselock.lease_release('$next')"), 'released', 'release, and another');
is(on_disk(end_of_wal()), 'f', 'release, and another: is not on disk');
is_as_before('release, and another');
other('VACUUM FULL leaselock.locks');
outcome($first, q{SELECT leaselock.try_lock('named', 'first', '1 h')});
is(outcome($first, q{SELECT leaselock.release_lock('named', 'first')}), 't', 'release_lock');
is(on_disk(end_of_wal()), 'f', 'release_lock: is not on disk');
is_as_before('release_lock');
outcome($first, q{SELECT leaselock.lease_prune('0 s')});
is_as_before('lease_prune');

# the setting of the session applies, and so does that of the transaction
foreach my $setting ('local', 'remote_apply', 'off')
{
	outcome($first, "SET synchronous_commit = $setting");
	$ticket = get_ticket();
	outcome($first, "SELECT FROM leaselock.lease_release('$ticket')");
	is_as_before("SET $setting", $setting);
	outcome($first, 'RESET synchronous_commit');

	$ticket = get_ticket();
	outcome($first, 'BEGIN');
	outcome($first, "SET LOCAL synchronous_commit = $setting");
	outcome($first, "SELECT FROM leaselock.lease_release('$ticket')");
	outcome($first, 'COMMIT');
	is_as_before("SET LOCAL $setting");

	# in a statement that is a transaction of its own
	$ticket = get_ticket();
	outcome($first, "SELECT set_config('synchronous_commit', '$setting', true)
		FROM leaselock.lease_release('$ticket')");
	is_as_before("set_config $setting for the transaction");
	$ticket = get_ticket();
	outcome($first, "SELECT set_config('synchronous_commit', '$setting', false)
		FROM leaselock.lease_release('$ticket')");
	is_as_before("set_config $setting for the session", $setting);
	outcome($first, 'RESET synchronous_commit');

	other(qq{CREATE OR REPLACE FUNCTION release(uuid) RETURNS text LANGUAGE sql
		SET synchronous_commit = $setting AS 'SELECT state FROM leaselock.lease_release(\$1)'});
	$ticket = get_ticket();
	is(outcome($first, "SELECT release('$ticket')"), 'released', "function with $setting");
	is_as_before("function with $setting");
}

# Anything else that the transaction has written is on disk with the release
$ticket = get_ticket();
my $lsn = outcome($first, qq{WITH r AS (SELECT state FROM leaselock.lease_release('$ticket'))
	INSERT INTO written SELECT NULL FROM r RETURNING pg_current_wal_insert_lsn()});
is(on_disk($lsn), 't', 'a release and a write: are on disk');
$ticket = get_ticket();
outcome($first, qq{DO \$\$ BEGIN
	PERFORM leaselock.lease_release('$ticket');
	COMMIT;
	INSERT INTO written VALUES (pg_current_wal_insert_lsn());
	INSERT INTO written VALUES (pg_current_wal_insert_lsn());
END \$\$});
is( on_disk(outcome($first, 'SELECT max(at) FROM written')),
	't', 'a write after a release that a procedure has committed: is on disk');

# The commit fails after it was told not to wait: another session has taken the
# lock whose fence it has checked.
other(q{CREATE FUNCTION gate() RETURNS boolean LANGUAGE sql AS
	'SELECT pg_advisory_lock_shared(1); SELECT pg_advisory_unlock_shared(1)'});
$ticket = get_ticket();
my $fence = outcome($first, q{SELECT fence FROM leaselock.lease_acquire('checked', 'first', '60 s')});
outcome($later, 'SELECT pg_advisory_lock(1)');
begin($first, qq{SELECT leaselock.fence_check('checked', $fence), gate(),
	(leaselock.lease_release('$ticket')).state;
SHOW synchronous_commit});
clients_at_gate($node, 1) or die 'the first does not wait';
is( outcome($later, q{SELECT state FROM leaselock.lease_acquire('checked', 'later')}),
	'held', 'a commit that fails: another takes the lock');
outcome($later, 'SELECT pg_advisory_unlock(1)');
is(awaited($first), "on\nLS001",
	'a commit that fails: it fails, and the setting is restored for the next statement');
is_as_before('a commit that fails');
is(outcome($first, "SELECT state FROM leaselock.lease_get('$ticket')"),
	'held', 'a commit that fails: nothing was released');
outcome($first, "SELECT 1 / 0 FROM leaselock.lease_release('$ticket')");
is_as_before('a statement that fails');
outcome($first, "SELECT FROM leaselock.lease_release('$ticket')");

kill 'CONT', $walwriter;

# ---------------------------------------------------------------------
# A standby learns what the primary commits
# ---------------------------------------------------------------------

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('caches_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my $reader = session($standby, 'SET ROLE stranger');

sub replay { $node->wait_for_catchup($standby, 'replay', $node->lsn('write')) }

warm();
replay();
is(peek($reader), 'first|0', 'standby: nobody waits');
other(q{SELECT FROM leaselock.lease_acquire('job', 'other', wait => '300 s')});
replay();
is(peek($reader), 'first|1', 'standby: somebody waits');
other(q{SELECT leaselock.lease_scope_create('hidden', 'team')});
other(q{SELECT leaselock.lease_scope_drop('hidden'); TRUNCATE leaselock.scopes});
other(q{SELECT leaselock.try_lock('job', 'other', '1 h', 'hidden')});
replay();
is( outcome($reader, q{SELECT owner FROM leaselock.lease_peek('job', 'hidden')}),
	'other', 'standby: the scope is open');
other(q{SELECT leaselock.lease_scope_create('hidden', current_user)});
replay();
is( outcome($reader, q{SELECT owner FROM leaselock.lease_peek('job', 'hidden')}),
	'', 'standby: it is registered');
other('VACUUM FULL leaselock.locks');
replay();
is(peek($reader), 'first|1', 'standby: the row has moved');
other('BEGIN; DROP EXTENSION leaselock; CREATE EXTENSION leaselock; COMMIT');
replay();
is(peek($reader), '', 'standby: the extension is a new one');
other(q{SELECT leaselock.try_lock('job', 'other', '1 h', 'hidden')});
replay();
is( outcome($reader, q{SELECT owner FROM leaselock.lease_peek('job', 'hidden')}),
	'other', 'standby: the scope is open in the new extension');
$reader->quit;
$standby->stop;

# ---------------------------------------------------------------------
# Rows that arrive by logical replication
# ---------------------------------------------------------------------

my $publisher = new_node('caches_publisher', '', allows_streaming => 'logical');
my $connection = $publisher->connstr . ' dbname=postgres';
$publisher->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE team;
CREATE PUBLICATION p FOR TABLE leaselock.floor, leaselock.scopes});
$node->safe_psql('postgres',
	"CREATE SUBSCRIPTION s CONNECTION '$connection' PUBLICATION p");
$node->wait_for_subscription_sync($publisher, 's');
outcome($first, 'SET ROLE stranger');

foreach my $what ('replicated', 'replicated again')
{
	fence($first, "$what: before");
	is( outcome($first, q{SELECT leaselock.try_lock('job', 'first', '1 h', 'replicated') > 0}),
		't', "$what: the scope is open");
	my $floor = $publisher->safe_psql('postgres', q{
		SELECT leaselock.lease_scope_create('replicated', 'team') \gset
		SELECT leaselock.fence_bump()});
	$publisher->wait_for_catchup('s');
	cmp_ok(fence($first, "$what: after"), '>', $floor, "$what: the next fence is above the floor");
	is( outcome($first, q{SELECT leaselock.try_lock('job', 'first', '1 h', 'replicated')}),
		'42501', "$what: the scope is registered");
	$publisher->safe_psql('postgres', q{SELECT leaselock.lease_scope_drop('replicated')});
	$publisher->wait_for_catchup('s');
	is( outcome($first, q{SELECT leaselock.try_lock('job', 'first', '1 h', 'replicated') > 0}),
		't', "$what: the scope is open again");
}

# ---------------------------------------------------------------------

$node->safe_psql('postgres', 'DROP SUBSCRIPTION s');
foreach my $server ($node, $publisher)
{
	is_deeply([ internal_errors($server) ],
		[], $server->name . ': no internal error in the log');
}
is_deeply([ crashes($node) ], [], 'no backend has crashed');
$_->quit foreach $first, $later;
$_->stop foreach $node, $publisher;

done_testing();
