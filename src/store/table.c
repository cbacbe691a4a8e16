/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Finding the tables and their indexes, and verifying that they are ours.
 *
 * The extension is trusted: its owner may be anybody with CREATE on a
 * database.  Such a user may drop it at any time, even while a transaction
 * uses it, and put look-alikes in its place.  Therefore a table is used only
 * if it is a member of the extension and has the columns that this library was
 * built for, and an index only if it is a plain btree over the columns that a
 * scan relies on.  Both are verified once in a session, and again after the
 * server has announced that the relation has changed, so most calls do not pay
 * for this.
 *
 * Indexes are found by their columns, not by name.  REINDEX CONCURRENTLY
 * replaces each of them, and a DBA may have renamed one.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "nodes/primnodes.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "leaselock.h"
#include "store/table.h"

#define MAX_COLUMNS		19
#define MAX_KEYS		3

/* The maximum number of indexes on a table; more are refused. */
#define MAX_INDEXES		16

/* A column is represented by its type, negated if it may be NULL. */
#define NULLABLE(type)	(-(int) (type))

typedef struct TableShape
{
	const char *name;
	int			columns;
	int			types[MAX_COLUMNS];
} TableShape;

typedef struct IndexShape
{
	StoreRelation table;
	int			keys;
	AttrNumber	columns[MAX_KEYS];
	AttrNumber	only_if;		/* its predicate: NOT NULL; 0: none */
	bool		is_key;			/* unique, and updates never change it */
} IndexShape;

/* In the order of the install script, which documents the columns. */
static const TableShape table_shapes[] = {
	[REL_INSTALLATION] = {"installation", 2, {UUIDOID, BYTEAOID}},
	[REL_LOCKS] = {"locks", 14, {
			TEXTOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID, INT4OID,
			UUIDOID, NULLABLE(OIDOID), NULLABLE(TIMESTAMPTZOID),
			NULLABLE(XID8OID), NULLABLE(TIMESTAMPTZOID),
			NULLABLE(TIMESTAMPTZOID), NULLABLE(UUIDOID), NULLABLE(TEXTOID)
	}},
	[REL_TICKETS] = {"tickets", 19, {
			TEXTOID, TEXTOID, TEXTOID, OIDOID, UUIDOID, CHAROID, BOOLOID,
			INT8OID, TIMESTAMPTZOID, NULLABLE(UUIDOID), NULLABLE(INT8OID),
			NULLABLE(INT8OID), NULLABLE(INT8OID), NULLABLE(TIMESTAMPTZOID),
			NULLABLE(TIMESTAMPTZOID), NULLABLE(TIMESTAMPTZOID),
			NULLABLE(TIMESTAMPTZOID), NULLABLE(INT4OID), NULLABLE(TEXTOID)
	}},
	[REL_BLOCKERS] = {"blockers", 4, {OIDOID, TEXTOID, TEXTOID, TEXTOID}},
	[REL_QUEUES] = {"queues", 1, {TIMESTAMPTZOID}},
	[REL_FLOOR] = {"floor", 2, {INT8OID, INT8OID}},
	[REL_SCOPES] = {"scopes", 4, {TEXTOID, NAMEOID, OIDOID, UUIDOID}},
	[REL_EVENTS] = {"events", 12, {
			INT8OID, XID8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, OIDOID, TEXTOID,
			NULLABLE(TEXTOID), NULLABLE(TEXTOID), NULLABLE(TEXTOID),
			NULLABLE(INT8OID), NULLABLE(UUIDOID), NULLABLE(TEXTOID)
	}}
};

static const IndexShape index_shapes[] = {
	[REL_LOCKS_PKEY] = {REL_LOCKS, 2, {1, 2}, 0, true},
	[REL_TICKETS_TICKET] = {REL_TICKETS, 1, {5}, 0, false},
	[REL_TICKETS_REQUEST] = {REL_TICKETS, 3, {1, 2, 10}, 10, true},
	[REL_TICKETS_PLACE] = {REL_TICKETS, 3, {1, 2, 11}, 11, false},
	[REL_TICKETS_MEMBER] = {REL_TICKETS, 3, {1, 2, 12}, 12, false},
	[REL_TICKETS_WAITER] = {REL_TICKETS, 2, {3, 4}, 11, false},
	[REL_BLOCKERS_OWNER] = {REL_BLOCKERS, 2, {2, 1}, 0, false},
	[REL_SCOPES_PKEY] = {REL_SCOPES, 1, {1}, 0, true},
	[REL_EVENTS_PKEY] = {REL_EVENTS, 2, {2, 1}, 0, true}
};

/* What is known about a relation until it changes. */
typedef struct KnownRelation
{
	Oid			oid;
	Oid			last_oid;		/* the oid before the last reset */
	bool		checked;
	bool		is_empty;		/* had no pages when we last looked */
	int			index_count;	/* of a table; -1: not yet listed */
	TableIndex	indexes[MAX_INDEXES];
} KnownRelation;

static KnownRelation known[REL_NONE];

/* Incremented each time that this knowledge is discarded. */
static uint64 generation = 0;

static void
forget_relations(void)
{
	for (int i = 0; i < REL_NONE; i++)
	{
		if (OidIsValid(known[i].oid))
			known[i].last_oid = known[i].oid;
		known[i].oid = InvalidOid;
		known[i].checked = false;
		known[i].is_empty = false;
		known[i].index_count = -1;
	}
	generation++;
}

/*
 * Relcache callback.  A table that is kept open is still being read after its
 * oid was discarded, and what is learned about it then must be discarded too.
 * That is why last_oid is compared.
 */
static void
relation_changed(Datum arg, Oid relation)
{
	for (int i = 0; i < REL_NONE; i++)
	{
		if (!OidIsValid(relation) || known[i].oid == relation ||
			known[i].last_oid == relation)
		{
			forget_relations();
			return;
		}
	}
}

/*
 * Must be called once per session.  The server tells every session that a
 * relation was changed or dropped before that session can lock it again.
 */
void
store_watch_relations(void)
{
	forget_relations();
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
}

/* Whether a relation is a member of this extension. */
static bool
is_member(Oid relation)
{
	Oid			extension = get_extension_oid(LEASELOCK_EXTENSION, true);

	return OidIsValid(extension) &&
		getExtensionOfObject(RelationRelationId, relation) == extension;
}

/* The oid of the table with that name; InvalidOid if it is not ours. */
static Oid
find_member(StoreRelation table)
{
	Oid			schema = get_namespace_oid(LEASELOCK_SCHEMA, true);
	Oid			oid = InvalidOid;

	if (OidIsValid(schema))
		oid = get_relname_relid(table_shapes[table].name, schema);
	return OidIsValid(oid) && is_member(oid) ? oid : InvalidOid;
}

/* The oid of one of our tables.  Raises 55000 if there is none. */
Oid
store_find_table(StoreRelation table)
{
	AcceptInvalidationMessages();
	if (OidIsValid(known[table].oid))
		return known[table].oid;
	known[table].oid = find_member(table);
	if (!OidIsValid(known[table].oid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"%s\" has no table \"%s.%s\"",
						LEASELOCK_EXTENSION, LEASELOCK_SCHEMA,
						table_shapes[table].name),
				 errhint("Create the extension in this database.")));
	return known[table].oid;
}

/*
 * Locks a table until the transaction ends, so that it cannot be dropped;
 * returns false if the extension does not exist.
 */
static bool
hold_table(StoreRelation table)
{
	for (;;)
	{
		Oid			oid;

		AcceptInvalidationMessages();
		if (!OidIsValid(known[table].oid))
			known[table].oid = find_member(table);
		oid = known[table].oid;
		if (!OidIsValid(oid))
			return false;
		LockRelationOid(oid, AccessShareLock);
		if (known[table].oid == oid)
			return true;
		UnlockRelationOid(oid, AccessShareLock);
	}
}

/* Whether the extension and its tables exist. */
bool
store_is_installed(void)
{
	AcceptInvalidationMessages();
	return OidIsValid(known[REL_LOCKS].oid) ||
		OidIsValid(find_member(REL_LOCKS));
}

/* ----------------------------------------------------------------------
 * Versions
 * ----------------------------------------------------------------------
 */

/* The version of the extension in this database; NULL if it does not exist. */
static char *
extension_version(void)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *version = NULL;
	bool		isnull;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber,
				F_NAMEEQ, CStringGetDatum(LEASELOCK_EXTENSION));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		version = TextDatumGetCString(heap_getattr(tuple,
												   Anum_pg_extension_extversion,
												   RelationGetDescr(rel),
												   &isnull));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

/* Returns -1, 0 or 1 if version a is older than, equal to or newer than b. */
static int
compare_versions(const char *a, const char *b)
{
	while (*a != '\0' || *b != '\0')
	{
		char	   *a_end,
				   *b_end;
		long		x = strtol(a, &a_end, 10);
		long		y = strtol(b, &b_end, 10);

		if (x != y)
			return x < y ? -1 : 1;
		if (a_end == a && b_end == b)
			return strcmp(a, b) < 0 ? -1 : strcmp(a, b) > 0;
		a = *a_end == '.' ? a_end + 1 : a_end;
		b = *b_end == '.' ? b_end + 1 : b_end;
	}
	return 0;
}

/*
 * What to do about an object that does not match this library: reconnect if
 * the extension was updated during this session, or update it if it is older
 * than the library.
 */
static const char *
mismatch_hint(void)
{
	const char *version = extension_version();
	int			order = (version == NULL ? 0 :
						 compare_versions(version, LEASELOCK_VERSION));

	if (order > 0)
		return "Reconnect: the extension was updated after this session loaded its library.";
	if (order < 0)
		return "Run ALTER EXTENSION leaselock UPDATE.";
	return "Something other than the extension's own scripts has changed the extension. Drop it and create it again.";
}

/* Raises 55000 for an object that does not match the library. */
static void
report_mismatch(const char *kind, const char *name, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s \"%s.%s\" does not match the loaded leaselock library",
					kind, LEASELOCK_SCHEMA, name),
			 errdetail("This library is version %s; %s.",
					   LEASELOCK_VERSION, problem),
			 errhint("%s", mismatch_hint())));
}

/* Likewise, for a table. */
void
store_report_table(StoreRelation table, const char *problem)
{
	report_mismatch("table", table_shapes[table].name, problem);
}

/* Raises 55000 for a row that violates the constraints of its table. */
void
store_report_row(StoreRelation table, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s.%s\" has a row that violates its constraints",
					LEASELOCK_SCHEMA, table_shapes[table].name),
			 errdetail_internal("%s", problem),
			 errhint("Remove the row.")));
}

/*
 * Verifies that a result type has the columns that a function is about to
 * return.  Raises 55000.
 */
void
store_check_result(const char *function, TupleDesc desc, const Oid *types,
				   int columns)
{
	if (desc->natts != columns)
		report_mismatch("result of function", function,
						psprintf("%d columns were expected, but there are %d",
								 columns, desc->natts));
	for (int i = 0; i < columns; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		if (column->attisdropped || column->atttypid != types[i])
			report_mismatch("result of function", function,
							psprintf("column %d is not of the expected type %s",
									 i + 1, format_type_be(types[i])));
	}
}

/* ----------------------------------------------------------------------
 * Tables
 * ----------------------------------------------------------------------
 */

static void
check_column(const TableShape *shape, Form_pg_attribute column)
{
	int			type = shape->types[column->attnum - 1];
	bool		nullable = type < 0;

	if (column->attisdropped ||
		column->atttypid != (Oid) abs(type) ||
		(!nullable && !column->attnotnull) ||
		(column->atttypid == TEXTOID &&
		 column->attcollation != C_COLLATION_OID))
		report_mismatch("table", shape->name,
						psprintf("column %d differs in type, collation or NOT NULL",
								 column->attnum));
}

/*
 * Verifies that an open table has the columns that this library was built for.
 * Raises 55000.
 */
static void
check_table(StoreRelation table, Relation rel)
{
	const TableShape *shape = &table_shapes[table];
	TupleDesc	desc = RelationGetDescr(rel);

	if (rel->rd_rel->relkind != RELKIND_RELATION ||
		rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT ||
		rel->rd_tableam != GetHeapamTableAmRoutine())
		report_mismatch("table", shape->name,
						"the table is not a plain heap table");
	if (desc->natts != shape->columns)
		report_mismatch("table", shape->name,
						psprintf("%d columns were expected, but there are %d",
								 shape->columns, desc->natts));
	for (int i = 0; i < desc->natts; i++)
		check_column(shape, TupleDescAttr(desc, i));
}

/*
 * The lock modes with which relations are opened and closed; see
 * store_begin_call().
 */
static LOCKMODE table_mode = AccessShareLock;
static LOCKMODE close_mode = AccessShareLock;

/*
 * Tables that stay open while an event is carried out, so that each is opened
 * only once.  After an error their resource owner closes them, and the next
 * call clears this array.
 */
static Relation open_tables[REL_LAST_TABLE + 1];
static bool keeps_open = false;

static void
forget_open_tables(void)
{
	keeps_open = false;
	memset(open_tables, 0, sizeof(open_tables));
}

/* From now on, opened tables stay open. */
void
store_begin_event(void)
{
	forget_open_tables();
	keeps_open = true;
}

/* Closes the tables that are open. */
void
store_end_event(void)
{
	for (int table = 0; table <= REL_LAST_TABLE; table++)
	{
		if (open_tables[table] != NULL)
			table_close(open_tables[table], close_mode);
	}
	forget_open_tables();
}

/*
 * Must be called at the start of every call from SQL, before it reads.  A call
 * that may write locks tables for writing from the start, and until the
 * transaction ends.  Upgrading the lock later could cause a deadlock with
 * REINDEX, which locks the table first and then each index.  A call that only
 * reads does not keep its locks, because its transaction may stay open for a
 * long time.
 */
void
store_begin_call(bool may_write)
{
	forget_open_tables();
	table_mode = may_write ? RowExclusiveLock : AccessShareLock;
	close_mode = may_write ? NoLock : AccessShareLock;
}

/*
 * Suspends the modes of the call, for a read in the middle of it or before it
 * has begun.
 */
CallModes
store_interrupt_call(void)
{
	CallModes	modes = {table_mode, close_mode, keeps_open};

	table_mode = AccessShareLock;
	close_mode = AccessShareLock;
	keeps_open = false;
	return modes;
}

/* Restores the modes that store_interrupt_call() returned. */
void
store_resume_call(CallModes modes)
{
	table_mode = modes.table;
	close_mode = modes.close;
	keeps_open = modes.keeps_open;
}

/*
 * Opens one of our tables, locked in the mode of the call.  Whoever drops a
 * table must have told this session before we can get the lock.  Therefore, if
 * the oid is still known once we have the lock, the table exists, and no
 * catalog lookup is needed.  Raises 55000 if the table is missing or not as
 * expected.
 */
Relation
store_open_table(StoreRelation table)
{
	if (open_tables[table] != NULL)
		return open_tables[table];
	for (;;)
	{
		Oid			oid = (OidIsValid(known[table].oid) ? known[table].oid :
						   store_find_table(table));
		Relation	rel;

		LockRelationOid(oid, table_mode);
		if (known[table].oid != oid)
		{
			/* dropped or changed between lookup and lock */
			UnlockRelationOid(oid, table_mode);
			continue;
		}
		rel = table_open(oid, NoLock);
		if (!known[table].checked)
			check_table(table, rel);
		known[table].checked = true;
		if (keeps_open)
			open_tables[table] = rel;
		return rel;
	}
}

/* Closes a table, unless it is to stay open. */
void
store_close_table(Relation rel)
{
	if (!keeps_open)
		table_close(rel, close_mode);
}

/*
 * Begins an event that verifies fences: locks the table of locks until the
 * transaction ends, so that it cannot be dropped.  Returns false if the
 * extension does not exist.
 */
bool
store_begin_verification(void)
{
	store_begin_call(false);
	if (!hold_table(REL_LOCKS))
		return false;
	store_begin_event();
	(void) store_open_table(REL_LOCKS);
	return true;
}

/*
 * Whether a table has no pages.  The answer is cached until a change of its
 * rows is announced, so this may only be used for tables whose first row is
 * announced.
 */
bool
store_is_empty(StoreRelation table)
{
	Relation	rel;

	(void) store_find_table(table);
	if (known[table].is_empty)
		return true;
	rel = store_open_table(table);
	known[table].is_empty = RelationGetNumberOfBlocks(rel) == 0;
	store_close_table(rel);
	return known[table].is_empty;
}

/*
 * Tells every session, when the transaction commits, that rows of a table have
 * changed that it may have cached.  A session receives this before it can
 * acquire a tag that this transaction holds.
 */
void
store_announce_rows(Relation rel)
{
	CacheInvalidateRelcache(rel);
}

/* Returns a number that changes whenever cached contents may be outdated. */
uint64
store_generation(void)
{
	AcceptInvalidationMessages();
	return generation;
}

/*
 * Likewise, for use while an event is carried out.  The tables are then
 * locked, so whatever was announced before that has already been received.
 */
uint64
store_event_generation(void)
{
	return open_tables[REL_LOCKS] != NULL ? generation : store_generation();
}

/*
 * Locks the tables in the mode for reading and writing until the transaction
 * ends, so that later accesses do not wait for DDL commands.
 */
void
store_lock_tables(void)
{
	for (int table = 0; table <= REL_LAST_TABLE; table++)
		LockRelationOid(store_find_table(table), RowExclusiveLock);
}

/* ----------------------------------------------------------------------
 * Indexes
 * ----------------------------------------------------------------------
 */

static Oid
column_type(StoreRelation table, AttrNumber column)
{
	return (Oid) abs(table_shapes[table].types[column - 1]);
}

/* The operator family that scans of columns of a type rely on. */
static Oid
scan_family(Oid type)
{
	return get_opclass_family(GetDefaultOpClass(type, BTREE_AM_OID));
}

/* Whether key column i of an index is as a scan requires. */
static bool
key_matches(Relation index, const IndexShape *shape, int i)
{
	Oid			type = column_type(shape->table, shape->columns[i]);

	return index->rd_index->indkey.values[i] == shape->columns[i] &&
		index->rd_opfamily[i] == scan_family(type) &&
		index->rd_indoption[i] == 0 &&
		(type != TEXTOID || index->rd_indcollation[i] == C_COLLATION_OID);
}

/*
 * The column that an index's predicate requires to be NOT NULL; 0 if there is
 * no predicate.  Raises 0A000 for any other predicate, an expression, or an
 * exclusion or deferrable constraint: no code but our own may run here.
 */
static AttrNumber
index_condition(Relation rel, Relation index)
{
	List	   *predicate = RelationGetIndexPredicate(index);
	NullTest   *test = predicate == NIL ? NULL : linitial(predicate);
	bool		is_plain = (predicate == NIL ||
							(list_length(predicate) == 1 &&
							 IsA(test, NullTest) &&
							 test->nulltesttype == IS_NOT_NULL &&
							 IsA(test->arg, Var)));

	if (!is_plain || RelationGetIndexExpressions(index) != NIL ||
		index->rd_index->indisexclusion || !index->rd_index->indimmediate)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" of table \"%s.%s\" is not supported",
						RelationGetRelationName(index), LEASELOCK_SCHEMA,
						RelationGetRelationName(rel)),
				 errdetail("It has an expression, a predicate, or an exclusion or deferrable constraint."),
				 errhint("Drop the index.")));
	return predicate == NIL ? 0 : ((Var *) test->arg)->varattno;
}

/* Whether an index is a plain btree of the given shape. */
static bool
index_matches(Relation rel, Relation index, const IndexShape *shape)
{
	if (index->rd_rel->relam != BTREE_AM_OID ||
		!index->rd_index->indisvalid || !index->rd_index->indislive ||
		index->rd_index->indnkeyatts != shape->keys)
		return false;
	for (int i = 0; i < shape->keys; i++)
	{
		if (!key_matches(index, shape, i))
			return false;
	}
	return index_condition(rel, index) == shape->only_if;
}

/*
 * Opens an index of an open table.  The table must be locked, because then
 * whoever replaces the index waits for us before removing it.  Raises 55000 if
 * there is no such index.
 */
Relation
store_open_index(StoreRelation which, Relation rel)
{
	const IndexShape *shape = &index_shapes[which];
	uint64		before = generation;
	ListCell   *cell;

	if (OidIsValid(known[which].oid))
		return index_open(known[which].oid, AccessShareLock);
	foreach(cell, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (index_matches(rel, index, shape))
		{
			/* do not cache it if a change was announced meanwhile */
			if (generation == before)
				known[which].oid = RelationGetRelid(index);
			return index;
		}
		index_close(index, AccessShareLock);
	}
	report_mismatch("table", table_shapes[shape->table].name,
					"it lacks an index");
	return NULL;				/* not reached */
}

/*
 * Whether an index is one of our unique indexes whose key updates never
 * change.
 */
static bool
has_fixed_key(StoreRelation table, Relation rel, Relation index)
{
	if (!index->rd_index->indisunique)
		return false;
	for (int i = REL_LAST_TABLE + 1; i < REL_NONE; i++)
	{
		if (index_shapes[i].table == table && index_shapes[i].is_key &&
			index_matches(rel, index, &index_shapes[i]))
			return true;
	}
	return false;
}

/*
 * The indexes of an open table, for adding a row to it.  This includes indexes
 * that are not yet ready for inserts, because they may be by the time they are
 * opened.
 */
const TableIndex *
store_list_indexes(StoreRelation table, Relation rel, int *count)
{
	KnownRelation *it = &known[table];
	uint64		before = generation;
	int			found = 0;
	List	   *oids;
	ListCell   *cell;

	*count = it->index_count;
	if (it->index_count >= 0)
		return it->indexes;
	oids = RelationGetIndexList(rel);
	if (list_length(oids) > MAX_INDEXES)
		report_mismatch("table", table_shapes[table].name,
						psprintf("the table has more than %d indexes", MAX_INDEXES));
	foreach(cell, oids)
	{
		Relation	index = index_open(lfirst_oid(cell), RowExclusiveLock);

		it->indexes[found].oid = lfirst_oid(cell);
		it->indexes[found].only_if = index_condition(rel, index);
		it->indexes[found].has_fixed_key = has_fixed_key(table, rel, index);
		found++;
		index_close(index, NoLock);
	}
	list_free(oids);
	*count = found;
	/* if a change was announced meanwhile, use the list only for this call */
	if (generation == before)
		it->index_count = found;
	return it->indexes;
}

/* Closes an index. */
void
store_close_index(Relation index)
{
	index_close(index, close_mode);
}
