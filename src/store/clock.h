/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  The server's wall clock, and the readings that fences are made from.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_CLOCK_H
#define LEASELOCK_CLOCK_H

#include "datatype/timestamp.h"

/*
 * No fence is beyond this.  What a restore may bring in ends at half of it, as
 * the constraints of the tables say, so that it cannot use up the rest.
 */
#define MAX_FENCE	(INT64CONST(1) << 62)

extern TimestampTz clock_read(TimestampTz not_before);
extern int64 clock_remaining_ms(TimestampTz until, TimestampTz now);
extern int64 fence_reading(void);

#endif							/* LEASELOCK_CLOCK_H */
