/*-------------------------------------------------------------------------
 *
 * model.h
 *	  The types of the rules: rows, views, events and plans.
 *
 * Terms, each with one meaning:
 *
 *	grant		 one period in which one identity holds a lock
 *	share		 what keeps a grant alive: a held ticket, or the named hold
 *	holder		 the identity of the newest grant, until that grant is ended
 *	lapse		 a lease has run out; judged by the clock, not an event
 *	waiter		 a ticket that is stored as waiting
 *	live waiter	 a waiter not ended by the clock, whose role may use the scope
 *	dead waiter	 a waiter that the clock has ended, or whose turn has passed
 *	attended	 a backend waits for the ticket inside the server
 *	head		 the first live waiter of a lock
 *	passed mark	 places in the queue up to this one have had their turn
 *	promotion	 whoever ends a grant gives the lock to the head
 *	unclaimed	 promoted, and nobody has called for the ticket since
 *	newcomer	 a caller that acquires a lock without a ticket in its queue
 *	tag			 one of our heavyweight locks, see store/tag.h
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_MODEL_H
#define LEASELOCK_MODEL_H

#include "store/types.h"

/* Modes of the name tag, from weakest to strongest. */
typedef enum NameMode
{
	NAME_NONE,
	NAME_VERIFY,				/* commit under a grant that must not change */
	NAME_EXTEND,				/* write the row, keep the grant */
	NAME_CHANGE					/* begin or end a grant */
} NameMode;

/* Tags of a lock.  They are combined in bit sets. */
#define TAG_QUEUE		0x01	/* assign places, or ensure that nobody does */
#define TAG_TICKET		0x02	/* the ticket tag of the event's ticket */
#define TAG_SCOPE		0x04	/* prevent the scope from being registered */
#define TAG_HEAD		0x08	/* the ticket tag of the head */
#define TAG_FLOOR		0x10	/* raise the floor of fences */
#define TAG_NAME		0x20	/* the name tag, in some mode */
#define ANY_TAG			0x3F

/*
 * Parts of a view that are read only if a rule asks for them.  They are
 * combined in bit sets.
 */
#define PART_HEAD		0x01	/* the head, and the dead waiters before it */
#define PART_OTHER_WAITER		0x02	/* a live waiter of another identity */
#define PART_SHARES		0x04	/* the tickets of the grant */
#define PART_FENCE		0x08	/* the next fence */
#define PART_PLACE		0x10	/* the next place in the queue */
#define PART_CYCLE		0x20	/* whether the wait would close a cycle */
#define PART_QUEUED		0x40	/* whether any ticket is in the queue */
#define PART_FLOOR		0x80	/* the floor of fences */

/* What is known when a decision is made. */
typedef struct LeaseView
{
	LockRow		lock;
	bool		has_ticket;
	TicketRow	ticket;			/* the ticket that the event names */

	unsigned	known;			/* which of the following parts are known */
	bool		has_head;
	TicketRow	head;
	int			dead_waiters;	/* before the head, or all */
	int64		dead_place;		/* place of the last of them */
	bool		has_other_waiter;
	TicketRow  *shares;
	int			share_count;
	int64		next_fence;
	int64		next_place;
	bool		queue_is_full;
	bool		closes_cycle;
	bool		is_queued;
	int64		floor_fence;
	bool		holder_allowed; /* its role may use the scope */

	NameMode	name;			/* the mode that the transaction holds */
	unsigned	tags;			/* the other tags that it holds */
	unsigned	busy;			/* tags that could not be acquired */
} LeaseView;

typedef enum EventKind
{
	EVENT_ACQUIRE,
	EVENT_LOOK,
	EVENT_RENEW,
	EVENT_RELEASE,
	EVENT_CANCEL,				/* the wait of a role that lost access */
	EVENT_TRY_LOCK,
	EVENT_RENEW_LOCK,
	EVENT_RELEASE_LOCK,
	EVENT_BREAK,
	EVENT_BREAK_UNAUTHORIZED,	/* a grant of a role that lost access */
	EVENT_PRUNE_TICKET,
	EVENT_PRUNE_LOCK
} EventKind;

/* What happens.  The kind determines which fields are used. */
typedef struct LeaseEvent
{
	EventKind	kind;
	LockKey		key;
	Identity	who;			/* acquire, try_lock, renew_lock, release_lock */
	pg_uuid_t	ticket;			/* the event's, or that of a new one */
	bool		has_request_id; /* acquire */
	pg_uuid_t	request_id;
	const char *note;			/* acquire; NULL: none */
	int64		lease_us;		/* lease or ttl; renew, 0: as before */
	bool		may_queue;		/* acquire */
	bool		first_try;		/* acquire: not yet for busy tags */
	int64		left_us;		/* acquire: left of its wait */
	int64		fence;			/* break */
	TimestampTz before;			/* prune */

	/* options of a look at a waiter */
	bool		silent;			/* the look is no sign of life */
	bool		attending;		/* a backend waits, and is that sign */
	bool		leave_waiting;	/* do not take the turn */
	bool		may_wait;		/* may wait for tags */
	bool		only_judge;		/* not by its owner: write nothing */
	int			pid;			/* of the backend that looks */

	/* settings */
	int64		waiter_timeout_us;
} LeaseEvent;

/* Why an event is refused. */
typedef enum Refusal
{
	NOT_REFUSED,
	REFUSE_FOREIGN_REQUEST,		/* the request id is another identity's */
	REFUSE_FULL_QUEUE,
	REFUSE_BUSY_TICKET			/* the wait cannot be ended now */
} Refusal;

/* What a crash may do to the changes. */
typedef enum Durability
{
	DURABLE,					/* like the transaction's other writes */
	LOSABLE,					/* may lose them: the lease runs out instead */
	ACKNOWLEDGED				/* must not lose them, whatever the settings */
} Durability;

/* Which waiter to wake at commit. */
typedef enum Wake
{
	WAKE_NOBODY,
	WAKE_HEAD,					/* the head in the view */
	WAKE_NEXT					/* the head after the plan has been written */
} Wake;

/* What follows from an event. */
typedef struct LeasePlan
{
	/*
	 * anything set here must be obtained first; the rest of the plan does not
	 * count yet
	 */
	unsigned	asks;			/* parts of the view */
	NameMode	needs_name;		/* tags that are required before writing */
	unsigned	needs_tags;
	unsigned	optional_tags;	/* tags that would allow more, if available */
	bool		name_in_line;	/* wait for the name tag in line */
	bool		ticket_in_line; /* wait for the ticket tag in line */

	/* the answer */
	Refusal		refusal;
	LeaseState	state;
	bool		yes;			/* answer of calls that return yes or no */
	unsigned	retry_after;	/* the tag that was busy, if any */

	/* the changes */
	bool		writes_lock;
	LockRow		lock;
	bool		writes_ticket;
	TicketRow	ticket;
	bool		writes_head;
	TicketRow	head;
	LeaseState	shares_end;		/* of other live shares; HELD: none */
	bool		begins_grant;
	bool		ends_grant;
	bool		deletes_lock;
	bool		deletes_ticket;
	bool		raises_floor;	/* to at least the lock's fence */
	bool		ends_lapsed_shares;
	bool		from_queue;		/* the grantee comes from the queue */
	bool		is_blocked;		/* the holder blocks the ticket */
	bool		look_again;		/* decide again once this has been written */
	Wake		wake;
	Durability	durability;
} LeasePlan;

/* Whether and why a fence may write. */
typedef enum FenceVerdict
{
	FENCE_CURRENT,
	FENCE_LAPSED,				/* the newest, but its lease ran out */
	FENCE_ENDED,				/* released or broken, and not granted since */
	FENCE_SUPERSEDED,
	FENCE_UNKNOWN				/* never issued, as far as the row tells */
} FenceVerdict;

#endif							/* LEASELOCK_MODEL_H */
