/*-------------------------------------------------------------------------
 *
 * protocol.c
 *	  Carries out what the rules decide: the one loop.
 *
 * This is the only place that takes and gives back tags, writes rows, forces a
 * sync and notes whom to wake.  An event has the same course whatever it is:
 *
 *	read the rows that it is about, and ask the rules
 *	read what else the rules want to know, and ask again
 *	take the tags that the rules need, read the rows again if they are not the
 *	versions that were seen, and ask again: now nobody else can change them
 *	write the plan, or, if it writes nothing, give the tags back
 *
 * A tag that is not to be had is known to be busy from then on, and the rules
 * say what can be done without it.  Only what a plan says may stand in line
 * does so.
 *
 * The rows that this session wrote last need not be read at first: recalled, they
 * tell which tags to try for, and under those are compared like any others.
 * Nothing is answered from them, and nobody stands in line because of them.
 *
 * What is decided without a tag may be history the next moment, so nothing is
 * written from it.  What is decided under the tags is written under them, and
 * they are kept until the transaction ends.
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

/* One event on its way. */
typedef struct Call
{
	LeaseEvent *event;
	LeaseView	view;
	TimestampTz now;
	TagSet		tags;			/* taken by this call */
	pg_uuid_t	head_tagged;	/* whose tag TAG_HEAD is */
	List	   *cycle;			/* the one that the wait closes */
} Call;

/* The server's mode for each of ours. */
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

/* Loads the ticket anew.  It may have been pruned meanwhile. */
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

/* Whether rows of the view are recalled, and not compared yet. */
static bool
is_recalled(const LeaseView *view)
{
	return view->lock.recalled ||
		(view->has_ticket && view->ticket.recalled);
}

/* Whether an event mostly changes the lock, and then takes tags first. */
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

/* Loads the ticket that the event's request id names, if there is one. */
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
 * Reads the clock, and forgets what was read or concluded before.  Where the
 * database has no queue nobody need look for a head.
 */
static void
judge_anew(Call *call)
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
	if (call->event->kind == EVENT_BREAK_STRANGER)
		view->holder_allowed = may_use_scope(view->lock.key.scope,
											 view->lock.holder.role);
}

/*
 * Reads the rows, without a tag, or recalls them.  The lock is read after the
 * ticket, so if it does not know the ticket's grant any more, whoever ended that
 * grant has committed; what it wrote into the ticket is there on a second look.
 */
static void
read_rows(Call *call, bool recalls)
{
	LeaseView  *view = &call->view;

	/* a ticket that was passed was loaded just before */
	if (!view->has_ticket)
		load_request(call);
	else if (view->ticket.recalled && !recalls)
		reload_ticket(view);
	if (!recalls || !recall_lock(&call->event->key, &view->lock))
		store_load_lock(&call->event->key, &view->lock);
	judge_anew(call);
	if (view->has_ticket &&
		ticket_state(&view->ticket, &view->lock, call->now) !=
		view->ticket.state)
	{
		reload_ticket(view);
		complete_waiter(&view->ticket, call->now);
	}
}

/* Reads the lock's row again; true if it is still the version that was seen. */
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
 * Reads the rows again, under tags that were just taken.  A newcomer need not
 * read the queue again if nobody was in it and the lock's row is the same:
 * whoever has queued since did so after the call began, and is not overtaken.
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
	judge_anew(call);
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
		/* the tag is that of one who was the head before: leave it at that */
		view->tags &= ~TAG_HEAD;
		view->busy |= TAG_HEAD;
	}
}

static void
read_rival(Call *call)
{
	QueueHead	head;

	find_head(&call->view.lock, &call->view.lock.holder, call->now, &head);
	call->view.has_rival = head.exists;
}

/*
 * The next place in the queue.  The queue tag keeps new places out, but not a
 * promotion, which takes a ticket out of the queue and raises the passed mark.
 * Read in this order, the last place may be history, and the mark is never
 * older than it.  Dead waiters have places too, so they are only counted when it
 * may matter.
 */
static void
read_place(Call *call)
{
	LeaseView  *view = &call->view;
	int64		last = store_last_place(&call->event->key);

	if (!refresh_lock(call))
		judge_anew(call);
	last = Max(last, view->lock.passed);
	view->next_place = last + 1;
	view->queue_is_full = last - view->lock.passed >= leaselock_max_waiters &&
		queue_length(&view->lock, call->now, leaselock_max_waiters, INT_MAX) >=
		leaselock_max_waiters;
}

/* Reads what the rules have asked for. */
static void
read_parts(Call *call, const LeasePlan *plan)
{
	LeaseView  *view = &call->view;

	if (plan->asks & PART_HEAD)
		read_head(call);
	if (plan->asks & PART_RIVAL)
		read_rival(call);
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

/* The tag of the event's ticket, which may not have a row yet. */
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

/* A tag is not to be had.  That says little if it may be the wrong one. */
static bool
note_busy(LeaseView *view, unsigned bit)
{
	if (!is_recalled(view))
		view->busy |= bit;
	return false;
}

/* Tries for one tag, or waits for it; notes what came of that. */
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
 * Takes the tags that a plan needs; false if one is busy.  What was taken for
 * another plan is given back before, the name tag in a lower mode too, so that
 * nobody upgrades it.
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

/* Takes what a plan would like as far as it is to be had. */
static void
take_liked(Call *call, const LeasePlan *plan)
{
	static const unsigned order[] = {TAG_SCOPE, TAG_HEAD, TAG_QUEUE};

	for (int i = 0; i < (int) lengthof(order); i++)
	{
		if ((plan->likes_tags & order[i]) && !take_tag(call, order[i], false))
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

/* The shares of others that end, or have lapsed. */
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

/* Before a grant begins or ends: the last moment of the one that was. */
static void
leave_last_grant(const LockRow *lock)
{
	fences_verify_early(lock);
	/* what is left of former queues does no harm, until it is pruned */
	if (OidIsValid(lock->holder.role) && store_has_queues())
		store_forget_blocker(&lock->holder, &lock->key);
}

/* Before a ticket is put into a queue, which others may believe not to exist. */
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

/* For the search for cycles: a new holder that others wait behind. */
static void
note_rivals(const LockRow *lock, TimestampTz now)
{
	QueueHead	head;

	find_head(lock, &lock->holder, now, &head);
	if (head.exists)
		store_note_blocker(&lock->holder, &lock->key);
}

/*
 * Has those look again whom the change concerns.  Where the head could not be
 * promoted, whoever keeps its tag may be ending its wait, and not know of the
 * next.
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

/* Writes a plan.  The tags that it needs are held, and kept from now on. */
static void
write_plan(Call *call, LeasePlan *plan)
{
	if (plan->begins_grant || plan->ends_grant)
		leave_last_grant(&call->view.lock);
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
		note_rivals(&plan->lock, call->now);
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

/* Raises the error of an event that is refused. */
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

/* What there is now, after a complete plan. */
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
 * Carries out a complete plan; false if there is more to do once it is written,
 * which is then looked at anew.
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
	view->ticket = plan->ticket;	/* as it was written */
	view->busy = 0;
	view->name = NAME_NONE;
	view->tags = 0;
	read_rows(call, may_recall(call->event));
	return false;
}

/*
 * Does what a plan says next; true once it is complete and there is nothing
 * more to do.  *tags is raised by the number of tags that are kept.
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
	else if (plan->likes_tags != 0)
	{
		take_liked(call, plan);
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
 * Carries out an event.  A ticket that it is about is passed as it was loaded;
 * the caller has made sure that whoever caused the event may do so.
 *
 * "busy" are tags that are not even to be tried for; with "quiet" a full lock
 * table is no error.  *tags is raised by the number of tags that are kept.
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

/* carry_out_with for everybody but housekeeping. */
void
carry_out(LeaseEvent *event, const TicketRow *ticket, Outcome *outcome)
{
	carry_out_with(event, ticket, 0, false, NULL, outcome);
}

/* ----------------------------------------------------------------------
 * Acquisitions, which may have to be tried more than once
 * ----------------------------------------------------------------------
 */

/*
 * What stood in the way; false if it may not be waited for: whoever has the
 * name tag or a ticket tag of the lock from an earlier call only tries for the
 * others.
 */
static bool
find_obstacle(const LeaseEvent *event, const Outcome *outcome, bool first,
			  Obstacle *obstacle)
{
	bool		extends = (same_identity(&outcome->lock.holder, &event->who) &&
						   grant_is_live(&outcome->lock, outcome->now));

	obstacle->mode = ExclusiveLock;
	obstacle->brief = first;
	switch (outcome->retry_after)
	{
		case TAG_NAME:
			obstacle->tag = name_tag(&event->key);
			if (extends)
				obstacle->mode = ShareUpdateExclusiveLock;
			else
				obstacle->brief = true;
			return extends || may_stand_in_line(&event->key);
		case TAG_TICKET:
			obstacle->tag = ticket_tag(&event->key, &event->request_id);
			return may_stand_in_line(&event->key);
		case TAG_QUEUE:
			obstacle->tag = queue_tag(&event->key);
			return may_stand_in_line(&event->key);
		default:
			return false;
	}
}

/*
 * One round of an acquisition, which waits for nobody.  False: with the
 * obstacle out of the way another round is worth it; no tag is kept until
 * then.
 */
bool
try_acquire(LeaseEvent *event, TimestampTz until, bool first, Outcome *outcome,
			Obstacle *obstacle)
{
	event->first_try = first;
	event->left_us = until - clock_read(NO_TIME);
	carry_out(event, NULL, outcome);
	return !event->may_queue || outcome->state != LEASE_CONTENDED ||
		until <= clock_read(NO_TIME) ||
		!find_obstacle(event, outcome, first, obstacle);
}

/*
 * Acquires a lock, or a place in its queue, or answers why not, within the
 * caller's transaction.  A wait is a little longer than the deadlock detector
 * needs to look at it.
 */
void
acquire(LeaseEvent *event, TimestampTz until, Outcome *outcome)
{
	Obstacle	obstacle;

	for (bool first = true;
		 !try_acquire(event, until, first, outcome, &obstacle);
		 first = false)
		wait_for_keeper(&obstacle.tag, obstacle.mode, obstacle.brief,
						until - clock_read(NO_TIME),
						DeadlockTimeout + DeadlockTimeout / 2);
}
