/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Acquiring a lock, with or without waiting, and releasing it.
 *
 * To wait means to repeat the request with the same request id.  The place in
 * the queue therefore survives a lost connection and a restart of the server,
 * and a request whose answer was lost is not carried out twice.  CALL
 * lease_wait would wake up slightly sooner, but its ticket dies with the
 * connection.
 *
 * A wait may be longer than the server allows for one request; it then
 * consists of several requests.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* How long to wait for an answer. */
#define ANSWER_MS			10000

/* Likewise, after a signal has arrived. */
#define LAST_ANSWER_MS		2000

/*
 * How long to retry for a lost answer if there is no wait, and how long to try
 * to release a lock before leaving its lease to run out.
 */
#define RECOVERY_MS			3000

/*
 * How long after the end of the wait by our clock the server may still end it.
 */
#define LATE_MS				1000

/* Never ask the server more often than this, whatever it suggests. */
#define MIN_PAUSE_MS		10

/* The longest wait of one request, unless the server's max_wait differs. */
#define MAX_WAIT_MS		300000

/*
 * How long to pause after the next entry was refused.  It is not urgent yet.
 */
#define NEXT_ENTRY_PAUSE_MS	10000

/* A request and its ticket: an entry in the lock's queue. */
typedef struct QueueEntry
{
	char		request[40];
	Ticket		ticket;
	bool		outcome_is_open;	/* sent, but not answered */
	int64_t		wait_ms;		/* length of the ticket's whole wait */
} QueueEntry;

/*
 * One acquisition.  A wait that is too long for one request consists of
 * several.  Each is made when half of the wait of the previous request is
 * left.  All have the same owner, so the newer ticket shares the place of the
 * older ticket.  When the older wait runs out, nobody who came after the newer
 * ticket is ahead of it.
 */
typedef struct Attempt
{
	Link	   *link;
	const Options *options;
	QueueEntry	entry;
	bool		is_long;		/* too long a wait for one request */
	bool		has_next;
	QueueEntry	next;
	Instant		next_at;		/* not to be requested before */
	char		last_request[40];
	const char *note;
	Instant		give_up_at;		/* end of the wait by our clock */
	Instant		retry_until;	/* end of retries after failures */
	int			failures;		/* consecutive ones */
} Attempt;

/* What to do after an answer. */
typedef enum Step
{
	SETTLED,
	REPEAT,
	PAUSE
} Step;

/*
 * back_off_ms
 *	  How long to pause after a number of consecutive failures.
 */
int64_t
back_off_ms(int failures)
{
	return failures > 4 ? 1000 : 50 << failures;
}

/* ---------------------------------------------------------------------
 * Requests
 * ---------------------------------------------------------------------
 */

/*
 * answer_timeout_ms
 *	  How long to wait for the answer.  The first answer may take as long as
 *	  the wait, because other transactions may delay it; once we have a ticket,
 *	  answers come at once.  After a failure, only the time for retries is
 *	  left.
 */
static int64_t
answer_timeout_ms(const Attempt *attempt, const QueueEntry *entry,
				  int64_t left)
{
	int64_t		rest = attempt->retry_until - now();

	if (left > MAX_WAIT_MS)
		left = MAX_WAIT_MS;
	if (attempt->failures == 0 || rest > ANSWER_MS)
		return ANSWER_MS + (entry->ticket.ticket[0] ? 0 : left);
	return LAST_ANSWER_MS + (rest > 0 ? rest : 0);
}

/*
 * send_request
 *	  Makes the request, or repeats it to poll.
 */
static Progress
send_request(Attempt *attempt, QueueEntry *entry)
{
	const Options *options = attempt->options;
	Link	   *link = attempt->link;
	Ticket	   *ticket = &entry->ticket;
	int64_t		left = attempt->give_up_at - now();
	char		wait[32];
	const char *parameters[] = {
		options->name, options->owner, options->lease, wait,
		options->scope, entry->request, attempt->note
	};
	Progress	progress;

	left = left < 0 ? 0 : left;
	snprintf(wait, sizeof(wait), "%lld.%03d", (long long) left / 1000,
			 (int) (left % 1000));
	ticket->sent_at = now();
	link_send(link, attempt->is_long ? QUERY_ACQUIRE_LONG : QUERY_ACQUIRE,
			  parameters,
			  ticket->sent_at + answer_timeout_ms(attempt, entry, left));
	progress = link_await(link, true);
	if (progress == PENDING)
	{
		/* wait for the answer, which says what must be released */
		if (link->give_up_at > now() + LAST_ANSWER_MS)
			link->give_up_at = now() + LAST_ANSWER_MS;
		progress = link_await(link, false);
	}
	if (progress == ANSWERED)
	{
		read_ticket(link->answer, ticket);
		if (entry->wait_ms == 0 && strcmp(ticket->state, "waiting") == 0)
			entry->wait_ms = ticket->remaining_ms;
	}
	if (progress == ANSWERED || link_outcome_is_open(link))
		entry->outcome_is_open = progress != ANSWERED;
	return progress;
}

static void
show_wait(const Attempt *attempt)
{
	const Options *options = attempt->options;
	const Ticket *ticket = &attempt->entry.ticket;
	bool		down = attempt->link->state == LINK_DOWN;
	bool		foreign = ticket->holder[0] && !down;
	char		left[64] = "";
	char		position[32] = "no connection";

	if (options->wait_seconds < MAX_SECONDS)
	{
		char		length[48];

		format_length(length, sizeof(length),
					  (attempt->give_up_at - now() + 999) / 1000 * 1000);
		snprintf(left, sizeof(left), " up to %s", length);
	}
	if (!down)
		snprintf(position, sizeof(position), "position %d", ticket->position);
	show_status_line(options, "waiting%s, %s: \"%s\"%s%s%s", left, position,
					 options->name, foreign ? ", held by \"" : "",
					 foreign ? ticket->holder : "", foreign ? "\"" : "");
}

/*
 * pause_for
 *	  Pauses between two requests, until a signal arrives at the latest.
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

/* ---------------------------------------------------------------------
 * Entries in the queue
 * ---------------------------------------------------------------------
 */

/*
 * has_entry
 *	  Whether there is a ticket, or may be one.
 */
static bool
has_entry(const QueueEntry *entry)
{
	return entry->outcome_is_open || entry->ticket.ticket[0];
}

/*
 * make_entry
 *	  Prepares a further request.  Its uuid is derived from the previous one,
 *	  so that a caller who repeats the first request finds the others too.
 */
static void
make_entry(Attempt *attempt, QueueEntry *entry)
{
	next_uuid(attempt->last_request);
	memset(entry, 0, sizeof(*entry));
	snprintf(entry->request, sizeof(entry->request), "%s",
			 attempt->last_request);
}

/*
 * warn_of_request
 *	  Warns that we are about to exit without knowing the outcome of the
 *	  request.
 */
static void
warn_of_request(const Attempt *attempt)
{
	if (has_entry(&attempt->entry))
		complain("request %s may have been granted: repeat it, or let its lease run out",
				 attempt->entry.request);
}

/*
 * leave_next_entry
 *	  Gives up the next entry.  If we do not know whether there is one, it
 *	  times out because nobody polls it.
 */
static void
leave_next_entry(Attempt *attempt)
{
	if (attempt->has_next && attempt->next.ticket.ticket[0])
		give_back(attempt->link, &attempt->next.ticket, INT64_MAX);
	attempt->has_next = false;
}

/*
 * leave_queue
 *	  Gives up both entries.  If it is uncertain whether that succeeded, prints
 *	  a warning and returns false.
 */
static bool
leave_queue(Attempt *attempt)
{
	leave_next_entry(attempt);
	if (attempt->entry.ticket.ticket[0] &&
		give_back(attempt->link, &attempt->entry.ticket, INT64_MAX))
		return true;
	warn_of_request(attempt);
	return false;
}

/*
 * keep_next_entry
 *	  Requests the next entry when it is time, and polls it afterwards.  The
 *	  present entry stays in use whatever the result.
 */
static void
keep_next_entry(Attempt *attempt)
{
	const QueueEntry *entry = &attempt->entry;
	QueueEntry *next = &attempt->next;
	Instant		ends_at = now() + entry->ticket.remaining_ms;
	bool		failed;

	if (!attempt->is_long || strcmp(entry->ticket.state, "waiting") != 0)
		return;
	if (!attempt->has_next &&
		(ends_at + LATE_MS >= attempt->give_up_at ||
		 entry->ticket.remaining_ms > entry->wait_ms / 2 ||
		 now() < attempt->next_at))
		return;
	if (!attempt->has_next)
		make_entry(attempt, next);
	attempt->has_next = true;
	failed = send_request(attempt, next) == FAILED;
	if (failed && has_entry(next))
		return;
	if (!failed && strcmp(next->ticket.state, "held") == 0)
	{
		QueueEntry	held = *next;

		*next = attempt->entry;
		attempt->entry = held;
	}
	else if (failed || strcmp(next->ticket.state, "waiting") != 0)
	{
		attempt->has_next = false;
		attempt->next_at = now() + NEXT_ENTRY_PAUSE_MS;
	}
}

/*
 * judge
 *	  Decides what to do after the answer for the present entry.
 */
static Step
judge(Attempt *attempt)
{
	const char *state = attempt->entry.ticket.state;
	bool		is_over = !attempt->is_long || now() >= attempt->give_up_at;

	if (strcmp(state, "waiting") == 0)
		return PAUSE;
	if (!is_over && strcmp(state, "contended") == 0)
		return PAUSE;
	if (!is_over && strcmp(state, "timed_out") == 0)
	{
		if (attempt->has_next)
			attempt->entry = attempt->next;
		else
			make_entry(attempt, &attempt->entry);
		attempt->has_next = false;
		return PAUSE;
	}
	if (!attempt->has_next)
		return SETTLED;
	/* the last answer that we get must be for this entry */
	leave_next_entry(attempt);
	return REPEAT;
}

/* ---------------------------------------------------------------------
 * Failures
 * ---------------------------------------------------------------------
 */

/*
 * may_change_request
 *	  Adapts the request if the server refuses a part of it that we chose.  The
 *	  server's limit for one wait may be lower than ours.  The encoding of the
 *	  database may lack a character of the note, or need more bytes for it; a
 *	  note that we generated must not prevent anybody from getting the lock.
 */
static bool
may_change_request(Attempt *attempt)
{
	const Link *link = attempt->link;

	if (!attempt->is_long && strcmp(link->sqlstate, "22023") == 0 &&
		strstr(link->error, "argument \"wait\" is out of range"))
	{
		attempt->is_long = true;
		return true;
	}
	if (attempt->note == NULL || !attempt->options->note_is_generated ||
		strncmp(link->sqlstate, "22", 2) != 0)
		return false;
	attempt->note = NULL;
	return true;
}

/*
 * may_try_again
 *	  Whether to retry after a failure: it must be temporary, and there must be
 *	  time.  A lost answer is retried even without a wait, because the lock may
 *	  have been granted.  A standby refuses permanently, unless we have an
 *	  entry in the queue: then it may be about to become the primary.
 */
static bool
may_try_again(Attempt *attempt)
{
	const Link *link = attempt->link;
	bool		standby = strcmp(link->sqlstate, "25006") == 0;

	if (!link_may_recover(link) && !(standby && has_entry(&attempt->entry)))
		return false;
	if (link_outcome_is_open(link) && attempt->failures == 0 &&
		attempt->retry_until < now() + RECOVERY_MS)
		attempt->retry_until = now() + RECOVERY_MS;
	if (now() >= attempt->retry_until)
		return false;
	if (attempt->failures++ == 0 && !attempt->options->quiet)
		complain_of_lines(link->error, "trying again: ");
	return true;
}

static ExitCode
fail(Attempt *attempt)
{
	ExitCode	code = complain_of_failure(attempt->link);

	warn_of_request(attempt);
	return code;
}

/*
 * abandon
 *	  Ends the wait because of a signal.
 */
static ExitCode
abandon(Attempt *attempt)
{
	int			signo = next_signal();

	clear_status_line();
	leave_queue(attempt);
	return EXIT_SIGNAL + signo;
}

/*
 * end_wait
 *	  Ends the wait because our time has run out while the server still lets us
 *	  wait: the request was an earlier one with a longer wait, or arrived late.
 */
static ExitCode
end_wait(Attempt *attempt)
{
	clear_status_line();
	return leave_queue(attempt) ? EXIT_NOT_HELD : EXIT_SERVER;
}

/*
 * pause_after_answer_ms
 *	  How long to pause: as long as the server suggests, but it does not know
 *	  when our time runs out.
 */
static int64_t
pause_after_answer_ms(const Attempt *attempt)
{
	int64_t		pause = attempt->entry.ticket.next_call_ms;
	int64_t		left = attempt->give_up_at - now();

	if (attempt->has_next && attempt->next.ticket.next_call_ms < pause)
		pause = attempt->next.ticket.next_call_ms;
	if (left > 0 && pause > left)
		pause = left;
	if (left <= 0 && pause > LATE_MS / 4)
		pause = LATE_MS / 4;
	return pause > MIN_PAUSE_MS ? pause : MIN_PAUSE_MS;
}

/*
 * run_attempt
 *	  Repeats the request until the lock is held, or will not be.
 */
static ExitCode
run_attempt(Attempt *attempt)
{
	for (;;)
	{
		Progress	progress = send_request(attempt, &attempt->entry);
		Step		step = progress == ANSWERED ? judge(attempt) : PAUSE;

		if (signal_is_pending())
			return abandon(attempt);
		if (step == SETTLED)
			return ticket_exit_code(attempt->entry.ticket.state);
		if (step == REPEAT ||
			(progress == FAILED && may_change_request(attempt)))
			continue;
		if (progress == FAILED && !may_try_again(attempt))
			return fail(attempt);
		if (progress == ANSWERED && now() >= attempt->give_up_at + LATE_MS)
			return end_wait(attempt);
		if (progress == ANSWERED)
		{
			attempt->failures = 0;
			keep_next_entry(attempt);
		}
		pause_for(attempt, progress == ANSWERED ?
				  pause_after_answer_ms(attempt) :
				  back_off_ms(attempt->failures));
		if (signal_is_pending())
			return abandon(attempt);
	}
}

/*
 * acquire
 *	  Acquires the lock.  The result is the exit code for the ticket's state,
 *	  or that of a failure or signal.  link->answer is the last answer; NULL if
 *	  there is none.
 */
ExitCode
acquire(Link *link, const Options *options, Ticket *ticket)
{
	Attempt		attempt;
	ExitCode	code;

	memset(&attempt, 0, sizeof(attempt));
	attempt.link = link;
	attempt.options = options;
	attempt.note = options->note;
	attempt.give_up_at = now() + (int64_t) (options->wait_seconds * 1000);
	attempt.retry_until = attempt.give_up_at;
	attempt.is_long = options->wait_seconds * 1000 > MAX_WAIT_MS;
	snprintf(attempt.entry.request, sizeof(attempt.entry.request), "%s",
			 options->request);
	memcpy(attempt.last_request, attempt.entry.request,
		   sizeof(attempt.last_request));
	code = run_attempt(&attempt);
	clear_status_line();
	*ticket = attempt.entry.ticket;
	return code;
}

/*
 * explain_refusal
 *	  Says why the lock is not held.  The answer names no holder while the
 *	  transaction that acquired the lock is open.
 */
void
explain_refusal(const Options *options, const Ticket *ticket)
{
	bool		waited = strcmp(ticket->state, "contended") != 0;
	char		gave_up[96] = "";

	if (options->quiet || strcmp(ticket->state, "waiting") == 0)
		return;
	if (strcmp(ticket->state, "deadlock") == 0)
	{
		complain("waiting for \"%s\" would be a deadlock", options->name);
		return;
	}
	if (waited && options->wait_seconds > 0 &&
		options->wait_seconds < MAX_SECONDS)
		snprintf(gave_up, sizeof(gave_up), "gave up after %.15g s: ",
				 options->wait_seconds);
	if (ticket->holder[0])
		complain("%s\"%s\" is held by \"%s\"", gave_up, options->name,
				 ticket->holder);
	else
		complain("%s\"%s\" is in use: a transaction that has not ended is changing it, or others wait for it",
				 gave_up, options->name);
}

/* ---------------------------------------------------------------------
 * Ending
 * ---------------------------------------------------------------------
 */

/*
 * query_before_exit
 *	  Sends a query before we exit, within a limited time: an unreachable
 *	  server must not keep us, least of all beyond the end of the lease.
 */
static bool
query_before_exit(Link *link, QueryKind what, const char *const *parameters,
				  Instant ends_at)
{
	Instant		max = now() + RECOVERY_MS;
	Instant		give_up_at = ends_at < max ? ends_at : max;
	int			failures = 0;

	do
	{
		link_send(link, what, parameters, give_up_at);
		if (link_await(link, false) == ANSWERED)
			return true;
		if (!link_may_recover(link))
			return false;
		for (Instant until = now() + back_off_ms(failures++); now() < until;)
			link_sleep(link, -1, until < give_up_at ? until : give_up_at);
	} while (now() < give_up_at);
	return false;
}

/*
 * give_back
 *	  Releases a ticket; prints a warning and returns false if that failed.
 */
bool
give_back(Link *link, Ticket *ticket, Instant ends_at)
{
	const char *parameters[] = {ticket->ticket};

	if (query_before_exit(link, QUERY_RELEASE, parameters, ends_at))
	{
		read_ticket(link->answer, ticket);
		if (!ticket_is_live(ticket->state))
			return true;
		snprintf(link->error, sizeof(link->error),
				 "the server says that the ticket is still %s", ticket->state);
	}
	complain_of_lines(link->error,
					  "could not release the lease, which will run out by itself: ");
	return false;
}

/*
 * add_named_hold
 *	  Keeps the lock for a minimum time after its grant, by adding a named hold
 *	  to the ticket's grant for the remaining time, if there is any.  If the
 *	  ticket is no longer held, give_back() will report that.  Prints a warning
 *	  and returns false if it failed; the caller should then keep the ticket.
 */
bool
add_named_hold(Link *link, const Options *options, const Ticket *ticket,
			   Instant ends_at)
{
	const char *parameters[] = {
		ticket->ticket, options->lease, options->name, options->owner,
		options->scope, options->at_least
	};

	if (query_before_exit(link, QUERY_HOLD, parameters, ends_at))
		return true;
	complain_of_lines(link->error,
					  "could not keep \"%s\" taken; its lease will run out by itself: ",
					  options->name);
	return false;
}
