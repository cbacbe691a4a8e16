/*-------------------------------------------------------------------------
 *
 * store_query.c
 *	  Writing the tables: every SQL text of the module.
 *
 * Writes go through SPI by ctid with the latest snapshot, so that the
 * executor sees to constraints, indexes and read-only transactions, and a
 * transaction-wide snapshot that is older than the row is no conflict.  The
 * caller must hold the tag that guards the row (locktag.c), which is what
 * keeps "tuple concurrently updated" away.
 *
 * Plans are kept for the life of the session.  They name everything by
 * schema, so they outlive DROP and CREATE EXTENSION and any search_path.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "leaselock.h"

#define MAX_QUERY_ARGS	18

/*
 * Values are numbered by column, so that an insert and an update of a table
 * share them; $1 of an update is the ctid.
 */
static const struct
{
	const char *text;
	int			nargs;
	Oid			types[MAX_QUERY_ARGS];
	int			result;
}			queries[] =

{
	[INSERT_LOCK] = {
		"INSERT INTO leaselock.locks (scope, name, fence, passed, changed_at,"
		" home, role, owner, granted_at, granted_xid, tickets, expires_at,"
		" hold_expires_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
		" RETURNING ctid",
		13,
		{TEXTOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID,
			UUIDOID, OIDOID, TEXTOID, TIMESTAMPTZOID, XID8OID, INT4OID,
		TIMESTAMPTZOID, TIMESTAMPTZOID},
		SPI_OK_INSERT_RETURNING
	},
	[UPDATE_LOCK] = {
		"UPDATE leaselock.locks SET fence = $3, passed = $4, changed_at = $5,"
		" home = $6, role = $7, owner = $8, granted_at = $9,"
		" granted_xid = $10, tickets = $11, expires_at = $12,"
		" hold_expires_at = $13"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		13,
		{TIDOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID,
			UUIDOID, OIDOID, TEXTOID, TIMESTAMPTZOID, XID8OID, INT4OID,
		TIMESTAMPTZOID, TIMESTAMPTZOID},
		SPI_OK_UPDATE_RETURNING
	},
	[INSERT_TICKET] = {
		"INSERT INTO leaselock.tickets (scope, name, request_id, ticket,"
		" role, owner, place, waiting, state, fence, lease_us, requested_at,"
		" expires_at, wait_until, alive_until, waiter_pid, claimed, ended_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,"
		" $14, $15, $16, $17, $18) RETURNING ctid",
		18,
		{TEXTOID, TEXTOID, UUIDOID, UUIDOID,
			OIDOID, TEXTOID, INT8OID, BOOLOID, TEXTOID, INT8OID, INT8OID,
			TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
		INT4OID, BOOLOID, TIMESTAMPTZOID},
		SPI_OK_INSERT_RETURNING
	},
	[UPDATE_TICKET] = {
		"UPDATE leaselock.tickets SET place = $7, waiting = $8, state = $9,"
		" fence = $10, lease_us = $11, expires_at = $13, wait_until = $14,"
		" alive_until = $15, waiter_pid = $16, claimed = $17, ended_at = $18"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		18,
		{TIDOID, TEXTOID, UUIDOID, UUIDOID,
			OIDOID, TEXTOID, INT8OID, BOOLOID, TEXTOID, INT8OID, INT8OID,
			TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
		INT4OID, BOOLOID, TIMESTAMPTZOID},
		SPI_OK_UPDATE_RETURNING
	},
	[INSERT_BLOCKER] = {
		"INSERT INTO leaselock.blockers (role, owner, scope, name)"
		" VALUES ($1, $2, $3, $4) RETURNING ctid",
		4,
		{OIDOID, TEXTOID, TEXTOID, TEXTOID},
		SPI_OK_INSERT_RETURNING
	},
	[DELETE_BLOCKER] = {
		"DELETE FROM leaselock.blockers"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		1, {TIDOID}, SPI_OK_DELETE_RETURNING
	},
	[DELETE_LOCK] = {
		"DELETE FROM leaselock.locks"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		1, {TIDOID}, SPI_OK_DELETE_RETURNING
	},
	[DELETE_TICKET] = {
		"DELETE FROM leaselock.tickets"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		1, {TIDOID}, SPI_OK_DELETE_RETURNING
	},
	[INSERT_FLOOR] = {
		"INSERT INTO leaselock.floor (fence, reading) VALUES ($2, $3)"
		" RETURNING ctid",
		3, {TIDOID, INT8OID, INT8OID}, SPI_OK_INSERT_RETURNING
	},
	[UPDATE_FLOOR] = {
		"UPDATE leaselock.floor SET fence = $2, reading = $3"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		3, {TIDOID, INT8OID, INT8OID}, SPI_OK_UPDATE_RETURNING
	},
	[INSERT_SCOPE] = {
		"INSERT INTO leaselock.scopes (scope, role, role_oid, home)"
		" VALUES ($2, $3, $4, $5) RETURNING ctid",
		5, {TIDOID, TEXTOID, NAMEOID, OIDOID, UUIDOID},
		SPI_OK_INSERT_RETURNING
	},
	[UPDATE_SCOPE] = {
		"UPDATE leaselock.scopes SET role = $3, role_oid = $4, home = $5"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		5, {TIDOID, TEXTOID, NAMEOID, OIDOID, UUIDOID},
		SPI_OK_UPDATE_RETURNING
	},
	[DELETE_SCOPE] = {
		"DELETE FROM leaselock.scopes"
		" WHERE ctid OPERATOR(pg_catalog.=) $1 RETURNING ctid",
		1, {TIDOID}, SPI_OK_DELETE_RETURNING
	}
};

static SPIPlanPtr plans[lengthof(queries)];

/* SPI must be connected, as the tables' owner. */
static SPIPlanPtr
fetch_plan(StoreQuery query)
{
	SPIPlanPtr	plan = plans[query];

	if (plan != NULL && SPI_plan_is_valid(plan))
		return plan;

	plans[query] = NULL;
	if (plan != NULL)
		SPI_freeplan(plan);
	plan = SPI_prepare(queries[query].text, queries[query].nargs,
					   unconstify(Oid *, &queries[query].types[0]));
	if (plan == NULL)
		elog(ERROR, "SPI_prepare failed for \"%s\": %s",
			 queries[query].text, SPI_result_code_string(SPI_result));
	if (SPI_keepplan(plan) != 0)
		elog(ERROR, "SPI_keepplan failed");
	plans[query] = plan;
	return plan;
}

static Oid
tables_owner(void)
{
	Relation	rel = table_open(store_find_relation("locks"), AccessShareLock);
	Oid			owner = rel->rd_rel->relowner;

	table_close(rel, AccessShareLock);
	return owner;
}

/*
 * The one place that runs SQL.  Runs a query that writes exactly one row, as
 * the owner of the tables, and sets *tid to where the row is now.
 */
void
store_write_row(StoreQuery query, Datum *values, const char *nulls,
				ItemPointer tid)
{
	Oid			caller;
	int			security;
	int			result;
	bool		isnull;
	Datum		ctid;

	GetUserIdAndSecContext(&caller, &security);
	SetUserIdAndSecContext(tables_owner(),
						   security | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_NOFORCE_RLS);
	SPI_connect();

	result = SPI_execute_snapshot(fetch_plan(query), values, nulls,
								  GetLatestSnapshot(), InvalidSnapshot,
								  false, true, 0);
	if (result != queries[query].result || SPI_processed != 1)
		elog(ERROR, "\"%s\" gave %s and " UINT64_FORMAT " rows",
			 queries[query].text, SPI_result_code_string(result),
			 SPI_processed);
	ctid = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1,
						 &isnull);
	ItemPointerCopy((ItemPointer) DatumGetPointer(ctid), tid);

	SPI_finish();
	SetUserIdAndSecContext(caller, security);

	/* what was written shows in the scans that follow */
	CommandCounterIncrement();
}

/* Removes a row.  Its tag must be held, see the callers. */
void
store_delete_row(StoreQuery query, ItemPointer tid)
{
	Datum		value = PointerGetDatum(tid);
	ItemPointerData deleted;

	store_write_row(query, &value, NULL, &deleted);
}

/* Sets a column, numbered from 1, of a row that is to be written. */
void
store_set_value(Datum *values, char *nulls, int column, Datum value, bool isnull)
{
	values[column - 1] = value;
	nulls[column - 1] = isnull ? 'n' : ' ';
}

/* The same for a time, NO_TIME being NULL. */
void
store_set_time(Datum *values, char *nulls, int column, TimestampTz value)
{
	store_set_value(values, nulls, column, TimestampTzGetDatum(value),
					value == NO_TIME);
}
