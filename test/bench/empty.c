/*
 * Functions in C that do nothing, to compare leaselock's functions with.
 * test/bench/fence, test/bench/pairs and test/count/run compile them into their
 * work folders.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(empty_trigger);
PG_FUNCTION_INFO_V1(empty_assert);
PG_FUNCTION_INFO_V1(empty_lock);

/* For each row, before it is inserted or updated. */
Datum
empty_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ?
						   data->tg_newtuple : data->tg_trigtuple);
}

/* Declared like fence_assert. */
Datum
empty_assert(PG_FUNCTION_ARGS)
{
	PG_RETURN_VOID();
}

/* (name, owner, ttl) */
Datum
empty_lock(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(1);
}
