-- Waits that the clock ends: they run out, or their owner falls silent.
-- Time is moved by leaselock.clock_offset.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

-- ok: the wait ran out
SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue.wait', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.wait', 'a', '60 s', '10 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.wait', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '5 s';
SELECT :look FROM leaselock.lease_get(:'a');
SET leaselock.clock_offset = '11 s';
-- ok: visible to everybody before its owner calls
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.wait' ORDER BY owner;
SELECT :status FROM leaselock.lease_peek('queue.wait');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: for good
SELECT :look, :has, remaining_ms, next_call_ms FROM leaselock.lease_get(:'a');
SELECT state FROM leaselock.lease_renew(:'a');
SELECT state FROM leaselock.lease_release(:'a');
SELECT state FROM leaselock.lease_get(:'a');
-- ok: a late cancel has no effect
SELECT ticket AS a FROM leaselock.lease_acquire('queue.wait', 'a', '60 s', '5 s') \gset
SET leaselock.clock_offset = '17 s';
SELECT state FROM leaselock.lease_release(:'a');
SELECT leaselock.lease_release_all('a');
SELECT state FROM leaselock.lease_get(:'h');
RESET leaselock.clock_offset;

-- ok: a polling waiter fell silent for leaselock.waiter_timeout; every call with
-- the ticket or its request id is a sign of life
SELECT state FROM leaselock.lease_acquire('queue.silent', 'h', '300 s');
SELECT ticket AS a FROM leaselock.lease_acquire('queue.silent', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.silent', 'b', '60 s', '300 s') \gset
SELECT ticket AS c FROM leaselock.lease_acquire('queue.silent', 'c', '60 s', '300 s', request_id => :id) \gset
SELECT ticket AS d FROM leaselock.lease_acquire('queue.silent', 'd', '60 s', '300 s') \gset
SET leaselock.clock_offset = '15 s';
SELECT :look FROM leaselock.lease_get(:'b');
SELECT :look, ticket = :'c' AS same_ticket FROM leaselock.lease_acquire('queue.silent', 'c', '60 s', '300 s', request_id => :id);
SELECT :look FROM leaselock.lease_renew(:'d');
-- ok: a rolled-back call is no sign of life
BEGIN;
SELECT :look FROM leaselock.lease_get(:'a');
ROLLBACK;
SET leaselock.clock_offset = '21 s';
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.silent' ORDER BY position NULLS FIRST;
SELECT :status FROM leaselock.lease_peek('queue.silent');
SELECT :look FROM leaselock.lease_get(:'a');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: the setting at the time of the waiter's call counts
SET leaselock.waiter_timeout = '2 min';
SELECT :look FROM leaselock.lease_get(:'c');
RESET leaselock.waiter_timeout;
SET leaselock.clock_offset = '62 s';
SELECT state FROM leaselock.lease_get(:'b');
SELECT state FROM leaselock.lease_get(:'d');
SELECT :look FROM leaselock.lease_get(:'c');
SELECT leaselock.lease_release_all('c'), leaselock.lease_release_all('h');
SELECT count(*) FROM leaselock.lease_peek('queue.silent');
RESET leaselock.clock_offset;

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
