-- Named locks for which others queue.
-- Time is moved by leaselock.clock_offset.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

SELECT leaselock.try_lock('queue.named', 'h', '60 s') AS h_fence \gset
SELECT ticket AS a FROM leaselock.lease_acquire('queue.named', 'a', '60 s', '300 s') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('queue.named', 'b', '60 s', '300 s') \gset
-- ok: a try takes no place in the queue
SELECT leaselock.try_lock('queue.named', 'c', '60 s'), leaselock.try_lock('queue.named', 'a', '60 s');
SELECT :status FROM leaselock.lease_peek('queue.named');
-- ok: a live hold is renewed even if others wait
SELECT leaselock.renew_lock('queue.named', 'h', '10 s');
SELECT leaselock.try_lock('queue.named', 'h', '60 s') = :h_fence AS same_fence;
SET leaselock.clock_offset = '11 s';
-- ok: lapsed, with somebody waiting, it is lost: not renewed, not taken again
SELECT leaselock.renew_lock('queue.named', 'h', '60 s');
SELECT leaselock.try_lock('queue.named', 'h', '60 s');
-- ok: and nobody overtakes, not even a waiter whose turn has not come
SELECT leaselock.try_lock('queue.named', 'c', '60 s'), leaselock.try_lock('queue.named', 'b', '60 s');
SELECT :look, fence > :h_fence AS greater FROM leaselock.lease_get(:'a');
SELECT leaselock.renew_lock('queue.named', 'h', '60 s'), leaselock.release_lock('queue.named', 'h');
-- ok: the holder of a ticket gets a named hold too; its ticket may go
SELECT leaselock.try_lock('queue.named', 'a', '60 s') = fence AS same_fence FROM leaselock.lease_peek('queue.named');
SELECT state FROM leaselock.lease_release(:'a');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: the release of the hold, the last share of the grant, promotes
SELECT leaselock.release_lock('queue.named', 'a');
SELECT :look FROM leaselock.lease_get(:'b');
-- ok: not the last share: nobody is promoted
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
-- ok: a lapsed hold can be released, and that promotes
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

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
