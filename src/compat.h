/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between the server versions that are supported, 15 to 19.
 *	  Call sites stay free of #if.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_COMPAT_H
#define LEASELOCK_COMPAT_H

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "nodes/execnodes.h"
#if PG_VERSION_NUM >= 160000
#include "utils/guc_hooks.h"	/* assign_synchronous_commit */
#else
#include "replication/syncrep.h"
#endif
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"				/* postgres.h no longer has it */
#endif

/* 17 added the third argument. */
static inline bool
LockHeldByMeCompat(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
#endif
}

/* 17 added infinite intervals. */
static inline bool
IntervalIsInfiniteCompat(const Interval *interval)
{
#if PG_VERSION_NUM >= 170000
	return INTERVAL_NOT_FINITE(interval);
#else
	(void) interval;
	return false;
#endif
}

/* 19 added the last argument. */
static inline TableScanDesc
BeginTidRangeScanCompat(Relation rel, Snapshot snapshot, ItemPointer first,
						ItemPointer last)
{
#if PG_VERSION_NUM >= 190000
	return table_beginscan_tidrange(rel, snapshot, first, last, SO_NONE);
#else
	return table_beginscan_tidrange(rel, snapshot, first, last);
#endif
}

/* Which indexes need an entry for a row that was written. */
typedef enum RowIndexes
{
	ROW_IS_NEW,					/* all: the row is new */
	ROW_IS_MOVED,				/* all: the new version is not heap-only */
	ROW_IS_SUMMARIZED,			/* only summarizing indexes */
	ROW_IS_HOT					/* none */
} RowIndexes;

/*
 * 16 added the last argument, and HOT updates that change summarizing indexes.
 */
static inline RowIndexes
HeapUpdateCompat(Relation rel, ItemPointer tid, HeapTuple tuple)
{
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes indexes;

	simple_heap_update(rel, tid, tuple, &indexes);
	if (indexes == TU_Summarizing)
		return ROW_IS_SUMMARIZED;
#else
	simple_heap_update(rel, tid, tuple);
#endif
	return HeapTupleIsHeapOnly(tuple) ? ROW_IS_HOT : ROW_IS_MOVED;
}

/* 16 added summarizing indexes. */
static inline bool
IndexIsSummarizingCompat(const IndexInfo *info)
{
#if PG_VERSION_NUM >= 160000
	return info->ii_Summarizing;
#else
	(void) info;
	return false;
#endif
}

/* 17 added a call that cleans up after inserts into an index. */
static inline void
IndexInsertCleanupCompat(Relation index, IndexInfo *info)
{
#if PG_VERSION_NUM >= 170000
	index_insert_cleanup(index, info);
#else
	(void) index;
	(void) info;
#endif
}

/*
 * Deletes a row unless the deletion would have to wait.  19 removed one flag.
 */
static inline bool
TryHeapDeleteCompat(Relation rel, ItemPointer tid)
{
	TM_FailureData failure;
	CommandId	cid = GetCurrentCommandId(true);

#if PG_VERSION_NUM >= 190000
	return heap_delete(rel, tid, cid, 0, InvalidSnapshot, false, &failure) ==
		TM_Ok;
#else
	return heap_delete(rel, tid, cid, InvalidSnapshot, false, &failure,
					   false) == TM_Ok;
#endif
}

/*
 * Tries to acquire a lock.  Returns false if it is not available or if the
 * lock table is full, without raising an error.  18 added the last argument.
 */
static inline bool
TryLockQuietlyCompat(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 180000
	return LockAcquireExtended(tag, mode, false, true, false, NULL, false) !=
		LOCKACQUIRE_NOT_AVAIL;
#else
	return LockAcquireExtended(tag, mode, false, true, false, NULL) !=
		LOCKACQUIRE_NOT_AVAIL;
#endif
}

/* 19 added the last two arguments. */
static inline void
PrunePageCompat(Relation rel, Buffer buffer)
{
#if PG_VERSION_NUM >= 190000
	Buffer		map = InvalidBuffer;

	heap_page_prune_opt(rel, buffer, &map, false);
	if (BufferIsValid(map))
		ReleaseBuffer(map);
#else
	heap_page_prune_opt(rel, buffer);
#endif
}

/*
 * Declared in libpq/libpq.h.  We do not include that header, because it needs
 * the headers of GSSAPI if the server was built with it.
 */
extern bool pq_check_connection(void);

/*
 * 17 added a limit to the duration of a transaction, in ms; 0 means no limit.
 */
static inline int
TransactionTimeoutCompat(void)
{
#if PG_VERSION_NUM >= 170000
	return TransactionTimeout;
#else
	return 0;
#endif
}

/* 17 added named wait events for extensions. */
static inline uint32
LeaseWaitEventCompat(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("LeaseWait");
	return event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

/* 18 added the name and version of a module. */
#ifdef PG_MODULE_MAGIC_EXT
#define LEASELOCK_MODULE_MAGIC \
	PG_MODULE_MAGIC_EXT(.name = "leaselock", .version = LEASELOCK_VERSION)
#else
#define LEASELOCK_MODULE_MAGIC PG_MODULE_MAGIC
#endif

#endif							/* LEASELOCK_COMPAT_H */
