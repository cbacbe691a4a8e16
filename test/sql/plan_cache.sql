-- Repeated calls leave no plans, memory contexts or locks behind, and the extension can
-- be dropped and created again within a session.
\set SHOW_CONTEXT never
-- Other tests have moved the clock ahead; what was pruned by that clock has raised
-- the floor, which has been ahead of the real clock since then.
DELETE FROM leaselock.floor;

-- One round of everything, each call in a transaction of its own.
CREATE PROCEDURE public.rounds(n int) LANGUAGE plpgsql AS $$
DECLARE
	t record; -- the type itself does not outlive the extension
	f bigint;
BEGIN
	FOR i IN 1 .. n LOOP
		t := leaselock.lease_acquire('plan_cache', 'w', request_id => gen_random_uuid());
		COMMIT;
		PERFORM leaselock.lease_acquire('plan_cache', 'other');
		COMMIT;
		PERFORM leaselock.lease_renew(t.ticket);
		COMMIT;
		PERFORM leaselock.lease_get(t.ticket);
		COMMIT;
		PERFORM leaselock.fence_assert('plan_cache', t.fence);
		COMMIT;
		IF i % 10 = 0 THEN
			PERFORM leaselock.lease_release_all('w');
		ELSE
			PERFORM leaselock.lease_release(t.ticket);
		END IF;
		COMMIT;
		f := leaselock.try_lock('plan_cache', 'w', '60 s');
		COMMIT;
		PERFORM leaselock.renew_lock('plan_cache', 'w', '60 s');
		COMMIT;
		PERFORM FROM leaselock.lease_peek('plan_cache');
		COMMIT;
		PERFORM leaselock.release_lock('plan_cache', 'w');
		COMMIT;
		-- as well as calls that fail, and calls that are rolled back
		BEGIN
			PERFORM leaselock.fence_assert('plan_cache', f);
		EXCEPTION WHEN SQLSTATE 'LS001' THEN
			NULL;
		END;
		COMMIT;
		PERFORM leaselock.try_lock('plan_cache', 'w', '60 s');
		ROLLBACK;
	END LOOP;
END $$;
CREATE TEMP TABLE kept (calls int, contexts bigint, plans bigint, locks bigint, advisory bigint);
CREATE PROCEDURE public.look(calls int) LANGUAGE sql AS $$
	INSERT INTO kept SELECT calls,
		(SELECT count(*) FROM pg_backend_memory_contexts),
		(SELECT count(*) FROM pg_backend_memory_contexts WHERE name LIKE 'CachedPlan%' OR name LIKE 'SPI%'),
		(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()),
		(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
$$;

-- ok: the same after 10 and after 10 000 calls
CALL public.rounds(10);
SELECT leaselock.lease_prune('36500 days'); -- as tidying does now and then
CALL public.look(0); -- so that looking has its own plans ready
CALL public.look(10);
CALL public.rounds(900);
CALL public.look(10000);
SELECT a.contexts = b.contexts AS contexts, a.plans = b.plans AS plans, a.locks = b.locks AS locks, b.advisory
FROM kept a, kept b WHERE a.calls = 10 AND b.calls = 10000;
SELECT * FROM (SELECT calls, contexts, plans, locks FROM kept WHERE calls > 0) k
WHERE (SELECT count(DISTINCT (contexts, plans, locks)) FROM kept WHERE calls > 0) > 1; -- ok: none

-- ok: within one transaction, calls on one lock keep its locks and no more
SELECT ticket, fence FROM leaselock.lease_acquire('plan_cache', 'w', '300 s') \gset
SELECT set_config('regress.ticket', :'ticket', false) = :'ticket' AS set, set_config('regress.fence', :'fence', false) = :'fence' AS set;
CREATE PROCEDURE public.within(n int) LANGUAGE plpgsql AS $$
DECLARE
	ticket uuid := current_setting('regress.ticket');
	fence bigint := current_setting('regress.fence');
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM leaselock.lease_renew(ticket);
		PERFORM leaselock.lease_get(ticket);
		PERFORM leaselock.fence_check('plan_cache', fence);
		PERFORM leaselock.fence_check('plan_cache', i);
		PERFORM leaselock.try_lock('plan_cache', 'other', '60 s');
		PERFORM leaselock.lease_acquire('plan_cache', 'other');
		PERFORM leaselock.try_lock('plan_cache', 'w', '60 s');
		PERFORM leaselock.release_lock('plan_cache', 'w');
	END LOOP;
END $$;
BEGIN;
CALL public.within(2);
SELECT count(*) AS before FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' \gset
CALL public.within(1000);
SELECT count(*) = :before AS same FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
COMMIT;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
-- ok: an unsuccessful try keeps no lock
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT leaselock.try_lock('plan_cache', 'other', '60 s') AS fence \gset
BEGIN;
SELECT leaselock.try_lock('plan_cache', 'w', '60 s');
SELECT state FROM leaselock.lease_acquire('plan_cache', 'w');
SELECT leaselock.renew_lock('plan_cache', 'w', '60 s'), leaselock.release_lock('plan_cache', 'w');
SELECT leaselock.lease_release_all('w');
SELECT state FROM leaselock.lease_renew(:'ticket');
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
COMMIT;
DROP PROCEDURE public.within;

--
-- DROP EXTENSION, CREATE EXTENSION
--

SELECT ticket FROM leaselock.lease_acquire('plan_cache.held', 'w', '300 s') \gset
DROP EXTENSION leaselock;
CREATE EXTENSION leaselock;
-- ok: nothing is held, and fences go on growing
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT count(*) FROM leaselock.lease_status;
SELECT leaselock.fence_check('plan_cache', :fence);
SELECT leaselock.try_lock('plan_cache', 'w', '60 s') > :fence AS greater;
SELECT leaselock.release_lock('plan_cache', 'w');
CALL public.rounds(10);
-- ok: in one transaction with the calls, kept ...
BEGIN;
SELECT leaselock.try_lock('plan_cache', 'w', '60 s') AS fence \gset
DROP EXTENSION leaselock;
CREATE EXTENSION leaselock;
SELECT leaselock.try_lock('plan_cache', 'w', '60 s') > :fence AS greater;
COMMIT;
SELECT owner FROM leaselock.lease_peek('plan_cache');
-- ok: ... and rolled back
SELECT leaselock.try_lock('plan_cache', 'w', '60 s') AS fence \gset
BEGIN;
DROP EXTENSION leaselock;
CREATE EXTENSION leaselock;
SELECT leaselock.try_lock('plan_cache', 'other', '60 s') > :fence AS greater;
ROLLBACK;
SELECT owner, fence = :fence AS same_fence FROM leaselock.lease_peek('plan_cache');
SELECT leaselock.release_lock('plan_cache', 'w');
CALL public.rounds(10);
-- ok: rewritten tables are found again
CLUSTER leaselock.locks USING locks_pkey;
VACUUM FULL leaselock.tickets;
CALL public.rounds(10);

DROP PROCEDURE public.rounds, public.look;
SELECT count(*) FROM leaselock.lease_status WHERE name LIKE 'plan_cache%';
