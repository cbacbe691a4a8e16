/*-------------------------------------------------------------------------
 *
 * mcp_cancel.c
 *	  Takes back a question that the server does not answer.
 *
 * A call may wait in the server behind somebody's open transaction while
 * others want the one connection.  It is then taken back, which undoes it,
 * and asked again after them.  PQcancel() connects and waits, so a process of
 * its own does it.  While that runs nothing else must be asked, for the
 * cancellation would hit it.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mcp.h"

/* A server that has not taken it by then does not answer at all. */
#define CANCEL_MS	2000

static pid_t canceller = 0;
static Instant started_at;

/*
 * start_canceller
 *	  False if there can be none.
 */
bool
start_canceller(PGconn *conn)
{
	PGcancel   *cancel = PQgetCancel(conn);

	if (cancel == NULL)
		return false;
	canceller = fork();
	if (canceller == 0)
	{
		char		error[256];

		restore_signals();
		_exit(PQcancel(cancel, error, sizeof(error)) ? 0 : 1);
	}
	PQfreeCancel(cancel);
	started_at = now();
	if (canceller > 0)
		return true;
	canceller = 0;
	return false;
}

bool
canceller_is_running(void)
{
	pid_t		pid = canceller > 0 ? waitpid(canceller, NULL, WNOHANG) : 0;

	if (pid == canceller || (pid < 0 && errno != EINTR))
		canceller = 0;
	return canceller > 0;
}

/*
 * canceller_is_stuck
 *	  The server takes no cancellation.  Then stop it, and drop the connection.
 */
bool
canceller_is_stuck(void)
{
	return canceller_is_running() && now() >= started_at + CANCEL_MS;
}

void
stop_canceller(void)
{
	if (!canceller_is_running())
		return;
	kill(canceller, SIGKILL);
	while (waitpid(canceller, NULL, 0) < 0 && errno == EINTR)
		;
	canceller = 0;
}
