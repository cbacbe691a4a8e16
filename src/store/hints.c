/*-------------------------------------------------------------------------
 *
 * hints.c
 *	  The rows of leaselock.blockers: which identity stands in whose way.
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
 * Locks that a waiter found this identity to hold (Blocker *).  Hints: check
 * each.
 */
List *
store_list_blocked(const Identity *who)
{
	ScanKeyData keys[2];

	store_set_key(&keys[0], BLOCKERS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	store_set_key(&keys[1], BLOCKERS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	return scan_blockers(keys, 2, PG_INT32_MAX);
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
 * Removes such notes when the identity loses the lock.  The caller holds the
 * name tag in NAME_CHANGE, so that nobody else removes them.
 */
void
store_forget_blocker(const Identity *who, const LockKey *key)
{
	ListCell   *cell;

	/* many databases have no queue, and this is asked at every release */
	if (store_is_empty(REL_BLOCKERS))
		return;
	foreach(cell, store_list_blocked(who))
	{
		Blocker    *blocker = (Blocker *) lfirst(cell);

		if (compare_lock_keys(&blocker->key, key) == 0)
			store_delete_row(REL_BLOCKERS, &blocker->version);
	}
}
