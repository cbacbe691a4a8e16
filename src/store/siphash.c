/*-------------------------------------------------------------------------
 *
 * siphash.c
 *	  SipHash-2-4, implemented from the paper of its authors, J.-P. Aumasson
 *	  and D. J. Bernstein ("SipHash: a fast short-input PRF", 2012).
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "store/siphash.h"

typedef struct SipState
{
	uint64		v0,
				v1,
				v2,
				v3;
} SipState;

static inline uint64
rotate_left(uint64 word, int bits)
{
	return (word << bits) | (word >> (64 - bits));
}

static inline void
mix(SipState *state, int rounds)
{
	while (rounds-- > 0)
	{
		state->v0 += state->v1;
		state->v1 = rotate_left(state->v1, 13) ^ state->v0;
		state->v0 = rotate_left(state->v0, 32);
		state->v2 += state->v3;
		state->v3 = rotate_left(state->v3, 16) ^ state->v2;
		state->v0 += state->v3;
		state->v3 = rotate_left(state->v3, 21) ^ state->v0;
		state->v2 += state->v1;
		state->v1 = rotate_left(state->v1, 17) ^ state->v2;
		state->v2 = rotate_left(state->v2, 32);
	}
}

/* Up to eight bytes as a little-endian number. */
static inline uint64
load_word(const unsigned char *data, size_t len)
{
	uint64		word = 0;

	for (size_t i = 0; i < len; i++)
		word |= (uint64) data[i] << (8 * i);
	return word;
}

static inline void
absorb(SipState *state, uint64 word)
{
	state->v3 ^= word;
	mix(state, 2);
	state->v0 ^= word;
}

/* The keyed hash of some bytes. */
uint64
siphash(const unsigned char key[SIPHASH_KEY_LEN], const unsigned char *data,
		size_t len)
{
	uint64		k0 = load_word(key, 8);
	uint64		k1 = load_word(key + 8, 8);
	SipState	state = {
		k0 ^ UINT64CONST(0x736f6d6570736575),
		k1 ^ UINT64CONST(0x646f72616e646f6d),
		k0 ^ UINT64CONST(0x6c7967656e657261),
		k1 ^ UINT64CONST(0x7465646279746573)
	};
	size_t		left;

	for (left = len; left >= 8; left -= 8, data += 8)
		absorb(&state, load_word(data, 8));
	absorb(&state, ((uint64) len << 56) | load_word(data, left));
	state.v2 ^= 0xff;
	mix(&state, 4);
	return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}
