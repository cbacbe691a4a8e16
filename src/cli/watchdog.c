/*-------------------------------------------------------------------------
 *
 * watchdog.c
 *	  The process that ends the command when the lease ends.
 *
 * It shares nothing with the program but a socket, over which it receives its
 * deadlines: which process group to send TERM and KILL to, and when.  It does
 * nothing else, so it is never late, not even while the program looks up a
 * host name or is stopped.  If the program dies without dismissing it, the
 * socket closes, and the watchdog kills the group at once, because nobody
 * renews the lease any more.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"

/* poll() does not count the time during which the machine is suspended */
#define MAX_SLEEP_MS	1000

/*
 * detach_from_program
 *	  Detaches from the program: moves to a process group of its own, so that
 *	  signals sent to the program's group do not end it, and closes the
 *	  program's file descriptors, so that a reader of its output sees the end
 *	  of it.
 */
static void
detach_from_program(int fd, const Link *link)
{
	int			null = open("/dev/null", O_RDWR);

	setpgid(0, 0);
	signal(SIGINT, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTSTP, SIG_IGN);
	for (int i = 0; i < 3; i++)
		dup2(null, i);
	if (null > 2)
		close(null);
	if (link->conn && PQsocket(link->conn) >= 0)
		close(PQsocket(link->conn));
	close_wake_pipe();
	fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/*
 * apply_deadlines
 *	  Sends the signals that are due.  A deadline that has been applied is set
 *	  to a time that never comes.
 */
static void
apply_deadlines(Deadlines *deadlines, int fd)
{
	Instant		present = now();
	bool		kill_it = present >= deadlines->kill_at;
	char		report = kill_it ? WATCHDOG_KILLED : WATCHDOG_TERMINATED;

	if (deadlines->group == 0 || (!kill_it && present < deadlines->term_at))
		return;
	/* send this first, so that it has arrived when the command ends */
	(void) !send(fd, &report, 1, 0);
	deadlines->term_at = INT64_MAX;
	if (kill_it)
	{
		deadlines->kill_at = INT64_MAX;
		kill(-deadlines->group, SIGKILL);
		return;
	}
	kill(-deadlines->group, SIGTERM);
	/* a stopped process would not act on it */
	kill(-deadlines->group, SIGCONT);
}

static void
watch(int fd)
{
	Deadlines	deadlines = {0, INT64_MAX, INT64_MAX};

	for (;;)
	{
		struct pollfd pollfd = {fd, POLLIN, 0};
		int64_t		wait = (deadlines.term_at < deadlines.kill_at ?
							deadlines.term_at : deadlines.kill_at);

		wait -= now();
		wait = wait < 0 ? 0 : wait;
		wait = wait > MAX_SLEEP_MS ? MAX_SLEEP_MS : wait;
		if (poll(&pollfd, 1, (int) wait) > 0)
		{
			pid_t		group = deadlines.group;

			if (recv(fd, &deadlines, sizeof(deadlines), MSG_WAITALL) !=
				(ssize_t) sizeof(deadlines))
			{
				if (group != 0)
					kill(-group, SIGKILL);
				_exit(1);
			}
			if (deadlines.group == 0)
				_exit(0);
		}
		apply_deadlines(&deadlines, fd);
	}
}

/*
 * start_watchdog
 *	  Starts a watchdog; returns false if that failed.
 */
bool
start_watchdog(Watchdog *watchdog, const Link *link)
{
	int			fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
		return false;
	watchdog->pid = fork();
	if (watchdog->pid == 0)
	{
		close(fds[0]);
		detach_from_program(fds[1], link);
		watch(fds[1]);
	}
	close(fds[1]);
	watchdog->fd = fds[0];
	fcntl(watchdog->fd, F_SETFD, FD_CLOEXEC);
	fcntl(watchdog->fd, F_SETFL, O_NONBLOCK);
	if (watchdog->pid > 0)
	{
		/* parent and child both do this, because either may run first */
		setpgid(watchdog->pid, watchdog->pid);
		return true;
	}
	close(watchdog->fd);
	return false;
}

/*
 * update_watchdog
 *	  Replaces the deadlines; returns false if the watchdog is gone.
 */
bool
update_watchdog(const Watchdog *watchdog, const Deadlines *deadlines)
{
	return send(watchdog->fd, deadlines, sizeof(*deadlines), MSG_NOSIGNAL) ==
		(ssize_t) sizeof(*deadlines);
}

/*
 * poll_watchdog
 *	  What the watchdog has done since the last call; WATCHDOG_GONE if it no
 *	  longer exists.
 */
int
poll_watchdog(const Watchdog *watchdog)
{
	char		report;
	ssize_t		size = recv(watchdog->fd, &report, 1, 0);

	if (size == 1)
		return report;
	return size < 0 && (errno == EAGAIN || errno == EINTR) ?
		WATCHDOG_SILENT : WATCHDOG_GONE;
}

/*
 * end_watchdog
 *	  Ends the watchdog after the command has ended.
 */
void
end_watchdog(Watchdog *watchdog)
{
	Deadlines	none;

	memset(&none, 0, sizeof(none));
	update_watchdog(watchdog, &none);
	close(watchdog->fd);
	watchdog->fd = -1;
	while (waitpid(watchdog->pid, NULL, 0) < 0 && errno == EINTR)
		;
}
