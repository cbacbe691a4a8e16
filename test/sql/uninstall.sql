-- DROP EXTENSION leaves nothing behind, and drops nothing that belongs to others without
-- CASCADE.
LOAD 'leaselock';
\set SHOW_CONTEXT never
SELECT leaselock.try_lock('uninstall', 'w', '60 s') AS fence \gset

-- fail: other objects depend on it
CREATE VIEW held AS SELECT name FROM leaselock.lease_status;
CREATE TABLE fenced (fence bigint, CHECK (leaselock.fence_check('uninstall', fence)));
DROP EXTENSION leaselock;
\echo :SQLSTATE
DROP VIEW held;
DROP TABLE fenced;
-- fail: a part of it cannot be dropped
DROP FUNCTION leaselock.lease_get;
\echo :SQLSTATE
DROP SCHEMA leaselock;
\echo :SQLSTATE

-- ok: rolled back, everything is there
BEGIN;
DROP EXTENSION leaselock;
SELECT leaselock.fence_check('uninstall', 1); -- fail: dropped
\echo :SQLSTATE
ROLLBACK;
SELECT leaselock.fence_check('uninstall', :fence);
SELECT leaselock.release_lock('uninstall', 'w');

DROP EXTENSION leaselock; -- ok
SELECT count(*) FROM pg_namespace WHERE nspname = 'leaselock';
SELECT proname FROM pg_proc WHERE probin LIKE '%leaselock%';
SELECT relname FROM pg_class WHERE relname LIKE '%lease%' OR relname IN ('locks', 'tickets', 'floor', 'installation');
SELECT typname FROM pg_type WHERE typname LIKE '%lease%';
SELECT leaselock.lease_get('00000000-0000-0000-0000-000000000000'); -- fail: dropped
\echo :SQLSTATE
-- ok: the library is still loaded and does no harm
BEGIN;
CREATE TABLE afterwards ();
DROP TABLE afterwards;
COMMIT;
