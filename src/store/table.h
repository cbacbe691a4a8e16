/*-------------------------------------------------------------------------
 *
 * table.h
 *	  The tables of the extension: found, verified, scanned and written.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_TABLE_H
#define LEASELOCK_TABLE_H

#include "access/htup.h"
#include "access/sdir.h"
#include "access/skey.h"
#include "access/tupdesc.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"
#include "store/types.h"

/* The tables, and the indexes that scans rely on. */
typedef enum StoreRelation
{
	REL_INSTALLATION,
	REL_LOCKS,
	REL_TICKETS,
	REL_BLOCKERS,
	REL_QUEUES,
	REL_FLOOR,
	REL_SCOPES,
	REL_EVENTS,
	REL_LAST_TABLE = REL_EVENTS,
	REL_LOCKS_PKEY,
	REL_TICKETS_TICKET,
	REL_TICKETS_REQUEST,
	REL_TICKETS_PLACE,
	REL_TICKETS_MEMBER,
	REL_TICKETS_WAITER,
	REL_BLOCKERS_OWNER,
	REL_SCOPES_PKEY,
	REL_EVENTS_PKEY,
	REL_NONE					/* as an index: scan in no order */
} StoreRelation;

/* A scan of a table, in index order if there is an index. */
typedef struct TableScan
{
	Relation	rel;
	Relation	index;			/* NULL: no order */
	Snapshot	snapshot;		/* decides which versions are visible */
	MemoryContext context;		/* where the scan allocates */
	struct SysScanDescData *scan;
} TableScan;

/* Extracts data from a row.  The row is valid only during the call. */
typedef void (*RowReader) (HeapTuple tuple, TupleDesc desc, void *row);

/* What must be known about an index in order to add a row. */
typedef struct TableIndex
{
	Oid			oid;
	AttrNumber	only_if;		/* only rows where this is not NULL; 0: all */
	bool		has_fixed_key;	/* unique, and updates never change it */
} TableIndex;

/* The lock modes of a call, see store_begin_call(). */
typedef struct CallModes
{
	LOCKMODE	table;
	LOCKMODE	close;
	bool		keeps_open;
} CallModes;

/* in table.c */
extern void store_watch_relations(void);
extern bool store_is_installed(void);
extern Oid	store_find_table(StoreRelation table);
extern void store_report_table(StoreRelation table, const char *problem);
extern void store_report_row(StoreRelation table, const char *problem);
extern void store_check_result(const char *function, TupleDesc desc,
							   const Oid *types, int columns);
extern void store_begin_call(bool may_write);
extern CallModes store_interrupt_call(void);
extern void store_resume_call(CallModes modes);
extern bool store_begin_verification(void);
extern void store_begin_event(void);
extern void store_end_event(void);
extern Relation store_open_table(StoreRelation table);
extern void store_close_table(Relation rel);
extern bool store_is_empty(StoreRelation table);
extern void store_announce_rows(Relation rel);
extern uint64 store_generation(void);
extern uint64 store_event_generation(void);
extern void store_lock_tables(void);
extern Relation store_open_index(StoreRelation which, Relation rel);
extern void store_close_index(Relation index);
extern const TableIndex *store_list_indexes(StoreRelation table, Relation rel,
											int *count);

/* in scan.c */
extern void store_begin_shared_snapshot(void);
extern void store_end_shared_snapshot(void);
extern FullTransactionId store_shared_snapshot_horizon(void);
extern void store_set_key(ScanKey key, AttrNumber column, RegProcedure equal,
						  Datum value);
extern TableScan *store_open_scan(StoreRelation table, StoreRelation index,
								  ScanKey keys, int nkeys);
extern HeapTuple store_next_row(TableScan *scan, ScanDirection direction);
extern HeapTuple store_only_row(TableScan *scan);
extern void store_close_scan(TableScan *scan);
extern bool store_read_row(StoreRelation table, ItemPointer tid,
						   RowReader reader, void *row);
extern bool store_is_current(StoreRelation table, const RowVersion *version);
extern List *store_sample_rows(StoreRelation table, AttrNumber column,
							   TimestampTz before, int *seen,
							   void *(*reader) (HeapTuple tuple,
												TupleDesc desc));
extern RowVersion store_row_version(HeapTuple tuple);
extern TimestampTz store_time_or_none(Datum value, bool isnull);

/* in write.c */
extern void store_write_row(StoreRelation table, Datum *values, bool *nulls,
							RowVersion *version);
extern void store_delete_row(StoreRelation table, RowVersion *version);
extern bool store_try_delete_row(StoreRelation table, RowVersion *version);

#endif							/* LEASELOCK_TABLE_H */
