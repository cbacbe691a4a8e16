/*-------------------------------------------------------------------------
 *
 * result.c
 *	  The results of SQL functions: rows with the expected columns.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "api/result.h"
#include "store/table.h"

/*
 * Raises 42883 if the function was dropped between the analysis of the
 * statement and its execution, in which case the server could not tell what
 * it returns.
 */
static void
require_function(FunctionCallInfo fcinfo, const char *function)
{
	if (!SearchSysCacheExists1(PROCOID,
							   ObjectIdGetDatum(fcinfo->flinfo->fn_oid)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function %s() has been dropped", function)));
}

/*
 * The row type of a function that returns a named composite type.  The server
 * assigns an identifier to each version of a type; *checked remembers the last
 * identifier that passed the check, so that it need not be checked again.
 * Raises 55000.
 */
TupleDesc
named_row_type(FunctionCallInfo fcinfo, const char *function,
			   const Oid *types, int columns, uint64 *checked)
{
	Oid			type = get_fn_expr_rettype(fcinfo->flinfo);
	TypeCacheEntry *entry;

	if (!OidIsValid(type))
		return result_row_type(fcinfo, function, types, columns);
	entry = lookup_type_cache(type, TYPECACHE_TUPDESC);
	if (entry->tupDesc == NULL)
		return result_row_type(fcinfo, function, types, columns);
	if (entry->tupDesc_identifier != *checked)
		store_check_result(function, entry->tupDesc, types, columns);
	*checked = entry->tupDesc_identifier;
	return entry->tupDesc;
}

/*
 * The row type of a function's result, after verifying that it has the columns
 * that we are going to return.  Raises 55000; and 42883 if the function has
 * been dropped.
 */
TupleDesc
result_row_type(FunctionCallInfo fcinfo, const char *function,
				const Oid *types, int columns)
{
	TupleDesc	desc;

	require_function(fcinfo, function);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	store_check_result(function, desc, types, columns);
	return BlessTupleDesc(desc);
}

/*
 * Starts a set-returning function that only reads, and verifies its columns.
 * Raises 55000, 42883 if the function has been dropped, and 25000 in a parallel
 * worker.
 */
ReturnSetInfo *
begin_result_rows(FunctionCallInfo fcinfo, const char *function,
				  const Oid *types, int columns)
{
	ReturnSetInfo *result;

	if (IsInParallelMode())
		PreventCommandIfParallelMode(psprintf("%s()", function));
	store_begin_call(false);
	require_function(fcinfo, function);
	InitMaterializedSRF(fcinfo, 0);
	result = (ReturnSetInfo *) fcinfo->resultinfo;
	store_check_result(function, result->setDesc, types, columns);
	return result;
}

Datum
text_or_null(const char *value)
{
	return value ? CStringGetTextDatum(value) : (Datum) 0;
}

/*
 * A role's name as a value of type name.  If the role has been dropped since,
 * its oid is shown instead.
 */
Datum
role_name_datum(Oid role)
{
	const char *name = GetUserNameFromId(role, true);

	if (name == NULL)
		name = psprintf("unknown (OID=%u)", role);
	return DirectFunctionCall1(namein, CStringGetDatum(name));
}
