/*-------------------------------------------------------------------------
 *
 * query.c
 *	  The queries sent to the server, and the validation of their answers.
 *
 * The program may be talking to something other than the intended server.  An
 * answer is used only if it matches the query: it has all columns, a known
 * state, and numbers within their bounds.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

#define TICKET_COLUMNS \
	"SELECT t.state, t.ticket, t.scope, t.name, t.owner, t.fence, t.depth," \
	" t.\"position\"," \
	" pg_catalog.date_trunc('second', t.expires_at) AS expires_at," \
	" pg_catalog.date_trunc('second', t.wait_until) AS wait_until," \
	" t.remaining_ms," \
	" t.next_call_ms, t.holder, t.holder_role, t.request_id, t.note," \
	" pg_catalog.row_to_json(t) AS json FROM leaselock."

/* Milliseconds since a time. */
#define AGE(time) \
	"GREATEST(0, pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()" \
	" OPERATOR(pg_catalog.-) " time ") OPERATOR(pg_catalog.*) 1000)" \
	"::pg_catalog.int8"

#define STATUS_COLUMNS \
	"SELECT s.scope, s.name, s.owner, s.role, s.fence, s.depth, s.waiters," \
	" CASE WHEN s.owner IS NOT NULL THEN " AGE("s.granted_at") \
	" END AS held_ms, s.remaining_ms, CASE WHEN s.owner IS NULL THEN 'free'" \
	" WHEN s.lapsed THEN 'lapsed' ELSE 'held' END AS state, s.note," \
	" pg_catalog.row_to_json(s) AS json FROM leaselock."

/*
 * Merely lapsed locks are shown if requested, or if somebody waits for them.
 */
#define LIVE_OR(parameter) \
	"(" parameter "::pg_catalog.bool OR NOT s.lapsed" \
	" OR s.waiters OPERATOR(pg_catalog.>) 0)"

/* The columns that the answer must have, in this order. */
static const char *const ticket_columns[] = {
	"state", "ticket", "scope", "name", "owner", "fence", "depth", "position",
	"expires_at", "wait_until", "remaining_ms", "next_call_ms", "holder",
	"holder_role", "request_id", "note", "json", NULL
};
static const char *const status_columns[] = {
	"scope", "name", "owner", "role", "fence", "depth", "waiters", "held_ms",
	"remaining_ms", "state", "note", "json", NULL
};
static const char *const queue_columns[] = {
	"scope", "name", "owner", "role", "state", "position", "age_ms",
	"remaining_ms", "note", "json", NULL
};
static const char *const hold_columns[] = {"state", "due", "fence", "json", NULL};
static const char *const present_columns[] = {
	"next_xid", "snapshot", "json", NULL
};
static const char *const event_columns[] = {
	"next_xid", "next_id", "more", "at", "kind", "scope", "name", "owner",
	"role", "fence", "ticket", "note", "json", NULL
};
static const char *const break_columns[] = {"broken", "json", NULL};

/*
 * A page of events.  Each row contains the cursor for the next page: the last
 * event of a full page, or otherwise the beginning of the first transaction
 * that is not shown yet (ids start at 1).  If no event matches, there is one
 * row with only the cursor.
 */
#define EVENTS_PAGE	"1000"
#define NEXT_IS_LAST \
	"c.seen OPERATOR(pg_catalog.=) " EVENTS_PAGE \
	" OR l.xid OPERATOR(pg_catalog.>=) c.horizon"
#define EVENTS \
	"WITH e AS MATERIALIZED (" \
	"SELECT pg_catalog.row_number() OVER () AS nr, t.id, t.xid, t.at, t.kind," \
	" t.scope, t.name, t.owner, t.role, t.fence, t.ticket, t.note," \
	" pg_catalog.row_to_json(t) AS json FROM leaselock.lease_events(" \
	"$1::pg_catalog.xid8, $2::pg_catalog.int8, " EVENTS_PAGE ") AS t)," \
	" c AS MATERIALIZED (SELECT pg_catalog.count(*) AS seen," \
	" pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())" \
	" AS horizon FROM e)," \
	" l AS (SELECT xid, id FROM e ORDER BY nr DESC LIMIT 1)," \
	" w AS (SELECT * FROM e" \
	" WHERE ($3::pg_catalog.text IS NULL OR scope OPERATOR(pg_catalog.=) $3)" \
	" AND ($4::pg_catalog.text IS NULL OR name OPERATOR(pg_catalog.=) $4)" \
	" AND ($5::pg_catalog.timestamptz IS NULL" \
	" OR at OPERATOR(pg_catalog.>=) $5)" \
	" AND ($6::pg_catalog.pg_snapshot IS NULL" \
	" OR NOT pg_catalog.pg_visible_in_snapshot(xid, $6))) " \
	"SELECT CASE WHEN " NEXT_IS_LAST " THEN l.xid ELSE c.horizon END" \
	" AS next_xid," \
	" CASE WHEN " NEXT_IS_LAST " THEN l.id ELSE 0 END AS next_id," \
	" c.seen OPERATOR(pg_catalog.=) " EVENTS_PAGE " AS more," \
	" pg_catalog.to_char(w.at, 'YYYY-MM-DD HH24:MI:SS.MSOF') AS at, w.kind," \
	" w.scope, w.name, w.owner, w.role, w.fence, w.ticket, w.note," \
	" COALESCE(w.json, '{}') AS json" \
	" FROM c LEFT JOIN l ON true LEFT JOIN w ON true ORDER BY w.nr"

#define SECONDS(parameter) \
	"pg_catalog.make_interval(secs => " parameter "::pg_catalog.float8)"

/*
 * What remains of a number of seconds since the grant, by the clock reading in
 * the answer "t" to the renewal.
 */
#define REST_SINCE_GRANT(seconds) \
	"p.granted_at OPERATOR(pg_catalog.+) " SECONDS(seconds) \
	" OPERATOR(pg_catalog.-) (t.expires_at OPERATOR(pg_catalog.-)" \
	" pg_catalog.make_interval(secs =>" \
	" t.remaining_ms OPERATOR(pg_catalog./) 1000.0))"

/* Indexed by QueryKind. */
const Query queries[] = {
	[QUERY_ACQUIRE] = {
		TICKET_COLUMNS "lease_acquire(name => $1, owner => $2,"
		" lease => " SECONDS("$3") ", wait => " SECONDS("$4") ","
		" scope => $5, request_id => $6, note => $7) AS t", 7,
		ticket_columns, 1, 1
	},
	/* lease_peek() loads the library, which defines the settings */
	[QUERY_ACQUIRE_LONG] = {
		TICKET_COLUMNS "lease_acquire(name => $1, owner => $2,"
		" lease => " SECONDS("$3") ", wait => (SELECT LEAST(" SECONDS("$4") ","
		" pg_catalog.current_setting('leaselock.max_wait', true)"
		"::pg_catalog.interval) FROM (SELECT pg_catalog.count(*)"
		" FROM leaselock.lease_peek($1, $5)) AS p),"
		" scope => $5, request_id => $6, note => $7) AS t", 7,
		ticket_columns, 1, 1
	},
	[QUERY_GET] = {
		TICKET_COLUMNS "lease_get($1) AS t", 1, ticket_columns, 1, 1
	},
	[QUERY_RENEW] = {
		TICKET_COLUMNS "lease_renew($1, " SECONDS("$2") ") AS t", 2,
		ticket_columns, 1, 1
	},
	[QUERY_RELEASE] = {
		TICKET_COLUMNS "lease_release($1) AS t", 1, ticket_columns, 1, 1
	},
	/* the renewal preserves the grant until the hold is added to it */
	[QUERY_HOLD] = {
		"SELECT r.state, r.due, r.fence, pg_catalog.row_to_json(r) AS json FROM ("
		"SELECT t.state, k.due, CASE WHEN k.due THEN"
		" leaselock.try_lock($3, $4, k.rest, $5) END AS fence"
		" FROM leaselock.lease_renew($1, " SECONDS("$2") ") AS t"
		" LEFT JOIN LATERAL (SELECT l.rest, t.state OPERATOR(pg_catalog.=) 'held'"
		" AND l.rest OPERATOR(pg_catalog.>) '0'::pg_catalog.interval AS due"
		" FROM (SELECT " REST_SINCE_GRANT("$6") " AS rest"
		" FROM leaselock.lease_peek($3, $5) AS p) AS l) AS k ON true) AS r", 6,
		hold_columns, 1, 1
	},
	[QUERY_STATUS] = {
		STATUS_COLUMNS "lease_status AS s"
		" WHERE ($1::pg_catalog.text IS NULL"
		" OR s.scope OPERATOR(pg_catalog.=) $1) AND " LIVE_OR("$2")
		" ORDER BY s.scope COLLATE pg_catalog.\"C\","
		" s.name COLLATE pg_catalog.\"C\"", 2, status_columns, 0, INT32_MAX
	},
	[QUERY_PEEK] = {
		STATUS_COLUMNS "lease_peek($1, $2) AS s WHERE " LIVE_OR("$3"), 3,
		status_columns, 0, 1
	},
	[QUERY_QUEUE] = {
		"SELECT s.scope, s.name, s.owner, s.role, s.state, s.\"position\","
		" " AGE("s.requested_at") " AS age_ms, s.remaining_ms, s.note,"
		" pg_catalog.row_to_json(s) AS json FROM leaselock.lease_tickets AS s"
		" WHERE ($1::pg_catalog.text IS NULL"
		" OR s.scope OPERATOR(pg_catalog.=) $1)"
		" AND ($2::pg_catalog.text IS NULL OR s.name OPERATOR(pg_catalog.=) $2)"
		" ORDER BY s.scope COLLATE pg_catalog.\"C\","
		" s.name COLLATE pg_catalog.\"C\", s.\"position\" NULLS FIRST,"
		" s.requested_at, s.ticket", 2, queue_columns, 0, INT32_MAX
	},
	/* only the first rows */
	[QUERY_LIST] = {
		STATUS_COLUMNS "lease_status AS s"
		" WHERE $1::pg_catalog.text IS NULL"
		" OR s.scope OPERATOR(pg_catalog.=) $1"
		" ORDER BY s.scope COLLATE pg_catalog.\"C\","
		" s.name COLLATE pg_catalog.\"C\" LIMIT $2::pg_catalog.int8", 2,
		status_columns, 0, INT32_MAX
	},
	[QUERY_BREAK] = {
		"SELECT r.broken, pg_catalog.row_to_json(r) AS json FROM ("
		"SELECT b AS broken, $3::pg_catalog.text AS scope,"
		" $1::pg_catalog.text AS name, $2::pg_catalog.int8 AS fence"
		" FROM leaselock.lease_break($1, $2, $3) AS b) AS r", 3,
		break_columns, 1, 1
	},
	[QUERY_PRESENT] = {
		"SELECT pg_catalog.pg_snapshot_xmin(s) AS next_xid, s AS snapshot,"
		" '{}' AS json FROM pg_catalog.pg_current_snapshot() AS s", 0,
		present_columns, 1, 1
	},
	[QUERY_EVENTS] = {
		EVENTS, 6, event_columns, 1, 1000
	},
};

/* ---------------------------------------------------------------------
 * Tickets
 * ---------------------------------------------------------------------
 */

/* What a ticket's state means to the caller. */
static const struct
{
	const char *state;
	ExitCode	code;
}			states[] = {
	{"held", EXIT_DONE},
	{"waiting", EXIT_NOT_HELD},
	{"contended", EXIT_NOT_HELD},
	{"deadlock", EXIT_NOT_HELD},
	{"timed_out", EXIT_NOT_HELD},
	{"released", EXIT_LOST},
	{"expired", EXIT_LOST},
	{"cancelled", EXIT_LOST},
	{"broken", EXIT_LOST},
	{"gone", EXIT_LOST},
};

#define STATES ((int) (sizeof(states) / sizeof(states[0])))

static int
find_state(const char *state)
{
	for (int i = 0; i < STATES; i++)
		if (strcmp(states[i].state, state) == 0)
			return i;
	return -1;
}

/*
 * ticket_exit_code
 *	  EXIT_DONE: the ticket holds the lock.  EXIT_NOT_HELD: it does not, and a
 *	  retry makes sense.  EXIT_LOST: it has ended.
 */
ExitCode
ticket_exit_code(const char *state)
{
	int			i = find_state(state);

	return i < 0 ? EXIT_LOST : states[i].code;
}

bool
ticket_is_live(const char *state)
{
	return strcmp(state, "held") == 0 || strcmp(state, "waiting") == 0;
}

/*
 * column
 *	  A value of the first row; "" for NULL.
 */
static const char *
column(const PGresult *answer, const char *name)
{
	int			i = PQfnumber(answer, name);

	return i < 0 || PQgetisnull(answer, 0, i) ? "" : PQgetvalue(answer, 0, i);
}

/*
 * read_ticket
 *	  Reads everything but sent_at, which only the caller knows.
 */
void
read_ticket(const PGresult *answer, Ticket *ticket)
{
	snprintf(ticket->state, sizeof(ticket->state), "%s",
			 column(answer, "state"));
	snprintf(ticket->ticket, sizeof(ticket->ticket), "%s",
			 column(answer, "ticket"));
	snprintf(ticket->fence, sizeof(ticket->fence), "%s",
			 column(answer, "fence"));
	snprintf(ticket->holder, sizeof(ticket->holder), "%s",
			 column(answer, "holder"));
	ticket->position = atoi(column(answer, "position"));
	ticket->remaining_ms = strtoll(column(answer, "remaining_ms"), NULL, 10);
	ticket->next_call_ms = strtoll(column(answer, "next_call_ms"), NULL, 10);
}

/* ---------------------------------------------------------------------
 * Validation of answers
 * ---------------------------------------------------------------------
 */

bool
is_uuid(const char *value)
{
	static const char pattern[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
	size_t		i = 0;

	for (; pattern[i] && value[i]; i++)
		if (pattern[i] == '-' ? value[i] != '-' :
			!strchr("0123456789abcdefABCDEF", value[i]))
			return false;
	return pattern[i] == value[i];
}

/*
 * make_uuid
 *	  A random uuid (version 4) in hexadecimal digits.
 */
void
make_uuid(char *result, size_t size)
{
	unsigned char b[16];
	int			fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, b, sizeof(b)) != (ssize_t) sizeof(b))
	{
		complain("could not read /dev/urandom: %s", strerror(errno));
		exit(EXIT_SERVER);
	}
	close(fd);
	b[6] = (b[6] & 0x0F) | 0x40;
	b[8] = (b[8] & 0x3F) | 0x80;
	snprintf(result, size,
			 "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
			 b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/*
 * next_uuid
 *	  Increments a uuid by one.
 */
void
next_uuid(char *uuid)
{
	static const char digits[] = "0123456789abcdef";

	for (char *c = uuid + strlen(uuid) - 1; c >= uuid; c--)
	{
		const char *digit = strchr(digits, tolower((unsigned char) *c));

		if (*c == '-')
			continue;
		*c = digit && digit[1] ? digit[1] : '0';
		if (*c != '0')
			return;
	}
}

/*
 * is_number
 *	  Whether a value is a whole number within the bounds.
 */
bool
is_number(const char *value, int64_t min, int64_t max)
{
	long long	number;

	if (value[0] == '\0' || value[strspn(value, "0123456789")] != '\0')
		return false;
	errno = 0;
	number = strtoll(value, NULL, 10);
	return errno == 0 && number >= min && number <= max;
}

/*
 * number_is_valid
 *	  Likewise, for a column.  It may be NULL unless needed.
 */
static bool
number_is_valid(const PGresult *answer, const char *name, bool needed,
				int64_t min, int64_t max)
{
	const char *value = column(answer, name);

	return value[0] == '\0' ? !needed : is_number(value, min, max);
}

static bool
ticket_is_valid(const PGresult *answer)
{
	const char *state = column(answer, "state");
	const char *ticket = column(answer, "ticket");
	const int64_t max_ms = (int64_t) (MAX_SECONDS * 1000);
	bool		held = strcmp(state, "held") == 0;
	bool		live = ticket_is_live(state);

	return find_state(state) >= 0 &&
		(ticket[0] == '\0' ? !live : is_uuid(ticket)) &&
		number_is_valid(answer, "fence", held, 1, INT64_MAX) &&
		number_is_valid(answer, "position", false, 0, INT32_MAX) &&
		number_is_valid(answer, "remaining_ms", live, 0, max_ms) &&
		number_is_valid(answer, "next_call_ms", live, 0, max_ms);
}

static bool
columns_are_valid(const PGresult *answer, const char *const *columns)
{
	int			count = 0;

	for (; columns[count]; count++)
		if (count >= PQnfields(answer) ||
			strcmp(PQfname(answer, count), columns[count]) != 0)
			return false;
	return count == PQnfields(answer);
}

/*
 * cursor_is_valid
 *	  Whether the cursor for the next page of events is valid.
 */
static bool
cursor_is_valid(const PGresult *answer)
{
	const char *more = column(answer, "more");

	return number_is_valid(answer, "next_xid", true, 0, INT64_MAX) &&
		number_is_valid(answer, "next_id", true, 0, INT64_MAX) &&
		(strcmp(more, "t") == 0 || strcmp(more, "f") == 0);
}

static bool
present_is_valid(const PGresult *answer)
{
	const char *snapshot = column(answer, "snapshot");

	return number_is_valid(answer, "next_xid", true, 0, INT64_MAX) &&
		snapshot[0] != '\0' &&
		snapshot[strspn(snapshot, "0123456789:,")] == '\0';
}

/*
 * answer_is_valid
 *	  Whether an answer is valid for its query.
 */
bool
answer_is_valid(QueryKind query, const PGresult *answer)
{
	const Query *expected = &queries[query];
	int			json = PQnfields(answer) - 1;

	if (!columns_are_valid(answer, expected->columns) ||
		PQntuples(answer) < expected->min_rows ||
		PQntuples(answer) > expected->max_rows)
		return false;
	for (int row = 0; row < PQntuples(answer); row++)
		if (PQgetvalue(answer, row, json)[0] != '{')
			return false;
	if (expected->columns == hold_columns)
		return find_state(column(answer, "state")) >= 0 &&
			number_is_valid(answer, "fence", column(answer, "due")[0] == 't',
							1, INT64_MAX);
	if (expected->columns == break_columns)
		return strchr("tf", PQgetvalue(answer, 0, 0)[0]) != NULL &&
			PQgetlength(answer, 0, 0) == 1;
	if (expected->columns == event_columns)
		return cursor_is_valid(answer);
	if (expected->columns == present_columns)
		return present_is_valid(answer);
	return expected->columns != ticket_columns || ticket_is_valid(answer);
}
