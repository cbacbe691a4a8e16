# The cost of a call does not depend on how many waiters there are: measured in
# buffers touched, with 10 and with nearly 10 000 waiters.  And the queue has a
# bound.
#
# One major: the order of the queue does not depend on the server's version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('queue_cost', "leaselock.waiter_timeout = '600 s'");
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

# ---------------------------------------------------------------------
# Two queues
# ---------------------------------------------------------------------

my %length = (short => 10, middle => 300, long => 9998);
my %ticket;

foreach my $queue (sort keys %length)
{
	$ticket{$queue}{holder} = $node->safe_psql('postgres', qq{
		SELECT ticket FROM leaselock.lease_acquire('$queue', '$queue holder', lease => '60 s')});
	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM generate_series(1, $length{$queue}) i,
				leaselock.lease_acquire('$queue', '$queue ' || i, wait => '300 s') a
			WHERE a.state = 'waiting' AND a.position = least(i, 100)}),
		$length{$queue}, "$queue: $length{$queue} wait");
	foreach my $which (1, 5, $length{$queue})
	{
		my $key = $which == 1 ? 'head' : $which == 5 ? 'fifth' : 'tail';
		$ticket{$queue}{$key} = $node->safe_psql('postgres', qq{
			SELECT ticket FROM leaselock.tickets
			WHERE name = '$queue' AND owner = '$queue $which'});
	}
}
# an owner that many wait for elsewhere, so that a search for cycles has far to
# go
is( $node->safe_psql('postgres', q{
		SELECT state FROM leaselock.lease_acquire('hub', 'hub', lease => '300 s');
		SELECT count(*) FROM generate_series(1, 100) i,
			leaselock.lease_acquire('hub', 'spoke ' || i, wait => '300 s') a
		WHERE a.state = 'waiting'}),
	"held\n100", 'hub: a hundred wait');
$node->safe_psql('postgres', 'VACUUM ANALYZE leaselock.locks; VACUUM ANALYZE leaselock.tickets');

# ---------------------------------------------------------------------
# Calls
# ---------------------------------------------------------------------

my $session = $node->background_psql('postgres');
$session->query_safe("LOAD 'leaselock'; SET statement_timeout = '60 s'");

# The buffers that a call touches: the minimum of several runs, since the first
# runs fill the caches of the session.  Every run is rolled back.
sub buffers
{
	my ($queue, $offset, $call) = @_;
	my $least;

	$session->query_safe("SET leaselock.clock_offset = '$offset s'");
	foreach my $run (1 .. 5)
	{
		my $sql = $call =~ s/\$(\w+)/$ticket{$queue}{$1}/r;
		$sql =~ s/QUEUE/$queue/;
		$sql =~ s/RUN/$run/;
		$session->query_safe('BEGIN');
		my $plan = $session->query_safe(
			"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) $sql");
		$session->query_safe('ROLLBACK');

		# the first such line belongs to the topmost node
		my ($line) = $plan =~ /Buffers: shared(.*)/;
		my $sum = 0;
		$sum += $1 while ($line // '') =~ /(?:hit|read)=(\d+)/g;
		$least = $sum if !defined $least || $sum < $least;
	}
	return $least;
}

# what the call must answer; otherwise the test would measure something else
sub answers
{
	my ($queue, $offset, $call) = @_;
	my $sql = $call =~ s/\$(\w+)/$ticket{$queue}{$1}/r;

	$sql =~ s/QUEUE/$queue/;
	$sql =~ s/RUN/0/;
	$session->query_safe("SET leaselock.clock_offset = '$offset s'");
	$session->query_safe('BEGIN');
	my $state = $session->query_safe($sql);
	$session->query_safe('ROLLBACK');
	return $state;
}

# Name, clock, call, state that it answers, how many rows of the queue it may
# read to count a position, and the other queue, if not the longest
my @calls = (
	[ 'promotion by release', 0, q{lease_release('$holder')}, 'released', 0 ],
	[ 'promotion by a poll of the first after a lapse', 61, q{lease_get('$head')}, 'held', 0 ],
	[ 'acquire by a new holder is contended after a lapse', 61, q{lease_acquire('QUEUE', 'new RUN')}, 'contended', 0 ],
	[ 'poll by the first', 0, q{lease_get('$head')}, 'waiting', 0 ],
	[ 'poll by the fifth', 0, q{lease_get('$fifth')}, 'waiting', 0 ],
	[ 'poll by the last', 0, q{lease_get('$tail')}, 'waiting', 100 ],
	[ 'poll by the last after a lapse', 61, q{lease_get('$tail')}, 'waiting', 100 ],
	[ 'enqueue', 0, q{lease_acquire('QUEUE', 'new RUN', wait => '300 s')}, 'waiting', 100 ],
	[ 'enqueue with a request id', 0, q{lease_acquire('QUEUE', 'new RUN', wait => '300 s', request_id => gen_random_uuid())}, 'waiting', 100 ],
	[ 'acquire without waiting', 0, q{lease_acquire('QUEUE', 'new RUN')}, 'contended', 0 ],
	[ 'cancel by the first', 0, q{lease_release('$head')}, 'cancelled', 0 ],
	[ 'cancel by the last', 0, q{lease_release('$tail')}, 'cancelled', 0 ],
	[ 'renew', 0, q{lease_renew('$holder')}, 'held', 0 ],
	[ 'enqueue by an owner that 100 wait for', 0, q{lease_acquire('QUEUE', 'hub', wait => '300 s')}, 'waiting', 100, 'middle' ]);
# The search for cycles costs as much as its shorter side: the ten ahead, or
# the hundred behind.  This call is therefore compared with a queue where the
# hundred behind are the shorter side.

# The larger indexes are a level or two deeper, and a call descends some of
# them several times.
my $factor = 2;

foreach my $case (@calls)
{
	my ($what, $offset, $function, $state, $rows, $short) = @$case;
	my $call = "SELECT state FROM leaselock.$function";
	my %cost;

	$short //= 'short';
	foreach my $queue ($short, 'long')
	{
		is(answers($queue, $offset, $call), $state, "$what, $queue queue: $state");
		$cost{$queue} = buffers($queue, $offset, $call);
	}
	note("$what: $cost{$short} buffers with $length{$short} waiters, $cost{long} with $length{long}");
	cmp_ok($cost{$short}, '>', 0, "$what: something was measured");
	cmp_ok($cost{long}, '<=', $factor * $cost{$short} + $rows,
		"$what: costs the same in a long queue");
}
is( answers('long', 0, 'SELECT waiters FROM leaselock.lease_status WHERE name = \'QUEUE\''),
	$length{long}, 'the queue is as long as before');

# lease_peek counts waiters only as far as a position does
is(answers('long', 0, 'SELECT waiters FROM leaselock.lease_peek(\'QUEUE\')'),
	100, 'lease_peek: a hundred or more');
{
	my %cost = map { $_ => buffers($_, 0, q{SELECT waiters FROM leaselock.lease_peek('QUEUE')}) }
	  'short', 'long';

	note("lease_peek: $cost{short} buffers with 10 waiters, $cost{long} with 9998");
	cmp_ok($cost{long}, '<=', $factor * $cost{short} + 100,
		'lease_peek: costs the same in a long queue');
}

# named locks
foreach my $case (
	[ 'try_lock', q{SELECT leaselock.try_lock('QUEUE', 'new RUN', '1 min')} ],
	[ 'renew_lock', q{SELECT leaselock.renew_lock('QUEUE', 'new RUN', '1 min')} ])
{
	my ($what, $call) = @$case;
	my %cost = map { $_ => buffers($_, 61, $call) } 'short', 'long';

	note("$what: $cost{short} buffers with 10 waiters, $cost{long} with 9998");
	cmp_ok($cost{long}, '<=', $factor * $cost{short},
		"$what: costs the same in a long queue");
}
# ---------------------------------------------------------------------
# Dead waiters
# ---------------------------------------------------------------------

# All of them timed out while somebody held the lock.  Whoever is granted the
# lock next or releases it visits them once more, and nobody does so after
# that.
foreach my $way ('grant', 'release')
{
	my $queue = "dead by $way";
	my $lease = $way eq 'grant' ? 60 : 300;

	$ticket{$queue}{holder} = $node->safe_psql('postgres', qq{
		SELECT ticket FROM leaselock.lease_acquire('$queue', 'holder', lease => '$lease s')});
	is( $node->safe_psql('postgres', qq{
			SELECT count(*) FROM generate_series(1, 1000) i,
				leaselock.lease_acquire('$queue', 'dead ' || i, wait => '60 s') a
			WHERE a.state = 'waiting'}),
		1000, "$way: a thousand wait, and die");
	$session->query_safe("SET leaselock.clock_offset = '61 s'");
	is( $session->query_safe($way eq 'grant' ?
			"SELECT r.state FROM leaselock.lease_acquire('$queue', 'next') a, leaselock.lease_release(a.ticket) r" :
			"SELECT state FROM leaselock.lease_release('$ticket{$queue}{holder}')"),
		'released', "$way: the lock has changed hands");
	is( $session->query_safe("SELECT count(*) FROM leaselock.tickets WHERE name = '$queue' AND place IS NOT NULL"),
		1000, "$way: nobody has removed them");
	my $call = q{SELECT state FROM leaselock.lease_acquire('QUEUE', 'new RUN')};
	my %cost = map { $_ => buffers($_, 61, $call) } 'fresh', $queue;

	is(answers($queue, 61, $call), 'held', "$way: the lock is free");
	note("acquire after $way: $cost{fresh} buffers without dead waiters, $cost{$queue} with a thousand");
	cmp_ok($cost{$queue}, '<=', $factor * $cost{fresh}, "$way: dead waiters cost nothing now");
	is( answers($queue, 61, "SELECT g.state FROM leaselock.tickets t, leaselock.lease_get(t.ticket) g WHERE t.name = '$queue' AND t.owner = 'dead 7'"),
		'timed_out', "$way: a dead waiter learns that it timed out");
}
$session->quit;

# ---------------------------------------------------------------------
# The bound
# ---------------------------------------------------------------------

my $enqueue = q{SELECT state FROM leaselock.lease_acquire('%s', '%s', wait => '%s s')};

sub error_code
{
	my ($sql) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	return join ' ', grep { $_ ne '' } $out, $err =~ /ERROR:\s+(\w{5})/;
}

is(error_code(sprintf $enqueue, 'long', "one more $_", 300),
	'waiting', "the limit of 10 000 waiters is not reached: $_")
  foreach 1, 2;
is(error_code(sprintf $enqueue, 'long', 'too many', 300),
	'53400', 'one more than 10 000 is refused');
is(error_code(sprintf $enqueue, 'long', 'too many', 0),
	'contended', 'a caller that does not wait is not refused');
is(error_code(sprintf $enqueue, 'short', 'one more', 300),
	'waiting', 'a wait for another lock is not refused');
is( error_code(
		q{CALL leaselock.lease_acquire_wait('long', 'too many', wait => '300 s')}),
	'53400', 'lease_acquire_wait is refused, too');

# a low limit: live waiters count, dead and cancelled ones do not
my $few = q{LOAD 'leaselock'; SET leaselock.max_waiters = 3; };
$node->safe_psql('postgres', q{SELECT leaselock.lease_acquire('few', 'holder', lease => '300 s')});
is(error_code($few . sprintf $enqueue, 'few', "few $_", 250),
	'waiting', "max_waiters 3: waiter $_")
  foreach 1 .. 3;
my ($ret, $out, $err) =
  $node->psql('postgres', $few . sprintf($enqueue, 'few', 'few 4', 300),
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($err, qr/ERROR:\s+53400: too many waiters for lock "few" in scope "public"/,
	'max_waiters 3: the fourth is refused');
like($err, qr/HINT:/, 'max_waiters 3: the error has a hint');
is( $node->safe_psql('postgres', q{
		SELECT waiters FROM leaselock.lease_peek('few');
		SELECT leaselock.lease_release_all('few 2')}),
	"3\n1", 'max_waiters 3: one waiter leaves');
is(error_code($few . sprintf $enqueue, 'few', 'few 5', 300),
	'waiting', 'max_waiters 3: another may queue');
is(error_code($few . sprintf $enqueue, 'few', 'few 6', 300),
	'53400', 'max_waiters 3: but no more than that');
is( error_code($few
		  . q{SET leaselock.clock_offset = '251 s'; }
		  . sprintf($enqueue, 'few', "few $_", 300)),
	$_ < 9 ? 'waiting' : '53400',
	"max_waiters 3: waiters whose time is up do not count: waiter $_")
  foreach 7 .. 9;
is( error_code(q{LOAD 'leaselock'; SET leaselock.max_waiters = 0; }
		  . sprintf($enqueue, 'none', 'holder', 0)),
	'held', 'max_waiters 0: a free lock can be acquired');
is( error_code(q{LOAD 'leaselock'; SET leaselock.max_waiters = 0; }
		  . sprintf($enqueue, 'none', 'waiter', 300)),
	'53400', 'max_waiters 0: nobody may wait');

$node->stop;

done_testing();
