/*
 * lease.pml
 *	  The locking protocol of leaselock, to be checked by spin.  test/model/run
 *	  builds and runs the configurations (one_lock.pml and so on), which
 *	  include this file and say who takes part.
 *
 * What stands for what
 *
 *	  session      a backend with its connection; several may act for one owner
 *	  owner        an identity
 *	  ticket       a slot, fixed for (lock, owner); the slot is its request id.  A
 *	               ticket that has ended leaves the slot empty, and the next
 *	               acquisition in it is a new ticket
 *	  committed_*  what everybody reads
 *	  pending_*    what an open transaction has written, with its writer
 *	  alive        of a waiting ticket: heard from in time, or its backend
 *	               lives; of a held one: its lease has not run out
 *	  Clock        takes "alive" away from any ticket at any time
 *	  place        of a waiting ticket; of a held one: the fence of its grant
 *
 * A step of the model is what one call does between two points at which it
 * may meet somebody else: a read without a tag, the taking of a tag, what is
 * done under it.  Where two reads under no common tag matter they are two
 * steps.  The comments name the C functions.
 *
 * Left out: durations (every time-out may come at any time), named holds,
 * scopes, deadlocks between waits, PREPARE TRANSACTION, crashes.  The clock's
 * part of a fence is left out too, so that they grow by the rules alone.
 *
 * Properties, asserted where they must hold (search for the words):
 *	  one writer, mutual exclusion, growing fences, first in first out, no
 *	  stale commit, passed for good.  No jam: spin finds every state in which
 *	  a session stays blocked.  No lost waiter: the formula "granted".
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
#define MAX_FENCE	4			/* no more grants of a lock than that */
#endif
#define SESSIONS	5
#define TICKETS_OF_LOCK	(OWNERS * SLOTS)
#define TICKETS		(LOCKS * TICKETS_OF_LOCK)
#define OWNER_OF(t)	((((t) % TICKETS_OF_LOCK) / SLOTS) + 1)
#define LOCK_OF(t)	((t) / TICKETS_OF_LOCK)
#define TICKET(l, owner, slot)	((l) * TICKETS_OF_LOCK + ((owner) - 1) * SLOTS + (slot))

/* ---- what a client may do: bits; CALLS of a configuration: those of all its clients ---- */
#define ACQUIRE		1			/* lease_acquire with time to wait */
#define TRY			2			/* lease_acquire without */
#define LOOK		4			/* lease_get; a look of lease_wait */
#define RENEW		8
#define RELEASE		16			/* also cancels a wait */
#define CHECK		32			/* fence_check with allow_lapsed */
#define SAVEPOINT	64			/* SAVEPOINT, ROLLBACK TO; one session only */
#define PRUNE		128			/* lease_prune, tidy_before_commit */

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

/* A session reads what is committed, and what it has written itself. */
#define MINE(writer)	((writer) == me + 1)
#define FENCE(l)	(MINE(lock_writer[l]) -> pending_lock[l].fence : committed_lock[l].fence)
#define HOLDER(l)	(MINE(lock_writer[l]) -> pending_lock[l].holder : committed_lock[l].holder)
#define PASSED(l)	(MINE(lock_writer[l]) -> pending_lock[l].passed : committed_lock[l].passed)
#define STATE(t)	(MINE(ticket_writer[t]) -> pending_ticket[t].state : committed_ticket[t].state)
#define ALIVE(t)	(MINE(ticket_writer[t]) -> pending_ticket[t].alive : committed_ticket[t].alive)
#define PLACE(t)	(MINE(ticket_writer[t]) -> pending_ticket[t].place : committed_ticket[t].place)
#define FLOOR		(MINE(floor_writer) -> pending_floor : committed_floor)

/* any of the tickets of a lock */
#if SLOTS * OWNERS == 2
#define ANY(P, l)	(P((l) * 2) || P((l) * 2 + 1))
#elif SLOTS * OWNERS == 3
#define ANY(P, l)	(P((l) * 3) || P((l) * 3 + 1) || P((l) * 3 + 2))
#elif SLOTS * OWNERS == 4
#define ANY(P, l)	(P((l) * 4) || P((l) * 4 + 1) || P((l) * 4 + 2) || P((l) * 4 + 3))
#else
#error "extend ANY"
#endif

/* ---- judging: grant.c and queue.c ---- */

/* ticket_state of a held ticket; the lock's expiry is the latest of these */
#define IS_HELD(t)	(STATE(t) == HELD && ALIVE(t) && PLACE(t) == FENCE(LOCK_OF(t)) && HOLDER(LOCK_OF(t)) == OWNER_OF(t))
/* grant_is_live */
#define IS_LIVE(l)	(HOLDER(l) != 0 && ANY(IS_HELD, l))
/* holds_already */
#define HOLDS(l, owner)	(HOLDER(l) == (owner) && IS_LIVE(l))
/* is_waiting of a row of the queue; without the passed mark as a variant */
#ifdef WITHOUT_PASSED_MARK
#define IN_QUEUE(t)	(STATE(t) == WAITING && ALIVE(t))
#else
#define IN_QUEUE(t)	(STATE(t) == WAITING && ALIVE(t) && PLACE(t) > PASSED(LOCK_OF(t)))
#endif
/* waiter_state; those of the holder share the turn of the one that got it */
#define IS_WAITING(t)	(IN_QUEUE(t) || (STATE(t) == WAITING && ALIVE(t) && HOLDS(LOCK_OF(t), OWNER_OF(t))))

/* queue_head into head (a ticket + 1, 0: nobody), only for owners other than "except" */
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

/* where nobody alive is in the queue: the place of the last that is dead, into last; 0 if the queue tag is busy */
inline pass_dead(l) {
#ifdef PASS_WITHOUT_QUEUE_TAG
	ok = true;
#else
	try_queue(l);
#endif
	last = 0; i = (l) * TICKETS_OF_LOCK;
	do
	:: i < ((l) + 1) * TICKETS_OF_LOCK ->
		if
		:: ok && STATE(i) == WAITING && !ALIVE(i) && PLACE(i) > last -> last = PLACE(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* ---- heavyweight locks: locktag.c and PostgreSQL's lock manager ---- */
#define VERIFY		1			/* RowShareLock */
#define KEEP		2			/* ShareUpdateExclusiveLock */
#define CHANGE		4			/* ExclusiveLock */

#ifdef WITHOUT_VERIFY_CONFLICT
#define AGAINST_VERIFY	0
#else
#define AGAINST_VERIFY	CHANGE
#endif
#ifdef WITHOUT_KEEP_CONFLICT
#define AGAINST_KEEP	CHANGE
#else
#define AGAINST_KEEP	(KEEP | CHANGE)
#endif
#ifdef WITHOUT_VERIFY_CONFLICT
#define AGAINST_CHANGE	(KEEP | CHANGE)
#else
#define AGAINST_CHANGE	(VERIFY | KEEP | CHANGE)
#endif
#define AGAINST(mode)	((mode) == 0 -> 0 : ((mode) == VERIFY -> AGAINST_VERIFY : ((mode) == KEEP -> AGAINST_KEEP : AGAINST_CHANGE)))

#define NAME(l, s)	name_tag[(l) * SESSIONS + (s)]
byte name_tag[LOCKS * SESSIONS];	/* modes that a session holds */
byte wanted[SESSIONS];			/* the mode that it stands in line for */
byte wanted_lock[SESSIONS];
byte ahead[SESSIONS];			/* behind which sessions, as bits */
byte queue_tag[LOCKS];			/* session + 1 */
byte ticket_tag[TICKETS];
byte owner_of[SESSIONS];
bool excused[SESSIONS];		/* has ended a grant, or prunes; for the properties */

#define HOLDS1(s, l, modes)	((s) != me && (NAME(l, s) & (modes)))
#define BUSY(l, modes)	(HOLDS1(0, l, modes) || HOLDS1(1, l, modes) || HOLDS1(2, l, modes) || HOLDS1(3, l, modes) || HOLDS1(4, l, modes))
/* nobody stands behind a request that he blocks himself */
#define LINE1(s, l, modes)	((s) != me && wanted_lock[s] == (l) && (wanted[s] & (modes)) && !(AGAINST(wanted[s]) & NAME(l, me)))
#define LINE(l, modes)	(LINE1(0, l, modes) || LINE1(1, l, modes) || LINE1(2, l, modes) || LINE1(3, l, modes) || LINE1(4, l, modes))
#define BIT1(s, l, modes)	(LINE1(s, l, modes) -> (1 << (s)) : 0)

#define HAS_NAME(l, mode)	((NAME(l, me) & CHANGE) || (NAME(l, me) & (mode)) || ((mode) == VERIFY && (NAME(l, me) & KEEP)))

/* try_name_tag; does not jump the line either */
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
 * wait_name_tag.  On one lock every wait must end by itself; with two, the
 * deadlock detector ends one when nothing else can go on.
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

/* try_queue_tag, try_ticket_tag */
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
 * get_ticket_tag with LOOK_MAY_WAIT.  Who has the name tag only tries; so does
 * who has another ticket tag of the lock.
 */
inline wait_ticket(t) {
	{
		try_ticket(t);
		blocked = !ok && NAME(LOCK_OF(t), me) == 0 && MAY_WAIT_FOR_TICKET
	}
	if
	:: blocked ->
		/* no bystander: only sessions of the same owner, and a release that excused */
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

/* What the session had before the call, so that give_back_tags leaves it. */
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
/* give_back_tags */
inline give_back(l) {
	NAME(l, me) = name0;
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
inline end_call() { { name0 = 0; queue0 = false; ticket0 = 0; wrote = false; ok = false; head = 0; want = 0; last = 0 } }

/* ---- writing: store.c ---- */

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

/* ---- for the properties: nothing of the protocol reads these ---- */
byte newest[LOCKS];				/* the newest fence ever committed */
byte believes[LOCKS];			/* owners that hold by what they were told, as bits */
bool stayed[TICKETS];			/* alive ever since its wait was committed */
bool passed_over[TICKETS];		/* found dead when somebody behind it was granted */
byte before[TICKETS];			/* tickets (of the lock, as bits) that it queued behind */
bool was_granted;				/* the owner that "granted" speaks of */

/*
 * First in, first out: checked when a grant is written.  Nobody who was there
 * before, stayed alive and did not give up in this transaction is still waiting.
 */
#define LEFT_BEHIND(u)	((u) != t && OWNER_OF(u) != OWNER_OF(t) && stayed[u] && committed_ticket[u].state == WAITING && STATE(u) == WAITING && \
	(STATE(t) != WAITING || (before[t] & (1 << ((u) % TICKETS_OF_LOCK)))))

/* ---- grant.c ---- */

/* fence_settle: verifies what this transaction has checked itself */
inline settle(l) {
	if
	:: checked[l] != 0 && !settled[l] && (FENCE(l) != checked[l] || HOLDER(l) == 0) -> failed = true
	:: checked[l] != 0 && !settled[l] && FENCE(l) == checked[l] && HOLDER(l) != 0 -> settled[l] = true
	:: else
	fi
}

/* next_fence, without the clock's part */
#define NEXT_FENCE(l)	((FENCE(l) > FLOOR -> FENCE(l) : FLOOR) + 1)
#define CAN_GRANT(l)	(NEXT_FENCE(l) <= MAX_FENCE)

/* begin_grant and join_grant, for ticket t; mark: the place that had its turn */
inline grant(l, t, mark) {
	assert(!ANY(LEFT_BEHIND, l));
	settle(l);
	write_lock(l);
	pending_lock[l].fence = NEXT_FENCE(l);
	pending_lock[l].holder = OWNER_OF(t);
	if
	:: mark > pending_lock[l].passed -> pending_lock[l].passed = mark
	:: else
	fi;
	at = pending_lock[l].fence; write_ticket(t, HELD, true, at)
}

/* ---- queue.c: a waiter's own look ---- */

/* share_grant */
inline share_grant(l, t) {
	{
		try_name(l, KEEP);
		if
		:: ok -> try_ticket(t)
		:: else
		fi;
		if
		:: ok && STATE(t) == WAITING && IS_WAITING(t) && HOLDS(l, OWNER_OF(t)) -> write_lock(l); at = FENCE(l); write_ticket(t, HELD, true, at)
		:: else -> give_back(l)
		fi
	}
}

/* take_turn */
inline take_turn(l, t) {
	{
		try_name(l, CHANGE);
		if
		:: ok -> try_ticket(t)
		:: else
		fi;
		if
		:: ok -> find_head(l, 0)
		:: else
		fi;
		if
		:: ok && IS_WAITING(t) && !IS_LIVE(l) && head != 0 && OWNER_OF(head - 1) == OWNER_OF(t) && CAN_GRANT(l) ->
			last = PLACE(head - 1);
			grant(l, t, last);
			last = 0
		:: else -> give_back(l)
		fi
	}
}

#ifdef LOOK_GRANTS_OTHERS
/* A rule that is broken: a look excused whoever is first. */
inline promote_other(l, t) {
	{
		try_name(l, CHANGE);
		if
		:: ok -> find_head(l, 0); if :: head != 0 -> try_ticket(head - 1) :: else -> ok = false fi
		:: else
		fi;
		if
		:: ok && !IS_LIVE(l) && CAN_GRANT(l) -> last = PLACE(head - 1); t1 = head - 1; grant(l, t1, last); last = 0
		:: else -> give_back(l)
		fi
	}
}
#endif

/* claim_grant: a promoted ticket's first call; here any held ticket's */
inline claim_grant(l, t) {
	wait_name(l, KEEP);
	{
		if
		:: ok && IS_HELD(t) -> at = PLACE(t); write_ticket(t, HELD, true, at); write_lock(l)
		:: else -> give_back(l)
		fi
	}
}

/* write_look: a sign of life, or that the wait is over */
inline write_look(l, t) {
	wait_ticket(t);
	{
		if
		:: ok && STATE(t) == WAITING ->
			if
			:: IS_WAITING(t) -> at = PLACE(t); write_ticket(t, WAITING, true, at)
			:: else -> write_ticket(t, NONE, false, 0)
			fi
		:: else -> give_back(l)
		fi
	}
}

/* look_at_ticket */
inline look(l, t) {
	{ find_head(l, 0);
		want = (STATE(t) == HELD && IS_HELD(t) -> 1 :
			(!(STATE(t) == WAITING) -> 0 :
			(IS_WAITING(t) && HOLDS(l, OWNER_OF(t)) -> 2 :
			(IS_WAITING(t) && !IS_LIVE(l) && head != 0 && OWNER_OF(head - 1) == OWNER_OF(t) -> 3 : 4))));
		head = 0 }
	if
	:: want == 1 -> claim_grant(l, t)
	:: want == 2 -> share_grant(l, t)
	:: want == 3 -> take_turn(l, t)
#ifdef LOOK_GRANTS_OTHERS
	:: want == 4 -> promote_other(l, t)
#endif
	:: else
	fi;
	if
	:: want >= 2 && !wrote -> write_look(l, t)
	:: else
	fi
}

/* ---- lease.c ---- */

/* try_acquire: grant_mode without a tag, then again under it */
inline grant_mode(l, owner) {
	if
	:: IS_LIVE(l) -> want = (HOLDER(l) == owner -> KEEP : 0)
	:: else -> find_head(l, 0); want = (head == 0 && CAN_GRANT(l) -> CHANGE : 0); head = 0
	fi
}
inline try_acquire(l, t) {
	{ grant_mode(l, my) }
	if
	:: want != 0 ->
		{
			last = want;
			try_ticket(t);
			if
			:: ok -> try_name(l, want)
			:: else
			fi;
			if
			:: ok && STATE(t) == NONE -> grant_mode(l, my)
			:: else -> ok = false
			fi;
			if
			:: ok && want == last && want == CHANGE -> pass_dead(l); grant(l, t, last)
			:: ok && want == last && want == KEEP -> write_lock(l); at = FENCE(l); write_ticket(t, HELD, true, at)
			:: else -> give_back(l)
			fi;
			last = 0; want = 0
		}
	:: else
	fi
}

/* try_enqueue and enqueue: the lock's row is not under the queue tag */
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
/* the first read, under the queue tag */
inline enqueue(l, t) {
	try_ticket(t);
	if
	:: ok -> try_queue(l)
	:: else
	fi;
	if
	:: ok && STATE(t) == NONE ->
#ifdef LOCK_READ_FIRST
		last = PASSED(l);
#else
		last_place(l);
#endif
		queuing = true
	:: else -> give_back(l)
	fi
}
/* the second, and the rest */
inline finish_enqueue(l, t) {
	queuing = false;
#ifdef LOCK_READ_FIRST
	at = last; last_place(l);
	last = MAX_OF(last, at);
#else
	last = MAX_OF(last, PASSED(l));
#endif
	at = last + 1; write_ticket(t, WAITING, true, at);
	last = 0;
	keep(l);
	find_head(l, 0);
	want = (!IS_LIVE(l) && head == t + 1 -> 1 : 0);
	head = 0;
	if
	:: want == 1 -> take_turn(l, t)
	:: else
	fi
}

#ifdef TICKET_HOLDER_WAITS
#define MAY_WAIT_FOR_QUEUE(l)	(NAME(l, me) == 0)
#else
#define MAY_WAIT_FOR_QUEUE(l)	(NAME(l, me) == 0 && ticket0 == 0)
#endif

/*
 * lease_acquire.  With time to wait: an enqueue, and if the queue tag is busy
 * a wait for its keeper, which whoever has a name tag of the lock leaves.
 */
inline acquire(l, t, patient) {
	try_acquire(l, t);
	again = 0;
	do
	:: !wrote && !queuing && patient && again < 2 ->
		enqueue(l, t);
		again++;
		if
		:: !queuing && again < 2 && MAY_WAIT_FOR_QUEUE(l) ->
			/* wait_for_outcome, then once more */
			if
			:: queue_tag[l] == 0 || MINE(queue_tag[l])
#if LOCKS > 1
			:: timeout -> again = 2
#endif
			fi
		:: else -> again = 2
		fi
	:: else -> break
	od;
	again = 0
}

/* settle_lapse: writes that a lease of the newest grant ran out */
inline settle_lapse(l, t) {
	{
		try_name(l, KEEP);
		if
		:: ok && STATE(t) == HELD && !ALIVE(t) && PLACE(t) == FENCE(l) && HOLDER(l) == OWNER_OF(t) -> write_ticket(t, NONE, false, 0); write_lock(l)
		:: else -> give_back(l)
		fi
	}
}

/* settle_others: lapsed tickets of the grant leave it; the caller has the name tag */
inline settle_others(l, t) {
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

/* lease_renew of a held ticket */
inline renew(l, t) {
	if
	:: { IS_HELD(t) -> skip };
		wait_name(l, KEEP);
		{
			if
			:: ok && IS_HELD(t) -> settle_others(l, t); at = PLACE(t); write_ticket(t, HELD, true, at); write_lock(l)
			:: else -> give_back(l)
			fi
		}
	:: else -> skip; if :: STATE(t) == HELD -> settle_lapse(l, t) :: else fi
	fi
}

/* is_last_claim */
#define OTHER_CLAIM(u)	((u) != t && IS_HELD(u))
#define IS_LAST(l)	(!ANY(OTHER_CLAIM, l))

/* promote_head: of a grant just ended, under the name tag */
inline promote_head(l) {
	excused[me] = true;
	find_head(l, 0);
	if
	:: head != 0 ->
		try_ticket(head - 1);
		if
		:: ok && IN_QUEUE(head - 1) && CAN_GRANT(l) ->
			t1 = head - 1; last = PLACE(t1);
			grant_promoted(l, t1, last);
			last = 0; t1 = 0
		:: else
		fi
	:: else ->
		pass_dead(l);
		if
		:: last > pending_lock[l].passed -> pending_lock[l].passed = last
		:: else
		fi;
		last = 0
	fi;
	head = 0
}
#define LEFT_BEHIND_1(u)	((u) != t1 && OWNER_OF(u) != OWNER_OF(t1) && stayed[u] && committed_ticket[u].state == WAITING && STATE(u) == WAITING && \
	(before[t1] & (1 << ((u) % TICKETS_OF_LOCK))))
inline grant_promoted(l, t1, mark) {
	assert(!ANY(LEFT_BEHIND_1, l));
	pending_lock[l].fence = NEXT_FENCE(l);
	pending_lock[l].holder = OWNER_OF(t1);
	pending_lock[l].passed = mark;
	at = pending_lock[l].fence; write_ticket(t1, HELD, true, at)
}

/* lease_release of a held ticket; the last of a grant ends it */
inline release_held(l, t) {
	want = (IS_LAST(l) -> CHANGE : KEEP);
	wait_name(l, want);
	{
		if
		:: ok && !IS_HELD(t) -> give_back(l)
		:: ok && IS_HELD(t) && want == KEEP && IS_LAST(l) -> give_back(l); want = 0	/* again, with CHANGE */
		:: ok && IS_HELD(t) && (want == CHANGE || !IS_LAST(l)) ->
			if
			:: IS_LAST(l) ->
				settle(l);
				if
				:: !failed ->
					write_lock(l);
					write_ticket(t, NONE, false, 0);
					pending_lock[l].holder = 0;
					promote_head(l)
				:: else
				fi
			:: else -> write_ticket(t, NONE, false, 0); settle_others(l, t); write_lock(l)
			fi
		:: else
		fi
	}
}

/* lease_release: of a held ticket, a lapsed one, or a wait (cancel_wait) */
inline release(l, t) {
	if
	:: STATE(t) == WAITING ->
		wait_ticket(t);
		{
			if
			:: ok && STATE(t) == WAITING -> write_ticket(t, NONE, false, 0)
			:: else -> give_back(l)
			fi
		}
	:: STATE(t) == HELD && !IS_HELD(t) -> settle_lapse(l, t)
	:: STATE(t) == HELD && IS_HELD(t) ->
		want = 0;
		do
		:: want == 0 && again < 2 && IS_HELD(t) -> again++; release_held(l, t)
		:: else -> break
		od;
		again = 0
	:: else
	fi
}

/* ---- prune.c ---- */

inline prune_ticket(l, t) {
	{
		begin_call(l);
		if
		:: STATE(t) == HELD && !(PLACE(t) == FENCE(l) && HOLDER(l) == OWNER_OF(t)) ->
			/* nobody else writes it any more */
			write_ticket(t, NONE, false, 0)
		:: STATE(t) == HELD && PLACE(t) == FENCE(l) && HOLDER(l) == OWNER_OF(t) && !ALIVE(t) ->
			/* prune_held_ticket */
			try_name(l, CHANGE);
			if
			:: ok && STATE(t) == HELD && !ALIVE(t) -> write_ticket(t, NONE, false, 0); write_lock(l)
			:: else
			fi
		:: STATE(t) == WAITING && !ALIVE(t) ->
			/* prune_waiting_ticket */
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
/* prune_lock; the floor takes over the row's fence (cover_fence) */
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

/* check_fence with allow_lapsed, of the newest grant if it is the own owner's */
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
/* ROLLBACK TO: rows, tags (PostgreSQL gives back those of the subtransaction), abort_pending_sub */
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

/* a ticket leaves the queue: nobody is behind it any more */
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
			/* no waiter is born behind the mark */
			assert(pending_ticket[t].place > committed_lock[LOCK_OF(t)].passed);
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
#ifdef LIVING
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
		/* whoever ends a grant, or gives it to somebody else in one go, knows that it is over */
		if
		:: committed_lock[l].holder == my && (pending_lock[l].holder != my || pending_lock[l].fence != committed_lock[l].fence) -> believes[l] = believes[l] & (255 - (1 << my))
		:: else
		fi;
		committed_lock[l].fence = pending_lock[l].fence; committed_lock[l].holder = pending_lock[l].holder; committed_lock[l].passed = pending_lock[l].passed;
		forget_lock_write(l)
	:: else
	fi
}

#ifdef WITHOUT_PASSED_MARK
#define COMMITTED_IN_QUEUE(t)	(committed_ticket[t].state == WAITING && committed_ticket[t].alive)
#else
#define COMMITTED_IN_QUEUE(t)	(committed_ticket[t].state == WAITING && committed_ticket[t].alive && committed_ticket[t].place > committed_lock[LOCK_OF(t)].passed)
#endif

/* after the rows are out: who holds, and who was passed over */
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

/* leaselock_xact_callback: verify_pending_fences, in the order of keys; then COMMIT */
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

/* no stale commit: the fence is the newest one, its grant was not ended */
inline assert_not_stale(l) {
	assert(checked[l] == 0 ||
		(!settled[l] && newest[l] == checked[l] && committed_lock[l].fence == checked[l] && committed_lock[l].holder != 0) ||
		(!settled[l] && MINE(lock_writer[l]) && pending_lock[l].fence == checked[l] && pending_lock[l].holder != 0) ||
		(settled[l] && (newest[l] == checked[l] || newest[l] < checked[l]) && MINE(lock_writer[l])))
}

/*
 * Three steps: verify, COMMIT, and the tags are given back after everybody
 * sees the rows.
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
		:: failed -> forget_writes()
		:: else -> publish()
		fi
	}
	atomic { forget_savepoint_if_mine(); release_tags() }
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
inline rollback() { atomic { forget_writes(); forget_savepoint_if_mine(); release_tags() } }
inline forget_savepoint_if_mine() {
#if CALLS & SAVEPOINT
	if :: (may & SAVEPOINT) && has_savepoint -> forget_savepoint() :: else fi
#else
	skip
#endif
}

/* ---- who takes part ---- */

#define LOCALS \
	byte name0, ticket0, want, last, head, at, again, i, j, l, t, t1; \
	byte checked[LOCKS]; bool settled[LOCKS]; \
	bool queue0, queuing, ok, blocked, wrote, failed, patient

/* Any calls out of "may", up to "calls" a transaction, up to "transactions". */
proctype Client(byte me; byte my; byte may; byte transactions; byte calls) {
	LOCALS;
	byte slot, call;
	owner_of[me] = my;
	do
	:: transactions > 0 ->
		transactions--; call = calls;
		do
		:: call > 0 && !failed ->
			atomic {
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
				:: (may & (ACQUIRE | TRY)) && STATE(t) == NONE -> patient = (may & ACQUIRE) != 0; acquire(l, t, patient)
#endif
#if CALLS & LOOK
				:: (may & LOOK) && STATE(t) != NONE -> look(l, t)
#endif
#if CALLS & RENEW
				:: (may & RENEW) && STATE(t) == HELD -> renew(l, t)
#endif
#if CALLS & RELEASE
				:: (may & RELEASE) && STATE(t) != NONE -> release(l, t)
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
				fi;
				if
				:: !queuing -> end_call(); l = 0; t = 0
				:: else
				fi
			}
			if
			:: queuing -> atomic { finish_enqueue(l, t); end_call(); l = 0; t = 0 }
			:: else
			fi
#if CALLS & SAVEPOINT
		:: failed && (may & SAVEPOINT) && has_savepoint -> atomic { rollback_to() }
#endif
		:: call < calls && !failed -> commit(); break
		:: call < calls -> rollback(); break
		od;
		call = 0
	:: transactions == 0 -> break
	od
}

#ifdef WRITER
/* A stalled holder that has checked its fence: writes, and commits at some time. */
proctype Writer(byte me; byte my) {
	LOCALS;
	byte may = 0;
	owner_of[me] = my;
	check(0);
	commit()
}

#endif
#ifdef LIVING
/* Polls until it has had its turn; it never dies (Clock leaves ticket LIVING alone). */
proctype Waiter(byte me; byte my) {
	LOCALS;
	byte may = 0;
	owner_of[me] = my;
	do
	:: was_granted -> break
	:: !was_granted ->
		atomic {
			l = 0; t = TICKET(0, my, 0); begin_call(l);
			if
			:: STATE(t) == NONE -> acquire(l, t, true)
			:: STATE(t) == WAITING -> look(l, t)
			:: STATE(t) == HELD && IS_HELD(t) -> was_granted = true
			:: else -> settle_lapse(l, t)
			fi;
			if
			:: !queuing -> end_call(); l = 0; t = 0
			:: else
			fi
		}
		if
		:: queuing -> atomic { finish_enqueue(l, t); end_call(); l = 0; t = 0 }
		:: else
		fi;
		commit();
	od
}

#else
#define LIVING	255
#endif
/* Only steps that change something, so that spin sees where nothing can go on. */
#define MAY_FADE(t)	(committed_ticket[t].alive && committed_ticket[t].state != NONE && !((t) == LIVING && committed_ticket[t].state == WAITING))
inline fade(t) {
	committed_ticket[t].alive = false;
	stayed[t] = false;
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

/* Lock 0 .. are held by owner 1 with fence 1 to begin with. */
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
