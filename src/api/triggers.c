/*-------------------------------------------------------------------------
 *
 * triggers.c
 *	  The trigger functions fence_guard and fence_monotonic.
 *
 * The arguments of a trigger are parsed once per statement and kept with the
 * trigger's call information.  For each row the cost is then a look at its
 * columns and a lookup among the transaction's pending fences (fence.c).  The
 * install script describes the arguments and errors.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "api/arguments.h"
#include "core/fence.h"
#include "leaselock.h"
#include "store/table.h"
#include "store/tag.h"

PG_FUNCTION_INFO_V1(leaselock_fence_guard);
PG_FUNCTION_INFO_V1(leaselock_fence_monotonic);
PG_FUNCTION_INFO_V1(leaselock_internal_announce_rows);

#define DEFAULT_SCOPE	"public"

#define MONOTONIC_USAGE \
	"Write BEFORE UPDATE ... FOR EACH ROW EXECUTE FUNCTION leaselock.fence_monotonic('fence_column')."

typedef enum GuardForm
{
	GUARD_COLUMN,				/* the row contains the fence */
	GUARD_COLUMNS,				/* and the name of its lock */
	GUARD_TRANSACTION			/* the transaction has checked its fence */
} GuardForm;

/* How to write a trigger of each form. */
static const char *const guard_usage[] = {
	[GUARD_COLUMN] =
	"Write BEFORE INSERT OR UPDATE ... FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('column', 'fence_column', 'lock name' [, 'scope']).",
	[GUARD_COLUMNS] =
	"Write BEFORE INSERT OR UPDATE ... FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence_column', 'name_column' [, 'scope_column']).",
	[GUARD_TRANSACTION] =
	"Write BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ... FOR EACH STATEMENT EXECUTE FUNCTION leaselock.fence_guard('transaction', 'lock name' [, 'scope'])."
};

static const char *const guard_forms[] = {
	[GUARD_COLUMN] = "column",
	[GUARD_COLUMNS] = "columns",
	[GUARD_TRANSACTION] = "transaction"
};

/* The parsed arguments of a trigger. */
typedef struct Guard
{
	GuardForm	form;
	LockKey		key;			/* unless GUARD_COLUMNS */
	int			fence_column;
	int			name_column;	/* GUARD_COLUMNS */
	int			scope_column;	/* GUARD_COLUMNS; 0: the default scope */
} Guard;

/* ----------------------------------------------------------------------
 * Arguments
 * ----------------------------------------------------------------------
 */

static void
reject_arguments(const char *function, const char *problem,
				 const char *usage)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("wrong arguments for trigger function %s: %s",
					function, problem),
			 errhint("%s", usage)));
}

static void
reject_timing(const char *function, const char *problem, const char *usage)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("trigger function %s %s", function, problem),
			 errhint("%s", usage)));
}

static TriggerData *
require_trigger(FunctionCallInfo fcinfo, const char *function)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("%s must be called as a trigger", function)));
	return (TriggerData *) fcinfo->context;
}

/*
 * The number of a column, which must be of the given type, or a domain over
 * it.  For text, varchar is accepted too.  Raises 22023.
 */
static int
find_column(const TriggerData *data, const char *column, Oid type,
			const char *function, const char *usage)
{
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	int			number = SPI_fnumber(desc, column);
	Oid			found;

	if (number <= 0)
		reject_arguments(function,
						 psprintf("table \"%s\" has no column \"%s\"",
								  RelationGetRelationName(data->tg_relation),
								  shown_value(column)), usage);
	if (TupleDescAttr(desc, number - 1)->attgenerated != '\0')
		reject_arguments(function,
						 psprintf("column \"%s\" is generated; generated columns are computed after BEFORE triggers",
								  column), usage);
	found = getBaseType(TupleDescAttr(desc, number - 1)->atttypid);
	if (found != type && !(type == TEXTOID && found == VARCHAROID))
		reject_arguments(function,
						 psprintf("column \"%s\" is not of type %s", column,
								  format_type_be(type)), usage);
	return number;
}

/* The lock that the arguments name; its strings live as long as the guard. */
static LockKey
constant_key(FunctionCallInfo fcinfo, const char *name, const char *scope)
{
	MemoryContext context = fcinfo->flinfo->fn_mcxt;

	check_text(name, "name");
	check_text(scope, "scope");
	return make_lock_key(MemoryContextStrdup(context, scope),
						 MemoryContextStrdup(context, name));
}

/*
 * The form that the first argument names.  "form" is NULL if there are no
 * arguments.  Raises 22023 if it is not a form; the hint then shows the form
 * that fits the trigger's level (row or statement).
 */
static GuardForm
find_form(const TriggerData *data, const char *form)
{
	bool		for_row = TRIGGER_FIRED_FOR_ROW(data->tg_event);

	for (int i = 0; i < (int) lengthof(guard_forms); i++)
	{
		if (form != NULL && strcmp(form, guard_forms[i]) == 0)
			return (GuardForm) i;
	}
	reject_arguments("fence_guard()",
					 form == NULL ? "no arguments were given" :
					 psprintf("the first argument must be 'column', 'columns' or 'transaction', not \"%s\"",
							  shown_value(form)),
					 guard_usage[for_row ? GUARD_COLUMN : GUARD_TRANSACTION]);
	return GUARD_COLUMN;		/* not reached */
}

static void
parse_guard(FunctionCallInfo fcinfo, const TriggerData *data, Guard *guard)
{
	const char *function = "fence_guard()";
	int			count = data->tg_trigger->tgnargs;
	char	  **args = data->tg_trigger->tgargs;
	const char *usage;
	int			min_args;

	guard->form = find_form(data, count > 0 ? args[0] : NULL);
	usage = guard_usage[guard->form];
	min_args = guard->form == GUARD_TRANSACTION ? 2 : 3;
	if (count < min_args || count > min_args + 1)
		reject_arguments(function,
						 psprintf("the form '%s' does not take %d argument%s",
								  guard_forms[guard->form], count,
								  count == 1 ? "" : "s"), usage);
	if (guard->form == GUARD_COLUMNS)
	{
		guard->name_column = find_column(data, args[2], TEXTOID, function,
										 usage);
		guard->scope_column = count == min_args ? 0 :
			find_column(data, args[3], TEXTOID, function, usage);
	}
	else
		guard->key = constant_key(fcinfo, args[min_args - 1],
								  count > min_args ? args[min_args] : DEFAULT_SCOPE);
	if (guard->form != GUARD_TRANSACTION)
		guard->fence_column = find_column(data, args[1], INT8OID, function,
										  usage);
}

static void
require_guard_timing(const Guard *guard, TriggerEvent event)
{
	const char *function = "fence_guard()";
	const char *usage = guard_usage[guard->form];

	if (TRIGGER_FIRED_INSTEAD(event))
		reject_timing(function, "cannot guard a view",
					  "Put the trigger on the table under the view.");
	if (!TRIGGER_FIRED_BEFORE(event))
		reject_timing(function, "must be fired BEFORE", usage);
	if (guard->form == GUARD_TRANSACTION && TRIGGER_FIRED_FOR_ROW(event))
		reject_timing(function,
					  "in the form 'transaction' must be fired FOR EACH STATEMENT",
					  usage);
	if (guard->form != GUARD_TRANSACTION && TRIGGER_FIRED_FOR_STATEMENT(event))
		reject_timing(function,
					  "in the forms 'column' and 'columns' must be fired FOR EACH ROW",
					  usage);
	if (guard->form != GUARD_TRANSACTION && TRIGGER_FIRED_BY_DELETE(event))
		reject_timing(function,
					  "in the forms 'column' and 'columns' must not be fired by DELETE, which has no new row",
					  usage);
}

/*
 * The parsed arguments of the trigger, kept for the rest of the statement.
 * The executor has separate call information for each trigger of each table
 * that a statement writes.  This includes partitions, whose columns may have
 * different numbers.
 */
static const Guard *
get_guard(FunctionCallInfo fcinfo, const TriggerData *data)
{
	Guard	   *guard = (Guard *) fcinfo->flinfo->fn_extra;

	if (guard == NULL)
	{
		guard = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt,
									   sizeof(Guard));
		parse_guard(fcinfo, data, guard);
		fcinfo->flinfo->fn_extra = guard;
	}
	/* a MERGE, or an UPDATE that moves a row, fires several kinds of events */
	require_guard_timing(guard, data->tg_event);
	return guard;
}

/* ----------------------------------------------------------------------
 * Rows
 * ----------------------------------------------------------------------
 */

static HeapTuple
new_row(const TriggerData *data)
{
	return TRIGGER_FIRED_BY_UPDATE(data->tg_event) ?
		data->tg_newtuple : data->tg_trigtuple;
}

/* The value of a column.  NULL raises 22004: it must never pass a check. */
static Datum
get_column(const TriggerData *data, HeapTuple row, int column)
{
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	bool		isnull;
	Datum		value = heap_getattr(row, column, desc, &isnull);

	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("column \"%s\" of table \"%s\" must not be null, because a fence trigger reads it",
						NameStr(TupleDescAttr(desc, column - 1)->attname),
						RelationGetRelationName(data->tg_relation)),
				 errhint("Write the row with the fence of the grant under which it is written.")));
	return value;
}

static const char *
get_text_column(const TriggerData *data, HeapTuple row, int column)
{
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	char	   *value = TextDatumGetCString(get_column(data, row, column));

	check_text(value, NameStr(TupleDescAttr(desc, column - 1)->attname));
	return value;
}

/*
 * A better hint for a stale fence, if the UPDATE left the row's fence
 * unchanged; otherwise NULL.
 */
static const char *
unset_fence_hint(const TriggerData *data, const Guard *guard, int64 fence)
{
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	int			column = guard->fence_column;
	bool		isnull;

	if (!TRIGGER_FIRED_BY_UPDATE(data->tg_event) ||
		bms_is_member(column - FirstLowInvalidHeapAttributeNumber,
					  data->tg_updatedcols) ||
		DatumGetInt64(heap_getattr(data->tg_trigtuple, column, desc,
								   &isnull)) != fence || isnull)
		return NULL;
	return psprintf("The UPDATE does not set column \"%s\", so the row keeps the fence that it was last written with. Set the column to the fence of your grant.",
					NameStr(TupleDescAttr(desc, column - 1)->attname));
}

static void
guard_row(const TriggerData *data, const Guard *guard)
{
	HeapTuple	row = new_row(data);
	int64		fence = DatumGetInt64(get_column(data, row,
												 guard->fence_column));
	LockKey		key = guard->key;

	if (guard->form == GUARD_COLUMNS)
		key = make_lock_key(guard->scope_column == 0 ? DEFAULT_SCOPE :
							get_text_column(data, row, guard->scope_column),
							get_text_column(data, row, guard->name_column));
	if (!fence_check(&key, fence, false))
		fence_assert(&key, fence, false,
					 unset_fence_hint(data, guard, fence));
}

Datum
leaselock_fence_guard(PG_FUNCTION_ARGS)
{
	TriggerData *data = require_trigger(fcinfo, "fence_guard()");
	const Guard *guard = get_guard(fcinfo, data);

	PreventCommandDuringRecovery("fence_guard()");
	if (guard->form == GUARD_TRANSACTION)
	{
		fence_require_check(&guard->key);
		return PointerGetDatum(NULL);
	}
	guard_row(data, guard);
	return PointerGetDatum(new_row(data));
}

static void
reject_lower_fence(const TriggerData *data, int64 old_fence, int64 new_fence)
{
	ereport(ERROR,
			(errcode(ERRCODE_STALE_FENCE),
			 errmsg("stale fence " INT64_FORMAT " for a row of table \"%s\"",
					new_fence, RelationGetRelationName(data->tg_relation)),
			 errdetail("The row was written with fence " INT64_FORMAT ".",
					   old_fence),
			 errhint("Stop this work: it may now belong to another holder.")));
}

Datum
leaselock_fence_monotonic(PG_FUNCTION_ARGS)
{
	const char *function = "fence_monotonic()";
	TriggerData *data = require_trigger(fcinfo, function);
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	bool		old_isnull;
	int64		old_fence,
				new_fence;
	int			column;

	if (!TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) ||
		!TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		reject_timing(function, "must be fired BEFORE UPDATE, FOR EACH ROW",
					  MONOTONIC_USAGE);
	if (data->tg_trigger->tgnargs != 1)
		reject_arguments(function, "the only argument is the name of the fence column",
						 MONOTONIC_USAGE);
	column = find_column(data, data->tg_trigger->tgargs[0], INT8OID, function,
						 MONOTONIC_USAGE);

	new_fence = DatumGetInt64(get_column(data, data->tg_newtuple, column));
	old_fence = DatumGetInt64(heap_getattr(data->tg_trigtuple, column, desc,
										   &old_isnull));
	if (!old_isnull && new_fence < old_fence)
		reject_lower_fence(data, old_fence, new_fence);
	return PointerGetDatum(data->tg_newtuple);
}

/*
 * Trigger on our own tables: a statement such as a restore, or logical
 * replication, has changed a row that sessions may have cached.  The library's
 * own writes announce themselves.
 */
Datum
leaselock_internal_announce_rows(PG_FUNCTION_ARGS)
{
	TriggerData *data = require_trigger(fcinfo, "internal_announce_rows()");

	store_announce_rows(data->tg_relation);
	return PointerGetDatum(NULL);
}
