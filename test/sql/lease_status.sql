-- lease_status, lease_tickets and lease_peek: the state by the clock, even before
-- anybody has settled it, and without changing anything.
LOAD 'leaselock';
CREATE ROLE regress_leaselock_one;
CREATE ROLE regress_leaselock_stranger;
SET ROLE regress_leaselock_one;
\set clock 'RESET ROLE; SET leaselock.clock_offset ='
\set back '; SET ROLE regress_leaselock_one;'
-- all columns but those that vary
\set status 'scope, name, owner, role, depth, lapsed, waiters'
\set tickets 'scope, name, owner, role, state, position, depth, wait_until'

-- ok: nothing held, no row
SELECT count(*) FROM leaselock.lease_status WHERE scope = 'status';
SELECT count(*) FROM leaselock.lease_tickets WHERE scope = 'status';
SELECT count(*) FROM leaselock.lease_peek('ticket', 'status');

-- a ticket, two tickets, a named hold, a ticket and a named hold
SELECT * FROM leaselock.lease_acquire('ticket', 'w', '60 s', scope => 'status') \gset t_
SELECT * FROM leaselock.lease_acquire('two', 'w', '120 s', scope => 'status') \gset a_
SELECT * FROM leaselock.lease_acquire('two', 'w', '60 s', scope => 'status') \gset b_
SELECT leaselock.try_lock('hold', 'w', '60 s', 'status') AS hold \gset
SELECT * FROM leaselock.lease_acquire('both', 'w', '60 s', scope => 'status') \gset c_
SELECT leaselock.try_lock('both', 'w', '300 s', 'status') = :c_fence AS same_fence;

-- ok: a row per lock; a named hold counts once in the depth
SELECT :status FROM leaselock.lease_status WHERE scope = 'status' ORDER BY name;
-- ok: a row per ticket; a named hold is not a ticket
SELECT :tickets FROM leaselock.lease_tickets WHERE scope = 'status' ORDER BY name, expires_at DESC;
-- ok: fences, times
SELECT name, fence = CASE name WHEN 'ticket' THEN :t_fence WHEN 'two' THEN :a_fence WHEN 'hold' THEN :hold ELSE :c_fence END AS fence,
	granted_at BETWEEN now() - interval '1 min' AND now() AS granted_at,
	expires_at = CASE name WHEN 'ticket' THEN :'t_expires_at' WHEN 'two' THEN :'a_expires_at' ELSE expires_at END AS expires_at,
	remaining_ms BETWEEN 1 AND CASE name WHEN 'both' THEN 300 WHEN 'two' THEN 120 ELSE 60 END * 1000 AS remaining_ms
FROM leaselock.lease_status WHERE scope = 'status' ORDER BY name;
SELECT name, expires_at > granted_at + interval '61 s' AS the_latest FROM leaselock.lease_status WHERE scope = 'status' ORDER BY name;
SELECT name, ticket = ANY (ARRAY[:'t_ticket', :'a_ticket', :'b_ticket', :'c_ticket']::uuid[]) AS ticket,
	requested_at BETWEEN now() - interval '1 min' AND now() AS requested_at,
	expires_at = ANY (ARRAY[:'t_expires_at', :'a_expires_at', :'b_expires_at', :'c_expires_at']::timestamptz[]) AS expires_at,
	remaining_ms BETWEEN 1 AND 120000 AS remaining_ms
FROM leaselock.lease_tickets WHERE scope = 'status' ORDER BY name, lease_tickets.expires_at DESC;
-- ok: lease_peek is that row of the view, by key
SELECT s.name, count(*) AS rows, bool_and(to_jsonb(p) - 'remaining_ms' = to_jsonb(s) - 'remaining_ms') AS same
FROM leaselock.lease_status s, leaselock.lease_peek(s.name, s.scope) p
WHERE s.scope = 'status' GROUP BY s.name ORDER BY s.name;
SELECT :status FROM leaselock.lease_peek('both', 'status');
SELECT count(*) FROM leaselock.lease_peek('both');
SELECT count(*) FROM leaselock.lease_peek('never', 'status');

-- ok: visible to everybody while the scope is open to everybody
SET ROLE regress_leaselock_stranger;
SELECT :status FROM leaselock.lease_status WHERE scope = 'status' ORDER BY name;
SELECT count(*) FROM leaselock.lease_tickets WHERE scope = 'status';
SELECT :status FROM leaselock.lease_peek('both', 'status');
SET ROLE regress_leaselock_one;
-- ok: in a read-only transaction
BEGIN READ ONLY;
SELECT count(*) FROM leaselock.lease_status WHERE scope = 'status';
SELECT count(*) FROM leaselock.lease_tickets WHERE scope = 'status';
SELECT count(*) FROM leaselock.lease_peek('both', 'status');
COMMIT;

--
-- Lapsed
--

:clock '61 s' :back
-- ok: a lapsed hold is shown as lapsed; a lapsed ticket is not live
SELECT :status FROM leaselock.lease_status WHERE scope = 'status' ORDER BY name;
SELECT :tickets FROM leaselock.lease_tickets WHERE scope = 'status' ORDER BY name;
SELECT name, remaining_ms > 0 AS remaining, fence = CASE name WHEN 'ticket' THEN :t_fence WHEN 'two' THEN :a_fence WHEN 'hold' THEN :hold ELSE :c_fence END AS fence
FROM leaselock.lease_status WHERE scope = 'status' ORDER BY name;
SELECT :status FROM leaselock.lease_peek('ticket', 'status');
SELECT :status FROM leaselock.lease_peek('hold', 'status');
-- ok: looking has changed nothing: with the clock stepped back, all is as it was
:clock 0 :back
SELECT :status FROM leaselock.lease_status WHERE scope = 'status' ORDER BY name;
SELECT state, depth FROM leaselock.lease_get(:'t_ticket');
:clock '61 s' :back
-- ok: settled by its owner, it is shown until it is superseded, released or pruned
SELECT state FROM leaselock.lease_get(:'t_ticket');
SELECT state FROM leaselock.lease_renew(:'t_ticket');
SELECT :status, fence = :t_fence AS fence FROM leaselock.lease_peek('ticket', 'status');
SELECT state FROM leaselock.lease_get(:'b_ticket');
SELECT :status FROM leaselock.lease_peek('two', 'status');
-- ok: superseded
SELECT state FROM leaselock.lease_acquire('ticket', 'other', '60 s', scope => 'status');
SELECT :status, fence > :t_fence AS greater FROM leaselock.lease_peek('ticket', 'status');
SELECT :tickets FROM leaselock.lease_tickets WHERE scope = 'status' AND name = 'ticket';
-- ok: released
SELECT leaselock.release_lock('hold', 'w', 'status');
SELECT count(*) FROM leaselock.lease_peek('hold', 'status');
SELECT leaselock.lease_release_all('other');
SELECT count(*) FROM leaselock.lease_peek('ticket', 'status');
SELECT count(*) FROM leaselock.lease_tickets WHERE scope = 'status' AND name = 'ticket';
-- ok: one of two tickets released, the other stays
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT :status FROM leaselock.lease_status WHERE scope = 'status' ORDER BY name;
SELECT :tickets FROM leaselock.lease_tickets WHERE scope = 'status' ORDER BY name;
SELECT leaselock.release_lock('both', 'w', 'status');
SELECT count(*) FROM leaselock.lease_tickets WHERE scope = 'status';
SELECT count(*) FROM leaselock.lease_status WHERE scope = 'status' AND NOT lapsed;
:clock 0 :back

--
-- Other roles
--

-- ok: each row names the role; the same label of two roles is two
SELECT state FROM leaselock.lease_acquire('mine', 'w', scope => 'status.role');
SET ROLE regress_leaselock_stranger;
SELECT state FROM leaselock.lease_acquire('theirs', 'w', scope => 'status.role');
SELECT :status FROM leaselock.lease_status WHERE scope = 'status.role' ORDER BY name;
SELECT :tickets FROM leaselock.lease_tickets WHERE scope = 'status.role' ORDER BY name;
SELECT leaselock.lease_release_all('w');
SET ROLE regress_leaselock_one;
SELECT leaselock.lease_release_all('w');

-- ok: the lease of a dropped role stays until it runs out
SET ROLE regress_leaselock_stranger;
SELECT state FROM leaselock.lease_acquire('dropped', 'w', '300 s', scope => 'status.role');
SET ROLE regress_leaselock_one;
RESET ROLE;
DROP ROLE regress_leaselock_stranger;
SELECT count(*) FROM leaselock.lease_status WHERE scope = 'status.role';
SELECT state, holder FROM leaselock.lease_acquire('dropped', 'other', scope => 'status.role');
SET leaselock.clock_offset = '301 s';
SELECT state, holder FROM leaselock.lease_acquire('dropped', 'other', scope => 'status.role');
SELECT leaselock.lease_release_all('other');
RESET leaselock.clock_offset;
DROP ROLE regress_leaselock_one;
