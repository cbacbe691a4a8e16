-- lease_release_all ends every live ticket of (current role, owner), in one scope or
-- in all, and returns how many.  Named holds are not tickets and stay.
LOAD 'leaselock';
CREATE ROLE regress_leaselock_one;
CREATE ROLE regress_leaselock_two IN ROLE regress_leaselock_one;
SET ROLE regress_leaselock_one;

-- ok: nothing to release
SELECT leaselock.lease_release_all('w');
SELECT leaselock.lease_release_all('w', 'release_all.a');

SELECT ticket AS a1 FROM leaselock.lease_acquire('1', 'w', '300 s', scope => 'release_all.a') \gset
SELECT ticket AS a1b FROM leaselock.lease_acquire('1', 'w', '300 s', scope => 'release_all.a') \gset
SELECT ticket AS a2 FROM leaselock.lease_acquire('2', 'w', '300 s', scope => 'release_all.a') \gset
SELECT ticket AS b1 FROM leaselock.lease_acquire('1', 'w', '300 s', scope => 'release_all.b') \gset
SELECT ticket AS p1 FROM leaselock.lease_acquire('release_all', 'w', '300 s') \gset
SELECT ticket AS other FROM leaselock.lease_acquire('3', 'other', '300 s', scope => 'release_all.a') \gset
SET ROLE regress_leaselock_two;
SELECT ticket AS two FROM leaselock.lease_acquire('4', 'w', '300 s', scope => 'release_all.a') \gset
SET ROLE regress_leaselock_one;

-- ok: one scope; a ticket counts, not a lock
SELECT leaselock.lease_release_all('w', 'release_all.a');
SELECT state FROM leaselock.lease_get(:'a1');
SELECT state FROM leaselock.lease_get(:'a1b');
SELECT state FROM leaselock.lease_get(:'a2');
SELECT state FROM leaselock.lease_get(:'b1');
SELECT state FROM leaselock.lease_get(:'p1');
-- ok: the locks are free
SELECT state FROM leaselock.lease_acquire('1', 'other', '300 s', scope => 'release_all.a');
-- ok: others keep theirs: another owner, and the same label under another role
SELECT state FROM leaselock.lease_get(:'other');
SET ROLE regress_leaselock_two;
SELECT state FROM leaselock.lease_get(:'two');
-- ok: membership in the role does not make its tickets one's own
SELECT leaselock.lease_release_all('other');
SELECT leaselock.lease_release_all('w', 'release_all.b');
SET ROLE regress_leaselock_one;
SELECT state FROM leaselock.lease_get(:'b1');
-- ok: a second time: nothing is left in that scope
SELECT leaselock.lease_release_all('w', 'release_all.a');
-- ok: a scope is compared as a whole
SELECT leaselock.lease_release_all('w', 'release_all');
-- ok: a rolled-back call has released nothing
BEGIN;
SELECT leaselock.lease_release_all('w');
SELECT leaselock.lease_release_all('w');
ROLLBACK;
SELECT state FROM leaselock.lease_get(:'b1');
-- ok: all scopes, NULL being the default
SELECT leaselock.lease_release_all('w', NULL);
SELECT state FROM leaselock.lease_get(:'b1');
SELECT state FROM leaselock.lease_get(:'p1');
SELECT leaselock.lease_release_all('w');
SELECT leaselock.lease_release_all('other');

-- ok: a lapsed ticket is not live; it is expired, not released
SELECT ticket AS short FROM leaselock.lease_acquire('release_all', 'w', '60 s') \gset
SELECT ticket AS long FROM leaselock.lease_acquire('release_all', 'w', '200 s') \gset
SELECT ticket AS alone FROM leaselock.lease_acquire('release_all.alone', 'w', '60 s') \gset
RESET ROLE;
SET leaselock.clock_offset = '61 s';
SET ROLE regress_leaselock_one;
SELECT leaselock.lease_release_all('w');
SELECT state FROM leaselock.lease_get(:'short');
SELECT state FROM leaselock.lease_get(:'long');
SELECT state FROM leaselock.lease_get(:'alone');
SELECT state FROM leaselock.lease_acquire('release_all', 'other', '60 s');
SELECT state FROM leaselock.lease_acquire('release_all.alone', 'other', '60 s');
SELECT leaselock.lease_release_all('other');
RESET ROLE;
RESET leaselock.clock_offset;
SET ROLE regress_leaselock_one;

-- ok: named holds stay, and the grant with them
SELECT fence FROM leaselock.lease_acquire('release_all.named', 'w', '300 s') \gset
SELECT leaselock.try_lock('release_all.named', 'w', '300 s') = :fence AS same_grant;
SELECT leaselock.try_lock('release_all.only', 'w', '300 s') IS NOT NULL AS got;
SELECT leaselock.lease_release_all('w');
SELECT leaselock.fence_check('release_all.named', :fence);
SELECT state, holder FROM leaselock.lease_acquire('release_all.named', 'other');
SELECT leaselock.lease_release_all('w');
SELECT leaselock.release_lock('release_all.named', 'w'), leaselock.release_lock('release_all.only', 'w');

-- ok: waiting ones are cancelled, in one scope or in all; those behind move up
SELECT ticket AS h FROM leaselock.lease_acquire('1', 'h', '300 s', scope => 'release_all.a') \gset
SELECT FROM leaselock.lease_acquire('1', 'h', '300 s', scope => 'release_all.b');
SELECT ticket AS a1 FROM leaselock.lease_acquire('1', 'w', '300 s', '300 s', scope => 'release_all.a') \gset
SELECT ticket AS a2 FROM leaselock.lease_acquire('1', 'w', '300 s', '300 s', scope => 'release_all.a') \gset
SELECT ticket AS b1 FROM leaselock.lease_acquire('1', 'w', '300 s', '300 s', scope => 'release_all.b') \gset
SELECT ticket AS behind FROM leaselock.lease_acquire('1', 'other', '300 s', '300 s', scope => 'release_all.a') \gset
SELECT ticket AS a3 FROM leaselock.lease_acquire('3', 'w', '300 s', scope => 'release_all.a') \gset
SELECT leaselock.lease_release_all('w', 'release_all.a');
SELECT state FROM leaselock.lease_get(:'a1');
SELECT state FROM leaselock.lease_get(:'a2');
SELECT state FROM leaselock.lease_get(:'a3');
SELECT state FROM leaselock.lease_get(:'b1');
SELECT state, position FROM leaselock.lease_get(:'behind');
SELECT leaselock.lease_release_all('w');
SELECT state FROM leaselock.lease_get(:'b1');
SELECT leaselock.lease_release_all('w');
SELECT leaselock.lease_release_all('other'), leaselock.lease_release_all('h');

-- ok: for a grant from the queue, the promoted ticket that nobody has claimed, and a
-- ticket that still waits
SELECT ticket AS h FROM leaselock.lease_acquire('release_all', 'h', '300 s') \gset
SELECT ticket AS p1 FROM leaselock.lease_acquire('release_all', 'w', '300 s', '300 s') \gset
SELECT ticket AS p2 FROM leaselock.lease_acquire('release_all', 'w', '300 s', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'h');
SELECT owner, state FROM leaselock.lease_tickets WHERE name = 'release_all' ORDER BY state;
SELECT leaselock.lease_release_all('w');
SELECT state FROM leaselock.lease_get(:'p1');
SELECT state FROM leaselock.lease_get(:'p2');
SELECT leaselock.lease_release_all('w');

-- ok: for a grant with several tickets, the first of which has ended and has been
-- replaced or not; the named hold stays
SELECT ticket AS t1, fence FROM leaselock.lease_acquire('release_all', 'w', '300 s') \gset
SELECT ticket AS t2 FROM leaselock.lease_acquire('release_all', 'w', '300 s') \gset
SELECT ticket AS t3 FROM leaselock.lease_acquire('release_all', 'w', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'t1');
SELECT leaselock.try_lock('release_all', 'w', '300 s') = :fence AS same_grant;
SELECT leaselock.lease_release_all('w');
SELECT state FROM leaselock.lease_get(:'t2');
SELECT state FROM leaselock.lease_get(:'t3');
SELECT leaselock.fence_check('release_all', :fence);
SELECT ticket AS t1 FROM leaselock.lease_acquire('release_all', 'w', '300 s') \gset
SELECT ticket AS t2 FROM leaselock.lease_acquire('release_all', 'w', '300 s') \gset
SELECT state FROM leaselock.lease_release(:'t1');
SELECT ticket AS t4, depth FROM leaselock.lease_acquire('release_all', 'w', '300 s') \gset
SELECT :depth AS depth;
SELECT leaselock.lease_release_all('w');
SELECT state FROM leaselock.lease_get(:'t2');
SELECT state FROM leaselock.lease_get(:'t4');
SELECT leaselock.fence_check('release_all', :fence);
SELECT owner, depth, lapsed FROM leaselock.lease_status WHERE name = 'release_all';
SELECT leaselock.release_lock('release_all', 'w');
SELECT state FROM leaselock.lease_acquire('release_all', 'other', '300 s');
SELECT leaselock.lease_release_all('other');

-- ok: also tickets of the same transaction; many at once
BEGIN;
SELECT count(*) FROM generate_series(1, 100) i, leaselock.lease_acquire('release_all.' || i, 'w') t WHERE state = 'held';
SELECT leaselock.lease_release_all('w');
COMMIT;
SELECT count(*) FROM generate_series(1, 100) i, leaselock.lease_acquire('release_all.' || i, 'other') t WHERE state = 'held';
SELECT leaselock.lease_release_all('other');

SET ROLE regress_leaselock_two;
SELECT leaselock.lease_release_all('w');
RESET ROLE;
DROP ROLE regress_leaselock_two, regress_leaselock_one;
SELECT count(*) FROM leaselock.lease_status WHERE name LIKE 'release_all%' OR scope LIKE 'release_all%';
