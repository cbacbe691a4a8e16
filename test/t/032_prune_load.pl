# lease_prune runs all the time, while clients acquire, renew, wait, fence and
# release under clocks that make everything old at once: no error in the
# server's log, no fence goes back, no update is lost, and an open prune keeps
# a bounded number of locks.
#
# Native only: it loads the machine, which three majors would share.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('prune_load');
$node->init;
$node->append_conf('postgresql.conf', q{
log_statement = none
fsync = off
session_preload_libraries = 'leaselock'
leaselock.ticket_retention = 0
leaselock.lock_timeout = '30s'
});
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
-- the greatest fence that wrote to each lock, and how often
CREATE TABLE work (lock text PRIMARY KEY, fence bigint NOT NULL, writes int NOT NULL);
INSERT INTO work SELECT 'load ' || n, 0, 0 FROM generate_series(1, 20) n;
CREATE TRIGGER t BEFORE UPDATE ON work FOR EACH ROW EXECUTE FUNCTION leaselock.fence_monotonic('fence');
});

# Acquire by ticket, renew, write under the fence, release; each step is a
# transaction.  A named hold of a hundred microseconds lapses at once, and may
# be pruned at any moment.
my $tickets = q{
\set n random(1, 20)
SELECT coalesce(ticket::text, '00000000-0000-0000-0000-000000000000') AS ticket, coalesce(fence, 0) AS fence FROM leaselock.lease_acquire('load :n', 'client :client_id', wait => '10 s') \gset
SELECT state, coalesce(fence, 0) AS fence FROM leaselock.lease_renew(':ticket') \gset
BEGIN;
UPDATE work SET fence = :fence, writes = writes + 1 WHERE lock = 'load :n' AND leaselock.fence_check('load :n', :fence);
COMMIT;
SELECT leaselock.lease_release(':ticket');
};
my $holds = q{
\set n random(1, 20)
SELECT coalesce(leaselock.try_lock('load :n', 'hold :client_id', '100 microseconds'), 0) AS fence \gset
SELECT leaselock.renew_lock('load :n', 'hold :client_id', '1 ms');
SELECT leaselock.release_lock('load :n', 'hold :client_id');
};
my $waits = q{
\set n random(1, 20)
CALL leaselock.lease_acquire_wait('load :n', 'waiter :client_id', '5 s', '5 s');
SELECT leaselock.lease_release_all('waiter :client_id');
};
my $prune = q{
SELECT leaselock.lease_prune('0 s');
};

my $dir = PostgreSQL::Test::Utils::tempdir();
my %file = (tickets => $tickets, holds => $holds, waits => $waits, prune => $prune);
foreach my $name (keys %file)
{
	append_to_file("$dir/$name.sql", $file{$name});
}
my ($out, $err) = ('', '');
my $ok = IPC::Run::run(
	[ 'pgbench', '-h', $node->host, '-p', $node->port, '-n', '-c', '6', '-j', '2', '-T', '15',
		'-f', "$dir/tickets.sql\@5", '-f', "$dir/holds.sql\@3", '-f', "$dir/waits.sql\@2", '-f', "$dir/prune.sql\@5", 'postgres' ],
	'>', \$out, '2>', \$err);
ok($ok, 'the load runs') or diag($err);
like($out, qr/number of failed transactions: 0 /, 'no transaction failed');
$err =~ s/^pgbench[^\n]*starting vacuum[^\n]*\n|^vacuum[^\n]*\n//mg;
unlike($err, qr/error|abort/i, 'no client saw an error') or diag($err);
my $log = slurp_file($node->logfile);
my @errors = grep { /ERROR|PANIC|FATAL|WARNING/ } split /\n/, $log;
is(scalar(@errors), 0, 'no error in the log') or diag(join("\n", @errors[ 0 .. ($#errors < 10 ? $#errors : 10) ]));
cmp_ok($node->safe_psql('postgres', 'SELECT sum(writes) FROM work'), '>', 50, 'work was done');

# no fence goes back: the next grant of every lock is above everything written
is($node->safe_psql('postgres', q{
		SELECT count(*) FROM work, leaselock.try_lock(lock, 'after', '1 h') f WHERE f > fence}),
	'20', 'the next fence of every lock is greater');
$node->safe_psql('postgres', q{SELECT leaselock.release_lock(lock, 'after') FROM work});
is($node->safe_psql('postgres', q{SELECT count(*) FROM leaselock.lease_tickets}), '0', 'nothing is left behind');

# an open prune of many rows keeps a bounded number of locks
$node->safe_psql('postgres', q{SELECT count(leaselock.try_lock('many ' || n, 'w', '1 microsecond')) FROM generate_series(1, 6000) n});
$node->safe_psql('postgres', q{SELECT count(*) FROM generate_series(1, 500) n, leaselock.lease_acquire('tickets ' || n, 'w', '5 s') a});
my $locks = $node->safe_psql('postgres', q{
	SET leaselock.clock_offset = '1h';
	BEGIN;
	SELECT leaselock.lease_prune('0 s', 1000000) > 0;
	SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
	COMMIT}) =~ s/^t\n//r;
cmp_ok($locks, '<=', 1100, "an open prune has $locks locks");
my $calls = 0;
while ($node->safe_psql('postgres', q{SET leaselock.clock_offset = '1h'; SELECT leaselock.lease_prune('0 s', 1000000)}) > 0)
{
	last if ++$calls > 50;
}
is($node->safe_psql('postgres', q{SELECT (SELECT count(*) FROM leaselock.locks), (SELECT count(*) FROM leaselock.tickets)}),
	'0|0', "more calls remove the rest ($calls)");
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no lock is left');

$node->stop;

done_testing();
