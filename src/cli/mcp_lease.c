/*-------------------------------------------------------------------------
 *
 * mcp_lease.c
 *	  Managed acquisitions: waits, and leases that are kept.
 *
 * As in acquire.c, to wait means to repeat the request with the same request
 * id.  The wait continues after the call has been answered, because a model
 * may think for longer than a place in the queue lasts without a sign of life.
 * To keep a lease means to renew it after a third of its length.  Both end
 * with the input, because then nobody is working any more.
 *
 * A lease that is neither waited for nor kept is not managed, unless it is to
 * be released at the end.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "mcp.h"

/* How long to try to release a lease before leaving it to run out. */
#define GIVE_BACK_MS	20000

bool
lease_is_waiting(const Lease *lease)
{
	return strcmp(lease->ticket.state, "waiting") == 0;
}

bool
lease_is_held(const Lease *lease)
{
	return strcmp(lease->ticket.state, "held") == 0;
}

bool
lease_is_kept(const Lease *lease)
{
	return lease_is_held(lease) && now() < lease->keep_until;
}

/*
 * next_caller
 *	  The next call that waits for a lease, starting with the given call; NULL
 *	  at the end.
 */
Call *
next_caller(Call *call, const Lease *lease)
{
	while (call && (call->lease != lease || call->is_cancelled))
		call = call->next;
	return call;
}

bool
lease_has_caller(const Server *server, const Lease *lease)
{
	return next_caller(server->calls, lease) != NULL;
}

/* ---------------------------------------------------------------------
 * Starting
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
 *	  Finds the acquisition that the call asks for, or starts it.  The default
 *	  owner is derived from the request, never from the process: a client may
 *	  share one process among agents that do not know each other, and a retry
 *	  may reach a different process.  Returns false if there are too many
 *	  leases.
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
	if (call->lease == NULL && count_leases(server) < MAX_LEASES)
		call->lease = add_lease(server, call, request, owner);
	if (call->lease == NULL)
		return false;
	if (text[ARG_KEEP_SECONDS])
	{
		call->lease->keep_ms = value_ms(&call->values, ARG_KEEP_SECONDS);
		call->lease->keep_until = lease_is_held(call->lease) ?
			now() + call->lease->keep_ms : 0;
	}
	if (call->lease->task.failures == 0)
		call->lease->task.due_at = now();
	return true;
}

/* ---------------------------------------------------------------------
 * Queries
 * ---------------------------------------------------------------------
 */

/*
 * has_no_time
 *	  Whether all calls for the lease must be answered now, although it has no
 *	  place in the queue yet.
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
 *	  Whether the open query waits in the server for longer than any call waits
 *	  here.
 */
bool
lease_is_late(const Server *server, const Lease *lease)
{
	return server->link.query == QUERY_ACQUIRE &&
		strcmp(lease->wait, "0.000") != 0 && has_no_time(server, lease);
}

/*
 * write_wait
 *	  Sets the rest of the wait, for the query.
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
 * send_lease_query
 *	  Sends the next query for a lease.
 */
void
send_lease_query(Server *server, Lease *lease)
{
	QueryKind	query = QUERY_ACQUIRE;
	const char *acquire[MAX_PARAMETERS] = {
		lease->name, lease->owner, lease->lease_seconds, lease->wait,
		lease->scope, lease->request, lease->note
	};
	const char *ticket[MAX_PARAMETERS] = {lease->ticket.ticket, NULL};
	int64_t		timeout_ms = ANSWER_MS;

	write_wait(server, lease);
	if (lease->is_withdrawn)
		query = QUERY_RELEASE;
	else if (lease_is_kept(lease) && !lease_has_caller(server, lease))
	{
		/* with the length last requested */
		query = QUERY_RENEW;
		if (timeout_ms > lease->ticket.remaining_ms / 4)
			timeout_ms = lease->ticket.remaining_ms / 4;
	}
	else if (lease->ticket.ticket[0] == '\0')
		timeout_ms += lease->wait_until > now() ? lease->wait_until - now() : 0;
	lease->ticket.sent_at = now();
	lease->task.query_deadline = now() + timeout_ms;
	link_send(&server->link, query, query == QUERY_ACQUIRE ? acquire : ticket,
			  lease->task.query_deadline);
}

/* ---------------------------------------------------------------------
 * Ending
 * ---------------------------------------------------------------------
 */

/*
 * withdraw_lease
 *	  Marks a lease to be released.
 */
void
withdraw_lease(Lease *lease)
{
	lease->is_withdrawn = true;
	lease->wait_until = now() + GIVE_BACK_MS;
	lease->task.due_at = now();
	lease->task.failures = 0;
}

/*
 * leave_lease
 *	  Handles a call that was cancelled.  If it was the last one for a waiting
 *	  lease, the place in the queue is given up, now or when its ticket is
 *	  known.  A lock that is held stays held.
 */
void
leave_lease(Server *server, Call *call)
{
	Lease	   *lease = call->lease;

	call->lease = NULL;
	if (lease_has_caller(server, lease))
		return;
	if (lease_is_waiting(lease))
		withdraw_lease(lease);
	else if (lease->ticket.state[0] == '\0' &&
			 (server->active == &lease->task || lease->task.is_open))
		lease->is_abandoned = true;
	else if (lease->ticket.state[0] == '\0')
		lease->task.due_at = INT64_MAX;
}

/*
 * end_leases
 *	  The input has ended: nobody waits any more.  Acquisitions that have not
 *	  been tried yet are tried without a wait.
 */
void
end_leases(Server *server)
{
	for (Lease *lease = server->leases; lease; lease = lease->next)
	{
		lease->keep_until = 0;
		if (lease->ticket.state[0] == '\0')
			lease->wait_until = now();
		else if (lease_is_waiting(lease) ||
				 (lease_is_held(lease) && server->options->release_on_exit))
			withdraw_lease(lease);
		else if (!lease_has_caller(server, lease))
			lease->task.due_at = INT64_MAX;
	}
}

static bool
is_needed(const Server *server, const Lease *lease)
{
	if (server->active == &lease->task || lease_has_caller(server, lease))
		return true;
	if (lease->is_withdrawn || lease_is_waiting(lease))
		return now() < lease->wait_until + GIVE_BACK_MS;
	if (lease_is_held(lease) && server->options->release_on_exit)
		return now() < lease->ends_at;
	if (lease_is_kept(lease) && now() >= lease->ends_at)
	{
		report("ticket %s could not be renewed in time", lease->ticket.ticket);
		return false;
	}
	return lease_is_kept(lease) || (lease->is_abandoned && lease->task.is_open &&
									lease->task.failures < 10);
}

/*
 * drop_unneeded_leases
 *	  Removes leases that need no further care.
 */
void
drop_unneeded_leases(Server *server)
{
	Lease	  **pointer = &server->leases;

	while (*pointer)
	{
		Lease	   *lease = *pointer;

		if (is_needed(server, lease))
		{
			pointer = &lease->next;
			continue;
		}
		*pointer = lease->next;
		json_decref(lease->answer);
		free(lease->name);
		free(lease->scope);
		free(lease->owner);
		free(lease->lease_seconds);
		free(lease->note);
		free(lease);
	}
}
