# pg_upgrade: the existing leases and tickets live on, and fences grow,
# although the new cluster begins at timeline 1.  Whoever operated the
# extension still does, even where the roles that installed it are gone.  The
# same major is always tested.  An older major is tested where OLD_PG_CONFIG
# names its pg_config (which must then not be skipped), or where one is
# installed beside this one, with leaselock built for it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

sub setting
{
	my ($pg_config, $name) = @_;
	my $value = `'$pg_config' --$name`;

	chomp $value;
	return $value;
}

sub major
{
	my ($pg_config) = @_;
	return setting($pg_config, 'version') =~ /(\d+)/ ? $1 : 0;
}

# ---------------------------------------------------------------------
# Which servers are available
# ---------------------------------------------------------------------

# the programs of the server under test come first in PATH
my ($new_bin) = grep { -x "$_/postgres" && -x "$_/pg_upgrade" } split /:/, $ENV{PATH};
plan skip_all => 'no pg_upgrade beside the server under test'
  unless defined $new_bin;
my $new_major = major("$new_bin/pg_config");
my @old = ({ what => 'the same major', bin => $new_bin });
my %skipped;

# unfit(SERVER, REASON): the server cannot be upgraded from
sub unfit
{
	my ($server, $reason) = @_;

	die "OLD_PG_CONFIG, $server: $reason" if $ENV{OLD_PG_CONFIG};
	$skipped{$server} = $reason;
	return;
}

my @candidates = grep { $_ } $ENV{OLD_PG_CONFIG};
push @candidates, glob(dirname(dirname($new_bin)) . '/*/bin/pg_config')
  unless @candidates;
foreach my $pg_config (@candidates)
{
	my $major = major($pg_config);
	my $bin = dirname(abs_path($pg_config) // $pg_config);

	next if $major == $new_major && !$ENV{OLD_PG_CONFIG};
	if ($major == 0 || $major >= $new_major)
	{
		unfit("major $major", 'it is no older server');
	}
	elsif (!-x "$bin/postgres" || !-x "$bin/initdb")
	{
		unfit("major $major", 'it has no server');
	}
	elsif (!-e setting($pg_config, 'pkglibdir') . '/leaselock.so')
	{
		unfit("major $major", 'leaselock is not installed there');
	}
	else
	{
		push @old, { what => "major $major", bin => $bin };
	}
}
$skipped{'an older major'} =
  'none is at hand: set OLD_PG_CONFIG to the pg_config of one'
  if @old == 1 && !%skipped;

# ---------------------------------------------------------------------
# Databases whose owners have changed, and whose installing roles are gone
# ---------------------------------------------------------------------

my %installed_by = (app => 'dbo', inherited => 'admin');

sub install_and_leave
{
	my ($node) = @_;

	$node->safe_psql('postgres', q{
		CREATE ROLE dbo LOGIN; CREATE ROLE admin LOGIN SUPERUSER;
		CREATE ROLE newo LOGIN; CREATE ROLE operator LOGIN; CREATE ROLE greedy LOGIN;
		ALTER DEFAULT PRIVILEGES FOR ROLE admin GRANT ALL ON TABLES TO greedy;
		CREATE DATABASE app OWNER dbo; CREATE DATABASE inherited OWNER newo});
	foreach my $database (sort keys %installed_by)
	{
		$node->safe_psql($database, qq{
			SET SESSION AUTHORIZATION $installed_by{$database};
			ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO greedy;
			CREATE EXTENSION leaselock;
			RESET SESSION AUTHORIZATION;
			SELECT FROM leaselock.lease_scope_create('registered', 'team');
			REASSIGN OWNED BY $installed_by{$database} TO newo;
			DROP OWNED BY $installed_by{$database};
			SET SESSION AUTHORIZATION newo;
			GRANT EXECUTE ON FUNCTION leaselock.lease_break TO operator;
			GRANT SELECT ON leaselock.locks TO operator});
	}
	$node->safe_psql('postgres', 'DROP OWNED BY admin; DROP ROLE dbo, admin, greedy');
	return;
}

sub as
{
	my ($node, $role, $database, $sql) = @_;
	return node_outcome($node, "SET SESSION AUTHORIZATION $role; $sql", $database);
}

sub check_operators
{
	my ($node, $what, $database, $fence) = @_;

	is(as($node, 'operator', $database, "SELECT leaselock.lease_break('broken', $fence)"),
		't', "$what: $database, an operator breaks a grant");
	is( as($node, 'newo', $database, q{
			SELECT leaselock.lease_scope_create('brief', 'team');
			SELECT leaselock.lease_scope_drop('brief');
			SELECT leaselock.lease_prune() IS NOT NULL, leaselock.lease_break('broken', 1)}),
		"\nt\nt|f", "$what: $database, the owner operates");
	is(as($node, 'newo', $database, "SELECT leaselock.fence_bump() > $fence"),
		't', "$what: $database, the owner raises the floor");
	is(as($node, 'operator', $database, 'SELECT leaselock.fence_bump()'),
		'42501', "$what: $database, the operator may do what was granted, and no more");
	is(as($node, 'stranger', $database, q{SELECT leaselock.lease_break('broken', 1)}),
		'42501', "$what: $database, others may not");
	is(as($node, 'stranger', $database, q{SELECT leaselock.try_lock('x', 'y', '1 s', 'registered')}),
		'42501', "$what: $database, the registered scope is closed");
	is(as($node, $_, $database, 'SELECT count(*) > 0 FROM leaselock.locks'),
		't', "$what: $database, $_ reads what was granted") foreach qw(operator newo);
	is(as($node, 'newo', $database, 'UPDATE leaselock.locks SET fence = 1'),
		'42501', "$what: $database, the owner cannot write");
	return;
}

# ---------------------------------------------------------------------

my $serial = 0;
foreach my $old_server (@old)
{
	my $what = $old_server->{what};
	my $same = $old_server->{bin} eq $new_bin;

	$serial++;
	my $old = PostgreSQL::Test::Cluster->new("old$serial",
		$same ? () : (install_path => dirname($old_server->{bin})));
	# not from a template, which is of the new server
	$old->init(allows_streaming => 1, force_initdb => 1);
	# (a slow pg_upgrade must not time out a polling waiter)
	$old->append_conf('postgresql.conf', "autovacuum = off\nlog_statement = none
leaselock.waiter_timeout = '5min'");
	# (older servers do not know what the test library of 18 sets)
	$old->adjust_conf('postgresql.conf', 'autovacuum_worker_slots', undef)
	  if $new_major >= 18;
	$old->start;

	$old->safe_psql('postgres', q{
		CREATE EXTENSION leaselock;
		CREATE ROLE team; CREATE ROLE stranger;
		CREATE TABLE guarded (fence bigint);
		CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guarded FOR EACH ROW
			EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'ticket');
		CREATE TABLE checked (fence bigint);
		ALTER TABLE checked ADD CONSTRAINT guard
			CHECK (leaselock.fence_check('ticket', fence)) NOT VALID;
		SELECT FROM leaselock.lease_scope_create('registered', 'team')});

	install_and_leave($old);

	# a higher timeline, as after failovers: the new cluster begins at 1 again,
	# 64 s behind for each timeline
	$old->stop;
	foreach my $promotion (1, 2)
	{
		$old->set_standby_mode;
		$old->start;
		promote_standby($old);
		$old->safe_psql('postgres', 'CHECKPOINT');
		$old->stop;
	}
	$old->start;

	my %fence;
	foreach my $grant (1 .. 3)
	{
		$old->safe_psql('postgres', q{SELECT leaselock.lease_release_all('worker')});
		$fence{ticket} = $old->safe_psql('postgres', qq{
			SELECT fence FROM leaselock.lease_acquire('ticket', 'worker', '300 s',
				request_id => '00000000-0000-0000-0000-00000000000$grant')});
		$old->safe_psql('postgres', qq{
			INSERT INTO guarded VALUES ($fence{ticket});
			INSERT INTO checked VALUES ($fence{ticket})});
	}
	my $ticket = $old->safe_psql('postgres',
		q{SELECT ticket FROM leaselock.lease_tickets WHERE name = 'ticket'});
	my $waiting = $old->safe_psql('postgres', q{
		SELECT ticket FROM leaselock.lease_acquire('ticket', 'waiter', wait => '300 s')});
	$fence{named} = $old->safe_psql('postgres',
		q{SELECT leaselock.try_lock('named', 'worker', '1 h')});
	$fence{released} = $old->safe_psql('postgres', q{
		SELECT leaselock.try_lock('released', 'worker', '1 h');
		SELECT FROM leaselock.release_lock('released', 'worker')}) =~ s/\n.*//sr;

	# one lock that was pruned, so that the floor remembers it
	$fence{pruned} = $old->safe_psql('postgres',
		q{SELECT leaselock.try_lock('pruned', 'worker', '1 s')});
	$old->poll_query_until('postgres', q{
		SELECT leaselock.lease_prune('1 s') IS NOT NULL AND
			NOT EXISTS (SELECT FROM leaselock.locks WHERE name = 'pruned')})
	  or die 'not pruned';

	# what the other roles operate on
	my %to_break;
	foreach my $database (sort keys %installed_by)
	{
		$to_break{$database} = $old->safe_psql($database,
			q{SELECT fence FROM leaselock.lease_acquire('broken', 'worker', '300 s')});
	}

	my $status = q{
		SELECT scope, name, owner, role, fence, depth, granted_at, expires_at, lapsed, waiters
		FROM leaselock.lease_status ORDER BY name};
	my $tickets = q{
		SELECT name, owner, role, ticket, state, position, expires_at, wait_until
		FROM leaselock.lease_tickets ORDER BY name, owner};
	my %before = (
		status => $old->safe_psql('postgres', $status),
		tickets => $old->safe_psql('postgres', $tickets),
		home => $old->safe_psql('postgres', 'SELECT id FROM leaselock.installation'));
	my $checksums = $old->safe_psql('postgres', 'SHOW data_checksums');
	$old->stop;

	# (from 18 on, the default of initdb is different)
	my $new = PostgreSQL::Test::Cluster->new("new$serial");
	$new->init(extra => [
			$checksums eq 'on' ? '--data-checksums'
			: $new_major >= 18 ? '--no-data-checksums' : () ]);
	$new->append_conf('postgresql.conf', "autovacuum = off\nlog_statement = none
leaselock.waiter_timeout = '5min'
log_line_prefix = '%m [%p] %e %q%a '");
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	chdir $folder or die "could not change to the folder: $!";
	my @pg_upgrade = (
		'pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir,
		'-b', $old_server->{bin}, '-B', $new_bin, '-s', $folder,
		'-p', $old->port, '-P', $new->port);
	command_ok([ @pg_upgrade, '--check' ], "$what: pg_upgrade --check");
	command_ok(\@pg_upgrade, "$what: pg_upgrade");
	Test::More->builder->is_passing
	  or die map { "$_:\n" . slurp_file($_) }
	  glob($new->data_dir . '/pg_upgrade_output.d/*/log/pg_upgrade_dump_*.log');
	chdir '/';
	$new->start;

	# the existing leases are live
	is($new->safe_psql('postgres', 'SELECT id FROM leaselock.installation'),
		$before{home}, "$what: it is the same installation");
	is($new->safe_psql('postgres', $status), $before{status}, "$what: the status is unchanged");
	is($new->safe_psql('postgres', $tickets), $before{tickets}, "$what: the tickets are unchanged");
	is( $new->safe_psql('postgres',
			"SELECT state, fence FROM leaselock.lease_get('$ticket')"),
		"held|$fence{ticket}", "$what: the ticket is held");
	is( $new->safe_psql('postgres',
			"SELECT state FROM leaselock.lease_renew('$ticket', '300 s')"),
		'held', "$what: the ticket can be renewed");
	is( $new->safe_psql('postgres', qq{
			SELECT leaselock.fence_check('ticket', $fence{ticket}),
				leaselock.fence_check('named', $fence{named})}),
		't|t', "$what: the fences are current");
	is( $new->safe_psql('postgres', q{
			SELECT ticket FROM leaselock.lease_acquire('ticket', 'worker',
				request_id => '00000000-0000-0000-0000-000000000003')}),
		$ticket, "$what: a retry finds its ticket");
	is( $new->safe_psql('postgres',
			q{SELECT leaselock.try_lock('named', 'rival', '1 h') IS NULL}),
		't', "$what: the named hold keeps others out");
	is( $new->safe_psql('postgres', "BEGIN ISOLATION LEVEL SERIALIZABLE;
			SELECT leaselock.fence_check('ticket', $fence{ticket}); COMMIT"),
		't', "$what: the grant is older than the snapshot, also by its transaction id");
	is(node_outcome($new, "INSERT INTO guarded VALUES ($fence{ticket})"),
		'', "$what: a guarded row is written");
	is(node_outcome($new, "INSERT INTO checked VALUES ($fence{ticket})"),
		'', "$what: a checked row is written");
	is($new->safe_psql('postgres', 'SELECT count(*) FROM guarded, checked'),
		'16', "$what: the rows are there");
	is( node_outcome($new, q{SET ROLE stranger;
			SELECT leaselock.lease_acquire('x', 'y', scope => 'registered')}),
		'42501', "$what: the registered scope is closed");

	# the queue moves on
	is( $new->safe_psql('postgres',
			"SELECT state FROM leaselock.lease_release('$ticket')"),
		'released', "$what: the ticket is released");
	my ($state, $promoted) = split /\|/, $new->safe_psql('postgres',
		"SELECT state, fence FROM leaselock.lease_get('$waiting')");
	is($state, 'held', "$what: the waiter has its turn");
	cmp_ok($promoted, '>', $fence{ticket}, "$what: its fence grows");
	is(node_outcome($new, "INSERT INTO guarded VALUES ($fence{ticket})"),
		'LS001', "$what: the old fence is stale");

	# fences grow, though the timeline is 1 again
	is(substr($new->safe_psql('postgres',
				'SELECT pg_walfile_name(pg_current_wal_lsn())'), 0, 8),
		'00000001', "$what: timeline 1");
	$new->safe_psql('postgres', q{SELECT FROM leaselock.release_lock('named', 'worker')});
	foreach my $name (qw(named released pruned))
	{
		cmp_ok(
			$new->safe_psql('postgres',
				"SELECT leaselock.try_lock('$name', 'next', '1 h')"),
			'>', $fence{$name}, "$what: the fence of $name grows");
	}
	cmp_ok(
		$new->safe_psql('postgres', 'SELECT leaselock.fence_bump()'),
		'>', $promoted, "$what: the floor can be raised");

	check_operators($new, $what, $_, $to_break{$_}) foreach sort keys %installed_by;

	is_deeply([ internal_errors($new) ],
		[], "$what: no internal error in the log");
	$new->stop;
}

SKIP:
{
	skip join('; ', map { "$_: $skipped{$_}" } sort keys %skipped), 1 if %skipped;
	ok(1, 'another major was available');
}

done_testing();
