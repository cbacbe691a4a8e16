-- Registered scopes: what lease_scope_create and lease_scope_drop do to holders and
-- waiters.  Who may call what is in access.sql.
LOAD 'leaselock';
\set SHOW_CONTEXT never
CREATE ROLE regress_leaselock_red;
CREATE ROLE regress_leaselock_blue;
CREATE ROLE regress_leaselock_ann IN ROLE regress_leaselock_red;
CREATE ROLE regress_leaselock_bob IN ROLE regress_leaselock_blue;
-- What a call answers to a role, or its SQLSTATE; rolled back in either case.
CREATE FUNCTION pg_temp.may(role text, scope text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', 'regress_leaselock_' || role);
	result := (leaselock.lease_acquire('may', 'm', scope => may.scope)).state;
	RAISE EXCEPTION USING ERRCODE = 'OK000';
EXCEPTION
	WHEN SQLSTATE 'OK000' THEN RETURN result;
	WHEN OTHERS THEN RETURN SQLSTATE;
END $$;
CREATE FUNCTION pg_temp.scopes() RETURNS TABLE (scope text, role name) LANGUAGE sql AS
	'SELECT scope, role FROM leaselock.scopes ORDER BY scope';

--
-- Exactly that text
--

SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');
SELECT replace(s, E'\u200b', '\u200b') AS scope, pg_temp.may('ann', s) AS ann, pg_temp.may('red', s) AS red, pg_temp.may('bob', s) AS bob
FROM unnest(ARRAY['scopes', 'scope', 'scopes/a', 'scopes/', 'Scopes', 'scopes.', E'scopes\u200b', 'public']) s;
-- a scope may have any form
SELECT leaselock.lease_scope_create(s, 'regress_leaselock_blue')
FROM unnest(ARRAY['scopes/a', 'scopes%', 'scopes ''"\', 'sçopes', repeat('s', 255)]) s;
SELECT left(s, 10) AS scope, pg_temp.may('ann', s) AS ann, pg_temp.may('bob', s) AS bob
FROM unnest(ARRAY['scopes', 'scopes/a', 'scopes%', 'scopes ''"\', 'sçopes', 'scopes/b', repeat('s', 255), repeat('s', 254)]) s;
SELECT leaselock.lease_scope_drop(s)
FROM unnest(ARRAY['scopes/a', 'scopes%', 'scopes ''"\', 'sçopes', repeat('s', 255)]) s;
SELECT * FROM pg_temp.scopes();

--
-- Create again: the same role changes nothing, another role moves the scope
--

SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');
SELECT * FROM pg_temp.scopes();
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_blue');
SELECT * FROM pg_temp.scopes();
SELECT pg_temp.may('ann', 'scopes') AS ann, pg_temp.may('bob', 'scopes') AS bob;
-- drop returns whether there was anything to drop
SELECT leaselock.lease_scope_drop('scopes');
SELECT leaselock.lease_scope_drop('scopes');
SELECT leaselock.lease_scope_drop('scopes never created');
SELECT pg_temp.may('ann', 'scopes') AS ann, pg_temp.may('bob', 'scopes') AS bob;
SELECT * FROM pg_temp.scopes();
-- effective in its transaction, and rolled back with it
BEGIN;
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');
SELECT pg_temp.may('ann', 'scopes') AS ann, pg_temp.may('bob', 'scopes') AS bob;
SAVEPOINT s;
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_blue');
SELECT pg_temp.may('ann', 'scopes') AS ann, pg_temp.may('bob', 'scopes') AS bob;
ROLLBACK TO SAVEPOINT s;
SELECT pg_temp.may('ann', 'scopes') AS ann, pg_temp.may('bob', 'scopes') AS bob;
ROLLBACK;
SELECT * FROM pg_temp.scopes();
-- the default scope can be registered as well
SELECT leaselock.lease_scope_create('public', 'regress_leaselock_red');
SELECT pg_temp.may('ann', 'public') AS ann, pg_temp.may('bob', 'public') AS bob;
SELECT leaselock.lease_scope_drop('public');

--
-- Arguments
--

SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_nobody'); -- fail
SELECT leaselock.lease_scope_create('scopes', 'public'); -- fail: no role
SELECT leaselock.lease_scope_create('scopes', ''); -- fail
SELECT leaselock.lease_scope_create(NULL, 'regress_leaselock_red'); -- fail
SELECT leaselock.lease_scope_create('scopes', NULL); -- fail
SELECT leaselock.lease_scope_create('', 'regress_leaselock_red'); -- fail
SELECT leaselock.lease_scope_create(' scopes', 'regress_leaselock_red'); -- fail
SELECT leaselock.lease_scope_create(E'scopes\n', 'regress_leaselock_red'); -- fail
\set VERBOSITY sqlstate
SELECT leaselock.lease_scope_create(repeat('s', 256), 'regress_leaselock_red'); -- fail
SELECT leaselock.lease_scope_create('', NULL); -- fail: in the order of the arguments
SELECT leaselock.lease_scope_create('', 'regress_leaselock_nobody'); -- fail: values before roles
SELECT leaselock.lease_scope_drop(NULL); -- fail
SELECT leaselock.lease_scope_drop(''); -- fail
SELECT leaselock.lease_scope_drop(repeat('s', 256)); -- fail
BEGIN READ ONLY;
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red'); -- fail
ROLLBACK;
BEGIN READ ONLY;
SELECT leaselock.lease_scope_drop('scopes'); -- fail
ROLLBACK;
\set VERBOSITY default
SELECT * FROM pg_temp.scopes();

--
-- Holders and waiters: members keep, others lose
--

SET ROLE regress_leaselock_ann;
SELECT ticket AS ann_held, fence AS ann_fence FROM leaselock.lease_acquire('ann', 'w', '300 s', scope => 'scopes') \gset
SELECT leaselock.try_lock('ann hold', 'w', '1 h', 'scopes') AS ann_hold \gset
SET ROLE regress_leaselock_bob;
SELECT ticket AS bob_held, fence AS bob_fence FROM leaselock.lease_acquire('bob', 'w', '300 s', scope => 'scopes') \gset
SELECT ticket AS bob_again FROM leaselock.lease_acquire('bob', 'w', '100 s', scope => 'scopes') \gset
SELECT ticket AS bob_short FROM leaselock.lease_acquire('bob', 'w', '5 s', scope => 'scopes') \gset
SELECT leaselock.try_lock('bob hold', 'w', '1 h', 'scopes') AS bob_hold \gset
SELECT leaselock.try_lock('bob lapsed', 'w', '1 s', 'scopes') AS bob_lapsed \gset
SELECT ticket AS bob_open FROM leaselock.lease_acquire('bob', 'w', '300 s', scope => 'scopes/bob') \gset
SELECT ticket AS bob_wait FROM leaselock.lease_acquire('ann', 'w', '300 s', '300 s', 'scopes') \gset
SELECT ticket AS bob_unseen FROM leaselock.lease_acquire('ann hold', 'w', '300 s', '300 s', 'scopes') \gset
SET ROLE regress_leaselock_ann;
-- behind a waiter and behind a holder that will lose access
SELECT ticket AS ann_wait FROM leaselock.lease_acquire('bob', 'x', '300 s', '300 s', 'scopes') \gset
SELECT ticket AS ann_second FROM leaselock.lease_acquire('ann', 'x2', '300 s', '300 s', 'scopes') \gset
SELECT position FROM leaselock.lease_get(:'ann_second');
RESET ROLE;
SET leaselock.clock_offset = '8 s';
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');

SELECT name, owner, role, depth, lapsed, waiters FROM leaselock.lease_status WHERE scope LIKE 'scopes%' ORDER BY scope, name;
SELECT name, owner, role, state, position FROM leaselock.lease_tickets WHERE scope LIKE 'scopes%' ORDER BY scope, name, state, position;
SET ROLE regress_leaselock_bob;
-- ok: broken; a ticket that had lapsed before is expired; another scope is untouched
SELECT state, depth, holder FROM leaselock.lease_get(:'bob_held');
SELECT state, depth FROM leaselock.lease_get(:'bob_again');
SELECT state, depth FROM leaselock.lease_get(:'bob_short');
SELECT state, depth FROM leaselock.lease_get(:'bob_open');
SELECT state, position, wait_until, holder FROM leaselock.lease_get(:'bob_wait');
SELECT state FROM leaselock.lease_release(:'bob_held');
SELECT leaselock.release_lock('bob hold', 'w', 'scopes');
SELECT leaselock.release_lock('bob lapsed', 'w', 'scopes');
\set VERBOSITY sqlstate
SELECT leaselock.renew_lock('bob hold', 'w', '1 h', 'scopes'); -- fail
SELECT leaselock.lease_renew(:'bob_held'); -- fail
SELECT leaselock.fence_check('bob', :bob_fence, 'scopes'); -- fail
SELECT leaselock.fence_check('bob hold', :bob_hold, 'scopes', true); -- fail
\set VERBOSITY default
SET ROLE regress_leaselock_ann;
SELECT state, depth FROM leaselock.lease_get(:'ann_held');
SELECT state, depth, fence > :bob_fence AS greater FROM leaselock.lease_get(:'ann_wait'); -- promoted
SELECT state, position FROM leaselock.lease_get(:'ann_second');
SELECT leaselock.renew_lock('ann hold', 'w', '1 h', 'scopes');
SELECT leaselock.fence_check('ann', :ann_fence, 'scopes') AS ann, leaselock.fence_check('ann hold', :ann_hold, 'scopes') AS ann_hold,
	leaselock.fence_check('bob', :bob_fence, 'scopes') AS bob, leaselock.fence_check('bob hold', :bob_hold, 'scopes', true) AS bob_hold,
	leaselock.fence_check('bob lapsed', :bob_lapsed, 'scopes', true) AS bob_lapsed;
-- ok: fences go on growing
SELECT leaselock.try_lock('bob hold', 'w', '1 min', 'scopes') > :bob_hold AS greater, leaselock.try_lock('bob lapsed', 'w', '1 min', 'scopes') > :bob_lapsed AS greater;
RESET ROLE;

-- ok: a role that lost access blocks nobody
SET ROLE regress_leaselock_ann;
SELECT state FROM leaselock.lease_release(:'ann_held');
SELECT state, holder FROM leaselock.lease_get(:'ann_second');
RESET ROLE;

-- opened again: broken and cancelled tickets stay so, looked up in between or not
SELECT leaselock.lease_scope_drop('scopes');
SET ROLE regress_leaselock_bob;
SELECT state FROM leaselock.lease_get(:'bob_wait');
SELECT state FROM leaselock.lease_get(:'bob_unseen');
SELECT state FROM leaselock.lease_get(:'bob_held');
SELECT state FROM leaselock.lease_acquire('bob lapsed', 'w', scope => 'scopes');
SELECT state FROM leaselock.lease_acquire('ann hold', 'w', '300 s', '300 s', 'scopes');
RESET ROLE;
SELECT name, owner, role, state, position FROM leaselock.lease_tickets WHERE scope LIKE 'scopes%' ORDER BY scope, name, state, position;

-- registered to the other role: now ann loses
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_blue');
SELECT name, owner, role, depth, lapsed, waiters FROM leaselock.lease_status WHERE scope LIKE 'scopes%' ORDER BY scope, name;
SET ROLE regress_leaselock_ann;
SELECT state FROM leaselock.lease_get(:'ann_wait');
SELECT state FROM leaselock.lease_get(:'ann_second');
SELECT leaselock.release_lock('ann hold', 'w', 'scopes');
RESET ROLE;

-- a fence that was checked before fails its transaction's commit
SET ROLE regress_leaselock_bob;
SELECT leaselock.try_lock('fenced', 'w', '1 h', 'scopes') AS fence \gset
RESET ROLE;
BEGIN;
SELECT leaselock.fence_check('fenced', :fence, 'scopes');
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');
SELECT leaselock.fence_check('fenced', :fence, 'scopes');
COMMIT;
SELECT role FROM leaselock.lease_peek('fenced', 'scopes');
-- rolled back: nothing is broken
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_blue');
SET ROLE regress_leaselock_bob;
SELECT ticket AS t, fence FROM leaselock.lease_acquire('undone', 'w', '300 s', scope => 'scopes') \gset
RESET ROLE;
BEGIN;
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');
SELECT state FROM leaselock.lease_get(:'t');
ROLLBACK;
SET ROLE regress_leaselock_bob;
SELECT state FROM leaselock.lease_renew(:'t');
RESET ROLE;

--
-- Superusers use every scope, and their grants stay
--

SELECT ticket AS super FROM leaselock.lease_acquire('super', 'w', '300 s', scope => 'scopes') \gset
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');
SELECT state FROM leaselock.lease_renew(:'super');
SELECT state FROM leaselock.lease_release(:'super');

--
-- The role renamed or dropped afterwards: the scope is not open
--

CREATE ROLE regress_leaselock_green;
CREATE ROLE regress_leaselock_gil IN ROLE regress_leaselock_green;
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_green');
SET ROLE regress_leaselock_gil;
SELECT ticket AS gil FROM leaselock.lease_acquire('gil', 'w', '300 s', scope => 'scopes') \gset
RESET ROLE;
-- renamed: its members keep the scope
ALTER ROLE regress_leaselock_green RENAME TO regress_leaselock_teal;
SELECT pg_temp.may('gil', 'scopes') AS gil, pg_temp.may('teal', 'scopes') AS teal, pg_temp.may('ann', 'scopes') AS ann;
SET ROLE regress_leaselock_gil;
SELECT state FROM leaselock.lease_get(:'gil');
RESET ROLE;
-- a new role of the old name does not get it
CREATE ROLE regress_leaselock_green;
SELECT pg_temp.may('gil', 'scopes') AS gil, pg_temp.may('green', 'scopes') AS green;
DROP ROLE regress_leaselock_green;
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_teal');
SELECT pg_temp.may('gil', 'scopes') AS gil, pg_temp.may('teal', 'scopes') AS teal, pg_temp.may('ann', 'scopes') AS ann;
-- dropped: only superusers may use it, until it is registered anew or dropped
DROP ROLE regress_leaselock_teal;
SELECT pg_temp.may('gil', 'scopes') AS gil, pg_temp.may('ann', 'scopes') AS ann,
	(SELECT state FROM leaselock.lease_acquire('super', 'w', scope => 'scopes')) AS super;
SET ROLE regress_leaselock_gil;
SELECT state FROM leaselock.lease_get(:'gil');
SELECT state FROM leaselock.lease_release(:'gil');
SELECT count(*) FROM leaselock.lease_status WHERE scope = 'scopes';
RESET ROLE;
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');
SELECT pg_temp.may('gil', 'scopes') AS gil, pg_temp.may('ann', 'scopes') AS ann;
SELECT leaselock.lease_scope_drop('scopes');

-- a dropped holder is not a member of anything
SET ROLE regress_leaselock_gil;
SELECT state FROM leaselock.lease_acquire('gone', 'w', '300 s', scope => 'scopes');
RESET ROLE;
DROP ROLE regress_leaselock_gil;
SELECT owner, lapsed FROM leaselock.lease_peek('gone', 'scopes');
SELECT leaselock.lease_scope_create('scopes', 'regress_leaselock_red');
SELECT owner, lapsed FROM leaselock.lease_peek('gone', 'scopes');
SELECT leaselock.lease_scope_drop('scopes');

-- clean up
DO $$
DECLARE
	s record;
BEGIN
	LOOP
		SELECT * INTO s FROM leaselock.lease_status WHERE scope LIKE 'scopes%' AND fence IS NOT NULL;
		EXIT WHEN NOT FOUND;
		ASSERT leaselock.lease_break(s.name, s.fence, s.scope);
	END LOOP;
END $$;
SELECT count(*) FROM leaselock.lease_status WHERE scope LIKE 'scopes%';
SELECT * FROM pg_temp.scopes();
DROP ROLE regress_leaselock_ann, regress_leaselock_bob, regress_leaselock_red, regress_leaselock_blue;
