/*-------------------------------------------------------------------------
 *
 * promises.c
 *	  The promises that every plan must keep.
 *
 * The judgements here are written independently from the contract, not taken
 * from decide.c, and count rows where decide.c trusts the lock's row.  So an
 * error in a judgement of the rules shows as an error in a plan.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

/* ----------------------------------------------------------------------
 * Results
 * ----------------------------------------------------------------------
 */

/* How many counterexamples are shown for each promise. */
#define SHOWN	2

static const char *const names[PROMISES] = {
	[PROGRESS] = "an incomplete plan asks for something new that it can get",
	[WRITES_WHEN_COMPLETE] = "an incomplete plan writes nothing",
	[ONE_HOLDER] = "a live grant ends only by release or break, and a new one begins only where none is live",
	[FENCE_GROWS] = "a new grant has the next fence, and every other plan keeps the fence",
	[FIRST_IN_FIRST_OUT] = "the lock goes to the identity at the head of the queue",
	[OTHERS_UNTOUCHED] = "other tickets change only by promotion or break",
	[TAGS_COVER] = "the held tags cover what is written",
	[TAGS_SUFFICE] = "under its tags a plan needs no more tags, and its name tag is not higher than necessary",
	[NO_WRITE_WITHOUT_PLACE] = "nothing is written for a contended or refused request, or one that would close a cycle",
	[STATE_DIAGRAM] = "a ticket's state changes as the state diagram allows",
	[STATE_STORED] = "the state in the answer is that of the written rows",
	[ASKED_AGAIN] = "a second look, at the written rows, agrees",
	[LOCK_ROW] = "the lock's row agrees with its tickets",
	[TICKET_ROWS] = "a ticket's row matches its state",
	[PASSED_MARK] = "the passed mark never moves back, and passes no live waiter of another identity",
	[RENEWAL_SHORTENS_NOBODY] = "extending a grant shortens no other share",
	[RELEASE_KEEPS_OTHERS] = "releasing one of several shares keeps the others",
	[WAKES] = "the waiter whose turn has come is woken",
	[DURABILITY] = "grants and new shares are ACKNOWLEDGED, releases that promote nobody LOSABLE, others DURABLE",
	[LENGTHS] = "leases and waits have the requested lengths",
	[EVENTS_COMPLETE] = "each change has its event, each grant one beginning, each lapsed grant an expiry",
	[ANSWERS] = "with free tags the answer is that of the contract",
	[BUSY_ANSWERS] = "with busy tags the answer is the same, or one that grants nothing",
	[JUDGEMENTS] = "judgements of states, liveness and depth match the rows",
	[FENCE_VERDICTS] = "verdicts on fences match the lock's row",
	[SIPHASH] = "siphash matches the vectors published with its paper"
};

static const char *const kinds[] = {
	[EVENT_ACQUIRE] = "acquire",
	[EVENT_LOOK] = "look",
	[EVENT_RENEW] = "renew",
	[EVENT_RELEASE] = "release",
	[EVENT_CANCEL] = "cancel",
	[EVENT_TRY_LOCK] = "try_lock",
	[EVENT_RENEW_LOCK] = "renew_lock",
	[EVENT_RELEASE_LOCK] = "release_lock",
	[EVENT_BREAK] = "break",
	[EVENT_BREAK_UNAUTHORIZED] = "break_unauthorized",
	[EVENT_PRUNE_TICKET] = "prune_ticket",
	[EVENT_PRUNE_LOCK] = "prune_lock"
};

static const char *const states[] = {
	[LEASE_HELD] = "held",
	[LEASE_WAITING] = "waiting",
	[LEASE_CONTENDED] = "contended",
	[LEASE_DEADLOCK] = "deadlock",
	[LEASE_RELEASED] = "released",
	[LEASE_EXPIRED] = "expired",
	[LEASE_TIMED_OUT] = "timed_out",
	[LEASE_CANCELLED] = "cancelled",
	[LEASE_BROKEN] = "broken",
	[LEASE_GONE] = "gone"
};

bool		stop_at_first = false;

long		checks[PROMISES];
static long violations[PROMISES];

/* Prints the results as TAP; returns how many promises are not kept. */
int
report_promises(void)
{
	int			failed = 0;

	for (int i = 0; i < PROMISES; i++)
	{
		/* a promise that was never checked does not count as kept */
		bool		kept = checks[i] > 0 && violations[i] == 0;

		printf("%s %d - %s (%ld of %ld)\n", kept ? "ok" : "not ok", i + 1,
			   names[i], checks[i] - violations[i], checks[i]);
		failed += !kept;
	}
	printf("1..%d\n", PROMISES);
	return failed;
}

static char
identity_letter(const Identity *who)
{
	if (who->role == InvalidOid)
		return '-';
	if (who->role == identities[C].role)
		return 'C';
	return who->owner[0] == 'a' ? 'A' : 'B';
}

/* A time, relative to now. */
static const char *
offset(TimestampTz time)
{
	static char buffers[8][24];
	static int	next = 0;
	char	   *buffer = buffers[next++ % (int) lengthof(buffers)];

	if (time == NO_TIME)
		return "none";
	snprintf(buffer, sizeof(buffers[0]), "%+ld", (long) (time - NOW));
	return buffer;
}

static void
show_world(const World *world)
{
	const LockRow *lock = &world->lock;

	printf("#   lock %s: holder %c fence %ld passed %ld tickets %d first %d expires %s hold %s; allowed %d%d%s%s%s\n",
		   ItemPointerIsValid(&lock->version.tid) ? "row" : "without row",
		   identity_letter(&lock->holder), (long) lock->fence,
		   (long) lock->passed, lock->tickets, lock->has_first,
		   offset(lock->expires_at), offset(lock->hold_expires_at),
		   world->role_allowed[0], world->role_allowed[1],
		   world->crowded ? " crowded" : "", world->is_full ? " full" : "",
		   world->has_cycle ? " cycle" : "");
	for (int i = 0; i < world->count; i++)
	{
		const TicketRow *ticket = &world->tickets[i];

		printf("#   ticket %d of %c %s: place %ld fence %ld%s%s expires %s wait %s alive %s pid %d%s\n",
			   i, identity_letter(&ticket->who), states[ticket->state],
			   (long) ticket->place, (long) ticket->fence,
			   ticket->listed ? " listed" : "",
			   ticket->claimed ? " claimed" : "", offset(ticket->expires_at),
			   offset(ticket->wait_until), offset(ticket->alive_until),
			   ticket->waiter_pid, world->attended[i] ? " attended" : "");
	}
}

static void
show_event(const Play *play)
{
	const LeaseEvent *event = &play->event;
	const LeasePlan *plan = &play->plan;

	printf("#   %s of ticket %d by %c:%s%s%s%s%s%s%s left %ld lease %ld; has name %d tags %02x busy %02x\n",
		   kinds[event->kind], play->ticket, identity_letter(&event->who),
		   event->has_request_id ? " request" : "",
		   event->may_queue ? " may_queue" : "",
		   event->first_try ? " first_try" : "",
		   event->silent ? " silent" : "",
		   event->attending ? " attending" : "",
		   event->leave_waiting ? " leave_waiting" : "",
		   event->only_judge ? " only_judge" : "",
		   (long) event->left_us, (long) event->lease_us, play->view.name,
		   play->view.tags, play->view.busy);
	printf("#   plan: %s yes %d refusal %d; asks %02x needs %d/%02x optional %02x;%s%s%s%s%s%s%s holder %c fence %ld wake %d durability %d\n",
		   states[plan->state], plan->yes, plan->refusal, plan->asks,
		   plan->needs_name, plan->needs_tags, plan->optional_tags,
		   plan->writes_lock ? " lock" : "",
		   plan->writes_ticket ? " ticket" : "",
		   plan->writes_head ? " head" : "",
		   plan->begins_grant ? " begins" : "",
		   plan->ends_grant ? " ends" : "",
		   plan->deletes_lock ? " deletes lock" : "",
		   plan->deletes_ticket ? " deletes ticket" : "",
		   identity_letter(&plan->lock.holder), (long) plan->lock.fence,
		   plan->wake, plan->durability);
}

/* Counts a failed check, and shows the world and the event. */
void
report_violation(Promise promise, const Play *play, const char *detail)
{
	if (violations[promise]++ < SHOWN)
	{
		printf("# violated: %s: %s\n", names[promise], detail);
		if (play != NULL)
		{
			show_world(play->world);
			show_event(play);
		}
	}
	if (stop_at_first)
		exit(1);
}

/* ----------------------------------------------------------------------
 * The judgements of the contract, from the rows
 * ----------------------------------------------------------------------
 */

static bool
is_same(const Identity *a, const Identity *b)
{
	return a->role != InvalidOid && a->role == b->role &&
		a->owner[0] == b->owner[0];
}

static bool
is_allowed(const World *world, const Identity *who)
{
	return who->role != InvalidOid && world->role_allowed[who->role - 1];
}

/* Whether a ticket belongs to the lock's grant, according to the rows. */
static bool
is_member(const World *world, int i)
{
	const TicketRow *ticket = &world->tickets[i];

	return ticket->state == LEASE_HELD &&
		ticket->fence == world->lock.fence &&
		is_same(&ticket->who, &world->lock.holder);
}

static bool
is_live_member(const World *world, int i)
{
	return is_member(world, i) && world->tickets[i].expires_at > NOW;
}

static int
live_tickets(const World *world)
{
	int			count = 0;

	for (int i = 0; i < world->count; i++)
		count += is_live_member(world, i);
	return count;
}

static bool
has_live_hold(const World *world)
{
	return world->lock.holder.role != InvalidOid &&
		world->lock.hold_expires_at > NOW;
}

static int
live_shares(const World *world)
{
	return live_tickets(world) + has_live_hold(world);
}

bool
is_held(const World *world)
{
	return live_shares(world) > 0;
}

static bool
is_held_by(const World *world, const Identity *who)
{
	return is_held(world) && is_same(&world->lock.holder, who);
}

static bool
has_hold(const World *world, const Identity *who)
{
	return is_same(&world->lock.holder, who) &&
		world->lock.hold_expires_at != NO_TIME;
}

static bool
is_live_waiter(const World *world, int i)
{
	const TicketRow *ticket = &world->tickets[i];

	return ticket->state == LEASE_WAITING && ticket->wait_until > NOW &&
		is_allowed(world, &ticket->who) &&
		(ticket->alive_until > NOW || world->attended[i]) &&
		(ticket->place > world->lock.passed ||
		 is_held_by(world, &ticket->who));
}

/* The live waiter whose turn is next, or -1. */
int
first_waiter(const World *world)
{
	for (int i = 0; i < world->count; i++)
	{
		if (is_live_waiter(world, i) &&
			world->tickets[i].place > world->lock.passed)
			return i;
	}
	return -1;
}

/* Whether anybody but the holder waits. */
static bool
has_other_waiter(const World *world)
{
	for (int i = 0; i < world->count; i++)
	{
		if (is_live_waiter(world, i) &&
			!is_same(&world->tickets[i].who, &world->lock.holder))
			return true;
	}
	return false;
}

/* Whether an identity would be granted the lock if it requested it now. */
static bool
has_turn(const World *world, const Identity *who)
{
	int			first = first_waiter(world);

	if (is_held(world))
		return is_same(&world->lock.holder, who);
	return first < 0 || is_same(&world->tickets[first].who, who);
}

/* Whether an identity has to wait for another, at a place or (0) at the end. */
bool
is_blocked(const World *world, const Identity *who, int64 place)
{
	int			first = first_waiter(world);

	if (is_held(world))
		return !is_same(&world->lock.holder, who);
	return !has_turn(world, who) &&
		(place == 0 || world->tickets[first].place < place);
}

static LeaseState
state_of(const World *world, int i)
{
	const TicketRow *ticket = &world->tickets[i];

	if (ticket->state == LEASE_HELD)
		return is_live_member(world, i) ? LEASE_HELD : LEASE_EXPIRED;
	if (ticket->state != LEASE_WAITING)
		return ticket->state;
	if (is_live_waiter(world, i))
		return LEASE_WAITING;
	return ticket->wait_until > NOW && !is_allowed(world, &ticket->who) ?
		LEASE_CANCELLED : LEASE_TIMED_OUT;
}

/* The state of the event's ticket before it; "contended" if there is none. */
static LeaseState
state_before(const Play *play, const World *before)
{
	return play->ticket >= 0 && play->ticket < before->count ?
		state_of(before, play->ticket) : LEASE_CONTENDED;
}

/* Whether an event may end the lock's grant. */
static bool
may_end_grant(const Play *play, const World *world)
{
	const LeaseEvent *event = &play->event;

	switch (event->kind)
	{
		case EVENT_BREAK:
			return event->fence == world->lock.fence;
		case EVENT_BREAK_UNAUTHORIZED:
			return !is_allowed(world, &world->lock.holder);
		case EVENT_RELEASE:
			return is_live_member(world, play->ticket) &&
				live_shares(world) == 1;
		case EVENT_RELEASE_LOCK:
			return has_hold(world, &event->who) && live_tickets(world) == 0;
		default:
			return false;
	}
}

/* ----------------------------------------------------------------------
 * Plans that are not complete
 * ----------------------------------------------------------------------
 */

void
check_incomplete(const Play *play)
{
	const LeaseView *view = &play->view;
	const LeasePlan *plan = &play->plan;
	bool		needs = plan->needs_name != NAME_NONE || plan->needs_tags != 0;
	bool		progress;

	if (plan->asks != 0)
		progress = (plan->asks & view->known) == 0;
	else if (needs)
		progress = (plan->needs_tags & view->busy) == 0 &&
			!(plan->needs_name != NAME_NONE && (view->busy & TAG_NAME) &&
			  !plan->name_in_line) &&
			(plan->needs_name > view->name ||
			 (plan->needs_tags & ~view->tags) != 0);
	else
		progress = (plan->optional_tags & (view->tags | view->busy)) == 0;
	check(PROGRESS, progress, play, "it is already known, held or busy");
	check(WRITES_WHEN_COMPLETE, !plan->writes_lock && !plan->writes_head &&
		  !plan->writes_ticket && !plan->deletes_lock &&
		  !plan->deletes_ticket && !plan->begins_grant && !plan->ends_grant,
		  play, "it writes");
	/* only pruning a lock learns late that it needs the floor's tag */
	if (needs)
		check(TAGS_SUFFICE, play->met_busy ||
			  play->needs <= (play->event.kind == EVENT_PRUNE_LOCK),
			  play, "it needs more tags");
}

/* ----------------------------------------------------------------------
 * Grants
 * ----------------------------------------------------------------------
 */

static void
check_one_holder(const Play *play, const World *before, const World *after)
{
	const LeasePlan *plan = &play->plan;
	bool		same = after->lock.fence == before->lock.fence &&
		is_same(&after->lock.holder, &before->lock.holder);

	if (is_held(before) && !same)
		check(ONE_HOLDER, may_end_grant(play, before), play,
			  "a live grant is gone");
	if (plan->begins_grant)
		check(ONE_HOLDER, is_held(after) &&
			  (!is_held(before) || may_end_grant(play, before)), play,
			  "a grant begins in vain, or too early");
	else
		check(ONE_HOLDER, same || after->lock.holder.role == InvalidOid, play,
			  "the holder changes without a grant");
	if (!is_held(before) && is_held(after) && !plan->begins_grant)
		check(ONE_HOLDER, play->event.kind == EVENT_RENEW_LOCK &&
			  has_hold(before, &play->event.who) && !has_other_waiter(before),
			  play,
			  "a lapsed grant is live again");
	check(ONE_HOLDER, !plan->ends_grant || plan->begins_grant ||
		  !is_held(after), play, "an ended grant is live");
}

static void
check_fence(const Play *play, const World *before, const World *after)
{
	const LeasePlan *plan = &play->plan;

	if (plan->begins_grant)
		check(FENCE_GROWS, after->lock.fence > before->lock.fence &&
			  after->lock.fence == before->next_fence, play,
			  "the fence is not the next");
	else if (plan->deletes_lock)
		check(FENCE_GROWS, after->floor_fence >= before->lock.fence, play,
			  "the floor does not cover it");
	else
		check(FENCE_GROWS, after->lock.fence == before->lock.fence, play,
			  "the fence changes");
	if (plan->writes_ticket && plan->ticket.state == LEASE_HELD)
		check(FENCE_GROWS, plan->ticket.fence == after->lock.fence, play,
			  "the ticket has another fence");
}

/* Who is granted the lock, who is promoted, and where a place is assigned. */
static void
check_order(const Play *play, const World *before, const World *after)
{
	const LeasePlan *plan = &play->plan;
	int			first = first_waiter(before);

	if (plan->begins_grant && first >= 0)
		check(FIRST_IN_FIRST_OUT, is_same(&before->tickets[first].who,
										  &after->lock.holder), play,
			  "a waiter is overtaken");
	if (plan->writes_head)
		check(FIRST_IN_FIRST_OUT, first >= 0 &&
			  same_uuid(&plan->head.ticket, &before->tickets[first].ticket),
			  play, "another is promoted");
	if (plan->writes_ticket && plan->ticket.state == LEASE_HELD &&
		state_before(play, before) != LEASE_HELD && !plan->begins_grant)
		check(FIRST_IN_FIRST_OUT, is_held_by(before, &plan->ticket.who), play,
			  "somebody joins the grant of another");
	if (after->count <= before->count ||
		after->tickets[before->count].state != LEASE_WAITING)
		return;
	for (int i = 0; i < before->count; i++)
		check(FIRST_IN_FIRST_OUT, before->tickets[i].place <
			  after->tickets[before->count].place, play,
			  "a place is not at the end");
	check(FIRST_IN_FIRST_OUT, after->tickets[before->count].place >
		  before->lock.passed, play, "a place is already passed");
}

/* A grant or release that finds many dead waiters and no live one passes them. */
static void
check_dead_passed(const Play *play, const World *before, const World *after)
{
	const LeaseView *view = &play->view;
	const LeasePlan *plan = &play->plan;
	bool		finds = plan->writes_head || plan->from_queue ? false :
		plan->begins_grant || (plan->ends_grant && first_waiter(before) < 0);

	if (!finds || view->dead_waiters < MANY_DEAD)
		return;
	check(PASSED_MARK, play->met_busy || (view->tags & TAG_QUEUE) != 0, play,
		  "the queue tag was not tried");
	if (view->tags & TAG_QUEUE)
		check(PASSED_MARK, after->lock.passed >= view->dead_place, play,
			  "dead waiters are not passed");
}

static void
check_passed(const Play *play, const World *before, const World *after)
{
	check_dead_passed(play, before, after);
	check(PASSED_MARK, play->plan.deletes_lock ||
		  after->lock.passed >= before->lock.passed, play, "it moves back");
	for (int i = 0; i < before->count; i++)
	{
		const TicketRow *ticket = &before->tickets[i];

		/* the other waiters of the granted identity share its turn */
		if (is_live_waiter(before, i) &&
			ticket->place > before->lock.passed &&
			!(play->plan.begins_grant &&
			  is_same(&ticket->who, &after->lock.holder)))
			check(PASSED_MARK, ticket->place > after->lock.passed, play,
				  "a live waiter is passed");
		/* otherwise a dead waiter could poll again, and be first again */
		if (play->plan.begins_grant && (play->plan.from_queue ||
										play->plan.writes_head))
			check(PASSED_MARK, ticket->place <= after->lock.passed ||
				  ticket->place > before->tickets[first_waiter(before)].place,
				  play, "an earlier waiter is not passed");
	}
}

/* ----------------------------------------------------------------------
 * Tags
 * ----------------------------------------------------------------------
 */

/* The mode of the name tag that the writes require. */
static NameMode
required_name(const Play *play, const World *before)
{
	const LeasePlan *plan = &play->plan;

	if (plan->begins_grant || plan->ends_grant || plan->deletes_lock ||
		(plan->deletes_ticket && is_member(before, play->ticket)))
		return NAME_CHANGE;
	if (plan->writes_lock ||
		(plan->writes_ticket && play->ticket >= 0 &&
		 before->tickets[play->ticket].state == LEASE_HELD))
		return NAME_EXTEND;
	return NAME_NONE;
}

/* The last place that a grant from the queue passes. */
static int64
passed_by_grant(const Play *play, const World *before)
{
	int			first = first_waiter(before);

	return first >= 0 && (play->plan.from_queue || play->plan.writes_head) ?
		before->tickets[first].place : 0;
}

static unsigned
required_tags(const Play *play, const World *before, const World *after)
{
	const LeasePlan *plan = &play->plan;
	unsigned	tags = 0;
	bool		waited = play->ticket >= 0 &&
		before->tickets[play->ticket].state == LEASE_WAITING;

	if ((plan->writes_ticket || plan->deletes_ticket) && waited)
		tags |= TAG_TICKET;
	if (plan->writes_ticket && play->ticket < 0)
	{
		if (plan->ticket.has_request_id)
			tags |= TAG_TICKET;
		if (plan->ticket.state == LEASE_WAITING)
			tags |= TAG_QUEUE;
	}
	if (plan->deletes_lock || after->lock.passed >
		Max(before->lock.passed, passed_by_grant(play, before)))
		tags |= TAG_QUEUE;
	if (plan->begins_grant)
		tags |= TAG_SCOPE;
	if (plan->writes_head)
		tags |= TAG_HEAD;
	if (plan->raises_floor)
		tags |= TAG_FLOOR;
	return tags;
}

bool
writes_anything(const LeasePlan *plan)
{
	return plan->writes_lock || plan->writes_ticket || plan->writes_head ||
		plan->deletes_lock || plan->deletes_ticket || plan->raises_floor;
}

static void
check_tags(const Play *play, const World *before, const World *after)
{
	const LeaseView *view = &play->view;
	NameMode	name = required_name(play, before);
	unsigned	tags = required_tags(play, before, after);

	check(TAGS_COVER, view->name >= name, play, "the name tag is too low");
	check(TAGS_COVER, (view->tags & tags) == tags, play, "a tag is missing");
	if (writes_anything(&play->plan))
		check(TAGS_SUFFICE, view->name <= name, play,
			  "the name tag is higher than necessary");
	else
		check(TAGS_COVER, !play->plan.begins_grant && !play->plan.ends_grant &&
			  !play->plan.ends_lapsed_shares, play, "only a part is written");
}

/* ----------------------------------------------------------------------
 * Rows
 * ----------------------------------------------------------------------
 */

/* The latest expiry of the live tickets of a grant. */
static TimestampTz
latest_expiry(const World *world)
{
	TimestampTz latest = NO_TIME;

	for (int i = 0; i < world->count; i++)
	{
		if (is_live_member(world, i))
			latest = Max(latest, world->tickets[i].expires_at);
	}
	return latest;
}

static void
check_members(const Play *play, const World *after)
{
	const LockRow *lock = &after->lock;
	int			members = 0;
	int			unlisted = 0;
	bool		first_found = false;

	for (int i = 0; i < after->count; i++)
	{
		if (!is_member(after, i))
			continue;
		members++;
		unlisted += !after->tickets[i].listed;
		first_found |= !after->tickets[i].listed && lock->has_first &&
			same_uuid(&after->tickets[i].ticket, &lock->first_ticket);
	}
	check(LOCK_ROW, lock->tickets == members, play,
		  "the number of tickets is wrong");
	check(LOCK_ROW, unlisted == lock->has_first &&
		  first_found == lock->has_first, play, "the first ticket is wrong");
	if (live_tickets(after) > 0)
		check(LOCK_ROW, lock->expires_at == latest_expiry(after), play,
			  "the expiry is not the latest");
	else
		check(LOCK_ROW, lock->expires_at <= NOW, play,
			  "no ticket expires so late");
}

static void
check_lock_row(const Play *play, const World *after)
{
	const LockRow *lock = &after->lock;

	check_members(play, after);
	if (lock->holder.role == InvalidOid)
		check(LOCK_ROW, lock->holder.owner == NULL && lock->tickets == 0 &&
			  lock->expires_at == NO_TIME && !lock->has_first &&
			  lock->hold_expires_at == NO_TIME &&
			  lock->granted_at == NO_TIME &&
			  !FullTransactionIdIsValid(lock->granted_xid), play,
			  "a lock without a holder keeps traces of a grant");
	else
		check(LOCK_ROW, lock->holder.owner != NULL &&
			  lock->granted_at != NO_TIME, play, "the holder is incomplete");
	if (play->plan.writes_lock && play->event.kind != EVENT_PRUNE_TICKET)
		check(LOCK_ROW, lock->changed_at == NOW, play, "changed_at is not now");
	if (play->plan.begins_grant)
		check(LOCK_ROW, lock->granted_at == NOW, play, "granted_at is not now");
}

static void
check_ticket_row(const Play *play, const TicketRow *ticket)
{
	bool		waits = ticket->state == LEASE_WAITING;
	bool		ended = !waits && ticket->state != LEASE_HELD;

	check(TICKET_ROWS, (ticket->place > 0) == waits, play, "the place");
	check(TICKET_ROWS, waits || ticket->waiter_pid == 0, play, "the backend");
	check(TICKET_ROWS, !waits || ticket->wait_until > NOW, play, "the wait");
	check(TICKET_ROWS, ticket->wait_until != NO_TIME ||
		  (!waits && ticket->alive_until == NO_TIME), play,
		  "the end of the wait is missing");
	check(TICKET_ROWS, ticket->state == LEASE_HELD || !ticket->listed, play,
		  "it is listed, but not held");
	check(TICKET_ROWS, (ticket->ended_at != NO_TIME) == ended &&
		  ticket->ended_at <= NOW, play, "the end");
	check(TICKET_ROWS, ticket->state != LEASE_HELD ||
		  ticket->expires_at > NOW, play, "the lease");
	check(TICKET_ROWS, ticket->state != LEASE_CONTENDED &&
		  ticket->state != LEASE_GONE, play, "the state is never stored");
}

/* Checks the columns that never change. */
static void
check_ticket_kept(const Play *play, const TicketRow *old, const TicketRow *new)
{
	check(TICKET_ROWS, same_uuid(&old->ticket, &new->ticket) &&
		  is_same(&old->who, &new->who) &&
		  old->has_request_id == new->has_request_id &&
		  same_uuid(&old->request_id, &new->request_id) &&
		  old->requested_at == new->requested_at &&
		  old->wait_until == new->wait_until, play, "it is another ticket");
}

static void
check_new_ticket(const Play *play)
{
	const TicketRow *ticket = &play->plan.ticket;
	const LeaseEvent *event = &play->event;

	check(TICKET_ROWS, is_same(&ticket->who, &event->who) &&
		  same_uuid(&ticket->ticket, &event->ticket) &&
		  ticket->has_request_id == event->has_request_id &&
		  same_uuid(&ticket->request_id, &event->request_id) &&
		  ticket->key.name == event->key.name &&
		  ticket->lease_us == event->lease_us &&
		  ticket->requested_at == NOW &&
		  (ticket->wait_until != NO_TIME) == (ticket->state == LEASE_WAITING) &&
		  !ItemPointerIsValid(&ticket->version.tid), play,
		  "not the requested ticket");
}

static void
check_ticket_rows(const Play *play, const World *before)
{
	const LeasePlan *plan = &play->plan;

	if (plan->writes_ticket)
	{
		check_ticket_row(play, &plan->ticket);
		if (play->ticket >= 0)
			check_ticket_kept(play, &before->tickets[play->ticket],
							  &plan->ticket);
		else
			check_new_ticket(play);
	}
	if (plan->writes_head && first_waiter(before) >= 0)
	{
		check_ticket_row(play, &plan->head);
		check_ticket_kept(play, &before->tickets[first_waiter(before)],
						  &plan->head);
	}
}

/* ----------------------------------------------------------------------
 * States
 * ----------------------------------------------------------------------
 */

/* Whether section 2 of the contract lets one state follow another. */
static bool
may_follow(LeaseState from, LeaseState to)
{
	if (from == to)
		return true;
	if (from == LEASE_WAITING)
		return to == LEASE_HELD || to == LEASE_CANCELLED ||
			to == LEASE_DEADLOCK;
	return from == LEASE_HELD && to == LEASE_RELEASED;
}

static bool
is_of_ticket(EventKind kind)
{
	return kind == EVENT_ACQUIRE || kind == EVENT_LOOK || kind == EVENT_RENEW ||
		kind == EVENT_RELEASE || kind == EVENT_CANCEL;
}

/*
 * The answer to a request that could have waited names the busy tag; instead of
 * a scope's tag it names the name tag.
 */
static void
check_contended(const Play *play)
{
	const LeaseEvent *event = &play->event;
	unsigned	busy = play->view.busy;
	unsigned	retry_after = play->plan.retry_after;

	check(NO_WRITE_WITHOUT_PLACE, !writes_anything(&play->plan), play,
		  "contended");
	if (retry_after != 0)
		check(BUSY_ANSWERS, (retry_after & busy) != 0 ||
			  (retry_after == TAG_NAME && (busy & TAG_SCOPE)), play,
			  "the tag that it names is not busy");
	else
		check(BUSY_ANSWERS, !event->may_queue || event->left_us <= 0, play,
			  "it names no busy tag");
}

static void
check_state(const Play *play, const World *before, const World *after)
{
	const LeasePlan *plan = &play->plan;
	LeaseState	state = plan->state;
	int			i = play->ticket >= 0 ? play->ticket : before->count;

	if (!is_of_ticket(play->event.kind) || plan->refusal != NOT_REFUSED)
		return;
	if (play->ticket >= 0)
		check(STATE_DIAGRAM, may_follow(state_before(play, before), state),
			  play, "no such transition");
	else if (!play->view.has_ticket)
		check(STATE_DIAGRAM, state == LEASE_HELD || state == LEASE_WAITING ||
			  state == LEASE_CONTENDED || state == LEASE_DEADLOCK, play,
			  "not an initial state");
	if (plan->writes_ticket)
		check(STATE_STORED, plan->ticket.state == state, play,
			  "another state is written");
	if (i < after->count)
		check(STATE_STORED, state_of(after, i) == state, play,
			  "the rows say another state");
	else if (!play->view.has_ticket)
		check(STATE_STORED, state == LEASE_CONTENDED ||
			  state == LEASE_DEADLOCK, play, "there is no ticket");
	if (state == LEASE_CONTENDED)
		check_contended(play);
}

/* Whether a ticket other than the event's may change to a state. */
static bool
may_become(const Play *play, const World *before, const World *after, int i,
		   LeaseState to)
{
	const LeasePlan *plan = &play->plan;
	LeaseState	from = state_of(before, i);
	bool		broken = play->event.kind == EVENT_BREAK ||
		play->event.kind == EVENT_BREAK_UNAUTHORIZED;

	/* its place was passed, but its owner is now granted the lock */
	if (to == LEASE_WAITING && from == LEASE_TIMED_OUT)
		return before->tickets[i].place <= before->lock.passed &&
			is_held_by(after, &before->tickets[i].who) &&
			(plan->begins_grant || play->event.kind == EVENT_RENEW_LOCK);
	if (to == LEASE_HELD && from == LEASE_WAITING)
		return plan->writes_head && i == first_waiter(before);
	if (to == LEASE_BROKEN && from == LEASE_HELD)
		return broken && may_end_grant(play, before);
	/* its place was passed, and the grant that kept it alive ends */
	if (to == LEASE_TIMED_OUT && from == LEASE_WAITING)
		return before->tickets[i].place <= before->lock.passed &&
			!is_held_by(after, &before->tickets[i].who);
	return from == to;
}

static void
check_others(const Play *play, const World *before, const World *after)
{
	for (int i = 0; i < before->count; i++)
	{
		int			j = find_ticket(after, &before->tickets[i].ticket);

		if (i == play->ticket)
			continue;
		check(OTHERS_UNTOUCHED, j >= 0, play, "a ticket is gone");
		if (j < 0)
			continue;
		check(OTHERS_UNTOUCHED, may_become(play, before, after, i,
										   state_of(after, j)), play,
			  "a state changes");
		if (state_of(before, i) == LEASE_WAITING &&
			state_of(after, j) == LEASE_WAITING)
			check(OTHERS_UNTOUCHED, memcmp(&before->tickets[i],
										   &after->tickets[j],
										   sizeof(TicketRow)) == 0, play,
				  "a waiting ticket is written");
	}
	check(OTHERS_UNTOUCHED, !play->plan.writes_head ||
		  (play->plan.ends_grant && play->plan.begins_grant), play,
		  "the head is written without a promotion");
}

/* ----------------------------------------------------------------------
 * Shares
 * ----------------------------------------------------------------------
 */

static void
check_extension(const Play *play, const World *before, const World *after)
{
	if (!is_held(before) || !is_held(after) ||
		after->lock.fence != before->lock.fence)
		return;
	for (int i = 0; i < before->count; i++)
	{
		if (i == play->ticket || !is_live_member(before, i))
			continue;
		check(RENEWAL_SHORTENS_NOBODY, is_live_member(after, i) &&
			  after->tickets[i].expires_at == before->tickets[i].expires_at &&
			  after->lock.expires_at >= before->tickets[i].expires_at, play,
			  "a ticket is shortened");
	}
	if (play->event.kind != EVENT_RELEASE_LOCK)
		check(RENEWAL_SHORTENS_NOBODY, after->lock.hold_expires_at >=
			  before->lock.hold_expires_at, play, "the hold is shortened");
}

/* Checks the shares that are left after one of them was released. */
static void
check_release(const Play *play, const World *before, const World *after)
{
	const LeaseEvent *event = &play->event;
	bool		stays;
	int			left;

	if (event->kind == EVENT_RELEASE &&
		state_before(play, before) == LEASE_HELD)
	{
		left = live_shares(before) - 1;
		stays = left > 0 || (before->lock.hold_expires_at != NO_TIME &&
							 !has_other_waiter(before));
	}
	else if (event->kind == EVENT_RELEASE_LOCK &&
			 has_hold(before, &event->who))
	{
		left = live_tickets(before);
		stays = left > 0;
		check(RELEASE_KEEPS_OTHERS, after->lock.hold_expires_at == NO_TIME,
			  play, "the hold stays");
	}
	else
		return;
	check(RELEASE_KEEPS_OTHERS, stays != play->plan.ends_grant, play,
		  "the grant ends too early, or too late");
	if (stays)
		check(RELEASE_KEEPS_OTHERS, live_shares(after) == left &&
			  after->lock.fence == before->lock.fence &&
			  is_same(&after->lock.holder, &before->lock.holder), play,
			  "another share is gone");
}

/* ----------------------------------------------------------------------
 * Wakes and durability
 * ----------------------------------------------------------------------
 */

/* The waiter whose turn it is, or -1. */
static int
whose_turn(const World *world)
{
	int			first = first_waiter(world);

	return first >= 0 && has_turn(world, &world->tickets[first].who) ?
		first : -1;
}

static void
check_wake(const Play *play, const World *before, const World *after)
{
	const LeasePlan *plan = &play->plan;
	int			turn = is_held(after) ? -1 : whose_turn(after);

	if (plan->wake == WAKE_HEAD)
		check(WAKES, (play->view.known & PART_HEAD) && play->view.has_head,
			  play, "no head is known");
	if (plan->writes_head)
		check(WAKES, plan->wake == WAKE_HEAD, play,
			  "the promoted waiter is not woken");
	if (turn < 0 || turn == whose_turn(before))
		return;
	if (turn >= before->count)
		check(WAKES, plan->look_again, play, "the newcomer does not look again");
	else
		check(WAKES, plan->wake == WAKE_NEXT ||
			  (plan->wake == WAKE_HEAD &&
			   same_uuid(&play->view.head.ticket,
						 &after->tickets[turn].ticket)), play,
			  "the next waiter is not woken");
}

static void
check_durability(const Play *play, const World *before, const World *after)
{
	const LeasePlan *plan = &play->plan;
	EventKind	kind = play->event.kind;
	bool		grants = plan->begins_grant ||
		(live_shares(after) > live_shares(before) && kind != EVENT_RENEW_LOCK);
	bool		releases = plan->yes && writes_anything(plan) &&
		state_before(play, before) != LEASE_WAITING &&
		(kind == EVENT_RELEASE || kind == EVENT_RELEASE_LOCK);
	Durability	expected = grants ? ACKNOWLEDGED : releases ? LOSABLE : DURABLE;

	check(DURABILITY, plan->durability == expected, play, "another durability");
}

/* ----------------------------------------------------------------------
 * Lengths
 * ----------------------------------------------------------------------
 */

static void
check_held_length(const Play *play, const World *before)
{
	const TicketRow *ticket = &play->plan.ticket;
	int64		lease = play->event.lease_us;

	if (play->ticket >= 0 && (play->event.kind != EVENT_RENEW || lease == 0 ||
							  state_before(play, before) == LEASE_WAITING))
		lease = before->tickets[play->ticket].lease_us;
	check(LENGTHS, ticket->expires_at == NOW + lease &&
		  ticket->lease_us == lease && ticket->claimed, play, "of a lease");
}

static void
check_wait_length(const Play *play, const World *before)
{
	const TicketRow *ticket = &play->plan.ticket;
	int			others_pid = 0;

	if (play->ticket < 0)
		check(LENGTHS, ticket->wait_until == NOW + play->event.left_us, play,
			  "of a wait");
	else if (before->attended[play->ticket] &&
			 before->tickets[play->ticket].waiter_pid == OTHER_PID)
		others_pid = OTHER_PID;
	if (play->event.attending)
		check(LENGTHS, ticket->alive_until == NO_TIME &&
			  ticket->waiter_pid == OWN_PID, play, "of attendance");
	else
		check(LENGTHS, ticket->alive_until == NOW + WAITER_TIMEOUT &&
			  ticket->waiter_pid == others_pid, play, "of a sign of life");
}

static void
check_lengths(const Play *play, const World *before, const World *after)
{
	const LeasePlan *plan = &play->plan;
	EventKind	kind = play->event.kind;

	if (plan->writes_ticket && plan->ticket.state == LEASE_HELD)
		check_held_length(play, before);
	if (plan->writes_ticket && plan->ticket.state == LEASE_WAITING)
		check_wait_length(play, before);
	if (plan->writes_head)
		check(LENGTHS, plan->head.expires_at == NOW +
			  Min(plan->head.lease_us, WAITER_TIMEOUT / 2) &&
			  !plan->head.claimed, play, "of a promotion");
	if (kind != EVENT_TRY_LOCK && kind != EVENT_RENEW_LOCK)
		return;
	if (plan->yes && kind == EVENT_TRY_LOCK && has_live_hold(before))
		check(LENGTHS, !plan->writes_lock, play, "of a hold that is refreshed");
	else if (plan->yes)
		check(LENGTHS, after->lock.hold_expires_at == NOW + TTL, play,
			  "of a hold");
}

/* ---------------------------------------------------------------------- */

/* Checks a complete plan, just before it is written. */
void
check_plan(const Play *play, const World *after)
{
	const World *before = play->world;
	const LeasePlan *plan = &play->plan;

	check_one_holder(play, before, after);
	check_fence(play, before, after);
	check_order(play, before, after);
	check_passed(play, before, after);
	check_tags(play, before, after);
	check_state(play, before, after);
	check_events(play, after);
	check_durability(play, before, after);
	if (plan->refusal != NOT_REFUSED)
		check(NO_WRITE_WITHOUT_PLACE, !writes_anything(plan), play, "refused");
	if (!writes_anything(plan))
		return;
	check_lock_row(play, after);
	check_ticket_rows(play, before);
	check_others(play, before, after);
	check_extension(play, before, after);
	check_release(play, before, after);
	check_wake(play, before, after);
	check_lengths(play, before, after);
}

/* ----------------------------------------------------------------------
 * Answers
 * ----------------------------------------------------------------------
 */

/* The result of an event: an error, a state, or yes or no. */
typedef struct Answer
{
	Refusal		refusal;
	LeaseState	state;
	bool		yes;
} Answer;

static Answer
in_state(LeaseState state)
{
	return (Answer) {NOT_REFUSED, state, false};
}

/* Without a state the field is 0, and so reads as LEASE_HELD. */
static Answer
yes_or_no(bool yes)
{
	return (Answer) {NOT_REFUSED, LEASE_HELD, yes};
}

/* The answer to a look at a ticket. */
static Answer
expected_look(const World *world, int i, const LeaseEvent *event)
{
	const TicketRow *ticket = &world->tickets[i];
	LeaseState	state = state_of(world, i);

	if (event->only_judge || state != LEASE_WAITING)
		return in_state(state);
	if (has_turn(world, &ticket->who) && !event->leave_waiting)
		return in_state(LEASE_HELD);
	return in_state(world->has_cycle &&
					is_blocked(world, &ticket->who, ticket->place) ?
					LEASE_DEADLOCK : LEASE_WAITING);
}

static Answer
expected_acquire(const World *world, const LeaseEvent *event)
{
	for (int i = 0; i < world->count && event->has_request_id; i++)
	{
		const TicketRow *ticket = &world->tickets[i];

		if (!ticket->has_request_id ||
			!same_uuid(&ticket->request_id, &event->request_id))
			continue;
		return is_same(&ticket->who, &event->who) ?
			expected_look(world, i, event) :
			(Answer) {REFUSE_FOREIGN_REQUEST, LEASE_HELD, false};
	}
	if (has_turn(world, &event->who))
		return in_state(LEASE_HELD);
	if (!event->may_queue || event->left_us <= 0)
		return in_state(LEASE_CONTENDED);
	if (world->is_full)
		return (Answer) {REFUSE_FULL_QUEUE, LEASE_HELD, false};
	return in_state(world->has_cycle ? LEASE_DEADLOCK : LEASE_WAITING);
}

static Answer
expected_release(const World *world, int i)
{
	LeaseState	state = state_of(world, i);

	if (state == LEASE_HELD)
		return (Answer) {NOT_REFUSED, LEASE_RELEASED, true};
	if (state == LEASE_WAITING)
		return (Answer) {NOT_REFUSED, LEASE_CANCELLED, true};
	return in_state(state);
}

static bool
expected_prune_ticket(const World *world, int i, TimestampTz before)
{
	const TicketRow *ticket = &world->tickets[i];

	if (ticket->state == LEASE_WAITING)
		return ticket->wait_until < before;
	if (ticket->state == LEASE_HELD)
		return ticket->expires_at < before;
	return ticket->ended_at < before;
}

static bool
expected_prune_lock(const World *world, TimestampTz before)
{
	const LockRow *lock = &world->lock;

	for (int i = 0; i < world->count; i++)
	{
		if (world->tickets[i].place > 0)
			return false;
	}
	return ItemPointerIsValid(&lock->version.tid) &&
		lock->changed_at < before && lock->expires_at < before &&
		lock->hold_expires_at < before;
}

static Answer
expected_ticket_answer(const Play *play, const World *world)
{
	const LeaseEvent *event = &play->event;
	int			i = play->ticket;

	if (play->view.has_ticket && i < 0)
		return in_state(LEASE_GONE);
	switch (event->kind)
	{
		case EVENT_LOOK:
		case EVENT_RENEW:
			return expected_look(world, i, event);
		case EVENT_RELEASE:
			return expected_release(world, i);
		case EVENT_CANCEL:
			return in_state(state_of(world, i));
		default:
			return expected_acquire(world, event);
	}
}

static Answer
expected_answer(const Play *play, const World *world)
{
	const LeaseEvent *event = &play->event;
	const LockRow *lock = &world->lock;
	bool		has_holder = lock->holder.role != InvalidOid;

	switch (event->kind)
	{
		case EVENT_TRY_LOCK:
			return yes_or_no(has_turn(world, &event->who));
		case EVENT_RENEW_LOCK:
			return yes_or_no(has_hold(world, &event->who) &&
							 (is_held(world) || !has_other_waiter(world)));
		case EVENT_RELEASE_LOCK:
			return yes_or_no(has_hold(world, &event->who));
		case EVENT_BREAK:
			return yes_or_no(has_holder && lock->fence == event->fence);
		case EVENT_BREAK_UNAUTHORIZED:
			return yes_or_no(has_holder && !is_allowed(world, &lock->holder));
		case EVENT_PRUNE_TICKET:
			return yes_or_no(play->ticket >= 0 &&
							 expected_prune_ticket(world, play->ticket,
												   event->before));
		case EVENT_PRUNE_LOCK:
			return yes_or_no(expected_prune_lock(world, event->before));
		default:
			return expected_ticket_answer(play, world);
	}
}

/* Whether an event that found tags busy may give this answer. */
static bool
is_lesser_answer(const Play *play, const Answer *answer)
{
	const LeaseEvent *event = &play->event;
	LeaseState	state = answer->state;

	switch (event->kind)
	{
		case EVENT_ACQUIRE:
			if (event->may_queue && event->left_us > 0 &&
				(answer->refusal == REFUSE_FULL_QUEUE ||
				 state == LEASE_WAITING || state == LEASE_DEADLOCK))
				return true;
			return state == LEASE_CONTENDED || state == LEASE_WAITING;
		case EVENT_LOOK:
		case EVENT_RENEW:
			return state == LEASE_WAITING;
		case EVENT_RELEASE:
		case EVENT_CANCEL:
			return answer->refusal == REFUSE_BUSY_TICKET;
		default:
			return !answer->yes;
	}
}

/* Checks the final answer to an event. */
void
check_outcome(const Play *play, const World *before, const World *after)
{
	Answer		expected = expected_answer(play, before);
	Answer		answer = {play->plan.refusal, play->plan.state, play->plan.yes};
	bool		same = answer.refusal == expected.refusal &&
		answer.state == expected.state && answer.yes == expected.yes;
	const char *detail = expected.refusal != NOT_REFUSED ? "an error is expected" :
		is_of_ticket(play->event.kind) ? states[expected.state] :
		expected.yes ? "yes" : "no";

	if (play->met_busy)
		check(BUSY_ANSWERS, same || is_lesser_answer(play, &answer), play,
			  detail);
	else
		check(ANSWERS, same, play, detail);
	if (answer.state == LEASE_DEADLOCK && play->ticket < 0)
		check(NO_WRITE_WITHOUT_PLACE, after->count == before->count, play,
			  "an immediate deadlock");
}

/* ----------------------------------------------------------------------
 * Judgements
 * ----------------------------------------------------------------------
 */

static void
check_ticket_judgement(const Play *play, const World *world, int i)
{
	TicketRow	ticket = world->tickets[i];

	ticket.attended = world->attended[i];
	ticket.allowed = is_allowed(world, &ticket.who);
	check(JUDGEMENTS, ticket_state(&ticket, &world->lock, NOW) ==
		  state_of(world, i), play, "the state of a ticket");
	check(JUDGEMENTS, waiter_is_live(&ticket, &world->lock, NOW) ==
		  is_live_waiter(world, i), play, "a waiter");
}

static void
check_fence_verdicts(const Play *play, const World *world)
{
	const LockRow *lock = &world->lock;
	FenceVerdict present = lock->fence == 0 ? FENCE_UNKNOWN :
		lock->holder.role == InvalidOid ? FENCE_ENDED :
		is_held(world) ? FENCE_CURRENT : FENCE_LAPSED;

	check(FENCE_VERDICTS, judge_fence(lock, lock->fence, NOW) == present, play,
		  "the newest");
	check(FENCE_VERDICTS, judge_fence(lock, lock->fence - 1, NOW) ==
		  FENCE_SUPERSEDED, play, "an older fence");
	check(FENCE_VERDICTS, judge_fence(lock, lock->fence + 1, NOW) ==
		  FENCE_UNKNOWN, play, "a later fence");
	check(FENCE_VERDICTS, fence_may_commit(lock, lock->fence) ==
		  (present == FENCE_CURRENT || present == FENCE_LAPSED) &&
		  !fence_may_commit(lock, lock->fence - 1) &&
		  !fence_may_commit(lock, lock->fence + 1), play, "at commit");
}

/* Checks the judgements that code outside the rules uses. */
void
check_judgements(const World *world)
{
	World		copy = *world;
	Play		play = {.world = &copy,.ticket = -1};
	TicketRow	shares[MAX_TICKETS];
	int			count = 0;

	for (int i = 0; i < world->count; i++)
	{
		check_ticket_judgement(&play, world, i);
		if (is_member(world, i))
			shares[count++] = world->tickets[i];
	}
	/* a single share is not read */
	if (count <= 1)
		count = 0;
	check(JUDGEMENTS, grant_is_live(&world->lock, NOW) == is_held(world),
		  &play, "the grant");
	check(JUDGEMENTS, grant_depth(&world->lock, shares, count, NOW) ==
		  live_shares(world), &play, "the depth");
	check_fence_verdicts(&play, world);
}
