/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The rules: who gets a lock, how long it lasts, how it ends.
 *
 * A grant is what a lock's row says: a holder, a fence, and the latest expiry
 * of its tickets and of its named hold.  It is live while one of these has
 * not run out.  A lapse is never written: the row keeps the last holder until
 * the next grant, a release or a break, and every reader judges it by the
 * clock.  What is written in a ticket is likewise judged against the row of
 * its lock (ticket_state).
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

#include "access/xact.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/uuid.h"

#include "leaselock.h"

/* One call's view of one lock. */
typedef struct Call
{
	TagSet		tags;
	LeaseLock	lock;
	TimestampTz now;
} Call;

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
	if (ticket->state != LEASE_HELD)
		return ticket->state;
	if (same_identity(&ticket->who, &lock->holder) &&
		ticket->fence == lock->fence && ticket->expires_at > now)
		return LEASE_HELD;
	return LEASE_EXPIRED;
}

static bool
same_ticket(const LeaseTicket *a, const LeaseTicket *b)
{
	return memcmp(&a->ticket, &b->ticket, sizeof(pg_uuid_t)) == 0;
}

/* Loads a lock under its name tag, and reads the clock. */
static void
load_call(Call *call, const LockKey *key)
{
	store_load_lock(key, &call->lock);
	call->now = clock_read(call->lock.changed_at);
}

/*
 * Judges a ticket without a tag.  The lock is read after the ticket, so if it
 * does not know the ticket's grant any more, whoever ended that grant has
 * committed; what it wrote into the ticket is there on a second look.
 */
static LeaseState
judge_ticket(Call *call, LeaseTicket *ticket)
{
	LeaseState	state;

	store_find_lock(&ticket->key, &call->lock);
	call->now = clock_read(call->lock.changed_at);
	state = ticket_state(ticket, &call->lock, call->now);
	if (state != ticket->state)
	{
		(void) store_load_request(&ticket->key, &ticket->request_id, ticket);
		state = ticket_state(ticket, &call->lock, call->now);
	}
	return state;
}

/* ----------------------------------------------------------------------
 * Answers
 * ----------------------------------------------------------------------
 */

static void
answer_holder(const Call *call, LeaseAnswer *answer)
{
	const LeaseLock *lock = &call->lock;

	if (!grant_is_live(lock, call->now) ||
		same_identity(&lock->holder, &answer->ticket.who))
		return;
	answer->holder = lock->holder;
	answer->holder_until = Max(lock->expires_at, lock->hold_expires_at);
}

static void
answer_ticket(const Call *call, const LeaseTicket *ticket, LeaseState state,
			  LeaseAnswer *answer)
{
	memset(answer, 0, sizeof(LeaseAnswer));
	answer->state = state;
	answer->has_ticket = true;
	answer->ticket = *ticket;
	answer->has_request_id = memcmp(&ticket->request_id, &ticket->ticket,
									sizeof(pg_uuid_t)) != 0;
	answer->now = call->now;
	if (state == LEASE_HELD)
		answer->depth = grant_depth(&call->lock, call->now);
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

static void
answer_gone(const pg_uuid_t *uuid, LeaseAnswer *answer)
{
	memset(answer, 0, sizeof(LeaseAnswer));
	answer->state = LEASE_GONE;
	answer->has_ticket = true;
	answer->ticket.ticket = *uuid;
}

/* ----------------------------------------------------------------------
 * Changing a lock and its tickets
 * ----------------------------------------------------------------------
 */

/* Writes the lock's row.  The caller holds its name tag in NAME_KEEP at least. */
static void
save_lock(Call *call)
{
	note_lease_change(&call->lock.key);
	call->lock.changed_at = call->now;
	store_save_lock(&call->lock);
}

/*
 * Writes a lock that was granted, or whose grant was extended to one more
 * claim.  What is acknowledged must survive a crash, whatever
 * synchronous_commit says.
 */
static void
save_acknowledged(Call *call)
{
	save_lock(call);
	ForceSyncCommit();
}

/*
 * Begins a grant: an identity, a new fence, and no claim yet.  The caller
 * holds the name tag in NAME_CHANGE, has found no live grant, adds a claim
 * and saves the lock.
 */
static void
begin_grant(Call *call, const Identity *who)
{
	LeaseLock  *lock = &call->lock;

	fence_settle(lock);
	lock->fence = next_fence(lock->fence, store_load_floor());
	lock->holder = *who;
	lock->granted_at = call->now;
	lock->granted_xid = GetTopFullTransactionId();
	lock->tickets = 0;
	lock->expires_at = NO_TIME;
	lock->hold_expires_at = NO_TIME;
}

/*
 * Ends a grant.  The caller holds the name tag in NAME_CHANGE and saves the
 * lock.
 */
static void
end_grant(Call *call)
{
	LeaseLock  *lock = &call->lock;

	fence_settle(lock);
	lock->holder.role = InvalidOid;
	lock->holder.owner = NULL;
	lock->granted_at = NO_TIME;
	lock->granted_xid = InvalidFullTransactionId;
	lock->tickets = 0;
	lock->expires_at = NO_TIME;
	lock->hold_expires_at = NO_TIME;
}

/* Makes a held ticket of the lock's grant, and counts it in. */
static void
add_ticket(Call *call, const LeaseRequest *request, LeaseTicket *ticket)
{
	memset(ticket, 0, sizeof(LeaseTicket));
	ItemPointerSetInvalid(&ticket->tid);
	ticket->key = request->key;
	ticket->ticket = *DatumGetUUIDP(OidFunctionCall0(F_GEN_RANDOM_UUID));
	ticket->request_id = request->request_id ? *request->request_id :
		ticket->ticket;
	ticket->who = request->who;
	ticket->place = -call->lock.fence;
	ticket->state = LEASE_HELD;
	ticket->fence = call->lock.fence;
	ticket->lease_us = request->lease_us;
	ticket->requested_at = call->now;
	ticket->expires_at = call->now + request->lease_us;
	ticket->wait_until = NO_TIME;
	ticket->alive_until = NO_TIME;
	ticket->claimed = true;
	ticket->ended_at = NO_TIME;
	store_save_ticket(ticket);

	call->lock.tickets++;
	call->lock.expires_at = Max(call->lock.expires_at, ticket->expires_at);
}

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
		ticket->state = LEASE_EXPIRED;
		ticket->ended_at = ticket->expires_at;
		ticket->place = 0;
		store_save_ticket(ticket);
	}
	return live;
}

/* Whether the grant would end with this held ticket. */
static bool
is_last_claim(const Call *call, const LeaseTicket *own)
{
	const LeaseLock *lock = &call->lock;
	ListCell   *cell;

	if (lock->hold_expires_at != NO_TIME)
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
 * in its present state.  Raises LS002 if another identity made it.
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
	state = judge_ticket(call, &ticket);
	answer_ticket(call, &ticket, state, answer);
	return true;
}

/*
 * The mode of the name tag that a grant to the identity needs: NAME_CHANGE if
 * the lock can be had, NAME_KEEP if the identity has it, NoLock if another
 * has it.
 */
static LOCKMODE
grant_mode(const Call *call, const Identity *who)
{
	if (!grant_is_live(&call->lock, call->now))
		return NAME_CHANGE;
	return same_identity(&call->lock.holder, who) ? NAME_KEEP : NoLock;
}

/*
 * Tries for the tags of a grant to a ticket.  The ticket tag keeps a second
 * call with the same request id out of the unique index.
 */
static bool
try_grant_tags(Call *call, const LeaseRequest *request, LOCKMODE mode)
{
	if ((request->request_id == NULL ||
		 try_ticket_tag(&call->tags, &request->key, request->request_id)) &&
		try_name_tag(&call->tags, &request->key, mode))
		return true;
	give_back_tags(&call->tags);
	return false;
}

/*
 * One try to acquire.  False if the lock changed between the look and the
 * taking of the tag, so that another try is worth it.
 */
static bool
try_acquire(Call *call, const LeaseRequest *request, LeaseAnswer *answer)
{
	LOCKMODE	mode;
	LeaseTicket ticket;

	if (answer_known_request(call, request, answer))
		return true;

	load_call(call, &request->key);
	mode = grant_mode(call, &request->who);
	answer_contended(call, request, answer);
	if (mode == NoLock || !try_grant_tags(call, request, mode))
		return true;

	if (answer_known_request(call, request, answer))
		return true;
	load_call(call, &request->key);
	if (grant_mode(call, &request->who) != mode)
	{
		give_back_tags(&call->tags);
		return false;
	}

	if (mode == NAME_CHANGE)
		begin_grant(call, &request->who);
	add_ticket(call, request, &ticket);
	save_acknowledged(call);
	answer_ticket(call, &ticket, LEASE_HELD, answer);
	return true;
}

/* Acquires a lock, or answers why not. */
void
lease_acquire(const LeaseRequest *request, LeaseAnswer *answer)
{
	Call		call = {0};

	/* A lock that changes at each look is contended. */
	if (!try_acquire(&call, request, answer))
		(void) try_acquire(&call, request, answer);
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

/* Answers with the present state of a ticket. */
void
lease_get(const pg_uuid_t *uuid, LeaseAnswer *answer)
{
	Call		call = {0};
	LeaseTicket ticket;
	LeaseState	state;

	if (!find_own_ticket(uuid, &ticket, answer))
		return;
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
	(void) store_load_request(&ticket->key, &ticket->request_id, ticket);
	if (ticket->state != LEASE_HELD || ticket->fence != call->lock.fence ||
		!same_identity(&ticket->who, &call->lock.holder) ||
		ticket->expires_at > call->now)
	{
		give_back_tags(&call->tags);
		return;
	}
	ticket->state = LEASE_EXPIRED;
	ticket->ended_at = ticket->expires_at;
	ticket->place = 0;
	store_save_ticket(ticket);
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
	load_call(call, &ticket->key);
	(void) store_load_request(&ticket->key, &ticket->request_id, ticket);
	state = ticket_state(ticket, &call->lock, call->now);
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
	state = judge_ticket(&call, &ticket);
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
	ticket.expires_at = call.now + ticket.lease_us;
	store_save_ticket(&ticket);
	call.lock.expires_at = Max(latest, ticket.expires_at);
	save_lock(&call);
	answer_ticket(&call, &ticket, LEASE_HELD, answer);
}

/*
 * Releases a ticket; false if it was not held.  Only the last claim of a
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

	ticket->state = LEASE_RELEASED;
	ticket->ended_at = call.now;
	if (last)
		end_grant(&call);
	else
	{
		call.lock.tickets = settle_others(&call, ticket, &latest);
		call.lock.expires_at = latest;
		ticket->place = 0;
	}
	store_save_ticket(ticket);
	save_lock(&call);
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

		if (ticket->state != LEASE_HELD ||
			(scope != NULL && strcmp(ticket->key.scope, scope) != 0))
			continue;
		if (release_ticket(ticket, &answer))
			released++;
	}
	return released;
}

/* ----------------------------------------------------------------------
 * Named holds
 * ----------------------------------------------------------------------
 */

/* Whether the identity has the named hold, lapsed or not. */
static bool
has_hold(const Call *call, const Identity *who)
{
	return same_identity(&call->lock.holder, who) &&
		call->lock.hold_expires_at != NO_TIME;
}

/* Whether the identity has a named hold that has not run out. */
static bool
has_live_hold(const Call *call, const Identity *who)
{
	return has_hold(call, who) && call->lock.hold_expires_at > call->now;
}

/*
 * Takes the named hold; returns the fence, or 0 if another identity has the
 * lock.  The hold is taken anew only if it has run out: asking again neither
 * refreshes the lease nor adds depth.
 */
int64
hold_try(const LeaseRequest *request)
{
	const Identity *who = &request->who;

	/* A lock that changes at each look is taken. */
	for (int tries = 0; tries < 2; tries++)
	{
		Call		call = {0};
		LOCKMODE	mode;

		load_call(&call, &request->key);
		if (has_live_hold(&call, who))
			return call.lock.fence;
		mode = grant_mode(&call, who);
		if (mode == NoLock || !try_name_tag(&call.tags, &request->key, mode))
			return 0;

		load_call(&call, &request->key);
		if (!has_live_hold(&call, who) && grant_mode(&call, who) == mode)
		{
			if (mode == NAME_CHANGE)
				begin_grant(&call, who);
			call.lock.hold_expires_at = call.now + request->lease_us;
			save_acknowledged(&call);
			return call.lock.fence;
		}
		give_back_tags(&call.tags);
	}
	return 0;
}

/*
 * Makes the named hold last a full ttl from now; false if the identity has
 * none.  A lapsed hold is still there until somebody else is granted the
 * lock.
 */
bool
hold_renew(const LeaseRequest *request)
{
	Call		call = {0};

	store_find_lock(&request->key, &call.lock);
	if (!has_hold(&call, &request->who))
		return false;
	wait_name_tag(&call.tags, &request->key, NAME_KEEP);
	load_call(&call, &request->key);
	if (!has_hold(&call, &request->who))
	{
		give_back_tags(&call.tags);
		return false;
	}
	call.lock.hold_expires_at = call.now + request->lease_us;
	save_lock(&call);
	return true;
}

/* Ends the named hold; false if the identity has none. */
bool
hold_release(const LeaseRequest *request)
{
	Call		call = {0};
	LOCKMODE	mode;
	bool		last;

	store_find_lock(&request->key, &call.lock);
	call.now = clock_read(call.lock.changed_at);
	do
	{
		if (!has_hold(&call, &request->who))
		{
			give_back_tags(&call.tags);
			return false;
		}
		mode = call.lock.expires_at > call.now ? NAME_KEEP : NAME_CHANGE;
		give_back_tags(&call.tags);
		wait_name_tag(&call.tags, &request->key, mode);
		load_call(&call, &request->key);
		last = call.lock.expires_at <= call.now;
	} while ((last && mode != NAME_CHANGE) ||
			 !has_hold(&call, &request->who));

	if (last)
		end_grant(&call);
	else
		call.lock.hold_expires_at = NO_TIME;
	save_lock(&call);
	return true;
}
