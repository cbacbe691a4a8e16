/*-------------------------------------------------------------------------
 *
 * mcp_answer.c
 *	  Answers to calls.
 *
 * JSON comes from the server, as the last column of its answer, so that times
 * are in the format of RFC 3339.  It is sent as structured content and again
 * as text.  Only what could not be done is an error; a state never is.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "mcp.h"

/*
 * read_json
 *	  Parses the last column of a row; returns NULL if it is not an object.
 *	  Names may contain bytes that are not valid text if the database's
 *	  encoding allows them.
 */
json_t *
read_json(const PGresult *answer, int row)
{
	char	   *text = NULL;
	size_t		length = 0;
	FILE	   *stream = open_memstream(&text, &length);
	json_t	   *json = NULL;

	if (stream == NULL)
		return NULL;
	put_json(stream, PQgetvalue(answer, row, PQnfields(answer) - 1));
	if (fclose(stream) == 0)
		json = json_loadb(text, length, 0, NULL);
	free(text);
	if (json && json_is_object(json))
		return json;
	json_decref(json);
	return NULL;
}

/*
 * answer_with_json
 *	  Keeps no reference to the JSON.
 */
void
answer_with_json(const Call *call, json_t *json)
{
	char	   *text = json_dumps(json, JSON_COMPACT);

	wire_send_result(call->id, call->modern,
					 json_pack("{s:[{s:s, s:s}], s:O, s:b}", "content",
							   "type", "text", "text", text ? text : "",
							   "structuredContent", json, "isError", 0));
	free(text);
}

/*
 * answer_with_error
 *	  Takes over the reference to the text.
 */
void
answer_with_error(const Call *call, json_t *text)
{
	wire_send_result(call->id, call->modern,
					 json_pack("{s:[{s:s, s:o}], s:b}", "content",
							   "type", "text", "text", text, "isError", 1));
}

/*
 * answer_with_failure
 *	  Answers with the link's error, which contains the server's message,
 *	  detail and hint, followed by "more".
 */
void
answer_with_failure(const Call *call, const Link *link, const char *more)
{
	char		text[sizeof(link->error) + 512];
	bool		is_missing = (strcmp(link->sqlstate, "3F000") == 0 ||
							  strcmp(link->sqlstate, "42883") == 0 ||
							  strcmp(link->sqlstate, "42P01") == 0);

	snprintf(text, sizeof(text), "%s%s%s%s",
			 link->error[0] ? link->error : "the server is not responding",
			 is_missing ? " Is the extension installed? Run CREATE EXTENSION leaselock" : "",
			 more[0] ? ". " : "", more);
	answer_with_error(call, clean_string(text));
}

/*
 * list_locks
 *	  The query returns one row more than requested if there are more.
 */
static json_t *
list_locks(const Call *call, const PGresult *answer)
{
	const char *limit = call->values.text[ARG_LIMIT];
	int			max = limit ? atoi(limit) : 100;
	int			rows = PQntuples(answer);
	json_t	   *locks = json_array();

	for (int row = 0; row < rows && row < max; row++)
		json_array_append_new(locks, read_json(answer, row));
	return json_pack("{s:o, s:b}", "locks", locks, "more", rows > max);
}

/*
 * answer_from_result
 *	  Answers a call that sent its own query.
 */
void
answer_from_result(const Call *call, const PGresult *answer)
{
	json_t	   *json;

	if (call->tool->query == QUERY_LIST)
		json = list_locks(call, answer);
	else if (call->tool->query == QUERY_BREAK)
		json = json_pack("{s:b}", "broken",
						 PQgetvalue(answer, 0, 0)[0] == 't');
	else
		json = read_json(answer, 0);
	if (json)
		answer_with_json(call, json);
	else
		answer_with_error(call, json_string("the server's answer is malformed"));
	json_decref(json);
}

/*
 * send_progress
 *	  Reports the progress of a wait: the seconds that have passed, which
 *	  always increase, and the position.
 */
void
send_progress(Call *call)
{
	double		progress = (now() - call->began) / 1000.0;
	double		total = value_ms(&call->values, ARG_WAIT_SECONDS) / 1000.0;
	int			position = call->lease->ticket.position;

	if (call->token == NULL || call->is_cancelled)
		return;
	if (progress <= call->progress)
		progress = call->progress + 0.001;
	call->progress = progress;
	wire_notify("notifications/progress",
				json_pack("{s:O, s:f, s:f, s:o}",
						  "progressToken", call->token, "progress", progress,
						  "total", total > progress ? total : progress,
						  "message", json_sprintf("waiting for lock \"%s\", position %d",
												  call->lease->name, position)));
}
