/*-------------------------------------------------------------------------
 *
 * mcp_wire.c
 *	  Lines of JSON, in and out: one message per line.
 *
 * Input is read when it is available, and output is written when there is
 * room, so that a client that sends nothing or reads nothing does not block
 * the loop.  A line that is not a valid message gets one error, and is
 * otherwise ignored.
 *
 * All output is ASCII, because some readers treat U+2028 as the end of a line.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mcp.h"

/* The longest message.  No real message comes close. */
#define MAX_MESSAGE	((size_t) 1024 * 1024)

/* A pipe that is ready accepts this much at once. */
#define PIECE			((size_t) _POSIX_PIPE_BUF)

#define DELETE			"\\u007F"

/* Input that has been read, from "start" on; includes newlines. */
static char input[MAX_MESSAGE + 1];
static size_t input_start = 0;
static size_t input_end = 0;
static bool skips_line = false; /* the rest of a line that is too long */

/* Output that has not been written. */
static char *output = NULL;
static size_t output_start = 0;
static size_t output_end = 0;
static size_t output_size = 0;

/* ---------------------------------------------------------------------
 * Output
 * ---------------------------------------------------------------------
 */

static void run_out_of_memory(void) __attribute__((noreturn));

static void
run_out_of_memory(void)
{
	report("out of memory");
	exit(EXIT_SERVER);
}

char *
copy_text(const char *text)
{
	char	   *copy = strdup(text);

	if (copy == NULL)
		run_out_of_memory();
	return copy;
}

/*
 * make_room
 *	  Makes room for more output.
 */
static void
make_room(size_t length)
{
	if (output_start > 0)
	{
		memmove(output, output + output_start, output_end - output_start);
		output_end -= output_start;
		output_start = 0;
	}
	if (output_size - output_end < length)
	{
		size_t		size = (output_end + length) * 2;
		char	   *larger = realloc(output, size);

		if (larger == NULL)
			run_out_of_memory();
		output = larger;
		output_size = size;
	}
}

/*
 * send_message
 *	  Takes over the reference.
 */
static void
send_message(json_t *message)
{
	char	   *text = message ? json_dumps(message, JSON_COMPACT |
											JSON_ENSURE_ASCII) : NULL;
	size_t		length = text ? strlen(text) : 0;

	json_decref(message);
	if (text == NULL)
		run_out_of_memory();
	make_room(length * sizeof(DELETE) + 1);
	for (const char *c = text; *c; c++)
		if (*c != '\x7F')
			output[output_end++] = *c;
		else
		{
			/* jansson does not escape this control character */
			memcpy(output + output_end, DELETE, sizeof(DELETE) - 1);
			output_end += sizeof(DELETE) - 1;
		}
	output[output_end++] = '\n';
	free(text);
}

json_t *
server_info(void)
{
	return json_pack("{s:s, s:s, s:s}", "name", "leaselock",
					 "title", "leaselock", "version", LEASELOCK_VERSION);
}

/*
 * wire_send_result
 *	  Takes over the reference to the result.
 */
void
wire_send_result(json_t *id, bool modern, json_t *result)
{
	if (modern && result)
	{
		json_object_set_new(result, "resultType", json_string("complete"));
		json_object_set_new(result, "_meta", json_pack("{s:o}", META_PREFIX
													   "serverInfo", server_info()));
	}
	send_message(json_pack("{s:s, s:O, s:o}", "jsonrpc", "2.0", "id", id,
						   "result", result));
}

/*
 * wire_send_error
 *	  Takes over the reference to the data, which may be NULL.  The id may be
 *	  NULL if it is unknown; it is then omitted, because the protocol does not
 *	  allow null.
 */
void
wire_send_error(json_t *id, ErrorCode code, const char *message, json_t *data)
{
	json_t	   *error = json_pack("{s:i, s:o}", "code", (int) code,
								  "message", clean_string(message));
	json_t	   *answer = json_pack("{s:s}", "jsonrpc", "2.0");

	if (id)
		json_object_set(answer, "id", id);
	if (data)
		json_object_set_new(error, "data", data);
	json_object_set_new(answer, "error", error);
	send_message(answer);
}

/*
 * wire_notify
 *	  Takes over the reference to the parameters.  A notification is of no use
 *	  if it is not read in time, so it is dropped while much output is unread.
 */
void
wire_notify(const char *method, json_t *params)
{
	if (wire_backlog() < MAX_BACKLOG)
		send_message(json_pack("{s:s, s:s, s:o}", "jsonrpc", "2.0",
							   "method", method, "params", params));
	else
		json_decref(params);
}

size_t
wire_backlog(void)
{
	return output_end - output_start;
}

static bool
has_room(int fd)
{
	struct pollfd pollfd = {fd, POLLOUT, 0};

	return poll(&pollfd, 1, 0) > 0;
}

/*
 * wire_write
 *	  Writes as much as there is room for; returns false if nobody can read it
 *	  any more.
 */
bool
wire_write(void)
{
	while (wire_backlog() > 0 && has_room(STDOUT_FILENO))
	{
		size_t		length = wire_backlog();
		ssize_t		written = write(STDOUT_FILENO, output + output_start,
									length < PIECE ? length : PIECE);

		if (written < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		if (written > 0)
			output_start += written;
	}
	return true;
}

/*
 * wire_forget
 *	  Discards output that nobody will read.
 */
void
wire_forget(void)
{
	output_start = output_end = 0;
}

/*
 * report
 *	  Prints a line to stderr, unless that would block.
 */
void
report(const char *format,...)
{
	va_list		args;

	if (!has_room(STDERR_FILENO))
		return;
	va_start(args, format);
	complain_args(format, args);
	va_end(args);
}

/*
 * clean_string
 *	  A JSON string from a text that may not be valid UTF-8.
 */
json_t *
clean_string(const char *text)
{
	char	   *copy = copy_text(text);
	json_t	   *result;

	clean_text(copy);
	result = json_string(copy);
	free(copy);
	return result;
}

/* ---------------------------------------------------------------------
 * Input
 * ---------------------------------------------------------------------
 */

/*
 * wire_read
 *	  Reads available input; call it only when there is some.  Returns false at
 *	  the end of the input.
 */
bool
wire_read(void)
{
	ssize_t		size;

	memmove(input, input + input_start, input_end - input_start);
	input_end -= input_start;
	input_start = 0;
	size = read(STDIN_FILENO, input + input_end, sizeof(input) - input_end);
	if (size < 0)
		return errno == EINTR || errno == EAGAIN;
	input_end += size;
	return size > 0;
}

/*
 * wire_holds_a_line
 *	  Whether a complete line has been read but not processed.
 */
bool
wire_holds_a_line(void)
{
	return memchr(input + input_start, '\n', input_end - input_start) != NULL;
}

/*
 * wire_ends_within_a_message
 *	  Whether an incomplete message has been read.
 */
bool
wire_ends_within_a_message(void)
{
	return skips_line || input_end > input_start;
}

/*
 * next_line
 *	  A complete line without its newline; NULL if there is none.
 */
static const char *
next_line(size_t *length)
{
	for (;;)
	{
		const char *line = input + input_start;
		const char *end = memchr(line, '\n', input_end - input_start);

		if (end == NULL)
			break;
		input_start += end - line + 1;
		*length = end - line;
		if (!skips_line)
			return line;
		skips_line = false;
	}
	if (skips_line || input_end - input_start > MAX_MESSAGE)
	{
		if (!skips_line)
			wire_send_error(NULL, PARSE_ERROR,
							"Parse error: a message is longer than 1 MiB", NULL);
		skips_line = true;
		input_start = input_end = 0;
	}
	return NULL;
}

static bool
is_blank(const char *line, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
			return false;
	return true;
}

/*
 * fault_of
 *	  What is wrong with a message; NULL if it is valid.
 */
static const char *
fault_of(json_t *message)
{
	json_t	   *id = json_object_get(message, "id");
	json_t	   *params = json_object_get(message, "params");
	json_t	   *version = json_object_get(message, "jsonrpc");
	json_t	   *method = json_object_get(message, "method");

	if (json_is_array(message))
		return "Invalid Request: batches are not supported";
	if (!json_is_string(version) ||
		strcmp(json_string_value(version), "2.0") != 0)
		return "Invalid Request: jsonrpc must be \"2.0\"";
	if (id && !json_is_string(id) && !json_is_integer(id))
		return "Invalid Request: id must be a string or an integer";
	if (method ? !json_is_string(method) :
		!json_object_get(message, "result") &&
		!json_object_get(message, "error"))
		return "Invalid Request: method must be a string";
	if (params && !json_is_object(params))
		return "Invalid Request: params must be an object";
	return NULL;
}

/*
 * wire_next
 *	  Returns the next complete message, to be released with json_decref();
 *	  NULL if there is none.
 */
json_t *
wire_next(void)
{
	const char *line;
	size_t		length;

	while ((line = next_line(&length)) != NULL)
	{
		json_error_t error;
		json_t	   *message;
		json_t	   *id;
		const char *fault;
		char		text[sizeof(error.text) + 32];

		if (is_blank(line, length))
			continue;
		message = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
		if (message == NULL)
		{
			snprintf(text, sizeof(text), "Parse error: %s", error.text);
			wire_send_error(NULL, PARSE_ERROR, text, NULL);
			continue;
		}
		fault = fault_of(message);
		if (fault == NULL)
			return message;
		id = json_object_get(message, "id");
		wire_send_error(json_is_string(id) || json_is_integer(id) ? id : NULL,
						INVALID_REQUEST, fault, NULL);
		json_decref(message);
	}
	return NULL;
}
