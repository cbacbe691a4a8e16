/*-------------------------------------------------------------------------
 *
 * lock_api.c
 *	  The SQL functions *_lock, which work with bare names, and fence_*.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "leaselock.h"

PG_FUNCTION_INFO_V1(leaselock_try_lock);
PG_FUNCTION_INFO_V1(leaselock_renew_lock);
PG_FUNCTION_INFO_V1(leaselock_release_lock);
PG_FUNCTION_INFO_V1(leaselock_fence_check);
PG_FUNCTION_INFO_V1(leaselock_fence_assert);

/* Reads (name, owner [, ttl], scope). */
static LeaseRequest
hold_request(FunctionCallInfo fcinfo, bool has_ttl)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *owner = argument_text(fcinfo, 1, "owner");
	int64		ttl_us = has_ttl ? argument_ttl(fcinfo, 2, "ttl") : 0;
	const char *scope = argument_text(fcinfo, has_ttl ? 3 : 2, "scope");
	LeaseRequest request = {0};

	request.key = make_lock_key(scope, name);
	request.who = caller_identity(owner);
	request.lease_us = ttl_us;
	return request;
}

Datum
leaselock_try_lock(PG_FUNCTION_ARGS)
{
	LeaseRequest request = hold_request(fcinfo, true);
	int64		fence;

	require_writable("try_lock()");
	fence = hold_try(&request);
	if (fence == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(fence);
}

Datum
leaselock_renew_lock(PG_FUNCTION_ARGS)
{
	LeaseRequest request = hold_request(fcinfo, true);

	require_writable("renew_lock()");
	PG_RETURN_BOOL(hold_renew(&request));
}

Datum
leaselock_release_lock(PG_FUNCTION_ARGS)
{
	LeaseRequest request = hold_request(fcinfo, false);

	require_writable("release_lock()");
	PG_RETURN_BOOL(hold_release(&request));
}

/* Reads (name, fence, scope, allow_lapsed) of the two functions below. */
static LockKey
fence_arguments(FunctionCallInfo fcinfo, int64 *fence, bool *allow_lapsed)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *scope;

	*fence = argument_bigint(fcinfo, 1, "fence");
	scope = argument_text(fcinfo, 2, "scope");
	*allow_lapsed = argument_boolean(fcinfo, 3, "allow_lapsed");
	return make_lock_key(scope, name);
}

Datum
leaselock_fence_check(PG_FUNCTION_ARGS)
{
	int64		fence;
	bool		allow_lapsed;
	LockKey		key = fence_arguments(fcinfo, &fence, &allow_lapsed);

	PreventCommandDuringRecovery("fence_check()");
	PG_RETURN_BOOL(fence_check(&key, fence, allow_lapsed));
}

Datum
leaselock_fence_assert(PG_FUNCTION_ARGS)
{
	int64		fence;
	bool		allow_lapsed;
	LockKey		key = fence_arguments(fcinfo, &fence, &allow_lapsed);

	PreventCommandDuringRecovery("fence_assert()");
	fence_assert(&key, fence, allow_lapsed);
	PG_RETURN_VOID();
}
