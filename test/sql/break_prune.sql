-- What an operator does: lease_break, lease_prune, fence_bump.  In a database of its
-- own, so that the counts are known.  Cases with overlapping sessions are in
-- test/specs.
\set db :DBNAME
CREATE DATABASE regress_leaselock_prune;
\c regress_leaselock_prune
CREATE EXTENSION leaselock;
\set SHOW_CONTEXT never
-- Rows in the tables.
CREATE FUNCTION public.rows() RETURNS TABLE (locks bigint, tickets bigint, blockers bigint) LANGUAGE sql AS
	'SELECT (SELECT count(*) FROM leaselock.locks), (SELECT count(*) FROM leaselock.tickets), (SELECT count(*) FROM leaselock.blockers)';

--
-- lease_break
--

SELECT ticket AS a, fence AS a_fence FROM leaselock.lease_acquire('break', 'a', '300 s') \gset
SELECT ticket AS a2 FROM leaselock.lease_acquire('break', 'a', '10 s') \gset
SELECT ticket AS a3 FROM leaselock.lease_acquire('break', 'a', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'a3');
SELECT leaselock.try_lock('break', 'a', '1 h') = :a_fence AS hold;
SELECT ticket AS b FROM leaselock.lease_acquire('break', 'b', '60 s', '300 s') \gset
SELECT ticket AS b2 FROM leaselock.lease_acquire('break', 'b', '60 s', '300 s') \gset
SELECT ticket AS c FROM leaselock.lease_acquire('break', 'c', '60 s', '300 s') \gset
SET leaselock.clock_offset = '11 s';
-- ok: there is no such grant: nothing happens
SELECT leaselock.lease_break('break', :a_fence - 1);
SELECT leaselock.lease_break('break', :a_fence + 1);
SELECT leaselock.lease_break('break', 0);
SELECT leaselock.lease_break('break', :a_fence, 'break');
SELECT leaselock.lease_break('break never used', :a_fence);
SELECT owner, depth, waiters FROM leaselock.lease_peek('break');
-- ok: the grant ends with all that belongs to it; a lapsed ticket is expired, a
-- released one stays released; the first waiter is promoted, once
BEGIN;
SELECT leaselock.lease_break('break', :a_fence);
SELECT owner, depth, waiters, fence > :a_fence AS greater FROM leaselock.lease_peek('break');
ROLLBACK;
SELECT owner, depth, waiters, fence = :a_fence AS same FROM leaselock.lease_peek('break');
SELECT leaselock.lease_break('break', :a_fence);
SELECT leaselock.lease_break('break', :a_fence);
SELECT owner, depth, waiters, fence > :a_fence AS greater, remaining_ms BETWEEN 1 AND 10000 AS unclaimed, fence AS b_fence
FROM leaselock.lease_peek('break') \gset s_
SELECT :'s_owner' AS owner, :s_depth AS depth, :s_waiters AS waiters, :'s_greater' AS greater, :'s_unclaimed' AS unclaimed;
SELECT a.state AS a, a2.state AS a2, a3.state AS a3
FROM leaselock.lease_get(:'a') a, leaselock.lease_get(:'a2') a2, leaselock.lease_get(:'a3') a3;
SELECT state, depth, fence = :a_fence AS same_fence, remaining_ms, next_call_ms, holder FROM leaselock.lease_get(:'a');
-- a broken ticket has ended: it is neither renewed nor released
SELECT state FROM leaselock.lease_renew(:'a');
SELECT state FROM leaselock.lease_release(:'a');
SELECT leaselock.renew_lock('break', 'a', '1 h'), leaselock.release_lock('break', 'a'), leaselock.fence_check('break', :a_fence, allow_lapsed => true);
SELECT owner, depth, waiters FROM leaselock.lease_peek('break');
-- both tickets of the promoted identity become held
SELECT b.state AS b, b2.state AS b2, b2.depth, b.remaining_ms BETWEEN 50000 AND 60000 AS full_lease
FROM leaselock.lease_get(:'b') b, leaselock.lease_get(:'b2') b2;
-- a new wait queues behind the others
SET leaselock.waiter_timeout = '300 s';
SELECT state FROM leaselock.lease_acquire('break', 'a', '60 s', '300 s');
SELECT position FROM leaselock.lease_tickets WHERE owner = 'a' AND state = 'waiting';
-- a lapsed grant can be broken as well, also while others wait
SET leaselock.clock_offset = '72 s';
SELECT state FROM leaselock.lease_acquire('break', 'd', '60 s', '300 s');
SELECT owner, lapsed, waiters FROM leaselock.lease_peek('break');
SELECT leaselock.lease_break('break', :s_b_fence);
SELECT owner, lapsed, waiters, fence > :s_b_fence AS greater FROM leaselock.lease_peek('break');
SELECT b.state AS b, b2.state AS b2 FROM leaselock.lease_get(:'b') b, leaselock.lease_get(:'b2') b2;
-- a free lock has no present grant
SELECT leaselock.lease_release_all('a'), leaselock.lease_release_all('d');
SELECT count(*) FROM leaselock.lease_peek('break');
SELECT leaselock.lease_break('break', (SELECT fence FROM leaselock.locks WHERE name = 'break'));
-- a lapsed named hold, which would otherwise stay
SELECT leaselock.try_lock('break hold', 'a', '1 s') AS hold \gset
SET leaselock.clock_offset = '80 s';
SELECT owner, lapsed, depth FROM leaselock.lease_peek('break hold');
SELECT leaselock.lease_break('break hold', :hold);
SELECT count(*) FROM leaselock.lease_peek('break hold');
SELECT leaselock.renew_lock('break hold', 'a', '1 s');
SELECT leaselock.try_lock('break hold', 'a', '1 s') > :hold AS greater;
-- a check in the same transaction fails, whether made before or after
SELECT leaselock.try_lock('break hold', 'a', '1 h') AS hold \gset
BEGIN;
SELECT leaselock.fence_check('break hold', :hold);
SELECT leaselock.lease_break('break hold', :hold);
SELECT leaselock.fence_check('break hold', :hold, allow_lapsed => true);
COMMIT;
\set VERBOSITY sqlstate
SELECT leaselock.fence_assert('break hold', :hold, allow_lapsed => true); -- fail
-- arguments
SELECT leaselock.lease_break(NULL, 1); -- fail
SELECT leaselock.lease_break('break', NULL); -- fail
SELECT leaselock.lease_break('break', 1, NULL); -- fail
SELECT leaselock.lease_break('', 1); -- fail
SELECT leaselock.lease_break('break', 1, ' '); -- fail
BEGIN READ ONLY;
SELECT leaselock.lease_break('break', 1); -- fail
ROLLBACK;
\set VERBOSITY default
RESET leaselock.waiter_timeout;
RESET leaselock.clock_offset;

--
-- lease_prune
--

TRUNCATE leaselock.locks, leaselock.tickets, leaselock.blockers;
-- A long retention keeps incremental pruning out when the clock is moved forward;
-- lease_prune itself gets the usual one.
LOAD 'leaselock';
SET leaselock.ticket_retention = '20 d';
CREATE FUNCTION public.prune(older_than interval DEFAULT '1 day', max_rows int DEFAULT 10000, retention text DEFAULT '1 h', OUT removed bigint) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('leaselock.ticket_retention', retention, false);
	removed := leaselock.lease_prune(older_than, max_rows);
	PERFORM set_config('leaselock.ticket_retention', '20 d', false);
END $$;
-- Which tickets exist.
CREATE FUNCTION public.states(VARIADIC tickets uuid[]) RETURNS text LANGUAGE sql AS
	'SELECT string_agg((leaselock.lease_get(t)).state, '' '' ORDER BY nr) FROM unnest(tickets) WITH ORDINALITY u (t, nr)';
SELECT ticket AS released, fence AS fence FROM leaselock.lease_acquire('prune', 'a', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'released');
SELECT ticket AS held FROM leaselock.lease_acquire('prune', 'a', '300 s') \gset
SELECT ticket AS waiting FROM leaselock.lease_acquire('prune', 'b', '300 s', '300 s') \gset
SELECT ticket AS cancelled FROM leaselock.lease_acquire('prune', 'c', '300 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'cancelled');
SELECT ticket AS silent FROM leaselock.lease_acquire('prune', 'd', '300 s', '60 s') \gset
SELECT ticket AS expires FROM leaselock.lease_acquire('prune expires', 'a', '5 s') \gset
SELECT ticket AS broken, fence AS broken_fence FROM leaselock.lease_acquire('prune broken', 'a', '5 s') \gset
SELECT leaselock.lease_break('prune broken', :broken_fence);
SELECT leaselock.try_lock('prune hold', 'a', '1 min') AS hold \gset
SELECT leaselock.try_lock('prune long', 'a', '1000 days') AS long \gset
SELECT locks, tickets FROM public.rows();
-- ok: nothing ended that long ago; only the lock that was broken is idle
SELECT public.prune();
SELECT public.prune('0 s');
SELECT locks, tickets FROM public.rows();
SELECT public.states(:'released', :'held', :'waiting', :'cancelled', :'silent', :'expires', :'broken');
-- kept for leaselock.ticket_retention, whatever older_than says; a lapsed hold and
-- a lock whose grant has lapsed are removed, a lock with a queue is not
SET leaselock.clock_offset = '3500 s';
SELECT public.prune('0 s');
SELECT name FROM leaselock.locks ORDER BY name;
SELECT tickets FROM public.rows();
SELECT public.states(:'released', :'held', :'cancelled', :'expires', :'broken');
SELECT leaselock.renew_lock('prune hold', 'a', '1 min');
-- only tickets that ended an hour ago: not the one that lapsed after 300 s
SET leaselock.clock_offset = '3700 s';
SELECT public.prune('2 h');
SELECT public.prune('0 s');
SELECT public.states(:'released', :'held', :'waiting', :'cancelled', :'silent', :'expires', :'broken');
SELECT name FROM leaselock.locks ORDER BY name;
SET leaselock.clock_offset = '4000 s';
SELECT public.prune('0 s') AS pruned;
SELECT public.states(:'released', :'held', :'waiting', :'cancelled', :'silent', :'expires', :'broken');
SELECT name FROM leaselock.locks ORDER BY name;
-- a longer retention keeps more, a shorter one does not shorten older_than
SELECT ticket AS t FROM leaselock.lease_acquire('prune', 'a', '5 s') \gset
SELECT state FROM leaselock.lease_release(:'t');
SET leaselock.clock_offset = '5000 s';
SELECT public.prune('1 h', retention => '10 s');
SELECT public.prune('0 s', retention => '1 d'); -- the lock
SELECT public.states(:'t');
SELECT public.prune('1 min', retention => '10 s');
SELECT public.states(:'t');
-- a held lock is never pruned
SET leaselock.clock_offset = '900 d';
SELECT public.prune('0 s');
SELECT owner, lapsed, fence = :long AS same_fence FROM leaselock.lease_peek('prune long');
SELECT leaselock.release_lock('prune long', 'a');
SELECT public.prune('0 s');
SELECT locks, tickets FROM public.rows();
RESET leaselock.clock_offset;

-- the least and the most rows
SELECT count(leaselock.release_lock('prune ' || n, 'a')), count(leaselock.try_lock('prune ' || n, 'a', '1 s')) FROM generate_series(1, 10) n;
SELECT count(*) FROM generate_series(1, 10) n, leaselock.lease_acquire('prune ticket', 'a', '5 s', request_id => md5(n::text)::uuid) a;
SET leaselock.clock_offset = '2 h';
SELECT public.prune('0 s', 1), locks + tickets AS before FROM public.rows();
SELECT public.prune('0 s', 3), locks + tickets AS before FROM public.rows();
SELECT public.prune('0 s', 10), locks + tickets AS before FROM public.rows();
SELECT public.prune('0 s', 2147483647), locks + tickets AS before FROM public.rows();
SELECT public.prune('0 s', 1), locks + tickets AS before FROM public.rows();
RESET leaselock.clock_offset;
-- rolled back
SELECT leaselock.try_lock('prune', 'a', '1 s') AS fence \gset
SET leaselock.clock_offset = '2 d';
BEGIN;
SELECT public.prune();
SELECT locks FROM public.rows();
ROLLBACK;
SELECT locks FROM public.rows();
SELECT leaselock.fence_check('prune', :fence, allow_lapsed => true), leaselock.renew_lock('prune', 'a', '1 s');
-- a fence that was checked before: the commit fails if its own transaction pruned
-- the lock
\set VERBOSITY sqlstate
SET leaselock.clock_offset = '4 d';
BEGIN;
SELECT leaselock.fence_check('prune', :fence, allow_lapsed => true);
SELECT public.prune();
SELECT leaselock.fence_check('prune', :fence, allow_lapsed => true);
COMMIT; -- fail
\set VERBOSITY default
SELECT leaselock.fence_check('prune', :fence, allow_lapsed => true);
RESET leaselock.clock_offset;
-- hints about who waits behind whom are removed with them
TRUNCATE leaselock.locks, leaselock.tickets, leaselock.blockers;
SELECT ticket AS a FROM leaselock.lease_acquire('prune', 'a', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('prune', 'b', '300 s', '300 s') \gset
SELECT locks, tickets, blockers > 0 AS blockers FROM public.rows();
SELECT public.prune('0 s');
SELECT locks, tickets, blockers > 0 AS blockers FROM public.rows();
SET leaselock.clock_offset = '2 h';
SELECT public.prune('0 s') >= 3 AS pruned;
SELECT * FROM public.rows();
RESET leaselock.clock_offset;

-- a hint that outlived the last queue is removed, too
SELECT state FROM leaselock.lease_acquire('hint', 'a');
SELECT state FROM leaselock.lease_acquire('hint', 'b', wait => '10 s');
DELETE FROM leaselock.tickets WHERE owner = 'b';
DELETE FROM leaselock.queues;
SELECT leaselock.lease_release_all('a');
SELECT blockers > 0 AS blockers FROM public.rows();
SELECT leaselock.lease_prune('0 s') > 0 AS pruned;
SELECT blockers > 0 AS blockers FROM public.rows();

-- fences do not go back: neither after a prune, nor if the clock was ahead
SET leaselock.clock_offset = '10 d';
SELECT ticket AS t, fence AS f1 FROM leaselock.lease_acquire('prune', 'a') \gset
SELECT state FROM leaselock.lease_release(:'t');
SET leaselock.clock_offset = '15 d';
SELECT public.prune();
SELECT locks FROM public.rows();
RESET leaselock.clock_offset;
SELECT fence AS f2, ticket AS t FROM leaselock.lease_acquire('prune', 'a') \gset
SELECT fence AS f3 FROM leaselock.lease_acquire('prune other', 'a') \gset
SELECT :f2 > :f1 AS greater, :f3 > :f1 AS other_greater, (SELECT state FROM leaselock.lease_release(:'t'));
SELECT leaselock.lease_release_all('a');

-- arguments
SELECT leaselock.lease_prune('-1 s'); -- fail
SELECT leaselock.lease_prune('1 month'); -- fail
SELECT leaselock.lease_prune(max_rows => 0); -- fail
\set VERBOSITY sqlstate
SELECT leaselock.lease_prune(NULL); -- fail
SELECT leaselock.lease_prune('1 s', NULL); -- fail
SELECT leaselock.lease_prune('1 s', -1); -- fail
BEGIN READ ONLY;
SELECT leaselock.lease_prune(); -- fail
ROLLBACK;
\set VERBOSITY default

--
-- fence_bump
--

SELECT leaselock.try_lock('bump', 'a', '1 h') AS f1 \gset
SELECT leaselock.fence_bump() AS b1 \gset
SELECT leaselock.fence_bump() AS b2 \gset
-- ok: the present grant is not touched, the next is above
SELECT :b1 > :f1 AS above_grant, :b2 > :b1 AS above_floor, leaselock.fence_check('bump', :f1), leaselock.try_lock('bump', 'a', '1 h') = :f1 AS same;
SELECT leaselock.release_lock('bump', 'a');
SELECT leaselock.try_lock('bump', 'a', '1 h') AS f2 \gset
SELECT leaselock.try_lock('bump other', 'a', '1 h') AS f3 \gset
SELECT :f2 > :b2 AS above, :f3 > :b2 AS other_above, count(*) AS floors FROM leaselock.floor;
-- above the fences that are above the floor
SET leaselock.clock_offset = '3000 d';
SELECT leaselock.try_lock('bump ahead', 'a', '1 h') AS f4 \gset
RESET leaselock.clock_offset;
SELECT leaselock.fence_bump() AS b3 \gset
SELECT :f4 > :b2 AS ahead, :b3 > :f4 AS above;
-- several floors, as after a second restore: the greatest counts
INSERT INTO leaselock.floor VALUES (1, 1), (:b3 + 1000, 1), (2, 2);
SELECT leaselock.try_lock('bump more', 'a', '1 h') > :b3 + 1000 AS above, leaselock.fence_bump() > :b3 + 1000 AS bumped;
-- rolled back
BEGIN;
SELECT leaselock.fence_bump() > :b3 AS above;
ROLLBACK;
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT leaselock.fence_bump(); -- fail
ROLLBACK;
\set VERBOSITY default

\c :db
DROP DATABASE regress_leaselock_prune;
