/*-------------------------------------------------------------------------
 *
 * siphash.h
 *	  SipHash-2-4, a keyed hash of short inputs.
 *
 * Without the key, nobody can find an input with a given hash, or two inputs
 * with the same hash.  The server's own hash functions do not provide that.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_SIPHASH_H
#define LEASELOCK_SIPHASH_H

#define SIPHASH_KEY_LEN		16

extern uint64 siphash(const unsigned char key[SIPHASH_KEY_LEN],
					  const unsigned char *data, size_t len);

#endif							/* LEASELOCK_SIPHASH_H */
