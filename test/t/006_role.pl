# A role that holds a lock may be renamed or dropped: its leases end by the
# clock like any other, and the status views keep working.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('role');
$node->init;
$node->append_conf('postgresql.conf', 'log_statement = none');
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE worker;
CREATE ROLE leaver;
});

my $later = q{LOAD 'leaselock'; SET leaselock.clock_offset = '61 s'; };

# a ticket and a named hold for each role
my (%ticket, %fence);
foreach my $role (qw(worker leaver))
{
	($ticket{$role}, $fence{$role}) = split /\|/, $node->safe_psql('postgres', qq{
		SET ROLE $role;
		SELECT ticket, fence FROM leaselock.lease_acquire('$role ticket', 'me')});
	$fence{"$role named"} = $node->safe_psql('postgres', qq{
		SET ROLE $role;
		SELECT leaselock.try_lock('$role named', 'me', '1 min')});
}
my $status = q{SELECT name, owner, role, lapsed FROM leaselock.lease_status
	WHERE name LIKE '%s%%' ORDER BY name};
is( $node->safe_psql('postgres', sprintf($status, 'worker')),
	"worker named|me|worker|f\nworker ticket|me|worker|f",
	'the holds are shown with their role');

# the label is the same, the role is not
is( $node->safe_psql('postgres', q{
		SELECT state, holder, holder_role
		FROM leaselock.lease_acquire('worker ticket', 'me')}),
	'contended|me|worker', 'the same label under another role is another identity');

$node->safe_psql('postgres', 'ALTER ROLE worker RENAME TO employee');
is( $node->safe_psql('postgres', sprintf($status, 'worker')),
	"worker named|me|employee|f\nworker ticket|me|employee|f",
	'renamed: the holds are shown with the new name');
is( $node->safe_psql('postgres', qq{
		SET ROLE employee;
		SELECT state, fence FROM leaselock.lease_renew('$ticket{worker}');
		SELECT leaselock.renew_lock('worker named', 'me', '1 min');
		SELECT state FROM leaselock.lease_release('$ticket{worker}');
		SELECT leaselock.release_lock('worker named', 'me')}),
	"held|$fence{worker}\nt\nreleased\nt",
	'renamed: the role renews and releases');

# a new role with the old name is another identity, too
$node->safe_psql('postgres', 'DROP ROLE leaver; CREATE ROLE leaver');
is( $node->safe_psql('postgres', q{
		SELECT name, owner, lapsed FROM leaselock.lease_status
		WHERE name LIKE 'leaver%' ORDER BY name}),
	"leaver named|me|f\nleaver ticket|me|f",
	'dropped: the holds are still shown');
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM leaselock.lease_peek('leaver ticket')}),
	'1', 'dropped: lease_peek shows the hold');
is( $node->safe_psql('postgres', q{
		SELECT name, owner, state FROM leaselock.lease_tickets
		WHERE name LIKE 'leaver%'}),
	'leaver ticket|me|held', 'dropped: the ticket is still shown');
is( $node->safe_psql('postgres', qq{
		SELECT state FROM leaselock.lease_get('$ticket{leaver}')}),
	'held', 'dropped: a superuser can read the ticket');
my ($ret, $out, $err) = $node->psql('postgres', qq{
	\\set VERBOSITY sqlstate
	SET ROLE leaver;
	SELECT state FROM leaselock.lease_renew('$ticket{leaver}')});
like($err, qr/ERROR:\s+42501/, 'a new role with the same name cannot renew the ticket');
is( $node->safe_psql('postgres', q{
		SET ROLE leaver;
		SELECT state FROM leaselock.lease_acquire('leaver ticket', 'me');
		SELECT leaselock.try_lock('leaver named', 'me', '1 min') IS NULL;
		SELECT leaselock.renew_lock('leaver named', 'me', '1 min');
		SELECT leaselock.release_lock('leaver named', 'me')}),
	"contended\nt\nf\nf", 'the new role cannot take the locks');
is( $node->safe_psql('postgres', $later . qq{
		SET ROLE employee;
		SELECT state, fence > $fence{leaver}
		FROM leaselock.lease_acquire('leaver ticket', 'me');
		SELECT leaselock.try_lock('leaver named', 'me', '1 min') > $fence{'leaver named'}}),
	"held|t\nt", 'anybody can take them once the leases have run out');

$node->stop;

done_testing();
