/* sql/leaselock--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION leaselock" to load this file. \quit

-- The script creates the schema itself: a "schema" line in the control file
-- would adopt a schema that somebody else had planted.
CREATE SCHEMA leaselock;
COMMENT ON SCHEMA leaselock IS 'lease locks with fencing';

-- ----------------------------------------------------------------------
-- Storage.  Nobody has privileges on these tables: the functions read and
-- write them without the executor, and therefore without its privilege checks.
-- Nothing but the functions may write them, because their consistency depends
-- on heavyweight locks that a plain statement does not take.  The constraints
-- are for restored rows; the functions satisfy them by themselves.  The tables
-- must remain plain heap tables.  Triggers on them do not fire.  Additional
-- indexes are maintained, but an index on an expression, or with a predicate
-- other than "column IS NOT NULL", is refused.
-- ----------------------------------------------------------------------

-- Distinguishes this installation from the one of which a dump was taken.  The
-- table is not dumped, so that holders that arrive by a restore are recognised
-- as foreign, while pg_upgrade and physical copies keep it.
--   id      stored in the column "home" of other tables
--   secret  the key of the hashes in our heavyweight locks, so that nobody can
--           aim at the lock of somebody else, or tell from pg_locks which names
--           are in use
-- Row security hides it from members of pg_read_all_data as well.
CREATE TABLE leaselock.installation (
	id uuid NOT NULL,
	secret bytea NOT NULL,
	CONSTRAINT installation_secret CHECK (octet_length(secret) = 16)
) USING heap;
INSERT INTO leaselock.installation VALUES (
	pg_catalog.gen_random_uuid(),
	pg_catalog.substr(pg_catalog.sha256(
		pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) OPERATOR(pg_catalog.||)
		pg_catalog.uuid_send(pg_catalog.gen_random_uuid())), 1, 16));
ALTER TABLE leaselock.installation ENABLE ROW LEVEL SECURITY;
ALTER TABLE leaselock.installation FORCE ROW LEVEL SECURITY;
COMMENT ON TABLE leaselock.installation IS
	'internal: identifier and secret of this installation';

-- One row per lock.  Its only key is (scope, name), so that every change of a
-- lock is a HOT update; half of each page is kept free for that.
--   fence            the newest fence
--   passed           queue places up to this one have had their turn
--   changed_at       the lock's time: no later operation uses an earlier one
--   tickets          number of tickets of the grant that are stored as held
--   home             installation.id combined with the database's oid, at the
--                    last write; a copy made by CREATE DATABASE differs in it
--   role, owner      the identity that holds the lock; NULL if nobody does
--   granted_at, granted_xid  when, and by which transaction, it was granted
--   expires_at       the latest expiry of its tickets; NULL if there are none
--   hold_expires_at  expiry of the named hold; NULL if there is none
--   first_ticket     the ticket of the grant that is not on the grant's list
--                    (tickets.member_of), if there is one
CREATE TABLE leaselock.locks (
	scope text COLLATE "C" NOT NULL,
	name text COLLATE "C" NOT NULL,
	fence bigint NOT NULL,
	passed bigint NOT NULL,
	changed_at timestamptz NOT NULL,
	tickets integer NOT NULL,
	home uuid NOT NULL,
	role oid,
	granted_at timestamptz,
	granted_xid xid8,
	expires_at timestamptz,
	hold_expires_at timestamptz,
	first_ticket uuid,
	owner text COLLATE "C",
	CONSTRAINT locks_pkey PRIMARY KEY (scope, name),
	CONSTRAINT locks_scope CHECK (octet_length(scope) BETWEEN 1 AND 255 AND
		scope !~ '[\x01-\x1f\x7f]|^ | $'),
	CONSTRAINT locks_name CHECK (octet_length(name) BETWEEN 1 AND 255 AND
		name !~ '[\x01-\x1f\x7f]|^ | $'),
	CONSTRAINT locks_owner CHECK ((role IS NULL) = (owner IS NULL) AND
		role <> 0 AND octet_length(owner) BETWEEN 1 AND 255 AND
		owner !~ '[\x01-\x1f\x7f]|^ | $'),
	CONSTRAINT locks_fence CHECK (fence BETWEEN 1 AND 2305843009213693952),
	CONSTRAINT locks_counts CHECK (tickets >= 0 AND
		passed BETWEEN 0 AND 2305843009213693952),
	CONSTRAINT locks_times CHECK (isfinite(changed_at) AND
		isfinite(granted_at) AND isfinite(expires_at) AND
		isfinite(hold_expires_at))
) USING heap WITH (
	fillfactor = 50,
	autovacuum_vacuum_scale_factor = 0,
	autovacuum_vacuum_threshold = 500,
	autovacuum_analyze_scale_factor = 0.5
);
COMMENT ON TABLE leaselock.locks IS
	'internal: one row per lock; see the view lease_status';

-- One row per ticket.  Most tickets are in only one index: they hold their
-- lock alone, nobody queued for it, and they have no request id.  The only
-- unique key begins with the lock's key and is protected by a heavyweight lock
-- on (lock, request id), so that no writer ever waits inside the index.
-- Neither the state nor any deadline is indexed.
--   state        as stored; what the clock changes is computed on reading:
--                h held, w waiting, r released, e expired, t timed_out,
--                c cancelled, d deadlock, b broken
--   claimed      false: promoted, and nobody has called for it yet
--   lease_us     length of the lease last requested, in microseconds
--   request_id   the caller's; NULL if it passed none
--   place        in the queue; NULL if it is not, or no longer, there
--   member_of    fence of the grant on whose list it is; NULL if on none
--   fence        fence of the grant that it belongs or belonged to; NULL if it
--                has never been held
--   alive_until  when a polling waiter times out unless it is heard from; NULL
--                while a backend waits in lease_wait, whose liveness lock shows
--                that the ticket is alive
--   ended_at     when the ticket ended, as stored
--   waiter_pid   the backend that waits in lease_wait, to be woken
--   note         the caller's text for people; no rule looks at it
CREATE TABLE leaselock.tickets (
	scope text COLLATE "C" NOT NULL,
	name text COLLATE "C" NOT NULL,
	owner text COLLATE "C" NOT NULL,
	role oid NOT NULL,
	ticket uuid NOT NULL,
	state "char" NOT NULL,
	claimed boolean NOT NULL,
	lease_us bigint NOT NULL,
	requested_at timestamptz NOT NULL,
	request_id uuid,
	place bigint,
	member_of bigint,
	fence bigint,
	expires_at timestamptz,
	wait_until timestamptz,
	alive_until timestamptz,
	ended_at timestamptz,
	waiter_pid integer,
	note text COLLATE "C"
) USING heap WITH (
	fillfactor = 80,
	autovacuum_vacuum_scale_factor = 0,
	autovacuum_vacuum_threshold = 500,
	autovacuum_analyze_scale_factor = 0.5
);
COMMENT ON TABLE leaselock.tickets IS
	'internal: one row per ticket, live or ended; see the view lease_tickets';
CREATE INDEX tickets_ticket ON leaselock.tickets (ticket);
CREATE UNIQUE INDEX tickets_request ON leaselock.tickets
	(scope, name, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX tickets_place ON leaselock.tickets (scope, name, place)
	WHERE place IS NOT NULL;
CREATE INDEX tickets_member ON leaselock.tickets (scope, name, member_of)
	WHERE member_of IS NOT NULL;
CREATE INDEX tickets_waiter ON leaselock.tickets (owner, role)
	WHERE place IS NOT NULL;

-- The holder that a waiter found when it queued for a lock, which is where the
-- deadlock detection starts.  The rows are hints: whoever reads one checks
-- that the identity still holds the lock.  There is no unique key, so that
-- nobody waits in an index; duplicates do no harm.
CREATE TABLE leaselock.blockers (
	role oid NOT NULL,
	owner text COLLATE "C" NOT NULL,
	scope text COLLATE "C" NOT NULL,
	name text COLLATE "C" NOT NULL
) USING heap;
COMMENT ON TABLE leaselock.blockers IS
	'internal: holders that waiters found when they queued; hints for deadlock detection';
CREATE INDEX blockers_owner ON leaselock.blockers (owner, role);

-- Has a row if any lock may have a ticket in its queue.  Most databases have
-- no queues; if none is recorded, no session looks for waiters.
--   since  when the first ticket was queued
CREATE TABLE leaselock.queues (
	since timestamptz NOT NULL
) USING heap;
COMMENT ON TABLE leaselock.queues IS
	'internal: has a row if any lock may have waiters';

-- The floor of all future fences: every new fence is greater.  There is no row
-- until the floor is first raised, because a row inserted by this script would
-- collide with the one in a dump.  If there are several rows, as after a
-- second restore, the greatest applies.
--   fence    the floor
--   reading  the fences' clock when the floor was raised; above a floor that is
--            ahead of the clock, fences advance from there with the clock
CREATE TABLE leaselock.floor (
	fence bigint NOT NULL,
	reading bigint NOT NULL,
	CONSTRAINT floor_fence CHECK (fence BETWEEN 1 AND 2305843009213693952),
	CONSTRAINT floor_reading CHECK (reading BETWEEN 0 AND 2305843009213693952)
) USING heap;
COMMENT ON TABLE leaselock.floor IS
	'internal: the floor; every new fence is greater';
-- These tables have no primary key, and without a replica identity a
-- publication FOR ALL TABLES would make updates and deletions of their rows
-- fail.
ALTER TABLE leaselock.tickets REPLICA IDENTITY FULL;
ALTER TABLE leaselock.blockers REPLICA IDENTITY FULL;
ALTER TABLE leaselock.queues REPLICA IDENTITY FULL;
ALTER TABLE leaselock.floor REPLICA IDENTITY FULL;

-- The role to which a scope is registered.  A scope without a row is open to
-- every role.
--   role       the role's name at the registration; used if the row came from a
--              dump, because oids mean nothing here then
--   role_oid   the role, whatever it is called now; used otherwise
--   home       as in leaselock.locks, at the registration
CREATE TABLE leaselock.scopes (
	scope text COLLATE "C" NOT NULL,
	role name NOT NULL,
	role_oid oid NOT NULL,
	home uuid NOT NULL,
	CONSTRAINT scopes_pkey PRIMARY KEY (scope),
	CONSTRAINT scopes_scope CHECK (octet_length(scope) BETWEEN 1 AND 255 AND
		scope !~ '[\x01-\x1f\x7f]|^ | $')
) USING heap;
COMMENT ON TABLE leaselock.scopes IS
	'internal: one row per registered scope; see the view lease_scopes';

-- The history of leases: one row for each change that leaselock.events
-- selects.  The table is append only; lease_events() reads it.  A row is
-- identified by its transaction and its number within that transaction, and
-- readers use the same order.  Sessions therefore need not agree on a next
-- number, and their keys cannot conflict.  Old rows are removed, so the key
-- serves as replica identity too.  The table is not dumped, because
-- transaction ids mean nothing in another cluster.
--   id           number within the transaction, from 1; a savepoint that was
--                rolled back leaves a gap
--   xid          the transaction
--   at           when it happened, by the lock's time; for an expiry, when the
--                lease ran out
--   recorded_at  when the row was written; its retention time starts then
--   role, owner  whose lease it was; without an owner, the operator
--   kind         granted, promoted, released, expired, broken, scope_created,
--                scope_dropped, pruned, bumped; queued, renewed, cancelled,
--                timed_out, deadlock
--   fence        of the grant; bumped: the new floor
CREATE TABLE leaselock.events (
	id bigint NOT NULL,
	xid xid8 NOT NULL,
	at timestamptz NOT NULL,
	recorded_at timestamptz NOT NULL,
	role oid NOT NULL,
	kind text COLLATE "C" NOT NULL,
	scope text COLLATE "C",
	name text COLLATE "C",
	owner text COLLATE "C",
	fence bigint,
	ticket uuid,
	note text COLLATE "C",
	CONSTRAINT events_pkey PRIMARY KEY (xid, id)
) USING heap WITH (
	autovacuum_vacuum_scale_factor = 0.05,
	autovacuum_vacuum_threshold = 1000
);
COMMENT ON TABLE leaselock.events IS
	'internal: history of leases; see lease_events()';

-- Sessions cache the floor, the registered scopes and whether there are
-- queues.  These triggers announce changes of these tables by SQL, such as a
-- restore, and by logical replication, which fires row-level triggers only.
-- The server itself announces a TRUNCATE, which gives the table a new file.
CREATE FUNCTION leaselock.internal_announce_rows()
RETURNS trigger
AS 'MODULE_PATHNAME', 'leaselock_internal_announce_rows'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.internal_announce_rows() IS
	'internal: tells sessions that rows of a table of leaselock have changed';
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE ON leaselock.floor
	FOR EACH ROW EXECUTE FUNCTION leaselock.internal_announce_rows();
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE ON leaselock.scopes
	FOR EACH ROW EXECUTE FUNCTION leaselock.internal_announce_rows();
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE ON leaselock.queues
	FOR EACH ROW EXECUTE FUNCTION leaselock.internal_announce_rows();
ALTER TABLE leaselock.floor ENABLE ALWAYS TRIGGER announce;
ALTER TABLE leaselock.scopes ENABLE ALWAYS TRIGGER announce;
ALTER TABLE leaselock.queues ENABLE ALWAYS TRIGGER announce;

-- A dump contains the registered scopes, the last fences and the floor, so
-- that fences continue to grow in a restored database.  Leases do not survive
-- a restore: tickets are not dumped, and "home" invalidates the holders in the
-- rows of locks.
SELECT pg_catalog.pg_extension_config_dump('leaselock.locks', '');
SELECT pg_catalog.pg_extension_config_dump('leaselock.floor', '');
SELECT pg_catalog.pg_extension_config_dump('leaselock.scopes', '');

-- ----------------------------------------------------------------------
-- Tickets
-- ----------------------------------------------------------------------

-- What every ticket call returns: exactly one row.
CREATE TYPE leaselock.lease_ticket AS (
	ticket uuid,
	state text,
	scope text,
	name text,
	owner text,
	fence bigint,
	depth int,
	"position" int,
	expires_at timestamptz,
	wait_until timestamptz,
	remaining_ms bigint,
	next_call_ms bigint,
	holder text,
	holder_role name,
	request_id uuid,
	note text
);
COMMENT ON TYPE leaselock.lease_ticket IS
	'one acquisition of a lease lock; every ticket call returns one';
COMMENT ON COLUMN leaselock.lease_ticket.ticket IS
	'identifies the ticket; NULL if there is none';
COMMENT ON COLUMN leaselock.lease_ticket.state IS
	'held, waiting, contended, deadlock, released, expired, timed_out, cancelled, broken or gone';
COMMENT ON COLUMN leaselock.lease_ticket.scope IS
	'namespace of the lock''s name';
COMMENT ON COLUMN leaselock.lease_ticket.name IS
	'the lock''s name';
COMMENT ON COLUMN leaselock.lease_ticket.owner IS
	'owner label of the ticket';
COMMENT ON COLUMN leaselock.lease_ticket.fence IS
	'fence of the grant that the ticket belongs or belonged to';
COMMENT ON COLUMN leaselock.lease_ticket.depth IS
	'held: number of live tickets of the grant, plus 1 for a named hold';
COMMENT ON COLUMN leaselock.lease_ticket."position" IS
	'waiting: place in the queue; 1 is next, 100 means 100 or more';
COMMENT ON COLUMN leaselock.lease_ticket.expires_at IS
	'when the ticket''s lease runs out, or ran out';
COMMENT ON COLUMN leaselock.lease_ticket.wait_until IS
	'waiting: when the wait runs out';
COMMENT ON COLUMN leaselock.lease_ticket.remaining_ms IS
	'milliseconds left of the lease or of the wait, by the server''s clock';
COMMENT ON COLUMN leaselock.lease_ticket.next_call_ms IS
	'suggested milliseconds until the next call';
COMMENT ON COLUMN leaselock.lease_ticket.holder IS
	'owner label of the holder, if that is another identity';
COMMENT ON COLUMN leaselock.lease_ticket.holder_role IS
	'role of the holder, if that is another identity';
COMMENT ON COLUMN leaselock.lease_ticket.request_id IS
	'request id that the caller passed';
COMMENT ON COLUMN leaselock.lease_ticket.note IS
	'note that was passed when the ticket was acquired';

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_acquire(7)
--
--	Acquires a lock, or a place in its queue, and returns a ticket.
--
-- Parameters:
--	name        the lock's name, 1 to 255 bytes
--	owner       the caller's label; together with the current role, the
--	            identity
--	lease       how long the grant lasts unless renewed,
--	            leaselock.min_lease to leaselock.max_lease (5 s to 300 s)
--	wait        how long to wait for a turn, 0 to leaselock.max_wait (300 s)
--	scope       the namespace of the name, 1 to 255 bytes
--	request_id  identifies this acquisition, so that a retry finds the ticket of
--	            the first call; NULL: every call is a new acquisition
--	note        text for people (host, job, link), up to 1000 bytes without
--	            control characters, kept with the ticket; NULL or empty: none
--
-- Returns:
--	state held (with fence, expires_at, depth), waiting (with position),
--	contended or deadlock (both without a ticket); for a known request id, the
--	ticket in its present state.
--
-- Errors:
--	22023, 22004  an argument is out of bounds, or NULL
--	42501         the caller is not a member of the role to which the scope is
--	              registered
--	LS002         the request id belongs to another identity
--	53400         too many waiters for this lock (leaselock.max_waiters)
--	25006         read-only transaction or standby
--	40P01         deadlock with another transaction, during a wait
--
-- Tables: reads and writes leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_acquire(
	name text,
	owner text,
	lease interval DEFAULT '60 s',
	wait interval DEFAULT '0 s',
	scope text DEFAULT 'public',
	request_id uuid DEFAULT NULL,
	note text DEFAULT NULL)
RETURNS leaselock.lease_ticket
AS 'MODULE_PATHNAME', 'leaselock_lease_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_acquire(text, text, interval, interval, text, uuid, text) IS
	'acquire a lease lock; returns a ticket';

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_get(1)
--
--	Returns the present state of a ticket.  For a waiting ticket, the call is a
--	sign of life, and takes the ticket's turn if it has come.  For a promoted
--	ticket, the first call starts the full lease.
--
-- Parameters:
--	ticket  the ticket's uuid
--
-- Returns:
--	the ticket; state gone if there is no ticket with that uuid.
--
-- Errors:
--	22004  NULL
--	42501  the caller is not a member of the role that acquired the ticket
--	25006  read-only transaction or standby
--	55P03  busy for longer than leaselock.lock_timeout
--	40P01  deadlock with another transaction
--
-- Tables: reads and writes leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_get(ticket uuid)
RETURNS leaselock.lease_ticket
AS 'MODULE_PATHNAME', 'leaselock_lease_get'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_get(uuid) IS
	'present state of a ticket';

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_renew(2)
--
--	Renews a held ticket for a full lease from now.
--
-- Parameters:
--	ticket  the ticket's uuid
--	lease   the new length, leaselock.min_lease to leaselock.max_lease;
--	        NULL: the length last requested
--
-- Returns:
--	the ticket; if it is no longer held, it is unchanged.
--
-- Errors:
--	22023, 22004  lease is out of bounds, ticket is NULL
--	42501         the caller is not a member of the role that acquired the
--	              ticket, or of the role to which the scope is registered
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
--	40P01         deadlock with another transaction
--
-- Tables: reads and writes leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_renew(ticket uuid, lease interval DEFAULT NULL)
RETURNS leaselock.lease_ticket
AS 'MODULE_PATHNAME', 'leaselock_lease_renew'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_renew(uuid, interval) IS
	'renew the lease of a held ticket';

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_release(1)
--
--	Releases a ticket, or cancels its wait.  When the last ticket of a grant is
--	released, the grant ends and the first waiter is promoted.
--
-- Parameters:
--	ticket  the ticket's uuid
--
-- Returns:
--	the ticket: released if it was held, cancelled if it waited; otherwise
--	unchanged.
--
-- Errors:
--	22004  NULL
--	42501  the caller is not a member of the role that acquired the ticket
--	25006  read-only transaction or standby
--	55P03  busy for longer than leaselock.lock_timeout
--	40P01  deadlock with another transaction
--
-- Tables: reads and writes leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_release(ticket uuid)
RETURNS leaselock.lease_ticket
AS 'MODULE_PATHNAME', 'leaselock_lease_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_release(uuid) IS
	'release a ticket, or cancel its wait';

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_release_all(2)
--
--	Releases every live ticket of the identity (current role, owner).
--	Named holds are not tickets, and stay.
--
-- Parameters:
--	owner  the identity's label
--	scope  only locks of this scope; NULL: locks of every scope
--
-- Returns:
--	the number of tickets that were ended.
--
-- Errors:
--	22023, 22004  owner or scope violates the text rules, owner is NULL
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
--	40P01         deadlock with another transaction
--
-- Tables: reads and writes leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_release_all(owner text, scope text DEFAULT NULL)
RETURNS int
AS 'MODULE_PATHNAME', 'leaselock_lease_release_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_release_all(text, text) IS
	'release every live ticket of the current role and the given owner';

-- ----------------------------------------------------------------------
-- Procedure: leaselock.lease_wait(5)
--
--	Waits for a ticket's turn, in a series of short transactions, without a
--	snapshot or a transaction id while it sleeps.  Several sessions may wait
--	for the same ticket; each keeps it alive for as long as it waits.
--
-- Parameters:
--	ticket      the ticket's uuid
--	timeout     how long to wait at most, 0 or more; NULL: until the ticket's
--	            own wait ends
--	state       (out) the ticket's state; waiting if the timeout came first:
--	            then the ticket stays queued
--	fence       (out) if held: its fence
--	expires_at  (out) if held: when the lease runs out
--
-- Errors:
--	22023, 22004  timeout is out of bounds, ticket is NULL
--	42501         the caller is not a member of the role that acquired the
--	              ticket
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
--	40P01         deadlock with another transaction
--	2D000         the procedure cannot commit here: in a transaction block,
--	              function, exception block or pipeline
--
-- Tables: reads and writes leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE PROCEDURE leaselock.lease_wait(
	ticket uuid,
	timeout interval DEFAULT NULL,
	INOUT state text DEFAULT NULL,
	INOUT fence bigint DEFAULT NULL,
	INOUT expires_at timestamptz DEFAULT NULL)
AS 'MODULE_PATHNAME', 'leaselock_lease_wait'
LANGUAGE C;
COMMENT ON PROCEDURE leaselock.lease_wait(uuid, interval, text, bigint, timestamptz) IS
	'wait for a ticket''s turn';

-- ----------------------------------------------------------------------
-- Procedure: leaselock.lease_acquire_wait(11)
--
--	lease_acquire and lease_wait in one call: acquires the lock, and waits for
--	its turn if necessary.  If a cancellation, a statement time-out or the loss
--	of the client ends the wait, the ticket is cancelled.
--
-- Parameters:
--	name to request_id, note  as for lease_acquire
--	ticket, state, fence, expires_at  (out) the ticket
--
-- Errors: as for lease_acquire and lease_wait, and
--	53400  too many waiters for this lock (leaselock.max_waiters)
--
-- Tables: reads and writes leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE PROCEDURE leaselock.lease_acquire_wait(
	name text,
	owner text,
	lease interval DEFAULT '60 s',
	wait interval DEFAULT '30 s',
	scope text DEFAULT 'public',
	request_id uuid DEFAULT NULL,
	INOUT ticket uuid DEFAULT NULL,
	INOUT state text DEFAULT NULL,
	INOUT fence bigint DEFAULT NULL,
	INOUT expires_at timestamptz DEFAULT NULL,
	note text DEFAULT NULL)
AS 'MODULE_PATHNAME', 'leaselock_lease_acquire_wait'
LANGUAGE C;
COMMENT ON PROCEDURE leaselock.lease_acquire_wait(text, text, interval, interval, text, uuid, uuid, text, bigint, timestamptz, text) IS
	'acquire a lease lock, waiting for a turn';

-- ----------------------------------------------------------------------
-- Named locks: a yes or no, without a ticket
-- ----------------------------------------------------------------------

-- ----------------------------------------------------------------------
-- Function: leaselock.try_lock(4)
--
--	Takes the named hold of a lock, or returns NULL at once.  Taking it again
--	neither refreshes the lease nor adds depth.
--
-- Parameters:
--	name   the lock's name, 1 to 255 bytes
--	owner  the caller's label; together with the current role, the identity
--	ttl    how long the hold lasts unless renewed: more than 0, at most
--	       leaselock.max_ttl (36500 days)
--	scope  the namespace of the name, 1 to 255 bytes
--
-- Returns:
--	the fence; NULL if another identity holds the lock or waits for it.
--
-- Errors:
--	22023, 22004  an argument is out of bounds, or NULL
--	42501         the caller is not a member of the role to which the scope is
--	              registered
--	25006         read-only transaction or standby
--
-- Tables: reads and writes leaselock.locks
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.try_lock(name text, owner text, ttl interval,
	scope text DEFAULT 'public')
RETURNS bigint
AS 'MODULE_PATHNAME', 'leaselock_try_lock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.try_lock(text, text, interval, text) IS
	'take a named lock; returns its fence, or NULL if somebody else holds it or waits for it';

-- ----------------------------------------------------------------------
-- Function: leaselock.renew_lock(4)
--
--	Renews the named hold for a full ttl from now.  This works even after a
--	lapse, as long as nobody has taken over or waits.
--
-- Parameters: as for try_lock
--
-- Returns:
--	true if the hold was renewed; false if it is lost, because somebody took
--	over, or it lapsed and somebody waits.
--
-- Errors:
--	22023, 22004  an argument is out of bounds, or NULL
--	42501         the caller is not a member of the role to which the scope is
--	              registered
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
--	40P01         deadlock with another transaction
--
-- Tables: reads and writes leaselock.locks
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.renew_lock(name text, owner text, ttl interval,
	scope text DEFAULT 'public')
RETURNS boolean
AS 'MODULE_PATHNAME', 'leaselock_renew_lock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.renew_lock(text, text, interval, text) IS
	'renew your own named lock; returns false once it is lost';

-- ----------------------------------------------------------------------
-- Function: leaselock.release_lock(3)
--
--	Ends the identity's own named hold, even a lapsed one, as long as nobody
--	has taken over.  Tickets of the same grant stay.
--
-- Parameters: as for try_lock
--
-- Returns:
--	true if a hold was ended; false if there was none, or only another
--	identity's.
--
-- Errors:
--	22023, 22004  an argument is out of bounds, or NULL
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
--	40P01         deadlock with another transaction
--
-- Tables: reads and writes leaselock.locks
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.release_lock(name text, owner text,
	scope text DEFAULT 'public')
RETURNS boolean
AS 'MODULE_PATHNAME', 'leaselock_release_lock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.release_lock(text, text, text) IS
	'release your own named lock';

-- ----------------------------------------------------------------------
-- Fences
-- ----------------------------------------------------------------------

-- ----------------------------------------------------------------------
-- Function: leaselock.fence_check(4)
--
--	Checks whether a fence belongs to the lock's present grant.  If so, it is
--	verified again when the transaction commits: the commit fails with LS001 if
--	the grant was superseded, released, broken or pruned meanwhile.
--
-- Parameters:
--	name          the lock's name
--	fence         the fence of the grant
--	scope         the namespace of the name
--	allow_lapsed  true: a lease that has run out passes as long as nobody
--	              has been granted the lock since
--
-- Returns:
--	true if the fence may write, false if it is stale.
--
-- Errors:
--	22023, 22004  an argument violates the text rules, or is NULL
--	42501         the caller has access neither to the scope nor to the role
--	              that holds the grant
--	40001         REPEATABLE READ, SERIALIZABLE: the grant is younger than
--	              this transaction's snapshot
--	25006         standby
--	LS001         at COMMIT, as above
--	55P03, 40P01  at COMMIT: busy for longer than leaselock.lock_timeout, or
--	              deadlock with another transaction
--
-- Tables: reads leaselock.locks
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.fence_check(name text, fence bigint,
	scope text DEFAULT 'public', allow_lapsed boolean DEFAULT false)
RETURNS boolean
AS 'MODULE_PATHNAME', 'leaselock_fence_check'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.fence_check(text, bigint, text, boolean) IS
	'check whether a fence belongs to the present grant; verified again at commit';

-- ----------------------------------------------------------------------
-- Function: leaselock.fence_assert(4)
--
--	Like fence_check, but raises LS001 if fence_check would return false.
--
-- Parameters, errors, tables: as for fence_check, and
--	LS001  the fence is stale; the detail says why
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.fence_assert(name text, fence bigint,
	scope text DEFAULT 'public', allow_lapsed boolean DEFAULT false)
RETURNS void
AS 'MODULE_PATHNAME', 'leaselock_fence_assert'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.fence_assert(text, bigint, text, boolean) IS
	'raise LS001 unless a fence belongs to the present grant; verified again at commit';

-- ----------------------------------------------------------------------
-- Trigger function: leaselock.fence_guard()
--
--	Refuses writes of a stale holder.  Fences that pass are verified again when
--	the transaction commits, as with fence_check.
--
-- Trigger arguments, in one of three forms:
--	'column', 'fence_column', 'lock name' [, 'scope']
--		BEFORE INSERT OR UPDATE, FOR EACH ROW: the new row must contain a
--		current fence, in a column of type bigint
--	'columns', 'fence_column', 'name_column' [, 'scope_column']
--		likewise, and the new row names its lock, in columns of type text
--	'transaction', 'lock name' [, 'scope']
--		BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE, FOR EACH STATEMENT: the
--		transaction must have passed fence_check or fence_assert for that lock
--	The default scope is 'public'.
--
-- Errors:
--	LS001         the fence is stale, also at COMMIT
--	LS003         the transaction has not checked its fence
--	22004         the fence, name or scope of the row is NULL
--	22023, 0A000  the trigger is not written as above
--	40001         as for fence_check
--	55P03, 40P01  at COMMIT, as for fence_check
--	25006         standby
--
-- Tables: reads leaselock.locks
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.fence_guard()
RETURNS trigger
AS 'MODULE_PATHNAME', 'leaselock_fence_guard'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.fence_guard() IS
	'trigger: refuse writes with a stale fence';

-- ----------------------------------------------------------------------
-- Trigger function: leaselock.fence_monotonic()
--
--	A high-water mark for the tokens of any lock service: an update must not
--	lower the token of a row.  It has nothing to do with leases.
--
-- Trigger arguments:
--	'fence_column'  BEFORE UPDATE, FOR EACH ROW; of type bigint
--
-- Errors:
--	LS001         the new token is lower than the row's
--	22004         the new token is NULL (an old NULL passes)
--	22023, 0A000  the trigger is not written as above
--
-- Tables: none
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.fence_monotonic()
RETURNS trigger
AS 'MODULE_PATHNAME', 'leaselock_fence_monotonic'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.fence_monotonic() IS
	'trigger: refuse updates that lower a fence';

-- ----------------------------------------------------------------------
-- Status.  The views use functions that read the latest committed state: a view
-- over the tables could show two versions of a row in REPEATABLE READ.
-- ----------------------------------------------------------------------

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_peek(2)
--
--	Returns the row of leaselock.lease_status for one lock.  Changes nothing;
--	works on a standby and in a read-only transaction.  Its cost does not depend
--	on the length of the queue: "waiters" stops at 100, which means 100 or more.
--
-- Parameters:
--	name   the lock's name
--	scope  the namespace of the name
--
-- Returns:
--	one row, or none if nobody holds the lock or waits for it.
--
-- Errors:
--	22023, 22004  an argument violates the text rules, or is NULL
--
-- Tables: reads leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_peek(
	name text,
	scope text DEFAULT 'public',
	OUT scope text,
	OUT name text,
	OUT owner text,
	OUT role name,
	OUT fence bigint,
	OUT depth int,
	OUT granted_at timestamptz,
	OUT expires_at timestamptz,
	OUT remaining_ms bigint,
	OUT lapsed boolean,
	OUT waiters int,
	OUT note text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'leaselock_lease_peek'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION leaselock.lease_peek(text, text) IS
	'status of one lock';

-- Used by the view below, which is the interface.
CREATE FUNCTION leaselock.internal_status_rows(
	OUT scope text,
	OUT name text,
	OUT owner text,
	OUT role name,
	OUT fence bigint,
	OUT depth int,
	OUT granted_at timestamptz,
	OUT expires_at timestamptz,
	OUT remaining_ms bigint,
	OUT lapsed boolean,
	OUT waiters int,
	OUT note text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'leaselock_internal_status_rows'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.internal_status_rows() IS
	'internal: serves the view leaselock.lease_status';

CREATE VIEW leaselock.lease_status AS
	SELECT scope, name, owner, role, fence, depth, granted_at, expires_at,
		remaining_ms, lapsed, waiters, note
	FROM leaselock.internal_status_rows();
COMMENT ON VIEW leaselock.lease_status IS
	'one row per lock that is held or waited for';
COMMENT ON COLUMN leaselock.lease_status.scope IS
	'namespace of the lock''s name';
COMMENT ON COLUMN leaselock.lease_status.name IS
	'the lock''s name';
COMMENT ON COLUMN leaselock.lease_status.owner IS
	'owner label of the holder; NULL if nobody holds the lock';
COMMENT ON COLUMN leaselock.lease_status.role IS
	'role of the holder; with the owner label it is the identity';
COMMENT ON COLUMN leaselock.lease_status.fence IS
	'fence of the present grant; pass it to lease_break';
COMMENT ON COLUMN leaselock.lease_status.depth IS
	'number of live tickets of the grant, plus 1 for a named hold';
COMMENT ON COLUMN leaselock.lease_status.granted_at IS
	'when the grant began';
COMMENT ON COLUMN leaselock.lease_status.expires_at IS
	'when the last lease of the grant runs out, unless renewed';
COMMENT ON COLUMN leaselock.lease_status.remaining_ms IS
	'milliseconds until expires_at, by the server''s clock; 0 once that has passed';
COMMENT ON COLUMN leaselock.lease_status.lapsed IS
	'whether the lease has run out and nobody has taken the lock over';
COMMENT ON COLUMN leaselock.lease_status.waiters IS
	'number of live tickets that wait for the lock';
COMMENT ON COLUMN leaselock.lease_status.note IS
	'note of the newest ticket of the grant that has one';

-- Used by the view below, which is the interface.
CREATE FUNCTION leaselock.internal_ticket_rows(
	OUT scope text,
	OUT name text,
	OUT owner text,
	OUT role name,
	OUT ticket uuid,
	OUT state text,
	OUT "position" int,
	OUT depth int,
	OUT requested_at timestamptz,
	OUT expires_at timestamptz,
	OUT wait_until timestamptz,
	OUT remaining_ms bigint,
	OUT note text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'leaselock_internal_ticket_rows'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.internal_ticket_rows() IS
	'internal: serves the view leaselock.lease_tickets';

CREATE VIEW leaselock.lease_tickets AS
	SELECT scope, name, owner, role, ticket, state, "position", depth,
		requested_at, expires_at, wait_until, remaining_ms, note
	FROM leaselock.internal_ticket_rows();
COMMENT ON VIEW leaselock.lease_tickets IS
	'one row per live ticket, held or waiting';
COMMENT ON COLUMN leaselock.lease_tickets.scope IS
	'namespace of the lock''s name';
COMMENT ON COLUMN leaselock.lease_tickets.name IS
	'the lock''s name';
COMMENT ON COLUMN leaselock.lease_tickets.owner IS
	'owner label of the ticket';
COMMENT ON COLUMN leaselock.lease_tickets.role IS
	'role that acquired the ticket; with the owner label it is the identity';
COMMENT ON COLUMN leaselock.lease_tickets.ticket IS
	'the ticket''s uuid; pass it to lease_get, lease_renew or lease_release';
COMMENT ON COLUMN leaselock.lease_tickets.state IS
	'held or waiting';
COMMENT ON COLUMN leaselock.lease_tickets."position" IS
	'waiting: exact place in the queue; 1 is next';
COMMENT ON COLUMN leaselock.lease_tickets.depth IS
	'held: number of live tickets of the grant, plus 1 for a named hold';
COMMENT ON COLUMN leaselock.lease_tickets.requested_at IS
	'when the ticket was requested';
COMMENT ON COLUMN leaselock.lease_tickets.expires_at IS
	'held: when its lease runs out, unless renewed';
COMMENT ON COLUMN leaselock.lease_tickets.wait_until IS
	'waiting: when its wait runs out';
COMMENT ON COLUMN leaselock.lease_tickets.remaining_ms IS
	'milliseconds left of the lease or of the wait, by the server''s clock';
COMMENT ON COLUMN leaselock.lease_tickets.note IS
	'note that was passed when the ticket was acquired';

-- Used by the view below, which is the interface.
CREATE FUNCTION leaselock.internal_scope_rows(
	OUT scope text,
	OUT role name,
	OUT role_exists boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'leaselock_internal_scope_rows'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.internal_scope_rows() IS
	'internal: serves the view leaselock.lease_scopes';

-- Shows the scopes that the caller may use, or all if it may register scopes.
CREATE VIEW leaselock.lease_scopes AS
	SELECT scope, role, role_exists
	FROM leaselock.internal_scope_rows();
COMMENT ON VIEW leaselock.lease_scopes IS
	'one row per registered scope that the caller may use or register';
COMMENT ON COLUMN leaselock.lease_scopes.scope IS
	'the registered scope; matched as exact text';
COMMENT ON COLUMN leaselock.lease_scopes.role IS
	'the role whose members may use the scope';
COMMENT ON COLUMN leaselock.lease_scopes.role_exists IS
	'false if the role has been dropped; then only superusers may use the scope';

-- ----------------------------------------------------------------------
-- Events
-- ----------------------------------------------------------------------

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_events(3)
--
--	Returns the recorded events of leases after a cursor: the xid and id of the
--	last event that the caller has read.  Nothing is ever added before an event
--	that was returned, so a caller that continues from there misses nothing and
--	sees nothing twice.  To that end, an event is shown only when no earlier
--	transaction is still running; a transaction that stays open anywhere in
--	the cluster holds back the events of those that began after it.  Changes
--	nothing; works on a standby and in a read-only transaction, and does not
--	get in the way of other transactions.
--
-- Parameters:
--	after_xid  start after this transaction; NULL: with the oldest event
--	after_id   start after this event of that transaction; NULL: after all of it
--	max_rows   the maximum number of rows to return, 1 or more
--
-- Returns:
--	one row per event, in the order of (xid, id):
--	id         number within the transaction
--	xid        the transaction
--	at         when it happened; expired: when the lease ran out
--	kind       what happened, see leaselock.events above
--	scope, name, owner, role, fence, ticket
--	           whose lease; a named hold has no ticket.  For operators' actions:
--	           the scope if there is one, the operator's role, and for bumped
--	           the new floor as the fence
--	note       the note of the lease, if it has one
--	Unless the caller is a member of pg_monitor, events of scopes that it may
--	not use, and events without a scope, are left out.
--
-- Errors:
--	22023  after_id without after_xid, or max_rows below 1
--	22004  max_rows is NULL
--
-- Tables: reads leaselock.events
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_events(
	after_xid xid8 DEFAULT NULL,
	after_id bigint DEFAULT NULL,
	max_rows int DEFAULT 1000,
	OUT id bigint,
	OUT xid xid8,
	OUT at timestamptz,
	OUT kind text,
	OUT scope text,
	OUT name text,
	OUT owner text,
	OUT role name,
	OUT fence bigint,
	OUT ticket uuid,
	OUT note text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'leaselock_lease_events'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_events(xid8, bigint, int) IS
	'history of leases after a cursor';

-- ----------------------------------------------------------------------
-- Administration.  For the owner of the database, who may grant it to others.
-- ----------------------------------------------------------------------

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_scope_create(2)
--
--	Registers a scope, as an exact text, to a role: from now on only members of
--	the role may acquire, renew and check in it.  Grants of others are broken,
--	and their waits are cancelled.  A registered scope moves to the new role.
--
-- Parameters:
--	scope  the scope, 1 to 255 bytes
--	role   an existing role
--
-- Errors:
--	22023, 22004  scope violates the text rules, an argument is NULL
--	42704         there is no such role
--	25006         read-only transaction or standby
--	55P03         a lock of the scope was busy for longer than
--	              leaselock.lock_timeout
--	40P01         deadlock with another transaction
--
-- Tables: writes leaselock.scopes, leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_scope_create(scope text, role name)
RETURNS void
AS 'MODULE_PATHNAME', 'leaselock_lease_scope_create'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_scope_create(text, name) IS
	'register a scope to a role';

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_scope_drop(1)
--
--	Opens a registered scope to every role again.
--
-- Parameters:
--	scope  the scope
--
-- Returns:
--	false if it was not registered.
--
-- Errors:
--	22023, 22004  scope violates the text rules, or is NULL
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
--	40P01         deadlock with another transaction
--
-- Tables: writes leaselock.scopes
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_scope_drop(scope text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'leaselock_lease_scope_drop'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_scope_drop(text) IS
	'open a registered scope to every role';

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_break(3)
--
--	Ends a grant, lapsed or not, if it is still the present grant.  The first
--	waiter is promoted.
--
-- Parameters:
--	name   the lock's name
--	fence  the fence of the grant, as lease_status shows it
--	scope  the namespace of the name
--
-- Returns:
--	true if the grant was ended; false if the fence does not belong to the
--	present grant.
--
-- Errors:
--	22023, 22004  an argument violates the text rules, or is NULL
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
--	40P01         deadlock with another transaction
--
-- Tables: writes leaselock.locks, leaselock.tickets
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_break(name text, fence bigint,
	scope text DEFAULT 'public')
RETURNS boolean
AS 'MODULE_PATHNAME', 'leaselock_lease_break'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_break(text, bigint, text) IS
	'end the grant with a given fence';

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_prune(2)
--
--	Removes ended tickets, idle locks and old events.  Normal use does that
--	incrementally; this function does it at once.  Rows that are in use are
--	skipped, and fences do not go back.  Outside a transaction block, the call
--	does not wait for the disk.
--
-- Parameters:
--	older_than  how long ago a ticket must have ended, a lock must last have
--	            been used, or an event must have been recorded; tickets are kept
--	            for at least leaselock.ticket_retention, and events for at least
--	            leaselock.event_retention
--	max_rows    the maximum number of rows to remove, 1 or more
--
-- Returns:
--	the number of rows removed.
--
-- Errors:
--	22023, 22004  an argument is out of bounds, or NULL
--	25006         read-only transaction or standby
--
-- Tables: writes leaselock.locks, leaselock.tickets, leaselock.blockers,
--	leaselock.queues, leaselock.floor, leaselock.events
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.lease_prune(older_than interval DEFAULT '1 day',
	max_rows int DEFAULT 10000)
RETURNS bigint
AS 'MODULE_PATHNAME', 'leaselock_lease_prune'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.lease_prune(interval, int) IS
	'remove ended tickets, idle locks and old events';

-- ----------------------------------------------------------------------
-- Function: leaselock.fence_bump()
--
--	Raises the floor of all future fences by a year's worth, above every fence
--	on record.  Needed after events that the server cannot detect: a restored
--	disk snapshot, pg_resetwal, or a clock that was set back by years.
--
-- Returns:
--	the new floor; every later fence is greater.
--
-- Errors:
--	25006  read-only transaction or standby
--	55P03  busy for longer than leaselock.lock_timeout
--	40P01  deadlock with another transaction
--	54000  no greater fence is available
--
-- Tables: reads leaselock.locks, writes leaselock.floor
-- ----------------------------------------------------------------------
CREATE FUNCTION leaselock.fence_bump()
RETURNS bigint
AS 'MODULE_PATHNAME', 'leaselock_fence_bump'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.fence_bump() IS
	'raise the floor of all future fences';

-- ----------------------------------------------------------------------
-- Owner and privileges.  All privileges are granted here, because the block
-- below would revoke anything granted before it.
-- ----------------------------------------------------------------------

-- Everything belongs to the bootstrap superuser (oid 10), whoever installs the
-- extension, and privileges that came from default privileges are revoked.
-- PUBLIC keeps its privileges on functions and types: by default nobody has
-- fewer, unless somebody wanted that.
--
-- If another role owned an object at this point, or appeared in its
-- privileges, it would be recorded in pg_init_privs, before version 17 even
-- after it was dropped.  A dump would then refer to the role by its oid, and
-- could not be restored.
--
-- Operators need no schema, because the control file makes pg_catalog the
-- search path.
DO LANGUAGE plpgsql $$
DECLARE
	kind text;
	object text;
	acl pg_catalog.aclitem[];
	grantee text;
	superuser constant text := pg_catalog.pg_get_userbyid(10);
BEGIN
	FOR kind, object, acl IN
		SELECT 'SCHEMA', pg_catalog.quote_ident(nspname), nspacl
			FROM pg_catalog.pg_namespace WHERE nspname = 'leaselock'
		UNION ALL
		SELECT 'TABLE', oid::pg_catalog.regclass::text, relacl
			FROM pg_catalog.pg_class
			WHERE relnamespace = 'leaselock'::pg_catalog.regnamespace
				AND relkind IN ('r', 'v')
		UNION ALL
		SELECT 'ROUTINE', oid::pg_catalog.regprocedure::text, proacl
			FROM pg_catalog.pg_proc
			WHERE pronamespace = 'leaselock'::pg_catalog.regnamespace
		UNION ALL
		SELECT 'TYPE', reltype::pg_catalog.regtype::text, typacl
			FROM pg_catalog.pg_class c
			JOIN pg_catalog.pg_type t ON t.oid = c.reltype
			WHERE relnamespace = 'leaselock'::pg_catalog.regnamespace
				AND relkind = 'c'
	LOOP
		EXECUTE pg_catalog.format('ALTER %s %s OWNER TO %I',
			kind, object, superuser);
		FOR grantee IN
			SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC'
					ELSE a.grantee::pg_catalog.regrole::text END
				FROM pg_catalog.aclexplode(acl) a
				WHERE a.grantee NOT IN (a.grantor, 10)
					AND (a.grantee <> 0 OR kind IN ('SCHEMA', 'TABLE'))
				GROUP BY a.grantee
		LOOP
			EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s',
				kind, object, grantee);
		END LOOP;
	END LOOP;
END $$;

-- for everybody
GRANT USAGE ON SCHEMA leaselock TO PUBLIC;
GRANT SELECT ON leaselock.lease_status, leaselock.lease_tickets,
	leaselock.lease_scopes TO PUBLIC;

-- For pg_dump, and for restoring its output, by an owner of the database who is
-- not a superuser.  Every owner is a member of pg_database_owner, a role that
-- every cluster has.
GRANT SELECT, INSERT ON leaselock.locks, leaselock.floor, leaselock.scopes
	TO pg_database_owner WITH GRANT OPTION;

-- for operators
REVOKE EXECUTE ON FUNCTION
	leaselock.lease_scope_create(text, name),
	leaselock.lease_scope_drop(text),
	leaselock.lease_break(text, bigint, text),
	leaselock.lease_prune(interval, int),
	leaselock.fence_bump()
	FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
	leaselock.lease_scope_create(text, name),
	leaselock.lease_scope_drop(text),
	leaselock.lease_break(text, bigint, text),
	leaselock.lease_prune(interval, int),
	leaselock.fence_bump()
	TO pg_database_owner WITH GRANT OPTION;
