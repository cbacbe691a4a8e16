/*-------------------------------------------------------------------------
 *
 * record.h
 *	  Records of changes: events, and lines in the server log.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_RECORD_H
#define LEASELOCK_RECORD_H

#include "core/model.h"
#include "leaselock.h"

/*
 * Whether there is anything to record.  If not, this check is the only cost.
 */
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
