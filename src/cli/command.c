/*-------------------------------------------------------------------------
 *
 * command.c
 *	  The subcommands that send a query, print the answer and exit.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

/* How long to wait for an answer, and for a list of all locks. */
#define ANSWER_MS			10000
#define STATUS_ANSWER_MS	30000

/*
 * query_server
 *	  Sends a query and waits for the answer.  A caught signal ends the wait.
 */
static bool
query_server(Link *link, QueryKind what, const char *const *parameters)
{
	link_send(link, what, parameters, now() +
			  (what == QUERY_STATUS || what == QUERY_QUEUE ? STATUS_ANSWER_MS :
			   ANSWER_MS));
	return link_await(link, true) == ANSWERED;
}

static void
print_answer(const Options *options, const PGresult *answer)
{
	if (options->json)
		print_json(answer);
	else
		print_record(answer);
}

/*
 * write_failed
 *	  Reports that the answer could not be written, which counts as a failure.
 */
ExitCode
write_failed(void)
{
	int			reason = errno;
	int			signo = next_signal();

	if (signo != 0)
		return EXIT_SIGNAL + signo;
	complain("could not write the answer: %s", strerror(reason));
	return EXIT_SERVER;
}

static ExitCode
flush_output(ExitCode code)
{
	return write_output() ? code : write_failed();
}

/*
 * withdraw
 *	  Handles a ticket that could not be printed.  It is released, unless the
 *	  caller knows the request id: then the caller may have received the ticket
 *	  earlier.
 */
static void
withdraw(Link *link, const Options *options, Ticket *ticket)
{
	if (ticket_exit_code(ticket->state) != EXIT_DONE)
		return;
	if (!options->request_is_known &&
		give_back(link, ticket, ticket->sent_at + ticket->remaining_ms))
		complain("the lock has been released");
	else
		complain("request %s has been granted: repeat it, or let its lease run out",
				 options->request);
}

ExitCode
acquire_command(const Options *options)
{
	Link		link;
	Ticket		ticket;
	ExitCode	code;

	catch_ending_signals();
	ignore_failed_writes();
	link_open(&link, options);
	code = acquire(&link, options, &ticket);
	if (code < EXIT_SIGNAL && link.answer)
	{
		print_answer(options, link.answer);
		if (!write_output())
		{
			code = write_failed();
			withdraw(&link, options, &ticket);
		}
		else if (code == EXIT_NOT_HELD)
			explain_refusal(options, &ticket);
	}
	link_close(&link);
	return code;
}

/*
 * ticket_command
 *	  Runs a subcommand for one ticket.
 */
static ExitCode
ticket_command(const Options *options, QueryKind what,
			   const char *const *parameters)
{
	Link		link;
	Ticket		ticket;
	ExitCode	code;

	ignore_failed_writes();
	link_open(&link, options);
	if (query_server(&link, what, parameters))
	{
		read_ticket(link.answer, &ticket);
		print_answer(options, link.answer);
		code = ticket_exit_code(ticket.state);
		if (what == QUERY_RENEW && code != EXIT_DONE && !options->quiet)
			complain("not renewed: the ticket is %s", ticket.state);
		if (what == QUERY_RELEASE && (strcmp(ticket.state, "released") == 0 ||
									  strcmp(ticket.state, "cancelled") == 0))
			code = EXIT_DONE;
	}
	else
		code = complain_of_failure(&link);
	link_close(&link);
	return flush_output(code);
}

ExitCode
get_command(const Options *options)
{
	const char *parameters[] = {options->ticket};

	return ticket_command(options, QUERY_GET, parameters);
}

ExitCode
heartbeat_command(const Options *options)
{
	const char *parameters[] = {options->ticket, options->lease};

	return ticket_command(options, QUERY_RENEW, parameters);
}

ExitCode
release_command(const Options *options)
{
	const char *parameters[] = {options->ticket};

	return ticket_command(options, QUERY_RELEASE, parameters);
}

ExitCode
break_command(const Options *options)
{
	const char *parameters[] = {
		options->name, options->fence, options->scope
	};
	Link		link;
	ExitCode	code;

	ignore_failed_writes();
	link_open(&link, options);
	if (query_server(&link, QUERY_BREAK, parameters))
	{
		bool		broken = PQgetvalue(link.answer, 0, 0)[0] == 't';

		if (options->json)
			print_json(link.answer);
		else if (broken)
			print_line("broken");
		else
			complain("\"%s\" has no grant with fence %s; \"leaselock status\" shows the fence of the present one",
					 options->name, options->fence);
		code = broken ? EXIT_DONE : EXIT_LOST;
	}
	else
		code = complain_of_failure(&link);
	link_close(&link);
	return flush_output(code);
}

/* ---------------------------------------------------------------------
 * status
 * ---------------------------------------------------------------------
 */

static bool
query_status(Link *link, const Options *options)
{
	const char *all = options->all ? "true" : "false";
	const char *lock[] = {options->name, options->scope, all};
	const char *scope[] = {options->scope, all};
	const char *queue[] = {options->scope, options->name};

	if (options->queue)
		return query_server(link, QUERY_QUEUE, queue);
	return options->name ? query_server(link, QUERY_PEEK, lock) :
		query_server(link, QUERY_STATUS, scope);
}

static void
print_status(const Options *options, const PGresult *answer)
{
	if (options->json)
		print_json(answer);
	else
		print_table(answer);
}

/*
 * print_time
 *	  Prints the heading of a refreshed table.  On a terminal, the table
 *	  replaces the previous one.
 */
static void
print_time(const Options *options, bool first)
{
	time_t		clock = time(NULL);
	char		stamp[64];
	char		heading[128];

	if (options->json)
		return;
	if (isatty(STDOUT_FILENO))
		print_heading("\033[H\033[J");
	else if (!first)
		print_heading("\n");
	strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S %z", localtime(&clock));
	snprintf(heading, sizeof(heading), "%s, every %g s\n\n", stamp,
			 options->interval_seconds);
	print_heading(heading);
}

/*
 * show_status
 *	  Prints one refresh; returns false if that failed.
 */
static bool
show_status(const Link *link, const Options *options, bool answered,
			bool first)
{
	print_time(options, first);
	if (answered)
		print_status(options, link->answer);
	else if (options->json)
		complain_of_lines(link->error, "%s", "");
	else
		print_lines(link->error);
	if (!options->json)
		fit_output();
	return write_output();
}

/*
 * watch_status
 *	  Repeats until a signal arrives.  A lost connection is opened again.
 */
static ExitCode
watch_status(Link *link, const Options *options)
{
	bool		first = true;

	catch_ending_signals();
	while (!signal_is_pending())
	{
		int64_t		interval = (int64_t) (options->interval_seconds * 1000);
		Instant		until = now() + interval;
		bool		answered = query_status(link, options);

		if (signal_is_pending())
			break;
		if (!answered && (first || !link_may_recover(link)))
			return complain_of_failure(link);
		if (!show_status(link, options, answered, first))
			return write_failed();
		first = false;
		while (now() < until && !signal_is_pending())
		{
			if (link->state != LINK_DOWN)
				link_step(link);
			link_sleep(link, -1, until);
		}
	}
	return EXIT_SIGNAL + next_signal();
}

/*
 * complain_of_none
 *	  A heading without rows looks as if something had gone wrong.
 */
static void
complain_of_none(const Options *options)
{
	const char *seen = options->all ? "" : " now (--all shows lapsed leases, too)";

	if (options->name)
		complain("nobody holds \"%s\" in scope \"%s\" or waits for it%s",
				 options->name, options->scope, options->queue ? "" : seen);
	else
		complain("no lock is held or waited for%s%s%s%s",
				 options->scope ? " in scope \"" : "",
				 options->scope ? options->scope : "",
				 options->scope ? "\"" : "", options->queue ? "" : seen);
}

ExitCode
status_command(const Options *options)
{
	Link		link;
	ExitCode	code = EXIT_DONE;

	link_open(&link, options);
	if (options->watch)
		code = watch_status(&link, options);
	else if (!query_status(&link, options))
		code = complain_of_failure(&link);
	else
	{
		print_status(options, link.answer);
		if (PQntuples(link.answer) == 0 && !options->json && !options->quiet)
			complain_of_none(options);
		if (PQntuples(link.answer) == 0 && options->name)
			code = EXIT_LOST;
	}
	link_close(&link);
	return flush_output(code);
}
