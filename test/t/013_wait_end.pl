# How a wait ends before its turn comes: by a cancel, statement_timeout,
# termination, the loss of the client, or a shutdown; what becomes of the
# ticket; and that nothing is left behind.
#
# One major: the order of the queue does not depend on the server's version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('wait_end', 'client_connection_check_interval = 0');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

sub value
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# The ways to wait, for a ticket that was queued before and in a single call,
# and the state in which a cancel leaves the ticket
my %after = (lease_wait => 'waiting', lease_acquire_wait => 'cancelled');

my $serial = 0;

# A lock with a holder, and a session that waits for it.  If the setup ends the
# wait by itself, the wait may already be over.  Returns the lock's name, the
# session, the holder's ticket and the waiter's request id.
sub scene
{
	my ($way, $setup) = @_;
	my $name = 'lock ' . ++$serial;
	my $request = sprintf '00000000-0000-0000-0000-%012d', $serial;
	my $holder = value(qq{SELECT ticket
		FROM leaselock.lease_acquire('$name', 'holder', lease => '300 s')});
	my $session = session($node, $setup);
	my $ticket;

	$session->{backend} = outcome($session, 'SELECT pg_backend_pid()');
	$ticket = value(qq{SELECT ticket FROM leaselock.lease_acquire('$name', 'waiter',
		wait => '200 s', request_id => '$request')}) if $way eq 'lease_wait';
	begin($session,
		$way eq 'lease_wait'
		? "CALL leaselock.lease_wait('$ticket')"
		: "CALL leaselock.lease_acquire_wait('$name', 'waiter', wait => '200 s', request_id => '$request')"
	);
	return ($name, $session, $holder, $request) if defined $setup;

	ok( $node->poll_query_until('postgres', qq{
			SELECT count(*) = 1 FROM leaselock.tickets
			WHERE name = '$name' AND waiter_pid = $session->{backend}}),
		"$name: $way waits");
	return ($name, $session, $holder, $request);
}

# The state of the ticket, as its owner sees it
sub ticket_state
{
	my ($name) = @_;
	return value(qq{SELECT g.state FROM leaselock.tickets t, leaselock.lease_get(t.ticket) g
		WHERE t.name = '$name' AND t.owner = 'waiter'});
}

# A waiter behind it, by its ticket; and that waiter's position
sub behind
{
	my ($name) = @_;
	return value(qq{SELECT ticket FROM
		leaselock.lease_acquire('$name', 'behind', wait => '200 s')});
}

sub position
{
	my ($ticket) = @_;
	return value("SELECT state, position FROM leaselock.lease_get('$ticket')");
}

my $advisory = q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'};

# ---------------------------------------------------------------------
# The statement ends, the session continues
# ---------------------------------------------------------------------

foreach my $way (sort keys %after)
{
	foreach my $end ('cancel', 'statement_timeout')
	{
		my ($name, $session, $holder, $request) = scene($way,
			$end eq 'cancel' ? undef : "SET statement_timeout = '300 ms'");
		my $what = "$way, $end";
		my $behind = $end eq 'cancel' ? behind($name) : undef;

		value("SELECT pg_cancel_backend($session->{backend})")
		  if $end eq 'cancel';
		is(awaited($session), '57014', "$what: the wait ends");
		is( value("SELECT count(*) FROM pg_locks WHERE pid = $session->{backend}"),
			'0', "$what: no lock is left");
		is(value($advisory), '0', "$what: no such lock is left elsewhere");
		is(ticket_state($name), $after{$way}, "$what: the state of the ticket");
		is( value(qq{SELECT waiter_pid IS NULL FROM leaselock.tickets
				WHERE name = '$name' AND owner = 'waiter'}),
			't', "$what: no backend is recorded for it");
		outcome($session, 'RESET statement_timeout');

		$behind //= behind($name);
		is( position($behind),
			$way eq 'lease_wait' ? 'waiting|2' : 'waiting|1',
			"$what: the position of the waiter behind");
		my $first = $way eq 'lease_wait' ? 'waiter' : 'behind';
		is(value("SELECT state FROM leaselock.lease_release('$holder')"),
			'released', "$what: the holder releases");
		is(value("SELECT owner FROM leaselock.lease_peek('$name')"),
			$first, "$what: who is next");

		# the session still works
		is( outcome($session, qq{SELECT state FROM leaselock.lease_acquire(
					'$name', 'waiter', request_id => '$request')}),
			$way eq 'lease_wait' ? 'held' : 'cancelled',
			"$what: the session finds its ticket by the request id");
		like( outcome($session,
				"CALL leaselock.lease_acquire_wait('$name again', 'waiter')"),
			qr/\|held\|/, "$what: the session can wait again");
		$session->quit;
	}
}

# A ticket that no session waits for any more lives as long as a polling one.
my ($name, $session, $holder) = scene('lease_wait');
my $behind = behind($name);
value("SELECT pg_cancel_backend($session->{backend})");
is(awaited($session), '57014', "$name: the wait is cancelled");
my $at = q{LOAD 'leaselock'; SET leaselock.clock_offset = '%s s'; SELECT state, position
	FROM leaselock.lease_get('%s')};
is(value(sprintf($at, 10, $behind)),
	'waiting|2', "$name: the ticket stays queued for waiter_timeout");
is(value(sprintf($at, 21, $behind)),
	'waiting|1', "$name: the ticket no longer counts after that");
$session->quit;

# Two sessions wait for one ticket: the second continues when the first ends.
($name, $session, $holder) = scene('lease_wait');
my $second = session($node);
my $shared = value(qq{SELECT ticket FROM leaselock.tickets
	WHERE name = '$name' AND owner = 'waiter'});
begin($second, "CALL leaselock.lease_wait('$shared')");
ok( $node->poll_query_until('postgres',
		q{SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 19535}),
	"$name: two sessions wait for one ticket");
value("SELECT pg_cancel_backend($session->{backend})");
is(awaited($session), '57014', "$name: one wait is cancelled");
is(value($advisory), '1', "$name: the other continues");
is( value(qq{LOAD 'leaselock'; SET leaselock.clock_offset = '30 s';
		SELECT state, position FROM leaselock.lease_tickets WHERE ticket = '$shared'}),
	'waiting|1', "$name: the other keeps the ticket alive");
value("SELECT leaselock.lease_release('$holder')");
like(awaited($second), qr/^held\|/, "$name: the ticket is held after the release");
$_->quit foreach $session, $second;

# ---------------------------------------------------------------------
# The session ends
# ---------------------------------------------------------------------

foreach my $way (sort keys %after)
{
	foreach my $end ('terminate', 'client killed')
	{
		my ($name, $session, $holder) = scene($way);
		my $what = "$way, $end";
		my $behind = behind($name);

		my $start = time;
		if ($end eq 'terminate')
		{
			value("SELECT pg_terminate_backend($session->{backend})");
		}
		else
		{
			$session->{run}->signal('KILL');
		}
		# a wait of 200 s ends soon; the number of looks, 20 ms apart, is the
		# bound
		my $there = 1;
		for (my $try = 0; $there && $try < 200; $try++)
		{
			$there = value(qq{SELECT count(*) FROM pg_sleep(0.02),
				pg_stat_activity WHERE pid = $session->{backend}});
		}
		is($there, '0', "$what: the backend ends");
		note(sprintf "%s: gone after %.2f s", $what, time - $start);
		is(value($advisory), '0', "$what: no lock is left");
		is(ticket_state($name), 'timed_out', "$what: the ticket is timed out");
		is(position($behind), 'waiting|1', "$what: the waiter behind moves up");
		is(value("SELECT state FROM leaselock.lease_release('$holder')"),
			'released', "$what: the holder releases");
		is(position($behind) =~ s/\|.*//r, 'held', "$what: the waiter behind has its turn");
		is(value("SELECT owner FROM leaselock.lease_peek('$name')"),
			'behind', "$what: the waiter behind holds the lock");
		eval { $session->{run}->finish };
	}
}

# ---------------------------------------------------------------------
# The server shuts down
# ---------------------------------------------------------------------

my ($one, $in_one, $one_holder) = scene('lease_acquire_wait');
my ($two, $in_two, $two_holder) = scene('lease_wait');
$behind = behind($one);
my $start = time;
$node->stop('fast');
note(sprintf 'fast shutdown: %.2f s', time - $start);
ok(1, 'the server shuts down');
eval { $_->{run}->finish } foreach $in_one, $in_two;
$node->start;
is(ticket_state($one), 'timed_out', 'after the restart: lease_acquire_wait');
is(ticket_state($two), 'timed_out', 'after the restart: lease_wait');
is(position($behind), 'waiting|1', 'after the restart: the poller moves up');
is( value("SELECT state FROM leaselock.lease_release('$_->[1]');
		SELECT owner FROM leaselock.lease_peek('$_->[0]')"),
	$_->[2], "after the restart: the queue of $_->[0] moves on")
  foreach [ $one, $one_holder, "released\nbehind" ],
  [ $two, $two_holder, 'released' ];

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');

$node->stop;

done_testing();
