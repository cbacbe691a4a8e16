-- A lock's time does not run backwards when the clock is stepped back by up
-- to max_lease (300 s); a larger step is followed.
LOAD 'leaselock';
-- Other tests have moved the clock ahead; what was pruned by that clock has raised
-- the floor, which has been ahead of the real clock since then.
DELETE FROM leaselock.floor;
SET leaselock.ticket_retention = '20000 d';
\set SHOW_CONTEXT never
-- by how many seconds the lock's time is ahead of the real clock, just after a call
\set ahead '(extract(epoch FROM expires_at - clock_timestamp()) - remaining_ms / 1000.0)'

--
-- A step back of up to max_lease
--

SELECT ticket, fence FROM leaselock.lease_acquire('clock', 'first', '60 s') \gset a_
SET leaselock.clock_offset = '61 s';
-- somebody looks: expired
SELECT state FROM leaselock.lease_renew(:'a_ticket');
-- ok: after a step back a lapsed lease is not revived
SET leaselock.clock_offset = 0;
SELECT state FROM leaselock.lease_get(:'a_ticket');
SELECT state FROM leaselock.lease_renew(:'a_ticket');
SELECT leaselock.fence_check('clock', :a_fence);
SELECT lapsed FROM leaselock.lease_peek('clock');

-- another takes over after the lapse
SELECT ticket FROM leaselock.lease_acquire('clock.takeover', 'first', '60 s') \gset a_
SET leaselock.clock_offset = '61 s';
SELECT ticket, fence FROM leaselock.lease_acquire('clock.takeover', 'second', '60 s') \gset b_
-- ok: after a step back the new holder holds, never for longer than its lease
SET leaselock.clock_offset = 0;
SELECT state, remaining_ms FROM leaselock.lease_get(:'b_ticket');
SELECT state, holder FROM leaselock.lease_acquire('clock.takeover', 'first', '60 s');
SELECT state FROM leaselock.lease_get(:'a_ticket');
SELECT remaining_ms, lapsed FROM leaselock.lease_peek('clock.takeover');
-- ok: a renewal goes by the lock's time, which stands still in the meantime
SELECT state, remaining_ms, :ahead BETWEEN 30 AND 61 AS ahead FROM leaselock.lease_renew(:'b_ticket', '60 s');
-- ok: also further back, as long as it is at most max_lease in all
SET leaselock.clock_offset = '-200 s';
SELECT state, remaining_ms FROM leaselock.lease_get(:'b_ticket');
SELECT state, remaining_ms FROM leaselock.lease_renew(:'b_ticket', '60 s');
SELECT state, holder FROM leaselock.lease_acquire('clock.takeover', 'first', '60 s');
-- ok: a release and a new grant: a greater fence, no earlier time
SELECT state FROM leaselock.lease_release(:'b_ticket');
SELECT state, fence > :b_fence AS greater, remaining_ms, :ahead BETWEEN 30 AND 61 AS ahead
FROM leaselock.lease_acquire('clock.takeover', 'first', '60 s');
RESET leaselock.clock_offset;
SELECT leaselock.lease_release_all('first');

-- ok: the lock's time is its own; other locks follow the clock
SELECT state, :ahead < 1 AS not_ahead FROM leaselock.lease_acquire('clock.other', 'w', '60 s');
SELECT leaselock.lease_release_all('w');

-- ok: nearly max_lease
SET leaselock.clock_offset = '290 s';
SELECT ticket, fence FROM leaselock.lease_acquire('clock.near', 'w', '60 s') \gset a_
SELECT state FROM leaselock.lease_release(:'a_ticket');
RESET leaselock.clock_offset;
SELECT state, fence > :a_fence AS greater, :ahead BETWEEN 250 AND 290 AS ahead FROM leaselock.lease_acquire('clock.near', 'w', '60 s');
SELECT leaselock.lease_release_all('w');

--
-- A larger step is followed
--

SET leaselock.clock_offset = '400 s';
SELECT ticket, fence FROM leaselock.lease_acquire('clock.far', 'w', '60 s') \gset a_
SELECT state FROM leaselock.lease_release(:'a_ticket');
RESET leaselock.clock_offset;
-- ok: the lock follows the clock again, and the fence still grows
SELECT state, fence > :a_fence AS greater, remaining_ms, :ahead < 1 AS not_ahead FROM leaselock.lease_acquire('clock.far', 'w', '60 s');
SELECT leaselock.lease_release_all('w');
-- ok: the same for a clock that was a year ahead
SET leaselock.clock_offset = '365 d';
SELECT leaselock.try_lock('clock.year', 'w', '60 s') AS fence \gset
SELECT leaselock.release_lock('clock.year', 'w');
RESET leaselock.clock_offset;
SELECT leaselock.try_lock('clock.year', 'w', '60 s') = :fence + 1 AS the_next_one;
SELECT remaining_ms BETWEEN 1 AND 60000 AS remaining, extract(epoch FROM expires_at - clock_timestamp()) < 61 AS followed
FROM leaselock.lease_peek('clock.year');
SELECT leaselock.release_lock('clock.year', 'w');

-- ok: the bound is max_lease as it is set
SET leaselock.max_lease = '10 min';
SET leaselock.clock_offset = '400 s';
SELECT state FROM leaselock.lease_acquire('clock.set', 'w', '60 s');
SELECT leaselock.lease_release_all('w');
RESET leaselock.clock_offset;
SELECT state, :ahead BETWEEN 350 AND 400 AS ahead FROM leaselock.lease_acquire('clock.set', 'w', '60 s');
SELECT leaselock.lease_release_all('w');
RESET leaselock.max_lease;

--
-- A step forward
--

-- ok: expires early, and that is all
SELECT ticket, fence FROM leaselock.lease_acquire('clock.forward', 'w', '300 s') \gset a_
SET leaselock.clock_offset = '200 s';
SELECT state, remaining_ms BETWEEN 50000 AND 100000 AS shorter FROM leaselock.lease_get(:'a_ticket');
SET leaselock.clock_offset = '301 s';
SELECT state FROM leaselock.lease_get(:'a_ticket');
SELECT state, fence > :a_fence AS greater FROM leaselock.lease_acquire('clock.forward', 'other', '60 s');
SELECT leaselock.lease_release_all('other');
RESET leaselock.clock_offset;

-- ok: forward by a century, named holds included
SELECT leaselock.try_lock('clock.century', 'w', '36500 days') AS fence \gset
SET leaselock.clock_offset = '36501 d';
SELECT lapsed FROM leaselock.lease_peek('clock.century');
SELECT leaselock.try_lock('clock.century', 'other', '36500 days') > :fence AS greater;
SELECT leaselock.release_lock('clock.century', 'other');
RESET leaselock.clock_offset;

SELECT count(*) FROM leaselock.lease_status WHERE name LIKE 'clock%' AND NOT lapsed;
