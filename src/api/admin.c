/*-------------------------------------------------------------------------
 *
 * admin.c
 *	  The SQL functions for operators.  Permission to call them is EXECUTE,
 *	  which the install script revokes from PUBLIC.  The install script
 *	  describes what they do and raise.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/acl.h"
#include "utils/builtins.h"

#include "api/arguments.h"
#include "core/operate.h"
#include "core/prune.h"
#include "store/tag.h"

PG_FUNCTION_INFO_V1(leaselock_lease_scope_create);
PG_FUNCTION_INFO_V1(leaselock_lease_scope_drop);
PG_FUNCTION_INFO_V1(leaselock_lease_break);
PG_FUNCTION_INFO_V1(leaselock_lease_prune);
PG_FUNCTION_INFO_V1(leaselock_fence_bump);

Datum
leaselock_lease_scope_create(PG_FUNCTION_ARGS)
{
	const char *scope = argument_text(fcinfo, 0, "scope");
	const char *role = argument_name(fcinfo, 1, "role");

	require_writable("lease_scope_create()");
	lease_scope_create(scope, role, get_role_oid(role, false));
	PG_RETURN_VOID();
}

Datum
leaselock_lease_scope_drop(PG_FUNCTION_ARGS)
{
	const char *scope = argument_text(fcinfo, 0, "scope");

	require_writable("lease_scope_drop()");
	PG_RETURN_BOOL(lease_scope_drop(scope));
}

Datum
leaselock_lease_break(PG_FUNCTION_ARGS)
{
	const char *name = argument_text(fcinfo, 0, "name");
	int64		fence = argument_bigint(fcinfo, 1, "fence");
	LockKey		key = make_lock_key(argument_text(fcinfo, 2, "scope"), name);

	require_writable("lease_break()");
	PG_RETURN_BOOL(lease_break(&key, fence));
}

Datum
leaselock_lease_prune(PG_FUNCTION_ARGS)
{
	int64		older_us = argument_timeout(fcinfo, 0, "older_than");
	int			max_rows = argument_count(fcinfo, 1, "max_rows");

	require_writable("lease_prune()");
	PG_RETURN_INT64(lease_prune(older_us, max_rows));
}

Datum
leaselock_fence_bump(PG_FUNCTION_ARGS)
{
	require_writable("fence_bump()");
	PG_RETURN_INT64(fence_bump());
}
