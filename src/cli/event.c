/*-------------------------------------------------------------------------
 *
 * event.c
 *	  The local clock, signals, and the descriptors 0 to 2.
 *
 * A handler only notes its signal and writes to a pipe, so that whoever
 * sleeps in poll() on the other end wakes up also when the signal comes just
 * before poll() does.
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
#include <time.h>
#include <unistd.h>

#include "cli.h"

/*
 * What ends a program that does not catch it, but for the signals of its own
 * faults, after which there is nothing to go on with.
 */
static const int ending[] = {
	SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM,
	SIGPROF, SIGABRT, SIGTRAP, SIGSYS, SIGXCPU,
#ifdef SIGPOLL
	SIGPOLL,
#endif
#ifdef SIGPWR
	SIGPWR,
#endif
#ifdef SIGSTKFLT
	SIGSTKFLT,
#endif
};

static volatile sig_atomic_t caught[NSIG];
static struct sigaction inherited[NSIG];
static bool changed[NSIG];
static int	wake_pipe[2] = {-1, -1};

/*
 * fill_standard_descriptors
 *	  What was closed when the program began is opened, so that no socket gets
 *	  the number, and messages do not go into the connection.  It is opened the
 *	  wrong way round, so that to use it still fails, and the command of "run"
 *	  does not get it.
 */
void
fill_standard_descriptors(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 &&
			open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) |
				 O_CLOEXEC) != fd)
			_exit(EXIT_SERVER);
}

/*
 * now
 *	  The time that counts while the machine is suspended, too, where the
 *	  system has such a clock: the server's leases go on then.  No clock that
 *	  can be set.
 */
Instant
now(void)
{
	struct timespec t;

#ifdef CLOCK_BOOTTIME
	if (clock_gettime(CLOCK_BOOTTIME, &t) != 0)
#endif
		clock_gettime(CLOCK_MONOTONIC, &t);
	return (Instant) t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void
note_signal(int signo)
{
	int			saved_errno = errno;

	caught[signo] = 1;
	/* if the pipe is full, it wakes as it is */
	(void) !write(wake_pipe[1], "", 1);
	errno = saved_errno;
}

static void
open_wake_pipe(void)
{
	if (wake_pipe[0] >= 0)
		return;
	if (pipe(wake_pipe) != 0)
	{
		complain("could not create a pipe: %s", strerror(errno));
		exit(EXIT_SERVER);
	}
	for (int i = 0; i < 2; i++)
	{
		fcntl(wake_pipe[i], F_SETFD, FD_CLOEXEC);
		fcntl(wake_pipe[i], F_SETFL, O_NONBLOCK);
	}
}

/*
 * catch_signals
 *	  Has these signals noted for next_signal().  One that was ignored when
 *	  the program began stays so, as nohup means it to be; but not SIGCHLD,
 *	  without which the end of a child would not be told.
 */
void
catch_signals(const int *signals, int count)
{
	open_wake_pipe();
	for (int i = 0; i < count; i++)
	{
		int			signo = signals[i];
		struct sigaction action;

		if (changed[signo])
			continue;
		memset(&action, 0, sizeof(action));
		action.sa_handler = note_signal;
		action.sa_flags = SA_RESTART;
		sigfillset(&action.sa_mask);
		sigaction(signo, NULL, &inherited[signo]);
		if (inherited[signo].sa_handler == SIG_IGN && signo != SIGCHLD)
			continue;
		changed[signo] = true;
		sigaction(signo, &action, NULL);
	}
}

/*
 * catch_ending_signals
 *	  Of those that would end the program each is noted instead, so that what
 *	  it has taken can be given back.
 */
void
catch_ending_signals(void)
{
	catch_signals(ending, sizeof(ending) / sizeof(ending[0]));
#ifdef SIGRTMIN
	for (int signo = SIGRTMIN; signo <= SIGRTMAX && signo < NSIG; signo++)
		catch_signals(&signo, 1);
#endif
}

/*
 * ignore_signal
 *	  The same for a signal that is not to be noticed.
 */
void
ignore_signal(int signo)
{
	struct sigaction action;

	if (changed[signo])
		return;
	memset(&action, 0, sizeof(action));
	action.sa_handler = SIG_IGN;
	sigaction(signo, &action, &inherited[signo]);
	changed[signo] = true;
}

/*
 * ignore_failed_writes
 *	  A write that fails is told by its error alone.
 */
void
ignore_failed_writes(void)
{
	ignore_signal(SIGPIPE);
	ignore_signal(SIGXFSZ);
}

/*
 * restore_signals
 *	  All as the program found it.
 */
void
restore_signals(void)
{
	for (int signo = 1; signo < NSIG; signo++)
		if (changed[signo])
		{
			sigaction(signo, &inherited[signo], NULL);
			changed[signo] = false;
		}
}

bool
signal_is_pending(void)
{
	for (int signo = 1; signo < NSIG; signo++)
		if (caught[signo])
			return true;
	return false;
}

/*
 * next_signal
 *	  One of the signals that came; 0 if there is none.
 */
int
next_signal(void)
{
	for (int signo = 1; signo < NSIG; signo++)
		if (caught[signo])
		{
			caught[signo] = 0;
			return signo;
		}
	return 0;
}

/*
 * sleep_until
 *	  Until one of the descriptors is ready, a signal comes, or the time.  Ask
 *	  next_signal() first.  fds[0] is filled in here.  It never sleeps for
 *	  longer than a second, for poll()'s time stands still while the machine is
 *	  suspended.
 */
void
sleep_until(struct pollfd *fds, int count, Instant until)
{
	int64_t		wait = until - now();
	char		drain[64];

	open_wake_pipe();
	fds[0].fd = wake_pipe[0];
	fds[0].events = POLLIN;
	if (wait < 0)
		wait = 0;
	if (poll(fds, count, (int) (wait > 1000 ? 1000 : wait)) < 0)
		for (int i = 0; i < count; i++)
			fds[i].revents = 0;
	while (read(wake_pipe[0], drain, sizeof(drain)) > 0)
		;
}

/*
 * close_wake_pipe
 *	  For a forked process that shares nothing with its parent.
 */
void
close_wake_pipe(void)
{
	close(wake_pipe[0]);
	close(wake_pipe[1]);
}
