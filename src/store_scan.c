/*-------------------------------------------------------------------------
 *
 * store_scan.c
 *	  Reading the tables: the scans that the store_*.c files share.
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
 * No oid is kept: the extension may be dropped and created again.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/namespace.h"
#include "common/pg_prng.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "leaselock.h"

/* The oid of a relation of ours; looked up anew each time. */
static Oid
find_relation(const char *name)
{
	Oid			schema;
	Oid			relation;

	AcceptInvalidationMessages();
	schema = get_namespace_oid(LEASELOCK_SCHEMA, false);
	relation = get_relname_relid(name, schema);

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
	AcceptInvalidationMessages();
	return OidIsValid(get_namespace_oid(LEASELOCK_SCHEMA, true));
}

/* Whether a table has no pages, which costs less than a scan to see. */
bool
store_is_empty(const char *name)
{
	Relation	rel = store_open_table(name, 0, AccessShareLock);
	bool		empty = RelationGetNumberOfBlocks(rel) == 0;

	table_close(rel, AccessShareLock);
	return empty;
}

/*
 * Opens a table, after checking that it is what we were built for (columns 0:
 * without that).
 */
Relation
store_open_table(const char *name, int columns, LOCKMODE mode)
{
	Relation	rel;

	/* it may be dropped, and made again, between the look-up and the lock */
	do
		rel = try_table_open(find_relation(name), mode);
	while (rel == NULL);

	if (columns != 0 && RelationGetDescr(rel)->natts != columns)
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

/* A scan key for equality. */
void
store_set_key(ScanKey key, AttrNumber column, RegProcedure equal, Datum value)
{
	ScanKeyInit(key, column, BTEqualStrategyNumber, equal, value);
}

/*
 * Scan keys for what comes behind a position in the order of (scope, name,
 * request id): the first "equal" of them are the same, the next is greater.
 * Returns how many there are.
 */
int
store_set_behind(ScanKey keys, const LockKey *key, const pg_uuid_t *request_id,
				 int equal)
{
	Datum		values[] = {
		CStringGetTextDatum(key->scope), CStringGetTextDatum(key->name),
		UUIDPGetDatum(request_id)
	};
	static const RegProcedure equals[] = {F_TEXTEQ, F_TEXTEQ, F_UUID_EQ};
	static const RegProcedure greater[] = {F_TEXT_GT, F_TEXT_GT, F_UUID_GT};

	for (int i = 0; i < equal; i++)
		store_set_key(&keys[i], i + 1, equals[i], values[i]);
	ScanKeyInit(&keys[equal], equal + 1, BTGreaterStrategyNumber,
				greater[equal], values[equal]);
	return equal + 1;
}

/*
 * Opens a scan; keys number the table's columns.  To be closed in the same
 * subtransaction, unless by an error.
 */
TableScan *
store_open_scan(const char *table, int columns, const char *index, ScanKey keys,
				int nkeys)
{
	TableScan  *scan = palloc0(sizeof(TableScan));

	scan->rel = store_open_table(table, columns, AccessShareLock);
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
HeapTuple
store_next_row(TableScan *scan, ScanDirection direction)
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

/* Closes a scan, at its end or before. */
void
store_close_scan(TableScan *scan)
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

/*
 * The rows of a random page of a table, each through "take".  Any page will
 * do, so no index is needed to find what is old.
 */
List *
store_sample_rows(const char *table, int columns,
				  void *(*take) (HeapTuple tuple, TupleDesc desc))
{
	Relation	rel = store_open_table(table, columns, AccessShareLock);
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

/* The row of leaselock.installation: which installation this is. */
pg_uuid_t
store_load_home(void)
{
	TableScan  *scan = store_open_scan("installation", 1, NULL, NULL, 0);
	HeapTuple	tuple = store_next_row(scan, ForwardScanDirection);
	pg_uuid_t	home;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "leaselock.installation is empty");
	home = *DatumGetUUIDP(heap_getattr(tuple, 1, RelationGetDescr(scan->rel),
									   &isnull));
	store_close_scan(scan);
	return home;
}

/* A time as it was read from a row. */
TimestampTz
store_time_or_none(Datum value, bool isnull)
{
	return isnull ? NO_TIME : DatumGetTimestampTz(value);
}
