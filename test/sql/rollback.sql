-- A rolled-back call leaves no trace, whether by ROLLBACK, ROLLBACK TO or an exception;
-- a fence that it showed is not issued again.
LOAD 'leaselock';
-- Other tests have moved the clock ahead; what was pruned by that clock has raised
-- the floor, which has been ahead of the real clock since then.
DELETE FROM leaselock.floor;
SET leaselock.ticket_retention = '20000 d';

--
-- acquire
--

BEGIN;
SELECT ticket, state, fence FROM leaselock.lease_acquire('rollback', 'w', '300 s') \gset a_
ROLLBACK;
-- ok: no ticket, no grant, no heavyweight lock
SELECT state FROM leaselock.lease_get(:'a_ticket');
SELECT count(*) FROM leaselock.lease_peek('rollback');
SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'rollback';
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT leaselock.fence_check('rollback', :a_fence);
-- ok: the next grant has a greater fence, whoever gets it
SELECT state, fence > :a_fence AS greater, depth FROM leaselock.lease_acquire('rollback', 'other', '300 s');
SELECT leaselock.lease_release_all('other');
-- ok: the same by ROLLBACK TO, and within the transaction
BEGIN;
SAVEPOINT s;
SELECT ticket, state, fence FROM leaselock.lease_acquire('rollback', 'w', '300 s') \gset a_
ROLLBACK TO s;
SELECT state FROM leaselock.lease_get(:'a_ticket');
SELECT count(*) FROM leaselock.lease_peek('rollback');
SELECT state, fence > :a_fence AS greater, depth FROM leaselock.lease_acquire('rollback', 'other', '300 s');
COMMIT;
SELECT owner, depth FROM leaselock.lease_peek('rollback');
SELECT leaselock.lease_release_all('other');
-- ok: over and over: no number comes twice
CREATE TEMP TABLE seen (nr int GENERATED ALWAYS AS IDENTITY, fence bigint);
DO $$
DECLARE
	f bigint;
BEGIN
	FOR i IN 1 .. 100 LOOP
		BEGIN
			f := leaselock.try_lock('rollback', 'w' || i, '60 s');
			IF i % 2 = 0 THEN
				RAISE EXCEPTION 'undo';
			END IF;
			PERFORM leaselock.release_lock('rollback', 'w' || i);
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
		INSERT INTO seen (fence) VALUES (f);
	END LOOP;
END $$;
SELECT count(*), count(DISTINCT fence), bool_and(fence > before) AS growing
FROM (SELECT fence, lag(fence, 1, 0) OVER (ORDER BY nr) AS before FROM seen) s;

-- ok: for an existing grant only the further ticket is rolled back
SELECT ticket, fence, expires_at FROM leaselock.lease_acquire('rollback', 'w', '300 s') \gset
BEGIN;
SELECT ticket, state, depth FROM leaselock.lease_acquire('rollback', 'w', '300 s') \gset b_
SELECT :'b_state' AS state, :b_depth AS depth;
ROLLBACK;
SELECT state FROM leaselock.lease_get(:'b_ticket');
SELECT state, depth, fence = :fence AS same_fence, expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_get(:'ticket');
SELECT depth, expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_peek('rollback');

--
-- renew
--

BEGIN;
SELECT state, remaining_ms FROM leaselock.lease_renew(:'ticket', '60 s');
ROLLBACK;
-- ok: neither the expiry nor the length last requested has changed
SELECT state, expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_get(:'ticket');
BEGIN;
SAVEPOINT s;
SELECT state, remaining_ms FROM leaselock.lease_renew(:'ticket', '60 s');
ROLLBACK TO s;
SELECT state, expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_get(:'ticket');
SELECT state, remaining_ms FROM leaselock.lease_renew(:'ticket');
ROLLBACK;
SELECT expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_peek('rollback');

--
-- release
--

BEGIN;
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT count(*) FROM leaselock.lease_peek('rollback');
ROLLBACK;
SELECT state, depth, fence = :fence AS same_fence, expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_get(:'ticket');
SELECT leaselock.fence_check('rollback', :fence);
-- ok: the takeover that followed is rolled back with it
BEGIN;
SAVEPOINT s;
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT state, fence > :fence AS greater FROM leaselock.lease_acquire('rollback', 'other', '300 s');
ROLLBACK TO s;
SELECT state, depth, fence = :fence AS same_fence, expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_get(:'ticket');
SELECT state FROM leaselock.lease_acquire('rollback', 'other', '300 s');
COMMIT;
SELECT state, fence = :fence AS same_fence FROM leaselock.lease_get(:'ticket');
SELECT owner, fence = :fence AS same_fence FROM leaselock.lease_peek('rollback');
-- ok: release_all
BEGIN;
SELECT leaselock.lease_release_all('w');
ROLLBACK;
SELECT state FROM leaselock.lease_get(:'ticket');
DO $$
BEGIN
	PERFORM leaselock.lease_release_all('w');
	RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
	NULL;
END $$;
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT leaselock.lease_release_all('w');

--
-- A takeover after a lapse
--

SELECT ticket, fence FROM leaselock.lease_acquire('rollback.lapse', 'w', '60 s') \gset
SET leaselock.clock_offset = '61 s';
BEGIN;
SELECT state, fence FROM leaselock.lease_acquire('rollback.lapse', 'other', '60 s') \gset b_
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT leaselock.fence_check('rollback.lapse', :fence, allow_lapsed => true);
ROLLBACK;
-- ok: the lapsed grant is the newest again
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT leaselock.fence_check('rollback.lapse', :fence), leaselock.fence_check('rollback.lapse', :fence, allow_lapsed => true);
SELECT leaselock.fence_check('rollback.lapse', :b_fence), leaselock.fence_check('rollback.lapse', :b_fence, allow_lapsed => true);
-- ok: and the next one has a fence of its own
SELECT state, fence > :b_fence AS greater FROM leaselock.lease_acquire('rollback.lapse', 'third', '60 s');
SELECT leaselock.lease_release_all('third');
RESET leaselock.clock_offset;

--
-- Named locks
--

BEGIN;
SELECT leaselock.try_lock('rollback.named', 'w', '300 s') AS a \gset
ROLLBACK;
SELECT count(*) FROM leaselock.lease_peek('rollback.named');
SELECT leaselock.renew_lock('rollback.named', 'w', '300 s'), leaselock.release_lock('rollback.named', 'w');
SELECT leaselock.try_lock('rollback.named', 'w', '300 s') AS b \gset
SELECT :b > :a AS greater;
SELECT expires_at FROM leaselock.lease_peek('rollback.named') \gset
BEGIN;
SELECT leaselock.renew_lock('rollback.named', 'w', '1 microsecond');
SELECT leaselock.try_lock('rollback.named', 'other', '300 s') > :b AS greater;
ROLLBACK;
SELECT fence = :b AS same_fence, owner, expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_peek('rollback.named');
BEGIN;
SAVEPOINT s;
SELECT leaselock.release_lock('rollback.named', 'w');
ROLLBACK TO s;
SELECT leaselock.try_lock('rollback.named', 'other', '300 s');
SELECT leaselock.release_lock('rollback.named', 'w');
ROLLBACK;
SELECT fence = :b AS same_fence, owner, expires_at = :'expires_at' AS same_expiry FROM leaselock.lease_peek('rollback.named');
-- ok: a hold added to a ticket's grant
SELECT ticket, fence FROM leaselock.lease_acquire('rollback.both', 'w', '300 s') \gset
BEGIN;
SELECT leaselock.try_lock('rollback.both', 'w', '300 s') = :fence AS same_fence;
ROLLBACK;
SELECT leaselock.release_lock('rollback.both', 'w');
SELECT state, depth FROM leaselock.lease_get(:'ticket');
SELECT leaselock.lease_release_all('w'), leaselock.release_lock('rollback.named', 'w');

-- ok: an error in the transaction is a rollback like any other
BEGIN;
SELECT state FROM leaselock.lease_acquire('rollback', 'w');
SELECT 1 / 0;
COMMIT;
SELECT count(*) FROM leaselock.lease_peek('rollback');
-- ok: so is an error in the statement itself
SELECT 1 / (depth - 1) FROM leaselock.lease_acquire('rollback', 'w');
SELECT count(*) FROM leaselock.lease_peek('rollback');

SELECT count(*) FROM leaselock.lease_status WHERE name LIKE 'rollback%' AND NOT lapsed;
