-- A place in the queue, and the order in which the lock is given.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue', 'h', '300 s') \gset
-- ok: waiting: a ticket, a position, the end of the wait, the time of the next call,
-- the holder; no fence and no lease yet
SELECT * FROM leaselock.lease_acquire('queue', 'a', '60 s', '30 s') \gset a_
SELECT :'a_state' AS state, :a_position AS position, :'a_holder' AS holder, :'a_holder_role' = current_user AS holder_role,
	:'a_scope' AS scope, :'a_name' AS name, :'a_owner' AS owner,
	:a_remaining_ms BETWEEN 29000 AND 30000 AS remaining, :a_next_call_ms BETWEEN 1 AND 5000 AS next_call,
	:'a_wait_until'::timestamptz - interval '30 s' BETWEEN now() - interval '10 s' AND clock_timestamp() AS from_the_call;
-- ok: lease_get shows the same
SELECT :look, :has, ticket = :'a_ticket' AS same_ticket, wait_until = :'a_wait_until' AS same_end, request_id,
	remaining_ms BETWEEN 20000 AND 30000 AS remaining
FROM leaselock.lease_get(:'a_ticket');
-- ok: the next ones queue behind it
SELECT :look, ticket FROM leaselock.lease_acquire('queue', 'b', '60 s', '300 s') \gset b_
SELECT :look, ticket FROM leaselock.lease_acquire('queue', 'c', '60 s', '300 s') \gset c_
SELECT :b_position AS b, :c_position AS c, :'c_holder' AS holder;
-- ok: a caller that does not wait is contended and gets no place and no ticket
SELECT :look, :has, next_call_ms > 0 AS hint FROM leaselock.lease_acquire('queue', 'd', '60 s', '0 s');
-- ok: so is an identity that already waits: this call does not wait, and the queue is
-- unchanged
SELECT :look, :has FROM leaselock.lease_acquire('queue', 'b', '60 s', '0 s');
SELECT position FROM leaselock.lease_get(:'b_ticket');
-- ok: the holder is let in even if others wait
SELECT :look, fence = :h_fence AS same_fence, ticket AS again FROM leaselock.lease_acquire('queue', 'h', '60 s', '30 s') \gset h_
SELECT :'h_state' AS state, :h_depth AS depth;
SELECT state FROM leaselock.lease_release(:'h_again');
-- ok: the same name in another scope has a queue of its own, here an empty one
SELECT :look FROM leaselock.lease_acquire('queue', 'd', '60 s', '30 s', scope => 'queue');
SELECT leaselock.lease_release_all('d');
-- ok: the views show it
SELECT :tickets, requested_at BETWEEN now() - interval '1 min' AND now() AS requested, expires_at IS NULL AS no_expiry,
	remaining_ms > 0 AS remaining
FROM leaselock.lease_tickets WHERE name = 'queue' ORDER BY position NULLS FIRST;
SELECT wait_until = :'a_wait_until' AS same_end FROM leaselock.lease_tickets WHERE ticket = :'a_ticket';
SELECT :status FROM leaselock.lease_status WHERE name = 'queue';
SELECT :status FROM leaselock.lease_peek('queue');
-- ok: renewing a waiting ticket answers waiting and changes neither the end of the wait
-- nor the lease that it will get
SELECT :look, :has, wait_until = :'a_wait_until' AS same_end FROM leaselock.lease_renew(:'a_ticket');
SELECT :look FROM leaselock.lease_renew(:'b_ticket', '5 s');

-- fail: bounds of the wait, on a lock that is held
SELECT leaselock.lease_acquire('queue', 'd', wait => '-1 microsecond');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('queue', 'd', wait => '300.000001 s');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('queue', 'd', wait => '1 month');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('queue', 'd', wait => NULL);
\echo :SQLSTATE
-- ok: the longest one
SELECT state, remaining_ms BETWEEN 299000 AND 300000 AS remaining FROM leaselock.lease_acquire('queue', 'd', wait => '300 s');
SET leaselock.max_wait = '10 s';
-- fail: above the bound that is set
SELECT leaselock.lease_acquire('queue', 'e', wait => '10.000001 s');
\echo :SQLSTATE
RESET leaselock.max_wait;
-- ok: none of these has taken a place
SELECT waiters FROM leaselock.lease_peek('queue');

-- ok: granted in that order, with growing fences
SELECT state FROM leaselock.lease_release(:'h');
SELECT state, depth, position, holder, fence > :h_fence AS greater, fence AS a_fence FROM leaselock.lease_get(:'a_ticket') \gset a_
SELECT :'a_state' AS state, :a_depth AS depth, :'a_greater' AS greater;
SELECT :has, remaining_ms, next_call_ms FROM leaselock.lease_renew(:'a_ticket');
SELECT :look FROM leaselock.lease_get(:'b_ticket');
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT state, depth, fence > :a_a_fence AS greater, remaining_ms AS its_own_lease FROM leaselock.lease_get(:'b_ticket');
CALL pg_temp.drain('queue');
SELECT count(*) FROM leaselock.lease_peek('queue');

-- ok: first in, first out, with fifty
SELECT state FROM leaselock.lease_acquire('queue.fifty', 'h');
SELECT count(*), bool_and(state = 'waiting') AS waiting, bool_and(position = i) AS right_position
FROM generate_series(1, 50) i, leaselock.lease_acquire('queue.fifty', 'w' || i, '60 s', '300 s');
CALL pg_temp.drain('queue.fifty') \gset
SELECT :'owners' = 'h ' || string_agg('w' || i, ' ' ORDER BY i) AS in_order FROM generate_series(1, 50) i;

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
