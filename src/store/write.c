/*-------------------------------------------------------------------------
 *
 * write.c
 *	  Writing the tables.
 *
 * Rows are written directly into the heap and its indexes, without SQL.  An
 * UPDATE by the executor first reads the row with an MVCC snapshot.  In a
 * SERIALIZABLE transaction that leaves a predicate lock on the row, which
 * persists if the write is in a subtransaction, and then makes other writers
 * of the lock fail with 40001.  Nothing is read here, so nothing conflicts.
 *
 * Whatever else the executor would take care of is done here or refused.
 * Every index is maintained as core does for its catalogs: an index that is
 * being built is skipped until it is ready for inserts, a summarizing index is
 * maintained for HOT updates too, and an index that needs more than the
 * columns of the row is refused (store_list_indexes).  Triggers do not fire.
 * Constraints apply to restored rows; for our own rows, the rules of this
 * library ensure that they hold.  Every SQL function that writes has already
 * refused read-only transactions, standbys and parallel workers
 * (require_writable).
 *
 * The caller must hold the tag that protects the row (tag.c).  This prevents
 * the error "tuple concurrently updated".
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "leaselock.h"
#include "store/table.h"

/*
 * A write needs a snapshot for the toast table, although it never touches
 * that.  Before a commit, and between the transactions of a procedure, there
 * is none.
 */
static Snapshot
begin_write(void)
{
	return HaveRegisteredOrActiveSnapshot() ? NULL :
		RegisterSnapshot(GetLatestSnapshot());
}

/*
 * The table stays locked until the transaction ends, as after any write, and
 * later scans see what was written.
 */
static void
end_write(Relation rel, Snapshot snapshot)
{
	if (snapshot != NULL)
		UnregisterSnapshot(snapshot);
	store_close_table(rel);
	CommandCounterIncrement();
}

/*
 * A statement that does not acquire our locks, such as a restore, is inserting
 * a row with the same key, or has just done so.  Raises 55P03.
 */
static void
report_foreign_insert(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not add a row to table \"%s.%s\"",
					LEASELOCK_SCHEMA, RelationGetRelationName(rel)),
			 errdetail("Another session is inserting the same row without using the functions of leaselock."),
			 errhint("Try again when its transaction has ended.")));
}

/*
 * How an index checks uniqueness.  Updates never change the keys of our own
 * unique indexes, so a new version needs no check, which would visit every
 * version that still exists.  A new row must not wait in the index: no session
 * that holds our locks inserts the same key at the same time.
 */
static IndexUniqueCheck
unique_check(const TableIndex *known, Relation index, bool is_new)
{
	if (!index->rd_index->indisunique)
		return UNIQUE_CHECK_NO;
	if (!known->has_fixed_key)
		return UNIQUE_CHECK_YES;
	return is_new ? UNIQUE_CHECK_PARTIAL : UNIQUE_CHECK_NO;
}

/* Adds the entries of a row to one open index. */
static void
insert_entry(Relation rel, const TableIndex *known, Relation index,
			 HeapTuple tuple, TupleTableSlot *slot, RowIndexes which)
{
	IndexInfo  *info = BuildIndexInfo(index);
	bool		is_new = which == ROW_IS_NEW;
	IndexUniqueCheck check = unique_check(known, index, is_new);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (!info->ii_ReadyForInserts ||
		(which == ROW_IS_SUMMARIZED && !IndexIsSummarizingCompat(info)))
		return;
	FormIndexDatum(info, slot, NULL, values, nulls);
	if (!index_insert(index, values, nulls, &tuple->t_self, rel, check,
					  !is_new, info) &&
		check == UNIQUE_CHECK_PARTIAL)
		report_foreign_insert(rel);
	IndexInsertCleanupCompat(index, info);
}

/*
 * Adds the index entries of a row.  Indexes are told if the row is merely a
 * new version, so that they remove entries of dead versions rather than grow.
 */
static void
index_row(StoreRelation table, Relation rel, HeapTuple tuple,
		  const bool *nulls, RowIndexes which)
{
	int			count;
	const TableIndex *indexes = store_list_indexes(table, rel, &count);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsHeapTuple);

	ExecStoreHeapTuple(tuple, slot, false);
	for (int i = 0; i < count; i++)
	{
		Relation	index;

		if (indexes[i].only_if != 0 && nulls[indexes[i].only_if - 1])
			continue;
		index = index_open(indexes[i].oid, RowExclusiveLock);
		insert_entry(rel, &indexes[i], index, tuple, slot, which);
		index_close(index, NoLock);
	}
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Whether sessions cache the contents of a table until a change is announced.
 */
static bool
is_remembered(StoreRelation table)
{
	return table == REL_FLOOR || table == REL_SCOPES || table == REL_QUEUES;
}

/*
 * Writes a row: inserts it if version->tid is invalid, otherwise updates that
 * version.  Sets *version to what was written.  The caller holds the tag that
 * protects the row.
 */
void
store_write_row(StoreRelation table, Datum *values, bool *nulls,
				RowVersion *version)
{
	Relation	rel = store_open_table(table);
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	Snapshot	snapshot = begin_write();
	RowIndexes	which = ROW_IS_NEW;

	if (ItemPointerIsValid(&version->tid))
		which = HeapUpdateCompat(rel, &version->tid, tuple);
	else
		simple_heap_insert(rel, tuple);
	/* most updates are HOT, and need not even open the indexes */
	if (which != ROW_IS_HOT)
		index_row(table, rel, tuple, nulls, which);
	*version = store_row_version(tuple);
	heap_freetuple(tuple);
	if (is_remembered(table))
		store_announce_rows(rel);
	end_write(rel, snapshot);
}

/* Removes a row.  The caller holds the tag that protects it. */
void
store_delete_row(StoreRelation table, RowVersion *version)
{
	Relation	rel = store_open_table(table);
	Snapshot	snapshot = begin_write();

	simple_heap_delete(rel, &version->tid);
	if (is_remembered(table))
		store_announce_rows(rel);
	end_write(rel, snapshot);
}

/*
 * Removes a row that no tag protects because nobody changes it any more.
 * Returns false if another transaction has just removed it or is about to.
 */
bool
store_try_delete_row(StoreRelation table, RowVersion *version)
{
	Relation	rel = store_open_table(table);
	Snapshot	snapshot = begin_write();
	bool		removed = TryHeapDeleteCompat(rel, &version->tid);

	end_write(rel, snapshot);
	return removed;
}
