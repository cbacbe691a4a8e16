/*-------------------------------------------------------------------------
 *
 * arguments.h
 *	  Validation of calls and of their arguments.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_ARGUMENTS_H
#define LEASELOCK_ARGUMENTS_H

#include "core/model.h"
#include "fmgr.h"

extern void require_writable(const char *function);
extern char *shown_value(const char *value);
extern void check_text(const char *value, const char *argname);
extern char *argument_text(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern char *argument_note(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern pg_uuid_t *argument_uuid(FunctionCallInfo fcinfo, int argno,
								const char *argname);
extern int64 argument_bigint(FunctionCallInfo fcinfo, int argno,
							 const char *argname);
extern int	argument_count(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern char *argument_name(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern bool argument_boolean(FunctionCallInfo fcinfo, int argno,
							 const char *argname);
extern int64 argument_lease(FunctionCallInfo fcinfo, int argno,
							const char *argname);
extern int64 argument_wait(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern int64 argument_timeout(FunctionCallInfo fcinfo, int argno,
							  const char *argname);
extern int64 argument_ttl(FunctionCallInfo fcinfo, int argno,
						  const char *argname);

#endif							/* LEASELOCK_ARGUMENTS_H */
