-- Hints that recognise the mistake: what an error says after one of the usual
-- mistakes.
LOAD 'leaselock';
\set VERBOSITY default
CREATE FUNCTION pg_temp.hint(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text;
	detail text;
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', state, nullif(regexp_replace(detail, '\d{9,}', '<fence>', 'g'), ''), nullif(hint, ''));
END $$;

-- a former holder, and the present one
SELECT ticket, fence AS old FROM leaselock.lease_acquire('hints', 'former') \gset
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT fence AS new FROM leaselock.lease_acquire('hints', 'present') \gset
SELECT fence AS shop FROM leaselock.lease_acquire('hints', 'present', scope => 'shop') \gset

--
-- The holder writes and leaves the row's fence as it was
--

CREATE TABLE hinted (id int PRIMARY KEY, what text, fence bigint);
INSERT INTO hinted VALUES (1, 'by the former', :old), (2, 'by the former', :old);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON hinted FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'hints');
SELECT pg_temp.hint('UPDATE hinted SET what = ''x'' WHERE id = 1');
SELECT pg_temp.hint(format('INSERT INTO hinted VALUES (1, ''x'', %s) ON CONFLICT (id) DO UPDATE SET what = ''x''', :new));
-- even after its own passing check
BEGIN;
SELECT leaselock.fence_assert('hints', :new);
SELECT pg_temp.hint('UPDATE hinted SET what = ''x'' WHERE id = 1');
ROLLBACK;
-- ok: set
UPDATE hinted SET what = 'by the present', fence = :new WHERE id = 1;
-- a writer that sets it to a stale fence is told to stop, even if the row has that one
SELECT pg_temp.hint(format('UPDATE hinted SET fence = %s WHERE id = 1', :old));
SELECT pg_temp.hint(format('UPDATE hinted SET fence = %s WHERE id = 2', :old));
SELECT pg_temp.hint('UPDATE hinted SET fence = fence WHERE id = 2');
SELECT pg_temp.hint(format('INSERT INTO hinted VALUES (3, ''x'', %s)', :old));
-- so is a writer for whom another trigger has set it
CREATE FUNCTION pg_temp.set_fence() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN NEW.fence := OLD.fence - 1; RETURN NEW; END $$;
CREATE TRIGGER before_guard BEFORE UPDATE ON hinted FOR EACH ROW EXECUTE FUNCTION pg_temp.set_fence();
SELECT pg_temp.hint('UPDATE hinted SET what = ''x'' WHERE id = 2');
DROP TABLE hinted;
-- the row names its lock
CREATE TABLE hinted (lock text, what text, fence bigint);
INSERT INTO hinted VALUES ('hints', 'by the former', :old);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON hinted FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'lock');
SELECT pg_temp.hint('UPDATE hinted SET what = ''x''');
DROP TABLE hinted;

--
-- A wrong name, scope or fence
--

SELECT pg_temp.hint(format('SELECT leaselock.fence_assert(''hint'', %s)', :new));
SELECT pg_temp.hint(format('SELECT leaselock.fence_assert(''hints'', %s, ''sho'')', :shop));
SELECT pg_temp.hint(format('SELECT leaselock.fence_assert(''hints'', %s)', :shop + 1));
-- a stale one is stale
SELECT pg_temp.hint(format('SELECT leaselock.fence_assert(''hints'', %s)', :old));
SET leaselock.clock_offset = '61 s';
SELECT pg_temp.hint(format('SELECT leaselock.fence_assert(''hints'', %s)', :new));
RESET leaselock.clock_offset;

--
-- A check that comes too late or is for another scope
--

CREATE TABLE hinted (id int);
CREATE TRIGGER guard BEFORE INSERT ON hinted FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'hints');
-- in the same statement as the write, and in a transaction of its own
SELECT pg_temp.hint(format('INSERT INTO hinted SELECT 1 FROM leaselock.fence_assert(''hints'', %s)', :new));
SELECT leaselock.fence_assert('hints', :new);
SELECT pg_temp.hint('INSERT INTO hinted VALUES (1)');
BEGIN;
SELECT leaselock.fence_assert('hints', :shop, 'shop');
SELECT pg_temp.hint('INSERT INTO hinted VALUES (1)');
ROLLBACK;
-- ok
BEGIN;
SELECT leaselock.fence_assert('hints', :new);
SELECT pg_temp.hint('INSERT INTO hinted VALUES (1)');
ROLLBACK;
DROP TABLE hinted;

--
-- A trigger that is written wrongly: the hint shows that form and no other; for an
-- unknown form, the one that fits the timing
--

CREATE FUNCTION pg_temp.guard_hint(timing text, arguments text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	CREATE TABLE hinted (id int, fence bigint, lock text);
	EXECUTE format('CREATE TRIGGER guard %s EXECUTE FUNCTION leaselock.fence_guard(%s)', timing, arguments);
	RETURN pg_temp.hint('INSERT INTO hinted VALUES (1)');
END $$;
\set row 'BEFORE INSERT ON hinted FOR EACH ROW'
\set statement 'BEFORE INSERT ON hinted FOR EACH STATEMENT'
BEGIN; SELECT pg_temp.guard_hint(:'row', $$'column', 'fence'$$); ROLLBACK;
BEGIN; SELECT pg_temp.guard_hint(:'row', $$'columns', 'fence', 'look'$$); ROLLBACK;
BEGIN; SELECT pg_temp.guard_hint(:'statement', $$'transaction'$$); ROLLBACK;
BEGIN; SELECT pg_temp.guard_hint(:'row', $$'transaction', 'hints'$$); ROLLBACK;
BEGIN; SELECT pg_temp.guard_hint(:'statement', $$'column', 'fence', 'hints'$$); ROLLBACK;
BEGIN; SELECT pg_temp.guard_hint(:'row', $$'row', 'hints'$$); ROLLBACK;
BEGIN; SELECT pg_temp.guard_hint(:'statement', ''); ROLLBACK;
-- on a view
CREATE TABLE hinted (id int, fence bigint);
CREATE VIEW hinted_view AS SELECT * FROM hinted;
CREATE TRIGGER guard INSTEAD OF INSERT ON hinted_view FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'hints');
SELECT pg_temp.hint('INSERT INTO hinted_view VALUES (1)');
DROP TABLE hinted CASCADE;

--
-- Bounds: the message names the setting, in the same units as the bounds
--

SELECT pg_temp.hint($$SELECT leaselock.lease_acquire('hint', 'w', '10 minutes')$$);
SELECT pg_temp.hint($$SELECT leaselock.lease_acquire('hint', 'w', '1 s')$$);
SELECT pg_temp.hint($$SELECT leaselock.lease_acquire('hint', 'w', wait => '1 hour')$$);
SELECT pg_temp.hint($$SELECT leaselock.lease_acquire('hint', 'w', wait => '-1 s')$$);
SELECT pg_temp.hint($$SELECT leaselock.try_lock('hint', 'w', '36501 days')$$);
SELECT pg_temp.hint($$SELECT leaselock.try_lock('hint', 'w', '0')$$);
-- too large or too small for microseconds
SELECT pg_temp.hint($$SELECT leaselock.lease_acquire('hint', 'w', '2147483647 days')$$);
SELECT pg_temp.hint($$SELECT leaselock.lease_acquire('hint', 'w', '-2147483648 days')$$);

--
-- A transaction block that the driver may have opened
--

BEGIN;
CALL leaselock.lease_acquire_wait('hint', 'w');
ROLLBACK;

SELECT leaselock.lease_release_all('present');
