/*-------------------------------------------------------------------------
 *
 * hints.c
 *	  The rows of leaselock.blockers (which identities block others) and of
 *	  leaselock.queues (whether anybody waits at all).
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

#include "store/columns.h"
#include "store/rows.h"
#include "store/table.h"
#include "store/tag.h"

/* Columns, in the order of the install script. */
enum
{
	BLOCKERS_ROLE = 1,
	BLOCKERS_OWNER,
	BLOCKERS_SCOPE,
	BLOCKERS_NAME,
	BLOCKERS_COLUMNS = BLOCKERS_NAME
};

static Blocker *
read_blocker(HeapTuple tuple, TupleDesc desc)
{
	Blocker    *row = palloc(sizeof(Blocker));
	Datum		values[BLOCKERS_COLUMNS];
	bool		nulls[BLOCKERS_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	row->version = store_row_version(tuple);
	row->who.role = DatumGetObjectId(VALUE(BLOCKERS_ROLE));
	row->who.owner = TextDatumGetCString(VALUE(BLOCKERS_OWNER));
	row->key = make_lock_key(TextDatumGetCString(VALUE(BLOCKERS_SCOPE)),
							 TextDatumGetCString(VALUE(BLOCKERS_NAME)));
	return row;
}

static List *
scan_blockers(ScanKey keys, int nkeys, int count)
{
	TableScan  *scan = store_open_scan(REL_BLOCKERS, REL_BLOCKERS_OWNER, keys,
									   nkeys);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (list_length(rows) < count &&
		   HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
		rows = lappend(rows, read_blocker(tuple, RelationGetDescr(scan->rel)));
	store_close_scan(scan);
	return rows;
}

/*
 * The locks that a waiter found this identity to hold (Blocker *).  These are
 * hints: the caller must check each.
 */
List *
store_list_blocked(const Identity *who)
{
	ScanKeyData keys[2];

	store_set_key(&keys[0], BLOCKERS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	store_set_key(&keys[1], BLOCKERS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	return scan_blockers(keys, 2, PG_INT32_MAX);
}

/* Up to "count" of all these hints (Blocker *). */
List *
store_list_blockers(int count)
{
	return scan_blockers(NULL, 0, count);
}

/* ----------------------------------------------------------------------
 * Queues
 * ----------------------------------------------------------------------
 */

/*
 * Whether any lock in this database may have a ticket in its queue.  Many
 * databases have no queues, and every acquisition and release asks this.  The
 * answer is cached until a change of the table is announced.  The announcement
 * arrives before the transaction that queued the first ticket releases its
 * tags.
 */
bool
store_has_queues(void)
{
	static uint64 remembered_at = 0;
	static bool has_queues = false;
	uint64		present = store_generation();
	TableScan  *scan;

	if (present == remembered_at)
		return has_queues;
	scan = store_open_scan(REL_QUEUES, REL_NONE, NULL, 0);
	has_queues = HeapTupleIsValid(store_next_row(scan, ForwardScanDirection));
	store_close_scan(scan);

	/*
	 * not store_generation() again: an announcement since then may be missing
	 * from what was read
	 */
	remembered_at = present;
	return has_queues;
}

/*
 * Records that there are queues, before a ticket is put into one.  The caller
 * holds the queues tag, or has found it busy.  In the latter case another
 * transaction may be about to record that there are none, so a further row is
 * needed in any case.
 */
void
store_announce_queues(bool in_any_case)
{
	Datum		values[1];
	bool		nulls[1] = {false};
	RowVersion	version;

	if (!in_any_case && store_has_queues())
		return;
	ItemPointerSetInvalid(&version.tid);
	values[0] = TimestampTzGetDatum(GetCurrentTimestamp());
	store_write_row(REL_QUEUES, values, nulls, &version);
}

/* The rows that currently record that there are queues (RowVersion *). */
List *
store_list_queues(void)
{
	TableScan  *scan = store_open_scan(REL_QUEUES, REL_NONE, NULL, 0);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
	{
		RowVersion *row = palloc(sizeof(RowVersion));

		*row = store_row_version(tuple);
		rows = lappend(rows, row);
	}
	store_close_scan(scan);
	return rows;
}

/*
 * Records that there are no more queues.  The caller holds the queues tag in
 * ExclusiveLock, has listed these rows under it, and has then found no ticket
 * in any queue.  A row that appeared after the listing was added together with
 * a ticket, and stays.
 */
void
store_forget_queues(List *rows)
{
	ListCell   *cell;

	foreach(cell, rows)
		store_delete_row(REL_QUEUES, (RowVersion *) lfirst(cell));
}

/* ----------------------------------------------------------------------
 * Blockers
 * ----------------------------------------------------------------------
 */

/* Records that an identity holds a lock that others queue for. */
void
store_note_blocker(const Identity *who, const LockKey *key)
{
	Datum		values[BLOCKERS_COLUMNS];
	bool		nulls[BLOCKERS_COLUMNS];
	RowVersion	version;
	ListCell   *cell;

	foreach(cell, store_list_blocked(who))
	{
		if (compare_lock_keys(&((Blocker *) lfirst(cell))->key, key) == 0)
			return;
	}
	ItemPointerSetInvalid(&version.tid);
	SET(BLOCKERS_ROLE, ObjectIdGetDatum(who->role));
	SET(BLOCKERS_OWNER, CStringGetTextDatum(who->owner));
	SET(BLOCKERS_SCOPE, CStringGetTextDatum(key->scope));
	SET(BLOCKERS_NAME, CStringGetTextDatum(key->name));
	store_write_row(REL_BLOCKERS, values, nulls, &version);
}

/*
 * Removes these records when the identity loses the lock.  The caller holds
 * the name tag in ExclusiveLock, so that nobody else removes them.
 */
void
store_forget_blocker(const Identity *who, const LockKey *key)
{
	ListCell   *cell;

	foreach(cell, store_list_blocked(who))
	{
		Blocker    *blocker = (Blocker *) lfirst(cell);

		if (compare_lock_keys(&blocker->key, key) == 0)
			store_delete_row(REL_BLOCKERS, &blocker->version);
	}
}
