/*-------------------------------------------------------------------------
 *
 * locks.c
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

#include "store/clock.h"
#include "store/columns.h"
#include "store/installation.h"
#include "store/tidcache.h"
#include "store/recent.h"
#include "store/rows.h"
#include "store/table.h"
#include "store/tag.h"

/* Columns, in the order of the install script. */
enum
{
	LOCKS_SCOPE = 1,
	LOCKS_NAME,
	LOCKS_FENCE,
	LOCKS_PASSED,
	LOCKS_CHANGED_AT,
	LOCKS_TICKETS,
	LOCKS_HOME,
	LOCKS_ROLE,
	LOCKS_GRANTED_AT,
	LOCKS_GRANTED_XID,
	LOCKS_EXPIRES_AT,
	LOCKS_HOLD_EXPIRES_AT,
	LOCKS_FIRST_TICKET,
	LOCKS_OWNER,
	LOCKS_COLUMNS = LOCKS_OWNER
};

/* Sets *lock to a lock that nobody holds and that has no row. */
static void
set_unknown(LockRow *lock, const LockKey *key)
{
	memset(lock, 0, sizeof(LockRow));
	ItemPointerSetInvalid(&lock->version.tid);
	lock->key = *key;
	lock->changed_at = NO_TIME;
	lock->granted_at = NO_TIME;
	lock->expires_at = NO_TIME;
	lock->hold_expires_at = NO_TIME;
}

/*
 * A row written by another installation came here in a dump, or with the
 * database of which this one is a copy.  Only its fence counts: a restore does
 * not make anybody hold a lock, and the times in the row are those of another
 * server.
 */
static void
forget_foreign_holder(LockRow *lock, const pg_uuid_t *home)
{
	RowVersion	version = lock->version;
	LockKey		key = lock->key;
	int64		fence = lock->fence;

	if (memcmp(home, &store_load_installation()->home, UUID_LEN) == 0)
		return;
	set_unknown(lock, &key);
	lock->version = version;
	lock->fence = fence;
}

/* Restores write rows too, so rows are checked again when they are read. */
static void
check_lock(const LockRow *lock)
{
	if (lock->fence < 0 || lock->fence > MAX_FENCE)
		store_report_row(REL_LOCKS, "The fence is out of range.");
	if (lock->passed < 0 || lock->passed > MAX_FENCE || lock->tickets < 0)
		store_report_row(REL_LOCKS, "A count is out of range.");
	if (OidIsValid(lock->holder.role) && lock->holder.owner == NULL)
		store_report_row(REL_LOCKS, "The holder has a role but no owner label.");
}

/*
 * The key of a row.  If it equals "expected", its hash need not be computed.
 */
static LockKey
row_key(const char *scope, const char *name, const LockKey *expected)
{
	LockKey		key = {scope, name, 0, 0};

	if (expected == NULL || strcmp(scope, expected->scope) != 0 ||
		strcmp(name, expected->name) != 0)
		return make_lock_key(scope, name);
	key.hash = expected->hash;
	key.hashed_for = expected->hashed_for;
	return key;
}

/* "expected" is the key that the row should have, or NULL if unknown. */
static void
read_lock(HeapTuple tuple, TupleDesc desc, const LockKey *expected,
		  LockRow *lock)
{
	Datum		values[LOCKS_COLUMNS];
	bool		nulls[LOCKS_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	lock->version = store_row_version(tuple);
	lock->key = row_key(TextDatumGetCString(VALUE(LOCKS_SCOPE)),
						TextDatumGetCString(VALUE(LOCKS_NAME)), expected);
	lock->fence = DatumGetInt64(VALUE(LOCKS_FENCE));
	lock->passed = DatumGetInt64(VALUE(LOCKS_PASSED));
	lock->changed_at = DatumGetTimestampTz(VALUE(LOCKS_CHANGED_AT));
	lock->tickets = DatumGetInt32(VALUE(LOCKS_TICKETS));
	lock->holder.role = ISNULL(LOCKS_ROLE) ? InvalidOid :
		DatumGetObjectId(VALUE(LOCKS_ROLE));
	lock->holder.owner = ISNULL(LOCKS_OWNER) ? NULL :
		TextDatumGetCString(VALUE(LOCKS_OWNER));
	lock->granted_at = TIME(LOCKS_GRANTED_AT);
	lock->granted_xid = ISNULL(LOCKS_GRANTED_XID) ? InvalidFullTransactionId :
		DatumGetFullTransactionId(VALUE(LOCKS_GRANTED_XID));
	lock->expires_at = TIME(LOCKS_EXPIRES_AT);
	lock->hold_expires_at = TIME(LOCKS_HOLD_EXPIRES_AT);
	lock->has_first = !ISNULL(LOCKS_FIRST_TICKET);
	if (lock->has_first)
		lock->first_ticket = *DatumGetUUIDP(VALUE(LOCKS_FIRST_TICKET));
	lock->recalled = false;
	check_lock(lock);
	forget_foreign_holder(lock, DatumGetUUIDP(VALUE(LOCKS_HOME)));
}

/*
 * Appends the locks that an index scan finds, in the order of (scope, name),
 * until the list has "count" elements.
 */
static List *
scan_locks(List *rows, ScanKey keys, int nkeys, int count)
{
	TableScan  *scan = store_open_scan(REL_LOCKS, REL_LOCKS_PKEY, keys, nkeys);
	HeapTuple	tuple;

	while (list_length(rows) < count &&
		   HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
	{
		LockRow    *lock = palloc(sizeof(LockRow));

		read_lock(tuple, RelationGetDescr(scan->rel), NULL, lock);
		rows = lappend(rows, lock);
	}
	store_close_scan(scan);
	return rows;
}

/* ----------------------------------------------------------------------
 * One lock
 * ----------------------------------------------------------------------
 */

/* Where this session last saw locks, by the hash of their keys. */
static TidCacheEntry tid_cache[TID_CACHE_SIZE];

/* Reads a row that should have the key in *lock. */
static void
read_expected(HeapTuple tuple, TupleDesc desc, void *lock)
{
	LockKey		expected = ((LockRow *) lock)->key;

	read_lock(tuple, desc, &expected, (LockRow *) lock);
}

/*
 * Loads a lock from the TID at which it was last seen; returns false if it is
 * not there.
 */
static bool
load_from_cached_tid(const LockKey *key, LockRow *lock)
{
	ItemPointerData tid;

	lock->key = *key;
	return find_cached_tid(tid_cache, key->hash, &tid) &&
		store_read_row(REL_LOCKS, &tid, read_expected, lock) &&
		compare_lock_keys(&lock->key, key) == 0;
}

/*
 * Loads a lock's row into *lock.  If there is none, *lock becomes a free lock
 * without a row.  "key" must not point to the key in *lock.
 */
void
store_load_lock(const LockKey *key, LockRow *lock)
{
	ScanKeyData keys[2];
	TableScan  *scan;
	HeapTuple	tuple;

	if (load_from_cached_tid(key, lock))
		return;
	store_set_key(&keys[0], LOCKS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	store_set_key(&keys[1], LOCKS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	scan = store_open_scan(REL_LOCKS, REL_LOCKS_PKEY, keys, 2);
	tuple = store_only_row(scan);
	if (HeapTupleIsValid(tuple))
	{
		read_lock(tuple, RelationGetDescr(scan->rel), key, lock);
		cache_tid(tid_cache, key->hash, &lock->version.tid);
	}
	else
		set_unknown(lock, key);
	store_close_scan(scan);
}

/* ----------------------------------------------------------------------
 * Several locks
 * ----------------------------------------------------------------------
 */

/*
 * Starts a scan of the locks that have a holder, in no particular order.  An
 * index scan in another order than that of the table would visit every page
 * many times.
 */
TableScan *
store_open_held(void)
{
	return store_open_scan(REL_LOCKS, REL_NONE, NULL, 0);
}

/*
 * Reads the next lock that has a holder into *lock; returns false at the end.
 * Most locks may be idle, so the holder's column is tested before the rest of
 * a row is deformed.  The caller ends the scan with store_close_scan().
 */
bool
store_next_held(TableScan *scan, LockRow *lock)
{
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
	{
		if (heap_attisnull(tuple, LOCKS_ROLE, RelationGetDescr(scan->rel)))
			continue;
		read_lock(tuple, RelationGetDescr(scan->rel), NULL, lock);
		if (OidIsValid(lock->holder.role))
			return true;
	}
	return false;
}

/*
 * The locks that an identity holds (LockRow *), lapsed or not, in no
 * particular order; those of one scope, or of all (NULL).
 */
List *
store_list_held(const Identity *who, const char *scope)
{
	TableScan  *scan;
	ScanKeyData keys[3];
	HeapTuple	tuple;
	List	   *rows = NIL;

	store_set_key(&keys[0], LOCKS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	store_set_key(&keys[1], LOCKS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	if (scope != NULL)
		store_set_key(&keys[2], LOCKS_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	scan = store_open_scan(REL_LOCKS, REL_NONE, keys, scope != NULL ? 3 : 2);
	while (HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
	{
		LockRow    *lock = palloc(sizeof(LockRow));

		read_lock(tuple, RelationGetDescr(scan->rel), NULL, lock);
		rows = lappend(rows, lock);
	}
	store_close_scan(scan);
	return rows;
}

/* The locks of a scope (LockRow *). */
List *
store_list_scope(const char *scope)
{
	ScanKeyData key;

	store_set_key(&key, LOCKS_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	return scan_locks(NIL, &key, 1, PG_INT32_MAX);
}

/*
 * Up to "count" locks (LockRow *) in the order of (scope, name), starting
 * after *after, or at the beginning if that is NULL.
 */
List *
store_next_locks(const LockKey *after, int count)
{
	ScanKeyData keys[2];
	List	   *rows;

	if (after == NULL)
		return scan_locks(NIL, NULL, 0, count);
	store_set_key(&keys[0], LOCKS_SCOPE, F_TEXTEQ, CStringGetTextDatum(after->scope));
	ScanKeyInit(&keys[1], LOCKS_NAME, BTGreaterStrategyNumber, F_TEXT_GT,
				CStringGetTextDatum(after->name));
	rows = scan_locks(NIL, keys, 2, count);
	ScanKeyInit(&keys[0], LOCKS_SCOPE, BTGreaterStrategyNumber, F_TEXT_GT,
				CStringGetTextDatum(after->scope));
	return scan_locks(rows, keys, 1, count);
}

static void *
read_idle_lock(HeapTuple tuple, TupleDesc desc)
{
	LockRow    *lock = palloc(sizeof(LockRow));

	read_lock(tuple, desc, NULL, lock);
	return lock;
}

/*
 * The locks (LockRow *) on a random page of the table that were last changed
 * before the given time.
 */
List *
store_sample_locks(TimestampTz before, int *seen)
{
	return store_sample_rows(REL_LOCKS, LOCKS_CHANGED_AT, before, seen,
							 read_idle_lock);
}

/* Writes a lock's row.  The caller holds its name tag. */
void
store_save_lock(LockRow *lock)
{
	bool		held = OidIsValid(lock->holder.role);
	const Installation *own = store_load_installation();
	Datum		values[LOCKS_COLUMNS];
	bool		nulls[LOCKS_COLUMNS];
	ShortText	scope,
				name,
				owner;

	SET(LOCKS_FENCE, Int64GetDatum(lock->fence));
	SET(LOCKS_PASSED, Int64GetDatum(lock->passed));
	SET(LOCKS_CHANGED_AT, TimestampTzGetDatum(lock->changed_at));
	SET(LOCKS_TICKETS, Int32GetDatum(lock->tickets));
	SET(LOCKS_HOME, UUIDPGetDatum(&own->home));
	SET(LOCKS_SCOPE, text_value(&scope, lock->key.scope));
	SET(LOCKS_NAME, text_value(&name, lock->key.name));
	SET_IF(held, LOCKS_ROLE, ObjectIdGetDatum(lock->holder.role));
	SET_TIME(LOCKS_GRANTED_AT, lock->granted_at);
	SET_IF(FullTransactionIdIsValid(lock->granted_xid), LOCKS_GRANTED_XID,
		   FullTransactionIdGetDatum(lock->granted_xid));
	SET_TIME(LOCKS_EXPIRES_AT, lock->expires_at);
	SET_TIME(LOCKS_HOLD_EXPIRES_AT, lock->hold_expires_at);
	SET_IF(lock->has_first, LOCKS_FIRST_TICKET,
		   UUIDPGetDatum(&lock->first_ticket));
	SET_IF(held, LOCKS_OWNER, text_value(&owner, lock->holder.owner));

	store_write_row(REL_LOCKS, values, nulls, &lock->version);
	cache_tid(tid_cache, lock->key.hash, &lock->version.tid);
	remember_lock(lock);
}

/*
 * Removes a lock's row.  The caller holds the name tag and the queue tag in
 * ExclusiveLock, and the row is the current version.
 */
void
store_delete_lock(LockRow *lock)
{
	store_delete_row(REL_LOCKS, &lock->version);
}
