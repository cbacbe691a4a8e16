/*
 * Lets SQL start and stop the counting of valgrind's callgrind in a backend.
 * test/count/run compiles it into its work folder.
 */
#include "postgres.h"

#include <valgrind/callgrind.h>

#include "fmgr.h"
#include "utils/builtins.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(start_counting);
PG_FUNCTION_INFO_V1(stop_counting);

/* Outside valgrind it returns false, and nothing is counted. */
Datum
start_counting(PG_FUNCTION_ARGS)
{
	CALLGRIND_START_INSTRUMENTATION;
	CALLGRIND_ZERO_STATS;
	PG_RETURN_BOOL(RUNNING_ON_VALGRIND != 0);
}

/* Writes the counts to a file that names the case. */
Datum
stop_counting(PG_FUNCTION_ARGS)
{
	CALLGRIND_DUMP_STATS_AT(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	CALLGRIND_STOP_INSTRUMENTATION;
	PG_RETURN_BOOL(RUNNING_ON_VALGRIND != 0);
}
