# doc/fencing.md: its blocks, as they stand there, and what the page says of them.
#
# Native only: no server version matters to it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib $FindBin::RealBin;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $page = PageTest->new('doc/fencing.md');
my $node = $page->node;

sub sql { return $page->sql(@_) }

# run_sql(SESSION, SQL): as a block of the page would
sub run_sql { return $page->run_sql(@_) }

# worker(SQL, SESSION): by its SQLSTATE, if it is refused
sub worker { return run_sql($_[1] // 'worker-1', "\\set VERBOSITY sqlstate\n$_[0];\n\\set VERBOSITY default") }

# taken(LOCK): ends its grant, and makes another
sub taken
{
	my ($lock) = @_;
	return sql(qq{SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$lock');
		SELECT state FROM leaselock.lease_acquire('$lock', 'worker-2')});
}

$page->after(
	write => sub { is(sql('SELECT count(*) FROM reply'), '1', 'the row is written') },
	single => sub {
		is(sql('SELECT count(*), min(body) FROM reply'), '2|better', 'the single statements are carried out');
		is(worker(q{INSERT INTO reply SELECT 42, 'worker-1', 'late' FROM leaselock.fence_assert('thread-work.42', :fence - 1)}),
			"ERROR:  LS001\n", 'not with a fence that is stale');
		is(worker(q{UPDATE reply SET body = 'late' FROM leaselock.fence_assert('thread-work.42', :fence - 1)}), "ERROR:  LS001\n", 'nor UPDATE');
		is(worker(q{DELETE FROM reply USING leaselock.fence_assert('thread-work.42', :fence - 1)}), "ERROR:  LS001\n", 'nor DELETE');
		is(worker(q{WITH c AS (SELECT leaselock.fence_assert('thread-work.42', 1)) UPDATE reply SET worker = 'cte'}), '', 'in WITH the call may not be made');
		is(worker(q{CREATE TEMP TABLE empty (); DELETE FROM empty WHERE leaselock.fence_assert('thread-work.42', 1) IS NULL}), '', 'nor in WHERE, without a row');
	},
	'ledger-checked' => sub {
		is(sql('SELECT count(*) FROM ledger'), '1', 'the row is written');
		is(worker(q{INSERT INTO ledger SELECT 2, 20 FROM leaselock.fence_assert('ledger', :ledger_fence)}), "ERROR:  LS003\n", 'in the same statement the check comes too late');
		is(worker('UPDATE ledger SET amount = 0; DELETE FROM ledger; TRUNCATE ledger'), "ERROR:  LS003\n" x 3, 'UPDATE, DELETE and TRUNCATE are guarded, too');
	},
	answer => sub { is(taken('thread-work.42'), "t\nheld", 'another worker gets the lock') },
	'next-holder-right' => sub {
		is(sql('SELECT body FROM answer'), 'second', 'the row is updated');
		is(worker(q{UPDATE answer SET body = 'third', fence = :fence}), "ERROR:  LS001\n", 'the worker that was superseded is refused');
		is(worker(q{UPDATE answer SET body = 'third'}), '', 'but not where it leaves the new fence alone');
	},
	'answer-delete' => sub {
		is(sql('SELECT count(*) FROM answer'), '0', 'the row is deleted');
		is(worker('DELETE FROM answer; TRUNCATE answer'), "ERROR:  LS003\n" x 2, 'not without a check');
	},
	page => sub {
		is(sql('SELECT body FROM page'), 'hello', 'the row is written');
		sql(q{SELECT leaselock.lease_break(name, fence, scope) FROM leaselock.lease_peek('index.html', 'site')});
		my $fence = sql(q{SELECT fence FROM leaselock.lease_acquire('index.html', 'editor-2', scope => 'site')});
		is(worker(q{UPDATE page SET body = 'late'}, 'editor-1'), "ERROR:  LS001\n", 'columns: an UPDATE that leaves the fence alone is judged by that of the row');
		is(worker("BEGIN; DELETE FROM page; TRUNCATE page; ROLLBACK", 'editor-1'), '', 'columns: DELETE and TRUNCATE are not checked');
		sql(q{CREATE TABLE page_log ();
			CREATE TRIGGER zz_fence BEFORE INSERT ON page_log FOR EACH STATEMENT EXECUTE FUNCTION leaselock.fence_guard('transaction', 'index.html', 'site')});
		is(worker('INSERT INTO page_log DEFAULT VALUES', 'editor-1'), "ERROR:  LS003\n", 'another table, guarded by the transaction');
		is(worker("BEGIN; UPDATE page SET fence = $fence; INSERT INTO page_log DEFAULT VALUES; COMMIT", 'editor-1'), '', 'columns: a row that was written counts as a check');
		is(sql('SELECT count(*) FROM page_log'), '1', 'and the other row is written');
	},
	config => sub {
		is(worker(q{UPDATE config SET token = 34; UPDATE config SET value = 'newer', token = 35}), '', 'the same or a greater number passes');
		is(sql('SELECT value, token FROM config'), 'newer|35', 'and is written');
	},
	check => \&in_words);

# What the page says without a block
sub in_words
{
	is(sql('SELECT body FROM note'), 'first', 'a row with the fence of the grant is written');

	# after the first check of a fence a takeover shows at COMMIT; of a CHECK as well
	foreach my $table ('answer', 'note')
	{
		my $row = "INSERT INTO $table VALUES (42, 'stale', :stale_fence)";

		run_sql('worker-1', q{SELECT fence AS stale_fence FROM leaselock.lease_acquire('thread-work.42', 'worker-2') \gset});
		is(worker("BEGIN;\n$row"), '', "$table: a row");
		is(taken('thread-work.42'), "t\nheld", 'another worker gets the lock');
		is(worker($row), '', "$table: a second row, when the lock is another's") if $table eq 'answer';
		is(worker('COMMIT'), "ERROR:  LS001\n", "$table: COMMIT fails with LS001");
	}

	# the constraint, and how it gets valid
	is(sql(q{SELECT convalidated FROM pg_constraint WHERE conname = 'note_fence'}), 'f', 'the constraint is not valid');
	sql(q{
		CREATE TABLE at_once (fence bigint, CONSTRAINT at_once CHECK (leaselock.fence_check('thread-work.42', fence)) NOT VALID);
		CREATE TABLE parts (id int, fence bigint) PARTITION BY LIST (id);
		CREATE TABLE part_0 PARTITION OF parts FOR VALUES IN (0);
		ALTER TABLE part_0 ADD CONSTRAINT parts CHECK (leaselock.fence_check('thread-work.42', fence)) NOT VALID;
		ALTER TABLE parts ADD CONSTRAINT parts CHECK (leaselock.fence_check('thread-work.42', fence)) NOT VALID;
		CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1);
		CREATE TABLE part_2 (id int, fence bigint)});
	is(sql(q{SELECT convalidated FROM pg_constraint WHERE conname = 'at_once'}), 't', 'in CREATE TABLE, NOT VALID is ignored');
	is(sql(q{SELECT convalidated FROM pg_constraint WHERE conrelid = 'part_1'::regclass}), 't', 'a partition gets a valid copy');
	my ($rc, $out, $err) = $node->psql('postgres', 'ALTER TABLE parts ATTACH PARTITION part_2 FOR VALUES IN (2)');
	like($err, qr/missing constraint "parts"/, 'a table without the constraint cannot be attached');
	sql(q{ALTER TABLE part_2 ADD CONSTRAINT parts CHECK (leaselock.fence_check('thread-work.42', fence)) NOT VALID;
		ALTER TABLE parts ATTACH PARTITION part_2 FOR VALUES IN (2)});
	is(sql(q{SELECT convalidated FROM pg_constraint WHERE conrelid = 'part_2'::regclass}), 'f', 'with it, it can, and the constraint is not valid');
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nALTER TABLE note VALIDATE CONSTRAINT note_fence");
	like($err, qr/23514/, 'with old rows it cannot be validated');

	# what a foreign key does to the row of an earlier grant
	sql(q{
		CREATE TABLE parent (id int PRIMARY KEY);
		INSERT INTO parent VALUES (1), (2);
		CREATE TABLE by_default (parent int DEFAULT 2 REFERENCES parent ON UPDATE CASCADE ON DELETE SET DEFAULT, fence bigint);
		CREATE TABLE by_null (parent int REFERENCES parent ON UPDATE CASCADE ON DELETE SET NULL, fence bigint)});
	foreach my $table ('by_default', 'by_null')
	{
		sql(qq{INSERT INTO $table VALUES (1, 1);
			CREATE TRIGGER zz_fence BEFORE INSERT OR UPDATE ON $table FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'thread-work.42')});
		is(worker('UPDATE parent SET id = 3 WHERE id = 1; DELETE FROM parent WHERE id = 1'), "ERROR:  LS001\n" x 2, "$table: a foreign key's UPDATE leaves the fence alone");
		sql("TRUNCATE $table");
	}

	# COMMIT waits in a deferred trigger while the lock is taken
	sql(q{
		CREATE TABLE late ();
		CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gate()});
	my ($gate, $writer) = map { session($node) } 1, 2;
	outcome($gate, 'SELECT pg_advisory_lock(7)');
	my $fence = sql(q{SELECT fence FROM leaselock.lease_acquire('thread-work.42', 'worker-2')});
	outcome($writer, "BEGIN; SELECT leaselock.fence_assert('thread-work.42', $fence); INSERT INTO late DEFAULT VALUES");
	begin($writer, 'COMMIT');
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}), 'COMMIT waits in a deferred trigger');
	is(taken('thread-work.42'), "t\nheld", 'another worker gets the lock');
	outcome($gate, 'SELECT pg_advisory_unlock(7)');
	is(awaited($writer), 'LS001', 'deferred triggers run before the check at COMMIT');
	$_->quit foreach $gate, $writer;

	# a valid constraint in a dump
	my $dumped = PostgreSQL::Test::Utils::tempdir() . '/valid.sql';
	$fence = sql(q{SELECT fence FROM leaselock.lease_acquire('thread-work.42', 'worker-2')});
	sql("INSERT INTO at_once VALUES ($fence); INSERT INTO parts VALUES (1, $fence)");
	sql('CREATE DATABASE valid');
	$node->safe_psql('valid', 'CREATE EXTENSION leaselock');
	foreach my $table ('at_once', 'part*')
	{
		$node->command_ok([ 'pg_dump', '-t', $table, '-f', $dumped, $node->connstr('postgres') ], "$table is dumped");
		($rc, $out, $err) = $node->psql('valid', slurp_file($dumped), on_error_stop => 0);
		like($err, qr/new row for relation "(?:at_once|part_1)" violates check constraint/, "$table: the dump with a valid constraint does not restore");
	}

	# a dump of the data alone
	my $dump = PostgreSQL::Test::Utils::tempdir() . '/data.sql';
	sql(q{ALTER TABLE page ENABLE ALWAYS TRIGGER zz_fence; TRUNCATE note; DROP TABLE parts});
	run_sql('worker-1', q{SELECT fence AS note_fence FROM leaselock.lease_acquire('thread-work.42', 'worker-2') \gset
INSERT INTO note VALUES (42, 'kept', :note_fence)});
	$node->command_ok([ qw(pg_dump --data-only --disable-triggers -t page -t note -f), $dump, $node->connstr('postgres') ], 'the data is dumped');
	$node->command_ok([ qw(pg_dump --schema-only -t page -t note -f), "$dump.schema", $node->connstr('postgres') ], 'and the tables');
	$node->safe_psql('postgres', 'CREATE DATABASE restored');
	$node->safe_psql('restored', 'CREATE EXTENSION leaselock');
	$node->safe_psql('restored', slurp_file("$dump.schema"));
	($rc, $out, $err) = $node->psql('restored', slurp_file($dump));
	like($err, qr/violates check constraint "note_fence"/, 'a CHECK constraint is in the way of the data');
	$node->safe_psql('restored', 'ALTER TABLE note DROP CONSTRAINT note_fence; TRUNCATE page');
	$node->safe_psql('restored', slurp_file($dump));
	is($node->safe_psql('restored', 'SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM note)'), '1|1', 'without it the data is restored');
	is($node->safe_psql('restored', q{SELECT tgenabled FROM pg_trigger WHERE tgname = 'zz_fence'}), 'O', 'a trigger that was ENABLE ALWAYS is an ordinary one');

	# the extension that is in use
	($rc, $out, $err) = $node->psql('postgres', 'DROP EXTENSION leaselock');
	like($err, qr/cannot drop extension leaselock/, 'the extension is not dropped while triggers use it');

	# NOTIFY, and another server
	run_sql('worker-2', 'LISTEN written');
	run_sql('worker-1', q{SELECT fence AS stale_fence FROM leaselock.lease_acquire('thread-work.42', 'worker-2') \gset});
	is(worker(q{BEGIN;
NOTIFY written;
DO $$ BEGIN PERFORM 1 FROM leaselock.lease_peek('thread-work.42') p, leaselock.fence_assert(p.name, p.fence); END $$}), '', 'a transaction that notifies');
	is(taken('thread-work.42'), "t\nheld", 'another worker gets the lock');
	is(worker('COMMIT'), "ERROR:  LS001\n", 'it fails');
	is(run_sql('worker-2', 'SELECT 1 WHERE false') =~ s/\A\s*\?column\?\s*-+\s*\z//r, '', 'and nobody is notified');
  SKIP:
	{
		skip 'postgres_fdw IS NOT INSTALLED', 4 if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}) eq '0';
		sql(sprintf q{CREATE EXTENSION postgres_fdw;
			CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%s', port '%d', dbname 'restored');
			CREATE USER MAPPING FOR CURRENT_USER SERVER far;
			CREATE FOREIGN TABLE far_away (id int) SERVER far}, $node->host, $node->port);
		$node->safe_psql('restored', 'CREATE TABLE far_away (id int)');
		run_sql('worker-3', q{SELECT fence AS stale_fence FROM leaselock.lease_acquire('thread-work.42', 'worker-2') \gset});
		is(worker(q{BEGIN;
DO $$ BEGIN PERFORM 1 FROM leaselock.lease_peek('thread-work.42') p, leaselock.fence_assert(p.name, p.fence); END $$;
INSERT INTO far_away VALUES (1)}, 'worker-3'), '', 'a transaction that writes to another server');
		is(taken('thread-work.42'), "t\nheld", 'another worker gets the lock');
		is(worker('COMMIT', 'worker-3'), "ERROR:  LS001\n", 'it fails');
		is($node->safe_psql('restored', 'SELECT count(*) FROM far_away'), '1', 'but the other server has committed');
	}
	return;
}

$page->run;

done_testing();
