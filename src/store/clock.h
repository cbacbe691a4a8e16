/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  The server's wall clock, and the clock readings used for fences.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_CLOCK_H
#define LEASELOCK_CLOCK_H

#include "datatype/timestamp.h"

/*
 * The upper limit of fences.  The constraints of the tables allow only half of
 * this, so that restored rows cannot use up all fences.
 */
#define MAX_FENCE	(INT64CONST(1) << 62)

extern TimestampTz clock_read(TimestampTz not_before);
extern int64 clock_remaining_ms(TimestampTz until, TimestampTz now);
extern int64 fence_reading(void);

#endif							/* LEASELOCK_CLOCK_H */
