/*-------------------------------------------------------------------------
 *
 * ticket_api.c
 *	  The SQL functions lease_*, which work with tickets.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "leaselock.h"

PG_FUNCTION_INFO_V1(leaselock_lease_acquire);
PG_FUNCTION_INFO_V1(leaselock_lease_get);
PG_FUNCTION_INFO_V1(leaselock_lease_renew);
PG_FUNCTION_INFO_V1(leaselock_lease_release);
PG_FUNCTION_INFO_V1(leaselock_lease_release_all);

/* Columns of the type leaselock.lease_ticket. */
enum
{
	ANSWER_TICKET,
	ANSWER_STATE,
	ANSWER_SCOPE,
	ANSWER_NAME,
	ANSWER_OWNER,
	ANSWER_FENCE,
	ANSWER_DEPTH,
	ANSWER_POSITION,
	ANSWER_EXPIRES_AT,
	ANSWER_WAIT_UNTIL,
	ANSWER_REMAINING_MS,
	ANSWER_NEXT_CALL_MS,
	ANSWER_HOLDER,
	ANSWER_HOLDER_ROLE,
	ANSWER_REQUEST_ID,
	ANSWER_COLUMNS
};

/* Bounds of the back-off hint of a contended answer, and of the head's poll. */
#define MIN_BACK_OFF_MS		100
#define MAX_BACK_OFF_MS		1000

/* How much slower each place in the queue polls than the one before. */
#define POLL_STEP_MS		500

static const Oid answer_types[ANSWER_COLUMNS] = {
	UUIDOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, INT4OID, INT4OID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID, TEXTOID, NAMEOID, UUIDOID
};

static void
set_column(Datum *values, bool *nulls, int column, Datum value, bool valid)
{
	values[column] = value;
	nulls[column] = !valid;
}

static Datum
text_or_null(const char *value)
{
	return value ? CStringGetTextDatum(value) : (Datum) 0;
}

/*
 * When to call again: a third of the lease for a holder, so that two renewals
 * may fail; for a waiter the sooner the nearer its turn is, and often enough
 * to be heard from.
 */
static int64
next_call_ms(const LeaseAnswer *answer)
{
	int64		left = clock_remaining_ms(answer->holder_until, answer->now);
	int64		back_off = Min(Max(left, MIN_BACK_OFF_MS), MAX_BACK_OFF_MS);

	switch (answer->state)
	{
		case LEASE_HELD:
			return answer->ticket.lease_us / 3 / 1000;
		case LEASE_CONTENDED:
			return back_off;
		case LEASE_WAITING:
			return Min(back_off + (answer->position - 1) * POLL_STEP_MS,
					   leaselock_waiter_timeout / 4);
		default:
			return -1;
	}
}

static Datum
answer_datum(FunctionCallInfo fcinfo, const LeaseAnswer *answer)
{
	const LeaseTicket *ticket = &answer->ticket;
	bool		held = answer->state == LEASE_HELD;
	bool		foreign = OidIsValid(answer->holder.role);
	int64		next_call = next_call_ms(answer);
	Datum		values[ANSWER_COLUMNS];
	bool		nulls[ANSWER_COLUMNS];
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	store_check_result("lease_ticket", desc, answer_types, ANSWER_COLUMNS);
	desc = BlessTupleDesc(desc);

#define SET_ANSWER(column, value, valid) \
	set_column(values, nulls, column, value, valid)

	SET_ANSWER(ANSWER_TICKET, UUIDPGetDatum(&ticket->ticket), answer->has_ticket);
	SET_ANSWER(ANSWER_STATE, CStringGetTextDatum(lease_state_name(answer->state)),
			   true);
	SET_ANSWER(ANSWER_SCOPE, text_or_null(ticket->key.scope), ticket->key.scope);
	SET_ANSWER(ANSWER_NAME, text_or_null(ticket->key.name), ticket->key.name);
	SET_ANSWER(ANSWER_OWNER, text_or_null(ticket->who.owner), ticket->who.owner);
	SET_ANSWER(ANSWER_FENCE, Int64GetDatum(ticket->fence), ticket->fence != 0);
	SET_ANSWER(ANSWER_DEPTH, Int32GetDatum(answer->depth), answer->depth > 0);
	SET_ANSWER(ANSWER_POSITION, Int32GetDatum(answer->position),
			   answer->position > 0);
	SET_ANSWER(ANSWER_EXPIRES_AT, TimestampTzGetDatum(ticket->expires_at),
			   ticket->fence != 0);
	SET_ANSWER(ANSWER_WAIT_UNTIL, TimestampTzGetDatum(ticket->wait_until),
			   answer->state == LEASE_WAITING);
	SET_ANSWER(ANSWER_REMAINING_MS,
			   Int64GetDatum(clock_remaining_ms(held ? ticket->expires_at :
												ticket->wait_until, answer->now)),
			   held || answer->state == LEASE_WAITING);
	SET_ANSWER(ANSWER_NEXT_CALL_MS, Int64GetDatum(next_call), next_call >= 0);
	SET_ANSWER(ANSWER_HOLDER, text_or_null(answer->holder.owner), foreign);
	SET_ANSWER(ANSWER_HOLDER_ROLE, role_name_datum(answer->holder.role), foreign);
	SET_ANSWER(ANSWER_REQUEST_ID, UUIDPGetDatum(&ticket->request_id),
			   answer->has_request_id);

#undef SET_ANSWER

	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/*
 * A new ticket: a uuid of version 7, milliseconds and 74 random bits, which sort
 * by time, so that the index entries of new tickets lie side by side.  Asks for
 * the random bits of many at once.
 */
static pg_uuid_t
new_ticket(void)
{
	static pg_uuid_t uuids[32];
	static int	left = 0;
	pg_uuid_t  *uuid;
	uint64		ms = (GetCurrentTimestamp() +
					  (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) *
					  USECS_PER_DAY) / 1000;

	if (left == 0)
	{
		if (!pg_strong_random(uuids, sizeof(uuids)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = lengthof(uuids);
	}
	uuid = &uuids[--left];
	for (int i = 0; i < 6; i++)
		uuid->data[i] = (unsigned char) (ms >> (8 * (5 - i)));
	uuid->data[6] = (uuid->data[6] & 0x0f) | 0x70;	/* version 7 */
	uuid->data[8] = (uuid->data[8] & 0x3f) | 0x80;	/* variant */
	return *uuid;
}

/* Reads the arguments of lease_acquire, and of lease_acquire_wait. */
LeaseRequest
acquire_request(FunctionCallInfo fcinfo)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *owner = argument_text(fcinfo, 1, "owner");
	LeaseRequest request = {0};

	request.lease_us = argument_lease(fcinfo, 2, "lease");
	request.wait_us = argument_wait(fcinfo, 3, "wait");
	request.key = make_lock_key(argument_text(fcinfo, 4, "scope"), name);
	request.request_id = PG_ARGISNULL(5) ? NULL : PG_GETARG_UUID_P(5);
	request.who = caller_identity(owner);
	request.ticket = new_ticket();
	return request;
}

Datum
leaselock_lease_acquire(PG_FUNCTION_ARGS)
{
	LeaseRequest request = acquire_request(fcinfo);
	LeaseAnswer answer;

	require_writable("lease_acquire()");
	lease_acquire(&request, &answer);
	return answer_datum(fcinfo, &answer);
}

Datum
leaselock_lease_get(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *ticket = argument_uuid(fcinfo, 0, "ticket");
	LeaseAnswer answer;

	require_writable("lease_get()");
	lease_look(ticket, LOOK_MAY_WAIT, &answer);
	return answer_datum(fcinfo, &answer);
}

Datum
leaselock_lease_renew(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *ticket = argument_uuid(fcinfo, 0, "ticket");
	int64		lease_us = PG_ARGISNULL(1) ? 0 :
		argument_lease(fcinfo, 1, "lease");
	LeaseAnswer answer;

	require_writable("lease_renew()");
	lease_renew(ticket, lease_us, &answer);
	return answer_datum(fcinfo, &answer);
}

Datum
leaselock_lease_release(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *ticket = argument_uuid(fcinfo, 0, "ticket");
	LeaseAnswer answer;

	require_writable("lease_release()");
	lease_release(ticket, &answer);
	return answer_datum(fcinfo, &answer);
}

Datum
leaselock_lease_release_all(PG_FUNCTION_ARGS)
{
	const char *owner = argument_text(fcinfo, 0, "owner");
	const char *scope = PG_ARGISNULL(1) ? NULL :
		argument_text(fcinfo, 1, "scope");
	Identity	who = caller_identity(owner);

	require_writable("lease_release_all()");
	PG_RETURN_INT32(lease_release_all(&who, scope));
}
