/*-------------------------------------------------------------------------
 *
 * mcp_cancel.c
 *	  Cancels a query that the server does not answer.
 *
 * A call may wait in the server for another session's open transaction while
 * other calls need the only connection.  Its query is then cancelled, which
 * undoes it, and sent again after the others.  PQcancel() connects and blocks,
 * so a separate process calls it.  While that process runs, nothing else may
 * be sent, because the cancellation would hit it.
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

/* If a cancellation takes longer, the server is not responding at all. */
#define CANCEL_MS	2000

static pid_t canceller = 0;
static Instant started_at;

/*
 * start_canceller
 *	  Returns false if the process could not be started.
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
 *	  Whether the server does not accept the cancellation.  If so, stop the
 *	  canceller and drop the connection.
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
