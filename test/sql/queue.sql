-- The queue of a lock, as one session sees it that speaks for several owners.
-- Time is moved by leaselock.clock_offset.  What needs sessions that overlap is
-- in test/specs.
LOAD 'leaselock';
\set look 'state, depth, position, holder'
-- what there is of a ticket
\set has 'ticket IS NOT NULL AS ticket, fence IS NOT NULL AS fence, expires_at IS NOT NULL AS expires, wait_until IS NOT NULL AS wait_until'
\set tickets 'owner, state, position, depth'
\set status 'owner, depth, lapsed, waiters'

-- The owners in the order in which a lock is given to them, if each releases
-- it as soon as it has it.
CREATE PROCEDURE pg_temp.drain(lock text, INOUT owners text DEFAULT '') LANGUAGE plpgsql AS $$
DECLARE
	t uuid;
	o text;
BEGIN
	LOOP
		SELECT ticket, owner INTO t, o FROM leaselock.lease_tickets WHERE name = lock AND state = 'held';
		EXIT WHEN t IS NULL;
		owners := concat_ws(' ', nullif(owners, ''), o);
		PERFORM leaselock.lease_release(t);
		COMMIT;
	END LOOP;
END $$;

--
-- A place in the queue
--

SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue', 'h', '300 s') \gset
-- ok: waiting: a ticket, a place, an end of the wait, a time for the next call,
-- who holds the lock; no fence and no lease yet
SELECT * FROM leaselock.lease_acquire('queue', 'a', '60 s', '30 s') \gset a_
SELECT :'a_state' AS state, :a_position AS position, :'a_holder' AS holder, :'a_holder_role' = current_user AS holder_role,
	:'a_scope' AS scope, :'a_name' AS name, :'a_owner' AS owner,
	:a_remaining_ms BETWEEN 29000 AND 30000 AS remaining, :a_next_call_ms BETWEEN 1 AND 5000 AS next_call,
	:'a_wait_until'::timestamptz - interval '30 s' BETWEEN now() - interval '10 s' AND clock_timestamp() AS from_the_call;
-- ok: asked for, it is the same
SELECT :look, :has, ticket = :'a_ticket' AS same_ticket, wait_until = :'a_wait_until' AS same_end, request_id,
	remaining_ms BETWEEN 20000 AND 30000 AS remaining
FROM leaselock.lease_get(:'a_ticket');
-- ok: the next ones stand behind it
SELECT :look, ticket FROM leaselock.lease_acquire('queue', 'b', '60 s', '300 s') \gset b_
SELECT :look, ticket FROM leaselock.lease_acquire('queue', 'c', '60 s', '300 s') \gset c_
SELECT :b_position AS b, :c_position AS c, :'c_holder' AS holder;
-- ok: who does not wait is contended; it takes no place and no ticket
SELECT :look, :has, next_call_ms > 0 AS hint FROM leaselock.lease_acquire('queue', 'd', '60 s', '0 s');
-- ok: so is who waits already: this call does not, and the queue is unchanged
SELECT :look, :has FROM leaselock.lease_acquire('queue', 'b', '60 s', '0 s');
SELECT position FROM leaselock.lease_get(:'b_ticket');
-- ok: the holder is let in, whoever waits
SELECT :look, fence = :h_fence AS same_fence, ticket AS again FROM leaselock.lease_acquire('queue', 'h', '60 s', '30 s') \gset h_
SELECT :'h_state' AS state, :h_depth AS depth;
SELECT state FROM leaselock.lease_release(:'h_again');
-- ok: the same name in another scope has a queue of its own: none
SELECT :look FROM leaselock.lease_acquire('queue', 'd', '60 s', '30 s', scope => 'queue');
SELECT leaselock.lease_release_all('d');
-- ok: the views show it
SELECT :tickets, requested_at BETWEEN now() - interval '1 min' AND now() AS requested, expires_at IS NULL AS no_expiry,
	remaining_ms > 0 AS remaining
FROM leaselock.lease_tickets WHERE name = 'queue' ORDER BY position NULLS FIRST;
SELECT wait_until = :'a_wait_until' AS same_end FROM leaselock.lease_tickets WHERE ticket = :'a_ticket';
SELECT :status FROM leaselock.lease_status WHERE name = 'queue';
SELECT :status FROM leaselock.lease_peek('queue');
-- ok: a renewal of a waiting ticket comes back waiting, and changes neither its
-- end nor the lease that it will have
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
-- fail: above the bound as set
SELECT leaselock.lease_acquire('queue', 'e', wait => '10.000001 s');
\echo :SQLSTATE
RESET leaselock.max_wait;
-- ok: nothing of that has taken a place
SELECT waiters FROM leaselock.lease_peek('queue');

-- ok: given to them in that order, with growing fences
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

--
-- position and next_call_ms
--

SELECT state FROM leaselock.lease_acquire('queue.long', 'h', '300 s');
CREATE TEMP TABLE waiter (nr int, ticket uuid, position int, next_call_ms bigint);
INSERT INTO waiter SELECT i, t.ticket, t.position, t.next_call_ms
FROM generate_series(1, 120) i, leaselock.lease_acquire('queue.long', 'w' || i, '60 s', '300 s') t;
-- ok: the position stops at 100: that or more
SELECT nr, position FROM waiter WHERE nr IN (1, 2, 98, 99, 100, 101, 120) ORDER BY nr;
SELECT bool_and(position = least(nr, 100)) FROM waiter;
-- ok: exact in the view
SELECT count(*), bool_and(t.position = nr) AS exact FROM waiter JOIN leaselock.lease_tickets t USING (ticket);
-- ok: so is their number, which lease_peek, too, counts up to 100
SELECT p.waiters AS peek, s.waiters AS status
FROM leaselock.lease_peek('queue.long') p, leaselock.lease_status s WHERE s.name = 'queue.long';
-- ok: the head polls fastest, nobody slower than a quarter of waiter_timeout
SELECT bool_and(next_call_ms > 0) AS positive, bool_and(next_call_ms >= before) AS growing, max(next_call_ms)
FROM (SELECT next_call_ms, lag(next_call_ms, 1, 0::bigint) OVER (ORDER BY nr) AS before FROM waiter) w;
SELECT min(next_call_ms) < max(next_call_ms) AS head_fastest FROM waiter;
SET leaselock.waiter_timeout = '400 ms';
SELECT next_call_ms BETWEEN 1 AND 100 AS quick FROM leaselock.lease_acquire('queue.long', 'z', '60 s', '300 s');
SELECT leaselock.lease_release_all('z') <= 1 AS gone;
RESET leaselock.waiter_timeout;
-- ok: whoever leaves, those behind move up
SELECT count(*), bool_and(state = 'cancelled') AS cancelled FROM waiter w, leaselock.lease_release(w.ticket) WHERE nr BETWEEN 1 AND 60;
SELECT nr, t.position FROM waiter, leaselock.lease_get(ticket) t WHERE nr IN (61, 120) ORDER BY nr;
SELECT leaselock.lease_release_all('h');
SELECT nr, t.state, t.position FROM waiter, leaselock.lease_get(ticket) t WHERE nr IN (60, 61, 62, 120) ORDER BY nr;
CALL pg_temp.drain('queue.long') \gset
SELECT :'owners' = (SELECT string_agg('w' || i, ' ' ORDER BY i) FROM generate_series(61, 120) i) AS in_order;

-- ok: identities are counted, not tickets: many of one make no long queue
SELECT state FROM leaselock.lease_acquire('queue.distinct', 'h', '300 s');
SELECT count(*), min(position), max(position)
FROM generate_series(1, 10) i, leaselock.lease_acquire('queue.distinct', 'a', '60 s', (290 + i) * interval '1 s');
SELECT :look, ticket FROM leaselock.lease_acquire('queue.distinct', 'b', '60 s', '300 s') \gset b_
SELECT :b_position AS position;
SELECT owner, array_agg(DISTINCT position) AS positions FROM leaselock.lease_tickets WHERE name = 'queue.distinct' AND state = 'waiting' GROUP BY owner ORDER BY owner;
SELECT waiters FROM leaselock.lease_peek('queue.distinct');
SELECT leaselock.lease_release_all('a');
SELECT :look FROM leaselock.lease_get(:'b_ticket');
SELECT leaselock.lease_release_all('b'), leaselock.lease_release_all('h');

--
-- cancelled
--

SELECT ticket AS h FROM leaselock.lease_acquire('queue.cancel', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.cancel', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.cancel', 'b', '60 s', '300 s') \gset
-- ok: given up by its owner; a second time changes nothing
SELECT :look, :has, remaining_ms, next_call_ms FROM leaselock.lease_release(:'a');
SELECT :look FROM leaselock.lease_release(:'a');
SELECT :look, next_call_ms FROM leaselock.lease_get(:'a');
SELECT state FROM leaselock.lease_renew(:'a');
-- ok: the next one has moved up, the holder has not noticed
SELECT :look FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_get(:'h');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.cancel' ORDER BY owner;
-- ok: to queue again is to queue at the end
SELECT :look, ticket AS a FROM leaselock.lease_acquire('queue.cancel', 'a', '60 s', '300 s') \gset a_
SELECT :a_position AS position;
-- ok: a cancelled wait is not promoted
SELECT state FROM leaselock.lease_release(:'b');
SELECT state FROM leaselock.lease_release(:'h');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_get(:'a_a');
-- ok: a late cancel of a promoted ticket is a release
SELECT state FROM leaselock.lease_release(:'a_a');
SELECT count(*) FROM leaselock.lease_peek('queue.cancel');
-- ok: a rolled-back cancel has not been, nor a rolled-back place, nor a promotion
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

--
-- timed_out
--

-- ok: the wait ran out
SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue.wait', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.wait', 'a', '60 s', '10 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.wait', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '5 s';
SELECT :look FROM leaselock.lease_get(:'a');
SET leaselock.clock_offset = '11 s';
-- ok: seen by everybody before its owner comes
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.wait' ORDER BY owner;
SELECT :status FROM leaselock.lease_peek('queue.wait');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: for good
SELECT :look, :has, remaining_ms, next_call_ms FROM leaselock.lease_get(:'a');
SELECT state FROM leaselock.lease_renew(:'a');
SELECT state FROM leaselock.lease_release(:'a');
SELECT state FROM leaselock.lease_get(:'a');
-- ok: a late cancel is none
SELECT ticket AS a FROM leaselock.lease_acquire('queue.wait', 'a', '60 s', '5 s') \gset
SET leaselock.clock_offset = '17 s';
SELECT state FROM leaselock.lease_release(:'a');
SELECT leaselock.lease_release_all('a');
SELECT state FROM leaselock.lease_get(:'h');
RESET leaselock.clock_offset;

-- ok: a polling waiter fell silent for leaselock.waiter_timeout; every call with
-- the ticket or its request id is a sign of life
\set id '''00000000-0000-0000-0000-0000000000c1'''
SELECT state FROM leaselock.lease_acquire('queue.silent', 'h', '300 s');
SELECT ticket AS a FROM leaselock.lease_acquire('queue.silent', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.silent', 'b', '60 s', '300 s') \gset
SELECT ticket AS c FROM leaselock.lease_acquire('queue.silent', 'c', '60 s', '300 s', request_id => :id) \gset
SELECT ticket AS d FROM leaselock.lease_acquire('queue.silent', 'd', '60 s', '300 s') \gset
SET leaselock.clock_offset = '15 s';
SELECT :look FROM leaselock.lease_get(:'b');
SELECT :look, ticket = :'c' AS same_ticket FROM leaselock.lease_acquire('queue.silent', 'c', '60 s', '300 s', request_id => :id);
SELECT :look FROM leaselock.lease_renew(:'d');
-- ok: one that is rolled back is none
BEGIN;
SELECT :look FROM leaselock.lease_get(:'a');
ROLLBACK;
SET leaselock.clock_offset = '21 s';
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.silent' ORDER BY position NULLS FIRST;
SELECT :status FROM leaselock.lease_peek('queue.silent');
SELECT :look FROM leaselock.lease_get(:'a');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: by the setting as it is when the waiter calls
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

--
-- Promotion
--

-- ok: by a release: the head holds the lock before it has asked, with a greater
-- fence, for half of leaselock.waiter_timeout
SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue.release', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.release', 'a', '90 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.release', 'b', '60 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.release' ORDER BY owner;
SELECT :status, fence > :h_fence AS greater, fence AS a_fence, remaining_ms BETWEEN 1 AND 10000 AS claim_window
FROM leaselock.lease_peek('queue.release') \gset p_
SELECT :'p_owner' AS owner, :p_depth AS depth, :'p_lapsed' AS lapsed, :p_waiters AS waiters, :'p_greater' AS greater, :'p_claim_window' AS claim_window;
SELECT leaselock.fence_check('queue.release', :h_fence), leaselock.fence_check('queue.release', :p_a_fence);
-- ok: nobody is let in meanwhile, the one that released included
SELECT :look FROM leaselock.lease_acquire('queue.release', 'h');
SELECT :look FROM leaselock.lease_acquire('queue.release', 'h', '60 s', '300 s');
-- ok: the first call for it gives the full lease ...
SELECT :look, fence = :p_a_fence AS same_fence, wait_until, remaining_ms, next_call_ms FROM leaselock.lease_get(:'a');
-- ok: ... once
SET leaselock.clock_offset = '15 s';
SELECT :look, remaining_ms BETWEEN 70000 AND 75000 AS no_more FROM leaselock.lease_get(:'a');
SELECT remaining_ms FROM leaselock.lease_renew(:'a');
-- ok: whoever waits still sees who holds it now
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

-- ok: not asked for in that time it is expired, and the next one has its turn
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
-- ok: asked for just in time
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

-- ok: by a lapse: whoever looks gets it if its turn has come, and the full lease
SELECT ticket AS h, fence AS h_fence FROM leaselock.lease_acquire('queue.lapse', 'h', '10 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.lapse', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.lapse', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '11 s';
-- ok: a lapsed hold is shown with those who wait
SELECT :status FROM leaselock.lease_peek('queue.lapse');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.lapse' ORDER BY owner;
-- ok: nobody is let in past the queue, even though the lock is free: not the
-- second, no newcomer, not the late holder
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

-- ok: by a time-out of who stood before
SELECT fence AS h_fence FROM leaselock.lease_acquire('queue.timeout', 'h', '5 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.timeout', 'a', '60 s', '10 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.timeout', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '6 s';
SELECT :look FROM leaselock.lease_get(:'b');
SET leaselock.clock_offset = '11 s';
SELECT :look, fence > :h_fence AS greater FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_get(:'a');
-- ok: stepped back a little, it has been all the same
SET leaselock.clock_offset = '7 s';
SELECT :look FROM leaselock.lease_get(:'a');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT leaselock.lease_release_all('b');
RESET leaselock.clock_offset;
-- ok: by a cancel of who stood before
SELECT state FROM leaselock.lease_acquire('queue.cancelled', 'h', '5 s');
SELECT ticket AS a FROM leaselock.lease_acquire('queue.cancelled', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.cancelled', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '6 s';
SELECT :look FROM leaselock.lease_release(:'a');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT leaselock.lease_release_all('b');
RESET leaselock.clock_offset;
-- ok: a release finds the first one that lives
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
-- ok: with nobody alive the lock is free
SELECT ticket AS h FROM leaselock.lease_acquire('queue.dead', 'h', '60 s') \gset
SELECT state FROM leaselock.lease_acquire('queue.dead', 'a', '60 s', '10 s');
SET leaselock.clock_offset = '36 s';
SELECT state FROM leaselock.lease_release(:'h');
SELECT count(*) FROM leaselock.lease_peek('queue.dead');
SELECT :look FROM leaselock.lease_acquire('queue.dead', 'z');
SELECT leaselock.lease_release_all('z');
RESET leaselock.clock_offset;

--
-- Request ids
--

\set other '''00000000-0000-0000-0000-0000000000c2'''
SELECT ticket AS h FROM leaselock.lease_acquire('queue.retry', 'h', '300 s') \gset
SELECT state FROM leaselock.lease_acquire('queue.retry', 'a', '60 s', '300 s');
SELECT * FROM leaselock.lease_acquire('queue.retry', 'b', '60 s', '300 s', request_id => :id) \gset b_
SELECT state FROM leaselock.lease_acquire('queue.retry', 'c', '60 s', '300 s');
-- ok: a retry while queued keeps the place; its lease and its wait are ignored,
-- no wait included
SELECT :look, ticket = :'b_ticket' AS same_ticket, wait_until = :'b_wait_until' AS same_end, request_id = :id AS same_id
FROM leaselock.lease_acquire('queue.retry', 'b', '60 s', '300 s', request_id => :id);
SELECT :look, ticket = :'b_ticket' AS same_ticket, wait_until = :'b_wait_until' AS same_end
FROM leaselock.lease_acquire('queue.retry', 'b', '5 s', '10 s', request_id => :id);
SELECT :look, ticket = :'b_ticket' AS same_ticket FROM leaselock.lease_acquire('queue.retry', 'b', request_id => :id);
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.retry' ORDER BY owner;
-- fail: another identity's
SELECT leaselock.lease_acquire('queue.retry', 'c', '60 s', '300 s', request_id => :id);
\echo :SQLSTATE
-- ok: after the promotion: held, the same fence each time, depth 1, the lease
-- that was first asked for
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
-- ok: after a promotion that nobody asked for: expired
SELECT ticket AS h FROM leaselock.lease_acquire('queue.retry3', 'h', '300 s') \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.retry3', 'a', '60 s', '300 s', request_id => :id) \gset
SELECT state FROM leaselock.lease_release(:'h');
SET leaselock.clock_offset = '11 s';
SELECT :look, ticket = :'a' AS same_ticket FROM leaselock.lease_acquire('queue.retry3', 'a', '60 s', '300 s', request_id => :id);
RESET leaselock.clock_offset;

--
-- Several tickets of one identity
--

-- ok: they share the place of the first
SELECT ticket AS h FROM leaselock.lease_acquire('queue.share', 'h', '300 s') \gset
SELECT ticket AS a1 FROM leaselock.lease_acquire('queue.share', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.share', 'b', '60 s', '300 s') \gset
SELECT ticket AS a2, state, position FROM leaselock.lease_acquire('queue.share', 'a', '120 s', '300 s') \gset x_
SELECT :'x_state' AS state, :x_position AS position;
SELECT ticket AS b2, state, position FROM leaselock.lease_acquire('queue.share', 'b', '60 s', '300 s') \gset x_
SELECT :'x_state' AS state, :x_position AS position;
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.share' ORDER BY owner, requested_at;
-- ok: promoted, each of them becomes held at its next look: one fence, a lease each
SELECT state FROM leaselock.lease_release(:'h');
SELECT :look, fence AS a_fence FROM leaselock.lease_get(:'a1') \gset x_
SELECT :'x_state' AS state, :x_depth AS depth;
SELECT :look, fence = :x_a_fence AS same_fence, remaining_ms FROM leaselock.lease_get(:'x_a2');
SELECT :look, fence = :x_a_fence AS same_fence FROM leaselock.lease_get(:'a1');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: the grant lasts until the last of them has ended
SELECT state FROM leaselock.lease_release(:'a1');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT state FROM leaselock.lease_release(:'x_a2');
SELECT :look, fence > :x_a_fence AS greater FROM leaselock.lease_get(:'b');
-- ok: one that has not looked while its identity held the lock stands where it
-- stood, behind the others
SELECT leaselock.lease_release_all('b');
SELECT ticket AS h FROM leaselock.lease_acquire('queue.share2', 'h', '300 s') \gset
SELECT ticket AS a1 FROM leaselock.lease_acquire('queue.share2', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.share2', 'b', '60 s', '300 s') \gset
SELECT ticket AS a2 FROM leaselock.lease_acquire('queue.share2', 'a', '60 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT state FROM leaselock.lease_release(:'a1');
SELECT :look FROM leaselock.lease_get(:'a2');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT state FROM leaselock.lease_release(:'b');
SELECT :look FROM leaselock.lease_get(:'a2');
SELECT leaselock.lease_release_all('a');
-- ok: with the first cancelled they have the place of the second
SELECT ticket AS h FROM leaselock.lease_acquire('queue.share3', 'h', '300 s') \gset
SELECT ticket AS a1 FROM leaselock.lease_acquire('queue.share3', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.share3', 'b', '60 s', '300 s') \gset
SELECT ticket AS a2 FROM leaselock.lease_acquire('queue.share3', 'a', '60 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'a1');
SELECT :look FROM leaselock.lease_get(:'a2');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT state FROM leaselock.lease_release(:'h');
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.share3' ORDER BY owner;
SELECT leaselock.lease_release_all('b'), leaselock.lease_release_all('a');
-- ok: the second ticket looks first: it has the turn of the first
SELECT state FROM leaselock.lease_acquire('queue.share4', 'h', '5 s');
SELECT ticket AS a1 FROM leaselock.lease_acquire('queue.share4', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.share4', 'b', '60 s', '300 s') \gset
SELECT ticket AS a2 FROM leaselock.lease_acquire('queue.share4', 'a', '60 s', '300 s') \gset
SET leaselock.clock_offset = '6 s';
SELECT :look FROM leaselock.lease_get(:'b');
SELECT :look FROM leaselock.lease_get(:'a2');
SELECT :look FROM leaselock.lease_get(:'a1');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT leaselock.lease_release_all('a'), leaselock.lease_release_all('b');
RESET leaselock.clock_offset;
-- ok: a third ticket taken while the first is held does not wait
SELECT ticket AS h FROM leaselock.lease_acquire('queue.share5', 'h', '300 s') \gset
SELECT ticket AS a1 FROM leaselock.lease_acquire('queue.share5', 'a', '60 s', '300 s') \gset
SELECT ticket AS a2 FROM leaselock.lease_acquire('queue.share5', 'a', '60 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT :look FROM leaselock.lease_acquire('queue.share5', 'a');
SELECT :look FROM leaselock.lease_get(:'a2');
SELECT :look FROM leaselock.lease_get(:'a1');
SELECT leaselock.lease_release_all('a');
-- ok: the same label under another role is somebody else
CREATE ROLE regress_leaselock_other;
SELECT state FROM leaselock.lease_acquire('queue.role', 'h', '300 s');
SELECT position FROM leaselock.lease_acquire('queue.role', 'a', '60 s', '300 s');
SET ROLE regress_leaselock_other;
SELECT position, ticket FROM leaselock.lease_acquire('queue.role', 'a', '60 s', '300 s') \gset o_
SELECT :o_position AS position;
SELECT position FROM leaselock.lease_acquire('queue.role', 'h', '60 s', '300 s');
RESET ROLE;
-- ok: a superuser who is not of the ticket's role only looks: that is no poll
SET leaselock.clock_offset = '15 s';
SELECT :look FROM leaselock.lease_get(:'o_ticket');
SET leaselock.clock_offset = '21 s';
SELECT :look FROM leaselock.lease_get(:'o_ticket');
RESET leaselock.clock_offset;
SELECT leaselock.lease_release_all('h'), leaselock.lease_release_all('a');
-- ok: nor a claim
SET ROLE regress_leaselock_other;
SELECT leaselock.lease_release_all('a'), leaselock.lease_release_all('h');
RESET ROLE;
SELECT ticket AS h FROM leaselock.lease_acquire('queue.super', 'h', '300 s') \gset
SET ROLE regress_leaselock_other;
SELECT ticket AS a FROM leaselock.lease_acquire('queue.super', 'a', '60 s', '300 s') \gset
RESET ROLE;
SELECT state FROM leaselock.lease_release(:'h');
SELECT :look, remaining_ms <= 10000 AS unclaimed FROM leaselock.lease_get(:'a');
SELECT remaining_ms <= 10000 AS unclaimed FROM leaselock.lease_peek('queue.super');
SET ROLE regress_leaselock_other;
SELECT :look, remaining_ms FROM leaselock.lease_get(:'a');
SELECT leaselock.lease_release_all('a');
RESET ROLE;
DROP ROLE regress_leaselock_other;

--
-- Named locks beside a queue
--

SELECT leaselock.try_lock('queue.named', 'h', '60 s') AS h_fence \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.named', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.named', 'b', '60 s', '300 s') \gset
-- ok: a try is no place in the queue
SELECT leaselock.try_lock('queue.named', 'c', '60 s'), leaselock.try_lock('queue.named', 'a', '60 s');
SELECT :status FROM leaselock.lease_peek('queue.named');
-- ok: a live hold is renewed whoever waits
SELECT leaselock.renew_lock('queue.named', 'h', '10 s');
SELECT leaselock.try_lock('queue.named', 'h', '60 s') = :h_fence AS same_fence;
SET leaselock.clock_offset = '11 s';
-- ok: lapsed, with somebody waiting, it is lost: not renewed, not taken again
SELECT leaselock.renew_lock('queue.named', 'h', '60 s');
SELECT leaselock.try_lock('queue.named', 'h', '60 s');
-- ok: and nobody overtakes, the one whose turn it is not included
SELECT leaselock.try_lock('queue.named', 'c', '60 s'), leaselock.try_lock('queue.named', 'b', '60 s');
SELECT :look, fence > :h_fence AS greater FROM leaselock.lease_get(:'a');
SELECT leaselock.renew_lock('queue.named', 'h', '60 s'), leaselock.release_lock('queue.named', 'h');
-- ok: the holder of a ticket gets a named hold too; its ticket may go
SELECT leaselock.try_lock('queue.named', 'a', '60 s') = fence AS same_fence FROM leaselock.lease_peek('queue.named');
SELECT state FROM leaselock.lease_release(:'a');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: the release of the hold, the last claim, promotes
SELECT leaselock.release_lock('queue.named', 'a');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: not the last claim: nobody is promoted
SELECT leaselock.try_lock('queue.named', 'b', '60 s') IS NOT NULL AS got;
SELECT ticket AS c FROM leaselock.lease_acquire('queue.named', 'c', '60 s', '300 s') \gset
SELECT leaselock.release_lock('queue.named', 'b');
SELECT :look FROM leaselock.lease_get(:'c');
SELECT leaselock.lease_release_all('b');
SELECT :look FROM leaselock.lease_get(:'c');
SELECT leaselock.lease_release_all('c');
RESET leaselock.clock_offset;
-- ok: with nobody waiting a lapsed hold is renewed, and taken anew
SELECT leaselock.try_lock('queue.named2', 'h', '10 s') AS h_fence \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.named2', 'a', '60 s', '5 s') \gset
SET leaselock.clock_offset = '11 s';
SELECT leaselock.renew_lock('queue.named2', 'h', '10 s');
SELECT leaselock.fence_check('queue.named2', :h_fence);
-- ok: a lapsed hold is there to be released, and that promotes
SELECT ticket AS b FROM leaselock.lease_acquire('queue.named2', 'b', '60 s', '300 s') \gset
SET leaselock.clock_offset = '22 s';
SELECT leaselock.release_lock('queue.named2', 'h');
SELECT :look FROM leaselock.lease_get(:'b');
SELECT leaselock.release_lock('queue.named2', 'h');
SELECT leaselock.lease_release_all('b');
RESET leaselock.clock_offset;
-- ok: a hold's own identity may wait with a ticket: it is let in at once
SELECT leaselock.try_lock('queue.named3', 'h', '60 s') AS h_fence \gset
SELECT state FROM leaselock.lease_acquire('queue.named3', 'a', '60 s', '300 s');
SELECT :look, fence = :h_fence AS same_fence FROM leaselock.lease_acquire('queue.named3', 'h', '60 s', '300 s');
SELECT leaselock.lease_release_all('h'), leaselock.release_lock('queue.named3', 'h'), leaselock.lease_release_all('a');
-- ok: the only waiter tries and gets it: nobody else waits; its ticket joins
SELECT leaselock.try_lock('queue.named4', 'h', '5 s') IS NOT NULL AS got;
SELECT ticket AS a FROM leaselock.lease_acquire('queue.named4', 'a', '60 s', '300 s') \gset
SET leaselock.clock_offset = '6 s';
SELECT leaselock.try_lock('queue.named4', 'a', '60 s') AS a_fence \gset
SELECT :look, fence = :a_fence AS same_fence FROM leaselock.lease_get(:'a');
SELECT leaselock.lease_release_all('a'), leaselock.release_lock('queue.named4', 'a');
RESET leaselock.clock_offset;

--
-- In a transaction
--

-- ok: in every isolation, late in the transaction: places, polls, promotions
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
-- ok: a place undone by a savepoint, and taken anew under the same request id
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
-- ok: a promotion undone by a savepoint
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
-- fail: prepared, after a place was taken, a poll was made, or a wait was given up
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

--
-- leaselock.max_waiters
--

SET leaselock.max_waiters = 3;
SELECT ticket AS h FROM leaselock.lease_acquire('queue.full', 'h', '300 s') \gset
SELECT state FROM leaselock.lease_acquire('queue.full', 'a', '60 s', '10 s');
SELECT state, ticket FROM leaselock.lease_acquire('queue.full', 'b', '60 s', '300 s', request_id => :id) \gset b_
SELECT state FROM leaselock.lease_acquire('queue.full', 'c', '60 s', '300 s');
-- fail: the fourth
SELECT leaselock.lease_acquire('queue.full', 'd', '60 s', '300 s');
\echo :SQLSTATE
-- ok: who does not wait needs no place, nor does a retry, nor the holder
SELECT state FROM leaselock.lease_acquire('queue.full', 'd');
SELECT :look FROM leaselock.lease_acquire('queue.full', 'b', '60 s', '300 s', request_id => :id);
SELECT :look FROM leaselock.lease_acquire('queue.full', 'h', '60 s', '300 s');
-- ok: other locks have a queue of their own
SELECT state FROM leaselock.lease_acquire('queue.full2', 'd', '60 s', '300 s');
SELECT state FROM leaselock.lease_acquire('queue.full2', 'e', '60 s', '300 s');
-- ok: live waiters count, not those that were
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
DO $$
DECLARE
	o text;
BEGIN
	FOR o IN SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%' LOOP
		PERFORM leaselock.lease_release_all(o);
	END LOOP;
END $$;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
