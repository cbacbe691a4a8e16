/*-------------------------------------------------------------------------
 *
 * unit.h
 *	  A test of the rules without a server, in small worlds.
 *
 *	decide_test.c	enumerates worlds and events
 *	world.c			plays the protocol's loop on a world in memory
 *	promises.c		checks each resulting plan
 *	event_check.c	checks the events of each plan
 *	siphash_test.c	compares the keyed hash with the paper's numbers
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_UNIT_H
#define LEASELOCK_UNIT_H

#include "postgres.h"

#include "core/decide.h"

/* The server's replacements need its library. */
#undef printf
#undef fprintf
#undef snprintf

/* The time of every case; only the deadlines around it vary. */
#define NOW				INT64CONST(1000000000)
#define PAST			(NOW - 1)
#define SOON			(NOW + 1)
#define SOMETIME		(NOW + 1000)
#define LATER			(NOW + 500000)	/* later than any new lease */

/* Lengths, in microseconds. */
#define LEASE			INT64CONST(60000)
#define OTHER_LEASE		INT64CONST(30000)
#define SHORT_LEASE		INT64CONST(5000)	/* below half of the timeout */
#define TTL				INT64CONST(90000)
#define WAIT			INT64CONST(40000)
#define WAITER_TIMEOUT	INT64CONST(20000)

/* Backends: the caller, and another that attends tickets. */
#define OWN_PID			9
#define OTHER_PID		7

#define MAX_TICKETS		8

/* Stands for a ticket that existed when it was named, but no longer does. */
#define GONE_TICKET		(-2)

/* Identities.  C has the owner label of A under another role. */
enum
{
	A, B, C, IDENTITIES
};

extern const Identity identities[IDENTITIES];

/* A lock, its tickets, and facts that are not in their rows. */
typedef struct World
{
	LockRow		lock;
	int			count;
	TicketRow	tickets[MAX_TICKETS];	/* waiters ordered by place */
	bool		attended[MAX_TICKETS];
	bool		role_allowed[2];	/* the role of A and B, and that of C */
	bool		crowded;		/* each dead waiter stands for many */
	bool		is_full;		/* the queue is full */
	bool		has_cycle;		/* a blocked waiter would wait for itself */
	int64		next_fence;
	int64		floor_fence;
} World;

/* A path through the protocol: which tags turn out to be busy. */
typedef struct Path
{
	unsigned char busy[64];
	int			length;
	int			at;
} Path;

/* One event on its way, as in protocol.c. */
typedef struct Play
{
	World	   *world;			/* before the plan is written */
	LeaseEvent	event;
	int			ticket;			/* index of the event's, -1, or GONE_TICKET */
	unsigned	first_busy;		/* tags that are busy from the start */
	Path	   *path;
	LeaseView	view;
	LeasePlan	plan;
	TicketRow	shares[MAX_TICKETS];
	pg_uuid_t	head_tagged;
	int			steps;
	int			needs;			/* how often a plan needed tags */
	bool		met_busy;		/* some tag was busy */
	bool		wrote;			/* a plan wrote something */
} Play;

/* world.c */
extern bool same_uuid(const pg_uuid_t *a, const pg_uuid_t *b);
extern int	find_ticket(const World *world, const pg_uuid_t *ticket);
extern bool play(Play *play);
extern bool next_path(Path *path);

/* promises.c */
typedef enum Promise
{
	PROGRESS,
	WRITES_WHEN_COMPLETE,
	ONE_HOLDER,
	FENCE_GROWS,
	FIRST_IN_FIRST_OUT,
	OTHERS_UNTOUCHED,
	TAGS_COVER,
	TAGS_SUFFICE,
	NO_WRITE_WITHOUT_PLACE,
	STATE_DIAGRAM,
	STATE_STORED,
	ASKED_AGAIN,
	LOCK_ROW,
	TICKET_ROWS,
	PASSED_MARK,
	RENEWAL_SHORTENS_NOBODY,
	RELEASE_KEEPS_OTHERS,
	WAKES,
	DURABILITY,
	LENGTHS,
	EVENTS_COMPLETE,
	ANSWERS,
	BUSY_ANSWERS,
	JUDGEMENTS,
	FENCE_VERDICTS,
	SIPHASH,
	PROMISES
} Promise;

extern bool stop_at_first;

extern long checks[PROMISES];

extern void report_violation(Promise promise, const Play *play,
							 const char *detail);
extern void check_incomplete(const Play *play);
extern void check_plan(const Play *play, const World *after);
extern void check_outcome(const Play *play, const World *before,
						  const World *after);
extern void check_judgements(const World *world);
extern int	first_waiter(const World *world);
extern bool writes_anything(const LeasePlan *plan);
extern bool is_held(const World *world);
extern bool is_blocked(const World *world, const Identity *who, int64 place);
extern int	report_promises(void);

/* Counts a check; inline, because there are a hundred million of them. */
static inline void
check(Promise promise, bool holds, const Play *play, const char *detail)
{
	checks[promise]++;
	if (!holds)
		report_violation(promise, play, detail);
}

/* event_check.c */
extern void check_events(const Play *play, const World *after);

/* siphash_test.c */
extern void test_siphash(void);

#endif							/* LEASELOCK_UNIT_H */
