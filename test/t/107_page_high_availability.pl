# doc/high-availability.md: its blocks, on a primary and a standby.  The failover
# itself is made by hand, after the last of them; 043_auto_failover.pl has one by a
# failover manager.
#
# Native only: what the page shows is the same on each major

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IO::Socket::UNIX;
use IPC::Run;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $text = slurp_file("$FindBin::RealBin/../../doc/high-availability.md");

my $primary = new_node('primary', 'bgwriter_lru_maxpages = 0', allows_streaming => 1);
$primary->safe_psql('postgres', $_) foreach 'CREATE EXTENSION leaselock', 'CREATE DATABASE jobs';
$primary->safe_psql('jobs', 'CREATE EXTENSION leaselock');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

# The page's two hosts; the primary is the second
my $hosts = sprintf 'host=%s,%s port=%s,%s', map { ($standby->$_, $primary->$_) } 'host', 'port';

my $page;
$page = PageTest->new('doc/high-availability.md',
	node => $primary,
	session => {
		hosts => sub {
			my ($page, $command) = @_;

			$command =~ s/host=db1,db2/$hosts/ or die 'no hosts';
			$page->{shell}{run} = $page->start_shell($command);
			return;
		},
		standby => sub {
			my ($page, $query) = @_;
			my $out = '';

			IPC::Run::run([ 'psql', '-X', '-q', '-P', 'footer=off', '-d', $standby->connstr('jobs') ],
				'<', \$query, '>', \$out, '2>&1');
			return $out;
		} });

# a lease that a hook asks for, in the database of the page
sub jobs
{
	my ($node, $sql) = @_;
	return $node->safe_psql('jobs', $sql);
}

my $wait = q{SELECT state, position FROM leaselock.lease_acquire('reports', 'polls', wait => '300 s',
	request_id => '33333333-3333-4333-8333-333333333333')};
my %ticket;

# ---------------------------------------------------------------------
# The blocks
# ---------------------------------------------------------------------

# a host that accepts connections and says nothing, and then those that answer
my $mute = PostgreSQL::Test::Utils::tempdir_short();
my $port = $primary->port;
my $socket = IO::Socket::UNIX->new(Local => "$mute/.s.PGSQL.$port", Listen => 5) or die "no socket: $!";
my $patient;

$page->before(run => sub {
	$patient = $page->start_shell(sprintf q{
		unset PGCONNECT_TIMEOUT
		date +%%s.%%N >asked; leaselock status -d 'host=%s,%s,%s port=%s,%s,%s dbname=jobs' >status; rc=$?; date +%%s.%%N >answered; exit $rc},
		$mute, $primary->host, $standby->host, $port, $primary->port, $standby->port);
	$page->write_command('job', 'echo "$LEASELOCK_FENCE" >job.begun; until [ -e job.end ]; do sleep 0.05; done; echo >job.ended');
});
$page->after(run => sub {
	ok(wait_until(sub { -s $page->dir . '/job.begun' }), 'the job runs, although the first host is a standby');
	is(jobs($primary, q{SELECT remaining_ms > 40000 FROM leaselock.lease_peek('nightly') WHERE NOT lapsed}), 't', 'under the lease that was asked for');
});
$page->after('waiter-timeout' => sub {
	$primary->wait_for_catchup($standby);
	foreach my $node ($primary, $standby)
	{
		is(jobs($node, q{LOAD 'leaselock'; SHOW leaselock.waiter_timeout}), '1min', 'the setting is there: ' . $node->name);
	}
	$primary->safe_psql('postgres', q{LOAD 'leaselock'; ALTER SYSTEM SET leaselock.waiter_timeout = '50s'});
	$primary->wait_for_catchup($standby);
	unlike(slurp_file($standby->data_dir . '/postgresql.auto.conf'), qr/leaselock/, 'ALTER SYSTEM is for one server');
	$primary->safe_psql('postgres', q{ALTER SYSTEM RESET ALL});
});
$page->before(look => sub {
	$ticket{held} = jobs($primary, q{SELECT ticket FROM leaselock.lease_acquire('reports', 'host-1', '300 s')});
	$primary->wait_for_catchup($standby);
});
$page->after(refused => sub {
	is(node_outcome($standby, q{SELECT FROM leaselock.lease_get('00000000-0000-4000-8000-000000000000')}, 'jobs'), '25006', 'any other call, too');
	fail_over();
});

# ---------------------------------------------------------------------
# What the page says of a failover
# ---------------------------------------------------------------------

sub fail_over
{
	is(jobs($primary, $wait), 'waiting|1', 'a waiter that polls');
	# one that waits inside the server
	$ticket{served} = jobs($primary, q{SELECT ticket FROM leaselock.lease_acquire('reports', 'served', wait => '300 s')});
	my $session = IPC::Run::start([ 'psql', '-XAtq', '-d', $primary->connstr('jobs'), '-c', "CALL leaselock.lease_wait('$ticket{served}')" ],
		'<', '/dev/null', '>', '/dev/null', '2>', '/dev/null');
	ok($primary->poll_query_until('jobs', qq{
			SELECT waiter_pid IS NOT NULL FROM leaselock.tickets WHERE ticket = '$ticket{served}'}),
		'and one that waits inside the server');
	my $acquires = $page->start_shell("leaselock -d '$hosts dbname=jobs target_session_attrs=read-write connect_timeout=3' "
		  . 'acquire reports --owner program --wait-seconds 200 >acquired');
	my $place = q{SELECT ticket FROM leaselock.lease_tickets WHERE owner = 'program' AND state = 'waiting'};
	ok(wait_until(sub { jobs($primary, $place) ne '' }), 'and the program');
	my $its_ticket = jobs($primary, $place);
	my $held = jobs($primary, "SELECT state, fence FROM leaselock.lease_get('$ticket{held}')");
	$primary->wait_for_catchup($standby);
	my %lost = lose_grants();

	$primary->stop('immediate');
	$session->finish;
	promote_standby($standby);
	is(jobs($standby, "SELECT state, fence FROM leaselock.lease_renew('$ticket{held}')"), $held, 'a holder renews the same ticket, with the same fence');
	is(jobs($standby, $wait), 'waiting|1', 'a waiter that polls keeps its place');
	is(jobs($standby, "SELECT state FROM leaselock.lease_get('$ticket{served}')"), 'timed_out', 'one that waited inside the server does not');
	cmp_ok(jobs($standby, q{SELECT fence FROM leaselock.lease_acquire('new', 'host-1')}), '>', (split /\|/, $held)[1], 'a new fence is greater');

	# what is renewed now is renewed on the new primary
	my $renewed = q{SELECT expires_at FROM leaselock.lease_peek('nightly')};
	my $expiry = jobs($standby, $renewed);
	my $shell = delete $page->{shell}{run};
	kill 'CONT', $shell->{pid};
	ok(wait_until(sub { jobs($standby, $renewed) gt $expiry }), 'the program renews its lease on the new primary');
	append_to_file($page->dir . '/job.end', '');
	is($page->shell_status($shell), 0, 'and its command ends well');
	ok(-e $page->dir . '/job.ended', 'by itself');
	is(jobs($standby, $place), $its_ticket, 'the program that waits has its place');
	is(jobs($standby, qq{SELECT leaselock.lease_release_all('polls'); SELECT state FROM leaselock.lease_release('$ticket{held}')}), "1\nreleased", 'the lock is given up by the others');
	is($page->shell_status($acquires), 0, 'then the program that waits gets it');
	like(slurp_file($page->dir . '/acquired'), qr/\Q$its_ticket\E/, 'with the same ticket');

	is($page->shell_status($patient), 0, 'without connect_timeout, too, the program passes over a host that does not answer');
	my ($asked, $answered) = map { slurp_file($page->dir . "/$_") } 'asked', 'answered';
	cmp_ok($answered - $asked, '>=', 10, 'after ten seconds');

	grants_are_lost(%lost);
	old_primary_returns();
	crash_without_failover();
	return;
}

# ---------------------------------------------------------------------
# Asynchronous replication: the standby does not receive the last grants
# ---------------------------------------------------------------------

sub lose_grants
{
	$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->reload;
	$standby->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_wal_receiver') or die 'the WAL receiver does not stop';
	return map { $_ => [ split /\|/, jobs($primary, "SELECT ticket, fence FROM leaselock.lease_acquire('$_', 'lost', '300 s')") ] }
	  'lost', 'a minute', 'ten minutes';
}

sub grants_are_lost
{
	my (%lost) = @_;
	my ($ticket, $fence) = @{ $lost{lost} };

	is(jobs($standby, "SELECT state FROM leaselock.lease_get('$ticket')"), 'gone', 'lost: the ticket is gone');
	is(node_outcome($standby, "SELECT leaselock.fence_assert('lost', $fence)", 'jobs'), 'LS001', 'lost: its fence is stale');
	is(jobs($standby, q{SELECT state FROM leaselock.lease_acquire('lost', 'next')}), 'held', 'lost: somebody else gets the lock');
	is(node_outcome($standby, "SELECT leaselock.fence_assert('lost', $fence)", 'jobs'), 'LS001', 'lost: its fence is still stale');
	my $behind = q{LOAD 'leaselock'; SET leaselock.clock_offset = '%s'; SELECT leaselock.try_lock('%s', 'next', '1 min')};
	cmp_ok(jobs($standby, sprintf $behind, '-63 s', 'a minute'), '>', $lost{'a minute'}[1], 'lost: the next fence is greater if the clock is a minute behind');
	cmp_ok(jobs($standby, sprintf $behind, '-10 min', 'ten minutes'), '<', $lost{'ten minutes'}[1], 'lost: it is not if the clock is minutes behind');
	return;
}

sub old_primary_returns
{
	$primary->start;
	my $fence = jobs($primary, q{SELECT fence FROM leaselock.lease_acquire('new', 'host-9')});
	like($fence, qr/^\d+$/, 'the old primary grants a lock that the new one has granted');
	is(jobs($primary, "SELECT leaselock.fence_check('new', $fence)"), 't', 'its fence passes there');
	is(node_outcome($standby, "SELECT leaselock.fence_assert('new', $fence)", 'jobs'), 'LS001', 'and not on the new primary');
	cmp_ok($fence, '<', jobs($standby, q{SELECT fence FROM leaselock.lease_peek('new')}), 'it is below that of the new primary');
	$primary->stop;
	return;
}

# ---------------------------------------------------------------------
# A crash of a server with synchronous_commit = off
# ---------------------------------------------------------------------

sub crash_without_failover
{
	my $off = 'SET synchronous_commit = off; ';
	# what the promotion has begun would write to the disk
	jobs($standby, 'CHECKPOINT');
	my $walwriter = jobs($standby, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
	my $held = jobs($standby, $off . q{SELECT ticket FROM leaselock.lease_acquire('crash', 'a', '60 s')});

	kill 'STOP', $walwriter or die "could not stop the WAL writer: $!";
	is(jobs($standby, $off . "SELECT remaining_ms > 60000 FROM leaselock.lease_renew('$held', '300 s')"), 't', 'crash: a renewal');
	my $waits = jobs($standby, $off . q{SELECT ticket FROM leaselock.lease_acquire('crash', 'b', wait => '300 s')});
	is(jobs($standby, "SELECT state FROM leaselock.lease_tickets WHERE ticket = '$waits'"), 'waiting', 'crash: a place in the queue');
	$standby->stop('immediate');
	$standby->start;
	is(jobs($standby, "SELECT state, remaining_ms <= 60000 FROM leaselock.lease_get('$held')"), 'held|t', 'crash: the grant is there, the renewal is lost');
	is(jobs($standby, "SELECT state FROM leaselock.lease_get('$waits')"), 'gone', 'crash: the place is lost');
	return;
}

$page->run;

# ---------------------------------------------------------------------
# Numbers
# ---------------------------------------------------------------------

my $rows = 0;
while ($text =~ /^\| (\d+) s \| (\d+) s \| (\d+) s \|$/mg)
{
	$rows++;
	is($2, int(1.5 * ($1 + 5) + 0.5), "a failover of $1 s: the lease follows from the rule");
	cmp_ok($3, '>=', $2 + 15, 'the good choice leaves room');
}
is($rows, 3, 'all rows were read');

my ($tuned) = slurp_file("$FindBin::RealBin/043_auto_failover.pl") =~ /^my %tuned = \((.*?)\);/ms;
my %tested = $tuned =~ /(\w+) => (\d+)/g;
my %advised = $text =~ /^ALTER SYSTEM SET pgautofailover\.(\w+) = (\d+);/mg;
is_deeply(\%advised, \%tested, 'the failover is tested with the settings of the page');
ok(-e "$FindBin::RealBin/../../$_", "$_ is there") foreach $text =~ m{`(test/t/\w+\.pl)`}g;

is_deeply([ internal_errors($standby) ], [], 'no internal error on the standby');
$standby->stop;

done_testing();
