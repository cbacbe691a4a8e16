/*-------------------------------------------------------------------------
 *
 * events.c
 *	  The rows of leaselock.events: the history of leases, append only.
 *
 * An event is identified by its transaction and its number within that
 * transaction.  Sessions therefore need not agree on a next number, as they
 * would with a sequence, and keys cannot conflict.  Readers use the same pair
 * as their cursor.  A subtransaction that is rolled back leaves a gap.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "store/clock.h"
#include "store/columns.h"
#include "store/rows.h"
#include "store/table.h"

/* Columns, in the order of the install script. */
enum
{
	EVENTS_ID = 1,
	EVENTS_XID,
	EVENTS_AT,
	EVENTS_RECORDED_AT,
	EVENTS_ROLE,
	EVENTS_KIND,
	EVENTS_SCOPE,
	EVENTS_NAME,
	EVENTS_OWNER,
	EVENTS_FENCE,
	EVENTS_TICKET,
	EVENTS_NOTE,
	EVENTS_COLUMNS = EVENTS_NOTE
};

static const char *const kind_names[] = {
	[CHANGE_GRANTED] = "granted",
	[CHANGE_PROMOTED] = "promoted",
	[CHANGE_RELEASED] = "released",
	[CHANGE_EXPIRED] = "expired",
	[CHANGE_BROKEN] = "broken",
	[CHANGE_SCOPE_CREATED] = "scope_created",
	[CHANGE_SCOPE_DROPPED] = "scope_dropped",
	[CHANGE_PRUNED] = "pruned",
	[CHANGE_BUMPED] = "bumped",
	[CHANGE_QUEUED] = "queued",
	[CHANGE_RENEWED] = "renewed",
	[CHANGE_CANCELLED] = "cancelled",
	[CHANGE_TIMED_OUT] = "timed_out",
	[CHANGE_DEADLOCK] = "deadlock"
};

/* The name of a kind, as lease_events.kind shows it. */
const char *
change_kind_name(ChangeKind kind)
{
	return kind_names[kind];
}

static ChangeKind
read_kind(const char *name)
{
	for (int i = 0; i < (int) lengthof(kind_names); i++)
	{
		if (strcmp(kind_names[i], name) == 0)
			return (ChangeKind) i;
	}
	store_report_row(REL_EVENTS, "The kind is unknown.");
	return CHANGE_GRANTED;		/* not reached */
}

/* ----------------------------------------------------------------------
 * Writing
 * ----------------------------------------------------------------------
 */

/*
 * Assigns the next number within this transaction to an event.  The number is
 * not reset when a subtransaction is rolled back, so no pair is used twice.
 */
static void
assign_event_id(EventRow *event)
{
	static FullTransactionId last_xid = {0};
	static int64 last_id = 0;

	event->xid = GetTopFullTransactionId();
	if (!FullTransactionIdEquals(event->xid, last_xid))
		last_id = 0;
	last_xid = event->xid;
	event->id = ++last_id;
}

/*
 * When the first row is written, tells other sessions to forget that the table
 * is empty.  If a session misses the message because the writing transaction
 * was rolled back, it leaves old events to other sessions to remove.
 */
static void
announce_first(const RowVersion *version)
{
	Relation	rel;

	if (ItemPointerGetBlockNumber(&version->tid) != 0 ||
		ItemPointerGetOffsetNumber(&version->tid) != FirstOffsetNumber)
		return;
	rel = store_open_table(REL_EVENTS);
	store_announce_rows(rel);
	store_close_table(rel);
}

/* Adds an event; sets its xid, id, recorded_at and version. */
void
store_add_event(EventRow *event)
{
	Datum		values[EVENTS_COLUMNS];
	bool		nulls[EVENTS_COLUMNS];

	assign_event_id(event);
	event->recorded_at = clock_read(NO_TIME);
	SET(EVENTS_ID, Int64GetDatum(event->id));
	SET(EVENTS_XID, FullTransactionIdGetDatum(event->xid));
	SET(EVENTS_AT, TimestampTzGetDatum(event->at));
	SET(EVENTS_RECORDED_AT, TimestampTzGetDatum(event->recorded_at));
	SET(EVENTS_ROLE, ObjectIdGetDatum(event->who.role));
	SET(EVENTS_KIND, CStringGetTextDatum(kind_names[event->kind]));
	SET_IF(event->scope != NULL, EVENTS_SCOPE,
		   CStringGetTextDatum(event->scope));
	SET_IF(event->name != NULL, EVENTS_NAME, CStringGetTextDatum(event->name));
	SET_IF(event->who.owner != NULL, EVENTS_OWNER,
		   CStringGetTextDatum(event->who.owner));
	SET_IF(event->fence != 0, EVENTS_FENCE, Int64GetDatum(event->fence));
	SET_IF(event->has_ticket, EVENTS_TICKET, UUIDPGetDatum(&event->ticket));
	SET_IF(event->note != NULL, EVENTS_NOTE, CStringGetTextDatum(event->note));

	ItemPointerSetInvalid(&event->version.tid);
	store_write_row(REL_EVENTS, values, nulls, &event->version);
	announce_first(&event->version);
}

/*
 * Returns false if another session is removing the event.  Events are never
 * updated.
 */
bool
store_try_delete_event(RowVersion *version)
{
	return store_try_delete_row(REL_EVENTS, version);
}

/* ----------------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------------
 */

static const char *
text_or_none(Datum value, bool isnull)
{
	return isnull ? NULL : TextDatumGetCString(value);
}

static void
read_event(HeapTuple tuple, TupleDesc desc, EventRow *event)
{
	Datum		values[EVENTS_COLUMNS];
	bool		nulls[EVENTS_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	memset(event, 0, sizeof(EventRow));
	event->version = store_row_version(tuple);
	event->id = DatumGetInt64(VALUE(EVENTS_ID));
	event->xid = DatumGetFullTransactionId(VALUE(EVENTS_XID));
	event->at = DatumGetTimestampTz(VALUE(EVENTS_AT));
	event->recorded_at = DatumGetTimestampTz(VALUE(EVENTS_RECORDED_AT));
	event->kind = read_kind(TextDatumGetCString(VALUE(EVENTS_KIND)));
	event->scope = text_or_none(VALUE(EVENTS_SCOPE), ISNULL(EVENTS_SCOPE));
	event->name = text_or_none(VALUE(EVENTS_NAME), ISNULL(EVENTS_NAME));
	event->who.role = DatumGetObjectId(VALUE(EVENTS_ROLE));
	event->who.owner = text_or_none(VALUE(EVENTS_OWNER), ISNULL(EVENTS_OWNER));
	event->fence = ISNULL(EVENTS_FENCE) ? 0 :
		DatumGetInt64(VALUE(EVENTS_FENCE));
	event->has_ticket = !ISNULL(EVENTS_TICKET);
	if (event->has_ticket)
		event->ticket = *DatumGetUUIDP(VALUE(EVENTS_TICKET));
	event->note = text_or_none(VALUE(EVENTS_NOTE), ISNULL(EVENTS_NOTE));
}

/*
 * Events after a cursor are read in two scans: the rest of the cursor's
 * transaction, then the later transactions.  A single scan over both would
 * start at the beginning of the cursor's transaction each time.
 */
struct EventScan
{
	TableScan  *scan;
	bool		has_rest;		/* the first scan is in progress */
	FullTransactionId after;	/* the second scan starts after this */
	FullTransactionId horizon;	/* and ends before this; Invalid: no end */
};

static void
open_rest(EventScan *events, const EventCursor *after)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], EVENTS_XID, BTEqualStrategyNumber, F_XID8EQ,
				FullTransactionIdGetDatum(after->xid));
	ScanKeyInit(&keys[1], EVENTS_ID, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(after->id));
	events->has_rest = true;
	events->scan = store_open_scan(REL_EVENTS, REL_EVENTS_PKEY, keys, 2);
}

static void
open_later(EventScan *events)
{
	ScanKeyData keys[2];
	int			count = 1;

	ScanKeyInit(&keys[0], EVENTS_XID, BTGreaterStrategyNumber, F_XID8GT,
				FullTransactionIdGetDatum(events->after));
	if (FullTransactionIdIsValid(events->horizon))
		ScanKeyInit(&keys[count++], EVENTS_XID, BTLessStrategyNumber, F_XID8LT,
					FullTransactionIdGetDatum(events->horizon));
	events->has_rest = false;
	events->scan = store_open_scan(REL_EVENTS, REL_EVENTS_PKEY, keys, count);
}

/*
 * Starts a scan of the events after a cursor.  It ends before the first
 * transaction at or after the horizon; InvalidFullTransactionId means no end.
 */
EventScan *
store_open_events(const EventCursor *after, FullTransactionId horizon)
{
	EventScan  *events = palloc0(sizeof(EventScan));

	events->horizon = horizon;
	events->after = after->has_xid ? after->xid : InvalidFullTransactionId;
	if (after->has_xid && after->has_id &&
		(!FullTransactionIdIsValid(horizon) ||
		 FullTransactionIdPrecedes(after->xid, horizon)))
		open_rest(events, after);
	else
		open_later(events);
	return events;
}

/* Reads the next event into *event; returns false at the end. */
bool
store_next_event(EventScan *events, EventRow *event)
{
	HeapTuple	tuple = store_next_row(events->scan, ForwardScanDirection);

	if (!HeapTupleIsValid(tuple) && events->has_rest)
	{
		MemoryContext old_context = MemoryContextSwitchTo(events->scan->context);

		store_close_scan(events->scan);
		open_later(events);
		MemoryContextSwitchTo(old_context);
		tuple = store_next_row(events->scan, ForwardScanDirection);
	}
	if (!HeapTupleIsValid(tuple))
		return false;
	read_event(tuple, RelationGetDescr(events->scan->rel), event);
	return true;
}

/* Ends a scan of events, whether or not it has reached the end. */
void
store_close_events(EventScan *events)
{
	store_close_scan(events->scan);
	pfree(events);
}

static void *
read_event_version(HeapTuple tuple, TupleDesc desc)
{
	RowVersion *version = palloc(sizeof(RowVersion));

	*version = store_row_version(tuple);
	return version;
}

/*
 * The versions (RowVersion *) of the events on a random page of the table that
 * were recorded before the given time.
 */
List *
store_sample_events(TimestampTz before, int *seen)
{
	return store_sample_rows(REL_EVENTS, EVENTS_RECORDED_AT, before, seen,
							 read_event_version);
}
