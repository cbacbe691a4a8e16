/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  A lock, waited for if need be, and given back.
 *
 * Waiting is asking again with the same request id.  So the place in the
 * queue outlives a lost connection and a restarted server, and a request
 * whose answer was lost is not made twice.  CALL lease_wait would wake up a
 * little sooner, but its ticket dies with its connection.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* How long an answer may take. */
#define ANSWER_MS			10000

/* The same once a signal has come. */
#define LAST_ANSWER_MS		2000

/*
 * How long an answer that was lost is asked for if there is no wait, and how
 * long giving back may take before the lease is left to run out.
 */
#define RECOVERY_MS			3000

/* One acquisition. */
typedef struct Attempt
{
	Link	   *link;
	const Options *options;
	Ticket	   *ticket;
	Instant		give_up_at;		/* end of the wait, by our clock */
	Instant		retry_until;	/* end of repetitions after failures */
	bool		may_be_known;	/* the request may have reached the server */
	int			failures;		/* in a row */
} Attempt;

/*
 * back_off_ms
 *	  How long to pause after so many failures in a row.
 */
int64_t
back_off_ms(int failures)
{
	return failures > 4 ? 1000 : 50 << failures;
}

/*
 * ask_once
 *	  Makes the request, or polls, which is the same.  The first time it may
 *	  take as long as the wait, behind other transactions; once a ticket is
 *	  known no answer does.
 */
static Progress
ask_once(Attempt *attempt)
{
	const Options *options = attempt->options;
	Link	   *link = attempt->link;
	Ticket	   *ticket = attempt->ticket;
	int64_t		left = attempt->give_up_at - now();
	char		wait[32];
	const char *parameters[] = {
		options->name, options->owner, options->lease, wait,
		options->scope, options->request
	};
	Progress	progress;

	left = left < 0 ? 0 : left;
	snprintf(wait, sizeof(wait), "%lld.%03d", (long long) left / 1000,
			 (int) (left % 1000));
	ticket->asked_at = now();
	link_ask(link, ASK_ACQUIRE, parameters, ticket->asked_at + ANSWER_MS +
			 (ticket->ticket[0] ? 0 : left));
	progress = link_await(link, true);
	if (progress == PENDING)
	{
		/* the answer tells what there is to be given back */
		if (link->give_up_at > now() + LAST_ANSWER_MS)
			link->give_up_at = now() + LAST_ANSWER_MS;
		progress = link_await(link, false);
	}
	attempt->may_be_known |= link->sent;
	if (progress == ANSWERED)
		read_ticket(link->answer, ticket);
	return progress;
}

static void
show_wait(const Attempt *attempt)
{
	const char *name = attempt->options->name;
	const Ticket *ticket = attempt->ticket;
	long long	left = (attempt->give_up_at - now() + 999) / 1000;
	char		holder[sizeof(ticket->holder) + 16] = "";

	if (ticket->holder[0])
		snprintf(holder, sizeof(holder), " held by \"%s\",", ticket->holder);
	if (attempt->link->state == LINK_DOWN)
		show_status_line(attempt->options,
						 "waiting for \"%s\": no connection, %lld s left",
						 name, left);
	else
		show_status_line(attempt->options,
						 "waiting for \"%s\":%s position %d, %lld s left",
						 name, holder, ticket->position, left);
}

/*
 * pause_for
 *	  A pause between two requests; a signal ends it.
 */
static void
pause_for(const Attempt *attempt, int64_t ms)
{
	Instant		until = now() + ms;

	while (now() < until && !signal_is_pending())
	{
		if (attempt->give_up_at > now())
			show_wait(attempt);
		if (attempt->link->state != LINK_DOWN)
			link_step(attempt->link);
		link_sleep(attempt->link, -1, until);
	}
}

/*
 * may_try_again
 *	  After a failure.  Even without a wait a lost answer is asked for once
 *	  more, for it may be a lock.
 */
static bool
may_try_again(Attempt *attempt)
{
	const Link *link = attempt->link;

	if (!link_may_recover(link))
		return false;
	if (link->sent && attempt->failures == 0 &&
		attempt->retry_until < now() + RECOVERY_MS)
		attempt->retry_until = now() + RECOVERY_MS;
	if (now() >= attempt->retry_until)
		return false;
	if (attempt->failures++ == 0 && !attempt->options->quiet)
		complain("%s; trying again", link->error);
	return true;
}

static ExitCode
fail(const Attempt *attempt)
{
	complain("%s", attempt->link->error);
	if (attempt->may_be_known && link_may_recover(attempt->link))
		complain("request %s may have been granted: repeat it, or let its lease run out",
				 attempt->options->request);
	return link_exit_code(attempt->link);
}

/*
 * abandon
 *	  A signal ends the wait.
 */
static ExitCode
abandon(Attempt *attempt)
{
	int			signo = next_signal();

	clear_status_line();
	if (attempt->ticket->ticket[0])
		give_back(attempt->link, attempt->ticket, INT64_MAX);
	return EXIT_SIGNAL + signo;
}

/*
 * acquire
 *	  Asks for the lock until it is held or there is no more hope.  Unless the
 *	  result is EXIT_DONE or EXIT_SERVER and so on, it is that of the ticket's
 *	  state; link->answer is the last answer, NULL if there is none.
 */
ExitCode
acquire(Link *link, const Options *options, Ticket *ticket)
{
	Attempt		attempt;

	memset(ticket, 0, sizeof(*ticket));
	memset(&attempt, 0, sizeof(attempt));
	attempt.link = link;
	attempt.options = options;
	attempt.ticket = ticket;
	attempt.give_up_at = now() + (int64_t) (options->wait_seconds * 1000);
	attempt.retry_until = attempt.give_up_at;
	for (;;)
	{
		Progress	progress = ask_once(&attempt);

		if (signal_is_pending())
			return abandon(&attempt);
		if (progress == ANSWERED && strcmp(ticket->state, "waiting") != 0)
			break;
		if (progress == FAILED && !may_try_again(&attempt))
			return fail(&attempt);
		if (progress == ANSWERED)
			attempt.failures = 0;
		pause_for(&attempt, progress == ANSWERED ? ticket->next_call_ms :
				  back_off_ms(attempt.failures));
		if (signal_is_pending())
			return abandon(&attempt);
	}
	clear_status_line();
	return ticket_exit_code(ticket->state);
}

/*
 * give_back
 *	  Releases a ticket, in a bounded time: a dead server keeps nobody, least
 *	  of all beyond the end of the lease.  False if it could not be done.
 */
bool
give_back(Link *link, Ticket *ticket, Instant ends_at)
{
	const char *parameters[] = {ticket->ticket};
	Instant		most = now() + RECOVERY_MS;
	Instant		give_up_at = ends_at < most ? ends_at : most;
	int			failures = 0;

	do
	{
		link_ask(link, ASK_RELEASE, parameters, give_up_at);
		if (link_await(link, false) == ANSWERED)
		{
			read_ticket(link->answer, ticket);
			return true;
		}
		if (!link_may_recover(link))
			break;
		for (Instant until = now() + back_off_ms(failures++); now() < until;)
			link_sleep(link, -1, until < give_up_at ? until : give_up_at);
	} while (now() < give_up_at);
	complain("could not give the lease back, it runs out by itself: %s",
			 link->error);
	return false;
}
