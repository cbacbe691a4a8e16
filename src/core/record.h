/*-------------------------------------------------------------------------
 *
 * record.h
 *	  Keeping on record what was changed: as events, and in the server's log.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_RECORD_H
#define LEASELOCK_RECORD_H

#include "core/model.h"
#include "leaselock.h"

/* Whether there is anything to record; all that it costs where not. */
static inline bool
records_plans(void)
{
	return leaselock_events != EVENTS_OFF || leaselock_log_takeovers ||
		leaselock_log_breaks;
}

extern void record_plan(const LeaseView *view, const LeaseEvent *event,
						const LeasePlan *plan, TimestampTz now);
extern void record_operation(ChangeKind kind, const char *scope, int64 fence);

#endif							/* LEASELOCK_RECORD_H */
