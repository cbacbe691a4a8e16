/*-------------------------------------------------------------------------
 *
 * prune.c
 *	  Removal of ended tickets, idle locks and old events: incrementally, and
 *	  on demand.
 *
 * A transaction that has added rows looks, just before it commits, at random
 * pages of each table, and removes rows whose retention time has passed.  The
 * tables therefore stay within a multiple of what is live or retained, without
 * a background process.  lease_prune() does the same for all rows at once.
 *
 * What the removal of a row requires is a rule (decide.c).  Tags are only
 * tried for.  A transaction must not hold tags that others may need while it
 * waits.  Therefore, if the commit is going to wait (for a lock to verify a
 * fence, or for a standby), it removes only rows whose removal needs no tag,
 * and leaves the rest to later commits.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "core/changes.h"
#include "core/decide.h"
#include "core/protocol.h"
#include "core/prune.h"
#include "core/record.h"
#include "leaselock.h"
#include "store/clock.h"
#include "store/rows.h"

/* The most tags that lease_prune() holds until its transaction ends. */
#define MAX_PRUNE_TAGS	1000

/*
 * Number of rows that a session adds per page of each table that it then looks
 * at.  The number grows as long as the session finds only pages full of young
 * rows.
 */
#define MIN_PRUNE_INTERVAL	2
#define MAX_PRUNE_INTERVAL	64

/* Pages with at least this many rows count as expensive to visit. */
#define FULL_PAGE_ROWS		16

/* This many expensive visits in a row without a find are no coincidence. */
#define MAX_FUTILE_VISITS		4

/* The most pages that a session looks at before one commit. */
#define MAX_PAGES_PER_COMMIT	16

/* Number of rows to read at once. */
#define BATCH			1000

/*
 * The age of an event is the time since it was recorded.  The keys are nearly
 * in the order of recording, so lease_prune() stops after this many young
 * events.
 */
#define MAX_YOUNG_EVENTS	1000

/* When this session next prunes pages of a table, incrementally. */
typedef struct PruneSchedule
{
	int			interval;
	int			futile_visits;
	int			pages_due;		/* to be visited because of added rows */
} PruneSchedule;

static PruneSchedule lease_schedule = {MIN_PRUNE_INTERVAL, 0, 0};
static PruneSchedule event_schedule = {MIN_PRUNE_INTERVAL, 0, 0};

typedef struct Prune
{
	TimestampTz before;			/* remove what ended before this */
	int64		removed;
	int64		max_removed;
	int			tags;			/* number of tags held */
	bool		without_tags;	/* remove only rows that need none */
	bool		quiet;			/* a full lock table is no error */
} Prune;

static bool
is_full(const Prune *prune)
{
	return prune->removed >= prune->max_removed ||
		prune->tags >= MAX_PRUNE_TAGS;
}

static void
prune_row(Prune *prune, EventKind kind, const LockKey *key,
		  const TicketRow *ticket)
{
	LeaseEvent	event = {0};
	Outcome		outcome;

	event.kind = kind;
	event.key = *key;
	event.before = prune->before;
	carry_out_with(&event, ticket, prune->without_tags ? ANY_TAG : 0,
				   prune->quiet, &prune->tags, &outcome);
	if (outcome.yes)
		prune->removed++;
}

static void
prune_ticket(Prune *prune, const TicketRow *ticket)
{
	prune_row(prune, EVENT_PRUNE_TICKET, &ticket->key, ticket);
}

static void
prune_lock(Prune *prune, const LockRow *lock)
{
	prune_row(prune, EVENT_PRUNE_LOCK, &lock->key, NULL);
}

/* ----------------------------------------------------------------------
 * On demand
 * ----------------------------------------------------------------------
 */

static void
prune_tickets(Prune *prune)
{
	MemoryContext old_context = CurrentMemoryContext;
	TicketScan *scan = store_open_tickets();
	MemoryContext context = AllocSetContextCreate(old_context,
												  "leaselock prune",
												  ALLOCSET_DEFAULT_SIZES);
	TicketRow	ticket;

	MemoryContextSwitchTo(context);
	while (!is_full(prune) && store_next_ticket(scan, &ticket))
	{
		prune_ticket(prune, &ticket);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(context);
	store_close_tickets(scan);
}

static void
prune_locks(Prune *prune)
{
	List	   *locks = NIL;
	ListCell   *cell;

	do
	{
		locks = store_next_locks(locks ? &((LockRow *) llast(locks))->key :
								 NULL, BATCH);
		foreach(cell, locks)
		{
			if (is_full(prune))
				return;
			prune_lock(prune, (LockRow *) lfirst(cell));
		}
	} while (list_length(locks) == BATCH);
}

/*
 * Removes hints of blockers that no longer hold their lock.  The name tag
 * prevents others from removing the same row.
 */
static void
prune_blockers(Prune *prune)
{
	ListCell   *cell;

	foreach(cell, store_list_blockers(BATCH))
	{
		Blocker    *blocker = (Blocker *) lfirst(cell);
		Tag			tag = name_tag(&blocker->key);
		TagSet		tags = {.quiet = prune->quiet};
		LockRow		lock;

		if (is_full(prune))
			return;
		if (!try_tag(&tags, &tag, ExclusiveLock))
			continue;
		store_load_lock(&blocker->key, &lock);
		if (same_identity(&lock.holder, &blocker->who))
		{
			give_back_tags(&tags);
			continue;
		}
		store_forget_blocker(&blocker->who, &blocker->key);
		note_lease_change();
		prune->removed++;
		prune->tags += tags.count;
		keep_tags(&tags);
	}
}

/*
 * If there are no queues, records that, so that no session looks for waiters.
 * A session that queues a ticket meanwhile records the opposite again.
 */
static void
prune_queues(Prune *prune)
{
	Tag			tag = queues_tag();
	TagSet		tags = {.quiet = prune->quiet};
	List	   *rows;
	TicketScan *scan;
	TicketRow	ticket;
	bool		found;

	if (!store_has_queues() || !try_tag(&tags, &tag, ExclusiveLock))
		return;
	rows = store_list_queues();
	scan = store_open_queues(NULL);
	found = store_next_ticket(scan, &ticket);
	store_close_tickets(scan);
	if (found)
	{
		give_back_tags(&tags);
		return;
	}
	store_forget_queues(rows);
	note_lease_change();
	prune->tags += tags.count;
	keep_tags(&tags);
}

static void
prune_event(Prune *prune, RowVersion *version)
{
	if (!store_try_delete_event(version))
		return;
	note_lease_change();
	prune->removed++;
}

static void
prune_events(Prune *prune)
{
	MemoryContext old_context = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(old_context,
												  "leaselock prune",
												  ALLOCSET_DEFAULT_SIZES);
	EventCursor first = {0};
	EventScan  *scan = store_open_events(&first, InvalidFullTransactionId);
	int			young = 0;
	EventRow	row;

	MemoryContextSwitchTo(context);
	while (prune->removed < prune->max_removed && young < MAX_YOUNG_EVENTS &&
		   store_next_event(scan, &row))
	{
		if (row.recorded_at < prune->before)
			prune_event(prune, &row.version);
		else
			young++;
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(context);
	store_close_events(scan);
}

/*
 * Removes at most max_rows rows that ended at least "older_us" ago; tickets
 * and events also only after their retention time.  Returns the number of rows
 * removed.  If a crash loses the removal, the rows are removed again later, so
 * the commit need not wait for the disk or a standby while it holds tags that
 * others may need.
 */
int64
lease_prune(int64 older_us, int64 max_rows)
{
	TimestampTz now = clock_read(NO_TIME);
	int64		retained_us = leaselock_ticket_retention * USECS_PER_SEC;
	int64		events_us = leaselock_event_retention * USECS_PER_SEC;
	Prune		prune = {0};

	begin_losable_write();
	prune.max_removed = max_rows;
	prune.before = now - Max(older_us, retained_us);
	prune_tickets(&prune);
	prune.before = now - older_us;
	prune_locks(&prune);
	prune_blockers(&prune);
	prune_queues(&prune);
	if (prune.removed > 0)
		record_operation(CHANGE_PRUNED, NULL, 0);
	prune.before = now - Max(older_us, events_us);
	prune_events(&prune);
	end_losable_write();
	return prune.removed;
}

/* ----------------------------------------------------------------------
 * Incremental pruning
 * ----------------------------------------------------------------------
 */

/*
 * Counts the pages to be visited because of added rows.  A fraction of a page
 * counts as a page with the corresponding probability, so that a session that
 * adds only one row does its share too.
 */
static void
count_due_pages(PruneSchedule *schedule, int added)
{
	int			rest;

	if (added == 0)
		return;
	rest = added % schedule->interval;
	schedule->pages_due += added / schedule->interval;
	if (rest > 0 &&
		pg_prng_uint64_range(&pg_global_prng_state, 1, schedule->interval) <=
		(uint64) rest)
		schedule->pages_due++;
}

/* Takes up to MAX_PAGES_PER_COMMIT due pages; returns their number. */
static int
take_due_pages(PruneSchedule *schedule)
{
	int			pages = Min(schedule->pages_due, MAX_PAGES_PER_COMMIT);

	schedule->pages_due -= pages;
	return pages;
}

/*
 * Adapts the interval to whether an expensive visit found anything to remove.
 */
static void
adapt_interval(PruneSchedule *schedule, int64 removed, int seen)
{
	if (removed > 0 || seen < FULL_PAGE_ROWS)
	{
		schedule->interval = MIN_PRUNE_INTERVAL;
		schedule->futile_visits = 0;
	}
	else if (++schedule->futile_visits > MAX_FUTILE_VISITS)
		schedule->interval = Min(schedule->interval * 2, MAX_PRUNE_INTERVAL);
}

/* Visits a random page of tickets, and one of locks. */
static void
visit_lease_pages(Prune *prune)
{
	int64		removed = prune->removed;
	int			seen = 0;
	ListCell   *cell;

	foreach(cell, store_sample_tickets(prune->before, &seen))
		prune_ticket(prune, (TicketRow *) lfirst(cell));
	if (!prune->without_tags)
	{
		foreach(cell, store_sample_locks(prune->before, &seen))
			prune_lock(prune, (LockRow *) lfirst(cell));
	}
	adapt_interval(&lease_schedule, prune->removed - removed, seen);
}

/* Visits a random page of events. */
static void
visit_event_page(Prune *prune)
{
	int64		removed = prune->removed;
	int			seen = 0;
	ListCell   *cell;

	foreach(cell, store_sample_events(prune->before, &seen))
		prune_event(prune, (RowVersion *) lfirst(cell));
	adapt_interval(&event_schedule, prune->removed - removed, seen);
}

static void
begin_visits(Prune *prune, int retention_s)
{
	prune->before = clock_read(NO_TIME) - retention_s * USECS_PER_SEC;
	prune->max_removed = PG_INT64_MAX;
	prune->quiet = true;
}

static void
prune_lease_pages(int pages, bool will_wait)
{
	Prune		prune = {0};

	begin_visits(&prune, leaselock_ticket_retention);
	prune.without_tags = will_wait;
	for (int i = 0; i < pages; i++)
		visit_lease_pages(&prune);
	if (!will_wait &&
		pg_prng_uint64_range(&pg_global_prng_state, 1, BATCH) == 1)
	{
		prune_blockers(&prune);
		prune_queues(&prune);
	}
}

static void
prune_event_pages(int pages)
{
	Prune		prune = {0};

	begin_visits(&prune, leaselock_event_retention);
	for (int i = 0; i < pages; i++)
		visit_event_page(&prune);
}

/*
 * Prunes random pages of each table if the session has added rows.  Called
 * just before a commit; will_wait says that the commit may have to wait.  If
 * events are no longer recorded, old events are removed along with tickets.
 */
void
prune_before_commit(bool will_wait)
{
	int			pages;
	int			event_pages;

	count_due_pages(&lease_schedule, take_rows_added());
	count_due_pages(&event_schedule, take_events_added());
	pages = take_due_pages(&lease_schedule);
	if (leaselock_events == EVENTS_OFF)
		event_schedule.pages_due += pages;
	event_pages = take_due_pages(&event_schedule);
	/* this transaction may have dropped the extension */
	if (pages + event_pages == 0 || !store_is_installed())
		return;
	store_begin_call(true);
	if (pages > 0)
		prune_lease_pages(pages, will_wait);
	if (event_pages > 0 && !store_is_empty(REL_EVENTS))
		prune_event_pages(event_pages);
}
