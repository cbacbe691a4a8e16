/*-------------------------------------------------------------------------
 *
 * mcp_method.c
 *	  Requests and notifications.
 *
 * Two eras of the protocol are supported.  A modern request says in its _meta
 * which revision it follows, and is self-contained.  The legacy era starts
 * with "initialize", and later requests without _meta are handled by its
 * rules.  Any method that is not listed here is answered with "Method not
 * found".
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "mcp.h"

/* How long clients may cache an answer; it never changes. */
#define TTL_MS		3600000

/*
 * Newest first; the newest is offered to a client that asks for another one.
 */
static const char *const legacy_versions[] = {
	"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", NULL
};

typedef struct Request
{
	json_t	   *id;
	json_t	   *params;			/* may be NULL */
	json_t	   *meta;			/* may be NULL */
	bool		modern;
} Request;

typedef void (*Handler) (Server *server, const Request *request);

static const char *
text_of(json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static void
refuse(const Request *request, const char *message)
{
	wire_send_error(request->id, INVALID_PARAMS, message, NULL);
}

/*
 * note_client
 *	  Shows the client's name in application_name, for whoever looks at the
 *	  connections of the database.
 */
static void
note_client(Server *server, json_t *info)
{
	const char *name = text_of(info, "name");

	if (name)
		snprintf(server->application, sizeof(server->application),
				 "leaselock mcp: %s", name);
}

static json_t *
supported_versions(void)
{
	json_t	   *versions = json_pack("[s]", MODERN_VERSION);

	for (int i = 0; legacy_versions[i]; i++)
		json_array_append_new(versions, json_string(legacy_versions[i]));
	return versions;
}

static json_t *
capabilities(void)
{
	return json_pack("{s:{}}", "tools");
}

/*
 * let_cache
 *	  Adds how long an answer may be cached, which the modern era requires.
 */
static json_t *
let_cache(const Request *request, json_t *result)
{
	if (request->modern)
	{
		json_object_set_new(result, "ttlMs", json_integer(TTL_MS));
		json_object_set_new(result, "cacheScope", json_string("public"));
	}
	return result;
}

static void
initialize(Server *server, const Request *request)
{
	const char *requested = text_of(request->params, "protocolVersion");
	const char *version = legacy_versions[0];

	if (requested == NULL)
	{
		refuse(request, "Invalid params: protocolVersion must be a string");
		return;
	}
	for (int i = 0; legacy_versions[i]; i++)
		if (strcmp(legacy_versions[i], requested) == 0)
			version = legacy_versions[i];
	server->is_legacy = true;
	note_client(server, json_object_get(request->params, "clientInfo"));
	wire_send_result(request->id, false,
					 json_pack("{s:s, s:o, s:o, s:s}",
							   "protocolVersion", version,
							   "capabilities", capabilities(),
							   "serverInfo", server_info(),
							   "instructions", instructions));
}

static void
discover(Server *server, const Request *request)
{
	json_t	   *result = json_pack("{s:o, s:o, s:s}",
								   "supportedVersions", supported_versions(),
								   "capabilities", capabilities(),
								   "instructions", instructions);

	wire_send_result(request->id, request->modern, let_cache(request, result));
}

static void
ping(Server *server, const Request *request)
{
	wire_send_result(request->id, false, json_object());
}

static void
send_tools(Server *server, const Request *request)
{
	json_t	   *result;

	if (json_object_get(request->params, "cursor"))
	{
		refuse(request, "Invalid params: unknown cursor, because there is only one page");
		return;
	}
	result = json_pack("{s:o}", "tools", list_tools(server->options));
	wire_send_result(request->id, request->modern, let_cache(request, result));
}

/*
 * call_tool
 *	  A request that is not a valid call is a protocol error; wrong arguments
 *	  are reported in a result, because a model can fix them.
 */
static void
call_tool(Server *server, const Request *request)
{
	const char *name = text_of(request->params, "name");
	json_t	   *arguments = json_object_get(request->params, "arguments");
	json_t	   *token = json_object_get(request->meta, "progressToken");
	const Tool *tool = name ? find_tool(server->options, name) : NULL;
	char		message[128];

	snprintf(message, sizeof(message), "Unknown tool: %.100s", name ? name : "");
	if (name == NULL)
		refuse(request, "Invalid params: name must be a string");
	else if (tool == NULL)
		refuse(request, message);
	else if (arguments && !json_is_object(arguments))
		refuse(request, "Invalid params: arguments must be an object");
	else if (token && !json_is_string(token) && !json_is_integer(token))
		refuse(request, "Invalid params: progressToken must be a string or an integer");
	else
		begin_call(server, request->id, token, request->modern, tool, arguments);
}

/* Which eras have a method. */
#define LEGACY	1
#define MODERN	2
#define EARLY	4				/* legacy, even before "initialize" */

static const struct
{
	const char *name;
	int			eras;
	Handler		handle;
}			methods[] = {
	{"initialize", LEGACY | EARLY, initialize},
	{"ping", LEGACY | EARLY, ping},
	{"server/discover", MODERN, discover},
	{"tools/list", LEGACY | MODERN, send_tools},
	{"tools/call", LEGACY | MODERN, call_tool},
};

#define METHODS ((int) (sizeof(methods) / sizeof(methods[0])))

/*
 * is_modern_request
 *	  Checks what a modern request declares about itself.  If that is wrong,
 *	  answers with an error and returns false.
 */
static bool
is_modern_request(Server *server, const Request *request)
{
	json_t	   *version = json_object_get(request->meta,
										  META_PREFIX "protocolVersion");
	json_t	   *client = json_object_get(request->meta,
										 META_PREFIX "clientCapabilities");

	if (!json_is_string(version))
		refuse(request, "Invalid params: _meta." META_PREFIX "protocolVersion must be a string");
	else if (strcmp(json_string_value(version), MODERN_VERSION) != 0)
		wire_send_error(request->id, UNSUPPORTED_VERSION,
						"Unsupported protocol version",
						json_pack("{s:o, s:O}", "supported",
								  supported_versions(), "requested", version));
	else if (!json_is_object(client))
		refuse(request, "Invalid params: _meta." META_PREFIX "clientCapabilities must be an object");
	else
	{
		note_client(server, json_object_get(request->meta,
											META_PREFIX "clientInfo"));
		return true;
	}
	return false;
}

static void
take_request(Server *server, const char *method, const Request *request)
{
	int			era = request->modern ? MODERN : LEGACY;

	if (request->modern && !is_modern_request(server, request))
		return;
	for (int i = 0; i < METHODS; i++)
	{
		if (strcmp(methods[i].name, method) != 0)
			continue;
		if (!request->modern && !(methods[i].eras & EARLY) &&
			(!server->is_legacy || !(methods[i].eras & LEGACY)))
			refuse(request, "Invalid params: _meta." META_PREFIX "protocolVersion is missing, and no initialize request came before");
		else if (methods[i].eras & era)
			methods[i].handle(server, request);
		else
			break;
		return;
	}
	wire_send_error(request->id, METHOD_NOT_FOUND, "Method not found", NULL);
}

/*
 * take_message
 *	  Handles a well-formed message.  Responses are ignored, because we send no
 *	  requests, and only one notification has any effect.
 */
void
take_message(Server *server, json_t *message)
{
	const char *method = text_of(message, "method");
	Request		request;

	request.id = json_object_get(message, "id");
	request.params = json_object_get(message, "params");
	request.meta = json_object_get(request.params, "_meta");
	request.modern = json_object_get(request.meta,
									 META_PREFIX "protocolVersion") != NULL;
	if (method == NULL)
		return;
	if (request.id)
		take_request(server, method, &request);
	else if (strcmp(method, "notifications/cancelled") == 0)
		cancel_calls(server, json_object_get(request.params, "requestId"));
}
