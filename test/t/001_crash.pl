# A crash loses no acknowledged grant and never makes a fence go back, although
# commits are asynchronous.  A crash may lose a release; the lease then simply
# runs out.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

# Commits stay in the WAL buffers until somebody flushes them.  These settings
# keep the WAL writer from flushing them in the background.
my $node = new_node('crash', qq{
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 1GB
full_page_writes = off
});
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE control (round int);
CREATE TABLE written (round int, fence bigint);
CHECKPOINT;
});

# The fields of the one row that a query returns
sub row
{
	my ($sql) = @_;
	return split /\|/, $node->safe_psql('postgres', $sql), -1;
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

# ---------------------------------------------------------------------
# Grants: a ticket, a named hold, and a grant that commits with a row
# ---------------------------------------------------------------------

my %newest = (ticket => 0, named => 0, block => 0, open => 0);
my $round = 0;
my $lost = 0;

# A fence is greater than every earlier fence of its lock, including those that
# only a transaction saw that the crash rolled back.
sub fence_grows
{
	my ($lock, $fence, $what) = @_;

	cmp_ok($fence, '>', $newest{$lock}, "$what: the fence grows");
	$newest{$lock} = $fence;
	return;
}

foreach my $kind (qw(ticket named block ticket named block))
{
	$round++;
	my $what = "round $round, $kind";

	# a grant that the crash rolls back after its fence was shown
	my $open = $node->background_psql('postgres');
	my $shown = $open->query_safe(
		"BEGIN; SELECT fence FROM leaselock.lease_acquire('open', 'ghost')");
	fence_grows('open', $shown, "$what: uncommitted");

	# the acknowledged grant; the crash may lose the control row
	my ($ticket, $fence);
	my $control = "INSERT INTO control VALUES ($round)";
	if ($kind eq 'named')
	{
		($fence) = row("SELECT leaselock.try_lock('named', 'worker', '1 h');
			$control");
	}
	else
	{
		my $acquire = "SELECT ticket, fence
			FROM leaselock.lease_acquire('$kind', 'worker')";
		$acquire = "WITH a AS MATERIALIZED ($acquire),
			w AS (INSERT INTO written SELECT $round, fence FROM a)
			SELECT ticket, fence FROM a" if $kind eq 'block';
		($ticket, $fence) = row("$acquire; $control");
	}
	crash();
	$open->quit;

	fence_grows($kind, $fence, $what);
	my ($kept) = row("SELECT count(*) FROM control WHERE round = $round");
	note("$what: the control row was " . ($kept ? 'kept' : 'lost'));
	$lost++ unless $kept;

	if ($kind eq 'named')
	{
		is( $node->safe_psql('postgres', q{
				SELECT fence, owner, lapsed FROM leaselock.lease_peek('named')}),
			"$fence|worker|f", "$what: the hold survives");
		is( $node->safe_psql('postgres', q{
				SELECT leaselock.try_lock('named', 'rival', '1 h') IS NULL}),
			't', "$what: nobody else gets it");
		is( $node->safe_psql('postgres', q{
				SELECT leaselock.try_lock('named', 'worker', '1 h')}),
			$fence, "$what: the holder gets the same fence");
		is( $node->safe_psql('postgres', q{
				SELECT leaselock.release_lock('named', 'worker')}),
			't', "$what: the hold is released");
	}
	else
	{
		is( $node->safe_psql('postgres', qq{
				SELECT state, fence, owner, depth FROM leaselock.lease_get('$ticket')}),
			"held|$fence|worker|1", "$what: the ticket is held");
		is( $node->safe_psql('postgres', qq{
				SELECT fence, owner, depth, lapsed FROM leaselock.lease_peek('$kind')}),
			"$fence|worker|1|f", "$what: the lock is held, too");
		is( $node->safe_psql('postgres', qq{
				SELECT state, ticket IS NULL, holder
				FROM leaselock.lease_acquire('$kind', 'rival')}),
			'contended|t|worker', "$what: nobody else gets it");
		is( $node->safe_psql('postgres', qq{
				SELECT fence FROM written WHERE round = $round}),
			$fence, "$what: its transaction's row survives")
			if $kind eq 'block';
		is( $node->safe_psql('postgres', qq{
				SELECT state FROM leaselock.lease_release('$ticket')}),
			'released', "$what: the ticket is released");
	}

	# the rolled-back grant has left no trace except its number
	is( $node->safe_psql('postgres',
			q{SELECT count(*) FROM leaselock.lease_peek('open')}),
		'0', "$what: the uncommitted grant is gone");
	my ($again, $state, $next) = row(
		q{SELECT ticket, state, fence FROM leaselock.lease_acquire('open', 'next')});
	is($state, 'held', "$what: its lock is free");
	fence_grows('open', $next, "$what: after the uncommitted grant");
	row("SELECT leaselock.lease_release('$again')");
}

cmp_ok($lost, '>', 0, 'the crashes lost asynchronous commits');

# ---------------------------------------------------------------------
# Releases: lost or kept, never half done
# ---------------------------------------------------------------------

my %releases = (lost => 0, kept => 0);

foreach my $settings (
	[qw(off on)], [qw(on on)], [qw(on off)], [qw(off on)], [qw(on on)], [qw(on off)])
{
	my ($commit, $async) = @$settings;
	$round++;
	my $name = "release-$round";
	my $what = "round $round, release with synchronous_commit = $commit, "
	  . "async_release = $async";

	my ($ticket, $fence) = row(qq{
		SELECT ticket, fence FROM leaselock.lease_acquire('$name', 'worker')});
	is( $node->safe_psql('postgres', qq{
			LOAD 'leaselock';
			SET synchronous_commit = $commit;
			SET leaselock.async_release = $async;
			SELECT state FROM leaselock.lease_release('$ticket')}),
		'released', $what);
	crash();

	my ($state) = row("SELECT state FROM leaselock.lease_get('$ticket')");
	like($state, $async eq 'on' ? qr/^(held|released)$/ : qr/^released$/,
		$async eq 'on' ? "$what: lost or kept" : "$what: kept");
	$releases{ $state eq 'held' ? 'lost' : 'kept' }++;

	if ($state eq 'held')
	{
		is( $node->safe_psql('postgres', qq{
				SELECT fence, owner, depth, lapsed FROM leaselock.lease_peek('$name')}),
			"$fence|worker|1|f", "$what: lost, the lock is held as before");
		is( $node->safe_psql('postgres', qq{
				SELECT state FROM leaselock.lease_acquire('$name', 'rival')}),
			'contended', "$what: lost, nobody else gets it");
		my ($taken, $newer) = row(qq{
			LOAD 'leaselock'; SET leaselock.clock_offset = '61 s';
			SELECT state, fence FROM leaselock.lease_acquire('$name', 'rival')});
		is($taken, 'held', "$what: lost, the lease runs out");
		cmp_ok($newer, '>', $fence, "$what: lost, the next fence is greater");
	}
	else
	{
		is( $node->safe_psql('postgres',
				"SELECT count(*) FROM leaselock.lease_peek('$name')"),
			'0', "$what: kept, the lock is free");
		my ($taken, $newer) = row(qq{
			SELECT state, fence FROM leaselock.lease_acquire('$name', 'rival')});
		is($taken, 'held', "$what: kept, the lock can be acquired");
		cmp_ok($newer, '>', $fence, "$what: kept, the next fence is greater");
	}
	is( $node->safe_psql('postgres', qq{
			LOAD 'leaselock'; SET leaselock.clock_offset = '61 s';
			SELECT leaselock.fence_check('$name', $fence, allow_lapsed => true)}),
		'f', "$what: the old fence is stale");
}

cmp_ok($releases{lost}, '>', 0, 'the crashes lost releases');

# A release that hands the lock over acknowledges a grant.
foreach my $way ('ticket', 'named')
{
	$round++;
	my $name = "handover-$round";
	my $what = "hand-over by the release of a $way";

	my ($held) = $way eq 'ticket'
	  ? row("SELECT ticket FROM leaselock.lease_acquire('$name', 'worker')")
	  : row("SELECT leaselock.try_lock('$name', 'worker', '1 h')");
	my ($next) = row(qq{
		SELECT ticket FROM leaselock.lease_acquire('$name', 'next', wait => '300 s')});
	row($way eq 'ticket'
		? "SELECT leaselock.lease_release('$held')"
		: "SELECT leaselock.release_lock('$name', 'worker')");
	my ($fence) = row("SELECT fence FROM leaselock.lease_peek('$name')");
	crash();

	is( $node->safe_psql('postgres',
			"SELECT owner, fence FROM leaselock.lease_peek('$name')"),
		"next|$fence", "$what: it survives the crash");
	is( $node->safe_psql('postgres', "SELECT state FROM leaselock.lease_get('$next')"),
		'held', "$what: the ticket is held");
}

# A release must not make the other writes of its transaction less durable,
# whichever comes first.
foreach my $order ('write, release', 'release, write')
{
	$round++;
	my $what = "$order in one synchronous transaction";
	my ($ticket, $fence) = row(qq{
		SELECT ticket, fence FROM leaselock.lease_acquire('both-$round', 'worker')});
	my $write = "INSERT INTO written VALUES ($round, $fence)";
	my $release = "SELECT FROM leaselock.lease_release('$ticket')";
	row("SET synchronous_commit = on; BEGIN; "
		. ($order =~ /^write/ ? "$write; $release" : "$release; $write")
		. '; COMMIT');
	crash();

	is( $node->safe_psql('postgres',
			"SELECT count(*) FROM written WHERE round = $round"),
		'1', "$what: the row is there");
	is( $node->safe_psql('postgres',
			"SELECT state FROM leaselock.lease_get('$ticket')"),
		'released', "$what: the release is there, too");
}

$node->stop;

done_testing();
