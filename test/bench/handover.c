/*-------------------------------------------------------------------------
 *
 * handover.c
 *	  The client of test/bench/handover: hands one lock from worker to worker,
 *	  and prints how long each hand-over took.
 *
 *	  handover CONNINFO HOW WORKERS HANDOVERS
 *
 * Each worker is a thread with a connection of its own.  It acquires the lock
 * and holds it until the server, or this program, knows that all others wait,
 * and for up to 50 ms more, so that a release falls into any point of a poll's
 * delay.  Then it releases the lock, and queues again once another holds it.
 *
 * Prints a line for each hand-over: the microseconds until the next worker has
 * its answer, first from just before the release was sent, then from the
 * answer to the release.  The second is negative if the next worker was faster
 * than the releaser.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#define POLL_MS		50
#define MAX_PAUSE_US	50000

/* The first hand-overs find cold caches and are not printed. */
#define WARM_UP		3

typedef struct Worker
{
	int			id;
	PGconn	   *conn;
	char		owner[32];
	char		ticket[64];
	unsigned int seed;
} Worker;

/* One way to hand over a lock. */
typedef struct How
{
	const char *name;
	const char *const *statements;	/* to prepare, as "s0", "s1", ... */
	const char *listen;			/* to run first */
	const char *blocked;		/* counts the blocked; NULL: use "waiting" */
	void		(*take) (Worker *worker);
	void		(*release) (Worker *worker);
} How;

static const How *how;
static int	workers;
static int	handovers;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t taken = PTHREAD_COND_INITIALIZER;
static bool held = false;
static int	grants = 0;			/* so far; the number of the next grant */
static int	waiting = 0;		/* workers that have failed to get the lock */
static int	left = 0;			/* workers that have finished */
static int64_t last_fence = 0;

/* By the number of the grant that followed. */
static int64_t *sent_at;
static int64_t *answered_at;
static int64_t *taken_at;

static void
fail(const char *what, const char *why)
{
	fprintf(stderr, "handover: %s: %s\n", what, why);
	exit(1);
}

static int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ----------------------------------------------------------------------
 * Statements
 * ----------------------------------------------------------------------
 */

static PGresult *
check_result(PGconn *conn, PGresult *result, const char *what)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		fail(what, PQerrorMessage(conn));
	return result;
}

/* Runs a prepared statement with one or no argument. */
static PGresult *
run(Worker *worker, const char *statement, const char *argument)
{
	return check_result(worker->conn,
						PQexecPrepared(worker->conn, statement, argument != NULL,
									   &argument, NULL, NULL, 0), statement);
}

/* Runs a statement; returns the number of rows that it wrote. */
static int
run_write(Worker *worker, const char *statement)
{
	PGresult   *result = run(worker, statement, worker->owner);
	int			rows = atoi(PQcmdTuples(result));

	PQclear(result);
	return rows;
}

/* Runs a statement that must answer with one value. */
static void
run_expecting(Worker *worker, const char *statement, const char *argument,
			  const char *value)
{
	PGresult   *result = run(worker, statement, argument);

	if (PQntuples(result) != 1 || strcmp(PQgetvalue(result, 0, 0), value) != 0)
		fail(statement, "not the expected answer");
	PQclear(result);
}

static void
connect_worker(Worker *worker, const char *conninfo)
{
	worker->conn = PQconnectdb(conninfo);
	if (PQstatus(worker->conn) != CONNECTION_OK)
		fail("connect", PQerrorMessage(worker->conn));
	snprintf(worker->owner, sizeof(worker->owner), "worker-%d", worker->id);
	worker->seed = worker->id + (unsigned int) now_ns();
	for (int i = 0; how->statements[i] != NULL; i++)
	{
		char		name[16];

		snprintf(name, sizeof(name), "s%d", i);
		PQclear(check_result(worker->conn,
							 PQprepare(worker->conn, name, how->statements[i],
									   0, NULL), how->statements[i]));
	}
	PQclear(check_result(worker->conn,
						 PQexec(worker->conn, "SET application_name = worker"),
						 "SET"));
	if (how->listen != NULL)
		PQclear(check_result(worker->conn, PQexec(worker->conn, how->listen),
							 how->listen));
}

/* ----------------------------------------------------------------------
 * leaselock
 * ----------------------------------------------------------------------
 */

/* Each grant must have a greater fence than the previous grant. */
static void
check_grant(const char *state, const char *fence)
{
	int64_t		number = atoll(fence);

	if (strcmp(state, "held") != 0)
		fail("not held but", state);
	if (number <= last_fence)
		fail("not above the last fence", fence);
	last_fence = number;
}

static const char *const acquire_wait_statements[] = {
	"CALL leaselock.lease_acquire_wait('bench', $1, '60 s', '300 s')",
	"SELECT state FROM leaselock.lease_release($1)",
	NULL
};

static void
take_acquire_wait(Worker *worker)
{
	PGresult   *result = run(worker, "s0", worker->owner);

	strcpy(worker->ticket, PQgetvalue(result, 0, 0));
	check_grant(PQgetvalue(result, 0, 1), PQgetvalue(result, 0, 2));
	PQclear(result);
}

static const char *const wait_statements[] = {
	"SELECT ticket, state, fence FROM leaselock.lease_acquire('bench', $1, '60 s', '300 s')",
	"SELECT state FROM leaselock.lease_release($1)",
	"CALL leaselock.lease_wait($1)",
	NULL
};

static void
take_wait(Worker *worker)
{
	PGresult   *result = run(worker, "s0", worker->owner);
	int			column = 1;

	strcpy(worker->ticket, PQgetvalue(result, 0, 0));
	if (strcmp(PQgetvalue(result, 0, 1), "waiting") == 0)
	{
		PQclear(result);
		result = run(worker, "s2", worker->ticket);
		column = 0;
	}
	check_grant(PQgetvalue(result, 0, column), PQgetvalue(result, 0, column + 1));
	PQclear(result);
}

static void
release_ticket(Worker *worker)
{
	run_expecting(worker, "s1", worker->ticket, "released");
}

/* ----------------------------------------------------------------------
 * An advisory lock, and what makes it durable
 * ----------------------------------------------------------------------
 */

static const char *const advisory_statements[] = {
	"SELECT 'locked' FROM pg_advisory_lock(1)",
	"SELECT pg_advisory_unlock(1)",
	"UPDATE locks SET owner = $1, fence = fence + 1 WHERE name = 'bench'",
	NULL
};

static void
take_advisory(Worker *worker)
{
	run_expecting(worker, "s0", NULL, "locked");
	if (run_write(worker, "s2") != 1)
		fail("advisory", "the row is missing");
}

static void
release_advisory(Worker *worker)
{
	run_expecting(worker, "s1", NULL, "t");
}

/* ----------------------------------------------------------------------
 * A table of locks, polled or listened for
 * ----------------------------------------------------------------------
 */

static const char *const table_statements[] = {
	"UPDATE locks SET owner = $1, fence = fence + 1 WHERE name = 'bench' AND owner IS NULL",
	"UPDATE locks SET owner = NULL WHERE name = 'bench' AND owner = $1",
	NULL
};

static const char *const notify_statements[] = {
	"UPDATE locks SET owner = $1, fence = fence + 1 WHERE name = 'bench' AND owner IS NULL",
	"WITH freed AS (UPDATE locks SET owner = NULL WHERE name = 'bench' AND owner = $1 RETURNING 1) SELECT 'notified' FROM freed, pg_notify('lock', '')",
	NULL
};

static void
count_waiting(int step)
{
	pthread_mutex_lock(&mutex);
	waiting += step;
	pthread_mutex_unlock(&mutex);
}

/* Tries until the row is ours; "next" waits between two tries. */
static void
take_row(Worker *worker, void (*next) (Worker *worker))
{
	bool		counted = false;

	while (run_write(worker, "s0") != 1)
	{
		if (!counted)
			count_waiting(1);
		counted = true;
		next(worker);
	}
	if (counted)
		count_waiting(-1);
}

static void
sleep_poll(Worker *worker)
{
	(void) worker;
	usleep(POLL_MS * 1000);
}

static void
take_poll(Worker *worker)
{
	take_row(worker, sleep_poll);
}

static void
release_row(Worker *worker)
{
	if (run_write(worker, "s1") != 1)
		fail("release", "the row is not ours");
}

/*
 * Sleeps until a notification arrives.  One that arrived during the last try
 * counts too, because the try may have been too early.
 */
static void
sleep_notify(Worker *worker)
{
	struct pollfd socket = {PQsocket(worker->conn), POLLIN, 0};
	PGnotify   *notify;
	bool		notified = false;

	for (;;)
	{
		if (!PQconsumeInput(worker->conn))
			fail("notify", PQerrorMessage(worker->conn));
		while ((notify = PQnotifies(worker->conn)) != NULL)
		{
			notified = true;
			PQfreemem(notify);
		}
		if (notified)
			return;
		(void) poll(&socket, 1, -1);
	}
}

static void
take_notify(Worker *worker)
{
	take_row(worker, sleep_notify);
}

static void
release_notify(Worker *worker)
{
	run_expecting(worker, "s1", worker->owner, "notified");
}

/* ----------------------------------------------------------------------
 * Workers
 * ----------------------------------------------------------------------
 */

#define BLOCKED(type) \
	"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND application_name = 'worker' AND wait_event_type = '" type "'"

static const How hows[] = {
	{"lease_wait", wait_statements, NULL, BLOCKED("Extension"), take_wait, release_ticket},
	{"acquire_wait", acquire_wait_statements, NULL, BLOCKED("Extension"), take_acquire_wait, release_ticket},
	{"advisory", advisory_statements, NULL, BLOCKED("Lock"), take_advisory, release_advisory},
	{"poll", table_statements, NULL, NULL, take_poll, release_row},
	{"notify", notify_statements, "LISTEN lock", NULL, take_notify, release_notify}
};

/* Whether all other workers that have not finished wait. */
static bool
all_wait(Worker *worker)
{
	int			others;
	int			blocked;

	pthread_mutex_lock(&mutex);
	others = workers - 1 - left;
	blocked = waiting;
	pthread_mutex_unlock(&mutex);
	if (how->blocked != NULL)
	{
		PGresult   *result = check_result(worker->conn,
										  PQexec(worker->conn, how->blocked),
										  "count");

		blocked = atoi(PQgetvalue(result, 0, 0));
		PQclear(result);
	}
	return blocked == others;
}

static void
await_others(Worker *worker)
{
	int64_t		deadline = now_ns() + INT64_C(30000000000);

	while (!all_wait(worker))
	{
		if (now_ns() > deadline)
			fail(how->name, "the other workers do not wait");
		usleep(1000);
	}
	usleep(rand_r(&worker->seed) % MAX_PAUSE_US);
}

/* Records a grant, and returns its number. */
static int
note_taken(void)
{
	int64_t		at = now_ns();
	int			number;

	pthread_mutex_lock(&mutex);
	if (held)
		fail(how->name, "two workers hold the lock");
	held = true;
	number = grants++;
	taken_at[number] = at;
	pthread_cond_broadcast(&taken);
	pthread_mutex_unlock(&mutex);
	return number;
}

static void
hand_over(Worker *worker, int next)
{
	pthread_mutex_lock(&mutex);
	held = false;
	if (next > handovers)
		left++;
	pthread_mutex_unlock(&mutex);
	sent_at[next] = now_ns();
	how->release(worker);
	answered_at[next] = now_ns();
}

/* Waits for another's grant, so that no worker hands over to itself. */
static void
await_grant(int number)
{
	pthread_mutex_lock(&mutex);
	while (grants <= number)
		pthread_cond_wait(&taken, &mutex);
	pthread_mutex_unlock(&mutex);
}

static void *
work(void *argument)
{
	Worker	   *worker = argument;

	for (;;)
	{
		int			number;

		how->take(worker);
		number = note_taken();
		await_others(worker);
		hand_over(worker, number + 1);
		if (number >= handovers)
			return NULL;
		await_grant(number + 1);
	}
}

static void
print_handovers(void)
{
	for (int i = 1 + WARM_UP; i <= handovers; i++)
		printf("%.1f %.1f\n", (taken_at[i] - sent_at[i]) / 1000.0,
			   (taken_at[i] - answered_at[i]) / 1000.0);
}

int
main(int argc, char **argv)
{
	Worker	   *all;
	pthread_t  *threads;

	if (argc != 5)
		fail("usage", "handover CONNINFO HOW WORKERS HANDOVERS");
	for (size_t i = 0; i < sizeof(hows) / sizeof(hows[0]); i++)
	{
		if (strcmp(hows[i].name, argv[2]) == 0)
			how = &hows[i];
	}
	workers = atoi(argv[3]);
	handovers = atoi(argv[4]) + WARM_UP;
	if (how == NULL || workers < 2)
		fail("usage", argv[2]);
	sent_at = calloc(handovers + workers + 2, sizeof(int64_t));
	answered_at = calloc(handovers + workers + 2, sizeof(int64_t));
	taken_at = calloc(handovers + workers + 2, sizeof(int64_t));
	all = calloc(workers, sizeof(Worker));
	threads = calloc(workers, sizeof(pthread_t));

	for (int i = 0; i < workers; i++)
	{
		all[i].id = i;
		connect_worker(&all[i], argv[1]);
	}
	for (int i = 0; i < workers; i++)
		pthread_create(&threads[i], NULL, work, &all[i]);
	for (int i = 0; i < workers; i++)
		pthread_join(threads[i], NULL);
	print_handovers();
	return 0;
}
