-- Callers that try to get more than they may: through names that are found first,
-- through other roles' functions, through operations that run as another role.  The
-- identity is current_user, and they gain nothing.  (search_path.sql plants decoys
-- for the whole of pg_catalog under the workers' calls.)
\set db :DBNAME
\set SHOW_CONTEXT never
CREATE ROLE regress_leaselock_owner;
CREATE ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_member IN ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_mallory;
CREATE ROLE regress_leaselock_super SUPERUSER;
CREATE DATABASE regress_leaselock_hostile OWNER regress_leaselock_owner;
\c regress_leaselock_hostile

--
-- A schema planted before the extension exists is not adopted
--

GRANT CREATE ON DATABASE regress_leaselock_hostile TO regress_leaselock_mallory;
SET ROLE regress_leaselock_mallory;
CREATE SCHEMA leaselock;
CREATE TABLE leaselock.locks (scope text, name text, fence bigint);
CREATE FUNCTION leaselock.lease_break(text, bigint, text DEFAULT 'public') RETURNS boolean LANGUAGE sql AS 'SELECT true';
\set VERBOSITY sqlstate
SET ROLE regress_leaselock_owner;
CREATE EXTENSION leaselock; -- fail: there is such a schema
CREATE EXTENSION leaselock SCHEMA leaselock; -- fail
RESET ROLE;
CREATE EXTENSION leaselock; -- fail: for a superuser, too
SELECT nspowner::regrole AS owner, (SELECT count(*) FROM pg_class WHERE relnamespace = n.oid AND relkind = 'r') AS tables,
	(SELECT count(*) FROM pg_proc WHERE pronamespace = n.oid) AS functions, (SELECT count(*) FROM pg_extension WHERE extname = 'leaselock') AS extensions
FROM pg_namespace n WHERE nspname = 'leaselock';
SET client_min_messages = warning;
DROP SCHEMA leaselock CASCADE;
RESET client_min_messages;
\set VERBOSITY default

--
-- Operators, functions, types and tables that the installing role finds first
--

SET ROLE regress_leaselock_mallory;
CREATE SCHEMA mallory;
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
-- whoever is tricked into calling one of these is robbed
CREATE TABLE mallory.caught (whom text, what text);
GRANT INSERT ON mallory.caught TO PUBLIC;
CREATE FUNCTION mallory.rob(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO mallory.caught VALUES (current_user, what);
	IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user) THEN
		ALTER ROLE regress_leaselock_mallory SUPERUSER;
	END IF;
END $$;
DO $$
DECLARE
	t text;
	o text;
	f text;
	nr int := 0;
BEGIN
	FOREACH t IN ARRAY '{text, name, oid, int4, int8, uuid, timestamptz, interval, bool, tid, xid8, char}'::text[] LOOP
		FOREACH o IN ARRAY '{=, <>, <, >, <=, >=}'::text[] LOOP
			nr := nr + 1;
			EXECUTE format('CREATE FUNCTION mallory.op%s(pg_catalog.%I, pg_catalog.%2$I) RETURNS boolean LANGUAGE plpgsql AS
				$f$ BEGIN PERFORM mallory.rob(%L); RETURN true; END $f$', nr, t, t || o);
			EXECUTE format('CREATE OPERATOR mallory.%s (LEFTARG = pg_catalog.%I, RIGHTARG = pg_catalog.%2$I, FUNCTION = mallory.op%s)', o, t, nr);
		END LOOP;
	END LOOP;
	FOREACH f IN ARRAY ARRAY['now() RETURNS timestamptz', 'clock_timestamp() RETURNS timestamptz', 'gen_random_uuid() RETURNS uuid', 'hashtext(text) RETURNS int4',
		'text(name) RETURNS text', 'uuid(text) RETURNS uuid', 'count(anyelement) RETURNS int8', 'max(int8) RETURNS int8',
		'pg_extension_config_dump(regclass, text) RETURNS void', 'pg_has_role(name, text) RETURNS boolean', 'length(text) RETURNS int4',
		'pg_get_userbyid(oid) RETURNS name', 'quote_ident(text) RETURNS text', 'aclexplode(aclitem[]) RETURNS int4',
		'format(text, text, text, text) RETURNS text'] LOOP
		EXECUTE format('CREATE FUNCTION mallory.%s LANGUAGE plpgsql AS $f$ BEGIN PERFORM mallory.rob(%L); RETURN NULL; END $f$',
			replace(f, 'RETURNS void', 'RETURNS text'), f);
	END LOOP;
	FOREACH t IN ARRAY '{uuid, text, int8, bigint, timestamptz, name, oid, lease_ticket, bool, regclass, regprocedure, regtype, regnamespace, regrole, aclitem}'::text[] LOOP
		EXECUTE format('CREATE DOMAIN mallory.%I AS pg_catalog.bit CHECK (false)', t);
	END LOOP;
END $$;
CREATE TABLE mallory.locks (scope pg_catalog.text, name pg_catalog.text, fence pg_catalog.int8);
CREATE TABLE mallory.tickets (ticket pg_catalog.uuid);
CREATE TABLE mallory.scopes (scope pg_catalog.text, role pg_catalog.name);
CREATE TABLE mallory.floor (fence pg_catalog.int8);
CREATE TABLE mallory.installation (id pg_catalog.uuid);
CREATE TABLE mallory.blockers (owner pg_catalog.text);
CREATE TABLE mallory.pg_class (oid pg_catalog.oid, relname pg_catalog.name);
CREATE TABLE mallory.pg_proc (oid pg_catalog.oid, proname pg_catalog.name);
INSERT INTO mallory.scopes VALUES ('team', 'regress_leaselock_mallory'), ('public', 'regress_leaselock_mallory');
INSERT INTO mallory.floor VALUES (9000000000000000000);
GRANT ALL ON ALL TABLES IN SCHEMA mallory TO PUBLIC;
RESET ROLE;
-- the decoys work
SET search_path = mallory, pg_catalog;
BEGIN;
SELECT 'a'::pg_catalog.text = 'b', now() IS NULL, hashtext('a') IS NULL;
SELECT count(*) OPERATOR(pg_catalog.>=) 3 AS caught FROM mallory.caught;
ROLLBACK;
-- ok: and nothing calls them: installing
SET ROLE regress_leaselock_owner;
CREATE EXTENSION leaselock;
-- ok: administering
SELECT leaselock.lease_scope_create('team', 'regress_leaselock_team');
SELECT leaselock.lease_scope_create('other', 'regress_leaselock_mallory');
SELECT leaselock.lease_scope_drop('other');
SELECT leaselock.lease_scope_drop('other');
SELECT leaselock.try_lock('job', 'o', '1 h') AS fence \gset
SELECT leaselock.lease_break('job', 1), leaselock.lease_break('job', :fence);
SELECT leaselock.lease_prune('0 s');
SELECT leaselock.fence_bump() IS NOT NULL AS bumped;
SELECT owner FROM leaselock.lease_peek('job');
SELECT name, owner FROM leaselock.lease_status;
SELECT name, owner FROM leaselock.lease_tickets;
-- ok: the same with everything in pg_temp too, for a superuser
RESET ROLE;
CREATE TABLE pg_temp.scopes AS SELECT * FROM mallory.scopes;
CREATE TABLE pg_temp.locks AS SELECT * FROM mallory.locks;
CREATE TABLE pg_temp.tickets AS SELECT * FROM mallory.tickets;
CREATE TABLE pg_temp.floor AS SELECT * FROM mallory.floor;
CREATE TABLE pg_temp.installation AS SELECT * FROM mallory.installation;
CREATE DOMAIN pg_temp.uuid AS pg_catalog.bit;
CREATE DOMAIN pg_temp.text AS pg_catalog.bit;
CREATE DOMAIN pg_temp.lease_ticket AS pg_catalog.bit;
SET search_path = pg_temp, mallory, pg_catalog;
SELECT leaselock.try_lock('job', 'o', '1 h') AS fence \gset
SELECT leaselock.lease_break('job', :fence), leaselock.lease_prune('0 s') IS NOT NULL AS pruned,
	leaselock.fence_bump() IS NOT NULL AS bumped;
SELECT leaselock.lease_scope_create('team', 'regress_leaselock_team');
SET search_path = '';
SELECT leaselock.lease_prune('0 s'), leaselock.lease_scope_drop('other');
SELECT leaselock.lease_scope_create('team', 'regress_leaselock_team');
-- ok: a caller's own tables cannot register, open or bump anything
SET ROLE regress_leaselock_mallory;
SET search_path = mallory, pg_catalog;
\set VERBOSITY sqlstate
SELECT leaselock.lease_acquire('job', 'm', scope => 'team'); -- fail
\set VERBOSITY default
SELECT leaselock.try_lock('job', 'm', '1 h') AS fence \gset
SET search_path = pg_catalog;
SELECT :fence < 9000000000000000 AS sane, leaselock.release_lock('job', 'm');
RESET ROLE;
SELECT count(*) AS caught FROM mallory.caught;
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_leaselock_mallory';
\c
SET client_min_messages = warning;
DROP SCHEMA mallory CASCADE;
RESET client_min_messages;

--
-- Settings of the caller's own
--

CREATE PROCEDURE public.calls(setting text) LANGUAGE plpgsql AS $$
DECLARE
	a leaselock.lease_ticket;
	b leaselock.lease_ticket;
BEGIN
	BEGIN
		EXECUTE 'SET LOCAL ' || setting;
		a := leaselock.lease_acquire('settings', 'a', '1 min', request_id => '00000000-0000-0000-0000-000000000001');
		b := leaselock.lease_acquire('settings', 'a', '1 min', request_id => '00000000-0000-0000-0000-000000000001');
		ASSERT a.state = 'held' AND b.ticket = a.ticket AND b.depth = 1;
		b := leaselock.lease_acquire('settings', 'b', '1 min', '1 min');
		ASSERT b.state = 'waiting' AND b.position = 1 AND b.holder = 'a';
		ASSERT leaselock.fence_check('settings', a.fence) AND NOT leaselock.fence_check('settings', a.fence - 1);
		ASSERT (SELECT (owner, waiters) = ('a', 1) FROM leaselock.lease_peek('settings'));
		ASSERT (leaselock.lease_release(a.ticket)).state = 'released';
		ASSERT (SELECT (owner, waiters) = ('b', 0) FROM leaselock.lease_status);
		ASSERT leaselock.lease_break('settings', (leaselock.lease_get(b.ticket)).fence);
		DELETE FROM leaselock.tickets;
		ASSERT leaselock.lease_prune('0 s') IS NOT NULL;
	EXCEPTION WHEN OTHERS THEN
		RAISE NOTICE '%: % %', setting, SQLSTATE, SQLERRM;
	END;
	COMMIT;
END $$;
DO $$
DECLARE
	s text;
BEGIN
	FOREACH s IN ARRAY ARRAY['enable_indexscan = off', 'enable_seqscan = off', 'enable_bitmapscan = off', 'enable_tidscan = off',
		'enable_sort = off', 'row_security = off', 'transform_null_equals = on',
		'array_nulls = off', 'quote_all_identifiers = on', 'datestyle = ''SQL, DMY''', 'intervalstyle = iso_8601', 'timezone = ''Asia/Kathmandu''',
		'extra_float_digits = -15', 'plan_cache_mode = force_custom_plan', 'plan_cache_mode = force_generic_plan', 'jit_above_cost = 0',
		'constraint_exclusion = on', 'default_transaction_deferrable = on', 'default_transaction_read_only = on', 'synchronous_commit = off',
		'debug_discard_caches = 0', 'check_function_bodies = off', 'default_table_access_method = heap', 'default_toast_compression = pglz',
		'track_functions = ''all''', 'session_replication_role = replica', 'session_replication_role = local', 'work_mem = ''64kB''',
		'lock_timeout = ''1ms''', 'xmlbinary = hex', 'bytea_output = escape', 'client_encoding = sql_ascii', 'plpgsql.check_asserts = on'] LOOP
		CALL public.calls(s);
	END LOOP;
	-- 19 has neither
	IF current_setting('server_version_num')::int < 190000 THEN
		CALL public.calls('standard_conforming_strings = off');
		CALL public.calls('escape_string_warning = on');
	END IF;
END $$;

--
-- SET ROLE and SET SESSION AUTHORIZATION: current_user acts
--

SET SESSION AUTHORIZATION regress_leaselock_member;
SELECT ticket AS own FROM leaselock.lease_acquire('own', 'w', scope => 'team') \gset
SET ROLE regress_leaselock_team;
SELECT ticket AS teams FROM leaselock.lease_acquire('teams', 'w', scope => 'team') \gset
SELECT name, owner, role FROM leaselock.lease_tickets ORDER BY name;
\set VERBOSITY sqlstate
SELECT state FROM leaselock.lease_get(:'own'); -- fail: the team is no member of its member
RESET ROLE;
SELECT state FROM leaselock.lease_get(:'teams'); -- ok
-- a superuser after SET ROLE is that role
RESET SESSION AUTHORIZATION;
SET ROLE regress_leaselock_mallory;
SELECT state FROM leaselock.lease_acquire('own', 'w', scope => 'team'); -- fail
SELECT state FROM leaselock.lease_get(:'own'); -- fail
SELECT leaselock.lease_prune(); -- fail
SELECT count(*) FROM leaselock.lease_status;
-- within one transaction, and back again
BEGIN;
SET LOCAL ROLE regress_leaselock_member;
SELECT state FROM leaselock.lease_renew(:'own');
SET LOCAL ROLE regress_leaselock_mallory;
SAVEPOINT s;
SELECT state FROM leaselock.lease_renew(:'own'); -- fail
ROLLBACK TO SAVEPOINT s;
SELECT state FROM leaselock.lease_acquire('mallory', 'w');
SET LOCAL ROLE regress_leaselock_member;
SELECT state, holder_role FROM leaselock.lease_acquire('mallory', 'w');
COMMIT;
SELECT current_user AS after;
SELECT leaselock.lease_release_all('w');
RESET ROLE;
-- a call that fails leaves the role as it was
SET ROLE regress_leaselock_mallory;
BEGIN;
SAVEPOINT s;
SELECT leaselock.lease_acquire('own', 'w', scope => 'team'); -- fail
ROLLBACK TO SAVEPOINT s;
SELECT current_user AS inside;
SELECT count(*) FROM leaselock.locks; -- fail
ROLLBACK;
SELECT current_user AS after;
SELECT count(*) FROM leaselock.locks; -- fail
RESET ROLE;

--
-- SECURITY DEFINER: the definer acts
--

CREATE SCHEMA wrappers;
GRANT ALL ON SCHEMA wrappers TO PUBLIC;
SET ROLE regress_leaselock_team;
CREATE FUNCTION wrappers.take(name text) RETURNS uuid LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
	$$ SELECT ticket FROM leaselock.lease_acquire(name, 'wrapped', scope => 'team') $$;
CREATE FUNCTION wrappers.give(ticket uuid) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
	$$ SELECT state FROM leaselock.lease_release(ticket) $$;
SET ROLE regress_leaselock_mallory;
CREATE FUNCTION wrappers.steal(call text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS
	$$ DECLARE r text; BEGIN EXECUTE 'SELECT ' || call INTO r; RETURN r; END $$;
-- through the wrapper mallory does what the team lets him do, as the team
SELECT wrappers.take('wrapped') AS wrapped \gset
SELECT leaselock.lease_get(:'wrapped'); -- fail
SELECT leaselock.lease_renew(:'wrapped'); -- fail
SELECT leaselock.lease_release_all('wrapped', 'team');
RESET ROLE;
SELECT owner, role FROM leaselock.lease_peek('wrapped', 'team');
SET ROLE regress_leaselock_mallory;
SELECT wrappers.give(:'wrapped');
-- a caller of mallory's function lends him nothing
RESET ROLE;
SELECT wrappers.steal('current_user');
SELECT wrappers.steal($$(leaselock.lease_acquire('own', 'w', scope => 'team')).state$$); -- fail
SELECT wrappers.steal(format('(leaselock.lease_release(%L)).state', :'own')); -- fail
SELECT wrappers.steal('leaselock.lease_prune()'); -- fail
SELECT wrappers.steal('leaselock.fence_bump()'); -- fail
SELECT wrappers.steal($$leaselock.lease_scope_drop('team')$$); -- fail
SELECT wrappers.steal('(SELECT count(*) FROM leaselock.lease_status WHERE scope = ''team'')');
SELECT current_user = session_user AS restored;

--
-- Triggers run as the role that fires them, those of a foreign key's action as the
-- table's owner
--

SET ROLE regress_leaselock_mallory;
CREATE FUNCTION wrappers.trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leaselock.lease_acquire('trigger', 'w', scope => TG_ARGV[0]);
	RETURN coalesce(NEW, OLD);
END $$;
CREATE TABLE wrappers.fired (n int PRIMARY KEY);
CREATE TRIGGER t BEFORE INSERT ON wrappers.fired FOR EACH ROW EXECUTE FUNCTION wrappers.trigger('team');
GRANT ALL ON wrappers.fired TO regress_leaselock_member;
INSERT INTO wrappers.fired VALUES (1); -- fail
SET ROLE regress_leaselock_member;
INSERT INTO wrappers.fired VALUES (1);
RESET ROLE;
SELECT owner, role FROM leaselock.lease_peek('trigger', 'team');
SET ROLE regress_leaselock_mallory;
CREATE TABLE wrappers.child (n int REFERENCES wrappers.fired ON DELETE CASCADE);
CREATE TRIGGER t BEFORE DELETE ON wrappers.child FOR EACH ROW EXECUTE FUNCTION wrappers.trigger('team');
INSERT INTO wrappers.child VALUES (1);
SET ROLE regress_leaselock_member;
DELETE FROM wrappers.fired; -- fail: the cascade is mallory's
RESET ROLE;
SET ROLE regress_leaselock_super;
DELETE FROM wrappers.fired; -- fail
RESET ROLE;
SELECT leaselock.lease_break(name, fence, scope) FROM leaselock.lease_status WHERE name = 'trigger';

--
-- Index expressions and restricted operations run as the table's owner, whichever
-- role starts them
--

SET ROLE regress_leaselock_mallory;
CREATE TABLE wrappers.rows (n int, how text);
INSERT INTO wrappers.rows SELECT n, 'free' FROM generate_series(1, 3) n;
CREATE FUNCTION wrappers.act() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	how pg_catalog.text := pg_catalog.current_setting('hostile.how', true);
BEGIN
	CASE how
		WHEN 'team' THEN PERFORM leaselock.lease_acquire('expression', 'w', scope => 'team');
		WHEN 'prune' THEN PERFORM leaselock.lease_prune();
		WHEN 'drop' THEN PERFORM leaselock.lease_scope_drop('team');
		WHEN 'public' THEN PERFORM leaselock.try_lock('expression', 'w', '1 h');
		WHEN 'escape' THEN
			-- a call of ours does not end the restriction
			PERFORM leaselock.try_lock('escape', 'w', '1 h');
			CREATE TEMP TABLE escaped (n int);
		WHEN 'role' THEN
			PERFORM leaselock.try_lock('escape', 'w', '1 h');
			RESET ROLE;
		WHEN 'escape after error' THEN
			BEGIN
				PERFORM leaselock.lease_acquire('expression', 'w', scope => 'team');
			EXCEPTION WHEN OTHERS THEN
				NULL;
			END;
			CREATE TEMP TABLE escaped (n int);
		ELSE NULL;
	END CASE;
END $$;
CREATE FUNCTION wrappers.expression(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	PERFORM wrappers.act();
	RETURN n;
END $$;
CREATE INDEX i ON wrappers.rows (wrappers.expression(n));
CREATE MATERIALIZED VIEW wrappers.matview AS SELECT wrappers.expression(n) FROM wrappers.rows;
RESET ROLE;
CREATE PROCEDURE public.try_all(how text) LANGUAGE plpgsql AS $$
DECLARE
	c text;
	result text := '';
BEGIN
	PERFORM set_config('hostile.how', how, true);
	FOREACH c IN ARRAY ARRAY['CREATE INDEX ON wrappers.rows (wrappers.expression(n), n)', 'REINDEX INDEX wrappers.i', 'ANALYZE wrappers.rows', 'REFRESH MATERIALIZED VIEW wrappers.matview', 'CLUSTER wrappers.rows USING i'] LOOP
		BEGIN
			EXECUTE c;
			RAISE EXCEPTION USING ERRCODE = 'OK000', MESSAGE = coalesce((SELECT role::text FROM leaselock.lease_peek('expression')), '');
		EXCEPTION
			WHEN SQLSTATE 'OK000' THEN result := concat_ws(', ', nullif(result, ''), split_part(c, ' ', 1) || ' ok ' || SQLERRM);
			WHEN OTHERS THEN result := concat_ws(', ', nullif(result, ''), split_part(c, ' ', 1) || ' ' || SQLSTATE);
		END;
	END LOOP;
	RAISE NOTICE '%', result;
END $$;
\set VERBOSITY default
SET ROLE regress_leaselock_super;
CALL public.try_all('team');
CALL public.try_all('prune');
CALL public.try_all('drop');
CALL public.try_all('escape');
CALL public.try_all('role');
CALL public.try_all('escape after error');
CALL public.try_all('public');
RESET ROLE;
SELECT count(*) FROM leaselock.lease_status WHERE name IN ('expression', 'escape');
-- a real one, committed: the grant is mallory's
SET hostile.how = 'public';
REFRESH MATERIALIZED VIEW wrappers.matview;
SELECT owner, role FROM leaselock.lease_peek('expression');
SELECT leaselock.release_lock('expression', 'w');
SET ROLE regress_leaselock_mallory;
SELECT leaselock.release_lock('expression', 'w');
RESET ROLE;
RESET hostile.how;

\c :db
DROP DATABASE regress_leaselock_hostile;
DROP ROLE regress_leaselock_owner, regress_leaselock_member, regress_leaselock_team, regress_leaselock_mallory, regress_leaselock_super;
