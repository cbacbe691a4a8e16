/*-------------------------------------------------------------------------
 *
 * history.h
 *	  What a plan changes, as events that tell of it.  Pure, as the rules are.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_HISTORY_H
#define LEASELOCK_HISTORY_H

#include "core/model.h"

/* A plan changes so much at most beside the shares that it breaks. */
#define MAX_CHANGES		4

extern int	list_changes(const LeaseView *view, const LeaseEvent *event,
						 const LeasePlan *plan, TimestampTz now,
						 EventRow *rows);

#endif							/* LEASELOCK_HISTORY_H */
