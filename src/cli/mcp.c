/*-------------------------------------------------------------------------
 *
 * mcp.c
 *	  A server of the Model Context Protocol: the loop, and its end.
 *
 * The loop sleeps until there is input, room for output, something from the
 * database, a signal, or the next query is due.  It then does everything that
 * can be done without waiting.  It connects to the database only when there is
 * a query to send, because some clients start a server merely to see what it
 * offers.
 *
 * The server ends with its input.  Pending calls are still answered if that
 * takes no longer than END_MS, or as long as the client takes its answers
 * without a pause of that length.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "mcp.h"

#define END_MS		3000

/* File descriptors of the loop, after those of sleep_until() and the link. */
enum
{
	FD_INPUT = LINK_FDS,
	FD_OUTPUT,
	FDS
};

static void
begin_to_end(Server *server)
{
	if (server->is_ending)
		return;
	server->is_ending = true;
	server->end_at = now() + END_MS;
	end_calls(server);
	end_leases(server);
}

static bool
is_full(void)
{
	return wire_backlog() >= MAX_BACKLOG;
}

/*
 * read_input
 *	  Reads input.  While a client does not read its answers, its input is not
 *	  read either, so that answers do not pile up; but we notice if it has
 *	  gone.
 */
static void
read_input(Server *server, const struct pollfd *fds)
{
	short		events = fds[FD_INPUT].revents;

	if (events == 0 || server->input_has_ended)
		return;
	if (fds[FD_INPUT].events == 0)
		server->has_hung_up = true;
	else if (!(events & (POLLIN | POLLHUP)) || !wire_read())
		server->input_has_ended = true;
}

/*
 * take_input
 *	  Processes the input that has arrived.  If the client has gone without
 *	  reading its answers, we stop waiting for it after a while.
 */
static void
take_input(Server *server, const struct pollfd *fds)
{
	json_t	   *message;

	if (server->is_ending)
		return;
	read_input(server, fds);
	while (!is_full() && (message = wire_next()) != NULL)
	{
		take_message(server, message);
		json_decref(message);
	}
	if (server->input_has_ended && !wire_holds_a_line())
	{
		if (wire_ends_within_a_message())
			report("the input ended in the middle of a message, which is ignored");
		begin_to_end(server);
	}
	else if (is_full() && (server->input_has_ended || server->has_hung_up))
	{
		if (server->stuck_since == 0)
			server->stuck_since = now();
		if (now() >= server->stuck_since + END_MS)
			begin_to_end(server);
	}
	else
	{
		server->has_hung_up = false;
		server->stuck_since = 0;
	}
}

/*
 * has_ended
 *	  Whether everything has been done that could be done, or the time is over.
 */
static bool
has_ended(const Server *server)
{
	bool		is_done = (server->calls == NULL && server->active == NULL &&
						   wire_backlog() == 0);

	for (const Lease *lease = server->leases; lease; lease = lease->next)
		is_done = is_done && lease->task.due_at == INT64_MAX;
	return server->is_ending && (is_done || now() >= server->end_at);
}

static void
sleep_until_something(Server *server, struct pollfd *fds)
{
	bool		listens = (!server->is_ending && !server->input_has_ended &&
						   !(is_full() && server->has_hung_up));
	Instant		until = next_turn(server);

	fds[FD_INPUT].fd = listens ? STDIN_FILENO : -1;
	fds[FD_INPUT].events = is_full() ? 0 : POLLIN;
	fds[FD_OUTPUT].fd = wire_backlog() > 0 ? STDOUT_FILENO : -1;
	fds[FD_OUTPUT].events = POLLOUT;
	fds[FD_INPUT].revents = fds[FD_OUTPUT].revents = 0;
	if (server->is_ending && server->end_at < until)
		until = server->end_at;
	if (!server->is_ending && !is_full() && wire_holds_a_line())
		until = now();
	link_sleep_with(&server->link, fds, FDS, until);
}

/*
 * take_signals
 *	  Handles signals: the first signal that would terminate the program ends
 *	  the server as the end of the input does; the second ends it at once.
 */
static ExitCode
take_signals(Server *server, ExitCode code)
{
	int			signo;

	while ((signo = next_signal()) != 0)
		if (signo != SIGCHLD)
		{
			if (server->is_ending)
				server->end_at = now();
			code = EXIT_SIGNAL + signo;
			begin_to_end(server);
		}
	return code;
}

/*
 * send_output
 *	  Writes what there is room for.  Returns false if the client has gone.
 */
static bool
send_output(Server *server)
{
	size_t		before = wire_backlog();
	bool		is_open = wire_write();

	if (server->is_ending && wire_backlog() < before && now() < server->end_at)
		server->end_at = now() + END_MS;
	return is_open;
}

ExitCode
mcp_command(const Options *given)
{
	static const int child_ended = SIGCHLD;
	Options		options = *given;
	Server		server = {.options = given};
	struct pollfd fds[FDS] = {{0}};
	ExitCode	code = EXIT_DONE;

	snprintf(server.application, sizeof(server.application), "leaselock mcp");
	options.application = server.application;
	/* JSON is UTF-8, whatever the environment says */
	options.uses_utf8 = true;
	set_text_encoding("UTF8");
	/* otherwise printing notices could block */
	options.quiet = true;
	catch_ending_signals();
	catch_signals(&child_ended, 1);
	ignore_failed_writes();
	link_open(&server.link, &options);
	while (!has_ended(&server))
	{
		sleep_until_something(&server, fds);
		code = take_signals(&server, code);
		take_input(&server, fds);
		take_turns(&server);
		expire_calls(&server);
		drop_unneeded_leases(&server);
		if (!send_output(&server))
		{
			code = EXIT_SERVER;
			begin_to_end(&server);
			wire_forget();
		}
	}
	stop_canceller();
	link_close(&server.link);
	return code;
}
