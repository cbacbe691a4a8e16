/*-------------------------------------------------------------------------
 *
 * protocol.h
 *	  The locking protocol: carries out what the rules decide.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_PROTOCOL_H
#define LEASELOCK_PROTOCOL_H

#include "core/model.h"
#include "store/tag.h"

/* The result of an event. */
typedef struct Outcome
{
	LeaseState	state;
	bool		yes;			/* answer of calls that return yes or no */
	unsigned	retry_after;	/* the tag that was busy, if any */
	LockRow		lock;			/* as it is now */
	bool		has_ticket;
	TicketRow	ticket;			/* as it is now */
	bool		has_head;		/* nobody holds the lock, and this is next: */
	TicketRow	head;
	TimestampTz now;			/* the clock reading used for all of it */
} Outcome;

/* The tag that blocks an acquisition and whose holder may be waited for. */
typedef struct BusyTag
{
	Tag			tag;
	LOCKMODE	mode;
	bool		brief;			/* its holder may be gone in a moment */
} BusyTag;

extern void report_foreign_request(const LockKey *key);
extern void carry_out(LeaseEvent *event, const TicketRow *ticket,
					  Outcome *outcome);
extern void carry_out_with(LeaseEvent *event, const TicketRow *ticket,
						   unsigned busy, bool quiet, int *tags,
						   Outcome *outcome);
extern bool try_acquire(LeaseEvent *event, TimestampTz until, bool first,
						Outcome *outcome, BusyTag *busy_tag);
extern void acquire(LeaseEvent *event, TimestampTz until, Outcome *outcome);

#endif							/* LEASELOCK_PROTOCOL_H */
