/*-------------------------------------------------------------------------
 *
 * mcp.h
 *	  The subcommand mcp: what its files share.
 *
 * A server of the Model Context Protocol on standard input and output, in one
 * process with one loop and one connection.  Nothing in it waits but the
 * loop.  The layers, each of which calls only those above it, and all of them
 * the rest of the program:
 *
 *	mcp_wire	lines of JSON, in and out
 *	mcp_tool	the tools: what they are called, take and answer
 *	mcp_value	what a call gives for the arguments of its tool
 *	mcp_cancel	takes back a question that the server does not answer
 *	mcp_answer	what a call is answered
 *	mcp_lease	acquisitions that are looked after: waits, and leases kept
 *	mcp_outcome what becomes of them
 *	mcp_call	the calls, and what becomes of a question of theirs
 *	mcp_turn	whose question is asked next
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

/* The codes of JSON-RPC, and one of the protocol's own. */
typedef enum ErrorCode
{
	PARSE_ERROR = -32700,
	INVALID_REQUEST = -32600,
	METHOD_NOT_FOUND = -32601,
	INVALID_PARAMS = -32602,
	INTERNAL_ERROR = -32603,
	UNSUPPORTED_VERSION = -32022
} ErrorCode;

/* The revision that needs no handshake, and the prefix of its keys. */
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

/* Beyond so many bytes that nobody reads no more is read, or asked. */
#define MOST_BACKLOG	((size_t) 256 * 1024)

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
	double		least;
	double		most;
	const char *standard;		/* as JSON; NULL: none */
	const char *description;
} ArgumentRule;

typedef struct Tool
{
	const char *name;
	const char *title;
	Ask			ask;
	int			takes;			/* bits of the arguments */
	int			needs;
	bool		reads_only;
	bool		destroys;
	const char *description;
} Tool;

/* A whole number that has only a least value. */
#define UNBOUNDED	0.0

extern const ArgumentRule argument_rules[];
extern const char *const instructions;
extern const Tool *find_tool(const Options *options, const char *name);
extern json_t *list_tools(const Options *options);

/* mcp_value.c */

/* By Argument: as text, NULL if not given. */
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

/* Whoever has something to ask, and when. */
typedef struct Task
{
	Instant		ask_at;			/* INT64_MAX: nothing */
	int			number;			/* who was there first goes first */
	Instant		patience_ends;	/* of the question that is asked */
	int			failures;		/* in a row */
	int64_t		slice_ms;		/* how long it may keep others waiting */
	bool		is_cut;			/* the question was taken back */
	bool		is_open;		/* it may have been carried out */
} Task;

/* An acquisition that is looked after. */
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
	bool		request_is_known;	/* to who called, for it was given */
	char		wait[32];		/* seconds, for the question */
	Instant		wait_until;		/* by our clock */
	int64_t		keep_ms;		/* how long it is to be renewed for */
	Instant		keep_until;		/* the end of that, once it is held */
	Ticket		ticket;			/* as last answered; state "" before that */
	json_t	   *answer;			/* the same as JSON */
	Instant		renew_at;
	Instant		ends_at;
	bool		is_withdrawn;	/* to be given back */
	bool		is_abandoned;	/* the same, once it is known what it is */
} Lease;

/* A call that has not been answered. */
typedef struct Call
{
	struct Call *next;
	Task		task;			/* nothing to ask for: its lease does that */
	json_t	   *id;
	json_t	   *token;			/* for progress; may be NULL */
	bool		modern;
	const Tool *tool;
	Values		values;
	Lease	   *lease;
	Instant		began;
	Instant		answer_at;		/* a wait is answered as it is then */
	Instant		fail_at;		/* no more repetitions after failures */
	Instant		give_up_at;		/* the end in any case */
	double		progress;		/* last told */
	bool		is_cancelled;	/* nobody wants the answer */
} Call;

typedef struct Server
{
	const Options *options;
	Link		link;
	char		application[64];	/* our name for the database */
	bool		is_legacy;		/* there was a handshake */
	Call	   *calls;
	Lease	   *leases;
	int			tasks;			/* so far */
	Task	   *asking;			/* whose question is out; may be NULL */
	Instant		asked_at;
	bool		input_has_ended;
	bool		has_hung_up;	/* the client, while its input was not read */
	Instant		stuck_since;	/* it has gone, and nobody reads its answers */
	bool		is_ending;
	Instant		end_at;
} Server;

/* How many calls and leases there may be; nobody needs more. */
#define MOST_CALLS		1000
#define MOST_LEASES		1000

/* How long an answer may take, and repetitions after failures. */
#define ANSWER_MS		10000
#define RECOVERY_MS		3000

/* mcp_answer.c */

extern json_t *read_json(const PGresult *answer, int row);
extern void answer_with_json(const Call *call, json_t *json);
extern void answer_with_error(const Call *call, json_t *text);
extern void answer_with_failure(const Call *call, const Link *link,
								const char *more);
extern void answer_question(const Call *call, const PGresult *answer);
extern void send_progress(Call *call);

/* mcp_lease.c */

extern bool lease_is_waiting(const Lease *lease);
extern bool lease_is_held(const Lease *lease);
extern bool lease_is_kept(const Lease *lease);
extern Call *next_caller(Call *call, const Lease *lease);
extern bool lease_is_asked_for(const Server *server, const Lease *lease);
extern bool begin_acquisition(Server *server, Call *call);
extern bool lease_is_late(const Server *server, const Lease *lease);
extern void ask_for_lease(Server *server, Lease *lease);
extern void withdraw_lease(Lease *lease);
extern void leave_lease(Server *server, Call *call);
extern void end_leases(Server *server);
extern void tidy_leases(Server *server);

/* mcp_outcome.c */

extern void note_lease_answer(Server *server, Lease *lease,
							  const PGresult *answer);
extern void note_lease_failure(Server *server, Lease *lease);

/* mcp_call.c */

extern void begin_call(Server *server, json_t *id, json_t *token, bool modern,
					   const Tool *tool, json_t *arguments);
extern void cancel_calls(Server *server, json_t *id);
extern void tidy_calls(Server *server);
extern void end_calls(Server *server);
extern void drop_call(Server *server, Call *call);
extern void ask_for_call(Server *server, Call *call);
extern void note_call_answer(Server *server, Call *call);
extern void note_call_failure(Server *server, Call *call);

/* mcp_turn.c */

extern void take_turns(Server *server);
extern Instant next_turn(const Server *server);

/* mcp_method.c */

extern void take_message(Server *server, json_t *message);

#endif							/* LEASELOCK_MCP_H */
