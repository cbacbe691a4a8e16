/*-------------------------------------------------------------------------
 *
 * link.c
 *	  A connection that never blocks, and the queries sent over it.
 *
 * A query can be started in any state of the link.  link_step() connects first
 * if necessary, sends the query and collects the answer, as far as each is
 * possible without waiting.  A query has a deadline, so that a server that
 * accepts it and then never answers counts as a failure like any other.  After
 * a failure the link is down, and the next query connects again.
 *
 * Everything uses libpq's asynchronous interface.  Only the look-up of a host
 * name may still block.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* How long to try to connect to one host, unless connect_timeout is set. */
#define CONNECT_MS			10000

/*
 * The most notices that are shown for one query, because a server may be
 * malicious.
 */
#define MAX_NOTICES		100

void
link_open(Link *link, const Options *options)
{
	memset(link, 0, sizeof(*link));
	link->options = options;
}

static void
forget_answer(Link *link)
{
	PQclear(link->answer);
	link->answer = NULL;
}

void
link_close(Link *link)
{
	forget_answer(link);
	PQfinish(link->conn);
	link->conn = NULL;
	link->state = LINK_DOWN;
	link->has_query = false;
}

/*
 * note_error
 *	  Stores an error message; with_lines keeps the line breaks of libpq's
 *	  messages.
 */
static void
note_error(Link *link, const char *message, bool with_lines)
{
	char	   *error = link->error;
	size_t		length = 0;

	for (; *message && length < sizeof(link->error) - 1; message++)
		if (*message == '\n' && with_lines)
		{
			while (length > 0 && error[length - 1] == ' ')
				length--;
			if (length > 0 && error[length - 1] != '\n')
				error[length++] = '\n';
		}
		else if (*message != '\n' && *message != '\t')
			error[length++] = *message;
		else if (length > 0 && error[length - 1] != ' ' &&
				 error[length - 1] != '\n')
			error[length++] = ' ';
	while (length > 0 && (error[length - 1] == ' ' || error[length - 1] == '\n'))
		length--;
	error[length] = '\0';
}

/*
 * link_drop
 *	  Closes a connection that can no longer be used; the query has failed.
 */
void
link_drop(Link *link, const char *reason)
{
	note_error(link, reason, true);
	link->sqlstate[0] = '\0';
	PQfinish(link->conn);
	link->conn = NULL;
	link->state = LINK_DOWN;
	link->has_query = false;
}

/*
 * fail_permanently
 *	  Likewise, if a retry would fail as well.
 */
static void
fail_permanently(Link *link, const char *reason)
{
	link_drop(link, reason);
	link->is_permanent = true;
}

/* ---------------------------------------------------------------------
 * Connecting
 * ---------------------------------------------------------------------
 */

static const char *
connection_option(PQconninfoOption *options, const char *keyword)
{
	for (; options && options->keyword; options++)
		if (strcmp(options->keyword, keyword) == 0)
			return options->val;
	return NULL;
}

/*
 * rotate
 *	  Rotates a comma-separated list to the left by "skip" elements.  The
 *	  caller frees the result.
 */
static char *
rotate(const char *list, int skip)
{
	size_t		size = strlen(list) + 2;
	char	   *result = malloc(size);
	const char *rest = list;

	if (result == NULL)
		return NULL;
	for (; skip > 0; skip--)
	{
		const char *comma = strchr(rest, ',');

		rest = comma ? comma + 1 : list;
	}
	snprintf(result, size, "%s%s%.*s", rest, rest > list ? "," : "",
			 rest > list ? (int) (rest - list - 1) : 0, list);
	return result;
}

/*
 * begin_connection
 *	  Connects as psql does: a connection string in dbname takes precedence
 *	  over the other options.  If not NULL, host, hostaddr and port replace
 *	  those of the connection string.
 */
static PGconn *
begin_connection(const Options *options, const char *host,
				 const char *hostaddr, const char *port)
{
	const char *keywords[11];
	const char *values[11];
	int			n = 0;

#define ADD(keyword, value) (keywords[n] = (keyword), values[n++] = (value))
	ADD("host", options->host);
	ADD("port", options->port);
	ADD("user", options->user);
	if (getenv("PGCLIENTENCODING") == NULL)
		ADD("client_encoding", "UTF8");
	ADD("dbname", options->dbname);
	if (options->uses_utf8)
		ADD("client_encoding", "UTF8");
	ADD("fallback_application_name",
		options->application ? options->application : "leaselock");
	if (host)
		ADD("host", host);
	if (hostaddr)
		ADD("hostaddr", hostaddr);
	if (port)
		ADD("port", port);
	ADD(NULL, NULL);
#undef ADD
	return PQconnectStartParams(keywords, values, 1);
}

/*
 * begin_elsewhere
 *	  Connects to the hosts of the list, starting after those that did not
 *	  respond.  By itself, libpq tries the next host only after an error.
 */
static PGconn *
begin_elsewhere(Link *link)
{
	static const char *const lists[] = {"host", "hostaddr", "port"};
	PQconninfoOption *known = PQconninfo(link->conn);
	char	   *rotated[3] = {NULL, NULL, NULL};
	PGconn	   *conn;

	for (int i = 0; i < 3; i++)
	{
		const char *list = connection_option(known, lists[i]);

		if (list && strchr(list, ','))
			rotated[i] = rotate(list, link->skip);
	}
	conn = begin_connection(link->options, rotated[0], rotated[1], rotated[2]);
	for (int i = 0; i < 3; i++)
		free(rotated[i]);
	PQconninfoFree(known);
	return conn;
}

static int
count_hosts(PQconninfoOption *known)
{
	const char *hosts = connection_option(known, "host");
	int			count = 1;

	if (hosts == NULL || hosts[0] == '\0')
		hosts = connection_option(known, "hostaddr");
	for (; hosts && *hosts; hosts++)
		count += *hosts == ',';
	return count;
}

/*
 * show_notice
 *	  Shows a notice from the server.
 */
static void
show_notice(void *arg, const char *message)
{
	Link	   *link = arg;

	if (!link->options->quiet && link->notices++ < MAX_NOTICES)
		complain("%.*s", (int) strcspn(message, "\n"), message);
}

/*
 * connection_string_is_valid
 *	  Checks the connection string.  An error in it is permanent.
 */
static bool
connection_string_is_valid(Link *link)
{
	const char *dbname = link->options->dbname;
	char	   *message = NULL;
	PQconninfoOption *parsed;

	if (dbname == NULL || (!strchr(dbname, '=') &&
						   strncmp(dbname, "postgres://", 11) != 0 &&
						   strncmp(dbname, "postgresql://", 13) != 0))
		return true;
	parsed = PQconninfoParse(dbname, &message);
	if (parsed == NULL)
		fail_permanently(link, message ? message : "out of memory");
	PQfreemem(message);
	PQconninfoFree(parsed);
	return parsed != NULL;
}

static void
connect_to_server(Link *link)
{
	PQconninfoOption *known;
	const char *timeout;
	long		seconds;

	if (!connection_string_is_valid(link))
		return;
	link->conn = begin_connection(link->options, NULL, NULL, NULL);
	if (link->skip > 0 && link->conn && PQstatus(link->conn) != CONNECTION_BAD)
	{
		PGconn	   *conn = begin_elsewhere(link);

		PQfinish(link->conn);
		link->conn = conn;
	}
	if (link->conn == NULL || PQstatus(link->conn) == CONNECTION_BAD)
	{
		link_drop(link, PQerrorMessage(link->conn));
		return;
	}
	known = PQconninfo(link->conn);
	timeout = connection_option(known, "connect_timeout");
	seconds = timeout ? strtol(timeout, NULL, 10) : 0;
	link->hosts = count_hosts(known);
	set_text_encoding(connection_option(known, "client_encoding"));
	PQconninfoFree(known);
	link->state = LINK_CONNECTING;
	link->direction = PGRES_POLLING_WRITING;
	link->next_host_at = now() +
		(seconds > 0 && seconds < MAX_SECONDS ? seconds * 1000 : CONNECT_MS);
	/* so that a refused connection shows its SQLSTATE */
	PQsetErrorVerbosity(link->conn, PQERRORS_VERBOSE);
	PQsetNoticeProcessor(link->conn, show_notice, link);
}

/*
 * try_next_host
 *	  Goes on to the next host because the current one has not responded in
 *	  time.
 */
static void
try_next_host(Link *link)
{
	link->skip = (link->skip + 1) % link->hosts;
	link->moved_on = true;
	if (link->skip == 0)
		link_drop(link, "timeout expired while connecting");
	else
	{
		PQfinish(link->conn);
		connect_to_server(link);
	}
}

/* ---------------------------------------------------------------------
 * Queries
 * ---------------------------------------------------------------------
 */

/*
 * link_send
 *	  Starts a query; link_step() does the rest.  The parameters must remain
 *	  valid until it has been answered or has failed.
 */
void
link_send(Link *link, QueryKind query, const char *const *parameters,
		  Instant give_up_at)
{
	if (link->has_query)
		link_drop(link, "another query was sent");
	forget_answer(link);
	link->error[0] = link->sqlstate[0] = '\0';
	link->has_query = true;
	link->sent = link->is_permanent = link->moved_on = false;
	link->notices = 0;
	link->query = query;
	for (int i = 0; i < queries[query].parameters; i++)
		link->parameters[i] = parameters[i];
	link->give_up_at = give_up_at;
	if (link->state == LINK_DOWN)
		connect_to_server(link);
}

static void
send_query(Link *link)
{
	link->sent = true;
	if (PQsendQueryParams(link->conn, queries[link->query].text,
						  queries[link->query].parameters, NULL,
						  link->parameters, NULL, NULL, 0))
		link->state = LINK_BUSY;
	else
		link_drop(link, PQerrorMessage(link->conn));
}

/*
 * note_refusal
 *	  Stores the reason why the connection failed.  If the server refused it,
 *	  extracts the SQLSTATE from the message ("...:  28000: ..."), because
 *	  libpq provides no other way, and removes the location in the server's
 *	  source code.
 */
static void
note_refusal(Link *link)
{
	char		message[sizeof(link->error)] = "";
	const char *line = PQerrorMessage(link->conn);
	const char *colon;
	size_t		length = 0;

	while (*line && length < sizeof(message) - 1)
	{
		size_t		size = strcspn(line, "\n");

		if (strncmp(line, "LOCATION:", 9) != 0)
			length += snprintf(message + length, sizeof(message) - length,
							   "%.*s\n", (int) size, line);
		line += size + (line[size] == '\n');
	}
	link_drop(link, message);
	for (colon = strstr(message, ":  "); colon;
		 colon = strstr(colon + 1, ":  "))
		if (strspn(colon + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 &&
			colon[8] == ':')
			snprintf(link->sqlstate, sizeof(link->sqlstate), "%.5s",
					 colon + 3);
}

static void
step_connecting(Link *link)
{
	link->direction = PQconnectPoll(link->conn);
	if (link->direction == PGRES_POLLING_OK)
	{
		PQsetErrorVerbosity(link->conn, PQERRORS_DEFAULT);
		PQsetnonblocking(link->conn, 1);
		link->state = LINK_IDLE;
		link->skip = 0;
		send_query(link);
	}
	else if (link->direction == PGRES_POLLING_FAILED)
		note_refusal(link);
	else if (now() >= link->next_host_at)
		try_next_host(link);
}

/*
 * note_server_error
 *	  Stores the server's error for a query.
 */
static void
note_server_error(Link *link)
{
	static const int codes[] = {
		PG_DIAG_MESSAGE_PRIMARY, PG_DIAG_MESSAGE_DETAIL, PG_DIAG_MESSAGE_HINT
	};
	const char *sqlstate = PQresultErrorField(link->answer, PG_DIAG_SQLSTATE);
	const char *fields[3];
	char		message[sizeof(link->error)];

	for (int i = 0; i < 3; i++)
		fields[i] = PQresultErrorField(link->answer, codes[i]);
	if (sqlstate == NULL || fields[0] == NULL)
	{
		note_error(link, PQresultErrorMessage(link->answer), true);
		return;
	}
	snprintf(link->sqlstate, sizeof(link->sqlstate), "%s", sqlstate);
	snprintf(message, sizeof(message), "%s (%s)%s%s%s%s",
			 fields[0], link->sqlstate, fields[1] ? ". " : "",
			 fields[1] ? fields[1] : "", fields[2] ? " " : "",
			 fields[2] ? fields[2] : "");
	note_error(link, message, false);
}

/*
 * keep_result
 *	  Stores one of the server's results for a query.  There must be a single
 *	  table, but an error may follow it if the transaction could not commit.
 *	  Returns false for anything that cannot be an answer, such as COPY.
 */
static bool
keep_result(Link *link, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);
	bool		failed = (status == PGRES_FATAL_ERROR ||
						  status == PGRES_NONFATAL_ERROR ||
						  status == PGRES_BAD_RESPONSE);

	if (failed && link->answer &&
		PQresultStatus(link->answer) == PGRES_TUPLES_OK)
		forget_answer(link);
	if (link->answer == NULL && (failed || status == PGRES_TUPLES_OK))
	{
		link->answer = result;
		return true;
	}
	PQclear(result);
	return failed;
}

/*
 * lose_connection
 *	  Handles a connection lost during a query.  If the server gave a reason,
 *	  it is stored as text without its SQLSTATE, because all that matters is
 *	  that the connection is gone.
 */
static Progress
lose_connection(Link *link)
{
	bool		told = (link->answer &&
						PQresultStatus(link->answer) != PGRES_TUPLES_OK);

	link_drop(link, told ? PQresultErrorMessage(link->answer) :
			  PQerrorMessage(link->conn));
	forget_answer(link);
	return FAILED;
}

/*
 * judge_answer
 *	  Evaluates the complete answer.
 */
static Progress
judge_answer(Link *link)
{
	bool		failed = PQresultStatus(link->answer) != PGRES_TUPLES_OK;

	if (PQstatus(link->conn) == CONNECTION_BAD)
		return lose_connection(link);
	if (link->answer && failed)
	{
		link->state = LINK_IDLE;
		link->has_query = false;
		note_server_error(link);
	}
	else if (PQtransactionStatus(link->conn) == PQTRANS_IDLE && !failed &&
			 answer_is_valid(link->query, link->answer))
	{
		link->state = LINK_IDLE;
		link->has_query = false;
		return ANSWERED;
	}
	else
		fail_permanently(link, "the server's answer is malformed");
	forget_answer(link);
	return FAILED;
}

/*
 * collect_answer
 *	  Collects the available part of the answer.  While PQisBusy() says that
 *	  more is to come, PQgetResult() would block.
 */
static Progress
collect_answer(Link *link)
{
	while (!PQisBusy(link->conn))
	{
		PGresult   *result = PQgetResult(link->conn);

		if (result == NULL)
			return judge_answer(link);
		if (!keep_result(link, result))
		{
			fail_permanently(link, "the server's answer is malformed");
			forget_answer(link);
			return FAILED;
		}
	}
	return PENDING;
}

/*
 * read_input
 *	  Reads what the server has sent.  Notifications are discarded.
 */
static bool
read_input(Link *link)
{
	PGnotify   *notification;

	if (!PQconsumeInput(link->conn))
		return false;
	while ((notification = PQnotifies(link->conn)) != NULL)
		PQfreemem(notification);
	return true;
}

static Progress
step_busy(Link *link)
{
	if (read_input(link) && PQflush(link->conn) >= 0)
		return collect_answer(link);
	return lose_connection(link);
}

/*
 * step_idle
 *	  Detects that the server has closed an idle connection, so that it can be
 *	  opened again before it is needed.
 */
static void
step_idle(Link *link)
{
	if (!read_input(link) || PQstatus(link->conn) == CONNECTION_BAD)
		link_drop(link, PQerrorMessage(link->conn));
}

/*
 * stop_waiting
 *	  Gives up on a query that was not answered in time.  If that time is
 *	  shorter than connect_timeout, try_next_host() is never called, so the next
 *	  query must begin with the next host.  A host that this query moved on to
 *	  has not had its full time yet and is tried again.
 */
static void
stop_waiting(Link *link)
{
	if (link->state == LINK_CONNECTING && !link->moved_on)
		link->skip = (link->skip + 1) % link->hosts;
	link_drop(link, "the server is not responding");
	forget_answer(link);
}

/*
 * link_step
 *	  Continues the query as far as possible without waiting.  If no query is
 *	  open, the result is FAILED if the link is down.
 */
Progress
link_step(Link *link)
{
	if (link->state == LINK_CONNECTING)
		step_connecting(link);
	else if (link->state == LINK_IDLE && !link->has_query)
		step_idle(link);
	else if (link->state == LINK_IDLE)
		send_query(link);
	if (link->state == LINK_BUSY)
	{
		Progress	progress = step_busy(link);

		if (progress != PENDING)
			return progress;
	}
	if (link->has_query && now() >= link->give_up_at)
		stop_waiting(link);
	return link->state == LINK_DOWN ? FAILED : PENDING;
}

/*
 * link_sleep_with
 *	  Sleeps until the link can continue, one of the file descriptors after the
 *	  first LINK_FDS is ready, a signal arrives, or the time is reached.
 */
void
link_sleep_with(Link *link, struct pollfd *fds, int count, Instant until)
{
	fds[1].fd = link->conn ? PQsocket(link->conn) : -1;
	fds[1].events = POLLIN;
	if (link->state == LINK_CONNECTING &&
		link->direction == PGRES_POLLING_WRITING)
		fds[1].events = POLLOUT;
	else if (link->state == LINK_BUSY && PQflush(link->conn) == 1)
		fds[1].events = POLLIN | POLLOUT;
	if (link->has_query && link->give_up_at < until)
		until = link->give_up_at;
	if (link->state == LINK_CONNECTING && link->next_host_at < until)
		until = link->next_host_at;
	sleep_until(fds, count, until);
}

/*
 * link_sleep
 *	  Likewise, with one file descriptor to read from; -1: none.
 */
void
link_sleep(Link *link, int fd, Instant until)
{
	struct pollfd fds[LINK_FDS + 1];

	fds[LINK_FDS].fd = fd;
	fds[LINK_FDS].events = POLLIN;
	link_sleep_with(link, fds, LINK_FDS + 1, until);
}

/*
 * link_await
 *	  Waits until the query has been answered or has failed.  If interruptible,
 *	  a signal ends the wait with PENDING.
 */
Progress
link_await(Link *link, bool interruptible)
{
	for (;;)
	{
		Progress	progress = link_step(link);

		if (progress != PENDING)
			return progress;
		if (interruptible && signal_is_pending())
			return PENDING;
		link_sleep(link, -1, link->give_up_at);
	}
}

/* ---------------------------------------------------------------------
 * Failures
 * ---------------------------------------------------------------------
 */

static bool
sqlstate_is_one_of(const Link *link, const char *const *classes)
{
	for (; *classes; classes++)
		if (strncmp(link->sqlstate, *classes, strlen(*classes)) == 0)
			return true;
	return false;
}

/*
 * link_may_recover
 *	  Whether a retry makes sense: the connection failed, the server is
 *	  starting, stopping or full, or other transactions were in the way.  Other
 *	  errors are permanent.
 */
bool
link_may_recover(const Link *link)
{
	static const char *const transient[] = {
		"08", "57P", "53300", "55P03", "40", NULL
	};

	return !link->is_permanent && (link->sqlstate[0] == '\0' ||
								   sqlstate_is_one_of(link, transient));
}

/*
 * link_outcome_is_open
 *	  Whether the query may have been carried out although it failed.
 */
bool
link_outcome_is_open(const Link *link)
{
	static const char *const open[] = {"08", "57P", "40003", NULL};

	return link->sent && (link->sqlstate[0] == '\0' ||
						  sqlstate_is_one_of(link, open));
}

/*
 * complain_of_failure
 *	  Prints the error, with a hint if the extension is missing.
 */
ExitCode
complain_of_failure(const Link *link)
{
	static const char *const missing[] = {"3F000", "42883", "42P01", NULL};

	complain_of_lines(link->error, "%s", "");
	if (sqlstate_is_one_of(link, missing))
		complain("is the current version of the extension installed? Run CREATE EXTENSION leaselock");
	return link_exit_code(link);
}

/*
 * link_exit_code
 *	  The exit code for the link's failure.  A value that the server refuses is
 *	  an error in the command line.
 */
ExitCode
link_exit_code(const Link *link)
{
	static const char *const refused[] = {"22", "LS002", NULL};

	return link->sent && sqlstate_is_one_of(link, refused) ?
		EXIT_USAGE : EXIT_SERVER;
}
