/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  The server's wall clock, and the fences that are readings of it.
 *
 * A call reads the clock once, after it has the lock's name tag, and judges
 * everything by that reading.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/timestamp.h"

#include "leaselock.h"

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
 * (NO_TIME: a new lock).  A clock stepped back by up to max_lease does not
 * run the lock's time backwards, so that it revives no lease; a larger step
 * is followed, or one bad clock would pin the lock.
 */
TimestampTz
clock_read(TimestampTz not_before)
{
	TimestampTz now = wall_clock();

	if (not_before != NO_TIME && not_before > now &&
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
		elog(ERROR, "cannot give a fence during recovery");
	return wall_clock() - FENCE_EPOCH +
		FENCE_PER_TIMELINE * GetWALInsertionTimeLine();
}

/* Raises 54000. */
void
report_no_fence(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("no greater fence is left"),
			 errdetail("The last fence, the floor or the clock has reached the greatest fence, " INT64_FORMAT ".",
					   MAX_FENCE)));
}

/*
 * The next fence of a lock: a hybrid logical clock reading.  It is greater
 * than the lock's last fence and than the floor.  The clock, which also runs
 * on above the floor, keeps a number that was shown and rolled back from being
 * handed out again, and carries on after a restore.
 */
int64
next_fence(int64 last, const FenceFloor *floor)
{
	int64		reading = fence_reading();
	int64		since = Max(reading - floor->reading, 0);

	if (since >= MAX_FENCE - floor->fence || Max(last, reading) >= MAX_FENCE)
		report_no_fence();
	return Max(Max(last, reading), floor->fence + since) + 1;
}

/*
 * Raises a floor to another where that is higher, now or at any later time:
 * above a floor fences go on with the clock, so each is a line.
 */
void
raise_floor(FenceFloor *floor, FenceFloor other)
{
	FenceFloor	low = *floor;

	if (low.fence == 0)
	{
		*floor = other;
		return;
	}
	if (other.fence > low.fence)
		*floor = other;
	else
		low = other;
	floor->reading = Min(floor->reading,
						 low.reading + (floor->fence - low.fence));
}
