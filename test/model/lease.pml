/*
 * lease.pml
 *	  A model of the locking protocol of leaselock, to be checked by spin.
 *	  test/model/run builds and runs the configurations (one_lock.pml and so
 *	  on), which include this file and define the participants.
 *
 * The parts of the model
 *
 *	  session      a backend with its connection; several may act for one owner
 *	  owner        an identity
 *	  ticket       a slot, fixed for (lock, owner); the slot is its request id.  A
 *	               ticket that has ended leaves the slot empty, and the next
 *	               acquisition in it is a new ticket
 *	  committed_*  the rows that everybody reads
 *	  pending_*    the rows that an open transaction has written, with its session
 *	  alive        of a waiting ticket: it polled in time, or its backend
 *	               lives; of a held one: its lease has not run out
 *	  Clock        takes "alive" away from any ticket at any time
 *	  place        of a waiting ticket; of a held one: the fence of its grant
 *
 * It has the structure of the core: decide() makes the plan (core/decide.c), and
 * carry_out() is the loop that takes the tags, decides again and writes
 * (core/protocol.c).  The inline functions have the names of the C functions.
 *
 * A step of the model is what one call does between two points at which other
 * sessions may interfere.  What is decided without a tag is decided again under
 * the tags, so in most cases the first read and the taking of the tags are one
 * step.  They are two steps where the first read matters later: for the queue that
 * a newcomer found empty, and for the two reads that determine a place.  Rows that
 * a session remembers instead of reading them are not a step of their own either:
 * they only determine which tags are tried, and wrong tags are released again.
 *
 * Left out: durations (every time-out may come at any time), named holds,
 * scopes, breaks, deadlocks between waits, PREPARE TRANSACTION, crashes.  The
 * clock's part of a fence is left out too, so that fences grow by the rules alone.
 *
 * Properties, asserted where they must hold (search for the words):
 *	  one writer, mutual exclusion, growing fences, first in first out, no
 *	  stale commit, passed for good.  No session blocked for ever: spin finds
 *	  every state in which one is.  No lost waiter, and no lost wake-up: the
 *	  formula "granted".
 */

/* ---- sizes; a configuration may set its own ---- */
#ifndef LOCKS
#define LOCKS		1
#endif
#ifndef OWNERS
#define OWNERS		3
#endif
#ifndef SLOTS
#define SLOTS		1			/* tickets of an owner for a lock */
#endif
#ifndef MAX_FENCE
#define MAX_FENCE	4			/* the limit of grants of a lock */
#endif
#define SESSIONS	5
#define TICKETS_OF_LOCK	(OWNERS * SLOTS)
#define TICKETS		(LOCKS * TICKETS_OF_LOCK)
#define OWNER_OF(t)	((((t) % TICKETS_OF_LOCK) / SLOTS) + 1)
#define LOCK_OF(t)	((t) / TICKETS_OF_LOCK)
#define TICKET(l, owner, slot)	((l) * TICKETS_OF_LOCK + ((owner) - 1) * SLOTS + (slot))

/* ---- what a client may do, as bits; CALLS: the bits of all clients of a configuration ---- */
#define ACQUIRE		1			/* lease_acquire with time to wait */
#define TRY			2			/* lease_acquire without */
#define LOOK		4			/* lease_get; a look of lease_wait */
#define RENEW		8
#define RELEASE		16			/* also cancels a wait */
#define CHECK		32			/* fence_check with allow_lapsed */
#define SAVEPOINT	64			/* SAVEPOINT, ROLLBACK TO; one session only */
#define PRUNE		128			/* lease_prune, prune_before_commit */

/* ---- tables ---- */
typedef LockRow { byte fence; byte holder; byte passed };	/* fence 0: no row */
#define NONE		0
#define WAITING		1
#define HELD		2
typedef TicketRow { byte state; bool alive; byte place };

LockRow committed_lock[LOCKS];
LockRow pending_lock[LOCKS];
byte lock_writer[LOCKS];		/* session + 1, 0: nobody */
TicketRow committed_ticket[TICKETS];
TicketRow pending_ticket[TICKETS];
byte ticket_writer[TICKETS];
byte committed_floor, pending_floor, floor_writer;

/* A session reads committed rows, and its own uncommitted ones. */
#define MINE(writer)	((writer) == me + 1)
#define FENCE(l)	(MINE(lock_writer[l]) -> pending_lock[l].fence : committed_lock[l].fence)
#define HOLDER(l)	(MINE(lock_writer[l]) -> pending_lock[l].holder : committed_lock[l].holder)
#define PASSED(l)	(MINE(lock_writer[l]) -> pending_lock[l].passed : committed_lock[l].passed)
#define STATE(t)	(MINE(ticket_writer[t]) -> pending_ticket[t].state : committed_ticket[t].state)
#define ALIVE(t)	(MINE(ticket_writer[t]) -> pending_ticket[t].alive : committed_ticket[t].alive)
#define PLACE(t)	(MINE(ticket_writer[t]) -> pending_ticket[t].place : committed_ticket[t].place)
#define FLOOR		(MINE(floor_writer) -> pending_floor : committed_floor)

/* whether P is true of any ticket of a lock */
#if SLOTS * OWNERS == 2
#define ANY(P, l)	(P((l) * 2) || P((l) * 2 + 1))
#elif SLOTS * OWNERS == 3
#define ANY(P, l)	(P((l) * 3) || P((l) * 3 + 1) || P((l) * 3 + 2))
#elif SLOTS * OWNERS == 4
#define ANY(P, l)	(P((l) * 4) || P((l) * 4 + 1) || P((l) * 4 + 2) || P((l) * 4 + 3))
#else
#error "extend ANY"
#endif

/* ---- judgements: decide.c ---- */

/* ticket_state of a held ticket; the lock's expiry is the latest of these */
#define IS_HELD(t)	(STATE(t) == HELD && ALIVE(t) && PLACE(t) == FENCE(LOCK_OF(t)) && HOLDER(LOCK_OF(t)) == OWNER_OF(t))
/* grant_is_live */
#define IS_LIVE(l)	(HOLDER(l) != 0 && ANY(IS_HELD, l))
/* holds */
#define HOLDS(l, owner)	(HOLDER(l) == (owner) && IS_LIVE(l))
/* waiter_is_live of a ticket in the queue; one variant ignores the passed mark */
#ifdef WITHOUT_PASSED_MARK
#define IN_QUEUE(t)	(STATE(t) == WAITING && ALIVE(t))
#else
#define IN_QUEUE(t)	(STATE(t) == WAITING && ALIVE(t) && PLACE(t) > PASSED(LOCK_OF(t)))
#endif
/* waiter_is_dead: the waiters of the holder share the turn of the promoted ticket */
#define IS_WAITING(t)	(IN_QUEUE(t) || (STATE(t) == WAITING && ALIVE(t) && HOLDS(LOCK_OF(t), OWNER_OF(t))))

/* ---- the queue: queue.c ---- */

/* find_head into head (a ticket + 1, 0: nobody), only for owners other than "except" */
inline find_head(l, except) {
	head = 0; i = (l) * TICKETS_OF_LOCK;
	do
	:: i < ((l) + 1) * TICKETS_OF_LOCK ->
		if
		:: IN_QUEUE(i) && OWNER_OF(i) != except &&
		   (head == 0 || PLACE(i) < PLACE(head - 1)) -> head = i + 1
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* Puts the place of the last dead waiter before the head into last. */
inline find_dead(l) {
	last = 0; i = (l) * TICKETS_OF_LOCK;
	do
	:: i < ((l) + 1) * TICKETS_OF_LOCK ->
		if
		:: STATE(i) == WAITING && !ALIVE(i) && PLACE(i) > PASSED(l) && PLACE(i) > last &&
		   (head == 0 || PLACE(i) < PLACE(head - 1)) -> last = PLACE(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* ---- heavyweight locks: tag.c and PostgreSQL's lock manager ---- */
#define VERIFY		1			/* RowShareLock */
#define EXTEND		2			/* ShareUpdateExclusiveLock */
#define CHANGE		4			/* ExclusiveLock */

#ifdef WITHOUT_VERIFY_CONFLICT
#define AGAINST_VERIFY	0
#else
#define AGAINST_VERIFY	CHANGE
#endif
#ifdef WITHOUT_EXTEND_CONFLICT
#define AGAINST_EXTEND	CHANGE
#else
#define AGAINST_EXTEND	(EXTEND | CHANGE)
#endif
#ifdef WITHOUT_VERIFY_CONFLICT
#define AGAINST_CHANGE	(EXTEND | CHANGE)
#else
#define AGAINST_CHANGE	(VERIFY | EXTEND | CHANGE)
#endif
#define AGAINST(mode)	((mode) == 0 -> 0 : ((mode) == VERIFY -> AGAINST_VERIFY : ((mode) == EXTEND -> AGAINST_EXTEND : AGAINST_CHANGE)))

#define NAME(l, s)	name_tag[(l) * SESSIONS + (s)]
byte name_tag[LOCKS * SESSIONS];	/* modes that a session holds */
byte wanted[SESSIONS];			/* the mode for which it stands in line */
byte wanted_lock[SESSIONS];
byte ahead[SESSIONS];			/* the sessions ahead of it in line, as bits */
byte queue_tag[LOCKS];			/* session + 1 */
byte ticket_tag[TICKETS];
byte owner_of[SESSIONS];
bool excused[SESSIONS];		/* it has ended a grant, or prunes; for the properties */

#define HOLDS1(s, l, modes)	((s) != me && (NAME(l, s) & (modes)))
#define BUSY(l, modes)	(HOLDS1(0, l, modes) || HOLDS1(1, l, modes) || HOLDS1(2, l, modes) || HOLDS1(3, l, modes) || HOLDS1(4, l, modes))
/* nobody stands behind a request that he himself blocks */
#define LINE1(s, l, modes)	((s) != me && wanted_lock[s] == (l) && (wanted[s] & (modes)) && !(AGAINST(wanted[s]) & NAME(l, me)))
#define LINE(l, modes)	(LINE1(0, l, modes) || LINE1(1, l, modes) || LINE1(2, l, modes) || LINE1(3, l, modes) || LINE1(4, l, modes))
#define BIT1(s, l, modes)	(LINE1(s, l, modes) -> (1 << (s)) : 0)

#define HAS_NAME(l, mode)	((NAME(l, me) & CHANGE) || (NAME(l, me) & (mode)) || ((mode) == VERIFY && (NAME(l, me) & EXTEND)))

/* try_tag of the name tag; does not jump the line either */
inline try_name(l, mode) {
	if
	:: HAS_NAME(l, mode) -> ok = true
	:: else ->
		if
		:: !BUSY(l, AGAINST(mode)) && !LINE(l, AGAINST(mode)) -> NAME(l, me) = NAME(l, me) | (mode); ok = true
		:: else -> ok = false
		fi
	fi
}

inline leave_line() {
	wanted[me] = 0; wanted_lock[me] = 0; ahead[me] = 0;
	ahead[0] = ahead[0] & (255 - (1 << me)); ahead[1] = ahead[1] & (255 - (1 << me));
	ahead[2] = ahead[2] & (255 - (1 << me)); ahead[3] = ahead[3] & (255 - (1 << me));
	ahead[4] = ahead[4] & (255 - (1 << me))
}

/*
 * wait_tag of the name tag.  With one lock every wait must end by itself; with two, the
 * deadlock detector ends a wait if nothing else can continue.
 */
inline wait_name(l, mode) {
	{
		try_name(l, mode);
		if
		:: ok
		:: else ->
			ahead[me] = BIT1(0, l, AGAINST(mode)) + BIT1(1, l, AGAINST(mode)) + BIT1(2, l, AGAINST(mode)) + BIT1(3, l, AGAINST(mode)) + BIT1(4, l, AGAINST(mode));
			wanted[me] = mode; wanted_lock[me] = l
		fi
	}
	if
	:: wanted[me] != 0 ->
		if
		:: !BUSY(l, AGAINST(mode)) && ahead[me] == 0 -> NAME(l, me) = NAME(l, me) | (mode); leave_line(); ok = true
#if LOCKS > 1
		:: timeout -> leave_line(); ok = false; failed = true
#endif
		fi
	:: else
	fi
}

/* try_tag of the other tags */
inline try_queue(l) {
#ifdef WITHOUT_QUEUE_TAG
	ok = true
#else
	if
	:: queue_tag[l] == 0 || MINE(queue_tag[l]) -> queue_tag[l] = me + 1; ok = true
	:: else -> ok = false
	fi
#endif
}
inline try_ticket(t) {
	if
	:: ticket_tag[t] == 0 || MINE(ticket_tag[t]) -> ticket_tag[t] = me + 1; ok = true
	:: else -> ok = false
	fi
}

#ifdef TICKET_HOLDER_WAITS
#define MAY_WAIT_FOR_TICKET	true
#else
#define MAY_WAIT_FOR_TICKET	(ticket0 == 0)
#endif

/*
 * take_tag in line.  A session that holds the name tag, or another ticket tag of the
 * lock, only tries (may_stand_in_line).
 */
inline wait_ticket(t) {
	{
		try_ticket(t);
		blocked = !ok && NAME(LOCK_OF(t), me) == 0 && MAY_WAIT_FOR_TICKET
	}
	if
	:: blocked ->
		/* never a bystander: only a session of the same owner, or an excused one */
		assert(owner_of[ticket_tag[t] - 1] == my || excused[ticket_tag[t] - 1]);
		if
		:: ticket_tag[t] == 0 -> ticket_tag[t] = me + 1; ok = true; blocked = false
#if LOCKS > 1
		:: timeout -> ok = false; failed = true; blocked = false
#endif
		fi
	:: else
	fi
}

/* Notes the tags that the session held before the call: give_back keeps them. */
inline ticket_tags_of(l) {
	ticket0 = 0; i = 0;
	do
	:: i < TICKETS_OF_LOCK ->
		if
		:: MINE(ticket_tag[(l) * TICKETS_OF_LOCK + i]) -> ticket0 = ticket0 | (1 << i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}
inline begin_call(l) {
	name0 = NAME(l, me); queue0 = MINE(queue_tag[l]); ticket_tags_of(l);
	wrote = false
}
/* give_back */
inline give_back(l) {
	NAME(l, me) = name0; name = 0; tags = 0;
	if
	:: MINE(queue_tag[l]) && !queue0 -> queue_tag[l] = 0
	:: else
	fi;
	i = 0;
	do
	:: i < TICKETS_OF_LOCK ->
		if
		:: MINE(ticket_tag[(l) * TICKETS_OF_LOCK + i]) && !(ticket0 & (1 << i)) -> ticket_tag[(l) * TICKETS_OF_LOCK + i] = 0
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}
/* keep_tags */
inline keep(l) { name0 = NAME(l, me); queue0 = MINE(queue_tag[l]); ticket_tags_of(l) }
inline end_call() {
	name0 = 0; queue0 = false; ticket0 = 0; wrote = false; ok = false; head = 0; last = 0; again = 0;
	event = 0; patient = false; silent = false; busy = 0; name = 0; tags = 0;
	plan = 0; needs_name = 0; needs_tags = 0; optional_tags = 0; in_line = false; busy_tag = 0; mask = 0; knows_nobody = false
}

/* ---- writing: store ---- */

/* one writer: no two open transactions write one row */
inline write_lock(l) {
	assert(lock_writer[l] == 0 || MINE(lock_writer[l]));
	if
	:: lock_writer[l] == 0 ->
		pending_lock[l].fence = committed_lock[l].fence; pending_lock[l].holder = committed_lock[l].holder;
		pending_lock[l].passed = committed_lock[l].passed; lock_writer[l] = me + 1
	:: else
	fi;
	wrote = true
}
inline write_ticket(t, new_state, new_alive, new_place) {
	assert(ticket_writer[t] == 0 || MINE(ticket_writer[t]));
	ticket_writer[t] = me + 1;
	pending_ticket[t].state = new_state; pending_ticket[t].alive = new_alive; pending_ticket[t].place = new_place;
	at = 0;
	wrote = true
}

/* ---- for the properties: the protocol itself does not read these ---- */
byte newest[LOCKS];				/* the newest fence ever committed */
byte believes[LOCKS];			/* owners that hold by their last answer, as bits */
bool stayed[TICKETS];			/* alive ever since its wait was committed */
bool passed_over[TICKETS];		/* found dead when somebody behind it was granted */
byte before[TICKETS];			/* tickets (of the lock, as bits) that it queued behind */
bool woken;						/* the latch of the sleeping waiter */
bool was_granted;				/* the ticket LIVING was granted; for "granted" */

/*
 * First in first out: checked when a grant is written.  No earlier ticket (mask)
 * that stayed alive, and did not give up in this transaction, is still waiting.
 */
#define LEFT_BEHIND(u)	(OWNER_OF(u) != whose && stayed[u] && committed_ticket[u].state == WAITING && STATE(u) == WAITING && \
	(mask & (1 << ((u) % TICKETS_OF_LOCK))))

/* ---- plans: decide.c ---- */

/* what a plan writes; each is named after the function that plans it */
#define NOTHING				0
#define GRANT_TO_NEWCOMER	1
#define EXTEND_GRANT		2
#define ENQUEUE				3
#define CLAIM				4
#define SHARE_TURN			5
#define TAKE_TURN			6
#define WRITE_LOOK			7
#define RENEW_TICKET		8
#define ANSWER_ENDED		9
#define END_GRANT			10
#define SHRINK_GRANT		11
#define CANCEL_WAIT			12
#define GRANT_OTHER			13	/* for a broken rule, see LOOK_GRANTS_OTHERS */

/* tags beside the name tag, in sets */
#define TAG_QUEUE	1
#define TAG_TICKET	2
#define TAG_HEAD	8
#define TAG_NAME	32

/* next_fence, without the clock's part */
#define NEXT_FENCE(l)	((FENCE(l) > FLOOR -> FENCE(l) : FLOOR) + 1)
#define CAN_GRANT(l)	(NEXT_FENCE(l) <= MAX_FENCE)

inline need(mode, bits) { needs_name = mode; needs_tags = bits }
/* whether the session lacks a tag that the plan needs */
#define MISSES		(name < needs_name || (needs_tags & (255 - tags)) != 0)
#define UNTRIED(tag)	(((tags | busy) & (tag)) == 0)

/* is_free_for: nobody waits, or the head of the queue is of the same owner */
#define IS_FREE_FOR(owner)	(head == 0 || OWNER_OF(head - 1) == (owner))

/* wants_queue_tag, for many dead waiters; take_optional chooses whether they are many */
inline want_queue_tag(l) {
#ifndef PASS_WITHOUT_QUEUE_TAG
	find_dead(l);
	if
	:: last != 0 && !MISSES && UNTRIED(TAG_QUEUE) -> optional_tags = TAG_QUEUE
	:: else
	fi;
	last = 0
#else
	skip
#endif
}

inline write_look(l, t) {
	if
	:: busy & TAG_TICKET
	:: silent && IS_WAITING(t) && !HOLDS(l, OWNER_OF(t)) && !(busy & TAG_TICKET)
	:: else -> plan = WRITE_LOOK; need(0, TAG_TICKET); in_line = (event == LOOK)
	fi
}

/* a look at a ticket, also by a retry of its request id; here each look claims a held ticket */
inline decide_look(l, t) {
	if
	:: STATE(t) == HELD && IS_HELD(t) && !(busy & TAG_NAME) -> plan = CLAIM; need(EXTEND, 0); in_line = (event == LOOK)
	:: STATE(t) == WAITING ->
		find_head(l, 0);
		if
		:: IS_WAITING(t) && HOLDS(l, OWNER_OF(t)) && !(busy & (TAG_NAME | TAG_TICKET)) ->
			plan = SHARE_TURN; need(EXTEND, TAG_TICKET)
		:: IS_WAITING(t) && !IS_LIVE(l) && head != 0 && IS_FREE_FOR(OWNER_OF(t)) && CAN_GRANT(l) && !(busy & (TAG_NAME | TAG_TICKET)) ->
			plan = TAKE_TURN; need(CHANGE, TAG_TICKET)
#ifdef LOOK_GRANTS_OTHERS
		:: IS_WAITING(t) && !IS_LIVE(l) && head != 0 && !IS_FREE_FOR(OWNER_OF(t)) && CAN_GRANT(l) && !(busy & (TAG_NAME | TAG_HEAD)) ->
			plan = GRANT_OTHER; need(CHANGE, 0);
			if
			:: !MISSES && UNTRIED(TAG_HEAD) -> optional_tags = TAG_HEAD
			:: else
			fi
#endif
		:: else -> write_look(l, t)
		fi
	:: else
	fi
}

/* if a tag is busy that queueing needs, the call waits for it once, see find_obstacle */
inline enqueue(l) {
	if
	:: !patient
	:: patient && (busy & TAG_QUEUE) -> busy_tag = TAG_QUEUE
	:: else -> plan = ENQUEUE; need(0, TAG_QUEUE | TAG_TICKET)
	fi
}

inline decide_acquire(l, t) {
	if
	:: knows_nobody -> head = 0
	:: else -> find_head(l, 0)
	fi;
	if
	:: busy & TAG_TICKET -> busy_tag = TAG_TICKET
	:: !(busy & TAG_TICKET) && HOLDS(l, my) ->
		if
		:: !(busy & TAG_NAME) -> plan = EXTEND_GRANT; need(EXTEND, TAG_TICKET)
		:: else
		fi
	:: !(busy & (TAG_TICKET | TAG_NAME)) && !IS_LIVE(l) && IS_FREE_FOR(my) && CAN_GRANT(l) ->
		plan = GRANT_TO_NEWCOMER; need(CHANGE, TAG_TICKET); want_queue_tag(l)
	:: else -> enqueue(l)
	fi
}

/* answer_ended: writes that a lease of the newest grant ran out */
inline answer_ended(l, t) {
	if
	:: STATE(t) == HELD && PLACE(t) == FENCE(l) && HOLDER(l) == OWNER_OF(t) && !(busy & TAG_NAME) -> plan = ANSWER_ENDED; need(EXTEND, 0)
	:: else
	fi
}

inline decide_renew(l, t) {
	if
	:: IS_HELD(t) -> plan = RENEW_TICKET; need(EXTEND, 0); in_line = true
	:: else -> answer_ended(l, t)
	fi
}

/* is_last_share */
#define OTHER_SHARE(u)	((u) != t && IS_HELD(u))
#define IS_LAST_SHARE(l)	(!ANY(OTHER_SHARE, l))

/* end_grant; the ticket tag of the head is optional */
inline end_grant(l) {
	plan = END_GRANT; need(CHANGE, 0); in_line = true;
	find_head(l, 0);
	if
	:: !MISSES && head != 0 && UNTRIED(TAG_HEAD) -> optional_tags = TAG_HEAD
	:: head == 0 -> want_queue_tag(l)
	:: else
	fi
}

inline decide_release(l, t) {
	if
	:: STATE(t) == WAITING && !(busy & TAG_TICKET) -> plan = CANCEL_WAIT; need(0, TAG_TICKET); in_line = true
	:: STATE(t) == HELD && IS_HELD(t) && IS_LAST_SHARE(l) -> end_grant(l)
	:: STATE(t) == HELD && IS_HELD(t) && !IS_LAST_SHARE(l) -> plan = SHRINK_GRANT; need(EXTEND, 0); in_line = true
	:: STATE(t) == HELD && !IS_HELD(t) -> answer_ended(l, t)
	:: else
	fi
}

inline decide(l, t) {
	plan = NOTHING; needs_name = 0; needs_tags = 0; optional_tags = 0; in_line = false; busy_tag = 0;
	if
	:: event == ACQUIRE && STATE(t) == NONE -> decide_acquire(l, t)
	:: event == RENEW -> decide_renew(l, t)
	:: event == RELEASE -> decide_release(l, t)
	:: else -> decide_look(l, t)
	fi
}

/* ---- the loop: protocol.c ---- */

/* sessions, as bits, that have read the newest version of a lock's row */
byte seen[LOCKS];

/* where others may interrupt a call, see the head of this file */
#define READ_HEAD	1
#define READ_PLACE	2

/* First releases the tags taken for another plan; nobody upgrades a tag. */
inline take_needed(l, t) {
	if
	:: (tags & (255 - needs_tags)) != 0 || (name != 0 && name != needs_name) -> give_back(l)
	:: else
	fi;
	ok = true;
	if
	:: (needs_tags & TAG_TICKET) && !(tags & TAG_TICKET) ->
		if
		:: in_line -> wait_ticket(t)
		:: else -> try_ticket(t)
		fi;
		if
		:: ok -> tags = tags | TAG_TICKET
		:: else -> busy = busy | TAG_TICKET
		fi
	:: else
	fi;
	if
	:: ok && (needs_tags & TAG_QUEUE) && !(tags & TAG_QUEUE) ->
		try_queue(l);
		if
		:: ok -> tags = tags | TAG_QUEUE
		:: else -> busy = busy | TAG_QUEUE
		fi
	:: else
	fi;
	if
	:: ok && name < needs_name ->
		if
		:: in_line -> wait_name(l, needs_name)
		:: else -> try_name(l, needs_name)
		fi;
		if
		:: ok -> name = needs_name
		:: else -> busy = busy | TAG_NAME
		fi
	:: else
	fi;
	if
	:: !ok -> give_back(l)
	:: else
	fi
}

inline take_optional(l) {
	if
	:: optional_tags == TAG_HEAD ->
		try_ticket(head - 1);
		if
		:: ok -> tags = tags | TAG_HEAD
		:: else -> busy = busy | TAG_HEAD
		fi
	:: optional_tags == TAG_QUEUE ->
		try_queue(l);
		if
		:: ok -> tags = tags | TAG_QUEUE
		:: else -> busy = busy | TAG_QUEUE
		fi
	:: optional_tags == TAG_QUEUE -> busy = busy | TAG_QUEUE	/* not enough dead to care */
	fi;
	knows_nobody = false
}

/* A newcomer need not read the queue again if it has already read this version of the lock's row. */
inline refresh_rows(l) {
	knows_nobody = knows_nobody && (seen[l] & (1 << me)) != 0;
	seen[l] = seen[l] & (255 - (1 << me))
}

/* fences_verify_early: verifies the fences that this transaction has checked */
inline verify_early(l) {
	if
	:: checked[l] != 0 && !settled[l] && (FENCE(l) != checked[l] || HOLDER(l) == 0) -> failed = true
	:: checked[l] != 0 && !settled[l] && FENCE(l) == checked[l] && HOLDER(l) != 0 -> settled[l] = true
	:: else
	fi
}

/* begin_grant and join_grant, for ticket t; mark: the place whose turn it was */
inline begin_grant(l, t, mark) {
	whose = OWNER_OF(t);
	assert(!ANY(LEFT_BEHIND, l));
	whose = 0; mask = 0;
	write_lock(l);
	pending_lock[l].fence = NEXT_FENCE(l);
	pending_lock[l].holder = OWNER_OF(t);
	if
	:: mark > pending_lock[l].passed -> pending_lock[l].passed = mark
	:: else
	fi;
	at = pending_lock[l].fence; write_ticket(t, HELD, true, at)
}

/* join_grant of a live grant */
inline join_grant(l, t) { write_lock(l); at = FENCE(l); write_ticket(t, HELD, true, at) }

/* save_shares: lapsed tickets of the grant leave it */
inline end_lapsed_shares(l, t) {
	i = (l) * TICKETS_OF_LOCK;
	do
	:: i < ((l) + 1) * TICKETS_OF_LOCK ->
		if
		:: i != t && STATE(i) == HELD && PLACE(i) == FENCE(l) && !ALIVE(i) -> write_ticket(i, NONE, false, 0)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* pass_dead, if the dead were counted under the queue tag */
inline pass_dead(l) {
	last = 0;
#ifdef PASS_WITHOUT_QUEUE_TAG
	find_dead(l)
#else
	if
	:: tags & TAG_QUEUE -> find_dead(l)
	:: else
	fi
#endif
}

/* wake: at commit, wakes the waiter whose turn may have come; only one waiter sleeps in the model */
#ifdef WAITER
inline wake(u) {
	if
	:: (u) == LIVING + 1 -> wakes = true
	:: else
	fi
}
inline wake_next(l, except) { find_head(l, except); wake(head) }
#else
inline wake(u) { skip }
inline wake_next(l, except) { skip }
#endif

/* The last share is gone; the head is promoted if its ticket tag was free. */
inline write_end_of_grant(l, t) {
	excused[me] = true;
	write_lock(l);
	write_ticket(t, NONE, false, 0);
	pending_lock[l].holder = 0;
	if
	:: head != 0 && (tags & TAG_HEAD) && CAN_GRANT(l) ->
		t1 = head - 1; last = PLACE(t1); mask = before[t1];
		begin_grant(l, t1, last);
		wake(head)
	:: head != 0 && !((tags & TAG_HEAD) && CAN_GRANT(l)) ->
		/* the session that holds its tag may be ending its wait, without knowing the next */
		wake(head);
#ifndef WITHOUT_NEXT_WOKEN
		j = OWNER_OF(head - 1); wake_next(l, j); j = 0
#endif
	:: else ->
		pass_dead(l);
		if
		:: last > pending_lock[l].passed -> pending_lock[l].passed = last
		:: else
		fi
	fi;
	last = 0; t1 = 0
}

/* read_place: the first read, under the queue tag, which does not protect the lock's row */
inline last_place(l) {
	last = 0; i = (l) * TICKETS_OF_LOCK;
	do
	:: i < ((l) + 1) * TICKETS_OF_LOCK ->
		if
		:: STATE(i) == WAITING && PLACE(i) > last -> last = PLACE(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}
#define MAX_OF(a, b)	((a) > (b) -> (a) : (b))
inline read_place(l) {
#ifdef LOCK_READ_FIRST
	last = PASSED(l)
#else
	last_place(l)
#endif
}
/* the second read, and the write of the row */
inline write_place(l, t) {
#ifdef LOCK_READ_FIRST
	at = last; last_place(l);
	last = MAX_OF(last, at);
#else
	last = MAX_OF(last, PASSED(l));
#endif
	at = last + 1; write_ticket(t, WAITING, true, at);
	last = 0;
	keep(l)
}

inline write_plan(l, t) {
	if
	:: plan == GRANT_TO_NEWCOMER || plan == TAKE_TURN || plan == END_GRANT -> verify_early(l)
	:: else
	fi;
	if
	:: failed || plan == NOTHING -> give_back(l)
	:: !failed && plan == GRANT_TO_NEWCOMER ->
		mask = (knows_nobody -> 0 : (head == 0 -> 255 : before[head - 1]));
		pass_dead(l);
		begin_grant(l, t, last);
		last = 0
	:: !failed && plan == TAKE_TURN ->
		mask = before[head - 1]; last = PLACE(head - 1);
		begin_grant(l, t, last);
		last = 0
	:: plan == EXTEND_GRANT || plan == SHARE_TURN -> join_grant(l, t)
	:: plan == CLAIM -> at = PLACE(t); write_ticket(t, HELD, true, at); write_lock(l)
	:: plan == WRITE_LOOK && IS_WAITING(t) -> at = PLACE(t); write_ticket(t, WAITING, true, at)
	:: plan == WRITE_LOOK && !IS_WAITING(t) -> write_ticket(t, NONE, false, 0)
	:: plan == RENEW_TICKET -> end_lapsed_shares(l, t); at = PLACE(t); write_ticket(t, HELD, true, at); write_lock(l)
	:: plan == ANSWER_ENDED -> write_ticket(t, NONE, false, 0); write_lock(l)
	:: !failed && plan == END_GRANT -> write_end_of_grant(l, t)
	:: plan == SHRINK_GRANT -> write_ticket(t, NONE, false, 0); end_lapsed_shares(l, t); write_lock(l)
	:: plan == CANCEL_WAIT -> write_ticket(t, NONE, false, 0); wake_next(l, 0)
#ifdef LOOK_GRANTS_OTHERS
	:: plan == GRANT_OTHER && (tags & TAG_HEAD) ->
		t1 = head - 1; last = PLACE(t1); mask = before[t1];
		begin_grant(l, t1, last);
		last = 0; t1 = 0
	:: plan == GRANT_OTHER && !(tags & TAG_HEAD) -> give_back(l)
#endif
	fi
}

#ifdef TICKET_HOLDER_WAITS
#define MAY_STAND_IN_LINE(l)	(NAME(l, me) == 0)
#else
#define MAY_STAND_IN_LINE(l)	(NAME(l, me) == 0 && ticket0 == 0)
#endif

/* wait_for_tag_holder of the busy_tag; then the acquisition is tried once more (acquire) */
inline wait_for_tag_holder(l, t) {
	again = 1; busy = 0; knows_nobody = false;
	if
	:: busy_tag == TAG_QUEUE && (queue_tag[l] == 0 || MINE(queue_tag[l]))
	:: busy_tag == TAG_TICKET && (ticket_tag[t] == 0 || MINE(ticket_tag[t]))
#if LOCKS > 1
	:: timeout
#endif
	fi
}

/*
 * carry_out_with.  The caller calls it again while "split" says that others may
 * come in between.  A busy name tag is no busy_tag here: it makes no difference
 * whether its holder ends before the call or during the wait.
 */
inline carry_out(l, t) {
	do
	:: failed -> split = 0; break
	:: !failed && split == READ_HEAD -> split = 0; take_needed(l, t); refresh_rows(l)
	:: !failed && split == READ_PLACE ->
		split = 0; write_place(l, t);
		if
		:: !IS_LIVE(l) -> silent = true; name = 0; tags = 0; busy = 0; knows_nobody = false	/* look_again */
		:: else -> break
		fi
	:: else ->
		decide(l, t);
		if
		:: MISSES && plan == GRANT_TO_NEWCOMER && head == 0 && !knows_nobody ->
			whose = my; mask = 255;
			assert(!ANY(LEFT_BEHIND, l));
			whose = 0; mask = 0;
			knows_nobody = true; seen[l] = seen[l] | (1 << me);
			split = READ_HEAD;
			break
		:: MISSES && !(plan == GRANT_TO_NEWCOMER && head == 0 && !knows_nobody) -> take_needed(l, t); refresh_rows(l)
		:: !MISSES && optional_tags != 0 -> take_optional(l)
		:: !MISSES && optional_tags == 0 && plan == ENQUEUE -> read_place(l); split = READ_PLACE; break
		:: !MISSES && plan == NOTHING && busy_tag != 0 && patient && again == 0 && MAY_STAND_IN_LINE(l) -> give_back(l); wait_for_tag_holder(l, t)
		:: else -> write_plan(l, t); break
		fi
	od
}

/* ---- prune.c ---- */

/* EVENT_PRUNE_TICKET */
inline prune_ticket(l, t) {
	{
		begin_call(l);
		if
		:: STATE(t) == HELD && !(PLACE(t) == FENCE(l) && HOLDER(l) == OWNER_OF(t)) ->
			/* no other session writes it any more */
			write_ticket(t, NONE, false, 0)
		:: STATE(t) == HELD && PLACE(t) == FENCE(l) && HOLDER(l) == OWNER_OF(t) && !ALIVE(t) ->
			try_name(l, CHANGE);
			if
			:: ok && STATE(t) == HELD && !ALIVE(t) -> write_ticket(t, NONE, false, 0); write_lock(l)
			:: else
			fi
		:: STATE(t) == WAITING && !ALIVE(t) ->
			excused[me] = true;
			try_ticket(t);
			if
			:: ok && STATE(t) == WAITING && !ALIVE(t) -> write_ticket(t, NONE, false, 0)
			:: else
			fi
		:: else
		fi;
		if
		:: !wrote -> give_back(l)
		:: else
		fi
	}
	end_call()
}

#define IS_QUEUED(t)	(STATE(t) == WAITING)
/* EVENT_PRUNE_LOCK; the floor takes over the row's fence (store_cover_fence) */
inline prune_lock(l) {
	{
		begin_call(l);
		if
		:: FENCE(l) != 0 && !IS_LIVE(l) ->
			try_name(l, CHANGE);
			if
			:: ok -> try_queue(l)
			:: else
			fi;
			if
			:: ok && FENCE(l) != 0 && !IS_LIVE(l) && !ANY(IS_QUEUED, l) && (floor_writer == 0 || MINE(floor_writer)) ->
#ifndef WITHOUT_FLOOR
				if
				:: FENCE(l) > FLOOR -> pending_floor = FENCE(l); floor_writer = me + 1
				:: else
				fi;
#endif
				write_lock(l);
				pending_lock[l].fence = 0; pending_lock[l].holder = 0; pending_lock[l].passed = 0
			:: else
			fi
		:: else
		fi;
		if
		:: !wrote -> give_back(l)
		:: else
		fi
	}
	end_call()
}
inline prune() {
	t = 0;
	do
	:: t < TICKETS -> l = LOCK_OF(t); prune_ticket(l, t); t++
	:: else -> break
	od;
	t = 0; l = 0;
	do
	:: l < LOCKS -> prune_lock(l); l++
	:: else -> break
	od;
	l = 0
}

/* ---- fence.c ---- */

/* fence_check with allow_lapsed, for the newest grant if it is of the own owner */
inline check(l) {
	{
		if
		:: checked[l] == 0 && HOLDER(l) == my -> checked[l] = FENCE(l)
		:: else
		fi
	}
}

/* ---- savepoints: one, of one session ---- */
bool has_savepoint;
LockRow saved_lock[LOCKS];
TicketRow saved_ticket[TICKETS];
byte saved_lock_mine, saved_ticket_mine, saved_name[LOCKS], saved_queue, saved_tag;
byte saved_checked[LOCKS];
byte saved_settled;

inline savepoint() {
	{
		has_savepoint = true;
		i = 0;
		do
		:: i < LOCKS ->
			if
			:: MINE(lock_writer[i]) -> saved_lock_mine = saved_lock_mine | (1 << i);
				saved_lock[i].fence = pending_lock[i].fence; saved_lock[i].holder = pending_lock[i].holder; saved_lock[i].passed = pending_lock[i].passed
			:: else
			fi;
			saved_name[i] = NAME(i, me);
			saved_queue = saved_queue | (MINE(queue_tag[i]) -> (1 << i) : 0);
			saved_checked[i] = checked[i];
			saved_settled = saved_settled | (settled[i] -> (1 << i) : 0);
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < TICKETS ->
			if
			:: MINE(ticket_writer[i]) -> saved_ticket_mine = saved_ticket_mine | (1 << i);
				saved_ticket[i].state = pending_ticket[i].state; saved_ticket[i].alive = pending_ticket[i].alive; saved_ticket[i].place = pending_ticket[i].place
			:: else
			fi;
			saved_tag = saved_tag | (MINE(ticket_tag[i]) -> (1 << i) : 0);
			i++
		:: else -> break
		od;
		i = 0
	}
}
inline forget_savepoint() {
	has_savepoint = false; saved_lock_mine = 0; saved_ticket_mine = 0; saved_queue = 0; saved_tag = 0; saved_settled = 0;
	i = 0;
	do
	:: i < LOCKS -> saved_name[i] = 0; saved_checked[i] = 0; saved_lock[i].fence = 0; saved_lock[i].holder = 0; saved_lock[i].passed = 0; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < TICKETS -> saved_ticket[i].state = 0; saved_ticket[i].alive = 0; saved_ticket[i].place = 0; i++
	:: else -> break
	od;
	i = 0
}
/* ROLLBACK TO: rows, tags (PostgreSQL releases those of the subtransaction), fences_abort_sub */
inline rollback_to() {
	{
		i = 0;
		do
		:: i < LOCKS ->
			if
			:: MINE(lock_writer[i]) && (saved_lock_mine & (1 << i)) ->
				pending_lock[i].fence = saved_lock[i].fence; pending_lock[i].holder = saved_lock[i].holder; pending_lock[i].passed = saved_lock[i].passed
			:: MINE(lock_writer[i]) && !(saved_lock_mine & (1 << i)) -> forget_lock_write(i)
			:: else
			fi;
			NAME(i, me) = saved_name[i];
			if
			:: MINE(queue_tag[i]) && !(saved_queue & (1 << i)) -> queue_tag[i] = 0
			:: else
			fi;
			checked[i] = saved_checked[i];
#ifndef SETTLED_FOR_GOOD
			settled[i] = (saved_settled & (1 << i)) != 0;
#endif
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < TICKETS ->
			if
			:: MINE(ticket_writer[i]) && (saved_ticket_mine & (1 << i)) ->
				pending_ticket[i].state = saved_ticket[i].state; pending_ticket[i].alive = saved_ticket[i].alive; pending_ticket[i].place = saved_ticket[i].place
			:: MINE(ticket_writer[i]) && !(saved_ticket_mine & (1 << i)) -> forget_ticket_write(i)
			:: else
			fi;
			if
			:: MINE(ticket_tag[i]) && !(saved_tag & (1 << i)) -> ticket_tag[i] = 0
			:: else
			fi;
			i++
		:: else -> break
		od;
		forget_savepoint();
		failed = false
	}
}

/* ---- the end of a transaction ---- */

inline forget_lock_write(l) { lock_writer[l] = 0; pending_lock[l].fence = 0; pending_lock[l].holder = 0; pending_lock[l].passed = 0 }
inline forget_ticket_write(t) { ticket_writer[t] = 0; pending_ticket[t].state = 0; pending_ticket[t].alive = 0; pending_ticket[t].place = 0 }

inline forget_writes() {
	i = 0;
	do
	:: i < LOCKS -> if :: MINE(lock_writer[i]) -> forget_lock_write(i) :: else fi; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < TICKETS -> if :: MINE(ticket_writer[i]) -> forget_ticket_write(i) :: else fi; i++
	:: else -> break
	od;
	i = 0;
	if
	:: MINE(floor_writer) -> floor_writer = 0; pending_floor = 0
	:: else
	fi
}

inline release_tags() {
	i = 0;
	do
	:: i < LOCKS -> NAME(i, me) = 0; if :: MINE(queue_tag[i]) -> queue_tag[i] = 0 :: else fi; checked[i] = 0; settled[i] = false; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < TICKETS -> if :: MINE(ticket_tag[i]) -> ticket_tag[i] = 0 :: else fi; i++
	:: else -> break
	od;
	i = 0;
	excused[me] = false;
	failed = false
}

/* a ticket leaves the queue, so nobody is behind it any more */
inline leave_queue(t) {
	stayed[t] = false; passed_over[t] = false; before[t] = 0; j = 0;
	do
	:: j < TICKETS_OF_LOCK -> before[LOCK_OF(t) * TICKETS_OF_LOCK + j] = before[LOCK_OF(t) * TICKETS_OF_LOCK + j] & (255 - (1 << (t % TICKETS_OF_LOCK))); j++
	:: else -> break
	od;
	j = 0
}

inline publish_ticket(t) {
	if
	:: MINE(ticket_writer[t]) ->
		if
		:: pending_ticket[t].state == WAITING && (committed_ticket[t].state != WAITING || committed_ticket[t].place != pending_ticket[t].place) ->
			leave_queue(t);
			/* no new waiter is behind the mark, unless it shares a turn of this transaction */
			assert(pending_ticket[t].place > committed_lock[LOCK_OF(t)].passed || committed_lock[LOCK_OF(t)].holder == OWNER_OF(t));
			stayed[t] = true;
			do
			:: j < TICKETS_OF_LOCK ->
				if
				:: LOCK_OF(t) * TICKETS_OF_LOCK + j != t && committed_ticket[LOCK_OF(t) * TICKETS_OF_LOCK + j].state == WAITING -> before[t] = before[t] | (1 << j)
				:: else
				fi;
				j++
			:: else -> break
			od;
			j = 0
		:: pending_ticket[t].state != WAITING && committed_ticket[t].state == WAITING -> leave_queue(t)
		:: else
		fi;
		committed_ticket[t].state = pending_ticket[t].state; committed_ticket[t].alive = pending_ticket[t].alive; committed_ticket[t].place = pending_ticket[t].place;
#ifdef WAITER
		if
		:: t == LIVING && pending_ticket[t].state == HELD -> was_granted = true
		:: else
		fi;
#endif
		forget_ticket_write(t)
	:: else
	fi
}

#define BELIEVES(t)	(committed_ticket[t].state == HELD && committed_ticket[t].alive && committed_ticket[t].place == committed_lock[LOCK_OF(t)].fence && committed_lock[LOCK_OF(t)].holder == OWNER_OF(t))
#define OTHERS_BELIEVE(l, owner)	(believes[l] & (255 - (1 << (owner))))

inline publish_lock(l) {
	if
	:: MINE(lock_writer[l]) ->
		if
		:: pending_lock[l].fence != committed_lock[l].fence && pending_lock[l].fence != 0 ->
			/* growing fences */
			assert(pending_lock[l].fence > newest[l]);
			newest[l] = pending_lock[l].fence
		:: else
		fi;
		/* a session that ends its grant, or passes the lock on at once, knows that the grant is over */
		if
		:: committed_lock[l].holder == my && (pending_lock[l].holder != my || pending_lock[l].fence != committed_lock[l].fence) -> believes[l] = believes[l] & (255 - (1 << my))
		:: else
		fi;
		committed_lock[l].fence = pending_lock[l].fence; committed_lock[l].holder = pending_lock[l].holder; committed_lock[l].passed = pending_lock[l].passed;
		seen[l] = 0;
		forget_lock_write(l)
	:: else
	fi
}

#ifdef WITHOUT_PASSED_MARK
#define COMMITTED_IN_QUEUE(t)	(committed_ticket[t].state == WAITING && committed_ticket[t].alive)
#else
#define COMMITTED_IN_QUEUE(t)	(committed_ticket[t].state == WAITING && committed_ticket[t].alive && committed_ticket[t].place > committed_lock[LOCK_OF(t)].passed)
#endif

/* after the rows are committed: who holds, and who was passed over */
inline publish_beliefs(l) {
	if
	:: committed_lock[l].holder != 0 && ANY(BELIEVES, l) ->
		/* mutual exclusion */
		assert(OTHERS_BELIEVE(l, committed_lock[l].holder) == 0);
		believes[l] = 1 << committed_lock[l].holder
	:: committed_lock[l].holder == my && !ANY(BELIEVES, l) ->
		/* one ticket was released and the others have lapsed */
		believes[l] = believes[l] & (255 - (1 << my))
	:: else
	fi;
	i = (l) * TICKETS_OF_LOCK;
	do
	:: i < ((l) + 1) * TICKETS_OF_LOCK ->
#ifndef PRUNING
		/* a ticket of an older grant is over; with prune it keeps its slot until removed */
		if
		:: committed_ticket[i].state == HELD && ticket_writer[i] == 0 &&
		   (committed_ticket[i].place != committed_lock[l].fence || committed_lock[l].holder != OWNER_OF(i)) ->
			committed_ticket[i].state = NONE; committed_ticket[i].alive = false; committed_ticket[i].place = 0
		:: else
		fi;
#endif
		if
		:: committed_ticket[i].state == WAITING && committed_ticket[i].place <= committed_lock[l].passed && !committed_ticket[i].alive &&
		   committed_lock[l].holder != OWNER_OF(i) -> passed_over[i] = true
		:: else
		fi;
		/* passed for good */
		assert(!(passed_over[i] && COMMITTED_IN_QUEUE(i)));
		i++
	:: else -> break
	od;
	i = 0
}

/* commit.c: fences_verify, in the order of keys; then COMMIT */
inline verify(l) {
	if
	:: !failed && checked[l] != 0 && !settled[l] ->
#ifndef WITHOUT_VERIFICATION
		wait_name(l, VERIFY);
		{
			if
			:: !failed && (FENCE(l) != checked[l] || HOLDER(l) == 0) -> failed = true
			:: else
			fi
		}
#else
		skip
#endif
	:: else
	fi
}

/* no stale commit: the fence is the newest, and its grant was not ended */
inline assert_not_stale(l) {
	assert(checked[l] == 0 ||
		(!settled[l] && newest[l] == checked[l] && committed_lock[l].fence == checked[l] && committed_lock[l].holder != 0) ||
		(!settled[l] && MINE(lock_writer[l]) && pending_lock[l].fence == checked[l] && pending_lock[l].holder != 0) ||
		(settled[l] && (newest[l] == checked[l] || newest[l] < checked[l]) && MINE(lock_writer[l])))
}

/*
 * Three steps: verify; COMMIT; and release the tags once everybody sees the
 * rows.
 */
inline commit() {
	atomic {
		l = 0;
		do
		:: l < LOCKS -> verify(l); l++
		:: else -> break
		od;
		l = 0
	}
	atomic {
		if
		:: failed -> forget_writes(); wakes = false
		:: else -> publish()
		fi
	}
	atomic { forget_savepoint_if_mine(); release_tags(); wake_up() }
}
/* wake_at_commit: after the tags are free */
inline wake_up() {
#ifdef WAITER
	if
	:: wakes -> woken = true
	:: else
	fi;
#endif
	wakes = false
}
inline publish() {
	l = 0;
	do
	:: l < LOCKS -> assert_not_stale(l); l++
	:: else -> break
	od;
	l = 0;
	do
	:: l < LOCKS -> publish_lock(l); l++
	:: else -> break
	od;
	l = 0; t = 0;
	do
	:: t < TICKETS -> publish_ticket(t); t++
	:: else -> break
	od;
	t = 0;
	do
	:: l < LOCKS -> publish_beliefs(l); l++
	:: else -> break
	od;
	l = 0;
	if
	:: MINE(floor_writer) -> committed_floor = pending_floor; floor_writer = 0; pending_floor = 0
	:: else
	fi
}
inline rollback() { atomic { forget_writes(); forget_savepoint_if_mine(); release_tags(); wakes = false } }
inline forget_savepoint_if_mine() {
#if CALLS & SAVEPOINT
	if :: (may & SAVEPOINT) && has_savepoint -> forget_savepoint() :: else fi
#else
	skip
#endif
}

/* ---- the participants ---- */

#define LOCALS \
	byte name0, ticket0, last, head, at, again, i, j, l, t, t1; \
	byte event, busy, name, tags, plan, needs_name, needs_tags, optional_tags, busy_tag, mask, whose, split; \
	byte checked[LOCKS]; bool settled[LOCKS]; \
	bool queue0, ok, blocked, wrote, failed, patient, silent, in_line, knows_nobody, wakes

/* Makes any calls of "may", up to "calls" per transaction, in up to "transactions". */
proctype Client(byte me; byte my; byte may; byte transactions; byte calls) {
	LOCALS;
	byte slot, call;
	owner_of[me] = my;
	do
	:: transactions > 0 ->
		transactions--; call = calls;
		do
		:: atomic { (call > 0 && !failed) || split != 0 ->
			if
			:: split == 0 ->
				call--;
				l = 0;
#if LOCKS > 1
				if :: l = 0 :: l = 1 fi;
#endif
				slot = 0;
#if SLOTS > 1
				if :: slot = 0 :: slot = 1 fi;
#endif
				t = TICKET(l, my, slot); slot = 0;
				begin_call(l);
				if
#if CALLS & (ACQUIRE | TRY)
				:: (may & (ACQUIRE | TRY)) && STATE(t) == NONE -> event = ACQUIRE; patient = (may & ACQUIRE) != 0
#endif
#if CALLS & LOOK
				:: (may & LOOK) && STATE(t) != NONE -> event = LOOK
#endif
#if CALLS & RENEW
				:: (may & RENEW) && STATE(t) == HELD -> event = RENEW
#endif
#if CALLS & RELEASE
				:: (may & RELEASE) && STATE(t) != NONE -> event = RELEASE
#endif
#if CALLS & CHECK
				:: (may & CHECK) && checked[l] == 0 && HOLDER(l) == my -> check(l)
#endif
#if CALLS & SAVEPOINT
				:: (may & SAVEPOINT) && !has_savepoint -> savepoint()
				:: (may & SAVEPOINT) && has_savepoint -> rollback_to()
#endif
#if CALLS & PRUNE
				:: (may & PRUNE) -> prune()
#endif
				:: else -> skip
				fi
			:: else
			fi;
			if
			:: event != 0 -> carry_out(l, t)
			:: else
			fi;
			if
			:: split == 0 -> end_call(); l = 0; t = 0
			:: else
			fi }
#if CALLS & SAVEPOINT
		:: split == 0 && failed && (may & SAVEPOINT) && has_savepoint -> atomic { rollback_to() }
#endif
		:: split == 0 && call < calls && !failed -> commit(); break
		:: split == 0 && call < calls -> rollback(); break
		od;
		call = 0
	:: transactions == 0 -> break
	od
}

#ifdef WRITER
/* A stalled holder that has checked its fence; it writes, and commits at any time. */
proctype Writer(byte me; byte my) {
	LOCALS;
	byte may = 0;
	owner_of[me] = my;
	check(0);
	commit()
}

#endif
#ifdef WAITER
/*
 * wait_loop.  Looks until it is granted the lock; it never dies (Clock leaves ticket
 * LIVING alone).  After a silent look at a lock that another holds, it sleeps until
 * it is woken or a deadline has passed.  Until it knows that everybody sees its
 * ticket, it checks before each look which session may be ending the grant without
 * having seen the ticket, and first waits for that session to end.
 */
#ifdef NOBODY_ASKED
#define ENDS_GRANT(s)	false
#else
#define ENDS_GRANT(s)	((NAME(0, s) & CHANGE) != 0)
#endif
proctype Waiter(byte me; byte my) {
	LOCALS;
	byte may = 0, releaser;
	bool known, announced, asleep, looking;
	owner_of[me] = my;
	do
	:: was_granted -> break
	:: !was_granted && !looking && (!asleep || woken) && (releaser == 0 || !ENDS_GRANT(releaser - 1)) ->
		atomic {
			asleep = false; woken = false; looking = true;
			announced = (releaser != 0 -> known : announced);
			releaser = 0;
			if
			:: !announced && ENDS_GRANT(0) -> releaser = 1
			:: !announced && ENDS_GRANT(1) -> releaser = 2
			:: else
			fi
		}
	:: looking ->
		atomic {
			if
			:: split == 0 ->
				l = 0; t = TICKET(0, my, 0); begin_call(l);
				if
				:: STATE(t) == NONE -> event = ACQUIRE; patient = true; known = false; announced = false
				:: STATE(t) == WAITING -> event = LOOK; silent = known
				:: STATE(t) == HELD && IS_HELD(t) -> was_granted = true
				:: else -> event = RENEW
				fi
			:: else
			fi;
			if
			:: event != 0 -> carry_out(l, t)
			:: else
			fi;
			if
			:: split == 0 && wrote -> known = (STATE(t) == WAITING); releaser = 0
			:: split == 0 && !wrote && releaser == 0 ->
				announced = known;
				asleep = (STATE(t) == WAITING && busy == 0 && IS_LIVE(0))
			:: else
			fi;
			if
			:: split == 0 -> end_call(); l = 0; t = 0; looking = false
			:: else
			fi
		}
		if
		:: split == 0 -> commit()
		:: else
		fi
	od
}

#endif
#ifndef LIVING
#define LIVING	255
#endif
#ifdef WAITER
inline time_passes() { woken = true }
#else
inline time_passes() { skip }
#endif
/* Only steps that change something, so that spin sees where nothing can continue. */
#define MAY_FADE(t)	(committed_ticket[t].alive && committed_ticket[t].state != NONE && !((t) == LIVING && committed_ticket[t].state == WAITING))
inline fade(t) {
	committed_ticket[t].alive = false;
	stayed[t] = false;
	time_passes();
	if
	:: committed_lock[LOCK_OF(t)].holder == OWNER_OF(t) && !ANY(BELIEVES, LOCK_OF(t)) ->
		believes[LOCK_OF(t)] = believes[LOCK_OF(t)] & (255 - (1 << OWNER_OF(t)))
	:: else
	fi
}
proctype Clock() {
end:
	do
	:: atomic { MAY_FADE(0) -> fade(0) }
	:: atomic { MAY_FADE(1) -> fade(1) }
#if LOCKS * OWNERS * SLOTS > 2
	:: atomic { MAY_FADE(2) -> fade(2) }
#endif
#if LOCKS * OWNERS * SLOTS > 3
	:: atomic { MAY_FADE(3) -> fade(3) }
#endif
	od
}

/* At the start, owner 1 holds all locks, with fence 1. */
inline start() {
	byte k = 0;
	do
	:: k < LOCKS ->
		committed_lock[k].fence = 1; committed_lock[k].holder = 1; newest[k] = 1; believes[k] = 1 << 1;
		committed_ticket[TICKET(k, 1, 0)].state = HELD; committed_ticket[TICKET(k, 1, 0)].alive = true; committed_ticket[TICKET(k, 1, 0)].place = 1;
		k++
	:: else -> break
	od;
	k = 0
}
