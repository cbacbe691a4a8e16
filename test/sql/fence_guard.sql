-- fence_guard: its three forms, how to write them, and what they answer.  fence_writes
-- shows that no way of writing a row gets past them.
LOAD 'leaselock';
\set SHOW_CONTEXT never

-- What a statement answers, with fences shown by name.
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
	RETURN answer;
END $$;

-- a superseded fence and a present one, of one lock in two scopes
SELECT ticket, fence AS old FROM leaselock.lease_acquire('fence_guard', 'w') \gset
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT ticket, fence AS new FROM leaselock.lease_acquire('fence_guard', 'w', '300 s') \gset
SELECT fence AS elsewhere FROM leaselock.lease_acquire('fence_guard', 'w', '300 s', scope => 'elsewhere') \gset

--
-- 'column': the row carries its fence, the trigger names the lock
--

CREATE TABLE guarded (id int, fence bigint, what text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guarded FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'fence_guard');
-- ok: the present fence, and the row is written as given
INSERT INTO guarded VALUES (1, :new, 'inserted') RETURNING id, fence = :new AS fence, what;
UPDATE guarded SET what = 'updated' RETURNING id, fence = :new AS fence, what;
-- fail: a stale fence, one that was never issued, one of another lock
SELECT pg_temp.refusal(format('INSERT INTO guarded VALUES (2, %s, ''stale'')', :old), ARRAY[:old, :new]);
SELECT pg_temp.refusal(format('UPDATE guarded SET fence = %s', :old), ARRAY[:old, :new]);
SELECT pg_temp.refusal(format('INSERT INTO guarded VALUES (2, %s, ''stale'')', :new + 1), ARRAY[:old, :new, :new + 1]);
SELECT pg_temp.refusal('INSERT INTO guarded VALUES (2, 0, ''stale'')', ARRAY[:old, :new]);
SELECT split_part(pg_temp.refusal(format('INSERT INTO guarded VALUES (2, %s, ''stale'')', :elsewhere)), E'\n', 1);
-- fail: none
SELECT pg_temp.refusal('INSERT INTO guarded VALUES (2, NULL, ''null'')');
SELECT pg_temp.refusal('UPDATE guarded SET fence = NULL');
SELECT pg_temp.refusal('INSERT INTO guarded (id) VALUES (2)');
-- fail: one row of many
SELECT split_part(pg_temp.refusal(format('INSERT INTO guarded SELECT i, CASE i WHEN 500 THEN %s ELSE %s END FROM generate_series(1, 1000) i', :old, :new)), E'\n', 1);
SELECT id, fence = :new AS fence, what FROM guarded;
-- ok: a row of an earlier grant is updated with the fence of the present one
ALTER TABLE guarded DISABLE TRIGGER guard;
INSERT INTO guarded VALUES (3, :old, 'earlier grant'), (4, NULL, 'before there were fences');
ALTER TABLE guarded ENABLE TRIGGER guard;
SELECT split_part(pg_temp.refusal('UPDATE guarded SET what = ''stale'' WHERE id = 3'), E'\n', 1);
SELECT split_part(pg_temp.refusal('UPDATE guarded SET what = ''stale'' WHERE id = 4'), E'\n', 1);
UPDATE guarded SET fence = :new WHERE id IN (3, 4);
-- ok: DELETE is not affected
DELETE FROM guarded WHERE id IN (3, 4);
-- with the scope
CREATE TABLE guarded_scope (fence bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guarded_scope FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'fence_guard', 'elsewhere');
INSERT INTO guarded_scope VALUES (:elsewhere);
SELECT split_part(pg_temp.refusal(format('INSERT INTO guarded_scope VALUES (%s)', :new)), E'\n', 1);
DROP TABLE guarded_scope;

--
-- 'columns': the row names its lock, too
--

CREATE DOMAIN guard_fence AS bigint;
CREATE DOMAIN guard_name AS varchar(300);
CREATE TABLE guarded_named (name varchar, fence guard_fence, scope guard_name);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guarded_named FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'name', 'scope');
-- ok
INSERT INTO guarded_named VALUES ('fence_guard', :new, 'public'), ('fence_guard', :elsewhere, 'elsewhere');
UPDATE guarded_named SET fence = fence;
-- fail: stale, or of another lock, or of none
SELECT pg_temp.refusal(format('INSERT INTO guarded_named VALUES (''fence_guard'', %s, ''public'')', :old), ARRAY[:old, :new]);
SELECT split_part(pg_temp.refusal(format('INSERT INTO guarded_named VALUES (''fence_guard'', %s, ''elsewhere'')', :new)), E'\n', 1);
SELECT pg_temp.refusal(format('INSERT INTO guarded_named VALUES (''fence_guard.never'', %s, ''public'')', :new), ARRAY[:old, :new]);
SELECT split_part(pg_temp.refusal('UPDATE guarded_named SET name = ''fence_guard.never'''), E'\n', 1);
SELECT split_part(pg_temp.refusal('UPDATE guarded_named SET scope = ''public'''), E'\n', 1);
-- fail: NULL
SELECT pg_temp.refusal(format('INSERT INTO guarded_named VALUES (NULL, %s, ''public'')', :new));
SELECT pg_temp.refusal(format('INSERT INTO guarded_named VALUES (''fence_guard'', %s, NULL)', :new));
SELECT pg_temp.refusal('INSERT INTO guarded_named VALUES (''fence_guard'', NULL, ''public'')');
-- fail: text that is not a valid name or scope
SELECT what, pg_temp.refusal(format('INSERT INTO guarded_named VALUES (%L, %s, %L)', name, :new, scope))
FROM (VALUES ('empty', '', 'public'), ('leading blank', ' fence_guard', 'public'), ('trailing blank', 'fence_guard ', 'public'),
	('control character', E'fence\tguard', 'public'), ('256 bytes', repeat('x', 256), 'public'), ('scope', 'fence_guard', ''), ('scope', 'fence_guard', E'public\n')) v (what, name, scope);
SELECT count(*) FROM guarded_named;
-- without a scope's column: public
CREATE TABLE guarded_public (name text, fence bigint, scope text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guarded_public FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'name');
INSERT INTO guarded_public VALUES ('fence_guard', :new, 'elsewhere');
SELECT split_part(pg_temp.refusal(format('INSERT INTO guarded_public VALUES (''fence_guard'', %s, ''elsewhere'')', :elsewhere)), E'\n', 1);
-- ok: many locks in one statement; each row is judged by its own
SELECT count(leaselock.try_lock('fence_guard.' || i, 'w', '60 s')) FROM generate_series(1, 100) i;
INSERT INTO guarded_public SELECT name, fence FROM leaselock.lease_status WHERE name LIKE 'fence\_guard.%';
SELECT split_part(pg_temp.refusal('INSERT INTO guarded_public SELECT name, fence + (name = ''fence_guard.50'')::int FROM leaselock.lease_status WHERE name LIKE ''fence\_guard.%'''), E'\n', 1);
SELECT count(*) FROM guarded_public;
SELECT count(*) FROM generate_series(1, 100) i WHERE leaselock.release_lock('fence_guard.' || i, 'w');
DROP TABLE guarded_public, guarded_named;
DROP DOMAIN guard_fence, guard_name;

--
-- 'transaction': the transaction has checked its fence
--

CREATE TABLE guarded_all (id int, what text);
INSERT INTO guarded_all VALUES (1, 'before');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guarded_all FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'fence_guard');
-- fail: it has not checked
SELECT pg_temp.refusal('INSERT INTO guarded_all VALUES (2)');
SELECT pg_temp.refusal('UPDATE guarded_all SET id = 2');
SELECT pg_temp.refusal('DELETE FROM guarded_all');
SELECT pg_temp.refusal('TRUNCATE guarded_all');
-- fail: even without any row
SELECT split_part(pg_temp.refusal('DELETE FROM guarded_all WHERE false'), E'\n', 1);
-- ok: it has checked, in every way
\set VERBOSITY sqlstate
BEGIN;
SELECT leaselock.fence_check('fence_guard', :new);
INSERT INTO guarded_all VALUES (2, 'checked');
UPDATE guarded_all SET what = 'updated';
DELETE FROM guarded_all WHERE id = 2;
COMMIT;
BEGIN;
SELECT leaselock.fence_assert('fence_guard', :new);
TRUNCATE guarded_all;
COMMIT;
-- fail: another transaction has checked
INSERT INTO guarded_all VALUES (3, 'late');
-- fail: checks that did not pass
BEGIN;
SELECT leaselock.fence_check('fence_guard', :old);
INSERT INTO guarded_all VALUES (3, 'stale');
ROLLBACK;
-- fail: checks of other locks
BEGIN;
SELECT leaselock.fence_check('fence_guard', :elsewhere, 'elsewhere');
INSERT INTO guarded_all VALUES (3, 'other lock');
ROLLBACK;
-- ok: a row that has passed fence_guard counts as a check
BEGIN;
INSERT INTO guarded VALUES (5, :new, 'a row');
INSERT INTO guarded_all VALUES (5, 'checked by a row');
COMMIT;
-- ok: with the scope
CREATE TABLE guarded_scope (id int);
CREATE TRIGGER guard BEFORE INSERT ON guarded_scope FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'fence_guard', 'elsewhere');
BEGIN;
SELECT leaselock.fence_check('fence_guard', :elsewhere, 'elsewhere');
INSERT INTO guarded_scope VALUES (1);
COMMIT;
BEGIN;
SELECT leaselock.fence_check('fence_guard', :new);
INSERT INTO guarded_scope VALUES (2);
ROLLBACK;
TABLE guarded_scope;
DROP TABLE guarded_scope;
-- ok: a lapsed fence if the check allowed it; fail: otherwise
SELECT ticket AS l, fence AS lapsed FROM leaselock.lease_acquire('fence_guard.lapse', 'w', '60 s') \gset
CREATE TABLE guarded_lapse (id int, fence bigint);
CREATE TRIGGER guard BEFORE INSERT ON guarded_lapse FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'fence_guard.lapse');
SET leaselock.clock_offset = '61 s';
BEGIN;
SELECT leaselock.fence_check('fence_guard.lapse', :lapsed);
INSERT INTO guarded_lapse VALUES (1);
ROLLBACK;
BEGIN;
SELECT leaselock.fence_check('fence_guard.lapse', :lapsed, allow_lapsed => true);
INSERT INTO guarded_lapse VALUES (2);
COMMIT;
RESET leaselock.clock_offset;
-- ok: checked before it lapsed
BEGIN;
SELECT leaselock.fence_check('fence_guard.lapse', :lapsed);
SET LOCAL leaselock.clock_offset = '61 s';
INSERT INTO guarded_lapse VALUES (3);
COMMIT;
TABLE guarded_lapse;
-- fail: the row form requires a live lease for each row; ok: the commit does not
CREATE TABLE guarded_row (id int, fence bigint);
CREATE TRIGGER guard BEFORE INSERT ON guarded_row FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'fence_guard.lapse');
BEGIN;
INSERT INTO guarded_row VALUES (1, :lapsed);
SET LOCAL leaselock.clock_offset = '61 s';
INSERT INTO guarded_row VALUES (2, :lapsed);
ROLLBACK;
BEGIN;
INSERT INTO guarded_row VALUES (3, :lapsed);
SET LOCAL leaselock.clock_offset = '61 s';
COMMIT;
SELECT id FROM guarded_row;
DROP TABLE guarded_row;
-- fail: after the transaction's own release; ok: rolled back and checked again
SELECT ticket AS l, fence AS lapsed FROM leaselock.lease_acquire('fence_guard.lapse', 'w', '60 s') \gset
BEGIN;
SELECT leaselock.fence_check('fence_guard.lapse', :lapsed);
INSERT INTO guarded_lapse VALUES (4);
SAVEPOINT s;
SELECT leaselock.lease_release_all('w', 'public') > 0 AS released;
INSERT INTO guarded_lapse VALUES (5);
ROLLBACK TO s;
INSERT INTO guarded_lapse VALUES (6);
COMMIT;
-- ok: released and acquired anew, with a new check; fail: without
BEGIN;
SELECT leaselock.fence_check('fence_guard.lapse', :lapsed);
SELECT leaselock.lease_release_all('w', 'public') > 0 AS released;
SELECT fence AS again FROM leaselock.lease_acquire('fence_guard.lapse', 'w', '60 s') \gset
SAVEPOINT s;
INSERT INTO guarded_lapse VALUES (7);
ROLLBACK TO s;
SELECT leaselock.fence_check('fence_guard.lapse', :again);
INSERT INTO guarded_lapse VALUES (8);
ROLLBACK;
-- ok: neither the release of one of two tickets nor a renewal ends the grant
BEGIN;
SELECT leaselock.fence_check('fence_guard.lapse', :lapsed);
SELECT ticket AS l2 FROM leaselock.lease_acquire('fence_guard.lapse', 'w', '60 s') \gset
SELECT state FROM leaselock.lease_release(:'l');
SELECT state FROM leaselock.lease_renew(:'l2');
INSERT INTO guarded_lapse VALUES (9);
COMMIT;
-- fail: the check of the former grant, after the transaction's own takeover
BEGIN;
SELECT leaselock.fence_check('fence_guard.lapse', :lapsed);
SET LOCAL leaselock.clock_offset = '61 s';
SELECT state FROM leaselock.lease_acquire('fence_guard.lapse', 'other');
INSERT INTO guarded_lapse VALUES (10);
ROLLBACK;
-- ok: acquire, check, write, release in one transaction
BEGIN;
SELECT ticket AS x, fence AS x_fence FROM leaselock.lease_acquire('fence_guard.lapse', 'w') \gset
SELECT leaselock.fence_assert('fence_guard.lapse', :x_fence);
INSERT INTO guarded_lapse VALUES (11);
SELECT leaselock.lease_release_all('w', 'public') > 0 AS released;
COMMIT;
SELECT id FROM guarded_lapse ORDER BY id;
DROP TABLE guarded_lapse;
SELECT ticket, fence AS new FROM leaselock.lease_acquire('fence_guard', 'w', '300 s') \gset

--
-- Savepoints and exception blocks
--

-- fail: a rolled-back check does not count, at any depth
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SAVEPOINT c;
SELECT leaselock.fence_check('fence_guard', :new);
RELEASE c;
INSERT INTO guarded_all VALUES (20, 'in b');
RELEASE b;
INSERT INTO guarded_all VALUES (21, 'in a');
ROLLBACK TO a;
INSERT INTO guarded_all VALUES (22, 'undone');
ROLLBACK;
-- ok: a check in a released savepoint counts, also at the commit
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT leaselock.fence_check('fence_guard', :new);
RELEASE b;
RELEASE a;
INSERT INTO guarded_all VALUES (23, 'released');
COMMIT;
-- ok: a check outside the savepoint survives the rollback
BEGIN;
SELECT leaselock.fence_check('fence_guard', :new);
SAVEPOINT a;
SELECT leaselock.fence_check('fence_guard', :new);
ROLLBACK TO a;
INSERT INTO guarded_all VALUES (24, 'outer check');
COMMIT;
-- ok: rows of a rolled-back savepoint need no fence at commit
BEGIN;
SAVEPOINT a;
SELECT fence AS undone FROM leaselock.lease_acquire('fence_guard.undone', 'w') \gset
CREATE TABLE guarded_undone (fence bigint);
CREATE TRIGGER guard BEFORE INSERT ON guarded_undone FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'fence_guard.undone');
INSERT INTO guarded_undone VALUES (:undone);
ROLLBACK TO a;
COMMIT;
-- the same with exception blocks
CREATE FUNCTION pg_temp.checked(depth int, fence bigint, undo boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF depth > 0 THEN
		PERFORM pg_temp.checked(depth - 1, fence, undo);
	ELSE
		PERFORM leaselock.fence_assert('fence_guard', fence);
		IF undo THEN
			RAISE EXCEPTION 'undo';
		END IF;
	END IF;
EXCEPTION WHEN division_by_zero THEN
	NULL;
END $$;
BEGIN;
SELECT pg_temp.checked(5, :new, false);
INSERT INTO guarded_all VALUES (25, 'five blocks deep');
COMMIT;
DO $$
BEGIN
	BEGIN
		PERFORM pg_temp.checked(5, (SELECT fence FROM leaselock.lease_peek('fence_guard')), true);
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
	INSERT INTO guarded_all VALUES (26, 'undone five blocks deep');
END $$;
DO $$
BEGIN
	BEGIN
		PERFORM leaselock.fence_assert('fence_guard', 1);
	EXCEPTION WHEN SQLSTATE 'LS001' THEN
		RAISE NOTICE 'stale, as expected';
	END;
	INSERT INTO guarded_all VALUES (27, 'after a failed assertion');
END $$;
SELECT * FROM guarded_all ORDER BY id;

--
-- REPEATABLE READ and SERIALIZABLE: a grant younger than the snapshot
--

-- ok: an older grant, renewed or not
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO guarded VALUES (30, :new, 'older grant');
SELECT state FROM leaselock.lease_renew(:'ticket');
UPDATE guarded SET fence = :new, what = 'renewed' WHERE id = 30;
SELECT leaselock.fence_check('fence_guard', :new);
INSERT INTO guarded_all VALUES (30, 'older grant');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO guarded VALUES (31, :new, 'older grant');
COMMIT;
-- fail: a grant of the same transaction, with each form
SELECT leaselock.lease_release_all('w', 'public') > 0 AS released;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence AS young FROM leaselock.lease_acquire('fence_guard', 'w') \gset
INSERT INTO guarded VALUES (32, :young, 'younger grant');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT fence AS young FROM leaselock.lease_acquire('fence_guard', 'w') \gset
UPDATE guarded SET fence = :young, what = 'younger grant' WHERE id = 31;
ROLLBACK;
CREATE TABLE guarded_named (name text, fence bigint);
CREATE TRIGGER guard BEFORE INSERT ON guarded_named FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'name');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence AS young FROM leaselock.lease_acquire('fence_guard', 'w') \gset
INSERT INTO guarded_named VALUES ('fence_guard', :young);
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence AS young FROM leaselock.lease_acquire('fence_guard', 'w') \gset
SAVEPOINT s;
SELECT leaselock.fence_check('fence_guard', :young);
ROLLBACK TO s;
INSERT INTO guarded_all VALUES (32, 'younger grant');
ROLLBACK;
SELECT id, what FROM guarded WHERE id >= 30 ORDER BY id;
DROP TABLE guarded_named;
\set VERBOSITY default

--
-- How to write the trigger
--

CREATE TABLE written (id int, fence bigint, small int, amount numeric, name text, scope varchar, padded char(10), label name, "Mixed" bigint, gone bigint);
ALTER TABLE written DROP COLUMN gone;
INSERT INTO written VALUES (1);
CREATE VIEW written_view AS SELECT * FROM written;

-- What a trigger written this way answers to a statement.
CREATE FUNCTION pg_temp.answer(timing text, arguments text, statement text DEFAULT 'INSERT INTO written VALUES (2, 1, name => ''x'')',
	OUT state text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TRIGGER t %s EXECUTE FUNCTION leaselock.fence_guard(%s)', timing, arguments);
	EXECUTE statement;
	RAISE EXCEPTION 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $$;
\set row 'BEFORE INSERT OR UPDATE ON written FOR EACH ROW'
\set stmt 'BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON written FOR EACH STATEMENT'

-- fail: form and number of arguments
SELECT arguments, state, message
FROM unnest(ARRAY['', '''column''', '''column'', ''fence''', '''column'', ''fence'', ''l'', ''s'', ''x''',
	'''columns''', '''columns'', ''fence''', '''columns'', ''fence'', ''name'', ''scope'', ''x''',
	'''row'', ''fence'', ''l''', '''Column'', ''fence'', ''l''', ''''', ''fence'', ''l''', '''fence'', ''l''', '''statement'', ''l''', '1, 2, 3'])
	arguments, pg_temp.answer(:'row', arguments, 'UPDATE written SET id = 1');
SELECT arguments, state, message
FROM unnest(ARRAY['', '''transaction''', '''transaction'', ''l'', ''s'', ''x''', '''Transaction'', ''l'''])
	arguments, pg_temp.answer(:'stmt', arguments, 'UPDATE written SET id = 1');
-- fail: columns that do not exist, or have another type
SELECT arguments, state, message
FROM unnest(ARRAY['''column'', ''nowhere'', ''l''', '''column'', ''gone'', ''l''', '''column'', '''', ''l''', '''column'', ''Fence'', ''l''', '''column'', ''mixed'', ''l''',
	'''column'', ''small'', ''l''', '''column'', ''amount'', ''l''', '''column'', ''name'', ''l''', '''column'', ''tableoid'', ''l''', '''column'', ''ctid'', ''l''',
	'''columns'', ''small'', ''name''', '''columns'', ''fence'', ''nowhere''', '''columns'', ''fence'', ''fence''', '''columns'', ''fence'', ''label''', '''columns'', ''fence'', ''padded''',
	'''columns'', ''fence'', ''name'', ''nowhere''', '''columns'', ''fence'', ''name'', ''small''', '''columns'', ''name'', ''fence'''])
	arguments, pg_temp.answer(:'row', arguments, 'UPDATE written SET id = 1');
-- fail: invalid lock names
SELECT timing, arguments, state, message
FROM (VALUES (:'row', '''column'', ''fence'', '''''), (:'row', '''column'', ''fence'', '' l'''), (:'row', '''column'', ''fence'', ''l'', '''''),
	(:'row', '''column'', ''fence'', E''l\t'''), (:'stmt', '''transaction'', '''''), (:'stmt', '''transaction'', ''l'', ''s '''),
	(:'stmt', format('''transaction'', ''%s''', repeat('x', 256)))) v (timing, args),
	LATERAL (SELECT CASE WHEN length(args) > 100 THEN '...' ELSE args END AS arguments) a, pg_temp.answer(timing, args, 'UPDATE written SET id = 1');
-- fail: the timing
SELECT timing, arguments, state, message
FROM (VALUES
	('AFTER INSERT ON written FOR EACH ROW', '''column'', ''fence'', ''l''', 'INSERT INTO written VALUES (2)'),
	('AFTER UPDATE ON written FOR EACH ROW', '''columns'', ''fence'', ''name''', 'UPDATE written SET id = 1'),
	('AFTER INSERT ON written FOR EACH STATEMENT', '''transaction'', ''l''', 'INSERT INTO written VALUES (2)'),
	('AFTER TRUNCATE ON written FOR EACH STATEMENT', '''transaction'', ''l''', 'TRUNCATE written'),
	('INSTEAD OF INSERT ON written_view FOR EACH ROW', '''column'', ''fence'', ''l''', 'INSERT INTO written_view VALUES (2)'),
	('BEFORE INSERT ON written FOR EACH ROW', '''transaction'', ''l''', 'INSERT INTO written VALUES (2)'),
	('BEFORE DELETE ON written FOR EACH ROW', '''transaction'', ''l''', 'DELETE FROM written'),
	('BEFORE INSERT ON written FOR EACH STATEMENT', '''column'', ''fence'', ''l''', 'INSERT INTO written VALUES (2)'),
	('BEFORE UPDATE ON written FOR EACH STATEMENT', '''columns'', ''fence'', ''name''', 'UPDATE written SET id = 1'),
	('BEFORE TRUNCATE ON written FOR EACH STATEMENT', '''column'', ''fence'', ''l''', 'TRUNCATE written'),
	('BEFORE DELETE ON written FOR EACH ROW', '''column'', ''fence'', ''l''', 'DELETE FROM written'),
	('BEFORE INSERT OR UPDATE OR DELETE ON written FOR EACH ROW', '''columns'', ''fence'', ''name''', 'DELETE FROM written')
) v (timing, arguments, statement), pg_temp.answer(timing, arguments, statement);
-- ok: each of those hints says how to write it
SELECT DISTINCT hint FROM (
	SELECT hint FROM unnest(ARRAY['', '''column'', ''fence''', '''row''', '''column'', ''nowhere'', ''l''', '''column'', ''small'', ''l''', '''columns'', ''fence'', ''small''']) arguments,
		pg_temp.answer(:'row', arguments, 'UPDATE written SET id = 1')
	UNION ALL
	SELECT hint FROM unnest(ARRAY['', '''transaction''', '''column'', ''fence'', ''l''']) arguments, pg_temp.answer(:'stmt', arguments, 'UPDATE written SET id = 1')
	UNION ALL
	SELECT hint FROM unnest(ARRAY['AFTER INSERT ON written FOR EACH STATEMENT', 'BEFORE INSERT ON written FOR EACH ROW']) timing,
		pg_temp.answer(timing, '''transaction'', ''l''', 'INSERT INTO written VALUES (2)')) h;
-- fail: an event that is not the first of its statement: MERGE, in either order, and
-- an UPDATE that moves a row to another partition
SELECT fence AS present FROM leaselock.lease_acquire('fence_guard', 'w', '300 s') \gset
CREATE TABLE merged (id int, fence bigint, name text DEFAULT 'fence_guard');
CREATE TABLE moved (id int, fence bigint, name text DEFAULT 'fence_guard') PARTITION BY LIST (id);
CREATE TABLE moved_1 PARTITION OF moved FOR VALUES IN (1);
CREATE TABLE moved_2 PARTITION OF moved FOR VALUES IN (2);
CREATE FUNCTION pg_temp.answer_after(insertion text, timing text, arguments text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	new text := (SELECT fence FROM leaselock.lease_peek('fence_guard'));
BEGIN
	EXECUTE replace(insertion, 'NEW', new);
	EXECUTE format('CREATE TRIGGER guard %s EXECUTE FUNCTION leaselock.fence_guard(%s)', timing, arguments);
	EXECUTE replace(statement, 'NEW', new);
	RAISE EXCEPTION 'accepted';
EXCEPTION WHEN OTHERS THEN
	RETURN concat(SQLSTATE, ' ', SQLERRM);
END $$;
\set merge 'MERGE INTO merged m USING (VALUES (1), (2)) s (id) ON m.id = s.id WHEN NOT MATCHED THEN INSERT (id, fence) VALUES (s.id, NEW) '
SELECT timing, form, there, pg_temp.answer_after(format('INSERT INTO merged VALUES (%s, NEW)', there), timing, form, :'merge' || 'WHEN MATCHED THEN DELETE') AS answer
FROM (VALUES ('''column'', ''fence'', ''fence_guard'''), ('''columns'', ''fence'', ''name''')) f (form),
	(VALUES ('BEFORE INSERT OR UPDATE OR DELETE ON merged FOR EACH ROW'), ('BEFORE DELETE ON merged FOR EACH ROW')) t (timing),
	(VALUES (1), (2)) r (there)
ORDER BY form, timing, there;
SELECT form, deleted, pg_temp.answer_after('INSERT INTO merged VALUES (1, NEW), (2, NEW)', 'BEFORE INSERT OR UPDATE OR DELETE ON merged FOR EACH ROW', form,
		:'merge' || format('WHEN MATCHED AND m.id = %s THEN DELETE WHEN MATCHED THEN UPDATE SET fence = NEW', deleted)) AS answer
FROM (VALUES ('''column'', ''fence'', ''fence_guard'''), ('''columns'', ''fence'', ''name''')) f (form), generate_series(1, 3) deleted
ORDER BY form, deleted;
SELECT timing, arguments, pg_temp.answer_after('INSERT INTO merged VALUES (2, NEW)', timing, arguments, :'merge' || 'WHEN MATCHED THEN DELETE') AS answer
FROM (VALUES
	('AFTER INSERT OR DELETE ON merged FOR EACH ROW', '''column'', ''fence'', ''fence_guard'''),
	('AFTER DELETE ON merged FOR EACH ROW', '''columns'', ''fence'', ''name'''),
	('AFTER INSERT OR DELETE ON merged FOR EACH STATEMENT', '''transaction'', ''fence_guard'''),
	('BEFORE INSERT OR DELETE ON merged FOR EACH STATEMENT', '''column'', ''fence'', ''fence_guard'''),
	('BEFORE INSERT OR DELETE ON merged FOR EACH ROW', '''transaction'', ''fence_guard'''),
	('BEFORE INSERT OR DELETE ON merged FOR EACH STATEMENT', '''transaction'', ''fence_guard'''),
	('BEFORE INSERT ON merged FOR EACH ROW', '''column'', ''fence'', ''fence_guard''')) v (timing, arguments);
SELECT timing, pg_temp.answer_after('INSERT INTO moved VALUES (1, NEW)', timing, '''column'', ''fence'', ''fence_guard''', 'UPDATE moved SET id = 2, fence = NEW') AS answer
FROM (VALUES ('BEFORE INSERT OR UPDATE OR DELETE ON moved FOR EACH ROW'), ('BEFORE INSERT OR UPDATE ON moved FOR EACH ROW')) v (timing);
DROP TABLE merged, moved;

-- one trigger on partitions whose columns have different numbers; ok, then fail in each
CREATE TABLE apart (id int, fence bigint, name text) PARTITION BY LIST (id);
CREATE TABLE apart_1 PARTITION OF apart FOR VALUES IN (1);
CREATE TABLE apart_2 (name text, gone bigint, fence bigint, id int);
ALTER TABLE apart_2 DROP COLUMN gone;
ALTER TABLE apart ATTACH PARTITION apart_2 FOR VALUES IN (2);
CREATE TABLE apart_3 (other bigint, gone text, name text, id int, fence bigint);
ALTER TABLE apart_3 DROP COLUMN other, DROP COLUMN gone;
ALTER TABLE apart ATTACH PARTITION apart_3 FOR VALUES IN (3);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON apart FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'name');
INSERT INTO apart SELECT id, :present, 'fence_guard' FROM unnest(ARRAY[1, 2, 3, 2, 1, 3]) id;
UPDATE apart SET fence = :present;
UPDATE apart SET id = id % 3 + 1, fence = :present;
SELECT id, split_part(pg_temp.refusal(format('INSERT INTO apart SELECT i, CASE WHEN n = 6 AND i = %s THEN %s ELSE %s END, ''fence_guard''
	FROM unnest(ARRAY[1, 2, 3]) WITH ORDINALITY i (i, j), generate_series(1, 6) n ORDER BY n, j', id, :old, :present)), E'\n', 1) AS insert,
	split_part(pg_temp.refusal(format('UPDATE apart SET fence = CASE id WHEN %s THEN %s ELSE %s END', id, :old, :present)), E'\n', 1) AS update
FROM generate_series(1, 3) id;
SELECT id, count(*), bool_and(fence = :present) AS new FROM apart GROUP BY id ORDER BY id;
DROP TABLE apart;

-- fail: called directly, not as a trigger
SELECT leaselock.fence_guard();
\echo :SQLSTATE
DROP TABLE written CASCADE;

-- a lock and a scope of maximum length, a column whose name needs quotes
SELECT repeat('n', 255) AS long \gset
SELECT fence AS long_fence FROM leaselock.lease_acquire(:'long', 'w', scope => :'long') \gset
CREATE TABLE guarded_long ("The Fence" bigint);
CREATE TRIGGER guard BEFORE INSERT ON guarded_long FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'The Fence', :'long', :'long');
INSERT INTO guarded_long VALUES (:long_fence);
SELECT split_part(pg_temp.refusal('INSERT INTO guarded_long VALUES (1)'), E'\n', 1);
-- a renamed column: the trigger fails and says so
ALTER TABLE guarded_long RENAME "The Fence" TO fence;
SELECT split_part(pg_temp.refusal(format('INSERT INTO guarded_long VALUES (%s)', :long_fence)), E'\n', 2);
DROP TABLE guarded_long;

-- fail: a generated column, whose new value is not computed yet when the trigger
-- fires; the UPDATE would move the row to another lock
SELECT leaselock.try_lock('fence_guard.2', 'w', '60 s') AS two \gset
CREATE TABLE guarded_generated (id int, fence bigint, name text GENERATED ALWAYS AS ('fence_guard.' || id::text) STORED);
INSERT INTO guarded_generated VALUES (1, 1), (2, :two);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guarded_generated FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'name');
SELECT regexp_replace(pg_temp.refusal(format('INSERT INTO guarded_generated VALUES (2, %s)', :two)), E'\nHINT.*', '') AS refusal;
SELECT regexp_replace(pg_temp.refusal('UPDATE guarded_generated SET id = 1 WHERE id = 2'), E'\nHINT.*', '') AS refusal;
SELECT id FROM guarded_generated ORDER BY id;
DROP TABLE guarded_generated;
SELECT leaselock.release_lock('fence_guard.2', 'w');

DROP TABLE guarded, guarded_all;
SELECT leaselock.lease_release_all('w') > 0 AS released;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'fence\_guard%';
