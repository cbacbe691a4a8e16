# Events: a reader that polls while writers commit out of order misses nothing
# and reads nothing twice.  A crash loses an event only together with its
# change to the lease.  A release stays asynchronous, and the table stays
# bounded.  Also: a standby and a prepared transaction, dumps and publications.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('events', qq{
wal_level = logical
max_connections = 50
track_commit_timestamp = on
max_prepared_transactions = 5
autovacuum_naptime = 1d
}, allows_streaming => 1);
$node->safe_psql('postgres', q{
	CREATE EXTENSION leaselock;
	ALTER DATABASE postgres SET leaselock.events = 'all'});

# sql(SQL, NODE)
sub sql
{
	my ($sql, $on) = @_;
	return ($on // $node)->safe_psql('postgres', $sql);
}

# read_on(CURSOR, NODE, ROWS): the events after a cursor, as xid, id, kind and
# name; advances the cursor
sub read_on
{
	my ($cursor, $on, $rows) = @_;
	my $after = @$cursor ? "'$cursor->[0]', $cursor->[1]" : 'NULL, NULL';
	my @read = map { [ split /\|/, $_, -1 ] } split /\n/,
	  sql("SELECT xid, id, kind, name FROM leaselock.lease_events($after, " . ($rows // 1000) . ')', $on);

	@$cursor = @{ $read[-1] }[ 0, 1 ] if @read;
	return @read;
}

# told(EVENTS): the kinds and names of events
sub told { return join ' ', map { "$_->[2]:$_->[3]" } @_ }

# ---------------------------------------------------------------------
# Writers whose commits overtake each other, and readers
# ---------------------------------------------------------------------

# each transaction stays open for a while, and some are rolled back
my $held = q{
\set lock random(1, 20)
\set pause random(0, 10)
BEGIN;
SELECT count(leaselock.lease_acquire('load ' || :lock, 'w' || :client_id));
\sleep :pause ms
SELECT leaselock.lease_release_all('w' || :client_id);
COMMIT;
};
my $writers = start_pgbench($node, '-c 8 -j 2 -t 100', a => $held, b => $held, c => q{
\set lock random(1, 20)
\set pause random(0, 10)
BEGIN;
SAVEPOINT s;
SELECT count(leaselock.lease_acquire('load ' || :lock, 'w' || :client_id));
ROLLBACK TO s;
SELECT count(leaselock.lease_acquire('load ' || :lock, 'w' || :client_id));
\sleep :pause ms
ROLLBACK;
}, d => q{
\set lock random(1, 20)
SELECT leaselock.try_lock('load ' || :lock, 'w' || :client_id, '1 s');
\set pause random(0, 10)
\sleep :pause ms
SELECT leaselock.release_lock('load ' || :lock, 'w' || :client_id);
});
my (@cursor, @read);
my $polls = 0;
while (1)
{
	my $running = $writers->{run}->pumpable;
	# small pages, so that pages end in the middle of transactions
	my @page = read_on(\@cursor, $node, 7);

	push @read, @page;
	$polls++;
	last if !$running && !@page;
	$writers->{run}->pump_nb if $running;
}
ok($writers->{run}->finish, 'load: all writers finish') or diag($writers->{err});
my @all = split /\n/, sql('SELECT xid, id FROM leaselock.events ORDER BY xid, id');
my %times;
$times{"$_->[0]|$_->[1]"}++ foreach @read;
cmp_ok($polls, '>', 10, 'load: events are read while writers run');
cmp_ok(scalar(@all), '>', 500, 'load: there are many events');
is_deeply([ map { "$_->[0]|$_->[1]" } @read ], \@all, 'load: every event is read once and in order');
is(scalar(grep { $_ > 1 } values %times), 0, 'load: no event is read twice');
cmp_ok(sql(q{SELECT count(*) FROM (SELECT DISTINCT xid, pg_xact_commit_timestamp(xid::xid) AS done FROM leaselock.events) a
	WHERE EXISTS (SELECT FROM (SELECT DISTINCT xid, pg_xact_commit_timestamp(xid::xid) AS done FROM leaselock.events) b
		WHERE b.xid > a.xid AND b.done < a.done)}), '>', 10, 'load: commits overtook each other');
is(sql(q{SELECT count(*) FROM leaselock.events WHERE kind = 'granted'}) -
	sql(q{SELECT count(*) FROM leaselock.events WHERE kind IN ('released', 'expired')}) -
	sql(q{SELECT count(*) FROM leaselock.lease_status WHERE NOT lapsed}) -
	sql(q{SELECT count(*) FROM leaselock.lease_status WHERE lapsed}), 0,
	'load: every grant has ended or is still held');

# ---------------------------------------------------------------------
# A crash, and asynchronous releases
# ---------------------------------------------------------------------

foreach my $round (1 .. 4)
{
	my $ticket = sql(qq{SELECT ticket FROM leaselock.lease_acquire('crash $round', 'c')});

	sql("SELECT state FROM leaselock.lease_release('$ticket')");
	sql(q{CHECKPOINT}) if $round == 2;
	$node->stop('immediate');
	$node->start;
	my $state = sql("SELECT state FROM leaselock.lease_get('$ticket')");
	is(told(grep { $_->[3] eq "crash $round" } read_on(\@cursor)),
		"granted:crash $round" . ($state eq 'released' ? " released:crash $round" : ''),
		"crash $round: the events match the state of the lease, $state");
}

# a commit that waits for an absent standby is not asynchronous
my $standby_names = sub {
	my ($names) = @_;
	$node->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW synchronous_standby_names', $names) or die;
	sql('SET synchronous_commit = local; CHECKPOINT');
	return;
};
my ($first, $second) = map { sql("SELECT ticket FROM leaselock.lease_acquire('async $_', 'a')") } 1, 2;
my $releaser = session($node, "LOAD 'leaselock'", "SELECT leaselock.try_lock('async 3', 'a', '1 h')");
# pruning a page during a read would be a write of the same transaction
sql('VACUUM');
$standby_names->('absent');
is(outcome($releaser, "SELECT state FROM leaselock.lease_release('$first')"), 'released',
	'asynchronous: a release does not wait for the standby');
is(outcome($releaser, "SELECT leaselock.release_lock('async 3', 'a')"), 't',
	'asynchronous: the release of a named hold does not wait either');
outcome($releaser, 'SET leaselock.async_release = off');
begin($releaser, "SELECT state FROM leaselock.lease_release('$second')");
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'}),
	'asynchronous: with async_release = off a release waits');
$standby_names->('');
is(awaited($releaser), 'released', 'asynchronous: the waiting release then finishes');
is(told(grep { $_->[2] eq 'released' } read_on(\@cursor)), 'released:async 1 released:async 3 released:async 2',
	'asynchronous: every release is recorded as an event');
$releaser->quit;

# ---------------------------------------------------------------------
# A standby, and prepared transactions
# ---------------------------------------------------------------------

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
my @there = @cursor;
my $early = session($node, 'BEGIN', "SELECT leaselock.lease_acquire('early', 'e')");
sql("SELECT leaselock.lease_acquire('late', 'l')");
$node->wait_for_catchup($standby);
is(told(read_on(\@there, $standby)), '', 'standby: events after an open transaction are held back');
outcome($early, 'COMMIT');
sql("BEGIN; SELECT leaselock.fence_bump(); PREPARE TRANSACTION 'bump'");
sql("SELECT leaselock.lease_acquire('behind', 'b')");
$node->wait_for_catchup($standby);
is(told(read_on(\@there, $standby)), 'granted:early granted:late', 'standby: they appear once it has ended');
is(told(read_on(\@cursor)), 'granted:early granted:late', 'primary: they appear as on the standby');
is(told(read_on(\@cursor)), '', 'primary: a prepared transaction holds back events after it');
$standby->restart;
is(told(read_on(\@there, $standby)), '', 'standby: a prepared transaction still holds them back after a restart');
sql("COMMIT PREPARED 'bump'");
$node->wait_for_catchup($standby);
is(told(read_on(\@there, $standby)), 'bumped: granted:behind', 'standby: they appear once it is committed');
is(sql('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) > 0 FROM leaselock.lease_events(); COMMIT', $standby),
	't', 'standby: events can be read in REPEATABLE READ');
promote_standby($standby);
sql("SELECT leaselock.lease_acquire('promoted', 'p')", $standby);
is(told(read_on(\@there, $standby)), 'granted:promoted', 'standby: the reader continues after promotion');
$early->quit;
$standby->stop;

# ---------------------------------------------------------------------
# Dumps, copies, publications
# ---------------------------------------------------------------------

my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $dump ], 'pg_dump succeeds');
unlike(slurp_file($dump), qr/leaselock\.events/, 'a dump contains no events');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ], 'the dump can be restored');
is($node->safe_psql('restored', 'SELECT count(*) FROM leaselock.events'), '0', 'the restored database starts without events');
sql('CREATE PUBLICATION all_tables FOR ALL TABLES');
is(node_outcome($node, q{BEGIN; DELETE FROM leaselock.events; ROLLBACK}), '', 'with a publication of all tables, rows can be removed');
sql('DROP PUBLICATION all_tables');

# ---------------------------------------------------------------------
# Retention
# ---------------------------------------------------------------------

# each round starts hours after the last one, beyond every retention time
sql(q{ALTER DATABASE postgres SET leaselock.event_retention = '1h';
	TRUNCATE leaselock.events});
my $hours = 0;
my $play = sub {
	my ($events) = @_;

	$hours += 3;
	sql(qq{ALTER DATABASE postgres SET leaselock.clock_offset = '${hours}h';
		ALTER DATABASE postgres SET leaselock.events = '$events'});
	# several short-lived sessions
	foreach (1 .. 4)
	{
		my $client = start_pgbench($node, '-c 2 -t 250', play => q{
			SELECT count(leaselock.lease_acquire('round ' || random(), 'r'));
			SELECT leaselock.lease_release_all('r');});
		$client->{run}->finish or die $client->{err};
	}
	return sql('SELECT count(*) FROM leaselock.events');
};
# a session must know the library's settings before it uses it
sql(q{ALTER DATABASE postgres SET session_preload_libraries = 'leaselock'});
my @counts = map { $play->('grants') } 1 .. 5;
cmp_ok($counts[0], '>=', 4000, 'retention: the first round leaves its events');
foreach my $round (2 .. 4)
{
	cmp_ok($counts[$round], '<', 2 * 4000, 'retention: at most twice as many events as retained, round ' . ($round + 1));
}
@counts = map { $play->('off') } 1 .. 3;
cmp_ok($counts[2], '<', 400, 'retention: with events off, old events are removed as well')
  or diag("@counts");
cmp_ok(sql(q{SELECT leaselock.lease_prune('0 s', 100000)}), '>=', $counts[2], 'retention: lease_prune removes the remaining events');
is(sql('SELECT count(*) FROM leaselock.events'), '0', 'retention: no event is left');

is_deeply([ unsound($node) ], [], 'the tables and their indexes are sound');
is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');
$node->stop;

done_testing();
