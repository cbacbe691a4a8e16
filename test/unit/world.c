/*-------------------------------------------------------------------------
 *
 * world.c
 *	  Plays the protocol's loop on a world in memory.
 *
 * This file mirrors protocol.c and queue.c, function by function, but calls the
 * rules themselves.  Whether a tag is busy is a choice, which a Path records.
 * next_path changes the last choice of "free" to "busy", so that in the end
 * every way through the loop has been taken.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "unit.h"

/* More rounds than any event needs. */
#define MAX_STEPS	40

const Identity identities[IDENTITIES] = {
	[A] = {1, "a"},
	[B] = {1, "b"},
	[C] = {2, "a"}
};

/* ----------------------------------------------------------------------
 * Paths
 * ----------------------------------------------------------------------
 */

static bool
is_busy(Path *path)
{
	if (path->at == path->length)
	{
		if (path->length == (int) lengthof(path->busy))
			return true;
		path->busy[path->length++] = false;
	}
	return path->busy[path->at++];
}

/* Moves to the next path; false if all have been taken. */
bool
next_path(Path *path)
{
	path->at = 0;
	while (path->length > 0 && path->busy[path->length - 1])
		path->length--;
	if (path->length == 0)
		return false;
	path->busy[path->length - 1] = true;
	return true;
}

/* ----------------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------------
 */

bool
same_uuid(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return memcmp(a, b, sizeof(pg_uuid_t)) == 0;
}

/* The index of a ticket in a world, or -1. */
int
find_ticket(const World *world, const pg_uuid_t *ticket)
{
	for (int i = 0; i < world->count; i++)
	{
		if (same_uuid(&world->tickets[i].ticket, ticket))
			return i;
	}
	return -1;
}

static int
find_request(const World *world, const pg_uuid_t *request_id)
{
	for (int i = 0; i < world->count; i++)
	{
		if (world->tickets[i].has_request_id &&
			same_uuid(&world->tickets[i].request_id, request_id))
			return i;
	}
	return -1;
}

static bool
may_use(const World *world, Oid role)
{
	return role != InvalidOid && world->role_allowed[role - 1];
}

static void
reload_ticket(Play *play)
{
	LeaseView  *view = &play->view;
	int			i = find_ticket(play->world, &view->ticket.ticket);

	play->ticket = i < 0 ? GONE_TICKET : i;
	if (i < 0)
	{
		view->ticket.state = LEASE_GONE;
		return;
	}
	view->ticket = play->world->tickets[i];
}

static void
load_request(Play *play)
{
	int			i = -1;

	if (play->event.kind == EVENT_ACQUIRE && play->event.has_request_id)
		i = find_request(play->world, &play->event.request_id);
	play->view.has_ticket = i >= 0;
	play->ticket = i;
	if (i >= 0)
		play->view.ticket = play->world->tickets[i];
}

static void
complete_waiter(Play *play)
{
	TicketRow  *ticket = &play->view.ticket;

	if (ticket->state == LEASE_WAITING &&
		(ticket->alive_until <= NOW || ticket->waiter_pid != 0))
		ticket->attended = play->world->attended[play->ticket];
	ticket->allowed = may_use(play->world, ticket->who.role);
}

static void
read_rows(Play *play)
{
	LeaseView  *view = &play->view;

	if (view->has_ticket)
		reload_ticket(play);
	else
		load_request(play);
	view->lock = play->world->lock;
	view->known = 0;
	view->share_count = 0;
	if (view->has_ticket && view->ticket.state != LEASE_GONE)
		complete_waiter(play);
	view->holder_allowed = play->event.kind == EVENT_BREAK_UNAUTHORIZED &&
		may_use(play->world, view->lock.holder.role);
}

/* Reads again under new tags.  Nobody else changes a world's rows. */
static void
refresh_rows(Play *play)
{
	LeaseView  *view = &play->view;
	EventKind	kind = play->event.kind;
	bool		keeps_head = (view->known & PART_HEAD) && !view->has_head &&
		(kind == EVENT_ACQUIRE || kind == EVENT_TRY_LOCK);

	read_rows(play);
	if (keeps_head)
		view->known = PART_HEAD;
}

/* The first live waiter, or the first of an identity other than "except". */
static bool
find_head(const World *world, const Identity *except, TicketRow *head,
		  LeaseView *view)
{
	bool		past_dead = false;

	for (int i = 0; i < world->count; i++)
	{
		TicketRow	ticket;

		if (world->tickets[i].state != LEASE_WAITING ||
			world->tickets[i].place <= world->lock.passed)
			continue;
		ticket = world->tickets[i];
		if (ticket.alive_until <= NOW)
			ticket.attended = world->attended[i];
		if (waiter_is_dead(&ticket, &world->lock, NOW))
		{
			if (view != NULL && !past_dead)
			{
				view->dead_waiters += world->crowded ? MANY_DEAD : 1;
				view->dead_place = ticket.place;
			}
			continue;
		}
		past_dead = true;
		ticket.allowed = may_use(world, ticket.who.role);
		*head = ticket;
		if (waiter_is_live(&ticket, &world->lock, NOW) &&
			(except == NULL || !same_identity(&ticket.who, except)))
			return true;
	}
	return false;
}

static void
read_head(Play *play)
{
	LeaseView  *view = &play->view;

	view->dead_waiters = 0;
	view->dead_place = 0;
	view->has_head = find_head(play->world, NULL, &view->head, view);
	if (!view->has_head || !same_uuid(&play->head_tagged, &view->head.ticket))
		view->tags &= ~TAG_HEAD;
}

static void
read_shares(Play *play)
{
	const World *world = play->world;
	const LockRow *lock = &world->lock;

	play->view.share_count = 0;
	play->view.shares = play->shares;
	for (int i = 0; i < world->count; i++)
	{
		const TicketRow *ticket = &world->tickets[i];

		if ((ticket->listed && ticket->fence == lock->fence) ||
			(lock->has_first &&
			 same_uuid(&ticket->ticket, &lock->first_ticket)))
			play->shares[play->view.share_count++] = *ticket;
	}
}

static bool
has_queue(const World *world)
{
	for (int i = 0; i < world->count; i++)
	{
		if (world->tickets[i].place > 0)
			return true;
	}
	return false;
}

static void
read_place(Play *play)
{
	int64		last = play->world->lock.passed;

	for (int i = 0; i < play->world->count; i++)
		last = Max(last, play->world->tickets[i].place);
	play->view.next_place = last + 1;
	play->view.queue_is_full = play->world->is_full;
}

/*
 * The world says whether a wait closes a cycle, but a ticket that waits for
 * nobody never closes one.
 */
static bool
closes_cycle(const Play *play)
{
	const TicketRow *ticket = play->view.has_ticket ? &play->view.ticket :
		&play->plan.ticket;

	return play->world->has_cycle &&
		is_blocked(play->world, &ticket->who, ticket->place);
}

static void
read_parts(Play *play)
{
	LeaseView  *view = &play->view;
	unsigned	asks = play->plan.asks;
	TicketRow	other;

	if (asks & PART_HEAD)
		read_head(play);
	if (asks & PART_OTHER_WAITER)
		view->has_other_waiter = find_head(play->world, &view->lock.holder,
										   &other, NULL);
	if (asks & PART_SHARES)
		read_shares(play);
	if (asks & PART_FENCE)
		view->next_fence = play->world->next_fence;
	if (asks & PART_PLACE)
		read_place(play);
	if (asks & PART_CYCLE)
		view->closes_cycle = closes_cycle(play);
	if (asks & PART_QUEUED)
		view->is_queued = has_queue(play->world);
	if (asks & PART_FLOOR)
		view->floor_fence = play->world->floor_fence;
	view->known |= asks;
}

/* ----------------------------------------------------------------------
 * Tags
 * ----------------------------------------------------------------------
 */

static void
give_back(Play *play)
{
	play->view.name = NAME_NONE;
	play->view.tags = 0;
}

static bool
take_tag(Play *play, unsigned bit)
{
	if (is_busy(play->path))
	{
		play->view.busy |= bit;
		play->met_busy = true;
		return false;
	}
	play->view.tags |= bit;
	if (bit == TAG_HEAD)
		play->head_tagged = play->view.head.ticket;
	return true;
}

/* Waiting in line for the name tag ends with the tag, or with an error. */
static bool
take_name(Play *play)
{
	if (!play->plan.name_in_line && is_busy(play->path))
	{
		play->view.busy |= TAG_NAME;
		play->met_busy = true;
		return false;
	}
	play->view.name = play->plan.needs_name;
	return true;
}

static bool
take_needed(Play *play)
{
	static const unsigned order[] = {TAG_TICKET, TAG_SCOPE, TAG_QUEUE,
	TAG_FLOOR};
	LeaseView  *view = &play->view;
	const LeasePlan *plan = &play->plan;

	if ((view->tags & ~plan->needs_tags) ||
		(view->name != NAME_NONE && view->name != plan->needs_name))
		give_back(play);
	for (int i = 0; i < (int) lengthof(order); i++)
	{
		if ((plan->needs_tags & ~view->tags & order[i]) &&
			!take_tag(play, order[i]))
			return false;
	}
	return view->name >= plan->needs_name || take_name(play);
}

static void
take_optional(Play *play)
{
	static const unsigned order[] = {TAG_SCOPE, TAG_HEAD, TAG_QUEUE};

	for (int i = 0; i < (int) lengthof(order); i++)
	{
		if ((play->plan.optional_tags & order[i]) && !take_tag(play, order[i]))
			return;
	}
}

/* ----------------------------------------------------------------------
 * Writing
 * ----------------------------------------------------------------------
 */

static void
save_ticket(World *world, const TicketRow *ticket)
{
	int			i = find_ticket(world, &ticket->ticket);

	if (i < 0)
	{
		i = world->count++;
		world->attended[i] = false;
	}
	world->tickets[i] = *ticket;
	world->tickets[i].attended = false;
	world->tickets[i].allowed = false;
	ItemPointerSet(&world->tickets[i].version.tid, 1, i + 1);
	if (ticket->state == LEASE_WAITING && ticket->waiter_pid == OWN_PID)
		world->attended[i] = true;
}

static void
save_shares(World *after, const Play *play)
{
	const LeaseView *view = &play->view;

	for (int i = 0; i < view->share_count; i++)
	{
		TicketRow	share = view->shares[i];

		if ((!view->has_ticket || !same_ticket(&share, &view->ticket)) &&
			end_share(&play->plan, &share, NOW))
			save_ticket(after, &share);
	}
}

static void
delete_ticket(World *world, const pg_uuid_t *ticket)
{
	int			i = find_ticket(world, ticket);

	world->count--;
	memmove(&world->tickets[i], &world->tickets[i + 1],
			sizeof(TicketRow) * (world->count - i));
	memmove(&world->attended[i], &world->attended[i + 1],
			sizeof(bool) * (world->count - i));
}

static void
delete_lock(World *world)
{
	LockRow		none = {0};

	ItemPointerSetInvalid(&none.version.tid);
	none.key = world->lock.key;
	none.changed_at = NO_TIME;
	none.granted_at = NO_TIME;
	none.expires_at = NO_TIME;
	none.hold_expires_at = NO_TIME;
	world->lock = none;
}

static void
save_rows(World *after, const Play *play)
{
	const LeasePlan *plan = &play->plan;

	if (plan->writes_ticket)
		save_ticket(after, &plan->ticket);
	if (plan->writes_head)
		save_ticket(after, &plan->head);
	if (plan->ends_lapsed_shares)
		save_shares(after, play);
	if (plan->writes_lock)
	{
		after->lock = plan->lock;
		ItemPointerSet(&after->lock.version.tid, 1, 1);
	}
	if (plan->begins_grant)
	{
		after->lock.granted_xid = FullTransactionIdFromU64(plan->lock.fence);
		after->next_fence++;
	}
	if (plan->deletes_ticket)
		delete_ticket(after, &play->view.ticket.ticket);
	if (plan->raises_floor)
		after->floor_fence = Max(after->floor_fence, play->view.lock.fence);
	if (plan->deletes_lock)
		delete_lock(after);
}

/* ----------------------------------------------------------------------
 * The loop
 * ----------------------------------------------------------------------
 */

static bool
is_complete(const LeasePlan *plan)
{
	return plan->asks == 0 && plan->needs_name == NAME_NONE &&
		plan->needs_tags == 0 && plan->optional_tags == 0;
}

/* Gets what an incomplete plan asks for. */
static void
advance(Play *play)
{
	check_incomplete(play);
	if (play->plan.asks != 0)
		read_parts(play);
	else if (play->plan.needs_name != NAME_NONE || play->plan.needs_tags != 0)
	{
		play->needs++;
		if (!take_needed(play))
			give_back(play);
		refresh_rows(play);
	}
	else
	{
		take_optional(play);
		play->view.known &= ~PART_HEAD;
	}
}

/* Checks what a plan would write, and writes it. */
static void
write_plan(Play *play)
{
	World		after = *play->world;

	save_rows(&after, play);
	check_plan(play, &after);
	*play->world = after;
	play->wrote = true;
}

/* Carries out a complete plan; false if more is to be done after it. */
static bool
complete(Play *play)
{
	if (writes_anything(&play->plan))
		write_plan(play);
	else
		check_plan(play, play->world);
	if (!play->plan.look_again)
		return true;
	play->event.silent = true;
	play->view.has_ticket = true;
	play->view.ticket = play->plan.ticket;
	play->view.busy = 0;
	play->needs = 0;
	give_back(play);
	read_rows(play);
	return false;
}

/* Carries out an event; false if it does not end. */
bool
play(Play *play)
{
	memset(&play->view, 0, sizeof(LeaseView));
	play->view.busy = play->first_busy;
	play->met_busy = play->first_busy != 0;
	play->wrote = false;
	play->needs = 0;
	memset(&play->head_tagged, 0, sizeof(pg_uuid_t));
	play->view.has_ticket = play->ticket != -1;
	if (play->ticket >= 0)
		play->view.ticket = play->world->tickets[play->ticket];
	if (play->ticket == GONE_TICKET)
		play->view.ticket.ticket = play->event.ticket;
	read_rows(play);
	for (play->steps = 0; play->steps < MAX_STEPS; play->steps++)
	{
		play->plan = decide(&play->view, &play->event, NOW);
		if (!is_complete(&play->plan))
			advance(play);
		else if (complete(play))
			return true;
	}
	return false;
}
