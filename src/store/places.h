/*-------------------------------------------------------------------------
 *
 * places.h
 *	  Where this session saw rows.
 *
 * Mostly one session at a time works on a lock or a ticket, and needs no index
 * to find its row again.  A place is a hint: whoever uses it looks at what is
 * there.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_PLACES_H
#define LEASELOCK_PLACES_H

#include "storage/itemptr.h"

#define PLACES	8192

typedef struct Place
{
	uint64		hash;
	ItemPointerData tid;		/* invalid: none was seen yet */
} Place;

static inline void
note_place(Place *places, uint64 hash, const ItemPointerData *tid)
{
	Place	   *place = &places[hash % PLACES];

	place->hash = hash;
	place->tid = *tid;
}

/* False if no place is noted for the hash. */
static inline bool
find_place(const Place *places, uint64 hash, ItemPointerData *tid)
{
	const Place *place = &places[hash % PLACES];

	*tid = place->tid;
	return place->hash == hash && ItemPointerIsValid(tid);
}

#endif							/* LEASELOCK_PLACES_H */
