-- Places, polls and promotions in transactions, and rolled back to savepoints.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

-- ok: at every isolation level, late in the transaction: places, polls, promotions
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM leaselock.lease_peek('queue.isolation');
SELECT ticket AS h FROM leaselock.lease_acquire('queue.isolation', 'h', '300 s') \gset
SELECT :look, ticket AS a FROM leaselock.lease_acquire('queue.isolation', 'a', '60 s', '300 s', request_id => :id) \gset a_
SELECT :look, ticket = :'a_a' AS same_ticket FROM leaselock.lease_acquire('queue.isolation', 'a', '60 s', '300 s', request_id => :id);
SELECT :look, ticket AS b FROM leaselock.lease_acquire('queue.isolation', 'b', '60 s', '300 s') \gset b_
SELECT :a_position AS a, :b_position AS b;
SELECT :status FROM leaselock.lease_peek('queue.isolation');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT state FROM leaselock.lease_release(:'h');
SELECT :look FROM leaselock.lease_get(:'a_a');
SELECT :look FROM leaselock.lease_get(:'b_b');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.isolation' ORDER BY owner;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT :look FROM leaselock.lease_get(:'b_b');
SELECT state FROM leaselock.lease_release(:'a_a');
SELECT :look FROM leaselock.lease_get(:'b_b');
SELECT state FROM leaselock.lease_release(:'b_b');
COMMIT;
SELECT count(*) FROM leaselock.lease_peek('queue.isolation');
-- ok: a place rolled back with a savepoint and taken anew under the same request id
SELECT state FROM leaselock.lease_acquire('queue.savepoint', 'h', '300 s');
BEGIN;
SAVEPOINT s;
SELECT ticket AS a FROM leaselock.lease_acquire('queue.savepoint', 'a', '60 s', '300 s', request_id => :id) \gset
ROLLBACK TO s;
SELECT :look FROM leaselock.lease_get(:'a');
SELECT :look FROM leaselock.lease_acquire('queue.savepoint', 'b', '60 s', '300 s');
SELECT :look, ticket <> :'a' AS other_ticket FROM leaselock.lease_acquire('queue.savepoint', 'a', '60 s', '300 s', request_id => :id);
COMMIT;
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.savepoint' ORDER BY position NULLS FIRST;
-- ok: a promotion rolled back with a savepoint
BEGIN;
SAVEPOINT s;
SELECT leaselock.lease_release_all('h');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.savepoint' ORDER BY position NULLS FIRST;
ROLLBACK TO s;
COMMIT;
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.savepoint' ORDER BY position NULLS FIRST;
CALL pg_temp.drain('queue.savepoint');
-- fail: read only
BEGIN READ ONLY;
SELECT leaselock.lease_acquire('queue.savepoint', 'a', '60 s', '300 s');
\echo :SQLSTATE
ROLLBACK;
-- fail: prepared after a place was taken, a poll was made, or a wait was cancelled
SELECT ticket AS h FROM leaselock.lease_acquire('queue.prepare', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.prepare', 'a', '60 s', '300 s') \gset
BEGIN;
SELECT state FROM leaselock.lease_acquire('queue.prepare', 'b', '60 s', '300 s');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
BEGIN;
SELECT state FROM leaselock.lease_get(:'a');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
BEGIN;
SELECT state FROM leaselock.lease_release(:'a');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.prepare' ORDER BY owner;
SELECT leaselock.lease_release_all('a'), leaselock.lease_release_all('h');

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
