-- Request ids of waiting acquisitions.
-- Time is moved by leaselock.clock_offset.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

\set other '''00000000-0000-0000-0000-0000000000c2'''
SELECT ticket AS h FROM leaselock.lease_acquire('queue.retry', 'h', '300 s') \gset
SELECT state FROM leaselock.lease_acquire('queue.retry', 'a', '60 s', '300 s');
SELECT * FROM leaselock.lease_acquire('queue.retry', 'b', '60 s', '300 s', request_id => :id) \gset b_
SELECT state FROM leaselock.lease_acquire('queue.retry', 'c', '60 s', '300 s');
-- ok: a retry while queued keeps the place; its lease and its wait are ignored, even a
-- wait of 0
SELECT :look, ticket = :'b_ticket' AS same_ticket, wait_until = :'b_wait_until' AS same_end, request_id = :id AS same_id
FROM leaselock.lease_acquire('queue.retry', 'b', '60 s', '300 s', request_id => :id);
SELECT :look, ticket = :'b_ticket' AS same_ticket, wait_until = :'b_wait_until' AS same_end
FROM leaselock.lease_acquire('queue.retry', 'b', '5 s', '10 s', request_id => :id);
SELECT :look, ticket = :'b_ticket' AS same_ticket FROM leaselock.lease_acquire('queue.retry', 'b', request_id => :id);
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.retry' ORDER BY owner;
-- fail: another identity's
SELECT leaselock.lease_acquire('queue.retry', 'c', '60 s', '300 s', request_id => :id);
\echo :SQLSTATE
-- ok: after the promotion: held, the same fence each time, depth 1, the lease first
-- requested
SELECT state FROM leaselock.lease_release(:'h');
SELECT leaselock.lease_release_all('a');
SELECT fence AS b_fence FROM leaselock.lease_peek('queue.retry') \gset
SELECT :look, ticket = :'b_ticket' AS same_ticket, fence = :b_fence AS same_fence, remaining_ms
FROM leaselock.lease_acquire('queue.retry', 'b', '5 s', '300 s', request_id => :id);
SELECT :look, ticket = :'b_ticket' AS same_ticket, fence = :b_fence AS same_fence
FROM leaselock.lease_acquire('queue.retry', 'b', '5 s', '300 s', request_id => :id);
-- ok: after the release: released
SELECT state FROM leaselock.lease_release(:'b_ticket');
SELECT :look, ticket = :'b_ticket' AS same_ticket FROM leaselock.lease_acquire('queue.retry', 'b', '60 s', '300 s', request_id => :id);
-- ok: after a cancel: cancelled, and no second place
SELECT ticket AS b FROM leaselock.lease_acquire('queue.retry', 'b', '60 s', '300 s', request_id => :other) \gset
SELECT state FROM leaselock.lease_release(:'b');
SELECT :look, ticket = :'b' AS same_ticket FROM leaselock.lease_acquire('queue.retry', 'b', '60 s', '300 s', request_id => :other);
SELECT waiters FROM leaselock.lease_peek('queue.retry');
SELECT leaselock.lease_release_all('c');
-- ok: after a time-out: timed_out; the retry comes too late to be a poll
SELECT state FROM leaselock.lease_acquire('queue.retry2', 'h', '300 s');
SELECT ticket AS a FROM leaselock.lease_acquire('queue.retry2', 'a', '60 s', '10 s', request_id => :id) \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.retry2', 'b', '60 s', '300 s', request_id => :other) \gset
SET leaselock.clock_offset = '21 s';
SELECT :look, ticket = :'a' AS same_ticket FROM leaselock.lease_acquire('queue.retry2', 'a', '60 s', '300 s', request_id => :id);
SELECT :look, ticket = :'b' AS same_ticket FROM leaselock.lease_acquire('queue.retry2', 'b', '60 s', '300 s', request_id => :other);
SELECT waiters FROM leaselock.lease_peek('queue.retry2');
SELECT leaselock.lease_release_all('h');
SELECT count(*) FROM leaselock.lease_peek('queue.retry2');
RESET leaselock.clock_offset;
-- ok: after an unclaimed promotion: expired
SELECT ticket AS h FROM leaselock.lease_acquire('queue.retry3', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.retry3', 'a', '60 s', '300 s', request_id => :id) \gset
SELECT state FROM leaselock.lease_release(:'h');
SET leaselock.clock_offset = '11 s';
SELECT :look, ticket = :'a' AS same_ticket FROM leaselock.lease_acquire('queue.retry3', 'a', '60 s', '300 s', request_id => :id);
RESET leaselock.clock_offset;

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
