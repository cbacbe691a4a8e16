# doc/tutorial.md
#
# Native only: what psql and the program print does not depend on the server's major.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();

my $page = PageTest->new('doc/tutorial.md',
	# without the extension, which the page creates
	node => new_node('tutorial'),
	# what is left of a lease, and a column that is empty to its end
	normal => sub { s/^remaining_ms +\| \d+$/remaining_ms | MS/mg });

# later(SECONDS): what the reader waits for on the page: the clock of both sessions,
# and of those that begin from now on, is ahead
my $offset = 0;

sub later
{
	my ($seconds) = @_;

	$offset += $seconds;
	is($page->run_sql($_, "LOAD 'leaselock'; SET leaselock.clock_offset = '$offset s';"), '', "$_: $seconds s later") foreach qw(A B);
	$page->sql("LOAD 'leaselock'; ALTER DATABASE postgres SET leaselock.clock_offset = '$offset s'");
	return;
}

sub holder { return $page->sql("SELECT owner FROM leaselock.lease_peek('$_[0]') WHERE NOT lapsed") }

my %seen;
$page->before(
	# it would return at once otherwise, too, but not from a wait
	give => sub {
		ok($page->node->poll_query_until('postgres', q{
			SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CALL leaselock.lease_wait%' AND wait_event_type IS NOT NULL}),
			'B waits inside the server');
	},
	takeover => sub {
		is(holder('import'), 'worker-b', 'it is held before the five seconds are over');
		later(6);
	},
	successor => sub { later(11) },
	guard => sub { is($page->sql(q{INSERT INTO reply VALUES (0, 'anybody'); DELETE FROM reply WHERE question = 0}), '', 'without a trigger anybody may write') },
	second => sub {
		ok(wait_until(sub { holder('backup') eq 'shell-1' }), 'the first run holds the lock');
	},
	log => sub {
		my $log = $page->dir . '/backup.log';
		ok(wait_until(sub { -s $log }), 'the run notices that its lock was broken');
	});

# the settings as they come, which the page tells
my %settings = (min_lease => "5s", max_lease => "5min", waiter_timeout => "20s", ticket_retention => "1h");

$page->after(
	create => sub {
		is($page->sql("LOAD 'leaselock'; SHOW leaselock.$_"), $settings{$_}, $_) foreach sort keys %settings;
	},
	acquire => sub { $seen{acquire} = $page->sql(q{SELECT fence FROM leaselock.lease_peek('report')}) },
	renew => sub { is($page->sql(q{SELECT remaining_ms > 50000 FROM leaselock.lease_peek('report')}), 't', 'the lease has its full length') },
	hold => sub { cmp_ok($page->sql(q{SELECT fence FROM leaselock.lease_peek('report')}), '>', $seen{acquire}, 'the fence has grown') },
	contended => sub { is($page->sql(q{SELECT count(*) FROM leaselock.lease_tickets WHERE owner = 'worker-b'}), '0', 'nothing was taken') },
	wait => sub { is(holder('report'), 'worker-a', 'B waits while A holds the lock') },
	refused => sub { is($page->sql('SELECT count(*) FROM reply'), '1', 'there is one reply') },
	checked => sub { is($page->sql('SELECT author FROM reply'), 'worker-a, revised', 'the holder may write') },
	'try-b' => sub { is($page->sql(q{SELECT remaining_ms > 11 * 3600000 FROM leaselock.lease_peek('nightly-mail')}), 't', 'held for hours, by A') },
	unlock => sub { is(holder('nightly-mail'), '', 'released') },
	run => sub { is(holder('backup'), '', 'the lock is released when the command has ended') },
	break => sub { is(holder('backup'), '', 'the grant has ended') },
	'release-all' => sub { is($page->sql(q{SELECT count(*) FROM leaselock.lease_tickets WHERE owner = 'worker-a'}), '0', 'no ticket of worker-a is left') },
	drop => sub { is($page->sql(q{SELECT count(*) FROM pg_namespace WHERE nspname = 'leaselock'}), '0', 'everything is gone') });

$page->run;
done_testing();
