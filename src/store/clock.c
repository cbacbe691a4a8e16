/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  The server's wall clock, and the readings that fences are made from.
 *
 * An operation on a lock reads the clock after the lock's row, and again each
 * time it has read that anew; it judges everything by the last reading.
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
 * How far a new timeline puts fences ahead: more than the clocks of two
 * servers may reasonably differ by.
 */
#define FENCE_PER_TIMELINE	(INT64CONST(64) * USECS_PER_SEC)

static TimestampTz
wall_clock(void)
{
	return GetCurrentTimestamp() + (int64) (leaselock_clock_offset * 1000);
}

/*
 * Reads the clock for a lock whose time has already reached not_before
 * (DT_NOBEGIN: a new lock).  A clock stepped back by up to max_lease does not
 * run the lock's time backwards, so that it revives no lease; a larger step
 * is followed, or one bad clock would pin the lock.
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

/* Milliseconds from now until then, rounded up; 0 if that is past. */
int64
clock_remaining_ms(TimestampTz until, TimestampTz now)
{
	if (until <= now)
		return 0;
	return (until - now + 999) / 1000;
}

/*
 * The fences' clock: microseconds, and a term that puts a promoted standby,
 * and a recovery to a point in time, ahead of what they lost.
 */
int64
fence_reading(void)
{
	/* asserted by GetWALInsertionTimeLine, and it sets what that returns */
	if (RecoveryInProgress())
		elog(ERROR, "cannot issue a fence during recovery");
	return wall_clock() - FENCE_EPOCH +
		FENCE_PER_TIMELINE * GetWALInsertionTimeLine();
}
