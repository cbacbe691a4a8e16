# The extension is trusted: its owner may be anybody who owns a database.
# Nothing that such an owner does, and nothing that an upgrade or a copy of the
# database does, crashes the library, makes it hang or misleads it.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

# a crash must not hide what comes after it
my $node = new_node('trust', qq{
max_connections = 40
restart_after_crash = on
session_preload_libraries = 'leaselock'
});
$node->safe_psql('postgres', q{
CREATE ROLE dbo LOGIN;
CREATE ROLE stranger LOGIN;
CREATE ROLE team;
});
$node->safe_psql('postgres', 'CREATE DATABASE app OWNER dbo');

# as(ROLE, SQL, DATABASE): the output of the SQL, followed by the SQLSTATEs of
# its errors; waits for a server that has crashed
sub as
{
	my ($role, $sql, $database) = @_;
	my ($out, $err);

	foreach (1 .. 300)
	{
		(undef, $out, $err) = $node->psql($database // 'app', "\\set VERBOSITY sqlstate\n$sql",
			extra_params => [ '-U', $role ], on_error_stop => 0);
		last if $err !~ /FATAL:.*(?:starting up|in recovery|not yet accepting)/;
		select undef, undef, undef, 0.1;
	}
	return join "\n", grep { $_ ne '' } $out, $err =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5})/g,
	  $err =~ /(server closed the connection|connection to server was lost)/ ? 'lost' : ();
}

sub as_superuser
{
	my ($sql, $database) = @_;
	return as(scalar getpwuid($>), $sql, $database);
}

sub database_session
{
	my ($role, @setup) = @_;
	my $session = $node->background_psql('app', on_error_stop => 0, extra_params => [ '-U', $role ]);

	$session->query_safe($_) foreach '\set VERBOSITY sqlstate', @setup;
	return $session;
}

# told(SESSION, SQL): outcome() in a session that a crash may have ended;
# without SQL, awaited()
sub told
{
	my ($session, $sql) = @_;
	return eval { outcome($session, $sql // '') } // 'lost';
}

# Creates the extension anew, whatever is in its place
sub anew
{
	as_superuser('SET client_min_messages = error; DROP EXTENSION IF EXISTS leaselock CASCADE; DROP SCHEMA IF EXISTS leaselock CASCADE');
	is(as('dbo', 'CREATE EXTENSION leaselock'), '', 'the owner creates the extension');
	return;
}

# Checks that every call works for a role that may do nothing else
my $serial = 0;

sub works
{
	my ($what) = @_;
	my $n = ++$serial;

	is( as('stranger', qq{
			SELECT count(*) >= 0 FROM leaselock.lease_status;
			SELECT count(*) >= 0 FROM leaselock.lease_tickets;
			SELECT state FROM leaselock.lease_acquire('works $n', 'w $n');
			SELECT fence > 0 AND fence < 2::bigint ^ 53, owner FROM leaselock.lease_peek('works $n');
			SELECT leaselock.lease_release_all('w $n');
			SELECT leaselock.try_lock('works too $n', 's', '1 h') BETWEEN 1 AND 2::bigint ^ 53;
			SELECT leaselock.release_lock('works too $n', 's');
			SELECT state FROM leaselock.lease_acquire('works $n', 's', scope => 'scope of $n')}),
		"t\nt\nheld\nt|w $n\n1\nt\nt\nheld", "$what: every call works");
	return;
}

# ---------------------------------------------------------------------
# Rows that the owner may insert, because that is how a dump is restored
# ---------------------------------------------------------------------

anew();
my $seed = as('dbo', q{SELECT leaselock.try_lock('seed', 'm', '1 h')});
like($seed, qr/^\d+$/, 'a lock is held');

# forged(TABLE, VALUES): an INSERT of a row like the existing one except for
# some columns
sub forged
{
	my ($table, %values) = @_;
	my @columns = split /\n/, as_superuser(qq{SELECT attname FROM pg_attribute
		WHERE attrelid = 'leaselock.$table'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum});

	die "no column of $table: " . join ', ', keys %values if grep { my $name = $_; !grep { $_ eq $name } @columns } keys %values;
	return "INSERT INTO leaselock.$table (" . join(', ', @columns) . ') SELECT '
	  . join(', ', map { $values{$_} // $_ } @columns) . " FROM leaselock.$table LIMIT 1";
}

my $most = '9223372036854775807';
my $least = '-9223372036854775808';
as_superuser(q{SELECT leaselock.lease_scope_create('registered', 'team')});

# values that no row may have
my @forged = (
	[ locks => 'a role without an owner', role => '10', owner => 'NULL' ],
	[ locks => 'an owner without a role', role => 'NULL', owner => q{'x'} ],
	[ locks => 'role 0', role => '0', owner => q{'x'} ],
	[ locks => 'an empty owner', owner => q{''} ],
	[ locks => 'an owner that is too long', owner => q{repeat('x', 100000)} ],
	[ locks => 'a control character in an owner', owner => q{E'a\033[2J'} ],
	[ locks => 'the greatest possible fence', fence => $most ],
	[ locks => 'a fence of 2^62', fence => '4611686018427387904' ],
	[ locks => 'a negative fence', fence => '-1' ],
	[ locks => 'the least possible fence', fence => "($least)" ],
	[ locks => 'an empty name', name => q{''} ],
	[ locks => 'a name that is too long', name => q{repeat('x', 256)} ],
	[ locks => 'a line break in a name', name => q{E'a\nb'} ],
	[ locks => 'a space before a name', name => q{' a'} ],
	[ locks => 'an empty scope', scope => q{''} ],
	[ locks => 'a scope that is too long', scope => q{repeat('x', 2000)} ],
	[ locks => 'a tab after a scope', scope => q{E'a\t'} ],
	[ locks => 'a negative number of tickets', tickets => '-1' ],
	[ locks => 'a negative place', passed => '-1' ],
	[ locks => 'the greatest possible place', passed => $most ],
	[ floor => 'the greatest possible fence', fence => $most, reading => '0' ],
	[ floor => 'a fence of 2^62', fence => '4611686018427387904', reading => '0' ],
	[ floor => 'a negative fence', fence => '-1', reading => '0' ],
	[ floor => 'the greatest possible reading', fence => '5', reading => $most ],
	[ floor => 'a negative reading', fence => '5', reading => '-5' ],
	[ scopes => 'an empty scope', scope => q{''} ],
	[ scopes => 'a scope that is too long', scope => q{repeat('x', 256)} ],
	[ scopes => 'a control character in a scope', scope => q{E'\001'} ]);
as_superuser('SELECT leaselock.fence_bump()');

foreach my $case (@forged)
{
	my ($table, $what, %values) = @$case;
	my $scope = "forged " . ++$serial;

	# a lock other than the existing one
	$values{scope} //= "'$scope'" if $table ne 'floor';
	my $outcome = as('dbo', forged($table, %values));
	like($outcome, qr/^23(?:514|502)$/, "$table, $what: refused");
	works("$table, $what");
	# where it is not refused, the next row must not suffer from it
	anew() if $outcome eq '';
	as('dbo', q{SELECT leaselock.try_lock('seed', 'm', '1 h')}) if $outcome eq '';
	as_superuser(q{SELECT leaselock.lease_scope_create('registered', 'team'); SELECT leaselock.fence_bump()}) if $outcome eq '';
}

# values that a row may have, but that nobody would give it
my @strange = (
	[ locks => 'infinite times', changed_at => q{'infinity'}, hold_expires_at => q{'infinity'}, granted_at => q{'-infinity'} ],
	[ locks => 'a time long ago', changed_at => q{'4000-01-01 BC'} ],
	[ locks => 'a role that does not exist', role => '4294967295' ],
	[ locks => 'more tickets than there are', tickets => '2147483647', expires_at => q{now() + interval '1 h'} ],
	[ locks => 'another installation', home => 'gen_random_uuid()' ],
	[ locks => 'a future transaction', granted_xid => q{'18446744073709551615'::xid8} ],
	[ locks => 'no transaction', granted_xid => 'NULL', granted_at => 'NULL' ],
	[ scopes => 'a role that does not exist', role => q{'nobody'}, role_oid => '4294967295' ],
	[ scopes => 'no role', role => q{''}, role_oid => '0' ],
	[ scopes => 'another installation', home => 'gen_random_uuid()', role_oid => '10', role => q{'team'} ]);

foreach my $case (@strange)
{
	my ($table, $what, %values) = @$case;
	my $scope = "strange " . ++$serial;

	$values{scope} = "'$scope'";
	like(as('dbo', forged($table, %values)), qr/^(?:|23\d\d\d)$/, "$table, $what: accepted or refused");
	works("$table, $what");
	# all kinds of calls use the row itself
	my $name = $table eq 'locks' ? 'seed' : 'some';
	my $calls = join '; ',
	  "SELECT 'peek' FROM leaselock.lease_peek('$name', '$scope')",
	  "SELECT leaselock.try_lock('$name', 'm', '1 h', '$scope') > 0",
	  "SELECT state FROM leaselock.lease_acquire('$name', 'n', scope => '$scope')",
	  "SELECT state FROM leaselock.lease_acquire('$name', 'n', wait => '100 s', scope => '$scope')",
	  "SELECT leaselock.fence_check('$name', $seed, '$scope')",
	  "SELECT leaselock.renew_lock('$name', 'm', '1 h', '$scope')",
	  "SELECT leaselock.release_lock('$name', 'm', '$scope')",
	  "SELECT leaselock.lease_break('$name', fence, '$scope') FROM leaselock.lease_peek('$name', '$scope') WHERE fence IS NOT NULL",
	  "SELECT leaselock.lease_prune('0 s', 1000) >= 0", "SELECT leaselock.lease_scope_create('$scope', 'team')";
	unlike(as_superuser($calls), qr/^(?:lost|XX\w+|57P\w+)$/m, "$table, $what: every call answers");
	unlike(as('stranger', $calls), qr/^(?:lost|XX\w+|57P\w+)$/m,
		"$table, $what: every call answers to anybody");
}
# a row of another database, a lock's or a registered scope's, is what a
# restore brings: no holder, a greater fence, and the scope stays closed
is(as('dbo', forged('locks', scope => q{'restored'}, home => 'gen_random_uuid()')), '', 'a row as a restore brings it');
is(as('stranger', q{SELECT owner FROM leaselock.lease_peek('seed', 'restored')}), '', 'the restored lock has no holder');
is(as('stranger', qq{SELECT leaselock.try_lock('seed', 's', '1 h', 'restored') > $seed}), 't', 'the next fence of the restored lock is greater');
is(as('dbo', 'INSERT INTO leaselock.locks SELECT * FROM leaselock.locks LIMIT 1'), '23505', 'no lock has two rows');

# ---------------------------------------------------------------------
# Rows that the owner keeps uncommitted
# ---------------------------------------------------------------------

anew();
like(as('dbo', q{SELECT leaselock.try_lock('seed', 'm', '1 h')}), qr/^\d+$/, 'a lock is held');
as_superuser(q{SELECT leaselock.lease_scope_create('registered', 'team')});
my $owner = database_session('dbo');
foreach my $call (
	[ q{SELECT leaselock.try_lock('jam', 's', '1 h') IS NULL}, 't' ],
	[ q{SELECT state FROM leaselock.lease_acquire('jam', 's')}, 'contended' ],
	[ q{SELECT state FROM leaselock.lease_acquire('jam', 's', wait => '100 ms')}, 'contended|waiting' ],
	[ q{CALL leaselock.lease_acquire_wait('jam', 's', wait => '100 ms')}, '.*\|(?:contended|timed_out)\|\|' ])
{
	my ($sql, $answer) = @$call;

	foreach my $end ('ROLLBACK', 'COMMIT')
	{
		as_superuser(q{DELETE FROM leaselock.locks WHERE name = 'jam'; DELETE FROM leaselock.tickets WHERE name = 'jam'});
		is(outcome($owner, 'BEGIN; ' . forged('locks', name => q{'jam'}, home => 'gen_random_uuid()')), '', "$end: the owner inserts a row");
		like(as('stranger', "SET statement_timeout = '5 s'; $sql"), qr/^(?:55P03|$answer)$/, "$end: $sql: does not hang");
		is(outcome($owner, $end), '', "$end: the owner ends the transaction");
		is(as('stranger', q{SELECT leaselock.lease_release_all('s') >= 0; SELECT leaselock.try_lock('jam', 's', '1 h') > 0}), "t\nt", "$end: then the lock can be taken");
	}
}
is(outcome($owner, 'BEGIN; ' . forged('scopes', scope => q{'jam'})), '', 'the owner inserts a scope');
is(as_superuser(q{SET statement_timeout = '5 s'; SELECT leaselock.lease_scope_create('jam', 'team')}), '55P03', 'registering it does not hang');
is(outcome($owner, 'ROLLBACK'), '', 'the owner ends the transaction');
is(as_superuser(q{SELECT leaselock.lease_scope_create('jam', 'team')}), '', 'then it can be registered');
$owner->quit;

# ---------------------------------------------------------------------
# Tables that look like those of the extension
# ---------------------------------------------------------------------

# The columns of a table, with other types in place of some
sub columns
{
	my ($table, %types) = @_;
	return as_superuser("SELECT string_agg(format('%I %s', attname, CASE format_type(atttypid, atttypmod) "
		  . join(' ', map { "WHEN '$_' THEN '$types{$_}'" } keys %types) . " WHEN '' THEN '' ELSE format_type(atttypid, atttypmod) END), ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = 'leaselock.$table'::regclass AND attnum > 0 AND NOT attisdropped");
}

anew();
my @tables = split / /, as_superuser(q{SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace = 'leaselock'::regnamespace AND relkind = 'r'});
my %real = map { $_ => columns($_) } @tables;
my %bigints = map { my $table = $_; $table => columns($table, map { $_ => 'bigint' } 'text', 'uuid', 'oid', 'timestamp with time zone', 'xid8', 'integer', 'boolean', 'name') } @tables;
my %addresses = map { $_ => columns($_, text => 'bigint') } @tables;
my %names = map { $_ => columns($_, text => 'name', uuid => 'text') } @tables;
# the real types for everything, with a row that would make every fence current
my $row_of = "SELECT * FROM public.seed_of_locks";
# an unusable address, twice
my $address = q{x'4242424242424242'::bigint};

sub filled
{
	my ($columns) = @_;
	my %values = (bigint => $address, integer => '1', oid => '10', uuid => 'gen_random_uuid()', timestamp => 'now()', xid8 => q{'1'::xid8});

	return join ', ', map { / (\w+)/ ? $values{$1} // 'NULL' : () } split /, /, $columns;
}

my $keys = q{CREATE UNIQUE INDEX locks_pkey ON leaselock.locks (scope, name);};
my @lookalikes = (
	[ 'no table' => '' ],
	[ 'other tables of the extension, but no locks' => join ' ', map { "CREATE TABLE leaselock.$_ ($real{$_});" } grep { $_ ne 'locks' } @tables ],
	[ 'numbers for everything' => join(' ', map { "CREATE TABLE leaselock.$_ ($bigints{$_});" } @tables) . $keys
		  . 'INSERT INTO leaselock.locks SELECT ' . join(', ', map { $address } split /, /, $bigints{locks}) . ';' ],
	[ 'numbers for texts' => join(' ', map { "CREATE TABLE leaselock.$_ ($addresses{$_});" } @tables) . $keys
		  . "INSERT INTO leaselock.locks SELECT " . filled($addresses{locks}) . ';' ],
	[ 'names for texts' => join(' ', map { "CREATE TABLE leaselock.$_ ($names{$_});" } @tables) . $keys ],
	[ 'the right types' => join(' ', map { "CREATE TABLE leaselock.$_ ($real{$_});" } @tables) . $keys . "INSERT INTO leaselock.locks $row_of;" ],
	[ 'the right types, without an index' => join(' ', map { "CREATE TABLE leaselock.$_ ($real{$_});" } @tables) . "INSERT INTO leaselock.locks $row_of;" ],
	[ 'an index on something else' => join(' ', map { "CREATE TABLE leaselock.$_ ($real{$_});" } @tables) . 'CREATE INDEX locks_pkey ON leaselock.locks (fence);' ],
	[ 'an index of another table' => join(' ', map { "CREATE TABLE leaselock.$_ ($real{$_});" } @tables) . 'CREATE UNIQUE INDEX locks_pkey ON leaselock.scopes (scope, role);' ],
	[ 'an index of another kind' => join(' ', map { "CREATE TABLE leaselock.$_ ($real{$_});" } @tables) . 'CREATE INDEX locks_pkey ON leaselock.locks USING hash (name);' ],
	[ 'a partial index' => join(' ', map { "CREATE TABLE leaselock.$_ ($real{$_});" } @tables) . 'CREATE UNIQUE INDEX locks_pkey ON leaselock.locks (scope, name) WHERE fence < 0;' ],
	[ 'a table in place of an index' => join(' ', map { "CREATE TABLE leaselock.$_ ($real{$_});" } @tables) . 'CREATE TABLE leaselock.locks_pkey (scope text, name text);' ],
	[ 'an unlogged table' => "CREATE UNLOGGED TABLE leaselock.locks ($real{locks}); $keys INSERT INTO leaselock.locks $row_of;" ],
	[ 'a partitioned table' => "CREATE TABLE leaselock.locks ($real{locks}) PARTITION BY LIST (scope); $keys CREATE TABLE leaselock.part PARTITION OF leaselock.locks DEFAULT; INSERT INTO leaselock.locks $row_of;" ],
	[ 'an inheritance child' => "CREATE TABLE leaselock.parent ($real{locks}); CREATE TABLE leaselock.locks () INHERITS (leaselock.parent); $keys" ],
	[ 'a view' => "CREATE VIEW leaselock.locks AS $row_of;" ],
	[ 'a materialized view' => "CREATE MATERIALIZED VIEW leaselock.locks AS $row_of; $keys" ],
	[ 'a composite type' => "CREATE TYPE leaselock.locks AS ($real{locks});" ],
	[ 'a sequence' => 'CREATE SEQUENCE leaselock.locks;' ],
	[ 'an index' => "CREATE TABLE leaselock.something (scope text, name text); CREATE UNIQUE INDEX locks ON leaselock.something (scope, name);" ]);

# What the owner does at the end of a transaction that began with the
# extension's own objects
sub replaced
{
	my ($objects) = @_;
	return "DROP EXTENSION leaselock; CREATE SCHEMA leaselock; GRANT USAGE ON SCHEMA leaselock TO PUBLIC; $objects";
}

foreach my $lookalike (@lookalikes)
{
	my ($what, $objects) = @$lookalike;

	anew();
	my $fence = as('dbo', q{SELECT leaselock.try_lock('L', 'x', '10 min')});
	as_superuser(q{DROP TABLE IF EXISTS public.seed_of_locks; CREATE TABLE public.seed_of_locks AS SELECT * FROM leaselock.locks; GRANT SELECT ON public.seed_of_locks TO dbo});

	# a check that is verified at COMMIT
	is(as('dbo', "BEGIN; SELECT leaselock.fence_check('L', $fence); " . replaced($objects) . ' COMMIT; SELECT count(*) FROM pg_extension WHERE extname = \'leaselock\''),
		"t\n1\nLS001", "$what: the COMMIT reports the checked fence as stale, and nothing is dropped");
	is(as('stranger', "SELECT leaselock.fence_check('L', $fence)"), 't', "$what: the grant is still there");

	# a query that continues
	my $cursor = q{BEGIN; DECLARE c CURSOR FOR SELECT (%s) FROM generate_series(1, 3) g; FETCH c; };
	foreach my $call (q{(leaselock.lease_acquire('n ' || g, 'o')).state}, q{leaselock.try_lock('t ' || g, 'o', '1 h') > 0}, "leaselock.fence_check('L', $fence)")
	{
		# a check may answer from what the transaction knows, because its
		# COMMIT will fail
		my $may = $call =~ /fence_check/ ? '(?:[tf]\\n)?' : '';

		like(as('dbo', sprintf($cursor, $call) . replaced($objects) . ' FETCH c; ' . ($may ? 'COMMIT' : 'ROLLBACK')),
			qr/^(?:held|t)\n$may(?:55\w{3}|3F000|42\w{3}|LS001|25P02)(?:\n25P02)*$/,
			"$what: a cursor on " . ($call =~ /(\w+)\(/)[0] . ' ends with an error');
		is(as('stranger', "SELECT leaselock.fence_check('L', $fence)"), 't', "$what: the grant is still there");
	}

	# a session that sleeps in a wait in the meantime
	my $waiter = database_session('stranger');
	begin($waiter, q{CALL leaselock.lease_acquire_wait('L', 'w', wait => '100 s')});
	ok($node->poll_query_until('app', q{SELECT EXISTS (SELECT FROM leaselock.tickets WHERE waiter_pid IS NOT NULL)}), "$what: somebody waits");
	is(as('dbo', 'BEGIN; ' . replaced($objects) . ' COMMIT'), '', "$what: the extension is replaced");
	like(told($waiter), qr/^(?:55\w{3}|3F000|42\w{3})$/, "$what: the wait ends with an error");
	is(told($waiter, q{SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'}), '0', "$what: the wait leaves no lock");
	eval { $waiter->quit };
}
anew();
works('the extension is created anew');

# ---------------------------------------------------------------------
# The extension is dropped by a transaction that has used it
# ---------------------------------------------------------------------

foreach my $round (1 .. 10)
{
	is( as('dbo', q{BEGIN;
			SELECT count(*) FROM generate_series(1, 40) n, leaselock.lease_acquire('many ' || n, 'o') WHERE state = 'held';
			DROP EXTENSION leaselock; COMMIT}), '40', "round $round: acquired, dropped, committed");
	is(as('dbo', 'CREATE EXTENSION leaselock'), '', "round $round: the extension is created again");
}
is( as('dbo', q{BEGIN; SELECT leaselock.try_lock('x', 'o', '1 h') > 0; DROP EXTENSION leaselock; CREATE EXTENSION leaselock;
		SELECT leaselock.try_lock('x', 'p', '1 h') > 0; COMMIT; SELECT owner FROM leaselock.lease_peek('x')}), "t\nt\np", 'dropped and made again in one transaction');
works('after that');

# while a session sleeps in a wait: its ticket is gone, and so is the procedure
foreach my $call (q{CALL leaselock.lease_acquire_wait('slept', 'w', wait => '100 s')}, q{CALL leaselock.lease_wait('%s')})
{
	my $waiter = database_session('stranger');

	as('dbo', q{SELECT leaselock.try_lock('slept', 'x', '1 h')});
	my $queued = as('stranger', q{SELECT ticket FROM leaselock.lease_acquire('slept', 'v', wait => '100 s')});
	begin($waiter, $call =~ s{%s}{$queued}r);
	ok($node->poll_query_until('app', q{SELECT EXISTS (SELECT FROM leaselock.tickets WHERE waiter_pid IS NOT NULL)}), "$call: somebody waits");
	is(as('dbo', 'BEGIN; DROP EXTENSION leaselock; CREATE EXTENSION leaselock; COMMIT'), '', "$call: the extension is created anew");
	like(told($waiter), qr/^(?:[-0-9a-f]*\|?gone\|\||55\w{3}|42\w{3}|3F000)$/, "$call: the wait ends with an answer or an error that says so");
	is(told($waiter, q{SELECT state FROM leaselock.lease_acquire('slept', 'w')}), 'held', "$call: the session still works");
	eval { $waiter->quit };
}

# ---------------------------------------------------------------------
# A library of another version than the objects
# ---------------------------------------------------------------------

foreach my $change (
	'ALTER TYPE leaselock.lease_ticket ADD ATTRIBUTE more text',
	'ALTER TYPE leaselock.lease_ticket ADD ATTRIBUTE more bigint, ADD ATTRIBUTE less int',
	'ALTER TYPE leaselock.lease_ticket DROP ATTRIBUTE holder',
	'ALTER TYPE leaselock.lease_ticket DROP ATTRIBUTE fence, ADD ATTRIBUTE fence text',
	'ALTER TYPE leaselock.lease_ticket ALTER ATTRIBUTE fence TYPE text',
	'ALTER TYPE leaselock.lease_ticket ALTER ATTRIBUTE state TYPE bigint',
	'ALTER TABLE leaselock.tickets ADD COLUMN more text',
	'ALTER TABLE leaselock.locks ADD COLUMN more bigint DEFAULT 5',
	'ALTER TABLE leaselock.locks DROP COLUMN tickets',
	'ALTER TABLE leaselock.locks DROP COLUMN granted_at, ADD COLUMN granted_at timestamptz',
	'ALTER TABLE leaselock.locks ALTER COLUMN fence TYPE numeric',
	'ALTER TABLE leaselock.tickets ALTER COLUMN lease_us TYPE text',
	'ALTER INDEX leaselock.tickets_place RENAME TO tickets_place_old',
	'DROP INDEX leaselock.tickets_waiter',
	'ALTER EXTENSION leaselock DROP TABLE leaselock.tickets')
{
	anew();
	my $session = database_session('stranger');
	my @calls = (q{SELECT (leaselock.lease_acquire('a', 'o')).state}, q{SELECT * FROM leaselock.lease_acquire('b', 'o', wait => '1 s')},
		q{SELECT state FROM leaselock.lease_get(gen_random_uuid())}, q{SELECT leaselock.lease_release_all('o')}, q{SELECT leaselock.try_lock('c', 'o', '1 h')},
		q{SELECT count(*) FROM leaselock.lease_status}, q{SELECT count(*) FROM leaselock.lease_tickets});

	told($session, $_) foreach @calls;
	told($session, "PREPARE p$_ AS $calls[$_]") foreach 0 .. $#calls;
	told($session, "EXECUTE p$_") foreach (0 .. $#calls) x 6;
	is(as_superuser($change), '', "$change: done");
	foreach my $n (0 .. $#calls)
	{
		my $open = told($session, $calls[$n]);
		unlike($open, qr/XX\w{3}|57P\w{2}|lost/, "$change: $calls[$n]: an open session gets an answer or an error");
		unlike(told($session, "EXECUTE p$n"), qr/XX\w{3}|57P\w{2}|lost/, "$change: $calls[$n]: a prepared statement gets one, too");
		unlike(as('stranger', $calls[$n]), qr/XX\w{3}|57P\w{2}|lost/, "$change: $calls[$n]: a new session gets one, too");
	}
	# the first call uses both the type and the tables
	is(told($session, $calls[0]), '55000', "$change: an open session learns that they do not match") if $change =~ /ADD ATTRIBUTE more|TABLE.*COLUMN more|DROP COLUMN tickets|TYPE/;
	eval { $session->quit };
}
# and what to do: here an update added the column, or has yet to be run
foreach my $version ([ '1.1', qr/Reconnect:/ ], [ '0.9', qr/ALTER EXTENSION leaselock UPDATE/ ], [ '1.0', qr/Drop it and create it again\./ ])
{
	my ($installed, $hint) = @$version;

	anew();
	as_superuser(qq{ALTER TYPE leaselock.lease_ticket ADD ATTRIBUTE more text; UPDATE pg_extension SET extversion = '$installed' WHERE extname = 'leaselock'});
	my (undef, undef, $told) = $node->psql('app', "SELECT (leaselock.lease_acquire('a', 'o')).state");
	like($told, qr/HINT:.*$hint/s, "the extension has version $installed: the error says what to do");
}
anew();
works('the extension is created anew');

# ---------------------------------------------------------------------
# Default privileges
# ---------------------------------------------------------------------

as_superuser(q{DROP EXTENSION leaselock});
foreach my $creator ('', 'FOR ROLE dbo')
{
	is(as_superuser(join ' ', map { "ALTER DEFAULT PRIVILEGES $creator GRANT ALL ON $_ TO stranger;" } qw(TABLES SEQUENCES FUNCTIONS TYPES SCHEMAS)), '', "default privileges are set $creator");
}
is(as('dbo', 'CREATE EXTENSION leaselock'), '', 'the extension is created under them');
is( as_superuser(q{
		SELECT string_agg(format('%s %s', p, c.oid::regclass), ', ') FROM pg_class c,
			unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
		WHERE relnamespace = 'leaselock'::regnamespace AND relkind IN ('r', 'p', 'm', 'f') AND has_table_privilege('stranger', c.oid, p)}),
	'', 'default privileges do not reach its tables');
is( as_superuser(q{
		SELECT string_agg(format('%s %s', p, c.oid::regclass), ', ') FROM pg_class c, unnest(array['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER']) p
		WHERE relnamespace = 'leaselock'::regnamespace AND relkind = 'v' AND has_table_privilege('stranger', c.oid, p)}),
	'', 'default privileges do not reach its views, except for reading');
is(as_superuser(q{SELECT has_schema_privilege('stranger', 'leaselock', 'CREATE')}), 'f', 'default privileges do not reach its schema');
foreach my $call (q{lease_prune()}, q{fence_bump()}, q{lease_break('x', 1)}, q{lease_scope_create('x', 'stranger')}, q{lease_scope_drop('x')})
{
	is(as('stranger', "SELECT leaselock.$call"), '42501',
		"default privileges do not reach leaselock.$call");
}
works('under default privileges');
foreach my $creator ('', 'FOR ROLE dbo')
{
	as_superuser(join ' ', map { "ALTER DEFAULT PRIVILEGES $creator REVOKE ALL ON $_ FROM stranger;" } qw(TABLES SEQUENCES FUNCTIONS TYPES SCHEMAS));
}

# ---------------------------------------------------------------------
# A copied database
# ---------------------------------------------------------------------

anew();
my $hold = as('stranger', q{SELECT leaselock.try_lock('held', 's', '30 days')});
my ($ticket, $ticket_fence) = split /\|/, as('stranger', q{SELECT ticket, fence FROM leaselock.lease_acquire('leased', 's', '300 s')});
my $waiting = as('stranger', q{SELECT ticket FROM leaselock.lease_acquire('leased', 't', wait => '300 s')});
is(as_superuser(q{SELECT leaselock.lease_scope_create('closed', 'team')}), '', 'a scope is registered');
as_superuser('CREATE DATABASE clone TEMPLATE app', 'postgres');

is(as('stranger', q{SELECT owner FROM leaselock.lease_peek('held')}), 's', 'the original: the hold is live');
is(as('stranger', "SELECT leaselock.fence_check('held', $hold), leaselock.fence_check('leased', $ticket_fence)"), 't|t', 'the original: the fences pass');
is(as('stranger', "SELECT state FROM leaselock.lease_renew('$ticket')"), 'held', 'the original: the ticket is renewed');

is(as('stranger', q{SELECT count(*) FROM leaselock.lease_status WHERE owner IS NOT NULL}, 'clone'), '0', 'the copy: nobody holds a lock');
is(as('stranger', q{SELECT count(*) FROM leaselock.lease_tickets}, 'clone'), '0', 'the copy: no ticket is live');
unlike(as('stranger', "SELECT state FROM leaselock.lease_get('$_')", 'clone'), qr/held|waiting/, 'the copy: a ticket has ended') foreach $ticket, $waiting;
is(as('stranger', "SELECT state FROM leaselock.lease_renew('$ticket')", 'clone') =~ /held/ ? 'held' : '', '', 'the copy: the ticket cannot be renewed');
is(as('stranger', "SELECT leaselock.fence_check('held', $hold), leaselock.fence_check('leased', $ticket_fence)", 'clone'), 'f|f', 'the copy: the fences are stale');
is(as('stranger', q{SELECT leaselock.renew_lock('held', 's', '1 h')}, 'clone'), 'f', 'the copy: the hold cannot be renewed');
is(as('stranger', q{SELECT leaselock.release_lock('held', 's')}, 'clone'), 'f', 'the copy: the hold cannot be released');
is(as('stranger', "SELECT leaselock.try_lock('held', 'another', '1 h') > $hold", 'clone'), 't', 'the copy: somebody else gets the lock, with a greater fence');
is(as('stranger', "SELECT state, fence > $ticket_fence FROM leaselock.lease_acquire('leased', 'another')", 'clone'), 'held|t', 'the copy: somebody else gets the other lock, too');
is(as('stranger', q{SELECT leaselock.try_lock('x', 's', '1 h', 'closed')}, 'clone'), '42501', 'the copy: a registered scope is closed');
is(as('stranger', q{SELECT owner FROM leaselock.lease_peek('held')}), 's', 'the original: the hold is still live');
is(as('stranger', q{SELECT leaselock.renew_lock('held', 's', '30 days')}), 't', 'the original: the hold can be renewed');

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');
is_deeply([ crashes($node) ], [], 'no crash');
$node->stop;

done_testing();
