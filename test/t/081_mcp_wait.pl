# "leaselock mcp": waits and their progress, leases that are kept, cancellation,
# lost connections, other calls meanwhile, the end of the input; and the story of
# the two workers, played by two agents.

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

# state and owner of what holds a lock, or waits for it
sub tickets_of
{
	my ($name) = @_;
	return sql("SELECT state || ' ' || owner FROM leaselock.lease_tickets WHERE name = '$name' ORDER BY state, position");
}

# how often a waiting ticket has been looked at, by the end of its life
sub alive_until { my ($ticket) = @_; return sql("SELECT alive_until FROM leaselock.tickets WHERE ticket = '$ticket'") }

sub expires_at { my ($name) = @_; return sql("SELECT expires_at FROM leaselock.lease_status WHERE name = '$name'") }

# something changes by itself
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

# the program has done what came before
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
	# the other calls are answered meanwhile, until progress has come three times
	my $calls = 0;
	ok(wait_until(sub { settle($b); $calls++; return progress_of($b, "t\"$era") >= 3 }), "$era: progress, and other calls meanwhile");
	is_deeply(legacy($b, 'ping')->{result}, {}, 'a ping, too') if $era eq 'legacy';
	my @progress = progress_of($b, "t\"$era");
	is_deeply([ map { $_->{message} } @progress[ 0 .. 2 ] ], [ ("waiting for lock \"w $era\", position 1") x 3 ], "$era: progress tells the position");
	ok($progress[0]{progress} < $progress[1]{progress} && $progress[1]{progress} < $progress[2]{progress}, "$era: progress grows");
	is($progress[0]{total}, 100, "$era: progress has an end");
	is(tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', "$era: the holder releases");
	$answer = tool($b, $id);
	is("$answer->{state}|$answer->{remaining_ms}", 'held|30000', "$era: who waited is promoted, with its full lease");
	cmp_ok($answer->{fence}, '>', $ticket->{fence}, "$era: and a greater fence");
	is(end_mcp($_), 0, "$era: the end") foreach $a, $b;
	is(scalar(grep { defined $_->{id} } @{ $b->{stash} }), 0, "$era: one answer a call");
}

# no token, no progress; a wait that runs out
($a, $b) = map { start_mcp([]) } 1 .. 2;
$ticket = tool($a, 'acquire_lock', { lock_name => 'short', owner => 'a' });
$answer = tool($b, 'acquire_lock', { lock_name => 'short', wait_seconds => 0.3 });
is($answer->{state}, 'timed_out', 'a wait that runs out is no error');
is(scalar(grep { $_->{method} } @{ $b->{stash} }), 0, 'no progress without a token');
is(tickets_of('short'), 'held a', 'and nobody waits');

# the second to wait has position 2; a deadlock is a state
$node->safe_psql('postgres', q{SELECT leaselock.lease_acquire('short', 'psql', wait => '300 s')});
$id = begin_tool($b, 'acquire_lock', { lock_name => 'short', wait_seconds => 100 }, { progressToken => 5 });
ok(wait_until(sub { settle($b); return progress_of($b, 5) }), 'behind another waiter');
like((progress_of($b, 5))[0]{message}, qr/position 2$/, 'position 2');
cancel($b, $id);
$other = tool($b, 'acquire_lock', { lock_name => 'ring', owner => 'b' });
$id = begin_tool($b, 'acquire_lock', { lock_name => 'short', owner => 'b', wait_seconds => 100 });
ok(wait_until(sub { tickets_of('short') =~ /waiting b/ }), 'b waits for a');
$answer = tool($a, 'acquire_lock', { lock_name => 'ring', owner => 'a', wait_seconds => 100 });
is("$answer->{state}", 'deadlock', 'a deadlock is a state');
is(end_mcp($_), 0, 'the end') foreach $a, $b;

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
ok(changes(sub { alive_until($waiting) }), 'the ticket is looked at by itself') foreach 1 .. 2;
$answer = tool($b, 'acquire_lock', { %again, wait_seconds => 0 });
is("$answer->{state}|$answer->{ticket}", "waiting|$waiting", 'a look without a wait');
$answer = tool($b, 'acquire_lock', \%again);
is("$answer->{state}|$answer->{ticket}", "waiting|$waiting", 'the call that comes again waits again, for the same ticket');
is(sql("SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'long'"), 2, 'there is one place in the queue');
# two callers, two answers
my @ids = map { begin_tool($b, 'acquire_lock', { %again, request_uuid => uc $again{request_uuid} }) } 1 .. 2;
is(tool($b, $_)->{ticket}, $waiting, 'two calls for one request') foreach @ids;
ok(changes(sub { alive_until($waiting) }), 'and the ticket is looked at again');
# promoted while nobody asks: the full lease is taken, and then it runs
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
ok(wait_until(sub { sql("SELECT remaining_ms > 20000 FROM leaselock.lease_get('$waiting')") eq 't' }), 'promoted while nobody asks: it gets its full lease');
$answer = tool($b, 'acquire_lock', \%again);
is("$answer->{state}|$answer->{ticket}", "held|$waiting", 'and is held when the call comes again');
is(end_mcp($_), 0, 'the end') foreach $a, $b;

# a process that is killed, and another one that goes on with its wait
($a, $b) = (start_mcp([]), start_mcp([qw(--answer-within 0.3)]));
$ticket = tool($a, 'acquire_lock', { lock_name => 'crash' });
$answer = tool($b, 'acquire_lock', { lock_name => 'crash', wait_seconds => 200 });
kill 'KILL', $b->{pid};
is(end_mcp($b), -9, 'the program is killed');
$other = tool($a, 'acquire_lock', { lock_name => 'crash', request_uuid => $answer->{request_id} });
is("$other->{state}|$other->{ticket}", "waiting|$answer->{ticket}", 'another one finds its place in the queue');
ok(changes(sub { alive_until($answer->{ticket}) }), 'and looks after it') foreach 1 .. 2;
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
is(tool($a, 'acquire_lock', { lock_name => 'crash', request_uuid => $answer->{request_id}, wait_seconds => 100 })->{state}, 'held', 'until its turn comes');
is(end_mcp($a), 0, 'the end');

# a wait and a keep: the time to keep begins with the promotion
$a = start_mcp([]);
$b = start_mcp([qw(--answer-within 0.2)]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'kept', lease_seconds => 100 });
$answer = tool($b, 'acquire_lock', { lock_name => 'kept', wait_seconds => 200, lease_seconds => 3, keep_seconds => 4 });
is($answer->{state}, 'waiting', 'a wait that is to be kept');
ok(wait_until(sub { sql("SELECT clock_timestamp() > requested_at + interval '4.2 s' FROM leaselock.lease_tickets WHERE ticket = '$answer->{ticket}'") eq 't' }),
	'longer than the time to keep');
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
ok(wait_until(sub { tickets_of('kept') eq "held $answer->{owner}" }), 'promoted while nobody asks');
ok(changes(sub { expires_at('kept') }), 'and renewed from then on') foreach 1 .. 2;
ok(wait_until(sub { sql("SELECT lapsed FROM leaselock.lease_status WHERE name = 'kept'") eq 't' }), 'as long as was asked for');
is(tool($b, 'get_lock_ticket', { ticket => $answer->{ticket} })->{state}, 'expired', 'then it runs out');
is(end_mcp($_), 0, 'the end') foreach $a, $b;

# ---------------------------------------------------------------------
# A lease that is kept
# ---------------------------------------------------------------------

$a = start_mcp([]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'keep', lease_seconds => 3, keep_seconds => 600 });
is($ticket->{state}, 'held', 'held and kept');
ok(changes(sub { expires_at('keep') }), 'it is renewed by itself') foreach 1 .. 2;
$answer = tool($a, 'heartbeat_lock_ticket', { ticket => $ticket->{ticket}, lease_seconds => 4 });
is($answer->{remaining_ms}, 4000, 'a heartbeat meanwhile');
ok(changes(sub { expires_at('keep') }), 'and it is still renewed');
is(sql("SELECT expires_at > now() + interval '3.2 s' FROM leaselock.lease_status WHERE name = 'keep'"), 't', 'for the length that the heartbeat asked for')
  if changes(sub { expires_at('keep') });
# the same request made again without keep_seconds leaves it as it is; with 0 it ends
tool($a, 'acquire_lock', { lock_name => 'keep', request_uuid => $ticket->{request_id} });
ok(changes(sub { expires_at('keep') }), 'a look does not end it');
tool($a, 'acquire_lock', { lock_name => 'keep', request_uuid => $ticket->{request_id}, keep_seconds => 0 });
ok(wait_until(sub { sql("SELECT lapsed FROM leaselock.lease_status WHERE name = 'keep'") eq 't' }), 'keep_seconds 0 does');

# another process holds it when it is kept
$b = start_mcp(['--allow-break']);
$ticket = tool($a, 'acquire_lock', { lock_name => 'keep', lease_seconds => 100 });
$answer = tool($b, 'acquire_lock', { lock_name => 'keep', request_uuid => $ticket->{request_id}, keep_seconds => 600 });
is($answer->{ticket}, $ticket->{ticket}, 'a retry from another process keeps it, too');
tool($b, 'heartbeat_lock_ticket', { ticket => $ticket->{ticket}, lease_seconds => 3 });
ok(changes(sub { expires_at('keep') }), 'it is renewed by that one, as often as the new length needs');
is(tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', 'released by the first');
ok(wait_until(sub { tickets_of('keep') eq '' }), 'it stays released');
$ticket = tool($a, 'acquire_lock', { lock_name => 'keep', lease_seconds => 3, keep_seconds => 600 });
is_deeply(tool($b, 'break_lock', { lock_name => 'keep', fence => $ticket->{fence} })->{broken}, JSON::PP::true, 'an operator ends it');
is(tool($a, 'get_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'broken', 'who held it is told');
$answer = tool($b, 'acquire_lock', { lock_name => 'keep', lease_seconds => 100 });
is($answer->{state}, 'held', 'somebody else has it');
settle($a);
is(tickets_of('keep'), "held $answer->{owner}", 'and keeps it');
is(end_mcp($_), 0, 'the end') foreach $a, $b;

# the end of the input ends a keep
$a = start_mcp([]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'keep end', lease_seconds => 3, keep_seconds => 600 });
ok(changes(sub { expires_at('keep end') }), 'kept');
is(end_mcp($a), 0, 'its input ends');
like(tickets_of('keep end'), qr/^held/, 'the lease is left to run out');
ok(wait_until(sub { sql("SELECT lapsed FROM leaselock.lease_status WHERE name = 'keep end'") eq 't' }), 'which it does');

# ---------------------------------------------------------------------
# Cancellation
# ---------------------------------------------------------------------

$a = start_mcp([]);
$ticket = tool($a, 'acquire_lock', { lock_name => 'c', owner => 'a' });
foreach my $known (0, 1)
{
	$id = begin_tool($a, 'acquire_lock', { lock_name => 'c', wait_seconds => 200, owner => 'b',
			$known ? (request_uuid => '11111111-1111-4111-8111-111111111111') : () });
	ok(wait_until(sub { tickets_of('c') =~ /waiting/ }), 'somebody waits');
	cancel($a, $_) foreach "$id", 1e9, 'x', undef;
	settle($a);
	like(tickets_of('c'), qr/waiting/, 'another id cancels nothing') ;
	cancel($a, $id);
	ok(wait_until(sub { tickets_of('c') eq 'held a' }), 'cancelled: the place in the queue is given back');
	settle($a);
	is(scalar(grep { defined $_->{id} && $_->{id} eq $id } @{ $a->{stash} }), 0, 'and nothing more is said of it');
}
is(tool($a, 'acquire_lock', { lock_name => 'c', owner => 'b', request_uuid => '11111111-1111-4111-8111-111111111111' })->{state},
	'cancelled', 'a request that was named can be asked for');

# strings and integers are different ids
my @pair = map { request($a, 'tools/call', { name => 'acquire_lock', _meta => $modern_meta,
		arguments => { lock_name => 'c', wait_seconds => 200, owner => "o$_" } }, $_) } '7777', 7777;
ok(wait_until(sub { my @waiting = tickets_of('c') =~ /waiting/g; return @waiting == 2 }), 'two wait');
cancel($a, 7777);
ok(wait_until(sub { my @waiting = tickets_of('c') =~ /waiting/g; return @waiting == 1 }), 'one is cancelled');
cancel($a, '7777');
ok(wait_until(sub { tickets_of('c') eq 'held a' }), 'and then the other');

# what has been answered stays as it is
$id = begin_tool($a, 'acquire_lock', { lock_name => 'answered' });
$answer = tool($a, $id);
cancel($a, $id);
settle($a);
is(tickets_of('answered'), "held $answer->{owner}", 'a cancellation that comes after the answer changes nothing');

# one of two calls for one request
my %shared = (lock_name => 'c', owner => 'shared', request_uuid => '22222222-2222-4222-8222-222222222222', wait_seconds => 200);
@ids = map { begin_tool($a, 'acquire_lock', \%shared) } 1 .. 2;
ok(wait_until(sub { tickets_of('c') =~ /waiting shared/ }), 'two calls wait for one request');
cancel($a, $ids[0]);
settle($a);
like(tickets_of('c'), qr/waiting shared/, 'the other one still waits');
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
is(tool($a, $ids[1])->{state}, 'held', 'and gets the lock');
# to cancel a look at what is held does not give it back
$id = begin_tool($a, 'acquire_lock', { %shared, wait_seconds => 0 });
cancel($a, $id);
settle($a);
is(tickets_of('c'), 'held shared', 'a look that is cancelled releases nothing');
is(end_mcp($a), 0, 'the end');

# ---------------------------------------------------------------------
# A call that waits in the server
# ---------------------------------------------------------------------

# The lock is held, and somebody queues in a transaction that stays open: who comes
# next can have no place until that ends.
sub crowd
{
	my ($session, $name) = @_;
	sql("SELECT leaselock.lease_acquire('$name', 'holder')");
	outcome($session, 'BEGIN');
	is(outcome($session, "SELECT state FROM leaselock.lease_acquire('$name', 'psql', wait => '100 s')"), 'waiting', "$name: somebody queues, uncommitted");
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
	is(tool($a, 'acquire_lock', { lock_name => "free $_" })->{state}, 'held', 'busy: others are answered meanwhile');
}
outcome($session, 'ROLLBACK');
ok(wait_until(sub { tickets_of('busy') =~ /waiting mcp:/ }), 'busy: it gets its place when that can be had');
sql(q{SELECT leaselock.lease_release_all('holder')});
is(tool($a, $id)->{state}, 'held', 'busy: and the lock when that is free');

# cancelled, there
crowd($session, 'busy 2');
$id = begin_tool($a, 'acquire_lock', { lock_name => 'busy 2', wait_seconds => 200 });
waits_in_server('busy 2');
cancel($a, $id);
ok(wait_until(sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leaselock mcp%' AND state = 'active'}) == 0 }),
	'busy 2: cancelled, it does not wait any more');
outcome($session, 'ROLLBACK');
settle($a);
is(tickets_of('busy 2'), 'held holder', 'busy 2: and has left nothing');
is(end_mcp($a), 0, 'the end');

# no place in the queue could be had in time
$a = start_mcp([qw(--answer-within 0.3)]);
crowd($session, 'busy 3');
is(tool($a, 'acquire_lock', { lock_name => 'busy 3', wait_seconds => 200 })->{state}, 'contended', 'busy 3: without a place within --answer-within it is contended');
is(end_mcp($a), 0, 'the end');
# its input ends
$a = start_mcp([]);
begin_tool($a, 'acquire_lock', { lock_name => 'busy 3', wait_seconds => 200 });
waits_in_server('busy 3');
is(end_mcp($a), 0, 'busy 3: the end of the input ends it, too');
is($a->{stash}[-1]{result}{structuredContent}{state}, 'contended', 'busy 3: and it is answered');
outcome($session, 'ROLLBACK');
is(tickets_of('busy 3'), 'held holder', 'busy 3: and has left nothing');
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
	is($left->{state}, 'waiting', "$way: one waits that nobody asks for");
	$id = begin_tool($a, 'acquire_lock', { lock_name => 'end', owner => 'asked for', wait_seconds => 200 });
	ok(wait_until(sub { tickets_of('end') =~ /asked for/ }), "$way: and one that is asked for");
	kill 'TERM', $a->{pid} if $way eq 'SIGTERM';
	is(end_mcp($a), $way eq 'SIGTERM' ? 143 : 0, "$way: it ends");
	is(tickets_of('end'), 'held holder', "$way: nobody waits any more");
	is(sql("SELECT state FROM leaselock.lease_get('$left->{ticket}')"), 'cancelled', "$way: the waits are cancelled");
	my ($last) = grep { ($_->{id} // '') eq $id } @{ $a->{stash} };
	is($last->{result}{structuredContent}{state} // 'nothing', 'cancelled', "$way: and the call is told");
	is(tickets_of("held at $way"), "held $held->{owner}", "$way: what is held runs out");
}
# what was called last is still done
$a = start_mcp([]);
@ids = map { begin_tool($a, $_->[0], $_->[1]) } [ 'acquire_lock', { lock_name => 'last' } ],
  [ 'acquire_lock', { lock_name => 'end', wait_seconds => 200, owner => 'late' } ], [ 'lock_status', { lock_name => 'last' } ];
is(end_mcp($a), 0, 'three calls, and the end');
my %last = map { $_->{id} => $_->{result}{structuredContent} } grep { defined $_->{id} } @{ $a->{stash} };
is($last{ $ids[0] }{state}, 'held', 'a lock that was free');
like($last{ $ids[1] }{state}, qr/^(contended|cancelled)$/, 'one that was not is not waited for');
is($last{ $ids[2] }{locks}[0]{owner}, "mcp:$last{$ids[0]}{request_id}", 'in the order of the calls');
is(tickets_of('end'), 'held holder', 'and nobody waits');

$a = start_mcp(['--release-on-exit']);
my @held = map { tool($a, 'acquire_lock', { lock_name => "given $_" })->{ticket} } 1 .. 3;
tool($a, 'heartbeat_lock_ticket', { ticket => $held[0], lease_seconds => 200 });
tool($a, 'release_lock_ticket', { ticket => $held[1] });
tool($b, 'acquire_lock', { lock_name => 'given 2' });
begin_tool($a, 'acquire_lock', { lock_name => 'given 4' });
is(end_mcp($a), 0, '--release-on-exit: it ends');
is_deeply([ map { sql("SELECT state FROM leaselock.lease_get('$_')") } @held ], [ ('released') x 3 ], '--release-on-exit: what is held is given back');
is(tickets_of('given 4'), '', '--release-on-exit: what was acquired last, too');
like(tickets_of('given 2'), qr/^held/, '--release-on-exit: nothing of others');
is(end_mcp($b), 0, 'the end');

# nobody reads any more
$a = start_mcp([]);
settle($a);
close $a->{from};
request($a, 'ping', { _meta => $modern_meta });
reap_cli($a);
is($a->{rc}, 4, 'a reader that has gone ends it');

# ---------------------------------------------------------------------
# Lost connections
# ---------------------------------------------------------------------

($a, $b) = map { start_mcp([]) } 1 .. 2;
$ticket = tool($a, 'acquire_lock', { lock_name => 'lost', lease_seconds => 200 });
$other = tool($a, 'acquire_lock', { lock_name => 'lost and kept', lease_seconds => 5, keep_seconds => 600 });
$id = begin_tool($b, 'acquire_lock', { lock_name => 'lost', wait_seconds => 250 }, { progressToken => 'p' });
ok(wait_until(sub { tickets_of('lost') =~ /waiting/ }), 'somebody waits');
foreach my $way ('terminated', 'restarted')
{
	my ($waiting) = sql("SELECT ticket FROM leaselock.lease_tickets WHERE name = 'lost' AND state = 'waiting'");
	if ($way eq 'terminated')
	{
		is(sql(q{SELECT count(*) > 0 FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'leaselock mcp%') t}), 't', 'the connections are ended');
	}
	else
	{
		$node->restart;
	}
	ok(changes(sub { alive_until($waiting) }), "$way: the wait goes on");
	ok(changes(sub { expires_at('lost and kept') }), "$way: the lease is renewed");
	is(tool($a, 'get_lock_ticket', { ticket => $other->{ticket} })->{fence}, $other->{fence}, "$way: and calls are answered: one grant throughout");
}
tool($a, 'release_lock_ticket', { ticket => $ticket->{ticket} });
is(tool($b, $id)->{state}, 'held', 'the wait ends as it should');

# the server is away when it is called
$node->stop;
$error = tool_error($a, 'lock_status', {});
like($error, qr/No such file|refused|closed|terminat/, 'no server: the error says so');
$node->start;
ok(wait_until(sub { my $answer = answer_to($a, begin_tool($a, 'lock_status', {})); return !$answer->{result}{isError} }), 'and once it is there it is connected to again');
is(end_mcp($_), 0, 'the end') foreach $a, $b;

# ---------------------------------------------------------------------
# The two workers
# ---------------------------------------------------------------------

sql('CREATE TABLE reply (thread int, author text, body text)');
($a, $b) = map { start_mcp([]) } 1 .. 2;
my $first = tool($a, 'acquire_lock', { lock_name => 'thread-work.42', lease_seconds => 60, note => 'answers thread 42' });
is($first->{state}, 'held', 'story: the first agent gets the lock');
$id = begin_tool($b, 'acquire_lock', { lock_name => 'thread-work.42', wait_seconds => 200, lease_seconds => 60 }, { progressToken => 'story' });
ok(wait_until(sub { settle($b); return progress_of($b, 'story') }), 'story: the second one waits');
outcome($session = session($node), "BEGIN");
is(outcome($session, "SELECT leaselock.fence_check('thread-work.42', $first->{fence})"), 't', 'story: the first shows its fence');
outcome($session, "INSERT INTO reply VALUES (42, 'first', 'written before the stall')");
# 61 s later; the second keeps polling, and its wait has lost 61 s, too
sql(q{ALTER SYSTEM SET leaselock.clock_offset = '61 s'});
sql('SELECT pg_reload_conf()');
my $second = tool($b, $id);
# its last look may have been before that, and then its own waiter_timeout is over: it asks again
$second = tool($b, 'acquire_lock', { lock_name => 'thread-work.42', wait_seconds => 200, lease_seconds => 60 }) if $second->{state} eq 'timed_out';
is($second->{state}, 'held', 'story: the lease runs out, and the second is promoted');
cmp_ok($second->{fence}, '>', $first->{fence}, 'story: with a greater fence');
is(sql("BEGIN; SELECT leaselock.fence_check('thread-work.42', $second->{fence}); INSERT INTO reply VALUES (42, 'second', 'by the present holder'); COMMIT"), 't', 'story: it writes');
is(outcome($session, 'COMMIT'), 'LS001', 'story: the stale COMMIT is refused');
is(sql('SELECT author FROM reply'), 'second', 'story: there is one reply');
is(tool($a, 'get_lock_ticket', { ticket => $first->{ticket} })->{state}, 'expired', 'story: the first is told to stop');
is(tool($b, 'release_lock_ticket', { ticket => $second->{ticket} })->{state}, 'released', 'story: the second is done');
is(end_mcp($_), 0, 'the end') foreach $a, $b;

is_deeply([ internal_errors($node) ], [], 'no internal errors');
is_deeply([ crashes($node) ], [], 'nobody crashed');
$node->stop;
done_testing();
