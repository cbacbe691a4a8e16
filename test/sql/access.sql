-- Who may call what: every role against every function and view, and what is
-- left to a role that has lost access.  In a database of its own, owned by a role
-- that is not a superuser.
\set db :DBNAME
\set SHOW_CONTEXT never
CREATE ROLE regress_leaselock_super SUPERUSER;
CREATE ROLE regress_leaselock_owner;
CREATE ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_member IN ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_twin IN ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_ex IN ROLE regress_leaselock_team;
CREATE ROLE regress_leaselock_stranger;
CREATE DATABASE regress_leaselock_access OWNER regress_leaselock_owner;
\c regress_leaselock_access
SET ROLE regress_leaselock_owner;
CREATE EXTENSION leaselock;
SELECT leaselock.lease_scope_create('team', 'regress_leaselock_team');
RESET ROLE;
-- keeps incremental pruning out when the clock is moved forward
LOAD 'leaselock';
SET leaselock.ticket_retention = '20 d';

-- What the calls below name: tickets and fences, by a name.
CREATE TABLE public.given (key text PRIMARY KEY, value text);
GRANT ALL ON public.given TO PUBLIC;
CREATE FUNCTION public.acquire(key text, name text, owner text, wait interval DEFAULT '0 s', scope text DEFAULT 'team')
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	a leaselock.lease_ticket := leaselock.lease_acquire(name, owner, '300 s', wait, scope, md5(acquire.key)::uuid);
BEGIN
	INSERT INTO public.given VALUES (key, a.ticket), (key || '_fence', a.fence), (key || '_id', a.request_id);
	RETURN a.state;
END $$;

-- What a call answers to a role, or its SQLSTATE; rolled back in either case.  In
-- the call, {key} stands for the value passed.
CREATE FUNCTION public.probe(role text, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
	g record;
BEGIN
	FOR g IN SELECT * FROM public.given WHERE value IS NOT NULL LOOP
		call := replace(call, '{' || g.key || '}', g.value);
	END LOOP;
	BEGIN
		EXECUTE format('SET LOCAL ROLE %I', 'regress_leaselock_' || role);
		EXECUTE call INTO result;
		RAISE EXCEPTION USING ERRCODE = 'OK000';
	EXCEPTION
		WHEN SQLSTATE 'OK000' THEN RETURN coalesce(result, '-');
		WHEN OTHERS THEN RETURN SQLSTATE;
	END;
END $$;
-- Six columns of it.
CREATE FUNCTION public.matrix(calls text[]) RETURNS TABLE (call text, superuser text, db_owner text, member text, same_label text, ex_member text, stranger text)
LANGUAGE sql AS $$
	SELECT c, probe('super', q), probe('owner', q), probe('member', q), probe('twin', q), probe('ex', q), probe('stranger', q)
	FROM unnest(calls) WITH ORDINALITY u (c, nr), LATERAL (VALUES (CASE WHEN c ~ '^(SELECT|INSERT|UPDATE|DELETE)' THEN c
		WHEN c ~ '^(lease_acquire|lease_get|lease_renew|lease_release)\(' THEN 'SELECT state FROM leaselock.' || c
		WHEN c ~ '^(try_lock|fence_bump)' THEN 'SELECT CASE WHEN f > 0 THEN ''fence'' END FROM leaselock.' || c || ' f'
		ELSE 'SELECT leaselock.' || c END)) AS v (q)
	ORDER BY nr
$$;

-- Held and waited for: in the scope by a member with the owner label "w" (as
-- everywhere here) and by a role that will lose access; outside by the member.
SET ROLE regress_leaselock_ex;
SELECT public.acquire('ex', 'ex', 'w');
SELECT leaselock.try_lock('ex hold', 'w', '1 hour', 'team') IS NOT NULL AS hold;
SET ROLE regress_leaselock_member;
SELECT public.acquire('job', 'job', 'w');
SELECT public.acquire('open', 'open', 'w', scope => 'public');
SELECT leaselock.try_lock('hold', 'w', '1 hour', 'team') IS NOT NULL AS hold;
SET ROLE regress_leaselock_team;
SELECT public.acquire('shared', 'shared', 'w');
SET ROLE regress_leaselock_twin;
SELECT public.acquire('wait', 'job', 'w', '60 s');
SET ROLE regress_leaselock_ex;
SELECT public.acquire('ex_wait', 'job', 'w', '60 s');
RESET ROLE;
SELECT fence AS hold_fence FROM leaselock.lease_status WHERE name = 'ex hold' \gset
INSERT INTO public.given VALUES ('ex_hold_fence', :hold_fence);
REVOKE regress_leaselock_team FROM regress_leaselock_ex;

--
-- Every role, every function
--

-- tickets
SELECT * FROM public.matrix(ARRAY[
	$$lease_acquire('new', 'w')$$,
	$$lease_acquire('open', 'w')$$,
	$$lease_acquire('open', 'w', wait => '5 s')$$,
	$$lease_acquire('open', 'w', request_id => '{open_id}')$$,
	$$lease_acquire('new', 'w', scope => 'team')$$,
	$$lease_acquire('job', 'w', scope => 'team')$$,
	$$lease_acquire('job', 'w', wait => '5 s', scope => 'team')$$,
	$$lease_acquire('job', 'w', scope => 'team', request_id => '{job_id}')$$,
	$$lease_acquire('ex', 'w', scope => 'team')$$,
	$$lease_acquire('ex', 'w', scope => 'team', request_id => '{ex_id}')$$,
	$$lease_acquire('shared', 'w', scope => 'team')$$,
	$$lease_get('{job}')$$,
	$$lease_get('{wait}')$$,
	$$lease_get('{shared}')$$,
	$$lease_get('{ex}')$$,
	$$lease_get('{ex_wait}')$$,
	$$lease_get('{open}')$$,
	$$lease_get('00000000-0000-0000-0000-000000000000')$$,
	$$lease_renew('{job}')$$,
	$$lease_renew('{wait}')$$,
	$$lease_renew('{shared}')$$,
	$$lease_renew('{ex}')$$,
	$$lease_renew('{ex_wait}')$$,
	$$lease_renew('{open}')$$,
	$$lease_renew('00000000-0000-0000-0000-000000000000')$$,
	$$lease_release('{job}')$$,
	$$lease_release('{wait}')$$,
	$$lease_release('{shared}')$$,
	$$lease_release('{ex}')$$,
	$$lease_release('{ex_wait}')$$,
	$$lease_release('{open}')$$,
	$$lease_release('00000000-0000-0000-0000-000000000000')$$,
	$$lease_release_all('w')$$,
	$$lease_release_all('w', 'team')$$]);
-- named locks
SELECT * FROM public.matrix(ARRAY[
	$$try_lock('new', 'w', '1 min')$$,
	$$try_lock('open', 'w', '1 min')$$,
	$$try_lock('new', 'w', '1 min', 'team')$$,
	$$try_lock('hold', 'w', '1 min', 'team')$$,
	$$try_lock('ex hold', 'w', '1 min', 'team')$$,
	$$renew_lock('new', 'w', '1 min')$$,
	$$renew_lock('new', 'w', '1 min', 'team')$$,
	$$renew_lock('hold', 'w', '1 min', 'team')$$,
	$$renew_lock('ex hold', 'w', '1 min', 'team')$$,
	$$release_lock('new', 'w')$$,
	$$release_lock('new', 'w', 'team')$$,
	$$release_lock('hold', 'w', 'team')$$,
	$$release_lock('ex hold', 'w', 'team')$$]);
-- fences; the trigger checks as the role that inserts
CREATE TABLE public.fenced (f bigint);
CREATE TRIGGER t BEFORE INSERT ON public.fenced FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('column', 'f', 'job', 'team');
CREATE TABLE public.fenced_rows (f bigint, lock text, scope text);
CREATE TRIGGER t BEFORE INSERT ON public.fenced_rows FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('columns', 'f', 'lock', 'scope');
CREATE TABLE public.fenced_statements (f bigint);
CREATE TRIGGER t BEFORE INSERT ON public.fenced_statements FOR EACH STATEMENT EXECUTE FUNCTION leaselock.fence_guard('transaction', 'job', 'team');
CREATE TABLE public.marked (f bigint);
INSERT INTO public.marked VALUES (5);
CREATE TRIGGER t BEFORE UPDATE ON public.marked FOR EACH ROW EXECUTE FUNCTION leaselock.fence_monotonic('f');
CREATE TABLE public.checked (f bigint, CHECK (leaselock.fence_check('job', f, 'team')));
GRANT ALL ON public.fenced, public.fenced_rows, public.fenced_statements, public.marked, public.checked TO PUBLIC;
SELECT * FROM public.matrix(ARRAY[
	$$fence_check('open', {open_fence})$$,
	$$fence_check('job', {job_fence}, 'team')$$,
	$$fence_check('job', 1, 'team')$$,
	$$fence_check('new', 1, 'team')$$,
	$$fence_check('ex', {ex_fence}, 'team')$$,
	$$fence_check('ex hold', {ex_hold_fence}, 'team')$$,
	$$fence_check('shared', {shared_fence}, 'team')$$,
	$$fence_check('shared', {shared_fence}, 'team', true)$$,
	$$fence_assert('job', {job_fence}, 'team')$$,
	$$fence_assert('job', 1, 'team')$$,
	$$fence_assert('ex', {ex_fence}, 'team')$$,
	$$fence_guard()$$,
	$$fence_monotonic()$$,
	$$INSERT INTO public.fenced VALUES ({job_fence}) RETURNING 'inserted'$$,
	$$INSERT INTO public.fenced VALUES (1) RETURNING 'inserted'$$,
	$$INSERT INTO public.fenced_rows VALUES ({ex_fence}, 'ex', 'team') RETURNING 'inserted'$$,
	$$INSERT INTO public.fenced_statements VALUES (1) RETURNING 'inserted'$$,
	$$INSERT INTO public.checked VALUES ({job_fence}) RETURNING 'inserted'$$,
	$$UPDATE public.marked SET f = 6 RETURNING 'updated'$$,
	$$UPDATE public.marked SET f = 4 RETURNING 'updated'$$]);
-- views and the functions behind them: rows of the scope + rows of the open scope
CREATE FUNCTION public.seen(view text, OUT rows text) LANGUAGE plpgsql AS $$ BEGIN
	EXECUTE 'SELECT count(*) FILTER (WHERE scope = ''team'') || '' + '' || count(*) FILTER (WHERE scope = ''public'') FROM leaselock.' || view INTO rows;
END $$;
SELECT * FROM public.matrix(ARRAY[
	$$SELECT public.seen('lease_status')$$,
	$$SELECT public.seen('internal_status_rows()')$$,
	$$SELECT public.seen('lease_tickets')$$,
	$$SELECT public.seen('internal_ticket_rows()')$$,
	$$SELECT owner FROM leaselock.lease_peek('open')$$,
	$$SELECT owner FROM leaselock.lease_peek('job', 'team')$$,
	$$SELECT owner FROM leaselock.lease_peek('ex', 'team')$$,
	$$SELECT owner FROM leaselock.lease_peek('new', 'team')$$]);
-- administration
SELECT * FROM public.matrix(ARRAY[
	$$lease_scope_create('other', 'regress_leaselock_member')$$,
	$$lease_scope_create('team', 'regress_leaselock_stranger')$$,
	$$lease_scope_drop('team')$$,
	$$lease_scope_drop('other')$$,
	$$lease_break('job', {job_fence}, 'team')$$,
	$$lease_break('job', 1, 'team')$$,
	$$lease_prune()$$,
	$$lease_prune('0 s', 1)$$,
	$$fence_bump()$$]);
-- tables, settings, objects
SELECT * FROM public.matrix((SELECT array_agg(format('SELECT ''read'' FROM (SELECT count(*) FROM leaselock.%I) c', relname) ORDER BY relname COLLATE "C")
	FROM pg_class WHERE relnamespace = 'leaselock'::regnamespace AND relkind = 'r')
	|| ARRAY[
	$$UPDATE leaselock.locks SET fence = fence RETURNING 'written'$$,
	$$DELETE FROM leaselock.scopes RETURNING 'written'$$,
	$$INSERT INTO leaselock.floor VALUES (1, 1) RETURNING 'written'$$,
	$$INSERT INTO leaselock.events (id, xid, at, recorded_at, role, kind) VALUES (1, '3', now(), now(), 10, 'granted') RETURNING 'written'$$,
	$$SELECT 'set' FROM set_config('leaselock.clock_offset', '1', true)$$,
	$$SELECT 'set' FROM set_config('leaselock.events', 'all', true)$$,
	$$SELECT 'set' FROM set_config('leaselock.event_retention', '0', true)$$,
	$$SELECT 'set' FROM set_config('leaselock.log_breaks', 'on', true)$$,
	$$SELECT 'set' FROM set_config('leaselock.log_refusals', 'on', true)$$,
	$$SELECT 'set' FROM set_config('leaselock.log_takeovers', 'on', true)$$,
	$$SELECT 'set' FROM set_config('leaselock.max_lease', '1h', true)$$,
	$$SELECT 'set' FROM set_config('leaselock.ticket_retention', '0', true)$$]);

-- the procedures cannot be rolled back, so one by one
\set VERBOSITY sqlstate
SELECT value AS job FROM public.given WHERE key = 'job' \gset
SELECT value AS ex_wait FROM public.given WHERE key = 'ex_wait' \gset
SET ROLE regress_leaselock_member;
CALL leaselock.lease_wait(:'job', '0 s', NULL, NULL, NULL) \gset member_
CALL leaselock.lease_acquire_wait('member', 'w', '300 s', '0 s', 'team') \gset member_acquire_
SET ROLE regress_leaselock_twin;
CALL leaselock.lease_wait(:'job', '0 s'); -- fail
CALL leaselock.lease_acquire_wait('job', 'w', '300 s', '0 s', 'team') \gset twin_acquire_
SET ROLE regress_leaselock_ex;
CALL leaselock.lease_wait(:'job', '0 s'); -- fail
CALL leaselock.lease_wait(:'ex_wait', '0 s') \gset ex_
CALL leaselock.lease_acquire_wait('member', 'w', '300 s', '0 s', 'team'); -- fail
SET ROLE regress_leaselock_stranger;
CALL leaselock.lease_wait(:'job', '0 s'); -- fail
CALL leaselock.lease_acquire_wait('member', 'w', '300 s', '0 s', 'team'); -- fail
CALL leaselock.lease_acquire_wait('stranger', 'w', '300 s', '0 s') \gset stranger_acquire_
SET ROLE regress_leaselock_owner;
CALL leaselock.lease_wait(:'job', '0 s'); -- fail
CALL leaselock.lease_acquire_wait('member', 'w', '300 s', '0 s', 'team'); -- fail
SET ROLE regress_leaselock_super;
CALL leaselock.lease_wait(:'job', '0 s') \gset super_
CALL leaselock.lease_acquire_wait('super', 'w', '300 s', '0 s', 'team') \gset super_acquire_
RESET ROLE;
SELECT :'member_state' AS member, :'member_acquire_state' AS member_acquire, :'twin_acquire_state' AS twin_acquire,
	:'ex_state' AS ex, :'stranger_acquire_state' AS stranger_acquire, :'super_state' AS super, :'super_acquire_state' AS super_acquire;

--
-- What a refusal says
--

\set VERBOSITY default
SET ROLE regress_leaselock_stranger;
SELECT leaselock.lease_acquire('job', 'w', scope => 'team'); -- fail
SELECT leaselock.try_lock('job', 'w', '1 min', 'team'); -- fail
SELECT leaselock.fence_check('job', 1, 'team'); -- fail
SELECT leaselock.lease_get(:'job'); -- fail
SELECT leaselock.lease_prune(); -- fail
-- arguments are checked first
\set VERBOSITY sqlstate
SELECT leaselock.lease_acquire('job', 'w', '1 s', scope => 'team'); -- fail: 22023
SELECT leaselock.lease_acquire('job', NULL, scope => 'team'); -- fail: 22004
SELECT leaselock.fence_check('job', NULL, 'team'); -- fail: 22004
RESET ROLE;
-- a check is remembered within a transaction only for the role that made it
SELECT fence AS job_fence FROM leaselock.lease_peek('job', 'team') \gset
BEGIN;
SET LOCAL ROLE regress_leaselock_member;
SELECT leaselock.fence_check('job', :job_fence, 'team'); -- ok
SET LOCAL ROLE regress_leaselock_stranger;
SELECT leaselock.fence_check('job', :job_fence, 'team'); -- fail: 42501
ROLLBACK;
\set VERBOSITY default

--
-- Access lost, in order (section 3): the held ticket lasts to its expiry, the
-- wait is cancelled, look and release still work
--

SELECT value AS ex FROM public.given WHERE key = 'ex' \gset
SET ROLE regress_leaselock_ex;
SELECT state, fence IS NOT NULL AS fence, depth, remaining_ms > 0 AS remaining FROM leaselock.lease_get(:'ex');
SELECT state, position, wait_until, holder FROM leaselock.lease_get(:'ex_wait');
SELECT state FROM leaselock.lease_release(:'ex_wait'); -- nothing to release
-- until then nobody else gets it
SET ROLE regress_leaselock_member;
SELECT state, holder, holder_role FROM leaselock.lease_acquire('ex', 'w', scope => 'team');
RESET ROLE;
SET leaselock.clock_offset = '301 s';
SET ROLE regress_leaselock_ex;
SELECT state FROM leaselock.lease_get(:'ex');
\set VERBOSITY sqlstate
SELECT state FROM leaselock.lease_renew(:'ex'); -- fail
-- fail: even for a named hold that nobody has taken over
RESET ROLE;
SET leaselock.clock_offset = '2 h';
SET ROLE regress_leaselock_ex;
SELECT leaselock.renew_lock('ex hold', 'w', '1 min', 'team'); -- fail
SELECT leaselock.try_lock('ex hold', 'w', '1 min', 'team'); -- fail
SELECT leaselock.release_lock('ex hold', 'w', 'team'); -- ok: it is its own
RESET ROLE;
RESET leaselock.clock_offset;
-- back in the team: no longer refused, and what was cancelled stays cancelled
GRANT regress_leaselock_team TO regress_leaselock_ex;
SET ROLE regress_leaselock_ex;
SELECT state FROM leaselock.lease_acquire('again', 'w', scope => 'team');
SELECT state FROM leaselock.lease_get(:'ex_wait');
RESET ROLE;
-- a team's ticket belongs to every member, as long as they are members
SELECT value AS shared FROM public.given WHERE key = 'shared' \gset
SET ROLE regress_leaselock_ex;
SELECT state FROM leaselock.lease_renew(:'shared');
RESET ROLE;
REVOKE regress_leaselock_team FROM regress_leaselock_ex;
SET ROLE regress_leaselock_ex;
SELECT state FROM leaselock.lease_get(:'shared'); -- fail
SELECT state FROM leaselock.lease_release(:'shared'); -- fail
SELECT leaselock.lease_release_all('w', 'team'); -- its own
RESET ROLE;
-- access lost while somebody waits behind: passed over, and cancelled as well
GRANT regress_leaselock_team TO regress_leaselock_ex;
SET ROLE regress_leaselock_member;
SELECT ticket AS first FROM leaselock.lease_acquire('passed', 'first', '300 s', scope => 'team') \gset
SET ROLE regress_leaselock_ex;
SELECT ticket AS ex_passed FROM leaselock.lease_acquire('passed', 'w', '300 s', '300 s', 'team') \gset
SET ROLE regress_leaselock_member;
SELECT ticket AS second FROM leaselock.lease_acquire('passed', 'second', '300 s', '300 s', 'team') \gset
RESET ROLE;
REVOKE regress_leaselock_team FROM regress_leaselock_ex;
SET ROLE regress_leaselock_member;
SELECT state FROM leaselock.lease_release(:'first');
SELECT state FROM leaselock.lease_get(:'second');
SET ROLE regress_leaselock_ex;
SELECT state FROM leaselock.lease_get(:'ex_passed');
RESET ROLE;
SET ROLE regress_leaselock_member;
SELECT state FROM leaselock.lease_release(:'second');
RESET ROLE;
-- a membership without INHERIT gives no access, but SET ROLE does
ALTER ROLE regress_leaselock_ex NOINHERIT;
GRANT regress_leaselock_team TO regress_leaselock_ex;
SET SESSION AUTHORIZATION regress_leaselock_ex;
SELECT state FROM leaselock.lease_acquire('noinherit', 'w', scope => 'team'); -- fail
SELECT state FROM leaselock.lease_get(:'shared'); -- fail
SET ROLE regress_leaselock_team;
SELECT state FROM leaselock.lease_acquire('noinherit', 'w', scope => 'team');
SELECT state FROM leaselock.lease_get(:'shared');
RESET SESSION AUTHORIZATION;
\set VERBOSITY default

--
-- A superuser who is not a member of the ticket's role only looks: that is no sign
-- of life, takes no turn and claims nothing
--

SET ROLE regress_leaselock_member;
SELECT ticket AS h FROM leaselock.lease_acquire('look', 'h', '60 s') \gset
SELECT ticket AS w FROM leaselock.lease_acquire('look', 'w', '60 s', '300 s') \gset
SELECT ticket AS w2 FROM leaselock.lease_acquire('look', 'w2', '60 s', '300 s') \gset
RESET ROLE;
SET leaselock.clock_offset = '15 s';
SELECT state, position, holder FROM leaselock.lease_get(:'w2');
SET ROLE regress_leaselock_member;
SELECT state, position, holder FROM leaselock.lease_get(:'w'); -- a sign of life
RESET ROLE;
SET leaselock.clock_offset = '25 s';
SELECT state FROM leaselock.lease_get(:'w2'); -- timed out: nobody but him looked
SELECT state, position FROM leaselock.lease_get(:'w');
-- promoted: ten seconds to claim it, and a look by the superuser does not
SET ROLE regress_leaselock_member;
SELECT state FROM leaselock.lease_release(:'h');
RESET ROLE;
SELECT state, remaining_ms BETWEEN 8000 AND 10000 AS unclaimed FROM leaselock.lease_get(:'w');
SELECT state, remaining_ms BETWEEN 8000 AND 10000 AS unclaimed FROM leaselock.lease_get(:'w');
SET ROLE regress_leaselock_member;
SELECT state, remaining_ms BETWEEN 58000 AND 60000 AS claimed FROM leaselock.lease_get(:'w');
RESET ROLE;
-- a turn that has come by the clock is left to the waiter
SET leaselock.waiter_timeout = '300 s';
SET ROLE regress_leaselock_member;
SELECT ticket AS w FROM leaselock.lease_acquire('look', 'w3', '60 s', '300 s') \gset
RESET ROLE;
SET leaselock.clock_offset = '100 s';
SELECT state, position, holder FROM leaselock.lease_get(:'w');
SELECT owner, lapsed, waiters FROM leaselock.lease_peek('look');
-- a superuser who is a member looks as a member
CREATE ROLE regress_leaselock_boss SUPERUSER IN ROLE regress_leaselock_member;
SET ROLE regress_leaselock_boss;
SELECT state, position, holder FROM leaselock.lease_get(:'w');
RESET ROLE;
RESET leaselock.waiter_timeout;
RESET leaselock.clock_offset;

\c :db
DROP DATABASE regress_leaselock_access;
DROP ROLE regress_leaselock_owner, regress_leaselock_member, regress_leaselock_twin, regress_leaselock_ex,
	regress_leaselock_stranger, regress_leaselock_team, regress_leaselock_super, regress_leaselock_boss;
