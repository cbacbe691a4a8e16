/*-------------------------------------------------------------------------
 *
 * places.h
 *	  Where this session last saw rows.
 *
 * Usually only one session at a time works on a lock or ticket, and can find
 * its row again without an index.  A place is a hint: the caller checks the
 * row that it finds there.
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
	ItemPointerData tid;		/* invalid: no row seen yet */
} Place;

static inline void
note_place(Place *places, uint64 hash, const ItemPointerData *tid)
{
	Place	   *place = &places[hash % PLACES];

	place->hash = hash;
	place->tid = *tid;
}

/* Returns false if no place is known for the hash. */
static inline bool
find_place(const Place *places, uint64 hash, ItemPointerData *tid)
{
	const Place *place = &places[hash % PLACES];

	*tid = place->tid;
	return place->hash == hash && ItemPointerIsValid(tid);
}

#endif							/* LEASELOCK_PLACES_H */
