-- Events: every kind, their owners and times, and who sees them.
-- Time is moved by leaselock.clock_offset.
LOAD 'leaselock';

-- Events are shown once no older transaction is in progress anywhere; other sessions
-- may be active on this server.
CREATE PROCEDURE pg_temp.await() LANGUAGE plpgsql AS $$
DECLARE
	newest xid8 := (SELECT xid FROM leaselock.events ORDER BY xid DESC LIMIT 1);
BEGIN
	WHILE pg_snapshot_xmin(pg_current_snapshot()) <= newest LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
-- A fence is shown as the number of fences that the lock had before it, a ticket by
-- its name in the test.
CREATE TABLE labels (ticket uuid, label text);
CREATE FUNCTION pg_temp.label(label text, ticket uuid) RETURNS uuid LANGUAGE sql AS
	'INSERT INTO labels VALUES (ticket, label) RETURNING ticket';
CREATE VIEW told AS
	SELECT n, kind, scope, name, owner, role = current_user AS own_role,
		dense_rank() OVER (PARTITION BY scope, name, fence IS NULL ORDER BY fence) * CASE WHEN fence IS NOT NULL THEN 1 END AS grant,
		label, note, at, xid, id, ticket
	FROM leaselock.lease_events(max_rows => 100000) WITH ORDINALITY AS e (id, xid, at, kind, scope, name, owner, role, fence, ticket, note, n)
	LEFT JOIN labels USING (ticket);
\set told 'kind, owner, "grant", label FROM told WHERE scope = ''events'' AND name'

-- off, the default: nothing
SHOW leaselock.events;
SELECT ticket FROM leaselock.lease_acquire('off', 'a', scope => 'events') \gset
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT count(*) FROM leaselock.events;

--
-- grants
--

SET leaselock.events = grants;

-- ok: granted and released; a re-entrant ticket and a named hold have an event
-- each, and one at their end
SELECT pg_temp.label('a1', ticket) AS a1 FROM leaselock.lease_acquire('shares', 'a', scope => 'events') \gset
SELECT pg_temp.label('a2', ticket) AS a2 FROM leaselock.lease_acquire('shares', 'a', scope => 'events') \gset
SELECT leaselock.try_lock('shares', 'a', '1 min', 'events') > 0 AS held;
SELECT leaselock.try_lock('shares', 'a', '1 min', 'events') > 0 AS held_already;
-- ok: neither a contended call nor a look nor a renewal is an event here
SELECT state FROM leaselock.lease_acquire('shares', 'b', scope => 'events');
SELECT state FROM leaselock.lease_get(:'a1');
SELECT state FROM leaselock.lease_renew(:'a1');
SELECT leaselock.renew_lock('shares', 'a', '1 min', 'events');
SELECT state FROM leaselock.lease_release(:'a1');
SELECT state FROM leaselock.lease_release(:'a1');
SELECT leaselock.release_lock('shares', 'a', 'events');
SELECT leaselock.release_lock('shares', 'a', 'events');
SELECT leaselock.lease_release_all('a', 'events');
CALL pg_temp.await();
SELECT :told = 'shares' ORDER BY n;

-- ok: a promotion by a release, a promotion by the waiter's own look, and further
-- waits of an identity that join its grant
SELECT pg_temp.label('h', ticket) AS h FROM leaselock.lease_acquire('turns', 'h', scope => 'events') \gset
SELECT pg_temp.label('p', ticket) AS p FROM leaselock.lease_acquire('turns', 'p', '60 s', '300 s', 'events') \gset
SELECT pg_temp.label('p2', ticket) AS p2 FROM leaselock.lease_acquire('turns', 'p', '60 s', '300 s', 'events') \gset
SELECT pg_temp.label('q', ticket) AS q FROM leaselock.lease_acquire('turns', 'q', '60 s', '300 s', 'events') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT state FROM leaselock.lease_get(:'p');
SELECT state FROM leaselock.lease_get(:'p2');
SET leaselock.waiter_timeout = '300 s';
SELECT state FROM leaselock.lease_get(:'q');
SET leaselock.clock_offset = '61 s';
SELECT state FROM leaselock.lease_get(:'q');
RESET leaselock.clock_offset;
RESET leaselock.waiter_timeout;
CALL pg_temp.await();
SELECT :told = 'turns' ORDER BY n;

-- ok: a lapse is silent until somebody takes the lock over; then there is one event,
-- with the time at which the lease ran out
SELECT pg_temp.label('x', ticket) AS x, expires_at AS x_end FROM leaselock.lease_acquire('lapse', 'x', scope => 'events') \gset
SET leaselock.clock_offset = '61 s';
SELECT owner, lapsed FROM leaselock.lease_peek('lapse', 'events');
CALL pg_temp.await();
SELECT :told = 'lapse' ORDER BY n;
SELECT pg_temp.label('y', ticket) AS y FROM leaselock.lease_acquire('lapse', 'y', scope => 'events') \gset
SELECT state FROM leaselock.lease_get(:'x');
RESET leaselock.clock_offset;
CALL pg_temp.await();
SELECT :told = 'lapse' ORDER BY n;
SELECT kind, owner, at = :'x_end' AS when_it_ran_out, at < (SELECT recorded_at FROM leaselock.events e WHERE (e.xid, e.id) = (t.xid, t.id)) AS recorded_later
FROM told t WHERE name = 'lapse' AND kind = 'expired';

-- ok: or until its owner settles its last ticket; no second event at the takeover
SELECT pg_temp.label('s1', ticket) AS s1 FROM leaselock.lease_acquire('settled', 's', scope => 'events') \gset
SELECT pg_temp.label('s2', ticket) AS s2, expires_at AS s2_end FROM leaselock.lease_acquire('settled', 's', '100 s', scope => 'events') \gset
SET leaselock.clock_offset = '101 s';
SELECT state FROM leaselock.lease_renew(:'s1');
CALL pg_temp.await();
SELECT :told = 'settled' ORDER BY n;
SELECT state FROM leaselock.lease_release(:'s2');
SELECT state FROM leaselock.lease_release(:'s2');
SELECT pg_temp.label('t', ticket) AS t FROM leaselock.lease_acquire('settled', 't', scope => 'events') \gset
CALL pg_temp.await();
SELECT :told = 'settled' ORDER BY n;
SELECT kind, at = :'s2_end' AS when_the_last_ran_out FROM told WHERE name = 'settled' AND kind = 'expired';
RESET leaselock.clock_offset;

-- ok: if only one of several tickets runs out there is no event
SELECT pg_temp.label('o1', ticket) AS o1 FROM leaselock.lease_acquire('one of two', 'o', '5 s', scope => 'events') \gset
SELECT pg_temp.label('o2', ticket) AS o2 FROM leaselock.lease_acquire('one of two', 'o', '100 s', scope => 'events') \gset
SET leaselock.clock_offset = '6 s';
SELECT state FROM leaselock.lease_get(:'o1');
SELECT state FROM leaselock.lease_release(:'o1');
SELECT state FROM leaselock.lease_release(:'o2');
RESET leaselock.clock_offset;
CALL pg_temp.await();
SELECT :told = 'one of two' ORDER BY n;

-- ok: a lapsed named hold can be renewed and released; that is no expiry
-- ... until somebody takes the lock over
SELECT leaselock.try_lock('hold', 'n', '5 s', 'events') > 0 AS held;
SET leaselock.clock_offset = '6 s';
SELECT leaselock.renew_lock('hold', 'n', '5 s', 'events');
SET leaselock.clock_offset = '12 s';
SELECT leaselock.release_lock('hold', 'n', 'events');
SELECT leaselock.try_lock('hold', 'n', '5 s', 'events') > 0 AS held;
SET leaselock.clock_offset = '18 s';
SELECT leaselock.try_lock('hold', 'm', '5 s', 'events') > 0 AS held;
RESET leaselock.clock_offset;
CALL pg_temp.await();
SELECT :told = 'hold' ORDER BY n;

-- ok: broken, for each share; the event names the owner of the lease, not who broke it
SELECT pg_temp.label('b1', ticket) AS b1, fence AS b_fence FROM leaselock.lease_acquire('break', 'b', '5 s', scope => 'events') \gset
SELECT pg_temp.label('b2', ticket) AS b2 FROM leaselock.lease_acquire('break', 'b', scope => 'events') \gset
SELECT pg_temp.label('b3', ticket) AS b3 FROM leaselock.lease_acquire('break', 'b', scope => 'events') \gset
SELECT leaselock.try_lock('break', 'b', '1 min', 'events') = :b_fence AS same_grant;
SELECT pg_temp.label('c', ticket) AS c FROM leaselock.lease_acquire('break', 'c', '60 s', '300 s', 'events') \gset
SET leaselock.clock_offset = '6 s';
SELECT leaselock.lease_break('break', :b_fence, 'events');
SELECT leaselock.lease_break('break', :b_fence, 'events');
RESET leaselock.clock_offset;
CALL pg_temp.await();
SELECT :told = 'break' ORDER BY n;
-- ok: a lapsed grant is broken as well
SELECT fence AS d_fence, pg_temp.label('d', ticket) AS d FROM leaselock.lease_acquire('break lapsed', 'd', scope => 'events') \gset
SET leaselock.clock_offset = '61 s';
SELECT leaselock.lease_break('break lapsed', :d_fence, 'events');
RESET leaselock.clock_offset;
CALL pg_temp.await();
SELECT :told = 'break lapsed' ORDER BY n;

-- ok: operators' actions, with the operator's role and no owner; a grant that they
-- break has an event with its own owner
CREATE ROLE regress_leaselock_events;
CREATE ROLE regress_leaselock_events_operator;
SET ROLE regress_leaselock_events_operator;
SELECT state FROM leaselock.lease_acquire('stranger', 'st', scope => 'events.team');
RESET ROLE;
SELECT leaselock.lease_scope_create('events.team', 'regress_leaselock_events');
SELECT leaselock.lease_scope_create('events.team', 'regress_leaselock_events_operator');
SELECT leaselock.lease_scope_drop('events.team');
SELECT leaselock.lease_scope_drop('events.team');
SELECT leaselock.fence_bump() AS floor \gset
CALL pg_temp.await();
SELECT kind, scope, name, owner, CASE role WHEN current_user THEN 'the operator' ELSE role END AS role, fence IS NOT NULL AS fenced FROM leaselock.lease_events(max_rows => 100000) e
WHERE scope = 'events.team' OR scope IS NULL ORDER BY xid, id;
SELECT fence = :floor AS the_new_floor FROM leaselock.lease_events(max_rows => 100000) WHERE kind = 'bumped';

-- ok: under grants there are no other events
SELECT kind FROM told GROUP BY kind ORDER BY kind COLLATE "C";
-- ok: every event has its transaction's id, once, and in order
SELECT count(*) = count(DISTINCT (xid, id)) AS unique, min(id) AS first FROM told;
SELECT bool_and((xid, id) > (before_xid, before_id)) AS in_order
FROM (SELECT xid, id, lag(xid) OVER w AS before_xid, lag(id) OVER w AS before_id FROM told WINDOW w AS (ORDER BY n)) e;

-- ok: the note of the ticket; for a lapsed grant the note of one of its tickets
SELECT pg_temp.label('n1', ticket) AS n1 FROM leaselock.lease_acquire('note', 'n', scope => 'events', note => 'first') \gset
SELECT pg_temp.label('n2', ticket) AS n2 FROM leaselock.lease_acquire('note', 'n', scope => 'events', note => 'second') \gset
SELECT leaselock.try_lock('note', 'n', '1 min', 'events') > 0 AS held;
SELECT state FROM leaselock.lease_release(:'n2');
SET leaselock.clock_offset = '61 s';
SELECT state FROM leaselock.lease_acquire('note', 'o', scope => 'events');
RESET leaselock.clock_offset;
CALL pg_temp.await();
SELECT kind, owner, label, note FROM told WHERE name = 'note' ORDER BY n;
-- ok: the longest values still fit into the table
CREATE FUNCTION pg_temp.noise(seed text, length int) RETURNS text LANGUAGE sql AS
	$$SELECT left(string_agg(md5(seed || i), ''), length) FROM generate_series(1, 40) i$$;
SELECT state FROM leaselock.lease_acquire(pg_temp.noise('n', 255), pg_temp.noise('o', 255), scope => pg_temp.noise('s', 255), note => pg_temp.noise('x', 1000));
CALL pg_temp.await();
SELECT kind, length(name) AS name, length(owner) AS owner, length(note) AS note FROM told WHERE scope = pg_temp.noise('s', 255);
SELECT pg_relation_size(reltoastrelid) AS moved_out FROM pg_class WHERE oid = 'leaselock.events'::regclass;

--
-- all
--

SET leaselock.events = 'all';
SELECT pg_temp.label('A', ticket) AS a FROM leaselock.lease_acquire('all', 'A', scope => 'events') \gset
SELECT pg_temp.label('B', ticket) AS b FROM leaselock.lease_acquire('all', 'B', '60 s', '300 s', 'events') \gset
SELECT pg_temp.label('C', ticket) AS c FROM leaselock.lease_acquire('all', 'C', '60 s', '300 s', 'events') \gset
SELECT pg_temp.label('D', ticket) AS d FROM leaselock.lease_acquire('all', 'D', '60 s', '10 s', 'events') \gset
-- ok: a poll that changes nothing has no event
SELECT state FROM leaselock.lease_get(:'b');
SELECT state FROM leaselock.lease_renew(:'a');
SELECT leaselock.try_lock('all', 'A', '1 min', 'events') > 0 AS held;
SELECT leaselock.renew_lock('all', 'A', '1 min', 'events');
SELECT state FROM leaselock.lease_release(:'c');
SET leaselock.clock_offset = '11 s';
SELECT state FROM leaselock.lease_get(:'d');
SELECT leaselock.release_lock('all', 'A', 'events');
-- ok: the first look at a promoted ticket gives it the full lease
SELECT state FROM leaselock.lease_release(:'a');
SELECT state FROM leaselock.lease_get(:'b');
SELECT state FROM leaselock.lease_get(:'b');
-- ok: an abandoned wait ends when it is removed
SELECT pg_temp.label('E', ticket) AS e, wait_until AS e_until FROM leaselock.lease_acquire('all', 'E', '60 s', '100 s', 'events') \gset
SET leaselock.clock_offset = '90 min';
SELECT leaselock.lease_prune('1 h') > 0 AS pruned;
RESET leaselock.clock_offset;
CALL pg_temp.await();
SELECT :told = 'all' ORDER BY n;
SELECT at = :'e_until' AS when_the_wait_ran_out FROM told WHERE label = 'E' AND kind = 'timed_out';

-- ok: an immediate deadlock writes nothing; the deadlock of a waiting ticket has an
-- event
SELECT pg_temp.label('v1', ticket) AS v1 FROM leaselock.lease_acquire('dead 1', 'v', '300 s', scope => 'events') \gset
SELECT pg_temp.label('w2', ticket) AS w2 FROM leaselock.lease_acquire('dead 2', 'w', '300 s', scope => 'events') \gset
SELECT pg_temp.label('v2', ticket) AS v2 FROM leaselock.lease_acquire('dead 2', 'v', '60 s', '300 s', 'events') \gset
SET client_min_messages = warning;
SELECT state FROM leaselock.lease_acquire('dead 1', 'w', '60 s', '300 s', 'events');
RESET client_min_messages;
CALL pg_temp.await();
SELECT name, kind, owner, label FROM told WHERE scope = 'events' AND name LIKE 'dead%' ORDER BY n;
SELECT leaselock.lease_release_all('v', 'events') + leaselock.lease_release_all('w', 'events') AS released;

-- ok: lost access has an event
SELECT pg_temp.label('L', ticket) AS l FROM leaselock.lease_acquire('lost', 'L', scope => 'events.lost') \gset
SET ROLE regress_leaselock_events;
SELECT state FROM leaselock.lease_acquire('lost', 'M', '60 s', '300 s', 'events.lost');
RESET ROLE;
SELECT leaselock.lease_scope_create('events.lost', current_user);
CALL pg_temp.await();
SELECT kind, owner, role = current_user AS own FROM leaselock.lease_events(max_rows => 100000) WHERE scope = 'events.lost' ORDER BY xid, id;
SELECT kind FROM told GROUP BY kind ORDER BY kind COLLATE "C";

-- ok: an idle lock that is removed settles its lapse
SET leaselock.events = grants;
SELECT leaselock.try_lock('idle', 'i', '5 s', 'events') > 0 AS held;
SET leaselock.clock_offset = '1 d';
SELECT leaselock.lease_prune('0 s') > 0 AS pruned;
RESET leaselock.clock_offset;
CALL pg_temp.await();
SELECT :told = 'idle' ORDER BY n;
-- ok: lease_prune is one event, if it has removed anything
SELECT leaselock.lease_prune('0 s') >= 0 AS rest;
SELECT count(*) AS before FROM leaselock.events \gset
SELECT leaselock.lease_prune('0 s');
SELECT count(*) - :before AS more FROM leaselock.events;

--
-- Transactions
--

-- ok: rolled-back changes have no events; a savepoint leaves a gap
BEGIN;
SELECT pg_temp.label('r0', ticket) AS r0 FROM leaselock.lease_acquire('rolled back', 'r', scope => 'events') \gset
ROLLBACK;
BEGIN;
SELECT pg_temp.label('r1', ticket) AS r1 FROM leaselock.lease_acquire('rolled back', 'r', scope => 'events') \gset
SAVEPOINT s;
SELECT pg_temp.label('r2', ticket) AS r2 FROM leaselock.lease_acquire('rolled back', 'r', scope => 'events') \gset
ROLLBACK TO s;
SELECT pg_temp.label('r3', ticket) AS r3 FROM leaselock.lease_acquire('rolled back', 'r', scope => 'events') \gset
-- ok: a transaction in progress does not even see its own
SELECT count(*) FROM told WHERE name = 'rolled back';
COMMIT;
CALL pg_temp.await();
SELECT kind, label, id, count(*) OVER (PARTITION BY xid) AS in_transaction FROM told WHERE name = 'rolled back' ORDER BY n;
SELECT leaselock.lease_release_all('r', 'events');

--
-- The cursor
--

CALL pg_temp.await();
SELECT count(*) AS total FROM leaselock.lease_events(max_rows => 100000) \gset
-- ok: page by page, whatever the size of the page, all events in order
CREATE FUNCTION pg_temp.pages(size int) RETURNS TABLE (xid xid8, id bigint) LANGUAGE plpgsql AS $$
DECLARE
	found bigint;
	after_xid xid8;
	after_id bigint;
BEGIN
	LOOP
		found := 0;
		FOR xid, id IN SELECT e.xid, e.id FROM leaselock.lease_events(after_xid, after_id, size) e LOOP
			found := found + 1;
			after_xid := xid;
			after_id := id;
			RETURN NEXT;
		END LOOP;
		EXIT WHEN found = 0;
		IF found > size THEN
			RAISE 'too many';
		END IF;
	END LOOP;
END $$;
SELECT size, count(*) = :total AS all, bool_and(e IS NOT DISTINCT FROM o) AS same_order
FROM generate_series(1, 3) size, LATERAL (SELECT row_number() OVER () AS n, p AS e FROM pg_temp.pages(size) p) e
LEFT JOIN (SELECT row_number() OVER () AS n, (xid, id)::text AS t, (xid, id) AS o FROM leaselock.lease_events(max_rows => 100000)) o USING (n)
GROUP BY size ORDER BY size;
-- ok: a transaction without a number is read as a whole
SELECT xid AS last_xid, id AS last_id FROM leaselock.lease_events(max_rows => 100000) ORDER BY xid DESC, id DESC LIMIT 1 \gset
SELECT count(*) FROM leaselock.lease_events(:'last_xid');
SELECT count(*) FROM leaselock.lease_events(:'last_xid', :last_id);
SELECT count(*) FROM leaselock.lease_events(:'last_xid', :last_id - 1);
SELECT count(*) FROM leaselock.lease_events(:'last_xid', 9223372036854775807);
SELECT count(*) > 0 AS some FROM leaselock.lease_events(:'last_xid', -9223372036854775808);
SELECT count(*) FROM leaselock.lease_events('18446744073709551615', 1);
SELECT count(*) = :total AS all FROM leaselock.lease_events('0', NULL, 100000);
-- fail: a number needs its transaction
SELECT count(*) FROM leaselock.lease_events(after_id => 1);
\echo :SQLSTATE
-- fail: max_rows is at least 1
SELECT count(*) FROM leaselock.lease_events(max_rows => 0);
\echo :SQLSTATE
SELECT count(*) FROM leaselock.lease_events(max_rows => -1);
\echo :SQLSTATE
SELECT count(*) FROM leaselock.lease_events(max_rows => NULL);
\echo :SQLSTATE

--
-- Who sees them
--

SELECT leaselock.lease_scope_create('events.closed', 'regress_leaselock_events_operator');
SET ROLE regress_leaselock_events_operator;
SELECT ticket FROM leaselock.lease_acquire('secret', 's', scope => 'events.closed') \gset
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT ticket FROM leaselock.lease_acquire('last', 's', scope => 'events') \gset
SELECT state FROM leaselock.lease_release(:'ticket');
RESET ROLE;
CALL pg_temp.await();
-- ok: a member sees its scope's events, and none without a scope
SET ROLE regress_leaselock_events_operator;
SELECT kind, scope, name FROM leaselock.lease_events(:'last_xid', :last_id) ORDER BY xid, id;
SELECT count(*) FROM leaselock.lease_events(max_rows => 100000) WHERE scope IS NULL;
-- ok: others do not, and events that they cannot see do not count
SET ROLE regress_leaselock_events;
SELECT kind, scope, name FROM leaselock.lease_events(:'last_xid', :last_id) ORDER BY xid, id;
SELECT kind, scope, name FROM leaselock.lease_events(:'last_xid', :last_id, 1);
SELECT count(*) FROM leaselock.events; -- fail: only by the function
\echo :SQLSTATE
SET leaselock.events = off; -- fail: superusers only
\echo :SQLSTATE
RESET ROLE;
-- ok: members of pg_monitor see all
GRANT pg_monitor TO regress_leaselock_events;
SET ROLE regress_leaselock_events;
SELECT count(*) > 0 AS some FROM leaselock.lease_events(max_rows => 100000) WHERE scope = 'events.closed';
SELECT kind FROM leaselock.lease_events(max_rows => 100000) WHERE scope IS NULL GROUP BY kind ORDER BY kind COLLATE "C";
RESET ROLE;
REVOKE pg_monitor FROM regress_leaselock_events;

-- ok: in a read-only transaction, at every level, without a predicate lock
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT count(*) >= :total AS all FROM leaselock.lease_events(max_rows => 100000);
SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid() AND relation::regclass::text LIKE 'leaselock.%';
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) >= :total AS all FROM leaselock.lease_events(max_rows => 100000);
SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid() AND relation::regclass::text LIKE 'leaselock.%';
COMMIT;

--
-- Retention
--

SET leaselock.events = off;
-- ok: seven days, whatever the arguments of lease_prune
SELECT count(*) AS before FROM leaselock.events \gset
SET leaselock.clock_offset = '6.9 d';
SELECT leaselock.lease_prune('0 s') >= 0 AS pruned;
SELECT count(*) = :before AS all_there FROM leaselock.events;
SET leaselock.clock_offset = '8 d';
SELECT leaselock.lease_prune('9 d') >= 0 AS pruned;
SELECT count(*) = :before AS all_there FROM leaselock.events;
-- ok: the removed rows are counted
SELECT leaselock.lease_prune('0 s', 3);
SELECT :before - count(*) AS removed FROM leaselock.events;
SELECT leaselock.lease_prune('0 s') = :before - 3 AS rest;
SELECT count(*) FROM leaselock.events;
-- ok: the retention of an expiry counts from when it was found
RESET leaselock.clock_offset;
SET leaselock.events = grants;
SELECT leaselock.try_lock('long ago', 'l', '5 s', 'events') > 0 AS held;
SET leaselock.clock_offset = '8 d';
SELECT leaselock.try_lock('long ago', 'm', '5 s', 'events') > 0 AS taken_over;
SELECT leaselock.lease_prune('0 s') > 0 AS pruned;
CALL pg_temp.await();
SELECT kind, owner, at < clock_timestamp() + interval '1 d' AS long_ago FROM told WHERE name = 'long ago' ORDER BY n;
RESET leaselock.clock_offset;
RESET leaselock.events;

TRUNCATE leaselock.events;
DROP VIEW told;
DROP TABLE labels;
SELECT leaselock.lease_scope_drop('events.lost'), leaselock.lease_scope_drop('events.closed');
SELECT leaselock.lease_break(name, fence, scope) FROM leaselock.lease_status WHERE scope LIKE 'events%';
DROP ROLE regress_leaselock_events;
DROP ROLE regress_leaselock_events_operator;
