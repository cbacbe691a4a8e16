/*-------------------------------------------------------------------------
 *
 * tidcache.h
 *	  A cache of the TIDs at which this session last saw rows.
 *
 * Usually only one session at a time works on a lock or ticket, and can find
 * its row again without an index.  A cached TID is a hint: the caller checks
 * the row that it finds there.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_TIDCACHE_H
#define LEASELOCK_TIDCACHE_H

#include "storage/itemptr.h"

#define TID_CACHE_SIZE	8192

typedef struct TidCacheEntry
{
	uint64		hash;
	ItemPointerData tid;		/* invalid: no row seen yet */
} TidCacheEntry;

static inline void
cache_tid(TidCacheEntry *cache, uint64 hash, const ItemPointerData *tid)
{
	TidCacheEntry *entry = &cache[hash % TID_CACHE_SIZE];

	entry->hash = hash;
	entry->tid = *tid;
}

/* Returns false if no TID is cached for the hash. */
static inline bool
find_cached_tid(const TidCacheEntry *cache, uint64 hash, ItemPointerData *tid)
{
	const TidCacheEntry *entry = &cache[hash % TID_CACHE_SIZE];

	*tid = entry->tid;
	return entry->hash == hash && ItemPointerIsValid(tid);
}

#endif							/* LEASELOCK_TIDCACHE_H */
