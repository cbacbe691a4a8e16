/*-------------------------------------------------------------------------
 *
 * cli.h
 *	  Shared declarations of the command-line program leaselock.
 *
 * The program is a front end over libpq, and knows nothing about the server's
 * internals.  Its files form layers, each of which calls only those above it:
 *
 *	text		messages, the status line, removal of control characters
 *	event		the local clock, signals, and the only place that sleeps
 *	output		answers as text or JSON
 *	query		the queries, and validation of their answers
 *	link		a connection that never blocks
 *	acquire		acquiring a lock, with or without waiting
 *	watchdog	the process that ends the command when the lease ends
 *	child		the command: its process group, terminal and status
 *	run			a command under a lease
 *	command		the other subcommands
 *	journal		events
 *	mcp			a server for agents, see mcp.h
 *	help		the usage of a single subcommand
 *	options, main
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_CLI_H
#define LEASELOCK_CLI_H

#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "libpq-fe.h"

/* A time of the local clock, in milliseconds. */
typedef int64_t Instant;

/* Exit status of the program, unless it passes on that of a command. */
typedef enum ExitCode
{
	EXIT_DONE = 0,				/* held, or done */
	EXIT_NOT_HELD = 1,			/* contended, or the wait ran out */
	EXIT_LOST = 2,				/* the lease has ended, or never existed */
	EXIT_USAGE = 3,
	EXIT_SERVER = 4,			/* connection or server error */
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NOT_FOUND = 127,
	EXIT_SIGNAL = 128			/* plus the signal's number */
} ExitCode;

/* 36500 days, the longest time that the server accepts. */
#define MAX_SECONDS		3153600000.0

/* The longest note that the server accepts. */
#define MAX_NOTE_BYTES	1000

/* help.c */

extern void print_help(const char *usage, const char *command);

/* options.c */

typedef struct Options
{
	const char *host;
	const char *port;
	const char *user;
	const char *dbname;
	const char *name;
	const char *owner;
	const char *ticket;
	const char *scope;			/* NULL: all (status) */
	const char *request;		/* never NULL for acquire and run */
	bool		request_is_known;	/* the caller passed it */
	const char *note;			/* for people; NULL: none */
	bool		note_is_generated;
	const char *fence;
	const char *lease;			/* seconds as given; NULL if not given */
	double		lease_seconds;
	double		wait_seconds;
	const char *at_least;		/* seconds as given; NULL if not given */
	const char *grace;			/* seconds as given; NULL if not given */
	double		grace_seconds;
	double		interval_seconds;
	bool		json;
	bool		quiet;
	bool		watch;
	bool		queue;			/* tickets instead of locks */
	bool		all;			/* lapsed leases, too */
	const char *since;			/* of events; NULL: all, or from now on */
	bool		follow;
	char	  **argv;			/* the command to run */
	double		answer_within_seconds;	/* this and the following: mcp */
	double		max_keep_seconds;
	bool		allow_break;
	bool		release_on_exit;
	bool		uses_utf8;		/* regardless of the environment */
	const char *application;	/* application_name; NULL: the default */
} Options;

typedef ExitCode (*Command) (const Options *options);

extern Command parse_options(int argc, char **argv, Options *options);

/* text.c */

extern void set_text_encoding(const char *name);
extern void clean_text(char *text);
extern void cut_text(char *text, size_t max);
extern void cut_to_width(char *line, int columns);
extern void put_text(FILE *stream, const char *value);
extern void put_json(FILE *stream, const char *value);
extern int	text_width(const char *value);
extern void format_length(char *buffer, size_t size, int64_t ms);
extern void show_status_line(const Options *options, const char *format,...)
			__attribute__((format(printf, 2, 3)));
extern void clear_status_line(void);
extern void complain_of_lines(const char *message, const char *format,...)
			__attribute__((format(printf, 2, 3)));
extern void complain(const char *format,...)
			__attribute__((format(printf, 1, 2)));
extern void complain_args(const char *format, va_list args)
			__attribute__((format(printf, 1, 0)));

/* event.c */

extern void fill_standard_descriptors(void);
extern Instant now(void);
extern void catch_ending_signals(void);
extern void catch_signals(const int *signals, int count);
extern void ignore_signal(int signo);
extern void ignore_failed_writes(void);
extern void restore_signals(void);
extern int	next_signal(void);
extern bool signal_is_pending(void);
extern void sleep_until(struct pollfd *fds, int count, Instant until);
extern void close_wake_pipe(void);

/* output.c */

extern void print_line(const char *line);
extern void print_lines(const char *lines);
extern void print_json(const PGresult *answer);
extern void print_json_row(const PGresult *answer, int row);
extern void print_cells(const char *const *cells, const int *widths,
						int count, int colored, const char *color);
extern void print_record(const PGresult *answer);
extern void print_table(const PGresult *answer);
extern void print_heading(const char *heading);
extern void fit_output(void);
extern bool write_output(void);

/* query.c */

typedef enum QueryKind
{
	QUERY_ACQUIRE,
	QUERY_ACQUIRE_LONG,
	QUERY_GET,
	QUERY_RENEW,
	QUERY_RELEASE,
	QUERY_HOLD,
	QUERY_STATUS,
	QUERY_PEEK,
	QUERY_LIST,
	QUERY_QUEUE,
	QUERY_BREAK,
	QUERY_PRESENT,
	QUERY_EVENTS
} QueryKind;

#define MAX_PARAMETERS	7

typedef struct Query
{
	const char *text;
	int			parameters;
	const char *const *columns; /* of the answer, NULL-terminated */
	int			min_rows;
	int			max_rows;
} Query;

extern const Query queries[];

/* A ticket as the server last reported it, and when the query was sent. */
typedef struct Ticket
{
	char		ticket[64];
	char		state[32];
	char		fence[32];
	char		holder[256];
	int			position;
	int64_t		remaining_ms;
	int64_t		next_call_ms;
	Instant		sent_at;
} Ticket;

extern bool answer_is_valid(QueryKind query, const PGresult *answer);
extern void read_ticket(const PGresult *answer, Ticket *ticket);
extern ExitCode ticket_exit_code(const char *state);
extern bool ticket_is_live(const char *state);
extern bool is_uuid(const char *value);
extern void make_uuid(char *result, size_t size);
extern void next_uuid(char *uuid);
extern bool is_number(const char *value, int64_t min, int64_t max);

/* link.c */

typedef enum LinkState
{
	LINK_DOWN,
	LINK_CONNECTING,
	LINK_IDLE,
	LINK_BUSY
} LinkState;

typedef enum Progress
{
	PENDING,
	ANSWERED,
	FAILED
} Progress;

typedef struct Link
{
	const Options *options;
	PGconn	   *conn;
	LinkState	state;
	PostgresPollingStatusType direction;	/* while connecting */
	bool		has_query;		/* a query has not been answered yet */
	bool		sent;			/* it may have reached the server */
	QueryKind	query;
	const char *parameters[MAX_PARAMETERS];
	Instant		give_up_at;		/* deadline of the query */
	Instant		next_host_at;	/* deadline for connecting to this host */
	int			hosts;			/* number of hosts in the connection string */
	int			skip;			/* number of them to skip */
	bool		moved_on;		/* the query went on to another host */
	PGresult   *answer;			/* to the last query; NULL if it failed */
	char		sqlstate[6];	/* SQLSTATE; empty if the connection failed */
	bool		is_permanent;	/* a retry would fail as well */
	int			notices;		/* number shown for this query */
	char		error[1024];
} Link;

extern void link_open(Link *link, const Options *options);
extern void link_send(Link *link, QueryKind query,
					  const char *const *parameters, Instant give_up_at);
extern Progress link_step(Link *link);
extern Progress link_await(Link *link, bool interruptible);
extern void link_drop(Link *link, const char *reason);
extern void link_close(Link *link);
extern bool link_may_recover(const Link *link);
extern bool link_outcome_is_open(const Link *link);
extern ExitCode complain_of_failure(const Link *link);
extern ExitCode link_exit_code(const Link *link);
extern void link_sleep(Link *link, int fd, Instant until);
extern void link_sleep_with(Link *link, struct pollfd *fds, int count,
							Instant until);

/* The first file descriptors to sleep on belong to event.c and to the link. */
#define LINK_FDS	2

/* acquire.c */

extern ExitCode acquire(Link *link, const Options *options, Ticket *ticket);
extern void explain_refusal(const Options *options, const Ticket *ticket);
extern bool give_back(Link *link, Ticket *ticket, Instant ends_at);
extern bool add_named_hold(Link *link, const Options *options,
						   const Ticket *ticket, Instant ends_at);
extern int64_t back_off_ms(int failures);

/* watchdog.c */

/* When the watchdog ends the command. */
typedef struct Deadlines
{
	pid_t		group;			/* the command's; 0: end the watchdog */
	Instant		term_at;
	Instant		kill_at;
} Deadlines;

typedef struct Watchdog
{
	pid_t		pid;
	int			fd;
} Watchdog;

extern bool start_watchdog(Watchdog *watchdog, const Link *link);
extern bool update_watchdog(const Watchdog *watchdog,
							const Deadlines *deadlines);
extern int	poll_watchdog(const Watchdog *watchdog);
extern void end_watchdog(Watchdog *watchdog);

#define WATCHDOG_GONE			(-1)
#define WATCHDOG_SILENT		0
#define WATCHDOG_TERMINATED	'T'
#define WATCHDOG_KILLED		'K'

/* child.c */

typedef struct Child
{
	pid_t		pid;			/* also the id of its process group */
	bool		ended;
	int			status;			/* valid once it has ended */
	int			terminal;		/* the controlling terminal, or -1 */
} Child;

extern bool start_child(Child *child, const Options *options,
						const Ticket *ticket);
extern void note_child_status(Child *child, pid_t pid, int status);
extern void signal_child(const Child *child, int signo);
extern bool child_is_gone(const Child *child);
extern void resume_child(const Child *child);
extern void take_terminal_back(const Child *child);
extern ExitCode child_exit_code(const Child *child);

/* run.c, command.c, mcp.c */

extern ExitCode run_command(const Options *options);
extern ExitCode acquire_command(const Options *options);
extern ExitCode get_command(const Options *options);
extern ExitCode heartbeat_command(const Options *options);
extern ExitCode release_command(const Options *options);
extern ExitCode status_command(const Options *options);
extern ExitCode break_command(const Options *options);
extern ExitCode write_failed(void);

/* journal.c */

extern ExitCode events_command(const Options *options);
extern ExitCode mcp_command(const Options *options);

#endif							/* LEASELOCK_CLI_H */
