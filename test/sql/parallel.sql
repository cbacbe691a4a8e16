-- A function that calls leaselock and is wrongly marked PARALLEL SAFE: every call is
-- refused in the parallel worker, with an error that says why.
\set VERBOSITY terse
CREATE FUNCTION in_worker(call text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
DECLARE
	result text;
BEGIN
	EXECUTE 'SELECT ' || call INTO result;
	RETURN result;
END $$;

-- whichever of the two names the server has
SELECT count(set_config(name, 'on', false)) AS set FROM pg_settings
	WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT in_worker('1');

-- fail: all of them
SELECT in_worker($$leaselock.lease_acquire('parallel', 'w')$$);
SELECT in_worker($$leaselock.lease_get(gen_random_uuid())$$);
SELECT in_worker($$leaselock.lease_renew(gen_random_uuid())$$);
SELECT in_worker($$leaselock.lease_release(gen_random_uuid())$$);
SELECT in_worker($$leaselock.lease_release_all('w')$$);
SELECT in_worker($$leaselock.try_lock('parallel', 'w', '1 h')$$);
SELECT in_worker($$leaselock.renew_lock('parallel', 'w', '1 h')$$);
SELECT in_worker($$leaselock.release_lock('parallel', 'w')$$);
SELECT in_worker($$leaselock.fence_check('parallel', 1)$$);
SELECT in_worker($$leaselock.fence_assert('parallel', 1)$$);
SELECT in_worker($$leaselock.lease_break('parallel', 1)$$);
SELECT in_worker($$leaselock.lease_prune()$$);
SELECT in_worker($$leaselock.lease_scope_create('parallel', current_user)$$);
SELECT in_worker($$leaselock.lease_scope_drop('parallel')$$);
SELECT in_worker($$leaselock.fence_bump()$$);
SELECT in_worker($$count(*) FROM leaselock.lease_peek('parallel')$$);
SELECT in_worker($$count(*) FROM leaselock.lease_status$$);
SELECT in_worker($$count(*) FROM leaselock.lease_tickets$$);
SELECT in_worker($$count(*) FROM leaselock.lease_scopes$$);
SELECT in_worker($$count(*) FROM leaselock.lease_events()$$);

-- fail: the arguments are checked first
SELECT in_worker($$leaselock.try_lock('', 'w', '1 h')$$);

RESET ALL;
SELECT count(*) FROM leaselock.lease_peek('parallel');
DROP FUNCTION in_worker(text);
