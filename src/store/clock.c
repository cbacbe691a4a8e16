/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  The server's wall clock, and the clock readings used for fences.
 *
 * An operation on a lock reads the clock after reading the lock's row, and
 * again after each time that it rereads the row.  It judges everything by the
 * last reading.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/timestamp.h"

#include "leaselock.h"
#include "store/clock.h"

/* 2020-01-01 00:00 UTC, from which fences count */
#define FENCE_EPOCH			(INT64CONST(7305) * USECS_PER_DAY)

/*
 * How far a new timeline advances the fences: more than the clocks of two
 * servers are likely to differ.
 */
#define FENCE_PER_TIMELINE	(INT64CONST(64) * USECS_PER_SEC)

static TimestampTz
wall_clock(void)
{
	return GetCurrentTimestamp() + (int64) (leaselock_clock_offset * 1000);
}

/*
 * Reads the clock for a lock whose time has already reached not_before
 * (DT_NOBEGIN for a new lock).  If the clock was set back by up to max_lease,
 * the lock's time does not go back, so that no lapsed lease is revived.  A
 * larger step is followed, because otherwise one wrong clock would freeze the
 * lock.
 */
TimestampTz
clock_read(TimestampTz not_before)
{
	TimestampTz now = wall_clock();

	if (not_before != DT_NOBEGIN && not_before > now &&
		not_before - now <= leaselock_max_lease * INT64CONST(1000))
		return not_before;
	return now;
}

/*
 * Milliseconds from now until the given time, rounded up; 0 if it has passed.
 */
int64
clock_remaining_ms(TimestampTz until, TimestampTz now)
{
	if (until <= now)
		return 0;
	return (until - now + 999) / 1000;
}

/*
 * The fences' clock: microseconds, plus a term that puts the fences of a
 * promoted standby or a point-in-time recovery ahead of those that were lost.
 */
int64
fence_reading(void)
{
	/* GetWALInsertionTimeLine() asserts this, and this call sets its result */
	if (RecoveryInProgress())
		elog(ERROR, "cannot issue a fence during recovery");
	return wall_clock() - FENCE_EPOCH +
		FENCE_PER_TIMELINE * GetWALInsertionTimeLine();
}
