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
use IPC::Run;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $text = slurp_file("$FindBin::RealBin/../../doc/high-availability.md");

my $primary = new_node('primary', '', allows_streaming => 1);
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

$page->before(run => sub {
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
	my $held = jobs($primary, "SELECT state, fence FROM leaselock.lease_get('$ticket{held}')");
	$primary->wait_for_catchup($standby);

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
