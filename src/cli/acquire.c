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

/* How long after our clock the server's may end the wait. */
#define LATE_MS				1000

/* The server is asked no more often than this, whatever it says. */
#define LEAST_PAUSE_MS		10

/* One acquisition. */
typedef struct Attempt
{
	Link	   *link;
	const Options *options;
	Ticket	   *ticket;
	Instant		give_up_at;		/* end of the wait, by our clock */
	Instant		retry_until;	/* end of repetitions after failures */
	bool		outcome_is_open;	/* of a request that was sent */
	int			failures;		/* in a row */
	const char *note;
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
 * patience_ms
 *	  How long the answer may take.  The first time that is as long as the
 *	  wait, behind other transactions; once a ticket is known no answer does.
 *	  After a failure there is no more time than for repetitions.
 */
static int64_t
patience_ms(const Attempt *attempt, int64_t left)
{
	int64_t		rest = attempt->retry_until - now();

	if (attempt->failures == 0 || rest > ANSWER_MS)
		return ANSWER_MS + (attempt->ticket->ticket[0] ? 0 : left);
	return LAST_ANSWER_MS + (rest > 0 ? rest : 0);
}

/*
 * ask_once
 *	  Makes the request, or polls, which is the same.
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
		options->scope, options->request, attempt->note
	};
	Progress	progress;

	left = left < 0 ? 0 : left;
	snprintf(wait, sizeof(wait), "%lld.%03d", (long long) left / 1000,
			 (int) (left % 1000));
	ticket->asked_at = now();
	link_ask(link, ASK_ACQUIRE, parameters,
			 ticket->asked_at + patience_ms(attempt, left));
	progress = link_await(link, true);
	if (progress == PENDING)
	{
		/* the answer tells what there is to be given back */
		if (link->give_up_at > now() + LAST_ANSWER_MS)
			link->give_up_at = now() + LAST_ANSWER_MS;
		progress = link_await(link, false);
	}
	if (progress == ANSWERED)
		read_ticket(link->answer, ticket);
	if (progress == ANSWERED || link_outcome_is_open(link))
		attempt->outcome_is_open = progress != ANSWERED;
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
 * has_place
 *	  Whether a ticket is known to be in the queue, or may be there.
 */
static bool
has_place(const Attempt *attempt)
{
	return attempt->outcome_is_open || attempt->ticket->ticket[0];
}

/*
 * may_leave_note_out
 *	  Whether it may be the note that the server refuses: the encoding of the
 *	  database may lack a character of it, or need more bytes.  A note that we
 *	  made up must not keep anybody from the lock.
 */
static bool
may_leave_note_out(Attempt *attempt)
{
	if (attempt->note == NULL || !attempt->options->note_is_made_up ||
		strncmp(attempt->link->sqlstate, "22", 2) != 0)
		return false;
	attempt->note = NULL;
	return true;
}

/*
 * may_try_again
 *	  After a failure, if it may pass and there is time to wait.  A lost answer
 *	  is asked for even without a wait, for it may be a lock.  A standby refuses
 *	  for good, unless we have a place in the queue: it may be the next primary.
 */
static bool
may_try_again(Attempt *attempt)
{
	const Link *link = attempt->link;
	bool		standby = strcmp(link->sqlstate, "25006") == 0;

	if (!link_may_recover(link) && !(standby && has_place(attempt)))
		return false;
	if (link_outcome_is_open(link) && attempt->failures == 0 &&
		attempt->retry_until < now() + RECOVERY_MS)
		attempt->retry_until = now() + RECOVERY_MS;
	if (now() >= attempt->retry_until)
		return false;
	if (attempt->failures++ == 0 && !attempt->options->quiet)
		complain("%s; trying again", link->error);
	return true;
}

/*
 * warn_of_request
 *	  Where we end without knowing what became of it.
 */
static void
warn_of_request(const Attempt *attempt)
{
	if (has_place(attempt))
		complain("request %s may have been granted: repeat it, or let its lease run out",
				 attempt->options->request);
}

static ExitCode
fail(const Attempt *attempt)
{
	complain("%s", attempt->link->error);
	warn_of_request(attempt);
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
	if (attempt->ticket->ticket[0] &&
		give_back(attempt->link, attempt->ticket, INT64_MAX))
		return EXIT_SIGNAL + signo;
	warn_of_request(attempt);
	return EXIT_SIGNAL + signo;
}

/*
 * end_wait
 *	  The time is over for us, and the server still has us wait: the request
 *	  was an earlier one with a longer wait, or came late.
 */
static ExitCode
end_wait(Attempt *attempt)
{
	clear_status_line();
	if (give_back(attempt->link, attempt->ticket, INT64_MAX))
		return EXIT_NOT_HELD;
	warn_of_request(attempt);
	return EXIT_SERVER;
}

/*
 * pause_after_answer_ms
 *	  As long as the server says, but it does not know when our time is over.
 */
static int64_t
pause_after_answer_ms(const Attempt *attempt)
{
	int64_t		pause = attempt->ticket->next_call_ms;
	int64_t		left = attempt->give_up_at - now();

	if (left > 0 && pause > left)
		pause = left;
	if (left <= 0 && pause > LATE_MS / 4)
		pause = LATE_MS / 4;
	return pause > LEAST_PAUSE_MS ? pause : LEAST_PAUSE_MS;
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
	attempt.note = options->note;
	for (;;)
	{
		Progress	progress = ask_once(&attempt);

		if (signal_is_pending())
			return abandon(&attempt);
		if (progress == ANSWERED && strcmp(ticket->state, "waiting") != 0)
			break;
		if (progress == FAILED && may_leave_note_out(&attempt))
			continue;
		if (progress == FAILED && !may_try_again(&attempt))
			return fail(&attempt);
		if (progress == ANSWERED && now() >= attempt.give_up_at + LATE_MS)
			return end_wait(&attempt);
		if (progress == ANSWERED)
			attempt.failures = 0;
		pause_for(&attempt, progress == ANSWERED ?
				  pause_after_answer_ms(&attempt) :
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
			if (!ticket_is_live(ticket->state))
				return true;
			snprintf(link->error, sizeof(link->error),
					 "the server says that it is still %s", ticket->state);
			break;
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
