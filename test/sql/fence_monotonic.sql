-- fence_monotonic: a row's token never goes down, whichever lock service issued it.
LOAD 'leaselock';
\set SHOW_CONTEXT never

CREATE TABLE mark (id int PRIMARY KEY, token bigint, what text);
CREATE TRIGGER monotonic BEFORE UPDATE ON mark FOR EACH ROW EXECUTE FUNCTION leaselock.fence_monotonic('token');
INSERT INTO mark VALUES (1, 10, 'first'), (2, NULL, 'old row'), (3, -5, 'negative');

-- ok: greater, equal, untouched
UPDATE mark SET token = 11, what = 'greater' WHERE id = 1;
UPDATE mark SET token = 11, what = 'equal' WHERE id = 1;
UPDATE mark SET what = 'not touched' WHERE id = 1;
-- fail: lower
UPDATE mark SET token = 10, what = 'lower' WHERE id = 1;
\echo :SQLSTATE
UPDATE mark SET token = 0, what = 'lower' WHERE id = 1;
\echo :SQLSTATE
UPDATE mark SET token = -11, what = 'lower' WHERE id = 1;
\echo :SQLSTATE
-- fail: NULL
UPDATE mark SET token = NULL, what = 'null' WHERE id = 1;
\echo :SQLSTATE
-- ok: an old NULL passes; fail: a new NULL
UPDATE mark SET what = 'still null' WHERE id = 2;
\echo :SQLSTATE
UPDATE mark SET token = -9223372036854775808, what = 'filled in' WHERE id = 2;
UPDATE mark SET token = NULL WHERE id = 2;
\echo :SQLSTATE
-- ok: over the whole range
UPDATE mark SET token = 9223372036854775807, what = 'greatest' WHERE id = 2;
UPDATE mark SET token = token - 1 WHERE id = 2;
\echo :SQLSTATE
UPDATE mark SET token = -4 WHERE id = 3;
UPDATE mark SET token = -5 WHERE id = 3;
\echo :SQLSTATE
-- fail: one of many
UPDATE mark SET token = 12, what = 'many';
\echo :SQLSTATE
SELECT * FROM mark ORDER BY id;
-- ok: other commands are not affected
INSERT INTO mark VALUES (4, NULL, 'inserted'), (5, 1, 'inserted');
DELETE FROM mark WHERE id = 5;

--
-- Every way to update a row
--

-- ON CONFLICT, MERGE
INSERT INTO mark VALUES (1, 12, 'on conflict') ON CONFLICT (id) DO UPDATE SET token = excluded.token, what = excluded.what;
INSERT INTO mark VALUES (1, 11, 'stale') ON CONFLICT (id) DO UPDATE SET token = excluded.token, what = excluded.what;
\echo :SQLSTATE
MERGE INTO mark USING (VALUES (1, 13, 'merged')) v (id, token, what) ON mark.id = v.id
	WHEN MATCHED THEN UPDATE SET token = v.token, what = v.what;
MERGE INTO mark USING (VALUES (1, 12, 'stale')) v (id, token, what) ON mark.id = v.id
	WHEN MATCHED THEN UPDATE SET token = v.token, what = v.what;
\echo :SQLSTATE
-- a writable CTE, a cursor
WITH u AS (UPDATE mark SET token = 12, what = 'stale' WHERE id = 1 RETURNING token) SELECT * FROM u;
\echo :SQLSTATE
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM mark WHERE id = 1 FOR UPDATE;
MOVE c;
UPDATE mark SET token = 14, what = 'cursor' WHERE CURRENT OF c;
UPDATE mark SET token = 13, what = 'stale' WHERE id = 1;
\echo :SQLSTATE
ROLLBACK;
SELECT * FROM mark WHERE id = 1;
-- a savepoint: refused and rolled back, the row is as it was
BEGIN;
UPDATE mark SET token = 20, what = 'raised' WHERE id = 1;
SAVEPOINT s;
UPDATE mark SET token = 19, what = 'stale' WHERE id = 1;
\echo :SQLSTATE
ROLLBACK TO s;
UPDATE mark SET what = 'after the savepoint' WHERE id = 1;
COMMIT;
SELECT * FROM mark WHERE id = 1;
-- ok: at every isolation level, because it reads nothing but the row
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE mark SET token = 21 WHERE id = 1;
COMMIT;

-- partitions, with another order of columns, and rows that move between them
CREATE TABLE mark_part (k int, token bigint, what text) PARTITION BY LIST (k);
CREATE TABLE mark_part1 PARTITION OF mark_part FOR VALUES IN (1);
CREATE TABLE mark_part2 (gone int, what text, token bigint, k int);
ALTER TABLE mark_part2 DROP COLUMN gone;
ALTER TABLE mark_part ATTACH PARTITION mark_part2 FOR VALUES IN (2);
CREATE TRIGGER monotonic BEFORE UPDATE ON mark_part FOR EACH ROW EXECUTE FUNCTION leaselock.fence_monotonic('token');
INSERT INTO mark_part VALUES (1, 10, 'one'), (2, 10, 'two');
UPDATE mark_part SET token = 11;
UPDATE mark_part SET token = 10 WHERE k = 1;
\echo :SQLSTATE
UPDATE mark_part SET token = 10 WHERE k = 2;
\echo :SQLSTATE
UPDATE mark_part2 SET token = 10;
\echo :SQLSTATE
UPDATE mark_part SET k = 2, token = 10 WHERE k = 1;
\echo :SQLSTATE
UPDATE mark_part SET k = 3 - k, token = token + k;
SELECT tableoid::regclass AS partition, k, token, what FROM mark_part ORDER BY k;
DROP TABLE mark_part;

-- a domain over bigint
CREATE DOMAIN mark_token AS bigint CHECK (value > 0);
CREATE DOMAIN mark_token2 AS mark_token;
CREATE TABLE mark_domain (token mark_token2);
CREATE TRIGGER monotonic BEFORE UPDATE ON mark_domain FOR EACH ROW EXECUTE FUNCTION leaselock.fence_monotonic('token');
INSERT INTO mark_domain VALUES (10);
UPDATE mark_domain SET token = 11;
UPDATE mark_domain SET token = 10;
\echo :SQLSTATE
DROP TABLE mark_domain;
DROP DOMAIN mark_token2, mark_token;

-- fail: a generated column, whose new value is not computed yet when the trigger fires
CREATE TABLE mark_generated (a bigint, token bigint GENERATED ALWAYS AS (a * 2) STORED);
INSERT INTO mark_generated VALUES (10);
CREATE TRIGGER monotonic BEFORE UPDATE ON mark_generated FOR EACH ROW EXECUTE FUNCTION leaselock.fence_monotonic('token');
UPDATE mark_generated SET a = 1;
\echo :SQLSTATE
SELECT * FROM mark_generated;
DROP TABLE mark_generated;

-- replica: skips an ordinary trigger, not an ENABLE ALWAYS one
SET session_replication_role = replica;
UPDATE mark SET token = 1, what = 'replica' WHERE id = 1;
ALTER TABLE mark ENABLE ALWAYS TRIGGER monotonic;
UPDATE mark SET token = 0, what = 'replica, always' WHERE id = 1;
\echo :SQLSTATE
RESET session_replication_role;
SELECT * FROM mark WHERE id = 1;
DROP TABLE mark;

--
-- How to write the trigger
--

CREATE TABLE mark (id int, token bigint, small int, label text, "Mixed" bigint, gone bigint);
ALTER TABLE mark DROP COLUMN gone;
INSERT INTO mark VALUES (1, 1, 1, '1', 1);
CREATE VIEW mark_view AS SELECT * FROM mark;

-- What a trigger written this way answers to a statement.
CREATE FUNCTION pg_temp.answer(timing text, arguments text, statement text DEFAULT 'UPDATE mark SET label = label',
	OUT state text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TRIGGER t %s EXECUTE FUNCTION leaselock.fence_monotonic(%s)', timing, arguments);
	EXECUTE statement;
	RAISE EXCEPTION 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $$;
\set row 'BEFORE UPDATE ON mark FOR EACH ROW'

-- fail: the arguments
SELECT arguments, state, message
FROM unnest(ARRAY['', '''token'', ''token''', '''nowhere''', '''gone''', '''''', '''Token''', '''mixed''', '''token ''',
	'''small''', '''label''', '''ctid''', '''tableoid''', '1']) arguments, pg_temp.answer(:'row', arguments);
-- ok
SELECT arguments, message FROM unnest(ARRAY['''token''', 'token', '''Mixed''']) arguments, pg_temp.answer(:'row', arguments);
-- fail: the timing
SELECT timing, state, message
FROM (VALUES
	('AFTER UPDATE ON mark FOR EACH ROW', 'UPDATE mark SET label = label'),
	('BEFORE UPDATE ON mark FOR EACH STATEMENT', 'UPDATE mark SET label = label'),
	('AFTER UPDATE ON mark FOR EACH STATEMENT', 'UPDATE mark SET label = label'),
	('BEFORE INSERT ON mark FOR EACH ROW', 'INSERT INTO mark VALUES (2, 2)'),
	('BEFORE INSERT OR UPDATE ON mark FOR EACH ROW', 'INSERT INTO mark VALUES (2, 2)'),
	('BEFORE DELETE ON mark FOR EACH ROW', 'DELETE FROM mark'),
	('BEFORE TRUNCATE ON mark FOR EACH STATEMENT', 'TRUNCATE mark'),
	('INSTEAD OF UPDATE ON mark_view FOR EACH ROW', 'UPDATE mark_view SET label = label')
) v (timing, statement), pg_temp.answer(timing, '''token''', statement);
-- ok: OF some columns, WHEN something
SELECT timing, message
FROM unnest(ARRAY['BEFORE UPDATE OF label ON mark FOR EACH ROW', 'BEFORE UPDATE ON mark FOR EACH ROW WHEN (true)']) timing,
	pg_temp.answer(timing, '''token''');
-- ok: each hint says how to write it
SELECT DISTINCT hint FROM (
	SELECT hint FROM unnest(ARRAY['', '''nowhere''', '''small''']) arguments, pg_temp.answer(:'row', arguments)
	UNION ALL
	SELECT hint FROM unnest(ARRAY['AFTER UPDATE ON mark FOR EACH ROW', 'BEFORE UPDATE ON mark FOR EACH STATEMENT']) timing, pg_temp.answer(timing, '''token''')) h;
-- fail: called directly, not as a trigger
SELECT leaselock.fence_monotonic();
\echo :SQLSTATE
DROP TABLE mark CASCADE;
