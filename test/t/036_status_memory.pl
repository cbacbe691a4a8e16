# The views read one ticket after the other: their memory does not grow with
# the number of ended tickets, nor with the number of idle locks.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no /proc to read the memory of a process from'
  unless -e '/proc/self/status';

# shared memory that a process has read counts as its own, so there is little
# of it; and the waiter, which nobody polls, outlasts the test
my $node = new_node('status_memory', q{
shared_buffers = 1MB
leaselock.waiter_timeout = '1 h'
session_preload_libraries = 'leaselock'
});
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
SELECT FROM leaselock.lease_acquire('job', 'ended') a, leaselock.lease_release(a.ticket);
SELECT FROM leaselock.lease_acquire('job', 'holder', '300 s');
SELECT FROM leaselock.lease_acquire('job', 'waiter', '300 s', '300 s');
SELECT leaselock.try_lock('idle', 'x', '1 h'), leaselock.release_lock('idle', 'x');
});

# the maximum that the memory of a session has reached, in kB
sub most_memory
{
	my ($session) = @_;
	my $pid = outcome($session, 'SELECT pg_backend_pid()');
	my ($size) = slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m;

	return $size;
}

my @views = ('lease_status', 'lease_tickets');
my %answer;
my %memory;
foreach my $rows (0, 100_000)
{
	$node->safe_psql('postgres', qq{
INSERT INTO leaselock.tickets SELECT (jsonb_populate_record(t, jsonb_build_object('ticket', u, 'request_id', u))).*
	FROM leaselock.tickets t, (SELECT gen_random_uuid() AS u FROM generate_series(1, $rows)) g
	WHERE t.owner = 'ended';
INSERT INTO leaselock.locks SELECT (jsonb_populate_record(l, jsonb_build_object('name', 'idle ' || i))).*
	FROM leaselock.locks l, generate_series(1, $rows) i WHERE l.name = 'idle';
});
	foreach my $view (@views)
	{
		my $session = session($node);

		$answer{$view}{$rows} = outcome($session, qq{
			SELECT count(*), string_agg(format('%s %s', name, owner), ', ' ORDER BY name, owner) FROM leaselock.$view});
		$memory{$view}{$rows} = most_memory($session);
		$session->quit;
	}
}

foreach my $view (@views)
{
	my ($few, $many) = @{$memory{$view}}{ 0, 100_000 };

	like($answer{$view}{0}, qr/^[12]\|job holder/, "$view: the answer");
	is($answer{$view}{100_000}, $answer{$view}{0}, "$view: the same among many rows");
	note("$view: $few kB, then $many kB");
	cmp_ok($many - $few, '<', 8192, "$view: the memory hardly grows");
}

is_deeply([ logged_errors($node) ], [], 'no error in the server log');
$node->stop;

done_testing();
