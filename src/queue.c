/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  The queue of a lock: who waits, in which order, and whose turn it is.
 *
 * Places are drawn under the queue tag, which an enqueue keeps until its
 * transaction ends, so a ticket that is not committed yet sorts behind every
 * one that is.  What the clock does to a waiter is computed, not stored:
 * nothing is written on behalf of others, except that whoever ends a grant
 * promotes the first waiter if its ticket tag is free.  Otherwise the waiter
 * takes its turn at its own next look.  A transaction that idles after a look
 * can so hold up nobody but itself.
 *
 * A grant out of the queue writes the place of its waiter into the lock's row
 * (passed).  A waiting ticket at or below that mark is timed out, whatever
 * sign of life is committed into it later: it was dead when it was passed.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "common/hashfn.h"
#include "miscadmin.h"

#include "leaselock.h"

/* So many dead waiters are worth a mark, see pass_dead_waiters. */
#define MANY_DEAD	16

/* ----------------------------------------------------------------------
 * Judging
 * ----------------------------------------------------------------------
 */

/* What the clock makes of a ticket that waits by what is stored, see below. */
static LeaseState
clock_state(const LeaseTicket *ticket, const LeaseLock *lock, TimestampTz now)
{
	if (ticket->wait_until <= now)
		return LEASE_TIMED_OUT;
	if (ticket->place <= lock->passed &&
		!(grant_is_live(lock, now) &&
		  same_identity(&ticket->who, &lock->holder)))
		return LEASE_TIMED_OUT;
	if (ticket->alive_until <= now && !is_served(ticket))
		return LEASE_TIMED_OUT;
	return LEASE_WAITING;
}

/*
 * The state of a ticket that waits by what is stored: it waits, or its time
 * ran out, or its role may not use the scope any more, or it fell silent, or
 * its turn went by.  The tickets of the identity that holds the lock share the
 * turn of the one that got it.
 */
LeaseState
waiter_state(const LeaseTicket *ticket, const LeaseLock *lock,
			 TimestampTz now)
{
	if (ticket->wait_until > now &&
		!may_use_scope(ticket->key.scope, ticket->who.role))
		return LEASE_CANCELLED;
	return clock_state(ticket, lock, now);
}

/* Whether a ticket of the queue is a live waiter. */
static bool
is_waiting(const LeaseTicket *ticket, const LeaseLock *lock, TimestampTz now)
{
	return ticket->state == LEASE_WAITING &&
		waiter_state(ticket, lock, now) == LEASE_WAITING;
}

/* A walk through the live waiters of a lock, in the order of their turn. */
typedef struct QueueWalk
{
	const LeaseLock *lock;
	TimestampTz now;
	TicketScan *scan;
	int			rows;			/* read so far, dead ones included */
	bool		past_dead;		/* something else than dead ones was met */
	int			dead_count;		/* how many dead ones before that */
	int64		dead_place;		/* the last of them */
	bool		access_known;	/* who may use the scope, once that matters */
	ScopeAccess access;
} QueueWalk;

static QueueWalk
begin_walk(const LeaseLock *lock, TimestampTz now)
{
	QueueWalk	walk = {0};

	walk.lock = lock;
	walk.now = now;
	walk.scan = store_open_queue(&lock->key, lock->passed);
	return walk;
}

/* The next live waiter, unless max_rows have been read; false at the end. */
static bool
next_waiter(QueueWalk *walk, int max_rows, LeaseTicket *ticket)
{
	while (walk->rows < max_rows && store_next_ticket(walk->scan, ticket))
	{
		walk->rows++;
		if (ticket->state != LEASE_WAITING)
			continue;
		if (clock_state(ticket, walk->lock, walk->now) != LEASE_WAITING)
		{
			if (!walk->past_dead)
			{
				walk->dead_count++;
				walk->dead_place = ticket->place;
			}
			continue;
		}
		walk->past_dead = true;
		if (!walk->access_known)
			walk->access = scope_access(walk->lock->key.scope);
		walk->access_known = true;
		/* who lost access may get it again: that is not dead */
		if (access_allows(&walk->access, ticket->who.role))
			return true;
	}
	return false;
}

static void
end_walk(QueueWalk *walk)
{
	store_close_tickets(walk->scan);
}

/*
 * The first live waiter, or the first of an identity other than "except", into
 * *head; false if there is none.  Notes the dead ones that it met on the way.
 */
static bool
find_waiter(Call *call, const Identity *except, LeaseTicket *head)
{
	QueueWalk	walk = begin_walk(&call->lock, call->now);
	bool		found;

	do
		found = next_waiter(&walk, INT_MAX, head);
	while (found && except != NULL && same_identity(&head->who, except));
	end_walk(&walk);
	call->dead_count = walk.dead_count;
	call->dead_place = walk.dead_place;
	return found;
}

/* The first live waiter into *head; false if there is none. */
static bool
queue_head(Call *call, LeaseTicket *head)
{
	return find_waiter(call, NULL, head);
}

/* Whether an identity other than the given one waits. */
bool
queue_has_other(Call *call, const Identity *who)
{
	LeaseTicket other;

	return find_waiter(call, who, &other);
}

/* Identities that were met on a walk. */
typedef struct MetIdentities
{
	int			count;
	uint32		hashes[MAX_POSITION];	/* of the owners, to compare faster */
	Identity	who[MAX_POSITION];
} MetIdentities;

static uint32
hash_owner(const Identity *who)
{
	return hash_bytes((const unsigned char *) who->owner, strlen(who->owner));
}

/* Whether an identity was met before. */
static bool
was_met(const MetIdentities *met, const Identity *who, uint32 hash)
{
	for (int i = 0; i < met->count; i++)
	{
		if (met->hashes[i] == hash && same_identity(&met->who[i], who))
			return true;
	}
	return false;
}

/*
 * How many other identities wait before the first ticket of this one, plus 1.
 * Stops at MAX_POSITION, so that a poll costs the same in a long queue.
 */
int
queue_position(const LeaseLock *lock, const LeaseTicket *own,
			   TimestampTz now)
{
	QueueWalk	walk = begin_walk(lock, now);
	LeaseTicket ticket;
	MetIdentities *ahead = palloc(sizeof(MetIdentities));

	ahead->count = 0;
	while (ahead->count + 1 < MAX_POSITION &&
		   next_waiter(&walk, MAX_POSITION_ROWS, &ticket) &&
		   !same_identity(&ticket.who, &own->who))
	{
		uint32		hash = hash_owner(&ticket.who);

		if (was_met(ahead, &ticket.who, hash))
			continue;
		ahead->hashes[ahead->count] = hash;
		ahead->who[ahead->count] = ticket.who;
		ahead->count++;
	}
	end_walk(&walk);
	return ahead->count + 1;
}

/*
 * How many live tickets wait for a lock; stops counting at "enough", and after
 * max_rows, which dead ones are among.
 */
int
queue_length(const LeaseLock *lock, TimestampTz now, int enough, int max_rows)
{
	QueueWalk	walk = begin_walk(lock, now);
	LeaseTicket ticket;
	int			length = 0;

	while (length < enough && next_waiter(&walk, max_rows, &ticket))
		length++;
	end_walk(&walk);
	return length;
}

/*
 * The mode of the name tag that a grant to a newcomer needs: NAME_CHANGE if the
 * lock can be had, NAME_KEEP if the identity has it, NoLock if another has it
 * or waits for it.  Where the identity itself is the first of the queue it
 * overtakes nobody; its waiting ticket then shares the grant.
 */
LOCKMODE
grant_mode(Call *call, const Identity *who)
{
	LeaseTicket head;

	call->heads_queue = false;
	if (grant_is_live(&call->lock, call->now))
		return same_identity(&call->lock.holder, who) ? NAME_KEEP : NoLock;
	if (!queue_head(call, &head))
		return NAME_CHANGE;
	call->heads_queue = same_identity(&head.who, who);
	return call->heads_queue ? NAME_CHANGE : NoLock;
}

/*
 * Marks the dead waiters at the head of the queue as passed, if many were met,
 * or every grant would meet them again until they are pruned.  The caller holds
 * the name tag in NAME_CHANGE and saves the lock.
 *
 * The queue tag is tried for, and the queue walked again under it: once a dead
 * ticket is ended its place may be drawn anew, and whoever drew it must not be
 * passed.  So nobody can queue until this transaction ends.
 */
void
pass_dead_waiters(Call *call)
{
	LeaseTicket head;

	if (call->dead_count < MANY_DEAD ||
		!try_queue_tag(&call->tags, &call->lock.key))
		return;
	(void) find_waiter(call, NULL, &head);
	call->lock.passed = Max(call->lock.passed, call->dead_place);
}

/* Whether a lock's row, or that there is none, is the same as it was. */
static bool
is_unchanged(LeaseLock *lock, LeaseLock *seen)
{
	bool		exists = ItemPointerIsValid(&lock->tid);

	return exists == ItemPointerIsValid(&seen->tid) &&
		(!exists || (lock->fence == seen->fence &&
					 ItemPointerEquals(&lock->tid, &seen->tid)));
}

/*
 * Whether that mode, found in the lock as it was "seen" before the tag was
 * taken, is still the one.  While the lock's row is the same the queue need not
 * be read again: whoever has queued since did so after this call began, and is
 * not overtaken.  But a ticket of the identity itself may have left the queue,
 * and somebody else heads it now.
 */
bool
mode_is_same(Call *call, LeaseLock *seen, const Identity *who, LOCKMODE mode)
{
	if (mode == NAME_CHANGE && !call->heads_queue &&
		is_unchanged(&call->lock, seen))
		return !grant_is_live(&call->lock, call->now);
	return grant_mode(call, who) == mode;
}

/* ----------------------------------------------------------------------
 * A waiter's own look
 * ----------------------------------------------------------------------
 */

/*
 * Takes the ticket tag of a waiting ticket, in line if the caller may wait.
 * Who has the name tag, or another ticket tag, of that lock from an earlier
 * call only tries.
 */
static bool
get_ticket_tag(Call *call, const LeaseTicket *ticket, int flags)
{
	if (try_ticket_tag(&call->tags, &ticket->key, &ticket->request_id))
		return true;
	if (!(flags & LOOK_MAY_WAIT) || has_name_tag(&ticket->key) ||
		has_ticket_tag(&ticket->key))
		return false;
	wait_ticket_tag(&call->tags, &ticket->key, &ticket->request_id);
	return true;
}

/* Loads the lock and the ticket under the tags; false if it does not wait. */
static bool
reload_waiter(Call *call, LeaseTicket *ticket)
{
	load_call(call, &ticket->key);
	reload_ticket(ticket);
	return is_waiting(ticket, &call->lock, call->now);
}

/* Whether the lock's holder is the ticket's own identity. */
static bool
holds_already(const Call *call, const LeaseTicket *ticket)
{
	return grant_is_live(&call->lock, call->now) &&
		same_identity(&call->lock.holder, &ticket->who);
}

/*
 * Whether nobody holds the lock and it is the turn of the ticket's identity;
 * *head is then the first ticket of that identity.
 */
static bool
has_turn(Call *call, const LeaseTicket *ticket, LeaseTicket *head)
{
	call->has_head = !grant_is_live(&call->lock, call->now) &&
		queue_head(call, head);
	if (call->has_head)
		call->head_request_id = head->request_id;
	return call->has_head && same_identity(&head->who, &ticket->who);
}

/*
 * Notes, for the search for cycles, that the holder of a lock keeps this
 * waiter from it.
 */
static void
note_blocker(const LeaseLock *lock, const Identity *waiter)
{
	if (OidIsValid(lock->holder.role) &&
		!same_identity(&lock->holder, waiter))
		store_note_blocker(&lock->holder, &lock->key);
}

/* The same for a new holder that has others behind it. */
static void
note_next_blocker(Call *call)
{
	if (queue_has_other(call, &call->lock.holder))
		store_note_blocker(&call->lock.holder, &call->lock.key);
}

/*
 * Makes a waiting ticket held, whose identity holds the lock already.  False
 * if that changed, or the tags are busy.
 */
static bool
share_grant(Call *call, LeaseTicket *ticket)
{
	if (try_name_tag(&call->tags, &ticket->key, NAME_KEEP) &&
		try_ticket_tag(&call->tags, &ticket->key, &ticket->request_id) &&
		reload_waiter(call, ticket) && holds_already(call, ticket))
	{
		join_grant(call, ticket, true, 0);
		save_acknowledged(call);
		return true;
	}
	give_back_tags(&call->tags);
	return false;
}

/*
 * Grants the lock to the waiter that looks, because its turn has come.  False
 * if that changed, or the tags are busy.
 */
static bool
take_turn(Call *call, LeaseTicket *ticket)
{
	LeaseTicket head;

	if (try_scope_tag(&call->tags, ticket->key.scope) &&
		try_name_tag(&call->tags, &ticket->key, NAME_CHANGE) &&
		try_ticket_tag(&call->tags, &ticket->key, &ticket->request_id) &&
		reload_waiter(call, ticket) && has_turn(call, ticket, &head))
	{
		begin_grant(call, &ticket->who);
		call->lock.passed = Max(call->lock.passed, head.place);
		join_grant(call, ticket, true, 0);
		note_next_blocker(call);
		save_acknowledged(call);
		return true;
	}
	give_back_tags(&call->tags);
	return false;
}

/*
 * Gives a promoted ticket, at the first call for it, the full lease that it
 * asked for.  The state is judged anew under the tag.
 */
static LeaseState
claim_grant(Call *call, LeaseTicket *ticket, int flags)
{
	LeaseState	state;

	if (!may_use_scope(ticket->key.scope, ticket->who.role))
		return LEASE_HELD;
	if (flags & LOOK_MAY_WAIT)
		wait_name_tag(&call->tags, &ticket->key, NAME_KEEP);
	else if (!try_name_tag(&call->tags, &ticket->key, NAME_KEEP))
		return LEASE_HELD;

	state = rejudge_ticket(call, ticket);
	if (state != LEASE_HELD || ticket->claimed)
	{
		give_back_tags(&call->tags);
		return state;
	}
	ticket->claimed = true;
	ticket->expires_at = call->now + ticket->lease_us;
	store_save_ticket(ticket);
	call->lock.expires_at = Max(call->lock.expires_at, ticket->expires_at);
	save_lock(call);
	return state;
}

/* Writes that a waiting ticket has ended.  The caller holds its tag. */
static void
end_wait(Call *call, LeaseTicket *ticket, LeaseState state)
{
	note_lease_change(&ticket->key);
	ticket->state = state;
	ticket->waiting = false;
	ticket->waiter_pid = 0;
	ticket->place = 0;
	ticket->ended_at = call->now;
	store_save_ticket(ticket);
}

/*
 * Writes that a waiter was heard from, or that a backend waits for it and is
 * its sign of life from now on.  The caller holds the ticket tag.
 */
static void
save_sign_of_life(Call *call, LeaseTicket *ticket, int flags)
{
	note_lease_change(&ticket->key);
	if (flags & LOOK_SERVED)
	{
		ticket->alive_until = NO_TIME;
		ticket->waiter_pid = MyProcPid;
	}
	else
	{
		ticket->alive_until = call->now +
			leaselock_waiter_timeout * INT64CONST(1000);
		if (ticket->waiter_pid == MyProcPid || !is_served(ticket))
			ticket->waiter_pid = 0;
	}
	store_save_ticket(ticket);
}

/*
 * Writes what has become of a waiting ticket, or that it was heard from;
 * returns its state.  If it was promoted meanwhile, nothing is written.
 */
static LeaseState
write_look(Call *call, LeaseTicket *ticket, int flags)
{
	LeaseState	state;
	List	   *cycle;

	if (!get_ticket_tag(call, ticket, flags))
		return ticket_state(ticket, &call->lock, call->now);

	state = rejudge_ticket(call, ticket);
	if (ticket->state != LEASE_WAITING)
	{
		give_back_tags(&call->tags);
		return state;
	}
	if (state == LEASE_WAITING &&
		(cycle = find_deadlock(&call->lock, ticket)) != NIL)
	{
		report_deadlock(cycle);
		state = LEASE_DEADLOCK;
	}

	if (state != LEASE_WAITING)
		end_wait(call, ticket, state);
	else
		save_sign_of_life(call, ticket, flags);
	return state;
}

/*
 * Looks at a ticket for its owner: judges it, does what its state calls for,
 * and returns the state.  With LOOK_MAY_WAIT it waits for tags up to
 * leaselock.lock_timeout (55P03), otherwise it never waits; a tag that is not
 * to be had then leaves the ticket as it is.
 */
LeaseState
look_at_ticket(Call *call, LeaseTicket *ticket, int flags)
{
	LeaseState	state = judge_ticket(call, ticket);
	LeaseTicket head;

	if (state == LEASE_HELD && !ticket->claimed)
		return claim_grant(call, ticket, flags);
	if (ticket->state != LEASE_WAITING)
		return state;

	if (state == LEASE_WAITING)
	{
		if (!(flags & LOOK_NO_GRANT) &&
			((holds_already(call, ticket) && share_grant(call, ticket)) ||
			 (has_turn(call, ticket, &head) && take_turn(call, ticket))))
			return LEASE_HELD;
		if (grant_is_live(&call->lock, call->now))
			note_blocker(&call->lock, &ticket->who);
		if ((flags & LOOK_SILENT) &&
			(holds_already(call, ticket) ||
			 find_deadlock(&call->lock, ticket) == NIL))
			return ticket_state(ticket, &call->lock, call->now);
	}

	state = write_look(call, ticket, flags);
	if (state == LEASE_HELD && !ticket->claimed)
		return claim_grant(call, ticket, flags);
	return state;
}

/*
 * Ends a waiting ticket because its owner gives it up; returns its state, which
 * is held if it was promoted before the tag was to be had.
 */
LeaseState
cancel_wait(Call *call, LeaseTicket *ticket)
{
	LeaseState	state;
	LeaseTicket next;

	if (!get_ticket_tag(call, ticket, LOOK_MAY_WAIT))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not end the wait for lock \"%s\" in scope \"%s\"",
						ticket->key.name, ticket->key.scope),
				 errdetail("Another transaction works on the same ticket, and this transaction has changed the lock or another of its tickets."),
				 errhint("End the wait in a transaction of its own.")));
	state = rejudge_ticket(call, ticket);
	if (ticket->state != LEASE_WAITING)
	{
		give_back_tags(&call->tags);
		return state;
	}
	if (state == LEASE_WAITING)
		state = LEASE_CANCELLED;
	end_wait(call, ticket, state);
	/* the lock may be free by the time we commit, because our tag was busy */
	if (queue_head(call, &next))
		wake_at_commit(&next);
	return state;
}

/* ----------------------------------------------------------------------
 * Enqueue and promotion
 * ----------------------------------------------------------------------
 */

static void
reject_full_queue(const Call *call, int64 last)
{
	/* Dead waiters have places too, so only count when it may matter. */
	if (last - call->lock.passed < leaselock_max_waiters ||
		queue_length(&call->lock, call->now, leaselock_max_waiters, INT_MAX) <
		leaselock_max_waiters)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many waiters for lock \"%s\" in scope \"%s\"",
					call->lock.key.name, call->lock.key.scope),
			 errdetail("leaselock.max_waiters is %d.", leaselock_max_waiters),
			 errhint("Try again later, or without waiting.")));
}

/*
 * Puts a request into the queue, and returns the state of its ticket: it
 * waits, or has its turn at once, or would close a cycle and is not put there.
 * The caller holds the queue tag and, for a request id, the ticket tag, has
 * seen that no ticket of that id exists, and gives the tags back if nothing
 * was written.
 */
LeaseState
enqueue(Call *call, const LeaseRequest *request, TimestampTz until,
		LeaseTicket *ticket)
{
	int64		last;
	LeaseTicket head;
	List	   *cycle;

	/*
	 * The queue tag keeps new places out, but not a promotion, which takes a
	 * ticket out of the queue and raises the passed mark.  Read in this
	 * order, the last place may be history, and the mark is never older than
	 * it.
	 */
	last = store_last_place(&request->key);
	load_call(call, &request->key);
	if (until <= clock_read(NO_TIME))
		return LEASE_CONTENDED;
	last = Max(last, call->lock.passed);
	reject_full_queue(call, last);

	init_ticket(call, request, ticket);
	ticket->state = LEASE_WAITING;
	ticket->waiting = true;
	ticket->place = last + 1;
	/* what is left of the wait, by the lock's own time */
	ticket->wait_until = call->now + (until - clock_read(NO_TIME));
	cycle = find_deadlock(&call->lock, ticket);
	if (cycle != NIL)
	{
		report_deadlock(cycle);
		return LEASE_DEADLOCK;
	}

	save_sign_of_life(call, ticket, request->served ? LOOK_SERVED : 0);
	keep_tags(&call->tags);
	if (grant_is_live(&call->lock, call->now))
		note_blocker(&call->lock, &ticket->who);
	else if (has_turn(call, ticket, &head) && take_turn(call, ticket))
		return LEASE_HELD;
	return LEASE_WAITING;
}

/*
 * Grants a lock, whose grant has just been ended, to the first waiter.  The
 * caller holds the name tag in NAME_CHANGE and saves the lock.  If the
 * waiter's tag is busy, or the scope is being registered, the lock stays free,
 * and the waiter takes its turn when it looks next.
 */
void
promote_head(Call *call)
{
	LeaseTicket head,
				next;

	if (!queue_head(call, &head))
	{
		pass_dead_waiters(call);
		return;
	}
	wake_at_commit(&head);
	if (!try_scope_tag(&call->tags, head.key.scope) ||
		!try_ticket_tag(&call->tags, &head.key, &head.request_id) ||
		!store_load_request(&head.key, &head.request_id, &head) ||
		!is_waiting(&head, &call->lock, call->now))
	{
		/* who keeps that tag may be ending the wait, and not know of the next */
		if (find_waiter(call, &head.who, &next))
			wake_at_commit(&next);
		return;
	}
	begin_grant(call, &head.who);
	call->lock.passed = head.place;
	join_grant(call, &head, false,
			   leaselock_waiter_timeout * INT64CONST(1000) / 2);
	note_next_blocker(call);
	note_acknowledged();
}
