/*-------------------------------------------------------------------------
 *
 * mcp_turn.c
 *	  Decides whose question is asked next; all share one connection.
 *
 * One question is open at a time, and the next is that of the task that has
 * been due for the longest time.  If the server takes long while others are
 * due, the question is cancelled and asked again after theirs, with more time.
 * No task can therefore make the others wait for long, and each is answered in
 * the end.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "mcp.h"

/* How long a question may make others wait, the first time. */
#define SLICE_MS		250

/* A cancelled question is not asked again before this has passed. */
#define CUT_PAUSE_MS	20

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
	if (first == NULL || second->ask_at < first->ask_at ||
		(second->ask_at == first->ask_at && second->number < first->number))
		return second;
	return first;
}

/*
 * first_task
 *	  The task that is due first; NULL if none wants to ask.  Calls do not
 *	  count while their answers are not being read.
 */
static Task *
first_task(const Server *server)
{
	Task	   *first = NULL;

	for (Lease *lease = server->leases; lease; lease = lease->next)
		if (&lease->task != server->asking)
			first = earlier(first, &lease->task);
	if (wire_backlog() < MOST_BACKLOG)
		for (Call *call = server->calls; call; call = call->next)
			if (&call->task != server->asking)
				first = earlier(first, &call->task);
	return first && first->ask_at < INT64_MAX ? first : NULL;
}

/*
 * finish
 *	  Handles the end of the open question.
 */
static void
finish(Server *server, bool answered)
{
	Task	   *task = server->asking;
	Call	   *call = call_of(server, task);
	Lease	   *lease = lease_of(server, task);
	bool		was_cut = (task->is_cut && !answered &&
						   strcmp(server->link.sqlstate, "57014") == 0);

	server->asking = NULL;
	task->is_cut = false;
	if (was_cut && !(call && call->is_cancelled) &&
		!(lease && lease->is_abandoned && !task->is_open))
	{
		task->ask_at = now() + CUT_PAUSE_MS;
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
 * ask_next
 *	  Asks the question of the task that is due; returns false if there is
 *	  none.
 */
static bool
ask_next(Server *server)
{
	Task	   *task = first_task(server);

	if (task == NULL || now() < task->ask_at)
		return false;
	server->asking = task;
	server->asked_at = now();
	task->ask_at = INT64_MAX;
	task->slice_ms = task->slice_ms ? task->slice_ms : SLICE_MS;
	if (call_of(server, task))
		ask_for_call(server, call_of(server, task));
	else
		ask_for_lease(server, lease_of(server, task));
	return true;
}

/*
 * cut_short
 *	  Cancels the open question if it has used up its time and another task is
 *	  due.  A connection attempt is not cancelled, because it serves all.
 */
static void
cut_short(Server *server)
{
	Task	   *task = server->asking;
	Task	   *other = first_task(server);
	Lease	   *lease = lease_of(server, task);
	Call	   *call = call_of(server, task);

	if (server->link.state != LINK_ASKING || task->is_cut ||
		now() < server->asked_at + task->slice_ms)
		return;
	if ((other && now() >= other->ask_at) || (call && call->is_cancelled) ||
		(lease && lease_is_late(server, lease)))
	{
		task->is_cut = start_canceller(server->link.conn);
		task->slice_ms *= 2;
	}
}

/*
 * go_on
 *	  Continues the open question as far as possible without waiting.
 */
static void
go_on(Server *server)
{
	Progress	progress = PENDING;

	if (server->asking || server->link.state != LINK_DOWN)
		progress = link_step(&server->link);
	if (server->asking && progress != PENDING)
		finish(server, progress == ANSWERED);
}

/*
 * take_turns
 *	  Continues the open question, and asks the next ones.
 */
void
take_turns(Server *server)
{
	if (canceller_is_stuck())
	{
		/*
		 * even if the answer is there: the cancellation could hit the next
		 * question
		 */
		stop_canceller();
		link_drop(&server->link, "the server is not responding");
	}
	go_on(server);
	while (server->asking == NULL && !canceller_is_running() &&
		   ask_next(server))
		go_on(server);
	if (server->asking)
		cut_short(server);
}

/*
 * next_turn
 *	  When there is something to do again, unless something arrives before.
 *	  The end of a canceller is announced by a signal.
 */
Instant
next_turn(const Server *server)
{
	const Task *asking = server->asking;
	const Task *first = first_task(server);
	Instant		turn = first ? first->ask_at : INT64_MAX;

	/* a task that is due now must wait for the open question, or its time */
	if (asking && turn <= now())
		turn = INT64_MAX;
	if (asking && !asking->is_cut && now() < asking->slice_ms + server->asked_at)
		turn = asking->slice_ms + server->asked_at;
	if (asking == NULL && canceller_is_running())
		turn = INT64_MAX;
	for (const Call *call = server->calls; call; call = call->next)
	{
		if (&call->task != asking && call->give_up_at < turn)
			turn = call->give_up_at;
		if (now() < call->answer_at && call->answer_at < turn)
			turn = call->answer_at;
	}
	return turn;
}
