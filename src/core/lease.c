/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  What is done with tickets: events of their owners, and answers to them.
 *
 * Who may cause an event is settled here, before any tag is taken, so that
 * whoever may not delays nobody.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/decide.h"
#include "core/lease.h"
#include "core/queue.h"
#include "core/scope.h"
#include "leaselock.h"
#include "store/clock.h"
#include "store/recent.h"
#include "store/rows.h"

/* ----------------------------------------------------------------------
 * Answers
 * ----------------------------------------------------------------------
 */

static void
answer_gone(const pg_uuid_t *uuid, LeaseAnswer *answer)
{
	memset(answer, 0, sizeof(LeaseAnswer));
	answer->state = LEASE_GONE;
	answer->has_ticket = true;
	answer->ticket.ticket = *uuid;
}

/* The ticket that a request would have got. */
static TicketRow
wanted_ticket(const LeaseEvent *event)
{
	TicketRow	ticket = {0};

	ticket.key = event->key;
	ticket.who = event->who;
	ticket.has_request_id = event->has_request_id;
	ticket.request_id = event->request_id;
	return ticket;
}

/* Shows the present holder, where that is another identity. */
static void
answer_holder(const LockRow *lock, LeaseAnswer *answer)
{
	if (!grant_is_live(lock, answer->now) ||
		same_identity(&lock->holder, &answer->ticket.who) ||
		!may_see_scope(lock->key.scope))
		return;
	answer->holder = lock->holder;
	answer->holder_until = grant_until(lock);
}

static void
make_answer(const LeaseEvent *event, const Outcome *outcome, LeaseAnswer *answer)
{
	LeaseState	state = outcome->state;

	if (state == LEASE_GONE)
	{
		pg_uuid_t	uuid = outcome->ticket.ticket;

		answer_gone(&uuid, answer);
		return;
	}
	memset(answer, 0, sizeof(LeaseAnswer));
	answer->state = state;
	answer->now = outcome->now;
	answer->has_ticket = outcome->has_ticket;
	answer->ticket = outcome->has_ticket ? outcome->ticket :
		wanted_ticket(event);
	if (state == LEASE_HELD)
		answer->depth = count_depth(&outcome->lock, outcome->now);
	if (state == LEASE_WAITING)
		answer->position = queue_position(&outcome->lock, &outcome->ticket,
										  outcome->now);
	answer->has_head = outcome->has_head;
	if (outcome->has_head)
		answer->head_id = *tag_id(&outcome->head);
	answer_holder(&outcome->lock, answer);
}

/* ----------------------------------------------------------------------
 * Acquisitions
 * ----------------------------------------------------------------------
 */

/* One round of an acquisition, see try_acquire.  Raises 42501, LS002, 53400. */
bool
lease_try_acquire(LeaseEvent *event, TimestampTz until, bool first,
				  LeaseAnswer *answer, Obstacle *obstacle)
{
	Outcome		outcome;
	bool		done;

	require_scope(event->key.scope);
	done = try_acquire(event, until, first, &outcome, obstacle);
	if (done)
		make_answer(event, &outcome, answer);
	return done;
}

/*
 * Acquires a lock, or a place in its queue, or answers why not.  Raises 42501
 * if the caller may not use the scope, LS002 and 53400.
 */
void
lease_acquire(LeaseEvent *event, int64 wait_us, LeaseAnswer *answer)
{
	TimestampTz until = clock_read(NO_TIME) + wait_us;
	Outcome		outcome;

	require_scope(event->key.scope);
	event->may_queue = wait_us > 0;
	acquire(event, until, &outcome);
	make_answer(event, &outcome, answer);
}

/*
 * Raises 42501 unless the caller may use the scope, and LS002 if the event's
 * request id is another identity's: before anything is said of its ticket.
 */
void
require_own_request(const LeaseEvent *event)
{
	TicketRow	ticket;

	require_scope(event->key.scope);
	if (event->has_request_id &&
		store_load_request(&event->key, &event->request_id, &ticket) &&
		!same_identity(&ticket.who, &event->who))
		report_foreign_request(&event->key);
}

/* ----------------------------------------------------------------------
 * Tickets
 * ----------------------------------------------------------------------
 */

/*
 * Loads the ticket that the caller names; answers "gone" and returns false if
 * there is none.  Raises 42501 if it is not the caller's.
 */
static bool
find_own_ticket(const pg_uuid_t *uuid, TicketRow *ticket, LeaseAnswer *answer)
{
	if (!store_load_ticket(uuid, ticket))
	{
		answer_gone(uuid, answer);
		return false;
	}
	require_ticket_role(ticket);
	return true;
}

/* The same, for an event that mostly changes the ticket: it may be recalled. */
static bool
recall_own_ticket(const pg_uuid_t *uuid, TicketRow *ticket,
				  LeaseAnswer *answer)
{
	if (!recall_ticket(uuid, ticket))
		return find_own_ticket(uuid, ticket, answer);
	require_ticket_role(ticket);
	return true;
}

static LeaseEvent
ticket_event(EventKind kind, const TicketRow *ticket)
{
	LeaseEvent	event = {0};

	event.kind = kind;
	event.key = ticket->key;
	event.ticket = ticket->ticket;
	return event;
}

/*
 * Looks at a ticket for its owner, and answers.  A superuser who is not of the
 * ticket's role is not its owner, and only sees the state that it is in.
 */
void
lease_look(const pg_uuid_t *uuid, int flags, LeaseAnswer *answer)
{
	TicketRow	ticket;
	LeaseEvent	event;
	Outcome		outcome;

	if (!find_own_ticket(uuid, &ticket, answer))
		return;
	event = ticket_event(EVENT_LOOK, &ticket);
	event.only_judge = !owns_ticket(&ticket);
	event.may_wait = (flags & LOOK_MAY_WAIT) != 0;
	event.attending = (flags & LOOK_ATTENDING) != 0;
	event.silent = (flags & LOOK_SILENT) != 0;
	event.leave_waiting = (flags & LOOK_LEAVE_WAITING) != 0;
	carry_out(&event, &ticket, &outcome);
	make_answer(&event, &outcome, answer);
}

/*
 * Makes a held ticket last a full lease from now; lease_us 0 stands for the
 * length last asked for.
 */
void
lease_renew(const pg_uuid_t *uuid, int64 lease_us, LeaseAnswer *answer)
{
	TicketRow	ticket;
	LeaseEvent	event;
	Outcome		outcome;

	if (!recall_own_ticket(uuid, &ticket, answer))
		return;
	require_scope(ticket.key.scope);
	event = ticket_event(EVENT_RENEW, &ticket);
	event.lease_us = lease_us;
	event.may_wait = true;
	carry_out(&event, &ticket, &outcome);
	make_answer(&event, &outcome, answer);
}

/* Gives a ticket back; a second, late or overtaken release changes nothing. */
void
lease_release(const pg_uuid_t *uuid, LeaseAnswer *answer)
{
	TicketRow	ticket;
	LeaseEvent	event;
	Outcome		outcome;

	if (!recall_own_ticket(uuid, &ticket, answer))
		return;
	event = ticket_event(EVENT_RELEASE, &ticket);
	carry_out(&event, &ticket, &outcome);
	make_answer(&event, &outcome, answer);
}

static int
compare_tickets(const ListCell *a, const ListCell *b)
{
	return compare_lock_keys(&((TicketRow *) lfirst(a))->key,
							 &((TicketRow *) lfirst(b))->key);
}

/*
 * The tickets of an identity that may be live, in the order of their locks; held
 * ones in one scope or (NULL) in all.  Those that wait are read first, so that
 * one which is promoted meanwhile is met once more, and not missed.
 */
static List *
list_live_tickets(const Identity *who, const char *scope)
{
	List	   *tickets = store_list_waits(who);
	ListCell   *cell;

	foreach(cell, store_list_held(who, scope))
	{
		int			count;
		TicketRow  *shares = store_load_shares((LockRow *) lfirst(cell),
											   &count);

		for (int i = 0; i < count; i++)
			tickets = lappend(tickets, &shares[i]);
	}
	list_sort(tickets, compare_tickets);
	return tickets;
}

/*
 * Gives back all live tickets of an identity, in one scope or (NULL) in all;
 * returns how many.
 */
int
lease_release_all(const Identity *who, const char *scope)
{
	int			released = 0;
	ListCell   *cell;

	foreach(cell, list_live_tickets(who, scope))
	{
		TicketRow  *ticket = (TicketRow *) lfirst(cell);
		LeaseEvent	event = ticket_event(EVENT_RELEASE, ticket);
		Outcome		outcome;

		if (scope != NULL && strcmp(ticket->key.scope, scope) != 0)
			continue;
		carry_out(&event, ticket, &outcome);
		if (outcome.yes)
			released++;
	}
	return released;
}
