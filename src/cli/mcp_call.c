/*-------------------------------------------------------------------------
 *
 * mcp_call.c
 *	  Tool calls, from the request to the answer.
 *
 * A call that acquires a lock only waits for its lease, which queries the
 * server; all other calls send their own queries.  Every call has its own
 * deadline, so that a server that hangs does not keep any of them longer than
 * that, even if they have to wait for each other.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "mcp.h"

/*
 * How long after the end of the wait by our clock the server may still end it.
 */
#define LATE_MS		1000

/* How long to wait for the state of a wait that has ended. */
#define LAST_LOOK_MS	2000

static int
count_calls(const Server *server)
{
	int			count = 0;

	for (const Call *call = server->calls; call; call = call->next)
		count++;
	return count;
}

static void
free_call(Call *call)
{
	json_decref(call->id);
	json_decref(call->token);
	free_values(&call->values);
	free(call);
}

/*
 * drop_call
 *	  Removes a call that has been answered or never will be.
 */
void
drop_call(Server *server, Call *call)
{
	Call	  **pointer = &server->calls;

	while (*pointer != call)
		pointer = &(*pointer)->next;
	*pointer = call->next;
	free_call(call);
}

/*
 * set_times
 *	  Sets the deadlines of a call.  A wait no longer than --answer-within
 *	  leaves the server time to end it.
 */
static void
set_times(const Server *server, Call *call)
{
	int64_t		within = (int64_t) (server->options->answer_within_seconds * 1000);
	int64_t		wait = value_ms(&call->values, ARG_WAIT_SECONDS);

	if (wait > 0)
		wait = wait < within ? wait + LATE_MS : within;
	call->answer_at = call->began + wait;
	call->fail_at = call->began + (wait > RECOVERY_MS ? wait : RECOVERY_MS);
	call->give_up_at = call->answer_at + LAST_LOOK_MS;
	if (call->give_up_at < call->began + ANSWER_MS)
		call->give_up_at = call->began + ANSWER_MS;
}

/*
 * begin_call
 *	  Starts a call of a known tool; the arguments have not been checked yet.
 */
void
begin_call(Server *server, json_t *id, json_t *token, bool modern,
		   const Tool *tool, json_t *arguments)
{
	Call	   *call = calloc(1, sizeof(Call));
	Call	  **pointer;
	json_t	   *fault;

	if (call == NULL)
	{
		wire_send_error(id, INTERNAL_ERROR, "out of memory", NULL);
		return;
	}
	call->id = json_incref(id);
	call->token = json_incref(token);
	call->modern = modern;
	call->tool = tool;
	call->began = now();
	call->task.due_at = tool->query == QUERY_ACQUIRE ? INT64_MAX : call->began;
	call->task.number = server->tasks++;
	fault = read_values(server->options, tool, arguments, &call->values);
	if (fault == NULL && count_calls(server) >= MAX_CALLS)
		fault = json_string("too many calls at once: wait for the answers first");
	set_times(server, call);
	if (fault == NULL && tool->query == QUERY_ACQUIRE &&
		!begin_acquisition(server, call))
		fault = json_string("too many locks are being waited for or kept: release some first");
	if (fault)
	{
		answer_with_error(call, fault);
		free_call(call);
		return;
	}
	for (pointer = &server->calls; *pointer; pointer = &(*pointer)->next)
		;
	*pointer = call;
}

/*
 * cancel_calls
 *	  Calls with this id get no answer.  A call that has been answered no
 *	  longer exists, so a late cancellation changes nothing.
 */
void
cancel_calls(Server *server, json_t *id)
{
	Call	   *next;

	for (Call *call = server->calls; call; call = next)
	{
		next = call->next;
		if (!json_equal(call->id, id))
			continue;
		call->is_cancelled = true;
		if (call->lease)
			leave_lease(server, call);
		if (server->active != &call->task)
			drop_call(server, call);
	}
}

/* ---------------------------------------------------------------------
 * Queries
 * ---------------------------------------------------------------------
 */

/*
 * status_query
 *	  The query of lock_status.  A single lock is looked up by its key, without
 *	  reading the others.
 */
static QueryKind
status_query(const Server *server, const Call *call, char *limit,
			 size_t size, const char **parameters)
{
	char	   *const *text = call->values.text;

	if (text[ARG_LOCK_NAME])
	{
		parameters[0] = text[ARG_LOCK_NAME];
		parameters[1] = text[ARG_SCOPE] ? text[ARG_SCOPE] : server->options->scope;
		parameters[2] = "t";	/* including lapsed leases */
		return QUERY_PEEK;
	}
	snprintf(limit, size, "%d",
			 (text[ARG_LIMIT] ? atoi(text[ARG_LIMIT]) : 100) + 1);
	parameters[0] = text[ARG_SCOPE];
	parameters[1] = limit;
	return QUERY_LIST;
}

void
send_call_query(Server *server, Call *call)
{
	static char limit[16];		/* must last until the answer */
	char	   *const *text = call->values.text;
	const char *parameters[MAX_PARAMETERS] = {NULL};
	QueryKind	query = call->tool->query;

	if (query == QUERY_LIST)
		query = status_query(server, call, limit, sizeof(limit), parameters);
	else if (query == QUERY_BREAK)
	{
		parameters[0] = text[ARG_LOCK_NAME];
		parameters[1] = text[ARG_FENCE];
		parameters[2] = text[ARG_SCOPE] ? text[ARG_SCOPE] : server->options->scope;
	}
	else
	{
		parameters[0] = text[ARG_TICKET];
		parameters[1] = text[ARG_LEASE_SECONDS];
	}
	call->task.query_deadline = call->give_up_at;
	link_send(&server->link, query, parameters, call->give_up_at);
}

/*
 * tell_lease
 *	  If a call's answer is about a ticket that is managed here, passes it to
 *	  the lease as well.
 */
static void
tell_lease(Server *server)
{
	Ticket		ticket;

	read_ticket(server->link.answer, &ticket);
	for (Lease *lease = server->leases; lease; lease = lease->next)
		if (ticket.ticket[0] && strcmp(lease->ticket.ticket, ticket.ticket) == 0)
		{
			note_lease_answer(server, lease, server->link.answer);
			return;
		}
}

void
note_call_answer(Server *server, Call *call)
{
	bool		is_about_ticket = (call->values.text[ARG_TICKET] != NULL);

	if (!call->is_cancelled)
		answer_from_result(call, server->link.answer);
	drop_call(server, call);
	if (is_about_ticket)
		tell_lease(server);
}

/*
 * note_call_failure
 *	  A failed query about a ticket may be sent again, whatever its outcome: a
 *	  second renewal is just a renewal, and a second release changes nothing.
 *	  Breaking a grant may not be repeated, because the second answer would
 *	  deny what the first one did.
 */
void
note_call_failure(Server *server, Call *call)
{
	Link	   *link = &server->link;
	bool		is_repeatable = (call->tool->query != QUERY_BREAK ||
								 !link_outcome_is_open(link));

	call->task.is_open = call->task.is_open || link_outcome_is_open(link);
	if (!call->is_cancelled && is_repeatable && link_may_recover(link) &&
		now() < call->fail_at)
	{
		call->task.due_at = now() + back_off_ms(call->task.failures++);
		return;
	}
	if (!call->is_cancelled)
		answer_with_failure(call, link, call->task.is_open && !call->tool->reads_only ?
							"It may have been done nevertheless: check before you call again" : "");
	drop_call(server, call);
}

/* ---------------------------------------------------------------------
 * Times
 * ---------------------------------------------------------------------
 */

/*
 * give_up
 *	  Answers a call that has reached its deadline.  A wait is answered as it
 *	  was last seen.
 */
static void
give_up(Server *server, Call *call)
{
	Lease	   *lease = call->lease;

	if (lease && lease->answer && strcmp(lease->ticket.state, "waiting") == 0)
		answer_with_json(call, lease->answer);
	else if (lease)
		answer_with_error(call, json_sprintf("the server is not responding; call again with request_uuid %s",
											 lease->request));
	else
		answer_with_error(call, json_string("the server is not responding; call again"));
	drop_call(server, call);
}

/*
 * expire_calls
 *	  Ends calls that have reached their deadline, except the call whose query
 *	  is open: that query has its own deadline.
 */
void
expire_calls(Server *server)
{
	Call	   *next;

	for (Call *call = server->calls; call; call = next)
	{
		next = call->next;
		if (now() >= call->give_up_at && server->active != &call->task)
			give_up(server, call);
	}
}

/*
 * end_calls
 *	  The input has ended: calls are answered, but nobody waits any more.
 */
void
end_calls(Server *server)
{
	for (Call *call = server->calls; call; call = call->next)
	{
		call->answer_at = now();
		call->fail_at = now();
		if (call->give_up_at > server->end_at)
			call->give_up_at = server->end_at;
	}
}
