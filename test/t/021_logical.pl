# Logical replication of guarded tables: an ordinary trigger does not stop the
# subscriber; ENABLE ALWAYS does, and so does a CHECK.  The extension also
# works under a publication FOR ALL TABLES, which includes its own tables.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my ($publisher, $subscriber) = map {
	new_node($_, qq{
max_connections = 20
wal_retrieve_retry_interval = 100ms
}, allows_streaming => 'logical')
} 'publisher', 'subscriber';

foreach my $node ($publisher, $subscriber)
{
	$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE by_column (id int PRIMARY KEY, fence bigint);
CREATE TABLE by_columns (id int PRIMARY KEY, fence bigint, lock text);
CREATE TABLE by_transaction (id int PRIMARY KEY);
CREATE TABLE by_mark (id int PRIMARY KEY, token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON by_column FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'work');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON by_columns FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'lock');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE
	ON by_transaction FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'work');
CREATE TRIGGER guard BEFORE UPDATE ON by_mark FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_monotonic('token');
CREATE TABLE by_check (id int PRIMARY KEY, fence bigint);
ALTER TABLE by_check ADD CONSTRAINT guard
	CHECK (leaselock.fence_check('work', fence)) NOT VALID;
});
}

my @guarded = qw(by_column by_columns by_transaction by_mark);
my $id = 0;
my $fence;

# A new grant on the publisher, and a row under it in each table
sub write_rows
{
	my (@tables) = @_;

	$id++;
	$fence = $publisher->safe_psql('postgres', qq{
		DO \$\$ BEGIN
			PERFORM leaselock.lease_break(name, fence) FROM leaselock.lease_peek('work');
		END \$\$;
		SELECT leaselock.try_lock('work', 'worker $id', '1 h')});
	my %row = (
		by_column => "$id, $fence",
		by_columns => "$id, $fence, 'work'",
		by_transaction => $id,
		by_mark => "$id, $fence",
		by_check => "$id, $fence");
	my $sql = "BEGIN; SELECT FROM leaselock.fence_assert('work', $fence);";

	$sql .= "INSERT INTO $_ VALUES ($row{$_});" foreach @tables;
	$publisher->safe_psql('postgres', "$sql COMMIT");
	return;
}

sub rows
{
	my ($node, @tables) = @_;
	return $node->safe_psql('postgres', join ' UNION ALL ',
		map { "(SELECT '$_', $_.* ::text FROM $_ ORDER BY id)" } @tables);
}

sub subscribe
{
	my (@tables) = @_;
	my $connection = $publisher->connstr . ' dbname=postgres';
	my $list = join ', ', @tables;

	$publisher->safe_psql('postgres', "CREATE PUBLICATION p FOR TABLE $list");
	$subscriber->safe_psql('postgres', qq{
		CREATE SUBSCRIPTION s CONNECTION '$connection' PUBLICATION p});
	$subscriber->wait_for_subscription_sync($publisher, 's');
	return;
}

# ---------------------------------------------------------------------
# Ordinary triggers: the subscriber accepts what the publisher has checked
# ---------------------------------------------------------------------

write_rows(@guarded);
write_rows(@guarded);
subscribe(@guarded);
is(rows($subscriber, @guarded),
	rows($publisher, @guarded), 'ordinary: the first copy');

# rows, an update, a delete, and a TRUNCATE
write_rows(@guarded);
$publisher->safe_psql('postgres', qq{
	UPDATE by_column SET fence = $fence WHERE id = 1;
	UPDATE by_columns SET fence = $fence WHERE id = 1;
	UPDATE by_mark SET token = $fence WHERE id = 1;
	BEGIN;
	SELECT FROM leaselock.fence_assert('work', $fence);
	DELETE FROM by_transaction WHERE id = 1;
	COMMIT});
$publisher->wait_for_catchup('s');
is(rows($subscriber, @guarded),
	rows($publisher, @guarded), 'ordinary: inserts, updates and a delete');
$publisher->safe_psql('postgres', qq{
	BEGIN;
	SELECT FROM leaselock.fence_assert('work', $fence);
	TRUNCATE by_transaction;
	COMMIT});
$publisher->wait_for_catchup('s');
is(rows($subscriber, @guarded), rows($publisher, @guarded), 'ordinary: TRUNCATE');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM by_transaction'),
	'0', 'ordinary: no row is left');
is($subscriber->safe_psql('postgres', 'SELECT * FROM leaselock.lease_status'),
	'', 'ordinary: the subscriber knows of no lease');

# a session of the subscriber is guarded, unless it acts as a replica
my ($rc, $out, $err) = $subscriber->psql('postgres',
	qq{\\set VERBOSITY sqlstate\nINSERT INTO by_column VALUES (100, $fence)});
like($err, qr/LS001/, 'ordinary: a session of the subscriber is guarded');
is( $subscriber->safe_psql('postgres', qq{
		SET session_replication_role = replica;
		INSERT INTO by_column VALUES (100, $fence);
		DELETE FROM by_column WHERE id = 100 RETURNING id}),
	'100', 'ordinary: a session in session_replication_role = replica is not guarded');

# ---------------------------------------------------------------------
# ENABLE ALWAYS: the subscriber checks against its own leases, and stops
# ---------------------------------------------------------------------

my %refused = (
	by_column => qr/LS001 .*stale fence/,
	by_columns => qr/LS001 .*stale fence/);

foreach my $table (sort keys %refused)
{
	my $rows = rows($subscriber, $table);
	my $log = -s $subscriber->logfile;

	$subscriber->safe_psql('postgres',
		"ALTER TABLE $table ENABLE ALWAYS TRIGGER guard");
	write_rows($table);
	ok($subscriber->wait_for_log($refused{$table}, $log),
		"always, $table: the subscriber refuses the row");
	is(rows($subscriber, $table), $rows, "always, $table: the subscriber has no new row");

	# a session in the replica role is checked, too
	($rc, $out, $err) = $subscriber->psql('postgres', qq{\\set VERBOSITY sqlstate
		SET session_replication_role = replica;
		UPDATE $table SET fence = fence WHERE id = 2});
	like($err, qr/LS001/, "always, $table: a replica session is refused, too");

	# replication continues when the trigger is an ordinary one again
	$subscriber->safe_psql('postgres', "ALTER TABLE $table ENABLE TRIGGER guard");
	$publisher->wait_for_catchup('s');
	is(rows($subscriber, $table),
		rows($publisher, $table), "always, $table: replication continues without ALWAYS");
}

# The statement form does not fire for replicated rows, ALWAYS or not, but it
# does fire for a replicated TRUNCATE.  The mark for tokens of any service
# checks the rows alone, so it can stay on a subscriber for good.
$subscriber->safe_psql('postgres', q{
	ALTER TABLE by_mark ENABLE ALWAYS TRIGGER guard;
	ALTER TABLE by_transaction ENABLE ALWAYS TRIGGER guard});
write_rows('by_mark', 'by_transaction');
$publisher->safe_psql('postgres',
	"UPDATE by_mark SET token = $fence WHERE id = 1");
$publisher->wait_for_catchup('s');
is(rows($subscriber, 'by_mark', 'by_transaction'),
	rows($publisher, 'by_mark', 'by_transaction'),
	'always, by_mark: growing tokens pass, and the statement form does not fire');
my $log = -s $subscriber->logfile;
$publisher->safe_psql('postgres', qq{
	BEGIN;
	SELECT FROM leaselock.fence_assert('work', $fence);
	TRUNCATE by_transaction;
	COMMIT});
ok($subscriber->wait_for_log(qr/LS003 .*has not checked its fence/, $log),
	'always, by_transaction: TRUNCATE stops the subscriber');
isnt(rows($subscriber, 'by_transaction'), '', 'always, by_transaction: rows stay');
$subscriber->safe_psql('postgres',
	'ALTER TABLE by_transaction ENABLE TRIGGER guard');
$publisher->wait_for_catchup('s');
is(rows($subscriber, 'by_transaction'),
	'', 'always, by_transaction: replication continues without ALWAYS');

$subscriber->safe_psql('postgres', "SET session_replication_role = replica;
	UPDATE by_mark SET token = token + 1000000000000 WHERE id = 1");
$log = -s $subscriber->logfile;
$publisher->safe_psql('postgres', 'UPDATE by_mark SET token = token + 1 WHERE id = 1');
ok($subscriber->wait_for_log(qr/LS001 .*stale fence/, $log),
	'always, by_mark: a lower token stops the subscriber');
$subscriber->safe_psql('postgres', 'ALTER TABLE by_mark ENABLE TRIGGER guard');
$publisher->wait_for_catchup('s');
is(rows($subscriber, 'by_mark'),
	rows($publisher, 'by_mark'), 'always, by_mark: replication continues without ALWAYS');

# ---------------------------------------------------------------------
# CHECK: the subscriber checks it in any case
# ---------------------------------------------------------------------

$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');
$publisher->safe_psql('postgres', 'DROP PUBLICATION p');
subscribe('by_check');
$log = -s $subscriber->logfile;
write_rows('by_check');
ok($subscriber->wait_for_log(qr/23514 .*violates check constraint/, $log),
	'CHECK: the subscriber refuses the row');
$subscriber->safe_psql('postgres', 'ALTER TABLE by_check DROP CONSTRAINT guard');
$publisher->wait_for_catchup('s');
is(rows($subscriber, 'by_check'),
	rows($publisher, 'by_check'), 'CHECK: replication continues without it');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');
$publisher->safe_psql('postgres', 'DROP PUBLICATION p');

# ---------------------------------------------------------------------
# FOR ALL TABLES: the publisher keeps working
# ---------------------------------------------------------------------

$publisher->safe_psql('postgres', q{
	CREATE PUBLICATION everything FOR ALL TABLES;
	CREATE ROLE team});
my $identity = $publisher->safe_psql('postgres', q{
	SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_publication_tables
	WHERE pubname = 'everything' AND schemaname = 'leaselock'});
note("published: $identity");

# every writing call, on existing rows and on new ones; each must answer, and
# none may fail for lack of a replica identity
foreach my $round (1, 2)
{
	my @call = (
		q{SELECT FROM leaselock.lease_acquire('all', 'worker')},
		q{SELECT FROM leaselock.lease_acquire('all', 'waiter', wait => '100 s')},
		q{SELECT FROM leaselock.lease_acquire('all', 'waiter 2', wait => '100 s')},
		q{SELECT FROM leaselock.lease_acquire('mine', 'waiter')},
		q{SELECT FROM leaselock.lease_acquire('mine', 'worker', wait => '100 s')},
		q{SELECT leaselock.lease_get(ticket) FROM leaselock.lease_tickets},
		q{SELECT leaselock.lease_renew(ticket) FROM leaselock.lease_tickets},
		q{CALL leaselock.lease_acquire_wait('waited', 'worker')},
		q{SELECT leaselock.try_lock('named', 'worker', '1 h')},
		q{SELECT leaselock.renew_lock('named', 'worker', '1 h')},
		q{SELECT leaselock.release_lock('named', 'worker')},
		q{SELECT leaselock.lease_release_all('worker')},
		q{SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('all')},
		q{SELECT leaselock.lease_scope_create('scope', 'team')},
		q{SELECT leaselock.lease_scope_create('scope', current_user)},
		q{SELECT leaselock.lease_scope_drop('scope')},
		q{SELECT leaselock.fence_bump()},
		q{SELECT leaselock.fence_bump()},
		q{SELECT leaselock.lease_release_all('waiter')},
		q{SELECT leaselock.lease_release_all('waiter 2')},
		q{LOAD 'leaselock'; SET leaselock.clock_offset = '3 h';
			SELECT leaselock.lease_prune('0 s') > 0});

	foreach my $call (@call)
	{
		($rc, $out, $err) = $publisher->psql('postgres',
			"SET client_min_messages = error; $call");
		is($err, '', "FOR ALL TABLES, $round: " . $call =~ s/\s+/ /gr);
	}
	is( $publisher->safe_psql('postgres', q{
			SELECT count(*) FROM leaselock.locks WHERE name <> 'work'}),
		'0', "FOR ALL TABLES, $round: the locks are pruned");
}
write_rows(@guarded);
cmp_ok($fence, '>',
	$publisher->safe_psql('postgres', 'SELECT max(fence) FROM leaselock.floor'),
	'FOR ALL TABLES: a new fence is above the floor');

# a subscriber of all tables loses its own leases, and then stops
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '" . $publisher->connstr . " dbname=postgres' PUBLICATION everything WITH (copy_data = false)");
$publisher->safe_psql('postgres', q{SELECT leaselock.try_lock('theirs', 'p', '1 h')});
$publisher->wait_for_catchup('s');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM leaselock.lease_status}), '0', 'FOR ALL TABLES: a lease of the publisher is none on the subscriber');
like($subscriber->safe_psql('postgres', q{SELECT leaselock.try_lock('theirs', 's', '1 h')}), qr/^\d+$/, 'FOR ALL TABLES: the subscriber grants the lock');
$publisher->safe_psql('postgres', q{SELECT leaselock.renew_lock('theirs', 'p', '1 h')});
$publisher->wait_for_catchup('s');
is($subscriber->safe_psql('postgres', q{SELECT leaselock.renew_lock('theirs', 's', '1 h')}), 'f', "FOR ALL TABLES: a renewal on the publisher ends the subscriber's lease");
$subscriber->safe_psql('postgres', q{SELECT leaselock.try_lock('both', 's', '1 h')});
$log = -s $subscriber->logfile;
$publisher->safe_psql('postgres', q{SELECT leaselock.try_lock('both', 'p', '1 h')});
ok($subscriber->wait_for_log(qr/23505 .*"(?:locks_pkey|leaselock\.locks)"/, $log), 'FOR ALL TABLES: a lock that both know stops the subscriber');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');

# ---------------------------------------------------------------------

foreach my $node ($publisher, $subscriber)
{
	is_deeply([ internal_errors($node) ],
		[], $node->name . ': no internal error in the log');
	$node->stop;
}

done_testing();
