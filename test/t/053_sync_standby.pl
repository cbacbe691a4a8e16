# Synchronous replication: acknowledged changes survive an immediate stop of
# the primary and promotion of the standby.  The exception is a release that
# need not wait (leaselock.async_release) and was the last call acknowledged to
# its client.  A release that hands over the lock waits like a grant.  The test
# also shows what a caller gives up with synchronous_commit = local or off:
# such a grant may be lost, but its fence is not reused, although the old
# primary continues to grant.

use strict;
use warnings FATAL => 'all';

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my @nodes;

sub started
{
	my ($node) = @_;

	$node->start;
	push @nodes, $node;
	return $node;
}

my $primary = PostgreSQL::Test::Cluster->new('first');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf', qq{
autovacuum = off
max_locks_per_transaction = 1024
leaselock.waiter_timeout = '5 min'
log_statement = none
log_line_prefix = '%m [%p] %e %q%a '
});
started($primary)->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE written (client int, turn int, fence bigint);
});

# A standby that commits wait for
sub synchronous_standby
{
	my ($name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$primary->backup('base');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	started($standby);
	$primary->append_conf('postgresql.conf', "synchronous_standby_names = '$name'");
	$primary->reload;
	$primary->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '$name' AND sync_state = 'sync'")
	  or die 'the standby does not become synchronous';
	return $standby;
}

sub promote
{
	my ($standby) = @_;

	$standby->promote;
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die 'the standby is not promoted';
	return;
}

# ---------------------------------------------------------------------
# Clients are working when the primary stops
# ---------------------------------------------------------------------

my $standby = synchronous_standby('second');
my $files = PostgreSQL::Test::Utils::tempdir;

# psql prints one line for each acknowledged call
my @clients;
foreach my $number (0 .. 3)
{
	my $level = ('on', 'remote_apply')[ $number % 2 ];
	my $async = ('on', 'off')[ $number / 2 ];
	my $me = "owner $number";
	my $in = "LOAD 'leaselock';\nSET synchronous_commit = $level;\nSET leaselock.async_release = $async;\n";
	my %client = map { $_ => "$files/$number.$_" } 'in', 'out', 'err';
	$client{async} = $async;

	foreach my $turn (1 .. 12000)
	{
		my $name = "lock $number $turn";

		$in .= qq{
SELECT 'ticket', ticket, fence FROM leaselock.lease_acquire('$name', '$me', '300 s');
SELECT 'hold', '$name', leaselock.try_lock('$name', '$me', '1 h', 'holds');
SELECT ticket AS mine, fence AS fence, state = 'held' AS held FROM leaselock.lease_acquire('shared', '$me', request_id => gen_random_uuid()) \\gset
\\if :held
\\echo shared||:fence
BEGIN;
INSERT INTO written SELECT $number, $turn, :fence FROM leaselock.fence_assert('shared', :fence);
COMMIT;
\\echo written|$number-$turn|:fence
SELECT 'released', ticket FROM leaselock.lease_release(:'mine');
\\endif
};
	}
	append_to_file($client{in}, $in);
	$client{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $primary->connstr('postgres'), '-f', $client{in} ],
		'>', $client{out}, '2>', $client{err});
	push @clients, \%client;
}

sleep 2;
$primary->stop('immediate');
$_->{run}->finish foreach @clients;
promote($standby);
my $old = $primary;
$primary = $standby;
$primary->safe_psql('postgres', 'CREATE TABLE told (kind text, subject text, fence bigint)');

my (%told, @rows);
foreach my $client (@clients)
{
	like(slurp_file($client->{err}), qr/connection|terminat|shut/, 'a client was at work');
	my @lines = slurp_file($client->{out}) =~ /(.*)\n/g;
	# an asynchronous release is safe once its client has a later answer
	$lines[-1] =~ s/^released/released at last/ if $client->{async} eq 'on';
	foreach my $line (@lines)
	{
		my ($kind, $subject, $fence) = split /\|/, $line, -1;
		$told{$kind}++;
		push @rows, join "\t", $kind, $subject, $fence || '\N';
	}
}
note join ', ', map { "$_: $told{$_}" } sort keys %told;
cmp_ok($told{$_} // 0, '>', 10, "acknowledged: $_") foreach 'ticket', 'hold', 'shared', 'written', 'released';
$primary->safe_psql('postgres', "COPY told FROM STDIN;\n" . join("\n", @rows) . "\n\\.\n");

is($primary->safe_psql('postgres', q{
	SELECT count(*) FROM told t, leaselock.lease_get(subject::uuid) g
		WHERE kind = 'ticket' AND (g.state, g.fence) IS DISTINCT FROM ('held', t.fence)}),
	'0', 'no acknowledged grant of a ticket is missing');
is($primary->safe_psql('postgres', q{
	SELECT count(*) FROM told t LEFT JOIN leaselock.lease_status s ON s.name = t.subject AND s.scope = 'holds'
		WHERE kind = 'hold' AND s.fence IS DISTINCT FROM t.fence}),
	'0', 'no acknowledged grant of a named lock is missing');
is($primary->safe_psql('postgres', q{
	SELECT count(*) FROM told t LEFT JOIN written w ON t.subject = w.client || '-' || w.turn
		WHERE kind = 'written' AND w.fence IS DISTINCT FROM t.fence}),
	'0', 'no acknowledged fenced write is missing');
is($primary->safe_psql('postgres', q{
	SELECT count(*) FROM told t, leaselock.lease_get(subject::uuid) g
		WHERE kind = 'released' AND g.state <> 'released'}),
	'0', 'no acknowledged release is missing');
is($primary->safe_psql('postgres', q{
	SELECT max(t.fence) <= max(l.fence) FROM told t, leaselock.locks l
		WHERE kind = 'shared' AND l.name = 'shared'}),
	't', 'the lock that all clients used has its newest acknowledged fence');
is($primary->safe_psql('postgres', q{
	SELECT count(*) FROM (SELECT fence FROM told WHERE kind = 'shared' GROUP BY 1 HAVING count(*) > 1) x}),
	'0', 'no fence was granted twice');
is($primary->safe_psql('postgres', q{
	SELECT count(*) FROM told t, leaselock.lease_renew(subject::uuid) g
		WHERE kind = 'ticket' AND g.state <> 'held'}),
	'0', 'holders can still renew');

# ---------------------------------------------------------------------
# No standby answers
# ---------------------------------------------------------------------

$standby = synchronous_standby('third');

# Releases, each by its own client.  Each has the name of its lock; the SQL is
# completed with its ticket or owner.  The "alone" releases have no waiter.
# There are several of them, because a release that happens to prune a page
# does wait.
my %release = (
	'ticket' => q{SELECT state FROM leaselock.lease_release('TICKET')},
	'owner' => q{SELECT leaselock.lease_release_all('holder of owner')},
	'named' => q{SELECT leaselock.release_lock('named', 'holder of named')},
	'break' => q{SELECT leaselock.lease_break('break', FENCE)},
	'block' => q{BEGIN; SELECT state FROM leaselock.lease_release('TICKET'); NOTIFY told; COMMIT},
	'pipeline' => undef,
	map { ("alone $_" => q{SELECT state FROM leaselock.lease_release('TICKET')}) } 1 .. 5);
my %behind = map { $_ => 1 } 'ticket', 'owner', 'named', 'break';
my %client;
foreach my $name (sort keys %release)
{
	my ($ticket, $fence) = split /\|/, $primary->safe_psql('postgres', $name eq 'named' ?
		q{SELECT 0, leaselock.try_lock('named', 'holder of named', '1 h')} :
		qq{SELECT ticket, fence FROM leaselock.lease_acquire('$name', 'holder of $name', '300 s')});
	$primary->safe_psql('postgres', qq{
		SELECT FROM leaselock.lease_acquire('$name', 'behind $name', '300 s', '300 s')}) if $behind{$name};
	$client{$name} = { out => '', err => '', ticket => $ticket, fence => $fence };
}
append_to_file("$files/pipeline", qq{
\\startpipeline
SELECT leaselock.lease_release('$client{pipeline}{ticket}');
SELECT 1;
\\endpipeline
});
$standby->stop;

foreach my $name (sort keys %client)
{
	my $client = $client{$name};
	my $connstr = $primary->connstr('postgres') . " application_name='$name'";
	my $sql = ($release{$name} // '') =~ s/TICKET/$client->{ticket}/r =~ s/FENCE/$client->{fence}/r;
	my @command = $name eq 'pipeline' ?
	  ('pgbench', '-n', '-M', 'extended', '-t', '1', '-f', "$files/pipeline", $connstr) :
	  ('psql', '-XAtq', '-d', $connstr, '-c', $sql);

	$client->{run} = IPC::Run::start([ @command ], '<', \undef, '>', \$client->{out}, '2>', \$client->{err});
}
# a commit that waits for the standby is not yet visible
ok($primary->poll_query_until('postgres', q{
		SELECT count(*) > 0 FROM leaselock.tickets t, leaselock.lease_get(t.ticket) g
		WHERE t.name LIKE 'alone %' AND g.state = 'released'}),
	'a release that hands the lock to nobody does not wait for a standby');
foreach my $name (grep { !/alone/ } sort keys %client)
{
	ok($primary->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$name' AND wait_event = 'SyncRep'"),
		($behind{$name} ? 'a hand-over waits' : 'a release beside other statements waits') . " for the standby: $name");
}
is($primary->safe_psql('postgres', q{
		SELECT count(*) FROM leaselock.lease_status WHERE owner LIKE 'behind %'}),
	'0', 'meanwhile the waiters do not hold the locks');
$standby->start;
foreach my $name (sort keys %client)
{
	ok($client{$name}{run}->finish, "the release finishes when the standby is back: $name") or diag($client{$name}{err});
}
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
is($standby->safe_psql('postgres', q{
		SELECT string_agg(owner, ', ' ORDER BY owner) FROM leaselock.lease_status WHERE owner LIKE 'behind %'}),
	'behind break, behind named, behind owner, behind ticket', 'the standby has the hand-overs');

my ($waiting, $kept) = split /\n/, $primary->safe_psql('postgres', q{
	SELECT FROM leaselock.lease_acquire('turn', 'holder', '300 s');
	SELECT ticket FROM leaselock.lease_acquire('turn', 'waiter', wait => '300 s');
	SELECT ticket FROM leaselock.lease_acquire('kept', 'holder', '300 s')}) =~ s/^\n+//r;
$standby->stop;

my %request = map { $_ => $primary->safe_psql('postgres', 'SELECT gen_random_uuid()') } 'on', 'local', 'off';
my ($out, $err) = ('', '');
my $call = "SELECT state FROM leaselock.lease_acquire('on', 'one', '300 s', request_id => '$request{on}')";
my $blocked = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $primary->connstr('postgres'), '-c', $call ], '>', \$out, '2>', \$err);
$primary->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
  or die 'the grant does not wait';
pass('synchronous_commit = on: a grant waits for the standby');
my $begun = time;
is($primary->safe_psql('postgres', q{SELECT state FROM leaselock.lease_acquire('on', 'two')}),
	'contended', 'meanwhile the lock is busy for others');
cmp_ok(time - $begun, '<', 2, 'that answer does not wait');

my %fence;
foreach my $level ('local', 'off')
{
	$fence{$level} = $primary->safe_psql('postgres', qq{
		SET synchronous_commit = $level;
		SELECT fence FROM leaselock.lease_acquire('$level', 'one', '300 s', request_id => '$request{$level}')});
	like($fence{$level}, qr/^\d+$/, "synchronous_commit = $level: a grant does not wait");
}
is($primary->safe_psql('postgres', qq{
		SET synchronous_commit = local;
		SELECT state FROM leaselock.lease_renew('$kept')}),
	'held', 'synchronous_commit = local: a renewal does not wait');

$primary->stop('immediate');
$blocked->finish;
is($out, '', 'the waiting grant was never acknowledged');
$standby->start;
promote($standby);
$old = $primary;
$primary = $standby;

foreach my $level ('local', 'off')
{
	is($primary->safe_psql('postgres', qq{
			SELECT leaselock.fence_check('$level', $fence{$level}, allow_lapsed => true)}),
		'f', "synchronous_commit = $level: the grant is lost");
}
is($primary->safe_psql('postgres', "SELECT state FROM leaselock.lease_get('$kept')"),
	'held', 'the earlier grant is not lost');
is($primary->safe_psql('postgres', "SELECT state, position FROM leaselock.lease_get('$waiting')"),
	'waiting|1', 'a waiter can continue to poll');
is($primary->safe_psql('postgres', q{
		SELECT FROM leaselock.lease_release_all('holder');
		SELECT state FROM leaselock.lease_get('} . $waiting . q{')}) =~ s/^\n+//r,
	'held', 'the waiter gets the lock after a release');

# ---------------------------------------------------------------------
# The old primary comes back and grants, unaware of the promotion
# ---------------------------------------------------------------------

$old->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$old->start;
foreach my $level (sort keys %request)
{
	my ($state, $fence) = split /\|/, $primary->safe_psql('postgres', qq{
		SELECT state, fence FROM leaselock.lease_acquire('$level', 'one', '300 s', request_id => '$request{$level}')});

	is($state, 'held', "a retry on the new primary gets the lock: $level");
	cmp_ok($fence, '>', $fence{$level} // 0, 'the grant has a greater fence');
	foreach my $again (1 .. 5)
	{
		my $theirs = $old->safe_psql('postgres', qq{
			SELECT FROM leaselock.lease_peek('$level') p, leaselock.lease_break('$level', p.fence);
			SELECT leaselock.try_lock('$level', 'other', '1 h')}) =~ s/^\n+//r;

		cmp_ok($theirs, '<', $fence, "a fence of the old primary stays below, $again");
		$fence = $primary->safe_psql('postgres', qq{
			SELECT FROM leaselock.lease_peek('$level') p, leaselock.lease_break('$level', p.fence);
			SELECT leaselock.try_lock('$level', 'one', '1 h')}) =~ s/^\n+//r;
		cmp_ok($fence, '>', $theirs, "the next fence of the new primary is above it, $again");
	}
}

# ---------------------------------------------------------------------

foreach my $node (@nodes)
{
	is_deeply([ grep { / XX\w{3} / || /PANIC:/ } split /\n/, slurp_file($node->logfile) ],
		[], $node->name . ': no internal error in the log');
}
$_->stop foreach $old, $primary;

done_testing();
