/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  What a grant is, and how it begins and ends.
 *
 * A grant is what a lock's row says: a holder, a fence, and the latest expiry
 * of its tickets and of its named hold.  It is live while one of these has
 * not run out.  A lapse is never written: the row keeps the last holder until
 * the next grant, a release or a break, and every reader judges it by the
 * clock.  What is written in a ticket is likewise judged against the row of
 * its lock (ticket_state).
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "leaselock.h"

/* ----------------------------------------------------------------------
 * Judging
 * ----------------------------------------------------------------------
 */

/* Whether somebody holds the lock at that time. */
bool
grant_is_live(const LeaseLock *lock, TimestampTz now)
{
	return OidIsValid(lock->holder.role) &&
		(lock->expires_at > now || lock->hold_expires_at > now);
}

/*
 * How many live claims a grant has: its unlapsed tickets, and one for its
 * unlapsed named hold.
 */
int
grant_depth(const LeaseLock *lock, TimestampTz now)
{
	int			depth = lock->hold_expires_at > now ? 1 : 0;
	ListCell   *cell;

	if (lock->expires_at <= now)
		return depth;
	if (lock->tickets == 1)
		return depth + 1;
	foreach(cell, store_list_grant(&lock->key, lock->fence))
	{
		LeaseTicket *ticket = (LeaseTicket *) lfirst(cell);

		if (ticket_state(ticket, lock, now) == LEASE_HELD)
			depth++;
	}
	return depth;
}

/* The state of a ticket by the clock, given the row of its lock. */
LeaseState
ticket_state(const LeaseTicket *ticket, const LeaseLock *lock,
			 TimestampTz now)
{
	if (ticket->state == LEASE_WAITING)
		return waiter_state(ticket, lock, now);
	if (ticket->state != LEASE_HELD)
		return ticket->state;
	if (same_identity(&ticket->who, &lock->holder) &&
		ticket->fence == lock->fence && ticket->expires_at > now)
		return LEASE_HELD;
	return LEASE_EXPIRED;
}

/* Whether two rows, perhaps read at different times, are of one ticket. */
bool
same_ticket(const LeaseTicket *a, const LeaseTicket *b)
{
	return memcmp(&a->ticket, &b->ticket, sizeof(pg_uuid_t)) == 0;
}

/* Loads a lock under its name tag, and reads the clock. */
void
load_call(Call *call, const LockKey *key)
{
	store_load_lock(key, &call->lock);
	call->now = clock_read(call->lock.changed_at);
}

/*
 * Loads a ticket anew, under its tag or as it is now.  It may have been pruned
 * while the tag was waited for.
 */
void
reload_ticket(LeaseTicket *ticket)
{
	if (!store_reload_ticket(ticket))
		ticket->state = LEASE_GONE;
}

/* Loads the lock and a ticket anew, under a tag of theirs, and judges it. */
LeaseState
rejudge_ticket(Call *call, LeaseTicket *ticket)
{
	load_call(call, &ticket->key);
	reload_ticket(ticket);
	return ticket_state(ticket, &call->lock, call->now);
}

/*
 * Writes that a held ticket's lease has run out; it leaves its grant's list.
 * The caller holds the name tag in NAME_KEEP at least, and sees to the lock.
 */
void
expire_ticket(LeaseTicket *ticket)
{
	ticket->state = LEASE_EXPIRED;
	ticket->ended_at = ticket->expires_at;
	ticket->place = 0;
	store_save_ticket(ticket);
}

/*
 * Judges a ticket without a tag.  The lock is read after the ticket, so if it
 * does not know the ticket's grant any more, whoever ended that grant has
 * committed; what it wrote into the ticket is there on a second look.
 */
LeaseState
judge_ticket(Call *call, LeaseTicket *ticket)
{
	LeaseState	state;

	store_load_lock(&ticket->key, &call->lock);
	call->now = clock_read(call->lock.changed_at);
	state = ticket_state(ticket, &call->lock, call->now);
	if (state != ticket->state)
	{
		reload_ticket(ticket);
		state = ticket_state(ticket, &call->lock, call->now);
	}
	return state;
}

/* ----------------------------------------------------------------------
 * Changing a lock and its tickets
 * ----------------------------------------------------------------------
 */

/* Writes the lock's row.  The caller holds its name tag in NAME_KEEP at least. */
void
save_lock(Call *call)
{
	note_lease_change(&call->lock.key);
	if (!ItemPointerIsValid(&call->lock.tid))
		note_row_added();
	call->lock.changed_at = call->now;
	store_save_lock(&call->lock);
}

/* Writes a lock that was granted, or whose grant was extended to one more claim. */
void
save_acknowledged(Call *call)
{
	save_lock(call);
	note_acknowledged();
}

static void
forget_blocker(const LeaseLock *lock)
{
	if (OidIsValid(lock->holder.role))
		store_forget_blocker(&lock->holder, &lock->key);
}

/*
 * Begins a grant: an identity, a new fence, and no claim yet.  The caller
 * holds the name tag in NAME_CHANGE, has found no live grant, adds a claim
 * and saves the lock.
 */
void
begin_grant(Call *call, const Identity *who)
{
	LeaseLock  *lock = &call->lock;
	FenceFloor	floor = store_load_floor();

	fence_settle(lock);
	forget_blocker(lock);
	lock->fence = next_fence(lock->fence, &floor);
	lock->holder = *who;
	lock->granted_at = call->now;
	lock->granted_xid = GetTopFullTransactionId();
	lock->tickets = 0;
	lock->expires_at = NO_TIME;
	lock->hold_expires_at = NO_TIME;
}

/* Makes a ticket of a request, without a state yet. */
void
init_ticket(const Call *call, const LeaseRequest *request,
			LeaseTicket *ticket)
{
	memset(ticket, 0, sizeof(LeaseTicket));
	ItemPointerSetInvalid(&ticket->tid);
	note_row_added();
	ticket->key = request->key;
	ticket->ticket = request->ticket;
	ticket->request_id = request->request_id ? *request->request_id :
		request->ticket;
	ticket->who = request->who;
	ticket->lease_us = request->lease_us;
	ticket->requested_at = call->now;
	ticket->expires_at = NO_TIME;
	ticket->wait_until = NO_TIME;
	ticket->alive_until = NO_TIME;
	ticket->ended_at = NO_TIME;
}

/*
 * Makes a ticket a held one of the lock's grant, and counts it in; the caller
 * saves the lock.  A ticket that is promoted while its owner does something
 * else is not claimed, and has only claim_us to be asked for.
 */
void
join_grant(Call *call, LeaseTicket *ticket, bool claimed, int64 claim_us)
{
	int64		us = claimed ? ticket->lease_us :
		Min(ticket->lease_us, claim_us);

	ticket->state = LEASE_HELD;
	ticket->waiting = false;
	ticket->waiter_pid = 0;
	ticket->fence = call->lock.fence;
	ticket->place = -call->lock.fence;
	ticket->claimed = claimed;
	ticket->expires_at = call->now + us;
	store_save_ticket(ticket);

	call->lock.tickets++;
	call->lock.expires_at = Max(call->lock.expires_at, ticket->expires_at);
}

/*
 * Ends a grant.  The caller holds the name tag in NAME_CHANGE and saves the
 * lock.
 */
void
end_grant(Call *call)
{
	LeaseLock  *lock = &call->lock;

	fence_settle(lock);
	forget_blocker(lock);
	lock->holder.role = InvalidOid;
	lock->holder.owner = NULL;
	lock->granted_at = NO_TIME;
	lock->granted_xid = InvalidFullTransactionId;
	lock->tickets = 0;
	lock->expires_at = NO_TIME;
	lock->hold_expires_at = NO_TIME;
}
