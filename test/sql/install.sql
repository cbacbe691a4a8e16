-- What CREATE EXTENSION creates, where, and who may use it.

-- The script creates the schema, so a planted one is not adopted.  (From 18 on the
-- error has a context, which is not compared.)
\set SHOW_CONTEXT never
CREATE SCHEMA leaselock;
CREATE EXTENSION leaselock; -- fail: the schema is there already
\echo :SQLSTATE
DROP SCHEMA leaselock;
\set SHOW_CONTEXT errors

CREATE EXTENSION leaselock; -- ok

-- A database owner may install it, nobody may move it.  (The schema of the control
-- file is that of the extension itself, not of its objects.)
SELECT version = default_version AS newest, superuser, trusted, relocatable, schema, requires
FROM pg_available_extension_versions v JOIN pg_available_extensions USING (name)
WHERE name = 'leaselock' AND v.installed;
ALTER EXTENSION leaselock SET SCHEMA public; -- fail: everything lives in the schema leaselock
\echo :SQLSTATE

-- Everything is in the schema leaselock, and the schema and all that is in it belong
-- to the extension.
SELECT classid::regclass AS kind, count(*) > 0 AS some,
	count(*) FILTER (WHERE (pg_identify_object(classid, objid, 0)).schema IS DISTINCT FROM 'leaselock'
		AND classid <> 'pg_namespace'::regclass) AS elsewhere
FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaselock')
	AND classid <> 'pg_type'::regclass
GROUP BY classid ORDER BY classid::regclass::text COLLATE "C";
SELECT count(*) AS strays
FROM (
	SELECT 'pg_class'::regclass AS classid, oid FROM pg_class
	WHERE relnamespace = 'leaselock'::regnamespace AND relkind NOT IN ('i', 't', 'c')
	UNION ALL
	SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace = 'leaselock'::regnamespace
	UNION ALL
	SELECT 'pg_namespace'::regclass, 'leaselock'::regnamespace
) o
WHERE NOT EXISTS (SELECT FROM pg_depend d
	WHERE d.classid = o.classid AND d.objid = o.oid AND d.deptype = 'e'
		AND d.refclassid = 'pg_extension'::regclass);

-- The interface.
\pset format unaligned
SELECT CASE prokind WHEN 'p' THEN 'procedure ' ELSE '' END || proname
	|| '(' || pg_get_function_arguments(oid) || ')'
	|| coalesce(E'\n\t-> ' || pg_get_function_result(oid), '') AS function
FROM pg_proc WHERE pronamespace = 'leaselock'::regnamespace
ORDER BY proname COLLATE "C", pronargs;
\pset format aligned

-- Every function has a description.  None is SECURITY DEFINER or STRICT, because a
-- NULL is an error and never an answer; each may write, so each is VOLATILE and
-- PARALLEL UNSAFE.
SELECT proname FROM pg_proc
WHERE pronamespace = 'leaselock'::regnamespace
	AND obj_description(oid, 'pg_proc') IS NULL;
SELECT prosecdef AS definer, proisstrict AS strict, provolatile AS volatility,
	proparallel AS parallel, proconfig AS settings, lanname AS language
FROM pg_proc p JOIN pg_language l ON l.oid = prolang
WHERE pronamespace = 'leaselock'::regnamespace
GROUP BY 1, 2, 3, 4, 5, 6;

-- The relations: everybody can read the views, nobody the tables.
SELECT attname AS column, format_type(atttypid, atttypmod) AS type
FROM pg_attribute
WHERE attrelid = 'leaselock.lease_ticket'::regclass AND attnum > 0 ORDER BY attnum;
SELECT attname AS column, format_type(atttypid, atttypmod) AS type
FROM pg_attribute
WHERE attrelid = 'leaselock.lease_status'::regclass AND attnum > 0 ORDER BY attnum;
SELECT attname AS column, format_type(atttypid, atttypmod) AS type
FROM pg_attribute
WHERE attrelid = 'leaselock.lease_tickets'::regclass AND attnum > 0 ORDER BY attnum;
SELECT attname AS column, format_type(atttypid, atttypmod) AS type
FROM pg_attribute
WHERE attrelid = 'leaselock.lease_scopes'::regclass AND attnum > 0 ORDER BY attnum;
-- none without a description: relations, and the columns of all but the tables
SELECT relname FROM pg_class
WHERE relnamespace = 'leaselock'::regnamespace AND relkind IN ('r', 'v')
	AND obj_description(oid, 'pg_class') IS NULL;
SELECT attrelid::regclass, attname FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
WHERE relnamespace = 'leaselock'::regnamespace AND relkind IN ('v', 'c') AND attnum > 0
	AND col_description(attrelid, attnum) IS NULL;
-- internal functions are marked as such in their names and descriptions
SELECT count(*) FROM pg_proc
WHERE pronamespace = 'leaselock'::regnamespace
	AND (proname LIKE 'internal\_%') IS DISTINCT FROM (obj_description(oid, 'pg_proc') LIKE 'internal: %');

CREATE ROLE regress_leaselock_stranger;
SELECT has_schema_privilege('public', 'leaselock', 'USAGE') AS may_use,
	has_schema_privilege('public', 'leaselock', 'CREATE') AS may_create;
SELECT relkind, count(*) > 0 AS some,
	bool_or(has_table_privilege('regress_leaselock_stranger', oid, 'SELECT')) AS may_read,
	bool_or(has_table_privilege('regress_leaselock_stranger', oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
		OR has_any_column_privilege('regress_leaselock_stranger', oid, 'INSERT, UPDATE, REFERENCES')) AS may_write
FROM pg_class
WHERE relnamespace = 'leaselock'::regnamespace AND relkind NOT IN ('i', 't', 'c')
GROUP BY relkind ORDER BY relkind;

-- A role that was granted nothing can work.
SET ROLE regress_leaselock_stranger;
SELECT state FROM leaselock.lease_acquire('install', 'worker'); -- ok
SELECT name, owner FROM leaselock.lease_status WHERE name = 'install'; -- ok
SELECT name, owner FROM leaselock.lease_tickets WHERE name = 'install'; -- ok
SELECT name, owner FROM leaselock.lease_peek('install'); -- ok
SELECT count(*) FROM leaselock.lease_scopes; -- ok
SELECT leaselock.lease_release_all('worker'); -- ok
RESET ROLE;
DROP ROLE regress_leaselock_stranger;
