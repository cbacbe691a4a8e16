/*-------------------------------------------------------------------------
 *
 * child.c
 *	  The command: its process group, terminal and exit status.
 *
 * The command runs in its own process group, so that signals to it reach its
 * children too.  It is gone when that group is empty.  If it shares a terminal
 * with us, it becomes the foreground group: at once if its input and output
 * are the terminal, otherwise when it is stopped for using the terminal from
 * the background.  In "leaselock run ... | less", the pager therefore keeps
 * the keyboard.
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
 *	  Makes a process group the foreground group, even from the background.
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
 *	  Whether a directory of PATH contains the file.  execvp() does not say
 *	  whether it failed because it could not search a directory.
 */
static bool
is_in_path(const char *command)
{
	const char *directory = getenv("PATH");
	char		path[4096];

	while (directory)
	{
		int			length = (int) strcspn(directory, ":");

		/* an empty entry means the current directory */
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
 *	  Runs in the new process.  The signal mask is restored only after the
 *	  handlers.
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
	/* the watchdog kills the group, unless it dies with us */
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
 *	  Starts the command; returns false if no process could be created.
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
	/* orphans of the group become our children, so that we can reap them */
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
		/* parent and child both do this, because either may run first */
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
 *	  Continues a stopped command, in the foreground if we are there and share
 *	  a terminal.
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
 *	  Handles a stop of the command.  If it needs the terminal and we have it,
 *	  it gets it.  If a shell may have stopped it as its job, that job includes
 *	  us, so we stop until the shell continues us; if there is no shell, the
 *	  system continues us at once.  In any other case nobody waits for us to
 *	  stop, and the lease is kept.
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
 *	  Records the status that waitpid() returned for any of our processes.
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
 *	  Whether the command and its entire process group have ended.
 */
bool
child_is_gone(const Child *child)
{
	return child->ended && kill(-child->pid, 0) != 0 && errno == ESRCH;
}

/*
 * child_exit_code
 *	  The exit code that a shell would report.
 */
ExitCode
child_exit_code(const Child *child)
{
	if (WIFEXITED(child->status))
		return WEXITSTATUS(child->status);
	return EXIT_SIGNAL + WTERMSIG(child->status);
}
