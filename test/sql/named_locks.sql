-- try_lock, renew_lock, release_lock: a yes or no without a ticket, on the same locks
-- and fences as tickets.  What may look odd is deliberate and marked.
LOAD 'leaselock';
CREATE ROLE regress_leaselock_one;
CREATE ROLE regress_leaselock_two IN ROLE regress_leaselock_one;
SET ROLE regress_leaselock_one;
-- moves the clock, as only a superuser may
\set clock 'RESET ROLE; SET leaselock.clock_offset ='
\set back '; SET ROLE regress_leaselock_one;'

--
-- Acquire
--

-- ok: the fence, of the same kind as a ticket's
SELECT leaselock.try_lock('named', 'w', '300 s') AS a \gset
SELECT owner, role, fence = :a AS same_fence, depth, lapsed, remaining_ms BETWEEN 200000 AND 300000 AS remaining
FROM leaselock.lease_peek('named');
SELECT leaselock.fence_check('named', :a);
-- ok: NULL for somebody else: another owner, another role
SELECT leaselock.try_lock('named', 'other', '300 s');
SET ROLE regress_leaselock_two;
SELECT leaselock.try_lock('named', 'w', '300 s');
SET ROLE regress_leaselock_one;
-- ok: other scopes and other names are other locks
SELECT leaselock.try_lock('named', 'other', '300 s', 'elsewhere') IS NOT NULL AS got;
SELECT leaselock.release_lock('named', 'other', 'elsewhere');
-- ok: a failed try has changed nothing
SELECT owner, fence = :a AS same_fence, depth FROM leaselock.lease_peek('named');

-- Deliberate: re-acquire by the holder answers with the same fence, does not
-- refresh the lease, and adds no depth.
SELECT expires_at FROM leaselock.lease_peek('named') \gset
SELECT leaselock.try_lock('named', 'w', '300 s') = :a AS same_fence;
SELECT leaselock.try_lock('named', 'w', '1000 days') = :a AS same_fence;
SELECT leaselock.try_lock('named', 'w', '1 s') = :a AS same_fence;
SELECT expires_at = :'expires_at' AS same_expiry, depth FROM leaselock.lease_peek('named');
-- ok: so a single release ends it
SELECT leaselock.release_lock('named', 'w');
SELECT count(*) FROM leaselock.lease_peek('named');
SELECT leaselock.fence_check('named', :a);
-- ok: the next grant has a greater fence, whoever gets it
SELECT leaselock.try_lock('named', 'w', '300 s') AS b \gset
SELECT :b > :a AS greater, leaselock.release_lock('named', 'w') AS released;
SELECT leaselock.try_lock('named', 'other', '300 s') AS c \gset
SELECT :c > :b AS greater, leaselock.release_lock('named', 'other') AS released;

--
-- The ttl
--

-- Deliberate: zero and negative values are an error, never an empty lease.
SELECT leaselock.try_lock('named.ttl', 'w', '0 s'); -- fail
\echo :SQLSTATE
SELECT leaselock.try_lock('named.ttl', 'w', '-1 s'); -- fail
\echo :SQLSTATE
SELECT count(*) FROM leaselock.lease_peek('named.ttl');
SELECT leaselock.try_lock('named.ttl', 'w', '300 s') AS a \gset
SELECT leaselock.try_lock('named.ttl', 'w', '0 s'); -- fail: not as a way to release either
\echo :SQLSTATE
SELECT leaselock.renew_lock('named.ttl', 'w', '0 s'); -- fail
\echo :SQLSTATE
SELECT leaselock.renew_lock('named.ttl', 'w', '-1 s'); -- fail
\echo :SQLSTATE
SELECT leaselock.fence_check('named.ttl', :a); -- ok: still held
-- ok: below min_lease and above max_lease, which do not bound a ttl
SELECT leaselock.renew_lock('named.ttl', 'w', '36500 days');
SELECT remaining_ms > 36499::bigint * 86400000 AS a_century FROM leaselock.lease_peek('named.ttl');
-- ok: a full ttl from now, which may end sooner than before
SELECT leaselock.renew_lock('named.ttl', 'w', '1 microsecond');
SELECT fence = :a AS same_fence, lapsed FROM leaselock.lease_peek('named.ttl');
SELECT leaselock.try_lock('named.ttl', 'other', '1 microsecond') > :a AS greater;
SELECT leaselock.try_lock('named.ttl', 'w', '300 s') > :a AS greater;
SELECT leaselock.release_lock('named.ttl', 'w');

--
-- Renew
--

SELECT leaselock.renew_lock('named.renew', 'w', '300 s'); -- ok: false, there is none
SELECT leaselock.try_lock('named.renew', 'w', '60 s') AS a \gset
SELECT expires_at FROM leaselock.lease_peek('named.renew') \gset
SELECT leaselock.renew_lock('named.renew', 'other', '300 s'); -- ok: false, another's
SELECT expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_peek('named.renew');
SELECT leaselock.renew_lock('named.renew', 'w', '300 s'); -- ok
SELECT remaining_ms BETWEEN 200000 AND 300000 AS a_full_ttl, fence = :a AS same_fence, depth FROM leaselock.lease_peek('named.renew');
SELECT leaselock.renew_lock('named.renew', 'w', '60 s'); -- ok: not additive
SELECT remaining_ms BETWEEN 1 AND 60000 AS a_full_ttl FROM leaselock.lease_peek('named.renew');
-- Deliberate: true even after a lapse, as long as nobody took over.
:clock '100 s' :back
SELECT lapsed FROM leaselock.lease_peek('named.renew');
SELECT leaselock.fence_check('named.renew', :a);
SELECT leaselock.renew_lock('named.renew', 'w', '60 s');
-- ok: it is the same grant, held again
SELECT fence = :a AS same_fence, depth, lapsed FROM leaselock.lease_peek('named.renew');
SELECT leaselock.fence_check('named.renew', :a);
SELECT leaselock.try_lock('named.renew', 'other', '60 s');
-- ok: false once it is lost
:clock '200 s' :back
SELECT leaselock.try_lock('named.renew', 'other', '60 s') AS b \gset
SELECT :b > :a AS greater;
SELECT leaselock.renew_lock('named.renew', 'w', '60 s');
SELECT owner, fence = :b AS same_fence FROM leaselock.lease_peek('named.renew');
-- ok: and it stays lost, even when the other hold has lapsed or ended
:clock '300 s' :back
SELECT leaselock.renew_lock('named.renew', 'w', '60 s');
SELECT leaselock.release_lock('named.renew', 'other');
SELECT leaselock.renew_lock('named.renew', 'w', '60 s');
SELECT leaselock.renew_lock('named.renew', 'other', '60 s'); -- ok: false, released
:clock 0 :back

--
-- Release
--

SELECT leaselock.release_lock('named.release', 'w'); -- ok: false, there is none
SELECT leaselock.try_lock('named.release', 'w', '60 s') AS a \gset
SELECT leaselock.release_lock('named.release', 'other'); -- ok: false, another's
SET ROLE regress_leaselock_two;
SELECT leaselock.release_lock('named.release', 'w'); -- ok: false, another's
SET ROLE regress_leaselock_one;
SELECT leaselock.fence_check('named.release', :a);
SELECT leaselock.release_lock('named.release', 'w'); -- ok: true
SELECT leaselock.release_lock('named.release', 'w'); -- ok: false, a second time
-- Deliberate: true even after a lapse, as long as nobody took over.
SELECT leaselock.try_lock('named.release', 'w', '60 s') AS a \gset
:clock '61 s' :back
SELECT leaselock.release_lock('named.release', 'other');
SELECT leaselock.release_lock('named.release', 'w');
SELECT leaselock.release_lock('named.release', 'w');
SELECT count(*) FROM leaselock.lease_peek('named.release');
-- ok: false when somebody did, who keeps the lock
SELECT leaselock.try_lock('named.release', 'w', '60 s') AS a \gset
:clock '122 s' :back
SELECT leaselock.try_lock('named.release', 'other', '60 s') AS b \gset
SELECT leaselock.release_lock('named.release', 'w');
SELECT owner, fence = :b AS same_fence, :b > :a AS greater FROM leaselock.lease_peek('named.release');
SELECT leaselock.release_lock('named.release', 'other');

-- ok: after a lapse the same identity gets a new grant with a new fence
SELECT leaselock.try_lock('named.release', 'w', '60 s') AS a \gset
:clock '183 s' :back
SELECT leaselock.try_lock('named.release', 'w', '60 s') AS b \gset
SELECT :b > :a AS greater, leaselock.fence_check('named.release', :a) AS old, leaselock.fence_check('named.release', :b) AS new;
SELECT depth, lapsed, remaining_ms BETWEEN 1 AND 60000 AS a_full_ttl FROM leaselock.lease_peek('named.release');
SELECT leaselock.release_lock('named.release', 'w');
:clock 0 :back

--
-- Beside tickets: a ticket, then a named hold
--

SELECT ticket, fence FROM leaselock.lease_acquire('named.ticket', 'w', '300 s') \gset
-- ok: with only a ticket there is no named hold to renew or release
SELECT leaselock.renew_lock('named.ticket', 'w', '60 s'), leaselock.release_lock('named.ticket', 'w');
SELECT leaselock.try_lock('named.ticket', 'other', '60 s');
-- ok: a named hold is added to the grant
SELECT leaselock.try_lock('named.ticket', 'w', '60 s') = :fence AS same_fence;
SELECT count(*), max(fence) = :fence AS same_fence FROM leaselock.lease_peek('named.ticket');
SELECT state, fence = :fence AS same_fence FROM leaselock.lease_get(:'ticket');
-- ok: it shortens no ticket and ends separately
SELECT state, remaining_ms > 200000 AS long FROM leaselock.lease_get(:'ticket');
SELECT leaselock.release_lock('named.ticket', 'w');
SELECT leaselock.release_lock('named.ticket', 'w');
SELECT state, depth, fence = :fence AS same_fence FROM leaselock.lease_get(:'ticket');
SELECT leaselock.try_lock('named.ticket', 'other', '60 s');
-- ok: released first, the ticket leaves the hold alone
SELECT leaselock.try_lock('named.ticket', 'w', '60 s') = :fence AS same_fence;
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT fence = :fence AS same_fence, lapsed FROM leaselock.lease_peek('named.ticket');
SELECT leaselock.fence_check('named.ticket', :fence);
SELECT state, holder, holder_role FROM leaselock.lease_acquire('named.ticket', 'other');
SELECT leaselock.release_lock('named.ticket', 'w');
SELECT leaselock.try_lock('named.ticket', 'other', '60 s') > :fence AS greater;
SELECT leaselock.release_lock('named.ticket', 'other');

--
-- Beside tickets: a named hold, then a ticket
--

SELECT leaselock.try_lock('named.hold', 'w', '60 s') AS fence \gset
SELECT ticket, state, fence = :fence AS same_fence FROM leaselock.lease_acquire('named.hold', 'w', '300 s') \gset
SELECT :'state' AS state, :'same_fence' AS same_fence;
SELECT state, holder FROM leaselock.lease_acquire('named.hold', 'other');
-- ok: a ticket has not refreshed the hold
:clock '61 s' :back
-- ok: the hold has lapsed, the grant has not
SELECT fence = :fence AS same_fence, lapsed FROM leaselock.lease_peek('named.hold');
SELECT leaselock.fence_check('named.hold', :fence);
SELECT leaselock.try_lock('named.hold', 'other', '60 s');
-- ok: lapsed, it can still be renewed or released
BEGIN;
SELECT leaselock.renew_lock('named.hold', 'w', '60 s');
ROLLBACK;
BEGIN;
SELECT leaselock.release_lock('named.hold', 'w');
SELECT leaselock.release_lock('named.hold', 'w');
SELECT state FROM leaselock.lease_get(:'ticket');
ROLLBACK;
-- ok: taken again within the live grant, it lasts for a ttl
SELECT leaselock.try_lock('named.hold', 'w', '100 s') = :fence AS same_fence;
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT fence = :fence AS same_fence, lapsed FROM leaselock.lease_peek('named.hold');
SELECT leaselock.try_lock('named.hold', 'other', '60 s');
SELECT leaselock.release_lock('named.hold', 'w');
-- ok: the other way round, the ticket lapses and the hold lives
SELECT leaselock.try_lock('named.hold', 'w', '1 h') AS fence \gset
SELECT ticket FROM leaselock.lease_acquire('named.hold', 'w', '60 s') \gset
:clock '122 s' :back
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT fence = :fence AS same_fence, lapsed FROM leaselock.lease_peek('named.hold');
SELECT leaselock.fence_check('named.hold', :fence);
SELECT state, holder FROM leaselock.lease_acquire('named.hold', 'other');
SELECT leaselock.renew_lock('named.hold', 'w', '60 s');
SELECT state FROM leaselock.lease_renew(:'ticket');
SELECT leaselock.release_lock('named.hold', 'w');
:clock 0 :back

-- Deliberate: settling ends tickets, not the named hold.  A lapsed hold stays until a
-- new grant, its release or a break.
SELECT leaselock.try_lock('named.settle', 'w', '60 s') AS fence \gset
SELECT ticket FROM leaselock.lease_acquire('named.settle', 'w', '60 s') \gset
:clock '61 s' :back
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT fence = :fence AS same_fence, lapsed FROM leaselock.lease_peek('named.settle');
SELECT leaselock.renew_lock('named.settle', 'w', '60 s');
SELECT leaselock.fence_check('named.settle', :fence);
SELECT state FROM leaselock.lease_get(:'ticket');
:clock '122 s' :back
SELECT state FROM leaselock.lease_renew(:'ticket');
SELECT leaselock.release_lock('named.settle', 'w');
-- ok: nor does the release of the last ticket end it
SELECT leaselock.try_lock('named.settle', 'w', '5 s') AS fence \gset
SELECT ticket FROM leaselock.lease_acquire('named.settle', 'w', '60 s') \gset
:clock '132 s' :back
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT fence = :fence AS same_fence, lapsed FROM leaselock.lease_peek('named.settle');
SELECT leaselock.fence_check('named.settle', :fence), leaselock.fence_check('named.settle', :fence, allow_lapsed => true);
SELECT leaselock.renew_lock('named.settle', 'w', '60 s');
SELECT leaselock.release_lock('named.settle', 'w');
-- ok: a hold is not added to a lapsed grant
SELECT ticket, fence FROM leaselock.lease_acquire('named.settle', 'w', '5 s') \gset
:clock '142 s' :back
SELECT leaselock.renew_lock('named.settle', 'w', '60 s'), leaselock.release_lock('named.settle', 'w');
SELECT leaselock.try_lock('named.settle', 'w', '60 s') > :fence AS greater;
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT leaselock.release_lock('named.settle', 'w');
-- ok: a new grant by a ticket of the same identity ends it
SELECT leaselock.try_lock('named.settle', 'w', '60 s') AS fence \gset
:clock '183 s' :back
SELECT state, fence > :fence AS greater, depth FROM leaselock.lease_acquire('named.settle', 'w', '60 s');
SELECT leaselock.renew_lock('named.settle', 'w', '60 s'), leaselock.release_lock('named.settle', 'w');
SELECT leaselock.lease_release_all('w');
-- ok: so does one of another
SELECT leaselock.try_lock('named.settle', 'w', '60 s') AS fence \gset
:clock '244 s' :back
SELECT state, fence > :fence AS greater, depth FROM leaselock.lease_acquire('named.settle', 'other', '60 s');
SELECT leaselock.renew_lock('named.settle', 'w', '60 s'), leaselock.release_lock('named.settle', 'w');
SELECT leaselock.lease_release_all('other');
:clock 0 :back

--
-- Nothing is tied to the session or the transaction
--

BEGIN;
SELECT leaselock.try_lock('named.session', 'w', '300 s') AS fence \gset
SELECT leaselock.try_lock('named.session', 'w', '300 s') = :fence AS same_fence;
COMMIT;
SELECT leaselock.fence_check('named.session', :fence);
\c
SET ROLE regress_leaselock_one;
SELECT leaselock.try_lock('named.session', 'w', '300 s') = :fence AS same_fence;
SELECT leaselock.release_lock('named.session', 'w');

RESET ROLE;
DROP ROLE regress_leaselock_two, regress_leaselock_one;
SELECT count(*) FROM leaselock.lease_status WHERE name LIKE 'named%';
