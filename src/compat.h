/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between the server versions that are supported, 15 to 19.
 *	  Call sites stay free of #if.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_COMPAT_H
#define LEASELOCK_COMPAT_H

#include "storage/lock.h"
#include "utils/timestamp.h"

/* 17 added the third argument. */
static inline bool
LockHeldByMeCompat(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
#endif
}

/* 17 added infinite intervals. */
static inline bool
IntervalIsInfiniteCompat(const Interval *interval)
{
#if PG_VERSION_NUM >= 170000
	return INTERVAL_NOT_FINITE(interval);
#else
	(void) interval;
	return false;
#endif
}

/* 18 added the name and version of a module. */
#ifdef PG_MODULE_MAGIC_EXT
#define LEASELOCK_MODULE_MAGIC \
	PG_MODULE_MAGIC_EXT(.name = "leaselock", .version = LEASELOCK_VERSION)
#else
#define LEASELOCK_MODULE_MAGIC PG_MODULE_MAGIC
#endif

#endif							/* LEASELOCK_COMPAT_H */
