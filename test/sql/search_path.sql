-- Nothing that a caller puts into search_path or pg_temp changes what the functions do:
-- no operator, function, type or table of its own.
\set SHOW_CONTEXT never

-- Every call, with what it must answer.  The procedure itself schema-qualifies all
-- names, so that it means the same under any path.
CREATE PROCEDURE public.all_calls(lock pg_catalog.text) LANGUAGE plpgsql AS $$
DECLARE
	a leaselock.lease_ticket;
	b leaselock.lease_ticket;
	s pg_catalog.record;
	f pg_catalog.int8;
	id pg_catalog.uuid := pg_catalog.gen_random_uuid();
BEGIN
	a := leaselock.lease_acquire(lock, 'w', request_id => id);
	ASSERT a.state OPERATOR(pg_catalog.=) 'held' AND a.depth OPERATOR(pg_catalog.=) 1
		AND a.remaining_ms OPERATOR(pg_catalog.=) 60000, 'acquire';
	b := leaselock.lease_acquire(lock, 'w', request_id => id);
	ASSERT b.ticket OPERATOR(pg_catalog.=) a.ticket AND b.depth OPERATOR(pg_catalog.=) 1, 'retry';
	b := leaselock.lease_acquire(lock, 'other');
	ASSERT b.state OPERATOR(pg_catalog.=) 'contended' AND b.holder OPERATOR(pg_catalog.=) 'w'
		AND b.holder_role OPERATOR(pg_catalog.=) current_user, 'contended';
	b := leaselock.lease_acquire(lock, 'w', '5 s');
	ASSERT b.depth OPERATOR(pg_catalog.=) 2 AND b.fence OPERATOR(pg_catalog.=) a.fence, 're-entrant';
	b := leaselock.lease_release(b.ticket);
	ASSERT b.state OPERATOR(pg_catalog.=) 'released', 'release';
	b := leaselock.lease_renew(a.ticket, '120 s');
	ASSERT b.state OPERATOR(pg_catalog.=) 'held' AND b.remaining_ms OPERATOR(pg_catalog.=) 120000, 'renew';
	b := leaselock.lease_get(a.ticket);
	ASSERT b.depth OPERATOR(pg_catalog.=) 1, 'get';
	b := leaselock.lease_get('00000000-0000-0000-0000-0000000000ff');
	ASSERT b.state OPERATOR(pg_catalog.=) 'gone', 'gone';
	ASSERT leaselock.try_lock(lock, 'w', '1 day') OPERATOR(pg_catalog.=) a.fence, 'try_lock';
	ASSERT leaselock.try_lock(lock, 'other', '1 day') IS NULL, 'try_lock of another';
	ASSERT leaselock.renew_lock(lock, 'w', '1 day'), 'renew_lock';
	ASSERT leaselock.fence_check(lock, a.fence) AND NOT leaselock.fence_check(lock, 1), 'fence_check';
	PERFORM leaselock.fence_assert(lock, a.fence);
	SELECT * INTO STRICT s FROM leaselock.lease_peek(lock);
	ASSERT s.owner OPERATOR(pg_catalog.=) 'w' AND s.fence OPERATOR(pg_catalog.=) a.fence AND NOT s.lapsed, 'lease_peek';
	SELECT * INTO STRICT s FROM leaselock.lease_status l WHERE l.name OPERATOR(pg_catalog.=) lock;
	ASSERT s.owner OPERATOR(pg_catalog.=) 'w' AND s.fence OPERATOR(pg_catalog.=) a.fence AND NOT s.lapsed, 'lease_status';
	SELECT * INTO STRICT s FROM leaselock.lease_tickets l WHERE l.name OPERATOR(pg_catalog.=) lock;
	ASSERT s.owner OPERATOR(pg_catalog.=) 'w' AND s.ticket OPERATOR(pg_catalog.=) a.ticket, 'lease_tickets';
	ASSERT leaselock.lease_release_all('w') OPERATOR(pg_catalog.=) 1, 'lease_release_all';
	ASSERT leaselock.release_lock(lock, 'w') AND NOT leaselock.release_lock(lock, 'w'), 'release_lock';
	f := leaselock.try_lock(lock, 'other', '1 microsecond');
	ASSERT f OPERATOR(pg_catalog.>) a.fence, 'the next grant';
	b := leaselock.lease_acquire(lock, 'third');
	ASSERT b.state OPERATOR(pg_catalog.=) 'held' AND b.fence OPERATOR(pg_catalog.>) f, 'after a lapse';
	b := leaselock.lease_release(b.ticket);
	COMMIT; -- which verifies the checks
	RAISE NOTICE 'all as it should be';
END $$;

-- ok: each in a new session, so that nothing has been looked up before
SET search_path = '';
CALL public.all_calls('search_path.empty');

-- Operators and functions of the same names and arguments as those of the
-- server, which raise an error whoever calls them.
\c
SET client_min_messages = warning;
CREATE SCHEMA hostile;
DO $$
DECLARE
	types oid[] := '{bool, char, name, int8, int2, int4, text, oid, tid, xid, xid8, float8, numeric, varchar, bpchar,
		timestamptz, timestamp, interval, uuid, regclass, bytea}'::regtype[]::oid[];
	args text;
	o record;
	nr int := 0;
BEGIN
	FOR o IN SELECT oprname, oprleft, oprright, oprresult::regtype AS result FROM pg_operator
		WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprright = ANY (types) AND (oprleft = 0 OR oprleft = ANY (types))
	LOOP
		nr := nr + 1;
		args := concat_ws(', ', nullif(o.oprleft, 0)::regtype, o.oprright::regtype);
		EXECUTE format('CREATE FUNCTION hostile.operator_%s(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION %L; END $f$',
			nr, args, o.result, 'hostile operator');
		EXECUTE format('CREATE OPERATOR hostile.%s (%sRIGHTARG = %s, FUNCTION = hostile.operator_%s)', o.oprname,
			'LEFTARG = ' || nullif(o.oprleft, 0)::regtype || ', ', o.oprright::regtype, nr);
	END LOOP;
	ASSERT nr > 200, 'operators';
	nr := 0;
	FOR o IN SELECT proname, pg_get_function_identity_arguments(p.oid) AS args, prorettype::regtype AS result
		FROM pg_proc p JOIN pg_type t ON t.oid = prorettype
		WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind IN ('f', 'a') AND typtype <> 'p' AND NOT proretset
			AND proargtypes::oid[] <@ types AND proallargtypes IS NULL AND provariadic = 0
			AND pg_get_function_identity_arguments(p.oid) NOT LIKE '%ORDER BY%'
	LOOP
		nr := nr + 1;
		EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION %L; END $f$',
			o.proname, o.args, o.result, 'hostile function');
	END LOOP;
	ASSERT nr > 500, 'functions';
END $$;
-- Tables and types of the names that the extension and the catalog use.
CREATE PROCEDURE public.plant(schema text) LANGUAGE plpgsql AS $$
DECLARE
	n text;
BEGIN
	FOR n IN SELECT relname FROM pg_class WHERE relnamespace = 'leaselock'::regnamespace AND relkind IN ('r', 'v', 'c')
	LOOP
		EXECUTE format('CREATE TABLE %s.%I (LIKE leaselock.%2$I)', schema, n);
	END LOOP;
	FOREACH n IN ARRAY ARRAY['pg_class', 'pg_roles', 'pg_authid', 'pg_auth_members', 'pg_extension', 'pg_namespace']
	LOOP
		EXECUTE format('CREATE TABLE %s.%I (nothing int4)', schema, n);
	END LOOP;
	FOREACH n IN ARRAY ARRAY['bool', 'int8', 'int4', 'text', 'oid', 'tid', 'xid8', 'timestamptz', 'interval', 'uuid', 'regclass']
	LOOP
		EXECUTE format('CREATE DOMAIN %s.%I AS pg_catalog.bit CHECK (false)', schema, n);
	END LOOP;
END $$;
CALL public.plant('hostile');
RESET client_min_messages;

-- They can be called.
SET search_path = hostile, pg_catalog, leaselock;
SELECT 1 = 1; -- fail: hostile
SELECT now(); -- fail: hostile
SELECT 'a'::text; -- fail: hostile

-- ok: operators, functions, types, tables first in the path
\c
SET search_path = hostile, pg_catalog, leaselock;
CALL public.all_calls('search_path.hostile');

-- ok: tables and types in pg_temp, which is searched first if the path does not
-- say otherwise
\c
CALL public.plant('pg_temp');
SELECT 'a'::text; -- fail: hostile
CALL public.all_calls('search_path.temporary');
SET search_path = pg_temp, hostile, pg_catalog, leaselock;
CALL public.all_calls('search_path.both');
-- ok: the path changed between calls
SET search_path = '';
CALL public.all_calls('search_path.empty');
SET search_path = hostile, pg_temp;
CALL public.all_calls('search_path.hostile');
-- ok: a check verified under such a path
BEGIN;
SELECT leaselock.try_lock('search_path', 'w', '60 s') AS fence \gset
SELECT leaselock.fence_check('search_path', :fence);
COMMIT;
SELECT leaselock.release_lock('search_path', 'w');

-- ok: none of them has been called
\c
SET client_min_messages = warning;
SELECT (SELECT count(*) FROM hostile.locks) AS locks, (SELECT count(*) FROM hostile.tickets) AS tickets;
DROP SCHEMA hostile CASCADE;
DROP PROCEDURE public.all_calls, public.plant;
RESET client_min_messages;
SELECT count(*) FROM leaselock.lease_status WHERE name LIKE 'search_path%';
