# Fences after a failover: a promoted standby that has lost the last grants, a
# second promotion, and a recovery to a point in time give fences above all
# that the old primary gave, even while it still grants.  Also what a standby
# refuses and what it answers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use Test::More;

# a waiter that nobody polls, and a promotion that nobody has seen, outlast the
# test
my $primary = new_node('primary', qq{
session_preload_libraries = 'leaselock'
leaselock.waiter_timeout = '1 h'
max_connections = 20
leaselock.waiter_timeout = '10 min'
wal_keep_size = 512MB
}, allows_streaming => 1, has_archiving => 1);
$primary->safe_psql('postgres', q{
CREATE DATABASE bumped;
CREATE EXTENSION leaselock;
CREATE ROLE team; CREATE ROLE stranger;
CREATE TABLE written (fence bigint);
});

# The newest fence of each lock, whichever server gave it
my %newest;
my $serial = 0;

# A new grant of a lock, "database/name" or a name; the previous grant is
# broken
sub grant
{
	my ($node, $lock) = @_;
	my ($name, $database) = reverse split /\//, $lock;

	$serial++;
	return $node->safe_psql($database // 'postgres', qq{
		DO \$\$ BEGIN
			PERFORM leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$name');
		END \$\$;
		SELECT leaselock.try_lock('$name', 'owner $serial', '1 h')});
}

# Grants of a node, recorded but not checked: those of the old primary after
# the failover
sub grants_on
{
	my ($node, $times, @names) = @_;

	foreach my $name ((@names) x $times)
	{
		my $fence = grant($node, $name);

		$newest{$name} = $fence if $fence > ($newest{$name} // 0);
	}
	return;
}

# A grant that must be above all others of its lock
sub grows
{
	my ($node, $name, $what) = @_;
	my $fence = grant($node, $name);

	cmp_ok($fence, '>', $newest{$name} // 0, "$what: the fence of $name grows");
	cmp_ok($fence, '<', 2**53, "$what: the fence of $name fits into a double");
	$newest{$name} = $fence;
	return;
}

sub timeline
{
	my ($node) = @_;
	return hex substr $node->safe_psql('postgres',
		'SELECT pg_walfile_name(pg_current_wal_lsn())'), 0, 8;
}

# ---------------------------------------------------------------------
# One primary, and three standbys that stream from it
# ---------------------------------------------------------------------

my @locks = ('kept', 'lost');
my $pruned = 'pruned';

# a database whose floor has been raised above the clock of a year
$primary->safe_psql('bumped', 'CREATE EXTENSION leaselock; SELECT leaselock.fence_bump()');
my @bumped = ('bumped/known', 'bumped/new');

grants_on($primary, 2, @locks, $pruned, $bumped[0]);
$primary->backup('base');

my %standby;
foreach my $name ('first', 'second', 'third')
{
	$standby{$name} = PostgreSQL::Test::Cluster->new($name);
	$standby{$name}->init_from_backup($primary, 'base', has_streaming => 1);
	$standby{$name}->start;
}

my ($ticket, $fence) = split /\|/, $primary->safe_psql('postgres',
	q{SELECT ticket, fence FROM leaselock.lease_acquire('held', 'worker', '300 s')});
my $waiting = $primary->safe_psql('postgres',
	q{SELECT ticket FROM leaselock.lease_acquire('held', 'waiter', '300 s', '300 s')});
# waiters inside the server; a standby knows nothing about them but their rows
my @served = (session($primary), session($primary));
$primary->safe_psql('postgres', q{SELECT FROM leaselock.lease_acquire('served', 'worker', '300 s')});
foreach my $number (0, 1)
{
	begin($served[$number],
		"CALL leaselock.lease_acquire_wait('served', 'served $number', '300 s', '300 s')");
	$primary->poll_query_until('postgres', qq{
		SELECT count(*) = 1 FROM leaselock.tickets WHERE owner = 'served $number' AND waiter_pid IS NOT NULL})
	  or die 'it does not wait';
}
$primary->safe_psql('postgres', q{
	SELECT FROM leaselock.lease_scope_create('registered', 'team');
	SELECT leaselock.try_lock('x', 'worker', '1 h', 'registered')});
$primary->wait_for_catchup($standby{$_}) foreach sort keys %standby;

# ---------------------------------------------------------------------
# On a standby: everything that may write is refused, and status works
# ---------------------------------------------------------------------

my $on = $standby{first};
foreach my $call (
	q{SELECT leaselock.lease_acquire('held', 'worker')},
	q{SELECT leaselock.lease_acquire('new', 'worker', wait => '1 s')},
	"SELECT leaselock.lease_get('$ticket')",
	"SELECT leaselock.lease_get('$waiting')",
	"SELECT leaselock.lease_renew('$ticket')",
	"SELECT leaselock.lease_release('$ticket')",
	q{SELECT leaselock.lease_release_all('worker')},
	"CALL leaselock.lease_wait('$waiting')",
	q{CALL leaselock.lease_acquire_wait('held', 'worker')},
	q{SELECT leaselock.try_lock('held', 'worker', '1 h')},
	q{SELECT leaselock.renew_lock('held', 'worker', '1 h')},
	q{SELECT leaselock.release_lock('held', 'worker')},
	"SELECT leaselock.fence_check('held', $fence)",
	"SELECT leaselock.fence_assert('held', $fence)",
	"SELECT leaselock.fence_check('held', 1, allow_lapsed => true)",
	"SELECT leaselock.lease_break('held', $fence)",
	q{SELECT leaselock.lease_prune()},
	q{SELECT leaselock.fence_bump()},
	q{SELECT leaselock.lease_scope_create('s', 'team')},
	q{SELECT leaselock.lease_scope_drop('registered')})
{
	is(node_outcome($on, $call), '25006',
		'standby: ' . $call =~ s/SELECT |\d{6,}|'[0-9a-f-]{36}'//gr);
}
is( node_outcome($on, "BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT leaselock.fence_check('held', $fence)"),
	'25006', 'standby: fence_check in a transaction');

foreach my $query (
	q{SELECT scope, name, owner, role, fence, depth, granted_at, expires_at, lapsed, waiters
		FROM leaselock.lease_status ORDER BY scope, name},
	q{SELECT scope, name, owner, role, ticket, state, position, depth, requested_at, expires_at, wait_until
		FROM leaselock.lease_tickets ORDER BY scope, name, ticket},
	q{SELECT scope, name, owner, role, fence, depth, granted_at, expires_at, lapsed, waiters
		FROM leaselock.lease_peek('held')})
{
	my $answer = $on->safe_psql('postgres', $query);

	like($answer, qr/worker/, 'standby: status answers');
	is($answer, $primary->safe_psql('postgres', $query),
		'standby: the answer is that of the primary');
	is( $on->safe_psql('postgres',
			"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; $query"),
		$answer, 'standby: the answer is the same in REPEATABLE READ');
}
is( $on->safe_psql('postgres', q{
		SELECT string_agg(format('%s %s %s', owner, state, position), ', ' ORDER BY position)
		FROM leaselock.lease_tickets WHERE name = 'served'}),
	'served 0 waiting 1, served 1 waiting 2, worker held ', 'standby: waiters inside the primary are shown');
is( $on->safe_psql('postgres', q{SELECT waiters FROM leaselock.lease_peek('served')}),
	'2', 'standby: these waiters are counted');
is( $on->safe_psql('postgres', q{
		LOAD 'leaselock'; SET leaselock.clock_offset = '301 s';
		SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'served'}),
	'0', 'standby: these waiters are shown until their wait is over');
is( $on->safe_psql('postgres',
		q{SELECT remaining_ms BETWEEN 1 AND 300000 FROM leaselock.lease_peek('held')}),
	't', 'standby: the remaining time is shown');
is( $on->safe_psql('postgres', q{SET ROLE stranger;
		SELECT count(*) FROM leaselock.lease_status WHERE scope = 'registered'}),
	'0', 'standby: a registered scope is closed');
is($on->safe_psql('postgres',
		q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'standby: nothing is locked');
$primary->safe_psql('postgres', "SELECT leaselock.lease_release('$ticket')");
$primary->wait_for_catchup($on);
is($on->safe_psql('postgres',
		q{SELECT owner FROM leaselock.lease_peek('held')}),
	'waiter', 'standby: it follows the primary');
$primary->safe_psql('postgres', q{
	SELECT pg_cancel_backend(waiter_pid) FROM leaselock.tickets WHERE name = 'served' AND place IS NOT NULL});
is(awaited($_), '57014', 'a waiter is cancelled') foreach @served;
$_->quit foreach @served;
$primary->wait_for_catchup($on);
is( $on->safe_psql('postgres', q{SELECT waiters FROM leaselock.lease_peek('served')}),
	'0', 'standby: nobody waits any more');

# ---------------------------------------------------------------------
# The standbys lose the connection, and the primary continues
# ---------------------------------------------------------------------

# The third standby has seen nothing of what follows, the second everything up
# to here, and the first some more.
sub cut_off
{
	my ($node) = @_;

	$node->append_conf('postgresql.conf', "primary_conninfo = ''");
	$node->reload;
	$node->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM pg_stat_wal_receiver')
	  or die 'the WAL receiver does not stop';
	return;
}

cut_off($standby{third});
grants_on($primary, 3, @locks);
$primary->wait_for_catchup($standby{second});
cut_off($standby{second});
grants_on($primary, 3, @locks);
$primary->wait_for_catchup($standby{first});
cut_off($standby{first});

# all of them lose the last grants: of locks that they know, of a lock whose
# row is pruned on the primary, and of new locks
my $target_lsn = $primary->safe_psql('postgres',
	q{SELECT pg_switch_wal(); SELECT pg_current_wal_lsn()}) =~ s/.*\n//r;
grants_on($primary, 20, @locks);
$primary->safe_psql('postgres', qq{
	SELECT FROM leaselock.lease_peek('$pruned') p, leaselock.lease_break(p.name, p.fence)});
is( $primary->safe_psql('postgres', qq{
		LOAD 'leaselock'; SET leaselock.clock_offset = '30 min';
		SELECT leaselock.lease_prune('20 min', 1000) > 0;
		SELECT count(*) FROM leaselock.locks WHERE name = '$pruned'}),
	"t\n0", 'the primary prunes');
grants_on($primary, 2, $pruned, 'new', @bumped);
my %lost = %newest;

# ---------------------------------------------------------------------
# One promotion
# ---------------------------------------------------------------------

my $first = $standby{first};
promote_standby($first);
cmp_ok(
	$first->safe_psql('postgres',
		q{SELECT fence FROM leaselock.lease_peek('lost')}),
	'<', $newest{lost}, 'the standby has lost grants');
is( $first->safe_psql('postgres',
		"SELECT leaselock.fence_check('lost', $lost{lost}, allow_lapsed => true)"),
	'f', 'promoted: the standby knows nothing of them');
grows($first, $_, 'promoted') foreach @locks, $pruned, 'new', 'newer';
grows($first, $_, 'promoted, after a fence_bump') foreach @bumped;
is(timeline($first), 2, 'promoted: timeline 2');

# the old primary is alive and grants; both continue, and the new one's fences
# are above
foreach my $round (1 .. 5)
{
	my %new = %newest;

	foreach my $name (@locks, $pruned, 'new')
	{
		my $old = grant($primary, $name);

		cmp_ok($old, '>', $lost{$name}, "the old primary keeps granting: $name");
		cmp_ok($old, '<', $new{$name},
			"its fence is below the new primary's: $name");
		$lost{$name} = $old;
	}
	grows($first, $_, "beside the old primary, $round") foreach @locks, $pruned;
}

# a holder of a fence of the old primary writes nothing on the new one
foreach my $name (@locks, $pruned, 'new')
{
	is( node_outcome($first, qq{
			BEGIN;
			SELECT FROM leaselock.fence_assert('$name', $lost{$name}, allow_lapsed => true);
			INSERT INTO written VALUES ($lost{$name});
			COMMIT}),
		'LS001', "a fence of the old primary is stale: $name");
}
is($first->safe_psql('postgres', 'SELECT count(*) FROM written'),
	'0', 'nothing is written');

# what was replicated is unchanged
is( $first->safe_psql('postgres',
		"SELECT state, owner FROM leaselock.lease_get('$waiting')"),
	'held|waiter', 'a ticket that was replicated is still held');
is( $first->safe_psql('postgres',
		"SELECT state FROM leaselock.lease_renew('$waiting')"),
	'held', 'the ticket can be renewed');
is(node_outcome($first, q{SET ROLE stranger; SELECT leaselock.lease_acquire('x', 'y', scope => 'registered')}),
	'42501', 'a registered scope is closed');
my $session = $first->background_psql('postgres', on_error_stop => 0);

# ---------------------------------------------------------------------
# Two promotions in a row
# ---------------------------------------------------------------------

# a standby of the new primary, which loses its last grants in its turn
$first->backup('base');
my $cascade = PostgreSQL::Test::Cluster->new('cascade');
$cascade->init_from_backup($first, 'base', has_streaming => 1);
$cascade->start;
$first->wait_for_catchup($cascade);
cut_off($cascade);
grants_on($first, 20, @locks, $pruned);

# it stays connected through the promotion, and so does a session
my $over = $cascade->background_psql('postgres', on_error_stop => 0);
$over->query_safe(q{SELECT count(*) FROM leaselock.lease_status});
promote_standby($cascade);
my $held_over = $over->query_safe(q{
	DO $$ BEGIN
		PERFORM leaselock.lease_break(name, fence) FROM leaselock.lease_peek('lost');
	END $$;
	SELECT leaselock.try_lock('lost', 'session', '1 h')});
cmp_ok($held_over, '>', $newest{lost},
	'promoted twice: the fence grows in a session that was open before');
$newest{lost} = $held_over;
$over->quit;
grows($cascade, $_, 'promoted twice') foreach @locks, $pruned, 'new', 'newer';
is(timeline($cascade), 3, 'promoted twice: timeline 3');
my %third = %newest;
foreach my $round (1 .. 3)
{
	foreach my $name (@locks)
	{
		cmp_ok(grant($primary, $name), '<', $third{$name},
			"the fence of the first primary stays below: $name");
		cmp_ok(grant($first, $name), '<', $third{$name},
			"the fence of the second primary stays below: $name");
	}
	grows($cascade, $_, "beside both, $round") foreach @locks;
}
$cascade->stop;

# ---------------------------------------------------------------------
# A standby that has not seen timeline 2, and follows it after all, cascading
# ---------------------------------------------------------------------

# The second standby of the first primary is pointed to the new primary, and
# then loses the last grants of that.
my $second = $standby{second};
$second->enable_streaming($first);
$second->append_conf('postgresql.conf', "recovery_target_timeline = 'latest'");
$second->restart;
$first->wait_for_catchup($second);
cut_off($second);
grants_on($first, 10, @locks);
promote_standby($second);
my %above = map { $_ => grant($second, $_) } @locks;
cmp_ok($above{$_}, '>', grant($first, $_), "the fence of a re-pointed standby is above: $_")
  foreach @locks;
cmp_ok(grant($second, $_), '>', grant($primary, $_),
	"its fence is above that of the first primary: $_") foreach @locks;
$second->stop;
$session->quit;

# The third standby has seen nothing of timeline 2 and cannot know about it.
# It makes a timeline of that number, too, and the clock alone puts its fences
# above those given before it was promoted.
my $third = $standby{third};
my %given = map { $_ => grant($first, $_) } @locks;
promote_standby($third);
is(timeline($third), 2, 'a standby that never saw timeline 2 makes its own');
cmp_ok(grant($third, $_), '>', $given{$_},
	"its fences are above those given before: $_") foreach @locks;
$third->stop;

# ---------------------------------------------------------------------
# Recovery to a point in time before the last grants
# ---------------------------------------------------------------------

%newest = ();
grants_on($primary, 3, @locks, $pruned, 'new');
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
my $last_wal = $primary->safe_psql('postgres',
	"SELECT pg_walfile_name('$target_lsn'::pg_lsn)");
$primary->poll_query_until('postgres', qq{
	SELECT last_archived_wal >= '$last_wal' FROM pg_stat_archiver})
  or die 'WAL is not archived';

my $in_time = PostgreSQL::Test::Cluster->new('in_time');
$in_time->init_from_backup($primary, 'base', has_restoring => 1, standby => 0);
$in_time->append_conf('postgresql.conf', qq{
recovery_target_lsn = '$target_lsn'
recovery_target_inclusive = on
recovery_target_action = 'promote'
recovery_target_timeline = 'current'
});
$in_time->start;
$in_time->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
  or die 'the recovery does not end';
cmp_ok(
	$in_time->safe_psql('postgres',
		q{SELECT fence FROM leaselock.lease_peek('lost')}),
	'<', $newest{lost}, 'point in time: the last grants are lost');
cmp_ok(timeline($in_time), '>', 1, 'point in time: a new timeline');
my %first_of = map { $_ => grant($in_time, $_) } @locks, $pruned, 'new';
foreach my $name (sort keys %first_of)
{
	cmp_ok($first_of{$name}, '>', $newest{$name},
		"point in time: the fence of $name grows");
	cmp_ok($first_of{$name}, '>', grant($primary, $name),
		"point in time: it is above what the old server still gives: $name");
}

# ---------------------------------------------------------------------

foreach my $node ($primary, $in_time, $cascade, values %standby)
{
	is_deeply([ internal_errors($node) ],
		[], $node->name . ': no internal error in the log');
}
$_->stop foreach $in_time, $first, $primary;

done_testing();
