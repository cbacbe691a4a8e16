/*-------------------------------------------------------------------------
 *
 * named.c
 *	  The SQL functions *_lock: named holds, for callers that want a yes or no
 *	  and no ticket.
 *
 * Like a ticket, a named hold is a share of the lock's grant.  But it is
 * stored in the lock's row, and a lapse does not end it: it can be renewed or
 * released until somebody else is granted the lock or waits for it.  The
 * install script describes what the functions do and raise.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/arguments.h"
#include "core/protocol.h"
#include "core/scope.h"

PG_FUNCTION_INFO_V1(leaselock_try_lock);
PG_FUNCTION_INFO_V1(leaselock_renew_lock);
PG_FUNCTION_INFO_V1(leaselock_release_lock);

/* Reads the arguments (name, owner [, ttl], scope). */
static LeaseEvent
hold_event(FunctionCallInfo fcinfo, EventKind kind, bool has_ttl)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *owner = argument_text(fcinfo, 1, "owner");
	int64		ttl_us = has_ttl ? argument_ttl(fcinfo, 2, "ttl") : 0;
	const char *scope = argument_text(fcinfo, has_ttl ? 3 : 2, "scope");
	LeaseEvent	event = {0};

	event.kind = kind;
	event.key = make_lock_key(scope, name);
	event.who = caller_identity(owner);
	event.lease_us = ttl_us;
	return event;
}

Datum
leaselock_try_lock(PG_FUNCTION_ARGS)
{
	LeaseEvent	event = hold_event(fcinfo, EVENT_TRY_LOCK, true);
	Outcome		outcome;

	require_writable("try_lock()");
	require_scope(event.key.scope);
	carry_out(&event, NULL, &outcome);
	if (!outcome.yes)
		PG_RETURN_NULL();
	PG_RETURN_INT64(outcome.lock.fence);
}

Datum
leaselock_renew_lock(PG_FUNCTION_ARGS)
{
	LeaseEvent	event = hold_event(fcinfo, EVENT_RENEW_LOCK, true);
	Outcome		outcome;

	require_writable("renew_lock()");
	require_scope(event.key.scope);
	carry_out(&event, NULL, &outcome);
	PG_RETURN_BOOL(outcome.yes);
}

/* Releasing your own hold does not require access to the scope. */
Datum
leaselock_release_lock(PG_FUNCTION_ARGS)
{
	LeaseEvent	event = hold_event(fcinfo, EVENT_RELEASE_LOCK, false);
	Outcome		outcome;

	require_writable("release_lock()");
	carry_out(&event, NULL, &outcome);
	PG_RETURN_BOOL(outcome.yes);
}
