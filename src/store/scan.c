/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Reading the tables.
 *
 * Reads go straight to the tables, by an index, and see what is committed at
 * that moment and what this transaction has written, whatever snapshot the
 * transaction has.  They use the latest snapshot.  In a SERIALIZABLE transaction
 * that would leave predicate locks, and so cause serialization failures; there
 * the server's scan is given SnapshotAny, and each version of a row is judged
 * by the snapshot here.  (With SnapshotSelf a scan misses a row that is moved
 * to another page while it runs.)  A row whose tag the caller holds cannot
 * change under it; what was read without a tag may be history the next moment,
 * and callers decide again under the tag.
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

/* A scan key for equality. */
void
store_set_key(ScanKey key, AttrNumber column, RegProcedure equal, Datum value)
{
	ScanKeyInit(key, column, BTEqualStrategyNumber, equal, value);
}

/* The snapshot that the server is given to read by, see above. */
static Snapshot
server_snapshot(Snapshot snapshot)
{
	return IsolationIsSerializable() ? SnapshotAny : snapshot;
}

/*
 * The one moment as of which locks, tickets and events are read, NULL: each scan
 * sees its own.  What sessions remember of the other tables is always of the
 * latest.
 */
static Snapshot picture = NULL;

/* From now on the rows of these tables fit each other. */
void
store_begin_picture(void)
{
	picture = RegisterSnapshot(GetLatestSnapshot());
}

/* To be called after an error, too. */
void
store_end_picture(void)
{
	UnregisterSnapshot(picture);
	picture = NULL;
}

/*
 * Every transaction before this one had ended at the moment of the picture, in
 * whichever database, and what it wrote is in the picture.  So nothing can come
 * before it any more: new transactions have later numbers.
 */
FullTransactionId
store_picture_horizon(void)
{
	/* read behind the snapshot, so it is not older than that */
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	if (picture->xmin > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, picture->xmin);
}

static Snapshot
take_snapshot(StoreRelation table)
{
	bool		depicted = (table == REL_LOCKS || table == REL_TICKETS ||
							table == REL_EVENTS);

	return RegisterSnapshot(picture != NULL && depicted ? picture :
							GetLatestSnapshot());
}

/*
 * Opens a scan; keys number the table's columns.  To be closed in the same
 * subtransaction, unless by an error.
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
 * The next row, valid until the next call; NULL at the end.  What the scan
 * keeps for itself lives as long as it does, whatever the context of the caller.
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
 * The row of a scan whose keys name one row of a unique index; NULL if there is
 * none.  The visible version is usually the last.
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
		store_close_index(scan->index);
	}
	UnregisterSnapshot(scan->snapshot);
	store_close_table(scan->rel);
	pfree(scan);
}

/*
 * Whether a page is part of a table.  What is remembered of the table's size
 * does, where it covers the page: the table is locked, and whoever cuts pages
 * off it told this session before it could be.
 */
static bool
has_page(Relation rel, BlockNumber block)
{
	BlockNumber known = RelationGetSmgr(rel)->smgr_cached_nblocks[MAIN_FORKNUM];

	return (known != InvalidBlockNumber && block < known) ||
		block < RelationGetNumberOfBlocks(rel);
}

/*
 * Fetches the version of a row at a place, false if it is not visible any more.
 * *buffer is to be released if it is valid.
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
 * Prunes a pinned page if it needs that, as the server's scans do: room on the
 * page keeps updates HOT.  No commit has to wait until that is on disk, so it
 * does not count among what the transaction has written.
 */
static void
prune_page(Relation rel, Buffer buffer)
{
	XLogRecPtr	end = XactLastRecEnd;

	PrunePageCompat(rel, buffer);
	XactLastRecEnd = end;
}

/*
 * Reads the row at a place where it was found before; false if the version
 * there is not visible any more.  It may be another row by now, or the page may
 * have been cut off the table.
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
 * Whether what a version's place on a pinned page holds is that version, and no
 * later one has been committed, nor written by this transaction.
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
	/* a later version that is not committed is for the write to wait for */
	return state == TM_Ok || state == TM_BeingModified;
}

/*
 * Whether a version of a row that was read before is still the present one.
 * Then nothing of it has changed.  No snapshot is needed: what a writer of the
 * version would find is asked, not what a reader would see.
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
 * The rows of a random page of a table whose time in a column lies before.  Any
 * page will do, so no index is needed to find what is old.  *seen is raised by
 * how many there were, about.  Most are young, so the reader is given the old ones only.
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

		/* one that nobody has touched is there, unless it was rolled back */
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

/* Which version of its row a tuple is. */
RowVersion
store_row_version(HeapTuple tuple)
{
	RowVersion	version;

	version.tid = tuple->t_self;
	version.xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	return version;
}

/* A time as it was read from a row. */
TimestampTz
store_time_or_none(Datum value, bool isnull)
{
	return isnull ? NO_TIME : DatumGetTimestampTz(value);
}
