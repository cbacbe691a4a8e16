/*-------------------------------------------------------------------------
 *
 * mcp.c
 *	  A server of the Model Context Protocol: the loop, and its end.
 *
 * The loop sleeps until there is input, room for output, something from the
 * database, a signal, or the time for the next question, and does all of what
 * can be done without waiting.  The database is connected to when something
 * is to be asked of it, for some clients start a server only to see what it
 * offers.
 *
 * It ends with its input.  What was called is still answered, if that takes
 * no longer than END_MS.
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

/* What the loop listens to, after what sleep_until() and the link add. */
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

/*
 * take_input
 *	  What has come.  A client that does not read its answers is not heard, but
 *	  its end is noticed all the same.
 */
static void
take_input(Server *server, const struct pollfd *fds)
{
	bool		listens = fds[FD_INPUT].events != 0;
	short		events = fds[FD_INPUT].revents;
	json_t	   *message;

	if (server->is_ending || events == 0)
		return;
	if (!listens || !(events & (POLLIN | POLLHUP)) || !wire_read())
	{
		if (wire_ends_within_a_message())
			report("the input ended within a message, which is not carried out");
		begin_to_end(server);
	}
	while (!server->is_ending && (message = wire_next()) != NULL)
	{
		take_message(server, message);
		json_decref(message);
	}
}

/*
 * has_ended
 *	  All is done that could be, or there is no more time for it.
 */
static bool
has_ended(const Server *server)
{
	bool		is_done = server->calls == NULL && server->asking == NULL &&
	wire_backlog() == 0;

	for (const Lease *lease = server->leases; lease; lease = lease->next)
		is_done = is_done && lease->task.ask_at == INT64_MAX;
	return server->is_ending && (is_done || now() >= server->end_at);
}

static void
sleep_until_something(Server *server, struct pollfd *fds)
{
	bool		is_full = wire_backlog() >= MOST_BACKLOG;
	Instant		until = next_turn(server);

	fds[FD_INPUT].fd = server->is_ending ? -1 : STDIN_FILENO;
	fds[FD_INPUT].events = is_full ? 0 : POLLIN;
	fds[FD_OUTPUT].fd = wire_backlog() > 0 ? STDOUT_FILENO : -1;
	fds[FD_OUTPUT].events = POLLOUT;
	fds[FD_INPUT].revents = fds[FD_OUTPUT].revents = 0;
	if (server->is_ending && server->end_at < until)
		until = server->end_at;
	link_sleep_with(&server->link, fds, FDS, until);
}

/*
 * take_signals
 *	  Each that would end the program has it end as the input does, and the
 *	  second one at once.
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

ExitCode
mcp_command(const Options *given)
{
	static const int child_ended = SIGCHLD;
	Options		options = *given;
	Server		server = {.options = &options,.application = "leaselock mcp"};
	struct pollfd fds[FDS] = {{0}};
	ExitCode	code = EXIT_DONE;

	options.application = server.application;
	/* JSON is UTF-8, whatever the environment says */
	options.uses_utf8 = true;
	set_text_encoding("UTF8");
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
		tidy_calls(&server);
		tidy_leases(&server);
		if (!wire_write())
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
