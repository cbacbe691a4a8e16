/*-------------------------------------------------------------------------
 *
 * store_misc.c
 *	  The rows of leaselock.blockers, floor and scopes.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "leaselock.h"

enum
{
	BLOCKERS_ROLE = 1,
	BLOCKERS_OWNER,
	BLOCKERS_SCOPE,
	BLOCKERS_NAME,
	BLOCKERS_COLUMNS = BLOCKERS_NAME
};

static List *
scan_blockers(ScanKey keys, int nkeys, int count)
{
	TableScan  *scan = store_open_scan(REL_BLOCKERS, REL_BLOCKERS_OWNER, keys, nkeys);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (list_length(rows) < count &&
		   HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
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
	store_close_scan(scan);
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

	store_set_key(&keys[0], BLOCKERS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	store_set_key(&keys[1], BLOCKERS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
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
	bool		nulls[BLOCKERS_COLUMNS] = {0};
	ItemPointerData tid;
	ListCell   *cell;

	foreach(cell, store_list_blocked(who))
	{
		if (compare_lock_keys(&((Blocker *) lfirst(cell))->key, key) == 0)
			return;
	}
	ItemPointerSetInvalid(&tid);
	values[BLOCKERS_ROLE - 1] = ObjectIdGetDatum(who->role);
	values[BLOCKERS_OWNER - 1] = CStringGetTextDatum(who->owner);
	values[BLOCKERS_SCOPE - 1] = CStringGetTextDatum(key->scope);
	values[BLOCKERS_NAME - 1] = CStringGetTextDatum(key->name);
	store_write_row(REL_BLOCKERS, values, nulls, &tid);
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
			store_delete_row(REL_BLOCKERS, &blocker->tid);
	}
}

/* The floor, and into *tid where its row is; all 0 if there is none. */
static FenceFloor
load_floor(ItemPointer tid)
{
	TableScan  *scan = store_open_scan(REL_FLOOR, REL_NONE, NULL, 0);
	HeapTuple	tuple;
	FenceFloor	floor = {0, 0};

	while (HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
	{
		FenceFloor	row;
		Datum		values[2];
		bool		nulls[2];

		heap_deform_tuple(tuple, RelationGetDescr(scan->rel), values, nulls);
		row.fence = DatumGetInt64(values[0]);
		row.reading = DatumGetInt64(values[1]);
		if (row.fence < 0 || row.fence > MAX_FENCE ||
			row.reading < -MAX_FENCE || row.reading > MAX_FENCE)
			store_report_row(REL_FLOOR, "A number is out of its bounds.");
		raise_floor(&floor, row);
		*tid = tuple->t_self;
	}
	store_close_scan(scan);
	return floor;
}

/* The floor of all fences; all 0 if it was never raised. */
FenceFloor
store_load_floor(void)
{
	ItemPointerData tid;

	return load_floor(&tid);
}

/* Raises the floor.  The caller holds the floor tag. */
void
store_save_floor(const FenceFloor *floor)
{
	ItemPointerData tid;
	Datum		values[2];
	bool		nulls[2] = {0};

	ItemPointerSetInvalid(&tid);
	(void) load_floor(&tid);
	values[0] = Int64GetDatum(floor->fence);
	values[1] = Int64GetDatum(floor->reading);
	store_write_row(REL_FLOOR, values, nulls, &tid);
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
	if (store_is_empty(REL_SCOPES))
		return false;

	store_set_key(&key, SCOPES_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	scan = store_open_scan(REL_SCOPES, REL_SCOPES_PKEY, &key, 1);
	tuple = store_next_row(scan, ForwardScanDirection);
	if (HeapTupleIsValid(tuple))
	{
		const Installation *own = store_load_installation();
		Datum		values[SCOPES_COLUMNS];
		bool		nulls[SCOPES_COLUMNS];

		heap_deform_tuple(tuple, RelationGetDescr(scan->rel), values, nulls);
		*role = *DatumGetName(values[SCOPES_ROLE - 1]);
		*role_oid = memcmp(DatumGetUUIDP(values[SCOPES_HOME - 1]), &own->home,
						   UUID_LEN) != 0 ? InvalidOid :
			DatumGetObjectId(values[SCOPES_ROLE_OID - 1]);
		*tid = tuple->t_self;
		found = true;
	}
	store_close_scan(scan);
	return found;
}

/* load_scope for those who only ask. */
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
	const Installation *own = store_load_installation();
	Datum		values[SCOPES_COLUMNS];
	bool		nulls[SCOPES_COLUMNS] = {0};

	ItemPointerSetInvalid(&tid);
	(void) load_scope(scope, &name, &old_oid, &tid);
	namestrcpy(&name, role);
	values[SCOPES_SCOPE - 1] = CStringGetTextDatum(scope);
	values[SCOPES_ROLE - 1] = NameGetDatum(&name);
	values[SCOPES_ROLE_OID - 1] = ObjectIdGetDatum(role_oid);
	values[SCOPES_HOME - 1] = UUIDPGetDatum(&own->home);
	store_write_row(REL_SCOPES, values, nulls, &tid);
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
	store_delete_row(REL_SCOPES, &tid);
	return true;
}
