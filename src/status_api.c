/*-------------------------------------------------------------------------
 *
 * status_api.c
 *	  What serves lease_status, lease_tickets and lease_peek.
 *
 * Reads the latest committed state, changes nothing, takes no lease lock.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "leaselock.h"

PG_FUNCTION_INFO_V1(leaselock_lease_peek);
PG_FUNCTION_INFO_V1(leaselock_status_rows);
PG_FUNCTION_INFO_V1(leaselock_ticket_rows);

#define STATUS_COLUMNS	11
#define TICKET_COLUMNS	12

static void
put_status_row(ReturnSetInfo *result, const LeaseLock *lock)
{
	TimestampTz now = clock_read(lock->changed_at);
	TimestampTz until = Max(lock->expires_at, lock->hold_expires_at);
	Datum		values[STATUS_COLUMNS];
	bool		nulls[STATUS_COLUMNS] = {0};
	int			i = 0;

	if (!OidIsValid(lock->holder.role))
		return;
	values[i++] = CStringGetTextDatum(lock->key.scope);
	values[i++] = CStringGetTextDatum(lock->key.name);
	values[i++] = CStringGetTextDatum(lock->holder.owner);
	values[i++] = role_name_datum(lock->holder.role);
	values[i++] = Int64GetDatum(lock->fence);
	values[i++] = Int32GetDatum(grant_depth(lock, now));
	values[i++] = TimestampTzGetDatum(lock->granted_at);
	values[i++] = TimestampTzGetDatum(until);
	values[i++] = Int64GetDatum(clock_remaining_ms(until, now));
	values[i++] = BoolGetDatum(!grant_is_live(lock, now));
	values[i++] = Int32GetDatum(0);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
leaselock_lease_peek(PG_FUNCTION_ARGS)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *scope = argument_text(fcinfo, 1, "scope");
	LockKey		key = make_lock_key(scope, name);
	LeaseLock	lock;

	InitMaterializedSRF(fcinfo, 0);
	store_find_lock(&key, &lock);
	put_status_row((ReturnSetInfo *) fcinfo->resultinfo, &lock);
	return (Datum) 0;
}

Datum
leaselock_status_rows(PG_FUNCTION_ARGS)
{
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	foreach(cell, store_list_locks())
		put_status_row((ReturnSetInfo *) fcinfo->resultinfo,
					   (LeaseLock *) lfirst(cell));
	return (Datum) 0;
}

static void
put_ticket_row(ReturnSetInfo *result, const LeaseTicket *ticket,
			   const LeaseLock *lock)
{
	TimestampTz now = clock_read(lock->changed_at);
	LeaseState	state = ticket_state(ticket, lock, now);
	Datum		values[TICKET_COLUMNS];
	bool		nulls[TICKET_COLUMNS] = {0};
	int			i = 0;

	if (state != LEASE_HELD)
		return;
	values[i++] = CStringGetTextDatum(ticket->key.scope);
	values[i++] = CStringGetTextDatum(ticket->key.name);
	values[i++] = CStringGetTextDatum(ticket->who.owner);
	values[i++] = role_name_datum(ticket->who.role);
	values[i++] = UUIDPGetDatum(&ticket->ticket);
	values[i++] = CStringGetTextDatum(lease_state_name(state));
	nulls[i++] = true;
	values[i++] = Int32GetDatum(grant_depth(lock, now));
	values[i++] = TimestampTzGetDatum(ticket->requested_at);
	values[i++] = TimestampTzGetDatum(ticket->expires_at);
	nulls[i++] = true;
	values[i++] = Int64GetDatum(clock_remaining_ms(ticket->expires_at, now));
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
leaselock_ticket_rows(PG_FUNCTION_ARGS)
{
	ListCell   *cell;
	LeaseLock	lock;

	InitMaterializedSRF(fcinfo, 0);
	lock.key.scope = NULL;
	foreach(cell, store_list_tickets())
	{
		LeaseTicket *ticket = (LeaseTicket *) lfirst(cell);

		if (ticket->state != LEASE_HELD)
			continue;
		/* tickets come lock by lock */
		if (lock.key.scope == NULL ||
			compare_lock_keys(&lock.key, &ticket->key) != 0)
			store_find_lock(&ticket->key, &lock);
		put_ticket_row((ReturnSetInfo *) fcinfo->resultinfo, ticket, &lock);
	}
	return (Datum) 0;
}
