/*-------------------------------------------------------------------------
 *
 * store.c
 *	  Rows in and out: every SQL text and every scan of the module.
 *
 * Reads go straight to the tables, by an index and with SnapshotSelf: they
 * see what is committed at that moment and what this transaction has written,
 * whatever snapshot the transaction has, and leave no predicate locks.  A row
 * whose tag the caller holds cannot change under it.  A row read without a
 * tag may be gone the next moment, and if an update moves it to another page
 * at the time of the scan it may be missed; callers decide again once they
 * have the tag.
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

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

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
	TICKETS_CLAIMED,
	TICKETS_ENDED_AT,
	TICKETS_COLUMNS = TICKETS_ENDED_AT
};

typedef enum StoreQuery
{
	INSERT_LOCK,
	UPDATE_LOCK,
	INSERT_TICKET,
	UPDATE_TICKET
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
		" expires_at, wait_until, alive_until, claimed, ended_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,"
		" $14, $15, $16, $17) RETURNING ctid",
		TICKETS_COLUMNS,
		{TEXTOID, TEXTOID, UUIDOID, UUIDOID,
			OIDOID, TEXTOID, INT8OID, BOOLOID, TEXTOID, INT8OID, INT8OID,
			TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
		BOOLOID, TIMESTAMPTZOID},
		SPI_OK_INSERT_RETURNING
	},
	[UPDATE_TICKET] = {
		"UPDATE leaselock.tickets SET place = $7, waiting = $8, state = $9,"
		" fence = $10, lease_us = $11, expires_at = $13, wait_until = $14,"
		" alive_until = $15, claimed = $16, ended_at = $17"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		TICKETS_COLUMNS,
		{TIDOID, TEXTOID, UUIDOID, UUIDOID,
			OIDOID, TEXTOID, INT8OID, BOOLOID, TEXTOID, INT8OID, INT8OID,
			TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
		BOOLOID, TIMESTAMPTZOID},
		SPI_OK_UPDATE_RETURNING
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

static void
set_key(ScanKey key, AttrNumber column, RegProcedure equal, Datum value)
{
	ScanKeyInit(key, column, BTEqualStrategyNumber, equal, value);
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
	Relation	rel = open_table("installation", 1);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false,
										  SnapshotSelf, 0, NULL);
	HeapTuple	tuple = systable_getnext(scan);
	pg_uuid_t	home;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "leaselock.installation is empty");
	home = *DatumGetUUIDP(heap_getattr(tuple, 1, RelationGetDescr(rel),
									   &isnull));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
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
	Relation	rel = open_table("locks", LOCKS_COLUMNS);
	Relation	index = index_open(find_relation("locks_pkey"),
								   AccessShareLock);
	SysScanDesc scan = systable_beginscan_ordered(rel, index, SnapshotSelf,
												  nkeys, keys);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan,
															 ForwardScanDirection)))
	{
		LeaseLock  *lock = palloc(sizeof(LeaseLock));

		deform_lock(tuple, RelationGetDescr(rel), lock);
		rows = lappend(rows, lock);
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return rows;
}

/* The ticket rows that an index scan finds, in the index's order. */
static List *
scan_tickets(const char *index_name, ScanKey keys, int nkeys)
{
	Relation	rel = open_table("tickets", TICKETS_COLUMNS);
	Relation	index = index_open(find_relation(index_name),
								   AccessShareLock);
	SysScanDesc scan = systable_beginscan_ordered(rel, index, SnapshotSelf,
												  nkeys, keys);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan,
															 ForwardScanDirection)))
	{
		LeaseTicket *ticket = palloc(sizeof(LeaseTicket));

		deform_ticket(tuple, RelationGetDescr(rel), ticket);
		rows = lappend(rows, ticket);
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return rows;
}

/*
 * Loads a lock's row into *lock; without one, *lock is a free lock that has
 * no row.  Exact under the name tag.
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

/*
 * Nothing guards a look-up without a tag, so an update that moves the row to
 * another page at that moment could hide it.  It would have to happen in each
 * of a few tries.
 */
#define UNGUARDED_TRIES		3

/* store_load_lock for a caller that has no tag and believes "no row". */
void
store_find_lock(const LockKey *key, LeaseLock *lock)
{
	for (int tries = 0; tries < UNGUARDED_TRIES; tries++)
	{
		store_load_lock(key, lock);
		if (ItemPointerIsValid(&lock->tid))
			return;
	}
}

/* Loads a ticket by its uuid; false if there is none. */
bool
store_load_ticket(const pg_uuid_t *ticket, LeaseTicket *row)
{
	for (int tries = 0; tries < UNGUARDED_TRIES; tries++)
	{
		ScanKeyData key;
		List	   *rows;

		set_key(&key, TICKETS_TICKET, F_UUID_EQ, UUIDPGetDatum(ticket));
		rows = scan_tickets("tickets_ticket", &key, 1);
		if (rows != NIL)
		{
			*row = *(LeaseTicket *) linitial(rows);
			return true;
		}
	}
	return false;
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

List *
store_list_locks(void)
{
	return scan_locks(NULL, 0);
}

/* All tickets in the order of (scope, name, place). */
List *
store_list_tickets(void)
{
	return scan_tickets("tickets_place", NULL, 0);
}

/* The floor of all fences; 0 if it was never raised. */
int64
store_load_floor(void)
{
	Relation	rel = open_table("floor", 1);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false,
										  SnapshotSelf, 0, NULL);
	HeapTuple	tuple;
	int64		floor = 0;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		fence = heap_getattr(tuple, 1, RelationGetDescr(rel),
										 &isnull);

		floor = Max(floor, DatumGetInt64(fence));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return floor;
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
	SET(TICKETS_CLAIMED, BoolGetDatum(ticket->claimed));
	set_time(values, nulls, TICKETS_ENDED_AT, ticket->ended_at);

	write_row(insert ? INSERT_TICKET : UPDATE_TICKET, values, nulls,
			  &ticket->tid);

#undef SET_NULLABLE
#undef SET
}
