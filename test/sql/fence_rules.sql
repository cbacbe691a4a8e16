-- Where PostgreSQL's rules bypass a guard or fire it unexpectedly, and the remedy for
-- each.
LOAD 'leaselock';
\set SHOW_CONTEXT never
\set VERBOSITY sqlstate

SELECT ticket AS old_ticket, fence AS old FROM leaselock.lease_acquire('rules', 'w') \gset
SELECT state FROM leaselock.lease_release(:'old_ticket');
SELECT fence AS new FROM leaselock.lease_acquire('rules', 'w', '300 s') \gset

-- 1. a row guard is not inherited by INHERITS children
CREATE TABLE parent (id int, fence bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON parent FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'rules');
CREATE TABLE child () INHERITS (parent);
-- fail
INSERT INTO parent VALUES (1, :old);
-- ok, though the fence is stale
INSERT INTO child VALUES (1, :old);
UPDATE parent SET id = 2;
SELECT tableoid::regclass AS "table", id, fence = :old AS stale FROM parent;
-- the remedy, a guard of its own; fail
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON child FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'rules');
INSERT INTO child VALUES (3, :old);
UPDATE parent SET id = 3;
-- the form 'transaction' is fired by statements that name the parent; fail, ok
DROP TRIGGER guard ON parent;
DROP TRIGGER guard ON child;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON parent FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'rules');
UPDATE parent SET id = 3;
UPDATE child SET id = 4;
SELECT id FROM parent;
DROP TABLE child, parent;

-- 2. a statement guard on an automatically updatable view is never fired
CREATE TABLE base (id int);
CREATE VIEW seen AS SELECT * FROM base;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON seen FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'rules');
-- ok, though nothing was checked
INSERT INTO seen VALUES (1);
UPDATE seen SET id = 2;
DELETE FROM seen RETURNING id;
-- the remedy, on the table; fail, then ok
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON base FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'rules');
INSERT INTO seen VALUES (1);
DELETE FROM seen;
BEGIN;
SELECT leaselock.fence_check('rules', :new);
INSERT INTO seen VALUES (1);
COMMIT;
SELECT count(*) FROM base;
DROP VIEW seen;
DROP TABLE base;

-- 3. BEFORE UPDATE OF the fence is not fired by an UPDATE of other columns
CREATE TABLE some_columns (id int, fence bigint, what text);
INSERT INTO some_columns VALUES (1, :old, 'of an earlier grant');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OF fence ON some_columns FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'rules');
-- fail, ok
UPDATE some_columns SET fence = :old;
UPDATE some_columns SET what = 'without a fence';
SELECT what, fence = :old AS stale FROM some_columns;
-- the remedy, all columns; fail, ok
DROP TRIGGER guard ON some_columns;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON some_columns FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'rules');
UPDATE some_columns SET what = 'again without a fence';
UPDATE some_columns SET what = 'with a fence', fence = :new;
SELECT what, fence = :new AS present FROM some_columns;
DROP TABLE some_columns;

-- 4. ON DELETE CASCADE runs its statement on the child, also where there are no
-- children
CREATE TABLE master (id int PRIMARY KEY);
CREATE TABLE detail (id int REFERENCES master ON DELETE CASCADE);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON detail FOR EACH STATEMENT
	EXECUTE FUNCTION leaselock.fence_guard('transaction', 'rules');
INSERT INTO master VALUES (1), (2), (3);
-- fail
DELETE FROM master WHERE id = 1;
-- the remedy: a check in that transaction; ok
BEGIN;
SELECT leaselock.fence_check('rules', :new);
DELETE FROM master WHERE id = 1;
COMMIT;
-- or a foreign key that does nothing to children; ok
ALTER TABLE detail DROP CONSTRAINT detail_id_fkey, ADD FOREIGN KEY (id) REFERENCES master ON DELETE RESTRICT;
DELETE FROM master WHERE id = 2;
SELECT id FROM master;
DROP TABLE detail, master;

-- 5. (f(...)).* is as many calls as there are columns
SELECT count(*) AS rows FROM (SELECT (leaselock.lease_acquire('star', 'w')).* OFFSET 0) x;
SELECT count(*) = (SELECT count(*) FROM pg_attribute WHERE attrelid = 'leaselock.lease_ticket'::regclass AND attnum > 0) AS one_a_column
FROM leaselock.lease_tickets WHERE name = 'star';
SELECT leaselock.lease_release_all('w') > 2 AS released;
-- the remedy, in FROM
SELECT depth FROM leaselock.lease_acquire('star', 'w');
SELECT depth FROM (SELECT 'star' AS name) n, LATERAL leaselock.lease_acquire(name, 'w');
SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'star';
SELECT leaselock.lease_release_all('w') AS released;
