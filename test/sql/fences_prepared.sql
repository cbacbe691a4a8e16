-- Fences and leases in a transaction that is prepared.  A server without prepared
-- transactions (max_prepared_transactions = 0) skips this, see the Makefile.
LOAD 'leaselock';
\set SHOW_CONTEXT never
CREATE TABLE fenced (fence bigint, what text);
SELECT ticket, fence AS a FROM leaselock.lease_acquire('fences.prepare', 'w', '300 s') \gset
SELECT leaselock.try_lock('fences.prepare2', 'w', '300 s') AS b \gset
-- ok: after a mere check, verified at PREPARE
BEGIN;
SELECT leaselock.fence_check('fences.prepare', :a);
INSERT INTO fenced VALUES (:a, 'prepared');
PREPARE TRANSACTION 'regress_leaselock';
COMMIT PREPARED 'regress_leaselock';
BEGIN;
SELECT leaselock.fence_check('fences.prepare', :a);
INSERT INTO fenced VALUES (:a, 'prepared and rolled back');
PREPARE TRANSACTION 'regress_leaselock';
ROLLBACK PREPARED 'regress_leaselock';
-- ok: after a look and an unsuccessful try
BEGIN;
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT state FROM leaselock.lease_acquire('fences.prepare', 'other');
SELECT leaselock.try_lock('fences.prepare', 'other', '60 s');
SELECT count(*) FROM leaselock.lease_peek('fences.prepare');
INSERT INTO fenced VALUES (:a, 'prepared after a look');
PREPARE TRANSACTION 'regress_leaselock';
COMMIT PREPARED 'regress_leaselock';
-- ok: after a change that was rolled back
BEGIN;
SAVEPOINT s;
SELECT state FROM leaselock.lease_renew(:'ticket');
ROLLBACK TO s;
INSERT INTO fenced VALUES (:a, 'prepared after a change undone');
PREPARE TRANSACTION 'regress_leaselock';
COMMIT PREPARED 'regress_leaselock';
-- fail: after the transaction changed leases in any way
BEGIN;
SELECT state FROM leaselock.lease_acquire('fences.prepare.new', 'w');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
BEGIN;
SELECT state FROM leaselock.lease_renew(:'ticket');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
BEGIN;
SELECT state FROM leaselock.lease_release(:'ticket');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
BEGIN;
SELECT leaselock.lease_release_all('w') > 0 AS released;
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
BEGIN;
SELECT leaselock.try_lock('fences.prepare.new', 'w', '60 s') IS NOT NULL AS got;
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
BEGIN;
SELECT leaselock.renew_lock('fences.prepare2', 'w', '300 s');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
BEGIN;
SELECT leaselock.release_lock('fences.prepare2', 'w');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
-- fail: in a savepoint that was released
BEGIN;
SAVEPOINT s;
SELECT state FROM leaselock.lease_renew(:'ticket');
RELEASE s;
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
-- fail: with a check as well
BEGIN;
SELECT leaselock.fence_check('fences.prepare', :a);
SELECT state FROM leaselock.lease_renew(:'ticket');
PREPARE TRANSACTION 'regress_leaselock';
\echo :SQLSTATE
-- ok: none of it has happened, and nothing is left for the next transaction
SELECT count(*) FROM pg_prepared_xacts;
SELECT state FROM leaselock.lease_get(:'ticket');
SELECT leaselock.fence_check('fences.prepare2', :b);
SELECT count(*) FROM leaselock.lease_peek('fences.prepare.new');
BEGIN;
SELECT leaselock.fence_check('fences.prepare', :a);
PREPARE TRANSACTION 'regress_leaselock';
COMMIT PREPARED 'regress_leaselock';

-- What was written.
SELECT what FROM fenced ORDER BY what COLLATE "C";
DROP TABLE fenced;
SELECT leaselock.lease_release_all('w') > 0 AS released, leaselock.release_lock('fences.prepare2', 'w');
