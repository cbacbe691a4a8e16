/*-------------------------------------------------------------------------
 *
 * result.h
 *	  The results of SQL functions: rows with the expected columns.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_RESULT_H
#define LEASELOCK_RESULT_H

#include "access/tupdesc.h"
#include "fmgr.h"
#include "nodes/execnodes.h"

extern TupleDesc named_row_type(FunctionCallInfo fcinfo, const char *function,
								const Oid *types, int columns,
								uint64 *checked);
extern TupleDesc result_row_type(FunctionCallInfo fcinfo,
								 const char *function, const Oid *types,
								 int columns);
extern ReturnSetInfo *begin_result_rows(FunctionCallInfo fcinfo,
										const char *function,
										const Oid *types, int columns);
extern Datum text_or_null(const char *value);
extern Datum role_name_datum(Oid role);

#endif							/* LEASELOCK_RESULT_H */
