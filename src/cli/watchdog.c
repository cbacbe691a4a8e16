/*-------------------------------------------------------------------------
 *
 * watchdog.c
 *	  The process that ends the command when the lease ends.
 *
 * It shares nothing with the program but a socket, over which it gets its
 * orders: which process group is to get TERM and KILL, and when.  It does
 * nothing else and so is never late: not while the program looks up a host
 * name, not while it is stopped.  If the program dies without having said
 * that it is done, the socket closes, and the group is killed at once, for
 * nobody renews the lease any more.
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

/* poll()'s time stands still while the machine is suspended */
#define LONGEST_SLEEP_MS	1000

/*
 * stand_apart
 *	  In a process group of its own, so that what is sent to the program's
 *	  does not end it, and without a hand on anything of the program's: a
 *	  reader of its output must see the end of that.
 */
static void
stand_apart(int fd, const Link *link)
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
 * carry_out
 *	  What is due by the orders; what has been done is remembered in them, by
 *	  a time that does not come.
 */
static void
carry_out(Orders *orders, int fd)
{
	Instant		present = now();
	bool		kill_it = present >= orders->kill_at;
	char		report = kill_it ? WATCHDOG_KILLED : WATCHDOG_TERMINATED;

	if (orders->group == 0 || (!kill_it && present < orders->term_at))
		return;
	/* said first, so that it is known when the command is seen to end */
	(void) !send(fd, &report, 1, 0);
	orders->term_at = INT64_MAX;
	if (kill_it)
	{
		orders->kill_at = INT64_MAX;
		kill(-orders->group, SIGKILL);
		return;
	}
	kill(-orders->group, SIGTERM);
	/* a stopped process would not see it */
	kill(-orders->group, SIGCONT);
}

static void
keep_watch(int fd)
{
	Orders		orders = {0, INT64_MAX, INT64_MAX};

	for (;;)
	{
		struct pollfd pollfd = {fd, POLLIN, 0};
		int64_t		wait = (orders.term_at < orders.kill_at ?
							orders.term_at : orders.kill_at);

		wait -= now();
		wait = wait < 0 ? 0 : wait;
		wait = wait > LONGEST_SLEEP_MS ? LONGEST_SLEEP_MS : wait;
		if (poll(&pollfd, 1, (int) wait) > 0)
		{
			pid_t		group = orders.group;

			if (recv(fd, &orders, sizeof(orders), MSG_WAITALL) !=
				(ssize_t) sizeof(orders))
			{
				if (group != 0)
					kill(-group, SIGKILL);
				_exit(1);
			}
			if (orders.group == 0)
				_exit(0);
		}
		carry_out(&orders, fd);
	}
}

/*
 * start_watchdog
 *	  False if there can be no watchdog.
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
		stand_apart(fds[1], link);
		keep_watch(fds[1]);
	}
	close(fds[1]);
	watchdog->fd = fds[0];
	fcntl(watchdog->fd, F_SETFD, FD_CLOEXEC);
	fcntl(watchdog->fd, F_SETFL, O_NONBLOCK);
	if (watchdog->pid > 0)
	{
		/* both do it, so that it is done whoever runs first */
		setpgid(watchdog->pid, watchdog->pid);
		return true;
	}
	close(watchdog->fd);
	return false;
}

/*
 * order_watchdog
 *	  New orders in place of the old.  False if the watchdog is gone.
 */
bool
order_watchdog(const Watchdog *watchdog, const Orders *orders)
{
	return send(watchdog->fd, orders, sizeof(*orders), MSG_NOSIGNAL) ==
		(ssize_t) sizeof(*orders);
}

/*
 * hear_watchdog
 *	  What the watchdog has done since; WATCHDOG_GONE if it is no more.
 */
int
hear_watchdog(const Watchdog *watchdog)
{
	char		report;
	ssize_t		size = recv(watchdog->fd, &report, 1, 0);

	if (size == 1)
		return report;
	return size < 0 && (errno == EAGAIN || errno == EINTR) ?
		WATCHDOG_SILENT : WATCHDOG_GONE;
}

/*
 * dismiss_watchdog
 *	  The command is no more.
 */
void
dismiss_watchdog(Watchdog *watchdog)
{
	Orders		none;

	memset(&none, 0, sizeof(none));
	order_watchdog(watchdog, &none);
	close(watchdog->fd);
	watchdog->fd = -1;
	while (waitpid(watchdog->pid, NULL, 0) < 0 && errno == EINTR)
		;
}
