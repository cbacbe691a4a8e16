# contrib/sql_exporter.yml: the metrics that prometheus-sql-exporter makes of
# it
#
# Native only: the exporter is not in the trees of the other majors.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(dirname);
use FindBin;
use HTTP::Tiny;
use IPC::Run;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($program) = grep { -x } map { "$_/prometheus-sql-exporter" } split(/:/, $ENV{PATH}), '/usr/bin';
plan skip_all => 'prometheus-sql-exporter IS NOT INSTALLED: its configuration is not tested'
  if !$program;

my $config = dirname(__FILE__) . '/../../contrib/sql_exporter.yml';
my $node = new_node('exporter');
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE leaselock_exporter LOGIN IN ROLE pg_monitor;
CREATE ROLE team;
SELECT leaselock.lease_scope_create('team', 'team');
});

# ---------------------------------------------------------------------
# Reading metrics
# ---------------------------------------------------------------------

my $exporter;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $log = "$PostgreSQL::Test::Utils::log_path/056_exporter.log";
END { $exporter->kill_kill if $exporter; }

sub start_exporter
{
	my ($file) = @_;
	local %ENV = (
		%ENV,
		PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'leaselock_exporter');

	$exporter = IPC::Run::start([ $program, '-config.file', $file, '-web.listen-address', "127.0.0.1:$port" ],
		'>>', $log, '2>&1');
	return;
}

# metrics(): the metrics of leaselock, { "NAME scope COLUMN" => value }
sub metrics
{
	my $answer = HTTP::Tiny->new(timeout => 10)->get("http://127.0.0.1:$port/metrics");
	my %metrics;

	return {} if !$answer->{success};
	foreach my $line (grep { /^sql_(?:leaselock|exporter_last)/ } split /\n/, $answer->{content})
	{
		my ($name, $labels, $value) = $line =~ /^(\w+)\{(.*)\} (\S+)$/ or die $line;
		my %label = $labels =~ /(\w+)="([^"]*)"/g;
		$metrics{ join ' ', $name, grep { defined } @label{qw(query scope col)} } = $value;
	}
	return \%metrics;
}

# metrics_with(CONDITION): the first metrics for which the condition holds
sub metrics_with
{
	my ($condition) = @_;

	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $metrics = metrics();
		return $metrics if $condition->($metrics);
		usleep(100_000);
	}
	die 'no such metrics: ' . explain(metrics());
}

my %well = map { ("sql_exporter_last_scrape_failed $_" => 0) }
  qw(leaselock_locks leaselock_oldest_wait_seconds);

# both queries have run since the start
sub complete { return exists $_[0]{'sql_exporter_last_scrape_failed leaselock_oldest_wait_seconds'} }

# ---------------------------------------------------------------------
# The file as shipped
# ---------------------------------------------------------------------

# public: two locks held by tickets, one of them with two waiters, and one
# named hold.  team: one lapsed lock, one held.  Scope "past": only a released
# lock.
$node->safe_psql('postgres', q{
SELECT leaselock.lease_acquire('a', 'one', '300 s');
SELECT leaselock.lease_acquire('b', 'one', '300 s');
SELECT leaselock.lease_acquire('b', 'two', wait => '300 s');
SELECT leaselock.lease_acquire('b', 'three', wait => '300 s');
SELECT leaselock.try_lock('c', 'one', '1 day');
SELECT leaselock.lease_release(t.ticket) FROM leaselock.lease_acquire('d', 'one', scope => 'past') t;
SELECT leaselock.try_lock('e', 'one', '1 day', 'team');
});
$node->safe_psql('postgres', q{
LOAD 'leaselock';
SET leaselock.clock_offset = '-10 min';
SELECT leaselock.lease_acquire('f', 'one', '10 s', scope => 'team');
});
start_exporter($config);
my $metrics = metrics_with(\&complete);
my $oldest = delete $metrics->{'sql_leaselock_oldest_wait_seconds public seconds'};
is_deeply($metrics, {
		%well,
		'sql_leaselock_locks public held' => 3,
		'sql_leaselock_locks public lapsed' => 0,
		'sql_leaselock_locks public waiting' => 2,
		'sql_leaselock_locks team held' => 1,
		'sql_leaselock_locks team lapsed' => 1,
		'sql_leaselock_locks team waiting' => 0 },
	'the metrics match the state of each scope')
  or diag explain $metrics;
my $longest = $node->safe_psql('postgres', q{SELECT extract(epoch FROM now() - min(requested_at))
	FROM leaselock.lease_tickets WHERE state = 'waiting'});
ok($oldest > 0 && $oldest <= $longest, "the oldest wait is plausible: $oldest of now $longest seconds");
is($node->safe_psql('postgres', q{SELECT usename FROM pg_stat_activity WHERE application_name = 'leaselock exporter'}),
	'leaselock_exporter', 'its session has the expected role and application name');
$exporter->kill_kill;

# ---------------------------------------------------------------------
# Ended locks leave the metrics.  The same file, with a shorter interval
# ---------------------------------------------------------------------

my $often = PostgreSQL::Test::Utils::tempdir() . '/sql_exporter.yml';
my $text = slurp_file($config);
is($text =~ s/^  interval: 15s$/  interval: 1s/m, 1, 'the configured interval is 15 seconds');
append_to_file($often, $text);
$port = PostgreSQL::Test::Cluster::get_free_port();
start_exporter($often);
is(metrics_with(\&complete)->{'sql_leaselock_locks public held'}, 3, 'the metrics are the same with the shorter interval');
$node->safe_psql('postgres', q{
DO $$ BEGIN PERFORM leaselock.lease_break(name, fence, scope) FROM leaselock.lease_status WHERE scope = 'public' AND name <> 'b'; END $$;
SELECT leaselock.lease_release_all('two');
SELECT leaselock.lease_release_all('three');
});
$metrics = metrics_with(
	sub {
		my ($now) = @_;
		return ($now->{'sql_leaselock_locks public held'} // 0) == 1
		  && ($now->{'sql_leaselock_oldest_wait_seconds public seconds'} // 1) == 0;
	});
is($metrics->{'sql_leaselock_locks public waiting'}, 0, 'no waiter is left');
$node->safe_psql('postgres', q{
DO $$ BEGIN PERFORM leaselock.lease_break(name, fence, scope) FROM leaselock.lease_status; END $$;
SELECT leaselock.lease_release_all('one')});
is_deeply(metrics_with(sub { complete($_[0]) && !grep { /^sql_leaselock/ } keys %{ $_[0] } }), \%well,
	'ended locks leave no metrics, and no query has failed');
$exporter->kill_kill;
undef $exporter;

is_deeply([ logged_errors($node, 0) ], [], "no error in the server log");
$node->stop;

done_testing();
