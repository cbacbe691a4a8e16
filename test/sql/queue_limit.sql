-- leaselock.max_waiters.
-- Time is moved by leaselock.clock_offset.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

SET leaselock.max_waiters = 3;
SELECT ticket AS h FROM leaselock.lease_acquire('queue.full', 'h', '300 s') \gset
SELECT state FROM leaselock.lease_acquire('queue.full', 'a', '60 s', '10 s');
SELECT state, ticket FROM leaselock.lease_acquire('queue.full', 'b', '60 s', '300 s', request_id => :id) \gset b_
SELECT state FROM leaselock.lease_acquire('queue.full', 'c', '60 s', '300 s');
-- fail: the fourth
SELECT leaselock.lease_acquire('queue.full', 'd', '60 s', '300 s');
\echo :SQLSTATE
-- ok: a caller that does not wait needs no place, nor does a retry, nor the holder
SELECT state FROM leaselock.lease_acquire('queue.full', 'd');
SELECT :look FROM leaselock.lease_acquire('queue.full', 'b', '60 s', '300 s', request_id => :id);
SELECT :look FROM leaselock.lease_acquire('queue.full', 'h', '60 s', '300 s');
-- ok: other locks have a queue of their own
SELECT state FROM leaselock.lease_acquire('queue.full2', 'd', '60 s', '300 s');
SELECT state FROM leaselock.lease_acquire('queue.full2', 'e', '60 s', '300 s');
-- ok: only live waiters count
SELECT state FROM leaselock.lease_release(:'b_ticket');
SELECT :look FROM leaselock.lease_acquire('queue.full', 'd', '60 s', '300 s');
SELECT leaselock.lease_acquire('queue.full', 'e', '60 s', '300 s'); -- fail: full again
\echo :SQLSTATE
SET leaselock.clock_offset = '11 s';
SELECT :look FROM leaselock.lease_acquire('queue.full', 'e', '60 s', '300 s');
RESET leaselock.clock_offset;
-- ok: a promotion makes room
SELECT state FROM leaselock.lease_acquire('queue.full3', 'h', '300 s');
SELECT w.state FROM generate_series(1, 3) i, leaselock.lease_acquire('queue.full3', 'w' || i, '60 s', '300 s') w;
SELECT leaselock.lease_release_all('h');
SELECT :look FROM leaselock.lease_acquire('queue.full3', 'w4', '60 s', '300 s');
-- fail: no waiting at all
SET leaselock.max_waiters = 0;
SELECT leaselock.lease_acquire('queue.full2', 'f', '60 s', '300 s');
\echo :SQLSTATE
RESET leaselock.max_waiters;

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
