/*-------------------------------------------------------------------------
 *
 * fences.c
 *	  The SQL functions fence_check and fence_assert.  The install script
 *	  describes what they do and raise.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "api/arguments.h"
#include "core/fence.h"
#include "store/tag.h"

PG_FUNCTION_INFO_V1(leaselock_fence_check);
PG_FUNCTION_INFO_V1(leaselock_fence_assert);

/*
 * Reads the arguments (name, fence, scope, allow_lapsed) of "function".
 * Raises 25006 on a standby and 25000 in a parallel worker.
 */
static LockKey
fence_arguments(FunctionCallInfo fcinfo, const char *function, int64 *fence,
				bool *allow_lapsed)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *scope;

	*fence = argument_bigint(fcinfo, 1, "fence");
	scope = argument_text(fcinfo, 2, "scope");
	*allow_lapsed = argument_boolean(fcinfo, 3, "allow_lapsed");
	PreventCommandDuringRecovery(function);
	PreventCommandIfParallelMode(function);
	return make_lock_key(scope, name);
}

Datum
leaselock_fence_check(PG_FUNCTION_ARGS)
{
	int64		fence;
	bool		allow_lapsed;
	LockKey		key = fence_arguments(fcinfo, "fence_check()", &fence,
									  &allow_lapsed);

	PG_RETURN_BOOL(fence_check(&key, fence, allow_lapsed));
}

Datum
leaselock_fence_assert(PG_FUNCTION_ARGS)
{
	int64		fence;
	bool		allow_lapsed;
	LockKey		key = fence_arguments(fcinfo, "fence_assert()", &fence,
									  &allow_lapsed);

	fence_assert(&key, fence, allow_lapsed, NULL);
	PG_RETURN_VOID();
}
