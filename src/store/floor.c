/*-------------------------------------------------------------------------
 *
 * floor.c
 *	  The row of leaselock.floor, and the fences issued above it.
 *
 * A fence is the reading of a hybrid logical clock: greater than the lock's
 * last fence and greater than the floor.  Because the clock also advances
 * above the floor, a number that was shown by a call that was rolled back is
 * not issued again, and fences continue to grow after a restore.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "store/clock.h"
#include "store/columns.h"
#include "store/rows.h"
#include "store/table.h"

/* Columns, in the order of the install script. */
enum
{
	FLOOR_FENCE = 1,
	FLOOR_READING,
	FLOOR_COLUMNS = FLOOR_READING
};

/*
 * How far fence_bump() raises the floor: more than a clock is likely to be
 * wrong.
 */
#define BUMP_US		(INT64CONST(366) * USECS_PER_DAY)

/* No fence is issued at or below the floor; see the install script. */
typedef struct FenceFloor
{
	int64		fence;			/* 0: it was never raised */
	int64		reading;
} FenceFloor;

/*
 * Merges two floors.  A floor is a line, fence against clock, since above it
 * fences advance with the clock; the result is nowhere below either.
 */
static void
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

static FenceFloor
read_floor(HeapTuple tuple, TupleDesc desc)
{
	FenceFloor	row;
	Datum		values[FLOOR_COLUMNS];
	bool		nulls[FLOOR_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	row.fence = DatumGetInt64(VALUE(FLOOR_FENCE));
	row.reading = DatumGetInt64(VALUE(FLOOR_READING));
	if (row.fence < 0 || row.fence > MAX_FENCE ||
		row.reading < 0 || row.reading > MAX_FENCE)
		store_report_row(REL_FLOOR, "A number is out of range.");
	return row;
}

/*
 * Reads the floor, and the version of its row into *version (an invalid tid if
 * there is no row).
 */
static FenceFloor
load_floor(RowVersion *version)
{
	TableScan  *scan = store_open_scan(REL_FLOOR, REL_NONE, NULL, 0);
	HeapTuple	tuple;
	FenceFloor	floor = {0, 0};

	ItemPointerSetInvalid(&version->tid);
	while (HeapTupleIsValid(tuple = store_next_row(scan, ForwardScanDirection)))
	{
		raise_floor(&floor, read_floor(tuple, RelationGetDescr(scan->rel)));
		*version = store_row_version(tuple);
	}
	store_close_scan(scan);
	return floor;
}

static void
save_floor(const FenceFloor *floor, RowVersion *version)
{
	Datum		values[FLOOR_COLUMNS];
	bool		nulls[FLOOR_COLUMNS];

	SET(FLOOR_FENCE, Int64GetDatum(floor->fence));

	/*
	 * a clock before 2020 gives negative readings, which the constraint
	 * rejects
	 */
	SET(FLOOR_READING, Int64GetDatum(Max(floor->reading, 0)));
	store_write_row(REL_FLOOR, values, nulls, version);
}

static void
report_no_fence(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("no greater fence is available"),
			 errdetail("The last fence, the floor or the clock has reached the greatest possible fence, " INT64_FORMAT ".",
					   MAX_FENCE)));
}

/* The next fence.  Raises 54000 if the fences are used up. */
static int64
next_fence(int64 last, const FenceFloor *floor)
{
	int64		reading = fence_reading();
	int64		since = Max(reading - floor->reading, 0);

	if (since >= MAX_FENCE - floor->fence || Max(last, reading) >= MAX_FENCE)
		report_no_fence();
	return Max(Max(last, reading), floor->fence + since) + 1;
}

/*
 * The floor, cached until another session announces a change.  Whoever raises
 * the floor to remove a lock's row holds that lock's name tag until all
 * sessions have received the announcement.
 */
static FenceFloor
remember_floor(void)
{
	static uint64 remembered_at = 0;
	static FenceFloor floor;
	uint64		present = store_generation();
	RowVersion	version;

	if (present != remembered_at)
	{
		floor = load_floor(&version);

		/*
		 * not store_generation() again: an announcement since then may be
		 * missing from what was read
		 */
		remembered_at = present;
	}
	return floor;
}

/* The floor of all fences; 0 if it has never been raised. */
int64
store_load_floor(void)
{
	return remember_floor().fence;
}

/*
 * The next fence of a lock, given its last one.  Raises 54000 if the fences
 * are used up.
 */
int64
store_next_fence(int64 last)
{
	FenceFloor	floor = remember_floor();

	return next_fence(last, &floor);
}

/*
 * Raises the floor to at least the given fence.  The caller holds the floor
 * tag.
 */
void
store_cover_fence(int64 fence)
{
	RowVersion	version;
	FenceFloor	floor = load_floor(&version);
	FenceFloor	cover = {fence, fence_reading()};

	raise_floor(&floor, cover);
	save_floor(&floor, &version);
}

/*
 * Raises the floor by a year's worth of fences, above "newest" as well, and
 * returns it.  The caller holds the floor tag.  Raises 54000 if the fences are
 * used up.
 */
int64
store_bump_floor(int64 newest)
{
	RowVersion	version;
	FenceFloor	floor = load_floor(&version);
	int64		next = next_fence(newest, &floor);

	if (next > MAX_FENCE - BUMP_US)
		report_no_fence();
	floor.fence = next + BUMP_US;
	floor.reading = fence_reading();
	save_floor(&floor, &version);
	return floor.fence;
}
