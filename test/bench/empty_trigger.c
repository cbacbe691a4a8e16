/*
 * A row trigger in C that does nothing: what fence_guard is measured against.
 * test/bench/fence compiles it into its work folder.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(empty_trigger);

Datum
empty_trigger(PG_FUNCTION_ARGS)
{
	return PointerGetDatum(((TriggerData *) fcinfo->context)->tg_trigtuple);
}
