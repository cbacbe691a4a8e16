# Routine maintenance of the tables under use: indexes that are being built,
# waited for, given up or dropped, indexes that an administrator adds, and
# tables that are rewritten.  No call fails because of it, except where an
# index is of a kind that the functions do not support, and every index stays
# complete.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('maintenance', qq{
max_connections = 60
session_preload_libraries = 'leaselock'
leaselock.lock_timeout = '30 s'
});
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my $serial = 0;

# The indexes that exist but are not complete, those of toast tables included
sub half_made
{
	return split /\n/, $node->safe_psql('postgres', q{
		SELECT indexrelid::regclass FROM pg_index JOIN pg_class t ON t.oid = indrelid
			LEFT JOIN pg_class o ON o.reltoastrelid = t.oid
		WHERE coalesce(o.relnamespace, t.relnamespace) = 'leaselock'::regnamespace AND NOT indisvalid ORDER BY 1});
}

# ---------------------------------------------------------------------
# One call of every kind.  Each has a transaction of its own.
# ---------------------------------------------------------------------

my $calls = join "\n", map { "$_;" } (
	q{SELECT state FROM leaselock.lease_acquire('new *', 'a')},
	q{SELECT state, depth FROM leaselock.lease_acquire('new *', 'a')},
	q{SELECT state FROM leaselock.lease_acquire('new *', 'b', wait => '100 s', request_id => '00000000-0000-4000-8000-000000000001')},
	q{SELECT state, position FROM leaselock.lease_acquire('new *', 'c', wait => '100 s', request_id => '00000000-0000-4000-8000-000000000002')},
	q{SELECT DISTINCT r.state FROM leaselock.lease_tickets t, leaselock.lease_renew(t.ticket) r WHERE t.name = 'new *' AND t.owner = 'a'},
	q{SELECT leaselock.fence_check('new *', fence) FROM leaselock.lease_peek('new *')},
	q{SELECT leaselock.lease_release_all('a')},
	q{SELECT state FROM leaselock.lease_acquire('new *', 'b', request_id => '00000000-0000-4000-8000-000000000001')},
	q{SELECT leaselock.lease_break('new *', fence) FROM leaselock.lease_peek('new *')},
	q{SELECT state FROM leaselock.lease_acquire('new *', 'c', request_id => '00000000-0000-4000-8000-000000000002')},
	q{SELECT leaselock.lease_release_all('c')},
	q{SELECT leaselock.try_lock('hold *', 'a', '1 h') > 0},
	q{SELECT leaselock.renew_lock('hold *', 'a', '2 h')},
	q{SELECT leaselock.try_lock('hold *', 'b', '1 h') IS NULL},
	q{SELECT leaselock.release_lock('hold *', 'a')},
	# rows that already exist, whose columns change
	q{SELECT state FROM leaselock.lease_acquire('old', 'owner *')},
	q{SELECT leaselock.lease_release_all('owner *')},
	q{SELECT leaselock.try_lock('old', 'holder *', '1 h') > 0},
	q{SELECT leaselock.release_lock('old', 'holder *')},
	q{SELECT leaselock.lease_scope_create('new *', current_user)},
	q{SELECT leaselock.lease_scope_create('new *', current_user)},
	q{SELECT leaselock.lease_scope_drop('new *')});
my $answers = join "\n", qw(held held|2 waiting waiting|2 held t 2 held t held 1
  t t t t held 1 t t), 't';

# calls_work(SESSION, WHAT): checks that all of them work; the lines that void
# functions leave empty do not count
sub calls_work
{
	my ($session, $what) = @_;
	my $n = ++$serial;

	is(outcome($session, $calls =~ s/\*/$n/gr) =~ s/^\n+//mgr, $answers, $what);
	return;
}

my $other = session($node);
calls_work($other, 'every call works');

# By table, the statement of a transaction that writes to the table and so
# keeps a concurrent build waiting; * stands for a number
my $acquire = q{SELECT state FROM leaselock.lease_acquire('open *', 'opener')};
my %opening = (
	locks => $acquire,
	tickets => $acquire,
	blockers => q{SELECT state FROM leaselock.lease_acquire('busy *', 'opener', wait => '100 s')},
	scopes => q{SELECT leaselock.lease_scope_create('open *', current_user)});

# Two sessions that take turns with such a transaction
my @openers = (session($node), session($node));
my $turn = 0;

sub open_transaction
{
	my ($table) = @_;
	my $n = ++$serial;
	my $sql = $opening{$table} =~ s/\*/$n/gr;

	outcome($other, "SELECT FROM leaselock.lease_acquire('busy $n', 'in the way', '300 s')")
	  if $table eq 'blockers';
	$turn = 1 - $turn;
	outcome($openers[$turn], 'BEGIN');
	like(outcome($openers[$turn], $sql), qr/^(?:held|waiting|)$/, "$table: a transaction writes and stays open");
	return;
}

sub in_phase
{
	my ($phase) = @_;
	return $node->poll_query_until('postgres', qq{
		SELECT EXISTS (SELECT FROM pg_stat_progress_create_index p JOIN pg_locks l USING (pid)
			WHERE p.phase = '$phase' AND NOT l.granted)});
}

# step_through(SQL, TABLE, CANCEL, PHASES...): a concurrent command that has to
# wait in each of its phases, and is cancelled in one of them (or in none).
# Every call works in the meantime and afterwards.
my $builder = session($node);
my $builder_pid = outcome($builder, 'SELECT pg_backend_pid()');

sub step_through
{
	my ($sql, $table, $cancel, @phases) = @_;
	my $cancelled = '';

	open_transaction($table);
	begin($builder, $sql);
	foreach my $n (1 .. @phases)
	{
		my $what = "$sql, $phases[$n - 1]";

		ok(in_phase($phases[ $n - 1 ]), "$what: the command waits");
		calls_work($other, "$what: every call works");
		if ($n == $cancel)
		{
			$node->safe_psql('postgres', "SELECT pg_cancel_backend($builder_pid)");
			is(awaited($builder), $cancelled = '57014', "$what: the command is cancelled");
			outcome($openers[$turn], 'COMMIT');
			last;
		}
		open_transaction($table) if $n < @phases;
		is(outcome($openers[ $n < @phases ? 1 - $turn : $turn ], 'COMMIT'), '', "$what: the transaction that it waits for commits");
	}
	my $what = "$sql, " . ($cancel ? "cancelled when $phases[$cancel - 1]" : 'done');
	is(awaited($builder), '', $what) if !$cancel;
	cmp_ok(scalar half_made(), $cancel ? '>' : '==', 0, "$what: " . ($cancel ? 'it leaves an incomplete index' : 'it leaves no incomplete index'));
	calls_work($other, "$what: every call works");
	$node->safe_psql('postgres', "DROP INDEX $_") foreach half_made();
	calls_work($other, "$what: every call works once that index is dropped") if $cancel;
	is_deeply([ unsound($node) ], [], "$what: amcheck finds nothing");
	return;
}

# ---------------------------------------------------------------------
# REINDEX CONCURRENTLY, phase by phase
# ---------------------------------------------------------------------

my @reindexing = (
	'waiting for writers before build',
	'waiting for writers before validation',
	'waiting for readers before marking dead',
	'waiting for readers before dropping');

foreach my $table (sort keys %opening)
{
	step_through("REINDEX TABLE CONCURRENTLY leaselock.$table", $table, $_, @reindexing)
	  foreach $table =~ /locks|tickets/ ? (1 .. 4) : 2, 0;
}
foreach my $index (qw(locks_pkey tickets_ticket tickets_place))
{
	step_through("REINDEX INDEX CONCURRENTLY leaselock.$index", $index =~ s/_.*//r, $_, @reindexing)
	  foreach 1, 0;
}

# ---------------------------------------------------------------------
# CREATE INDEX CONCURRENTLY by an administrator, phase by phase
# ---------------------------------------------------------------------

my @creating = @reindexing[ 0, 1 ];

# an index, and a condition that it can be used for
my @indexes = (
	[ 'tickets', 'tickets (owner, state, expires_at)', q{owner = 'c'} ],
	[ 'tickets', 'tickets USING hash (owner)', q{owner = 'c'} ],
	[ 'tickets', 'tickets USING brin (requested_at)', q{requested_at >= '2001-01-01'} ],
	[ 'tickets', 'tickets (ticket) INCLUDE (state)', q{ticket >= '00000000-0000-0000-0000-000000000000'}, 'UNIQUE' ],
	[ 'locks', 'locks (fence, name)', 'fence > 0', 'UNIQUE' ],
	[ 'locks', 'locks (fence) WHERE owner IS NOT NULL', 'owner IS NOT NULL' ],
	[ 'locks', 'locks USING hash (name)', q{name = 'old'} ],
	[ 'locks', 'locks USING brin (changed_at)', q{changed_at >= '2001-01-01'} ],
	[ 'scopes', 'scopes (role_oid)', 'role_oid > 0' ],
	[ 'blockers', 'blockers (name)', q{name >= 'a'} ]);

foreach my $index (@indexes)
{
	my ($table, $definition, $condition, $unique) = @$index;
	my $create = 'CREATE ' . ($unique ? 'UNIQUE ' : '') . "INDEX CONCURRENTLY dba ON leaselock.$definition";

	step_through($create, $table, $_, @creating)
	  foreach $definition =~ /hash|state/ && $table eq 'tickets' ? (1, 2) : $unique ? 2 : (), 0;
	my $count = "SELECT count(*) FROM leaselock.$table WHERE $condition";
	my ($plan, $by_index) = split /\n---\n/, $node->safe_psql('postgres', qq{
		SET enable_seqscan = off; SET enable_sort = off; EXPLAIN (COSTS OFF) $count; SELECT '---'; $count});
	my $by_table = $node->safe_psql('postgres', qq{
		SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; $count});
	# amcheck checks the others
	like($plan, qr/Index.* on dba|using dba/, "$definition: the index is used") if $definition =~ /hash|brin/;
	is($by_index, $by_table, "$definition: the index finds as many rows as the table has");
	$node->safe_psql('postgres', 'DROP INDEX leaselock.dba');
}

# A violated unique index raises its error, for a new row and for a changed one
foreach my $definition ('(owner)', '(owner) WHERE owner IS NOT NULL')
{
	$node->safe_psql('postgres', qq{
		DROP EXTENSION leaselock;
		CREATE EXTENSION leaselock;
		SELECT leaselock.try_lock('mine', 'twice', '1 h');
		SELECT leaselock.try_lock('free', 'somebody', '1 h'), leaselock.release_lock('free', 'somebody');
		CREATE UNIQUE INDEX CONCURRENTLY dba ON leaselock.locks $definition});
	foreach my $name ('free', 'fresh')
	{
		is(outcome($other, "SELECT leaselock.try_lock('$name', 'twice', '1 h')"), '23505', "a unique index on $definition: $name cannot be taken as well");
		is(outcome($other, "SELECT count(*) FROM leaselock.lease_peek('$name')"), '0', "a unique index on $definition: $name is free");
	}
	$node->safe_psql('postgres', 'DROP INDEX leaselock.dba');
	like(outcome($other, q{SELECT leaselock.try_lock(n, 'twice', '1 h') FROM unnest(array['free', 'fresh']) n}), qr/^\d+\n\d+$/, 'both can be taken once it is dropped');
	is_deeply([ unsound($node) ], [], 'amcheck finds nothing');
}

# ---------------------------------------------------------------------
# Indexes that the functions do not support: an error that names them
# ---------------------------------------------------------------------

# Calls that write a row of a table, with such an index on it or without, and
# an answer of each
my %inserting = (
	locks => [
		[ q{SELECT leaselock.try_lock('n *', 'one', '1 h') > 0}, 't' ],
		[ q{SELECT state FROM leaselock.lease_acquire('n2 *', 'one')}, 'held' ] ],
	tickets => [
		[ q{SELECT state FROM leaselock.lease_acquire('n *', 'one')}, 'held' ],
		[ q{SELECT state FROM leaselock.lease_acquire('busy', 'n *', wait => '100 s')}, 'waiting' ] ],
	blockers => [ [ q{SELECT state FROM leaselock.lease_acquire('busy', 'n *', wait => '100 s')}, 'waiting' ] ],
	scopes => [ [ q{SELECT leaselock.lease_scope_create('n *', current_user)}, '' ] ],
	floor => [ [ q{SELECT leaselock.fence_bump() > 0}, 't' ] ]);
my %unserved = (
	locks => [
		'CREATE INDEX dba ON leaselock.locks (lower(owner))',
		'CREATE INDEX dba ON leaselock.locks (fence) WHERE owner IS NULL',
		'CREATE UNIQUE INDEX dba ON leaselock.locks (name) WHERE tickets > 0',
		'ALTER TABLE leaselock.locks ADD CONSTRAINT dba UNIQUE (fence) DEFERRABLE',
		'ALTER TABLE leaselock.locks ADD CONSTRAINT dba EXCLUDE (fence WITH =)' ],
	tickets => [
		'CREATE INDEX dba ON leaselock.tickets (lower(owner))',
		'CREATE INDEX CONCURRENTLY dba ON leaselock.tickets ((alive_until > expires_at))',
		'CREATE INDEX dba ON leaselock.tickets (expires_at) WHERE claimed',
		'CREATE INDEX CONCURRENTLY dba ON leaselock.tickets USING hash (state) WHERE ended_at IS NULL',
		'ALTER TABLE leaselock.tickets ADD CONSTRAINT dba UNIQUE (ticket) DEFERRABLE INITIALLY DEFERRED',
		'ALTER TABLE leaselock.tickets ADD CONSTRAINT dba EXCLUDE USING hash (ticket WITH =)' ],
	blockers => ['CREATE INDEX dba ON leaselock.blockers (upper(name))'],
	scopes => [ 'CREATE INDEX dba ON leaselock.scopes ((role::text))', 'CREATE INDEX dba ON leaselock.scopes (role) WHERE role_oid = 0' ],
	floor => [ 'CREATE INDEX dba ON leaselock.floor ((fence + reading))', 'CREATE INDEX dba ON leaselock.floor (fence) WHERE reading > 0' ]);

is(outcome($other, q{SELECT state FROM leaselock.lease_acquire('busy', 'in the way', '300 s')}), 'held', 'a lock is held');
is(outcome($other, q{SELECT leaselock.try_lock('gone by then', 'a', '1 h') > 0}), 't', 'another lock is held');

# what must not crash, whether it meets the index or not: these rows are
# changed in place as a rule
my @others = (
	q{SELECT r.state FROM leaselock.lease_tickets t, leaselock.lease_renew(t.ticket, '300 s') r WHERE t.name = 'busy' AND t.state = 'held'},
	q{SELECT g.state FROM leaselock.lease_tickets t, leaselock.lease_get(t.ticket) g WHERE t.name = 'busy' AND t.state = 'held'},
	q{SELECT leaselock.renew_lock('gone by then', 'a', '1 h')},
	q{SELECT leaselock.fence_check('busy', fence) FROM leaselock.lease_peek('busy')},
	q{SELECT leaselock.lease_prune() >= 0},
	q{SELECT count(*) > 0 FROM leaselock.lease_status},
	q{CALL leaselock.lease_acquire_wait('busy', 'impatient', wait => '0 s')});

foreach my $table (sort keys %unserved)
{
	foreach my $create (@{ $unserved{$table} })
	{
		my $n = ++$serial;
		$node->safe_psql('postgres', $create);
		foreach my $call (@{ $inserting{$table} })
		{
			my $sql = $call->[0] =~ s/\*/$n/gr;
			my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");

			like($err, qr/ERROR:  0A000: index "dba" of table "leaselock\.$table" is not supported/, "$create: $call->[0]: is refused");
			like($err, qr/^HINT:  Drop the index\./m,
				"$create: $call->[0]: the hint says what to do");
			is(outcome($other, $sql), '0A000', "$create: $call->[0]: is refused in an older session, too");
			is(outcome($other, "BEGIN; SAVEPOINT s; $sql; ROLLBACK TO s; SELECT 1; COMMIT"), "1\n0A000", "$create: $call->[0]: a savepoint is enough to recover");
		}
		foreach my $sql (@others)
		{
			like(outcome($other, $sql), qr/^(?:held|t|0A000|\|contended\|\|)$/, "$create: $sql: answers, or is refused");
		}
		$node->safe_psql('postgres', $create =~ /CONSTRAINT/ ? "ALTER TABLE leaselock.$table DROP CONSTRAINT dba" : 'DROP INDEX leaselock.dba');
		foreach my $call (@{ $inserting{$table} })
		{
			is(outcome($other, $call->[0] =~ s/\*/$n/gr), $call->[1], "$create, dropped: $call->[0]: works");
		}
		calls_work($other, "$create, dropped: every call works");
	}
	is_deeply([ unsound($node) ], [], "such an index of $table: amcheck finds nothing");
}

# A transaction that has written before the index exists
outcome($other, 'BEGIN');
is(outcome($other, q{SELECT state FROM leaselock.lease_acquire('before', 'one')}), 'held', 'a transaction acquires');
begin($builder, 'CREATE INDEX dba ON leaselock.tickets (lower(owner))');
ok($node->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $builder_pid"), 'a plain CREATE INDEX waits for it');
is(outcome($other, q{SELECT state FROM leaselock.lease_acquire('before it', 'one')}), 'held', 'the transaction can still acquire');
is(outcome($other, 'COMMIT'), '', 'the transaction can commit');
is(awaited($builder), '', 'then the index is created');
is(outcome($other, q{SELECT state FROM leaselock.lease_acquire('after', 'one')}), '0A000', 'a call that meets the index is refused');
is(outcome($builder, 'DROP INDEX leaselock.dba'), '', 'the index is dropped');
is(outcome($other, q{SELECT state FROM leaselock.lease_acquire('after', 'one')}), 'held', 'the call works again');

# ---------------------------------------------------------------------
# A waiter inside lease_wait holds nothing that maintenance needs
# ---------------------------------------------------------------------

my $waiter = session($node);
my $n = ++$serial;
my $holder = outcome($other, "SELECT ticket FROM leaselock.lease_acquire('sleep $n', 'holder', '300 s')");
begin($waiter, "CALL leaselock.lease_acquire_wait('sleep $n', 'sleeper', wait => '200 s')");
ok($node->poll_query_until('postgres', "SELECT EXISTS (SELECT FROM leaselock.tickets WHERE name = 'sleep $n' AND waiter_pid IS NOT NULL)"), 'a waiter sleeps');
foreach my $sql (
	(map { ("REINDEX TABLE CONCURRENTLY leaselock.$_", "REINDEX TABLE leaselock.$_", "VACUUM FULL leaselock.$_") } qw(locks tickets blockers scopes)),
	'CLUSTER leaselock.tickets USING tickets_ticket', 'CLUSTER leaselock.locks USING locks_pkey')
{
	is(outcome($builder, "SET lock_timeout = '20 s'; $sql"), '', "$sql: is not held up by a sleeping waiter");
}
outcome($builder, 'RESET lock_timeout');
is(outcome($other, "SELECT state FROM leaselock.lease_release('$holder')"), 'released', 'the holder releases');
like(awaited($waiter), qr/\|held\|/, 'the waiter has its turn');
$waiter->quit;
is_deeply([ unsound($node) ], [], 'amcheck finds nothing');

# ---------------------------------------------------------------------
# Under load
# ---------------------------------------------------------------------

# New names and old ones, tickets and holds, and waits; a row for each stretch
my %load = (
	fresh => q{
\set n random(1, 1000000000)
SELECT ticket FROM leaselock.lease_acquire('load :n', 'client :client_id') \gset
SELECT 1 / (state = 'held')::int FROM leaselock.lease_renew(':ticket');
SELECT 1 / (state = 'released')::int FROM leaselock.lease_release(':ticket');
},
	named => q{
\set n random(1, 1000000000)
SELECT 1 / (leaselock.try_lock('hold :n', 'client :client_id', '1 h') > 0)::int;
SELECT 1 / leaselock.renew_lock('hold :n', 'client :client_id', '1 h')::int;
SELECT 1 / leaselock.release_lock('hold :n', 'client :client_id')::int;
},
	queue => q{
\set n random(1, 3)
CALL leaselock.lease_acquire_wait('queue :n', 'client :client_id', wait => '100 s');
SELECT coalesce(sum(leaselock.fence_check(name, fence)::int), 0) FROM leaselock.lease_status WHERE name = 'queue :n' AND owner = 'client :client_id';
SELECT 1 / leaselock.lease_release_all('client :client_id');
},
	looks => q{
\set n random(1, 3)
SELECT count(*) FROM leaselock.lease_peek('queue :n');
SELECT count(*) FROM leaselock.lease_tickets;
SELECT count(*) FROM leaselock.lease_status;
SELECT count(g.state) FROM (SELECT ticket FROM leaselock.lease_tickets LIMIT 1) t, leaselock.lease_get(t.ticket) g;
SELECT leaselock.lease_prune('1 h', 10);
});

# under_load(WHAT, LEAST, CANCEL, COMMANDS...): runs the commands again and
# again under load, until the load has made at least LEAST tickets.  With
# CANCEL, each command meets a transaction that stays open until the command is
# cancelled at its first wait.  No call fails.
sub tickets_made
{
	return $node->safe_psql('postgres', q{SELECT count(*) FROM leaselock.tickets WHERE owner LIKE 'client %'});
}

sub run_cancelled
{
	my ($command) = @_;

	outcome($openers[0], 'BEGIN');
	outcome($openers[0], q{SELECT FROM leaselock.lease_acquire('stays open', 'opener')});
	my $outcome = outcome($builder, "SET statement_timeout = '50 ms'; $command; RESET statement_timeout");
	outcome($openers[0], 'COMMIT');
	outcome($builder, "DROP INDEX CONCURRENTLY $_") foreach half_made();
	return $outcome;
}

sub under_load
{
	my ($what, $least, $cancel, @commands) = @_;
	my $offset = -s $node->logfile;
	my (%outcomes, $client);

	{
		local $ENV{PGAPPNAME} = 'load';
		$client = start_pgbench($node, '-c 6 -j 2 -t 100000000', %load);
	}
	ok($node->poll_query_until('postgres', "SELECT count(*) = 6 FROM pg_stat_activity WHERE application_name = 'load'"), "$what: the load runs");
	my $before = tickets_made();
	my $rounds = 0;
	my $start = time;
	while ($rounds < 2 || (tickets_made() < $before + $least && time < $start + 60))
	{
		$rounds++;
		foreach my $command (@commands)
		{
			my $outcome = $cancel ? run_cancelled($command) : outcome($builder, $command);
			$outcomes{ $outcome eq '' ? 'done' : $outcome }++;
		}
	}
	is_deeply([ sort keys %outcomes ], [ $cancel ? '57014' : 'done' ], "$what: how the commands end")
	  or diag(join ', ', map { "$_: $outcomes{$_}" } sort keys %outcomes);
	is( $node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'load'}),
		'6', "$what: every client is still there at the end");
	my @errors = grep { $cancel ? !/ 57014 .*canceling statement due to statement timeout/ : 1 } logged_errors($node, $offset);
	is(scalar @errors, 0, "$what: no call fails")
	  or diag(join "\n", @errors[ 0 .. ($#errors < 20 ? $#errors : 20) ]);
	$client->{run}->kill_kill;
	$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'load'});
	is(join("\n", grep { /ERROR|abort/ } split /\n/, $client->{err}), '', "$what: no client saw an error");
	my $made = tickets_made() - $before;
	cmp_ok($made, '>=', $least, "$what: tickets were made");
	note("$what: ", join(', ', map { "$_ $outcomes{$_}" } sort keys %outcomes), sprintf ', tickets: %d, seconds: %.1f', $made, time - $start);
	is_deeply([ half_made() ], [], "$what: no incomplete index is left");
	is_deeply([ unsound($node) ], [], "$what: amcheck finds nothing");
	outcome($other, q{SELECT leaselock.lease_release_all('client ' || n) FROM generate_series(0, 5) n});
	calls_work($other, "$what: every call works");
	return;
}

my @pieces = ('INDEX CONCURRENTLY leaselock.locks_pkey', 'INDEX CONCURRENTLY leaselock.tickets_request', 'INDEX CONCURRENTLY leaselock.tickets_ticket',
	'TABLE CONCURRENTLY leaselock.tickets', 'TABLE CONCURRENTLY leaselock.locks', 'TABLE CONCURRENTLY leaselock.blockers');
under_load('REINDEX CONCURRENTLY under load', 800, 0, map { "REINDEX $_" } @pieces);
under_load('REINDEX CONCURRENTLY under load, cancelled', 300, 1, map { "REINDEX $_" } grep { !/blockers/ } @pieces);

my @creates = map {
	my ($definition, $unique) = @{$_}[ 1, 3 ];
	'CREATE ' . ($unique ? 'UNIQUE ' : '') . "INDEX CONCURRENTLY dba ON leaselock.$definition"
} @indexes;
under_load('CREATE INDEX CONCURRENTLY under load', 500, 0, map { ($_, 'DROP INDEX CONCURRENTLY leaselock.dba') } @creates);
under_load('CREATE INDEX CONCURRENTLY under load, cancelled', 300, 1, @creates[ 0 .. 6 ]);

# Commands that lock the whole table for a moment: they wait for the calls, and
# the calls wait for them, in turn
my @tables = qw(locks tickets blockers scopes floor installation);
under_load('REINDEX, VACUUM FULL, CLUSTER, ALTER TABLE under load', 400, 0,
	(map { "REINDEX TABLE leaselock.$_" } @tables),
	(map { "REINDEX INDEX leaselock.$_" } qw(locks_pkey tickets_request tickets_place tickets_member tickets_ticket tickets_waiter)),
	(map { "VACUUM FULL leaselock.$_" } @tables),
	(map { "ALTER TABLE leaselock.$_ SET (fillfactor = 60)" } @tables),
	(map { "ALTER TABLE leaselock.$_ RESET (fillfactor)" } @tables),
	'CLUSTER leaselock.locks USING locks_pkey',
	'CLUSTER leaselock.tickets USING tickets_ticket',
	'VACUUM (FULL, ANALYZE) leaselock.locks, leaselock.tickets',
	'VACUUM leaselock.tickets', 'ANALYZE leaselock.locks',
	'CLUSTER',
	'REINDEX SCHEMA leaselock');

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');
is_deeply([ crashes($node) ], [], 'no crash');
$_->quit foreach $other, $builder, @openers;
$node->stop;

done_testing();
