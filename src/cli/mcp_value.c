/*-------------------------------------------------------------------------
 *
 * mcp_value.c
 *	  Parsing the arguments of a call.
 *
 * Types, names and the program's own bounds are checked here; the server
 * checks the rest.  Errors are reported as text, so that a model can fix them.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "mcp.h"

/* How much of a refused value is shown. */
#define SHOWN	80

/*
 * show_value
 *	  Formats a value as truncated JSON, in a buffer of SHOWN + 8 bytes.
 */
static void
show_value(json_t *value, char *buffer)
{
	char	   *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY |
								  JSON_ENSURE_ASCII);

	snprintf(buffer, SHOWN + 8, "%.*s%s", SHOWN, text ? text : "",
			 text && strlen(text) > SHOWN ? "..." : "");
	free(text);
}

static json_t *
refuse(const ArgumentRule *rule, const char *what, json_t *value)
{
	char		shown[SHOWN + 8];

	show_value(value, shown);
	return json_sprintf("%s must be %s, not %s", rule->name, what, shown);
}

static json_t *
refuse_number(const ArgumentRule *rule, double max, json_t *value)
{
	const char *what = (rule->kind == KIND_WHOLE ? "whole number" :
						"number of seconds");
	char		text[128];

	if (max == UNBOUNDED && rule->kind == KIND_WHOLE)
		snprintf(text, sizeof(text), "a %s of at least %.15g", what,
				 rule->min);
	else
		snprintf(text, sizeof(text), "a %s from %.15g to %.15g", what,
				 rule->min, max);
	return refuse(rule, text, value);
}

/*
 * read_text
 *	  A uuid is converted to lower case: it may become part of an owner, and
 *	  owners are compared byte for byte.
 */
static json_t *
read_text(const ArgumentRule *rule, json_t *value, char **text)
{
	const char *given = json_string_value(value);

	if (rule->kind == KIND_UUID && (given == NULL || !is_uuid(given)))
		return refuse(rule, "a uuid (xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)",
					  value);
	if (given == NULL)
		return refuse(rule, "a string", value);
	*text = copy_text(given);
	for (char *c = *text; rule->kind == KIND_UUID && *c; c++)
		*c |= *c >= 'A' && *c <= 'F' ? 'a' - 'A' : 0;
	return NULL;
}

static json_t *
read_number(const ArgumentRule *rule, double max, json_t *value, char **text)
{
	char		number[64];
	double		given = json_number_value(value);

	bool		bounded = rule->kind != KIND_WHOLE || max != UNBOUNDED;

	if (!json_is_number(value) || given < rule->min ||
		(bounded && given > max) ||
		(rule->kind == KIND_WHOLE && !json_is_integer(value)))
		return refuse_number(rule, max, value);
	if (json_is_integer(value))
		snprintf(number, sizeof(number), "%lld",
				 (long long) json_integer_value(value));
	else
		snprintf(number, sizeof(number), "%.6f", given);
	*text = copy_text(number);
	return NULL;
}

static json_t *
read_value(const Options *options, Argument argument, json_t *value,
		   char **text)
{
	const ArgumentRule *rule = &argument_rules[argument];
	double		max = (argument == ARG_KEEP_SECONDS ?
					   options->max_keep_seconds : rule->max);

	if (rule->kind == KIND_TEXT || rule->kind == KIND_UUID)
		return read_text(rule, value, text);
	return read_number(rule, max, value, text);
}

static int
find_argument(const Tool *tool, const char *name)
{
	for (int i = 0; i < ARGUMENTS; i++)
		if ((tool->takes & BIT(i)) &&
			strcmp(argument_rules[i].name, name) == 0)
			return i;
	return -1;
}

static json_t *
refuse_unknown(const Tool *tool, const char *name)
{
	json_t	   *known = json_array();
	json_t	   *text;
	char		shown[SHOWN + 8];
	char	   *list;

	for (int i = 0; i < ARGUMENTS; i++)
		if (tool->takes & BIT(i))
			json_array_append_new(known, json_string(argument_rules[i].name));
	list = json_dumps(known, 0);
	text = json_string(name);
	show_value(text, shown);
	json_decref(text);
	json_decref(known);
	text = json_sprintf("%s does not take the argument %s; it takes %s", tool->name,
						shown, list ? list : "");
	free(list);
	return text;
}

/*
 * join_repo
 *	  Merges the arguments scope and repo, which mean the same.
 */
static json_t *
join_repo(Values *values)
{
	char	   *repo = values->text[ARG_REPO];

	if (repo && values->text[ARG_SCOPE] &&
		strcmp(repo, values->text[ARG_SCOPE]) != 0)
		return json_string("scope and repo mean the same thing, but have different values");
	if (repo && values->text[ARG_SCOPE] == NULL)
	{
		values->text[ARG_SCOPE] = repo;
		values->text[ARG_REPO] = NULL;
	}
	return NULL;
}

/*
 * read_values
 *	  Reads the arguments of a call.  Returns NULL, or an error message; the
 *	  values must be freed in either case.
 */
json_t *
read_values(const Options *options, const Tool *tool, json_t *arguments,
			Values *values)
{
	const char *name;
	json_t	   *value;
	json_t	   *fault;

	memset(values, 0, sizeof(*values));
	json_object_foreach(arguments, name, value)
	{
		int			argument = find_argument(tool, name);

		fault = argument < 0 ? refuse_unknown(tool, name) :
			read_value(options, argument, value, &values->text[argument]);
		if (fault)
			return fault;
	}
	for (int i = 0; i < ARGUMENTS; i++)
		if ((tool->needs & BIT(i)) && values->text[i] == NULL)
			return json_sprintf("%s needs the argument %s", tool->name,
								argument_rules[i].name);
	return join_repo(values);
}

void
free_values(Values *values)
{
	for (int i = 0; i < ARGUMENTS; i++)
		free(values->text[i]);
}

/*
 * value_ms
 *	  Seconds as milliseconds; 0 if not given.
 */
int64_t
value_ms(const Values *values, Argument argument)
{
	const char *text = values->text[argument];

	return text ? (int64_t) (strtod(text, NULL) * 1000) : 0;
}
