-- Fences, and the check that is verified when the transaction commits.
-- What needs a second session to supersede the first is in test/specs.
LOAD 'leaselock';
\set SHOW_CONTEXT never

-- How a fence_assert was refused, with the fences named and times masked.
CREATE FUNCTION pg_temp.refusal(statement text, fences bigint[] DEFAULT '{}') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text;
	message text;
	detail text;
	hint text;
	answer text;
BEGIN
	EXECUTE statement;
	RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	answer := concat_ws(E'\n', state, message,
		'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, ''));
	FOR i IN 1 .. cardinality(fences) LOOP
		answer := replace(answer, fences[i]::text, '<fence ' || i || '>');
	END LOOP;
	RETURN regexp_replace(answer, '(\w{3} )?\w{3} \d\d \d\d:\d\d:\d\d(\.\d+)? \d{4} \w+|\d{4}-\d\d-\d\d[ T][0-9:.+-]+', '<time>', 'g');
END $$;

--
-- The numbers
--

-- ok: greater than the microseconds since 2020 plus 64 s for each timeline,
-- and not by more than the call took
CREATE FUNCTION pg_temp.reading() RETURNS bigint LANGUAGE sql AS $$
	SELECT (extract(epoch FROM clock_timestamp() - timestamptz '2020-01-01 00:00:00+00') * 1000000
		+ 64000000 * timeline_id)::bigint FROM pg_control_checkpoint()
$$;
SELECT pg_temp.reading() AS before \gset
SELECT leaselock.try_lock('fences.clock', 'w', '60 s') AS fence \gset
SELECT :fence > :before AS after_the_start, :fence <= pg_temp.reading() + 1 AS before_the_end;
SELECT leaselock.release_lock('fences.clock', 'w');
-- ok: below 2^53, so that JSON and its readers carry it exactly
SELECT :fence < 2::numeric ^ 53 AS small_enough, to_json(:fence)::text = :'fence' AS as_json,
	:fence::float8::bigint = :fence AS as_double, (to_json(:fence)::text)::jsonb = to_jsonb(:fence) AS as_jsonb;

-- ok: they grow strictly, whoever is granted the lock and how
CREATE TEMP TABLE seen (nr int GENERATED ALWAYS AS IDENTITY, fence bigint);
DO $$
DECLARE
	t leaselock.lease_ticket;
BEGIN
	FOR i IN 1 .. 100 LOOP
		t := leaselock.lease_acquire('fences', 'w' || i % 3);
		INSERT INTO seen (fence) VALUES (t.fence);
		PERFORM leaselock.lease_release(t.ticket);
		INSERT INTO seen (fence) VALUES (leaselock.try_lock('fences', 'w' || i % 2, '60 s'));
		PERFORM leaselock.release_lock('fences', 'w' || i % 2);
		INSERT INTO seen (fence) VALUES (leaselock.try_lock('fences', 'w', '1 microsecond')); -- lapses
	END LOOP;
END $$;
SELECT count(*), count(fence), bool_and(fence > before) AS growing
FROM (SELECT fence, lag(fence, 1, 0) OVER (ORDER BY nr) AS before FROM seen) s;

--
-- fence_check and fence_assert
--

SELECT fence AS a FROM leaselock.lease_acquire('fences.check', 'first', '60 s') \gset
-- ok: the present grant
SELECT leaselock.fence_check('fences.check', :a), leaselock.fence_check('fences.check', :a, 'public', true);
SELECT leaselock.fence_assert('fences.check', :a);
-- ok: false for any other number, lock or scope
SELECT leaselock.fence_check('fences.check', :a - 1), leaselock.fence_check('fences.check', :a + 1),
	leaselock.fence_check('fences.check', 0), leaselock.fence_check('fences.check', -:a);
SELECT leaselock.fence_check('fences.never', :a), leaselock.fence_check('fences.check', :a, 'elsewhere');
SELECT leaselock.fence_check('fences.never', 0), leaselock.fence_check('fences.never', 0, allow_lapsed => true);
-- ok: every role that may use the scope may check
CREATE ROLE regress_leaselock_stranger;
SET ROLE regress_leaselock_stranger;
SELECT leaselock.fence_check('fences.check', :a);
RESET ROLE;
DROP ROLE regress_leaselock_stranger;
-- ok: a renewal and a re-entrant ticket do not change the fence
SELECT ticket FROM leaselock.lease_acquire('fences.check', 'first', '60 s') \gset
SELECT state FROM leaselock.lease_renew(:'ticket');
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT leaselock.fence_check('fences.check', :a);

-- fail: never granted
SELECT pg_temp.refusal('SELECT leaselock.fence_assert(''fences.never'', 1)');
-- fail: a number that was never issued
SELECT pg_temp.refusal(format('SELECT leaselock.fence_assert(''fences.check'', %s)', :a + 1), ARRAY[:a, :a + 1]);
-- fail: lapsed
SET leaselock.clock_offset = '61 s';
SELECT leaselock.fence_check('fences.check', :a);
SELECT pg_temp.refusal(format('SELECT leaselock.fence_assert(''fences.check'', %s)', :a), ARRAY[:a]);
-- ok: if a lapse is allowed, until somebody else is granted the lock
SELECT leaselock.fence_check('fences.check', :a, allow_lapsed => true);
SELECT leaselock.fence_assert('fences.check', :a, allow_lapsed => true);
-- ok: the same for a settled lapse
SELECT ticket, fence AS s FROM leaselock.lease_acquire('fences.settled', 'w', '60 s') \gset
SET leaselock.clock_offset = '122 s';
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT state FROM leaselock.lease_renew(:'ticket');
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT leaselock.fence_check('fences.settled', :s), leaselock.fence_check('fences.settled', :s, allow_lapsed => true);
SELECT pg_temp.refusal(format('SELECT leaselock.fence_assert(''fences.settled'', %s)', :s), ARRAY[:s]);
-- fail: superseded, with a lapse allowed or not
SELECT fence AS b, ticket FROM leaselock.lease_acquire('fences.check', 'second', '60 s') \gset
SELECT leaselock.fence_check('fences.check', :a), leaselock.fence_check('fences.check', :a, allow_lapsed => true),
	leaselock.fence_check('fences.check', :b);
SELECT pg_temp.refusal(format('SELECT leaselock.fence_assert(''fences.check'', %s)', :a), ARRAY[:a, :b]);
SELECT pg_temp.refusal(format('SELECT leaselock.fence_assert(''fences.check'', %s, allow_lapsed => true)', :a), ARRAY[:a, :b]);
-- fail: released, with a lapse allowed or not
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT leaselock.fence_check('fences.check', :b), leaselock.fence_check('fences.check', :b, allow_lapsed => true);
SELECT pg_temp.refusal(format('SELECT leaselock.fence_assert(''fences.check'', %s)', :b), ARRAY[:b]);
SELECT pg_temp.refusal(format('SELECT leaselock.fence_assert(''fences.check'', %s, allow_lapsed => true)', :b), ARRAY[:b]);
-- fail: superseded and released
SELECT pg_temp.refusal(format('SELECT leaselock.fence_assert(''fences.check'', %s)', :a), ARRAY[:a, :b]);
-- fail: a named hold that its owner released after it had lapsed
SELECT leaselock.try_lock('fences.check', 'w', '60 s') AS c \gset
SET leaselock.clock_offset = '183 s';
SELECT leaselock.fence_check('fences.check', :c), leaselock.fence_check('fences.check', :c, allow_lapsed => true);
SELECT leaselock.release_lock('fences.check', 'w');
SELECT leaselock.fence_check('fences.check', :c), leaselock.fence_check('fences.check', :c, allow_lapsed => true);
RESET leaselock.clock_offset;

--
-- In a transaction
--

CREATE TABLE fenced (fence bigint, what text);

-- ok: check, write
SELECT ticket, fence AS a FROM leaselock.lease_acquire('fences.write', 'w', '60 s') \gset
BEGIN;
SELECT leaselock.fence_check('fences.write', :a);
INSERT INTO fenced VALUES (:a, 'check, write');
SELECT leaselock.fence_check('fences.write', :a);
SELECT leaselock.fence_assert('fences.write', :a, allow_lapsed => true);
COMMIT;
-- ok: write, check; in one statement
BEGIN;
INSERT INTO fenced VALUES (:a, 'write, check');
SELECT leaselock.fence_check('fences.write', :a);
COMMIT;
INSERT INTO fenced SELECT :a, 'one statement' WHERE leaselock.fence_check('fences.write', :a);
-- ok: a stale check writes nothing and fails nothing
BEGIN;
INSERT INTO fenced SELECT :a - 1, 'stale' WHERE leaselock.fence_check('fences.write', :a - 1);
INSERT INTO fenced VALUES (:a, 'beside a stale check');
COMMIT;
-- fail: fence_assert stops the transaction
\set VERBOSITY sqlstate
BEGIN;
INSERT INTO fenced VALUES (:a, 'before a failed assertion');
SELECT leaselock.fence_assert('fences.write', :a - 1);
COMMIT;
\set VERBOSITY default
-- ok: a renewal between check and commit
BEGIN;
SELECT leaselock.fence_check('fences.write', :a);
INSERT INTO fenced VALUES (:a, 'renewed');
SELECT state FROM leaselock.lease_renew(:'ticket');
COMMIT;
-- ok: a lapse alone never fails the commit, settled or not
BEGIN;
SELECT leaselock.fence_check('fences.write', :a);
INSERT INTO fenced VALUES (:a, 'lapsed');
SET LOCAL leaselock.clock_offset = '61 s';
SELECT leaselock.fence_check('fences.write', :a);
COMMIT;
BEGIN;
SELECT leaselock.fence_check('fences.write', :a);
INSERT INTO fenced VALUES (:a, 'lapsed and settled');
SET LOCAL leaselock.clock_offset = '61 s';
SELECT state FROM leaselock.lease_renew(:'ticket');
SELECT state FROM leaselock.lease_release(:'ticket');
COMMIT;
-- ok: false by the present lease, after a renewal by a shorter one ...
SELECT ticket, fence AS a FROM leaselock.lease_acquire('fences.again', 'w', '300 s') \gset
BEGIN;
SELECT leaselock.fence_check('fences.again', :a);
SELECT state FROM leaselock.lease_renew(:'ticket', '5 s');
SET LOCAL leaselock.clock_offset = '10 s';
SELECT leaselock.fence_check('fences.again', :a);
ROLLBACK;
-- ok: ... and after a renewal that was rolled back
BEGIN;
SELECT leaselock.fence_check('fences.again', :a);
SAVEPOINT s;
SELECT state FROM leaselock.lease_renew(:'ticket', '300 s');
SET LOCAL leaselock.clock_offset = '200 s';
SELECT state FROM leaselock.lease_renew(:'ticket', '300 s');
SET LOCAL leaselock.clock_offset = '400 s';
SELECT leaselock.fence_check('fences.again', :a);
ROLLBACK TO s;
SET LOCAL leaselock.clock_offset = '400 s';
SELECT leaselock.fence_check('fences.again', :a);
ROLLBACK;
-- ok: true after a renewal, although the lease seen by the first check has run out
BEGIN;
SELECT leaselock.fence_check('fences.again', :a);
SET LOCAL leaselock.clock_offset = '200 s';
SELECT state FROM leaselock.lease_renew(:'ticket', '300 s');
SET LOCAL leaselock.clock_offset = '400 s';
SELECT leaselock.fence_check('fences.again', :a);
ROLLBACK;

-- ok: acquire, write, release in one transaction
BEGIN;
SELECT ticket, fence AS a FROM leaselock.lease_acquire('fences.whole', 'w') \gset
SELECT leaselock.fence_check('fences.whole', :a);
INSERT INTO fenced VALUES (:a, 'acquire, write, release');
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT leaselock.fence_check('fences.whole', :a); -- no more
COMMIT;
-- ok: the same with a named lock, and with several locks
BEGIN;
SELECT leaselock.try_lock('fences.whole', 'w', '60 s') AS a, leaselock.try_lock('fences.whole2', 'w', '60 s') AS b \gset
SELECT leaselock.fence_check('fences.whole', :a), leaselock.fence_check('fences.whole2', :b);
INSERT INTO fenced VALUES (:a, 'two locks');
SELECT leaselock.release_lock('fences.whole', 'w'), leaselock.release_lock('fences.whole2', 'w');
COMMIT;
-- ok: repeatedly: each check was valid at its release
BEGIN;
SELECT ticket, fence AS a FROM leaselock.lease_acquire('fences.whole', 'w') \gset
SELECT leaselock.fence_check('fences.whole', :a);
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT ticket, fence AS b FROM leaselock.lease_acquire('fences.whole', 'other') \gset
SELECT leaselock.fence_check('fences.whole', :a), leaselock.fence_check('fences.whole', :b);
INSERT INTO fenced VALUES (:b, 'two grants');
SELECT state FROM leaselock.lease_release(:'ticket');
COMMIT;
-- ok: release_all counts as a release
BEGIN;
SELECT fence AS a FROM leaselock.lease_acquire('fences.whole', 'all') \gset
SELECT leaselock.fence_check('fences.whole', :a);
INSERT INTO fenced VALUES (:a, 'release_all');
SELECT leaselock.lease_release_all('all', 'public');
COMMIT;
-- ok: a takeover after a lapse, in the transaction that checked before it
SELECT fence AS a FROM leaselock.lease_acquire('fences.whole', 'w', '60 s') \gset
BEGIN;
SELECT leaselock.fence_check('fences.whole', :a);
INSERT INTO fenced VALUES (:a, 'own takeover');
SET LOCAL leaselock.clock_offset = '61 s';
SELECT state, fence > :a AS greater FROM leaselock.lease_acquire('fences.whole', 'other', '60 s');
SELECT leaselock.fence_check('fences.whole', :a, allow_lapsed => true);
COMMIT;
SELECT leaselock.lease_release_all('other');

-- ok: a check undone by ROLLBACK TO is not verified: its grant is rolled back as well,
-- and the commit would find it missing
BEGIN;
SAVEPOINT s;
SELECT ticket, fence AS a FROM leaselock.lease_acquire('fences.savepoint', 'w') \gset
SELECT leaselock.fence_check('fences.savepoint', :a);
ROLLBACK TO s;
INSERT INTO fenced VALUES (:a, 'check undone');
COMMIT;
-- ok: the same by an exception block, at any depth
DO $$
DECLARE
	a bigint;
BEGIN
	BEGIN
		a := leaselock.try_lock('fences.savepoint', 'w', '60 s');
		BEGIN
			PERFORM leaselock.fence_assert('fences.savepoint', a);
			BEGIN
				PERFORM leaselock.fence_assert('fences.savepoint', a - 1);
			EXCEPTION WHEN SQLSTATE 'LS001' THEN
				RAISE NOTICE 'the inner one is refused';
			END;
		END;
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN
		INSERT INTO fenced VALUES (a, 'check undone by exception');
	END;
END $$;
-- ok: the first check undone, a second one made
SELECT fence AS a, ticket FROM leaselock.lease_acquire('fences.savepoint', 'w') \gset
BEGIN;
SAVEPOINT s;
SELECT leaselock.fence_check('fences.savepoint', :a);
ROLLBACK TO s;
SELECT leaselock.fence_check('fences.savepoint', :a);
INSERT INTO fenced VALUES (:a, 'checked anew');
COMMIT;
-- ok: a release undone by ROLLBACK TO; the check is pending again
BEGIN;
SELECT leaselock.fence_check('fences.savepoint', :a);
SAVEPOINT s;
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT leaselock.fence_check('fences.savepoint', :a);
ROLLBACK TO s;
SELECT leaselock.fence_check('fences.savepoint', :a);
INSERT INTO fenced VALUES (:a, 'release undone');
COMMIT;
-- ok: a release in a released savepoint
BEGIN;
SELECT leaselock.fence_check('fences.savepoint', :a);
SAVEPOINT s;
SELECT state FROM leaselock.lease_release(:'ticket');
RELEASE s;
INSERT INTO fenced VALUES (:a, 'release in a savepoint');
COMMIT;

-- ok: procedures that commit: each transaction has checks of its own
CREATE PROCEDURE pg_temp.work() LANGUAGE plpgsql AS $$
DECLARE
	t leaselock.lease_ticket;
BEGIN
	t := leaselock.lease_acquire('fences.procedure', 'w');
	COMMIT;
	FOR i IN 1 .. 3 LOOP
		PERFORM leaselock.fence_assert('fences.procedure', t.fence);
		INSERT INTO fenced VALUES (t.fence, 'procedure ' || i);
		COMMIT;
	END LOOP;
	PERFORM leaselock.fence_assert('fences.procedure', t.fence);
	INSERT INTO fenced VALUES (t.fence, 'not this one');
	ROLLBACK;
	t := leaselock.lease_release(t.ticket);
	INSERT INTO fenced VALUES (t.fence, 'the end');
END $$;
CALL pg_temp.work();
DO $$
DECLARE
	t leaselock.lease_ticket := leaselock.lease_acquire('fences.procedure', 'w');
BEGIN
	PERFORM leaselock.fence_assert('fences.procedure', t.fence);
	INSERT INTO fenced VALUES (t.fence, 'DO');
	COMMIT;
	PERFORM leaselock.lease_release(t.ticket);
	COMMIT;
END $$;

--
-- READ ONLY
--

SELECT ticket, fence AS a FROM leaselock.lease_acquire('fences.held', 'w', '300 s') \gset
SELECT leaselock.try_lock('fences.held2', 'w', '300 s') AS b \gset
SELECT set_config('regress.ticket', :'ticket', false) = :'ticket' AS set;
BEGIN READ ONLY;
-- ok: a check and a look at the status
SELECT leaselock.fence_check('fences.held', :a);
SELECT leaselock.fence_assert('fences.held', :a);
SELECT leaselock.fence_check('fences.held', :a - 1);
SELECT count(*) FROM leaselock.lease_peek('fences.held');
SELECT count(*) FROM leaselock.lease_status WHERE name = 'fences.held';
SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'fences.held';
COMMIT;
-- fail: every call that may write, held or free, own or not
BEGIN READ ONLY;
SELECT call, pg_temp.refusal('SELECT leaselock.' || call) AS answer FROM unnest(ARRAY[
	'lease_acquire(''fences.readonly'', ''w'')',
	'lease_acquire(''fences.held'', ''other'')',
	'lease_get(current_setting(''regress.ticket'')::uuid)',
	'lease_renew(current_setting(''regress.ticket'')::uuid)',
	'lease_release(current_setting(''regress.ticket'')::uuid)',
	'lease_get(''00000000-0000-0000-0000-000000000000'')',
	'lease_renew(''00000000-0000-0000-0000-000000000000'')',
	'lease_release(''00000000-0000-0000-0000-000000000000'')',
	'lease_release_all(''w'')',
	'try_lock(''fences.readonly'', ''w'', ''60 s'')',
	'try_lock(''fences.held'', ''other'', ''60 s'')',
	'renew_lock(''fences.readonly'', ''w'', ''60 s'')',
	'release_lock(''fences.readonly'', ''w'')']) call;
ROLLBACK;
SELECT state, fence = :a AS same_fence FROM leaselock.lease_get(:'ticket');

-- What was written.
SELECT what FROM fenced WHERE fence IS NOT NULL ORDER BY what COLLATE "C";
DROP TABLE fenced;
SELECT leaselock.lease_release_all('w') > 0 AS released, leaselock.release_lock('fences.held2', 'w');
SELECT leaselock.try_lock('fences', 'w', '60 s') IS NOT NULL AS got, leaselock.release_lock('fences', 'w');
SELECT name FROM leaselock.lease_status WHERE name LIKE 'fences%' AND NOT lapsed;
