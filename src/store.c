/*-------------------------------------------------------------------------
 *
 * store.c
 *	  Rows in and out: every SQL text and every scan of the module.
 *
 * Reads go straight to the tables, by an index, and see what is committed at
 * that moment and what this transaction has written, whatever snapshot the
 * transaction has.  They judge each version of a row by the latest snapshot
 * themselves: the server's scan is given SnapshotAny, which leaves no
 * predicate locks and so causes no serialization failure.  (With SnapshotSelf
 * a scan misses a row that is moved to another page while it runs.)  A row
 * whose tag the caller holds cannot change under it; what was read without a
 * tag may be history the next moment, and callers decide again under the tag.
 *
 * Writes go through SPI by ctid with the latest snapshot, so that the
 * executor sees to constraints, indexes and read-only transactions, and a
 * transaction-wide snapshot that is older than the row is no conflict.  The
 * caller must hold the tag that guards the row (locktag.c), which is what
 * keeps "tuple concurrently updated" away.
 *
 * Plans are kept for the life of the session.  They name everything by
 * schema, so they outlive DROP and CREATE EXTENSION and any search_path.  No
 * oid is kept.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "leaselock.h"

/* Columns, in the order of the install script. */
enum
{
	LOCKS_SCOPE = 1,
	LOCKS_NAME,
	LOCKS_FENCE,
	LOCKS_PASSED,
	LOCKS_CHANGED_AT,
	LOCKS_HOME,
	LOCKS_ROLE,
	LOCKS_OWNER,
	LOCKS_GRANTED_AT,
	LOCKS_GRANTED_XID,
	LOCKS_TICKETS,
	LOCKS_EXPIRES_AT,
	LOCKS_HOLD_EXPIRES_AT,
	LOCKS_COLUMNS = LOCKS_HOLD_EXPIRES_AT
};

enum
{
	TICKETS_SCOPE = 1,
	TICKETS_NAME,
	TICKETS_REQUEST_ID,
	TICKETS_TICKET,
	TICKETS_ROLE,
	TICKETS_OWNER,
	TICKETS_PLACE,
	TICKETS_WAITING,
	TICKETS_STATE,
	TICKETS_FENCE,
	TICKETS_LEASE_US,
	TICKETS_REQUESTED_AT,
	TICKETS_EXPIRES_AT,
	TICKETS_WAIT_UNTIL,
	TICKETS_ALIVE_UNTIL,
	TICKETS_WAITER_PID,
	TICKETS_CLAIMED,
	TICKETS_ENDED_AT,
	TICKETS_COLUMNS = TICKETS_ENDED_AT
};

enum
{
	BLOCKERS_ROLE = 1,
	BLOCKERS_OWNER,
	BLOCKERS_SCOPE,
	BLOCKERS_NAME,
	BLOCKERS_COLUMNS = BLOCKERS_NAME
};

typedef enum StoreQuery
{
	INSERT_LOCK,
	UPDATE_LOCK,
	INSERT_TICKET,
	UPDATE_TICKET,
	INSERT_BLOCKER,
	DELETE_BLOCKER,
	DELETE_LOCK,
	DELETE_TICKET,
	INSERT_FLOOR,
	UPDATE_FLOOR,
	INSERT_SCOPE,
	UPDATE_SCOPE,
	DELETE_SCOPE
} StoreQuery;

/*
 * Values are numbered by column, so that an insert and an update of a table
 * share them; $1 of an update is the ctid.
 */
static struct
{
	const char *text;
	int			nargs;
	Oid			types[TICKETS_COLUMNS];
	int			result;
	SPIPlanPtr	plan;
}			queries[] =
{
	[INSERT_LOCK] = {
		"INSERT INTO leaselock.locks (scope, name, fence, passed, changed_at,"
		" home, role, owner, granted_at, granted_xid, tickets, expires_at,"
		" hold_expires_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
		" RETURNING ctid",
		LOCKS_COLUMNS,
		{TEXTOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID,
			UUIDOID, OIDOID, TEXTOID, TIMESTAMPTZOID, XID8OID, INT4OID,
		TIMESTAMPTZOID, TIMESTAMPTZOID},
		SPI_OK_INSERT_RETURNING
	},
	[UPDATE_LOCK] = {
		"UPDATE leaselock.locks SET fence = $3, passed = $4, changed_at = $5,"
		" home = $6, role = $7, owner = $8, granted_at = $9,"
		" granted_xid = $10, tickets = $11, expires_at = $12,"
		" hold_expires_at = $13"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		LOCKS_COLUMNS,
		{TIDOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID,
			UUIDOID, OIDOID, TEXTOID, TIMESTAMPTZOID, XID8OID, INT4OID,
		TIMESTAMPTZOID, TIMESTAMPTZOID},
		SPI_OK_UPDATE_RETURNING
	},
	[INSERT_TICKET] = {
		"INSERT INTO leaselock.tickets (scope, name, request_id, ticket,"
		" role, owner, place, waiting, state, fence, lease_us, requested_at,"
		" expires_at, wait_until, alive_until, waiter_pid, claimed, ended_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,"
		" $14, $15, $16, $17, $18) RETURNING ctid",
		TICKETS_COLUMNS,
		{TEXTOID, TEXTOID, UUIDOID, UUIDOID,
			OIDOID, TEXTOID, INT8OID, BOOLOID, TEXTOID, INT8OID, INT8OID,
			TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
		INT4OID, BOOLOID, TIMESTAMPTZOID},
		SPI_OK_INSERT_RETURNING
	},
	[UPDATE_TICKET] = {
		"UPDATE leaselock.tickets SET place = $7, waiting = $8, state = $9,"
		" fence = $10, lease_us = $11, expires_at = $13, wait_until = $14,"
		" alive_until = $15, waiter_pid = $16, claimed = $17, ended_at = $18"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		TICKETS_COLUMNS,
		{TIDOID, TEXTOID, UUIDOID, UUIDOID,
			OIDOID, TEXTOID, INT8OID, BOOLOID, TEXTOID, INT8OID, INT8OID,
			TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
		INT4OID, BOOLOID, TIMESTAMPTZOID},
		SPI_OK_UPDATE_RETURNING
	},
	[INSERT_BLOCKER] = {
		"INSERT INTO leaselock.blockers (role, owner, scope, name)"
		" VALUES ($1, $2, $3, $4) RETURNING ctid",
		BLOCKERS_COLUMNS,
		{OIDOID, TEXTOID, TEXTOID, TEXTOID},
		SPI_OK_INSERT_RETURNING
	},
	[DELETE_BLOCKER] = {
		"DELETE FROM leaselock.blockers"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		1, {TIDOID}, SPI_OK_DELETE_RETURNING
	},
	[DELETE_LOCK] = {
		"DELETE FROM leaselock.locks"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		1, {TIDOID}, SPI_OK_DELETE_RETURNING
	},
	[DELETE_TICKET] = {
		"DELETE FROM leaselock.tickets"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		1, {TIDOID}, SPI_OK_DELETE_RETURNING
	},
	[INSERT_FLOOR] = {
		"INSERT INTO leaselock.floor (fence, reading) VALUES ($2, $3)"
		" RETURNING ctid",
		3, {TIDOID, INT8OID, INT8OID}, SPI_OK_INSERT_RETURNING
	},
	[UPDATE_FLOOR] = {
		"UPDATE leaselock.floor SET fence = $2, reading = $3"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		3, {TIDOID, INT8OID, INT8OID}, SPI_OK_UPDATE_RETURNING
	},
	[INSERT_SCOPE] = {
		"INSERT INTO leaselock.scopes (scope, role, role_oid, home)"
		" VALUES ($2, $3, $4, $5) RETURNING ctid",
		5, {TIDOID, TEXTOID, NAMEOID, OIDOID, UUIDOID},
		SPI_OK_INSERT_RETURNING
	},
	[UPDATE_SCOPE] = {
		"UPDATE leaselock.scopes SET role = $3, role_oid = $4, home = $5"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		5, {TIDOID, TEXTOID, NAMEOID, OIDOID, UUIDOID},
		SPI_OK_UPDATE_RETURNING
	},
	[DELETE_SCOPE] = {
		"DELETE FROM leaselock.scopes"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		1, {TIDOID}, SPI_OK_DELETE_RETURNING
	}
};

/* What a state is called, in rows and in answers. */
static const char *const state_names[] = {
	[LEASE_HELD] = "held",
	[LEASE_WAITING] = "waiting",
	[LEASE_CONTENDED] = "contended",
	[LEASE_DEADLOCK] = "deadlock",
	[LEASE_RELEASED] = "released",
	[LEASE_EXPIRED] = "expired",
	[LEASE_TIMED_OUT] = "timed_out",
	[LEASE_CANCELLED] = "cancelled",
	[LEASE_BROKEN] = "broken",
	[LEASE_GONE] = "gone"
};

const char *
lease_state_name(LeaseState state)
{
	return state_names[state];
}

static LeaseState
parse_state(const char *name)
{
	for (int i = 0; i < (int) lengthof(state_names); i++)
	{
		if (strcmp(state_names[i], name) == 0)
			return (LeaseState) i;
	}
	elog(ERROR, "unknown lease ticket state \"%s\"", name);
}

/* ----------------------------------------------------------------------
 * Relations and scans
 * ----------------------------------------------------------------------
 */

static Oid
find_relation(const char *name)
{
	Oid			schema = get_namespace_oid(LEASELOCK_SCHEMA, false);
	Oid			relation = get_relname_relid(name, schema);

	if (!OidIsValid(relation))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist",
						LEASELOCK_SCHEMA, name),
				 errhint("Drop and create the extension leaselock.")));
	return relation;
}

/* Whether the extension is there at all. */
bool
store_exists(void)
{
	return OidIsValid(get_namespace_oid(LEASELOCK_SCHEMA, true));
}

/* A scan of a table, in the order of an index if there is one. */
typedef struct TableScan
{
	Relation	rel;
	Relation	index;			/* NULL: no order */
	Snapshot	snapshot;		/* which versions count */
	SysScanDesc scan;
} TableScan;

static bool
is_table_empty(const char *name)
{
	Relation	rel = table_open(find_relation(name), AccessShareLock);
	bool		empty = RelationGetNumberOfBlocks(rel) == 0;

	table_close(rel, AccessShareLock);
	return empty;
}

/* Opens a table for a scan, after checking that it is what we were built for. */
static Relation
open_table(const char *name, int columns)
{
	Relation	rel = table_open(find_relation(name), AccessShareLock);

	if (RelationGetDescr(rel)->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" does not fit the library of leaselock",
						LEASELOCK_SCHEMA, name),
				 errhint("Run ALTER EXTENSION leaselock UPDATE.")));
	return rel;
}

/*
 * Locks the tables, as reading and writing them will, until the transaction
 * ends: what comes then does not wait for a DDL command any more.
 */
void
store_lock_tables(void)
{
	static const char *const names[] = {
		"locks", "tickets", "blockers", "floor", "scopes", "installation"
	};

	for (int i = 0; i < (int) lengthof(names); i++)
		LockRelationOid(find_relation(names[i]), RowExclusiveLock);
}

static void
set_key(ScanKey key, AttrNumber column, RegProcedure equal, Datum value)
{
	ScanKeyInit(key, column, BTEqualStrategyNumber, equal, value);
}

static TableScan *
open_scan(const char *table, int columns, const char *index, ScanKey keys,
		  int nkeys)
{
	TableScan  *scan = palloc0(sizeof(TableScan));

	scan->rel = open_table(table, columns);
	scan->snapshot = RegisterSnapshot(GetLatestSnapshot());
	if (index == NULL)
	{
		scan->scan = systable_beginscan(scan->rel, InvalidOid, false,
										SnapshotAny, nkeys, keys);
		return scan;
	}
	scan->index = index_open(find_relation(index), AccessShareLock);
	scan->scan = systable_beginscan_ordered(scan->rel, scan->index,
											SnapshotAny, nkeys, keys);
	return scan;
}

/* The next row, valid until the next call; NULL at the end. */
static HeapTuple
next_row(TableScan *scan, ScanDirection direction)
{
	HeapTuple	tuple;

	do
	{
		tuple = scan->index == NULL ? systable_getnext(scan->scan) :
			systable_getnext_ordered(scan->scan, direction);
	} while (HeapTupleIsValid(tuple) &&
			 !table_tuple_satisfies_snapshot(scan->rel, scan->scan->slot,
											 scan->snapshot));
	return tuple;
}

static void
close_scan(TableScan *scan)
{
	if (scan->index == NULL)
		systable_endscan(scan->scan);
	else
	{
		systable_endscan_ordered(scan->scan);
		index_close(scan->index, AccessShareLock);
	}
	UnregisterSnapshot(scan->snapshot);
	table_close(scan->rel, AccessShareLock);
	pfree(scan);
}

static TimestampTz
time_or_none(Datum value, bool isnull)
{
	return isnull ? NO_TIME : DatumGetTimestampTz(value);
}

/* The row of leaselock.installation: which installation this is. */
static pg_uuid_t
load_home(void)
{
	TableScan  *scan = open_scan("installation", 1, NULL, NULL, 0);
	HeapTuple	tuple = next_row(scan, ForwardScanDirection);
	pg_uuid_t	home;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "leaselock.installation is empty");
	home = *DatumGetUUIDP(heap_getattr(tuple, 1, RelationGetDescr(scan->rel),
									   &isnull));
	close_scan(scan);
	return home;
}

/*
 * A row that was written by another installation came here in a dump.  Only
 * its fence counts: nobody holds a lock because of a restore, and the time in
 * it is that of another server.
 */
static void
forget_foreign_holder(LeaseLock *lock, const pg_uuid_t *home)
{
	pg_uuid_t	own = load_home();

	if (memcmp(home->data, own.data, UUID_LEN) == 0)
		return;
	lock->passed = 0;
	lock->changed_at = NO_TIME;
	lock->holder.role = InvalidOid;
	lock->holder.owner = NULL;
	lock->granted_at = NO_TIME;
	lock->tickets = 0;
	lock->expires_at = NO_TIME;
	lock->hold_expires_at = NO_TIME;
}

static void
deform_lock(HeapTuple tuple, TupleDesc desc, LeaseLock *lock)
{
	Datum		values[LOCKS_COLUMNS];
	bool		nulls[LOCKS_COLUMNS];

#define VALUE(column)	values[(column) - 1]
#define ISNULL(column)	nulls[(column) - 1]
#define TIME(column)	time_or_none(VALUE(column), ISNULL(column))

	heap_deform_tuple(tuple, desc, values, nulls);
	lock->tid = tuple->t_self;
	lock->key = make_lock_key(TextDatumGetCString(VALUE(LOCKS_SCOPE)),
							  TextDatumGetCString(VALUE(LOCKS_NAME)));
	lock->fence = DatumGetInt64(VALUE(LOCKS_FENCE));
	lock->passed = DatumGetInt64(VALUE(LOCKS_PASSED));
	lock->changed_at = DatumGetTimestampTz(VALUE(LOCKS_CHANGED_AT));
	lock->holder.role = ISNULL(LOCKS_ROLE) ? InvalidOid :
		DatumGetObjectId(VALUE(LOCKS_ROLE));
	lock->holder.owner = ISNULL(LOCKS_OWNER) ? NULL :
		TextDatumGetCString(VALUE(LOCKS_OWNER));
	lock->granted_at = TIME(LOCKS_GRANTED_AT);
	lock->granted_xid = ISNULL(LOCKS_GRANTED_XID) ? InvalidFullTransactionId :
		DatumGetFullTransactionId(VALUE(LOCKS_GRANTED_XID));
	lock->tickets = DatumGetInt32(VALUE(LOCKS_TICKETS));
	lock->expires_at = TIME(LOCKS_EXPIRES_AT);
	lock->hold_expires_at = TIME(LOCKS_HOLD_EXPIRES_AT);
	forget_foreign_holder(lock, DatumGetUUIDP(VALUE(LOCKS_HOME)));
}

static void
deform_ticket(HeapTuple tuple, TupleDesc desc, LeaseTicket *ticket)
{
	Datum		values[TICKETS_COLUMNS];
	bool		nulls[TICKETS_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	ticket->tid = tuple->t_self;
	ticket->key = make_lock_key(TextDatumGetCString(VALUE(TICKETS_SCOPE)),
								TextDatumGetCString(VALUE(TICKETS_NAME)));
	ticket->request_id = *DatumGetUUIDP(VALUE(TICKETS_REQUEST_ID));
	ticket->ticket = *DatumGetUUIDP(VALUE(TICKETS_TICKET));
	ticket->who.role = DatumGetObjectId(VALUE(TICKETS_ROLE));
	ticket->who.owner = TextDatumGetCString(VALUE(TICKETS_OWNER));
	ticket->place = DatumGetInt64(VALUE(TICKETS_PLACE));
	ticket->waiting = DatumGetBool(VALUE(TICKETS_WAITING));
	ticket->state = parse_state(TextDatumGetCString(VALUE(TICKETS_STATE)));
	ticket->fence = ISNULL(TICKETS_FENCE) ? 0 :
		DatumGetInt64(VALUE(TICKETS_FENCE));
	ticket->lease_us = DatumGetInt64(VALUE(TICKETS_LEASE_US));
	ticket->requested_at = DatumGetTimestampTz(VALUE(TICKETS_REQUESTED_AT));
	ticket->expires_at = TIME(TICKETS_EXPIRES_AT);
	ticket->wait_until = TIME(TICKETS_WAIT_UNTIL);
	ticket->alive_until = TIME(TICKETS_ALIVE_UNTIL);
	ticket->waiter_pid = ISNULL(TICKETS_WAITER_PID) ? 0 :
		DatumGetInt32(VALUE(TICKETS_WAITER_PID));
	ticket->claimed = DatumGetBool(VALUE(TICKETS_CLAIMED));
	ticket->ended_at = TIME(TICKETS_ENDED_AT);

#undef TIME
#undef ISNULL
#undef VALUE
}

/* The lock rows that an index scan finds, in the order of (scope, name). */
static List *
scan_locks(ScanKey keys, int nkeys)
{
	TableScan  *scan = open_scan("locks", LOCKS_COLUMNS, "locks_pkey", keys,
								 nkeys);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (HeapTupleIsValid(tuple = next_row(scan, ForwardScanDirection)))
	{
		LeaseLock  *lock = palloc(sizeof(LeaseLock));

		deform_lock(tuple, RelationGetDescr(scan->rel), lock);
		rows = lappend(rows, lock);
	}
	close_scan(scan);
	return rows;
}

/* A scan of tickets in the order of an index. */
struct TicketScan
{
	TableScan  *scan;
};

static TicketScan *
open_tickets(const char *index, ScanKey keys, int nkeys)
{
	TicketScan *tickets = palloc(sizeof(TicketScan));

	tickets->scan = open_scan("tickets", TICKETS_COLUMNS, index, keys, nkeys);
	return tickets;
}

static bool
next_ticket(TicketScan *tickets, ScanDirection direction, LeaseTicket *ticket)
{
	HeapTuple	tuple = next_row(tickets->scan, direction);

	if (!HeapTupleIsValid(tuple))
		return false;
	deform_ticket(tuple, RelationGetDescr(tickets->scan->rel), ticket);
	return true;
}

void
store_close_tickets(TicketScan *tickets)
{
	close_scan(tickets->scan);
	pfree(tickets);
}

/* The next ticket of a scan into *ticket; false at the end. */
bool
store_next_ticket(TicketScan *tickets, LeaseTicket *ticket)
{
	return next_ticket(tickets, ForwardScanDirection, ticket);
}

/* The ticket rows that an index scan finds, in the index's order. */
static List *
scan_tickets(const char *index_name, ScanKey keys, int nkeys)
{
	TicketScan *scan = open_tickets(index_name, keys, nkeys);
	LeaseTicket ticket;
	List	   *rows = NIL;

	while (store_next_ticket(scan, &ticket))
	{
		LeaseTicket *copy = palloc(sizeof(LeaseTicket));

		*copy = ticket;
		rows = lappend(rows, copy);
	}
	store_close_tickets(scan);
	return rows;
}

/*
 * Loads a lock's row into *lock; without one, *lock is a free lock that has
 * no row.
 */
void
store_load_lock(const LockKey *key, LeaseLock *lock)
{
	ScanKeyData keys[2];
	List	   *rows;

	set_key(&keys[0], LOCKS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	set_key(&keys[1], LOCKS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	rows = scan_locks(keys, 2);
	if (rows != NIL)
	{
		*lock = *(LeaseLock *) linitial(rows);
		return;
	}
	memset(lock, 0, sizeof(LeaseLock));
	ItemPointerSetInvalid(&lock->tid);
	lock->key = *key;
	lock->changed_at = NO_TIME;
	lock->granted_at = NO_TIME;
	lock->expires_at = NO_TIME;
	lock->hold_expires_at = NO_TIME;
}

/* Loads a ticket by its uuid; false if there is none. */
bool
store_load_ticket(const pg_uuid_t *ticket, LeaseTicket *row)
{
	ScanKeyData key;
	List	   *rows;

	set_key(&key, TICKETS_TICKET, F_UUID_EQ, UUIDPGetDatum(ticket));
	rows = scan_tickets("tickets_ticket", &key, 1);
	if (rows == NIL)
		return false;
	*row = *(LeaseTicket *) linitial(rows);
	return true;
}

/* Loads a ticket by its lock and request id; false if there is none. */
bool
store_load_request(const LockKey *key, const pg_uuid_t *request_id,
				   LeaseTicket *row)
{
	ScanKeyData keys[3];
	List	   *rows;

	set_key(&keys[0], TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	set_key(&keys[1], TICKETS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	set_key(&keys[2], TICKETS_REQUEST_ID, F_UUID_EQ, UUIDPGetDatum(request_id));
	rows = scan_tickets("tickets_pkey", keys, 3);
	if (rows == NIL)
		return false;
	*row = *(LeaseTicket *) linitial(rows);
	return true;
}

/* The tickets of one grant that have not been ended by what is stored. */
List *
store_list_grant(const LockKey *key, int64 fence)
{
	ScanKeyData keys[3];

	set_key(&keys[0], TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	set_key(&keys[1], TICKETS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	set_key(&keys[2], TICKETS_PLACE, F_INT8EQ, Int64GetDatum(-fence));
	return scan_tickets("tickets_place", keys, 3);
}

/* All tickets of an identity, ended ones included. */
List *
store_list_owner(const Identity *who)
{
	ScanKeyData keys[2];

	set_key(&keys[0], TICKETS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	set_key(&keys[1], TICKETS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	return scan_tickets("tickets_owner", keys, 2);
}

/* The waiting tickets of an identity, by what is stored. */
List *
store_list_waits(const Identity *who)
{
	ScanKeyData keys[3];

	set_key(&keys[0], TICKETS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	set_key(&keys[1], TICKETS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	set_key(&keys[2], TICKETS_WAITING, F_BOOLEQ, BoolGetDatum(true));
	return scan_tickets("tickets_owner", keys, 3);
}

static TicketScan *
open_places(const LockKey *key, int64 after)
{
	ScanKeyData keys[3];

	set_key(&keys[0], TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	set_key(&keys[1], TICKETS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	ScanKeyInit(&keys[2], TICKETS_PLACE, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(after));
	return open_tickets("tickets_place", keys, 3);
}

/* Begins to read a lock's queue behind a place, in the order of places. */
TicketScan *
store_open_queue(const LockKey *key, int64 after)
{
	return open_places(key, after);
}

/* The last place of a lock's queue that is visible, 0: none. */
int64
store_last_place(const LockKey *key)
{
	TicketScan *scan = open_places(key, 0);
	LeaseTicket ticket;
	int64		place = 0;

	if (next_ticket(scan, BackwardScanDirection, &ticket))
		place = ticket.place;
	store_close_tickets(scan);
	return place;
}

List *
store_list_locks(void)
{
	return scan_locks(NULL, 0);
}

/* The locks of a scope. */
List *
store_list_scope(const char *scope)
{
	ScanKeyData key;

	set_key(&key, LOCKS_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	return scan_locks(&key, 1);
}

/* The tickets of a scope; what waits is among them. */
List *
store_list_scope_waits(const char *scope)
{
	ScanKeyData key;

	set_key(&key, TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	return scan_tickets("tickets_place", &key, 1);
}

/* All tickets in the order of (scope, name, place). */
List *
store_list_tickets(void)
{
	return scan_tickets("tickets_place", NULL, 0);
}

/*
 * Scan keys for what comes behind a position in the order of (scope, name,
 * request id): the first "equal" of them are the same, the next is greater.
 * Returns how many there are.
 */
static int
set_behind(ScanKey keys, const LockKey *key, const pg_uuid_t *request_id,
		   int equal)
{
	Datum		values[] = {
		CStringGetTextDatum(key->scope), CStringGetTextDatum(key->name),
		UUIDPGetDatum(request_id)
	};
	static const RegProcedure equals[] = {F_TEXTEQ, F_TEXTEQ, F_UUID_EQ};
	static const RegProcedure greater[] = {F_TEXT_GT, F_TEXT_GT, F_UUID_GT};

	for (int i = 0; i < equal; i++)
		set_key(&keys[i], i + 1, equals[i], values[i]);
	ScanKeyInit(&keys[equal], equal + 1, BTGreaterStrategyNumber,
				greater[equal], values[equal]);
	return equal + 1;
}

/*
 * Up to "count" locks in the order of (scope, name), the first behind *after;
 * NULL: from the beginning.
 */
List *
store_next_locks(const LockKey *after, int count)
{
	List	   *rows = NIL;

	for (int equal = after ? 1 : 0;
		 equal >= 0 && list_length(rows) < count; equal--)
	{
		ScanKeyData keys[2];
		int			nkeys = after ? set_behind(keys, after, NULL, equal) : 0;
		TableScan  *scan = open_scan("locks", LOCKS_COLUMNS, "locks_pkey",
									 keys, nkeys);
		HeapTuple	tuple;

		while (list_length(rows) < count &&
			   HeapTupleIsValid(tuple = next_row(scan, ForwardScanDirection)))
		{
			LeaseLock  *lock = palloc(sizeof(LeaseLock));

			deform_lock(tuple, RelationGetDescr(scan->rel), lock);
			rows = lappend(rows, lock);
		}
		close_scan(scan);
	}
	return rows;
}

/*
 * Up to "count" tickets in the order of (scope, name, request id), the first
 * behind *after; NULL: from the beginning.
 */
List *
store_next_tickets(const LeaseTicket *after, int count)
{
	List	   *rows = NIL;

	for (int equal = after ? 2 : 0;
		 equal >= 0 && list_length(rows) < count; equal--)
	{
		ScanKeyData keys[3];
		int			nkeys = after ?
			set_behind(keys, &after->key, &after->request_id, equal) : 0;
		TicketScan *scan = open_tickets("tickets_pkey", keys, nkeys);
		LeaseTicket ticket;

		while (list_length(rows) < count && store_next_ticket(scan, &ticket))
		{
			LeaseTicket *copy = palloc(sizeof(LeaseTicket));

			*copy = ticket;
			rows = lappend(rows, copy);
		}
		store_close_tickets(scan);
	}
	return rows;
}

/*
 * The rows of a random page of a table, each through "take".  Any page will
 * do, so no index is needed to find what is old.
 */
static List *
sample_rows(const char *table, int columns,
			void *(*take) (HeapTuple tuple, TupleDesc desc))
{
	Relation	rel = open_table(table, columns);
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	Snapshot	snapshot;
	TupleTableSlot *slot;
	TableScanDesc scan;
	ItemPointerData first,
				last;
	BlockNumber block;
	List	   *rows = NIL;

	if (blocks == 0)
	{
		table_close(rel, AccessShareLock);
		return NIL;
	}
	block = pg_prng_uint64_range(&pg_global_prng_state, 0, blocks - 1);
	ItemPointerSet(&first, block, FirstOffsetNumber);
	ItemPointerSet(&last, block, MaxOffsetNumber);

	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = BeginTidRangeScanCompat(rel, SnapshotAny, &first, &last);
	while (table_scan_getnextslot_tidrange(scan, ForwardScanDirection, slot))
	{
		if (table_tuple_satisfies_snapshot(rel, slot, snapshot))
			rows = lappend(rows, take(ExecFetchSlotHeapTuple(slot, false, NULL),
									  RelationGetDescr(rel)));
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return rows;
}

static void *
take_lock(HeapTuple tuple, TupleDesc desc)
{
	LeaseLock  *lock = palloc(sizeof(LeaseLock));

	deform_lock(tuple, desc, lock);
	return lock;
}

static void *
take_ticket(HeapTuple tuple, TupleDesc desc)
{
	LeaseTicket *ticket = palloc(sizeof(LeaseTicket));

	deform_ticket(tuple, desc, ticket);
	return ticket;
}

/* The locks on a random page of the table. */
List *
store_sample_locks(void)
{
	return sample_rows("locks", LOCKS_COLUMNS, take_lock);
}

/* The tickets on a random page of the table. */
List *
store_sample_tickets(void)
{
	return sample_rows("tickets", TICKETS_COLUMNS, take_ticket);
}

/* The greatest floor, and into *tid where its row is; all 0 if there is none. */
static FenceFloor
load_floor(ItemPointer tid)
{
	TableScan  *scan = open_scan("floor", 2, NULL, NULL, 0);
	HeapTuple	tuple;
	FenceFloor	floor = {0, 0};

	while (HeapTupleIsValid(tuple = next_row(scan, ForwardScanDirection)))
	{
		Datum		values[2];
		bool		nulls[2];

		heap_deform_tuple(tuple, RelationGetDescr(scan->rel), values, nulls);
		if (DatumGetInt64(values[0]) <= floor.fence)
			continue;
		floor.fence = DatumGetInt64(values[0]);
		floor.reading = DatumGetInt64(values[1]);
		*tid = tuple->t_self;
	}
	close_scan(scan);
	return floor;
}

/* The floor of all fences; all 0 if it was never raised. */
FenceFloor
store_load_floor(void)
{
	ItemPointerData tid;

	return load_floor(&tid);
}

/* ----------------------------------------------------------------------
 * Writes
 * ----------------------------------------------------------------------
 */

/* SPI must be connected, as the tables' owner. */
static SPIPlanPtr
fetch_plan(StoreQuery query)
{
	SPIPlanPtr	plan = queries[query].plan;

	if (plan != NULL && SPI_plan_is_valid(plan))
		return plan;

	queries[query].plan = NULL;
	if (plan != NULL)
		SPI_freeplan(plan);
	plan = SPI_prepare(queries[query].text, queries[query].nargs,
					   queries[query].types);
	if (plan == NULL)
		elog(ERROR, "SPI_prepare failed for \"%s\": %s",
			 queries[query].text, SPI_result_code_string(SPI_result));
	if (SPI_keepplan(plan) != 0)
		elog(ERROR, "SPI_keepplan failed");
	queries[query].plan = plan;
	return plan;
}

static Oid
tables_owner(void)
{
	Relation	rel = table_open(find_relation("locks"), AccessShareLock);
	Oid			owner = rel->rd_rel->relowner;

	table_close(rel, AccessShareLock);
	return owner;
}

/*
 * The one place that runs SQL.  Runs a query that writes exactly one row, as
 * the owner of the tables, and sets *tid to where the row is now.
 */
static void
write_row(StoreQuery query, Datum *values, const char *nulls,
		  ItemPointer tid)
{
	Oid			caller;
	int			security;
	int			result;
	bool		isnull;
	Datum		ctid;

	GetUserIdAndSecContext(&caller, &security);
	SetUserIdAndSecContext(tables_owner(),
						   security | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_NOFORCE_RLS);
	SPI_connect();

	result = SPI_execute_snapshot(fetch_plan(query), values, nulls,
								  GetLatestSnapshot(), InvalidSnapshot,
								  false, true, 0);
	if (result != queries[query].result || SPI_processed != 1)
		elog(ERROR, "\"%s\" gave %s and " UINT64_FORMAT " rows",
			 queries[query].text, SPI_result_code_string(result),
			 SPI_processed);
	ctid = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1,
						 &isnull);
	ItemPointerCopy((ItemPointer) DatumGetPointer(ctid), tid);

	SPI_finish();
	SetUserIdAndSecContext(caller, security);

	/* what was written shows in the scans that follow */
	CommandCounterIncrement();
}

static void
delete_row(StoreQuery query, ItemPointer tid)
{
	Datum		value = PointerGetDatum(tid);
	ItemPointerData deleted;

	write_row(query, &value, NULL, &deleted);
}

static void
set_value(Datum *values, char *nulls, int column, Datum value, bool isnull)
{
	values[column - 1] = value;
	nulls[column - 1] = isnull ? 'n' : ' ';
}

static void
set_time(Datum *values, char *nulls, int column, TimestampTz value)
{
	set_value(values, nulls, column, TimestampTzGetDatum(value),
			  value == NO_TIME);
}

/* Writes a lock's row.  The caller holds its name tag. */
void
store_save_lock(LeaseLock *lock)
{
	bool		insert = !ItemPointerIsValid(&lock->tid);
	bool		held = OidIsValid(lock->holder.role);
	pg_uuid_t	home = load_home();
	Datum		values[LOCKS_COLUMNS];
	char		nulls[LOCKS_COLUMNS];

#define SET(column, value)		set_value(values, nulls, column, value, false)
#define SET_NULLABLE(column, value, valid) \
	set_value(values, nulls, column, value, !(valid))

	SET(LOCKS_SCOPE, insert ? CStringGetTextDatum(lock->key.scope) :
		PointerGetDatum(&lock->tid));
	SET(LOCKS_NAME, CStringGetTextDatum(lock->key.name));
	SET(LOCKS_FENCE, Int64GetDatum(lock->fence));
	SET(LOCKS_PASSED, Int64GetDatum(lock->passed));
	SET(LOCKS_CHANGED_AT, TimestampTzGetDatum(lock->changed_at));
	SET(LOCKS_HOME, UUIDPGetDatum(&home));
	SET_NULLABLE(LOCKS_ROLE, ObjectIdGetDatum(lock->holder.role), held);
	SET_NULLABLE(LOCKS_OWNER,
				 held ? CStringGetTextDatum(lock->holder.owner) : (Datum) 0,
				 held);
	set_time(values, nulls, LOCKS_GRANTED_AT, lock->granted_at);
	SET_NULLABLE(LOCKS_GRANTED_XID,
				 FullTransactionIdGetDatum(lock->granted_xid),
				 FullTransactionIdIsValid(lock->granted_xid));
	SET(LOCKS_TICKETS, Int32GetDatum(lock->tickets));
	set_time(values, nulls, LOCKS_EXPIRES_AT, lock->expires_at);
	set_time(values, nulls, LOCKS_HOLD_EXPIRES_AT, lock->hold_expires_at);

	write_row(insert ? INSERT_LOCK : UPDATE_LOCK, values, nulls, &lock->tid);
}

/*
 * Writes a ticket's row.  The caller holds the ticket tag if the row is new
 * and names a request id, or if the ticket waits; else the name tag.
 */
void
store_save_ticket(LeaseTicket *ticket)
{
	bool		insert = !ItemPointerIsValid(&ticket->tid);
	Datum		values[TICKETS_COLUMNS];
	char		nulls[TICKETS_COLUMNS];

	SET(TICKETS_SCOPE, insert ? CStringGetTextDatum(ticket->key.scope) :
		PointerGetDatum(&ticket->tid));
	SET(TICKETS_NAME, CStringGetTextDatum(ticket->key.name));
	SET(TICKETS_REQUEST_ID, UUIDPGetDatum(&ticket->request_id));
	SET(TICKETS_TICKET, UUIDPGetDatum(&ticket->ticket));
	SET(TICKETS_ROLE, ObjectIdGetDatum(ticket->who.role));
	SET(TICKETS_OWNER, CStringGetTextDatum(ticket->who.owner));
	SET(TICKETS_PLACE, Int64GetDatum(ticket->place));
	SET(TICKETS_WAITING, BoolGetDatum(ticket->waiting));
	SET(TICKETS_STATE, CStringGetTextDatum(state_names[ticket->state]));
	SET_NULLABLE(TICKETS_FENCE, Int64GetDatum(ticket->fence),
				 ticket->fence != 0);
	SET(TICKETS_LEASE_US, Int64GetDatum(ticket->lease_us));
	SET(TICKETS_REQUESTED_AT, TimestampTzGetDatum(ticket->requested_at));
	set_time(values, nulls, TICKETS_EXPIRES_AT, ticket->expires_at);
	set_time(values, nulls, TICKETS_WAIT_UNTIL, ticket->wait_until);
	set_time(values, nulls, TICKETS_ALIVE_UNTIL, ticket->alive_until);
	SET_NULLABLE(TICKETS_WAITER_PID, Int32GetDatum(ticket->waiter_pid),
				 ticket->waiter_pid != 0);
	SET(TICKETS_CLAIMED, BoolGetDatum(ticket->claimed));
	set_time(values, nulls, TICKETS_ENDED_AT, ticket->ended_at);

	write_row(insert ? INSERT_TICKET : UPDATE_TICKET, values, nulls,
			  &ticket->tid);

#undef SET_NULLABLE
#undef SET
}

/* ----------------------------------------------------------------------
 * Blockers
 * ----------------------------------------------------------------------
 */

static List *
scan_blockers(ScanKey keys, int nkeys, int count)
{
	TableScan  *scan = open_scan("blockers", BLOCKERS_COLUMNS,
								 "blockers_owner", keys, nkeys);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (list_length(rows) < count &&
		   HeapTupleIsValid(tuple = next_row(scan, ForwardScanDirection)))
	{
		Blocker    *row = palloc(sizeof(Blocker));
		Datum		values[BLOCKERS_COLUMNS];
		bool		nulls[BLOCKERS_COLUMNS];

		heap_deform_tuple(tuple, RelationGetDescr(scan->rel), values, nulls);
		row->tid = tuple->t_self;
		row->who.role = DatumGetObjectId(values[BLOCKERS_ROLE - 1]);
		row->who.owner = TextDatumGetCString(values[BLOCKERS_OWNER - 1]);
		row->key = make_lock_key(TextDatumGetCString(values[BLOCKERS_SCOPE - 1]),
								 TextDatumGetCString(values[BLOCKERS_NAME - 1]));
		rows = lappend(rows, row);
	}
	close_scan(scan);
	return rows;
}

/*
 * Where an identity was found to hold a lock by somebody who queued for it
 * (Blocker *).  Hints: check each.
 */
List *
store_list_blocked(const Identity *who)
{
	ScanKeyData keys[2];

	set_key(&keys[0], BLOCKERS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	set_key(&keys[1], BLOCKERS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	return scan_blockers(keys, 2, INT_MAX);
}

/* All such hints, up to "count" (Blocker *). */
List *
store_list_blockers(int count)
{
	return scan_blockers(NULL, 0, count);
}

/* Notes that an identity holds a lock that others queue for. */
void
store_note_blocker(const Identity *who, const LockKey *key)
{
	Datum		values[BLOCKERS_COLUMNS];
	ItemPointerData tid;
	ListCell   *cell;

	foreach(cell, store_list_blocked(who))
	{
		if (compare_lock_keys(&((Blocker *) lfirst(cell))->key, key) == 0)
			return;
	}
	values[BLOCKERS_ROLE - 1] = ObjectIdGetDatum(who->role);
	values[BLOCKERS_OWNER - 1] = CStringGetTextDatum(who->owner);
	values[BLOCKERS_SCOPE - 1] = CStringGetTextDatum(key->scope);
	values[BLOCKERS_NAME - 1] = CStringGetTextDatum(key->name);
	write_row(INSERT_BLOCKER, values, NULL, &tid);
}

/*
 * Removes such notes when the identity loses the lock.  The caller holds the
 * name tag in NAME_CHANGE, so that nobody else removes them.
 */
void
store_forget_blocker(const Identity *who, const LockKey *key)
{
	ListCell   *cell;

	foreach(cell, store_list_blocked(who))
	{
		Blocker    *blocker = (Blocker *) lfirst(cell);

		if (compare_lock_keys(&blocker->key, key) == 0)
			delete_row(DELETE_BLOCKER, &blocker->tid);
	}
}

/* ----------------------------------------------------------------------
 * Removal, the floor, scopes
 * ----------------------------------------------------------------------
 */

/* The caller holds the name tag in NAME_CHANGE, and the queue tag. */
void
store_delete_lock(LeaseLock *lock)
{
	delete_row(DELETE_LOCK, &lock->tid);
}

/* The caller holds the ticket tag, and the name tag if the ticket is held. */
void
store_delete_ticket(LeaseTicket *ticket)
{
	delete_row(DELETE_TICKET, &ticket->tid);
}

/* Raises the floor.  The caller holds the floor tag. */
void
store_save_floor(const FenceFloor *floor)
{
	ItemPointerData tid;
	Datum		values[3];

	ItemPointerSetInvalid(&tid);
	(void) load_floor(&tid);
	values[0] = PointerGetDatum(&tid);
	values[1] = Int64GetDatum(floor->fence);
	values[2] = Int64GetDatum(floor->reading);
	write_row(ItemPointerIsValid(&tid) ? UPDATE_FLOOR : INSERT_FLOOR,
			  values, NULL, &tid);
}

enum
{
	SCOPES_SCOPE = 1,
	SCOPES_ROLE,
	SCOPES_ROLE_OID,
	SCOPES_HOME,
	SCOPES_COLUMNS = SCOPES_HOME
};

/*
 * Which role a scope is registered to, false: to none.  *role_oid is invalid
 * if the row came in a dump, so that only the name means anything here.
 */
static bool
load_scope(const char *scope, NameData *role, Oid *role_oid, ItemPointer tid)
{
	ScanKeyData key;
	TableScan  *scan;
	HeapTuple	tuple;
	bool		found = false;

	/* most databases register no scope, and this is asked for every waiter */
	if (is_table_empty("scopes"))
		return false;

	set_key(&key, SCOPES_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	scan = open_scan("scopes", SCOPES_COLUMNS, "scopes_pkey", &key, 1);
	tuple = next_row(scan, ForwardScanDirection);
	if (HeapTupleIsValid(tuple))
	{
		pg_uuid_t	home = load_home();
		Datum		values[SCOPES_COLUMNS];
		bool		nulls[SCOPES_COLUMNS];

		heap_deform_tuple(tuple, RelationGetDescr(scan->rel), values, nulls);
		*role = *DatumGetName(values[SCOPES_ROLE - 1]);
		*role_oid = memcmp(DatumGetUUIDP(values[SCOPES_HOME - 1]), &home,
						   UUID_LEN) != 0 ? InvalidOid :
			DatumGetObjectId(values[SCOPES_ROLE_OID - 1]);
		*tid = tuple->t_self;
		found = true;
	}
	close_scan(scan);
	return found;
}

bool
store_load_scope(const char *scope, NameData *role, Oid *role_oid)
{
	ItemPointerData tid;

	return load_scope(scope, role, role_oid, &tid);
}

/* Registers a scope, or moves it.  The caller holds the scope tag. */
void
store_save_scope(const char *scope, const char *role, Oid role_oid)
{
	ItemPointerData tid;
	NameData	name;
	Oid			old_oid;
	bool		known = load_scope(scope, &name, &old_oid, &tid);
	pg_uuid_t	home = load_home();
	Datum		values[SCOPES_COLUMNS + 1];

	namestrcpy(&name, role);
	values[0] = PointerGetDatum(&tid);
	values[SCOPES_SCOPE] = CStringGetTextDatum(scope);
	values[SCOPES_ROLE] = NameGetDatum(&name);
	values[SCOPES_ROLE_OID] = ObjectIdGetDatum(role_oid);
	values[SCOPES_HOME] = UUIDPGetDatum(&home);
	write_row(known ? UPDATE_SCOPE : INSERT_SCOPE, values, NULL, &tid);
}

/* False if the scope was not registered.  The caller holds the scope tag. */
bool
store_delete_scope(const char *scope)
{
	ItemPointerData tid;
	NameData	role;
	Oid			role_oid;

	if (!load_scope(scope, &role, &role_oid, &tid))
		return false;
	delete_row(DELETE_SCOPE, &tid);
	return true;
}
