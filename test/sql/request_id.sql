-- A retry with the same request id, for the same lock and by the same
-- identity, answers with the same ticket in its present state: never a second
-- ticket, never more depth.  A request id of another identity is refused.
LOAD 'leaselock';
CREATE ROLE regress_leaselock_one;
CREATE ROLE regress_leaselock_two IN ROLE regress_leaselock_one;
SET ROLE regress_leaselock_one;
\set id '''00000000-0000-0000-0000-0000000000a1'''
\set id2 '''00000000-0000-0000-0000-0000000000a2'''

--
-- held
--

SELECT * FROM leaselock.lease_acquire('request_id', 'w', '300 s', request_id => :id) \gset a_
SELECT :'a_state' AS state, :a_depth AS depth, :'a_request_id' = :id AS same_id, :'a_ticket' <> :id AS own_uuid;
-- ok: the retry finds it; the retry's lease and wait are ignored
SELECT state, depth, ticket = :'a_ticket' AS same_ticket, fence = :a_fence AS same_fence,
	expires_at = :'a_expires_at' AS same_expiry, request_id = :id AS same_id
FROM leaselock.lease_acquire('request_id', 'w', '300 s', request_id => :id);
SELECT state, depth, ticket = :'a_ticket' AS same_ticket, expires_at = :'a_expires_at' AS same_expiry
FROM leaselock.lease_acquire('request_id', 'w', '5 s', '300 s', 'public', :id);
SELECT depth FROM leaselock.lease_peek('request_id');
SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'request_id';
-- ok: a renewal without a length does not use the ignored one
SELECT remaining_ms FROM leaselock.lease_renew(:'a_ticket');
-- fail: ignored arguments must still be valid
SELECT leaselock.lease_acquire('request_id', 'w', '1 s', request_id => :id);
\echo :SQLSTATE
SELECT leaselock.lease_acquire('request_id', 'w', wait => '-1 s', request_id => :id);
\echo :SQLSTATE
-- ok: lease_get shows it
SELECT request_id = :id AS same_id FROM leaselock.lease_get(:'a_ticket');

-- ok: another id is another ticket, and each id finds its own
SELECT * FROM leaselock.lease_acquire('request_id', 'w', '60 s', request_id => :id2) \gset b_
SELECT :'b_state' AS state, :b_depth AS depth, :b_fence = :a_fence AS same_fence, :'b_ticket' <> :'a_ticket' AS other_ticket;
SELECT ticket = :'a_ticket' AS same_ticket, depth FROM leaselock.lease_acquire('request_id', 'w', request_id => :id);
SELECT ticket = :'b_ticket' AS same_ticket, depth FROM leaselock.lease_acquire('request_id', 'w', request_id => :id2);
-- ok: without an id each call makes a new ticket
SELECT state, depth, request_id FROM leaselock.lease_acquire('request_id', 'w', '5 s');
SELECT state, depth, request_id FROM leaselock.lease_acquire('request_id', 'w', '5 s', request_id => NULL);
-- ok: a ticket's own uuid is not its request id
SELECT state, depth, ticket <> :'a_ticket' AS other_ticket
FROM leaselock.lease_acquire('request_id', 'w', '5 s', request_id => :'a_ticket');

--
-- The request id of another identity
--

-- fail: another owner on that lock
SELECT leaselock.lease_acquire('request_id', 'other', request_id => :id);
\echo :SQLSTATE
-- fail: the same label under another role, even under a member of the ticket's role
SET ROLE regress_leaselock_two;
SELECT leaselock.lease_acquire('request_id', 'w', request_id => :id);
\echo :SQLSTATE
RESET ROLE;
-- fail: so is a superuser
SELECT leaselock.lease_acquire('request_id', 'w', request_id => :id);
\echo :SQLSTATE
SET ROLE regress_leaselock_one;
-- ok: nothing has changed
SELECT state, fence = :a_fence AS same_fence FROM leaselock.lease_get(:'a_ticket');
-- ok: on other locks the id is free, for anybody
SELECT state, depth, ticket <> :'a_ticket' AS other_ticket FROM leaselock.lease_acquire('request_id.other', 'w', request_id => :id);
SELECT state, ticket <> :'a_ticket' AS other_ticket FROM leaselock.lease_acquire('request_id', 'other', scope => 'request_id', request_id => :id);
SELECT leaselock.lease_release_all('other');

--
-- released
--

SELECT leaselock.lease_release_all('w');
-- ok: the retry answers with the ended ticket and takes nothing
SELECT state, ticket = :'a_ticket' AS same_ticket FROM leaselock.lease_acquire('request_id', 'w', request_id => :id);
SELECT count(*) FROM leaselock.lease_peek('request_id');
-- fail: it still belongs to the other identity
SELECT leaselock.lease_acquire('request_id', 'other', request_id => :id);
\echo :SQLSTATE
-- ok: the same after a takeover
SELECT state FROM leaselock.lease_acquire('request_id', 'other');
SELECT state, ticket = :'a_ticket' AS same_ticket FROM leaselock.lease_acquire('request_id', 'w', request_id => :id);
SELECT state FROM leaselock.lease_acquire('request_id', 'w'); -- not by that id: contended
SELECT leaselock.lease_release_all('other');

--
-- expired
--

SELECT * FROM leaselock.lease_acquire('request_id.lapse', 'w', '60 s', request_id => :id) \gset a_
RESET ROLE;
SET leaselock.clock_offset = '61 s';
SET ROLE regress_leaselock_one;
-- ok: the retry neither revives it nor acquires the lock anew
SELECT state, ticket = :'a_ticket' AS same_ticket FROM leaselock.lease_acquire('request_id.lapse', 'w', '60 s', request_id => :id);
SELECT state, ticket = :'a_ticket' AS same_ticket FROM leaselock.lease_acquire('request_id.lapse', 'w', '60 s', request_id => :id);
SELECT leaselock.fence_check('request_id.lapse', :a_fence);
SELECT state, fence > :a_fence AS greater FROM leaselock.lease_acquire('request_id.lapse', 'other', '60 s');
SELECT state, ticket = :'a_ticket' AS same_ticket FROM leaselock.lease_acquire('request_id.lapse', 'w', '60 s', request_id => :id);
SELECT leaselock.lease_release_all('other');
RESET ROLE;
RESET leaselock.clock_offset;
SET ROLE regress_leaselock_one;

--
-- contended and rolled back: nothing was taken, nothing is remembered
--

SELECT state FROM leaselock.lease_acquire('request_id.busy', 'other', '300 s');
SELECT state, ticket, request_id = :id AS same_id FROM leaselock.lease_acquire('request_id.busy', 'w', request_id => :id);
SELECT state, ticket FROM leaselock.lease_acquire('request_id.busy', 'w', request_id => :id);
SELECT leaselock.lease_release_all('other');
SELECT state, depth FROM leaselock.lease_acquire('request_id.busy', 'w', request_id => :id);
SELECT leaselock.lease_release_all('w');

BEGIN;
SELECT * FROM leaselock.lease_acquire('request_id.rollback', 'w', request_id => :id) \gset a_
SELECT ticket = :'a_ticket' AS same_ticket, depth FROM leaselock.lease_acquire('request_id.rollback', 'w', request_id => :id);
ROLLBACK;
SELECT state FROM leaselock.lease_get(:'a_ticket');
-- ok: nor does it belong to another identity
SELECT state FROM leaselock.lease_acquire('request_id.rollback', 'other', request_id => :id);
SELECT leaselock.lease_release_all('other');
SELECT state, depth, ticket <> :'a_ticket' AS other_ticket, fence > :a_fence AS greater
FROM leaselock.lease_acquire('request_id.rollback', 'w', request_id => :id2);

--
-- A new session needs no state
--

SELECT * FROM leaselock.lease_acquire('request_id.session', 'w', request_id => :id) \gset a_
\c
SET ROLE regress_leaselock_one;
SELECT state, depth, ticket = :'a_ticket' AS same_ticket, fence = :a_fence AS same_fence
FROM leaselock.lease_acquire('request_id.session', 'w', request_id => :id);

SELECT leaselock.lease_release_all('w'), leaselock.lease_release_all('other');
RESET ROLE;
DROP ROLE regress_leaselock_two, regress_leaselock_one;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'request_id%';
