/*-------------------------------------------------------------------------
 *
 * mcp.h
 *	  Shared declarations of the subcommand mcp.
 *
 * The subcommand is a server of the Model Context Protocol on standard input
 * and output.  It is a single process with one loop and one connection, and
 * nothing in it blocks except the loop.  Its files form layers, each of which
 * calls only those above it, and all of which call the rest of the program:
 *
 *	mcp_wire	lines of JSON, in and out
 *	mcp_tool	the tools: names, arguments and answers
 *	mcp_value	parsing the arguments of a call
 *	mcp_cancel	cancels a query that the server does not answer
 *	mcp_answer	the answers to calls
 *	mcp_lease	managed acquisitions: waits, and leases that are kept
 *	mcp_outcome their answers and failures
 *	mcp_call	the calls, and the results of their queries
 *	mcp_turn	decides whose query is sent next
 *	mcp_method	requests and notifications
 *	mcp			the loop, and its end
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_MCP_H
#define LEASELOCK_MCP_H

#include <jansson.h>

#include "cli.h"

/* mcp_wire.c */

/* Error codes of JSON-RPC, and one of the protocol itself. */
typedef enum ErrorCode
{
	PARSE_ERROR = -32700,
	INVALID_REQUEST = -32600,
	METHOD_NOT_FOUND = -32601,
	INVALID_PARAMS = -32602,
	INTERNAL_ERROR = -32603,
	UNSUPPORTED_VERSION = -32022
} ErrorCode;

/* The revision without a handshake, and the prefix of its keys. */
#define MODERN_VERSION	"2026-07-28"
#define META_PREFIX		"io.modelcontextprotocol/"

extern bool wire_read(void);
extern bool wire_holds_a_line(void);
extern bool wire_ends_within_a_message(void);
extern json_t *wire_next(void);
extern void wire_send_result(json_t *id, bool modern, json_t *result);
extern void wire_send_error(json_t *id, ErrorCode code, const char *message,
							json_t *data);
extern void wire_notify(const char *method, json_t *params);
extern size_t wire_backlog(void);
extern bool wire_write(void);
extern void wire_forget(void);
extern json_t *server_info(void);
extern json_t *clean_string(const char *text);
extern char *copy_text(const char *text);
extern void report(const char *format,...)
			__attribute__((format(printf, 1, 2)));

/*
 * If this many bytes of output have not been read, no further input is read
 * and no further queries are sent.
 */
#define MAX_BACKLOG	((size_t) 256 * 1024)

/* mcp_tool.c */

typedef enum Argument
{
	ARG_LOCK_NAME,
	ARG_SCOPE,
	ARG_REPO,
	ARG_OWNER,
	ARG_REQUEST_UUID,
	ARG_LEASE_SECONDS,
	ARG_WAIT_SECONDS,
	ARG_KEEP_SECONDS,
	ARG_NOTE,
	ARG_TICKET,
	ARG_FENCE,
	ARG_LIMIT
} Argument;

#define ARGUMENTS	(ARG_LIMIT + 1)
#define BIT(argument)	(1 << (argument))

typedef enum ArgumentKind
{
	KIND_TEXT,
	KIND_UUID,
	KIND_SECONDS,
	KIND_WHOLE
} ArgumentKind;

typedef struct ArgumentRule
{
	const char *name;
	ArgumentKind kind;
	double		min;
	double		max;
	const char *standard;		/* as JSON; NULL: no default */
	const char *description;
} ArgumentRule;

typedef struct Tool
{
	const char *name;
	const char *title;
	QueryKind	query;
	int			takes;			/* bit sets of arguments */
	int			needs;
	bool		reads_only;
	bool		destroys;
	const char *description;
} Tool;

/* As a maximum: there is none. */
#define UNBOUNDED	0.0

extern const ArgumentRule argument_rules[];
extern const char *const instructions;
extern const Tool *find_tool(const Options *options, const char *name);
extern json_t *list_tools(const Options *options);

/* mcp_value.c */

/* The arguments of a call as text, indexed by Argument; NULL if missing. */
typedef struct Values
{
	char	   *text[ARGUMENTS];
} Values;

extern json_t *read_values(const Options *options, const Tool *tool,
						   json_t *arguments, Values *values);
extern void free_values(Values *values);
extern int64_t value_ms(const Values *values, Argument argument);

/* mcp_cancel.c */

extern bool start_canceller(PGconn *conn);
extern bool canceller_is_running(void);
extern bool canceller_is_stuck(void);
extern void stop_canceller(void);

/* Something that sends queries, and when. */
typedef struct Task
{
	Instant		due_at;			/* INT64_MAX: not at all */
	int			number;			/* order of creation; breaks ties */
	Instant		query_deadline; /* deadline of the open query */
	int			failures;		/* consecutive ones */
	int64_t		slice_ms;		/* how long it may make others wait */
	bool		is_preempted;	/* the query was cancelled for others */
	bool		is_open;		/* it may have been carried out */
} Task;

/* A managed acquisition. */
typedef struct Lease
{
	struct Lease *next;
	Task		task;
	char	   *name;
	char	   *scope;
	char	   *owner;
	char	   *lease_seconds;
	char	   *note;			/* may be NULL */
	char		request[40];
	bool		request_is_known;	/* the caller passed it */
	char		wait[32];		/* in seconds, for the query */
	Instant		wait_until;		/* by our clock */
	int64_t		keep_ms;		/* how long to renew it once it is held */
	Instant		keep_until;		/* end of the renewals, once it is held */
	Ticket		ticket;			/* from the last answer; state "" if none */
	json_t	   *answer;			/* the last answer as JSON */
	Instant		renew_at;
	Instant		ends_at;
	bool		is_withdrawn;	/* to be released */
	bool		is_abandoned;	/* to be released once its ticket is known */
} Lease;

/* A call that has not been answered. */
typedef struct Call
{
	struct Call *next;
	Task		task;			/* unused if it has a lease */
	json_t	   *id;
	json_t	   *token;			/* progress token; may be NULL */
	bool		modern;
	const Tool *tool;
	Values		values;
	Lease	   *lease;
	Instant		began;
	Instant		answer_at;		/* when to answer a wait as it is */
	Instant		fail_at;		/* end of retries after failures */
	Instant		give_up_at;		/* when to answer in any case */
	double		progress;		/* last reported */
	bool		is_cancelled;	/* do not answer it */
} Call;

typedef struct Server
{
	const Options *options;
	Link		link;
	char		application[64];	/* our application_name */
	bool		is_legacy;		/* there was a handshake */
	Call	   *calls;
	Lease	   *leases;
	int			tasks;			/* number created so far */
	Task	   *active;			/* whose query is open; may be NULL */
	Instant		sent_at;
	bool		input_has_ended;
	bool		has_hung_up;	/* the client, while we did not read */
	Instant		stuck_since;	/* it has gone without reading its answers */
	bool		is_ending;
	Instant		end_at;
} Server;

/* The maximum number of calls and leases; nobody needs more. */
#define MAX_CALLS		1000
#define MAX_LEASES		1000

/* How long to wait for an answer, and how long to retry after failures. */
#define ANSWER_MS		10000
#define RECOVERY_MS		3000

/* mcp_answer.c */

extern json_t *read_json(const PGresult *answer, int row);
extern void answer_with_json(const Call *call, json_t *json);
extern void answer_with_error(const Call *call, json_t *text);
extern void answer_with_failure(const Call *call, const Link *link,
								const char *more);
extern void answer_from_result(const Call *call, const PGresult *answer);
extern void send_progress(Call *call);

/* mcp_lease.c */

extern bool lease_is_waiting(const Lease *lease);
extern bool lease_is_held(const Lease *lease);
extern bool lease_is_kept(const Lease *lease);
extern Call *next_caller(Call *call, const Lease *lease);
extern bool lease_has_caller(const Server *server, const Lease *lease);
extern bool begin_acquisition(Server *server, Call *call);
extern bool lease_is_late(const Server *server, const Lease *lease);
extern void send_lease_query(Server *server, Lease *lease);
extern void withdraw_lease(Lease *lease);
extern void leave_lease(Server *server, Call *call);
extern void end_leases(Server *server);
extern void drop_unneeded_leases(Server *server);

/* mcp_outcome.c */

extern void note_lease_answer(Server *server, Lease *lease,
							  const PGresult *answer);
extern void note_lease_failure(Server *server, Lease *lease);

/* mcp_call.c */

extern void begin_call(Server *server, json_t *id, json_t *token, bool modern,
					   const Tool *tool, json_t *arguments);
extern void cancel_calls(Server *server, json_t *id);
extern void expire_calls(Server *server);
extern void end_calls(Server *server);
extern void drop_call(Server *server, Call *call);
extern void send_call_query(Server *server, Call *call);
extern void note_call_answer(Server *server, Call *call);
extern void note_call_failure(Server *server, Call *call);

/* mcp_turn.c */

extern void take_turns(Server *server);
extern Instant next_turn(const Server *server);

/* mcp_method.c */

extern void take_message(Server *server, json_t *message);

#endif							/* LEASELOCK_MCP_H */
