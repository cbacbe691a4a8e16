/*-------------------------------------------------------------------------
 *
 * record.c
 *	  Records of changes: events, and lines in the server log.
 *
 * history.c derives from a plan what it changes; this file decides which of
 * these changes are recorded, and records them in the same transaction.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "core/changes.h"
#include "core/history.h"
#include "core/record.h"
#include "core/serverlog.h"
#include "store/clock.h"
#include "store/rows.h"

/* Whether the setting leaselock.events includes a kind. */
static bool
wants(ChangeKind kind)
{
	return leaselock_events == EVENTS_ALL ||
		(leaselock_events == EVENTS_GRANTS && kind < CHANGE_QUEUED);
}

static void
add_event(EventRow *row)
{
	store_add_event(row);
	note_event_added();
}

/*
 * Loads the note of a ticket that an event names although it was not read: a
 * ticket of a lapsed grant that somebody takes over.
 */
static void
load_note(EventRow *row)
{
	TicketRow	ticket;

	if (row->kind == CHANGE_EXPIRED && row->has_ticket && row->note == NULL &&
		store_load_ticket(&row->ticket, &ticket))
		row->note = ticket.note;
}

static void
record_events(const LeaseView *view, const LeaseEvent *event,
			  const LeasePlan *plan, TimestampTz now)
{
	EventRow   *rows = palloc((MAX_CHANGES + view->share_count) *
							  sizeof(EventRow));
	int			count = list_changes(view, event, plan, now, rows);

	for (int i = 0; i < count; i++)
	{
		if (!wants(rows[i].kind))
			continue;
		load_note(&rows[i]);
		add_event(&rows[i]);
	}
	pfree(rows);
}

/*
 * Records what a complete plan is about to change.  Must be called before its
 * rows are written and, if a crash may lose these, after
 * begin_losable_write().
 */
void
record_plan(const LeaseView *view, const LeaseEvent *event,
			const LeasePlan *plan, TimestampTz now)
{
	bool		breaks = (event->kind == EVENT_BREAK ||
						  event->kind == EVENT_BREAK_UNAUTHORIZED);

	if (leaselock_events != EVENTS_OFF)
		record_events(view, event, plan, now);
	if (leaselock_log_takeovers && plan->begins_grant && !plan->ends_grant &&
		OidIsValid(view->lock.holder.role))
		log_takeover(&view->lock, &plan->lock);
	if (leaselock_log_breaks && plan->ends_grant && breaks)
		log_break(&view->lock, now);
}

/* Records an operator's action on a scope or on everything (NULL). */
void
record_operation(ChangeKind kind, const char *scope, int64 fence)
{
	EventRow	row = {0};

	if (!wants(kind))
		return;
	row.kind = kind;
	row.at = clock_read(NO_TIME);
	row.scope = scope;
	row.who.role = GetUserId();
	row.fence = fence;
	add_event(&row);
}
