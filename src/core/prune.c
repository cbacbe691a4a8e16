/*-------------------------------------------------------------------------
 *
 * prune.c
 *	  Removing ended tickets and idle locks: by and by, and on demand.
 *
 * A transaction that has added rows looks, just before it commits, at random
 * pages of each table and removes what is over for long enough.  So the tables
 * stay within a multiple of what is live or retained, without a background
 * process.  lease_prune does the same to all of them at once.
 *
 * A ticket that has been ended by what is stored, or whose grant is not the
 * lock's any more, is written by nobody else; to remove it no tag is needed.
 * For a dead waiter its ticket tag is needed, for a lapsed ticket of the newest
 * grant the name tag, for a lock the name and the queue tag, and the floor tag
 * if its fence is above the floor; all are only tried for.
 *
 * What others may need is not kept while a transaction waits for anything.
 * Before a commit that is going to wait, for a lock to verify a fence or for a
 * standby, only that is removed which needs no tag; the rest stays due.
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
#define MIN_TIDY_INTERVAL	2
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
	bool		without_tags;	/* remove only what needs none */
	bool		quiet;			/* a full lock table is no error */
} Prune;

/* Rows that this session has added since its last commit. */
static int	rows_added = 0;

/* Pages that it still has to look at for those that it added before. */
static int	pages_due = 0;

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

/* What a row to be removed needs; the lock is known by its key only. */
static Call
begin_removal(const Prune *prune, const LockKey *key)
{
	Call		call = {0};

	call.tags.quiet = prune->quiet;
	call.lock.key = *key;
	return call;
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
		if (prune->without_tags ||
			!try_name_tag(&call->tags, &ticket->key, NAME_CHANGE))
			return false;
		load_call(call, &ticket->key);
	}
	if (!store_load_request(&ticket->key, &ticket->request_id, ticket) ||
		ticket->state != LEASE_HELD || ticket->expires_at >= prune->before)
		return false;
	if (!is_of_newest_grant(ticket, &call->lock))
		return store_try_delete_ticket(ticket);
	call->lock.tickets--;
	store_save_lock(&call->lock);
	store_delete_ticket(ticket);
	return true;
}

/* Removes a ticket that waits by what is stored, if its wait ran out. */
static bool
prune_waiting_ticket(Prune *prune, Call *call, LeaseTicket *ticket)
{
	if (ticket->wait_until >= prune->before || prune->without_tags ||
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
	Call		call = begin_removal(prune, &ticket->key);
	bool		removed = false;

	if (ticket->state == LEASE_HELD)
		removed = prune_held_ticket(prune, &call, ticket);
	else if (ticket->state == LEASE_WAITING)
		removed = prune_waiting_ticket(prune, &call, ticket);
	else if (ticket->ended_at < prune->before)
		removed = store_try_delete_ticket(ticket);
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
cover_fence(Call *call, int64 fence)
{
	FenceFloor	floor = store_load_floor();
	FenceFloor	cover = {fence, fence_reading()};

	if (fence <= floor.fence)
		return true;
	if (!try_floor_tag(&call->tags))
		return false;
	floor = store_load_floor();
	raise_floor(&floor, cover);
	store_save_floor(&floor);
	return true;
}

static void
prune_lock(Prune *prune, LeaseLock *lock)
{
	Call		call = begin_removal(prune, &lock->key);
	bool		removed = false;

	if (!is_idle(lock, prune->before) || prune->without_tags)
		return;
	if (try_name_tag(&call.tags, &lock->key, NAME_CHANGE) &&
		try_queue_tag(&call.tags, &lock->key))
	{
		load_call(&call, &lock->key);
		if (ItemPointerIsValid(&call.lock.tid) &&
			is_idle(&call.lock, prune->before) && !has_queue(&call.lock) &&
			cover_fence(&call, call.lock.fence))
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
		Call		call = begin_removal(prune, &blocker->key);
		bool		removed = false;

		if (is_full(prune))
			return;
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
 * passed; at most max_rows rows.  Returns how many.
 */
int64
lease_prune(int64 older_us, int64 max_rows)
{
	TimestampTz now = clock_read(NO_TIME);
	int64		retained_us = leaselock_ticket_retention * USECS_PER_SEC;
	Prune		prune = {0};

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
 * Counts the pages that are due for the rows that were added.  What is left of
 * a page is a matter of chance, so that a session that adds but one row does
 * its share, too; each row has its chance once.
 */
static void
count_due_pages(void)
{
	int			rest = rows_added % tidy_interval;

	pages_due += rows_added / tidy_interval;
	if (rest > 0 &&
		pg_prng_uint64_range(&pg_global_prng_state, 1, tidy_interval) <=
		(uint64) rest)
		pages_due++;
	rows_added = 0;
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

/* Looks at a random page of each table. */
static void
tidy_page(Prune *prune)
{
	int64		removed = prune->removed;
	int			seen = 0;
	ListCell   *cell;

	foreach(cell, store_sample_tickets(prune->before, &seen))
		prune_ticket(prune, (LeaseTicket *) lfirst(cell));
	if (!prune->without_tags)
	{
		foreach(cell, store_sample_locks(prune->before, &seen))
			prune_lock(prune, (LeaseLock *) lfirst(cell));
	}
	adapt_interval(prune->removed == removed && seen >= FULL_PAGE_ROWS);
}

/*
 * Looks at random pages of each table, if the session has added rows.  To be
 * called just before a commit; will_wait tells that the commit may take its
 * time.
 */
void
tidy_before_commit(bool will_wait)
{
	Prune		prune = {0};
	int			pages;

	count_due_pages();
	pages = Min(pages_due, MAX_TIDY_PAGES);
	/* the transaction may have dropped the extension */
	if (pages == 0 || !store_is_installed())
		return;
	store_begin_call(true);
	pages_due -= pages;
	prune.before = clock_read(NO_TIME) -
		leaselock_ticket_retention * USECS_PER_SEC;
	prune.max_removed = PG_INT64_MAX;
	prune.without_tags = will_wait;
	prune.quiet = true;
	while (pages-- > 0)
		tidy_page(&prune);
	if (!will_wait &&
		pg_prng_uint64_range(&pg_global_prng_state, 1, BATCH) == 1)
		prune_blockers(&prune);
}
