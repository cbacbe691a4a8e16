# "leaselock mcp": waits and their progress, kept leases, cancellation, lost
# connections, concurrent calls and the end of the input; finally two agents
# play the story of the two workers.
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use LeaseTest;
use McpTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_mcp();
my $node = new_node('mcp_wait', q{
leaselock.min_lease = '1s'
session_preload_libraries = 'leaselock'
});
use_server($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my ($a, $b, $ticket, $other, $answer, $id, $error);

sub sql { my ($query) = @_; return $node->safe_psql('postgres', $query) }

# state and owner of each ticket that holds a lock or waits for it
sub tickets_of
{
	my ($name) = @_;
	return sql("SELECT state || ' ' || owner FROM leaselock.lease_tickets WHERE name = '$name' ORDER BY state, position");
}

# the end of life of a waiting ticket, which each poll advances
sub alive_until { my ($ticket) = @_; return sql("SELECT alive_until FROM leaselock.tickets WHERE ticket = '$ticket'") }

sub expires_at { my ($name) = @_; return sql("SELECT expires_at FROM leaselock.lease_status WHERE name = '$name'") }

# waits until the result changes without a call
sub changes
{
	my ($look) = @_;
	my $before = $look->();
	return wait_until(sub { $look->() ne $before });
}

# cancels a request
sub cancel
{
	my ($mcp, $id) = @_;
	write_message($mcp, { jsonrpc => '2.0', method => 'notifications/cancelled', params => { requestId => $id, reason => 'a test' } });
	return;
}

# waits until the program has handled everything sent before
sub settle { my ($mcp) = @_; tool($mcp, 'lock_status', { lock_name => 'nothing' }); return }

# ---------------------------------------------------------------------
# A wait
# ---------------------------------------------------------------------

foreach my $era (qw(legacy modern))
{
	($a, $b) = map { start_mcp([]) } 1 .. 2;
	if ($era eq 'legacy') { initialize($_) foreach $a, $b }
	$ticket = tool($a, 'acquire_lock', { lock_name => "w $era" });
	$id = begin_tool($b, 'acquire_lock', { lock_name => "w $era", wait_seconds => 100, lease_seconds => 30 }, { progressToken => "t\"$era" });
	# other calls are answered during the wait, until three progress messages
	# have come
	my $calls = 0;
	ok(wait_until(sub { settle($b); $calls++; return progress_of($b, "t\"$era") >= 3 }), "$era: progress is sent, and other calls are answered");
	is_deeply(legacy($b, 'ping')->{result}, {}, 'a ping is answered, too') if $era eq 'legacy';
	my @progress = progress_of($b, "t\"$era");
	is_deeply([ map { $_->{message} } @progress[ 0 .. 2 ] ], [ ("waiting for lock \"w $era\", position 1") x 3 ], "$era: progress tells the position");
	ok($progress[0]{progress} < $progress[1]{progress} && $progress[1]{progress} < $progress[2]{progress}, "$era: progress grows");
	is($progress[0]{total}, 100, "$era: progress has a total");
	is(tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', "$era: the holder releases");
	$answer = tool($b, $id);
	is("$answer->{state}|$answer->{remaining_ms}", 'held|30000', "$era: the waiter is promoted with its full lease");
	cmp_ok($answer->{fence}, '>', $ticket->{fence}, "$era: its fence is greater");
	is(end_mcp($_), 0, "$era: the program ends") foreach $a, $b;
	is(scalar(grep { defined $_->{id} } @{ $b->{stash} }), 0, "$era: no call has two answers");
}

# no progress without a token; a wait that times out
($a, $b) = map { start_mcp([]) } 1 .. 2;
$ticket = tool($a, 'acquire_lock', { lock_name => 'short', owner => 'a' });
$answer = tool($b, 'acquire_lock', { lock_name => 'short', wait_seconds => 0.3 });
is($answer->{state}, 'timed_out', 'a wait that times out is not an error');
is(scalar(grep { $_->{method} } @{ $b->{stash} }), 0, 'no progress is sent without a token');
is(tickets_of('short'), 'held a', 'no waiter is left');

# the second waiter has position 2; deadlock is a state
$node->safe_psql('postgres', q{SELECT leaselock.lease_acquire('short', 'psql', wait => '300 s')});
$id = begin_tool($b, 'acquire_lock', { lock_name => 'short', wait_seconds => 100 }, { progressToken => 5 });
ok(wait_until(sub { settle($b); return progress_of($b, 5) }), 'progress comes behind another waiter');
like((progress_of($b, 5))[0]{message}, qr/position 2$/, 'it has position 2');
cancel($b, $id);
$other = tool($b, 'acquire_lock', { lock_name => 'ring', owner => 'b' });
$id = begin_tool($b, 'acquire_lock', { lock_name => 'short', owner => 'b', wait_seconds => 100 });
ok(wait_until(sub { tickets_of('short') =~ /waiting b/ }), 'b waits for a');
$answer = tool($a, 'acquire_lock', { lock_name => 'ring', owner => 'a', wait_seconds => 100 });
is("$answer->{state}", 'deadlock', 'a deadlock is a state');
is(end_mcp($_), 0, 'the program ends') foreach $a, $b;

# ---------------------------------------------------------------------
# A wait that is longer than --answer-within
# ---------------------------------------------------------------------

$a = start_mcp([]);
$b = start_mcp([qw(--answer-within 0.3)]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'long' });
$answer = tool($b, 'acquire_lock', { lock_name => 'long', wait_seconds => 200, lease_seconds => 40 });
is("$answer->{state}|$answer->{position}", 'waiting|1', 'after --answer-within the state is waiting');
my %again = (lock_name => 'long', request_uuid => $answer->{request_id}, wait_seconds => 200);
my $waiting = $answer->{ticket};
ok(changes(sub { alive_until($waiting) }), 'the program polls the ticket by itself') foreach 1 .. 2;
$answer = tool($b, 'acquire_lock', { %again, wait_seconds => 0 });
is("$answer->{state}|$answer->{ticket}", "waiting|$waiting", 'a call without a wait finds the waiting ticket');
$answer = tool($b, 'acquire_lock', \%again);
is("$answer->{state}|$answer->{ticket}", "waiting|$waiting", 'a repeated call waits again with the same ticket');
is(sql("SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'long'"), 2, 'there is one place in the queue');
# two calls, two answers
my @ids = map { begin_tool($b, 'acquire_lock', { %again, request_uuid => uc $again{request_uuid} }) } 1 .. 2;
is(tool($b, $_)->{ticket}, $waiting, 'each of two calls for one request is answered') foreach @ids;
ok(changes(sub { alive_until($waiting) }), 'the program polls the ticket again');
# promoted between calls: the program claims the full lease, which then runs
# out
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
ok(wait_until(sub { sql("SELECT remaining_ms > 20000 FROM leaselock.lease_get('$waiting')") eq 't' }), 'promoted between calls: the ticket gets its full lease');
$answer = tool($b, 'acquire_lock', \%again);
is("$answer->{state}|$answer->{ticket}", "held|$waiting", 'the next call finds it held');
is(end_mcp($_), 0, 'the program ends') foreach $a, $b;

# a process is killed, and another continues its wait
($a, $b) = (start_mcp([]), start_mcp([qw(--answer-within 0.3)]));
$ticket = tool($a, 'acquire_lock', { lock_name => 'crash' });
$answer = tool($b, 'acquire_lock', { lock_name => 'crash', wait_seconds => 200 });
kill 'KILL', $b->{pid};
is(end_mcp($b), -9, 'the program is killed');
$other = tool($a, 'acquire_lock', { lock_name => 'crash', request_uuid => $answer->{request_id} });
is("$other->{state}|$other->{ticket}", "waiting|$answer->{ticket}", 'another process finds the place in the queue');
ok(changes(sub { alive_until($answer->{ticket}) }), 'that process polls the ticket') foreach 1 .. 2;
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
is(tool($a, 'acquire_lock', { lock_name => 'crash', request_uuid => $answer->{request_id}, wait_seconds => 100 })->{state}, 'held', 'it gets the lock');
is(end_mcp($a), 0, 'the program ends');

# a wait with keep_seconds: the time to keep starts at the promotion
$a = start_mcp([]);
$b = start_mcp([qw(--answer-within 0.2)]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'kept', lease_seconds => 100 });
$answer = tool($b, 'acquire_lock', { lock_name => 'kept', wait_seconds => 200, lease_seconds => 3, keep_seconds => 4 });
is($answer->{state}, 'waiting', 'a wait with keep_seconds starts');
ok(wait_until(sub { sql("SELECT clock_timestamp() > requested_at + interval '4.2 s' FROM leaselock.lease_tickets WHERE ticket = '$answer->{ticket}'") eq 't' }),
	'it waits for longer than keep_seconds');
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
ok(wait_until(sub { tickets_of('kept') eq "held $answer->{owner}" }), 'the ticket is promoted between calls');
ok(changes(sub { expires_at('kept') }), 'the lease is renewed from then on') foreach 1 .. 2;
ok(wait_until(sub { sql("SELECT lapsed FROM leaselock.lease_status WHERE name = 'kept'") eq 't' }), 'the renewals stop after keep_seconds');
is(tool($b, 'get_lock_ticket', { ticket => $answer->{ticket} })->{state}, 'expired', 'then the lease runs out');
is(end_mcp($_), 0, 'the program ends') foreach $a, $b;

# ---------------------------------------------------------------------
# A kept lease
# ---------------------------------------------------------------------

$a = start_mcp([]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'keep', lease_seconds => 3, keep_seconds => 600 });
is($ticket->{state}, 'held', 'a lock is acquired with keep_seconds');
ok(changes(sub { expires_at('keep') }), 'the program renews it by itself') foreach 1 .. 2;
$answer = tool($a, 'heartbeat_lock_ticket', { ticket => $ticket->{ticket}, lease_seconds => 4 });
is($answer->{remaining_ms}, 4000, 'a heartbeat sets another length');
ok(changes(sub { expires_at('keep') }), 'the lease is still renewed');
is(sql("SELECT lease_us FROM leaselock.tickets WHERE ticket = '$ticket->{ticket}'"), '4000000', 'renewals use the length of the heartbeat')
  if changes(sub { expires_at('keep') });
# a repeated request without keep_seconds does not end the renewals;
# keep_seconds 0 does
tool($a, 'acquire_lock', { lock_name => 'keep', request_uuid => $ticket->{request_id} });
ok(changes(sub { expires_at('keep') }), 'a repeated request does not end the renewals');
tool($a, 'acquire_lock', { lock_name => 'keep', request_uuid => $ticket->{request_id}, keep_seconds => 0 });
ok(wait_until(sub { sql("SELECT lapsed FROM leaselock.lease_status WHERE name = 'keep'") eq 't' }), 'keep_seconds 0 ends the renewals');

my %longer = (lock_name => 'longer', lease_seconds => 3, keep_seconds => 1);
$ticket = tool($a, 'acquire_lock', \%longer);
tool($a, 'acquire_lock', { %longer, request_uuid => $ticket->{request_id}, keep_seconds => 600 });
ok(wait_until(sub { sql("SELECT clock_timestamp() > requested_at + interval '5 s' FROM leaselock.lease_tickets WHERE ticket = '$ticket->{ticket}'") eq 't' }),
	'more time passes than one lease and the first keep_seconds');
is(tool($a, 'get_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'held', 'another keep_seconds sets another time');

# another process keeps the lease as well
$b = start_mcp(['--allow-break']);
$ticket = tool($a, 'acquire_lock', { lock_name => 'keep', lease_seconds => 100 });
$answer = tool($b, 'acquire_lock', { lock_name => 'keep', request_uuid => $ticket->{request_id}, keep_seconds => 600 });
is($answer->{ticket}, $ticket->{ticket}, 'a retry from another process finds the ticket');
tool($b, 'heartbeat_lock_ticket', { ticket => $ticket->{ticket}, lease_seconds => 3 });
ok(changes(sub { expires_at('keep') }), 'that process renews it as often as the new length needs');
is(tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', 'the first process releases it');
ok(wait_until(sub { tickets_of('keep') eq '' }), 'it stays released');
$ticket = tool($a, 'acquire_lock', { lock_name => 'keep', lease_seconds => 3, keep_seconds => 600 });
is_deeply(tool($b, 'break_lock', { lock_name => 'keep', fence => $ticket->{fence} })->{broken}, JSON::PP::true, 'an operator breaks the grant');
is(tool($a, 'get_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'broken', 'the previous holder sees broken');
$answer = tool($b, 'acquire_lock', { lock_name => 'keep', lease_seconds => 100 });
is($answer->{state}, 'held', 'another owner gets the lock');
settle($a);
is(tickets_of('keep'), "held $answer->{owner}", 'that owner still holds it');
is(end_mcp($_), 0, 'the program ends') foreach $a, $b;

# the end of the input ends the renewals
$a = start_mcp([]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'keep end', lease_seconds => 3, keep_seconds => 600 });
ok(changes(sub { expires_at('keep end') }), 'the lease is renewed');
is(end_mcp($a), 0, 'the program ends with its input');
like(tickets_of('keep end'), qr/^held/, 'the lease is not released');
ok(wait_until(sub { sql("SELECT lapsed FROM leaselock.lease_status WHERE name = 'keep end'") eq 't' }), 'the lease runs out');

# ---------------------------------------------------------------------
# Cancellation
# ---------------------------------------------------------------------

$a = start_mcp([]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'c', owner => 'a' });
foreach my $known (0, 1)
{
	$id = begin_tool($a, 'acquire_lock', { lock_name => 'c', wait_seconds => 200, owner => 'b',
			$known ? (request_uuid => '11111111-1111-4111-8111-111111111111') : () });
	ok(wait_until(sub { tickets_of('c') =~ /waiting/ }), 'a call waits');
	cancel($a, $_) foreach "$id", 1e9, 'x', undef;
	settle($a);
	like(tickets_of('c'), qr/waiting/, 'another id cancels nothing') ;
	cancel($a, $id);
	ok(wait_until(sub { tickets_of('c') eq 'held a' }), 'cancelled: the place in the queue is given up');
	settle($a);
	is(scalar(grep { defined $_->{id} && $_->{id} eq $id } @{ $a->{stash} }), 0, 'the cancelled call gets no answer');
}
is(tool($a, 'acquire_lock', { lock_name => 'c', owner => 'b', request_uuid => '11111111-1111-4111-8111-111111111111' })->{state},
	'cancelled', 'a cancelled request can be looked up by its id');

# strings and integers are different ids
my @pair = map { request($a, 'tools/call', { name => 'acquire_lock', _meta => $modern_meta,
		arguments => { lock_name => 'c', wait_seconds => 200, owner => "o$_" } }, $_) } '7777', 7777;
ok(wait_until(sub { my @waiting = tickets_of('c') =~ /waiting/g; return @waiting == 2 }), 'two calls wait');
cancel($a, 7777);
ok(wait_until(sub { my @waiting = tickets_of('c') =~ /waiting/g; return @waiting == 1 }), 'one call is cancelled');
cancel($a, '7777');
ok(wait_until(sub { tickets_of('c') eq 'held a' }), 'then the other call is cancelled');

# a cancellation after the answer has no effect
$id = begin_tool($a, 'acquire_lock', { lock_name => 'answered' });
$answer = tool($a, $id);
cancel($a, $id);
settle($a);
is(tickets_of('answered'), "held $answer->{owner}", 'a cancellation after the answer changes nothing');

# one of two calls for one request
my %shared = (lock_name => 'c', owner => 'shared', request_uuid => '22222222-2222-4222-8222-222222222222', wait_seconds => 200);
@ids = map { begin_tool($a, 'acquire_lock', \%shared) } 1 .. 2;
ok(wait_until(sub { tickets_of('c') =~ /waiting shared/ }), 'two calls wait for one request');
cancel($a, $ids[0]);
settle($a);
like(tickets_of('c'), qr/waiting shared/, 'the other call still waits');
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
is(tool($a, $ids[1])->{state}, 'held', 'the other call gets the lock');
# cancelling a lookup of a held ticket does not release the lock
$id = begin_tool($a, 'acquire_lock', { %shared, wait_seconds => 0 });
cancel($a, $id);
settle($a);
is(tickets_of('c'), 'held shared', 'a cancelled lookup releases nothing');
is(end_mcp($a), 0, 'the program ends');

# ---------------------------------------------------------------------
# A call that waits in the server
# ---------------------------------------------------------------------

# The lock is held, and a waiter has queued in an open transaction: the next
# waiter cannot get a place until that transaction ends.
sub crowd
{
	my ($session, $name) = @_;
	sql("SELECT leaselock.lease_acquire('$name', 'holder')");
	outcome($session, 'BEGIN');
	is(outcome($session, "SELECT state FROM leaselock.lease_acquire('$name', 'psql', wait => '100 s')"), 'waiting', "$name: a waiter queues in an open transaction");
	return;
}

sub waits_in_server
{
	my ($name) = @_;
	ok(wait_until(sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leaselock mcp%'
		AND state = 'active' AND wait_event_type = 'Lock'}) > 0 }), "$name: a call waits in the server");
	return;
}

$a = start_mcp([]);
my $session = session($node);
crowd($session, 'busy');
$id = begin_tool($a, 'acquire_lock', { lock_name => 'busy', wait_seconds => 200 });
foreach (1 .. 2)
{
	waits_in_server('busy');
	is(tool($a, 'acquire_lock', { lock_name => "free $_" })->{state}, 'held', 'busy: other calls are answered meanwhile');
}
outcome($session, 'ROLLBACK');
ok(wait_until(sub { tickets_of('busy') =~ /waiting mcp:/ }), 'busy: it gets a place after that transaction');
sql(q{SELECT leaselock.lease_release_all('holder')});
is(tool($a, $id)->{state}, 'held', 'busy: it gets the lock when that is free');

# cancelled during that wait
crowd($session, 'busy 2');
$id = begin_tool($a, 'acquire_lock', { lock_name => 'busy 2', wait_seconds => 200 });
waits_in_server('busy 2');
cancel($a, $id);
ok(wait_until(sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leaselock mcp%' AND state = 'active'}) == 0 }),
	'busy 2: cancelled, it no longer waits');
outcome($session, 'ROLLBACK');
settle($a);
is(tickets_of('busy 2'), 'held holder', 'busy 2: it has left no ticket');
is(end_mcp($a), 0, 'the program ends');

# no place in the queue within --answer-within
$a = start_mcp([qw(--answer-within 0.3)]);
crowd($session, 'busy 3');
is(tool($a, 'acquire_lock', { lock_name => 'busy 3', wait_seconds => 200 })->{state}, 'contended', 'busy 3: contended without a place within --answer-within');
is(end_mcp($a), 0, 'the program ends');
# the input ends
$a = start_mcp([]);
begin_tool($a, 'acquire_lock', { lock_name => 'busy 3', wait_seconds => 200 });
waits_in_server('busy 3');
is(end_mcp($a), 0, 'busy 3: the program ends with its input');
is($a->{stash}[-1]{result}{structuredContent}{state}, 'contended', 'busy 3: the call is answered');
outcome($session, 'ROLLBACK');
is(tickets_of('busy 3'), 'held holder', 'busy 3: it has left no ticket');
sql(q{SELECT leaselock.lease_release_all('holder')});

# ---------------------------------------------------------------------
# The end of the input
# ---------------------------------------------------------------------

$b = start_mcp([]);
my $holder = tool($b, 'acquire_lock', { lock_name => 'end', owner => 'holder' });
foreach my $way ('the end of the input', 'SIGTERM')
{
	$a = start_mcp([qw(--answer-within 0.3)]);
	my $held = tool($a, 'acquire_lock', { lock_name => "held at $way" });
	my $left = tool($a, 'acquire_lock', { lock_name => 'end', owner => 'left', wait_seconds => 200 });
	is($left->{state}, 'waiting', "$way: a ticket waits between calls");
	$id = begin_tool($a, 'acquire_lock', { lock_name => 'end', owner => 'asked for', wait_seconds => 200 });
	ok(wait_until(sub { tickets_of('end') =~ /asked for/ }), "$way: another waits during a call");
	kill 'TERM', $a->{pid} if $way eq 'SIGTERM';
	is(end_mcp($a), $way eq 'SIGTERM' ? 143 : 0, "$way: the program ends");
	is(tickets_of('end'), 'held holder', "$way: no waiter is left");
	is(sql("SELECT state FROM leaselock.lease_get('$left->{ticket}')"), 'cancelled', "$way: the waits are cancelled");
	my ($last) = grep { ($_->{id} // '') eq $id } @{ $a->{stash} };
	is($last->{result}{structuredContent}{state} // 'nothing', 'cancelled', "$way: the call is answered");
	is(tickets_of("held at $way"), "held $held->{owner}", "$way: a held lock is not released");
}
# the last calls are still carried out
$a = start_mcp([]);
@ids = map { begin_tool($a, $_->[0], $_->[1]) } [ 'acquire_lock', { lock_name => 'last' } ],
  [ 'acquire_lock', { lock_name => 'end', wait_seconds => 200, owner => 'late' } ], [ 'lock_status', { lock_name => 'last' } ];
is(end_mcp($a), 0, 'the program ends after three calls');
my %last = map { $_->{id} => $_->{result}{structuredContent} } grep { defined $_->{id} } @{ $a->{stash} };
is($last{ $ids[0] }{state}, 'held', 'a free lock is acquired');
like($last{ $ids[1] }{state}, qr/^(contended|cancelled)$/, 'there is no wait for a held lock');
is($last{ $ids[2] }{locks}[0]{owner}, "mcp:$last{$ids[0]}{request_id}", 'the calls are carried out in order');
is(tickets_of('end'), 'held holder', 'no waiter is left');

$a = start_mcp(['--release-on-exit']);
my @held = map { tool($a, 'acquire_lock', { lock_name => "given $_" })->{ticket} } 1 .. 3;
tool($a, 'heartbeat_lock_ticket', { ticket => $held[0], lease_seconds => 200 });
tool($a, 'release_lock_ticket', { ticket => $held[1] });
tool($b, 'acquire_lock', { lock_name => 'given 2' });
begin_tool($a, 'acquire_lock', { lock_name => 'given 4' });
is(end_mcp($a), 0, '--release-on-exit: the program ends');
is_deeply([ map { sql("SELECT state FROM leaselock.lease_get('$_')") } @held ], [ ('released') x 3 ], '--release-on-exit: its locks are released');
is(tickets_of('given 4'), '', '--release-on-exit: the last lock is released, too');
like(tickets_of('given 2'), qr/^held/, '--release-on-exit: locks of others are not released');
is(end_mcp($b), 0, 'the program ends');

# nobody reads the output
$a = start_mcp([]);
settle($a);
close $a->{from};
request($a, 'ping', { _meta => $modern_meta });
reap_cli($a);
is($a->{rc}, 4, 'the program ends when its output is closed');

# ---------------------------------------------------------------------
# Lost connections
# ---------------------------------------------------------------------

($a, $b) = map { start_mcp([]) } 1 .. 2;
$ticket = tool($a, 'acquire_lock', { lock_name => 'lost', lease_seconds => 200 });
$other = tool($a, 'acquire_lock', { lock_name => 'lost and kept', lease_seconds => 5, keep_seconds => 600 });
$id = begin_tool($b, 'acquire_lock', { lock_name => 'lost', wait_seconds => 250 }, { progressToken => 'p' });
ok(wait_until(sub { tickets_of('lost') =~ /waiting/ }), 'a call waits');
foreach my $way ('terminated', 'restarted')
{
	my ($waiting) = sql("SELECT ticket FROM leaselock.lease_tickets WHERE name = 'lost' AND state = 'waiting'");
	if ($way eq 'terminated')
	{
		is(sql(q{SELECT count(*) > 0 FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'leaselock mcp%') t}), 't', 'the connections are terminated');
	}
	else
	{
		$node->restart;
	}
	ok(changes(sub { alive_until($waiting) }), "$way: the wait continues");
	ok(changes(sub { expires_at('lost and kept') }), "$way: the lease is renewed");
	is(tool($a, 'get_lock_ticket', { ticket => $other->{ticket} })->{fence}, $other->{fence}, "$way: calls are answered, and the grant is the same");
}
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
is(tool($b, $id)->{state}, 'held', 'the wait ends with the lock');

# the server is down during a call
$node->stop;
$error = tool_error($a, 'lock_status', {});
like($error, qr/No such file|refused|closed|terminat/, 'no server: the error gives the reason');
$node->start;
ok(wait_until(sub { my $answer = answer_to($a, begin_tool($a, 'lock_status', {})); return !$answer->{result}{isError} }), 'the program reconnects once the server is back');
is(end_mcp($_), 0, 'the program ends') foreach $a, $b;

# ---------------------------------------------------------------------
# The two workers
# ---------------------------------------------------------------------

sql('CREATE TABLE reply (thread int, author text, body text)');
($a, $b) = map { start_mcp([]) } 1 .. 2;
my $first = tool($a, 'acquire_lock', { lock_name => 'thread-work.42', lease_seconds => 60, note => 'answers thread 42' });
is($first->{state}, 'held', 'story: the first agent gets the lock');
$id = begin_tool($b, 'acquire_lock', { lock_name => 'thread-work.42', wait_seconds => 200, lease_seconds => 60 }, { progressToken => 'story' });
ok(wait_until(sub { settle($b); return progress_of($b, 'story') }), 'story: the second agent waits');
outcome($session = session($node), "BEGIN");
is(outcome($session, "SELECT leaselock.fence_check('thread-work.42', $first->{fence})"), 't', "story: the first agent's fence is valid");
outcome($session, "INSERT INTO reply VALUES (42, 'first', 'written before the stall')");
# 61 s later; the second agent keeps polling, and its wait has lost 61 s, too
sql(q{ALTER SYSTEM SET leaselock.clock_offset = '61 s'});
sql('SELECT pg_reload_conf()');
my $second = tool($b, $id);
# if its last poll was before the clock change, its own waiter_timeout is over,
# and it requests again
$second = tool($b, 'acquire_lock', { lock_name => 'thread-work.42', wait_seconds => 200, lease_seconds => 60 }) if $second->{state} eq 'timed_out';
is($second->{state}, 'held', 'story: the lease runs out, and the second agent is promoted');
cmp_ok($second->{fence}, '>', $first->{fence}, 'story: its fence is greater');
is(sql("BEGIN; SELECT leaselock.fence_check('thread-work.42', $second->{fence}); INSERT INTO reply VALUES (42, 'second', 'by the present holder'); COMMIT"), 't', 'story: the second agent writes');
is(outcome($session, 'COMMIT'), 'LS001', 'story: the stale COMMIT is refused');
is(sql('SELECT author FROM reply'), 'second', 'story: there is one reply');
is(tool($a, 'get_lock_ticket', { ticket => $first->{ticket} })->{state}, 'expired', 'story: the first agent sees that its lease has expired');
is(tool($b, 'release_lock_ticket', { ticket => $second->{ticket} })->{state}, 'released', 'story: the second agent releases the lock');
is(end_mcp($_), 0, 'the program ends') foreach $a, $b;

is_deeply([ internal_errors($node) ], [], 'no internal errors');
is_deeply([ crashes($node) ], [], 'no server process crashed');
$node->stop;
done_testing();
