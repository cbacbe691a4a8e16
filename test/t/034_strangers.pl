# A role that may do nothing but connect can do nothing to the leases of
# others.  It is refused before it keeps anybody out, it cannot aim at the
# locks of others, it sees nothing of them, and what it tidies up delays
# nobody.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

# what has ended may be removed at once
my $node = new_node('strangers', qq{
max_connections = 40
max_wal_senders = 5
wal_level = replica
session_preload_libraries = 'leaselock'
leaselock.ticket_retention = 0
leaselock.max_lease = '1 h'
leaselock.waiter_timeout = '1 h'
});
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE team;
CREATE ROLE alice LOGIN IN ROLE team;
CREATE ROLE mallory LOGIN;
CREATE TABLE written (fence bigint);
GRANT INSERT ON written TO alice;
SELECT leaselock.lease_scope_create('teams/platform', 'team');
});

sub role_session
{
	my ($role) = @_;
	return session($node, "SET SESSION AUTHORIZATION $role");
}

# run_file(ROLE, LINES...): a psql that runs the lines one by one, as a client
# would
my $dir = PostgreSQL::Test::Utils::tempdir();
my $files = 0;

sub run_file
{
	my ($role, @lines) = @_;
	my $file = "$dir/" . ++$files;
	my $client = { out => "$file.out", err => "$file.err" };

	append_to_file($file, join '', map { "$_;\n" } @lines);
	$client->{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-d', $node->connstr('postgres') . " user=$role", '-f', $file ],
		'>', $client->{out}, '2>', $client->{err});
	return $client;
}

# How often each line occurs
sub counted
{
	my ($file) = @_;
	my %count;

	$count{$_}++ foreach map { s/.*ERROR:\s+//r } split /\n/, slurp_file($file);
	return \%count;
}

sub locks_of
{
	my ($pid) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype = 'advisory'");
}

my $alice = role_session('alice');
my $mallory = role_session('mallory');
my $accomplice = role_session('mallory');
my $operator = session($node);

# ---------------------------------------------------------------------
# A role without access is refused at once and keeps nobody out
# ---------------------------------------------------------------------

my @refused = (
	q{SELECT state FROM leaselock.lease_acquire('free', 'm', scope => 'teams/platform')},
	q{SELECT state FROM leaselock.lease_acquire('free', 'm', wait => '100 s', scope => 'teams/platform')},
	q{SELECT state FROM leaselock.lease_acquire('free', 'm', scope => 'teams/platform', request_id => '00000000-0000-4000-8000-000000000001')},
	q{CALL leaselock.lease_acquire_wait('free', 'm', wait => '100 s', scope => 'teams/platform')},
	q{SELECT leaselock.try_lock('free', 'm', '1 h', 'teams/platform')},
	q{SELECT leaselock.renew_lock('free', 'm', '1 h', 'teams/platform')},
	q{SELECT leaselock.fence_check('free', 1, 'teams/platform')},
	q{SELECT leaselock.fence_assert('free', 1, 'teams/platform')});

# Anybody may make these calls; nothing that they find belongs to mallory
my @harmless = (
	q{SELECT leaselock.release_lock('free', 'm', 'teams/platform')},
	q{SELECT leaselock.lease_release_all('m', 'teams/platform')},
	q{SELECT state FROM leaselock.lease_get('00000000-0000-4000-8000-000000000001')},
	q{SELECT state FROM leaselock.lease_release('00000000-0000-4000-8000-000000000001')},
	q{SELECT count(*) FROM leaselock.lease_peek('free', 'teams/platform')},
	q{SELECT count(*) FROM leaselock.lease_status},
	q{SELECT count(*) FROM leaselock.lease_tickets});

# while nobody uses the lock, while its owner holds it, and while it is being
# changed, so that a call that wanted a tag would have to wait
foreach my $when ('free', 'held', 'being changed')
{
	outcome($alice, 'BEGIN') if $when eq 'being changed';
	like( outcome($alice, q{SELECT leaselock.try_lock('free', 'a', '1 h', 'teams/platform')}), qr/^\d+$/, "$when: its owner takes it") if $when ne 'free';
	outcome($mallory, q{SET statement_timeout = '10 s'});
	foreach my $sql (@refused)
	{
		is(outcome($mallory, $sql), '42501', "$when: refused: $sql");
	}
	outcome($mallory, q{SET statement_timeout = 0});
	foreach my $sql (@harmless)
	{
		like(outcome($mallory, $sql), qr/^(?:f|0|gone)$/, "$when: finds nothing: $sql");
	}
	outcome($alice, 'COMMIT') if $when eq 'being changed';
	is(outcome($alice, q{SELECT leaselock.release_lock('free', 'a', 'teams/platform')}), 't', "$when: released") if $when ne 'free';
}

# the same in a transaction that stays open
my $mallory_pid = outcome($mallory, 'SELECT pg_backend_pid()');
outcome($mallory, 'BEGIN');
foreach my $sql (grep { !/^CALL/ } @refused)
{
	is(outcome($mallory, "SAVEPOINT s; $sql; ROLLBACK TO s"), '42501', "in a transaction, refused: $sql");
}
outcome($mallory, $_) foreach @harmless;
is(locks_of($mallory_pid), '0', 'a transaction in which every call was refused keeps nothing');
outcome($mallory, 'COMMIT');

# two clients of mallory without a pause; alice is alone in the scope
my @loops = map { run_file('mallory', map { my $n = $_; $refused[ $n % @refused ] } 1 .. 200_000) } 1 .. 2;
my $tries = 400;
my $count_refused = sub { my $n = 0; $n += counted($_->{err})->{42501} // 0 foreach @loops; return $n };
foreach (1 .. 600)
{
	last if $count_refused->() > 100;
	select undef, undef, undef, 0.1;
}
my $before = $count_refused->();
cmp_ok($before, '>', 100, 'mallory is active');
my $try = run_file('alice', map { (
	q{SELECT 'acquire ' || state FROM leaselock.lease_acquire('free', 'a', scope => 'teams/platform')},
	q{SELECT 'all ' || leaselock.lease_release_all('a')},
	q{SELECT 'lock ' || (leaselock.try_lock('free', 'a', '1 h', 'teams/platform') IS NOT NULL)},
	q{SELECT 'renew ' || leaselock.renew_lock('free', 'a', '1 h', 'teams/platform')},
	q{SELECT 'check ' || leaselock.fence_check('free', fence, 'teams/platform') FROM leaselock.lease_peek('free', 'teams/platform')},
	q{SELECT 'release ' || leaselock.release_lock('free', 'a', 'teams/platform')}) } 1 .. $tries);
$try->{run}->finish;
my $refusals = $count_refused->() - $before;
cmp_ok($refusals, '>', 100, "mallory was refused $refusals times in the meantime");
is_deeply(counted($try->{out}),
	{ 'acquire held' => $tries, 'all 1' => $tries, 'lock true' => $tries, 'renew true' => $tries, 'check true' => $tries, 'release true' => $tries },
	'the owner of the scope got the lock each time');
is(slurp_file($try->{err}), '', 'the owner of the scope got no error');
foreach my $loop (@loops)
{
	$loop->{run}->kill_kill;
	# the kill may have cut off the end of the last line
	is_deeply([ grep { $_ ne '42501' && !/^psql:\S*\s*$/ } keys %{ counted($loop->{err}) } ], [], 'mallory got no other error');
	is(slurp_file($loop->{out}), '', 'mallory got no result');
}

# ---------------------------------------------------------------------
# Nobody can aim at the locks of others
# ---------------------------------------------------------------------

# With a hash that everybody can compute and invert, these would have the tags
# of lock "nightly" and of scope "teams/platform"
my $like_lock = 'mallory-was-jqFM7oR.g_sz';
my $like_scope = 'ZZZZZZZZZZZZXk[GnG^tH}YD';

my $ticket = outcome($alice, q{SELECT ticket FROM leaselock.lease_acquire('nightly', 'w1', '60 s', scope => 'teams/platform')});
my $fence = outcome($alice, "SELECT fence FROM leaselock.lease_get('$ticket')");
outcome($mallory, 'BEGIN');
like(outcome($mallory, "SELECT leaselock.try_lock('$like_lock', 'm', '1 min')"), qr/^\d+$/, 'a colliding name is taken, in an open transaction');
is(outcome($mallory, "SELECT state FROM leaselock.lease_acquire('x', 'm', scope => '$like_scope')"), 'held', 'a lock in a colliding scope is taken');
outcome($alice, q{SET statement_timeout = '10 s'});
is(outcome($alice, "SELECT state FROM leaselock.lease_renew('$ticket')"), 'held', 'the other lock is renewed');
is(outcome($alice, "BEGIN; INSERT INTO written SELECT $fence WHERE leaselock.fence_check('nightly', $fence, 'teams/platform'); COMMIT"), '', 'a row is written under its fence');
is(outcome($operator, q{SET statement_timeout = '10 s'; SELECT leaselock.lease_scope_create('teams/platform', 'team')}), '', 'its scope is registered again');
is(outcome($alice, "SELECT state FROM leaselock.lease_release('$ticket')"), 'released', 'the other lock is released');
is(outcome($alice, q{SELECT state FROM leaselock.lease_acquire('nightly', 'w2', scope => 'teams/platform')}), 'held', 'the other lock is taken again');
outcome($mallory, 'ROLLBACK');
is($node->safe_psql('postgres', 'SELECT count(*) FROM written'), '1', 'the row is there');

# the other way round: alice does not delay mallory either
outcome($alice, 'BEGIN');
outcome($alice, q{SELECT leaselock.lease_release_all('w2')});
is(outcome($mallory, "SELECT leaselock.try_lock('$like_lock', 'm', '1 min') > 0"), 't', 'alice does not delay mallory either');
outcome($alice, 'ROLLBACK');

# What everybody sees in pg_locks does not confirm guessed names.  The hash
# function of the server can be called from SQL.
my $request = '00000000-0000-4000-8000-00000000000a';
my $guesses = qq{
	WITH guess (scope, name) AS (VALUES ('teams/platform', 'nightly'), ('teams/platform', 'queued'), ('public', 'open')),
	hashes AS (
		SELECT hashtextextended(name, hashtextextended(scope, octet_length(scope))) AS hash FROM guess
		UNION SELECT hashtextextended(name, s) FROM guess, (VALUES (0), (1)) v (s)
		UNION SELECT hashtextextended(scope, s) FROM guess, (VALUES (0), (1)) v (s)
		UNION SELECT uuid_hash_extended('$request', hashtextextended(name, hashtextextended(scope, octet_length(scope)))) FROM guess)
	SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM hashes
		WHERE (hash >> 32) & x'ffffffff'::bigint IN (classid::bigint, objid::bigint) OR hash & x'ffffffff'::bigint IN (classid::bigint, objid::bigint)))
	FROM pg_locks WHERE locktype = 'advisory' AND objsubid BETWEEN 19532 AND 19532 + 15};

sub tags_open
{
	outcome($alice, 'BEGIN');
	is(outcome($alice, q{SELECT state FROM leaselock.lease_acquire('nightly', 'w2', scope => 'teams/platform')}), 'held', 'pg_locks: a lock is changed');
	is( outcome($alice, qq{SELECT state FROM leaselock.lease_acquire('queued', 'w3', wait => '100 s', scope => 'teams/platform', request_id => '$request')}),
		'waiting', 'pg_locks: a ticket is queued');
	is(outcome($alice, q{SELECT leaselock.try_lock('open', 'w2', '1 min') > 0}), 't', 'pg_locks: a lock without a registered scope is taken');
	return;
}

outcome($alice, q{SELECT state FROM leaselock.lease_acquire('queued', 'holder', '300 s', scope => 'teams/platform')});
tags_open();
my ($tags, $guessed) = split /\|/, outcome($mallory, $guesses);
cmp_ok($tags, '>=', 4, 'pg_locks: their tags can be seen');
is($guessed, '0', 'pg_locks: no tag matches a guessed name');
my $shown = q{SELECT string_agg(DISTINCT format('%s:%s:%s', classid, objid, objsubid), ' ' ORDER BY format('%s:%s:%s', classid, objid, objsubid))
	FROM pg_locks WHERE locktype = 'advisory' AND objsubid IN (19532, 19533, 19534) AND classid <> 0};
my $first = outcome($mallory, $shown);
outcome($alice, 'COMMIT');

# the secret belongs to this installation
outcome($operator, q{RESET statement_timeout; DROP EXTENSION leaselock; CREATE EXTENSION leaselock;
	SELECT leaselock.lease_scope_create('teams/platform', 'team')});
outcome($alice, q{SELECT state FROM leaselock.lease_acquire('queued', 'holder', '300 s', scope => 'teams/platform')});
tags_open();
my %before = map { $_ => 1 } split / /, $first;
is_deeply([ grep { $before{$_} } split / /, outcome($mallory, $shown) ], [], 'another installation has other tags');
outcome($alice, 'COMMIT');

# and nobody can read it
is( $node->safe_psql('postgres', q{
		SELECT string_agg(format('%s by %s', c.oid::regclass, r), ', ') FROM pg_class c, (VALUES ('mallory'), ('alice'), ('pg_database_owner')) v (r)
		WHERE relnamespace = 'leaselock'::regnamespace AND relkind IN ('r', 'm', 'S', 'p', 'f')
			AND (CASE WHEN relkind = 'S' THEN has_sequence_privilege(r, c.oid, 'SELECT') ELSE has_any_column_privilege(r, c.oid, 'SELECT') END)
			AND NOT (r = 'pg_database_owner' AND relname IN ('locks', 'floor', 'scopes'))}),
	'', 'only the owner of the database reads tables, and only those that a dump carries');

# ---------------------------------------------------------------------
# Tidying up while the transaction that does it waits
# ---------------------------------------------------------------------

my $idle = 300;

sub make_idle
{
	is( outcome($alice, qq{
			SELECT count(leaselock.try_lock('idle ' || n, 'a', '1 h', 'teams/platform')) FROM generate_series(1, $idle) n;
			SELECT count(*) FROM generate_series(1, $idle) n WHERE leaselock.release_lock('idle ' || n, 'a', 'teams/platform')}),
		"$idle\n$idle", 'alice has idle locks');
	return;
}

# What must work although mallory waits, each within its time limit
sub all_is_well
{
	my ($what) = @_;

	outcome($alice, q{SET statement_timeout = '20 s'; SET lock_timeout = '2 s'});
	is( outcome($alice, qq{SELECT count(*) FROM generate_series(1, $idle) n, leaselock.try_lock('idle ' || n, 'a', '1 h', 'teams/platform') f WHERE f IS NOT NULL}),
		$idle, "$what: alice gets each of her locks");
	is( outcome($alice, q{SELECT state FROM leaselock.lease_acquire('new', 'a', scope => 'teams/platform')}), 'held', "$what: alice gets a new lock");
	is( outcome($alice, qq{SELECT count(*) FROM generate_series(1, $idle) n WHERE leaselock.release_lock('idle ' || n, 'a', 'teams/platform')}),
		$idle, "$what: alice releases them");
	is( outcome($alice, q{SELECT leaselock.lease_release_all('a', 'teams/platform')}), 1, "$what: alice releases the new lock");
	outcome($operator, q{SET statement_timeout = '20 s'; SET lock_timeout = '2 s'; SET synchronous_commit = local});
	is(outcome($operator, 'SELECT leaselock.fence_bump() > 0'), 't', "$what: the floor is raised");
	cmp_ok(outcome($operator, q{SELECT leaselock.lease_prune('0 s', 100000)}), '>', 0, "$what: idle rows are removed");
	is(outcome($operator, q{SELECT leaselock.lease_scope_create('another', 'team'), leaselock.lease_scope_drop('another')}), '|t', "$what: a scope is registered");
	return;
}

sub many_rows
{
	my ($session, $what) = @_;
	return outcome($session, "SELECT count(*) FROM generate_series(1, 400) n, leaselock.lease_acquire('$what ' || n, 'm', '1 h') WHERE state = 'held'");
}

$node->append_conf('postgresql.conf', "leaselock.lock_timeout = '100 s'");
$node->reload;
foreach my $round (1 .. 3)
{
	my $what = "a COMMIT waits for a lock, round $round";

	make_idle();
	my $held = outcome($accomplice, "SELECT leaselock.try_lock('pending $round', 'm', '1 h')");
	outcome($mallory, 'BEGIN');
	is(many_rows($mallory, "round $round"), 400, "$what: mallory has added rows");
	is(outcome($mallory, "SELECT leaselock.fence_check('pending $round', $held)"), 't', "$what: mallory has checked a fence");
	outcome($accomplice, 'BEGIN');
	is(outcome($accomplice, "SELECT leaselock.release_lock('pending $round', 'm')"), 't', "$what: another transaction ends that grant");
	begin($mallory, 'COMMIT');
	ok($node->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $mallory_pid"), "$what: the COMMIT waits");
	all_is_well($what);
	is($node->safe_psql('postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $mallory_pid"), 'Lock', "$what: the COMMIT still waits");
	outcome($accomplice, 'COMMIT');
	is(awaited($mallory), 'LS001', "$what: the fence is stale");
}

$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
outcome($alice, 'SET synchronous_commit = local');
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT current_setting('synchronous_standby_names') = 'nobody'}), 'commits wait for a standby that does not exist');
foreach my $round (1 .. 3)
{
	my $what = "a COMMIT waits for a standby, round $round";

	make_idle();
	outcome($mallory, 'BEGIN');
	is(many_rows($mallory, "standby $round"), 400, "$what: mallory has added rows");
	begin($mallory, 'COMMIT');
	ok($node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $mallory_pid"), "$what: the COMMIT waits");
	all_is_well($what);
	is($node->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = $mallory_pid"), 'SyncRep', "$what: the COMMIT still waits");
	# ends the wait, with a warning; the transaction has been committed
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($mallory_pid)");
	is(awaited($mallory), '', "$what: the transaction is committed");
}

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');
is_deeply([ crashes($node) ], [], 'no crash');
$_->quit foreach $alice, $mallory, $accomplice, $operator;
$node->stop('immediate');

done_testing();
