/*-------------------------------------------------------------------------
 *
 * history.c
 *	  The events that describe what a plan changes.
 *
 * Like the rules, this is pure: it derives events from what was known before a
 * plan and from what the plan writes.  A ticket or a named hold has one event
 * when it becomes a share of a grant, and one when its owner or an operator
 * ends it.  A share that lapses has none, because the clock ends it and
 * nothing is written.  But if a grant has lapsed as a whole, whoever writes
 * its last trace adds the event "expired", once for the grant.  Traces are
 * tickets that are stored as held, and the named hold, which can be renewed
 * until somebody else gets the lock.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/decide.h"
#include "core/history.h"

/* The events of one plan while they are being collected. */
typedef struct Changes
{
	const LeaseView *view;
	TimestampTz now;
	EventRow   *rows;
	int			count;
} Changes;

static EventRow *
add_change(Changes *changes, ChangeKind kind, const Identity *who, int64 fence)
{
	EventRow   *row = &changes->rows[changes->count++];

	memset(row, 0, sizeof(EventRow));
	row->kind = kind;
	row->at = changes->now;
	row->scope = changes->view->lock.key.scope;
	row->name = changes->view->lock.key.name;
	row->who = *who;
	row->fence = fence;
	return row;
}

static void
set_ticket(EventRow *row, const pg_uuid_t *ticket)
{
	row->has_ticket = true;
	row->ticket = *ticket;
}

static EventRow *
add_ticket_change(Changes *changes, ChangeKind kind, const TicketRow *ticket)
{
	EventRow   *row = add_change(changes, kind, &ticket->who, ticket->fence);

	set_ticket(row, &ticket->ticket);
	row->note = ticket->note;
	return row;
}

/* An event of the named hold, or of the grant as a whole. */
static EventRow *
add_grant_change(Changes *changes, ChangeKind kind, const LockRow *lock)
{
	return add_change(changes, kind, &lock->holder, lock->fence);
}

/* ----------------------------------------------------------------------
 * Lapsed grants
 * ----------------------------------------------------------------------
 */

/* Whether any share of the grant is stored, lapsed or not. */
static bool
has_trace(const LockRow *lock)
{
	return lock->tickets > 0 || lock->hold_expires_at != NO_TIME;
}

/*
 * Whether a plan writes the last trace of a lapsed grant.  Releasing a lapsed
 * named hold is a release, so that hold has not expired.
 */
static bool
settles_lapse(const LeaseView *view, const LeaseEvent *event,
			  const LeasePlan *plan, TimestampTz now)
{
	if (!OidIsValid(view->lock.holder.role) ||
		grant_is_live(&view->lock, now) || !has_trace(&view->lock) ||
		event->kind == EVENT_RELEASE_LOCK)
		return false;
	return plan->begins_grant || plan->deletes_lock ||
		(plan->writes_lock && !has_trace(&plan->lock));
}

/* Adds "expired".  The event names a ticket of the grant if one is known. */
static void
list_lapse(Changes *changes, const LeasePlan *plan)
{
	const LeaseView *view = changes->view;
	EventRow   *row = add_grant_change(changes, CHANGE_EXPIRED, &view->lock);

	row->at = grant_until(&view->lock);
	if (plan->deletes_ticket ||
		(plan->writes_ticket && plan->ticket.state == LEASE_EXPIRED))
	{
		set_ticket(row, &view->ticket.ticket);
		row->note = view->ticket.note;
	}
	else if (view->lock.has_first)
		set_ticket(row, &view->lock.first_ticket);
}

/* ----------------------------------------------------------------------
 * Shares and waits
 * ----------------------------------------------------------------------
 */

/*
 * A break ends every share that is still live.  If all have lapsed, there is
 * one event for the grant as a whole.
 */
static void
list_broken(Changes *changes)
{
	const LeaseView *view = changes->view;
	int			before = changes->count;

	for (int i = 0; i < view->share_count; i++)
	{
		if (ticket_state(&view->shares[i], &view->lock, changes->now) ==
			LEASE_HELD)
			add_ticket_change(changes, CHANGE_BROKEN, &view->shares[i]);
	}
	if (view->lock.hold_expires_at != NO_TIME || changes->count == before)
		add_grant_change(changes, CHANGE_BROKEN, &view->lock);
}

/* The event of the event's own ticket. */
static void
list_ticket(Changes *changes, const TicketRow *ticket)
{
	bool		is_new = !changes->view->has_ticket;
	bool		was_held = (!is_new &&
							changes->view->ticket.state == LEASE_HELD);

	switch (ticket->state)
	{
		case LEASE_HELD:
			add_ticket_change(changes, is_new ? CHANGE_GRANTED :
							  was_held ? CHANGE_RENEWED : CHANGE_PROMOTED,
							  ticket);
			break;
		case LEASE_WAITING:
			/* a sign of life changes nothing */
			if (is_new)
				add_ticket_change(changes, CHANGE_QUEUED, ticket);
			break;
		case LEASE_RELEASED:
			add_ticket_change(changes, CHANGE_RELEASED, ticket);
			break;
		case LEASE_CANCELLED:
			add_ticket_change(changes, CHANGE_CANCELLED, ticket);
			break;
		case LEASE_TIMED_OUT:
			add_ticket_change(changes, CHANGE_TIMED_OUT, ticket);
			break;
		case LEASE_DEADLOCK:
			add_ticket_change(changes, CHANGE_DEADLOCK, ticket);
			break;
		case LEASE_EXPIRED:
		case LEASE_BROKEN:
		case LEASE_CONTENDED:
		case LEASE_GONE:
			break;
	}
}

/* The event of the named hold, according to the call. */
static void
list_hold(Changes *changes, const LeaseEvent *event, const LeasePlan *plan)
{
	if (event->kind == EVENT_TRY_LOCK)
		add_grant_change(changes, CHANGE_GRANTED, &plan->lock);
	else if (event->kind == EVENT_RENEW_LOCK)
		add_grant_change(changes, CHANGE_RENEWED, &plan->lock);
	else if (event->kind == EVENT_RELEASE_LOCK)
		add_grant_change(changes, CHANGE_RELEASED, &changes->view->lock);
}

/*
 * The event of a wait that ran out, and whose ticket is removed before anybody
 * called for it again.
 */
static void
list_forgotten_wait(Changes *changes)
{
	const TicketRow *ticket = &changes->view->ticket;

	if (ticket->state == LEASE_WAITING)
		add_ticket_change(changes, CHANGE_TIMED_OUT, ticket)->at =
			ticket->wait_until;
}

/*
 * Stores the events of a complete plan into rows, in the order in which they
 * happened, and returns their number.  The view and the event are those from
 * which the plan was made.  The caller provides room for MAX_CHANGES events
 * plus one for each share in the view.
 */
int
list_changes(const LeaseView *view, const LeaseEvent *event,
			 const LeasePlan *plan, TimestampTz now, EventRow *rows)
{
	Changes		changes = {view, now, rows, 0};

	if (settles_lapse(view, event, plan, now))
		list_lapse(&changes, plan);
	if (plan->ends_grant && (event->kind == EVENT_BREAK ||
							 event->kind == EVENT_BREAK_UNAUTHORIZED))
		list_broken(&changes);
	if (plan->writes_lock)
		list_hold(&changes, event, plan);
	if (plan->writes_ticket)
		list_ticket(&changes, &plan->ticket);
	if (plan->deletes_ticket)
		list_forgotten_wait(&changes);
	if (plan->writes_head)
		add_ticket_change(&changes, CHANGE_PROMOTED, &plan->head);
	return changes.count;
}
