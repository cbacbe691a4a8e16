/*-------------------------------------------------------------------------
 *
 * event_check.c
 *	  Checks that the events of a plan report everything that it changes, and
 *	  nothing else.
 *
 * The expected events do not come from the plan: they are derived by comparing
 * all rows of the world before and after it.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "unit.h"

#include "core/history.h"

#define MAX_EVENTS	(MAX_CHANGES + MAX_TICKETS)

/* The expected events. */
typedef struct Due
{
	const World *before;
	const World *after;
	EventKind	kind;
	const pg_uuid_t *renewed;	/* the renewed ticket, or NULL */
	int			count;
	EventRow	rows[2 * MAX_TICKETS + 4];
} Due;

static bool
is_same(const Identity *a, const Identity *b)
{
	return a->role == b->role && a->owner != NULL && b->owner != NULL &&
		a->owner[0] == b->owner[0];
}

static void
add_due(Due *due, ChangeKind kind, const Identity *who, int64 fence,
		const pg_uuid_t *ticket, TimestampTz at)
{
	EventRow   *row = &due->rows[due->count++];

	memset(row, 0, sizeof(EventRow));
	row->kind = kind;
	row->who = *who;
	row->fence = fence;
	row->has_ticket = ticket != NULL;
	if (ticket != NULL)
		row->ticket = *ticket;
	row->at = at;
}

static bool
is_break(const Due *due)
{
	return due->kind == EVENT_BREAK || due->kind == EVENT_BREAK_UNAUTHORIZED;
}

/* Whether the newest grant and its holder are the same as before. */
static bool
grant_stays(const Due *due)
{
	return due->after->lock.fence == due->before->lock.fence &&
		is_same(&due->after->lock.holder, &due->before->lock.holder);
}

/* The number of tickets stored as held under the lock's grant. */
static int
stored_shares(const World *world)
{
	int			count = 0;

	for (int i = 0; i < world->count; i++)
		count += world->tickets[i].state == LEASE_HELD &&
			world->tickets[i].fence == world->lock.fence &&
			is_same(&world->tickets[i].who, &world->lock.holder);
	return count;
}

/* Adds the events expected of a ticket whose row was "was" and is "is". */
static void
add_ticket_due(Due *due, const TicketRow *was, const TicketRow *is)
{
	static const struct
	{
		LeaseState	from;
		LeaseState	to;
		ChangeKind	kind;
	}			known[] = {
		{LEASE_WAITING, LEASE_HELD, CHANGE_PROMOTED},
		{LEASE_WAITING, LEASE_CANCELLED, CHANGE_CANCELLED},
		{LEASE_WAITING, LEASE_TIMED_OUT, CHANGE_TIMED_OUT},
		{LEASE_WAITING, LEASE_DEADLOCK, CHANGE_DEADLOCK},
		{LEASE_HELD, LEASE_RELEASED, CHANGE_RELEASED},
		{LEASE_HELD, LEASE_BROKEN, CHANGE_BROKEN}
	};

	for (int i = 0; i < (int) lengthof(known); i++)
	{
		if (was->state == known[i].from && is->state == known[i].to)
			add_due(due, known[i].kind, &is->who, is->fence, &is->ticket, NOW);
	}
	/* the test's clock stands still, so a renewal may not change the expiry */
	if (was->state == LEASE_HELD && is->state == LEASE_HELD &&
		(was->expires_at != is->expires_at ||
		 (due->renewed != NULL && same_uuid(due->renewed, &is->ticket))))
		add_due(due, CHANGE_RENEWED, &is->who, is->fence, &is->ticket, NOW);
}

static void
add_tickets_due(Due *due)
{
	for (int i = 0; i < due->before->count; i++)
	{
		const TicketRow *was = &due->before->tickets[i];
		int			j = find_ticket(due->after, &was->ticket);

		if (j >= 0)
			add_ticket_due(due, was, &due->after->tickets[j]);
		else if (was->state == LEASE_WAITING)
			add_due(due, CHANGE_TIMED_OUT, &was->who, 0, &was->ticket,
					was->wait_until);
	}
	for (int i = 0; i < due->after->count; i++)
	{
		const TicketRow *is = &due->after->tickets[i];

		if (find_ticket(due->before, &is->ticket) < 0)
			add_due(due, is->state == LEASE_HELD ? CHANGE_GRANTED :
					CHANGE_QUEUED, &is->who, is->fence, &is->ticket, NOW);
	}
}

/* Adds the events of the named hold. */
static void
add_hold_due(Due *due)
{
	const LockRow *was = &due->before->lock;
	const LockRow *is = &due->after->lock;
	bool		stays = grant_stays(due) && was->hold_expires_at != NO_TIME &&
		is->hold_expires_at != NO_TIME;

	if (is->hold_expires_at != NO_TIME &&
		(!stays || is->hold_expires_at != was->hold_expires_at))
		add_due(due, due->kind == EVENT_RENEW_LOCK ? CHANGE_RENEWED :
				CHANGE_GRANTED, &is->holder, is->fence, NULL, NOW);
	if (was->hold_expires_at == NO_TIME || stays)
		return;
	if (due->kind == EVENT_RELEASE_LOCK)
		add_due(due, CHANGE_RELEASED, &was->holder, was->fence, NULL, NOW);
	else if (is_break(due))
		add_due(due, CHANGE_BROKEN, &was->holder, was->fence, NULL, NOW);
}

/* Adds the events of the grant as a whole. */
static void
add_grant_due(Due *due)
{
	const LockRow *was = &due->before->lock;
	bool		had_trace = was->hold_expires_at != NO_TIME ||
		stored_shares(due->before) > 0;
	bool		has_trace = grant_stays(due) &&
		(due->after->lock.hold_expires_at != NO_TIME ||
		 stored_shares(due->after) > 0);

	if (was->holder.role == InvalidOid)
		return;
	if (!is_held(due->before) && had_trace && !has_trace &&
		due->kind != EVENT_RELEASE_LOCK)
		add_due(due, CHANGE_EXPIRED, &was->holder, was->fence, NULL,
				Max(was->expires_at, was->hold_expires_at));
	if (is_break(due) && !grant_stays(due) && !is_held(due->before) &&
		was->hold_expires_at == NO_TIME)
		add_due(due, CHANGE_BROKEN, &was->holder, was->fence, NULL, NOW);
}

/* Compares two events; an expiry may name any ticket of its grant. */
static bool
same_event(const EventRow *a, const EventRow *b)
{
	return a->kind == b->kind && a->at == b->at && a->fence == b->fence &&
		is_same(&a->who, &b->who) &&
		(a->kind == CHANGE_EXPIRED ||
		 (a->has_ticket == b->has_ticket &&
		  (!a->has_ticket || same_uuid(&a->ticket, &b->ticket))));
}

static int
count_same(const EventRow *rows, int count, const EventRow *row)
{
	int			same = 0;

	for (int i = 0; i < count; i++)
		same += same_event(&rows[i], row);
	return same;
}

/* Whether the beginning of a grant comes after the end of the previous one. */
static bool
in_order(const EventRow *rows, int count)
{
	for (int i = 1; i < count; i++)
	{
		if (rows[i].fence != 0 && rows[i].fence < rows[i - 1].fence)
			return false;
	}
	return true;
}

/* Whether the ticket that an expiry names, if any, lapsed with the grant. */
static bool
names_own_ticket(const World *before, const EventRow *row)
{
	int			i = row->has_ticket ? find_ticket(before, &row->ticket) : -1;

	return !row->has_ticket ||
		(i >= 0 && before->tickets[i].fence == row->fence &&
		 before->tickets[i].expires_at <= NOW);
}

/* Checks the events of a plan, just before it is written. */
void
check_events(const Play *play, const World *after)
{
	const World *before = play->world;
	Due			due;
	EventRow	rows[MAX_EVENTS];
	int			count = list_changes(&play->view, &play->event, &play->plan,
									 NOW, rows);
	int			begun = 0;

	memset(&due, 0, sizeof(Due));
	due.before = before;
	due.after = after;
	due.kind = play->event.kind;
	if (due.kind == EVENT_RENEW && play->plan.writes_ticket)
		due.renewed = &play->plan.ticket.ticket;
	add_tickets_due(&due);
	add_hold_due(&due);
	add_grant_due(&due);
	check(EVENTS_COMPLETE, count <= MAX_EVENTS && count == due.count, play,
		  count < due.count ? "an event is missing" : "there is an extra event");
	for (int i = 0; i < count; i++)
	{
		check(EVENTS_COMPLETE, count_same(due.rows, due.count, &rows[i]) == 1 &&
			  count_same(rows, count, &rows[i]) == 1, play,
			  "an event without a change");
		check(EVENTS_COMPLETE, rows[i].kind != CHANGE_EXPIRED ||
			  names_own_ticket(before, &rows[i]), play,
			  "an expiry names another's ticket");
		begun += (rows[i].kind == CHANGE_GRANTED ||
				  rows[i].kind == CHANGE_PROMOTED) &&
			rows[i].fence > before->lock.fence;
	}
	check(EVENTS_COMPLETE, begun == play->plan.begins_grant, play,
		  "a grant does not begin exactly once");
	check(EVENTS_COMPLETE, in_order(rows, count), play, "the events are out of order");
}
