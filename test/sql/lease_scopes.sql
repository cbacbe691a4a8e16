-- The view lease_scopes: which scopes are registered to which role, for roles that may
-- use or register them.
LOAD 'leaselock';
CREATE ROLE regress_leaselock_red;
CREATE ROLE regress_leaselock_blue;
CREATE ROLE regress_leaselock_ann IN ROLE regress_leaselock_red;
CREATE ROLE regress_leaselock_noinherit NOINHERIT IN ROLE regress_leaselock_red;
CREATE ROLE regress_leaselock_stranger;
CREATE ROLE regress_leaselock_monitor IN ROLE pg_monitor;
CREATE ROLE regress_leaselock_operator;
CREATE ROLE regress_leaselock_owner;
CREATE FUNCTION pg_temp.seen(who text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', 'regress_leaselock_' || who);
	SELECT string_agg(scope || ' ' || role || ' ' || role_exists, ', ' ORDER BY scope) INTO result FROM leaselock.lease_scopes;
	RESET ROLE;
	RETURN result;
END $$;

-- ok: none
SELECT * FROM leaselock.lease_scopes;
SELECT leaselock.lease_scope_create('b', 'regress_leaselock_blue');
SELECT leaselock.lease_scope_create('a', 'regress_leaselock_red');
SELECT leaselock.lease_scope_create('a/b', 'regress_leaselock_red');
-- ok: all, to a superuser
SELECT * FROM leaselock.lease_scopes;
-- ok: a role's own, those of roles that it is a member of; all for roles that may register
GRANT EXECUTE ON FUNCTION leaselock.lease_scope_create(text, name) TO regress_leaselock_operator;
SELECT current_user AS me \gset
ALTER DATABASE :"DBNAME" OWNER TO regress_leaselock_owner;
SELECT who, pg_temp.seen(who) FROM unnest('{red, blue, ann, noinherit, stranger, monitor, operator, owner}'::text[]) who;
ALTER DATABASE :"DBNAME" OWNER TO :"me";
REVOKE EXECUTE ON FUNCTION leaselock.lease_scope_create(text, name) FROM regress_leaselock_operator;
SELECT who, pg_temp.seen(who) FROM unnest('{operator, owner}'::text[]) who;
-- ok: nothing is changed, and the rows are current
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT count(*) FROM leaselock.lease_scopes;
COMMIT;
BEGIN;
SELECT leaselock.lease_scope_drop('a/b');
SELECT scope FROM leaselock.lease_scopes;
ROLLBACK;
SELECT scope FROM leaselock.lease_scopes;
-- fail: it cannot be written
INSERT INTO leaselock.lease_scopes VALUES ('x', 'regress_leaselock_red', true);
DELETE FROM leaselock.lease_scopes;

-- renamed: shown by its new name; dropped: by the last name recorded, and a new role
-- of that name is not meant
ALTER ROLE regress_leaselock_red RENAME TO regress_leaselock_scarlet;
SELECT * FROM leaselock.lease_scopes;
SELECT pg_temp.seen('ann');
DROP ROLE regress_leaselock_scarlet;
SELECT * FROM leaselock.lease_scopes;
SELECT pg_temp.seen('ann');
SELECT pg_temp.seen('monitor');
CREATE ROLE regress_leaselock_red;
SELECT * FROM leaselock.lease_scopes;
-- a row from a dump: the name counts
UPDATE leaselock.scopes SET home = '00000000-0000-0000-0000-000000000000', role_oid = 1 WHERE scope IN ('a', 'b');
UPDATE leaselock.scopes SET role = 'regress_leaselock_nobody' WHERE scope = 'b';
SELECT * FROM leaselock.lease_scopes;
SELECT pg_temp.seen('red');

SELECT leaselock.lease_scope_drop(scope) FROM leaselock.lease_scopes;
SELECT count(*) FROM leaselock.scopes;
DROP ROLE regress_leaselock_red, regress_leaselock_blue, regress_leaselock_ann, regress_leaselock_noinherit, regress_leaselock_stranger,
	regress_leaselock_monitor, regress_leaselock_operator, regress_leaselock_owner;
