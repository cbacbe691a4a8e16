-- Waits that their owner cancels.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

SELECT ticket AS h FROM leaselock.lease_acquire('queue.cancel', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.cancel', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.cancel', 'b', '60 s', '300 s') \gset
-- ok: cancelled by its owner; a second time changes nothing
SELECT :look, :has, remaining_ms, next_call_ms FROM leaselock.lease_release(:'a');
SELECT :look FROM leaselock.lease_release(:'a');
SELECT :look, next_call_ms FROM leaselock.lease_get(:'a');
SELECT state FROM leaselock.lease_renew(:'a');
-- ok: the next waiter has moved up, the holder is not affected
SELECT :look FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_get(:'h');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.cancel' ORDER BY owner;
-- ok: queueing again means queueing at the end
SELECT :look, ticket AS a FROM leaselock.lease_acquire('queue.cancel', 'a', '60 s', '300 s') \gset a_
SELECT :a_position AS position;
-- ok: a cancelled wait is not promoted
SELECT state FROM leaselock.lease_release(:'b');
SELECT state FROM leaselock.lease_release(:'h');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_get(:'a_a');
-- ok: cancelling a promoted ticket is a release
SELECT state FROM leaselock.lease_release(:'a_a');
SELECT count(*) FROM leaselock.lease_peek('queue.cancel');
-- ok: a rolled-back cancel, place or promotion leaves no trace
SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue.undo', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.undo', 'a', '60 s', '300 s') \gset
BEGIN;
SELECT ticket AS b, position FROM leaselock.lease_acquire('queue.undo', 'b', '60 s', '300 s') \gset b_
SAVEPOINT s;
SELECT state FROM leaselock.lease_release(:'a');
SELECT position FROM leaselock.lease_get(:'b_b');
ROLLBACK TO s;
SELECT position FROM leaselock.lease_get(:'b_b');
SELECT state FROM leaselock.lease_release(:'h');
SELECT state, holder FROM leaselock.lease_get(:'a');
ROLLBACK;
SELECT state FROM leaselock.lease_get(:'b_b');
SELECT :look FROM leaselock.lease_get(:'a');
SELECT state, fence = :h_fence AS same_fence FROM leaselock.lease_get(:'h');
-- ok: lease_release_all cancels waits and releases what is held, and counts both
SELECT state FROM leaselock.lease_acquire('queue.all', 'h', '300 s');
SELECT state FROM leaselock.lease_acquire('queue.all', 'w', '60 s', '300 s');
SELECT state FROM leaselock.lease_acquire('queue.all', 'w', '60 s', '300 s');
SELECT state FROM leaselock.lease_acquire('queue.all', 'x', '60 s', '300 s');
SELECT state FROM leaselock.lease_acquire('queue.all2', 'w', '300 s');
SELECT state FROM leaselock.lease_acquire('queue.all2', 'y', '60 s', '300 s', scope => 'queue');
SELECT state FROM leaselock.lease_acquire('queue.all2', 'w', '60 s', '300 s', scope => 'queue');
SELECT leaselock.lease_release_all('w', 'queue') AS in_one_scope;
SELECT leaselock.lease_release_all('w') AS in_all;
SELECT name, :tickets FROM leaselock.lease_tickets WHERE name LIKE 'queue.all%' ORDER BY name, owner;
SELECT leaselock.lease_release_all('w'), leaselock.lease_release_all('h'), leaselock.lease_release_all('x'), leaselock.lease_release_all('y'),
	leaselock.lease_release_all('a');

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
