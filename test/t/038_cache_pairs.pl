# Between any two calls of a session, others may do anything.  Whatever the
# first call has left in the session's memory, the second call answers as it
# would in a session that has just connected.  This test covers pairs of calls
# and every such event.
#
# Each case starts anew: one lock is held by a ticket and one by name, a third
# is held by another identity and waited for, and a fourth is free.  The first
# session makes a call; another session does what the case is about; then a new
# session makes the second call and rolls it back, and the first session makes
# it, too.  Both see the same state, so they answer the same, and see the same
# state afterwards.  And a fence that the first session has checked before the
# event can be committed after it if and only if it is still the lock's fence.
#
# Each event is tried with every second call; each of these comes after one of
# the first calls in turn, and after one in an open transaction.
# LEASELOCK_CACHES (a regular expression) selects the only events to try, with
# all pairs of calls.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

# ticket_retention keeps calls from tidying up at random, and waiter_timeout
# keeps silent waiters alive, whatever this machine's pace
my $node = new_node('cache_pairs', q{
leaselock.ticket_retention = '20d'
leaselock.waiter_timeout = '300 s'
});
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE EXTENSION amcheck;
CREATE ROLE team;
CREATE ROLE others;
CREATE ROLE first LOGIN IN ROLE team;
CREATE ROLE restorer;
ALTER DATABASE postgres OWNER TO restorer;
CREATE TABLE work (id int, n int, fence bigint);
INSERT INTO work VALUES (1, 0, NULL);
GRANT SELECT, UPDATE, INSERT ON work TO first;
CREATE PROCEDURE guard_work() LANGUAGE sql AS
	'CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON work FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard(''column'', ''fence'', ''job'', ''s'')';
CALL guard_work();
});

my $superuser = $node->safe_psql('postgres', 'SELECT current_user');
my $other = session($node, "LOAD 'leaselock'");
my $first = session($node, '\c - first');
my $fresh = session($node);
$_->set_query_timer_restart foreach $other, $first, $fresh;

# ---------------------------------------------------------------------
# The calls
# ---------------------------------------------------------------------

# A ticket's answer; TICKET, WAITING and FENCE are those of the case
my $answer = 'state, name, owner, fence, depth, position, holder, holder_role';
my %calls = (
	'acquire' => qq{SELECT $answer FROM leaselock.lease_acquire('job', 'first', '300 s', scope => 's')},
	'acquire a free lock' => qq{SELECT $answer FROM leaselock.lease_acquire('free', 'first', '300 s', scope => 's')},
	'queue' => qq{SELECT $answer FROM leaselock.lease_acquire('taken', 'first', '60 s', '300 s', scope => 's')},
	'get' => qq{SELECT $answer FROM leaselock.lease_get('TICKET')},
	'poll' => qq{SELECT $answer FROM leaselock.lease_get('WAITING')},
	'renew' => qq{SELECT $answer FROM leaselock.lease_renew('TICKET')},
	'release' => qq{SELECT $answer FROM leaselock.lease_release('TICKET')},
	'release all' => q{SELECT leaselock.lease_release_all('first')},
	'try_lock' => q{SELECT leaselock.try_lock('hold', 'first', '1 h', 's') AS fence},
	'try a free lock' => q{SELECT leaselock.try_lock('free', 'first', '1 h', 's') AS fence},
	'try a new lock' => q{SELECT leaselock.try_lock('new', 'first', '1 h', 's') AS fence},
	'renew_lock' => q{SELECT leaselock.renew_lock('hold', 'first', '1 h', 's')},
	'release_lock' => q{SELECT leaselock.release_lock('hold', 'first', 's')},
	'fence_assert' => q{SELECT leaselock.fence_assert('job', FENCE, 's')},
	'guarded UPDATE' => q{UPDATE work SET n = n + 1, fence = FENCE RETURNING id},
	'peek' => q{SELECT owner, role, fence, depth, lapsed, waiters FROM leaselock.lease_peek('job', 's')},
	'views' => q{SELECT name, owner, role, fence, depth, lapsed, waiters FROM leaselock.lease_status ORDER BY name;
		SELECT name, owner, role, state, position, depth FROM leaselock.lease_tickets ORDER BY name, state, position, owner, requested_at});

# Calls that leave something different behind
my @before = ('acquire', 'queue', 'get', 'poll', 'renew', 'release', 'try_lock', 'try a free lock', 'fence_assert', 'guarded UPDATE', 'views');

# Calls that change nothing, and so may stay in an open transaction.  The first
# does not keep a table from others either.  The second keeps the table locks
# that the next call would otherwise take, and by taking them learn of changes.
my @looks = ('peek', 'get and peek', 'try a lock that is taken');
$calls{$looks[1]} = "$calls{get}; $calls{peek}";
$calls{$looks[2]} = q{SELECT leaselock.try_lock('taken', 'first', '1 h', 's')};

# ---------------------------------------------------------------------
# What others do
# ---------------------------------------------------------------------

# a restore, in the role of the database's owner
my $no_home = q{'00000000-0000-0000-0000-000000000000'};
my $queue = q{SELECT FROM leaselock.lease_acquire('job', 'other', '60 s', '300 s', 's');
	SELECT FROM leaselock.lease_acquire('hold', 'other', '60 s', '300 s', 's');};
my $create = 'CREATE EXTENSION leaselock; CALL guard_work();';
my $drop = 'DROP EXTENSION leaselock CASCADE;';

# [ name, what it does, what comes before the first call ]
my @events = (
	[ 'nothing', '' ],
	[ 'enqueue', $queue ],
	[ 'enqueue, rolled back', "BEGIN; $queue ROLLBACK;" ],
	[ 'enqueue, rolled back to a savepoint', "BEGIN; SAVEPOINT a; $queue ROLLBACK TO a; COMMIT;" ],
	[ 'the first to enqueue', $queue, q{SELECT FROM leaselock.lease_release('WAITING'); TRUNCATE leaselock.queues, leaselock.blockers;} ],
	[ 'the first to enqueue, rolled back', "BEGIN; $queue ROLLBACK;", q{SELECT FROM leaselock.lease_release('WAITING'); TRUNCATE leaselock.queues, leaselock.blockers;} ],
	[ 'nobody waits any more, and somebody enqueues', "SELECT leaselock.lease_prune('1 d'); $queue", q{SELECT FROM leaselock.lease_release('WAITING');} ],
	[ 'takeover', q{SET leaselock.clock_offset = '2 h'; SELECT FROM leaselock.lease_acquire('job', 'other', scope => 's');
		SELECT leaselock.try_lock('hold', 'other', '1 h', 's'); RESET leaselock.clock_offset;} ],
	[ 'release and takeover', q{SELECT FROM leaselock.lease_release('TICKET'); SELECT FROM leaselock.lease_acquire('job', 'other', '300 s', scope => 's');} ],
	[ 'release', q{SELECT FROM leaselock.lease_release('TICKET');} ],
	[ 'the turn of the first', q{SELECT leaselock.release_lock('taken', 'holder', 's');} ],
	[ 'break', q{SELECT leaselock.lease_break('job', FENCE, 's'), leaselock.lease_break('hold', fence, 's') FROM leaselock.lease_peek('hold', 's');} ],
	[ 'scope registered', q{SELECT leaselock.lease_scope_create('s', 'others');} ],
	[ 'scope registered, rolled back', q{BEGIN; SELECT leaselock.lease_scope_create('s', 'others'); ROLLBACK;} ],
	[ 'scope registered and dropped', q{SELECT leaselock.lease_scope_create('s', 'others'); SELECT leaselock.lease_scope_drop('s');} ],
	[ 'scope dropped', q{SELECT leaselock.lease_scope_drop('s');}, q{SELECT leaselock.lease_scope_create('s', 'others');} ],
	[ 'scope dropped, rolled back', q{BEGIN; SELECT leaselock.lease_scope_drop('s'); ROLLBACK;}, q{SELECT leaselock.lease_scope_create('s', 'others');} ],
	[ 'scope moved', q{SELECT leaselock.lease_scope_create('s', 'others');}, q{SELECT leaselock.lease_scope_create('s', 'team');} ],
	[ 'scope restored', "SET ROLE restorer; INSERT INTO leaselock.scopes VALUES ('s', 'others', 0, $no_home); RESET ROLE;" ],
	[ 'membership revoked', 'REVOKE team FROM first;', q{SELECT leaselock.lease_scope_create('s', 'team');} ],
	[ 'membership granted', 'GRANT team TO first;', q{REVOKE team FROM first; SELECT leaselock.lease_scope_create('s', 'team');} ],
	[ 'role renamed', 'ALTER ROLE team RENAME TO crew; ALTER ROLE others RENAME TO team;', q{SELECT leaselock.lease_scope_create('s', 'team');} ],
	[ 'roles renamed, of a restored scope', 'ALTER ROLE team RENAME TO crew; ALTER ROLE others RENAME TO team;',
		"INSERT INTO leaselock.scopes VALUES ('s', 'team', 0, $no_home);" ],
	[ 'bump', 'SELECT leaselock.fence_bump();' ],
	[ 'bump, rolled back', 'BEGIN; SELECT leaselock.fence_bump(); ROLLBACK;' ],
	[ 'floor restored', 'SET ROLE restorer; INSERT INTO leaselock.floor VALUES (1000000000000000000, 0); RESET ROLE;' ],
	[ 'floor removed', 'TRUNCATE leaselock.floor;', 'INSERT INTO leaselock.floor VALUES (1000000000000000000, 0);' ],
	[ 'prune', q{SET leaselock.clock_offset = '2 h'; SELECT leaselock.lease_prune('0 s'); RESET leaselock.clock_offset;} ],
	[ 'prune, rolled back', q{SET leaselock.clock_offset = '2 h'; BEGIN; SELECT leaselock.lease_prune('0 s'); ROLLBACK; RESET leaselock.clock_offset;} ],
	[ 'lock restored', qq{SET ROLE restorer; INSERT INTO leaselock.locks (fence, passed, changed_at, tickets, home, scope, name, role, owner, granted_at, expires_at)
		VALUES (900000000000000000, 0, now(), 0, $no_home, 's', 'new', 10, 'x', now(), now()); RESET ROLE;} ],
	[ 'rows moved', 'VACUUM FULL leaselock.locks; VACUUM FULL leaselock.tickets; VACUUM FULL leaselock.queues; VACUUM FULL leaselock.scopes; VACUUM FULL leaselock.floor; VACUUM FULL leaselock.installation;' ],
	[ 'rows moved by CLUSTER', 'CLUSTER leaselock.locks USING locks_pkey; CLUSTER leaselock.tickets USING tickets_ticket;' ],
	[ 'pages cut off', 'DELETE FROM leaselock.tickets; DELETE FROM leaselock.locks; VACUUM leaselock.tickets, leaselock.locks;' ],
	[ 'TRUNCATE', 'TRUNCATE leaselock.tickets, leaselock.locks, leaselock.queues, leaselock.blockers, leaselock.scopes, leaselock.floor;' ],
	[ 'REINDEX', 'REINDEX TABLE leaselock.locks; REINDEX TABLE leaselock.tickets; REINDEX TABLE leaselock.blockers;' ],
	[ 'REINDEX CONCURRENTLY', 'REINDEX TABLE CONCURRENTLY leaselock.locks; REINDEX TABLE CONCURRENTLY leaselock.tickets; REINDEX TABLE CONCURRENTLY leaselock.blockers;' ],
	[ 'indexes added', 'CREATE INDEX dba_1 ON leaselock.tickets (requested_at); CREATE INDEX dba_2 ON leaselock.locks (fence); CREATE INDEX dba_3 ON leaselock.blockers (name);' ],
	[ 'indexes removed', 'DROP INDEX leaselock.dba_1, leaselock.dba_2, leaselock.dba_3;',
		'CREATE INDEX dba_1 ON leaselock.tickets (requested_at); CREATE INDEX dba_2 ON leaselock.locks (fence); CREATE INDEX dba_3 ON leaselock.blockers (name);' ],
	[ 'an index replaced', 'BEGIN; ALTER TABLE leaselock.locks DROP CONSTRAINT locks_pkey; ALTER TABLE leaselock.locks ADD PRIMARY KEY (scope, name);
		DROP INDEX leaselock.tickets_ticket; CREATE INDEX tickets_ticket ON leaselock.tickets (ticket); COMMIT;' ],
	[ 'an index that is refused', 'CREATE INDEX dba_1 ON leaselock.locks ((fence + 1));' ],
	[ 'an index that was refused', 'DROP INDEX leaselock.dba_1;', 'CREATE INDEX dba_1 ON leaselock.locks ((fence + 1));' ],
	[ 'a column is added', 'ALTER TABLE leaselock.tickets ADD COLUMN more int;' ],
	[ 'the answers change', 'ALTER TYPE leaselock.lease_ticket ADD ATTRIBUTE more int;' ],
	[ 'DROP EXTENSION', $drop ],
	[ 'DROP and CREATE EXTENSION', "$drop $create" ],
	[ 'DROP and CREATE EXTENSION in one transaction', "BEGIN; $drop $create COMMIT;" ],
	[ 'DROP and CREATE EXTENSION, rolled back', "BEGIN; $drop $create ROLLBACK;" ]);

# Events that need the tables for themselves
my $takes_tables = qr/rows moved|pages|TRUNCATE|REINDEX|index|column|answers|EXTENSION/;

# Lasting changes are put right by creating the extension anew
my $changed = qr/index|REINDEX|column|answers|EXTENSION/;

# ---------------------------------------------------------------------
# A case
# ---------------------------------------------------------------------

my $is_new = 1;

# Sets up a case; returns what TICKET, WAITING and FENCE stand for
sub make_world
{
	my ($prepare) = @_;
	my $anew = $is_new ? '' : "DROP EXTENSION IF EXISTS leaselock CASCADE; $create";

	$is_new = 1;
	my $out = outcome($other, qq{SET client_min_messages = error;
		$anew
		TRUNCATE leaselock.tickets, leaselock.locks, leaselock.queues, leaselock.blockers, leaselock.scopes, leaselock.floor;
		SELECT FROM leaselock.try_lock('taken', 'holder', '1 h', 's');
		SET ROLE first;
		SELECT ticket AS "TICKET", fence AS "FENCE" FROM leaselock.lease_acquire('job', 'first', '300 s', scope => 's') \\gset
		SELECT ticket AS "WAITING" FROM leaselock.lease_acquire('taken', 'first', '300 s', '300 s', 's') \\gset
		SELECT FROM leaselock.try_lock('hold', 'first', '1 h', 's');
		SELECT FROM leaselock.try_lock('free', 'first', '1 h', 's');
		SELECT FROM leaselock.release_lock('free', 'first', 's');
		RESET ROLE;
		\\echo :TICKET :WAITING :FENCE});
	my %world;

	@world{qw(TICKET WAITING FENCE)} = $out =~ /^(\S{36}) (\S{36}) (\d+)$/ or die "the world is not made: $out";
	do_so(\%world, $prepare) if $prepare;
	return \%world;
}

sub fill_in
{
	my ($world, $sql) = @_;
	return $sql =~ s/\b(TICKET|WAITING|FENCE)\b/$world->{$1}/gr;
}

# What another session does must succeed
sub do_so
{
	my ($world, $sql) = @_;
	my $out = outcome($other, fill_in($world, $sql));

	die "$sql: $1" if $out =~ /^(\w{5})$/m;
	return;
}

# Fences made by the call differ: they are removed, and returned as a list
sub without_fences
{
	my ($world, $out) = @_;
	my @made;

	$out =~ s{\b(\d{12,})\b}{
		$1 == $world->{FENCE} ? 'FENCE' : do { push @made, $1; 'made' }}ge;
	return ($out, @made);
}

# the roles that an event may have renamed or taken apart
my $roles = q{DO $$ BEGIN
	IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'crew') THEN
		ALTER ROLE team RENAME TO others; ALTER ROLE crew RENAME TO team;
	END IF; END $$; GRANT team TO first;};

my @wrong;
my $cases = 0;

# What an event has left must be sound, and is put right
sub end_case
{
	my ($what, $name) = @_;

	if ($name =~ $changed)
	{
		my $unsound = outcome($other, q{SELECT public.bt_index_check(i.indexrelid, true)
			FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = 'leaselock' AND c.relam = 403 AND i.indisvalid}) =~ s/^\n*//r;
		push @wrong, "$what: an index is unsound: $unsound" if $unsound ne '';
		$is_new = 0;
	}
	outcome($other, $roles) if $name =~ /role|membership/;
	return;
}

# One case
sub try_pair
{
	my ($event, $before, $second, $in_block) = @_;
	my ($name, $sql, $prepare) = @$event;
	my $what = "$before; $name; $second" . ($in_block ? ', in a transaction' : '');
	my $world = make_world($prepare);
	# only a new lock makes the backend learn of functions that were replaced
	my $hear = $in_block && $name =~ /EXTENSION|answers/ ? 'LOCK TABLE work IN ACCESS SHARE MODE;' : '';
	my $call = fill_in($world, $calls{$second});
	my $look = $calls{views};

	my $said = outcome($first, ($in_block ? 'BEGIN; SAVEPOINT a; ' : '') . fill_in($world, $calls{$before}));
	outcome($first, 'ROLLBACK TO a') if $in_block && $said =~ /^\w{5}$/m;
	do_so($world, $sql) if $sql;
	my ($expected, @fresh) = without_fences($world,
		outcome($fresh, "\\c - first\nBEGIN; $call; $look; ROLLBACK"));
	my ($got, @got) = without_fences($world,
		outcome($first, ($in_block ? $hear : 'BEGIN;') . "$call; $look; COMMIT"));
	my ($after, @after) = without_fences($world, outcome($first, $look));
	my ($truth, @truth) = without_fences($world, outcome($fresh, $look));

	$cases++;
	push @wrong, "$what: \"$said\", then \"$expected\""
	  if $name eq 'nothing' && "$said\n$expected" =~ /^\d\w{4}$/m && $expected !~ /^LS001$/m;
	push @wrong, "$what: \"$got\", not \"$expected\"" if $got ne $expected;
	push @wrong, "$what: sees \"$after\" afterwards, not \"$truth\"" if "$after @after" ne "$truth @truth";
	# each is later, and above the same floor
	push @wrong, "$what: fences @got, not like @fresh"
	  if grep { !($got[$_] >= $fresh[$_] && $got[$_] < $fresh[$_] + 3_600_000_000) } 0 .. ($#got < $#fresh ? $#got : $#fresh);
	end_case($what, $name);
	return;
}

# A fence that is checked before the event, and committed after it
sub try_commit
{
	my ($event) = @_;
	my ($name, $sql, $prepare) = @$event;
	my $what = "$name, under a checked fence";
	my $world = make_world($prepare);
	my $said = outcome($first, fill_in($world, "BEGIN; $calls{fence_assert}"));

	do_so($world, $sql) if $sql;
	my $truth = outcome($fresh, fill_in($world, qq{\\c - $superuser
		SELECT leaselock.fence_check('job', FENCE, 's', allow_lapsed => true)}));
	my $expected = $said =~ /^\d\w{4}$/m || $truth eq 't' ? '' : 'LS001';
	my $got = outcome($first, 'COMMIT');

	$cases++;
	push @wrong, "$what: \"$got\", not \"$expected\"" if $got ne $expected;
	end_case($what, $name);
	return;
}

my $all = $ENV{LEASELOCK_CACHES} || undef;
my $turns = 0;

foreach my $event (@events)
{
	my ($name) = @$event;

	next if defined $all && $name !~ /$all/;
	@wrong = ();
	try_commit($event);
	foreach my $second (sort keys %calls)
	{
		my $turn = $turns++;
		my @first = defined $all ? @before : $before[ $turn % @before ];
		my @look = $name =~ $takes_tables ? $looks[0] : defined $all ? @looks : $looks[ $turn % @looks ];

		try_pair($event, $_, $second, 0) foreach @first;
		try_pair($event, $_, $second, 1) foreach @look;
	}
	# so that each call is paired with another one at the next event
	$turns++;
	is(scalar @wrong, 0, "$name: the second call answers as in a new session")
	  or diag join "\n", splice @wrong, 0, 10;
}
note "$cases cases";

is_deeply([ internal_errors($node) ], [], 'no internal error in the log');
is_deeply([ crashes($node) ], [], 'no backend has crashed');
$_->quit foreach $first, $other, $fresh;
$node->stop;
done_testing();
