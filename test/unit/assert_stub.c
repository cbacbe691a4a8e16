/*-------------------------------------------------------------------------
 *
 * assert_stub.c
 *	  What a failed assertion calls, where the server's headers have them
 *	  enabled.  The arguments differ between versions, but the first is the
 *	  condition in all; so the server's declaration stays out of here.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>

extern void ExceptionalCondition(const char *condition);

void
ExceptionalCondition(const char *condition)
{
	fprintf(stderr, "assertion failed: %s\n", condition);
	abort();
}
