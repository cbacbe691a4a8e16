/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  The queue of a lock: who waits, and in which order.
 *
 * Places are assigned under the queue tag, which an enqueuing transaction
 * holds until it ends.  Therefore an uncommitted ticket comes after every
 * committed ticket.  A grant out of the queue stores the place of its waiter
 * in the lock's row, as the passed mark.  A waiter at or before that mark is
 * dead, whatever sign of life is committed into its row later.
 *
 * decide.c defines when a waiter is live; this file walks through the waiters.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "common/hashfn.h"

#include "core/decide.h"
#include "core/queue.h"
#include "core/scope.h"
#include "store/rows.h"
#include "store/tag.h"

/* ----------------------------------------------------------------------
 * Walks
 * ----------------------------------------------------------------------
 */

/* A walk through the live waiters of a lock, in queue order. */
typedef struct QueueWalk
{
	const LockRow *lock;
	TimestampTz now;
	TicketScan *scan;
	int			rows;			/* read so far, dead ones included */
	bool		past_dead;		/* a ticket that is not dead was seen */
	int			dead_count;		/* number of dead tickets before that */
	int64		dead_place;		/* place of the last of them */
	bool		access_known;	/* whether "access" has been loaded */
	ScopeAccess access;
} QueueWalk;

/*
 * Completes a waiter with what is not in its row, as far as it matters:
 * whether a backend waits for it, and whether its role may use the scope.
 */
void
complete_waiter(TicketRow *ticket, TimestampTz now)
{
	if (ticket->state == LEASE_WAITING &&
		(ticket->alive_until <= now || ticket->waiter_pid != 0))
		ticket->attended = is_attended(ticket);
	ticket->allowed = may_use_scope(ticket->key.scope, ticket->who.role);
}

static QueueWalk
begin_walk(const LockRow *lock, TimestampTz now)
{
	QueueWalk	walk = {0};

	walk.lock = lock;
	walk.now = now;
	walk.scan = store_open_queue(&lock->key, lock->passed);
	return walk;
}

static void
end_walk(QueueWalk *walk)
{
	store_close_tickets(walk->scan);
}

static void
count_dead(QueueWalk *walk, const TicketRow *ticket)
{
	if (walk->past_dead)
		return;
	walk->dead_count++;
	walk->dead_place = ticket->place;
}

/* Returns the next live waiter; false at the end or after max_rows rows. */
static bool
next_waiter(QueueWalk *walk, int max_rows, TicketRow *ticket)
{
	while (walk->rows < max_rows && store_next_ticket(walk->scan, ticket))
	{
		walk->rows++;
		if (ticket->state == LEASE_WAITING &&
			ticket->alive_until <= walk->now)
			ticket->attended = is_attended(ticket);
		/* tickets that came with a copied database do not wait */
		if (ticket->state != LEASE_WAITING ||
			waiter_is_dead(ticket, walk->lock, walk->now))
		{
			count_dead(walk, ticket);
			continue;
		}
		walk->past_dead = true;
		if (!walk->access_known)
			walk->access = scope_access(walk->lock->key.scope);
		walk->access_known = true;
		/* a waiter that lost access may regain it, so it is not dead */
		ticket->allowed = access_allows(&walk->access, ticket->who.role);
		if (waiter_is_live(ticket, walk->lock, walk->now))
			return true;
	}
	return false;
}

/*
 * Finds the first live waiter, or the first one of an identity other than
 * "except".
 */
void
find_head(const LockRow *lock, const Identity *except, TimestampTz now,
		  QueueHead *head)
{
	QueueWalk	walk;

	memset(head, 0, sizeof(QueueHead));
	if (!store_has_queues())
		return;
	walk = begin_walk(lock, now);
	do
		head->exists = next_waiter(&walk, INT_MAX, &head->ticket);
	while (head->exists && except != NULL &&
		   same_identity(&head->ticket.who, except));
	end_walk(&walk);
	head->dead_count = walk.dead_count;
	head->dead_place = walk.dead_place;
}

/* Whether any ticket is stored in the queue, dead or not. */
bool
has_queue(const LockKey *key)
{
	TicketScan *scan = store_open_queue(key, 0);
	TicketRow	ticket;
	bool		found = store_next_ticket(scan, &ticket);

	store_close_tickets(scan);
	return found;
}

/* ----------------------------------------------------------------------
 * Counts
 * ----------------------------------------------------------------------
 */

/* Identities seen during a walk. */
typedef struct IdentitySet
{
	int			count;
	uint32		hashes[MAX_POSITION];	/* of the owners, for speed */
	Identity	who[MAX_POSITION];
} IdentitySet;

/* Adds an identity unless it is already there. */
static void
add_identity(IdentitySet *set, const Identity *who)
{
	uint32		hash = hash_bytes((const unsigned char *) who->owner,
								  strlen(who->owner));

	for (int i = 0; i < set->count; i++)
	{
		if (set->hashes[i] == hash && same_identity(&set->who[i], who))
			return;
	}
	set->hashes[set->count] = hash;
	set->who[set->count] = *who;
	set->count++;
}

/*
 * Number of other identities that wait before the first ticket of this
 * identity, plus 1.  Stops at MAX_POSITION, so that a poll costs the same in a
 * long queue.
 */
int
queue_position(const LockRow *lock, const TicketRow *own, TimestampTz now)
{
	QueueWalk	walk = begin_walk(lock, now);
	TicketRow	ticket;
	IdentitySet *ahead = palloc(sizeof(IdentitySet));

	ahead->count = 0;
	while (ahead->count + 1 < MAX_POSITION &&
		   next_waiter(&walk, MAX_POSITION_ROWS, &ticket) &&
		   !same_identity(&ticket.who, &own->who))
		add_identity(ahead, &ticket.who);
	end_walk(&walk);
	return ahead->count + 1;
}

/*
 * Number of live tickets that wait for a lock.  Stops counting at "enough", or
 * after max_rows rows, dead ones included.
 */
int
queue_length(const LockRow *lock, TimestampTz now, int enough, int max_rows)
{
	QueueWalk	walk;
	TicketRow	ticket;
	int			length = 0;

	if (!store_has_queues())
		return 0;
	walk = begin_walk(lock, now);
	while (length < enough && next_waiter(&walk, max_rows, &ticket))
		length++;
	end_walk(&walk);
	return length;
}

/* The depth of a lock's grant; 0 if nobody holds it. */
int
count_depth(const LockRow *lock, TimestampTz now)
{
	TicketRow  *shares = NULL;
	int			count = 0;

	if (!grant_is_live(lock, now))
		return 0;
	if (lock->tickets > 1)
		shares = store_load_shares(lock, &count);
	return grant_depth(lock, shares, count, now);
}
