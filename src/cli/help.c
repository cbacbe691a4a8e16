/*-------------------------------------------------------------------------
 *
 * help.c
 *	  The help of one subcommand, extracted from the text for all of them.
 *
 * There is only one text to maintain, so its parts cannot contradict each
 * other.  Its layout is the following, which the tests of completion and help
 * enforce:
 *
 *	Usage:
 *	  leaselock COMMAND ...		a subcommand, maybe with continuation lines
 *
 *	Options:
 *	      --option ...			an option, maybe with continuation lines
 *
 *	what applies to every subcommand
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "cli.h"

#define USAGE_HEADING	"Usage:\n"
#define OPTIONS_HEADING	"\nOptions:\n"
#define COMMAND_START	"  leaselock "
#define LOWER			"abcdefghijklmnopqrstuvwxyz-"

/* The beginning of a continuation line. */
#define FURTHER_IN		"          "

typedef struct Span
{
	const char *text;
	int			length;
} Span;

static const struct
{
	const char *command;
	const char *summary;
}			summaries[] = {
	{"acquire", "acquires a lock, or waits for it, and prints the ticket"},
	{"get", "shows the present state of a ticket"},
	{"heartbeat", "renews a held ticket for a full lease from now"},
	{"release", "releases a ticket, or cancels its wait"},
	{"status", "shows the locks that are held or waited for"},
	{"events", "shows the events of locks, and follows new ones"},
	{"break", "ends the grant with the given fence, for operators"},
	{"run", "runs a command under a lease; terminates it if the lease is lost"},
	{"mcp", "serves locks to agents over the Model Context Protocol"},
};

/*
 * entry_at
 *	  The line at "start" and its continuation lines.
 */
static Span
entry_at(const char *start)
{
	const char *end = start;

	do
	{
		end += strcspn(end, "\n");
		end += *end == '\n';
	} while (end - start > 1 && strncmp(end, FURTHER_IN, strlen(FURTHER_IN)) == 0);
	return (Span)
	{
		start, (int) (end - start)
	};
}

/*
 * find_synopsis
 *	  The synopsis of a command; its length is 0 if the command does not exist.
 */
static Span
find_synopsis(const char *usage, const char *command)
{
	const char *heading = strstr(usage, USAGE_HEADING);
	const char *at = heading ? heading + strlen(USAGE_HEADING) : "";
	size_t		length = strlen(command);

	while (strncmp(at, COMMAND_START, strlen(COMMAND_START)) == 0)
	{
		Span		entry = entry_at(at);

		at += strlen(COMMAND_START);
		if (strncmp(at, command, length) == 0 && strchr(" \n", at[length]))
			return entry;
		at = entry.text + entry.length;
	}
	return (Span)
	{
		"", 0
	};
}

/*
 * is_taken
 *	  Whether the synopsis contains the option of the entry, or every command
 *	  takes it.
 */
static bool
is_taken(Span synopsis, Span entry)
{
	const char *option = strstr(entry.text, "--");
	size_t		length = option ? strspn(option, LOWER) : 0;
	const char *at = synopsis.text;

	for (const char *every = "--quiet --version --help "; every[0] != '\0';
		 every += strcspn(every, " ") + 1)
		if (strcspn(every, " ") == length && strncmp(every, option, length) == 0)
			return true;
	while (length > 0 && (at = strstr(at, "--")) != NULL &&
		   at < synopsis.text + synopsis.length)
	{
		if (strspn(at, LOWER) == length && strncmp(at, option, length) == 0)
			return true;
		at += strspn(at, LOWER);
	}
	return false;
}

/*
 * print_help
 *	  Prints the help of one command, or the full text if command is NULL or
 *	  unknown.
 */
void
print_help(const char *usage, const char *command)
{
	Span		synopsis = find_synopsis(usage, command ? command : "\n");
	const char *at = strstr(usage, OPTIONS_HEADING);

	if (synopsis.length == 0 || at == NULL)
	{
		fputs(usage, stdout);
		return;
	}
	for (size_t i = 0; i < sizeof(summaries) / sizeof(summaries[0]); i++)
		if (strcmp(summaries[i].command, command) == 0)
			printf("leaselock %s %s.\n\n", command, summaries[i].summary);
	printf("%s%.*s%s", USAGE_HEADING, synopsis.length, synopsis.text,
		   OPTIONS_HEADING);
	at += strlen(OPTIONS_HEADING);
	while (*at == ' ')
	{
		Span		entry = entry_at(at);

		if (is_taken(synopsis, entry))
			printf("%.*s", entry.length, entry.text);
		at += entry.length;
	}
	fputs(at, stdout);
}
