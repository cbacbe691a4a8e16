/*-------------------------------------------------------------------------
 *
 * decide.h
 *	  The rules.  Pure functions: no I/O, no locks, no clock, no memory.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_DECIDE_H
#define LEASELOCK_DECIDE_H

#include "core/model.h"

/*
 * With at least this many dead waiters before the head, move the passed mark.
 */
#define MANY_DEAD	16

extern LeasePlan decide(const LeaseView *view, const LeaseEvent *event,
						TimestampTz now);

/* judgements of stored rows at a given time */
extern bool same_identity(const Identity *a, const Identity *b);
extern bool same_ticket(const TicketRow *a, const TicketRow *b);
extern bool grant_is_live(const LockRow *lock, TimestampTz now);
extern TimestampTz grant_until(const LockRow *lock);
extern int	grant_depth(const LockRow *lock, const TicketRow *shares,
						int share_count, TimestampTz now);
extern LeaseState ticket_state(const TicketRow *ticket, const LockRow *lock,
							   TimestampTz now);
extern bool waiter_is_dead(const TicketRow *ticket, const LockRow *lock,
						   TimestampTz now);
extern bool waiter_is_live(const TicketRow *ticket, const LockRow *lock,
						   TimestampTz now);
extern bool end_share(const LeasePlan *plan, TicketRow *share, TimestampTz now);
extern FenceVerdict judge_fence(const LockRow *lock, int64 fence,
								TimestampTz now);
extern bool fence_may_commit(const LockRow *lock, int64 fence);

#endif							/* LEASELOCK_DECIDE_H */
