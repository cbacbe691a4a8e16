/*-------------------------------------------------------------------------
 *
 * child.c
 *	  The command: its process group, its terminal, its status.
 *
 * The command has a process group of its own, so that what is meant for it
 * reaches its children, too, and it is gone when that group is empty.  Where
 * it shares a terminal with us it gets the foreground: at once if it reads
 * and writes there, else when it asks, by being stopped for touching the
 * terminal from the background.  So in "leaselock run ... | less" the pager
 * keeps the keyboard.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "cli.h"

/*
 * move_terminal
 *	  Makes a process group the foreground one, also from the background.
 */
static void
move_terminal(int terminal, pid_t group)
{
	sigset_t	block;
	sigset_t	old;

	sigemptyset(&block);
	sigaddset(&block, SIGTTOU);
	sigprocmask(SIG_BLOCK, &block, &old);
	tcsetpgrp(terminal, group);
	sigprocmask(SIG_SETMASK, &old, NULL);
}

static bool
owns_terminal(int terminal, pid_t group)
{
	return terminal >= 0 && tcgetpgrp(terminal) == group;
}

static void
set_environment(const Options *options, const Ticket *ticket)
{
	setenv("LEASELOCK_FENCE", ticket->fence, 1);
	setenv("LEASELOCK_TICKET", ticket->ticket, 1);
	setenv("LEASELOCK_NAME", options->name, 1);
	setenv("LEASELOCK_SCOPE", options->scope, 1);
}

/*
 * is_in_path
 *	  Whether there is such a file in a directory of PATH.  execvp() does not
 *	  tell where it was kept from looking into one.
 */
static bool
is_in_path(const char *command)
{
	const char *directory = getenv("PATH");
	char		path[4096];

	while (directory)
	{
		int			length = (int) strcspn(directory, ":");

		/* an empty one is the current directory */
		snprintf(path, sizeof(path), "%.*s%s%s", length, directory,
				 length > 0 ? "/" : "", command);
		if (access(path, F_OK) == 0)
			return true;
		directory = directory[length] ? directory + length + 1 : NULL;
	}
	return false;
}

/*
 * become_command
 *	  In the new process.  The mask of signals is the old one again only when
 *	  their handlers are, too.
 */
static void
become_command(const Options *options, const Ticket *ticket, int terminal,
			   pid_t parent, const sigset_t *mask)
{
	const char *command = options->argv[0];
	int			reason;

	setpgid(0, 0);
	if (terminal >= 0)
		move_terminal(terminal, getpid());
	restore_signals();
	sigprocmask(SIG_SETMASK, mask, NULL);
#ifdef __linux__
	/* the watchdog does it for the group; this is for the end of both */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	if (getppid() != parent)
		_exit(EXIT_LOST);
	set_environment(options, ticket);
	execvp(command, options->argv);
	reason = errno;
	if (reason == EACCES && !strchr(command, '/') && !is_in_path(command))
		reason = ENOENT;
	complain("could not execute \"%s\": %s", command, strerror(reason));
	_exit(reason == ENOENT || reason == ENOTDIR ?
		  EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE);
}

/*
 * start_child
 *	  False if there can be no process.
 */
bool
start_child(Child *child, const Options *options, const Ticket *ticket)
{
	pid_t		parent = getpid();
	sigset_t	all;
	sigset_t	mask;
	bool		foreground;

	memset(child, 0, sizeof(*child));
	child->terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
	foreground = owns_terminal(child->terminal, getpgrp()) &&
		isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
#ifdef __linux__
	/* what outlives its parent in the group is reaped here, so it does end */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
#endif
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &mask);
	child->pid = fork();
	if (child->pid == 0)
		become_command(options, ticket, foreground ? child->terminal : -1,
					   parent, &mask);
	if (child->pid > 0)
	{
		/* both do it, so that it is done whoever runs first */
		setpgid(child->pid, child->pid);
		if (foreground)
			move_terminal(child->terminal, child->pid);
	}
	sigprocmask(SIG_SETMASK, &mask, NULL);
	return child->pid > 0;
}

void
signal_child(const Child *child, int signo)
{
	kill(-child->pid, signo);
}

/*
 * resume_child
 *	  Lets it go on, in the foreground if we are there and share a terminal.
 */
void
resume_child(const Child *child)
{
	if (owns_terminal(child->terminal, getpgrp()) && isatty(STDIN_FILENO))
		move_terminal(child->terminal, child->pid);
	signal_child(child, SIGCONT);
}

void
take_terminal_back(const Child *child)
{
	if (owns_terminal(child->terminal, child->pid))
		move_terminal(child->terminal, getpgrp());
}

/*
 * stop_with_child
 *	  The command was stopped.  If it wants the terminal and we have it, it
 *	  gets it.  If a shell may have stopped it as its job, that job is us, too:
 *	  we stop until the shell lets us go on.  Where no shell is there the
 *	  system lets us go on at once.  Anywhere else nobody waits for our stop,
 *	  and the lease is kept.
 */
static void
stop_with_child(const Child *child, int signo)
{
	bool		wants_terminal = signo == SIGTTIN || signo == SIGTTOU;
	struct sigaction action;
	struct sigaction old;

	if (wants_terminal && owns_terminal(child->terminal, getpgrp()))
	{
		resume_child(child);
		return;
	}
	if (child->terminal < 0 || signo == SIGSTOP)
		return;
	take_terminal_back(child);
	memset(&action, 0, sizeof(action));
	action.sa_handler = SIG_DFL;
	sigaction(SIGTSTP, &action, &old);
	raise(SIGTSTP);
	sigaction(SIGTSTP, &old, NULL);
	resume_child(child);
}

/*
 * note_child_status
 *	  What waitpid() tells of any process that is ours.
 */
void
note_child_status(Child *child, pid_t pid, int status)
{
	if (pid != child->pid)
		return;
	if (WIFSTOPPED(status))
		stop_with_child(child, WSTOPSIG(status));
	else if (WIFEXITED(status) || WIFSIGNALED(status))
	{
		child->ended = true;
		child->status = status;
	}
}

/*
 * child_is_gone
 *	  The command has ended, and nothing of its process group is left.
 */
bool
child_is_gone(const Child *child)
{
	return child->ended && kill(-child->pid, 0) != 0 && errno == ESRCH;
}

/*
 * child_exit_code
 *	  As a shell tells it.
 */
ExitCode
child_exit_code(const Child *child)
{
	if (WIFEXITED(child->status))
		return WEXITSTATUS(child->status);
	return EXIT_SIGNAL + WTERMSIG(child->status);
}
