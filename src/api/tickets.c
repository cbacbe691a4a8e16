/*-------------------------------------------------------------------------
 *
 * tickets.c
 *	  The SQL functions lease_*, which work with tickets.  The install script
 *	  describes what they do and raise.
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

#include "api/arguments.h"
#include "api/result.h"
#include "api/tickets.h"
#include "core/scope.h"
#include "leaselock.h"
#include "store/clock.h"
#include "store/rows.h"

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
	ANSWER_NOTE,
	ANSWER_COLUMNS
};

/*
 * Bounds of the back-off in a contended answer, and of the head's poll delay.
 */
#define MIN_BACK_OFF_MS		100
#define MAX_BACK_OFF_MS		1000

/* How much later a waiter polls than the identity ahead of it. */
#define POLL_STEP_MS		500

static const Oid answer_types[ANSWER_COLUMNS] = {
	UUIDOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, INT4OID, INT4OID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID, TEXTOID, NAMEOID, UUIDOID,
	TEXTOID
};

/*
 * When to call again.  A holder calls after a third of its lease, so that two
 * renewals may fail.  A waiter polls more often the closer its turn is, and
 * often enough not to time out.
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
	const TicketRow *ticket = &answer->ticket;
	bool		held = answer->state == LEASE_HELD;
	bool		foreign = OidIsValid(answer->holder.role);
	int64		next_call = next_call_ms(answer);
	Datum		values[ANSWER_COLUMNS];
	bool		nulls[ANSWER_COLUMNS];
	static uint64 checked = 0;
	TupleDesc	desc;

#define SET_ANSWER(column, value, valid) \
	do { \
		nulls[column] = !(valid); \
		values[column] = (valid) ? (value) : (Datum) 0; \
	} while (0)

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
			   ticket->has_request_id);
	SET_ANSWER(ANSWER_NOTE, text_or_null(ticket->note), ticket->note);

#undef SET_ANSWER

	/* must be last: the server may free it during any catalog access */
	desc = named_row_type(fcinfo, "lease_ticket", answer_types,
						  ANSWER_COLUMNS, &checked);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/*
 * The uuid of a new ticket, of version 8.  It starts with the time in
 * microseconds, so that new tickets are adjacent in the index.  Random bits
 * follow, and then part of the hash of the lock's key, by which the lock could
 * be found.  Random bits are fetched for many tickets at once.
 *
 *	bits 0-47			microseconds since 1970, without their last 4 bits
 *	bits 52-55			those 4 bits
 *	bits 56-63, 66-87	random
 *	bits 88-127			the hash
 */
static pg_uuid_t
new_ticket(const LockKey *key)
{
	static uint32 random_bits[64];
	static int	left = 0;
	pg_uuid_t	uuid;
	uint64		us = (GetCurrentTimestamp() +
					  (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY);
	uint32		random;

	if (left == 0)
	{
		if (!pg_strong_random(random_bits, sizeof(random_bits)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = lengthof(random_bits);
	}
	random = random_bits[--left];
	for (int i = 0; i < 6; i++)
		uuid.data[i] = (unsigned char) (us >> (4 + 8 * (5 - i)));
	uuid.data[6] = 0x80 | (us & 0x0f);	/* version 8 */
	uuid.data[7] = (unsigned char) random;
	uuid.data[8] = 0x80 | ((random >> 8) & 0x3f);	/* variant */
	uuid.data[9] = (unsigned char) (random >> 14);
	uuid.data[10] = (unsigned char) (random >> 22);
	store_sign_ticket(&uuid, key);
	return uuid;
}

/*
 * Reads the arguments of lease_acquire or lease_acquire_wait, and stores the
 * wait in *wait_us.  The note's number differs, because it follows the INOUT
 * arguments of the procedure.  Raises what require_writable does, before the
 * secret behind the key's hash is read.
 */
LeaseEvent
acquire_event(FunctionCallInfo fcinfo, int note_argno, const char *function,
			  int64 *wait_us)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *owner = argument_text(fcinfo, 1, "owner");
	const char *scope;
	LeaseEvent	event = {0};

	event.kind = EVENT_ACQUIRE;
	event.lease_us = argument_lease(fcinfo, 2, "lease");
	*wait_us = argument_wait(fcinfo, 3, "wait");
	scope = argument_text(fcinfo, 4, "scope");
	event.has_request_id = !PG_ARGISNULL(5);
	if (event.has_request_id)
		event.request_id = *PG_GETARG_UUID_P(5);
	event.note = argument_note(fcinfo, note_argno, "note");
	require_writable(function);
	event.key = make_lock_key(scope, name);
	event.who = caller_identity(owner);
	event.ticket = new_ticket(&event.key);
	return event;
}

Datum
leaselock_lease_acquire(PG_FUNCTION_ARGS)
{
	int64		wait_us;
	LeaseEvent	event = acquire_event(fcinfo, 6, "lease_acquire()", &wait_us);
	LeaseAnswer answer;

	lease_acquire(&event, wait_us, &answer);
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
	int64		lease_us = (PG_ARGISNULL(1) ? 0 :
							argument_lease(fcinfo, 1, "lease"));
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
	const char *scope = (PG_ARGISNULL(1) ? NULL :
						 argument_text(fcinfo, 1, "scope"));
	Identity	who = caller_identity(owner);

	require_writable("lease_release_all()");
	PG_RETURN_INT32(lease_release_all(&who, scope));
}
