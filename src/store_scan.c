/*-------------------------------------------------------------------------
 *
 * store_scan.c
 *	  Reading the tables: the scans that the store_*.c files share.
 *
 * Reads go straight to the tables, by an index, and see what is committed at
 * that moment and what this transaction has written, whatever snapshot the
 * transaction has.  They use the latest snapshot.  In a SERIALIZABLE transaction
 * that would leave predicate locks, and so cause serialization failures; there
 * the server's scan is given SnapshotAny, and each version of a row is judged
 * by the snapshot here.  (With SnapshotSelf a scan misses a row that is moved to
 * another page while it runs.)  A row
 * whose tag the caller holds cannot change under it; what was read without a
 * tag may be history the next moment, and callers decide again under the tag.
 *
 * Tables and indexes that a call of the writing kind has opened stay locked until
 * the transaction ends, as in any query, so that opening them again costs
 * little.  Those that only check a fence lock them no longer than they read,
 * for many a transaction that checks one stays open for long.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
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

static const char *const relation_names[] = {
	[REL_INSTALLATION] = "installation",
	[REL_LOCKS] = "locks",
	[REL_TICKETS] = "tickets",
	[REL_BLOCKERS] = "blockers",
	[REL_FLOOR] = "floor",
	[REL_SCOPES] = "scopes",
	[REL_LOCKS_PKEY] = "locks_pkey",
	[REL_TICKETS_PKEY] = "tickets_pkey",
	[REL_TICKETS_TICKET] = "tickets_ticket",
	[REL_TICKETS_PLACE] = "tickets_place",
	[REL_TICKETS_OWNER] = "tickets_owner",
	[REL_BLOCKERS_OWNER] = "blockers_owner",
	[REL_SCOPES_PKEY] = "scopes_pkey"
};

/* What has been looked up since one of the relations changed. */
static Oid	relation_oids[lengthof(relation_names)];

/* What the row of one of them says, and of which. */
static pg_uuid_t home_id;
static Oid	home_relation = InvalidOid;

static void
forget_relations(void)
{
	memset(relation_oids, 0, sizeof(relation_oids));
	home_relation = InvalidOid;
}

static void
relation_changed(Datum arg, Oid relation)
{
	for (int i = 0; i < (int) lengthof(relation_oids); i++)
	{
		if (!OidIsValid(relation) || relation_oids[i] == relation)
		{
			forget_relations();
			return;
		}
	}
}

/*
 * To be called once a session.  The extension may be dropped and created again
 * at any time; the server then tells every session before it can lock a table.
 */
void
store_watch_relations(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
}

/* The oid of a relation of ours. */
static Oid
find_relation(StoreRelation relation)
{
	Oid			schema;
	Oid			oid;

	AcceptInvalidationMessages();
	if (OidIsValid(relation_oids[relation]))
		return relation_oids[relation];

	schema = get_namespace_oid(LEASELOCK_SCHEMA, false);
	oid = get_relname_relid(relation_names[relation], schema);
	if (!OidIsValid(oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist",
						LEASELOCK_SCHEMA, relation_names[relation]),
				 errhint("Drop and create the extension leaselock.")));
	relation_oids[relation] = oid;
	return oid;
}

/* The mode to close a relation with that was opened for reading. */
static LOCKMODE close_mode = AccessShareLock;

/*
 * Says whether what is opened from now on stays locked until the transaction
 * ends.  To be called by every function that SQL calls, before it reads.
 */
void
store_keep_locks(bool keep)
{
	close_mode = keep ? NoLock : AccessShareLock;
}

/* Whether the extension is there at all. */
bool
store_exists(void)
{
	AcceptInvalidationMessages();
	return OidIsValid(relation_oids[REL_LOCKS]) ||
		OidIsValid(get_namespace_oid(LEASELOCK_SCHEMA, true));
}

/* Whether a table has no pages, which costs less than a scan to see. */
bool
store_is_empty(StoreRelation table)
{
	Relation	rel = store_open_table(table, 0, AccessShareLock);
	bool		empty = RelationGetNumberOfBlocks(rel) == 0;

	table_close(rel, close_mode);
	return empty;
}

/*
 * Opens a table, after checking that it is what we were built for (columns 0:
 * without that).
 */
Relation
store_open_table(StoreRelation table, int columns, LOCKMODE mode)
{
	Relation	rel;

	/* it may be dropped, and made again, between the look-up and the lock */
	while ((rel = try_table_open(find_relation(table), mode)) == NULL)
		forget_relations();

	if (columns != 0 && RelationGetDescr(rel)->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" does not fit the library of leaselock",
						LEASELOCK_SCHEMA, relation_names[table]),
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
	for (int table = 0; table <= REL_LAST_TABLE; table++)
		LockRelationOid(find_relation(table), RowExclusiveLock);
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

/* The snapshot that the server is given to read by, see above. */
static Snapshot
server_snapshot(Snapshot snapshot)
{
	return IsolationIsSerializable() ? SnapshotAny : snapshot;
}

/*
 * Opens a scan; keys number the table's columns.  To be closed in the same
 * subtransaction, unless by an error.
 */
TableScan *
store_open_scan(StoreRelation table, int columns, StoreRelation index,
				ScanKey keys, int nkeys)
{
	TableScan  *scan = palloc0(sizeof(TableScan));

	scan->rel = store_open_table(table, columns, AccessShareLock);
	scan->snapshot = RegisterSnapshot(GetLatestSnapshot());
	if (index == REL_NONE)
	{
		scan->scan = systable_beginscan(scan->rel, InvalidOid, false,
										server_snapshot(scan->snapshot),
										nkeys, keys);
		return scan;
	}
	scan->index = index_open(find_relation(index), AccessShareLock);
	scan->scan = systable_beginscan_ordered(scan->rel, scan->index,
											server_snapshot(scan->snapshot),
											nkeys, keys);
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
	} while (HeapTupleIsValid(tuple) && IsolationIsSerializable() &&
			 !table_tuple_satisfies_snapshot(scan->rel, scan->scan->slot,
											 scan->snapshot));
	return tuple;
}

/*
 * The row of a scan whose keys name one row of a unique index; NULL if there is
 * none.  Of many versions the one that counts is mostly the last.
 */
HeapTuple
store_only_row(TableScan *scan)
{
	return store_next_row(scan, BackwardScanDirection);
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
		index_close(scan->index, close_mode);
	}
	UnregisterSnapshot(scan->snapshot);
	table_close(scan->rel, close_mode);
	pfree(scan);
}

/*
 * Reads the row at a place where it was found before, through "take"; false if
 * the version there does not count any more.  It may be another row by now, or
 * the page may have been cut off the table.
 */
bool
store_read_row(StoreRelation table, int columns, ItemPointer tid,
			   void (*take) (HeapTuple tuple, TupleDesc desc, void *row),
			   void *row)
{
	Relation	rel = store_open_table(table, columns, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	HeapTupleData tuple;
	Buffer		buffer;
	bool		counts;

	tuple.t_self = *tid;
	buffer = InvalidBuffer;
	counts = ItemPointerGetBlockNumber(tid) < RelationGetNumberOfBlocks(rel) &&
		heap_fetch(rel, server_snapshot(snapshot), &tuple, &buffer, false);
	if (counts && IsolationIsSerializable())
	{
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		counts = HeapTupleSatisfiesVisibility(&tuple, snapshot, buffer);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	}
	if (counts)
		take(&tuple, RelationGetDescr(rel), row);
	if (BufferIsValid(buffer))
	{
		/* as the server's scans do: room on the page keeps updates HOT */
		PrunePageCompat(rel, buffer);
		ReleaseBuffer(buffer);
	}
	UnregisterSnapshot(snapshot);
	table_close(rel, close_mode);
	return counts;
}

/*
 * The rows of a random page of a table that "take" does not answer NULL for.
 * Any page will do, so no index is needed to find what is old.  *seen is raised
 * by how many there were.
 */
List *
store_sample_rows(StoreRelation table, int columns, TimestampTz before,
				  int *seen,
				  void *(*take) (HeapTuple tuple, TupleDesc desc,
								 TimestampTz before))
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
		table_close(rel, close_mode);
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
		void	   *row;

		if (!table_tuple_satisfies_snapshot(rel, slot, snapshot))
			continue;
		(*seen)++;
		row = take(ExecFetchSlotHeapTuple(slot, false, NULL),
				   RelationGetDescr(rel), before);
		if (row != NULL)
			rows = lappend(rows, row);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, close_mode);
	return rows;
}

/*
 * The row of leaselock.installation: which installation this is.  It is never
 * changed, so it is as good as the table that it was read from.
 */
pg_uuid_t
store_load_home(void)
{
	TableScan  *scan;
	HeapTuple	tuple;
	bool		isnull;

	if (find_relation(REL_INSTALLATION) == home_relation)
		return home_id;
	scan = store_open_scan(REL_INSTALLATION, 1, REL_NONE, NULL, 0);
	tuple = store_next_row(scan, ForwardScanDirection);
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "leaselock.installation is empty");
	home_id = *DatumGetUUIDP(heap_getattr(tuple, 1,
										  RelationGetDescr(scan->rel),
										  &isnull));
	home_relation = RelationGetRelid(scan->rel);
	store_close_scan(scan);
	return home_id;
}

/* A time as it was read from a row. */
TimestampTz
store_time_or_none(Datum value, bool isnull)
{
	return isnull ? NO_TIME : DatumGetTimestampTz(value);
}
