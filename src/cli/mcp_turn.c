/*-------------------------------------------------------------------------
 *
 * mcp_turn.c
 *	  Decides whose query is sent next; all share one connection.
 *
 * One query is open at a time, and the next is that of the task that has been
 * due for the longest time.  If the server takes long while others are due,
 * the query is cancelled and sent again after theirs, with more time.  No task
 * can therefore make the others wait for long, and each is answered in the
 * end.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "mcp.h"

/* How long a query may make others wait, the first time. */
#define SLICE_MS		250

/* A cancelled query is not sent again before this has passed. */
#define PREEMPTED_PAUSE_MS	20

static Call *
call_of(const Server *server, const Task *task)
{
	Call	   *call = server->calls;

	while (call && &call->task != task)
		call = call->next;
	return call;
}

static Lease *
lease_of(const Server *server, const Task *task)
{
	Lease	   *lease = server->leases;

	while (lease && &lease->task != task)
		lease = lease->next;
	return lease;
}

/*
 * earlier
 *	  Which of two tasks goes first; the first argument may be NULL.
 */
static Task *
earlier(Task *first, Task *second)
{
	if (first == NULL || second->due_at < first->due_at ||
		(second->due_at == first->due_at && second->number < first->number))
		return second;
	return first;
}

/*
 * first_task
 *	  The task that is due first; NULL if none has a query.  Calls do not count
 *	  while their answers are not being read.
 */
static Task *
first_task(const Server *server)
{
	Task	   *first = NULL;

	for (Lease *lease = server->leases; lease; lease = lease->next)
		if (&lease->task != server->active)
			first = earlier(first, &lease->task);
	if (wire_backlog() < MAX_BACKLOG)
		for (Call *call = server->calls; call; call = call->next)
			if (&call->task != server->active)
				first = earlier(first, &call->task);
	return first && first->due_at < INT64_MAX ? first : NULL;
}

/*
 * finish
 *	  Handles the end of the open query.
 */
static void
finish(Server *server, bool answered)
{
	Task	   *task = server->active;
	Call	   *call = call_of(server, task);
	Lease	   *lease = lease_of(server, task);
	bool		was_preempted = (task->is_preempted && !answered &&
								 strcmp(server->link.sqlstate, "57014") == 0);

	server->active = NULL;
	task->is_preempted = false;
	if (was_preempted && !(call && call->is_cancelled) &&
		!(lease && lease->is_abandoned && !task->is_open))
	{
		task->due_at = now() + PREEMPTED_PAUSE_MS;
		return;
	}
	if (answered)
		task->slice_ms = SLICE_MS;
	if (call)
		(answered ? note_call_answer : note_call_failure) (server, call);
	else if (answered)
		note_lease_answer(server, lease, server->link.answer);
	else
		note_lease_failure(server, lease);
}

/*
 * send_next_query
 *	  Sends the query of the task that is due; returns false if there is none.
 */
static bool
send_next_query(Server *server)
{
	Task	   *task = first_task(server);

	if (task == NULL || now() < task->due_at)
		return false;
	server->active = task;
	server->sent_at = now();
	task->due_at = INT64_MAX;
	task->slice_ms = task->slice_ms ? task->slice_ms : SLICE_MS;
	if (call_of(server, task))
		send_call_query(server, call_of(server, task));
	else
		send_lease_query(server, lease_of(server, task));
	return true;
}

/*
 * preempt
 *	  Cancels the open query if it has used up its time and another task is
 *	  due.  A connection attempt is not cancelled, because it serves all.
 */
static void
preempt(Server *server)
{
	Task	   *task = server->active;
	Task	   *other = first_task(server);
	Lease	   *lease = lease_of(server, task);
	Call	   *call = call_of(server, task);

	if (server->link.state != LINK_BUSY || task->is_preempted ||
		now() < server->sent_at + task->slice_ms)
		return;
	if ((other && now() >= other->due_at) || (call && call->is_cancelled) ||
		(lease && lease_is_late(server, lease)))
	{
		task->is_preempted = start_canceller(server->link.conn);
		task->slice_ms *= 2;
	}
}

/*
 * go_on
 *	  Continues the open query as far as possible without waiting.
 */
static void
go_on(Server *server)
{
	Progress	progress = PENDING;

	if (server->active || server->link.state != LINK_DOWN)
		progress = link_step(&server->link);
	if (server->active && progress != PENDING)
		finish(server, progress == ANSWERED);
}

/*
 * take_turns
 *	  Continues the open query, and sends the next queries.
 */
void
take_turns(Server *server)
{
	if (canceller_is_stuck())
	{
		/*
		 * even if the answer is there: the cancellation could hit the next
		 * query
		 */
		stop_canceller();
		link_drop(&server->link, "the server is not responding");
	}
	go_on(server);
	while (server->active == NULL && !canceller_is_running() &&
		   send_next_query(server))
		go_on(server);
	if (server->active)
		preempt(server);
}

/*
 * next_turn
 *	  When there is something to do again, unless something arrives before.
 *	  The end of a canceller is announced by a signal.
 */
Instant
next_turn(const Server *server)
{
	const Task *active = server->active;
	const Task *first = first_task(server);
	Instant		turn = first ? first->due_at : INT64_MAX;

	/*
	 * a task that is due now must wait for the open query to end or use up
	 * its time
	 */
	if (active && turn <= now())
		turn = INT64_MAX;
	if (active && !active->is_preempted &&
		now() < active->slice_ms + server->sent_at)
		turn = active->slice_ms + server->sent_at;
	if (active == NULL && canceller_is_running())
		turn = INT64_MAX;
	for (const Call *call = server->calls; call; call = call->next)
	{
		if (&call->task != active && call->give_up_at < turn)
			turn = call->give_up_at;
		if (now() < call->answer_at && call->answer_at < turn)
			turn = call->answer_at;
	}
	return turn;
}
