/*-------------------------------------------------------------------------
 *
 * mcp_tool.c
 *	  The tools: their names, arguments and answers.
 *
 * Language models read the descriptions, and know nothing else about the
 * tools.  The same tables serve for the schemas and for checking arguments, so
 * that these cannot contradict each other.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "mcp.h"

const char *const instructions =
"Leases on named work, stored in PostgreSQL. One party at a time holds a lock, for a limited time, and gets a fence: a number greater than that of every earlier holder.\n"
"1. Call acquire_lock with the name of the work. held: it is yours until expires_at. contended: somebody else has it; do other work and try again later, or pass wait_seconds. waiting: you are in the queue and your place is kept; call acquire_lock again with the same arguments and request_uuid set to the request_id of the answer.\n"
"2. When you have the lock, read the state of the work again: whoever had it before you may have done it.\n"
"3. If the work takes longer than the lease, pass keep_seconds, or call heartbeat_lock_ticket before expires_at.\n"
"4. Check the fence whenever you write: in each database transaction that writes, run SELECT leaselock.fence_assert(name, fence, scope) first. If that or COMMIT fails with LS001, the lock is no longer yours: stop.\n"
"5. expired, broken, released or gone: you do not hold the lock. Stop, and write nothing more.\n"
"6. Call release_lock_ticket when you are done.";

/* Indexed by Argument. */
const ArgumentRule argument_rules[] = {
	[ARG_LOCK_NAME] = {"lock_name", KIND_TEXT, 0, 0, NULL,
	"Name of the lock, 1 to 255 bytes, for example thread-work.42. Compared byte for byte: spell it exactly as the others do."},
	[ARG_SCOPE] = {"scope", KIND_TEXT, 0, 0, NULL,
	"Namespace of the name, for example a team or repository."},
	[ARG_REPO] = {"repo", KIND_TEXT, 0, 0, NULL,
	"The same as scope."},
	[ARG_OWNER] = {"owner", KIND_TEXT, 0, 0, NULL,
	"Label of the party that works. Calls with the same owner are one party and can hold the lock together. Omit it to be a separate party for this request."},
	[ARG_REQUEST_UUID] = {"request_uuid", KIND_UUID, 0, 0, NULL,
	"Identifies this acquisition. Pass the request_id of an earlier answer to continue waiting, or to retry after an error; omit it for a new acquisition."},
	[ARG_LEASE_SECONDS] = {"lease_seconds", KIND_SECONDS, 0.001, MAX_SECONDS, NULL,
	"How long the lease lasts unless renewed; 5 to 300 unless the database says otherwise."},
	[ARG_WAIT_SECONDS] = {"wait_seconds", KIND_SECONDS, 0, MAX_SECONDS, "0",
	"How long to wait in the queue if somebody else has the lock; up to 300 unless the database says otherwise. A long wait is answered with the state waiting, and your place is kept."},
	[ARG_KEEP_SECONDS] = {"keep_seconds", KIND_SECONDS, 0, MAX_SECONDS, NULL,
	"How long this program renews the lease for you, counted from when you hold the lock; 0 stops the renewals. They also stop when this program ends. Release the ticket when you are done."},
	[ARG_NOTE] = {"note", KIND_TEXT, 0, 0, NULL,
	"Text for people, up to 1000 bytes on one line, shown with the lock: for example what you are doing and where, or a link."},
	[ARG_TICKET] = {"ticket", KIND_UUID, 0, 0, NULL,
	"The ticket from an answer of acquire_lock."},
	[ARG_FENCE] = {"fence", KIND_WHOLE, 1, UNBOUNDED, NULL,
	"The fence of the grant to end, as lock_status shows it."},
	[ARG_LIMIT] = {"limit", KIND_WHOLE, 1, 1000, "100",
	"The maximum number of locks to show."},
};

#define LOCK	(BIT(ARG_LOCK_NAME) | BIT(ARG_SCOPE) | BIT(ARG_REPO))

static const Tool tools[] = {
	{"acquire_lock", "Acquire a lock", QUERY_ACQUIRE,
		LOCK | BIT(ARG_OWNER) | BIT(ARG_REQUEST_UUID) |
		BIT(ARG_LEASE_SECONDS) | BIT(ARG_WAIT_SECONDS) |
		BIT(ARG_KEEP_SECONDS) | BIT(ARG_NOTE), BIT(ARG_LOCK_NAME), false, false,
	"Acquires a named lock for lease_seconds, or takes a place in its queue. Look at state: held (yours until expires_at; keep ticket and fence), waiting (call again with request_uuid set to request_id), contended (somebody else has it), deadlock (waiting would cause a deadlock: release something first). None of these is an error. When you hold it, read the state of the work again before you do it."},
	{"get_lock_ticket", "Look at a ticket", QUERY_GET,
		BIT(ARG_TICKET), BIT(ARG_TICKET), false, false,
	"Returns the present state of a ticket, without renewing its lease. An ended ticket can be looked up for at least an hour unless the database says otherwise."},
	{"heartbeat_lock_ticket", "Renew a lease", QUERY_RENEW,
		BIT(ARG_TICKET) | BIT(ARG_LEASE_SECONDS), BIT(ARG_TICKET), false, false,
	"Renews a held ticket for a full lease from now: lease_seconds, or the length last requested. Call it before expires_at. If the state is not held, you have lost the lock: stop the work."},
	{"release_lock_ticket", "Release a lock", QUERY_RELEASE,
		BIT(ARG_TICKET), BIT(ARG_TICKET), false, true,
	"Releases the lock (released), or gives up the place in its queue (cancelled). Calling it twice does no harm."},
	{"lock_status", "Show who holds what", QUERY_LIST,
		LOCK | BIT(ARG_LIMIT), 0, true, false,
	"Shows the locks that are held or waited for: the one called lock_name, all of a scope, or all that the role of this connection may see. lapsed: the lease has run out and nobody has taken over yet. more: there are more locks than limit."},
	{"break_lock", "End another holder's grant", QUERY_BREAK,
		LOCK | BIT(ARG_FENCE), BIT(ARG_LOCK_NAME) | BIT(ARG_FENCE), false, true,
	"For operators: ends the grant with that fence, so that the next in the queue gets its turn. Later writes under that fence are refused. broken is false if that grant is no longer the present one."},
};

#define TOOLS ((int) (sizeof(tools) / sizeof(tools[0])))

static bool
is_offered(const Options *options, const Tool *tool)
{
	return tool->query != QUERY_BREAK || options->allow_break;
}

const Tool *
find_tool(const Options *options, const char *name)
{
	for (int i = 0; i < TOOLS; i++)
		if (strcmp(tools[i].name, name) == 0 && is_offered(options, &tools[i]))
			return &tools[i];
	return NULL;
}

/* ---------------------------------------------------------------------
 * Schemas
 * ---------------------------------------------------------------------
 */

static json_t *
plain_number(double value)
{
	json_int_t	whole = (json_int_t) value;

	return whole == value ? json_integer(whole) : json_real(value);
}

/*
 * seconds_schema
 *	  The schema has the program's bounds; the database's are in the
 *	  description, because they are settings.
 */
static json_t *
seconds_schema(const Options *options, Argument argument)
{
	const ArgumentRule *rule = &argument_rules[argument];
	json_t	   *schema = json_pack("{s:s}", "type", "number");

	if (rule->min > 0)
		json_object_set_new(schema, "exclusiveMinimum", json_integer(0));
	else
		json_object_set_new(schema, "minimum", json_integer(0));
	if (argument == ARG_KEEP_SECONDS)
		json_object_set_new(schema, "maximum",
							plain_number(options->max_keep_seconds));
	return schema;
}

static json_t *
argument_schema(const Options *options, Argument argument)
{
	const ArgumentRule *rule = &argument_rules[argument];
	json_t	   *schema;

	if (rule->kind == KIND_SECONDS)
		schema = seconds_schema(options, argument);
	else if (rule->kind == KIND_UUID)
		schema = json_pack("{s:s, s:s}", "type", "string", "format", "uuid");
	else if (rule->kind == KIND_TEXT)
		schema = json_pack("{s:s, s:i}", "type", "string",
						   "minLength", argument == ARG_NOTE ? 0 : 1);
	else
		schema = json_pack("{s:s, s:I}", "type", "integer",
						   "minimum", (json_int_t) rule->min);
	if (rule->kind == KIND_WHOLE && rule->max != UNBOUNDED)
		json_object_set_new(schema, "maximum",
							json_integer((json_int_t) rule->max));
	json_object_set_new(schema, "description", json_string(rule->description));
	if (rule->standard)
		json_object_set_new(schema, "default",
							json_loads(rule->standard, JSON_DECODE_ANY, NULL));
	return schema;
}

static json_t *
input_schema(const Options *options, const Tool *tool)
{
	json_t	   *properties = json_object();
	json_t	   *required = json_array();
	json_t	   *scope;

	for (int i = 0; i < ARGUMENTS; i++)
	{
		if (tool->takes & BIT(i))
			json_object_set_new(properties, argument_rules[i].name,
								argument_schema(options, i));
		if (tool->needs & BIT(i))
			json_array_append_new(required,
								  json_string(argument_rules[i].name));
	}
	scope = json_object_get(properties, argument_rules[ARG_SCOPE].name);
	if (scope && (tool->needs & BIT(ARG_LOCK_NAME)))
		json_object_set_new(scope, "default", json_string(options->scope));
	if (tool->query == QUERY_ACQUIRE)
		json_object_set_new(json_object_get(properties, "lease_seconds"),
							"default", json_integer(60));
	return json_pack("{s:s, s:o, s:o, s:b}", "type", "object",
					 "properties", properties, "required", required,
					 "additionalProperties", 0);
}

/* A column's JSON type, or a format of strings. */
typedef struct ColumnRule
{
	const char *name;
	const char *type;
} ColumnRule;

static const ColumnRule ticket_columns[] = {
	{"ticket", "uuid"}, {"scope", "string"}, {"name", "string"},
	{"owner", "string"}, {"fence", "integer"}, {"depth", "integer"},
	{"position", "integer"}, {"expires_at", "date-time"},
	{"wait_until", "date-time"}, {"remaining_ms", "integer"},
	{"next_call_ms", "integer"}, {"holder", "string"},
	{"holder_role", "string"}, {"request_id", "uuid"}, {"note", "string"},
	{NULL, NULL}
};

static const ColumnRule status_columns[] = {
	{"scope", "string"}, {"name", "string"}, {"owner", "string"},
	{"role", "string"}, {"fence", "integer"}, {"depth", "integer"},
	{"granted_at", "date-time"}, {"expires_at", "date-time"},
	{"remaining_ms", "integer"}, {"lapsed", "boolean"},
	{"waiters", "integer"}, {"note", "string"}, {NULL, NULL}
};

/*
 * column_schemas
 *	  Any column may be null, and a later version of the extension may have
 *	  more of them.
 */
static json_t *
column_schemas(const ColumnRule *columns)
{
	json_t	   *properties = json_object();

	for (; columns->name; columns++)
	{
		bool		is_format = (strcmp(columns->type, "uuid") == 0 ||
								 strcmp(columns->type, "date-time") == 0);
		json_t	   *value = json_pack("{s:s}", "type",
									  is_format ? "string" : columns->type);

		if (is_format)
			json_object_set_new(value, "format", json_string(columns->type));
		/* two branches, because some clients support only one type in each */
		json_object_set_new(properties, columns->name,
							json_pack("{s:[o, {s:s}]}", "anyOf", value,
									  "type", "null"));
	}
	return properties;
}

static json_t *
ticket_schema(void)
{
	json_t	   *properties = column_schemas(ticket_columns);

	json_object_set_new(properties, "state",
						json_pack("{s:s, s:[s, s, s, s, s, s, s, s, s, s]}",
								  "type", "string", "enum", "held", "waiting",
								  "contended", "deadlock", "released",
								  "expired", "timed_out", "cancelled",
								  "broken", "gone"));
	return json_pack("{s:s, s:o, s:[s]}", "type", "object",
					 "properties", properties, "required", "state");
}

static json_t *
output_schema(const Tool *tool)
{
	if (tool->query == QUERY_LIST)
		return json_pack("{s:s, s:{s:{s:s, s:{s:s, s:o}}, s:{s:s}}, s:[s, s]}",
						 "type", "object", "properties",
						 "locks", "type", "array", "items",
						 "type", "object", "properties",
						 column_schemas(status_columns),
						 "more", "type", "boolean",
						 "required", "locks", "more");
	if (tool->query == QUERY_BREAK)
		return json_pack("{s:s, s:{s:{s:s}}, s:[s]}", "type", "object",
						 "properties", "broken", "type", "boolean",
						 "required", "broken");
	return ticket_schema();
}

/*
 * list_tools
 *	  The array of tools, always in the same order.
 */
json_t *
list_tools(const Options *options)
{
	json_t	   *list = json_array();

	for (int i = 0; i < TOOLS; i++)
	{
		const Tool *tool = &tools[i];

		if (is_offered(options, tool))
			json_array_append_new(list,
								  json_pack("{s:s, s:s, s:s, s:o, s:o, s:{s:s, s:b, s:b, s:b, s:b}}",
											"name", tool->name,
											"title", tool->title,
											"description", tool->description,
											"inputSchema", input_schema(options, tool),
											"outputSchema", output_schema(tool),
											"annotations", "title", tool->title,
											"readOnlyHint", tool->reads_only,
											"destructiveHint", tool->destroys,
											"idempotentHint", tool->query != QUERY_BREAK,
											"openWorldHint", 0));
	}
	return list;
}
