-- Who sees what: the views, lease_peek, the holder that an answer names, and the NOTICE
-- of a deadlock.  And what the database owner can grant to others.
\set db :DBNAME
\set SHOW_CONTEXT never
CREATE ROLE regress_leaselock_owner;
CREATE ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_ann IN ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_bob IN ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_stranger;
CREATE ROLE regress_leaselock_monitor IN ROLE pg_monitor;
CREATE ROLE regress_leaselock_stats IN ROLE pg_read_all_stats;
CREATE ROLE regress_leaselock_super SUPERUSER;
CREATE DATABASE regress_leaselock_visibility OWNER regress_leaselock_owner;
\c regress_leaselock_visibility
SET ROLE regress_leaselock_owner;
CREATE EXTENSION leaselock;
SELECT leaselock.lease_scope_create('team', 'regress_leaselock_team');
SELECT leaselock.lease_scope_create('team/stranger', 'regress_leaselock_stranger');
RESET ROLE;

-- What a role sees, as a list of scope/name owner.
CREATE FUNCTION public.sees(role text, what text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', 'regress_leaselock_' || role);
	EXECUTE 'SELECT string_agg(concat_ws('' '', scope || ''/'' || name, owner), '', '' ORDER BY scope COLLATE "C", name COLLATE "C", owner COLLATE "C") FROM leaselock.' || what INTO result;
	RETURN coalesce(result, '-');
END $$;
CREATE FUNCTION public.all_see(what text) RETURNS TABLE (role text, sees text) LANGUAGE sql AS $$
	SELECT role, public.sees(role, what) FROM unnest('{ann, stranger, owner, stats, monitor, super}'::text[]) role
$$;

SET ROLE regress_leaselock_ann;
SELECT state FROM leaselock.lease_acquire('job', 'a', '300 s');
SELECT state FROM leaselock.lease_acquire('job', 'a', '300 s', scope => 'team');
SELECT state FROM leaselock.lease_acquire('job', 'b', '300 s', '300 s', 'team');
SELECT leaselock.try_lock('hold', 'a', '1 h', 'team') IS NOT NULL AS hold;
SET ROLE regress_leaselock_bob;
SELECT ticket AS bob FROM leaselock.lease_acquire('job', 'a', '300 s', '300 s', 'team') \gset
SELECT ticket AS bob_ended FROM leaselock.lease_acquire('hold', 'c', '300 s', '300 s', 'team') \gset
SELECT ticket AS bob_open FROM leaselock.lease_acquire('job', 'a', '300 s', '300 s') \gset
SET ROLE regress_leaselock_stranger;
SELECT state FROM leaselock.lease_acquire('job', 'a', '300 s', '300 s');
SELECT state FROM leaselock.lease_acquire('job', 'a', '300 s', scope => 'team/stranger');
-- will lapse, with a waiter
SELECT state FROM leaselock.lease_acquire('free', 'a', '5 s', scope => 'team/stranger');
SELECT state FROM leaselock.lease_acquire('free', 'b', '300 s', '300 s', 'team/stranger');
RESET ROLE;
SET leaselock.clock_offset = '6 s';

--
-- The views
--

SELECT * FROM public.all_see('lease_status');
SELECT * FROM public.all_see('lease_tickets');
SELECT * FROM public.all_see('lease_peek(''job'')');
SELECT * FROM public.all_see('lease_peek(''job'', ''team'')');
SELECT * FROM public.all_see('lease_peek(''free'', ''team/stranger'')');
-- a hidden lock looks like one that does not exist
SET ROLE regress_leaselock_stranger;
SELECT * FROM leaselock.lease_peek('job', 'team');
SELECT * FROM leaselock.lease_peek('never used', 'team');
-- arguments are checked as well
SELECT * FROM leaselock.lease_peek('', 'team'); -- fail
SELECT * FROM leaselock.lease_peek('job', NULL); -- fail
-- everything in a row
SELECT role, fence > 0 AS fence, depth, remaining_ms > 0 AS remaining, lapsed, waiters FROM leaselock.lease_status WHERE scope = 'public';
SELECT owner, role, state, position, depth FROM leaselock.lease_tickets WHERE scope = 'public' ORDER BY position NULLS FIRST;
RESET ROLE;
-- through a view of another role the reader still counts
SET ROLE regress_leaselock_super;
CREATE VIEW public.relayed AS SELECT * FROM leaselock.lease_status;
CREATE VIEW public.barrier WITH (security_barrier) AS SELECT * FROM leaselock.lease_tickets;
GRANT SELECT ON public.relayed, public.barrier TO PUBLIC;
SET ROLE regress_leaselock_stranger;
SELECT scope, name FROM public.relayed ORDER BY scope, name;
SELECT scope, name, position FROM public.barrier ORDER BY scope, name, position;
-- and a leaky condition of the reader's sees no more
CREATE TEMP TABLE seen (what text);
CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN INSERT INTO pg_temp.seen VALUES ($1); RETURN true; END $$;
SELECT count(*) FROM leaselock.lease_status WHERE pg_temp.leak(scope || '/' || name);
SELECT what FROM seen ORDER BY what;
RESET ROLE;
-- joining and leaving a role takes effect at once
GRANT regress_leaselock_team TO regress_leaselock_stranger;
SELECT public.sees('stranger', 'lease_peek(''hold'', ''team'')');
REVOKE regress_leaselock_team FROM regress_leaselock_stranger;
SELECT public.sees('stranger', 'lease_peek(''hold'', ''team'')');
GRANT pg_monitor TO regress_leaselock_stranger;
SELECT public.sees('stranger', 'lease_peek(''hold'', ''team'')');
-- seeing does not mean being allowed to act
SET ROLE regress_leaselock_stranger;
\set VERBOSITY sqlstate
SELECT leaselock.lease_acquire('hold', 'a', scope => 'team'); -- fail
SELECT leaselock.lease_get(:'bob'); -- fail
\set VERBOSITY default
RESET ROLE;
REVOKE pg_monitor FROM regress_leaselock_stranger;
-- a scope whose role has been dropped: superusers and monitors only
CREATE ROLE regress_leaselock_brief;
SELECT leaselock.lease_scope_create('brief', 'regress_leaselock_brief');
SELECT state FROM leaselock.lease_acquire('job', 'a', scope => 'brief');
DROP ROLE regress_leaselock_brief;
SELECT * FROM public.all_see('lease_peek(''job'', ''brief'')');
SELECT leaselock.lease_scope_drop('brief');
SELECT * FROM public.all_see('lease_peek(''job'', ''brief'')');
SELECT leaselock.lease_release_all('a', 'brief');

--
-- The holder that an answer names
--

SET ROLE regress_leaselock_bob;
SELECT state, holder, holder_role FROM leaselock.lease_acquire('job', 'z', scope => 'team');
SELECT state, holder, holder_role, position FROM leaselock.lease_get(:'bob');
SELECT state, holder, holder_role FROM leaselock.lease_release(:'bob_ended');
SELECT state, holder, holder_role FROM leaselock.lease_get(:'bob_open');
RESET ROLE;
-- without access one's own tickets can be looked up, but do not tell
REVOKE regress_leaselock_team FROM regress_leaselock_bob;
SET ROLE regress_leaselock_bob;
SELECT state, holder, holder_role, position FROM leaselock.lease_get(:'bob');
SELECT state, holder, holder_role FROM leaselock.lease_get(:'bob_ended');
SELECT state, holder, holder_role FROM leaselock.lease_release(:'bob_ended');
SELECT state, holder, holder_role FROM leaselock.lease_get(:'bob_open');
RESET ROLE;
-- a monitor is told
GRANT pg_monitor TO regress_leaselock_bob;
SET ROLE regress_leaselock_bob;
SELECT state, holder, holder_role, position FROM leaselock.lease_get(:'bob');
RESET ROLE;
REVOKE pg_monitor FROM regress_leaselock_bob;
SET ROLE regress_leaselock_super;
SELECT state, holder, holder_role FROM leaselock.lease_get(:'bob');
-- nor does the error for a stale fence tell
SET ROLE regress_leaselock_bob;
SELECT leaselock.fence_assert('job', 1, 'team'); -- fail
SELECT leaselock.fence_check('hold', 1, 'team'); -- fail
SELECT leaselock.fence_check('never used', 1, 'team'); -- fail
RESET ROLE;
GRANT regress_leaselock_team TO regress_leaselock_bob;

--
-- The chain of a deadlock, as far as the caller may see it
--

-- stranger > public/x: ann > team/y: bob > public/z: stranger
SET ROLE regress_leaselock_ann;
SELECT state FROM leaselock.lease_acquire('x', 'ann', '300 s');
SET ROLE regress_leaselock_bob;
SELECT state FROM leaselock.lease_acquire('y', 'bob', '300 s', scope => 'team');
SET ROLE regress_leaselock_stranger;
SELECT state FROM leaselock.lease_acquire('z', 'stranger', '300 s');
SET ROLE regress_leaselock_ann;
SELECT state FROM leaselock.lease_acquire('y', 'ann', '300 s', '300 s', 'team');
SET ROLE regress_leaselock_bob;
SELECT state FROM leaselock.lease_acquire('z', 'bob', '300 s', '300 s');
SET ROLE regress_leaselock_stranger;
SELECT state, holder, holder_role FROM leaselock.lease_acquire('x', 'stranger', '300 s', '300 s');
RESET ROLE;
GRANT pg_monitor TO regress_leaselock_stranger;
SET ROLE regress_leaselock_stranger;
SELECT state FROM leaselock.lease_acquire('x', 'stranger', '300 s', '300 s');
RESET ROLE;
REVOKE pg_monitor FROM regress_leaselock_stranger;

--
-- The database owner grants the administrative functions to others
--

CREATE ROLE regress_leaselock_operator;
CREATE ROLE regress_leaselock_deputy;
SET ROLE regress_leaselock_owner;
GRANT EXECUTE ON FUNCTION leaselock.lease_break(text, bigint, text), leaselock.lease_prune(interval, int) TO regress_leaselock_operator;
GRANT EXECUTE ON FUNCTION leaselock.lease_scope_create(text, name), leaselock.lease_scope_drop(text), leaselock.fence_bump()
	TO regress_leaselock_operator WITH GRANT OPTION;
\set VERBOSITY sqlstate
SET ROLE regress_leaselock_operator;
SELECT leaselock.lease_prune(); -- ok
SELECT leaselock.lease_break('job', 1, 'team'); -- ok: an operator acts in any scope
SELECT leaselock.lease_scope_create('operated', 'regress_leaselock_operator');
SELECT leaselock.lease_scope_drop('operated');
SELECT leaselock.fence_bump() > 0 AS bumped;
-- which does not give access
SELECT leaselock.lease_acquire('job', 'a', scope => 'team'); -- fail
SELECT count(*) FROM leaselock.lease_status WHERE scope = 'team';
GRANT EXECUTE ON FUNCTION leaselock.fence_bump() TO regress_leaselock_deputy; -- ok
GRANT EXECUTE ON FUNCTION leaselock.lease_prune(interval, int) TO regress_leaselock_deputy; -- no option for it: nothing is granted
SELECT p, has_function_privilege('regress_leaselock_deputy', 'leaselock.' || p, 'EXECUTE') AS may
FROM unnest('{"fence_bump()", "lease_prune(interval, int)", "lease_break(text, bigint, text)"}'::text[]) p;
SET ROLE regress_leaselock_deputy;
SELECT leaselock.fence_bump() > 0 AS bumped;
SELECT leaselock.lease_prune(); -- fail
SET ROLE regress_leaselock_owner;
REVOKE EXECUTE ON FUNCTION leaselock.fence_bump() FROM regress_leaselock_operator CASCADE;
REVOKE EXECUTE ON FUNCTION leaselock.lease_break(text, bigint, text) FROM regress_leaselock_operator;
SET ROLE regress_leaselock_deputy;
SELECT leaselock.fence_bump(); -- fail
SET ROLE regress_leaselock_operator;
SELECT leaselock.lease_break('job', 1, 'team'); -- fail
SELECT leaselock.lease_scope_drop('operated'); -- ok
\set VERBOSITY default
RESET ROLE;
-- granted to everybody, if the owner wishes
SET ROLE regress_leaselock_owner;
GRANT EXECUTE ON FUNCTION leaselock.lease_prune(interval, int) TO PUBLIC;
SET ROLE regress_leaselock_stranger;
SELECT leaselock.lease_prune();
RESET ROLE;

\c :db
DROP DATABASE regress_leaselock_visibility;
DROP ROLE regress_leaselock_owner, regress_leaselock_ann, regress_leaselock_bob, regress_leaselock_team,
	regress_leaselock_stranger, regress_leaselock_monitor, regress_leaselock_stats, regress_leaselock_super,
	regress_leaselock_operator, regress_leaselock_deputy;
