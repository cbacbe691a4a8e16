/*-------------------------------------------------------------------------
 *
 * store_write.c
 *	  Writing the tables.
 *
 * Rows are written straight into the heap and its indexes, not by SQL.  An
 * UPDATE by the executor reads the row with an MVCC snapshot first; in a
 * SERIALIZABLE transaction that leaves a predicate lock on the row, which
 * stays if the write is in a subtransaction, and then fails other writers of
 * the lock with 40001.  Nothing here reads, so nothing conflicts.
 *
 * What the executor would see to is no concern here: the tables have no
 * constraint but their keys, no trigger, no partial index and no index on an
 * expression; nobody else may write them; and every function that writes has
 * refused read-only transactions, standbys and parallel workers before
 * (require_writable).
 *
 * The caller must hold the tag that guards the row (locktag.c), which is what
 * keeps "tuple concurrently updated" away.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "leaselock.h"

/*
 * A write needs some snapshot, for the toast table that it never touches;
 * before a commit, and between the transactions of a procedure, there is none.
 */
static Snapshot
begin_write(void)
{
	return RegisterSnapshot(GetLatestSnapshot());
}

/*
 * The table stays locked until the transaction ends, as after any write; what
 * was written shows in the scans that follow.
 */
static void
end_write(Relation rel, Snapshot snapshot)
{
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * Adds the index entries of a row.  The keys of the unique indexes never change,
 * so for a new version nothing is looked for in them, which would visit every
 * version that is still there; and the indexes are told that it is one, so that
 * they remove entries of dead versions rather than grow.
 */
static void
index_row(Relation rel, HeapTuple tuple, bool is_new)
{
	List	   *indexes = RelationGetIndexList(rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsHeapTuple);
	ListCell   *cell;

	ExecStoreHeapTuple(tuple, slot, false);
	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), RowExclusiveLock);
		IndexInfo  *info = BuildIndexInfo(index);
		Datum		values[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		FormIndexDatum(info, slot, NULL, values, nulls);
		(void) index_insert(index, values, nulls, &tuple->t_self, rel,
							is_new && index->rd_index->indisunique ?
							UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, !is_new, info);
		index_close(index, NoLock);
	}
	ExecDropSingleTupleTableSlot(slot);
	list_free(indexes);
}

/*
 * Writes a row: a new one if *tid is invalid, else over the one there.  Sets
 * *tid to where it is now.
 */
void
store_write_row(StoreRelation table, int columns, Datum *values, bool *nulls,
				ItemPointer tid)
{
	Relation	rel = store_open_table(table, columns, RowExclusiveLock);
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	Snapshot	snapshot = begin_write();
	bool		is_new = !ItemPointerIsValid(tid);

	/* the indexes need not even be opened for a HOT update, as most are */
	if (is_new)
		simple_heap_insert(rel, tuple);
	else
		HeapUpdateCompat(rel, tid, tuple);
	if (!HeapTupleIsHeapOnly(tuple))
		index_row(rel, tuple, is_new);
	*tid = tuple->t_self;
	heap_freetuple(tuple);
	end_write(rel, snapshot);
}

/* Removes a row. */
void
store_delete_row(StoreRelation table, int columns, ItemPointer tid)
{
	Relation	rel = store_open_table(table, columns, RowExclusiveLock);
	Snapshot	snapshot = begin_write();

	simple_heap_delete(rel, tid);
	end_write(rel, snapshot);
}

/* Sets a column, numbered from 1, of a row that is to be written. */
void
store_set_value(Datum *values, bool *nulls, int column, Datum value,
				bool isnull)
{
	values[column - 1] = value;
	nulls[column - 1] = isnull;
}

/* The same for a time, NO_TIME being NULL. */
void
store_set_time(Datum *values, bool *nulls, int column, TimestampTz value)
{
	store_set_value(values, nulls, column, TimestampTzGetDatum(value),
					value == NO_TIME);
}
