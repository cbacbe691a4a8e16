/*-------------------------------------------------------------------------
 *
 * event.c
 *	  The local clock, signals, and file descriptors 0 to 2.
 *
 * A signal handler only records its signal and writes to a pipe.  A sleep in
 * poll() on the other end of the pipe therefore ends even if the signal
 * arrives just before poll() is called.
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
 * Signals that terminate a program unless caught, except those of program
 * faults, after which it cannot continue.
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
 *	  Opens the file descriptors from 0 to 2 that were closed when the program
 *	  started.  Otherwise the connection could get such a number, and messages
 *	  would go into it.  They are opened in the wrong direction, so that using
 *	  them still fails, and the command of "run" does not inherit them.
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
 *	  The current time.  We use a clock that also advances while the machine is
 *	  suspended, if there is one, because leases run on in the server.  The
 *	  clock cannot be set.
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
	/* if the pipe is full, poll() will return anyway */
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
 *	  Records these signals for next_signal().  A signal that was ignored when
 *	  the program started stays ignored, as nohup intends.  The exception is
 *	  SIGCHLD, without which we would not learn about the end of a child.
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
 *	  Records all signals that would terminate the program, so that it can
 *	  release what it holds.
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
 *	  Ignores a signal.
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
 *	  Makes failed writes return an error instead of raising a signal.
 */
void
ignore_failed_writes(void)
{
	ignore_signal(SIGPIPE);
	ignore_signal(SIGXFSZ);
}

/*
 * restore_signals
 *	  Restores the signal handlers that the program started with.
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
 *	  Returns one of the recorded signals; 0 if there is none.
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
 *	  Sleeps until a file descriptor is ready, a signal arrives or the time is
 *	  reached.  Call next_signal() first.  fds[0] is filled in here.  A single
 *	  sleep is limited to a second, because poll() does not count the time
 *	  during which the machine is suspended.
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
 *	  Called in a forked process that shares nothing with its parent.
 */
void
close_wake_pipe(void)
{
	close(wake_pipe[0]);
	close(wake_pipe[1]);
}
