/*-------------------------------------------------------------------------
 *
 * mcp_lease.c
 *	  Acquisitions that are looked after: waits, and leases that are kept.
 *
 * Waiting is asking again with the same request id, as in acquire.c, and goes
 * on when the call has been answered, for a model thinks longer than a place
 * in the queue lasts without a sign of life.  Keeping is renewing at a third
 * of the lease.  Both end with the input, for then nobody is there who
 * works.
 *
 * A lease that is neither waited for nor kept is not looked after, unless it
 * is to be given back at the end.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "mcp.h"

/* The server is asked no more often than this, whatever it says. */
#define LEAST_PAUSE_MS	10

/* How long giving back is tried; after that it runs out by itself. */
#define GIVE_BACK_MS	20000

static bool
is_waiting(const Lease *lease)
{
	return strcmp(lease->ticket.state, "waiting") == 0;
}

static bool
is_held(const Lease *lease)
{
	return strcmp(lease->ticket.state, "held") == 0;
}

static bool
is_kept(const Lease *lease)
{
	return is_held(lease) && now() < lease->keep_until;
}

/*
 * next_caller
 *	  The calls that ask for a lease, one after the other; NULL at the end.
 */
static Call *
next_caller(Call *call, const Lease *lease)
{
	while (call && (call->lease != lease || call->is_cancelled))
		call = call->next;
	return call;
}

static bool
is_asked_for(const Server *server, const Lease *lease)
{
	return next_caller(server->calls, lease) != NULL;
}

/* ---------------------------------------------------------------------
 * Beginning
 * ---------------------------------------------------------------------
 */

static Lease *
find_lease(Server *server, const Call *call, const char *owner)
{
	const char *request = call->values.text[ARG_REQUEST_UUID];

	for (Lease *lease = server->leases; request && lease; lease = lease->next)
		if (strcmp(lease->request, request) == 0 &&
			strcmp(lease->name, call->values.text[ARG_LOCK_NAME]) == 0 &&
			strcmp(lease->scope, call->values.text[ARG_SCOPE]) == 0 &&
			strcmp(lease->owner, owner) == 0)
			return lease;
	return NULL;
}

static Lease *
add_lease(Server *server, const Call *call, const char *request,
		  const char *owner)
{
	const char *seconds = call->values.text[ARG_LEASE_SECONDS];
	Lease	   *lease = calloc(1, sizeof(Lease));

	if (lease == NULL)
		return NULL;
	snprintf(lease->request, sizeof(lease->request), "%s", request);
	lease->request_is_known = call->values.text[ARG_REQUEST_UUID] != NULL;
	lease->name = copy_text(call->values.text[ARG_LOCK_NAME]);
	lease->scope = copy_text(call->values.text[ARG_SCOPE]);
	lease->owner = copy_text(owner);
	lease->lease_seconds = copy_text(seconds ? seconds : "60");
	if (call->values.text[ARG_NOTE])
		lease->note = copy_text(call->values.text[ARG_NOTE]);
	lease->task.number = server->tasks++;
	lease->wait_until = call->began + value_ms(&call->values, ARG_WAIT_SECONDS);
	lease->next = server->leases;
	server->leases = lease;
	return lease;
}

static int
count_leases(const Server *server)
{
	int			count = 0;

	for (const Lease *lease = server->leases; lease; lease = lease->next)
		count++;
	return count;
}

/*
 * begin_acquisition
 *	  Finds what the call asks for, or begins it.  The default owner is made of
 *	  the request, never of the process: a client may share one process among
 *	  agents that know nothing of each other, and a retry may come to another
 *	  process.  False if there are too many.
 */
bool
begin_acquisition(Server *server, Call *call)
{
	char	  **text = call->values.text;
	const char *owner = text[ARG_OWNER];
	char		request[40];
	char		own[64];

	if (text[ARG_SCOPE] == NULL)
		text[ARG_SCOPE] = copy_text(server->options->scope);
	if (text[ARG_REQUEST_UUID])
		snprintf(request, sizeof(request), "%s", text[ARG_REQUEST_UUID]);
	else
		make_uuid(request, sizeof(request));
	snprintf(own, sizeof(own), "mcp:%s", request);
	owner = owner ? owner : own;
	call->lease = find_lease(server, call, owner);
	if (call->lease == NULL && count_leases(server) < MOST_LEASES)
		call->lease = add_lease(server, call, request, owner);
	if (call->lease == NULL)
		return false;
	if (text[ARG_KEEP_SECONDS])
	{
		call->lease->keep_ms = value_ms(&call->values, ARG_KEEP_SECONDS);
		call->lease->keep_until = is_held(call->lease) ?
			now() + call->lease->keep_ms : 0;
	}
	if (call->lease->task.failures == 0)
		call->lease->task.ask_at = now();
	return true;
}

/* ---------------------------------------------------------------------
 * Asking
 * ---------------------------------------------------------------------
 */

/*
 * has_no_time
 *	  All who asked are to be answered now, and there is no place in the queue
 *	  yet.
 */
static bool
has_no_time(const Server *server, const Lease *lease)
{
	for (Call *call = next_caller(server->calls, lease); call;
		 call = next_caller(call->next, lease))
		if (now() < call->answer_at)
			return false;
	return lease->ticket.ticket[0] == '\0';
}

/*
 * lease_is_late
 *	  Whether the question that is out waits in the server for longer than
 *	  anybody does here.
 */
bool
lease_is_late(const Server *server, const Lease *lease)
{
	return server->link.ask == ASK_ACQUIRE &&
		strcmp(lease->wait, "0.000") != 0 && has_no_time(server, lease);
}

/*
 * write_wait
 *	  What is left of the wait, for the question.
 */
static void
write_wait(const Server *server, Lease *lease)
{
	int64_t		left = lease->wait_until - now();

	if (left < 0 || has_no_time(server, lease))
		left = 0;
	snprintf(lease->wait, sizeof(lease->wait), "%lld.%03d",
			 (long long) left / 1000, (int) (left % 1000));
}

/*
 * ask_for_lease
 *	  The question that is next for it.
 */
void
ask_for_lease(Server *server, Lease *lease)
{
	Ask			ask = ASK_ACQUIRE;
	const char *acquire[MAX_PARAMETERS] = {
		lease->name, lease->owner, lease->lease_seconds, lease->wait,
		lease->scope, lease->request, lease->note
	};
	const char *ticket[MAX_PARAMETERS] = {lease->ticket.ticket, NULL};
	int64_t		patience = ANSWER_MS;

	write_wait(server, lease);
	if (lease->is_withdrawn)
		ask = ASK_RELEASE;
	else if (is_kept(lease) && !is_asked_for(server, lease))
	{
		/* of the length last asked for */
		ask = ASK_RENEW;
		if (patience > lease->ticket.remaining_ms / 4)
			patience = lease->ticket.remaining_ms / 4;
	}
	else if (lease->ticket.ticket[0] == '\0')
		patience += lease->wait_until > now() ? lease->wait_until - now() : 0;
	lease->ticket.asked_at = now();
	lease->task.patience_ends = now() + patience;
	link_ask(&server->link, ask, ask == ASK_ACQUIRE ? acquire : ticket,
			 lease->task.patience_ends);
}

/*
 * plan_look
 *	  When to ask again after an answer.
 */
static void
plan_look(Server *server, Lease *lease)
{
	int64_t		pause = lease->ticket.next_call_ms;
	Instant		look_at = INT64_MAX;

	if (is_waiting(lease))
	{
		if (pause > lease->ticket.remaining_ms)
			pause = lease->ticket.remaining_ms;
		look_at = now() + (pause > LEAST_PAUSE_MS ? pause : LEAST_PAUSE_MS);
		for (Call *call = next_caller(server->calls, lease); call;
			 call = next_caller(call->next, lease))
			look_at = call->answer_at < look_at ? call->answer_at : look_at;
	}
	else if (is_kept(lease))
		look_at = lease->renew_at;
	lease->task.ask_at = look_at;
}

/* ---------------------------------------------------------------------
 * Answers
 * ---------------------------------------------------------------------
 */

static void
withdraw(Lease *lease)
{
	lease->is_withdrawn = true;
	lease->wait_until = now() + GIVE_BACK_MS;
	lease->task.ask_at = now();
	lease->task.failures = 0;
}

/*
 * note_ticket
 *	  What an answer says, whoever asked.  The time for keeping begins when the
 *	  lock is first seen to be held.
 */
static void
note_ticket(Lease *lease, const PGresult *answer, Instant asked_at)
{
	bool		was_held = is_held(lease);
	Instant		ends_at = lease->ends_at;

	read_ticket(answer, &lease->ticket);
	json_decref(lease->answer);
	lease->answer = read_json(answer, 0);
	lease->ends_at = asked_at + lease->ticket.remaining_ms;
	/* an earlier call may have asked for another wait, from another process */
	if (is_waiting(lease) && !lease->is_withdrawn)
		lease->wait_until = asked_at + lease->ticket.remaining_ms;
	if (!is_held(lease))
		return;
	if (!was_held && lease->keep_ms > 0)
		lease->keep_until = now() + lease->keep_ms;
	/* another look at the same lease does not put its renewal off */
	if (!was_held ||
		llabs(lease->ends_at - ends_at) > lease->ticket.remaining_ms / 8)
		lease->renew_at = asked_at + lease->ticket.remaining_ms / 3;
}

/*
 * answer_callers
 *	  Those who need not wait any longer; the others are told where they stand.
 */
static void
answer_callers(Server *server, Lease *lease)
{
	Call	   *next;

	for (Call *call = next_caller(server->calls, lease); call; call = next)
	{
		next = next_caller(call->next, lease);
		if (is_waiting(lease) && now() < call->answer_at)
			send_progress(call);
		else
		{
			if (lease->answer)
				answer_with_json(call, lease->answer);
			else
				answer_with_error(call, json_string("the server's answer makes no sense"));
			drop_call(server, call);
		}
	}
}

/*
 * note_lease_answer
 *	  Of a question about the lease, by itself or by a call for its ticket.
 */
void
note_lease_answer(Server *server, Lease *lease, const PGresult *answer)
{
	bool		is_abandoned = lease->is_abandoned &&
	!is_asked_for(server, lease);

	note_ticket(lease, answer, server->asked_at);
	lease->task.failures = 0;
	lease->task.is_open = false;
	lease->is_abandoned = false;
	/* who named the request may have got this ticket long ago */
	if (is_waiting(lease) ? (is_abandoned || server->is_ending) :
		is_held(lease) && ((is_abandoned && !lease->request_is_known) ||
						   (server->is_ending && server->options->release_on_exit)))
	{
		if (!lease->is_withdrawn && is_held(lease))
			answer_callers(server, lease);
		withdraw(lease);
		return;
	}
	answer_callers(server, lease);
	plan_look(server, lease);
	if (!ticket_is_live(lease->ticket.state))
	{
		lease->is_withdrawn = false;
		lease->task.ask_at = INT64_MAX;
	}
	else if (lease->is_withdrawn)
		lease->task.ask_at = now() + back_off_ms(1);
}

static void
fail_callers(Server *server, Lease *lease, bool now_or_never)
{
	Call	   *next;
	char		more[256] = "";

	if (lease->task.is_open)
		snprintf(more, sizeof(more),
				 "It may have been done all the same: call again with request_uuid %s%s",
				 lease->request, strncmp(lease->owner, "mcp:", 4) == 0 ? "" :
				 " and the same owner");
	for (Call *call = next_caller(server->calls, lease); call; call = next)
	{
		next = next_caller(call->next, lease);
		if (now_or_never || now() >= call->fail_at)
		{
			answer_with_failure(call, &server->link, more);
			drop_call(server, call);
		}
	}
}

/*
 * note_lease_failure
 *	  Each of these questions may be asked again, whatever became of it: that
 *	  is what request ids and tickets are for.  A standby refuses for good,
 *	  unless there is a place in the queue or a lease: it may be the next
 *	  primary.
 */
void
note_lease_failure(Server *server, Lease *lease)
{
	Link	   *link = &server->link;
	bool		has_ticket = lease->ticket.ticket[0] != '\0';
	bool		is_passing = link_may_recover(link) ||
	(strcmp(link->sqlstate, "25006") == 0 && has_ticket);

	lease->task.is_open = lease->task.is_open || link_outcome_is_open(link);
	if (!is_passing)
	{
		bool		is_lost = has_ticket && !is_asked_for(server, lease);

		if (is_lost)
			report("ticket %s is no longer looked after: %s",
				   lease->ticket.ticket, link->error);
		fail_callers(server, lease, true);
		/* a value that is refused ends nothing that was there before */
		if (is_kept(lease) && !is_lost)
			plan_look(server, lease);
		else
		{
			lease->task.ask_at = INT64_MAX;
			lease->is_withdrawn = false;
			lease->ticket.state[0] = '\0';
		}
		return;
	}
	if (lease->task.failures++ == 0 && !server->options->quiet)
		report("%s; trying again", link->error);
	lease->task.ask_at = now() + back_off_ms(lease->task.failures);
	if (!is_waiting(lease))
		fail_callers(server, lease, false);
}

/* ---------------------------------------------------------------------
 * Ending
 * ---------------------------------------------------------------------
 */

/*
 * leave_lease
 *	  The call is cancelled.  If it was the last, its place in the queue is
 *	  given back, now or when it is known; a lock that is held stays so.
 */
void
leave_lease(Server *server, Call *call)
{
	Lease	   *lease = call->lease;

	call->lease = NULL;
	if (is_asked_for(server, lease))
		return;
	if (is_waiting(lease))
		withdraw(lease);
	else if (lease->ticket.state[0] == '\0' &&
			 (server->asking == &lease->task || lease->task.is_open))
		lease->is_abandoned = true;
	else if (lease->ticket.state[0] == '\0')
		lease->task.ask_at = INT64_MAX;
}

/*
 * end_leases
 *	  The input has ended: nobody waits any more.  What has not been asked yet
 *	  is asked without a wait.
 */
void
end_leases(Server *server)
{
	for (Lease *lease = server->leases; lease; lease = lease->next)
	{
		lease->keep_until = 0;
		if (lease->ticket.state[0] == '\0')
			lease->wait_until = now();
		else if (is_waiting(lease) ||
				 (is_held(lease) && server->options->release_on_exit))
			withdraw(lease);
		else if (!is_asked_for(server, lease))
			lease->task.ask_at = INT64_MAX;
	}
}

static bool
is_needed(const Server *server, const Lease *lease)
{
	if (server->asking == &lease->task || is_asked_for(server, lease))
		return true;
	if (lease->is_withdrawn || is_waiting(lease))
		return now() < lease->wait_until + GIVE_BACK_MS;
	if (is_held(lease) && server->options->release_on_exit)
		return now() < lease->ends_at;
	if (is_kept(lease) && now() >= lease->ends_at)
	{
		report("ticket %s could not be renewed in time", lease->ticket.ticket);
		return false;
	}
	return is_kept(lease) || (lease->is_abandoned && lease->task.is_open &&
							  lease->task.failures < 10);
}

/*
 * tidy_leases
 *	  Forgets those that need no more care.
 */
void
tidy_leases(Server *server)
{
	Lease	  **place = &server->leases;

	while (*place)
	{
		Lease	   *lease = *place;

		if (is_needed(server, lease))
		{
			place = &lease->next;
			continue;
		}
		*place = lease->next;
		json_decref(lease->answer);
		free(lease->name);
		free(lease->scope);
		free(lease->owner);
		free(lease->lease_seconds);
		free(lease->note);
		free(lease);
	}
}
