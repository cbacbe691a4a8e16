-- REPEATABLE READ, SERIALIZABLE and long transactions, as far as one session shows
-- them: every call answers by the latest state and the wall clock; a fence younger
-- than the snapshot is refused with 40001, because what the transaction has read may
-- predate the previous holder's last write.
-- Snapshots older than another session's change are in test/specs.
LOAD 'leaselock';
\set SHOW_CONTEXT never
\set VERBOSITY terse

--
-- A grant made in the same transaction
--

-- fail: in REPEATABLE READ
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence FROM leaselock.lease_acquire('isolation', 'w') \gset
SELECT leaselock.fence_check('isolation', :fence);
\echo :SQLSTATE
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence FROM leaselock.lease_acquire('isolation', 'w') \gset
SELECT leaselock.fence_assert('isolation', :fence);
\echo :SQLSTATE
ROLLBACK;
-- fail: in SERIALIZABLE, by a named lock
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT leaselock.try_lock('isolation', 'w', '60 s') AS fence \gset
SELECT leaselock.fence_check('isolation', :fence, allow_lapsed => true);
\echo :SQLSTATE
ROLLBACK;
-- fail: the detail and the hint, once
\set VERBOSITY default
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence FROM leaselock.lease_acquire('isolation', 'w') \gset
SELECT leaselock.fence_check('isolation', :fence);
ROLLBACK;
\set VERBOSITY terse
-- ok: in READ COMMITTED
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT fence FROM leaselock.lease_acquire('isolation', 'w') \gset
SELECT leaselock.fence_check('isolation', :fence);
COMMIT;
SELECT leaselock.lease_release_all('w');

--
-- A grant made before
--

SELECT ticket, fence FROM leaselock.lease_acquire('isolation', 'w', '60 s') \gset
-- ok: the snapshot is younger
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT leaselock.fence_check('isolation', :fence);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT leaselock.fence_check('isolation', :fence);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT leaselock.fence_check('isolation', :fence);
COMMIT;
-- ok: renewed, joined by a further ticket or a named hold in the same transaction: the
-- grant is as old as before
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT state, remaining_ms FROM leaselock.lease_renew(:'ticket');
SELECT leaselock.fence_check('isolation', :fence);
SELECT state, depth, fence = :fence AS same_fence FROM leaselock.lease_acquire('isolation', 'w');
SELECT leaselock.fence_check('isolation', :fence);
SELECT leaselock.try_lock('isolation', 'w', '60 s') = :fence AS same_fence;
SELECT leaselock.renew_lock('isolation', 'w', '60 s');
SELECT leaselock.fence_check('isolation', :fence);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT state, remaining_ms FROM leaselock.lease_renew(:'ticket');
SELECT leaselock.fence_check('isolation', :fence);
COMMIT;
-- ok: a stale fence is false, not a serialization failure
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT leaselock.fence_check('isolation', :fence - 1);
SELECT leaselock.fence_check('isolation.never', 1);
COMMIT;
SELECT leaselock.lease_release_all('w'), leaselock.release_lock('isolation', 'w');

--
-- Everything else answers by the latest state, including its own changes
--

CREATE PROCEDURE pg_temp.cycle(lock text) LANGUAGE plpgsql AS $$
DECLARE
	a leaselock.lease_ticket;
	b leaselock.lease_ticket;
	c leaselock.lease_ticket;
	f bigint;
BEGIN
	FOR i IN 1 .. 3 LOOP
		a := leaselock.lease_acquire(lock, 'a', request_id => md5(lock || i)::uuid);
		b := leaselock.lease_acquire(lock, 'a', '120 s');
		c := leaselock.lease_acquire(lock, 'b');
		ASSERT a.state = 'held' AND b.state = 'held' AND b.depth = 2 AND b.fence = a.fence AND c.state = 'contended', 'acquire';
		ASSERT (leaselock.lease_acquire(lock, 'a', request_id => md5(lock || i)::uuid)).ticket = a.ticket, 'retry';
		ASSERT (leaselock.lease_renew(a.ticket, '200 s')).remaining_ms = 200000, 'renew';
		ASSERT (leaselock.lease_get(a.ticket)).depth = 2, 'get';
		ASSERT leaselock.try_lock(lock, 'a', '60 s') = a.fence, 'named hold';
		ASSERT leaselock.try_lock(lock, 'b', '60 s') IS NULL, 'named hold of another';
		ASSERT (leaselock.lease_release(a.ticket)).state = 'released', 'release';
		ASSERT (leaselock.lease_release(a.ticket)).state = 'released', 'release again';
		ASSERT (SELECT count(*) = 1 AND max(s.fence) = a.fence FROM leaselock.lease_peek(lock) s), 'peek';
		ASSERT leaselock.lease_release_all('a') = 1, 'release all';
		ASSERT leaselock.renew_lock(lock, 'a', '60 s'), 'renew the hold';
		ASSERT leaselock.release_lock(lock, 'a'), 'release the hold';
		f := leaselock.try_lock(lock, 'b', '60 s');
		ASSERT f > a.fence, 'the next grant';
		ASSERT leaselock.release_lock(lock, 'b'), 'release the next grant';
		ASSERT (leaselock.lease_get(b.ticket)).state = 'released', 'get after all';
	END LOOP;
END $$;
CREATE TABLE other_work (i int);
-- ok: with a snapshot taken before
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM other_work;
CALL pg_temp.cycle('isolation.rr');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM other_work;
CALL pg_temp.cycle('isolation.serializable');
COMMIT;
-- ok: after a rolled-back savepoint
BEGIN ISOLATION LEVEL REPEATABLE READ;
SAVEPOINT s;
INSERT INTO other_work VALUES (1);
CALL pg_temp.cycle('isolation.savepoint');
ROLLBACK TO s;
CALL pg_temp.cycle('isolation.savepoint');
COMMIT;
-- ok: the status shows one version of a row, the latest
SELECT ticket, fence FROM leaselock.lease_acquire('isolation.versions', 'w', '60 s') \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM other_work;
SELECT state FROM leaselock.lease_renew(:'ticket', '300 s');
SELECT count(*), max(remaining_ms) > 100000 AS latest FROM leaselock.lease_status WHERE name = 'isolation.versions';
SELECT count(*), max(remaining_ms) > 100000 AS latest FROM leaselock.lease_tickets WHERE name = 'isolation.versions';
SELECT count(*), max(remaining_ms) > 100000 AS latest FROM leaselock.lease_peek('isolation.versions');
COMMIT;
SELECT leaselock.lease_release_all('w');

--
-- Late in a long transaction: the clock is the wall clock, not the
-- transaction's start
--

BEGIN;
SELECT count(*) FROM other_work;
SET LOCAL leaselock.clock_offset = '1 h'; -- as if an hour had passed
SELECT ticket, state, remaining_ms, expires_at - interval '1 h 60 s' > now() AS from_the_call
FROM leaselock.lease_acquire('isolation.late', 'w', '60 s') \gset a_
SELECT :'a_state' AS state, :a_remaining_ms AS remaining_ms, :'a_from_the_call' AS from_the_call;
-- ok: it lapses within the transaction, and another takes over
SET LOCAL leaselock.clock_offset = '3661 s';
SELECT state FROM leaselock.lease_get(:'a_ticket');
SELECT state, remaining_ms FROM leaselock.lease_acquire('isolation.late', 'other', '60 s');
COMMIT;
SELECT leaselock.lease_release_all('other') IS NOT NULL AS released;
-- ok: with the real clock, too: two calls of one transaction have two times
BEGIN;
SELECT expires_at AS a FROM leaselock.lease_acquire('isolation.late2', 'w', '60 s') \gset
SELECT expires_at > :'a' AS later, expires_at > now() + interval '60 s' AS after_the_start
FROM leaselock.lease_acquire('isolation.late2', 'w', '60 s');
COMMIT;
SELECT leaselock.lease_release_all('w');

DROP TABLE other_work;
SELECT count(*) FROM leaselock.lease_status WHERE name LIKE 'isolation%' AND NOT lapsed;
