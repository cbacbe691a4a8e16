/*-------------------------------------------------------------------------
 *
 * wait_api.c
 *	  The SQL procedures lease_wait and lease_acquire_wait.
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
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "leaselock.h"

PG_FUNCTION_INFO_V1(leaselock_lease_wait);
PG_FUNCTION_INFO_V1(leaselock_lease_acquire_wait);

/* Raises 2D000 where a procedure cannot commit; before anything is done. */
static void
require_commit(FunctionCallInfo fcinfo, const char *procedure)
{
	if (fcinfo->context != NULL && IsA(fcinfo->context, CallContext) &&
		!((CallContext *) fcinfo->context)->atomic &&
		!IsSubTransaction() && !(MyXactFlags & XACT_FLAGS_PIPELINING))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
			 errmsg("%s cannot wait here, because it commits between looks",
					procedure),
			 errhint("CALL it by itself: not in a transaction block, a function, an exception block or a pipeline. There, poll with lease_get().")));
}

/* The row of INOUT arguments; with a ticket it comes first. */
static Datum
result_row(FunctionCallInfo fcinfo, bool with_ticket,
		   const LeaseAnswer *answer)
{
	Datum		values[4];
	bool		nulls[4] = {0};
	bool		granted = answer->ticket.fence != 0;
	const Oid	types[] = {UUIDOID, TEXTOID, INT8OID, TIMESTAMPTZOID};
	TupleDesc	desc;
	int			i = 0;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	store_check_result(with_ticket ? "lease_acquire_wait" : "lease_wait", desc,
					   types + !with_ticket, lengthof(types) - !with_ticket);
	if (with_ticket)
	{
		nulls[i] = !answer->has_ticket;
		values[i++] = UUIDPGetDatum(&answer->ticket.ticket);
	}
	values[i++] = CStringGetTextDatum(lease_state_name(answer->state));
	nulls[i] = !granted;
	values[i++] = Int64GetDatum(answer->ticket.fence);
	nulls[i] = !granted;
	values[i++] = TimestampTzGetDatum(answer->ticket.expires_at);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
											 values, nulls));
}

Datum
leaselock_lease_wait(PG_FUNCTION_ARGS)
{
	pg_uuid_t	uuid = *argument_uuid(fcinfo, 0, "ticket");
	TimestampTz until = DT_NOEND;
	LeaseAnswer answer;
	LockKey		key;
	pg_uuid_t	request_id;

	if (!PG_ARGISNULL(1))
		until = clock_read(NO_TIME) + argument_timeout(fcinfo, 1, "timeout");
	require_writable("lease_wait()");
	require_commit(fcinfo, "lease_wait()");

	lease_look(&uuid, 0, &answer);
	if (answer.state == LEASE_WAITING)
	{
		key = answer.ticket.key;
		request_id = answer.ticket.request_id;
		SPI_connect_ext(SPI_OPT_NONATOMIC);
		wait_for_turn(&uuid, &key, &request_id, NULL, until, &answer);
		SPI_finish();
	}
	return result_row(fcinfo, false, &answer);
}

Datum
leaselock_lease_acquire_wait(PG_FUNCTION_ARGS)
{
	LeaseRequest request;
	LeaseAnswer answer;

	request = acquire_request(fcinfo);
	request.served = true;
	require_writable("lease_acquire_wait()");
	require_commit(fcinfo, "lease_acquire_wait()");

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	wait_for_turn(&request.ticket, &request.key,
				  request.request_id ? request.request_id : &request.ticket,
				  &request, DT_NOEND, &answer);
	SPI_finish();
	return result_row(fcinfo, true, &answer);
}
