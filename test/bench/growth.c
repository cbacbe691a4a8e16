/*-------------------------------------------------------------------------
 *
 * growth.c
 *	  The client of test/bench/growth: measures one operation in a small
 *	  database and in a large one.
 *
 *	  growth CONNINFO SMALL LARGE OPERATION ROUNDS CALLS
 *
 * Each round makes CALLS calls in each database, first in one and then in the
 * other, and prints the means of the processor time that a call took in its
 * backend, commit included, in microseconds: "cpu SMALL LARGE".  At the end it
 * prints the medians of the buffers that a call touched, commit not included:
 * "buffers SMALL LARGE".
 *
 * A call is one transaction.  Steps that prepare or undo it are not timed.
 * Each answer must be the expected one.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libpq-fe.h>

#define MAX_STEPS	8
#define MAX_ARGS	2
#define MAX_VALUE	300

/* How many calls are explained to count buffers. */
#define EXPLAINED	7

/* A round makes no more calls once they have taken this long, in us. */
#define MAX_ROUND	500000.0

typedef enum Source
{
	NOTHING,
	TARGET,						/* of the operation: name, ticket, ... */
	ANSWER						/* first column of the previous step */
} Source;

/* A statement; the last column of its one row must be "expected". */
typedef struct Step
{
	const char *sql;
	Source		source;			/* of its arguments */
	const char *expected;
	bool		timed;
} Step;

typedef struct Operation
{
	const char *name;
	const char *targets;		/* a query: the arguments, a row for each call */
	Step		steps[MAX_STEPS];
} Operation;

typedef struct Database
{
	const char *name;
	PGconn	   *conn;
	PGresult   *targets;
	int			next;			/* index of the next target */
	double		cpu;			/* us of the timed calls of the round */
	int			buffers[EXPLAINED];
} Database;

#define TICKETS	"FROM leaselock.tickets WHERE "
#define LOCKS	"FROM leaselock.locks WHERE "
#define RANDOM	" ORDER BY random()"

/* The only ticket that holds a lock. */
#define HOLDER \
	"SELECT ticket, state " TICKETS "state = 'h' AND ticket = " \
	"(SELECT first_ticket " LOCKS "scope = 'public' AND name = $1)"
#define REMOVE	"DELETE " TICKETS "ticket = $1 RETURNING 'gone'"
#define RELEASE	"SELECT ticket, state FROM leaselock.lease_release($1)"

static const Operation operations[] = {
	{"acquire", "SELECT name, replace(name, 'free', 'bench') " LOCKS "name LIKE 'free.%'" RANDOM, {
			{"SELECT ticket, state FROM leaselock.lease_acquire($1, $2)", TARGET, "held", true},
			{RELEASE, ANSWER, "released", false},
			{REMOVE, ANSWER, "gone", false}
	}},
	{"try", "SELECT name " LOCKS "name LIKE 'queue.%'" RANDOM, {
			{"SELECT state FROM leaselock.lease_acquire($1, 'other')", TARGET, "contended", true}
	}},
	{"enqueue", "SELECT name " LOCKS "name LIKE 'queue.%'" RANDOM, {
			{"SELECT ticket, state FROM leaselock.lease_acquire($1, 'late', wait => '1 day')", TARGET, "waiting", true},
			{RELEASE, ANSWER, "cancelled", false},
			{REMOVE, ANSWER, "gone", false}
	}},
	{"renew", "SELECT ticket " TICKETS "name LIKE 'held.%' AND state = 'h'" RANDOM, {
			{"SELECT state FROM leaselock.lease_renew($1)", TARGET, "held", true}
	}},
	{"poll", "SELECT ticket " TICKETS "place IS NOT NULL AND wait_until > clock_timestamp()" RANDOM, {
			{"SELECT state FROM leaselock.lease_get($1)", TARGET, "waiting", true}
	}},
	{"poll_head", "SELECT DISTINCT ON (name) ticket " TICKETS "place IS NOT NULL AND wait_until > clock_timestamp() ORDER BY name, place", {
			{"SELECT state FROM leaselock.lease_get($1)", TARGET, "waiting", true}
	}},
	{"poll_tail", "SELECT DISTINCT ON (name) ticket " TICKETS "place IS NOT NULL AND wait_until > clock_timestamp() ORDER BY name, place DESC", {
			{"SELECT state FROM leaselock.lease_get($1)", TARGET, "waiting", true}
	}},
	{"promote", "SELECT name " LOCKS "name LIKE 'queue.%'" RANDOM, {
			{HOLDER, TARGET, "h", false},
			{RELEASE, ANSWER, "released", true},
			{REMOVE, ANSWER, "gone", false},
			{HOLDER, TARGET, "h", false},
			{"SELECT state FROM leaselock.lease_get($1)", ANSWER, "held", false},
			{"SELECT state FROM leaselock.lease_acquire($1, 'waiter.' || nextval('waiters'), '1 day', '1 day')", TARGET, "waiting", false}
	}},
	/* for an owner with one live ticket in that scope */
	{"release_all", "SELECT replace(name, 'free', 'bench') " LOCKS "name LIKE 'free.%'" RANDOM, {
			{"SELECT state FROM leaselock.lease_acquire('all', $1, scope => 'all', request_id => gen_random_uuid())", TARGET, "held", false},
			{"SELECT leaselock.lease_release_all($1, 'all')", TARGET, "1", true},
			{"DELETE " TICKETS "scope = 'all' AND name = 'all' AND request_id IS NOT NULL AND owner = $1 RETURNING 'gone'", TARGET, "gone", false}
	}},
	/* all rows of a view, the same number in both databases */
	{"status", "SELECT count(*) " LOCKS "role IS NOT NULL", {
			{"SELECT count(*) = $1 FROM leaselock.lease_status", TARGET, "t", true}
	}},
	{"tickets", "SELECT count(*) " TICKETS "state IN ('h', 'w')", {
			{"SELECT count(*) = $1 FROM leaselock.lease_tickets", TARGET, "t", true}
	}},
	{"fence_check", "SELECT name, fence " LOCKS "name LIKE 'held.%'" RANDOM, {
			{"SELECT leaselock.fence_check($1, $2)", TARGET, "t", true}
	}},
	{"lease_peek", "SELECT name, fence " LOCKS "name LIKE 'held.%'" RANDOM, {
			{"SELECT fence = $2 FROM leaselock.lease_peek($1)", TARGET, "t", true}
	}},
	{"renew_queued", "SELECT ticket " TICKETS "name LIKE 'queue.%' AND state = 'h'" RANDOM, {
			{"SELECT state FROM leaselock.lease_renew($1)", TARGET, "held", true}
	}},
	{"check_queued", "SELECT name, fence " LOCKS "name LIKE 'queue.%'" RANDOM, {
			{"SELECT leaselock.fence_check($1, $2)", TARGET, "t", true}
	}},
	{"peek_queued", "SELECT name, fence " LOCKS "name LIKE 'queue.%'" RANDOM, {
			{"SELECT fence = $2 FROM leaselock.lease_peek($1)", TARGET, "t", true}
	}},
	/* locks all over the table, each called only once */
	{"check_any", "SELECT name, fence " LOCKS "name IN (SELECT name FROM any_locks)" RANDOM, {
			{"SELECT leaselock.fence_check($1, $2)", TARGET, "t", true}
	}},
	{"peek_any", "SELECT name, fence " LOCKS "name IN (SELECT name FROM any_locks)" RANDOM, {
			{"SELECT fence = $2 FROM leaselock.lease_peek($1)", TARGET, "t", true}
	}},
	/* for comparison: the same with a statement that does not use leaselock */
	{"select_any", "SELECT name FROM any_locks" RANDOM, {
			{"SELECT 'found' " LOCKS "scope = 'public' AND name = $1", TARGET, "found", true}
	}},
	{"update", "SELECT name FROM plain" RANDOM, {
			{"UPDATE plain SET expires_at = clock_timestamp() WHERE name = $1 RETURNING 'written'", TARGET, "written", true}
	}}
};

static const Operation *operation;

static void
fail(const char *what, const char *why)
{
	fprintf(stderr, "growth: %s: %s\n", what, why);
	exit(1);
}

/* ----------------------------------------------------------------------
 * The processor time of a backend
 * ----------------------------------------------------------------------
 */

static FILE *
open_proc(int pid, const char *file)
{
	char		path[64];
	FILE	   *f;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	f = fopen(path, "r");
	if (f == NULL)
		fail(path, "cannot be read");
	return f;
}

static bool
is_asleep(int pid)
{
	FILE	   *f = open_proc(pid, "stat");
	char		state = 0;

	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		fail("/proc/PID/stat", "not understood");
	fclose(f);
	return state == 'S';
}

/*
 * Processor time in microseconds.  The kernel updates the number when the
 * process goes to sleep, soon after its answer.
 */
static double
read_cpu(PGconn *conn)
{
	int			pid = PQbackendPID(conn);
	long long	ns;
	FILE	   *f;

	while (!is_asleep(pid))
		;
	f = open_proc(pid, "schedstat");
	if (fscanf(f, "%lld", &ns) != 1)
		fail("/proc/PID/schedstat", "not understood");
	fclose(f);
	return ns / 1000.0;
}

/* Puts both backends on one processor, so other load affects both alike. */
static void
pin_backend(PGconn *conn)
{
	cpu_set_t	cpus;

	CPU_ZERO(&cpus);
	CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &cpus);
	if (sched_setaffinity(PQbackendPID(conn), sizeof(cpus), &cpus) != 0)
		fail("sched_setaffinity", "refused");
}

/* ----------------------------------------------------------------------
 * Steps
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

static void
command(PGconn *conn, const char *sql)
{
	PQclear(check_result(conn, PQexec(conn, sql), sql));
}

/* Gets the arguments of a step; returns how many there are. */
static int
get_arguments(const Database *database, const Step *step, const char *answer,
			  const char **arguments)
{
	int			count = PQnfields(database->targets);

	if (step->source == ANSWER)
	{
		arguments[0] = answer;
		return 1;
	}
	/* not every step of an operation uses both columns */
	if (strstr(step->sql, "$2") == NULL)
		count = 1;
	for (int i = 0; i < count; i++)
		arguments[i] = PQgetvalue(database->targets, database->next, i);
	return count;
}

/* Runs a step, and copies the first column of its answer. */
static void
run_step(Database *database, int number, char *answer)
{
	const Step *step = &operation->steps[number];
	const char *arguments[MAX_ARGS];
	char		statement[16];
	int			count = get_arguments(database, step, answer, arguments);
	PGresult   *result;
	double		before = 0;

	snprintf(statement, sizeof(statement), "s%d", number);
	if (step->timed)
		before = read_cpu(database->conn);
	result = PQexecPrepared(database->conn, statement, count, arguments, NULL,
							NULL, 0);
	if (step->timed)
		database->cpu += read_cpu(database->conn) - before;

	check_result(database->conn, result, step->sql);
	if (PQntuples(result) != 1)
		fail(step->sql, "not one row");
	if (strcmp(PQgetvalue(result, 0, PQnfields(result) - 1), step->expected) != 0)
		fail(step->sql, PQgetvalue(result, 0, PQnfields(result) - 1));
	snprintf(answer, MAX_VALUE, "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
}

static void
next_target(Database *database)
{
	database->next = (database->next + 1) % PQntuples(database->targets);
}

static void
run_calls(Database *database, int calls)
{
	char		answer[MAX_VALUE] = "";
	int			made = 0;

	database->cpu = 0;
	while (made < calls && database->cpu < MAX_ROUND)
	{
		for (int number = 0; operation->steps[number].sql != NULL; number++)
			run_step(database, number, answer);
		next_target(database);
		made++;
	}
	database->cpu /= made;
}

/* ----------------------------------------------------------------------
 * Buffers
 * ----------------------------------------------------------------------
 */

static int
number_after(const char *text, const char *word)
{
	const char *found = strstr(text, word);

	return found ? atoi(found + strlen(word)) : 0;
}

/* The buffers of the top node, whose line comes first. */
static int
sum_buffers(PGresult *explained)
{
	for (int i = 0; i < PQntuples(explained); i++)
	{
		const char *line = PQgetvalue(explained, i, 0);

		if (strstr(line, "Buffers: shared") != NULL)
			return number_after(line, "hit=") + number_after(line, "read=");
		if (strstr(line, "Planning") != NULL)
			break;
	}
	return 0;
}

/*
 * Explains the timed step in a transaction that is rolled back, and then runs
 * it, so that the next call finds the same state as this one.
 */
static int
explain_call(Database *database)
{
	char		answer[MAX_VALUE] = "";
	char		sql[2000];
	const char *arguments[MAX_ARGS];
	PGresult   *result;
	int			number = 0;
	int			count;
	int			buffers;

	while (!operation->steps[number].timed)
		run_step(database, number++, answer);
	count = get_arguments(database, &operation->steps[number], answer, arguments);
	snprintf(sql, sizeof(sql),
			 "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) %s",
			 operation->steps[number].sql);
	command(database->conn, "BEGIN");
	result = check_result(database->conn,
						  PQexecParams(database->conn, sql, count, NULL, arguments,
									   NULL, NULL, 0), sql);
	buffers = sum_buffers(result);
	PQclear(result);
	command(database->conn, "ROLLBACK");
	while (operation->steps[number].sql != NULL)
		run_step(database, number++, answer);
	next_target(database);
	return buffers;
}

static int
compare_ints(const void *a, const void *b)
{
	return *(const int *) a - *(const int *) b;
}

static int
median_buffers(Database *database)
{
	for (int i = 0; i < EXPLAINED; i++)
		database->buffers[i] = explain_call(database);
	qsort(database->buffers, EXPLAINED, sizeof(int), compare_ints);
	return database->buffers[EXPLAINED / 2];
}

/* ---------------------------------------------------------------------- */

static void
open_database(Database *database, const char *conninfo, const char *name)
{
	char		full[1000];

	database->name = name;
	snprintf(full, sizeof(full), "%s dbname=%s", conninfo, name);
	database->conn = PQconnectdb(full);
	if (PQstatus(database->conn) != CONNECTION_OK)
		fail(name, PQerrorMessage(database->conn));
	pin_backend(database->conn);
	database->targets = check_result(database->conn,
									 PQexec(database->conn, operation->targets),
									 operation->targets);
	if (PQntuples(database->targets) == 0)
		fail(operation->targets, "no rows");
	for (int i = 0; operation->steps[i].sql != NULL; i++)
	{
		char		statement[16];

		snprintf(statement, sizeof(statement), "s%d", i);
		PQclear(check_result(database->conn,
							 PQprepare(database->conn, statement,
									   operation->steps[i].sql, 0, NULL),
							 operation->steps[i].sql));
	}
}

int
main(int argc, char **argv)
{
	Database	small = {0};
	Database	large = {0};
	int			rounds;
	int			calls;

	if (argc != 7)
		fail("usage", "growth CONNINFO SMALL LARGE OPERATION ROUNDS CALLS");
	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
	{
		if (strcmp(operations[i].name, argv[4]) == 0)
			operation = &operations[i];
	}
	if (operation == NULL)
		fail("no such operation", argv[4]);
	rounds = atoi(argv[5]);
	calls = atoi(argv[6]);
	open_database(&small, argv[1], argv[2]);
	open_database(&large, argv[1], argv[3]);

	/* round 0 warms the caches; the databases take turns in going first */
	for (int round = 0; round <= rounds; round++)
	{
		run_calls(round % 2 ? &small : &large, calls);
		run_calls(round % 2 ? &large : &small, calls);
		if (round > 0)
			printf("cpu %.2f %.2f\n", small.cpu, large.cpu);
	}
	printf("buffers %d %d\n", median_buffers(&small), median_buffers(&large));
	PQfinish(small.conn);
	PQfinish(large.conn);
	return 0;
}
