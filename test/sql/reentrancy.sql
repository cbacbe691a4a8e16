-- An identity that holds a lock gets further tickets of the same grant: same
-- fence, depth + 1, a lease each.  The grant lasts while any of them is live.
-- The identity is (current role, owner label).
LOAD 'leaselock';
CREATE ROLE regress_leaselock_one;
CREATE ROLE regress_leaselock_two IN ROLE regress_leaselock_one;
SET ROLE regress_leaselock_one;

--
-- Depth and balanced releases
--

SELECT * FROM leaselock.lease_acquire('reentrancy', 'w', '300 s') \gset a_
SELECT * FROM leaselock.lease_acquire('reentrancy', 'w', '60 s') \gset b_
SELECT * FROM leaselock.lease_acquire('reentrancy', 'w', '120 s') \gset c_
-- ok: one grant, three tickets, a lease each
SELECT :a_depth AS a, :b_depth AS b, :c_depth AS c, :b_fence = :a_fence AND :c_fence = :a_fence AS same_fence,
	:'a_ticket' <> :'b_ticket' AND :'b_ticket' <> :'c_ticket' AND :'a_ticket' <> :'c_ticket' AS own_tickets,
	:a_remaining_ms AS a_lease, :b_remaining_ms AS b_lease, :c_remaining_ms AS c_lease;
SELECT state, depth, fence = :a_fence AS same_fence, expires_at = :'a_expires_at' AS own_expiry FROM leaselock.lease_get(:'a_ticket');
SELECT state, depth, fence = :a_fence AS same_fence, expires_at = :'b_expires_at' AS own_expiry FROM leaselock.lease_get(:'b_ticket');
-- ok: the grant lasts as long as its longest ticket
SELECT depth, fence = :a_fence AS same_fence, expires_at = :'a_expires_at' AS the_latest FROM leaselock.lease_peek('reentrancy');
-- ok: for others the lock is taken, once
SELECT state, depth, holder, holder_role FROM leaselock.lease_acquire('reentrancy', 'other');

-- ok: renewing one ticket touches no other, in either direction
SELECT state, remaining_ms FROM leaselock.lease_renew(:'b_ticket', '5 s');
SELECT expires_at = :'a_expires_at' AS same_expiry FROM leaselock.lease_get(:'a_ticket');
SELECT expires_at = :'c_expires_at' AS same_expiry FROM leaselock.lease_get(:'c_ticket');
SELECT state, remaining_ms FROM leaselock.lease_renew(:'b_ticket', '60 s');
SELECT expires_at = :'a_expires_at' AS same_expiry FROM leaselock.lease_get(:'a_ticket');
SELECT expires_at = :'c_expires_at' AS same_expiry FROM leaselock.lease_get(:'c_ticket');
-- ok: a renewal may make the longest ticket a shorter one; the grant ends with the
-- ticket that is then the longest
SELECT state, remaining_ms FROM leaselock.lease_renew(:'a_ticket', '10 s');
SELECT expires_at = :'c_expires_at' AS the_latest FROM leaselock.lease_peek('reentrancy');
SELECT state, remaining_ms FROM leaselock.lease_renew(:'a_ticket', '300 s');

-- ok: released one by one, the first first; the lock is free after the last
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT state, depth, fence = :a_fence AS same_fence, expires_at = :'c_expires_at' AS own_expiry FROM leaselock.lease_get(:'c_ticket');
SELECT depth, expires_at = :'c_expires_at' AS the_latest FROM leaselock.lease_peek('reentrancy');
SELECT state, holder FROM leaselock.lease_acquire('reentrancy', 'other');
-- ok: a second release of the same ticket takes nothing from the others
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT state, depth FROM leaselock.lease_get(:'c_ticket');
-- ok: depth grows again
SELECT state, depth, fence = :a_fence AS same_fence FROM leaselock.lease_acquire('reentrancy', 'w') \gset d_
SELECT :'d_state' AS state, :d_depth AS depth, :'d_same_fence' AS same_fence;
SELECT state FROM leaselock.lease_release(:'c_ticket');
SELECT state, depth FROM leaselock.lease_get(:'b_ticket');
SELECT state, holder FROM leaselock.lease_acquire('reentrancy', 'other');
SELECT state FROM leaselock.lease_release(:'b_ticket');
SELECT state, holder FROM leaselock.lease_acquire('reentrancy', 'other');
SELECT leaselock.lease_release_all('w');
SELECT state, fence > :a_fence AS greater, depth FROM leaselock.lease_acquire('reentrancy', 'other');
SELECT leaselock.lease_release_all('other');

-- ok: great depth
SELECT count(*), count(DISTINCT fence), count(DISTINCT ticket), min(depth), max(depth)
FROM generate_series(1, 200) i, leaselock.lease_acquire('reentrancy.deep', 'w', make_interval(secs => 100 + i)) t;
SELECT leaselock.fence_check('reentrancy.deep', fence), depth FROM leaselock.lease_peek('reentrancy.deep');
CREATE TEMP TABLE deep AS SELECT ticket, row_number() OVER (ORDER BY ticket) AS nr
FROM leaselock.lease_tickets WHERE name = 'reentrancy.deep';
SELECT count(*) FILTER (WHERE state = 'released') AS released
FROM deep, leaselock.lease_release(ticket) t WHERE nr > 1;
SELECT depth FROM leaselock.lease_peek('reentrancy.deep');
SELECT state, depth FROM deep, leaselock.lease_get(ticket) t WHERE nr = 1;
SELECT state FROM leaselock.lease_acquire('reentrancy.deep', 'other');
SELECT state FROM deep, leaselock.lease_release(ticket) t WHERE nr = 1;
SELECT depth FROM leaselock.lease_peek('reentrancy.deep');

--
-- One ticket lapses while another lives
--

SELECT * FROM leaselock.lease_acquire('reentrancy.lapse', 'w', '60 s') \gset a_
SELECT * FROM leaselock.lease_acquire('reentrancy.lapse', 'w', '200 s') \gset b_
RESET ROLE;
SET leaselock.clock_offset = '61 s';
SET ROLE regress_leaselock_one;
-- ok: the short one is expired, the grant goes on
SELECT depth, fence = :a_fence AS same_fence, lapsed FROM leaselock.lease_peek('reentrancy.lapse');
SELECT state, depth, fence = :a_fence AS same_fence FROM leaselock.lease_get(:'b_ticket');
SELECT state, depth FROM leaselock.lease_get(:'a_ticket');
SELECT state FROM leaselock.lease_renew(:'a_ticket', '300 s');
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT state, depth, expires_at = :'b_expires_at' AS same_expiry FROM leaselock.lease_get(:'b_ticket');
SELECT state, holder FROM leaselock.lease_acquire('reentrancy.lapse', 'other');
SELECT leaselock.fence_check('reentrancy.lapse', :a_fence);
-- ok: depth counts live tickets
SELECT state, depth, fence = :a_fence AS same_fence FROM leaselock.lease_acquire('reentrancy.lapse', 'w', '5 s');
RESET ROLE;
SET leaselock.clock_offset = '70 s';
SET ROLE regress_leaselock_one;
SELECT depth FROM leaselock.lease_peek('reentrancy.lapse');
SELECT state, depth, fence = :a_fence AS same_fence FROM leaselock.lease_acquire('reentrancy.lapse', 'w', '5 s');
-- ok: the last live ticket is released, lapsed ones do not keep the lock
RESET ROLE;
SET leaselock.clock_offset = '80 s';
SET ROLE regress_leaselock_one;
SELECT state FROM leaselock.lease_release(:'b_ticket');
SELECT state, fence > :a_fence AS greater FROM leaselock.lease_acquire('reentrancy.lapse', 'other', '60 s');
SELECT leaselock.lease_release_all('other');
-- ok: all lapse, and the grant ends with the last
SELECT * FROM leaselock.lease_acquire('reentrancy.lapse', 'w', '60 s') \gset a_
SELECT * FROM leaselock.lease_acquire('reentrancy.lapse', 'w', '100 s') \gset b_
RESET ROLE;
SET leaselock.clock_offset = '181 s';
SET ROLE regress_leaselock_one;
SELECT state, fence > :a_fence AS greater, depth FROM leaselock.lease_acquire('reentrancy.lapse', 'w', '60 s');
SELECT state FROM leaselock.lease_get(:'a_ticket');
SELECT state FROM leaselock.lease_get(:'b_ticket');
SELECT leaselock.lease_release_all('w');
RESET ROLE;
RESET leaselock.clock_offset;

--
-- Who is who
--

SET ROLE regress_leaselock_one;
SELECT * FROM leaselock.lease_acquire('reentrancy.who', 'w', '300 s') \gset a_
-- ok: the same label under another role is another identity, even under a member of
-- the holder's role
SET ROLE regress_leaselock_two;
SELECT state, depth, holder, holder_role FROM leaselock.lease_acquire('reentrancy.who', 'w');
SELECT leaselock.try_lock('reentrancy.who', 'w', '60 s');
SELECT leaselock.renew_lock('reentrancy.who', 'w', '60 s');
SELECT leaselock.release_lock('reentrancy.who', 'w');
SELECT leaselock.lease_release_all('w');
-- ok: so is a superuser
RESET ROLE;
SELECT state, depth, holder, holder_role FROM leaselock.lease_acquire('reentrancy.who', 'w');
-- ok: another label under the same role is another identity
SET ROLE regress_leaselock_one;
SELECT state, holder, holder_role FROM leaselock.lease_acquire('reentrancy.who', 'W');
-- ok: the role is current_user at the call: that of a SECURITY DEFINER function ...
RESET ROLE;
CREATE FUNCTION pg_temp.as_definer() RETURNS leaselock.lease_ticket LANGUAGE sql SECURITY DEFINER
AS $$ SELECT leaselock.lease_acquire('reentrancy.who', 'w') $$;
ALTER FUNCTION pg_temp.as_definer() OWNER TO regress_leaselock_one;
SET ROLE regress_leaselock_two;
SELECT state, depth, fence = :a_fence AS same_fence FROM pg_temp.as_definer();
-- ok: ... however it was called
RESET ROLE;
SET SESSION AUTHORIZATION regress_leaselock_one;
SELECT state, depth, fence = :a_fence AS same_fence FROM leaselock.lease_acquire('reentrancy.who', 'w');
RESET SESSION AUTHORIZATION;
-- ok: two sessions with one identity are one owner; nothing is tied to a session
DISCARD TEMP;
\c
SET ROLE regress_leaselock_one;
SELECT state, depth, fence = :a_fence AS same_fence FROM leaselock.lease_get(:'a_ticket');
SELECT state, depth, fence = :a_fence AS same_fence FROM leaselock.lease_acquire('reentrancy.who', 'w');
SELECT state FROM leaselock.lease_release(:'a_ticket');
SELECT leaselock.lease_release_all('w');
-- ok: current_user makes every session of a role one owner
SELECT state, depth FROM leaselock.lease_acquire('reentrancy.who', current_user);
SELECT state, depth FROM leaselock.lease_acquire('reentrancy.who', owner => current_user);
SELECT leaselock.lease_release_all(current_user);
RESET ROLE;

DROP ROLE regress_leaselock_two, regress_leaselock_one;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'reentrancy%';
