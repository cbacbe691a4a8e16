-- A ticket's life: acquired, looked up, renewed, released, lapsed.
-- Time is moved by leaselock.clock_offset, so that nothing here sleeps.
LOAD 'leaselock';
\set answer 'state, scope, name, owner, depth, position, remaining_ms, next_call_ms, wait_until, holder'
\set rest 'ticket IS NOT NULL AS ticket, fence IS NOT NULL AS fence, expires_at IS NOT NULL AS expires, holder_role IS NOT NULL AS holder_role, request_id'

--
-- held
--

-- ok: held, with all that a holder needs; the lease is 60 s by default, to be renewed
-- after a third of it
SELECT * FROM leaselock.lease_acquire('tickets', 'first') \gset a_
SELECT :'a_state' AS state, :'a_scope' AS scope, :'a_name' AS name, :'a_owner' AS owner, :a_depth AS depth,
	:a_remaining_ms AS remaining_ms, :a_next_call_ms AS next_call_ms;
SELECT :answer FROM leaselock.lease_acquire('tickets.columns', 'first', '90 s', scope => 'some/where');
SELECT :rest FROM leaselock.lease_acquire('tickets.columns', 'first', scope => 'some/where');
SELECT leaselock.lease_release_all('first', 'some/where');
-- ok: the lease counts from the call, by the wall clock
SELECT expires_at - interval '60 s' BETWEEN now() AND clock_timestamp() AS from_the_call
FROM leaselock.lease_acquire('tickets.clock', 'first');
SELECT leaselock.lease_release_all('first') AS released;
SELECT * FROM leaselock.lease_acquire('tickets', 'first', '300 s') \gset a_

-- ok: lease_get shows the same
SELECT state, scope, name, owner, depth, position, wait_until, holder, holder_role, request_id,
	ticket = :'a_ticket' AS same_ticket, fence = :a_fence AS same_fence, expires_at = :'a_expires_at' AS same_expiry,
	remaining_ms BETWEEN 200000 AND 300000 AS remaining, next_call_ms
FROM leaselock.lease_get(:'a_ticket');

--
-- contended
--

-- ok: somebody else holds it: no ticket and no fence, but the time of the next try and
-- the holder
SELECT :answer, holder_role = current_user AS holder_role_right,
	ticket, fence, expires_at, next_call_ms > 0 AS hint
FROM leaselock.lease_acquire('tickets', 'second', '60 s', '0 s') \gset b_
SELECT :'b_state' AS state, :'b_scope' AS scope, :'b_name' AS name, :'b_owner' AS owner, :'b_holder' AS holder,
	:'b_holder_role_right' AS holder_role_right, :'b_hint' AS hint;
SELECT depth, position, remaining_ms, wait_until, ticket, fence, expires_at
FROM leaselock.lease_acquire('tickets', 'second');
-- ok: the same name in another scope is another lock
SELECT state FROM leaselock.lease_acquire('tickets', 'second', scope => 'elsewhere');
SELECT leaselock.lease_release_all('second');
-- ok: failed tries have not affected the holder
SELECT state, fence = :a_fence AS same_fence, expires_at = :'a_expires_at' AS same_expiry FROM leaselock.lease_get(:'a_ticket');

--
-- renew
--

-- ok: a full lease from now, of the length last requested
SELECT state, remaining_ms, next_call_ms, fence = :a_fence AS same_fence, depth,
	expires_at > :'a_expires_at' AS later
FROM leaselock.lease_renew(:'a_ticket');
-- ok: not additive
SELECT state, remaining_ms FROM leaselock.lease_renew(:'a_ticket');
SELECT state, remaining_ms FROM leaselock.lease_renew(:'a_ticket');
-- ok: with another length, longer or shorter
SELECT state, remaining_ms, next_call_ms FROM leaselock.lease_renew(:'a_ticket', '30 s');
-- ok: which becomes the length last requested
SELECT state, remaining_ms, next_call_ms FROM leaselock.lease_renew(:'a_ticket');
SELECT state, remaining_ms, next_call_ms FROM leaselock.lease_renew(:'a_ticket', NULL);
SELECT state, remaining_ms, next_call_ms FROM leaselock.lease_renew(:'a_ticket', '300 s');
SELECT state, remaining_ms, next_call_ms FROM leaselock.lease_renew(:'a_ticket');
-- fail: lengths out of bounds change nothing
SELECT state FROM leaselock.lease_renew(:'a_ticket', '1 s');
\echo :SQLSTATE
SELECT state, remaining_ms > 200000 AS long FROM leaselock.lease_get(:'a_ticket');
-- ok: renewed late in the lease, it lasts a full lease from then
SET leaselock.clock_offset = '200 s';
SELECT state, remaining_ms BETWEEN 50000 AND 100000 AS late FROM leaselock.lease_get(:'a_ticket');
SELECT state, remaining_ms FROM leaselock.lease_renew(:'a_ticket');
SET leaselock.clock_offset = '400 s';
SELECT state, remaining_ms BETWEEN 50000 AND 100000 AS late FROM leaselock.lease_get(:'a_ticket');
RESET leaselock.clock_offset;

--
-- released
--

SELECT * FROM leaselock.lease_acquire('tickets.release', 'first', '300 s') \gset a_
SELECT state FROM leaselock.lease_acquire('tickets.release', 'second');
-- ok: released
SELECT state, ticket = :'a_ticket' AS same_ticket, name, owner, holder FROM leaselock.lease_release(:'a_ticket');
SELECT depth, position, remaining_ms, next_call_ms FROM leaselock.lease_get(:'a_ticket');
-- ok: released again, late, renewed: it stays released and changes nothing
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT state FROM leaselock.lease_renew(:'a_ticket');
SELECT state FROM leaselock.lease_renew(:'a_ticket', '60 s');
SELECT state FROM leaselock.lease_get(:'a_ticket');
-- ok: the lock is free for others, with a greater fence
SELECT * FROM leaselock.lease_acquire('tickets.release', 'second', '300 s') \gset b_
SELECT :'b_state' AS state, :b_fence > :a_fence AS greater, :b_depth AS depth;
-- ok: a release or renewal after a takeover changes nothing for the new holder
SELECT state, holder, holder_role = current_user AS holder_role FROM leaselock.lease_release(:'a_ticket');
SELECT state, holder, holder_role = current_user AS holder_role FROM leaselock.lease_renew(:'a_ticket');
SELECT state, fence = :b_fence AS same_fence, expires_at = :'b_expires_at' AS same_expiry FROM leaselock.lease_get(:'b_ticket');
-- ok: and back again: a third grant, a third ticket
SELECT state FROM leaselock.lease_release(:'b_ticket');
SELECT state, fence > :b_fence AS greater, depth, ticket <> :'a_ticket' AS other_ticket
FROM leaselock.lease_acquire('tickets.release', 'first');
SELECT leaselock.lease_release_all('first') AS released;
-- ok: an ended ticket can be looked up for leaselock.ticket_retention
SET leaselock.clock_offset = '59 min';
SELECT state FROM leaselock.lease_get(:'a_ticket');
RESET leaselock.clock_offset;

--
-- expired
--

SELECT * FROM leaselock.lease_acquire('tickets.lapse', 'first', '60 s') \gset a_
-- ok: a lapse is silent; every look sees it by the clock
SET leaselock.clock_offset = '61 s';
SELECT state, ticket = :'a_ticket' AS same_ticket, fence = :a_fence AS same_fence, holder FROM leaselock.lease_get(:'a_ticket');
SELECT depth, position, remaining_ms, next_call_ms FROM leaselock.lease_get(:'a_ticket');
-- ok: only a held ticket is renewed, even if nobody has taken over
SELECT state FROM leaselock.lease_renew(:'a_ticket');
SELECT state FROM leaselock.lease_renew(:'a_ticket', '300 s');
-- ok: a late release answers with the state
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT state FROM leaselock.lease_get(:'a_ticket');
-- ok: taken over by another, with a greater fence
SELECT * FROM leaselock.lease_acquire('tickets.lapse', 'second', '60 s') \gset b_
SELECT :'b_state' AS state, :b_fence > :a_fence AS greater, :b_depth AS depth, :b_remaining_ms AS remaining_ms;
-- ok: that changes nothing for the late owner, which cannot change anything either; it
-- learns who holds the lock now
SELECT state, holder FROM leaselock.lease_get(:'a_ticket');
SELECT state, holder FROM leaselock.lease_renew(:'a_ticket');
SELECT state, holder FROM leaselock.lease_release(:'a_ticket');
SELECT state, fence = :b_fence AS same_fence, expires_at = :'b_expires_at' AS same_expiry FROM leaselock.lease_get(:'b_ticket');
SELECT state, holder FROM leaselock.lease_acquire('tickets.lapse', 'first');
-- ok: a ticket whose lapse nobody has seen yet is taken over at once
SET leaselock.clock_offset = '122 s';
SELECT state, fence > :b_fence AS greater, depth FROM leaselock.lease_acquire('tickets.lapse', 'third', '60 s');
SELECT state FROM leaselock.lease_renew(:'b_ticket');
SELECT state FROM leaselock.lease_release(:'b_ticket');
-- ok: after a lapse the same identity gets a new grant, not the old one
SET leaselock.clock_offset = '183 s';
SELECT * FROM leaselock.lease_acquire('tickets.lapse', 'first', '60 s') \gset c_
SET leaselock.clock_offset = '244 s';
SELECT state, fence > :c_fence AS greater, depth, ticket <> :'c_ticket' AS other_ticket
FROM leaselock.lease_acquire('tickets.lapse', 'first', '60 s');
SELECT state FROM leaselock.lease_get(:'c_ticket');
SELECT leaselock.lease_release_all('first');
RESET leaselock.clock_offset;

--
-- gone
--

-- ok: no such ticket
SELECT state, scope, name, owner, fence, depth, position, expires_at, wait_until, remaining_ms, holder, holder_role, request_id
FROM leaselock.lease_get('00000000-0000-0000-0000-00000000dead');
SELECT state, scope, name, owner, fence, depth, position, expires_at, wait_until, remaining_ms, holder, holder_role, request_id
FROM leaselock.lease_renew('00000000-0000-0000-0000-00000000dead');
SELECT state, scope, name, owner, fence, depth, position, expires_at, wait_until, remaining_ms, holder, holder_role, request_id
FROM leaselock.lease_release('00000000-0000-0000-0000-00000000dead');
SELECT ticket, next_call_ms FROM leaselock.lease_get('00000000-0000-0000-0000-00000000dead');

--
-- Whose ticket it is
--

CREATE ROLE regress_leaselock_holder;
CREATE ROLE regress_leaselock_member IN ROLE regress_leaselock_holder;
CREATE ROLE regress_leaselock_stranger;
SET ROLE regress_leaselock_holder;
SELECT * FROM leaselock.lease_acquire('tickets.role', 'w', '300 s') \gset a_
-- fail: a ticket belongs to its role alone
SET ROLE regress_leaselock_stranger;
SELECT leaselock.lease_get(:'a_ticket');
\echo :SQLSTATE
SELECT leaselock.lease_renew(:'a_ticket');
\echo :SQLSTATE
SELECT leaselock.lease_release(:'a_ticket');
\echo :SQLSTATE
-- ok: members of the role are let in; the ticket stays the role's
SET ROLE regress_leaselock_member;
SELECT state, owner, holder, holder_role FROM leaselock.lease_get(:'a_ticket');
SELECT state, remaining_ms, holder, holder_role FROM leaselock.lease_renew(:'a_ticket');
SELECT owner, role FROM leaselock.lease_peek('tickets.role');
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT state FROM leaselock.lease_get(:'a_ticket');
-- fail: an ended ticket is as closed to others as a live one
SET ROLE regress_leaselock_stranger;
SELECT leaselock.lease_get(:'a_ticket');
\echo :SQLSTATE
-- ok: a superuser may do everything
SET ROLE regress_leaselock_holder;
SELECT * FROM leaselock.lease_acquire('tickets.role', 'w', '300 s') \gset a_
RESET ROLE;
SELECT state, owner, fence = :a_fence AS same_fence, expires_at = :'a_expires_at' AS same_expiry FROM leaselock.lease_get(:'a_ticket');
SELECT state, remaining_ms FROM leaselock.lease_renew(:'a_ticket');
SELECT state FROM leaselock.lease_release(:'a_ticket');
DROP ROLE regress_leaselock_stranger, regress_leaselock_member, regress_leaselock_holder;
-- ok: the role of an ended ticket is dropped, the ticket can still be looked up
SELECT state, owner FROM leaselock.lease_get(:'a_ticket');

-- Nothing is left behind.
SELECT leaselock.lease_release_all('first'), leaselock.lease_release_all('second'), leaselock.lease_release_all('third');
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'tickets%';
