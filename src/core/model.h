/*-------------------------------------------------------------------------
 *
 * model.h
 *	  What the rules speak of: rows, what is known, what happens, what follows.
 *
 * The words, each with its one meaning:
 *
 *	grant		 one period in which one identity holds a lock
 *	share		 what keeps a grant alive: a held ticket, or the named hold
 *	holder		 the identity of the newest grant, until that is ended
 *	lapse		 a lease has run out; what the clock does, not an event
 *	waiter		 a ticket that is stored as waiting
 *	live waiter	 one that the clock has not ended and that may use the scope
 *	dead waiter	 one that the clock has ended, or whose turn has passed
 *	attended	 a backend waits for the ticket inside the server
 *	head		 the first live waiter of a lock
 *	passed mark	 places in the queue up to this one have had their turn
 *	promotion	 whoever ends a grant gives the lock to the head
 *	unclaimed	 promoted, and nobody has asked for the ticket since
 *	newcomer	 who asks for a lock without a ticket in its queue
 *	tag			 a heavyweight lock of ours, see store/tag.h
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_MODEL_H
#define LEASELOCK_MODEL_H

#include "store/types.h"

/* The name tag's modes, in the order of what they allow. */
typedef enum NameMode
{
	NAME_NONE,
	NAME_VERIFY,				/* commit under a grant that must not change */
	NAME_EXTEND,				/* write a lock whose grant stays */
	NAME_CHANGE					/* begin or end a grant */
} NameMode;

/* Tags of a lock beside its name tag; in sets. */
#define TAG_QUEUE		0x01	/* draw places, or say that nobody does */
#define TAG_TICKET		0x02	/* of the event's ticket */
#define TAG_SCOPE		0x04	/* nobody registers the scope meanwhile */
#define TAG_HEAD		0x08	/* the ticket tag of the head */
#define TAG_FLOOR		0x10	/* raise the floor of fences */
#define TAG_NAME		0x20	/* the name tag, in some mode */
#define ANY_TAG			0x3F

/* Parts of a view that are read only if a rule asks for them; in sets. */
#define PART_HEAD		0x01	/* the head, and the dead waiters before it */
#define PART_RIVAL		0x02	/* a live waiter other than the holder */
#define PART_SHARES		0x04	/* the tickets of the grant */
#define PART_FENCE		0x08	/* the next fence */
#define PART_PLACE		0x10	/* the next place in the queue */
#define PART_CYCLE		0x20	/* whether the wait closes a cycle */
#define PART_QUEUED		0x40	/* whether any ticket is in the queue */
#define PART_FLOOR		0x80	/* the floor of fences */

/* What is known. */
typedef struct LeaseView
{
	LockRow		lock;
	bool		has_ticket;
	TicketRow	ticket;			/* the one that the event names */

	unsigned	known;			/* which of the following parts */
	bool		has_head;
	TicketRow	head;
	int			dead_waiters;	/* before the head, or all */
	int64		dead_place;		/* the last of those */
	bool		has_rival;
	TicketRow  *shares;
	int			share_count;
	int64		next_fence;
	int64		next_place;
	bool		queue_is_full;
	bool		closes_cycle;
	bool		is_queued;
	int64		floor_fence;
	bool		holder_allowed; /* its role may use the scope */

	NameMode	name;			/* the mode that the transaction has */
	unsigned	tags;			/* the other tags that it has */
	unsigned	busy;			/* tags that were not to be had */
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
	EVENT_BREAK_STRANGER,		/* a grant of a role that lost access */
	EVENT_PRUNE_TICKET,
	EVENT_PRUNE_LOCK
} EventKind;

/* What happens.  Which fields count depends on the kind. */
typedef struct LeaseEvent
{
	EventKind	kind;
	LockKey		key;
	Identity	who;			/* acquire, try_lock, renew_lock, release_lock */
	pg_uuid_t	ticket;			/* the event's ticket, or one to be made */
	bool		has_request_id; /* acquire */
	pg_uuid_t	request_id;
	const char *note;			/* acquire, NULL: none */
	int64		lease_us;		/* acquire; renew, 0: as last asked for; ttl */
	bool		may_queue;		/* acquire */
	bool		first_try;		/* of that, which does not queue for busy tags */
	int64		left_us;		/* of its wait, by the clock */
	int64		fence;			/* break */
	TimestampTz before;			/* prune */

	/* how a look at a waiter behaves */
	bool		silent;			/* it needs no sign of life */
	bool		attending;		/* a backend waits, and is that sign */
	bool		leave_waiting;	/* do not take a turn */
	bool		may_wait;		/* stand in line for tags */
	bool		only_judge;		/* by somebody who is not its owner */
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
	REFUSE_BUSY_TICKET			/* the wait cannot be ended here and now */
} Refusal;

/* What a crash may do to what is written. */
typedef enum Durability
{
	DURABLE,					/* as the transaction's other writes */
	LOSABLE,					/* lose it: then a lease runs out instead */
	ACKNOWLEDGED				/* never lose it, whatever the settings */
} Durability;

/* What a waiter is to be told of a change, at commit. */
typedef enum Wake
{
	WAKE_NOBODY,
	WAKE_HEAD,					/* the head in the view */
	WAKE_NEXT					/* the head once the plan is written */
} Wake;

/* What follows. */
typedef struct LeasePlan
{
	/* if anything of these is set, it is to be got first, and no more is said */
	unsigned	asks;			/* parts of the view */
	NameMode	needs_name;		/* tags, without which nothing is written */
	unsigned	needs_tags;
	unsigned	likes_tags;		/* tags that would allow more */
	bool		name_in_line;	/* wait for the name tag as for any lock */
	bool		ticket_in_line; /* the same for the ticket tag */

	/* the answer */
	Refusal		refusal;
	LeaseState	state;
	bool		yes;			/* of those that answer yes or no */
	unsigned	retry_after;	/* the tag that stood in the way, if any */

	/* what is written */
	bool		writes_lock;
	LockRow		lock;
	bool		writes_ticket;
	TicketRow	ticket;
	bool		writes_head;
	TicketRow	head;
	LeaseState	shares_end;		/* of the other live shares; HELD: they stay */
	bool		begins_grant;
	bool		ends_grant;
	bool		deletes_lock;
	bool		deletes_ticket;
	bool		raises_floor;	/* at or above the lock's fence */
	bool		ends_lapsed_shares;
	bool		from_queue;		/* the grant is a waiter's */
	bool		is_blocked;		/* the holder stands in the ticket's way */
	bool		look_again;		/* there is more to do, once it is written */
	Wake		wake;
	Durability	durability;
} LeasePlan;

/* Why a fence may or may not write. */
typedef enum FenceVerdict
{
	FENCE_CURRENT,
	FENCE_LAPSED,				/* the present grant, but its lease ran out */
	FENCE_ENDED,				/* released or broken, nobody since */
	FENCE_SUPERSEDED,
	FENCE_UNKNOWN				/* never given out, as far as is known */
} FenceVerdict;

#endif							/* LEASELOCK_MODEL_H */
