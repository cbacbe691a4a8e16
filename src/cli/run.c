/*-------------------------------------------------------------------------
 *
 * run.c
 *	  Running a command under a lease.
 *
 * A single loop renews the lease, forwards signals and waits for the command.
 * It never blocks for longer than the look-up of a host name.  The watchdog, a
 * separate process, ensures that the command does not outlive the lease: each
 * renewal that was answered gives it a later deadline.
 *
 * By our clock, the lease ends when the remaining time that the server
 * reported has passed since the moment *before* the query was sent.  It never
 * ends later than by the server's clock.  A renewal whose answer was lost does
 * not count.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"

/* How often to check the process group after the command has ended. */
#define GROUP_MS			100

/* The longest wait for an answer; a quarter of the lease if that is less. */
#define MAX_ANSWER_MS	10000

/*
 * Signals to handle besides those that end the wait for the lock; the latter
 * are forwarded to the command.
 */
static const int caught[] = {SIGWINCH, SIGTSTP, SIGCONT, SIGCHLD};

typedef struct Run
{
	const Options *options;
	Link		link;
	Ticket		ticket;			/* from the last answer */
	Watchdog	watchdog;
	Child		child;
	Deadlines	deadlines;
	Instant		ends_at;		/* the latest end of the lease */
	Instant		renew_at;
	Instant		sent_at;		/* when the open query was sent */
	int			failures;		/* consecutive failed renewals */
	bool		lost;			/* the command was told to terminate */
	bool		lingers;		/* it ended, but not its group */
} Run;

/* ---------------------------------------------------------------------
 * The lease
 * ---------------------------------------------------------------------
 */

/*
 * send_deadlines
 *	  Sends the deadlines to the watchdog.  A watchdog that has died is
 *	  replaced; if that fails, the command must not continue.
 */
static void
send_deadlines(Run *run)
{
	if (update_watchdog(&run->watchdog, &run->deadlines))
		return;
	end_watchdog(&run->watchdog);
	if (start_watchdog(&run->watchdog, &run->link) &&
		update_watchdog(&run->watchdog, &run->deadlines))
		return;
	complain("could not watch the command; killing it: %s", strerror(errno));
	signal_child(&run->child, SIGKILL);
	run->lost = true;
}

/*
 * note_lease
 *	  Computes the deadlines from an answer.  We never count on a longer lease
 *	  than we asked for.  It ends half a percent early, to allow for clocks
 *	  that run at different speeds and for the time that killing takes.
 */
static void
note_lease(Run *run)
{
	int64_t		max = (int64_t) (run->options->lease_seconds * 1000);
	int64_t		left = run->ticket.remaining_ms;
	Instant		sent_at = run->ticket.sent_at;

	left = left < max ? left : max;
	run->ends_at = sent_at + left;
	run->renew_at = sent_at + left / 3;
	run->deadlines.kill_at = run->ends_at - left / 200;
	run->deadlines.term_at = run->deadlines.kill_at -
		(int64_t) (run->options->grace_seconds * 1000);
}

/*
 * lose
 *	  Terminates the command because the lease is lost.
 */
static void
lose(Run *run, const char *reason)
{
	Instant		end = now() + (int64_t) (run->options->grace_seconds * 1000);

	complain("the lease on \"%s\" is %s; terminating the command",
			 run->options->name, reason);
	run->lost = true;
	run->deadlines.term_at = now();
	if (run->deadlines.kill_at > end)
		run->deadlines.kill_at = end;
	send_deadlines(run);
}

static void
send_renewal(Run *run)
{
	const char *parameters[] = {run->ticket.ticket, run->options->lease};
	int64_t		timeout_ms = (int64_t) (run->options->lease_seconds * 1000 / 4);

	run->sent_at = now();
	link_send(&run->link, QUERY_RENEW, parameters, run->sent_at +
			  (timeout_ms < MAX_ANSWER_MS ? timeout_ms : MAX_ANSWER_MS));
}

static void
note_renewal(Run *run)
{
	Ticket		answer;

	read_ticket(run->link.answer, &answer);
	if (run->failures > 0 && !run->options->quiet)
		complain("the lease on \"%s\" has been renewed again", run->options->name);
	run->failures = 0;
	if (ticket_exit_code(answer.state) != EXIT_DONE)
	{
		run->ends_at = 0;
		lose(run, answer.state);
		return;
	}
	answer.sent_at = run->sent_at;
	run->ticket = answer;
	note_lease(run);
	send_deadlines(run);
}

static void
note_failure(Run *run)
{
	if (run->failures == 0 && !run->options->quiet)
		complain_of_lines(run->link.error,
						  "could not renew the lease on \"%s\"; trying again: ",
						  run->options->name);
	run->renew_at = now() + back_off_ms(run->failures++);
}

/*
 * keep_lease
 *	  Continues a renewal, or starts one when it is time.  The lease is not
 *	  renewed after the command has been told to terminate.
 */
static void
keep_lease(Run *run)
{
	bool		has_query = run->link.has_query;
	bool		up = run->link.state != LINK_DOWN;

	if (has_query || up)
	{
		Progress	progress = link_step(&run->link);

		if (has_query && progress == ANSWERED && !run->lost)
			note_renewal(run);
		else if (progress == FAILED && !run->lost)
			note_failure(run);
	}
	if (!run->link.has_query && !run->lost && now() >= run->renew_at)
		send_renewal(run);
}

/* ---------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------
 */

static void
reap(Run *run)
{
	pid_t		pid;
	int			status;

	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0)
		note_child_status(&run->child, pid, status);
}

static void
pass_signals_on(Run *run)
{
	int			signo;

	while ((signo = next_signal()) != 0)
	{
		if (signo == SIGCHLD)
			continue;
		if (signo == SIGCONT)
		{
			/* we were stopped, possibly for a long time */
			resume_child(&run->child);
			run->renew_at = run->lost ? run->renew_at : now();
		}
		else
			signal_child(&run->child, signo);
	}
}

static void
heed_watchdog(Run *run)
{
	int			report = poll_watchdog(&run->watchdog);

	if (report == WATCHDOG_GONE)
		send_deadlines(run);
	else if (report != WATCHDOG_SILENT && !run->lost)
	{
		complain("the lease on \"%s\" could not be renewed in time; terminating the command",
				 run->options->name);
		run->lost = true;
	}
	if (report == WATCHDOG_KILLED)
		complain("the command did not end in time and was killed");
}

/*
 * supervise
 *	  Waits until the command and its entire process group have ended.
 */
static void
supervise(Run *run)
{
	for (;;)
	{
		Instant		until;

		reap(run);
		if (child_is_gone(&run->child))
			return;
		if (run->child.ended && !run->lingers)
		{
			take_terminal_back(&run->child);
			if (!run->options->quiet && !run->lost)
				complain("the command has ended; the lease is kept until the processes that it left behind have ended, too");
			run->lingers = true;
		}
		pass_signals_on(run);
		heed_watchdog(run);
		keep_lease(run);
		until = run->lost || run->link.has_query ? INT64_MAX : run->renew_at;
		if (run->lingers && until > now() + GROUP_MS)
			until = now() + GROUP_MS;
		link_sleep(&run->link, run->watchdog.fd, until);
	}
}

/*
 * renew_first
 *	  Renews the lease before the command starts if an answer came late, after
 *	  a retry, and not much of the lease is left: the command should start with
 *	  nearly all of it.
 */
static bool
renew_first(Run *run)
{
	int64_t		enough = (int64_t) (run->options->lease_seconds * 1000 * 2 / 3);

	note_lease(run);
	while (run->ticket.remaining_ms < enough)
	{
		Progress	progress;
		Ticket		answer;

		send_renewal(run);
		progress = link_await(&run->link, true);
		if (progress == PENDING || now() >= run->deadlines.term_at)
			return false;
		if (progress == FAILED)
		{
			link_sleep(&run->link, -1, now() + back_off_ms(run->failures++));
			continue;
		}
		read_ticket(run->link.answer, &answer);
		if (ticket_exit_code(answer.state) != EXIT_DONE)
			return false;
		answer.sent_at = run->sent_at;
		run->ticket = answer;
		note_lease(run);
	}
	run->failures = 0;
	return !signal_is_pending();
}

/*
 * end_lease
 *	  Ends the lease after the last process of the command has ended.  A lease
 *	  that has run out by our clock will soon have run out by the server's.
 */
static ExitCode
end_lease(Run *run)
{
	ExitCode	code = run->lost ? EXIT_LOST : child_exit_code(&run->child);

	if (now() >= run->ends_at)
		return code;
	if (run->options->at_least && !run->lost &&
		!add_named_hold(&run->link, run->options, &run->ticket, run->ends_at))
		return code;
	if (give_back(&run->link, &run->ticket, run->ends_at) &&
		strcmp(run->ticket.state, "released") != 0 && !run->lost)
	{
		complain("the lease on \"%s\" was %s while the command was running",
				 run->options->name, run->ticket.state);
		code = EXIT_LOST;
	}
	return code;
}

/*
 * run_held
 *	  Starts the command under the held lock, and supervises it.  The lease is
 *	  released only after the last process of the command has ended.
 */
static ExitCode
run_held(Run *run)
{
	if (!renew_first(run))
	{
		int			signo = next_signal();

		give_back(&run->link, &run->ticket, run->ends_at);
		if (signo == 0)
			complain("the lease on \"%s\" was lost before the command started",
					 run->options->name);
		return signo ? EXIT_SIGNAL + signo : EXIT_LOST;
	}
	catch_signals(caught, sizeof(caught) / sizeof(caught[0]));
	ignore_signal(SIGTTOU);
	if (!start_watchdog(&run->watchdog, &run->link) ||
		!start_child(&run->child, run->options, &run->ticket))
	{
		complain("could not start a process: %s", strerror(errno));
		give_back(&run->link, &run->ticket, run->ends_at);
		return EXIT_SERVER;
	}
	run->deadlines.group = run->child.pid;
	send_deadlines(run);
	supervise(run);
	heed_watchdog(run);
	end_watchdog(&run->watchdog);
	take_terminal_back(&run->child);
	return end_lease(run);
}

ExitCode
run_command(const Options *options)
{
	Run			run = {.options = options};
	ExitCode	code;

	catch_ending_signals();
	ignore_failed_writes();
	link_open(&run.link, options);
	code = acquire(&run.link, options, &run.ticket);
	if (code == EXIT_DONE)
		code = run_held(&run);
	else if (code == EXIT_NOT_HELD)
		explain_refusal(options, &run.ticket);
	link_close(&run.link);
	return code;
}
