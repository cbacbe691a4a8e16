/*-------------------------------------------------------------------------
 *
 * siphash_test.c
 *	  Compares the keyed hash with the vectors that its authors publish with
 *	  their paper: key 00 01 .. 0f, input 00 01 .. of each length up to 63.
 *	  The vector of length 15 is the example in the paper (appendix A).
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "unit.h"

#include "store/siphash.h"

static const uint64 vectors[] = {
	UINT64CONST(0x726fdb47dd0e0e31), UINT64CONST(0x74f839c593dc67fd),
	UINT64CONST(0x0d6c8009d9a94f5a), UINT64CONST(0x85676696d7fb7e2d),
	UINT64CONST(0xcf2794e0277187b7), UINT64CONST(0x18765564cd99a68d),
	UINT64CONST(0xcbc9466e58fee3ce), UINT64CONST(0xab0200f58b01d137),
	UINT64CONST(0x93f5f5799a932462), UINT64CONST(0x9e0082df0ba9e4b0),
	UINT64CONST(0x7a5dbbc594ddb9f3), UINT64CONST(0xf4b32f46226bada7),
	UINT64CONST(0x751e8fbc860ee5fb), UINT64CONST(0x14ea5627c0843d90),
	UINT64CONST(0xf723ca908e7af2ee), UINT64CONST(0xa129ca6149be45e5),
	UINT64CONST(0x3f2acc7f57c29bdb), UINT64CONST(0x699ae9f52cbe4794),
	UINT64CONST(0x4bc1b3f0968dd39c), UINT64CONST(0xbb6dc91da77961bd),
	UINT64CONST(0xbed65cf21aa2ee98), UINT64CONST(0xd0f2cbb02e3b67c7),
	UINT64CONST(0x93536795e3a33e88), UINT64CONST(0xa80c038ccd5ccec8),
	UINT64CONST(0xb8ad50c6f649af94), UINT64CONST(0xbce192de8a85b8ea),
	UINT64CONST(0x17d835b85bbb15f3), UINT64CONST(0x2f2e6163076bcfad),
	UINT64CONST(0xde4daaaca71dc9a5), UINT64CONST(0xa6a2506687956571),
	UINT64CONST(0xad87a3535c49ef28), UINT64CONST(0x32d892fad841c342),
	UINT64CONST(0x7127512f72f27cce), UINT64CONST(0xa7f32346f95978e3),
	UINT64CONST(0x12e0b01abb051238), UINT64CONST(0x15e034d40fa197ae),
	UINT64CONST(0x314dffbe0815a3b4), UINT64CONST(0x027990f029623981),
	UINT64CONST(0xcadcd4e59ef40c4d), UINT64CONST(0x9abfd8766a33735c),
	UINT64CONST(0x0e3ea96b5304a7d0), UINT64CONST(0xad0c42d6fc585992),
	UINT64CONST(0x187306c89bc215a9), UINT64CONST(0xd4a60abcf3792b95),
	UINT64CONST(0xf935451de4f21df2), UINT64CONST(0xa9538f0419755787),
	UINT64CONST(0xdb9acddff56ca510), UINT64CONST(0xd06c98cd5c0975eb),
	UINT64CONST(0xe612a3cb9ecba951), UINT64CONST(0xc766e62cfcadaf96),
	UINT64CONST(0xee64435a9752fe72), UINT64CONST(0xa192d576b245165a),
	UINT64CONST(0x0a8787bf8ecb74b2), UINT64CONST(0x81b3e73d20b49b6f),
	UINT64CONST(0x7fa8220ba3b2ecea), UINT64CONST(0x245731c13ca42499),
	UINT64CONST(0xb78dbfaf3a8d83bd), UINT64CONST(0xea1ad565322a1a0b),
	UINT64CONST(0x60e61c23a3795013), UINT64CONST(0x6606d7e446282b93),
	UINT64CONST(0x6ca4ecb15c5f91e1), UINT64CONST(0x9f626da15c9625f3),
	UINT64CONST(0xe51b38608ef25f57), UINT64CONST(0x958a324ceb064572)
};

void
test_siphash(void)
{
	unsigned char bytes[lengthof(vectors)];

	for (int i = 0; i < (int) lengthof(bytes); i++)
		bytes[i] = (unsigned char) i;
	for (int i = 0; i < (int) lengthof(vectors); i++)
		check(SIPHASH, siphash(bytes, bytes, i) == vectors[i], NULL,
			  "another value");
}
