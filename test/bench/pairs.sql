-- The alternatives inside PostgreSQL that test/bench/pairs compares leaselock with.
-- Needs the psql variable "names", the number of locks.
--
-- All tables of locks contain every name from the start, and have the storage
-- options of leaselock.locks.

-- Two UPDATEs by key: the least that a durable lock with an expiry can do.
CREATE TABLE row_locks (
	name text PRIMARY KEY,
	owner text,
	token bigint NOT NULL DEFAULT 0,
	expires_at timestamptz
) WITH (fillfactor = 50);
INSERT INTO row_locks (name) SELECT 'job.' || i FROM generate_series(1, :names) i;

-- row_locks is filled to its fillfactor, so each of its UPDATEs prunes the page.
-- These are the same locks with free space: every row has two old versions in its
-- page, like those of leaselock.locks after make_locks below.
CREATE TABLE roomy_locks (LIKE row_locks INCLUDING ALL) WITH (fillfactor = 50);
CREATE PROCEDURE make_roomy_locks(names int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. names LOOP
		INSERT INTO roomy_locks (name) VALUES ('job.' || i);
		UPDATE roomy_locks SET owner = 'bench' WHERE name = 'job.' || i;
		UPDATE roomy_locks SET owner = NULL WHERE name = 'job.' || i;
		IF i % 500 = 0 THEN
			COMMIT;
		END IF;
	END LOOP;
END $$;
CALL make_roomy_locks(:names);

-- ShedLock's table.
CREATE TABLE shed_locks (
	name varchar(64) PRIMARY KEY,
	lock_until timestamp NOT NULL,
	locked_at timestamp NOT NULL,
	locked_by varchar(255) NOT NULL
) WITH (fillfactor = 50);
INSERT INTO shed_locks
	SELECT 'job.' || i, '2000-01-01', '2000-01-01', '' FROM generate_series(1, :names) i;

-- The same semantics as leaselock's, without its queue, by hand.
CREATE SCHEMA hand;
CREATE TABLE hand.locks (
	scope text NOT NULL,
	name text NOT NULL,
	fence bigint NOT NULL DEFAULT 0,
	role name,
	owner text,
	granted_at timestamptz,
	tickets int NOT NULL DEFAULT 0,
	expires_at timestamptz,
	hold_expires_at timestamptz,
	PRIMARY KEY (scope, name)
) WITH (fillfactor = 50);
INSERT INTO hand.locks (scope, name)
	SELECT 'public', 'job.' || i FROM generate_series(1, :names) i;

-- No index contains the state or an expiry, so a release is a HOT update.
CREATE TABLE hand.tickets (
	ticket uuid PRIMARY KEY,
	scope text NOT NULL,
	name text NOT NULL,
	request_id uuid,
	role name NOT NULL,
	owner text NOT NULL,
	state text NOT NULL,
	fence bigint NOT NULL,
	lease interval NOT NULL,
	requested_at timestamptz NOT NULL,
	expires_at timestamptz NOT NULL,
	ended_at timestamptz,
	UNIQUE (scope, name, request_id)
) WITH (fillfactor = 80);
CREATE INDEX ON hand.tickets (scope, name, fence);

-- Makes the row of a lock if it does not exist; NULL if it does, because then another
-- transaction has locked it.
CREATE FUNCTION hand.make_lock(scope text, name text) RETURNS hand.locks
LANGUAGE plpgsql AS $$
DECLARE
	made hand.locks;
BEGIN
	INSERT INTO hand.locks (scope, name) VALUES (make_lock.scope, make_lock.name)
		ON CONFLICT DO NOTHING RETURNING * INTO made;
	RETURN made;
END $$;

-- Ends the tickets of a grant that has lapsed.
CREATE FUNCTION hand.settle(lapsed hand.locks) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	UPDATE hand.tickets t SET state = 'expired', ended_at = t.expires_at
		WHERE t.scope = lapsed.scope AND t.name = lapsed.name
		AND t.fence = lapsed.fence AND t.state = 'held';
END $$;

CREATE FUNCTION hand.lease_acquire(name text, owner text, lease interval DEFAULT '60 s',
	scope text DEFAULT 'public', request_id uuid DEFAULT NULL,
	OUT ticket uuid, OUT state text, OUT fence bigint, OUT expires_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
	present hand.locks;
	moment timestamptz;
BEGIN
	IF NOT lease BETWEEN '5 s' AND '300 s' THEN
		RAISE 'lease % is out of bounds', lease;
	END IF;
	IF request_id IS NOT NULL THEN
		SELECT t.ticket, t.state, t.fence, t.expires_at INTO ticket, state, fence, expires_at
			FROM hand.tickets t
			WHERE t.scope = lease_acquire.scope AND t.name = lease_acquire.name
			AND t.request_id = lease_acquire.request_id
			AND t.role = current_user AND t.owner = lease_acquire.owner;
		IF FOUND THEN
			RETURN;
		END IF;
	END IF;

	SELECT * INTO present FROM hand.locks k
		WHERE k.scope = lease_acquire.scope AND k.name = lease_acquire.name FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		present := hand.make_lock(scope, name);
	END IF;
	moment := clock_timestamp();
	IF present IS NULL THEN
		state := 'contended';
		RETURN;
	ELSIF present.owner IS NOT NULL AND greatest(present.expires_at, present.hold_expires_at) > moment THEN
		IF present.role <> current_user OR present.owner <> lease_acquire.owner THEN
			state := 'contended';
			RETURN;
		END IF;
	ELSE
		IF present.tickets > 0 THEN
			PERFORM hand.settle(present);
		END IF;
		present.fence := present.fence + 1;
		present.granted_at := moment;
		present.tickets := 0;
		present.expires_at := NULL;
		present.hold_expires_at := NULL;
	END IF;

	ticket := gen_random_uuid();
	state := 'held';
	fence := present.fence;
	expires_at := moment + lease;
	UPDATE hand.locks k
		SET fence = present.fence, role = current_user, owner = lease_acquire.owner,
			granted_at = present.granted_at, tickets = present.tickets + 1,
			expires_at = greatest(present.expires_at, lease_acquire.expires_at),
			hold_expires_at = present.hold_expires_at
		WHERE k.scope = lease_acquire.scope AND k.name = lease_acquire.name;
	INSERT INTO hand.tickets
		VALUES (ticket, scope, name, request_id, current_user, owner, state, fence, lease, moment, expires_at);
END $$;

-- The lock's row is locked first, as in lease_acquire, so that the two cannot
-- deadlock.
CREATE FUNCTION hand.lease_release(ticket uuid, OUT state text, OUT fence bigint)
LANGUAGE plpgsql AS $$
DECLARE
	present hand.locks;
	moment timestamptz;
BEGIN
	SELECT k.* INTO present
		FROM hand.tickets t JOIN hand.locks k ON k.scope = t.scope AND k.name = t.name
		WHERE t.ticket = lease_release.ticket FOR UPDATE OF k;
	IF NOT FOUND THEN
		state := 'gone';
		RETURN;
	END IF;
	moment := clock_timestamp();
	UPDATE hand.tickets t
		SET state = CASE WHEN t.expires_at > moment THEN 'released' ELSE 'expired' END, ended_at = moment
		WHERE t.ticket = lease_release.ticket AND t.state = 'held' AND t.role = current_user
		RETURNING t.state, t.fence INTO state, fence;
	IF NOT FOUND THEN
		SELECT t.state, t.fence INTO state, fence FROM hand.tickets t
			WHERE t.ticket = lease_release.ticket AND t.role = current_user;
		RETURN;
	END IF;
	IF present.fence <> lease_release.fence THEN
		RETURN;
	END IF;
	IF present.tickets = 1 AND present.hold_expires_at IS NULL THEN
		UPDATE hand.locks k SET role = NULL, owner = NULL, tickets = 0, expires_at = NULL
			WHERE k.scope = present.scope AND k.name = present.name;
	ELSE
		UPDATE hand.locks k
			SET tickets = k.tickets - 1,
				expires_at = (SELECT max(t.expires_at) FROM hand.tickets t
							  WHERE t.scope = present.scope AND t.name = present.name
							  AND t.fence = present.fence AND t.state = 'held')
			WHERE k.scope = present.scope AND k.name = present.name;
	END IF;
END $$;

CREATE FUNCTION hand.try_lock(name text, owner text, ttl interval, scope text DEFAULT 'public')
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	present hand.locks;
	moment timestamptz;
BEGIN
	IF NOT ttl > '0 s' THEN
		RAISE 'ttl % is out of bounds', ttl;
	END IF;
	SELECT * INTO present FROM hand.locks k
		WHERE k.scope = try_lock.scope AND k.name = try_lock.name FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		present := hand.make_lock(scope, name);
	END IF;
	moment := clock_timestamp();
	IF present IS NULL THEN
		RETURN NULL;
	ELSIF present.owner IS NOT NULL AND greatest(present.expires_at, present.hold_expires_at) > moment THEN
		IF present.role <> current_user OR present.owner <> try_lock.owner THEN
			RETURN NULL;
		ELSIF present.hold_expires_at > moment THEN
			RETURN present.fence;
		END IF;
	ELSE
		IF present.tickets > 0 THEN
			PERFORM hand.settle(present);
		END IF;
		present.fence := present.fence + 1;
		present.granted_at := moment;
		present.tickets := 0;
		present.expires_at := NULL;
	END IF;
	UPDATE hand.locks k
		SET fence = present.fence, role = current_user, owner = try_lock.owner,
			granted_at = present.granted_at, tickets = present.tickets,
			expires_at = present.expires_at, hold_expires_at = moment + ttl
		WHERE k.scope = try_lock.scope AND k.name = try_lock.name;
	RETURN present.fence;
END $$;

CREATE FUNCTION hand.release_lock(name text, owner text, scope text DEFAULT 'public')
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	UPDATE hand.locks k
		SET role = CASE WHEN k.tickets > 0 THEN k.role END,
			owner = CASE WHEN k.tickets > 0 THEN k.owner END,
			hold_expires_at = NULL
		WHERE k.scope = release_lock.scope AND k.name = release_lock.name
		AND k.role = current_user AND k.owner = release_lock.owner AND k.hold_expires_at IS NOT NULL;
	RETURN FOUND;
END $$;

-- The locks of leaselock, and for each client that makes fenced writes a hold with its
-- fence.
CREATE EXTENSION leaselock;
CREATE PROCEDURE make_locks(names int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. names LOOP
		PERFORM leaselock.try_lock('job.' || i, 'bench', '60 s');
		PERFORM leaselock.release_lock('job.' || i, 'bench');
		IF i % 500 = 0 THEN
			COMMIT;
		END IF;
	END LOOP;
END $$;
CALL make_locks(:names);

CREATE TABLE holds (client int PRIMARY KEY, fence bigint);
INSERT INTO holds SELECT i, leaselock.try_lock('hold.' || i, 'bench', '1 day') FROM generate_series(0, 31) i;
CREATE TABLE unguarded (id int PRIMARY KEY, lock text, fence bigint, value int) WITH (fillfactor = 50);
INSERT INTO unguarded SELECT client, 'hold.' || client, fence, 0 FROM holds;
CREATE TABLE guarded (LIKE unguarded INCLUDING ALL) WITH (fillfactor = 50);
INSERT INTO guarded SELECT * FROM unguarded;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON guarded FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'lock');
VACUUM ANALYZE;
CHECKPOINT;
