-- Waits that would close a cycle are refused: the newest wait of the cycle.  Here one
-- session acts for all owners; crossing waits are in test/specs.
LOAD 'leaselock';
\set look 'state, ticket, fence, depth, position, holder'

CREATE FUNCTION pg_temp.hold(name text, owner text, scope text DEFAULT 'deadlock') RETURNS text LANGUAGE sql AS
	'SELECT state FROM leaselock.lease_acquire(name, owner, ''300 s'', scope => scope)';
CREATE FUNCTION pg_temp.wait(name text, owner text, scope text DEFAULT 'deadlock') RETURNS text LANGUAGE sql AS
	'SELECT state FROM leaselock.lease_acquire(name, owner, ''60 s'', ''300 s'', scope)';
-- Everything that waits or is held.
CREATE FUNCTION pg_temp.queue() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
		SELECT concat_ws(' ', CASE scope WHEN 'deadlock' THEN name ELSE scope || '/' || name END || ':',
			string_agg(owner, ' ' ORDER BY position NULLS FIRST, requested_at)) AS line
		FROM leaselock.lease_tickets WHERE scope LIKE 'deadlock%' GROUP BY scope, name) l
$$;
CREATE FUNCTION pg_temp.release_all() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	WHILE EXISTS (SELECT FROM leaselock.lease_tickets WHERE scope LIKE 'deadlock%') LOOP
		FOR r IN SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE scope LIKE 'deadlock%' LOOP
			PERFORM leaselock.lease_release_all(r.owner);
		END LOOP;
	END LOOP;
	FOR r IN SELECT name, owner, scope FROM leaselock.lease_status WHERE scope LIKE 'deadlock%' LOOP
		PERFORM leaselock.release_lock(r.name, r.owner, r.scope);
	END LOOP;
END $$;

--
-- Two
--

SELECT pg_temp.hold('x', 'a'), pg_temp.hold('y', 'b');
SELECT pg_temp.wait('y', 'a');
-- ok: refused at once, with the chain; it has no ticket, no place
SELECT :look, name, owner, scope, expires_at, wait_until, remaining_ms, next_call_ms, holder_role = current_user AS holder_role, request_id
FROM leaselock.lease_acquire('x', 'b', '60 s', '300 s', 'deadlock');
SELECT pg_temp.queue();
-- ok: again
SELECT pg_temp.wait('x', 'b');
-- ok: a caller that does not wait closes nothing
SELECT state FROM leaselock.lease_acquire('x', 'b', scope => 'deadlock');
SELECT leaselock.try_lock('x', 'b', '60 s', 'deadlock');
-- ok: the older wait is not refused, however often it looks
SELECT g.state, g.position FROM leaselock.lease_tickets t, leaselock.lease_get(t.ticket) g WHERE t.scope = 'deadlock' AND t.state = 'waiting';
-- ok: after a release of what the other waits for, the wait is accepted
SELECT leaselock.lease_release_all('b');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.queue();
SELECT pg_temp.release_all();

-- ok: a request id that ended this way is not remembered
\set id '''00000000-0000-0000-0000-0000000000d1'''
SELECT pg_temp.hold('x', 'a'), pg_temp.hold('y', 'b');
SELECT pg_temp.wait('y', 'a');
SELECT :look, request_id = :id AS request_id FROM leaselock.lease_acquire('x', 'b', '60 s', '300 s', 'deadlock', :id);
-- nor is it by another identity
SELECT state FROM leaselock.lease_acquire('x', 'c', '60 s', '300 s', 'deadlock', :id);
SELECT leaselock.lease_release_all('c');
SELECT state FROM leaselock.lease_acquire('y', 'b', '60 s', '300 s', 'deadlock', :id);
SELECT leaselock.lease_release_all('b');
SELECT pg_temp.queue();
SELECT state, position FROM leaselock.lease_acquire('x', 'b', '60 s', '300 s', 'deadlock', '00000000-0000-0000-0000-0000000000d2');
SELECT pg_temp.release_all();

--
-- Three, five
--

SELECT pg_temp.hold('x', 'a'), pg_temp.hold('y', 'b'), pg_temp.hold('z', 'c');
SELECT pg_temp.wait('y', 'a');
SELECT pg_temp.wait('z', 'b');
SELECT pg_temp.wait('x', 'c');
-- ok: an outsider may wait for each of them
SELECT pg_temp.wait('x', 'd');
SELECT pg_temp.wait('y', 'd');
SELECT pg_temp.queue();
SELECT pg_temp.release_all();

SELECT name, pg_temp.hold(name, owner) FROM (VALUES ('l1', 'a'), ('l2', 'b'), ('l3', 'c'), ('l4', 'd'), ('l5', 'e')) v (name, owner);
SELECT name, pg_temp.wait(name, owner) FROM (VALUES ('l2', 'a'), ('l3', 'b'), ('l4', 'c'), ('l5', 'd')) v (name, owner);
SELECT pg_temp.wait('l1', 'e');
-- ok: without the middle link there is no cycle
SELECT leaselock.lease_release_all('c');
SELECT pg_temp.wait('l1', 'e');
SELECT pg_temp.queue();
SELECT pg_temp.release_all();
-- ok: whatever their order, the last wait is refused: here the middle one
SELECT name, pg_temp.hold(name, owner) FROM (VALUES ('l1', 'a'), ('l2', 'b'), ('l3', 'c'), ('l4', 'd'), ('l5', 'e')) v (name, owner);
SELECT name, pg_temp.wait(name, owner) FROM (VALUES ('l1', 'e'), ('l4', 'c'), ('l2', 'a'), ('l5', 'd')) v (name, owner);
SELECT pg_temp.wait('l3', 'b');
SELECT pg_temp.release_all();

--
-- Across scopes
--

SELECT pg_temp.hold('x', 'a', 'deadlock.one'), pg_temp.hold('x', 'b', 'deadlock.two');
SELECT pg_temp.wait('x', 'a', 'deadlock.two');
SELECT pg_temp.wait('x', 'b', 'deadlock.one');
SELECT pg_temp.queue();
SELECT pg_temp.release_all();

--
-- Through waiters ahead
--

-- ok: b waits only behind the holder, c behind b; then b waits for c
SELECT pg_temp.hold('x', 'h'), pg_temp.hold('y', 'c');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.wait('x', 'c');
SELECT pg_temp.wait('y', 'b');
-- ok: the other way round there is no cycle: c waits behind b, b behind nobody
SELECT leaselock.lease_release_all('c');
SELECT pg_temp.hold('y', 'b');
SELECT pg_temp.wait('x', 'c');
SELECT pg_temp.wait('y', 'c');
SELECT pg_temp.queue();
SELECT pg_temp.release_all();
-- ok: two crossed queues, neither holder waits
SELECT pg_temp.hold('x', 'h'), pg_temp.hold('y', 'i');
SELECT pg_temp.wait('x', 'a');
SELECT pg_temp.wait('y', 'b');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.wait('y', 'a');
SELECT pg_temp.queue();
SELECT pg_temp.release_all();
-- ok: three, the middle one being a waiter ahead
SELECT pg_temp.hold('x', 'h'), pg_temp.hold('y', 'a'), pg_temp.hold('z', 'c');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.wait('z', 'b');
SELECT pg_temp.wait('y', 'c');
SELECT pg_temp.wait('x', 'a');
SELECT pg_temp.queue();
-- ok: without the waiter ahead there is no cycle
SELECT leaselock.lease_release_all('b');
SELECT pg_temp.wait('x', 'a');
SELECT pg_temp.release_all();

--
-- What makes no edge
--

-- ok: a cancelled wait
SELECT pg_temp.hold('x', 'a'), pg_temp.hold('y', 'b');
SELECT ticket FROM leaselock.lease_acquire('y', 'a', '60 s', '300 s', 'deadlock') \gset
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.release_all();
-- ok: reentrancy: the holder is let in whoever waits, and a second ticket of a waiter
-- waits for nobody new
SELECT pg_temp.hold('x', 'a'), pg_temp.hold('y', 'b');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.wait('x', 'a');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.wait('x', 'c');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.queue();
-- ok: with one of two released, the other still makes an edge
SELECT pg_temp.hold('y', 'b');
SELECT t.state FROM (SELECT ticket FROM leaselock.lease_tickets WHERE scope = 'deadlock' AND name = 'y' LIMIT 1) o, leaselock.lease_release(o.ticket) t;
SELECT pg_temp.wait('y', 'a');
SELECT pg_temp.release_all();
-- ok: the same label under another role
CREATE ROLE regress_leaselock_other;
SELECT pg_temp.hold('x', 'a'), pg_temp.hold('y', 'b');
SELECT pg_temp.wait('y', 'a');
SET ROLE regress_leaselock_other;
SELECT state FROM leaselock.lease_acquire('x', 'b', '60 s', '300 s', 'deadlock');
SELECT leaselock.lease_release_all('b');
RESET ROLE;
DROP ROLE regress_leaselock_other;
SELECT pg_temp.release_all();

--
-- Named holds
--

SELECT leaselock.try_lock('x', 'a', '300 s', 'deadlock') IS NOT NULL AS got;
SELECT pg_temp.hold('y', 'b');
SELECT pg_temp.wait('y', 'a');
SELECT pg_temp.wait('x', 'b');
SELECT leaselock.release_lock('x', 'a', 'deadlock');
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.release_all();
-- ok: two of them
SELECT leaselock.try_lock('x', 'a', '300 s', 'deadlock') IS NOT NULL AS got, leaselock.try_lock('y', 'b', '300 s', 'deadlock') IS NOT NULL AS got;
SELECT pg_temp.wait('x', 'b');
SELECT pg_temp.wait('y', 'a');
SELECT pg_temp.release_all();
SELECT count(*) FROM leaselock.lease_status WHERE scope LIKE 'deadlock%' AND NOT lapsed;

--
-- Long queues: more than the first of the two searches looks at
--

-- a holds x, and 200 wait for it; the last of them holds y
SELECT pg_temp.hold('x', 'a'), pg_temp.hold('y', 'w200');
SELECT w.state, count(*) FROM generate_series(1, 200) i, leaselock.lease_acquire('x', 'w' || i, '60 s', '300 s', 'deadlock') w GROUP BY w.state;
SELECT pg_temp.wait('y', 'a');
-- ok: no cycle, no refusal: y's holder waits for a, c does not
SELECT pg_temp.hold('z', 'c');
SELECT pg_temp.wait('z', 'a');
SELECT pg_temp.wait('y', 'd');
-- the chain through the middle of a second queue: 200 wait for z; the 150th of
-- them waits for what w180 holds
SELECT leaselock.lease_release_all('a');
SELECT pg_temp.release_all();
SELECT pg_temp.hold('x', 'a'), pg_temp.hold('z', 'h'), pg_temp.hold('q', 'w180');
SELECT w.state, count(*) FROM generate_series(1, 200) i, leaselock.lease_acquire('x', 'w' || i, '60 s', '300 s', 'deadlock') w GROUP BY w.state;
SELECT w.state, count(*) FROM generate_series(1, 200) i, leaselock.lease_acquire('z', 'v' || i, '60 s', '300 s', 'deadlock') w GROUP BY w.state;
SELECT pg_temp.wait('q', 'v150');
SELECT pg_temp.wait('z', 'a');
-- ok: without that one there is no cycle
SELECT leaselock.lease_release_all('v150');
SELECT pg_temp.wait('z', 'a');
SELECT name, state, count(*) FROM leaselock.lease_tickets WHERE scope = 'deadlock' GROUP BY 1, 2 ORDER BY 1, 2;
SELECT pg_temp.release_all();
SELECT count(*) FROM leaselock.lease_status WHERE scope LIKE 'deadlock%' AND NOT lapsed;

--
-- What the clock has ended makes no edge.  Each case has locks of its own, because a
-- lock's time does not run backwards.
--

-- ok: a hold that has lapsed, with somebody waiting: c waits for what b held, b for a
SET leaselock.waiter_timeout = '2 min';
SELECT pg_temp.hold('x1', 'a'), pg_temp.hold('z1', 'c');
SELECT state FROM leaselock.lease_acquire('y1', 'b', '10 s', scope => 'deadlock');
SELECT pg_temp.wait('x1', 'b');
SELECT pg_temp.wait('y1', 'c');
SELECT pg_temp.wait('z1', 'a');
SET leaselock.clock_offset = '11 s';
SELECT pg_temp.wait('z1', 'a');
SELECT pg_temp.queue();
RESET leaselock.waiter_timeout;
SELECT pg_temp.release_all();
-- ok: a named hold
SET leaselock.waiter_timeout = '2 min';
SELECT pg_temp.hold('x2', 'a'), pg_temp.hold('z2', 'c');
SELECT leaselock.try_lock('y2', 'b', '10 s', 'deadlock') IS NOT NULL AS got;
SELECT pg_temp.wait('x2', 'b');
SELECT pg_temp.wait('y2', 'c');
SELECT pg_temp.wait('z2', 'a');
SET leaselock.clock_offset = '22 s';
SELECT pg_temp.wait('z2', 'a');
SELECT pg_temp.queue();
RESET leaselock.waiter_timeout;
SELECT pg_temp.release_all();
-- ok: a wait that has run out
SELECT pg_temp.hold('x3', 'a'), pg_temp.hold('y3', 'b');
SELECT state FROM leaselock.lease_acquire('y3', 'a', '60 s', '10 s', 'deadlock');
SET leaselock.clock_offset = '33 s';
SELECT pg_temp.wait('x3', 'b');
SELECT pg_temp.release_all();
-- ok: a waiter that fell silent, or a waiter ahead that is no longer live
SELECT pg_temp.hold('x4', 'a'), pg_temp.hold('y4', 'b');
SELECT pg_temp.wait('y4', 'a');
SET leaselock.clock_offset = '54 s';
SELECT pg_temp.wait('x4', 'b');
SELECT pg_temp.release_all();
SELECT pg_temp.hold('x5', 'h'), pg_temp.hold('y5', 'c');
SELECT pg_temp.wait('x5', 'b');
SELECT pg_temp.wait('x5', 'c');
SET leaselock.clock_offset = '75 s';
SELECT pg_temp.wait('y5', 'b');
SELECT pg_temp.release_all();
-- ok: with the clock stepped back, one lock's time is ahead of another's; the wait
-- being queued still counts as the newest
SET leaselock.clock_offset = '100 s';
SELECT pg_temp.hold('x6', 'b');
RESET leaselock.clock_offset;
SELECT pg_temp.hold('y6', 'a');
SELECT pg_temp.wait('x6', 'a');
SELECT pg_temp.wait('y6', 'b');
SELECT g.state FROM leaselock.lease_tickets t, leaselock.lease_get(t.ticket) g WHERE t.scope = 'deadlock' AND t.state = 'waiting';
SELECT leaselock.lease_release_all('a');
SELECT pg_temp.hold('y6', 'a');
SELECT pg_temp.wait('y6', 'b');
SELECT pg_temp.wait('x6', 'a');
SELECT g.state FROM leaselock.lease_tickets t, leaselock.lease_get(t.ticket) g WHERE t.scope = 'deadlock' AND t.state = 'waiting';
SELECT pg_temp.release_all();
SELECT count(*) FROM leaselock.lease_status WHERE scope LIKE 'deadlock%' AND NOT lapsed;
