/*-------------------------------------------------------------------------
 *
 * history.h
 *	  The events that describe what a plan changes.  Pure, like the rules.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_HISTORY_H
#define LEASELOCK_HISTORY_H

#include "core/model.h"

/* Maximum number of events of a plan, without those of broken shares. */
#define MAX_CHANGES		4

extern int	list_changes(const LeaseView *view, const LeaseEvent *event,
						 const LeasePlan *plan, TimestampTz now,
						 EventRow *rows);

#endif							/* LEASELOCK_HISTORY_H */
