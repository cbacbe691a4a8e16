/*-------------------------------------------------------------------------
 *
 * history.c
 *	  What a plan changes, as events that tell of it.
 *
 * As pure as the rules: it reads off what is known before a plan and what the
 * plan writes.  A ticket and a named hold have an event when they become a share
 * of a grant, and one when their owner or an operator ends them.  A share that
 * lapses has none, for the clock does that and tells nobody.  But whoever writes
 * the last trace of a grant that has lapsed as a whole tells of that: "expired",
 * once for the grant.  Such a trace is a ticket that is stored as held, or the
 * named hold, which is there to be renewed until somebody gets the lock.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/decide.h"
#include "core/history.h"

/* The events of one plan, as they are put together. */
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

/* Of the named hold, or of a grant as a whole. */
static EventRow *
add_grant_change(Changes *changes, ChangeKind kind, const LockRow *lock)
{
	return add_change(changes, kind, &lock->holder, lock->fence);
}

/* ----------------------------------------------------------------------
 * Lapsed grants
 * ----------------------------------------------------------------------
 */

/* Whether anything is on record that keeps a grant, or kept it, alive. */
static bool
has_trace(const LockRow *lock)
{
	return lock->tickets > 0 || lock->hold_expires_at != NO_TIME;
}

/*
 * Whether a plan writes the last trace of a lapsed grant.  Who releases a lapsed
 * hold gives it back: then it has not run out.
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

/* It names a ticket of the grant if one is known. */
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
 * An operator ends every share that is there to end.  Where all have lapsed the
 * grant as a whole is broken all the same.
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

/* What has become of the event's ticket. */
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

/* What has become of the named hold, by what was done to it. */
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

/* A wait that nobody has asked for since it ran out, and that is removed. */
static void
list_forgotten_wait(Changes *changes)
{
	const TicketRow *ticket = &changes->view->ticket;

	if (ticket->state == LEASE_WAITING)
		add_ticket_change(changes, CHANGE_TIMED_OUT, ticket)->at =
			ticket->wait_until;
}

/*
 * The events of a complete plan, given what it was decided from, into rows, in
 * the order in which they happened; how many.  There is room for MAX_CHANGES
 * and one for each share of the view.
 */
int
list_changes(const LeaseView *view, const LeaseEvent *event,
			 const LeasePlan *plan, TimestampTz now, EventRow *rows)
{
	Changes		changes = {view, now, rows, 0};

	if (settles_lapse(view, event, plan, now))
		list_lapse(&changes, plan);
	if (plan->ends_grant && (event->kind == EVENT_BREAK ||
							 event->kind == EVENT_BREAK_STRANGER))
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
