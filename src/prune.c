/*-------------------------------------------------------------------------
 *
 * prune.c
 *	  Removing ended tickets and idle locks: by and by, and on demand.
 *
 * A transaction that has added rows looks, just before it commits, at random
 * pages of each table and removes what is over for long enough.  So the tables
 * stay within a multiple of what is live or retained, without a background
 * process; and no transaction that stays open keeps a tag of a lock that it
 * has nothing to do with.  lease_prune does the same to all of them at once.
 *
 * One transaction at a time removes rows (prune tag).  A ticket that has been
 * ended by what is stored, or whose grant is not the lock's any more, is
 * written by nobody else.  For a dead waiter its ticket tag is needed, for a
 * lapsed ticket of the newest grant the name tag, for a lock the name and the
 * queue tag; all are only tried for.
 *
 * A lock's row carries its last fence, so it may go once the floor of fences
 * is at or above that.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "leaselock.h"

/* The most tags that lease_prune keeps until its transaction ends. */
#define MAX_PRUNE_TAGS	1000

/*
 * How many new rows make a session look at a page of each table for rows to
 * remove: more and more while it only meets pages of rows that are young.
 */
#define MIN_TIDY_INTERVAL	4
#define MAX_TIDY_INTERVAL	64

/* So many rows make a page one that costs something to look at. */
#define FULL_PAGE_ROWS		16

/* So many such pages in a row are no chance. */
#define MAX_VAIN_LOOKS		4

static int	tidy_interval = MIN_TIDY_INTERVAL;
static int	vain_looks = 0;

/* The most pages that it looks at before one commit. */
#define MAX_TIDY_PAGES	16

/* How many rows are read at once. */
#define BATCH			1000

typedef struct Prune
{
	TimestampTz before;			/* what was over by then may go */
	int64		removed;
	int64		max_removed;
	int			tags;			/* name, queue and ticket tags taken */
} Prune;

/* Rows that this session has added since it last looked for some to remove. */
static int	rows_added = 0;

/* Notes that a row was added to the tables. */
void
note_row_added(void)
{
	rows_added++;
}

static bool
is_full(const Prune *prune)
{
	return prune->removed >= prune->max_removed ||
		prune->tags >= MAX_PRUNE_TAGS;
}

/* Keeps the tags of a row that was removed, else gives them back. */
static void
settle_tags(Prune *prune, Call *call, bool removed)
{
	if (!removed)
	{
		give_back_tags(&call->tags);
		return;
	}
	prune->removed++;
	prune->tags += call->tags.count;
	keep_tags(&call->tags);
	note_lease_change(&call->lock.key);
}

/* ----------------------------------------------------------------------
 * Tickets
 * ----------------------------------------------------------------------
 */

/* Whether a ticket belongs to the newest grant of its lock. */
static bool
is_of_newest_grant(const LeaseTicket *ticket, const LeaseLock *lock)
{
	return ticket->fence == lock->fence &&
		same_identity(&ticket->who, &lock->holder);
}

/*
 * Removes a ticket that is held by what is stored, if it lapsed long ago.  Once
 * the lock's row shows another grant nobody writes the ticket any more, so it
 * is loaded anew after that.
 */
static bool
prune_held_ticket(Prune *prune, Call *call, LeaseTicket *ticket)
{
	if (ticket->expires_at >= prune->before)
		return false;
	store_load_lock(&ticket->key, &call->lock);
	if (is_of_newest_grant(ticket, &call->lock))
	{
		if (!try_name_tag(&call->tags, &ticket->key, NAME_CHANGE))
			return false;
		load_call(call, &ticket->key);
	}
	if (!store_load_request(&ticket->key, &ticket->request_id, ticket) ||
		ticket->state != LEASE_HELD || ticket->expires_at >= prune->before)
		return false;
	if (is_of_newest_grant(ticket, &call->lock))
	{
		call->lock.tickets--;
		store_save_lock(&call->lock);
	}
	store_delete_ticket(ticket);
	return true;
}

/* Removes a ticket that waits by what is stored, if its wait ran out. */
static bool
prune_waiting_ticket(Prune *prune, Call *call, LeaseTicket *ticket)
{
	if (ticket->wait_until >= prune->before ||
		!try_ticket_tag(&call->tags, &ticket->key, &ticket->request_id) ||
		!store_load_request(&ticket->key, &ticket->request_id, ticket) ||
		ticket->state != LEASE_WAITING || ticket->wait_until >= prune->before)
		return false;
	store_delete_ticket(ticket);
	return true;
}

static void
prune_ticket(Prune *prune, LeaseTicket *ticket)
{
	Call		call = {0};
	bool		removed = false;

	call.lock.key = ticket->key;
	if (ticket->state == LEASE_HELD)
		removed = prune_held_ticket(prune, &call, ticket);
	else if (ticket->state == LEASE_WAITING)
		removed = prune_waiting_ticket(prune, &call, ticket);
	else if (ticket->ended_at < prune->before)
	{
		store_delete_ticket(ticket);
		removed = true;
	}
	settle_tags(prune, &call, removed);
}

/* ----------------------------------------------------------------------
 * Locks
 * ----------------------------------------------------------------------
 */

/* Whether nobody has held or touched a lock since. */
static bool
is_idle(const LeaseLock *lock, TimestampTz before)
{
	return lock->changed_at < before && lock->expires_at < before &&
		lock->hold_expires_at < before;
}

/* Whether a ticket stands in the lock's queue by what is stored, dead or not. */
static bool
has_queue(const LeaseLock *lock)
{
	TicketScan *scan = store_open_queue(&lock->key, 0);
	LeaseTicket ticket;
	bool		found = store_next_ticket(scan, &ticket);

	store_close_tickets(scan);
	return found;
}

/* Puts the floor at or above a fence; false if somebody else is at it. */
static bool
cover_fence(int64 fence)
{
	FenceFloor	floor = store_load_floor();
	FenceFloor	cover = {fence, fence_reading()};

	if (fence <= floor.fence)
		return true;
	if (!try_floor_tag())
		return false;
	raise_floor(&floor, cover);
	store_save_floor(&floor);
	return true;
}

static void
prune_lock(Prune *prune, LeaseLock *lock)
{
	Call		call = {0};
	bool		removed = false;

	if (!is_idle(lock, prune->before))
		return;
	call.lock.key = lock->key;
	if (try_name_tag(&call.tags, &lock->key, NAME_CHANGE) &&
		try_queue_tag(&call.tags, &lock->key))
	{
		load_call(&call, &lock->key);
		if (ItemPointerIsValid(&call.lock.tid) &&
			is_idle(&call.lock, prune->before) && !has_queue(&call.lock) &&
			cover_fence(call.lock.fence))
		{
			store_delete_lock(&call.lock);
			removed = true;
		}
	}
	settle_tags(prune, &call, removed);
}

/* ----------------------------------------------------------------------
 * On demand
 * ----------------------------------------------------------------------
 */

static void
prune_tickets(Prune *prune)
{
	List	   *tickets = NIL;
	ListCell   *cell;

	do
	{
		tickets = store_next_tickets(tickets ? llast(tickets) : NULL, BATCH);
		foreach(cell, tickets)
		{
			if (is_full(prune))
				return;
			prune_ticket(prune, (LeaseTicket *) lfirst(cell));
		}
	} while (list_length(tickets) == BATCH);
}

static void
prune_locks(Prune *prune)
{
	List	   *locks = NIL;
	ListCell   *cell;

	do
	{
		locks = store_next_locks(locks ? &((LeaseLock *) llast(locks))->key :
								 NULL, BATCH);
		foreach(cell, locks)
		{
			if (is_full(prune))
				return;
			prune_lock(prune, (LeaseLock *) lfirst(cell));
		}
	} while (list_length(locks) == BATCH);
}

/* Removes hints of blockers that do not hold their lock any more. */
static void
prune_blockers(Prune *prune)
{
	ListCell   *cell;

	foreach(cell, store_list_blockers(BATCH))
	{
		Blocker    *blocker = (Blocker *) lfirst(cell);
		Call		call = {0};
		bool		removed = false;

		if (is_full(prune))
			return;
		call.lock.key = blocker->key;
		if (try_name_tag(&call.tags, &blocker->key, NAME_CHANGE))
		{
			load_call(&call, &blocker->key);
			removed = !same_identity(&call.lock.holder, &blocker->who);
			if (removed)
				store_forget_blocker(&blocker->who, &blocker->key);
		}
		settle_tags(prune, &call, removed);
	}
}

/*
 * Removes what was over "older_us" ago, tickets not before their retention has
 * passed; at most max_rows rows.  Returns how many.  None if another session
 * is at it.
 */
int64
lease_prune(int64 older_us, int64 max_rows)
{
	TimestampTz now = clock_read(NO_TIME);
	int64		retained_us = leaselock_ticket_retention * USECS_PER_SEC;
	Prune		prune = {0};

	if (!try_prune_tag())
		return 0;
	prune.max_removed = max_rows;
	prune.before = now - Max(older_us, retained_us);
	prune_tickets(&prune);
	prune.before = now - older_us;
	prune_locks(&prune);
	prune_blockers(&prune);
	return prune.removed;
}

/* ----------------------------------------------------------------------
 * By and by
 * ----------------------------------------------------------------------
 */

/*
 * How many pages are due for the rows that were added.  What is left of a page
 * is a matter of chance, so that a session that adds but one row does its
 * share, too.
 */
static int
count_due_pages(void)
{
	int			pages = rows_added / tidy_interval;

	if (pg_prng_uint64_range(&pg_global_prng_state, 1, tidy_interval) <=
		(uint64) (rows_added % tidy_interval))
		pages++;
	return Min(pages, MAX_TIDY_PAGES);
}

/* Notes whether a look was in vain, and what it cost was, too. */
static void
adapt_interval(bool in_vain)
{
	if (!in_vain)
	{
		tidy_interval = MIN_TIDY_INTERVAL;
		vain_looks = 0;
	}
	else if (++vain_looks > MAX_VAIN_LOOKS)
		tidy_interval = Min(tidy_interval * 2, MAX_TIDY_INTERVAL);
}

/*
 * Looks at random pages of each table, if the session has added rows.  If
 * another session is at it, they stay due.  To be called just before a commit,
 * so that what it takes is free at once.
 */
void
tidy_before_commit(void)
{
	Prune		prune = {0};
	int			pages = count_due_pages();
	ListCell   *cell;

	if (pages == 0 || !try_prune_tag())
		return;
	rows_added = Max(rows_added - pages * tidy_interval, 0);
	prune.before = clock_read(NO_TIME) -
		leaselock_ticket_retention * USECS_PER_SEC;
	prune.max_removed = PG_INT64_MAX;
	while (pages-- > 0)
	{
		int			seen = 0;

		foreach(cell, store_sample_tickets(prune.before, &seen))
			prune_ticket(&prune, (LeaseTicket *) lfirst(cell));
		foreach(cell, store_sample_locks(prune.before, &seen))
			prune_lock(&prune, (LeaseLock *) lfirst(cell));
		adapt_interval(prune.removed == 0 && seen >= FULL_PAGE_ROWS);
	}
	if (pg_prng_uint64_range(&pg_global_prng_state, 1, BATCH) == 1)
		prune_blockers(&prune);
}
