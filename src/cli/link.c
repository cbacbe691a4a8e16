/*-------------------------------------------------------------------------
 *
 * link.c
 *	  A connection that never blocks, and the questions it can ask.
 *
 * A question is asked of a link in whatever state that is: link_step()
 * connects first if it must, sends the question, and collects the answer, as
 * far as each is possible without waiting.  A question has an end, so that a
 * server that accepts and then says nothing is a failure like any other.
 * After a failure the link is down, and the next question connects anew.
 *
 * All of it is libpq's asynchronous interface.  One thing in that may block
 * all the same: the look-up of a host name.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* How long one host may take to connect, unless connect_timeout says so. */
#define CONNECT_MS			10000

#define TICKET_COLUMNS \
	"SELECT t.state, t.ticket, t.scope, t.name, t.owner, t.fence, t.depth," \
	" t.\"position\", t.expires_at, t.wait_until, t.remaining_ms," \
	" t.next_call_ms, t.holder, t.holder_role, t.request_id," \
	" pg_catalog.row_to_json(t) AS json FROM leaselock."

#define STATUS_COLUMNS \
	"SELECT s.scope, s.name, s.owner, s.role, s.fence, s.depth, s.waiters," \
	" s.remaining_ms, s.lapsed, pg_catalog.row_to_json(s) AS json" \
	" FROM leaselock."

#define SECONDS(parameter) \
	"pg_catalog.make_interval(secs => " parameter "::pg_catalog.float8)"

typedef struct Question
{
	const char *text;
	int			parameters;
} Question;

/* By Ask. */
static const Question questions[] = {
	[ASK_ACQUIRE] = {
		TICKET_COLUMNS "lease_acquire(name => $1, owner => $2,"
		" lease => " SECONDS("$3") ", wait => " SECONDS("$4") ","
		" scope => $5, request_id => $6) AS t", 6
	},
	[ASK_GET] = {TICKET_COLUMNS "lease_get($1) AS t", 1},
	[ASK_RENEW] = {
		TICKET_COLUMNS "lease_renew($1, " SECONDS("$2") ") AS t", 2
	},
	[ASK_RELEASE] = {TICKET_COLUMNS "lease_release($1) AS t", 1},
	[ASK_STATUS] = {
		STATUS_COLUMNS "lease_status AS s"
		" WHERE $1::pg_catalog.text IS NULL"
		" OR s.scope OPERATOR(pg_catalog.=) $1"
		" ORDER BY s.scope COLLATE pg_catalog.\"C\","
		" s.name COLLATE pg_catalog.\"C\"", 1
	},
	[ASK_PEEK] = {STATUS_COLUMNS "lease_peek($1, $2) AS s", 2},
	[ASK_BREAK] = {
		"SELECT r.broken, pg_catalog.row_to_json(r) AS json FROM ("
		"SELECT b AS broken, $3::pg_catalog.text AS scope,"
		" $1::pg_catalog.text AS name, $2::pg_catalog.int8 AS fence"
		" FROM leaselock.lease_break($1, $2, $3) AS b) AS r", 3
	},
};

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
	link->asked = false;
}

/*
 * note_error
 *	  Keeps a message of libpq's, on one line.
 */
static void
note_error(Link *link, const char *message)
{
	size_t		length = 0;

	for (; *message && length < sizeof(link->error) - 1; message++)
		if (*message != '\n' && *message != '\t')
			link->error[length++] = *message;
		else if (length > 0 && link->error[length - 1] != ' ')
			link->error[length++] = ' ';
	while (length > 0 && link->error[length - 1] == ' ')
		length--;
	link->error[length] = '\0';
}

/*
 * link_drop
 *	  The connection is of no more use, and what was asked has failed.
 */
void
link_drop(Link *link, const char *reason)
{
	note_error(link, reason);
	link->sqlstate[0] = '\0';
	PQfinish(link->conn);
	link->conn = NULL;
	link->state = LINK_DOWN;
	link->asked = false;
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
 *	  A comma-separated list that begins after its first elements, which come
 *	  last.  The result is to be freed.
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
 *	  Connects as psql does: a connection string in dbname goes before what
 *	  the other options say.  With host, hostaddr and port those replace the
 *	  ones of the connection string.
 */
static PGconn *
begin_connection(const Options *options, const char *host,
				 const char *hostaddr, const char *port)
{
	const char *keywords[10];
	const char *values[10];
	int			n = 0;

#define ADD(keyword, value) (keywords[n] = (keyword), values[n++] = (value))
	ADD("host", options->host);
	ADD("port", options->port);
	ADD("user", options->user);
	if (getenv("PGCLIENTENCODING") == NULL)
		ADD("client_encoding", "UTF8");
	ADD("dbname", options->dbname);
	ADD("fallback_application_name", "leaselock");
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
 *	  Connects to the hosts of the list, beginning after those that did not
 *	  answer.  libpq itself goes on to the next host only where one fails.
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
 *	  What the server says unasked.
 */
static void
show_notice(void *options, const char *message)
{
	if (!((const Options *) options)->quiet)
		complain("%.*s", (int) strcspn(message, "\n"), message);
}

static void
connect_to_server(Link *link)
{
	PQconninfoOption *known;
	const char *timeout;
	int			seconds;

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
	seconds = timeout ? atoi(timeout) : 0;
	link->hosts = count_hosts(known);
	PQconninfoFree(known);
	link->state = LINK_CONNECTING;
	link->direction = PGRES_POLLING_WRITING;
	link->next_host_at = now() + (seconds > 0 ? seconds * 1000 : CONNECT_MS);
	/* shows the SQLSTATE also where the server refuses the connection */
	PQsetErrorVerbosity(link->conn, PQERRORS_VERBOSE);
	PQsetNoticeProcessor(link->conn, show_notice, (void *) link->options);
}

/*
 * try_next_host
 *	  The present one has had its time.
 */
static void
try_next_host(Link *link)
{
	link->skip = (link->skip + 1) % link->hosts;
	if (link->skip == 0)
		link_drop(link, "timeout expired while connecting");
	else
	{
		PQfinish(link->conn);
		connect_to_server(link);
	}
}

/* ---------------------------------------------------------------------
 * Asking
 * ---------------------------------------------------------------------
 */

/*
 * link_ask
 *	  Begins a question; link_step() does the rest.  The parameters must last
 *	  until it is answered or has failed.
 */
void
link_ask(Link *link, Ask ask, const char *const *parameters,
		 Instant give_up_at)
{
	if (link->asked)
		link_drop(link, "another question was asked");
	forget_answer(link);
	link->error[0] = link->sqlstate[0] = '\0';
	link->asked = true;
	link->sent = false;
	link->ask = ask;
	for (int i = 0; i < questions[ask].parameters; i++)
		link->parameters[i] = parameters[i];
	link->give_up_at = give_up_at;
	if (link->state == LINK_DOWN)
		connect_to_server(link);
}

static void
send_question(Link *link)
{
	link->sent = true;
	if (PQsendQueryParams(link->conn, questions[link->ask].text,
						  questions[link->ask].parameters, NULL,
						  link->parameters, NULL, NULL, 0))
		link->state = LINK_ASKING;
	else
		link_drop(link, PQerrorMessage(link->conn));
}

/*
 * note_refusal
 *	  Keeps why the connection failed.  Where the server refused it, finds the
 *	  SQLSTATE in the message, "...:  28000: ...", for libpq does not hand it
 *	  out; and leaves out the place in the server's source.
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
		send_question(link);
	}
	else if (link->direction == PGRES_POLLING_FAILED)
		note_refusal(link);
	else if (now() >= link->next_host_at)
		try_next_host(link);
}

/*
 * note_server_error
 *	  Keeps what the server says of a question that it could not answer.
 */
static void
note_server_error(Link *link)
{
	const char *fields[3];
	static const int codes[] = {
		PG_DIAG_MESSAGE_PRIMARY, PG_DIAG_MESSAGE_DETAIL, PG_DIAG_MESSAGE_HINT
	};
	const char *sqlstate = PQresultErrorField(link->answer, PG_DIAG_SQLSTATE);

	for (int i = 0; i < 3; i++)
		fields[i] = PQresultErrorField(link->answer, codes[i]);
	if (sqlstate == NULL || fields[0] == NULL)
	{
		note_error(link, PQresultErrorMessage(link->answer));
		return;
	}
	snprintf(link->sqlstate, sizeof(link->sqlstate), "%s", sqlstate);
	snprintf(link->error, sizeof(link->error), "%s (%s)%s%s%s%s",
			 fields[0], sqlstate, fields[1] ? ". " : "",
			 fields[1] ? fields[1] : "", fields[2] ? " " : "",
			 fields[2] ? fields[2] : "");
}

/*
 * keep_answer
 *	  The first result of a question that has been answered.
 */
static Progress
keep_answer(Link *link)
{
	PGresult   *result;

	while ((result = PQgetResult(link->conn)) != NULL)
	{
		if (link->answer == NULL)
			link->answer = result;
		else
			PQclear(result);
	}
	if (PQresultStatus(link->answer) == PGRES_TUPLES_OK)
	{
		link->state = LINK_IDLE;
		link->asked = false;
		return ANSWERED;
	}
	if (PQstatus(link->conn) == CONNECTION_BAD)
		/* also if it was told why: what counts is that it is gone */
		link_drop(link, link->answer ? PQresultErrorMessage(link->answer) :
				  PQerrorMessage(link->conn));
	else
	{
		link->state = LINK_IDLE;
		link->asked = false;
		note_server_error(link);
	}
	forget_answer(link);
	return FAILED;
}

static Progress
step_asking(Link *link)
{
	if (!PQconsumeInput(link->conn) || PQflush(link->conn) < 0)
	{
		link_drop(link, PQerrorMessage(link->conn));
		return FAILED;
	}
	return PQisBusy(link->conn) ? PENDING : keep_answer(link);
}

/*
 * step_idle
 *	  Notices that the server has closed an idle connection, so that it can be
 *	  opened again before it is needed.
 */
static void
step_idle(Link *link)
{
	if (!PQconsumeInput(link->conn) || PQstatus(link->conn) == CONNECTION_BAD)
		link_drop(link, PQerrorMessage(link->conn));
}

/*
 * link_step
 *	  Goes on with the question as far as it can without waiting.  Of a link
 *	  that is asked nothing the result is FAILED if it is down.
 */
Progress
link_step(Link *link)
{
	if (link->state == LINK_CONNECTING)
		step_connecting(link);
	else if (link->state == LINK_IDLE && !link->asked)
		step_idle(link);
	else if (link->state == LINK_IDLE)
		send_question(link);
	if (link->state == LINK_ASKING)
	{
		Progress	progress = step_asking(link);

		if (progress != PENDING)
			return progress;
	}
	if (link->asked && now() >= link->give_up_at)
		link_drop(link, "the server does not answer");
	return link->state == LINK_DOWN ? FAILED : PENDING;
}

/*
 * link_sleep
 *	  Until the link can go on, fd (unless it is -1) can be read, a signal
 *	  comes, or the time.
 */
void
link_sleep(Link *link, int fd, Instant until)
{
	struct pollfd fds[3];

	fds[1].fd = link->conn ? PQsocket(link->conn) : -1;
	fds[1].events = POLLIN;
	if (link->state == LINK_CONNECTING &&
		link->direction == PGRES_POLLING_WRITING)
		fds[1].events = POLLOUT;
	else if (link->state == LINK_ASKING && PQflush(link->conn) == 1)
		fds[1].events = POLLIN | POLLOUT;
	fds[2].fd = fd;
	fds[2].events = POLLIN;
	if (link->asked && link->give_up_at < until)
		until = link->give_up_at;
	if (link->state == LINK_CONNECTING && link->next_host_at < until)
		until = link->next_host_at;
	sleep_until(fds, 3, until);
}

/*
 * link_await
 *	  Waits until the question is answered or has failed; if interruptible,
 *	  or until a signal comes, and then the result is PENDING.
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

/*
 * link_may_recover
 *	  Whether it makes sense to ask once more: the connection failed, or the
 *	  server is starting, stopping, full or busy.
 */
bool
link_may_recover(const Link *link)
{
	static const char *const passing[] = {
		"08", "57P", "53300", "55P03", "25006", "40"
	};

	if (link->sqlstate[0] == '\0')
		return true;
	for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++)
		if (strncmp(link->sqlstate, passing[i], strlen(passing[i])) == 0)
			return true;
	return false;
}

/*
 * link_exit_code
 *	  For the failure that the link has seen.  A value that the server refuses
 *	  was wrong on the command line.
 */
ExitCode
link_exit_code(const Link *link)
{
	if (strcmp(link->sqlstate, "22023") == 0 ||
		strcmp(link->sqlstate, "LS002") == 0)
		return EXIT_USAGE;
	return EXIT_SERVER;
}
