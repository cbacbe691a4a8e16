/*-------------------------------------------------------------------------
 *
 * store_lock.c
 *	  The rows of leaselock.locks.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
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

/*
 * A row that was written by another installation came here in a dump, or with
 * the database that this one is a copy of.  Only its fence counts: nobody holds
 * a lock because of a restore, and the time in it is that of another server.
 */
static void
forget_foreign_holder(LeaseLock *lock, const pg_uuid_t *home)
{
	const Installation *own = store_load_installation();

	if (memcmp(home->data, own->home.data, UUID_LEN) == 0)
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

/* A restore, too, writes rows, so they are judged again when they are read. */
static void
check_lock(const LeaseLock *lock)
{
	if (lock->fence < 0 || lock->fence > MAX_FENCE)
		store_report_row(REL_LOCKS, "The fence is out of its bounds.");
	if (lock->passed < 0 || lock->tickets < 0)
		store_report_row(REL_LOCKS, "A count is negative.");
	if (OidIsValid(lock->holder.role) && lock->holder.owner == NULL)
		store_report_row(REL_LOCKS, "The role of the holder has no owner.");
}

/* The key of a row; "expected" saves hashing it where it is that one. */
static LockKey
row_key(const char *scope, const char *name, const LockKey *expected)
{
	LockKey		key = {scope, name, 0};

	if (expected == NULL || strcmp(scope, expected->scope) != 0 ||
		strcmp(name, expected->name) != 0)
		return make_lock_key(scope, name);
	key.hash = expected->hash;
	return key;
}

/* The key that is expected of the row may be given, to save some work. */
static void
deform_lock(HeapTuple tuple, TupleDesc desc, const LockKey *expected,
			LeaseLock *lock)
{
	Datum		values[LOCKS_COLUMNS];
	bool		nulls[LOCKS_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	lock->tid = tuple->t_self;
	lock->key = row_key(TextDatumGetCString(VALUE(LOCKS_SCOPE)),
						TextDatumGetCString(VALUE(LOCKS_NAME)), expected);
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
	check_lock(lock);
	forget_foreign_holder(lock, DatumGetUUIDP(VALUE(LOCKS_HOME)));
}

/* The lock rows that an index scan finds, in the order of (scope, name). */
static List *
scan_locks(ScanKey keys, int nkeys)
{
	TableScan  *scan = store_open_scan(REL_LOCKS, REL_LOCKS_PKEY, keys,
									   nkeys);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
	{
		LeaseLock  *lock = palloc(sizeof(LeaseLock));

		deform_lock(tuple, RelationGetDescr(scan->rel), NULL, lock);
		rows = lappend(rows, lock);
	}
	store_close_scan(scan);
	return rows;
}

/* The row of the key that is in *lock already, or another. */
static void
take_lock(HeapTuple tuple, TupleDesc desc, void *lock)
{
	LockKey		expected = ((LeaseLock *) lock)->key;

	deform_lock(tuple, desc, &expected, (LeaseLock *) lock);
}

/*
 * Where this session saw the rows of locks, each at the hash of its key.  Mostly
 * one session at a time works on a lock, and needs no index to find it again.
 */
#define PLACES	1024

typedef struct Place
{
	uint64		hash;
	ItemPointerData tid;		/* invalid: none was seen yet */
} Place;

static Place places[PLACES];

static void
note_place(const LeaseLock *lock)
{
	Place	   *place = &places[lock->key.hash % PLACES];

	place->hash = lock->key.hash;
	place->tid = lock->tid;
}

/* Loads a lock from there; false if its row is not there. */
static bool
load_from_noted_place(const LockKey *key, LeaseLock *lock)
{
	Place	   *place = &places[key->hash % PLACES];
	ItemPointerData tid = place->tid;

	lock->key = *key;
	return place->hash == key->hash && ItemPointerIsValid(&tid) &&
		store_read_row(REL_LOCKS, &tid, take_lock, lock) &&
		compare_lock_keys(&lock->key, key) == 0;
}

/*
 * Loads a lock's row into *lock; without one, *lock is a free lock that has
 * no row.  The key must not be the one in *lock.
 */
void
store_load_lock(const LockKey *key, LeaseLock *lock)
{
	ScanKeyData keys[2];
	TableScan  *scan;
	HeapTuple	tuple;
	bool		found;

	if (load_from_noted_place(key, lock))
		return;
	store_set_key(&keys[0], LOCKS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	store_set_key(&keys[1], LOCKS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	scan = store_open_scan(REL_LOCKS, REL_LOCKS_PKEY, keys, 2);
	tuple = store_only_row(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
		deform_lock(tuple, RelationGetDescr(scan->rel), key, lock);
	store_close_scan(scan);
	if (found)
	{
		note_place(lock);
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

/* The locks of a scope. */
List *
store_list_scope(const char *scope)
{
	ScanKeyData key;

	store_set_key(&key, LOCKS_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	return scan_locks(&key, 1);
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
		int			nkeys = after ? store_set_behind(keys, after, NULL, equal) : 0;
		TableScan  *scan = store_open_scan(REL_LOCKS, REL_LOCKS_PKEY,
										   keys, nkeys);
		HeapTuple	tuple;

		while (list_length(rows) < count &&
			   HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
		{
			LeaseLock  *lock = palloc(sizeof(LeaseLock));

			deform_lock(tuple, RelationGetDescr(scan->rel), NULL, lock);
			rows = lappend(rows, lock);
		}
		store_close_scan(scan);
	}
	return rows;
}

/* Before the rest of a row is read, for most rows are not taken. */
static void *
take_idle_lock(HeapTuple tuple, TupleDesc desc, TimestampTz before)
{
	LeaseLock  *lock;
	bool		isnull;

	if (DatumGetTimestampTz(heap_getattr(tuple, LOCKS_CHANGED_AT, desc,
										 &isnull)) >= before)
		return NULL;
	lock = palloc(sizeof(LeaseLock));
	deform_lock(tuple, desc, NULL, lock);
	return lock;
}

/* The locks on a random page of the table that were last changed before. */
List *
store_sample_locks(TimestampTz before, int *seen)
{
	return store_sample_rows(REL_LOCKS, before, seen,
							 take_idle_lock);
}

/* Writes a lock's row.  The caller holds its name tag. */
void
store_save_lock(LeaseLock *lock)
{
	bool		held = OidIsValid(lock->holder.role);
	const Installation *own = store_load_installation();
	Datum		values[LOCKS_COLUMNS];
	bool		nulls[LOCKS_COLUMNS];

	SET(LOCKS_SCOPE, CStringGetTextDatum(lock->key.scope));
	SET(LOCKS_NAME, CStringGetTextDatum(lock->key.name));
	SET(LOCKS_FENCE, Int64GetDatum(lock->fence));
	SET(LOCKS_PASSED, Int64GetDatum(lock->passed));
	SET(LOCKS_CHANGED_AT, TimestampTzGetDatum(lock->changed_at));
	SET(LOCKS_HOME, UUIDPGetDatum(&own->home));
	SET_NULLABLE(LOCKS_ROLE, ObjectIdGetDatum(lock->holder.role), held);
	SET_NULLABLE(LOCKS_OWNER,
				 held ? CStringGetTextDatum(lock->holder.owner) : (Datum) 0,
				 held);
	store_set_time(values, nulls, LOCKS_GRANTED_AT, lock->granted_at);
	SET_NULLABLE(LOCKS_GRANTED_XID,
				 FullTransactionIdGetDatum(lock->granted_xid),
				 FullTransactionIdIsValid(lock->granted_xid));
	SET(LOCKS_TICKETS, Int32GetDatum(lock->tickets));
	store_set_time(values, nulls, LOCKS_EXPIRES_AT, lock->expires_at);
	store_set_time(values, nulls, LOCKS_HOLD_EXPIRES_AT, lock->hold_expires_at);

	store_write_row(REL_LOCKS, values, nulls, &lock->tid);
	note_place(lock);
}

/* The caller holds the name tag in NAME_CHANGE, and the queue tag. */
void
store_delete_lock(LeaseLock *lock)
{
	store_delete_row(REL_LOCKS, &lock->tid);
}
