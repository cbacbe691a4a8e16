-- Several waiting tickets of one identity, and similar identities.
-- Time is moved by leaselock.clock_offset.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

-- ok: they share the place of the first
SELECT ticket AS h FROM leaselock.lease_acquire('queue.share', 'h', '300 s') \gset
SELECT ticket AS a1 FROM leaselock.lease_acquire('queue.share', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.share', 'b', '60 s', '300 s') \gset
SELECT ticket AS a2, state, position FROM leaselock.lease_acquire('queue.share', 'a', '120 s', '300 s') \gset x_
SELECT :'x_state' AS state, :x_position AS position;
SELECT ticket AS b2, state, position FROM leaselock.lease_acquire('queue.share', 'b', '60 s', '300 s') \gset x_
SELECT :'x_state' AS state, :x_position AS position;
SELECT :tickets FROM leaselock.lease_tickets WHERE name = 'queue.share' ORDER BY owner, requested_at;
-- ok: after the promotion each becomes held at its next look: one fence, a lease each
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
-- ok: a ticket that did not look while its identity held the lock keeps its old place,
-- behind the others
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
-- ok: a superuser who is not a member of the ticket's role only looks: not a poll
SET leaselock.clock_offset = '15 s';
SELECT :look FROM leaselock.lease_get(:'o_ticket');
SET leaselock.clock_offset = '21 s';
SELECT :look FROM leaselock.lease_get(:'o_ticket');
RESET leaselock.clock_offset;
SELECT leaselock.lease_release_all('h'), leaselock.lease_release_all('a');
-- ok: nor is it a claim
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

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
