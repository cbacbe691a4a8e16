/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Ticket operations: the events that owners cause, and the answers to them.
 *
 * Permission is checked here before any tag is acquired, so that a caller
 * without permission delays nobody.
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

/* The ticket that the request would have got. */
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

/* Adds the present holder to an answer, if that is another identity. */
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

/*
 * One round of an acquisition, see try_acquire().  Raises 42501 if the caller
 * may not use the scope, LS002, 53400, 54000 and LS001.
 */
bool
lease_try_acquire(LeaseEvent *event, TimestampTz until, bool first,
				  LeaseAnswer *answer, BusyTag *busy_tag)
{
	Outcome		outcome;
	bool		done;

	require_scope(event->key.scope);
	done = try_acquire(event, until, first, &outcome, busy_tag);
	if (done)
		make_answer(event, &outcome, answer);
	return done;
}

/*
 * Acquires a lock or a place in its queue, or answers why not.  Raises 42501
 * if the caller may not use the scope, LS002, 53400, 54000 and LS001; with a
 * wait also 40P01.
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
 * request id belongs to another identity.  Must be called before anything is
 * revealed about that ticket.
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
 * there is none.  Raises 42501 if the caller may not use it.
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

/*
 * Likewise, for events that usually change the ticket: its row may come from
 * the session's memory.
 */
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
 * Looks at a ticket and answers.  A superuser who is not a member of the
 * ticket's role does not count as its owner, and only sees its state.  Raises
 * 42501, 54000 and LS001; also 55P03 and 40P01 if LOOK_MAY_WAIT is set.
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
 * Renews a held ticket for a full lease from now; lease_us 0 means the length
 * last requested.  Raises 42501, 55P03 and 40P01; 54000 and LS001 if the
 * ticket waits and takes its turn.
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

/*
 * Releases a ticket, or cancels its wait; a second, late or overtaken release
 * changes nothing.  Raises 42501, 55P03 and 40P01; 54000 and LS001 if it ends
 * the grant.
 */
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
 * The tickets of an identity that may be live, sorted by lock.  Held tickets
 * are those of one scope, or of all if NULL.  Waiting tickets are read first,
 * so that a ticket that is promoted meanwhile is listed twice rather than
 * missed.
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
 * Releases all live tickets of an identity, in one scope or in all (NULL), and
 * returns their number.  Raises 55P03 and 40P01; 54000 and LS001 if it ends a
 * grant.
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
