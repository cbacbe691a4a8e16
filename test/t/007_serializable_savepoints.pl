# leaselock causes no serialization failure, even when its calls are made in
# savepoints, with eight SERIALIZABLE clients on a few locks.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('savepoints');
$node->init;
$node->append_conf('postgresql.conf', "max_connections = 50\nfsync = off\n");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

# The catalog read takes a snapshot that is old by the time of the calls.
$node->pgbench(
	'-n -c 8 -j 2 -t 300',
	0,
	[qr{processed: 2400/2400}],
	[qr{^$}],
	'eight SERIALIZABLE clients with savepoints',
	{
		'007_savepoints' => q{
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM pg_class;
SAVEPOINT a;
SELECT state FROM leaselock.lease_acquire('shared', 'o');
SELECT leaselock.try_lock('named ' || :client_id % 2, 'o' || :client_id, '1 s');
ROLLBACK TO a;
SELECT state FROM leaselock.lease_acquire('shared', 'o' || :client_id % 2);
SAVEPOINT b;
SELECT leaselock.lease_release_all('o' || :client_id % 2);
RELEASE b;
SELECT leaselock.release_lock('named ' || :client_id % 2, 'o' || :client_id);
COMMIT;
} });
my $log = slurp_file($node->logfile);
unlike($log, qr/could not serialize/, 'no serialization failure');
unlike($log, qr/ERROR/, 'no other error');
$node->stop;
done_testing();
