/*-------------------------------------------------------------------------
 *
 * decide.c
 *	  The rules: given a view, an event and the time, decide what follows.
 *
 * decide() gets what is known (LeaseView), what happens (LeaseEvent) and the
 * time, and returns what follows (LeasePlan).  It reads nothing, locks nothing
 * and remembers nothing, so it can be called any number of times.  protocol.c
 * calls it again after each part of the view that a plan asked for and each
 * tag that it needed, until the plan is complete.  A plan that asks for
 * neither is complete, and the tags that the view lists as held protect what
 * it writes.
 *
 * What the clock does is judged, not stored: leases lapse, waits run out and
 * waiters fall silent without any write.  A plan writes nothing on behalf of
 * other identities, with one exception: whoever ends a grant promotes the head
 * of the queue.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/decide.h"

/* ----------------------------------------------------------------------
 * Judgements
 * ----------------------------------------------------------------------
 */

/* InvalidOid never matches anybody, not even itself. */
bool
same_identity(const Identity *a, const Identity *b)
{
	return OidIsValid(a->role) && a->role == b->role &&
		strcmp(a->owner, b->owner) == 0;
}

/*
 * Whether two rows, possibly read at different times, are of the same ticket.
 */
bool
same_ticket(const TicketRow *a, const TicketRow *b)
{
	return memcmp(&a->ticket, &b->ticket, sizeof(pg_uuid_t)) == 0;
}

/* When the last share of the grant runs out. */
TimestampTz
grant_until(const LockRow *lock)
{
	return Max(lock->expires_at, lock->hold_expires_at);
}

/* Whether somebody holds the lock at the given time. */
bool
grant_is_live(const LockRow *lock, TimestampTz now)
{
	return OidIsValid(lock->holder.role) && grant_until(lock) > now;
}

/* Whether an identity holds the lock at the given time. */
static bool
holds(const LockRow *lock, const Identity *who, TimestampTz now)
{
	return grant_is_live(lock, now) && same_identity(&lock->holder, who);
}

/* Whether an identity has the named hold, lapsed or not. */
static bool
has_hold(const LockRow *lock, const Identity *who)
{
	return same_identity(&lock->holder, who) &&
		lock->hold_expires_at != NO_TIME;
}

/* Whether a ticket that is stored as held belongs to the newest grant. */
static bool
is_of_newest_grant(const TicketRow *ticket, const LockRow *lock)
{
	return ticket->fence == lock->fence &&
		same_identity(&ticket->who, &lock->holder);
}

/*
 * Whether a waiter has been ended by the clock, or by a grant to a waiter
 * behind it.  Waiting tickets of the holder's identity share the turn of the
 * ticket that was granted the lock, so the passed mark does not apply to them.
 */
bool
waiter_is_dead(const TicketRow *ticket, const LockRow *lock, TimestampTz now)
{
	if (ticket->wait_until <= now)
		return true;
	if (ticket->place <= lock->passed && !holds(lock, &ticket->who, now))
		return true;
	return ticket->alive_until <= now && !ticket->attended;
}

/* Whether a ticket in the queue is a live waiter. */
bool
waiter_is_live(const TicketRow *ticket, const LockRow *lock, TimestampTz now)
{
	return ticket->state == LEASE_WAITING && ticket->allowed &&
		!waiter_is_dead(ticket, lock, now);
}

static LeaseState
waiter_state(const TicketRow *ticket, const LockRow *lock, TimestampTz now)
{
	if (ticket->wait_until > now && !ticket->allowed)
		return LEASE_CANCELLED;
	return waiter_is_dead(ticket, lock, now) ? LEASE_TIMED_OUT : LEASE_WAITING;
}

/* The state of a ticket at the given time, given the row of its lock. */
LeaseState
ticket_state(const TicketRow *ticket, const LockRow *lock, TimestampTz now)
{
	if (ticket->state == LEASE_WAITING)
		return waiter_state(ticket, lock, now);
	if (ticket->state != LEASE_HELD)
		return ticket->state;
	return is_of_newest_grant(ticket, lock) && ticket->expires_at > now ?
		LEASE_HELD : LEASE_EXPIRED;
}

/*
 * Number of live shares of the grant: its unlapsed tickets, plus one for an
 * unlapsed named hold.  The shares need not be passed if there is only one
 * ticket.
 */
int
grant_depth(const LockRow *lock, const TicketRow *shares, int share_count,
			TimestampTz now)
{
	int			depth = lock->hold_expires_at > now ? 1 : 0;

	if (lock->expires_at <= now)
		return depth;
	if (lock->tickets <= 1)
		return depth + 1;
	for (int i = 0; i < share_count; i++)
		depth += ticket_state(&shares[i], lock, now) == LEASE_HELD;
	return depth;
}

/* The verdict on a fence, given the lock's row. */
FenceVerdict
judge_fence(const LockRow *lock, int64 fence, TimestampTz now)
{
	if (fence < lock->fence)
		return FENCE_SUPERSEDED;
	if (fence > lock->fence || fence == 0)
		return FENCE_UNKNOWN;
	if (!OidIsValid(lock->holder.role))
		return FENCE_ENDED;
	return grant_is_live(lock, now) ? FENCE_CURRENT : FENCE_LAPSED;
}

/*
 * Whether writes under a fence may commit.  A lapse alone does not prevent
 * that.
 */
bool
fence_may_commit(const LockRow *lock, int64 fence)
{
	FenceVerdict verdict = judge_fence(lock, fence, NO_TIME);

	return verdict == FENCE_CURRENT || verdict == FENCE_LAPSED;
}

/* ----------------------------------------------------------------------
 * Plans
 * ----------------------------------------------------------------------
 */

/* A plan that writes nothing and answers with a state. */
static LeasePlan
answer(LeaseState state)
{
	LeasePlan	plan = {0};

	plan.state = state;
	return plan;
}

/* A plan that writes nothing and answers yes or no. */
static LeasePlan
answer_yes(bool yes)
{
	LeasePlan	plan = {0};

	plan.yes = yes;
	return plan;
}

static LeasePlan
refuse(Refusal refusal)
{
	LeasePlan	plan = {0};

	plan.refusal = refusal;
	return plan;
}

/* "contended", because of a tag that may become available soon. */
static LeasePlan
answer_busy(unsigned tag)
{
	LeasePlan	plan = answer(LEASE_CONTENDED);

	plan.retry_after = tag;
	return plan;
}

static LeasePlan
ask(unsigned parts)
{
	LeasePlan	plan = {0};

	plan.asks = parts;
	return plan;
}

static LeasePlan
need(NameMode name, unsigned tags)
{
	LeasePlan	plan = {0};

	plan.needs_name = name;
	plan.needs_tags = tags;
	return plan;
}

/* Likewise, for releases, renewals and breaks, which may wait in line. */
static LeasePlan
need_in_line(NameMode name)
{
	LeasePlan	plan = need(name, 0);

	plan.name_in_line = true;
	return plan;
}

static LeasePlan
optional(unsigned tags)
{
	LeasePlan	plan = {0};

	plan.optional_tags = tags;
	return plan;
}

static bool
knows(const LeaseView *view, unsigned parts)
{
	return (view->known & parts) == parts;
}

static bool
has_tags(const LeaseView *view, NameMode name, unsigned tags)
{
	return view->name >= name && (view->tags & tags) == tags;
}

/*
 * The ticket tag, if a request id was passed: another session may use the same
 * id.
 */
static unsigned
request_tag(const LeaseEvent *event)
{
	return event->has_request_id ? TAG_TICKET : 0;
}

/* ----------------------------------------------------------------------
 * Changes of rows, from which plans are built
 * ----------------------------------------------------------------------
 */

/*
 * Every write of a lock's row advances the lock's time, which never goes back.
 */
static void
write_lock(LeasePlan *plan, const LockRow *lock, TimestampTz now)
{
	plan->writes_lock = true;
	plan->lock = *lock;
	plan->lock.changed_at = now;
}

static void
clear_grant(LockRow *lock)
{
	lock->holder.role = InvalidOid;
	lock->holder.owner = NULL;
	lock->granted_at = NO_TIME;
	lock->granted_xid = InvalidFullTransactionId;
	lock->tickets = 0;
	lock->has_first = false;
	lock->expires_at = NO_TIME;
	lock->hold_expires_at = NO_TIME;
}

/* Begins a grant: an identity and a new fence, but no share yet. */
static void
begin_grant(LeasePlan *plan, const LeaseView *view, const Identity *who,
			TimestampTz now)
{
	clear_grant(&plan->lock);
	plan->lock.holder = *who;
	plan->lock.fence = view->next_fence;
	plan->lock.granted_at = now;
	plan->begins_grant = true;
	plan->durability = ACKNOWLEDGED;
}

/*
 * Makes a ticket a share of the lock's grant.  The lock's row names the first
 * ticket; further tickets go on the grant's list.  A ticket that was promoted
 * in its owner's absence is unclaimed, and lease_us is then the time in which
 * it must be claimed.
 */
static void
join_grant(LockRow *lock, TicketRow *ticket, bool claimed, int64 lease_us,
		   TimestampTz now)
{
	ticket->state = LEASE_HELD;
	ticket->place = 0;
	ticket->waiter_pid = 0;
	ticket->fence = lock->fence;
	ticket->claimed = claimed;
	ticket->expires_at = now + lease_us;
	ticket->listed = lock->has_first;
	if (!lock->has_first)
	{
		lock->has_first = true;
		lock->first_ticket = ticket->ticket;
	}
	lock->tickets++;
	lock->expires_at = Max(lock->expires_at, ticket->expires_at);
}

/* Removes a ticket from its grant and sets the state in which it ends. */
static void
leave_grant(LockRow *lock, TicketRow *ticket, LeaseState state,
			TimestampTz ended_at)
{
	ticket->state = state;
	ticket->ended_at = ended_at;
	ticket->listed = false;
	if (lock->has_first && memcmp(&lock->first_ticket, &ticket->ticket,
								  sizeof(pg_uuid_t)) == 0)
		lock->has_first = false;
}

static void
end_wait(TicketRow *ticket, LeaseState state, TimestampTz now)
{
	ticket->state = state;
	ticket->place = 0;
	ticket->waiter_pid = 0;
	ticket->ended_at = now;
}

/* Records a sign of life: a call, or a waiting backend from now on. */
static void
refresh_liveness(TicketRow *ticket, const LeaseEvent *event, TimestampTz now)
{
	if (event->attending)
	{
		ticket->alive_until = NO_TIME;
		ticket->waiter_pid = event->pid;
		return;
	}
	ticket->alive_until = now + event->waiter_timeout_us;
	if (ticket->waiter_pid == event->pid || !ticket->attended)
		ticket->waiter_pid = 0;
}

/* A new ticket as requested, still without a state. */
static TicketRow
make_ticket(const LeaseEvent *event, TimestampTz now)
{
	TicketRow	ticket = {0};

	ItemPointerSetInvalid(&ticket.version.tid);
	ticket.key = event->key;
	ticket.ticket = event->ticket;
	ticket.has_request_id = event->has_request_id;
	ticket.request_id = event->request_id;
	ticket.who = event->who;
	ticket.lease_us = event->lease_us;
	ticket.requested_at = now;
	ticket.note = event->note;
	ticket.expires_at = NO_TIME;
	ticket.wait_until = NO_TIME;
	ticket.alive_until = NO_TIME;
	ticket.ended_at = NO_TIME;
	ticket.allowed = true;
	return ticket;
}

/*
 * Applies a plan to another share of the grant; returns false if that share
 * does not have to be written.  Lapsed shares are ended as well, so that the
 * grant's list holds no more tickets than the grant has shares.
 */
bool
end_share(const LeasePlan *plan, TicketRow *share, TimestampTz now)
{
	LockRow		ignored = {0};

	if (share->state != LEASE_HELD)
		return false;
	if (share->expires_at <= now)
		leave_grant(&ignored, share, LEASE_EXPIRED, share->expires_at);
	else if (plan->shares_end != LEASE_HELD)
		leave_grant(&ignored, share, plan->shares_end, now);
	else
		return false;
	return true;
}

/* Counts into the lock's row the live shares of the grant other than "own". */
static void
count_other_shares(LockRow *lock, const LeaseView *view, const TicketRow *own,
				   TimestampTz now)
{
	bool		has_first = false;

	lock->tickets = 0;
	lock->expires_at = NO_TIME;
	for (int i = 0; i < view->share_count; i++)
	{
		const TicketRow *share = &view->shares[i];

		if (same_ticket(share, own) ||
			ticket_state(share, &view->lock, now) != LEASE_HELD)
			continue;
		lock->tickets++;
		lock->expires_at = Max(lock->expires_at, share->expires_at);
		has_first |= !share->listed;
	}
	lock->has_first = lock->has_first && has_first;
}

/* ----------------------------------------------------------------------
 * Grants
 * ----------------------------------------------------------------------
 */

/*
 * Whether a lock without a holder may be granted to an identity without
 * overtaking anybody.
 */
static bool
is_free_for(const LeaseView *view, const Identity *who)
{
	return !view->has_head || same_identity(&view->head.who, who);
}

/*
 * Marks dead waiters as passed.  Otherwise every grant would read them again
 * until they are pruned.  They were counted under the queue tag, so none of
 * their places has been assigned again.
 */
static void
pass_dead(LockRow *lock, const LeaseView *view)
{
	if (view->dead_waiters >= MANY_DEAD && (view->tags & TAG_QUEUE))
		lock->passed = Max(lock->passed, view->dead_place);
}

/* Whether to try for the queue tag in order to pass dead waiters. */
static bool
wants_queue_tag(const LeaseView *view)
{
	return view->dead_waiters >= MANY_DEAD &&
		!((view->tags | view->busy) & TAG_QUEUE);
}

/* Tags that keep a newcomer from a free lock while they are busy. */
#define NEWCOMER_TAGS	(TAG_NAME | TAG_SCOPE | TAG_TICKET)

/* A new grant to a newcomer; the caller adds its share. */
static LeasePlan
grant_to_newcomer(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	unsigned	tags = TAG_SCOPE | request_tag(event);
	LeasePlan	plan = {0};

	if (!has_tags(view, NAME_CHANGE, tags))
		return need(NAME_CHANGE, tags);
	if (wants_queue_tag(view))
		return optional(TAG_QUEUE);
	if (!knows(view, PART_FENCE))
		return ask(PART_FENCE);
	write_lock(&plan, &view->lock, now);
	begin_grant(&plan, view, &event->who, now);
	pass_dead(&plan.lock, view);
	return plan;
}

/* A further share for the identity that holds the lock; the caller adds it. */
static LeasePlan
extend_grant(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	LeasePlan	plan = {0};

	if (!has_tags(view, NAME_EXTEND, request_tag(event)))
		return need(NAME_EXTEND, request_tag(event));
	write_lock(&plan, &view->lock, now);
	plan.durability = ACKNOWLEDGED;
	return plan;
}

/* Ends the grant and, if the tags are available, promotes the head. */
static LeasePlan
end_grant(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	const unsigned promotion = TAG_SCOPE | TAG_HEAD;
	unsigned	untried = promotion & ~(view->tags | view->busy);
	LeasePlan	plan = {0};

	if (!knows(view, PART_HEAD))
		return ask(PART_HEAD);
	if (view->has_head && untried && !(view->busy & promotion))
		return optional(untried);
	if (!view->has_head && wants_queue_tag(view))
		return optional(TAG_QUEUE);
	if (view->has_head && has_tags(view, NAME_CHANGE, promotion) &&
		!knows(view, PART_FENCE))
		return ask(PART_FENCE);

	write_lock(&plan, &view->lock, now);
	clear_grant(&plan.lock);
	plan.ends_grant = true;
	plan.wake = view->has_head ? WAKE_HEAD : WAKE_NOBODY;
	if (!view->has_head)
		pass_dead(&plan.lock, view);
	else if (has_tags(view, NAME_CHANGE, promotion))
	{
		begin_grant(&plan, view, &view->head.who, now);
		plan.lock.passed = Max(plan.lock.passed, view->head.place);
		plan.writes_head = true;
		plan.head = view->head;
		join_grant(&plan.lock, &plan.head, false,
				   Min(plan.head.lease_us, event->waiter_timeout_us / 2), now);
	}
	return plan;
}

/* Whether a plan asks for something first; it then writes nothing. */
static bool
is_incomplete(const LeasePlan *plan)
{
	return plan->asks != 0 || plan->needs_name != NAME_NONE ||
		plan->needs_tags != 0 || plan->optional_tags != 0;
}

/* ----------------------------------------------------------------------
 * Looks at a ticket
 * ----------------------------------------------------------------------
 */

/* The first call for a promoted ticket starts its full lease. */
static LeasePlan
claim(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	LeasePlan	plan;

	if (!view->ticket.allowed || (view->busy & TAG_NAME))
		return answer(LEASE_HELD);
	if (!has_tags(view, NAME_EXTEND, 0))
	{
		plan = need(NAME_EXTEND, 0);
		plan.name_in_line = event->may_wait;
		return plan;
	}
	plan = answer(LEASE_HELD);
	plan.writes_ticket = true;
	plan.ticket = view->ticket;
	plan.ticket.claimed = true;
	plan.ticket.expires_at = now + plan.ticket.lease_us;
	write_lock(&plan, &view->lock, now);
	plan.lock.expires_at = Max(plan.lock.expires_at, plan.ticket.expires_at);
	return plan;
}

/* Makes the waiting ticket a share of the grant in the plan's lock row. */
static void
admit_waiter(LeasePlan *plan, const LeaseView *view, TimestampTz now)
{
	plan->state = LEASE_HELD;
	plan->writes_ticket = true;
	plan->ticket = view->ticket;
	join_grant(&plan->lock, &plan->ticket, true, plan->ticket.lease_us, now);
}

/*
 * The ticket's identity already holds the lock: the ticket joins that grant.
 */
static LeasePlan
share_turn(const LeaseView *view, TimestampTz now)
{
	LeasePlan	plan = {0};

	if (!has_tags(view, NAME_EXTEND, TAG_TICKET))
		return need(NAME_EXTEND, TAG_TICKET);
	write_lock(&plan, &view->lock, now);
	plan.durability = ACKNOWLEDGED;
	admit_waiter(&plan, view, now);
	return plan;
}

/* Grants the lock to the waiter that looks; its turn has come. */
static LeasePlan
take_turn(const LeaseView *view, TimestampTz now)
{
	LeasePlan	plan = {0};

	if (!has_tags(view, NAME_CHANGE, TAG_SCOPE | TAG_TICKET))
		return need(NAME_CHANGE, TAG_SCOPE | TAG_TICKET);
	if (!knows(view, PART_FENCE))
		return ask(PART_FENCE);
	write_lock(&plan, &view->lock, now);
	begin_grant(&plan, view, &view->ticket.who, now);
	plan.lock.passed = Max(plan.lock.passed, view->head.place);
	plan.from_queue = true;
	admit_waiter(&plan, view, now);
	return plan;
}

/*
 * Whether a waiting ticket can become held now, with the necessary tags not
 * busy.
 */
static bool
has_turn(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	const Identity *who = &view->ticket.who;

	if (event->leave_waiting || (view->busy & NEWCOMER_TAGS))
		return false;
	if (grant_is_live(&view->lock, now))
		return same_identity(&view->lock.holder, who);
	return !knows(view, PART_HEAD) ||
		(view->has_head && same_identity(&view->head.who, who));
}

/* Writes the state that a waiting ticket has reached, or its sign of life. */
static LeasePlan
write_look(const LeaseView *view, const LeaseEvent *event, LeaseState state,
		   TimestampTz now)
{
	LeasePlan	plan;

	if (view->busy & TAG_TICKET)
		return answer(state);
	if (!has_tags(view, NAME_NONE, TAG_TICKET))
	{
		plan = need(NAME_NONE, TAG_TICKET);
		plan.ticket_in_line = event->may_wait;
		return plan;
	}
	if (state == LEASE_WAITING && !knows(view, PART_CYCLE))
		return ask(PART_CYCLE);
	if (state == LEASE_WAITING && view->closes_cycle)
		state = LEASE_DEADLOCK;
	plan = answer(state);
	plan.writes_ticket = true;
	plan.ticket = view->ticket;
	if (state == LEASE_WAITING)
		refresh_liveness(&plan.ticket, event, now);
	else
		end_wait(&plan.ticket, state, now);
	return plan;
}

/* A look at a live waiter. */
static LeasePlan
look_at_waiter(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	bool		is_live = grant_is_live(&view->lock, now);
	bool		shares = holds(&view->lock, &view->ticket.who, now);
	LeasePlan	plan;

	if (has_turn(view, event, now))
	{
		if (shares)
			return share_turn(view, now);
		if (!knows(view, PART_HEAD))
			return ask(PART_HEAD);
		return take_turn(view, now);
	}
	if (!event->silent || shares)
		plan = write_look(view, event, LEASE_WAITING, now);
	else if (!knows(view, PART_CYCLE))
		return ask(PART_CYCLE);
	else if (view->closes_cycle)
		plan = write_look(view, event, LEASE_WAITING, now);
	else
		plan = answer(LEASE_WAITING);
	plan.is_blocked = is_live && !shares;
	return plan;
}

/*
 * A look at a ticket by its owner.  It never waits unless the event allows
 * that; otherwise, if a tag is not available, the ticket stays as it is.
 */
static LeasePlan
decide_look(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	const TicketRow *ticket = &view->ticket;
	LeaseState	state = ticket_state(ticket, &view->lock, now);

	if (event->only_judge)
		return answer(state);
	if (state == LEASE_HELD && !ticket->claimed)
		return claim(view, event, now);
	if (ticket->state != LEASE_WAITING)
		return answer(state);
	if (state == LEASE_WAITING)
		return look_at_waiter(view, event, now);
	return write_look(view, event, state, now);
}

/* ----------------------------------------------------------------------
 * Acquisitions
 * ----------------------------------------------------------------------
 */

/* Puts a new ticket at the end of the queue. */
static LeasePlan
enqueue(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	unsigned	tags = TAG_QUEUE | request_tag(event);
	LeasePlan	plan = {0};

	if (event->left_us <= 0)
		return answer(LEASE_CONTENDED);
	/* a busy ticket tag has already been answered with "contended" */
	if (view->busy & TAG_QUEUE)
		return answer_busy(TAG_QUEUE);
	if (!has_tags(view, NAME_NONE, tags))
		return need(NAME_NONE, tags);
	if (!knows(view, PART_PLACE))
		return ask(PART_PLACE);
	if (view->queue_is_full)
		return refuse(REFUSE_FULL_QUEUE);

	plan.ticket = make_ticket(event, now);
	plan.ticket.state = LEASE_WAITING;
	plan.ticket.place = view->next_place;
	plan.ticket.wait_until = now + event->left_us;
	plan.state = LEASE_WAITING;
	if (!knows(view, PART_CYCLE))
	{
		plan.asks = PART_CYCLE;
		return plan;
	}
	if (view->closes_cycle)
		return answer(LEASE_DEADLOCK);
	refresh_liveness(&plan.ticket, event, now);
	plan.writes_ticket = true;
	plan.is_blocked = grant_is_live(&view->lock, now);
	/* if the lock is free, it may be this ticket's turn at once */
	plan.look_again = !plan.is_blocked;
	return plan;
}

/* Gives a newcomer its ticket, as a share of the grant in the plan. */
static LeasePlan
admit_newcomer(LeasePlan plan, const LeaseEvent *event, TimestampTz now)
{
	if (is_incomplete(&plan))
		return plan;
	plan.state = LEASE_HELD;
	plan.writes_ticket = true;
	plan.ticket = make_ticket(event, now);
	join_grant(&plan.lock, &plan.ticket, true, event->lease_us, now);
	return plan;
}

static LeasePlan
decide_acquire(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	unsigned	busy = view->busy & NEWCOMER_TAGS;

	if (view->has_ticket)
	{
		if (!same_identity(&view->ticket.who, &event->who))
			return refuse(REFUSE_FOREIGN_REQUEST);
		return decide_look(view, event, now);
	}
	if (busy & TAG_TICKET)
		return answer_busy(TAG_TICKET);
	if (holds(&view->lock, &event->who, now))
		return busy ? answer_busy(TAG_NAME) :
			admit_newcomer(extend_grant(view, event, now), event, now);
	if (!grant_is_live(&view->lock, now) && !busy)
	{
		if (!knows(view, PART_HEAD))
			return ask(PART_HEAD);
		if (is_free_for(view, &event->who))
			return admit_newcomer(grant_to_newcomer(view, event, now), event,
								  now);
	}

	/*
	 * a lock that is merely busy may be free in a moment, so do not queue yet
	 */
	if (event->may_queue && !(busy && event->first_try))
		return enqueue(view, event, now);
	return busy ? answer_busy(TAG_NAME) : answer(LEASE_CONTENDED);
}

/* ----------------------------------------------------------------------
 * Renewals and releases of tickets
 * ----------------------------------------------------------------------
 */

/*
 * Answers for a ticket that is no longer held.  A mere lapse is written, so
 * that the lock's time reaches this point and a clock that is set back does
 * not revive the lease.  The write is skipped if the name tag is busy.
 */
static LeasePlan
answer_ended(const LeaseView *view, LeaseState state, TimestampTz now)
{
	LeasePlan	plan = answer(state);

	if (view->ticket.state != LEASE_HELD ||
		!is_of_newest_grant(&view->ticket, &view->lock) ||
		(view->busy & TAG_NAME))
		return plan;
	if (!has_tags(view, NAME_EXTEND, 0))
		return need(NAME_EXTEND, 0);
	plan.writes_ticket = true;
	plan.ticket = view->ticket;
	write_lock(&plan, &view->lock, now);
	leave_grant(&plan.lock, &plan.ticket, LEASE_EXPIRED,
				plan.ticket.expires_at);
	plan.lock.tickets--;
	return plan;
}

/* Extends the ticket by a full lease from now, and ends lapsed shares. */
static LeasePlan
renew_ticket(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	LeasePlan	plan = {0};

	if (!has_tags(view, NAME_EXTEND, 0))
		return need_in_line(NAME_EXTEND);
	if (view->lock.tickets > 1 && !knows(view, PART_SHARES))
		return ask(PART_SHARES);
	plan.state = LEASE_HELD;
	plan.writes_ticket = true;
	plan.ticket = view->ticket;
	if (event->lease_us != 0)
		plan.ticket.lease_us = event->lease_us;
	plan.ticket.claimed = true;
	plan.ticket.expires_at = now + plan.ticket.lease_us;
	write_lock(&plan, &view->lock, now);
	if (view->lock.tickets > 1)
	{
		count_other_shares(&plan.lock, view, &view->ticket, now);
		plan.lock.has_first |= view->lock.has_first && !view->ticket.listed;
		plan.lock.tickets++;
	}
	else
		plan.lock.expires_at = NO_TIME;
	plan.lock.expires_at = Max(plan.lock.expires_at, plan.ticket.expires_at);
	plan.ends_lapsed_shares = true;
	return plan;
}

static LeasePlan
decide_renew(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	LeaseState	state = ticket_state(&view->ticket, &view->lock, now);
	LeasePlan	plan;

	if (view->ticket.state == LEASE_WAITING)
	{
		plan = decide_look(view, event, now);
		plan.look_again = plan.writes_ticket && plan.state == LEASE_HELD;
		return plan;
	}
	return state == LEASE_HELD ? renew_ticket(view, event, now) :
		answer_ended(view, state, now);
}

/*
 * Ends a wait.  The next waiter is woken, because the lock may be free for it
 * now.
 */
static LeasePlan
cancel_wait(const LeaseView *view, TimestampTz now)
{
	LeaseState	state = ticket_state(&view->ticket, &view->lock, now);
	LeasePlan	plan;

	if (view->busy & TAG_TICKET)
		return refuse(REFUSE_BUSY_TICKET);
	if (!has_tags(view, NAME_NONE, TAG_TICKET))
	{
		plan = need(NAME_NONE, TAG_TICKET);
		plan.ticket_in_line = true;
		return plan;
	}
	plan = answer(state == LEASE_WAITING ? LEASE_CANCELLED : state);
	plan.yes = state == LEASE_WAITING;
	plan.writes_ticket = true;
	plan.ticket = view->ticket;
	end_wait(&plan.ticket, plan.state, now);
	plan.wake = WAKE_NEXT;
	return plan;
}

/*
 * Whether this held ticket is the last live share of the grant.  A lapsed
 * named hold does not keep the grant alive once somebody waits.  Sets *asks to
 * the parts of the view that are needed but not yet known.
 */
static bool
is_last_share(const LeaseView *view, TimestampTz now, unsigned *asks)
{
	const LockRow *lock = &view->lock;

	if (lock->hold_expires_at > now)
		return false;
	if (lock->hold_expires_at != NO_TIME)
	{
		if (!knows(view, PART_OTHER_WAITER))
			*asks |= PART_OTHER_WAITER;
		else if (!view->has_other_waiter)
			return false;
	}
	if (lock->tickets <= 1)
		return true;
	if (!knows(view, PART_SHARES))
		*asks |= PART_SHARES;
	for (int i = 0; i < view->share_count; i++)
	{
		if (!same_ticket(&view->shares[i], &view->ticket) &&
			ticket_state(&view->shares[i], lock, now) == LEASE_HELD)
			return false;
	}
	return true;
}

/* Removes one of several shares. */
static LeasePlan
shrink_grant(const LeaseView *view, TimestampTz now)
{
	LeasePlan	plan = {0};

	if (view->lock.tickets > 1 && !knows(view, PART_SHARES))
		return ask(PART_SHARES);
	write_lock(&plan, &view->lock, now);
	count_other_shares(&plan.lock, view, &view->ticket, now);
	plan.ends_lapsed_shares = true;
	return plan;
}

static LeasePlan
release_ticket(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	unsigned	asks = 0;
	bool		last = is_last_share(view, now, &asks);
	NameMode	mode = last ? NAME_CHANGE : NAME_EXTEND;
	LeasePlan	plan;

	if (asks != 0)
		return ask(asks);
	if (!has_tags(view, mode, 0))
		return need_in_line(mode);
	plan = last ? end_grant(view, event, now) : shrink_grant(view, now);
	if (is_incomplete(&plan))
		return plan;
	plan.state = LEASE_RELEASED;
	plan.yes = true;
	plan.writes_ticket = true;
	plan.ticket = view->ticket;
	leave_grant(&plan.lock, &plan.ticket, LEASE_RELEASED, now);
	if (!plan.writes_head)
		plan.durability = LOSABLE;
	return plan;
}

/* A second, late or overtaken release changes nothing. */
static LeasePlan
decide_release(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	LeaseState	state = ticket_state(&view->ticket, &view->lock, now);

	if (view->ticket.state == LEASE_WAITING)
		return cancel_wait(view, now);
	return state == LEASE_HELD ? release_ticket(view, event, now) :
		answer_ended(view, state, now);
}

/* Ends the wait of a role that no longer may use the scope. */
static LeasePlan
decide_cancel(const LeaseView *view, TimestampTz now)
{
	if (view->ticket.state != LEASE_WAITING || view->ticket.allowed)
		return answer(ticket_state(&view->ticket, &view->lock, now));
	return cancel_wait(view, now);
}

/* ----------------------------------------------------------------------
 * Named holds
 * ----------------------------------------------------------------------
 */

/* Adds the named hold to the grant in the plan's lock row. */
static LeasePlan
admit_hold(LeasePlan plan, const LeaseEvent *event, TimestampTz now)
{
	if (is_incomplete(&plan))
		return plan;
	plan.yes = true;
	plan.lock.hold_expires_at = now + event->lease_us;
	return plan;
}

/*
 * An unlapsed named hold is left as it is: taking it again neither refreshes
 * the lease nor adds depth.
 */
static LeasePlan
decide_try_lock(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	const LockRow *lock = &view->lock;

	if (has_hold(lock, &event->who) && lock->hold_expires_at > now)
		return answer_yes(true);
	if (view->busy & NEWCOMER_TAGS)
		return answer_yes(false);
	if (holds(lock, &event->who, now))
		return admit_hold(extend_grant(view, event, now), event, now);
	if (grant_is_live(lock, now))
		return answer_yes(false);
	if (!knows(view, PART_HEAD))
		return ask(PART_HEAD);
	if (!is_free_for(view, &event->who))
		return answer_yes(false);
	return admit_hold(grant_to_newcomer(view, event, now), event, now);
}

/*
 * A lapsed hold can be renewed until somebody else is granted the lock or
 * waits.
 */
static LeasePlan
decide_renew_lock(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	LeasePlan	plan = {0};

	if (!has_hold(&view->lock, &event->who))
		return answer_yes(false);
	if (!has_tags(view, NAME_EXTEND, 0))
		return need_in_line(NAME_EXTEND);
	if (!grant_is_live(&view->lock, now))
	{
		if (!knows(view, PART_OTHER_WAITER))
			return ask(PART_OTHER_WAITER);
		if (view->has_other_waiter)
			return answer_yes(false);
	}
	write_lock(&plan, &view->lock, now);
	return admit_hold(plan, event, now);
}

/* Ends only the named hold, lapsed or not; tickets of the grant stay. */
static LeasePlan
decide_release_lock(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	bool		last = view->lock.expires_at <= now;
	NameMode	mode = last ? NAME_CHANGE : NAME_EXTEND;
	LeasePlan	plan = {0};

	if (!has_hold(&view->lock, &event->who))
		return answer_yes(false);
	if (!has_tags(view, mode, 0))
		return need_in_line(mode);
	if (last)
		plan = end_grant(view, event, now);
	else
	{
		write_lock(&plan, &view->lock, now);
		plan.lock.hold_expires_at = NO_TIME;
	}
	plan.yes = true;
	if (!plan.writes_head)
		plan.durability = LOSABLE;
	return plan;
}

/* ----------------------------------------------------------------------
 * Operators and housekeeping
 * ----------------------------------------------------------------------
 */

/* Ends a grant against its holder's will. */
static LeasePlan
break_grant(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	LeasePlan	plan;

	if (!has_tags(view, NAME_CHANGE, 0))
		return need_in_line(NAME_CHANGE);
	if (view->lock.tickets > 0 && !knows(view, PART_SHARES))
		return ask(PART_SHARES);
	plan = end_grant(view, event, now);
	if (is_incomplete(&plan))
		return plan;
	plan.yes = true;
	plan.ends_lapsed_shares = true;
	plan.shares_end = LEASE_BROKEN;
	return plan;
}

static LeasePlan
decide_break(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	if (!OidIsValid(view->lock.holder.role) ||
		view->lock.fence != event->fence)
		return answer_yes(false);
	return break_grant(view, event, now);
}

static LeasePlan
decide_break_unauthorized(const LeaseView *view, const LeaseEvent *event,
						  TimestampTz now)
{
	if (!OidIsValid(view->lock.holder.role) || view->holder_allowed)
		return answer_yes(false);
	return break_grant(view, event, now);
}

static LeasePlan
delete_ticket(NameMode name, unsigned tags, const LeaseView *view)
{
	LeasePlan	plan = {0};

	if (view->busy & (tags | (name != NAME_NONE ? TAG_NAME : 0)))
		return answer_yes(false);
	if (!has_tags(view, name, tags))
		return need(name, tags);
	plan.yes = true;
	plan.deletes_ticket = true;
	return plan;
}

/*
 * Nobody writes a ticket that has ended or whose grant is no longer the
 * newest, so removing it needs no tag.
 */
static LeasePlan
decide_prune_ticket(const LeaseView *view, const LeaseEvent *event)
{
	const TicketRow *ticket = &view->ticket;
	LeasePlan	plan;

	if (ticket->state == LEASE_GONE)
		return answer_yes(false);
	if (ticket->state == LEASE_WAITING)
		return ticket->wait_until >= event->before ? answer_yes(false) :
			delete_ticket(NAME_NONE, TAG_TICKET, view);
	if (ticket->state != LEASE_HELD)
		return ticket->ended_at >= event->before ? answer_yes(false) :
			delete_ticket(NAME_NONE, 0, view);
	if (ticket->expires_at >= event->before)
		return answer_yes(false);
	if (!is_of_newest_grant(ticket, &view->lock))
		return delete_ticket(NAME_NONE, 0, view);
	plan = delete_ticket(NAME_CHANGE, 0, view);
	if (!plan.deletes_ticket)
		return plan;
	plan.writes_lock = true;
	plan.lock = view->lock;
	plan.lock.tickets--;
	if (!ticket->listed)
		plan.lock.has_first = false;
	return plan;
}

/* Whether nobody has held or written a lock since the given time. */
static bool
is_idle(const LockRow *lock, TimestampTz before)
{
	return lock->changed_at < before && grant_until(lock) < before;
}

/* The floor must cover the fence of a lock whose row is removed. */
static LeasePlan
decide_prune_lock(const LeaseView *view, const LeaseEvent *event)
{
	unsigned	tags = TAG_QUEUE;
	LeasePlan	plan = {0};

	if (!ItemPointerIsValid(&view->lock.version.tid) ||
		!is_idle(&view->lock, event->before) ||
		(view->busy & (TAG_NAME | TAG_QUEUE | TAG_FLOOR)))
		return answer_yes(false);
	if (!has_tags(view, NAME_CHANGE, tags))
		return need(NAME_CHANGE, tags);
	if (!knows(view, PART_QUEUED | PART_FLOOR))
		return ask(PART_QUEUED | PART_FLOOR);
	if (view->is_queued)
		return answer_yes(false);
	plan.raises_floor = view->lock.fence > view->floor_fence;
	if (plan.raises_floor)
		tags |= TAG_FLOOR;
	if (!has_tags(view, NAME_CHANGE, tags))
		return need(NAME_CHANGE, tags);
	plan.yes = true;
	plan.deletes_lock = true;
	return plan;
}

/* ---------------------------------------------------------------------- */

/* What follows from an event. */
LeasePlan
decide(const LeaseView *view, const LeaseEvent *event, TimestampTz now)
{
	switch (event->kind)
	{
		case EVENT_ACQUIRE:
			return decide_acquire(view, event, now);
		case EVENT_LOOK:
			return decide_look(view, event, now);
		case EVENT_RENEW:
			return decide_renew(view, event, now);
		case EVENT_RELEASE:
			return decide_release(view, event, now);
		case EVENT_CANCEL:
			return decide_cancel(view, now);
		case EVENT_TRY_LOCK:
			return decide_try_lock(view, event, now);
		case EVENT_RENEW_LOCK:
			return decide_renew_lock(view, event, now);
		case EVENT_RELEASE_LOCK:
			return decide_release_lock(view, event, now);
		case EVENT_BREAK:
			return decide_break(view, event, now);
		case EVENT_BREAK_UNAUTHORIZED:
			return decide_break_unauthorized(view, event, now);
		case EVENT_PRUNE_TICKET:
			return decide_prune_ticket(view, event);
		case EVENT_PRUNE_LOCK:
			return decide_prune_lock(view, event);
	}
	return answer(LEASE_GONE);
}
