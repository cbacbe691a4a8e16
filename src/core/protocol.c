/*-------------------------------------------------------------------------
 *
 * protocol.c
 *	  The locking protocol: carries out what the rules decide, in one loop.
 *
 * This is the only file that acquires and releases tags for an event, writes
 * its rows, forces a sync and decides whom to wake.  Every event takes the
 * same course:
 *
 *	1. Read the rows that it is about, and ask the rules.
 *	2. Read what else the rules want to know, and ask again.
 *	3. Acquire the tags that the rules need.  Read the rows again if they are
 *	   no longer the versions that were seen, and ask again: from now on
 *	   nobody else can change them.
 *	4. Write the plan, or release the tags if it writes nothing.
 *
 * A tag that cannot be acquired is marked as busy, and the rules decide what
 * can be done without it.  We wait in line for a tag only where the plan says
 * so.
 *
 * The rows that this session wrote last need not be read in step 1.  Recalled
 * from memory, they determine which tags to try for, and once these are held
 * they are compared with the table like other rows.  No answer is given from
 * recalled rows, and nobody waits in line because of them.
 *
 * A decision made without a tag may be outdated the next moment, so nothing is
 * written from it.  A decision made under the tags is written under them, and
 * they are then held until the transaction ends.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"

#include "core/changes.h"
#include "core/deadlock.h"
#include "core/decide.h"
#include "core/fence.h"
#include "core/protocol.h"
#include "core/queue.h"
#include "core/record.h"
#include "core/scope.h"
#include "leaselock.h"
#include "store/clock.h"
#include "store/recent.h"
#include "store/rows.h"
#include "store/table.h"

/* An event in progress. */
typedef struct Call
{
	LeaseEvent *event;
	LeaseView	view;
	TimestampTz now;
	TagSet		tags;			/* acquired by this call */
	pg_uuid_t	head_tagged;	/* the ticket whose tag TAG_HEAD is */
	List	   *cycle;			/* the cycle that the wait closes */
} Call;

/* The lock mode for each mode of the name tag. */
static const LOCKMODE name_modes[] = {
	[NAME_NONE] = NoLock,
	[NAME_VERIFY] = RowShareLock,
	[NAME_EXTEND] = ShareUpdateExclusiveLock,
	[NAME_CHANGE] = ExclusiveLock
};

/* ----------------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------------
 */

/* Loads the ticket again.  It may have been pruned meanwhile. */
static void
reload_ticket(LeaseView *view)
{
	forget_ticket(&view->ticket.ticket);
	if (!store_reload_ticket(&view->ticket))
	{
		view->ticket.state = LEASE_GONE;
		view->ticket.recalled = false;
	}
}

/* Whether the view contains recalled rows that have not been compared yet. */
static bool
is_recalled(const LeaseView *view)
{
	return view->lock.recalled ||
		(view->has_ticket && view->ticket.recalled);
}

/*
 * Whether an event usually changes the lock.  It then tries for the tags
 * first, and its rows may be recalled.
 */
static bool
may_recall(const LeaseEvent *event)
{
	switch (event->kind)
	{
		case EVENT_ACQUIRE:
		case EVENT_RENEW:
		case EVENT_RELEASE:
		case EVENT_TRY_LOCK:
		case EVENT_RENEW_LOCK:
		case EVENT_RELEASE_LOCK:
			return true;
		default:
			return false;
	}
}

/* Loads the ticket with the event's request id, if there is one. */
static void
load_request(Call *call)
{
	const LeaseEvent *event = call->event;

	if (event->kind == EVENT_ACQUIRE && event->has_request_id)
		call->view.has_ticket = store_load_request(&event->key,
												   &event->request_id,
												   &call->view.ticket);
}

/*
 * Reads the clock, and forgets the parts that were read before.  If the
 * database has no queues, the absence of a head is known without a search.
 */
static void
reset_view(Call *call)
{
	LeaseView  *view = &call->view;

	call->now = clock_read(view->lock.changed_at);
	view->known = 0;
	view->share_count = 0;
	if (!store_has_queues())
	{
		view->known = PART_HEAD;
		view->has_head = false;
		view->dead_waiters = 0;
	}
	if (view->has_ticket)
		complete_waiter(&view->ticket, call->now);
	if (call->event->kind == EVENT_BREAK_UNAUTHORIZED)
		view->holder_allowed = may_use_scope(view->lock.key.scope,
											 view->lock.holder.role);
}

/*
 * Reads the rows without any tag, or recalls them.  The lock is read after the
 * ticket.  If the lock no longer shows the ticket's grant, the transaction
 * that ended the grant has therefore committed, and reading the ticket again
 * finds what it wrote.
 */
static void
read_rows(Call *call, bool recalls)
{
	LeaseView  *view = &call->view;

	/* a ticket that was passed has only just been loaded */
	if (!view->has_ticket)
		load_request(call);
	else if (view->ticket.recalled && !recalls)
		reload_ticket(view);
	if (!recalls || !recall_lock(&call->event->key, &view->lock))
		store_load_lock(&call->event->key, &view->lock);
	reset_view(call);
	if (view->has_ticket &&
		ticket_state(&view->ticket, &view->lock, call->now) !=
		view->ticket.state)
	{
		reload_ticket(view);
		complete_waiter(&view->ticket, call->now);
	}
}

/*
 * Reads the lock's row again; returns true if it is still the version that was
 * seen.
 */
static bool
refresh_lock(Call *call)
{
	LeaseView  *view = &call->view;
	bool		had_row = ItemPointerIsValid(&view->lock.version.tid);

	if (had_row && store_is_current(REL_LOCKS, &view->lock.version))
	{
		view->lock.recalled = false;
		return true;
	}
	forget_lock(&call->event->key);
	store_load_lock(&call->event->key, &view->lock);
	return !had_row && !ItemPointerIsValid(&view->lock.version.tid);
}

/*
 * Reads the rows again under tags that were just acquired.  A newcomer need
 * not read the queue again if it was empty and the lock's row has not changed:
 * whoever has queued since did so after this call began, and is not overtaken.
 */
static void
refresh_rows(Call *call)
{
	LeaseView  *view = &call->view;
	EventKind	kind = call->event->kind;
	bool		same_lock;
	bool		keeps_head;

	if (!view->has_ticket)
		load_request(call);
	else if (!store_is_current(REL_TICKETS, &view->ticket.version))
		reload_ticket(view);
	view->ticket.recalled = false;
	same_lock = refresh_lock(call);
	keeps_head = same_lock && (view->known & PART_HEAD) && !view->has_head &&
		(kind == EVENT_ACQUIRE || kind == EVENT_TRY_LOCK);
	reset_view(call);
	if (keeps_head)
		view->known |= PART_HEAD;
}

static void
read_head(Call *call)
{
	LeaseView  *view = &call->view;
	QueueHead	head;

	find_head(&view->lock, NULL, call->now, &head);
	view->has_head = head.exists;
	view->head = head.ticket;
	view->dead_waiters = head.dead_count;
	view->dead_place = head.dead_place;
	if ((view->tags & TAG_HEAD) &&
		(!head.exists || memcmp(&call->head_tagged, &head.ticket.ticket,
								sizeof(pg_uuid_t)) != 0))
	{
		/* the tag is that of a former head: do without a promotion */
		view->tags &= ~TAG_HEAD;
		view->busy |= TAG_HEAD;
	}
}

static void
read_other_waiter(Call *call)
{
	QueueHead	head;

	find_head(&call->view.lock, &call->view.lock.holder, call->now, &head);
	call->view.has_other_waiter = head.exists;
}

/*
 * Determines the next place in the queue.  The queue tag prevents others from
 * assigning places, but not a promotion, which removes a ticket from the queue
 * and raises the passed mark.  Because the mark is read after the last place,
 * it covers that place if its ticket has been promoted meanwhile.  Dead
 * waiters have places too, so waiters are counted only when the difference
 * between place and mark reaches the limit.
 */
static void
read_place(Call *call)
{
	LeaseView  *view = &call->view;
	int64		last = store_last_place(&call->event->key);

	if (!refresh_lock(call))
		reset_view(call);
	last = Max(last, view->lock.passed);
	view->next_place = last + 1;
	view->queue_is_full = last - view->lock.passed >= leaselock_max_waiters &&
		queue_length(&view->lock, call->now, leaselock_max_waiters, INT_MAX) >=
		leaselock_max_waiters;
}

/* Reads the parts that the rules asked for. */
static void
read_parts(Call *call, const LeasePlan *plan)
{
	LeaseView  *view = &call->view;

	if (plan->asks & PART_HEAD)
		read_head(call);
	if (plan->asks & PART_OTHER_WAITER)
		read_other_waiter(call);
	if (plan->asks & PART_SHARES)
		view->shares = store_load_shares(&view->lock, &view->share_count);
	if (plan->asks & PART_FENCE)
		view->next_fence = store_next_fence(view->lock.fence);
	if (plan->asks & PART_PLACE)
		read_place(call);
	if (plan->asks & PART_CYCLE)
		call->cycle = find_deadlock(&view->lock, view->has_ticket ?
									&view->ticket : &plan->ticket);
	view->closes_cycle = call->cycle != NIL;
	if (plan->asks & PART_QUEUED)
		view->is_queued = has_queue(&call->event->key);
	if (plan->asks & PART_FLOOR)
		view->floor_fence = store_load_floor();
	view->known |= plan->asks;
}

/* ----------------------------------------------------------------------
 * Tags
 * ----------------------------------------------------------------------
 */

static void
give_back(Call *call)
{
	give_back_tags(&call->tags);
	call->view.name = NAME_NONE;
	call->view.tags = 0;
}

/* The tag of the event's ticket, which need not have a row yet. */
static Tag
own_ticket_tag(const Call *call)
{
	const LeaseEvent *event = call->event;

	if (call->view.has_ticket)
		return ticket_tag(&event->key, tag_id(&call->view.ticket));
	return ticket_tag(&event->key, event->has_request_id ?
					  &event->request_id : &event->ticket);
}

static Tag
get_tag(const Call *call, unsigned bit, LOCKMODE *mode)
{
	const LockKey *key = &call->event->key;

	*mode = ExclusiveLock;
	switch (bit)
	{
		case TAG_QUEUE:
			return queue_tag(key);
		case TAG_TICKET:
			return own_ticket_tag(call);
		case TAG_SCOPE:
			*mode = RowShareLock;
			return scope_tag(key->scope);
		case TAG_HEAD:
			return ticket_tag(key, tag_id(&call->view.head));
		default:
			Assert(bit == TAG_FLOOR);
			return floor_tag();
	}
}

/*
 * Marks a tag as busy.  If the rows are only recalled, the tag may be the
 * wrong one, so nothing is marked.
 */
static bool
note_busy(LeaseView *view, unsigned bit)
{
	if (!is_recalled(view))
		view->busy |= bit;
	return false;
}

/* Tries to acquire a tag, or waits for it; records the result in the view. */
static bool
take_tag(Call *call, unsigned bit, bool in_line)
{
	LOCKMODE	mode;
	Tag			tag = get_tag(call, bit, &mode);

	if (in_line && !is_recalled(&call->view) &&
		may_stand_in_line(&call->event->key))
		wait_tag(&call->tags, &tag, mode);
	else if (!try_tag(&call->tags, &tag, mode))
		return note_busy(&call->view, bit);
	call->view.tags |= bit;
	if (bit == TAG_HEAD)
		call->head_tagged = call->view.head.ticket;
	return true;
}

static bool
take_name(Call *call, NameMode name, bool in_line)
{
	Tag			tag = name_tag(&call->event->key);

	if (in_line && !is_recalled(&call->view))
		wait_tag(&call->tags, &tag, name_modes[name]);
	else if (!try_tag(&call->tags, &tag, name_modes[name]))
		return note_busy(&call->view, TAG_NAME);
	call->view.name = name;
	return true;
}

/*
 * Acquires the tags that a plan needs; returns false if one is busy.  Tags
 * acquired for another plan are released first, including the name tag in a
 * weaker mode, so that no lock is ever upgraded.
 */
static bool
take_needed(Call *call, const LeasePlan *plan)
{
	static const unsigned order[] = {TAG_TICKET, TAG_SCOPE, TAG_QUEUE,
	TAG_FLOOR};
	LeaseView  *view = &call->view;

	if ((view->tags & ~plan->needs_tags) || (view->name != NAME_NONE &&
											 view->name < plan->needs_name) ||
		view->name > plan->needs_name)
		give_back(call);
	for (int i = 0; i < (int) lengthof(order); i++)
	{
		if ((plan->needs_tags & ~view->tags & order[i]) &&
			!take_tag(call, order[i], plan->ticket_in_line &&
					  order[i] == TAG_TICKET))
			return false;
	}
	return view->name >= plan->needs_name ||
		take_name(call, plan->needs_name, plan->name_in_line);
}

/* Acquires the optional tags of a plan, in order, until one is busy. */
static void
take_optional(Call *call, const LeasePlan *plan)
{
	static const unsigned order[] = {TAG_SCOPE, TAG_HEAD, TAG_QUEUE};

	for (int i = 0; i < (int) lengthof(order); i++)
	{
		if ((plan->optional_tags & order[i]) &&
			!take_tag(call, order[i], false))
			return;
	}
}

/* ----------------------------------------------------------------------
 * Writing
 * ----------------------------------------------------------------------
 */

static bool
writes_anything(const LeasePlan *plan)
{
	return plan->writes_lock || plan->writes_ticket || plan->deletes_lock ||
		plan->deletes_ticket;
}

static void
save_ticket(TicketRow *ticket)
{
	if (!ItemPointerIsValid(&ticket->version.tid))
		note_row_added();
	store_save_ticket(ticket);
}

static void
save_lock(LockRow *lock)
{
	if (!ItemPointerIsValid(&lock->version.tid))
		note_row_added();
	store_save_lock(lock);
	fences_forget_leases(&lock->key);
}

/* Writes the other shares of the grant that end or have lapsed. */
static void
save_shares(Call *call, const LeasePlan *plan)
{
	LeaseView  *view = &call->view;

	for (int i = 0; i < view->share_count; i++)
	{
		TicketRow  *share = &view->shares[i];

		if ((!view->has_ticket || !same_ticket(share, &view->ticket)) &&
			end_share(plan, share, call->now))
			store_save_ticket(share);
	}
}

/* Last actions for the previous grant, before a grant begins or ends. */
static void
finish_previous_grant(const LockRow *lock)
{
	fences_verify_early(lock);

	/*
	 * blockers that remain from former queues do no harm until they are
	 * pruned
	 */
	if (OidIsValid(lock->holder.role) && store_has_queues())
		store_forget_blocker(&lock->holder, &lock->key);
}

/*
 * Called before a ticket is queued, because other sessions may believe that
 * there are no queues.
 */
static void
announce_queues(Call *call)
{
	Tag			tag = queues_tag();

	store_announce_queues(!try_tag(&call->tags, &tag, RowShareLock));
}

static void
save_rows(Call *call, LeasePlan *plan)
{
	if (plan->writes_ticket && plan->ticket.place != 0)
		announce_queues(call);
	if (plan->writes_ticket)
		save_ticket(&plan->ticket);
	if (plan->writes_head)
		store_save_ticket(&plan->head);
	if (plan->ends_lapsed_shares)
		save_shares(call, plan);
	if (plan->writes_lock)
		save_lock(&plan->lock);
	if (plan->deletes_ticket)
		plan->yes = store_try_delete_ticket(&call->view.ticket);
	if (plan->raises_floor)
		store_cover_fence(call->view.lock.fence);
	if (plan->deletes_lock)
		store_delete_lock(&call->view.lock);
}

/* Tells the deadlock detection about a new holder that others wait behind. */
static void
note_blocking_holder(const LockRow *lock, TimestampTz now)
{
	QueueHead	head;

	find_head(lock, &lock->holder, now, &head);
	if (head.exists)
		store_note_blocker(&lock->holder, &lock->key);
}

/*
 * Wakes the waiters that the change concerns.  If the head could not be
 * promoted, the transaction that holds its ticket tag may be ending its wait
 * without knowing about the next waiter, so that waiter is woken too.
 */
static void
wake(Call *call, const LeasePlan *plan)
{
	const LeaseView *view = &call->view;
	const LockRow *lock = plan->writes_lock ? &plan->lock : &view->lock;
	QueueHead	next;

	if (plan->wake == WAKE_HEAD)
		wake_at_commit(&view->head);
	if (plan->wake == WAKE_NEXT ||
		(plan->wake == WAKE_HEAD && !plan->writes_head))
	{
		find_head(lock, plan->wake == WAKE_HEAD ? &view->head.who : NULL,
				  call->now, &next);
		if (next.exists)
			wake_at_commit(&next.ticket);
	}
}

/*
 * Writes a plan.  The tags that it needs are held, and are held from now on
 * until the transaction ends.
 */
static void
write_plan(Call *call, LeasePlan *plan)
{
	if (plan->begins_grant || plan->ends_grant)
		finish_previous_grant(&call->view.lock);
	if (plan->begins_grant)
		plan->lock.granted_xid = GetTopFullTransactionId();
	if (plan->durability == LOSABLE)
		begin_losable_write();
	if (records_plans())
		record_plan(&call->view, call->event, plan, call->now);
	save_rows(call, plan);
	if (plan->durability == LOSABLE)
		end_losable_write();
	if (plan->durability == ACKNOWLEDGED)
		note_acknowledged();
	note_lease_change();
	keep_tags(&call->tags);
	if (plan->writes_head || plan->from_queue)
		note_blocking_holder(&plan->lock, call->now);
	wake(call, plan);
}

/* ----------------------------------------------------------------------
 * The loop
 * ----------------------------------------------------------------------
 */

/* Raises LS002. */
void
report_foreign_request(const LockKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_FOREIGN_REQUEST),
			 errmsg("request id belongs to another identity"),
			 errdetail("Another role or owner has used it for lock \"%s\" in scope \"%s\".",
					   key->name, key->scope),
			 errhint("Use a new request id for every acquisition.")));
}

/* Raises the error for a refusal: LS002, 53400 or 55P03. */
static void
report_refusal(const LeaseEvent *event, Refusal refusal)
{
	const LockKey *key = &event->key;

	switch (refusal)
	{
		case REFUSE_FOREIGN_REQUEST:
			report_foreign_request(key);
			break;
		case REFUSE_FULL_QUEUE:
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("too many waiters for lock \"%s\" in scope \"%s\"",
							key->name, key->scope),
					 errdetail("The setting leaselock.max_waiters is %d.",
							   leaselock_max_waiters),
					 errhint("Try again later, or without waiting.")));
			break;
		case REFUSE_BUSY_TICKET:
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not end the wait for lock \"%s\" in scope \"%s\"",
							key->name, key->scope),
					 errdetail("Another transaction is using the same ticket, and this transaction has changed the lock or another of its tickets."),
					 errhint("End the wait in a separate transaction.")));
			break;
		case NOT_REFUSED:
			break;
	}
}

/* Sets the outcome after a complete plan. */
static void
set_outcome(const Call *call, const LeasePlan *plan, Outcome *outcome)
{
	const LeaseView *view = &call->view;

	outcome->state = plan->state;
	outcome->yes = plan->yes;
	outcome->retry_after = plan->retry_after;
	outcome->lock = plan->writes_lock ? plan->lock : view->lock;
	outcome->has_ticket = view->has_ticket || plan->writes_ticket;
	outcome->ticket = plan->writes_ticket ? plan->ticket : view->ticket;
	outcome->has_head = (view->known & PART_HEAD) && view->has_head &&
		!grant_is_live(&outcome->lock, call->now);
	outcome->head = view->head;
	outcome->now = call->now;
}

/*
 * Carries out a complete plan.  Returns false if there is more to do after it
 * has been written; the rows have then been read again.
 */
static bool
complete(Call *call, LeasePlan *plan)
{
	LeaseView  *view = &call->view;

	if (plan->state == LEASE_DEADLOCK && call->cycle != NIL)
		report_deadlock(call->cycle);
	if (writes_anything(plan))
		write_plan(call, plan);
	else
		give_back(call);
	if (plan->is_blocked)
		store_note_blocker(&view->lock.holder, &view->lock.key);
	if (!plan->look_again)
		return true;
	call->event->silent = true;
	view->has_ticket = true;
	view->ticket = plan->ticket;	/* as just written */
	view->busy = 0;
	view->name = NAME_NONE;
	view->tags = 0;
	read_rows(call, may_recall(call->event));
	return false;
}

/*
 * Carries out the next step of a plan; returns true if it was complete and
 * nothing remains to be done.  The number of tags that stay held is added to
 * *tags.
 */
static bool
proceed(Call *call, LeasePlan *plan, int *tags)
{
	if (plan->asks != 0)
		read_parts(call, plan);
	else if (plan->needs_name != NAME_NONE || plan->needs_tags != 0)
	{
		if (!take_needed(call, plan))
			give_back(call);
		refresh_rows(call);
	}
	else if (is_recalled(&call->view))
		read_rows(call, false);
	else if (plan->optional_tags != 0)
	{
		take_optional(call, plan);
		call->view.known &= ~PART_HEAD;
	}
	else
	{
		if (tags != NULL && writes_anything(plan))
			*tags += call->tags.count;
		report_refusal(call->event, plan->refusal);
		return complete(call, plan);
	}
	return false;
}

/*
 * Carries out an event.  If it is about an existing ticket, the caller passes
 * the ticket as loaded.  The caller has checked permissions.
 *
 * Tags in "busy" are not even tried for.  With "quiet", a full lock table is
 * not an error.  The number of tags that stay held is added to *tags, unless
 * that is NULL.  Raises
 *
 *	LS002	if the request id belongs to another identity
 *	53400	if the queue is full
 *	54000	if the event makes a grant, and there is no greater fence
 *	LS001	if the event ends or replaces a grant, and the transaction has
 *			checked a fence of the lock that is stale
 *	55P03	if a tag that is waited for in line stays busy, or if a restore is
 *			inserting the same row
 *	40P01	if waiting for a tag in line closes a cycle
 */
void
carry_out_with(LeaseEvent *event, const TicketRow *ticket, unsigned busy,
			   bool quiet, int *tags, Outcome *outcome)
{
	Call		call = {0};

	event->waiter_timeout_us = leaselock_waiter_timeout * INT64CONST(1000);
	event->pid = MyProcPid;
	call.event = event;
	call.tags.quiet = quiet;
	call.view.busy = busy;
	if (ticket != NULL)
	{
		call.view.has_ticket = true;
		call.view.ticket = *ticket;
	}
	store_begin_event();
	(void) store_open_table(REL_LOCKS);
	renew_lock_key(&event->key);
	for (read_rows(&call, may_recall(event));;)
	{
		LeasePlan	plan = decide(&call.view, event, call.now);

		if (proceed(&call, &plan, tags))
		{
			set_outcome(&call, &plan, outcome);
			break;
		}
	}
	store_end_event();
}

/* carry_out_with() for everything but pruning. */
void
carry_out(LeaseEvent *event, const TicketRow *ticket, Outcome *outcome)
{
	carry_out_with(event, ticket, 0, false, NULL, outcome);
}

/* ----------------------------------------------------------------------
 * Acquisitions, which may need several attempts
 * ----------------------------------------------------------------------
 */

/*
 * Determines the tag that blocked an acquisition.  Returns false if its holder
 * must not be waited for: a transaction that holds the name tag or a ticket
 * tag of the lock from an earlier call may only try for the others.
 */
static bool
find_busy_tag(const LeaseEvent *event, const Outcome *outcome, bool first,
			  BusyTag *busy_tag)
{
	bool		extends = (same_identity(&outcome->lock.holder, &event->who) &&
						   grant_is_live(&outcome->lock, outcome->now));

	busy_tag->mode = ExclusiveLock;
	busy_tag->brief = first;
	switch (outcome->retry_after)
	{
		case TAG_NAME:
			busy_tag->tag = name_tag(&event->key);
			if (extends)
				busy_tag->mode = ShareUpdateExclusiveLock;
			else
				busy_tag->brief = true;
			return extends || may_stand_in_line(&event->key);
		case TAG_TICKET:
			busy_tag->tag = ticket_tag(&event->key, &event->request_id);
			return may_stand_in_line(&event->key);
		case TAG_QUEUE:
			busy_tag->tag = queue_tag(&event->key);
			return may_stand_in_line(&event->key);
		default:
			return false;
	}
}

/*
 * One round of an acquisition.  It waits for nobody.  Returns false if another
 * round is worthwhile once the tag is free; in that case no tag is held.
 * Raises what carry_out() raises.
 */
bool
try_acquire(LeaseEvent *event, TimestampTz until, bool first, Outcome *outcome,
			BusyTag *busy_tag)
{
	event->first_try = first;
	event->left_us = until - clock_read(NO_TIME);
	carry_out(event, NULL, outcome);
	return !event->may_queue || outcome->state != LEASE_CONTENDED ||
		until <= clock_read(NO_TIME) ||
		!find_busy_tag(event, outcome, first, busy_tag);
}

/*
 * Acquires a lock or a place in its queue, or answers why not, within the
 * caller's transaction.  Each wait is slightly longer than deadlock_timeout,
 * so that the server's deadlock detector examines it.  Raises what carry_out()
 * raises, and 40P01 for a deadlock.
 */
void
acquire(LeaseEvent *event, TimestampTz until, Outcome *outcome)
{
	BusyTag		busy_tag;

	for (bool first = true;
		 !try_acquire(event, until, first, outcome, &busy_tag);
		 first = false)
		wait_for_tag_holder(&busy_tag.tag, busy_tag.mode, busy_tag.brief,
							until - clock_read(NO_TIME),
							DeadlockTimeout + DeadlockTimeout / 2);
}
