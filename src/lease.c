/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Tickets: acquired, looked at, renewed and released.
 *
 * Every call has the same course: look without a lock, and answer if that
 * settles it; take the name tag in the mode that the intended change needs;
 * load and judge anew; change, or give the tag back.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/proc.h"

#include "leaselock.h"

/* ----------------------------------------------------------------------
 * Answers
 * ----------------------------------------------------------------------
 */

static void
answer_holder(const Call *call, LeaseAnswer *answer)
{
	const LeaseLock *lock = &call->lock;

	if (!grant_is_live(lock, call->now) ||
		same_identity(&lock->holder, &answer->ticket.who) ||
		!may_see_scope(lock->key.scope))
		return;
	answer->holder = lock->holder;
	answer->holder_until = Max(lock->expires_at, lock->hold_expires_at);
}

static void
answer_gone(const pg_uuid_t *uuid, LeaseAnswer *answer)
{
	memset(answer, 0, sizeof(LeaseAnswer));
	answer->state = LEASE_GONE;
	answer->has_ticket = true;
	answer->ticket.ticket = *uuid;
}

static void
answer_ticket(const Call *call, const LeaseTicket *ticket, LeaseState state,
			  LeaseAnswer *answer)
{
	if (state == LEASE_GONE)
	{
		answer_gone(&ticket->ticket, answer);
		return;
	}
	memset(answer, 0, sizeof(LeaseAnswer));
	answer->state = state;
	answer->has_ticket = true;
	answer->ticket = *ticket;
	answer->has_request_id = memcmp(&ticket->request_id, &ticket->ticket,
									sizeof(pg_uuid_t)) != 0;
	answer->now = call->now;
	if (state == LEASE_HELD)
		answer->depth = grant_depth(&call->lock, call->now);
	if (state == LEASE_WAITING)
		answer->position = queue_position(&call->lock, ticket, call->now);
	answer->has_head = call->has_head;
	answer->head_request_id = call->head_request_id;
	answer_holder(call, answer);
}

static void
answer_contended(const Call *call, const LeaseRequest *request,
				 LeaseAnswer *answer)
{
	memset(answer, 0, sizeof(LeaseAnswer));
	answer->state = LEASE_CONTENDED;
	answer->ticket.key = request->key;
	answer->ticket.who = request->who;
	if (request->request_id != NULL)
	{
		answer->has_request_id = true;
		answer->ticket.request_id = *request->request_id;
	}
	answer->now = call->now;
	answer_holder(call, answer);
}

/* ----------------------------------------------------------------------
 * Claims of a grant
 * ----------------------------------------------------------------------
 */

/*
 * Ends the lapsed tickets of the grant other than "own", and tells how many
 * live ones are left and when the last of them runs out.  The caller holds
 * the name tag in NAME_KEEP at least; a settled ticket leaves the grant's
 * list, so that the list stays as long as the grant is deep.
 */
static int
settle_others(Call *call, const LeaseTicket *own, TimestampTz *latest)
{
	int			live = 0;
	ListCell   *cell;

	*latest = NO_TIME;
	if (call->lock.tickets <= 1)
		return 0;
	foreach(cell, store_list_grant(&call->lock.key, call->lock.fence))
	{
		LeaseTicket *ticket = (LeaseTicket *) lfirst(cell);

		if (same_ticket(ticket, own) ||
			ticket->state != LEASE_HELD)
			continue;
		if (ticket_state(ticket, &call->lock, call->now) == LEASE_HELD)
		{
			live++;
			*latest = Max(*latest, ticket->expires_at);
			continue;
		}
		expire_ticket(ticket);
	}
	return live;
}

/* Whether the grant would end with this held ticket. */
static bool
is_last_claim(Call *call, const LeaseTicket *own)
{
	const LeaseLock *lock = &call->lock;
	ListCell   *cell;

	/* a lapsed hold ends the grant only for the sake of somebody who waits */
	if (lock->hold_expires_at > call->now ||
		(lock->hold_expires_at != NO_TIME &&
		 !queue_has_other(call, &lock->holder)))
		return false;
	if (lock->tickets == 1)
		return true;
	foreach(cell, store_list_grant(&lock->key, lock->fence))
	{
		LeaseTicket *ticket = (LeaseTicket *) lfirst(cell);

		if (!same_ticket(ticket, own) &&
			ticket_state(ticket, lock, call->now) == LEASE_HELD)
			return false;
	}
	return true;
}

/* ----------------------------------------------------------------------
 * Tickets
 * ----------------------------------------------------------------------
 */

/*
 * Answers a request whose id is known already with the ticket that it made,
 * in its present state; that is a look at the ticket, and never waits.  Raises
 * LS002 if another identity made it.
 */
static bool
answer_known_request(Call *call, const LeaseRequest *request,
					 LeaseAnswer *answer)
{
	LeaseTicket ticket;
	LeaseState	state;

	if (request->request_id == NULL ||
		!store_load_request(&request->key, request->request_id, &ticket))
		return false;
	if (!same_identity(&ticket.who, &request->who))
		ereport(ERROR,
				(errcode(ERRCODE_FOREIGN_REQUEST),
				 errmsg("request id belongs to another identity"),
				 errdetail("Another role or owner has used it for lock \"%s\" in scope \"%s\".",
						   request->key.name, request->key.scope),
				 errhint("Use a new request id for every acquisition.")));
	give_back_tags(&call->tags);
	state = look_at_ticket(call, &ticket, request->served ? LOOK_SERVED : 0);
	answer_ticket(call, &ticket, state, answer);
	return true;
}

/* What came of one try to acquire. */
typedef enum Outcome
{
	ANSWERED,
	TAKEN,						/* another identity has it, or waits for it */
	CHANGED,					/* not what it was at the look: try again */
	BUSY_SHARED,				/* the own grant is being changed elsewhere */
	BUSY_NAME,					/* the lock is being changed elsewhere */
	BUSY_TICKET					/* so is the ticket of this request id */
} Outcome;

/*
 * One try to acquire, which waits for nobody.  The ticket tag keeps a second
 * call with the same request id out of the unique index.
 */
static Outcome
try_acquire(Call *call, const LeaseRequest *request, LeaseAnswer *answer)
{
	LOCKMODE	mode;
	LeaseLock	seen;
	LeaseTicket ticket;

	if (answer_known_request(call, request, answer))
		return ANSWERED;

	load_call(call, &request->key);
	seen = call->lock;
	mode = grant_mode(call, &request->who);
	answer_contended(call, request, answer);
	if (mode == NoLock)
		return TAKEN;
	if (request->request_id != NULL &&
		!try_ticket_tag(&call->tags, &request->key, request->request_id))
		return BUSY_TICKET;
	if ((mode == NAME_CHANGE &&
		 !try_scope_tag(&call->tags, request->key.scope)) ||
		!try_name_tag(&call->tags, &request->key, mode))
		return mode == NAME_KEEP ? BUSY_SHARED : BUSY_NAME;

	if (answer_known_request(call, request, answer))
		return ANSWERED;
	load_call(call, &request->key);
	if (!mode_is_same(call, &seen, &request->who, mode))
		return CHANGED;

	if (mode == NAME_CHANGE)
	{
		/* under the scope tag it cannot be registered any more */
		require_scope(request->key.scope);
		begin_grant(call, &request->who);
		pass_dead_waiters(call);
	}
	init_ticket(call, request, &ticket);
	join_grant(call, &ticket, true, 0);
	save_acknowledged(call);
	answer_ticket(call, &ticket, LEASE_HELD, answer);
	return ANSWERED;
}

/* One try to get a place in the queue, which waits for nobody. */
static Outcome
try_enqueue(Call *call, const LeaseRequest *request, TimestampTz until,
			LeaseAnswer *answer)
{
	LeaseTicket ticket;
	LeaseState	state;

	if (request->request_id != NULL &&
		!try_ticket_tag(&call->tags, &request->key, request->request_id))
		return BUSY_TICKET;
	if (!try_queue_tag(&call->tags, &request->key))
		return TAKEN;
	if (answer_known_request(call, request, answer))
		return ANSWERED;

	state = enqueue(call, request, until, &ticket);
	if (state == LEASE_WAITING || state == LEASE_HELD)
		answer_ticket(call, &ticket, state, answer);
	else
	{
		answer_contended(call, request, answer);
		answer->state = state;
		give_back_tags(&call->tags);
	}
	return ANSWERED;
}

/*
 * Tells what kept a try from its goal, so that the caller may wait for it.
 * False if there is no time left, or waiting is not allowed: whoever has the
 * name tag or a ticket tag of the lock from an earlier call only tries for the
 * others.  Most who keep a tag are gone in a moment, hence a brief wait first.
 */
static bool
find_obstacle(Outcome outcome, const LeaseRequest *request, TimestampTz until,
			  bool first, TagWait *obstacle)
{
	if (until <= clock_read(NO_TIME))
		return false;
	if (outcome != BUSY_SHARED &&
		(has_name_tag(&request->key) || has_ticket_tag(&request->key)))
		return false;
	if (outcome == BUSY_SHARED)
		*obstacle = wait_on_name(&request->key, NAME_KEEP);
	else if (outcome == BUSY_TICKET)
		*obstacle = wait_on_ticket(&request->key, request->request_id);
	else if (outcome == TAKEN)
		*obstacle = wait_on_queue(&request->key);
	else
		*obstacle = wait_on_name(&request->key, NAME_CHANGE);
	obstacle->brief = first || outcome == BUSY_NAME || outcome == CHANGED;
	return true;
}

/*
 * One round of an acquisition, which waits for nobody: acquires a lock, or a
 * place in its queue, or answers why not.  False: with what has been waited
 * for out of the way, another round is worth it; no tag is kept until then.
 * Without time to wait there is one round, with one more try if the lock
 * changed under it.  Raises 42501 if the caller may not use the scope.
 */
bool
lease_try_acquire(const LeaseRequest *request, TimestampTz until, bool first,
				  LeaseAnswer *answer, TagWait *obstacle)
{
	Call		call = {0};
	Outcome		outcome;

	/* before any tag: who may not use the scope delays nobody in it */
	require_scope(request->key.scope);
	outcome = try_acquire(&call, request, answer);
	if (outcome == CHANGED && first)
	{
		give_back_tags(&call.tags);
		outcome = try_acquire(&call, request, answer);
	}
	if (outcome == ANSWERED)
		return true;
	give_back_tags(&call.tags);
	if (request->wait_us == 0)
		return true;

	/* a lock that is only busy may be free in a moment */
	if (outcome == TAKEN || (outcome == BUSY_NAME && !first))
	{
		outcome = try_enqueue(&call, request, until, answer);
		if (outcome == ANSWERED)
			return true;
		give_back_tags(&call.tags);
	}
	return !find_obstacle(outcome, request, until, first, obstacle);
}

/*
 * Acquires a lock, or a place in its queue, or answers why not, within the
 * caller's transaction.  A wait is a little longer than the deadlock detector
 * needs to look at it.
 */
void
lease_acquire(const LeaseRequest *request, LeaseAnswer *answer)
{
	TimestampTz until = clock_read(NO_TIME) + request->wait_us;
	TagWait		obstacle;

	for (bool first = true;
		 !lease_try_acquire(request, until, first, answer, &obstacle);
		 first = false)
		wait_for_keeper(&obstacle, until,
						DeadlockTimeout + DeadlockTimeout / 2);
}

/*
 * Loads the ticket that the caller names; answers "gone" and returns false if
 * there is none.  Raises 42501 if it is not the caller's.
 */
static bool
find_own_ticket(const pg_uuid_t *uuid, LeaseTicket *ticket,
				LeaseAnswer *answer)
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
 * Looks at a ticket for its owner, see look_at_ticket, and answers.  A
 * superuser who is not of the ticket's role is not its owner, and only sees
 * the state that it is in.
 */
void
lease_look(const pg_uuid_t *uuid, int flags, LeaseAnswer *answer)
{
	Call		call = {0};
	LeaseTicket ticket;
	LeaseState	state;

	if (!find_own_ticket(uuid, &ticket, answer))
		return;
	if (owns_ticket(&ticket))
		state = look_at_ticket(&call, &ticket, flags);
	else
		state = judge_ticket(&call, &ticket);
	answer_ticket(&call, &ticket, state, answer);
}

/*
 * Writes that a ticket's lease ran out, when its owner wanted to renew or
 * release it: then the lock's time has reached that point, and no step back of
 * the clock revives the lease.  The grant itself stays the newest.  Left for
 * another time if the name tag is busy.
 */
static void
settle_lapse(Call *call, LeaseTicket *ticket)
{
	if (ticket->state != LEASE_HELD || ticket->fence != call->lock.fence ||
		!try_name_tag(&call->tags, &ticket->key, NAME_KEEP))
		return;
	load_call(call, &ticket->key);
	reload_ticket(ticket);
	if (ticket->state != LEASE_HELD || ticket->fence != call->lock.fence ||
		!same_identity(&ticket->who, &call->lock.holder) ||
		ticket->expires_at > call->now)
	{
		give_back_tags(&call->tags);
		return;
	}
	expire_ticket(ticket);
	call->lock.tickets--;
	save_lock(call);
}

/*
 * Takes the name tag of a held ticket in the given mode, and judges the
 * ticket anew.  If it is not held any more, answers and returns false.
 */
static bool
lock_held_ticket(Call *call, LeaseTicket *ticket, LOCKMODE mode,
				 LeaseAnswer *answer)
{
	LeaseState	state;

	wait_name_tag(&call->tags, &ticket->key, mode);
	state = rejudge_ticket(call, ticket);
	if (state == LEASE_HELD)
		return true;
	give_back_tags(&call->tags);
	answer_ticket(call, ticket, state, answer);
	return false;
}

/*
 * Makes a held ticket last a full lease from now; lease_us 0 stands for the
 * length last asked for.
 */
void
lease_renew(const pg_uuid_t *uuid, int64 lease_us, LeaseAnswer *answer)
{
	Call		call = {0};
	LeaseTicket ticket;
	LeaseState	state;
	TimestampTz latest = NO_TIME;

	if (!find_own_ticket(uuid, &ticket, answer))
		return;
	require_scope(ticket.key.scope);
	state = judge_ticket(&call, &ticket);
	if (ticket.state == LEASE_WAITING)
		state = look_at_ticket(&call, &ticket, LOOK_MAY_WAIT);
	if (state != LEASE_HELD)
	{
		settle_lapse(&call, &ticket);
		answer_ticket(&call, &ticket, state, answer);
		return;
	}
	if (!lock_held_ticket(&call, &ticket, NAME_KEEP, answer))
		return;

	call.lock.tickets = 1 + settle_others(&call, &ticket, &latest);
	if (lease_us != 0)
		ticket.lease_us = lease_us;
	ticket.claimed = true;
	ticket.expires_at = call.now + ticket.lease_us;
	store_save_ticket(&ticket);
	call.lock.expires_at = Max(latest, ticket.expires_at);
	save_lock(&call);
	answer_ticket(&call, &ticket, LEASE_HELD, answer);
}

/*
 * Releases a ticket, or cancels its wait; false if it was neither held nor
 * waiting.  Only the last claim of a
 * grant takes the tag in NAME_CHANGE: a release in the middle must not stand
 * in the way of commits that verify the fence.
 */
static bool
release_ticket(LeaseTicket *ticket, LeaseAnswer *answer)
{
	Call		call = {0};
	TimestampTz latest;
	LeaseState	state;
	LOCKMODE	mode;
	bool		last;

	do
	{
		give_back_tags(&call.tags);
		state = judge_ticket(&call, ticket);
		if (ticket->state == LEASE_WAITING)
		{
			bool		waited = state == LEASE_WAITING;

			state = cancel_wait(&call, ticket);
			if (state == LEASE_CANCELLED)
			{
				answer_ticket(&call, ticket, state, answer);
				return waited;
			}
		}
		if (state != LEASE_HELD)
		{
			settle_lapse(&call, ticket);
			answer_ticket(&call, ticket, state, answer);
			return false;
		}
		mode = is_last_claim(&call, ticket) ? NAME_CHANGE : NAME_KEEP;
		if (!lock_held_ticket(&call, ticket, mode, answer))
			return false;
		last = is_last_claim(&call, ticket);
	} while (last && mode != NAME_CHANGE);

	begin_losable_write();
	ticket->state = LEASE_RELEASED;
	ticket->ended_at = call.now;
	if (last)
	{
		end_grant(&call);
		promote_head(&call);
	}
	else
	{
		call.lock.tickets = settle_others(&call, ticket, &latest);
		call.lock.expires_at = latest;
		ticket->place = 0;
	}
	store_save_ticket(ticket);
	save_lock(&call);
	end_losable_write();
	answer_ticket(&call, ticket, LEASE_RELEASED, answer);
	return true;
}

/* Gives a ticket back; a second, late or overtaken release changes nothing. */
void
lease_release(const pg_uuid_t *uuid, LeaseAnswer *answer)
{
	LeaseTicket ticket;

	if (find_own_ticket(uuid, &ticket, answer))
		(void) release_ticket(&ticket, answer);
}

static int
compare_tickets(const ListCell *a, const ListCell *b)
{
	return compare_lock_keys(&((LeaseTicket *) lfirst(a))->key,
							 &((LeaseTicket *) lfirst(b))->key);
}

/*
 * Gives back all live tickets of an identity, in one scope or (NULL) in all;
 * returns how many.  Locks are taken in the order of their keys.
 */
int
lease_release_all(const Identity *who, const char *scope)
{
	List	   *tickets = store_list_owner(who);
	int			released = 0;
	ListCell   *cell;

	list_sort(tickets, compare_tickets);
	foreach(cell, tickets)
	{
		LeaseTicket *ticket = (LeaseTicket *) lfirst(cell);
		LeaseAnswer answer;

		if ((ticket->state != LEASE_HELD && ticket->state != LEASE_WAITING) ||
			(scope != NULL && strcmp(ticket->key.scope, scope) != 0))
			continue;
		if (release_ticket(ticket, &answer))
			released++;
	}
	return released;
}
