/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Deadlock detection: does a wait close a cycle?
 *
 * An identity that waits for a lock is blocked by the lock's live holder and
 * by every live waiter ahead of it.  A wait is refused if it closes a cycle in
 * which it is the newest wait, so both searches follow only older waits.
 * Exactly one wait of a cycle is therefore refused, even if all were queued at
 * the same moment and did not see each other: each looks again later, and the
 * newest then finds the cycle.
 *
 * The searches lock nothing.  What they read may change meanwhile, but a cycle
 * of committed waits persists until one of them ends.
 *
 * There are two searches.  The backward search asks who waits for us, through
 * the locks that we hold (leaselock.blockers) or wait for; it ends at once for
 * an identity that nobody waits for, however long the queue is.  The forward
 * search asks whom we wait for.  They alternate with growing limits until one
 * of them is complete, so the cost is that of the cheaper search.  Each search
 * reads each place in a queue only once.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "utils/hsearch.h"

#include "core/deadlock.h"
#include "core/decide.h"
#include "core/queue.h"
#include "core/scope.h"
#include "store/clock.h"
#include "store/rows.h"
#include "store/tag.h"

/*
 * Number of identities that a search may reach before the other search gets
 * its turn.
 */
#define FIRST_LIMIT		64
#define LIMIT_FACTOR	4

/* An edge of the cycle: who waits for which lock behind whom. */
typedef struct WaitEdge
{
	LockKey		key;
	Identity	waiter;
	Identity	blocker;
} WaitEdge;

/* An identity that was reached, and the wait through which it was reached. */
typedef struct CycleNode
{
	Identity	who;			/* hash key */
	LockKey		key;			/* the lock of that wait */
	struct CycleNode *from;		/* its other end; NULL: the start */
} CycleNode;

/* How much of a lock's queue has been read. */
typedef struct ReadQueue
{
	LockKey		key;			/* hash key */
	int64		place;			/* forward: read up to here; backward: read
								 * after here */
} ReadQueue;

typedef struct Search
{
	const TicketRow *self;		/* the wait being examined */
	const LockRow *lock;		/* its lock */
	int64		place;			/* of the identity's first wait there */
	HTAB	   *reached;		/* CycleNode by identity */
	HTAB	   *queues;			/* ReadQueue by lock */
	List	   *nodes;			/* nodes in the order of reaching */
	int			limit;			/* maximum number of nodes */
	CycleNode  *found;			/* the node that closes the cycle */
} Search;

static uint32
hash_identity(const void *key, Size keysize)
{
	const Identity *who = (const Identity *) key;

	return hash_combine(who->role,
						hash_bytes((const unsigned char *) who->owner,
								   strlen(who->owner)));
}

static int
match_identity(const void *a, const void *b, Size keysize)
{
	return same_identity((const Identity *) a, (const Identity *) b) ? 0 : 1;
}

static uint32
hash_lock(const void *key, Size keysize)
{
	return (uint32) ((const LockKey *) key)->hash;
}

static int
match_lock(const void *a, const void *b, Size keysize)
{
	return compare_lock_keys((const LockKey *) a, (const LockKey *) b);
}

static void
begin_search(Search *search, const LockRow *lock, const TicketRow *self,
			 int limit)
{
	HASHCTL		control = {0};

	memset(search, 0, sizeof(Search));
	search->self = self;
	search->lock = lock;
	search->limit = limit;

	control.hcxt = CurrentMemoryContext;
	control.keysize = sizeof(Identity);
	control.entrysize = sizeof(CycleNode);
	control.hash = hash_identity;
	control.match = match_identity;
	search->reached = hash_create("leaselock cycle", FIRST_LIMIT, &control,
								  HASH_ELEM | HASH_FUNCTION | HASH_COMPARE |
								  HASH_CONTEXT);
	control.keysize = sizeof(LockKey);
	control.entrysize = sizeof(ReadQueue);
	control.hash = hash_lock;
	control.match = match_lock;
	search->queues = hash_create("leaselock queues", FIRST_LIMIT, &control,
								 HASH_ELEM | HASH_FUNCTION | HASH_COMPARE |
								 HASH_CONTEXT);
}

static void
end_search(Search *search)
{
	hash_destroy(search->reached);
	hash_destroy(search->queues);
}

/* Returns how much of a lock's queue has been read; initially "place". */
static ReadQueue *
get_read_queue(Search *search, const LockKey *key, int64 place)
{
	bool		known;
	ReadQueue  *queue = hash_search(search->queues, key, HASH_ENTER, &known);

	if (!known)
		queue->place = place;
	return queue;
}

/*
 * Whether a wait is older than the examined wait.  A wait that is not yet
 * stored is the newest, whatever the clocks of the two locks say.
 */
static bool
is_older(const Search *search, const TicketRow *wait)
{
	const TicketRow *self = search->self;

	if (!ItemPointerIsValid(&self->version.tid))
		return true;
	if (wait->requested_at != self->requested_at)
		return wait->requested_at < self->requested_at;
	return memcmp(&wait->ticket, &self->ticket, sizeof(pg_uuid_t)) < 0;
}

static bool
is_live_wait(const TicketRow *wait, const LockRow *lock)
{
	TicketRow	complete = *wait;
	TimestampTz now = clock_read(lock->changed_at);

	if (wait->state != LEASE_WAITING)
		return false;
	complete_waiter(&complete, now);
	return waiter_is_live(&complete, lock, now);
}

static bool
holder_blocks(const LockRow *lock, const Identity *waiter)
{
	return grant_is_live(lock, clock_read(lock->changed_at)) &&
		!same_identity(&lock->holder, waiter);
}

/*
 * Adds an identity reached through a wait for "key"; returns NULL if it had
 * been reached before.
 */
static CycleNode *
reach(Search *search, const Identity *who, const LockKey *key,
	  CycleNode *from)
{
	bool		known;
	CycleNode  *node = hash_search(search->reached, who, HASH_ENTER, &known);

	if (known)
		return NULL;
	node->key = *key;
	node->from = from;
	search->nodes = lappend(search->nodes, node);
	return node;
}

/* Whether the search has found a cycle or reached its limit. */
static bool
is_over(const Search *search)
{
	return search->found != NULL ||
		list_length(search->nodes) > search->limit;
}

static WaitEdge *
make_edge(const LockKey *key, const Identity *waiter, const Identity *blocker)
{
	WaitEdge   *edge = palloc(sizeof(WaitEdge));

	edge->key = *key;
	edge->waiter = *waiter;
	edge->blocker = *blocker;
	return edge;
}

/* ----------------------------------------------------------------------
 * Forward: whom do we wait for?
 * ----------------------------------------------------------------------
 */

static void
reach_blocker(Search *search, const Identity *who, const LockKey *key,
			  CycleNode *from)
{
	CycleNode  *node;

	if (same_identity(who, &search->self->who) && from != NULL)
	{
		node = palloc(sizeof(CycleNode));
		node->who = *who;
		node->key = *key;
		node->from = from;
		search->found = node;
		return;
	}
	(void) reach(search, who, key, from);
}

/* Reaches everybody who blocks a given wait of a node's identity. */
static void
follow_wait(Search *search, const TicketRow *wait, const LockRow *lock,
			CycleNode *from)
{
	ReadQueue  *queue = get_read_queue(search, &lock->key, lock->passed);
	TicketScan *scan;
	TicketRow	ahead;

	if (holder_blocks(lock, &wait->who))
		reach_blocker(search, &lock->holder, &lock->key, from);

	/* everybody ahead of a place that was read has been reached */
	if (queue->place >= wait->place)
		return;
	scan = store_open_queue(&lock->key, queue->place);
	while (!is_over(search) && store_next_ticket(scan, &ahead) &&
		   ahead.place < wait->place)
	{
		queue->place = ahead.place;
		if (!is_older(search, &ahead) || !is_live_wait(&ahead, lock))
			continue;
		/* all waits of an identity share the place of its first */
		if (same_identity(&ahead.who, &wait->who))
			break;
		reach_blocker(search, &ahead.who, &lock->key, from);
	}
	store_close_tickets(scan);
}

/* Reaches everybody who blocks any of the identity's older waits. */
static void
follow_identity(Search *search, CycleNode *node)
{
	ListCell   *cell;

	foreach(cell, store_list_waits(&node->who))
	{
		TicketRow  *wait = (TicketRow *) lfirst(cell);
		LockRow		lock;

		if (is_over(search))
			return;
		store_load_lock(&wait->key, &lock);
		if (is_older(search, wait) && is_live_wait(wait, &lock))
			follow_wait(search, wait, &lock, node);
	}
}

/*
 * Returns the cycle as a list of WaitEdge that starts with the wait being
 * examined.
 */
static List *
search_forward(Search *search)
{
	CycleNode  *self = reach(search, &search->self->who, &search->lock->key,
							 NULL);
	List	   *edges = NIL;

	follow_wait(search, search->self, search->lock, self);
	for (int i = 1; i < list_length(search->nodes) && !is_over(search); i++)
		follow_identity(search, (CycleNode *) list_nth(search->nodes, i));

	for (CycleNode *node = search->found; node && node->from; node = node->from)
		edges = lcons(make_edge(&node->key, &node->from->who, &node->who),
					  edges);
	return edges;
}

/* ----------------------------------------------------------------------
 * Backward: who waits for us?
 * ----------------------------------------------------------------------
 */

/* Whether an identity directly blocks the wait being examined. */
static bool
blocks_self(const Search *search, const Identity *who)
{
	ListCell   *cell;

	if (holder_blocks(search->lock, &search->self->who) &&
		same_identity(&search->lock->holder, who))
		return true;
	foreach(cell, store_list_waits(who))
	{
		TicketRow  *wait = (TicketRow *) lfirst(cell);

		if (compare_lock_keys(&wait->key, &search->lock->key) == 0 &&
			wait->place < search->place &&
			is_older(search, wait) && is_live_wait(wait, search->lock))
			return true;
	}
	return false;
}

/* Reaches the older live waiters of a lock after a given place. */
static void
follow_waiters(Search *search, const LockRow *lock, int64 after,
			   CycleNode *from)
{
	ReadQueue  *queue = get_read_queue(search, &lock->key, PG_INT64_MAX);
	int64		end = queue->place;
	TicketScan *scan;
	TicketRow	wait;

	after = Max(after, lock->passed);
	if (after >= end)
		return;
	queue->place = after;
	scan = store_open_queue(&lock->key, after);
	while (!is_over(search) && store_next_ticket(scan, &wait) &&
		   wait.place <= end)
	{
		CycleNode  *node;

		if (same_identity(&wait.who, &from->who) ||
			!is_older(search, &wait) || !is_live_wait(&wait, lock))
			continue;
		node = reach(search, &wait.who, &lock->key, from);
		if (node != NULL && blocks_self(search, &node->who))
			search->found = node;
	}
	store_close_tickets(scan);
}

/* Reaches everybody who waits for an identity, as a holder or as a waiter. */
static void
follow_blocked(Search *search, CycleNode *node)
{
	ListCell   *cell;
	LockRow		lock;

	foreach(cell, store_list_blocked(&node->who))
	{
		if (is_over(search))
			return;
		store_load_lock(&((Blocker *) lfirst(cell))->key, &lock);
		if (same_identity(&lock.holder, &node->who) &&
			grant_is_live(&lock, clock_read(lock.changed_at)))
			follow_waiters(search, &lock, 0, node);
	}
	foreach(cell, store_list_waits(&node->who))
	{
		TicketRow  *wait = (TicketRow *) lfirst(cell);

		if (is_over(search))
			return;
		/* waiters behind the wait being examined are newer */
		if (compare_lock_keys(&wait->key, &search->lock->key) == 0)
			continue;
		store_load_lock(&wait->key, &lock);
		if (is_older(search, wait) && is_live_wait(wait, &lock))
			follow_waiters(search, &lock, wait->place, node);
	}
}

/* The place of the identity in the queue of the wait being examined. */
static int64
first_place(const Search *search)
{
	int64		place = search->self->place;
	ListCell   *cell;

	foreach(cell, store_list_waits(&search->self->who))
	{
		TicketRow  *wait = (TicketRow *) lfirst(cell);

		if (compare_lock_keys(&wait->key, &search->lock->key) == 0 &&
			wait->place < place && is_live_wait(wait, search->lock))
			place = wait->place;
	}
	return place;
}

static List *
search_backward(Search *search)
{
	List	   *edges;

	search->place = first_place(search);
	(void) reach(search, &search->self->who, &search->lock->key, NULL);
	for (int i = 0; i < list_length(search->nodes) && !is_over(search); i++)
		follow_blocked(search, (CycleNode *) list_nth(search->nodes, i));
	if (search->found == NULL)
		return NIL;

	edges = list_make1(make_edge(&search->lock->key, &search->self->who,
								 &search->found->who));
	for (CycleNode *node = search->found; node->from; node = node->from)
		edges = lappend(edges,
						make_edge(&node->key, &node->who, &node->from->who));
	return edges;
}

/* ---------------------------------------------------------------------- */

/*
 * Returns the cycle that a wait closes as its newest wait, as a list of
 * WaitEdge that starts with that wait; NIL if there is none.  The ticket need
 * not be stored yet.
 */
List *
find_deadlock(const LockRow *lock, const TicketRow *self)
{
	for (int limit = FIRST_LIMIT;; limit *= LIMIT_FACTOR)
	{
		List	   *(*const searches[]) (Search *) = {
			search_backward, search_forward
		};

		for (int i = 0; i < (int) lengthof(searches); i++)
		{
			Search		search;
			List	   *edges;
			bool		complete;

			begin_search(&search, lock, self, limit);
			edges = searches[i] (&search);
			complete = !is_over(&search);
			end_search(&search);
			if (edges != NIL || complete)
				return edges;
		}
	}
}

/*
 * Raises a NOTICE that shows the caller which cycle its wait would have
 * closed, leaving out waits in scopes that it may not see.
 */
void
report_deadlock(const List *cycle)
{
	StringInfoData detail;
	ListCell   *cell;
	const LockKey *first = &((WaitEdge *) linitial(cycle))->key;

	initStringInfo(&detail);
	foreach(cell, cycle)
	{
		WaitEdge   *edge = (WaitEdge *) lfirst(cell);

		if (!may_see_scope(edge->key.scope))
			continue;
		if (detail.len > 0)
			appendStringInfoChar(&detail, '\n');
		appendStringInfo(&detail,
						 "Owner \"%s\" waits for lock \"%s\" in scope \"%s\" behind owner \"%s\".",
						 edge->waiter.owner, edge->key.name, edge->key.scope,
						 edge->blocker.owner);
	}
	ereport(NOTICE,
			(errmsg("waiting for lock \"%s\" in scope \"%s\" would cause a deadlock",
					first->name, first->scope),
			 errdetail_internal("%s", detail.data),
			 errhint("Release a lock that the others are waiting for, then try again.")));
}
