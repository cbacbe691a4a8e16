/* sql/leaselock--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION leaselock" to load this file. \quit

-- The script makes the schema itself: a "schema" line in the control file
-- would adopt one that somebody else had planted.
CREATE SCHEMA leaselock;
COMMENT ON SCHEMA leaselock IS 'lease locks with fencing';

-- ----------------------------------------------------------------------
-- Storage.  Closed to everybody: the functions read and write these tables
-- without the executor, and so without its privileges.  Nothing but the
-- functions may write them, because their order is kept by heavyweight locks
-- that a plain statement does not take.  The constraints bind what a restore
-- brings in; the functions keep them by themselves.  The tables must stay plain
-- heap tables.  Triggers on them do not fire, further indexes are kept up to
-- date, and an index on an expression, or with a predicate other than that a
-- column is not null, is refused.
-- ----------------------------------------------------------------------

-- Tells this installation from one that a dump was taken of.  It is not
-- dumped, so that holders which arrive by a restore are recognised as not
-- ours, while pg_upgrade and physical copies keep it.
--   id      goes into the column "home" of other tables
--   secret  the key of the hashes that the heavyweight locks show, so that
--           nobody can aim at the lock of somebody else, or tell from
--           pg_locks which names are in use
-- Row security closes it to members of pg_read_all_data as well.
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

-- A row per lock.  Its only key is (scope, name), so that every change of a
-- lock is a HOT update; half of each page is kept free for that.
--   fence            the newest fence handed out
--   passed           queue places up to this one have had their turn
--   changed_at       the lock's time: no later operation reads an earlier one
--   tickets          tickets of the grant that have not been ended
--   home             at the last write: installation.id, and the database's oid,
--                    so that a copy made by CREATE DATABASE is another home
--   role, owner      the identity that holds the lock, NULL if nobody does
--   granted_at, granted_xid  when, and by which transaction, it was granted
--   expires_at       the latest expiry of its tickets, NULL if there are none
--   hold_expires_at  expiry of the named hold, NULL if there is none
--   first_ticket     one of the tickets of the grant, if it has any that is
--                    not on the grant's list (tickets.member_of)
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

-- A row per ticket.  Most tickets are in one index only: they hold their lock
-- alone, nobody queued for them, and they were asked for without a request id.
-- The one unique key begins with the lock's key and is guarded by a heavyweight
-- lock on (lock, request id), so that no writer ever waits inside the index.
-- Neither the state nor a deadline is in any index.
--   state        by what is stored; the clock's part is computed on reading:
--                h held, w waiting, r released, e expired, t timed_out,
--                c cancelled, d deadlock, b broken
--   claimed      false: promoted, and nobody has asked for it yet
--   lease_us     length of the lease, last asked for, in microseconds
--   request_id   the caller's, NULL if it gave none
--   place        in the queue, NULL if it is not there, or not any more
--   member_of    the fence of the grant on whose list it is; NULL: on none
--   fence        of the grant that it had a share in, NULL: none yet
--   alive_until  a polling waiter must be heard from before this; NULL while
--                a backend waits in lease_wait, which shows that it is alive
--                by its liveness lock
--   ended_at     when the ticket was ended, by what is stored
--   waiter_pid   the backend that waits in lease_wait, to be woken
--   note         a text of the caller's for people; no rule looks at it
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

-- Which identity somebody found in his way when he queued for a lock: what a
-- search for cycles starts from.  Only a hint: whoever reads a row checks that
-- the identity holds the lock now.  No key, so that nobody waits in an index;
-- a duplicate does no harm.
CREATE TABLE leaselock.blockers (
	role oid NOT NULL,
	owner text COLLATE "C" NOT NULL,
	scope text COLLATE "C" NOT NULL,
	name text COLLATE "C" NOT NULL
) USING heap;
COMMENT ON TABLE leaselock.blockers IS
	'internal: holders that waiters found when they queued; hints for deadlock detection';
CREATE INDEX blockers_owner ON leaselock.blockers (owner, role);

-- Has a row if a ticket may be in the queue of any lock: most databases have no
-- queue, and where none is on record no session looks for waiters.
--   since  when the first ticket was put into a queue
CREATE TABLE leaselock.queues (
	since timestamptz NOT NULL
) USING heap;
COMMENT ON TABLE leaselock.queues IS
	'internal: has a row if any lock may have waiters';

-- The floor of all future fences: none is given at or below it.  It has no
-- row until it is first raised, for a row that the script inserted would
-- collide with the one that a dump carries.  Should there be several, as after
-- a second restore, the greatest counts.
--   fence    the floor
--   reading  the reading of the fences' clock when it was raised: above a floor
--            that is ahead of the clock, fences go on from there with the time
CREATE TABLE leaselock.floor (
	fence bigint NOT NULL,
	reading bigint NOT NULL,
	CONSTRAINT floor_fence CHECK (fence BETWEEN 1 AND 2305843009213693952),
	CONSTRAINT floor_reading CHECK (reading BETWEEN 0 AND 2305843009213693952)
) USING heap;
COMMENT ON TABLE leaselock.floor IS
	'internal: the floor; every new fence is greater';
-- They have no key, and a publication FOR ALL TABLES would refuse to update or
-- delete their rows without a replica identity.
ALTER TABLE leaselock.tickets REPLICA IDENTITY FULL;
ALTER TABLE leaselock.blockers REPLICA IDENTITY FULL;
ALTER TABLE leaselock.queues REPLICA IDENTITY FULL;
ALTER TABLE leaselock.floor REPLICA IDENTITY FULL;

-- Which role a scope is registered to.  A scope without a row is open to every
-- role.
--   role       the role's name at that time; it counts where the row came in a
--              dump, for oids are of no use there
--   role_oid   the role, whatever it is called now; it counts otherwise
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

-- What became of leases, a row for each change as far as leaselock.events says
-- so; append only, and read by lease_events().  A row is known by its transaction
-- and its number in that, which is the order of readers as well: so sessions do
-- not have to agree on a next number, and no two can conflict in the key.  Old
-- rows are removed, so the key serves as the replica identity too.  Not dumped:
-- a transaction's number means nothing in another cluster.
--   id           number within the transaction, from 1; a savepoint that was
--                rolled back leaves a gap
--   xid          the transaction
--   at           when it happened, by the lock's time; for what ran out, when
--                that was
--   recorded_at  when the row was written, from which it is kept
--   role, owner  whose lease it was; no owner: the operator
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

-- Sessions remember the floor, the registered scopes and whether there are
-- queues.  What changes these tables by SQL, such as a restore, tells them; so
-- does logical replication, which fires triggers for each row only.  TRUNCATE,
-- which makes another file of the table, is told by the server.
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

-- Dumps carry the registered scopes, the last fences and the floor, so that fences go on growing in
-- a restored database.  Leases do not survive a restore, so tickets are left
-- out, and the holders in the lock rows are void by their "home".
SELECT pg_catalog.pg_extension_config_dump('leaselock.locks', '');
SELECT pg_catalog.pg_extension_config_dump('leaselock.floor', '');
SELECT pg_catalog.pg_extension_config_dump('leaselock.scopes', '');

-- ----------------------------------------------------------------------
-- Tickets
-- ----------------------------------------------------------------------

-- What every ticket call answers with: exactly one row.
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
--	Acquires a lock and answers with a ticket for it.
--
-- Parameters:
--	name        the lock's name, 1 to 255 bytes
--	owner       the caller's label; with the current role it is the identity
--	lease       how long the grant lasts unless renewed,
--	            leaselock.min_lease to leaselock.max_lease (5 s to 300 s)
--	wait        how long to wait for a turn, 0 to leaselock.max_wait (300 s)
--	scope       the namespace of the name, 1 to 255 bytes
--	request_id  names this acquisition, so that a retry finds the ticket that
--	            the first call made; NULL: every call is a new acquisition
--	note        a text for people (host, job, link), up to 1000 bytes without
--	            control characters, kept with the ticket; NULL or empty: none
--
-- Returns:
--	state held (with fence, expires_at, depth), waiting (with position),
--	contended or deadlock (both without a ticket); for a request id that is
--	known: the ticket in its present state.
--
-- Errors:
--	22023, 22004  an argument is out of its bounds, or NULL
--	42501         the scope is registered to a role that the caller is not a
--	              member of
--	LS002         the request id belongs to another identity
--	53400         too many waiters for this lock (leaselock.max_waiters)
--	25006         read-only transaction or standby
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
--	Answers with the present state of a ticket.  For a waiting ticket the call
--	is its sign of life, and takes its turn if that has come; for a promoted
--	one the first call starts the full lease.
--
-- Parameters:
--	ticket  the ticket's uuid
--
-- Returns:
--	the ticket; state gone if there is none of that uuid.
--
-- Errors:
--	22004  NULL
--	42501  the caller is not a member of the role that acquired the ticket
--	25006  read-only transaction or standby
--	55P03  busy for longer than leaselock.lock_timeout
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
--	Makes a held ticket last a full lease from now.
--
-- Parameters:
--	ticket  the ticket's uuid
--	lease   the new length, leaselock.min_lease to leaselock.max_lease;
--	        NULL: the length last asked for
--
-- Returns:
--	the ticket; unchanged and in its state if it is not held any more.
--
-- Errors:
--	22023, 22004  lease is out of its bounds, ticket is NULL
--	42501         the caller is not a member of the role that acquired the
--	              ticket, or of the one that the scope is registered to
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
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
--	Gives a ticket back, or cancels its wait.  The grant ends with its last
--	ticket, and the first waiter is promoted.
--
-- Parameters:
--	ticket  the ticket's uuid
--
-- Returns:
--	the ticket: released if it was held, cancelled if it waited; otherwise
--	unchanged, in its state.
--
-- Errors:
--	22004  NULL
--	42501  the caller is not a member of the role that acquired the ticket
--	25006  read-only transaction or standby
--	55P03  busy for longer than leaselock.lock_timeout
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
--	Gives back every live ticket of the identity (current role, owner).
--	Named holds are not tickets and stay.
--
-- Parameters:
--	owner  the identity's label
--	scope  only locks of this scope; NULL: of every scope
--
-- Returns:
--	how many tickets were ended.
--
-- Errors:
--	22023, 22004  owner or scope breaks the text rules, owner is NULL
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
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
--	Waits for a ticket's turn: in a series of short transactions, without a
--	snapshot or a transaction id while it sleeps.  Several sessions may wait
--	for one ticket; each counts as its sign of life for as long as it waits.
--
-- Parameters:
--	ticket      the ticket's uuid
--	timeout     how long to wait at the most, 0 or more; NULL: until the
--	            ticket's own wait is over
--	state       (out) the ticket's state: waiting if the timeout came first,
--	            and the ticket stays queued
--	fence       (out) if held: its fence
--	expires_at  (out) if held: when the lease runs out
--
-- Errors:
--	22023, 22004  timeout is out of its bounds, ticket is NULL
--	42501         the caller is not a member of the role that acquired the
--	              ticket
--	25006         read-only transaction or standby
--	2D000         it cannot commit here: transaction block, function,
--	              exception block, pipeline
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
--	lease_acquire and lease_wait in one: acquires the lock, and waits for its
--	turn if need be.  If the wait is ended by a cancel, a time-out or the
--	loss of the client, the ticket is cancelled.
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
-- Named locks: a yes or no, and no ticket
-- ----------------------------------------------------------------------

-- ----------------------------------------------------------------------
-- Function: leaselock.try_lock(4)
--
--	Takes the named hold of a lock, or says at once that it cannot.
--	Taking it again does not refresh the lease and adds no depth.
--
-- Parameters:
--	name   the lock's name, 1 to 255 bytes
--	owner  the caller's label; with the current role it is the identity
--	ttl    how long the hold lasts unless renewed: more than 0, at most
--	       leaselock.max_ttl (36500 days)
--	scope  the namespace of the name, 1 to 255 bytes
--
-- Returns:
--	the fence; NULL if another identity holds the lock or waits for it.
--
-- Errors:
--	22023, 22004  an argument is out of its bounds, or NULL
--	42501         the scope is registered to a role that the caller is not a
--	              member of
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
--	Makes the named hold last a full ttl from now, also after a lapse, as
--	long as nobody took over.
--
-- Parameters: as for try_lock
--
-- Returns:
--	true if the hold was there to renew, false once it is lost: somebody took
--	over, or it lapsed and somebody waits.
--
-- Errors:
--	22023, 22004  an argument is out of its bounds, or NULL
--	42501         the scope is registered to a role that the caller is not a
--	              member of
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
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
--	Ends the identity's own named hold, also a lapsed one, as long as nobody
--	took over.  Tickets of the same grant live on.
--
-- Parameters: as for try_lock
--
-- Returns:
--	true if there was a hold to end, false if none or another identity's.
--
-- Errors:
--	22023, 22004  an argument is out of its bounds, or NULL
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
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
--	Tells whether a fence is the lock's present grant.  A true answer is
--	verified once more when the transaction commits: the commit fails with
--	LS001 if the grant was superseded, released, broken or pruned meanwhile.
--
-- Parameters:
--	name          the lock's name
--	fence         the fence that the grant gave
--	scope         the namespace of the name
--	allow_lapsed  true: a lease that has run out passes as long as nobody
--	              was granted the lock since
--
-- Returns:
--	true if the fence may write, false if it is stale.
--
-- Errors:
--	22023, 22004  an argument breaks the text rules, or is NULL
--	42501         the caller has access neither to the scope nor to the role
--	              that holds the grant
--	40001         REPEATABLE READ, SERIALIZABLE: the grant is younger than
--	              this transaction's snapshot
--	25006         standby
--	LS001         at COMMIT, as above
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
--	fence_check that raises LS001 where fence_check is false.
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
--	Refuses writes of a stale holder.  What it lets pass is verified once more
--	when the transaction commits, as with fence_check.
--
-- Trigger arguments, in one of three forms:
--	'column', 'fence_column', 'lock name' [, 'scope']
--		BEFORE INSERT OR UPDATE, FOR EACH ROW: the new row carries the fence,
--		in a column of type bigint
--	'columns', 'fence_column', 'name_column' [, 'scope_column']
--		the same, and the new row names its lock, in columns of type text
--	'transaction', 'lock name' [, 'scope']
--		BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE, FOR EACH STATEMENT: the
--		transaction has a passing fence_check or fence_assert for that lock
--	The scope is 'public' unless given.
--
-- Errors:
--	LS001         the fence is stale, also at COMMIT
--	LS003         the transaction has not checked its fence
--	22004         the fence, name or scope of the row is NULL
--	22023, 0A000  the trigger is not written as above
--	40001         as for fence_check
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
--	A high-water mark for the tokens of any lock service: an update may not
--	lower the token of a row.  Knows nothing of leases.
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
-- Status.  Served by functions on the latest committed state: a view over
-- the tables would show two versions of a row in REPEATABLE READ.
-- ----------------------------------------------------------------------

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_peek(2)
--
--	The row of leaselock.lease_status for one lock.  Changes nothing; works
--	on a standby and in a read-only transaction.  Costs the same in a long
--	queue: "waiters" stops at 100, which stands for that or more.
--
-- Parameters:
--	name   the lock's name
--	scope  the namespace of the name
--
-- Returns:
--	one row, or none if nobody holds the lock or waits for it.
--
-- Errors:
--	22023, 22004  an argument breaks the text rules, or is NULL
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

-- Serves the view below; the view is the interface.
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

-- Serves the view below; the view is the interface.
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

-- Serves the view below; the view is the interface.
CREATE FUNCTION leaselock.internal_scope_rows(
	OUT scope text,
	OUT role name,
	OUT role_exists boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'leaselock_internal_scope_rows'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leaselock.internal_scope_rows() IS
	'internal: serves the view leaselock.lease_scopes';

-- Shows what the caller may use, and everything to who may register scopes.
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
--	What became of leases, as far as leaselock.events has it recorded, behind a
--	cursor: the xid and id of the last event that the caller has read.  Nothing
--	is ever added before what was answered, so who goes on from there misses
--	nothing and sees nothing twice.  Therefore only events are shown before
--	whose transactions no other was under way; a transaction that stays open
--	anywhere in the cluster holds back what began after it.  Changes nothing;
--	works on a standby and in a read-only transaction, and is not in the way of
--	any other.
--
-- Parameters:
--	after_xid  begin behind this transaction; NULL: with the first event on record
--	after_id   begin behind this event of that transaction; NULL: behind all of it
--	max_rows   the most rows to answer with, 1 or more
--
-- Returns:
--	a row per event, in the order of (xid, id):
--	id         number within the transaction
--	xid        the transaction
--	at         when it happened; expired: when the lease ran out
--	kind       what happened, see leaselock.events above
--	scope, name, owner, role, fence, ticket
--	           whose lease; a named hold has no ticket.  Of what operators do:
--	           the scope if there is one, the operator's role, and in bumped the
--	           new floor as the fence
--	note       the note of the lease, if it has one
--	Events of scopes that the caller may not use are left out, those without a
--	scope too, unless it is a member of pg_monitor.
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
-- Administration.  For the owner of the database, who may grant it on.
-- ----------------------------------------------------------------------

-- ----------------------------------------------------------------------
-- Function: leaselock.lease_scope_create(2)
--
--	Registers a scope, exactly that text, to a role: from now on only members
--	of the role may acquire, renew and check in it.  Grants of others are
--	broken, their waits cancelled.  A registered scope moves to the new role.
--
-- Parameters:
--	scope  the scope, 1 to 255 bytes
--	role   an existing role
--
-- Errors:
--	22023, 22004  scope breaks the text rules, an argument is NULL
--	42704         there is no such role
--	25006         read-only transaction or standby
--	55P03         a lock of the scope was busy for longer than
--	              leaselock.lock_timeout
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
--	22023, 22004  scope breaks the text rules, or is NULL
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
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
--	Ends a grant, lapsed or not, if it is still the present one.  The first
--	waiter is promoted.
--
-- Parameters:
--	name   the lock's name
--	fence  the fence of the grant, as lease_status shows it
--	scope  the namespace of the name
--
-- Returns:
--	true if the grant was ended, false if that fence is not the present grant.
--
-- Errors:
--	22023, 22004  an argument breaks the text rules, or is NULL
--	25006         read-only transaction or standby
--	55P03         busy for longer than leaselock.lock_timeout
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
--	Removes ended tickets, idle locks and old events.  Use does that
--	incrementally; this does it at once.  What is busy is left alone, and fences
--	do not go back.  Called outside a transaction block it does not wait for the
--	disk.
--
-- Parameters:
--	older_than  how long a ticket must have been ended, a lock idle, or an event
--	            on record; a ticket is kept for leaselock.ticket_retention at
--	            least, an event for leaselock.event_retention
--	max_rows    the most rows to remove, 1 or more
--
-- Returns:
--	how many rows were removed.
--
-- Errors:
--	22023, 22004  an argument is out of its bounds, or NULL
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
--	on record.  For what the server cannot see: a restored disk snapshot,
--	pg_resetwal, a clock that was set back by years.
--
-- Returns:
--	the new floor; every later fence is greater.
--
-- Errors:
--	25006  read-only transaction or standby
--	55P03  busy for longer than leaselock.lock_timeout
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
-- Owner and privileges.  Granted here and nowhere else in the script, because
-- what is granted before the block below would be taken away by it.
-- ----------------------------------------------------------------------

-- Everything belongs to the first superuser (10), whoever installs the
-- extension, and privileges that default privileges gave are taken away again.
-- PUBLIC keeps what it has on functions and types: nobody has less than that
-- by default, unless somebody wanted it so.
--
-- A role that owned an object now, or was named in its privileges, would be
-- remembered in pg_init_privs, before 17 also after it was dropped; a dump then
-- names it by its oid and cannot be restored.
--
-- Operators are found in pg_catalog: the control file makes that the path.
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

-- For pg_dump, and for the restore of what it carries, by an owner of the
-- database who is no superuser.  Whoever that is is a member of
-- pg_database_owner, a role that every cluster has.
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
