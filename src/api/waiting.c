/*-------------------------------------------------------------------------
 *
 * waiting.c
 *	  The SQL procedures lease_wait and lease_acquire_wait.  The install script
 *	  describes what they do and raise.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/arguments.h"
#include "api/result.h"
#include "api/tickets.h"
#include "core/wait.h"
#include "store/clock.h"
#include "store/rows.h"

PG_FUNCTION_INFO_V1(leaselock_lease_wait);
PG_FUNCTION_INFO_V1(leaselock_lease_acquire_wait);

/*
 * Raises 2D000 where a procedure cannot commit.  Called before anything is
 * done.
 */
static void
require_commit(FunctionCallInfo fcinfo, const char *procedure)
{
	if (fcinfo->context != NULL && IsA(fcinfo->context, CallContext) &&
		!((CallContext *) fcinfo->context)->atomic &&
		!IsSubTransaction() && !(MyXactFlags & XACT_FLAGS_PIPELINING))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
			 errmsg("%s cannot wait here, because it commits while it waits",
					procedure),
			 errhint("CALL it outside transaction blocks, functions, exception blocks and pipelines; inside them, poll with lease_get(). A driver without autocommit opens a transaction block by itself.")));
}

static const Oid result_types[] = {UUIDOID, TEXTOID, INT8OID, TIMESTAMPTZOID};

/*
 * The row type of the INOUT arguments; "with_ticket" adds the ticket as the
 * first.  Must be called before the wait, during which the procedure may be
 * dropped.
 */
static TupleDesc
wait_row_type(FunctionCallInfo fcinfo, const char *procedure,
			  bool with_ticket)
{
	int			first = with_ticket ? 0 : 1;

	return result_row_type(fcinfo, procedure, result_types + first,
						   lengthof(result_types) - first);
}

static Datum
wait_row(TupleDesc desc, bool with_ticket, const LeaseAnswer *answer)
{
	int			first = with_ticket ? 0 : 1;
	bool		granted = answer->ticket.fence != 0;
	Datum		values[lengthof(result_types)];
	bool		nulls[lengthof(result_types)] = {0};

	values[0] = UUIDPGetDatum(&answer->ticket.ticket);
	nulls[0] = !answer->has_ticket;
	values[1] = CStringGetTextDatum(lease_state_name(answer->state));
	values[2] = Int64GetDatum(answer->ticket.fence);
	nulls[2] = !granted;
	values[3] = TimestampTzGetDatum(answer->ticket.expires_at);
	nulls[3] = !granted;
	return HeapTupleGetDatum(heap_form_tuple(desc, values + first,
											 nulls + first));
}

Datum
leaselock_lease_wait(PG_FUNCTION_ARGS)
{
	pg_uuid_t	uuid = *argument_uuid(fcinfo, 0, "ticket");
	TimestampTz until = DT_NOEND;
	TupleDesc	desc;
	LeaseAnswer answer;

	if (!PG_ARGISNULL(1))
		until = clock_read(NO_TIME) + argument_timeout(fcinfo, 1, "timeout");
	require_writable("lease_wait()");
	require_commit(fcinfo, "lease_wait()");
	desc = wait_row_type(fcinfo, "lease_wait", false);

	lease_look(&uuid, 0, &answer);
	if (answer.state == LEASE_WAITING)
	{
		TicketRow	ticket = answer.ticket;

		SPI_connect_ext(SPI_OPT_NONATOMIC);
		wait_for_ticket(&ticket, until, &answer);
		SPI_finish();
	}
	return wait_row(desc, false, &answer);
}

Datum
leaselock_lease_acquire_wait(PG_FUNCTION_ARGS)
{
	int64		wait_us;
	LeaseEvent	event = acquire_event(fcinfo, 10, &wait_us);
	TupleDesc	desc;
	LeaseAnswer answer;

	require_writable("lease_acquire_wait()");
	require_commit(fcinfo, "lease_acquire_wait()");
	desc = wait_row_type(fcinfo, "lease_acquire_wait", true);

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	acquire_and_wait(&event, wait_us, &answer);
	SPI_finish();
	return wait_row(desc, true, &answer);
}
