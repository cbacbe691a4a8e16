/*-------------------------------------------------------------------------
 *
 * mcp_outcome.c
 *	  The answers and failures of managed acquisitions.
 *
 * Every answer about a managed ticket arrives here, whether a call or the
 * lease itself sent the query.  Waiting calls are answered or told their
 * position, and the next query is scheduled.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "mcp.h"

/* Never ask the server more often than this, whatever it suggests. */
#define MIN_PAUSE_MS	10

/*
 * plan_look
 *	  Schedules the next query after an answer.
 */
static void
plan_look(Server *server, Lease *lease)
{
	int64_t		pause = lease->ticket.next_call_ms;
	Instant		look_at = INT64_MAX;

	if (lease_is_waiting(lease))
	{
		if (pause > lease->ticket.remaining_ms)
			pause = lease->ticket.remaining_ms;
		look_at = now() + (pause > MIN_PAUSE_MS ? pause : MIN_PAUSE_MS);
		for (Call *call = next_caller(server->calls, lease); call;
			 call = next_caller(call->next, lease))
			look_at = call->answer_at < look_at ? call->answer_at : look_at;
	}
	else if (lease_is_kept(lease))
		look_at = lease->renew_at;
	lease->task.due_at = look_at;
}

/*
 * note_ticket
 *	  Stores an answer.  The time for keeping the lease starts when the lock is
 *	  first seen to be held.
 */
static void
note_ticket(Lease *lease, const PGresult *answer, Instant sent_at)
{
	bool		was_held = lease_is_held(lease);
	Instant		ends_at = lease->ends_at;

	read_ticket(answer, &lease->ticket);
	json_decref(lease->answer);
	lease->answer = read_json(answer, 0);
	lease->ends_at = sent_at + lease->ticket.remaining_ms;

	/*
	 * an earlier call of another process may have asked for a different wait
	 */
	if (lease_is_waiting(lease) && !lease->is_withdrawn)
		lease->wait_until = sent_at + lease->ticket.remaining_ms;
	if (!lease_is_held(lease))
		return;
	if (!was_held && lease->keep_ms > 0)
		lease->keep_until = now() + lease->keep_ms;
	/* another look at the same lease does not postpone its renewal */
	if (!was_held ||
		llabs(lease->ends_at - ends_at) > lease->ticket.remaining_ms / 8)
		lease->renew_at = sent_at + lease->ticket.remaining_ms / 3;
}

/*
 * answer_callers
 *	  Answers the calls that need not wait any longer, and reports progress to
 *	  the others.
 */
static void
answer_callers(Server *server, Lease *lease)
{
	Call	   *next;

	for (Call *call = next_caller(server->calls, lease); call; call = next)
	{
		next = next_caller(call->next, lease);
		if (lease_is_waiting(lease) && now() < call->answer_at)
			send_progress(call);
		else
		{
			if (lease->answer)
				answer_with_json(call, lease->answer);
			else
				answer_with_error(call, json_string("the server's answer is malformed"));
			drop_call(server, call);
		}
	}
}

/*
 * note_lease_answer
 *	  Handles the answer to a query about the lease, sent by the lease or by a
 *	  call for its ticket.
 */
void
note_lease_answer(Server *server, Lease *lease, const PGresult *answer)
{
	bool		is_abandoned = (lease->is_abandoned &&
								!lease_has_caller(server, lease));

	note_ticket(lease, answer, server->sent_at);
	lease->task.failures = 0;
	lease->task.is_open = false;
	lease->is_abandoned = false;

	/*
	 * a caller who passed the request id may have received this ticket
	 * earlier
	 */
	if (lease_is_waiting(lease) ? (is_abandoned || server->is_ending) :
		lease_is_held(lease) && ((is_abandoned && !lease->request_is_known) ||
								 (server->is_ending && server->options->release_on_exit)))
	{
		if (!lease->is_withdrawn && lease_is_held(lease))
			answer_callers(server, lease);
		withdraw_lease(lease);
		return;
	}
	answer_callers(server, lease);
	plan_look(server, lease);
	if (!ticket_is_live(lease->ticket.state))
	{
		lease->is_withdrawn = false;
		lease->task.due_at = INT64_MAX;
	}
	else if (lease->is_withdrawn)
		lease->task.due_at = now() + back_off_ms(1);
}

static void
fail_callers(Server *server, Lease *lease, bool now_or_never)
{
	Call	   *next;
	char		more[256] = "";

	if (lease->task.is_open)
		snprintf(more, sizeof(more),
				 "It may have been done nevertheless: call again with request_uuid %s%s",
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
 *	  Handles a failed query.  All these queries may be repeated, whatever
 *	  their outcome: that is what request ids and tickets are for.  A standby
 *	  refuses permanently, unless there is a place in the queue or a lease:
 *	  then it may be about to become the primary.
 */
void
note_lease_failure(Server *server, Lease *lease)
{
	Link	   *link = &server->link;
	bool		has_ticket = lease->ticket.ticket[0] != '\0';
	bool		is_transient = (link_may_recover(link) ||
								(strcmp(link->sqlstate, "25006") == 0 && has_ticket));

	lease->task.is_open = lease->task.is_open || link_outcome_is_open(link);
	if (!is_transient)
	{
		bool		is_lost = has_ticket && !lease_has_caller(server, lease);

		if (is_lost)
			report("ticket %s is no longer polled or renewed: %s",
				   lease->ticket.ticket, link->error);
		fail_callers(server, lease, true);
		/* a refused value does not end what existed before */
		if (lease_is_kept(lease) && !is_lost)
			plan_look(server, lease);
		else
		{
			lease->task.due_at = INT64_MAX;
			lease->is_withdrawn = false;
			lease->ticket.state[0] = '\0';
		}
		return;
	}
	if (lease->task.failures++ == 0 && !server->options->quiet)
		report("%s; trying again", link->error);
	lease->task.due_at = now() + back_off_ms(lease->task.failures);
	if (!lease_is_waiting(lease))
		fail_callers(server, lease, false);
}
