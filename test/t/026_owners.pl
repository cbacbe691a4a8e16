# Whoever owns the database now may operate the extension, and nobody else has
# privileges: through changes of owner, dropped roles, dumps, and whatever
# default privileges the installing role had.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('owners');
my $superuser = $node->safe_psql('postgres', 'SELECT current_user');
my $folder = PostgreSQL::Test::Utils::tempdir();

# as(ROLE, DATABASE, SQL): what node_outcome() returns, for a role that logs in
sub as
{
	my ($role, $database, $sql) = @_;
	my ($rc, $out, $err) = $node->psql($database, "\\set VERBOSITY sqlstate\n$sql",
		extra_params => [ '-U', $role ]);

	return $rc == 0 ? $out : $err =~ /(?:ERROR|FATAL):\s+(\w{5})/ ? $1 : $err;
}

# ---------------------------------------------------------------------
# What the tests check
# ---------------------------------------------------------------------

# Every privilege in the schema that is not the bootstrap superuser's own, one
# line for each grantee
my $privileges = q{
	SELECT kind, grantee, string_agg(DISTINCT privilege || CASE WHEN is_grantable
			THEN '*' ELSE '' END, ' ' ORDER BY privilege || CASE WHEN is_grantable
			THEN '*' ELSE '' END), string_agg(DISTINCT name, ' ' ORDER BY name)
	FROM (
		SELECT kind, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS grantee,
			privilege_type AS privilege, is_grantable, name
		FROM (
			SELECT 'schema', nspname::text, nspacl, nspowner, 'n'::"char"
			FROM pg_namespace WHERE nspname = 'leaselock'
			UNION ALL
			SELECT 'relation', relname, relacl, relowner, 'r'
			FROM pg_class WHERE relnamespace = 'leaselock'::regnamespace AND relkind IN ('r', 'v')
			UNION ALL
			SELECT CASE WHEN proname ~ '^(lease_scope|lease_break|lease_prune|fence_bump)'
				THEN 'operator ' ELSE '' END || 'function', proname, proacl, proowner, 'f'
			FROM pg_proc WHERE pronamespace = 'leaselock'::regnamespace
			UNION ALL
			SELECT 'type', typname, typacl, typowner, 'T'
			FROM pg_type t JOIN pg_class c ON c.oid = typrelid AND relkind = 'c'
			WHERE typnamespace = 'leaselock'::regnamespace
		) o (kind, name, acl, owner, class),
			aclexplode(coalesce(acl, acldefault(class, owner)))
		WHERE grantee <> 10
	) p
	WHERE (kind, grantee) <> ('function', 'PUBLIC')
	GROUP BY kind, grantee, CASE WHEN kind = 'relation' THEN name END
	ORDER BY kind COLLATE "C", grantee COLLATE "C", min(name) COLLATE "C"};
my $closed = join "\n",
  'operator function|pg_database_owner|EXECUTE*|fence_bump lease_break lease_prune lease_scope_create lease_scope_drop',
  (map { "relation|PUBLIC|SELECT|$_" } qw(lease_scopes lease_status lease_tickets)),
  (map { "relation|pg_database_owner|INSERT* SELECT*|$_" } qw(floor locks scopes)),
  'schema|PUBLIC|USAGE|leaselock',
  'type|PUBLIC|USAGE|lease_ticket';

# Functions for workers, which PUBLIC may call
my $public = q{
	SELECT count(*) FILTER (WHERE has_function_privilege('public', oid, 'EXECUTE')), count(*)
	FROM pg_proc WHERE pronamespace = 'leaselock'::regnamespace
	AND proname !~ '^(lease_scope|lease_break|lease_prune|fence_bump)'};

# Objects of the extension that are not the bootstrap superuser's
my $others = q{
	SELECT string_agg(pg_describe_object(classid, objid, 0), ', ')
	FROM pg_depend d, LATERAL (
		SELECT relowner FROM pg_class WHERE classid = 'pg_class'::regclass AND oid = objid
		UNION ALL SELECT proowner FROM pg_proc WHERE classid = 'pg_proc'::regclass AND oid = objid
		UNION ALL SELECT typowner FROM pg_type WHERE classid = 'pg_type'::regclass AND oid = objid
		UNION ALL SELECT nspowner FROM pg_namespace WHERE classid = 'pg_namespace'::regclass AND oid = objid
	) o (owner)
	WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND owner <> 10
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaselock')};

sub check_privileges
{
	my ($database, $expected) = @_;

	is($node->safe_psql($database, $privileges), $expected // $closed,
		"$database: who has which privilege");
	like($node->safe_psql($database, $public), qr/^(\d+)\|\1$/,
		"$database: everybody may call the functions for workers");
	is($node->safe_psql($database, $others), '', "$database: everything belongs to one superuser");
	return;
}

# Every operator function, and what a dump reads
sub check_operates
{
	my ($role, $database) = @_;
	my $fence = $node->safe_psql($database,
		q{SELECT fence FROM leaselock.lease_acquire('operated', gen_random_uuid()::text)});

	is(as($role, $database, "SELECT leaselock.lease_break('operated', $fence)"),
		't', "$database: $role breaks a grant");
	is(as($role, $database, 'SELECT leaselock.lease_prune() IS NOT NULL'), 't', "$database: $role prunes");
	is(as($role, $database, q{SELECT leaselock.lease_scope_create('brief', 'team')}),
		'', "$database: $role registers a scope");
	is(as($role, $database, q{SELECT leaselock.lease_scope_drop('brief')}),
		't', "$database: $role opens a scope");
	is(as($role, $database, "SELECT leaselock.fence_bump() > $fence"), 't', "$database: $role raises the floor");
	$node->command_ok([ 'pg_dump', '-U', $role, '-f', "$folder/by_$role.sql", $database ],
		"$database: $role dumps");
	return;
}

sub check_operates_not
{
	my ($role, $database) = @_;

	is(as($role, $database, "SELECT leaselock.$_"), '42501', "$database: $role cannot operate: $_")
	  foreach q{lease_break('x', 1)}, 'lease_prune()', q{lease_scope_create('x', 'team')},
	  q{lease_scope_drop('registered')}, 'fence_bump()';
	is(as($role, $database, "SELECT count(*) FROM leaselock.$_"), '42501',
		"$database: $role cannot read $_")
	  foreach qw(locks floor scopes);
	is(as($role, $database, 'INSERT INTO leaselock.floor VALUES (1, 0)'), '42501', "$database: $role cannot write");
	return;
}

# use_it(DATABASE): a registered scope, a lock that is held, one that is free,
# and a floor; returns the greatest fence
sub use_it
{
	my ($database) = @_;
	return $node->safe_psql($database, q{
		SELECT FROM leaselock.lease_scope_create('registered', 'team');
		SELECT FROM leaselock.try_lock('held', 'worker', '1 h');
		SELECT FROM leaselock.try_lock('free', 'worker', '1 h');
		SELECT FROM leaselock.release_lock('free', 'worker');
		SELECT FROM leaselock.fence_bump();
		SELECT fence FROM leaselock.lease_acquire('ticket', 'worker')});
}

sub check_restored
{
	my ($database, $fence) = @_;

	is($node->safe_psql($database, q{SELECT count(*) FROM leaselock.locks WHERE name IN ('held', 'free', 'ticket')}),
		'3', "$database: the last fences are there");
	is($node->safe_psql($database, 'SELECT * FROM leaselock.lease_status'),
		'', "$database: nobody holds a lock");
	foreach my $name (qw(held free ticket new))
	{
		cmp_ok($node->safe_psql($database, "SELECT leaselock.try_lock('$name', 'next', '1 h')"),
			'>', $fence, "$database: the fence of $name grows");
	}
	is(as('stranger', $database, q{SELECT leaselock.try_lock('x', 'y', '1 s', 'registered')}),
		'42501', "$database: the registered scope is closed");
	is(as('member', $database, q{SELECT leaselock.try_lock('x', 'y', '1 s', 'registered') IS NOT NULL}),
		't', "$database: the registered scope is open to its team");
	return;
}

# copy_database(FROM, TO, BY, OPTIONS): pg_dump -Fc, then pg_restore -e by that
# role
sub copy_database
{
	my ($from, $to, $by, @options) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $to OWNER $by");
	$node->command_ok([ 'pg_dump', '-Fc', '-U', $by, '-f', "$folder/$to", $from ], "$from: $by dumps it");
	$node->command_ok([ 'pg_restore', '-e', '-U', $by, @options, '-d', $to, "$folder/$to" ],
		"$to: $by restores it");
	return;
}

$node->safe_psql('postgres', q{
	CREATE ROLE team; CREATE ROLE member LOGIN IN ROLE team; CREATE ROLE stranger LOGIN});

# ---------------------------------------------------------------------
# Default privileges grant nothing
# ---------------------------------------------------------------------

$node->safe_psql('postgres', q{
	CREATE ROLE greedy LOGIN; CREATE ROLE "Gre""edy too";
	CREATE ROLE dbo LOGIN; CREATE ROLE admin LOGIN SUPERUSER});
my %installed_by = (by_bootstrap => $superuser, by_admin => 'admin', by_owner => 'dbo');
foreach my $database (sort keys %installed_by)
{
	$node->safe_psql('postgres', "CREATE DATABASE $database OWNER dbo");
	foreach my $for ($superuser, 'admin')
	{
		foreach my $what (qw(TABLES SEQUENCES FUNCTIONS TYPES SCHEMAS))
		{
			$node->safe_psql($database, qq{
				ALTER DEFAULT PRIVILEGES FOR ROLE $for GRANT ALL ON $what TO greedy WITH GRANT OPTION;
				ALTER DEFAULT PRIVILEGES FOR ROLE $for GRANT ALL ON $what
					TO "Gre""edy too", pg_database_owner, PUBLIC});
		}
	}
	is(as($installed_by{$database}, $database, 'CREATE EXTENSION leaselock'),
		'', "$database: installed by $installed_by{$database}");
	check_privileges($database);
	check_operates_not('greedy', $database);
	is(as('greedy', $database, $_), '42501', "$database: greedy may not: $_")
	  foreach 'CREATE FUNCTION leaselock.planted() RETURNS int LANGUAGE sql RETURN 1',
	  'UPDATE leaselock.locks SET fence = 1', 'DELETE FROM leaselock.tickets', 'TRUNCATE leaselock.locks',
	  'SELECT * FROM leaselock.installation', 'DROP TABLE leaselock.blockers';
	check_operates('dbo', $database);
	is( $node->safe_psql($database, q{
			SELECT count(*) FROM pg_shdepend WHERE refobjid IN ('greedy'::regrole, '"Gre""edy too"'::regrole)
			AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND classid <> 'pg_default_acl'::regclass}),
		'0', "$database: nothing depends on a role that has nothing");
}

# functions that PUBLIC may not call by default are not opened
$node->safe_psql('postgres', 'CREATE DATABASE hardened OWNER dbo');
$node->safe_psql('hardened', q{
	ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM PUBLIC;
	CREATE EXTENSION leaselock});
is(as('stranger', 'hardened', q{SELECT leaselock.try_lock('x', 'y', '1 s')}),
	'42501', 'hardened: functions closed by default stay closed');
check_operates('dbo', 'hardened');

# without the language that the install script uses to revoke them
$node->safe_psql('postgres', 'CREATE DATABASE speechless OWNER dbo');
$node->safe_psql('speechless', 'DROP EXTENSION plpgsql');
is(as('dbo', 'speechless', 'CREATE EXTENSION leaselock'), '42704', 'speechless: plpgsql is needed');
is(as('dbo', 'speechless', 'CREATE EXTENSION plpgsql; CREATE EXTENSION leaselock; DROP EXTENSION plpgsql'),
	'', 'speechless: plpgsql may be dropped afterwards');
check_operates('dbo', 'speechless');

# ---------------------------------------------------------------------
# The owner changes
# ---------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE ROLE newo LOGIN; CREATE ROLE third LOGIN');

# everything that a role owns, the database included
$node->safe_psql('postgres', 'CREATE DATABASE app OWNER dbo');
is(as('dbo', 'app', 'CREATE EXTENSION leaselock'), '', 'app: dbo installs');
check_operates('dbo', 'app');
check_operates_not('newo', 'app');
my $fence = use_it('app');
$node->safe_psql('app', 'REASSIGN OWNED BY dbo TO newo');
is($node->safe_psql('app', q{SELECT extowner::regrole FROM pg_extension WHERE extname = 'leaselock'}),
	'newo', 'app: the extension is reassigned');
check_operates('newo', 'app');
check_operates_not('dbo', 'app');
check_privileges('app');

# the database alone
$node->safe_psql('postgres', 'CREATE DATABASE handed OWNER dbo');
is(as('dbo', 'handed', 'CREATE EXTENSION leaselock'), '', 'handed: dbo installs');
$node->safe_psql('postgres', 'ALTER DATABASE handed OWNER TO newo');
check_operates('newo', 'handed');
check_operates_not('dbo', 'handed');
# and a member of its new owner
$node->safe_psql('postgres', 'GRANT newo TO third');
check_operates('third', 'handed');
$node->safe_psql('postgres', 'REVOKE newo FROM third');
check_operates_not('third', 'handed');

# a role that may install in another's database does not operate there
$node->safe_psql('postgres', q{
	CREATE DATABASE lent OWNER newo; GRANT CREATE ON DATABASE lent TO third});
is(as('third', 'lent', 'CREATE EXTENSION leaselock'), '', 'lent: installed by a guest');
check_operates('newo', 'lent');
check_operates_not('third', 'lent');

# a copy belongs to its own owner
$node->safe_psql('postgres', 'CREATE DATABASE cloned TEMPLATE handed OWNER third');
check_operates('third', 'cloned');
check_operates_not('newo', 'cloned');

# ---------------------------------------------------------------------
# Roles that are dropped
# ---------------------------------------------------------------------

# the owner of the database who installed it
$node->safe_psql($_, 'REASSIGN OWNED BY dbo TO newo; DROP OWNED BY dbo')
  foreach qw(app handed cloned by_admin by_bootstrap by_owner hardened speechless);
is(node_outcome($node, 'DROP ROLE dbo'), '', 'dbo can be dropped');
is(as('newo', 'app', 'SELECT count(*) FROM leaselock.lease_status'), '2', 'app: the leases live on');
copy_database('app', 'by_superuser', $superuser);
check_restored('by_superuser', $fence);
copy_database('app', 'by_newo', 'newo');
check_restored('by_newo', $fence);
check_operates('newo', 'by_newo');
check_privileges($_) foreach qw(by_superuser by_newo);

# a superuser that installed it, with default privileges; everything that he
# owned now belongs to another role
$node->safe_psql('postgres', 'CREATE DATABASE inherited OWNER newo');
is(as('admin', 'inherited', 'CREATE EXTENSION leaselock'), '', 'inherited: a superuser installs');
$fence = use_it('inherited');
foreach my $database (qw(inherited by_admin by_bootstrap by_owner))
{
	$node->safe_psql($database, 'REASSIGN OWNED BY admin TO newo; DROP OWNED BY admin');
}
$node->safe_psql($_, q{DROP OWNED BY greedy, "Gre""edy too"}) foreach qw(by_admin by_bootstrap by_owner);
is(node_outcome($node, 'DROP ROLE admin, greedy, "Gre""edy too"'), '', 'the superuser can be dropped');
check_operates('newo', 'inherited');
is(as('newo', 'inherited', "DELETE FROM leaselock.$_"), '42501', "inherited: newo does not own $_")
  foreach qw(locks tickets scopes floor installation blockers);
copy_database('inherited', 'inherited_again', $superuser);
check_restored('inherited_again', $fence);
copy_database('inherited', 'inherited_by_newo', 'newo');
check_restored('inherited_by_newo', $fence);

# ---------------------------------------------------------------------
# What the owner has granted to others
# ---------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE ROLE operator LOGIN; CREATE ROLE deputy LOGIN; CREATE ROLE backup LOGIN');
is(as('newo', 'app', q{
		GRANT EXECUTE ON FUNCTION leaselock.lease_break(text, bigint, text) TO operator WITH GRANT OPTION;
		GRANT EXECUTE ON FUNCTION leaselock.lease_prune TO PUBLIC;
		GRANT SELECT ON leaselock.locks, leaselock.floor, leaselock.scopes TO backup}),
	'', 'app: newo grants to others');
is(as('operator', 'app', 'GRANT EXECUTE ON FUNCTION leaselock.lease_break TO deputy'), '', 'app: operator grants on');
my $granted = $node->safe_psql('app', $privileges);
isnt($granted, $closed, 'app: the privileges show it');

sub check_granted
{
	my ($database) = @_;

	check_privileges($database, $granted);
	is(as($_, $database, q{SELECT leaselock.lease_break('none', 1)}), 'f', "$database: $_ may break")
	  foreach qw(operator deputy);
	is(as('stranger', $database, 'SELECT leaselock.lease_prune() IS NOT NULL'), 't', "$database: anybody may prune");
	is(as('backup', $database, 'SELECT count(*) FROM leaselock.scopes'), '1', "$database: backup reads");
	is(as('backup', $database, 'INSERT INTO leaselock.floor VALUES (1, 0)'), '42501', "$database: backup cannot write");
	return;
}

check_granted('app');
$fence = $node->safe_psql('app', q{SELECT fence FROM leaselock.lease_acquire('last', 'worker')});
copy_database('app', 'granted', $superuser);
check_granted('granted');
# the grants belong to the database's owner, not to the former owner
$node->safe_psql('postgres', 'ALTER DATABASE app OWNER TO third');
check_granted('app');
is(as('third', 'app', q{
		REVOKE EXECUTE ON FUNCTION leaselock.lease_break FROM operator CASCADE;
		REVOKE EXECUTE ON FUNCTION leaselock.lease_prune FROM PUBLIC;
		REVOKE SELECT ON leaselock.locks, leaselock.floor, leaselock.scopes FROM backup}),
	'', 'app: the next owner revokes them');
check_privileges('app');
is(as($_, 'app', q{SELECT leaselock.lease_break('none', 1)}), '42501', "app: $_ may not break")
  foreach qw(operator deputy newo);

# A role that is no superuser restores without them: in the dump they are
# granted by pg_database_owner, and only a superuser can act as that role
$node->safe_psql('postgres', 'ALTER DATABASE granted OWNER TO newo');
copy_database('granted', 'granted_by_newo', 'newo', '--no-privileges');
check_privileges('granted_by_newo');

# ---------------------------------------------------------------------

is_deeply([ internal_errors($node) ], [], 'no internal error in the log');
$node->stop;

done_testing();
