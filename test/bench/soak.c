/*-------------------------------------------------------------------------
 *
 * soak.c
 *	  The client of test/bench/soak: sessions of several kinds at work, and what
 *	  they and the server came to, minute by minute.
 *
 *	  soak CONNINFO SESSIONS MINUTES SECONDS
 *
 * Each session is a thread with a connection of its own, which it keeps.  SECONDS
 * is how long a minute is.  At the end of each a line for each figure is printed:
 * the minute, the figure's name, its value.
 *
 * Whatever is not an answer that must be possible ends the program with 1.  So do
 * two holders of one lock, a fence that does not grow, a stale write that is not
 * refused, and events that do not tell of every grant.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

/* Between two calls of a session, at most. */
#define PAUSE_US		100000

/* Names that sessions take at random, but for some that are used only once. */
#define TICKET_NAMES	2000
#define NAMED_NAMES		500
#define DOCUMENTS		500

/* Locks that sessions queue for. */
#define HOT_LOCKS		6

#define MAX_ARGS		6

/* How long the events of all grants may take to show, when the work has ended. */
#define LAST_EVENTS_S	60

typedef enum Kind
{
	TICKETS,
	NAMED,
	POLLING,
	WAITING,
	FENCED,
	IDLE,
	PRUNE,
	EVENTS
} Kind;

#define KINDS			(EVENTS + 1)

static const char *const kind_names[KINDS] = {
	"tickets", "named", "polling", "waiting", "fenced", "idle", "prune", "events"
};

/* Of twenty sessions; the first two of all prune and read events. */
static const Kind kinds_of_twenty[20] = {
	TICKETS, NAMED, POLLING, WAITING, FENCED,
	TICKETS, NAMED, POLLING, WAITING, FENCED,
	TICKETS, NAMED, POLLING, WAITING, FENCED,
	TICKETS, NAMED, TICKETS, TICKETS, IDLE
};

typedef enum Statement
{
	ACQUIRE,
	GET,
	RENEW,
	RELEASE,
	WAIT,
	ACQUIRE_WAIT,
	TRY_LOCK,
	RENEW_LOCK,
	RELEASE_LOCK,
	BEGIN,
	ASSERT,
	WRITE,
	COMMIT,
	PRUNE_NOW,
	READ_EVENTS,
	STATUS
} Statement;

#define STATEMENTS		(STATUS + 1)

static const char *const statements[STATEMENTS] = {
	"SELECT state, ticket, fence, next_call_ms FROM leaselock.lease_acquire($1, $2, $3::interval, $4::interval, request_id => $5::uuid)",
	"SELECT state, ticket, fence, next_call_ms FROM leaselock.lease_get($1)",
	"SELECT state FROM leaselock.lease_renew($1)",
	"SELECT state FROM leaselock.lease_release($1)",
	"CALL leaselock.lease_wait($1)",
	"CALL leaselock.lease_acquire_wait($1, $2, '60 s', '300 s')",
	"SELECT leaselock.try_lock($1, $2, '60 s')",
	"SELECT leaselock.renew_lock($1, $2, '60 s')",
	"SELECT leaselock.release_lock($1, $2)",
	"BEGIN",
	"SELECT leaselock.fence_assert($1, $2)",
	"UPDATE document SET revision = revision + 1, fence = $2::bigint WHERE name = $1",
	"COMMIT",
	"SELECT leaselock.lease_prune($1::interval)",
	"SELECT xid, id, kind FROM leaselock.lease_events($1::xid8, $2::bigint)",
	"SELECT count(*) FROM leaselock.lease_peek($1)"
};

typedef struct Session
{
	Kind		kind;
	int			id;
	PGconn	   *conn;
	int			pid;			/* of its backend */
	char		owner[32];
	unsigned int seed;
	long		once;			/* names that it has used once */
	atomic_long calls;
	char		ticket[64];
	char		fence[32];
	int			next_call_ms;
	char		xid[32];		/* of the last event that was read */
	char		event[32];
} Session;

/* A lock that sessions queue for. */
typedef struct Hot
{
	pthread_mutex_t mutex;
	bool		held;
	int64_t		fence;
} Hot;

static Session *sessions;
static int	session_count;
static int	minute_seconds;
static Hot	hot[HOT_LOCKS];
static atomic_bool stopping;
static atomic_int working;		/* sessions that make grants, and have not ended */
static atomic_long grants;		/* that sessions know of */
static atomic_long lost;		/* tickets that came to a time-out */
static long grant_events;		/* that were read */

static void
fail(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	fprintf(stderr, "soak: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int
any(Session *session, int count)
{
	return rand_r(&session->seed) % count;
}

static void
pause_a_while(Session *session)
{
	usleep(any(session, PAUSE_US));
}

/* ----------------------------------------------------------------------
 * Statements
 * ----------------------------------------------------------------------
 */

/* Runs a statement with so many arguments, all of them text or NULL. */
static PGresult *
run(Session *session, Statement statement, int count,...)
{
	const char *args[MAX_ARGS];
	char		name[16];
	va_list		list;

	va_start(list, count);
	for (int i = 0; i < count; i++)
		args[i] = va_arg(list, const char *);
	va_end(list);
	snprintf(name, sizeof(name), "s%d", statement);
	atomic_fetch_add(&session->calls, 1);
	return PQexecPrepared(session->conn, name, count, args, NULL, NULL, 0);
}

static void
check(Session *session, PGresult *result, Statement statement)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		fail("%s: %s: %s", session->owner, statements[statement],
			 PQerrorMessage(session->conn));
}

/* Whether the answer is one row, whose first value is the given one. */
static bool
answers(Session *session, PGresult *result, Statement statement,
		const char *expected)
{
	bool		same;

	check(session, result, statement);
	same = PQntuples(result) == 1 && strcmp(PQgetvalue(result, 0, 0), expected) == 0;
	PQclear(result);
	return same;
}

static void
expect(Session *session, PGresult *result, Statement statement,
	   const char *expected)
{
	if (!answers(session, result, statement, expected))
		fail("%s: %s: not %s", session->owner, statements[statement], expected);
}

static void
execute(Session *session, Statement statement)
{
	PGresult   *result = run(session, statement, 0);

	check(session, result, statement);
	PQclear(result);
}

/* Keeps what a ticket call has answered; whether the ticket is held. */
static bool
keep_ticket(Session *session, PGresult *result, Statement statement,
			char *state, size_t size)
{
	check(session, result, statement);
	snprintf(state, size, "%s", PQgetvalue(result, 0, 0));
	snprintf(session->ticket, sizeof(session->ticket), "%s", PQgetvalue(result, 0, 1));
	snprintf(session->fence, sizeof(session->fence), "%s", PQgetvalue(result, 0, 2));
	session->next_call_ms = atoi(PQgetvalue(result, 0, 3));
	PQclear(result);
	return strcmp(state, "held") == 0;
}

static bool
acquire(Session *session, const char *name, const char *lease, const char *wait,
		const char *request, char *state, size_t size)
{
	return keep_ticket(session, run(session, ACQUIRE, 5, name, session->owner,
									lease, wait, request),
					   ACQUIRE, state, size);
}

static void
release(Session *session)
{
	expect(session, run(session, RELEASE, 1, session->ticket), RELEASE, "released");
}

/* A name of a kind, one in four of which nobody uses again. */
static void
choose_name(Session *session, const char *prefix, int count, char *name, size_t size)
{
	if (any(session, 4) == 0)
		snprintf(name, size, "once.%d.%ld", session->id, session->once++);
	else
		snprintf(name, size, "%s.%d", prefix, any(session, count));
}

static void
make_uuid(Session *session, char *uuid, size_t size)
{
	snprintf(uuid, size, "%08x-%04x-4%03x-8%03x-%08x%04x", (unsigned) rand_r(&session->seed),
			 any(session, 65536), any(session, 4096), any(session, 4096),
			 (unsigned) rand_r(&session->seed), any(session, 65536));
}

/* ----------------------------------------------------------------------
 * What sessions do
 * ----------------------------------------------------------------------
 */

/* Acquire, sometimes twice by request id; renew; release, but for one in fifty. */
static void
work_tickets(Session *session)
{
	char		name[64];
	char		state[32];
	char		request[64];
	char		first[64];
	bool		careless = any(session, 50) == 0;

	choose_name(session, "job", TICKET_NAMES, name, sizeof(name));
	make_uuid(session, request, sizeof(request));
	if (!acquire(session, name, careless ? "5 s" : "60 s", "0 s", request, state, sizeof(state)))
	{
		if (strcmp(state, "contended") != 0)
			fail("%s: acquired %s: %s", session->owner, name, state);
		return;
	}
	atomic_fetch_add(&grants, 1);
	if (careless)
		return;
	strcpy(first, session->ticket);
	pause_a_while(session);
	if (any(session, 4) == 0 &&
		(!acquire(session, name, "60 s", "0 s", request, state, sizeof(state)) ||
		 strcmp(first, session->ticket) != 0))
		fail("%s: a retry has another ticket, %s", session->owner, state);
	if (any(session, 2) == 0)
		expect(session, run(session, RENEW, 1, session->ticket), RENEW, "held");
	pause_a_while(session);
	release(session);
}

static void
work_named(Session *session)
{
	char		name[64];
	PGresult   *result;

	choose_name(session, "hold", NAMED_NAMES, name, sizeof(name));
	result = run(session, TRY_LOCK, 2, name, session->owner);
	check(session, result, TRY_LOCK);
	if (PQgetisnull(result, 0, 0))
	{
		PQclear(result);
		return;
	}
	PQclear(result);
	atomic_fetch_add(&grants, 1);
	pause_a_while(session);
	if (any(session, 2) == 0)
		expect(session, run(session, RENEW_LOCK, 2, name, session->owner), RENEW_LOCK, "t");
	pause_a_while(session);
	expect(session, run(session, RELEASE_LOCK, 2, name, session->owner), RELEASE_LOCK, "t");
}

/* A lock that was waited for is held for a while, and given back. */
static void
hold_hot(Session *session, int which)
{
	Hot		   *lock = &hot[which];
	int64_t		fence = atoll(session->fence);

	atomic_fetch_add(&grants, 1);
	pthread_mutex_lock(&lock->mutex);
	if (lock->held || fence <= lock->fence)
		fail("%s: hot.%d: fence %s after %lld, %s", session->owner, which, session->fence,
			 (long long) lock->fence, lock->held ? "while it is held" : "free");
	lock->held = true;
	lock->fence = fence;
	pthread_mutex_unlock(&lock->mutex);

	usleep(any(session, PAUSE_US / 4));

	pthread_mutex_lock(&lock->mutex);
	lock->held = false;
	pthread_mutex_unlock(&lock->mutex);
	release(session);
}

/* Whether a ticket that had waited is held.  Where not, its wait may be over. */
static bool
is_held(Session *session, const char *state)
{
	if (strcmp(state, "held") == 0)
		return true;
	if (strcmp(state, "timed_out") != 0 && strcmp(state, "expired") != 0)
		fail("%s: waited: %s", session->owner, state);
	atomic_fetch_add(&lost, 1);
	return false;
}

static void
work_polling(Session *session)
{
	char		name[64];
	char		state[32];
	int			which = any(session, HOT_LOCKS);

	snprintf(name, sizeof(name), "hot.%d", which);
	acquire(session, name, "60 s", "300 s", NULL, state, sizeof(state));
	while (strcmp(state, "waiting") == 0)
	{
		usleep(session->next_call_ms * 1000);
		keep_ticket(session, run(session, GET, 1, session->ticket), GET, state, sizeof(state));
	}
	if (is_held(session, state))
		hold_hot(session, which);
}

/* By turns in one call and in two. */
static void
work_waiting(Session *session)
{
	char		name[64];
	char		state[32];
	PGresult   *result;
	int			which = any(session, HOT_LOCKS);

	snprintf(name, sizeof(name), "hot.%d", which);
	if (any(session, 2) == 0)
	{
		result = run(session, ACQUIRE_WAIT, 2, name, session->owner);
		check(session, result, ACQUIRE_WAIT);
		snprintf(session->ticket, sizeof(session->ticket), "%s", PQgetvalue(result, 0, 0));
		snprintf(state, sizeof(state), "%s", PQgetvalue(result, 0, 1));
		snprintf(session->fence, sizeof(session->fence), "%s", PQgetvalue(result, 0, 2));
		PQclear(result);
	}
	else if (!acquire(session, name, "60 s", "300 s", NULL, state, sizeof(state)))
	{
		result = run(session, WAIT, 1, session->ticket);
		check(session, result, WAIT);
		snprintf(state, sizeof(state), "%s", PQgetvalue(result, 0, 0));
		snprintf(session->fence, sizeof(session->fence), "%s", PQgetvalue(result, 0, 1));
		PQclear(result);
	}
	if (is_held(session, state))
		hold_hot(session, which);
}

/* A fenced write; one in ten is tried again when the lease is given back. */
static void
work_fenced(Session *session)
{
	char		name[64];
	char		state[32];
	PGresult   *result;
	const char *sqlstate;

	snprintf(name, sizeof(name), "document.%d", any(session, DOCUMENTS));
	if (!acquire(session, name, "60 s", "0 s", NULL, state, sizeof(state)))
		return;
	atomic_fetch_add(&grants, 1);
	pause_a_while(session);
	execute(session, BEGIN);
	result = run(session, ASSERT, 2, name, session->fence);
	check(session, result, ASSERT);
	PQclear(result);
	result = run(session, WRITE, 2, name, session->fence);
	check(session, result, WRITE);
	if (strcmp(PQcmdTuples(result), "1") != 0)
		fail("%s: %s is not there", session->owner, name);
	PQclear(result);
	execute(session, COMMIT);
	release(session);
	if (any(session, 10) != 0)
		return;
	result = run(session, WRITE, 2, name, session->fence);
	sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	if (sqlstate == NULL || strcmp(sqlstate, "LS001") != 0)
		fail("%s: a stale write is not refused: %s", session->owner, PQerrorMessage(session->conn));
	PQclear(result);
}

/* Holds one lock for a long time, and is idle but for its renewals. */
static void
work_idle(Session *session)
{
	char		name[64];
	char		state[32];

	snprintf(name, sizeof(name), "idle.%d", session->id);
	if (session->ticket[0] == '\0')
	{
		if (!acquire(session, name, "60 s", "0 s", NULL, state, sizeof(state)))
			fail("%s: acquired: %s", session->owner, state);
		atomic_fetch_add(&grants, 1);
	}
	expect(session, run(session, RENEW, 1, session->ticket), RENEW, "held");
	expect(session, run(session, STATUS, 1, name), STATUS, "1");
	for (int i = 0; i < 100 && !stopping; i++)
		pause_a_while(session);
}

static void
work_prune(Session *session)
{
	char		older[32];

	snprintf(older, sizeof(older), "%d s", minute_seconds);
	while (!answers(session, run(session, PRUNE_NOW, 1, older), PRUNE_NOW, "0"))
		;
	for (int i = 0; i < 60 && !stopping; i++)
		pause_a_while(session);
}

/* All events that are there; whether there were any. */
static bool
read_events(Session *session)
{
	bool		first = session->xid[0] == '\0';
	PGresult   *result = run(session, READ_EVENTS, 2, first ? NULL : session->xid,
							 first ? NULL : session->event);
	int			count = PQntuples(result);

	check(session, result, READ_EVENTS);
	for (int i = 0; i < count; i++)
	{
		const char *xid = PQgetvalue(result, i, 0);
		const char *event = PQgetvalue(result, i, 1);
		const char *kind = PQgetvalue(result, i, 2);

		if (session->xid[0] != '\0' &&
			(atoll(xid) < atoll(session->xid) ||
			 (atoll(xid) == atoll(session->xid) && atoll(event) <= atoll(session->event))))
			fail("event %s,%s after %s,%s", xid, event, session->xid, session->event);
		if (strcmp(kind, "granted") == 0 || strcmp(kind, "promoted") == 0)
			grant_events++;
		snprintf(session->xid, sizeof(session->xid), "%s", xid);
		snprintf(session->event, sizeof(session->event), "%s", event);
	}
	PQclear(result);
	return count > 0;
}

static void
work_events(Session *session)
{
	while (read_events(session))
		;
	pause_a_while(session);
}

/*
 * What the others did last.  A transaction that is open anywhere, autovacuum's
 * too, holds back the events behind it.
 */
static void
read_last_events(Session *session)
{
	double		deadline;

	while (working > 0)
		work_events(session);
	deadline = now() + LAST_EVENTS_S;
	while (grant_events < grants && now() < deadline)
		work_events(session);
	work_events(session);
}

static void (*const work[KINDS]) (Session *session) = {
	work_tickets, work_named, work_polling, work_waiting, work_fenced, work_idle,
	work_prune, work_events
};

static bool
makes_grants(Kind kind)
{
	return kind != PRUNE && kind != EVENTS;
}

static void *
run_session(void *argument)
{
	Session    *session = argument;

	while (!stopping)
	{
		work[session->kind] (session);
		if (makes_grants(session->kind))
			pause_a_while(session);
	}
	if (session->kind == EVENTS)
		read_last_events(session);
	if (makes_grants(session->kind))
		atomic_fetch_sub(&working, 1);
	return NULL;
}

static void
open_session(Session *session, int id, const char *conninfo)
{
	session->id = id;
	session->kind = id == 0 ? PRUNE : id == 1 ? EVENTS : kinds_of_twenty[id % 20];
	session->conn = PQconnectdb(conninfo);
	if (PQstatus(session->conn) != CONNECTION_OK)
		fail("%s", PQerrorMessage(session->conn));
	session->pid = PQbackendPID(session->conn);
	session->seed = id + 1;
	snprintf(session->owner, sizeof(session->owner), "%s-%d", kind_names[session->kind], id);
	for (int i = 0; i < STATEMENTS; i++)
	{
		char		name[16];
		PGresult   *result;

		snprintf(name, sizeof(name), "s%d", i);
		result = PQprepare(session->conn, name, statements[i], 0, NULL);
		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			fail("%s", PQerrorMessage(session->conn));
		PQclear(result);
	}
	working += makes_grants(session->kind);
}

/* ----------------------------------------------------------------------
 * Minute by minute
 * ----------------------------------------------------------------------
 */

/* The memory, in kB, that a process has for itself. */
static double
memory_of(int pid)
{
	char		path[64];
	char		line[256];
	double		kb = -1;
	FILE	   *file;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
	file = fopen(path, "r");
	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		sscanf(line, "Pss_Anon: %lf", &kb);
	if (file == NULL || kb < 0)
		fail("cannot read the memory of %d", pid);
	fclose(file);
	return kb;
}

/* The time, in us, that a process has been on a processor. */
static double
time_of(int pid)
{
	char		path[64];
	double		ns;
	FILE	   *file;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", pid);
	file = fopen(path, "r");
	if (file == NULL || fscanf(file, "%lf", &ns) != 1)
		fail("cannot read the time of %d", pid);
	fclose(file);
	return ns / 1000;
}

static void
print_memory(int minute)
{
	double		sum[KINDS] = {0};
	int			count[KINDS] = {0};
	double		all = 0;

	for (int i = 0; i < session_count; i++)
	{
		double		kb = memory_of(sessions[i].pid);

		printf("%d\tkB of backend %d (%s)\t%.0f\n", minute, i, kind_names[sessions[i].kind], kb);
		sum[sessions[i].kind] += kb;
		count[sessions[i].kind]++;
		all += kb;
	}
	printf("%d\tkB of all backends\t%.0f\n", minute, all);
	for (int kind = 0; kind < KINDS; kind++)
		printf("%d\tkB a backend, %s\t%.0f\n", minute, kind_names[kind], sum[kind] / count[kind]);
}

/* The sizes of all tables and of their indexes. */
static void
print_sizes(PGconn *conn, int minute)
{
	PGresult   *result = PQexec(conn,
								"SELECT relname, pg_table_size(oid) / 1024, pg_indexes_size(oid) / 1024 FROM pg_class "
								"WHERE relkind = 'r' AND (relnamespace = 'leaselock'::regnamespace OR relname = 'document') ORDER BY 1");

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		fail("%s", PQerrorMessage(conn));
	for (int i = 0; i < PQntuples(result); i++)
	{
		printf("%d\tkB of table %s\t%s\n", minute, PQgetvalue(result, i, 0), PQgetvalue(result, i, 1));
		printf("%d\tkB of indexes of %s\t%s\n", minute, PQgetvalue(result, i, 0), PQgetvalue(result, i, 2));
	}
	PQclear(result);
}

/* The calls, and the processor time of one, of a kind of sessions or of all. */
static void
print_rate(int minute, double seconds, const char *kind, long calls, double time)
{
	const char *comma = kind[0] != '\0' ? ", " : "";

	printf("%d\tcalls per s%s%s\t%.2f\n", minute, comma, kind, calls / seconds);
	printf("%d\tus of CPU a call%s%s\t%.2f\n", minute, comma, kind, time / calls);
}

/* What has been done since the last minute; nothing is printed of minute 0. */
static void
print_rates(int minute, double seconds)
{
	static long calls_before[KINDS];
	static double time_before[KINDS];
	long		calls[KINDS] = {0};
	double		time[KINDS] = {0};
	long		all_calls = 0;
	double		all_time = 0;

	for (int i = 0; i < session_count; i++)
	{
		calls[sessions[i].kind] += sessions[i].calls;
		time[sessions[i].kind] += time_of(sessions[i].pid);
	}
	for (int kind = 0; kind < KINDS; kind++)
	{
		long		its_calls = calls[kind] - calls_before[kind];
		double		its_time = time[kind] - time_before[kind];

		if (minute > 0)
			print_rate(minute, seconds, kind_names[kind], its_calls, its_time);
		all_calls += its_calls;
		all_time += its_time;
		calls_before[kind] = calls[kind];
		time_before[kind] = time[kind];
	}
	if (minute > 0)
		print_rate(minute, seconds, "", all_calls, all_time);
}

int
main(int argc, char **argv)
{
	pthread_t  *threads;
	PGconn	   *conn;
	int			minutes;
	double		last;

	if (argc != 5)
		fail("usage: soak CONNINFO SESSIONS MINUTES SECONDS");
	session_count = atoi(argv[2]);
	minutes = atoi(argv[3]);
	minute_seconds = atoi(argv[4]);
	if (session_count < 20 || session_count % 20 != 0)
		fail("sessions come in twenties");
	setvbuf(stdout, NULL, _IOLBF, 0);
	sessions = calloc(session_count, sizeof(Session));
	threads = calloc(session_count, sizeof(pthread_t));
	for (int i = 0; i < HOT_LOCKS; i++)
		pthread_mutex_init(&hot[i].mutex, NULL);
	for (int i = 0; i < session_count; i++)
		open_session(&sessions[i], i, argv[1]);
	conn = PQconnectdb(argv[1]);

	print_rates(0, 0);
	last = now();
	for (int i = 0; i < session_count; i++)
		pthread_create(&threads[i], NULL, run_session, &sessions[i]);
	for (int minute = 1; minute <= minutes; minute++)
	{
		double		due = last + minute_seconds;
		double		ended;

		while (now() < due)
			usleep(10000);
		ended = now();
		print_rates(minute, ended - last);
		last = ended;
		print_memory(minute);
		print_sizes(conn, minute);
	}
	stopping = true;
	for (int i = 0; i < session_count; i++)
		pthread_join(threads[i], NULL);

	fprintf(stderr, "%ld grants, %ld of them in events, %ld waits that came to nothing\n",
			grants, grant_events, lost);
	if (grant_events < grants || grant_events > grants + lost)
		fail("events do not tell of every grant");
	return 0;
}
