# Fences of a lock never go back: through crashes with asynchronous commits,
# DROP and CREATE EXTENSION, pruning, and a clock that is set back.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

# Commits stay in the WAL buffers until somebody flushes them.
my $node = new_node('grow', qq{
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 1GB
full_page_writes = off
});
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock; CHECKPOINT');

# Runs a query at a time relative to now, by the clock of the leases
sub at
{
	my ($offset, $sql) = @_;
	return $node->safe_psql('postgres',
		"LOAD 'leaselock'; SET leaselock.clock_offset = '$offset'; $sql");
}

# A new grant of a lock at a given time, by an owner of its own; the previous
# holder's grant is broken.
my $serial = 0;

sub grant
{
	my ($name, $offset) = @_;

	$serial++;
	at($offset // 0, qq{
		SELECT FROM leaselock.lease_peek('$name') p, leaselock.lease_break(p.name, p.fence)});
	return at($offset // 0,
		"SELECT leaselock.try_lock('$name', 'owner $serial', '1 h')");
}

# The newest fence of each lock, and of all
my %newest;
my $highest = 0;

sub grows
{
	my ($name, $fence, $what) = @_;

	like($fence, qr/^\d+$/, "$what: $name is granted");
	cmp_ok($fence, '>', $newest{$name} // 0, "$what: the fence of $name grows");
	cmp_ok($fence, '<', 2**53, "$what: the fence of $name fits into a double");
	$newest{$name} = $fence;
	$highest = $fence if $fence > $highest;
	return;
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

# ---------------------------------------------------------------------
# Crash: every kind of grant, and one that a release promotes
# ---------------------------------------------------------------------

foreach my $round (1 .. 3)
{
	my $what = "crash $round";

	grows('named', grant('named'), $what);
	grows('ticket', $node->safe_psql('postgres', q{
			SELECT FROM leaselock.lease_release_all('worker');
			SELECT fence FROM leaselock.lease_acquire('ticket', 'worker')}), $what);
	$node->safe_psql('postgres', qq{
		SELECT FROM leaselock.lease_release_all('first');
		SELECT FROM leaselock.lease_release_all('second');
		SELECT FROM leaselock.lease_acquire('promoted', 'first');
		SELECT FROM leaselock.lease_acquire('promoted', 'second', wait => '100 s')});
	grows('promoted', $node->safe_psql('postgres', q{
			SELECT FROM leaselock.lease_release_all('first');
			SELECT fence FROM leaselock.lease_peek('promoted') WHERE owner = 'second'}),
		$what);
	grows('broken', $node->safe_psql('postgres', qq{
			SELECT FROM leaselock.lease_release_all('third');
			SELECT FROM leaselock.lease_release_all('fourth');
			SELECT FROM leaselock.lease_acquire('broken', 'third');
			SELECT FROM leaselock.lease_acquire('broken', 'fourth', wait => '100 s');
			SELECT FROM leaselock.lease_peek('broken') p, leaselock.lease_break(p.name, p.fence);
			SELECT fence FROM leaselock.lease_peek('broken') WHERE owner = 'fourth'}),
		$what);
	my %held = %newest;
	crash();
	is( $node->safe_psql('postgres',
			"SELECT fence FROM leaselock.lease_peek('$_')"),
		$held{$_}, "$what: the grant of $_ survives") foreach sort keys %held;
}

# a floor that was acknowledged survives, too
my $floor = $node->safe_psql('postgres', 'SELECT leaselock.fence_bump()');
cmp_ok($floor, '>', $highest, 'fence_bump: the floor is above all fences');
crash();
foreach my $name ('named', 'after the bump')
{
	my $fence = grant($name);

	grows($name, $fence, 'fence_bump, crash');
	cmp_ok($fence, '>', $floor, "fence_bump, crash: $name is above the floor");
}

# ---------------------------------------------------------------------
# DROP and CREATE EXTENSION: nothing is kept, but the clock runs on
# ---------------------------------------------------------------------

# without the floor, which is ahead of the clock by a year
$node->safe_psql('postgres', 'CREATE DATABASE other');
my $before = 0;
foreach my $round (1 .. 3)
{
	my $fence = $node->safe_psql('other', q{
		DROP EXTENSION IF EXISTS leaselock;
		CREATE EXTENSION leaselock;
		SELECT leaselock.try_lock('work', 'worker', '1 h')});

	cmp_ok($fence, '>', $before, "DROP and CREATE EXTENSION $round: the fence grows");
	is( $node->safe_psql('other',
			"SELECT leaselock.fence_check('work', $before)"),
		'f', "DROP and CREATE EXTENSION $round: the old fence is stale");
	$before = $fence;
}
my $session = $node->background_psql('other', on_error_stop => 0);
foreach my $round (1 .. 3)
{
	my $fence = $session->query_safe(q{
		DROP EXTENSION leaselock;
		CREATE EXTENSION leaselock;
		SELECT leaselock.try_lock('work', 'worker', '1 h')});

	cmp_ok($fence, '>', $before, "DROP and CREATE in one session $round: the fence grows");
	$before = $fence;
}
$session->quit;

# ---------------------------------------------------------------------
# A clock that is set back: the same lock continues from its last fence
# ---------------------------------------------------------------------

# in a database whose floor has never been raised
$node->safe_psql('postgres', q{
	DROP EXTENSION leaselock; CREATE EXTENSION leaselock});
%newest = ();
$highest = 0;

grows('back', grant('back'), 'before the clock is set back');
foreach my $offset ('-1 h', '-12 h', '-3 d', '-30 d', '-300 d', '-3000 d', '0')
{
	grows('back', grant('back', $offset), "clock at $offset");
	at($offset, "SELECT leaselock.release_lock('back', 'owner $serial')");
	grows('back', at($offset, q{
			SELECT fence FROM leaselock.lease_acquire('back', 'ticket')}),
		"clock at $offset, ticket");
	at($offset, q{SELECT leaselock.lease_release_all('ticket')});
}

at('0', q{SELECT leaselock.try_lock('lease', 'worker', '1 h')});
is( at('-3 d', q{SELECT leaselock.try_lock('lease', 'rival', '1 h') IS NULL}),
	't', 'clock at -3 d: a lease granted at the later time is still valid');

# ---------------------------------------------------------------------
# Prune: the rows go, the floor remembers their fences
# ---------------------------------------------------------------------

sub prune
{
	my ($offset) = @_;
	return at($offset, "SELECT leaselock.lease_prune('0 s')");
}

sub locks
{
	return $node->safe_psql('postgres',
		q{SELECT count(*) FROM leaselock.locks WHERE name LIKE 'pruned%'});
}

foreach my $round (1 .. 3)
{
	my $what = "prune $round";
	my @names = map { "pruned $_" } 1 .. 5;

	grows($_, grant($_), $what) foreach @names;
	$node->safe_psql('postgres', qq{
		SELECT FROM leaselock.lease_acquire('pruned ticket', 'worker');
		SELECT FROM leaselock.lease_release_all('worker')});
	$node->safe_psql('postgres', q{
		SELECT FROM leaselock.lease_status s, leaselock.lease_break(s.name, s.fence)});
	cmp_ok(prune('2 h'), '>', 5, "$what: rows are removed");
	is(locks(), '0', "$what: no lock is left");
	is( $node->safe_psql('postgres',
			"SELECT leaselock.fence_check('pruned 1', $newest{'pruned 1'}, allow_lapsed => true)"),
		'f', "$what: a pruned grant is stale");
	crash() if $round == 2;
	grows($names[0], grant($names[0]), "$what, now");

	# the other locks are granted by a clock that is behind: the floor applies,
	# also to names that never existed
	foreach my $offset ('-1 h', '-3 d', '-300 d')
	{
		my ($known, $new) = (shift @names, "new $round $offset");
		my $fence = grant($known, $offset);

		grows($known, $fence, "$what, clock at $offset");
		grows($new, grant($new, $offset), "$what, clock at $offset");
		push @names, $known;
	}
}

# rows that were pruned by a clock that was ahead: the floor is ahead, too
grows('ahead', grant('ahead', '700 d'), 'a clock that was ahead');
$node->safe_psql('postgres', q{
	SELECT FROM leaselock.lease_status s, leaselock.lease_break(s.name, s.fence)});
prune('702 d');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM leaselock.locks WHERE name = 'ahead'}),
	'0', 'a clock that was ahead: its lock is pruned');
grows('ahead', grant('ahead'), 'a clock that was ahead, and is right again');
grows('ahead', grant('ahead', '-300 d'), 'a clock that was ahead, and is behind');

# ---------------------------------------------------------------------
# fence_bump
# ---------------------------------------------------------------------

my @bumped = (0);
foreach my $offset ('0', '-300 d', '0', '-300 d', '-3000 d')
{
	my $bump = at($offset, 'SELECT leaselock.fence_bump()');
	my $what = "fence_bump, clock at $offset";

	cmp_ok($bump, '>', $bumped[-1], "$what: the floor is above the previous one");
	cmp_ok($bump, '>', $highest, "$what: the floor is above all fences");
	cmp_ok($bump, '<', 2**53, "$what: the floor fits into a double");
	push @bumped, $bump;
	foreach my $name ('back', "new after $#bumped")
	{
		my $fence = grant($name, $offset);

		grows($name, $fence, $what);
		cmp_ok($fence, '>', $bump, "$what: $name is above the floor");
	}
}

# A clock set back by 300 days, with an installation that knows nothing of the
# past: this is what fence_bump is for.
my $last = grant('forgotten');
$node->safe_psql('postgres', q{DROP EXTENSION leaselock; CREATE EXTENSION leaselock});
$before = at('0', q{SELECT leaselock.try_lock('forgotten', 'worker', '1 h')});
$node->safe_psql('postgres', q{DROP EXTENSION leaselock; CREATE EXTENSION leaselock});
at('-300 d', 'SELECT leaselock.fence_bump()');
cmp_ok(
	at('-300 d', q{SELECT leaselock.try_lock('forgotten', 'worker', '1 h')}),
	'>', $before, 'fence_bump makes up for a clock set back by 300 days');

# A fence that was shown and rolled back is not handed out again, and two locks
# do not get the same number.  That is always so, and must be so after a bump.
my %shown;
foreach my $name ('rolled back', 'rolled back', 'of its own', 'rolled back')
{
	my $fence = $node->safe_psql('postgres', qq{
		BEGIN; SELECT leaselock.try_lock('$name', 'worker', '1 h'); ROLLBACK});

	ok(!$shown{$fence}++, "after a bump: a fence of $name is shown only once");
}

# The same is true when a lock is pruned long afterwards: this does not set
# back the floor, above which fences advance with time.  (Both rows are created
# before the clock is set, so that no row is added then, and nothing is pruned
# in passing by that clock.)
$node->safe_psql('postgres', q{
	DROP EXTENSION leaselock; CREATE EXTENSION leaselock;
	SELECT leaselock.fence_bump();
	SELECT leaselock.try_lock('early', 'worker', '1 h');
	SELECT leaselock.release_lock('early', 'worker');
	SELECT leaselock.try_lock('late', 'worker', '1 h')});
grows('late', grant('late', '2 d'), 'a bumped floor');
at('2 d', q{SELECT leaselock.lease_prune('1 d')});
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM leaselock.locks WHERE name = 'early'}),
	'0', 'a bumped floor: a lock is pruned later');
foreach my $try (1, 2)
{
	my $fence = at('2 d', qq{
		BEGIN;
		SELECT FROM leaselock.lease_break('late', $newest{late});
		SELECT leaselock.try_lock('late', 'next', '1 h');
		ROLLBACK}) =~ s/^\n//r;

	cmp_ok($fence, '>', $newest{late}, "a bumped floor, pruned later: the fence grows");
	ok(!$shown{$fence}++, "a bumped floor, pruned later: a fence is shown only once");
}

# a rolled-back bump leaves no trace
my $kept = $node->safe_psql('postgres', 'SELECT max(fence) FROM leaselock.floor');
$node->safe_psql('postgres', 'BEGIN; SELECT leaselock.fence_bump(); ROLLBACK');
is($node->safe_psql('postgres', 'SELECT max(fence) FROM leaselock.floor'),
	$kept, 'a rolled-back bump leaves no trace');
is($node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.floor'),
	'1', 'the floor is one row');

# two at once: the second waits, and continues from the first
my $one = $node->background_psql('postgres', on_error_stop => 0);
my $open = $one->query_safe('BEGIN; SELECT leaselock.fence_bump()');
my ($rc, $out, $err) = $node->psql('postgres', qq{
	\\set VERBOSITY sqlstate
	LOAD 'leaselock'; SET leaselock.lock_timeout = '200 ms';
	SELECT leaselock.fence_bump()});
like($err, qr/55P03/, 'a bump waits for an open one, but not for ever');
grows('beside', grant('beside'), 'grants do not wait for an open bump');
$one->query_safe('COMMIT');
$one->quit;
cmp_ok($node->safe_psql('postgres', 'SELECT leaselock.fence_bump()'),
	'>', $open, 'the next bump continues from there');

# ---------------------------------------------------------------------

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');

$node->stop;

done_testing();
