# A database owner who is no superuser installs the extension, uses all of it,
# grants its functions to others, drops it, creates it again, dumps it and
# restores it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('trusted');
$node->init;
$node->append_conf('postgresql.conf', "log_statement = none\nfsync = off");
$node->start;
$node->safe_psql('postgres', q{
CREATE ROLE dbowner LOGIN;
CREATE ROLE operator LOGIN;
CREATE ROLE team;
CREATE ROLE member LOGIN IN ROLE team;
CREATE ROLE stranger LOGIN;
});
$node->safe_psql('postgres', 'CREATE DATABASE owned OWNER dbowner');
$node->safe_psql('postgres', 'CREATE DATABASE restored OWNER dbowner');
$node->safe_psql('postgres', 'CREATE DATABASE restored_by_owner OWNER dbowner');

sub as
{
	my ($role, $sql, $db) = @_;
	my ($ret, $out, $err) = $node->psql($db // 'owned', "\\set VERBOSITY sqlstate\n$sql",
		extra_params => [ '-U', $role ]);
	return $1 if $err =~ /(?:ERROR|FATAL):\s+(\S+)/;
	return $out;
}

is(as('stranger', 'CREATE EXTENSION leaselock'), '42501', 'a stranger cannot install it');
is(as('dbowner', 'CREATE EXTENSION leaselock'), '', 'the database owner can install it');
is(as('dbowner', q{SELECT extowner::regrole FROM pg_extension WHERE extname = 'leaselock'}),
	'dbowner', 'the database owner owns it');
is($node->safe_psql('owned', q{SELECT rolsuper FROM pg_roles WHERE rolname = 'dbowner'}), 'f', 'the database owner is no superuser');

# every administrative function
is(as('dbowner', q{SELECT leaselock.lease_scope_create('team', 'team')}), '', 'lease_scope_create');
is(as('dbowner', q{SELECT leaselock.lease_scope_create('brief', 'team')}), '', 'lease_scope_create again');
is(as('dbowner', q{SELECT leaselock.lease_scope_drop('brief')}), 't', 'lease_scope_drop');
my $fence = as('member', q{SELECT fence FROM leaselock.lease_acquire('job', 'w', scope => 'team')});
is(as('stranger', q{SELECT fence FROM leaselock.lease_acquire('job', 'w', scope => 'team')}), '42501', 'strangers are kept out');
is(as('dbowner', qq{SELECT leaselock.lease_break('job', $fence, 'team')}), 't', 'lease_break, in a scope of others');
is(as('dbowner', q{SELECT leaselock.lease_prune()}), '0', 'lease_prune');
is(as('dbowner', q{SELECT leaselock.fence_bump() > 0}), 't', 'fence_bump');
my $admin = q{leaselock.lease_scope_create(text, name), leaselock.lease_scope_drop(text),
	leaselock.lease_break(text, bigint, text), leaselock.lease_prune(interval, int), leaselock.fence_bump()};
foreach my $call ('lease_prune()', 'fence_bump()', q{lease_scope_drop('team')}, q{lease_scope_create('team', 'stranger')}, q{lease_break('job', 1)})
{
	is(as('operator', "SELECT leaselock.$call"), '42501', "nobody else may call $call");
}

# all of it granted to others, with the grant option
is(as('dbowner', "GRANT EXECUTE ON FUNCTION $admin TO operator WITH GRANT OPTION"), '', 'the owner grants them');
is(as('operator', 'SELECT leaselock.lease_prune()'), '0', 'the operator prunes');
is(as('operator', 'SELECT leaselock.fence_bump() > 0'), 't', 'the operator raises the floor');
is(as('operator', q{SELECT leaselock.lease_scope_create('o', 'team'), leaselock.lease_scope_drop('o')}), '|t', 'the operator registers');
is(as('operator', 'GRANT EXECUTE ON FUNCTION leaselock.fence_bump() TO member'), '', 'the operator grants on');
is(as('member', 'SELECT leaselock.fence_bump() > 0'), 't', 'that grant works');
is(as('dbowner', "REVOKE ALL ON FUNCTION $admin FROM operator CASCADE"), '', 'the owner revokes');
is(as('operator', 'SELECT leaselock.lease_prune()'), '42501', 'the operator can no longer prune');
is(as('member', 'SELECT leaselock.fence_bump()'), '42501',
	'the grant of the operator is gone, too');

# what ownership does not give
foreach my $table (qw(locks tickets scopes floor installation blockers))
{
	is(as('dbowner', "DELETE FROM leaselock.$table"), '42501', "the owner cannot delete from leaselock.$table");
}
is(as('dbowner', q{LOAD 'leaselock'; SET leaselock.clock_offset = '1h'}), '42501', 'the owner cannot set the clock');
is(as('dbowner', q{SELECT count(*) FROM leaselock.lease_acquire('job', 'w', scope => 'team')}), '42501', 'the owner cannot enter a scope of others');

# a dump by the owner: the last fences, the floor and the registered scopes
$fence = as('member', q{SELECT fence FROM leaselock.lease_acquire('job', 'w', scope => 'team')});
my $dump = "$PostgreSQL::Test::Utils::tmp_check/owned.sql";
my @pg_dump = ('pg_dump', '-h', $node->host, '-p', $node->port, '-f', $dump);
command_ok([ @pg_dump, '-U', 'dbowner', 'owned' ], 'pg_dump by the database owner');

# restored by the same owner, and by a superuser
my ($r, $o, $e) = $node->psql('restored_by_owner', undef, extra_params => [ '-U', 'dbowner', '-f', $dump, '-v', 'ON_ERROR_STOP=1' ]);
is($r, 0, 'restored by the database owner') or diag($e);
is(as('stranger', q{SELECT state FROM leaselock.lease_acquire('job', 'w', scope => 'team')}, 'restored_by_owner'), '42501', 'no registered scope is open');
is(as('member', qq{SELECT fence > $fence FROM leaselock.lease_acquire('job', 'w', scope => 'team')}, 'restored_by_owner'), 't', 'no fence repeats');
command_ok([ @pg_dump, '-U', $node->safe_psql('postgres', 'SELECT current_user'), 'owned' ], 'pg_dump by a superuser');
my ($ret, $out, $err) = $node->psql('restored', undef, extra_params => [ '-f', $dump, '-v', 'ON_ERROR_STOP=1' ]);
is($ret, 0, 'restored by a superuser') or diag($err);
is(as('member', q{SELECT count(*) FROM leaselock.lease_status WHERE owner IS NOT NULL}, 'restored'), '0', 'no lease is live there');
is(as('stranger', q{SELECT state FROM leaselock.lease_acquire('job', 'w', scope => 'team')}, 'restored'), '42501', 'no registered scope is open');
is(as('member', qq{SELECT fence > $fence FROM leaselock.lease_acquire('job', 'w', scope => 'team')}, 'restored'), 't', 'no fence repeats');

# dropped and created again
is(as('stranger', 'DROP EXTENSION leaselock'), '42501', 'a stranger cannot drop it');
is(as('dbowner', 'DROP EXTENSION leaselock'), '', 'the owner can drop it');
is(as('dbowner', q{SELECT count(*) FROM pg_namespace WHERE nspname = 'leaselock'}), '0', 'nothing is left');
is(as('dbowner', 'CREATE EXTENSION leaselock'), '', 'the owner can create it again');
is(as('dbowner', 'SELECT leaselock.lease_prune()'), '0', 'the owner can operate it');
# the floor was dropped with the tables, after it had been raised ahead of the
# clock several times
is(as('dbowner', qq{SELECT max(floor) > $fence FROM (SELECT leaselock.fence_bump() AS floor FROM generate_series(1, 5)) b}), 't', 'the owner can raise the floor again');
is(as('member', qq{SELECT fence > $fence FROM leaselock.lease_acquire('job', 'w', scope => 'team')}), 't', 'the fence is greater than before');

# a planted schema is not adopted
as('dbowner', 'DROP EXTENSION leaselock; GRANT CREATE ON DATABASE owned TO stranger');
as('stranger', 'CREATE SCHEMA leaselock');
is(as('dbowner', 'CREATE EXTENSION leaselock'), '42P06', 'a planted schema makes it fail');

$node->stop;

done_testing();
