-- Whose turn it is after a release, a lapse, and the loss of waiters.
-- Time is moved by leaselock.clock_offset.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

-- ok: by a release: the head holds the lock before its next call, with a greater fence,
-- for half of leaselock.waiter_timeout
SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue.release', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.release', 'a', '90 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.release', 'b', '60 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.release' ORDER BY owner;
SELECT :status, fence > :h_fence AS greater, fence AS a_fence, remaining_ms BETWEEN 1 AND 10000 AS claim_window
FROM leaselock.lease_peek('queue.release') \gset p_
SELECT :'p_owner' AS owner, :p_depth AS depth, :'p_lapsed' AS lapsed, :p_waiters AS waiters, :'p_greater' AS greater, :'p_claim_window' AS claim_window;
SELECT leaselock.fence_check('queue.release', :h_fence), leaselock.fence_check('queue.release', :p_a_fence);
-- ok: nobody is let in meanwhile, not even the former holder
SELECT :look FROM leaselock.lease_acquire('queue.release', 'h');
SELECT :look FROM leaselock.lease_acquire('queue.release', 'h', '60 s', '300 s');
-- ok: the first call for it gives the full lease ...
SELECT :look, fence = :p_a_fence AS same_fence, wait_until, remaining_ms, next_call_ms FROM leaselock.lease_get(:'a');
-- ok: ... once
SET leaselock.clock_offset = '15 s';
SELECT :look, remaining_ms BETWEEN 70000 AND 75000 AS no_more FROM leaselock.lease_get(:'a');
SELECT remaining_ms FROM leaselock.lease_renew(:'a');
-- ok: the other waiters see the new holder
SELECT :look FROM leaselock.lease_get(:'b');
RESET leaselock.clock_offset;
SELECT leaselock.lease_release_all('h'), leaselock.lease_release_all('b'), leaselock.lease_release_all('a');

-- ok: the same by a retry of the request, and by a renewal
SELECT ticket AS h FROM leaselock.lease_acquire('queue.claim', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.claim', 'a', '90 s', '300 s', request_id => :id) \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.claim', 'b', '90 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT :look, ticket = :'a' AS same_ticket, remaining_ms FROM leaselock.lease_acquire('queue.claim', 'a', '60 s', request_id => :id);
SELECT state FROM leaselock.lease_release(:'a');
SELECT :look, remaining_ms FROM leaselock.lease_renew(:'b', '120 s');
SELECT state FROM leaselock.lease_release(:'b');

-- ok: without a call in that time it is expired, and the next waiter has its turn
SELECT ticket AS h FROM leaselock.lease_acquire('queue.unclaimed', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.unclaimed', 'a', '90 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.unclaimed', 'b', '60 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT fence AS a_fence FROM leaselock.lease_peek('queue.unclaimed') \gset
SET leaselock.clock_offset = '5 s';
SELECT :look FROM leaselock.lease_get(:'b');
SET leaselock.clock_offset = '11 s';
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.unclaimed' ORDER BY owner;
SELECT :status, fence = :a_fence AS of_the_promoted FROM leaselock.lease_peek('queue.unclaimed');
SELECT :look FROM leaselock.lease_get(:'a');
SELECT :look, fence > :a_fence AS greater, remaining_ms FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_get(:'a');
SELECT leaselock.lease_release_all('b');
RESET leaselock.clock_offset;
-- ok: a call just in time
SELECT ticket AS h FROM leaselock.lease_acquire('queue.claimed', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.claimed', 'a', '90 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SET leaselock.clock_offset = '5 s';
SELECT :look, remaining_ms FROM leaselock.lease_get(:'a');
SELECT leaselock.lease_release_all('a');
RESET leaselock.clock_offset;
-- ok: a lease that is shorter than that time is not stretched
SELECT ticket AS h FROM leaselock.lease_acquire('queue.short', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.short', 'a', '6 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT remaining_ms BETWEEN 1 AND 6000 AS its_lease FROM leaselock.lease_peek('queue.short');
SET leaselock.clock_offset = '7 s';
SELECT :look FROM leaselock.lease_get(:'a');
RESET leaselock.clock_offset;
-- ok: the setting counts
SET leaselock.waiter_timeout = '2 min';
SELECT ticket AS h FROM leaselock.lease_acquire('queue.setting', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.setting', 'a', '90 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT remaining_ms BETWEEN 20000 AND 60000 AS half FROM leaselock.lease_peek('queue.setting');
SELECT leaselock.lease_release_all('a');
RESET leaselock.waiter_timeout;

-- ok: by a lapse: a waiter whose turn has come gets the full lease at its next look
SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue.lapse', 'h', '10 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.lapse', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.lapse', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '11 s';
-- ok: a lapsed hold is shown with its waiters
SELECT :status FROM leaselock.lease_peek('queue.lapse');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.lapse' ORDER BY owner;
-- ok: nobody overtakes the queue even though the lock is free: neither the second
-- waiter nor a newcomer nor the late holder
SELECT :look FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_acquire('queue.lapse', 'c');
SELECT :look FROM leaselock.lease_acquire('queue.lapse', 'c', '60 s', '300 s');
SELECT :look FROM leaselock.lease_acquire('queue.lapse', 'h');
SELECT state FROM leaselock.lease_renew(:'h');
SELECT :look, fence > :h_fence AS greater, remaining_ms FROM leaselock.lease_get(:'a');
SELECT :status FROM leaselock.lease_peek('queue.lapse');
SELECT :look FROM leaselock.lease_get(:'h');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT leaselock.lease_release_all('a');
CALL pg_temp.drain('queue.lapse');
RESET leaselock.clock_offset;

-- ok: by the time-out of the waiter ahead
SELECT fence AS h_fence FROM leaselock.lease_acquire('queue.timeout', 'h', '5 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.timeout', 'a', '60 s', '10 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.timeout', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '6 s';
SELECT :look FROM leaselock.lease_get(:'b');
SET leaselock.clock_offset = '11 s';
SELECT :look, fence > :h_fence AS greater FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_get(:'a');
-- ok: the same with the clock stepped back a little
SET leaselock.clock_offset = '7 s';
SELECT :look FROM leaselock.lease_get(:'a');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT leaselock.lease_release_all('b');
RESET leaselock.clock_offset;
-- ok: by the cancellation of the waiter ahead
SELECT state FROM leaselock.lease_acquire('queue.cancelled', 'h', '5 s');
SELECT ticket AS a FROM leaselock.lease_acquire('queue.cancelled', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.cancelled', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '6 s';
SELECT :look FROM leaselock.lease_release(:'a');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT leaselock.lease_release_all('b');
RESET leaselock.clock_offset;
-- ok: a release finds the first live waiter
SELECT ticket AS h FROM leaselock.lease_acquire('queue.dead', 'h', '300 s') \gset
SELECT state FROM leaselock.lease_acquire('queue.dead', 'a', '60 s', '10 s');
SELECT state FROM leaselock.lease_acquire('queue.dead', 'b', '60 s', '300 s');
SET leaselock.clock_offset = '15 s';
SELECT state FROM leaselock.lease_acquire('queue.dead', 'c', '60 s', '300 s');
SELECT state FROM leaselock.lease_acquire('queue.dead', 'd', '60 s', '300 s');
SET leaselock.clock_offset = '25 s';
SELECT state FROM leaselock.lease_release(:'h');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.dead' ORDER BY owner;
CALL pg_temp.drain('queue.dead');
-- ok: without a live waiter the lock is free
SELECT ticket AS h FROM leaselock.lease_acquire('queue.dead', 'h', '60 s') \gset
SELECT state FROM leaselock.lease_acquire('queue.dead', 'a', '60 s', '10 s');
SET leaselock.clock_offset = '36 s';
SELECT state FROM leaselock.lease_release(:'h');
SELECT count(*) FROM leaselock.lease_peek('queue.dead');
SELECT :look FROM leaselock.lease_acquire('queue.dead', 'z');
SELECT leaselock.lease_release_all('z');
RESET leaselock.clock_offset;

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
