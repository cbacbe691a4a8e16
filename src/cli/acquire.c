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
 * A wait may be longer than the server lets one request wait; it is made of
 * several then.
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

/* The longest wait of one request, unless the server's max_wait is another. */
#define LONGEST_WAIT_MS		300000

/* How long after a refusal a place is asked for again that is not needed yet. */
#define NEXT_PLACE_PAUSE_MS	10000

/* A request, and the ticket that it got. */
typedef struct Place
{
	char		request[40];
	Ticket		ticket;
	bool		outcome_is_open;	/* it was sent, and not answered */
	int64_t		wait_ms;		/* how long the ticket was to wait at first */
} Place;

/*
 * One acquisition.  A wait that is longer than one request's is made of several.
 * Each is made when the one before it has half of its wait left, by the same
 * owner, so they share the place of the older: when that is over, nobody is
 * ahead who came later than the younger.
 */
typedef struct Attempt
{
	Link	   *link;
	const Options *options;
	Place		place;
	bool		is_long;		/* one request may not wait for as long */
	bool		has_next;
	Place		next;
	Instant		next_at;		/* not to be asked for before */
	char		last_request[40];
	const char *note;
	Instant		give_up_at;		/* end of the wait, by our clock */
	Instant		retry_until;	/* end of repetitions after failures */
	int			failures;		/* in a row */
} Attempt;

/* What to do after an answer. */
typedef enum Step
{
	SETTLED,
	ASK_AGAIN,
	PAUSE
} Step;

/*
 * back_off_ms
 *	  How long to pause after so many failures in a row.
 */
int64_t
back_off_ms(int failures)
{
	return failures > 4 ? 1000 : 50 << failures;
}

/* ---------------------------------------------------------------------
 * Asking
 * ---------------------------------------------------------------------
 */

/*
 * patience_ms
 *	  How long the answer may take.  The first time that is as long as the
 *	  wait, behind other transactions; once a ticket is known no answer does.
 *	  After a failure there is no more time than for repetitions.
 */
static int64_t
patience_ms(const Attempt *attempt, const Place *place, int64_t left)
{
	int64_t		rest = attempt->retry_until - now();

	if (left > LONGEST_WAIT_MS)
		left = LONGEST_WAIT_MS;
	if (attempt->failures == 0 || rest > ANSWER_MS)
		return ANSWER_MS + (place->ticket.ticket[0] ? 0 : left);
	return LAST_ANSWER_MS + (rest > 0 ? rest : 0);
}

/*
 * ask_for
 *	  Makes the request, or polls, which is the same.
 */
static Progress
ask_for(Attempt *attempt, Place *place)
{
	const Options *options = attempt->options;
	Link	   *link = attempt->link;
	Ticket	   *ticket = &place->ticket;
	int64_t		left = attempt->give_up_at - now();
	char		wait[32];
	const char *parameters[] = {
		options->name, options->owner, options->lease, wait,
		options->scope, place->request, attempt->note
	};
	Progress	progress;

	left = left < 0 ? 0 : left;
	snprintf(wait, sizeof(wait), "%lld.%03d", (long long) left / 1000,
			 (int) (left % 1000));
	ticket->asked_at = now();
	link_ask(link, attempt->is_long ? ASK_ACQUIRE_LONG : ASK_ACQUIRE,
			 parameters, ticket->asked_at + patience_ms(attempt, place, left));
	progress = link_await(link, true);
	if (progress == PENDING)
	{
		/* the answer tells what there is to be given back */
		if (link->give_up_at > now() + LAST_ANSWER_MS)
			link->give_up_at = now() + LAST_ANSWER_MS;
		progress = link_await(link, false);
	}
	if (progress == ANSWERED)
	{
		read_ticket(link->answer, ticket);
		if (place->wait_ms == 0 && strcmp(ticket->state, "waiting") == 0)
			place->wait_ms = ticket->remaining_ms;
	}
	if (progress == ANSWERED || link_outcome_is_open(link))
		place->outcome_is_open = progress != ANSWERED;
	return progress;
}

static void
show_wait(const Attempt *attempt)
{
	const Options *options = attempt->options;
	const Ticket *ticket = &attempt->place.ticket;
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

/* ---------------------------------------------------------------------
 * Places
 * ---------------------------------------------------------------------
 */

/*
 * has_place
 *	  Whether a ticket is known to be in the queue, or may be there.
 */
static bool
has_place(const Place *place)
{
	return place->outcome_is_open || place->ticket.ticket[0];
}

/*
 * make_place
 *	  A further request.  Its uuid follows from the one before it, so that who
 *	  repeats the first finds what came of all.
 */
static void
make_place(Attempt *attempt, Place *place)
{
	next_uuid(attempt->last_request);
	memset(place, 0, sizeof(*place));
	snprintf(place->request, sizeof(place->request), "%s",
			 attempt->last_request);
}

/*
 * warn_of_request
 *	  Where we end without knowing what became of it.
 */
static void
warn_of_request(const Attempt *attempt)
{
	if (has_place(&attempt->place))
		complain("request %s may have been granted: repeat it, or let its lease run out",
				 attempt->place.request);
}

/*
 * leave_next_place
 *	  If it is not known whether there is any, nobody will be heard from there.
 */
static void
leave_next_place(Attempt *attempt)
{
	if (attempt->has_next && attempt->next.ticket.ticket[0])
		give_back(attempt->link, &attempt->next.ticket, INT64_MAX);
	attempt->has_next = false;
}

/*
 * leave_places
 *	  False, and a word, if that is not certain.
 */
static bool
leave_places(Attempt *attempt)
{
	leave_next_place(attempt);
	if (attempt->place.ticket.ticket[0] &&
		give_back(attempt->link, &attempt->place.ticket, INT64_MAX))
		return true;
	warn_of_request(attempt);
	return false;
}

/*
 * keep_next_place
 *	  Asks for the next place when it is time, and then polls it.  Whatever
 *	  comes of that, the present one goes on.
 */
static void
keep_next_place(Attempt *attempt)
{
	const Place *place = &attempt->place;
	Place	   *next = &attempt->next;
	Instant		ends_at = now() + place->ticket.remaining_ms;
	bool		failed;

	if (!attempt->is_long || strcmp(place->ticket.state, "waiting") != 0)
		return;
	if (!attempt->has_next &&
		(ends_at + LATE_MS >= attempt->give_up_at ||
		 place->ticket.remaining_ms > place->wait_ms / 2 ||
		 now() < attempt->next_at))
		return;
	if (!attempt->has_next)
		make_place(attempt, next);
	attempt->has_next = true;
	failed = ask_for(attempt, next) == FAILED;
	if (failed && has_place(next))
		return;
	if (!failed && strcmp(next->ticket.state, "held") == 0)
	{
		Place		held = *next;

		*next = attempt->place;
		attempt->place = held;
	}
	else if (failed || strcmp(next->ticket.state, "waiting") != 0)
	{
		attempt->has_next = false;
		attempt->next_at = now() + NEXT_PLACE_PAUSE_MS;
	}
}

/*
 * judge
 *	  What to do about the answer of the present place.
 */
static Step
judge(Attempt *attempt)
{
	const char *state = attempt->place.ticket.state;
	bool		is_over = !attempt->is_long || now() >= attempt->give_up_at;

	if (strcmp(state, "waiting") == 0)
		return PAUSE;
	if (!is_over && strcmp(state, "contended") == 0)
		return PAUSE;
	if (!is_over && strcmp(state, "timed_out") == 0)
	{
		if (attempt->has_next)
			attempt->place = attempt->next;
		else
			make_place(attempt, &attempt->place);
		attempt->has_next = false;
		return PAUSE;
	}
	if (!attempt->has_next)
		return SETTLED;
	/* the answer is to be the last thing that we hear */
	leave_next_place(attempt);
	return ASK_AGAIN;
}

/* ---------------------------------------------------------------------
 * Failures
 * ---------------------------------------------------------------------
 */

/*
 * may_ask_otherwise
 *	  Whether something of our own making may be left out that the server
 *	  refuses.  A wait of one request is shorter where its setting says so; and
 *	  the encoding of the database may lack a character of a note, or need more
 *	  bytes: a note that we made up must not keep anybody from the lock.
 */
static bool
may_ask_otherwise(Attempt *attempt)
{
	const Link *link = attempt->link;

	if (!attempt->is_long && strcmp(link->sqlstate, "22023") == 0 &&
		strstr(link->error, "argument \"wait\" is out of range"))
	{
		attempt->is_long = true;
		return true;
	}
	if (attempt->note == NULL || !attempt->options->note_is_made_up ||
		strncmp(link->sqlstate, "22", 2) != 0)
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

	if (!link_may_recover(link) && !(standby && has_place(&attempt->place)))
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
 *	  A signal ends the wait.
 */
static ExitCode
abandon(Attempt *attempt)
{
	int			signo = next_signal();

	clear_status_line();
	leave_places(attempt);
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
	return leave_places(attempt) ? EXIT_NOT_HELD : EXIT_SERVER;
}

/*
 * pause_after_answer_ms
 *	  As long as the server says, but it does not know when our time is over.
 */
static int64_t
pause_after_answer_ms(const Attempt *attempt)
{
	int64_t		pause = attempt->place.ticket.next_call_ms;
	int64_t		left = attempt->give_up_at - now();

	if (attempt->has_next && attempt->next.ticket.next_call_ms < pause)
		pause = attempt->next.ticket.next_call_ms;
	if (left > 0 && pause > left)
		pause = left;
	if (left <= 0 && pause > LATE_MS / 4)
		pause = LATE_MS / 4;
	return pause > LEAST_PAUSE_MS ? pause : LEAST_PAUSE_MS;
}

/*
 * go_through
 *	  Asks until the lock is held or there is no more hope.
 */
static ExitCode
go_through(Attempt *attempt)
{
	for (;;)
	{
		Progress	progress = ask_for(attempt, &attempt->place);
		Step		step = progress == ANSWERED ? judge(attempt) : PAUSE;

		if (signal_is_pending())
			return abandon(attempt);
		if (step == SETTLED)
			return ticket_exit_code(attempt->place.ticket.state);
		if (step == ASK_AGAIN || (progress == FAILED && may_ask_otherwise(attempt)))
			continue;
		if (progress == FAILED && !may_try_again(attempt))
			return fail(attempt);
		if (progress == ANSWERED && now() >= attempt->give_up_at + LATE_MS)
			return end_wait(attempt);
		if (progress == ANSWERED)
		{
			attempt->failures = 0;
			keep_next_place(attempt);
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
 *	  Asks for the lock until it is held or there is no more hope.  Unless the
 *	  result is EXIT_DONE or EXIT_SERVER and so on, it is that of the ticket's
 *	  state; link->answer is the last answer, NULL if there is none.
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
	attempt.is_long = options->wait_seconds * 1000 > LONGEST_WAIT_MS;
	snprintf(attempt.place.request, sizeof(attempt.place.request), "%s",
			 options->request);
	memcpy(attempt.last_request, attempt.place.request,
		   sizeof(attempt.last_request));
	code = go_through(&attempt);
	clear_status_line();
	*ticket = attempt.place.ticket;
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
 * The end
 * ---------------------------------------------------------------------
 */

/*
 * ask_at_the_end
 *	  A question of somebody who is about to end, in a bounded time: a dead
 *	  server keeps nobody, least of all beyond the end of the lease.
 */
static bool
ask_at_the_end(Link *link, Ask what, const char *const *parameters,
			   Instant ends_at)
{
	Instant		most = now() + RECOVERY_MS;
	Instant		give_up_at = ends_at < most ? ends_at : most;
	int			failures = 0;

	do
	{
		link_ask(link, what, parameters, give_up_at);
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
 *	  Releases a ticket, or says that it could not be done.
 */
bool
give_back(Link *link, Ticket *ticket, Instant ends_at)
{
	const char *parameters[] = {ticket->ticket};

	if (ask_at_the_end(link, ASK_RELEASE, parameters, ends_at))
	{
		read_ticket(link->answer, ticket);
		if (!ticket_is_live(ticket->state))
			return true;
		snprintf(link->error, sizeof(link->error),
				 "the server says that it is still %s", ticket->state);
	}
	complain_of_lines(link->error,
					  "could not give the lease back, it runs out by itself: ");
	return false;
}

/*
 * stay_taken
 *	  Keeps the lock from others until so long after its grant: adds a named
 *	  hold to the ticket's grant for what is left of that, if anything is.
 *	  Where the ticket is not held any more, that is for give_back() to say.
 *	  False, and a word, if it could not be done; then the ticket had better be
 *	  kept.
 */
bool
stay_taken(Link *link, const Options *options, const Ticket *ticket,
		   Instant ends_at)
{
	const char *parameters[] = {
		ticket->ticket, options->lease, options->name, options->owner,
		options->scope, options->at_least
	};

	if (ask_at_the_end(link, ASK_HOLD, parameters, ends_at))
		return true;
	complain_of_lines(link->error,
					  "could not keep \"%s\" taken, its lease runs out by itself: ",
					  options->name);
	return false;
}
