-- Every way in which a statement can write a row, past each form of fence_guard:
-- a stale fence changes no row.
LOAD 'leaselock';
\set SHOW_CONTEXT never
\set VERBOSITY sqlstate

-- A superseded fence and the present one; psql and functions know them.
SELECT ticket, fence AS old FROM leaselock.lease_acquire('fence_writes', 'w') \gset
SELECT state FROM leaselock.lease_release(:'ticket');
SELECT ticket, fence AS new FROM leaselock.lease_acquire('fence_writes', 'w', '300 s') \gset
SELECT set_config('regress.old', :'old', false) = :'old' AS set, set_config('regress.new', :'new', false) = :'new' AS set;
CREATE FUNCTION pg_temp.old() RETURNS bigint LANGUAGE sql AS 'SELECT current_setting(''regress.old'')::bigint';
CREATE FUNCTION pg_temp.new() RETURNS bigint LANGUAGE sql AS 'SELECT current_setting(''regress.new'')::bigint';
-- How a row's fence is shown.
CREATE FUNCTION pg_temp.age(fence bigint) RETURNS text LANGUAGE sql AS
	'SELECT CASE fence WHEN pg_temp.new() THEN ''new'' WHEN pg_temp.old() THEN ''OLD'' ELSE coalesce(fence::text, ''none'') END';

-- the row carries its fence, the trigger names the lock
CREATE TABLE w_column (id int PRIMARY KEY, fence bigint, what text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON w_column FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'fence_writes');
-- the row names its lock, too
CREATE TABLE w_columns (id int PRIMARY KEY, lock text, fence bigint, what text, scope text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON w_columns FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'lock', 'scope');
-- the transaction has checked its fence
CREATE TABLE w_transaction (id int PRIMARY KEY, what text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON w_transaction FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'fence_writes');
INSERT INTO w_column VALUES (1, :new, 'first');
INSERT INTO w_columns VALUES (1, 'fence_writes', :new, 'first', 'public');
BEGIN;
SELECT leaselock.fence_assert('fence_writes', :new);
INSERT INTO w_transaction VALUES (1, 'first');
COMMIT;
\set column 'SELECT id, pg_temp.age(fence) AS fence, what FROM w_column ORDER BY id'
\set columns 'SELECT id, lock, pg_temp.age(fence) AS fence, what, scope FROM w_columns ORDER BY id'
\set transaction 'SELECT * FROM w_transaction ORDER BY id'

--
-- INSERT, UPDATE, DELETE, TRUNCATE
--

INSERT INTO w_column VALUES (2, :old, 'stale');
INSERT INTO w_column VALUES (2, :new, 'good'), (3, :old, 'stale'); -- all or nothing
INSERT INTO w_column SELECT i, pg_temp.old(), 'stale' FROM generate_series(2, 9) i;
UPDATE w_column SET fence = :old, what = 'stale';
UPDATE w_column SET fence = v.fence, what = 'stale' FROM (VALUES (1, pg_temp.old())) v (id, fence) WHERE v.id = w_column.id;
INSERT INTO w_columns VALUES (2, 'fence_writes', :old, 'stale', 'public');
UPDATE w_columns SET fence = :old, what = 'stale';
UPDATE w_columns SET lock = 'fence_writes.never', what = 'stale';
INSERT INTO w_transaction VALUES (2, 'unchecked');
UPDATE w_transaction SET what = 'unchecked';
DELETE FROM w_transaction;
TRUNCATE w_transaction;
TRUNCATE w_column, w_transaction;
-- with a stale check it is the same
BEGIN;
SELECT leaselock.fence_check('fence_writes', :old, allow_lapsed => true);
DELETE FROM w_transaction;
ROLLBACK;
BEGIN;
SELECT leaselock.fence_assert('fence_writes', :old);
DELETE FROM w_transaction;
ROLLBACK;
-- UPDATE and DELETE of a row at a cursor, SELECT FOR UPDATE before
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM w_column FOR UPDATE;
MOVE c;
UPDATE w_column SET fence = :old, what = 'stale' WHERE CURRENT OF c;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM w_transaction FOR UPDATE;
MOVE c;
DELETE FROM w_transaction WHERE CURRENT OF c;
ROLLBACK;
-- prepared statements: each execution is judged
PREPARE p (bigint) AS INSERT INTO w_column VALUES (2, $1, 'prepared');
EXECUTE p (:old);
EXECUTE p (:new);
DELETE FROM w_column WHERE id = 2;
EXECUTE p (:old);
DEALLOCATE p;
-- views that are written through
CREATE VIEW w_view AS SELECT id, fence, what FROM w_column;
INSERT INTO w_view VALUES (2, :old, 'stale');
UPDATE w_view SET fence = :old;
DROP VIEW w_view;
-- inheritance: row triggers are the child's own; the parent's are not inherited
CREATE TABLE w_child () INHERITS (w_column);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON w_child FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'fence_writes');
INSERT INTO w_child VALUES (2, :new, 'child');
UPDATE w_column SET fence = :old, what = 'stale' WHERE id = 2;
DROP TABLE w_child;

--
-- COPY
--

CREATE TABLE w_copy (id int, fence bigint) PARTITION BY LIST (id);
CREATE TABLE w_copy1 PARTITION OF w_copy FOR VALUES IN (1);
CREATE TABLE w_copy2 PARTITION OF w_copy DEFAULT;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON w_copy FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'fence_writes');
-- fail: no fence that was ever given out
COPY w_column FROM stdin;
2	17	stale
3	18	stale
\.
COPY w_columns FROM stdin;
2	fence_writes	17	stale	public
\.
COPY w_transaction FROM stdin;
2	unchecked
\.
COPY w_copy FROM stdin;
1	17
2	17
\.
-- fail: NULL
COPY w_column FROM stdin;
2	\N	null
\.
-- ok: with present fences; fail: with one that is old
\copy (SELECT 2, pg_temp.new(), 'copied') TO 'results/fence_writes.data'
\copy w_column FROM 'results/fence_writes.data'
\copy (VALUES (3, pg_temp.new(), 'copied'), (4, pg_temp.old(), 'stale')) TO 'results/fence_writes.data'
\copy w_column FROM 'results/fence_writes.data'
\copy (VALUES (1, pg_temp.new()), (2, pg_temp.new())) TO 'results/fence_writes.data'
\copy w_copy FROM 'results/fence_writes.data'
\copy (VALUES (1, pg_temp.new()), (2, pg_temp.old())) TO 'results/fence_writes.data'
\copy w_copy FROM 'results/fence_writes.data'
SELECT tableoid::regclass AS partition, id, pg_temp.age(fence) AS fence FROM w_copy ORDER BY id;
BEGIN;
SELECT leaselock.fence_assert('fence_writes', :new);
COPY w_transaction FROM stdin;
2	copied
\.
COMMIT;
DROP TABLE w_copy;
:column;
:columns;
:transaction;
DELETE FROM w_column WHERE id = 2;

--
-- INSERT ... ON CONFLICT
--

INSERT INTO w_column VALUES (1, :old, 'stale') ON CONFLICT DO NOTHING;
INSERT INTO w_column VALUES (1, :new, 'good') ON CONFLICT DO NOTHING;
INSERT INTO w_column VALUES (1, :old, 'stale') ON CONFLICT (id) DO UPDATE SET fence = excluded.fence, what = excluded.what;
INSERT INTO w_column VALUES (1, :new, 'good') ON CONFLICT (id) DO UPDATE SET fence = :old, what = excluded.what;
INSERT INTO w_column VALUES (1, :new, 'on conflict') ON CONFLICT (id) DO UPDATE SET fence = excluded.fence, what = excluded.what;
INSERT INTO w_columns VALUES (1, 'fence_writes', :old, 'stale', 'public') ON CONFLICT DO NOTHING;
INSERT INTO w_columns VALUES (1, 'fence_writes', :new, 'good', 'public') ON CONFLICT (id) DO UPDATE SET fence = :old, what = excluded.what;
INSERT INTO w_columns VALUES (1, 'fence_writes', :new, 'good', 'public') ON CONFLICT (id) DO UPDATE SET lock = 'fence_writes.never';
INSERT INTO w_transaction VALUES (1, 'unchecked') ON CONFLICT DO NOTHING;
INSERT INTO w_transaction VALUES (1, 'unchecked') ON CONFLICT (id) DO UPDATE SET what = excluded.what;

--
-- MERGE
--

MERGE INTO w_column t USING (VALUES (1), (5)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET fence = :new, what = 'good'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, :old, 'stale');
MERGE INTO w_column t USING (VALUES (1), (5)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET fence = :old, what = 'stale'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, :new, 'good');
MERGE INTO w_columns t USING (VALUES (1), (5)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET fence = :old, what = 'stale'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'fence_writes', :new, 'good', 'public');
MERGE INTO w_transaction t USING (VALUES (1), (5)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET what = 'unchecked';
MERGE INTO w_transaction t USING (VALUES (1), (5)) v (id) ON t.id = v.id
	WHEN MATCHED THEN DELETE;
MERGE INTO w_transaction t USING (VALUES (1), (5)) v (id) ON t.id = v.id
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'unchecked');
-- ok
MERGE INTO w_column t USING (VALUES (1), (5)) v (id) ON t.id = v.id
	WHEN MATCHED THEN UPDATE SET fence = :new, what = 'merged'
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, :new, 'merged');
:column;
:columns;
:transaction;

--
-- Partitions, one of them with another order of columns
--

CREATE TABLE w_part (k int, lock text, fence bigint, what text) PARTITION BY LIST (k);
CREATE TABLE w_part1 PARTITION OF w_part FOR VALUES IN (1);
CREATE TABLE w_part2 (gone bigint, what text, fence bigint, also_gone text, k int, lock text);
ALTER TABLE w_part2 DROP COLUMN gone, DROP COLUMN also_gone;
ALTER TABLE w_part ATTACH PARTITION w_part2 FOR VALUES IN (2);
CREATE TABLE w_part3 PARTITION OF w_part FOR VALUES IN (3) PARTITION BY LIST (what);
CREATE TABLE w_part3a (fence bigint, lock text, what text, k int);
ALTER TABLE w_part3 ATTACH PARTITION w_part3a DEFAULT;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON w_part FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'lock');
\set part 'SELECT tableoid::regclass AS partition, k, lock, pg_temp.age(fence) AS fence, what FROM w_part ORDER BY k, what'
-- INSERT into each, by the root and directly
INSERT INTO w_part SELECT i, 'fence_writes', :new, 'good ' || i FROM generate_series(1, 3) i;
INSERT INTO w_part VALUES (1, 'fence_writes', :old, 'stale');
INSERT INTO w_part VALUES (2, 'fence_writes', :old, 'stale');
INSERT INTO w_part VALUES (3, 'fence_writes', :old, 'stale');
INSERT INTO w_part2 (k, lock, fence, what) VALUES (2, 'fence_writes', :old, 'stale');
INSERT INTO w_part3a (k, lock, fence, what) VALUES (3, 'fence_writes', :old, 'stale');
INSERT INTO w_part VALUES (2, NULL, :new, 'null');
INSERT INTO w_part VALUES (2, 'fence_writes', NULL, 'null');
-- UPDATE in each
UPDATE w_part SET fence = :old, what = 'stale' WHERE k = 1;
UPDATE w_part SET fence = :old, what = 'stale' WHERE k = 2;
UPDATE w_part SET fence = :old, what = 'stale' WHERE k = 3;
UPDATE w_part SET fence = CASE k WHEN 3 THEN pg_temp.old() ELSE pg_temp.new() END, what = 'stale';
UPDATE w_part2 SET fence = :old, what = 'stale';
-- UPDATE that moves the row, out of each
UPDATE w_part SET k = 2, fence = :old, what = 'stale' WHERE k = 1;
UPDATE w_part SET k = 3, fence = :old, what = 'stale' WHERE k = 2;
UPDATE w_part SET k = 1, fence = :old, what = 'stale' WHERE k = 3;
:part;
UPDATE w_part SET k = k % 3 + 1, fence = :new, what = 'moved from ' || k;
:part;
-- MERGE and ON CONFLICT
MERGE INTO w_part t USING (VALUES (1), (2)) v (k) ON t.k = v.k
	WHEN MATCHED THEN UPDATE SET fence = :old, k = 3 - t.k;
CREATE UNIQUE INDEX ON w_part (k, what);
INSERT INTO w_part SELECT k, lock, fence, what FROM w_part ON CONFLICT (k, what) DO UPDATE SET fence = :old;
-- the statement form on a partitioned table
CREATE TRIGGER guard_all BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON w_part FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'fence_writes');
DELETE FROM w_part;
TRUNCATE w_part;
INSERT INTO w_part VALUES (1, 'fence_writes', :new, 'unchecked');
:part;
DROP TABLE w_part;

--
-- A foreign key's cascade
--

CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE w_cascade (parent int REFERENCES parent ON UPDATE CASCADE ON DELETE SET NULL, fence bigint);
INSERT INTO parent VALUES (1), (2);
INSERT INTO w_cascade VALUES (1, :old), (2, :new);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON w_cascade FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'fence_writes');
UPDATE parent SET id = 10 WHERE id = 1;
DELETE FROM parent WHERE id = 1;
UPDATE parent SET id = 20 WHERE id = 2; -- ok
DROP TRIGGER guard ON w_cascade;
ALTER TABLE w_cascade DROP CONSTRAINT w_cascade_parent_fkey, ADD FOREIGN KEY (parent) REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON w_cascade FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'fence_writes');
UPDATE parent SET id = 10 WHERE id = 1;
DELETE FROM parent WHERE id = 1;
TRUNCATE parent CASCADE;
TABLE parent ORDER BY id;
SELECT parent, pg_temp.age(fence) AS fence FROM w_cascade ORDER BY parent;
BEGIN; -- ok
SELECT leaselock.fence_assert('fence_writes', :new);
DELETE FROM parent WHERE id = 1;
COMMIT;
SELECT parent, pg_temp.age(fence) AS fence FROM w_cascade ORDER BY parent;
DROP TABLE w_cascade, parent;

--
-- Writes inside other statements
--

-- a writable CTE
WITH w AS (INSERT INTO w_column VALUES (6, :old, 'stale') RETURNING id) SELECT id FROM w;
WITH w AS (UPDATE w_column SET fence = :old, what = 'stale' RETURNING id) SELECT 1;
WITH w AS (DELETE FROM w_transaction RETURNING *) INSERT INTO w_column SELECT id + 6, :new, what FROM w;
WITH good AS (INSERT INTO w_column VALUES (6, :new, 'good')), stale AS (INSERT INTO w_columns VALUES (6, 'fence_writes', :old, 'stale', 'public')) SELECT 1;
-- a function, in any place of a statement
CREATE FUNCTION pg_temp.write(id int, fence bigint) RETURNS int LANGUAGE sql AS
	'INSERT INTO w_column VALUES (id, fence, ''function'') RETURNING id';
SELECT pg_temp.write(6, :old);
SELECT id FROM w_column WHERE pg_temp.write(6, :old) = 6;
SELECT * FROM pg_temp.write(6, :old);
-- a trigger's own writes, before and after
CREATE TABLE source (id int, fence bigint);
CREATE FUNCTION pg_temp.forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO w_column VALUES (new.id, new.fence, 'trigger');
	RETURN new;
END $$;
CREATE TRIGGER forward AFTER INSERT ON source FOR EACH ROW EXECUTE FUNCTION pg_temp.forward();
INSERT INTO source VALUES (7, :old);
INSERT INTO source VALUES (7, :new); -- ok
DROP TRIGGER forward ON source;
CREATE TRIGGER forward BEFORE INSERT ON source FOR EACH ROW EXECUTE FUNCTION pg_temp.forward();
INSERT INTO source VALUES (8, :old);
DROP TRIGGER forward ON source;
SELECT id, pg_temp.age(fence) AS fence FROM source;
-- a trigger that sets the fence, and fires before the guard because of its name
CREATE FUNCTION pg_temp.set_old() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	new.fence := pg_temp.old();
	RETURN new;
END $$;
CREATE TRIGGER a_trigger BEFORE INSERT ON w_column FOR EACH ROW EXECUTE FUNCTION pg_temp.set_old();
INSERT INTO w_column VALUES (8, :new, 'good');
DROP TRIGGER a_trigger ON w_column;
-- a deferred constraint trigger, which writes at the commit
CREATE CONSTRAINT TRIGGER forward AFTER INSERT ON source DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.forward();
BEGIN;
INSERT INTO source VALUES (8, :old);
COMMIT;
BEGIN;
INSERT INTO source VALUES (8, :old);
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;
INSERT INTO source VALUES (8, :new); -- ok
SELECT id, pg_temp.age(fence) AS fence FROM source ORDER BY id;
DROP TRIGGER forward ON source;
-- a deferred constraint trigger that checks
CREATE FUNCTION pg_temp.check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leaselock.fence_assert('fence_writes', new.fence);
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER check_fence AFTER INSERT ON source DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.check();
INSERT INTO source VALUES (9, :old);
INSERT INTO source VALUES (9, :new); -- ok
SELECT id, pg_temp.age(fence) AS fence FROM source ORDER BY id;
DROP TABLE source;
-- a cursor WITH HOLD, which is run to its end at the commit
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT pg_temp.write(i, pg_temp.old()) FROM generate_series(10, 11) i;
COMMIT;
FETCH ALL FROM held;
BEGIN;
DECLARE held NO SCROLL CURSOR WITH HOLD FOR SELECT pg_temp.write(i, CASE i WHEN 10 THEN pg_temp.new() ELSE pg_temp.old() END) FROM generate_series(10, 11) i;
FETCH 1 FROM held;
COMMIT;
BEGIN; -- ok
DECLARE held NO SCROLL CURSOR WITH HOLD FOR SELECT pg_temp.write(i, pg_temp.new()) FROM generate_series(10, 11) i;
FETCH 1 FROM held;
COMMIT;
FETCH ALL FROM held;
CLOSE held;
:column;
-- ... and whose checks are made there
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT leaselock.fence_check('fence_writes', pg_temp.old()), leaselock.fence_check('fence_writes', pg_temp.new());
COMMIT;
FETCH ALL FROM held;
CLOSE held;

--
-- CHECK, added NOT VALID
--

CREATE TABLE w_check (id int, fence bigint NOT NULL);
INSERT INTO w_check VALUES (1, :old);
ALTER TABLE w_check ADD CONSTRAINT fresh CHECK (leaselock.fence_check('fence_writes', fence)) NOT VALID;
INSERT INTO w_check VALUES (2, :new); -- ok
INSERT INTO w_check VALUES (3, :old); -- fail
INSERT INTO w_check VALUES (3, NULL); -- fail: an error, not a pass
UPDATE w_check SET fence = :old WHERE id = 2; -- fail
UPDATE w_check SET id = 1 WHERE id = 1; -- fail: the row is of an earlier grant
UPDATE w_check SET fence = :new WHERE id = 1; -- ok
DELETE FROM w_check WHERE id = 1; -- ok: not its business
COPY w_check FROM stdin; -- fail
3	17
\.
SELECT id, pg_temp.age(fence) AS fence FROM w_check ORDER BY id;
-- a NULL that the table allows is an error all the same
ALTER TABLE w_check ALTER fence DROP NOT NULL;
INSERT INTO w_check VALUES (3, NULL);
-- fail: validated, with an old row; that is why NOT VALID
ALTER TABLE w_check DROP CONSTRAINT fresh;
INSERT INTO w_check VALUES (3, :old);
ALTER TABLE w_check ADD CONSTRAINT fresh CHECK (leaselock.fence_check('fence_writes', fence));
ALTER TABLE w_check ADD CONSTRAINT fresh CHECK (leaselock.fence_check('fence_writes', fence)) NOT VALID;
ALTER TABLE w_check VALIDATE CONSTRAINT fresh;
DROP TABLE w_check;

--
-- session_replication_role
--

BEGIN;
SET LOCAL session_replication_role = replica;
-- ok: ordinary triggers are skipped
INSERT INTO w_column VALUES (20, :old, 'replica');
DELETE FROM w_transaction WHERE id = 2;
COMMIT;
ALTER TABLE w_column ENABLE ALWAYS TRIGGER guard;
ALTER TABLE w_transaction ENABLE ALWAYS TRIGGER guard;
SET session_replication_role = replica;
-- fail: not those that are always enabled
INSERT INTO w_column VALUES (21, :old, 'replica, always');
DELETE FROM w_transaction;
INSERT INTO w_column VALUES (21, :new, 'replica, always'); -- ok
RESET session_replication_role;
:column;
:transaction;

-- A write that was good when it was made and is superseded before the commit is
-- in test/specs; here the transaction itself has lost its grant to an undone
-- savepoint: the fence that it wrote with does not exist any more.
BEGIN;
SAVEPOINT s;
SELECT fence AS undone FROM leaselock.lease_acquire('fence_writes.undone', 'w') \gset
ROLLBACK TO s;
INSERT INTO w_columns VALUES (30, 'fence_writes.undone', :undone, 'undone', 'public');
ROLLBACK;
:columns;

-- Fences are below 2^53, so that JSON and what reads it carries them exactly.
SELECT every(fence < 2::numeric ^ 53) AS small, every(to_json(fence)::text = fence::text) AS json,
	every((to_jsonb(w)->>'fence')::float8::bigint = fence) AS as_double
FROM w_column w;

DROP TABLE w_column, w_columns, w_transaction;
SELECT leaselock.lease_release_all('w') > 0 AS released;
