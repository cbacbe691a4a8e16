/*-------------------------------------------------------------------------
 *
 * protocol.h
 *	  Carries out what the rules decide.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_PROTOCOL_H
#define LEASELOCK_PROTOCOL_H

#include "core/model.h"
#include "store/tag.h"

/* What came of an event. */
typedef struct Outcome
{
	LeaseState	state;
	bool		yes;			/* of those that answer yes or no */
	unsigned	retry_after;	/* the tag that stood in the way, if any */
	LockRow		lock;			/* as it is now */
	bool		has_ticket;
	TicketRow	ticket;			/* as it is now */
	bool		has_head;		/* nobody holds the lock, this one is next: */
	TicketRow	head;
	TimestampTz now;			/* the reading that all of it was judged by */
} Outcome;

/* What stands in the way of an acquisition, and may be waited for. */
typedef struct Obstacle
{
	Tag			tag;
	LOCKMODE	mode;
	bool		brief;			/* it may be out of the way in a moment */
} Obstacle;

extern void report_foreign_request(const LockKey *key);
extern void carry_out(LeaseEvent *event, const TicketRow *ticket,
					  Outcome *outcome);
extern void carry_out_with(LeaseEvent *event, const TicketRow *ticket,
						   unsigned busy, bool quiet, int *tags,
						   Outcome *outcome);
extern bool try_acquire(LeaseEvent *event, TimestampTz until, bool first,
						Outcome *outcome, Obstacle *obstacle);
extern void acquire(LeaseEvent *event, TimestampTz until, Outcome *outcome);

#endif							/* LEASELOCK_PROTOCOL_H */
