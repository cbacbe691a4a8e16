/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Reading the tables.
 *
 * Rows are read directly from the tables, usually through an index.  A read
 * sees what is committed at that moment and what this transaction has written,
 * regardless of the transaction's own snapshot: it uses the latest snapshot.
 * In a SERIALIZABLE transaction that would leave predicate locks and so cause
 * serialization failures.  There we pass SnapshotAny to the server's scan, and
 * test each version of a row against the snapshot here.  (With SnapshotSelf a
 * scan misses a row that moves to another page during the scan.)  A row cannot
 * change while the caller holds its tag.  What was read without a tag may be
 * outdated the next moment, so callers decide again under the tag.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/pg_prng.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "store/table.h"

/* Sets a scan key for equality. */
void
store_set_key(ScanKey key, AttrNumber column, RegProcedure equal, Datum value)
{
	ScanKeyInit(key, column, BTEqualStrategyNumber, equal, value);
}

/* The snapshot to pass to the server's scan, see above. */
static Snapshot
server_snapshot(Snapshot snapshot)
{
	return IsolationIsSerializable() ? SnapshotAny : snapshot;
}

/*
 * The snapshot with which locks, tickets and events are read, so that their
 * rows are consistent with each other; NULL if each scan takes its own.  The
 * other tables, whose contents sessions cache, are always read with the latest
 * snapshot.
 */
static Snapshot shared_snapshot = NULL;

/* From now on, locks, tickets and events are read with the same snapshot. */
void
store_begin_shared_snapshot(void)
{
	shared_snapshot = RegisterSnapshot(GetLatestSnapshot());
}

/* Must also be called after an error. */
void
store_end_shared_snapshot(void)
{
	UnregisterSnapshot(shared_snapshot);
	shared_snapshot = NULL;
}

/*
 * All transactions before this one, in any database, had ended when the shared
 * snapshot was taken, so it sees what they wrote.  Nothing can be added before
 * the horizon, because new transactions have later ids.
 */
FullTransactionId
store_shared_snapshot_horizon(void)
{
	/* read after the snapshot was taken, so it is not older */
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	if (shared_snapshot->xmin > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, shared_snapshot->xmin);
}

static Snapshot
take_snapshot(StoreRelation table)
{
	bool		shared = (table == REL_LOCKS || table == REL_TICKETS ||
						  table == REL_EVENTS);

	return RegisterSnapshot(shared_snapshot != NULL && shared ?
							shared_snapshot : GetLatestSnapshot());
}

/*
 * Starts a scan; the keys use the table's column numbers.  The scan must be
 * closed in the same subtransaction, unless an error ends that.  Raises 55000
 * if the table or index is not as expected.
 */
TableScan *
store_open_scan(StoreRelation table, StoreRelation index, ScanKey keys,
				int nkeys)
{
	TableScan  *scan = palloc0(sizeof(TableScan));

	scan->context = CurrentMemoryContext;
	scan->rel = store_open_table(table);
	scan->snapshot = take_snapshot(table);
	if (index == REL_NONE)
	{
		scan->scan = systable_beginscan(scan->rel, InvalidOid, false,
										server_snapshot(scan->snapshot),
										nkeys, keys);
		return scan;
	}
	scan->index = store_open_index(index, scan->rel);
	scan->scan = systable_beginscan_ordered(scan->rel, scan->index,
											server_snapshot(scan->snapshot),
											nkeys, keys);
	return scan;
}

/*
 * Returns the next row, valid until the next call; NULL at the end.  The scan
 * allocates in its own memory context, whatever the caller's is.
 */
HeapTuple
store_next_row(TableScan *scan, ScanDirection direction)
{
	MemoryContext old_context = MemoryContextSwitchTo(scan->context);
	HeapTuple	tuple;

	do
	{
		tuple = scan->index == NULL ? systable_getnext(scan->scan) :
			systable_getnext_ordered(scan->scan, direction);
	} while (HeapTupleIsValid(tuple) && IsolationIsSerializable() &&
			 !table_tuple_satisfies_snapshot(scan->rel, scan->scan->slot,
											 scan->snapshot));
	MemoryContextSwitchTo(old_context);
	return tuple;
}

/*
 * Returns the row of a scan whose keys identify a single row in a unique
 * index; NULL if there is none.  The visible version is usually the last.
 */
HeapTuple
store_only_row(TableScan *scan)
{
	return store_next_row(scan, BackwardScanDirection);
}

/* Ends a scan, whether or not it has reached the end. */
void
store_close_scan(TableScan *scan)
{
	if (scan->index == NULL)
		systable_endscan(scan->scan);
	else
	{
		systable_endscan_ordered(scan->scan);
		store_close_index(scan->index);
	}
	UnregisterSnapshot(scan->snapshot);
	store_close_table(scan->rel);
	pfree(scan);
}

/*
 * Whether a page belongs to a table.  The cached size of the table suffices if
 * it covers the page: we hold a lock on the table, and whoever truncates it
 * must have invalidated the cached size before we got that lock.
 */
static bool
has_page(Relation rel, BlockNumber block)
{
	BlockNumber known = RelationGetSmgr(rel)->smgr_cached_nblocks[MAIN_FORKNUM];

	return (known != InvalidBlockNumber && block < known) ||
		block < RelationGetNumberOfBlocks(rel);
}

/*
 * Fetches the version of a row at tuple->t_self; returns false if it is no
 * longer visible.  The caller must release *buffer if it is valid.
 */
static bool
fetch_version(StoreRelation table, Relation rel, HeapTuple tuple,
			  Buffer *buffer)
{
	Snapshot	snapshot = take_snapshot(table);
	bool		visible;

	*buffer = InvalidBuffer;
	visible = has_page(rel, ItemPointerGetBlockNumber(&tuple->t_self)) &&
		heap_fetch(rel, server_snapshot(snapshot), tuple, buffer, false);
	if (visible && IsolationIsSerializable())
	{
		LockBuffer(*buffer, BUFFER_LOCK_SHARE);
		visible = HeapTupleSatisfiesVisibility(tuple, snapshot, *buffer);
		LockBuffer(*buffer, BUFFER_LOCK_UNLOCK);
	}
	UnregisterSnapshot(snapshot);
	return visible;
}

/*
 * Prunes a pinned page if the server's own scans would, because free space on
 * the page keeps updates HOT.  No commit needs to wait until the pruning is on
 * disk, so it does not count as a write of the transaction.
 */
static void
prune_page(Relation rel, Buffer buffer)
{
	XLogRecPtr	end = XactLastRecEnd;

	PrunePageCompat(rel, buffer);
	XactLastRecEnd = end;
}

/*
 * Reads the row at a TID; returns false if the version there is not visible.
 * If the caller has seen a row there before, it may be a different row by now,
 * and the page may have been truncated away.
 */
bool
store_read_row(StoreRelation table, ItemPointer tid, RowReader reader,
			   void *row)
{
	Relation	rel = store_open_table(table);
	HeapTupleData tuple;
	Buffer		buffer;
	bool		visible;

	tuple.t_self = *tid;
	visible = fetch_version(table, rel, &tuple, &buffer);
	if (visible)
		reader(&tuple, RelationGetDescr(rel), row);
	if (BufferIsValid(buffer))
	{
		prune_page(rel, buffer);
		ReleaseBuffer(buffer);
	}
	store_close_table(rel);
	return visible;
}

/*
 * Whether a pinned page still holds the given version, and no later version
 * has been committed or written by this transaction.
 */
static bool
holds_version(Relation rel, Buffer buffer, const RowVersion *version)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber offset = ItemPointerGetOffsetNumber(&version->tid);
	ItemId		item;
	HeapTupleData tuple;
	TM_Result	state = TM_Invisible;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (offset <= PageGetMaxOffsetNumber(page) &&
		ItemIdIsNormal(item = PageGetItemId(page, offset)))
	{
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		tuple.t_tableOid = RelationGetRelid(rel);
		tuple.t_self = version->tid;
		if (HeapTupleHeaderGetXmin(tuple.t_data) == version->xmin)
			state = HeapTupleSatisfiesUpdate(&tuple, GetCurrentCommandId(false),
											 buffer);
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	/* for an uncommitted later version, the subsequent write will wait */
	return state == TM_Ok || state == TM_BeingModified;
}

/*
 * Whether a version of a row that was read before is still the current one, so
 * that the row has not changed.  This needs no snapshot: we ask what a writer
 * of that version would find, not what a reader would see.
 */
bool
store_is_current(StoreRelation table, const RowVersion *version)
{
	Relation	rel;
	BlockNumber block;
	bool		same = false;

	if (!ItemPointerIsValid(&version->tid))
		return false;
	rel = store_open_table(table);
	block = ItemPointerGetBlockNumber(&version->tid);
	if (has_page(rel, block))
	{
		Buffer		buffer = ReadBuffer(rel, block);

		prune_page(rel, buffer);
		same = holds_version(rel, buffer, version);
		ReleaseBuffer(buffer);
	}
	store_close_table(rel);
	return same;
}

/*
 * Reads the rows of a random page of a table whose time in the given column is
 * before the given time.  Any page will do, so finding old rows needs no
 * index.  *seen is increased by the approximate number of rows.  Most rows are
 * young, so only old rows are passed to the reader.
 */
List *
store_sample_rows(StoreRelation table, AttrNumber column, TimestampTz before,
				  int *seen, void *(*reader) (HeapTuple tuple, TupleDesc desc))
{
	Relation	rel = store_open_table(table);
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
		store_close_table(rel);
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
		bool		isnull;

		HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
		bool		is_old;

		/*
		 * a row without xmax is visible, unless its insertion was rolled back
		 */
		if (!(tuple->t_data->t_infomask & HEAP_XMAX_INVALID) &&
			!table_tuple_satisfies_snapshot(rel, slot, snapshot))
			continue;
		(*seen)++;
		is_old = DatumGetTimestampTz(slot_getattr(slot, column, &isnull)) < before;
		if (is_old && table_tuple_satisfies_snapshot(rel, slot, snapshot))
			rows = lappend(rows, reader(tuple, RelationGetDescr(rel)));
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	store_close_table(rel);
	return rows;
}

/* The version that a tuple represents. */
RowVersion
store_row_version(HeapTuple tuple)
{
	RowVersion	version;

	version.tid = tuple->t_self;
	version.xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	return version;
}

/* A nullable time column. */
TimestampTz
store_time_or_none(Datum value, bool isnull)
{
	return isnull ? NO_TIME : DatumGetTimestampTz(value);
}
