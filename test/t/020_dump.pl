# Dump and restore: tables guarded in each way are restored with rows that
# carry old fences.  A dump carries the last fences, the floor and the
# registered scopes, but not the leases.  And fences keep growing, even where
# the clock is behind.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $origin = new_node('origin');

# Another cluster, whose clock is behind by more than the floor is ahead
my $behind = new_node('behind', "leaselock.clock_offset = '-1000 d'");

# ---------------------------------------------------------------------
# What is dumped
# ---------------------------------------------------------------------

foreach my $node ($origin, $behind)
{
	$node->safe_psql('postgres', q{
		CREATE ROLE team; CREATE ROLE member IN ROLE team; CREATE ROLE stranger});
}
$origin->safe_psql('postgres', 'CREATE DATABASE app');
$origin->safe_psql('app', q{
CREATE EXTENSION leaselock;

CREATE TABLE by_column (fence bigint, value text);
CREATE TABLE by_columns (fence bigint, lock text, scope text, value text);
CREATE TABLE by_transaction (value text);
CREATE TABLE by_mark (id int PRIMARY KEY, token bigint, value text);
CREATE TABLE by_check (fence bigint, value text);
GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;

CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON by_column FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'work');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON by_columns FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'lock', 'scope');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE
	ON by_transaction FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'work');
CREATE TRIGGER guard BEFORE UPDATE ON by_mark FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_monotonic('token');
ALTER TABLE by_check ADD CONSTRAINT guard
	CHECK (leaselock.fence_check('work', fence)) NOT VALID;
});

# Writes a row under each guard with the fence
sub write_rows
{
	my ($fence, $value) = @_;
	return qq{
		BEGIN;
		SELECT FROM leaselock.fence_assert('work', $fence);
		INSERT INTO by_column VALUES ($fence, '$value');
		INSERT INTO by_columns VALUES ($fence, 'work', 'public', '$value');
		INSERT INTO by_transaction VALUES ('$value');
		INSERT INTO by_mark VALUES (1, $fence, '$value')
			ON CONFLICT (id) DO UPDATE SET token = $fence, value = '$value';
		INSERT INTO by_check VALUES ($fence, '$value');
		COMMIT;
	};
}

# the rows of five grants; those of the first four are stale
my $fence = 0;
foreach my $grant (1 .. 5)
{
	(my $ticket, $fence) = split /\|/, $origin->safe_psql('app', qq{
		SELECT ticket, fence FROM leaselock.lease_acquire('work', 'worker $grant')});
	$origin->safe_psql('app', write_rows($fence, "grant $grant"));
	$origin->safe_psql('app', "SELECT leaselock.lease_release('$ticket')")
	  if $grant < 5;
}

my %dumped = (work => $fence);

# the other kinds of locks: a named hold, one with waiters, a lapsed one, a
# released one, and one whose fence is ahead of the clock and of the floor
$dumped{named} = $origin->safe_psql('app',
	q{SELECT leaselock.try_lock('named', 'worker', '100 days')});
(my $waited_ticket, $dumped{waited}) = split /\|/, $origin->safe_psql('app',
	q{SELECT ticket, fence FROM leaselock.lease_acquire('waited', 'worker', '300 s')});
my $waiting_ticket = $origin->safe_psql('app',
	q{SELECT ticket FROM leaselock.lease_acquire('waited', 'waiter', wait => '300 s')});
$dumped{lapsed} = $origin->safe_psql('app',
	q{SELECT leaselock.try_lock('lapsed', 'worker', '1 microsecond')});
$dumped{released} = $origin->safe_psql('app', q{
	SELECT leaselock.try_lock('released', 'worker', '1 h');
	SELECT FROM leaselock.release_lock('released', 'worker')});
# (the row is created before the clock is set, so that no row is added then,
# and nothing is pruned by that clock)
$origin->safe_psql('app', q{
	SELECT leaselock.try_lock('ahead', 'worker', '1 h');
	SELECT leaselock.release_lock('ahead', 'worker')});
my $floor = $origin->safe_psql('app', 'SELECT leaselock.fence_bump()');
$dumped{ahead} = $origin->safe_psql('app', q{
	LOAD 'leaselock'; SET leaselock.clock_offset = '500 d';
	SELECT leaselock.try_lock('ahead', 'worker', '1 h')});
$origin->safe_psql('app', q{
	SELECT FROM leaselock.lease_scope_create('registered', 'team');
	SELECT FROM leaselock.lease_scope_create('lost', 'team')});

cmp_ok($floor, '>', $dumped{$_}, "the floor is above the fence of $_")
  foreach qw(work named waited lapsed released);
cmp_ok($dumped{ahead}, '>', $floor, 'one fence is above the floor');

my $rows = q{
	SELECT 'by_column', fence, value FROM by_column
	UNION ALL SELECT 'by_columns ' || lock || scope, fence, value FROM by_columns
	UNION ALL SELECT 'by_transaction', NULL, value FROM by_transaction
	UNION ALL SELECT 'by_mark', token, value FROM by_mark
	UNION ALL SELECT 'by_check', fence, value FROM by_check
	ORDER BY 1, 2, 3};
my $expected_rows = $origin->safe_psql('app', $rows);
my $guards = q{
	SELECT tgrelid::regclass::text, pg_get_triggerdef(oid), tgenabled
	FROM pg_trigger WHERE tgname = 'guard'
	UNION ALL SELECT conrelid::regclass::text, pg_get_constraintdef(oid), 'c'
	FROM pg_constraint WHERE conname = 'guard' ORDER BY 1};
my $expected_guards = $origin->safe_psql('app', $guards);
is(scalar(split /\n/, $expected_rows), 21, 'there are rows to dump');
is(scalar(split /\n/, $expected_guards), 5, 'there are guards to dump');

# ---------------------------------------------------------------------
# The dumps
# ---------------------------------------------------------------------

my $folder = PostgreSQL::Test::Utils::tempdir();

sub dump_app
{
	my ($file, @options) = @_;

	$origin->command_ok([ 'pg_dump', @options, '-f', "$folder/$file", 'app' ],
		"dump: $file");
	return;
}

dump_app('plain.sql');
dump_app('inserts.sql', '--inserts');
dump_app('whole.custom', '-Fc');
dump_app('schema.sql', '--schema-only');
dump_app('schema.custom', '-Fc', '--schema-only');
dump_app('data.sql', '--data-only');
dump_app('data_disabled.sql', '--data-only', '--disable-triggers');
dump_app('data.custom', '-Fc', '--data-only');
dump_app('data_inserts.sql', '--data-only', '--inserts', '--disable-triggers');

# the row of a held lock names its ticket; nothing else carries it
unlike(slurp_file("$folder/$_"), qr/$waiting_ticket|^(?:COPY|INSERT INTO) leaselock\.tickets/m,
	"$_ carries no ticket") foreach qw(plain.sql inserts.sql data.sql);
unlike(slurp_file("$folder/$_") =~ s/^[^\n]*\bpublic\b[^\n]*\bwaited\b[^\n]*$//mr, qr/$waited_ticket/,
	"$_: a holder's ticket is only in the lock's row") foreach qw(plain.sql inserts.sql data.sql);

sub create
{
	my ($node, $database) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	return;
}

sub restore
{
	my ($node, $database, $file, @options) = @_;
	my @command = ('psql', '-Xqv', 'ON_ERROR_STOP=1', '-o', "$folder/psql.out",
		@options, '-d', $database, '-f', "$folder/$file");

	@command = ('pg_restore', '--exit-on-error', @options, '-d', $database,
		"$folder/$file") if $file =~ /custom$/;
	$node->command_ok(\@command, join ' ', "$database: restore $file", @options);
	return;
}

# ---------------------------------------------------------------------
# What a restored database must be like
# ---------------------------------------------------------------------

sub check_leases
{
	my ($node, $database, $has_last_fences) = @_;
	my $offset = $node == $behind ? '-1000 d' : '0';

	is($node->safe_psql($database, 'SELECT * FROM leaselock.lease_status'),
		'', "$database: nobody holds a lock");
	is($node->safe_psql($database, 'SELECT * FROM leaselock.lease_tickets'),
		'', "$database: there are no tickets");
	is( $node->safe_psql($database, qq{
			SELECT state FROM leaselock.lease_get('$waited_ticket')
			UNION ALL SELECT state FROM leaselock.lease_get('$waiting_ticket')}),
		"gone\ngone", "$database: the earlier tickets are gone");
	foreach my $name (sort keys %dumped)
	{
		is( $node->safe_psql($database, qq{SELECT count(*)
				FROM leaselock.lease_peek('$name')}),
			'0', "$database: $name is not held");
		is( $node->safe_psql($database, qq{
				SELECT leaselock.fence_check('$name', $dumped{$name}),
					leaselock.fence_check('$name', $dumped{$name}, allow_lapsed => true),
					leaselock.renew_lock('$name', 'worker', '1 h'),
					leaselock.release_lock('$name', 'worker')}),
			'f|f|f|f', "$database: $name, its former holder has nothing");
	}
	return unless $has_last_fences;

	# for a lock that the dump does not know, and for those that it does
	cmp_ok(
		$node->safe_psql($database,
			q{SELECT leaselock.try_lock('new', 'worker', '1 h')}),
		'>', $floor, "$database: a new fence is above the floor");
	foreach my $name (sort keys %dumped)
	{
		my ($state, $next) = split /\|/, $node->safe_psql($database, qq{
			SELECT state, fence FROM leaselock.lease_acquire('$name', 'next')});
		is($state, 'held', "$database: $name can be acquired");
		cmp_ok($next, '>', $dumped{$name}, "$database: $name, its fence grows");
		cmp_ok($next, '>', $floor, "$database: $name, its fence is above the floor");
		is( $node->safe_psql($database,
				"SELECT leaselock.fence_check('$name', $next)"),
			't', "$database: $name, its fence is current");
	}
	my $acquire = q{SELECT state FROM leaselock.lease_acquire('x', 'worker', scope => '%s')};
	foreach my $scope (qw(registered lost))
	{
		is( node_outcome($node,
				'SET ROLE stranger; ' . sprintf($acquire, $scope), $database),
			'42501', "$database: scope $scope is closed");
		is( node_outcome($node,
				'SET ROLE member; ' . sprintf($acquire, $scope), $database),
			'held', "$database: scope $scope is open to its team");
	}
	return;
}

sub check_guards
{
	my ($node, $database) = @_;

	is($node->safe_psql($database, $guards),
		$expected_guards, "$database: the guards are there");
	my ($next) = $node->safe_psql($database, q{
		SELECT fence FROM leaselock.lease_acquire('work', 'next')});
	is(node_outcome($node, write_rows($next, 'next'), $database),
		'', "$database: the current holder can write");

	my $stale = $dumped{work};
	my %refused = (
		"INSERT INTO by_column VALUES ($stale)" => 'LS001',
		"UPDATE by_column SET fence = $stale" => 'LS001',
		"INSERT INTO by_columns VALUES ($stale, 'work', 'public')" => 'LS001',
		'DELETE FROM by_transaction' => 'LS003',
		"UPDATE by_mark SET token = $stale" => 'LS001',
		"INSERT INTO by_check VALUES ($stale)" => '23514');
	is(node_outcome($node, $_, $database),
		$refused{$_}, "$database: refused: " . s/$stale/stale/r)
	  foreach sort keys %refused;
	return;
}

sub check_whole
{
	my ($node, $database) = @_;

	is($node->safe_psql($database, $rows),
		$expected_rows, "$database: the rows are there");
	check_leases($node, $database, 1);
	check_guards($node, $database);
	return;
}

# ---------------------------------------------------------------------
# Whole dumps
# ---------------------------------------------------------------------

my $serial = 0;
foreach my $how (
	[ $origin, 'plain.sql', '-1' ],
	[ $origin, 'inserts.sql' ],
	[ $origin, 'whole.custom' ],
	[ $behind, 'plain.sql', '-1' ],
	[ $behind, 'whole.custom', '-j', '2' ])
{
	my ($node, @how) = @$how;
	my $database = $node->name . ++$serial;

	create($node, $database);
	restore($node, $database, @how);
	check_whole($node, $database);
}

# a restored database is dumped in its turn; the leases of the new origin are
# void in the copy, too, and its fences keep growing
$origin->command_ok([ 'pg_dump', '-f', "$folder/again.sql", 'origin1' ],
	'dump: a restored database');
my $grown = $origin->safe_psql('origin1',
	q{SELECT fence FROM leaselock.lease_acquire('work', 'next')});
create($behind, 'again');
restore($behind, 'again', 'again.sql');
is($behind->safe_psql('again', 'SELECT * FROM leaselock.lease_status'),
	'', 'again: nobody holds a lock');
cmp_ok(
	$behind->safe_psql('again',
		q{SELECT fence FROM leaselock.lease_acquire('work', 'again')}),
	'>', $grown, 'again: the fence grows');

# ---------------------------------------------------------------------
# Schema only: no last fences, but nothing either that they could break
# ---------------------------------------------------------------------

foreach my $file ('schema.sql', 'schema.custom')
{
	my $database = 'schema' . ++$serial;

	create($origin, $database);
	restore($origin, $database, $file);
	is($origin->safe_psql($database, $rows), '', "$database: no rows");
	is( $origin->safe_psql($database, q{
			SELECT (SELECT count(*) FROM leaselock.locks),
				(SELECT count(*) FROM leaselock.floor),
				(SELECT count(*) FROM leaselock.scopes)}),
		'0|0|0', "$database: no rows of the extension either");
	check_leases($origin, $database, 0);
	check_guards($origin, $database);
}

# ---------------------------------------------------------------------
# Data only, into a database made by a schema-only dump
# ---------------------------------------------------------------------

# The guards work: a row with a fence of another database is refused.  A
# trigger can be disabled for the restore, a CHECK cannot.
create($origin, 'data_refused');
restore($origin, 'data_refused', 'schema.sql');
$origin->command_fails_like(
	[
		'psql', '-Xqv', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '-1', '-d',
		'data_refused', '-f', "$folder/data.sql"
	],
	qr/(LS001|LS003|23514)/,
	'data_refused: a data-only restore under enabled guards is refused');
is($origin->safe_psql('data_refused', $rows), '', 'data_refused: nothing is written');

my $without_check = 'ALTER TABLE by_check DROP CONSTRAINT guard';
my $with_check = q{ALTER TABLE by_check ADD CONSTRAINT guard
	CHECK (leaselock.fence_check('work', fence)) NOT VALID};
foreach my $how (
	[ $origin, 'data_disabled.sql' ],
	[ $origin, 'data_inserts.sql' ],
	[ $behind, 'data.custom', '--disable-triggers' ])
{
	my ($node, @how) = @$how;
	my $database = 'data' . ++$serial;

	create($node, $database);
	restore($node, $database, 'schema.sql');
	$node->safe_psql($database, $without_check);
	restore($node, $database, @how);
	$node->safe_psql($database, $with_check);
	check_whole($node, $database);
}

# ---------------------------------------------------------------------
# Data only for the second time: the existing rows stay, and are none the worse
# ---------------------------------------------------------------------

create($origin, 'twice');
restore($origin, 'twice', 'plain.sql');
$origin->safe_psql('twice', $without_check);
my $live = $origin->safe_psql('twice',
	q{SELECT fence FROM leaselock.lease_acquire('work', 'live')});
$origin->command_checks_all(
	[
		'psql', '-Xq', '-v', 'VERBOSITY=sqlstate', '-d', 'twice', '-f',
		"$folder/data_disabled.sql"
	],
	0, [qr/^/],
	[
		# the extension's rows collide with the existing ones; each COPY is
		# refused as a whole
		qr/23505.*23505.*23505/s
	],
	'twice: the second data-only restore');
is( $origin->safe_psql('twice', q{
		SELECT owner, fence, lapsed FROM leaselock.lease_peek('work')}),
	"live|$live|f", 'twice: the lease of the database stays');
is( $origin->safe_psql('twice',
		"SELECT leaselock.fence_check('work', $live)"),
	't', 'twice: its fence is still current');
is( $origin->safe_psql('twice',
		'SELECT count(*) FROM leaselock.floor'),
	'2', 'twice: the floor has two rows');
my $bumped = $origin->safe_psql('twice', 'SELECT leaselock.fence_bump()');
cmp_ok($bumped, '>', $floor, 'twice: the floor can be raised');
cmp_ok(
	$origin->safe_psql('twice',
		q{SELECT leaselock.try_lock('after the bump', 'worker', '1 h')}),
	'>', $bumped, 'twice: a new fence is above the raised floor');
cmp_ok(
	$origin->safe_psql('twice', q{
		SELECT FROM leaselock.lease_release_all('live');
		SELECT fence FROM leaselock.lease_acquire('work', 'next')}),
	'>', $live, 'twice: fences grow');

# ---------------------------------------------------------------------
# The owner of a database, who installed the extension there, dumps and
# restores it without help.
# ---------------------------------------------------------------------

$origin->safe_psql('postgres', q{
	CREATE ROLE owner LOGIN;
	CREATE DATABASE owned OWNER owner;
	CREATE DATABASE owned_again OWNER owner});
my $owned = $origin->safe_psql('owned', q{
	SET ROLE owner;
	CREATE EXTENSION leaselock;
	SELECT leaselock.lease_scope_create('registered', 'team');
	SELECT leaselock.fence_bump();
	SELECT leaselock.try_lock('work', 'worker', '1 h')}) =~ s/.*\n//sr;
$origin->command_ok(
	[ 'pg_dump', '-U', 'owner', '-f', "$folder/owned.sql", 'owned' ],
	'owned: its owner dumps it');
restore($origin, 'owned_again', 'owned.sql', '-U', 'owner');
is($origin->safe_psql('owned_again', 'SELECT * FROM leaselock.lease_status'),
	'', 'owned_again: nobody holds a lock');
cmp_ok(
	$origin->safe_psql('owned_again', q{
		SET ROLE owner; SELECT leaselock.try_lock('work', 'next', '1 h')}),
	'>', $owned, 'owned_again: the fence grows');
is( node_outcome($origin, q{SET ROLE stranger;
		SELECT leaselock.lease_acquire('x', 'y', scope => 'registered')}, 'owned_again'),
	'42501', 'owned_again: the registered scope is closed');

# ---------------------------------------------------------------------

foreach my $node ($origin, $behind)
{
	is_deeply([ internal_errors($node) ],
		[], $node->name . ': no internal error in the log');
	$node->stop;
}

done_testing();
