/*-------------------------------------------------------------------------
 *
 * scopes.c
 *	  The rows of leaselock.scopes: which role a scope is registered to.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "store/columns.h"
#include "store/installation.h"
#include "store/rows.h"
#include "store/table.h"

/* Columns, in the order of the install script. */
enum
{
	SCOPES_SCOPE = 1,
	SCOPES_ROLE,
	SCOPES_ROLE_OID,
	SCOPES_HOME,
	SCOPES_COLUMNS = SCOPES_HOME
};

/*
 * Reads a row.  The role's oid is set to InvalidOid if the row came from a
 * dump, because then only the name means anything here.  The scope is not
 * read; most callers know it.
 */
static void
read_scope(HeapTuple tuple, TupleDesc desc, ScopeRow *row)
{
	const Installation *own = store_load_installation();
	Datum		values[SCOPES_COLUMNS];
	bool		nulls[SCOPES_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	row->version = store_row_version(tuple);
	row->scope = NULL;
	row->role_name = *DatumGetName(VALUE(SCOPES_ROLE));
	row->role = memcmp(DatumGetUUIDP(VALUE(SCOPES_HOME)), &own->home,
					   UUID_LEN) != 0 ? InvalidOid :
		DatumGetObjectId(VALUE(SCOPES_ROLE_OID));
}

/*
 * Loads the role to which a scope is registered; returns false if it is not
 * registered.
 */
bool
store_load_scope(const char *scope, ScopeRow *row)
{
	ScanKeyData key;
	TableScan  *scan;
	HeapTuple	tuple;
	bool		found;

	/*
	 * most databases have no registered scopes, and this is called for every
	 * waiter
	 */
	if (store_is_empty(REL_SCOPES))
		return false;

	store_set_key(&key, SCOPES_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	scan = store_open_scan(REL_SCOPES, REL_SCOPES_PKEY, &key, 1);
	tuple = store_next_row(scan, ForwardScanDirection);
	found = HeapTupleIsValid(tuple);
	if (found)
		read_scope(tuple, RelationGetDescr(scan->rel), row);
	store_close_scan(scan);
	return found;
}

/* All registered scopes, sorted by name (ScopeRow *). */
List *
store_list_scopes(void)
{
	TableScan  *scan = store_open_scan(REL_SCOPES, REL_SCOPES_PKEY, NULL, 0);
	HeapTuple	tuple;
	List	   *scopes = NIL;
	bool		isnull;

	while (HeapTupleIsValid(tuple = store_next_row(scan,
												   ForwardScanDirection)))
	{
		ScopeRow   *row = palloc(sizeof(ScopeRow));

		read_scope(tuple, RelationGetDescr(scan->rel), row);
		row->scope = TextDatumGetCString(heap_getattr(tuple, SCOPES_SCOPE,
													  RelationGetDescr(scan->rel),
													  &isnull));
		scopes = lappend(scopes, row);
	}
	store_close_scan(scan);
	return scopes;
}

/*
 * Registers a scope, or moves it to another role.  The caller holds the scope
 * tag.
 */
void
store_save_scope(const char *scope, const char *role_name, Oid role)
{
	const Installation *own = store_load_installation();
	ScopeRow	row;
	Datum		values[SCOPES_COLUMNS];
	bool		nulls[SCOPES_COLUMNS];

	if (!store_load_scope(scope, &row))
		ItemPointerSetInvalid(&row.version.tid);
	namestrcpy(&row.role_name, role_name);
	SET(SCOPES_SCOPE, CStringGetTextDatum(scope));
	SET(SCOPES_ROLE, NameGetDatum(&row.role_name));
	SET(SCOPES_ROLE_OID, ObjectIdGetDatum(role));
	SET(SCOPES_HOME, UUIDPGetDatum(&own->home));
	store_write_row(REL_SCOPES, values, nulls, &row.version);
}

/*
 * Removes the registration of a scope; returns false if there was none.  The
 * caller holds the scope tag.
 */
bool
store_delete_scope(const char *scope)
{
	ScopeRow	row;

	if (!store_load_scope(scope, &row))
		return false;
	store_delete_row(REL_SCOPES, &row.version);
	return true;
}
