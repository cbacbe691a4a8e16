/*-------------------------------------------------------------------------
 *
 * assert_stub.c
 *	  The function that a failed assertion calls if the server's headers
 *	  enable assertions.  Its arguments differ between versions, but the first
 *	  is always the condition, so we do not include the server's declaration.
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
