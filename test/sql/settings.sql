-- The settings: their defaults, who may change them, and that the bounds of arguments
-- follow them.
LOAD 'leaselock';

SELECT name, current_setting(name) AS value, context, vartype
FROM pg_settings WHERE name LIKE 'leaselock.%' ORDER BY name COLLATE "C";

-- Only a superuser changes them, whether the library is loaded ...
CREATE ROLE regress_leaselock_user LOGIN PASSWORD 'settings';
SET SESSION AUTHORIZATION regress_leaselock_user;
SET leaselock.clock_offset = '1 h'; -- fail: superuser only
\echo :SQLSTATE
SET leaselock.max_lease = '1 h'; -- fail: superuser only
\echo :SQLSTATE
RESET SESSION AUTHORIZATION;
SHOW leaselock.clock_offset;

-- ... or not yet.
SELECT current_user AS superuser \gset
\c -reuse-previous=on 'user=regress_leaselock_user password=settings'
SET leaselock.clock_offset = '1 h'; -- ok so far: nobody knows this setting
SET client_min_messages = error;
SELECT state FROM leaselock.lease_acquire('settings', 'w', '5 s');
SHOW leaselock.clock_offset; -- not taken
SELECT expires_at < now() + '1 min' AS by_the_real_clock FROM leaselock.lease_peek('settings');
SELECT leaselock.lease_release_all('w');
\c - :superuser
DROP ROLE regress_leaselock_user;
LOAD 'leaselock';

-- Times take units as PostgreSQL's own settings do.
SET leaselock.max_lease = '1 h';
SHOW leaselock.max_lease;
SET leaselock.max_lease = '90 min';
SHOW leaselock.max_lease;
SET leaselock.max_lease = 'soon'; -- fail: not a time
\echo :SQLSTATE
RESET leaselock.max_lease;

-- min_lease and max_lease bound the lease of acquire and renew.
SET leaselock.min_lease = '1 s';
SET leaselock.max_lease = '1 h';
SELECT state, remaining_ms FROM leaselock.lease_acquire('settings', 'w', '1 h'); -- ok
SELECT ticket FROM leaselock.lease_acquire('settings', 'w', '1 s') \gset
SELECT state, remaining_ms FROM leaselock.lease_renew(:'ticket', '1 h'); -- ok
SELECT state FROM leaselock.lease_acquire('settings', 'w', '0.999 s'); -- fail: below the bound as set
\echo :SQLSTATE
SELECT state FROM leaselock.lease_renew(:'ticket', '3600.001 s'); -- fail: above the bound that is set
\echo :SQLSTATE
RESET leaselock.min_lease;
RESET leaselock.max_lease;

-- A lease longer than the present bound stays valid; it is renewed by a length within
-- the bounds.
SELECT state, remaining_ms > 3000000 AS long FROM leaselock.lease_get(:'ticket'); -- ok
SELECT state, remaining_ms FROM leaselock.lease_renew(:'ticket', '300 s'); -- ok

-- max_wait bounds the wait.
SET leaselock.max_wait = '10 s';
SELECT state FROM leaselock.lease_acquire('settings', 'w', wait => '10 s'); -- ok
SELECT state FROM leaselock.lease_acquire('settings', 'w', wait => '10.000001 s'); -- fail: above the bound that is set
\echo :SQLSTATE
RESET leaselock.max_wait;

-- max_ttl bounds the ttl.
SET leaselock.max_ttl = '1 d';
SELECT leaselock.try_lock('settings', 'w', '1 day') IS NOT NULL AS got; -- ok
SELECT leaselock.renew_lock('settings', 'w', '1 day 1 microsecond'); -- fail: above the bound that is set
\echo :SQLSTATE
RESET leaselock.max_ttl;
SELECT leaselock.renew_lock('settings', 'w', '1 day 1 microsecond'); -- ok

SELECT leaselock.lease_release_all('w'), leaselock.release_lock('settings', 'w');
