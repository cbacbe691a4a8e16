/*-------------------------------------------------------------------------
 *
 * events.c
 *	  The SQL function lease_events.
 *
 * Events are read with a single snapshot.  Only events of transactions that
 * precede every transaction running at that moment are returned.  Therefore
 * nothing is ever added before an event that was returned.  As in the views,
 * no lease lock is taken, and nothing remains that another transaction could
 * conflict with.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "api/arguments.h"
#include "api/result.h"
#include "core/scope.h"
#include "leaselock.h"
#include "store/rows.h"
#include "store/table.h"

PG_FUNCTION_INFO_V1(leaselock_lease_events);

/* Columns of lease_events. */
enum
{
	EVENT_ID,
	EVENT_XID,
	EVENT_AT,
	EVENT_KIND,
	EVENT_SCOPE,
	EVENT_NAME,
	EVENT_OWNER,
	EVENT_ROLE,
	EVENT_FENCE,
	EVENT_TICKET,
	EVENT_NOTE,
	EVENT_COLUMNS
};

static const Oid event_types[EVENT_COLUMNS] = {
	INT8OID, XID8OID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID,
	NAMEOID, INT8OID, UUIDOID, TEXTOID
};

/* The caller's access to events, cached during a call. */
typedef struct EventAccess
{
	bool		may_see_all;
	bool		has_last;
	char		last_scope[MAX_TEXT_BYTES + 1]; /* the last scope that was
												 * checked */
	bool		may_see_last;
} EventAccess;

static EventAccess
caller_event_access(void)
{
	EventAccess access = {false};

	access.may_see_all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	return access;
}

/*
 * Events without a scope concern everybody, so only callers who may see
 * everything see them.
 */
static bool
may_see_event(EventAccess *access, const EventRow *event)
{
	if (access->may_see_all || event->scope == NULL)
		return access->may_see_all;
	if (!access->has_last || strcmp(access->last_scope, event->scope) != 0)
	{
		access->may_see_last = may_see_scope(event->scope);
		access->has_last = true;
		snprintf(access->last_scope, sizeof(access->last_scope), "%s",
				 event->scope);
	}
	return access->may_see_last;
}

static void
put_event(ReturnSetInfo *result, const EventRow *event)
{
	Datum		values[EVENT_COLUMNS];
	bool		nulls[EVENT_COLUMNS] = {0};

	values[EVENT_ID] = Int64GetDatum(event->id);
	values[EVENT_XID] = FullTransactionIdGetDatum(event->xid);
	values[EVENT_AT] = TimestampTzGetDatum(event->at);
	values[EVENT_KIND] = CStringGetTextDatum(change_kind_name(event->kind));
	values[EVENT_SCOPE] = text_or_null(event->scope);
	nulls[EVENT_SCOPE] = event->scope == NULL;
	values[EVENT_NAME] = text_or_null(event->name);
	nulls[EVENT_NAME] = event->name == NULL;
	values[EVENT_OWNER] = text_or_null(event->who.owner);
	nulls[EVENT_OWNER] = event->who.owner == NULL;
	values[EVENT_ROLE] = role_name_datum(event->who.role);
	values[EVENT_FENCE] = Int64GetDatum(event->fence);
	nulls[EVENT_FENCE] = event->fence == 0;
	values[EVENT_TICKET] = UUIDPGetDatum(&event->ticket);
	nulls[EVENT_TICKET] = !event->has_ticket;
	values[EVENT_NOTE] = text_or_null(event->note);
	nulls[EVENT_NOTE] = event->note == NULL;
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* Adds up to max_rows events that the caller may see. */
static void
put_events(ReturnSetInfo *result, EventScan *scan, int max_rows)
{
	MemoryContext old_context = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(old_context,
												  "leaselock events",
												  ALLOCSET_SMALL_SIZES);
	EventAccess access = caller_event_access();
	EventRow	event;

	MemoryContextSwitchTo(context);
	while (max_rows > 0 && store_next_event(scan, &event))
	{
		CHECK_FOR_INTERRUPTS();
		if (may_see_event(&access, &event))
		{
			put_event(result, &event);
			max_rows--;
		}
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(context);
}

static EventCursor
argument_cursor(FunctionCallInfo fcinfo)
{
	EventCursor cursor = {0};

	cursor.has_xid = !PG_ARGISNULL(0);
	if (cursor.has_xid)
		cursor.xid = PG_GETARG_FULLTRANSACTIONID(0);
	cursor.has_id = !PG_ARGISNULL(1);
	if (cursor.has_id)
		cursor.id = PG_GETARG_INT64(1);
	if (cursor.has_id && !cursor.has_xid)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"after_id\" requires argument \"after_xid\""),
				 errdetail("\"after_id\" is " INT64_FORMAT ", but an id identifies an event only within its transaction.",
						   cursor.id),
				 errhint("Pass both the xid and the id of the last event that you have read.")));
	return cursor;
}

Datum
leaselock_lease_events(PG_FUNCTION_ARGS)
{
	EventCursor after = argument_cursor(fcinfo);
	int			max_rows = argument_count(fcinfo, 2, "max_rows");
	ReturnSetInfo *result = begin_result_rows(fcinfo, "lease_events",
											  event_types, EVENT_COLUMNS);

	store_begin_shared_snapshot();
	PG_TRY();
	{
		EventScan  *scan = store_open_events(&after,
											 store_shared_snapshot_horizon());

		put_events(result, scan, max_rows);
		store_close_events(scan);
	}
	PG_FINALLY();
	{
		store_end_shared_snapshot();
	}
	PG_END_TRY();
	return (Datum) 0;
}
