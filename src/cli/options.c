/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The command line.
 *
 * Options and operands may come in any order, up to "--".  Whatever can be
 * checked without a server is checked here, so that errors are reported at
 * once.  Bounds that are settings of the server are left to the server.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* Which subcommands take an option. */
#define ACQUIRE			(1 << 0)
#define GET				(1 << 1)
#define HEARTBEAT		(1 << 2)
#define RELEASE			(1 << 3)
#define STATUS			(1 << 4)
#define BREAK			(1 << 5)
#define RUN				(1 << 6)
#define EVENTS			(1 << 7)
#define MCP				(1 << 8)
#define EVERY			(~0)

typedef struct Subcommand
{
	const char *name;
	int			bit;
	Command		command;
} Subcommand;

static const Subcommand subcommands[] = {
	{"acquire", ACQUIRE, acquire_command},
	{"get", GET, get_command},
	{"heartbeat", HEARTBEAT, heartbeat_command},
	{"release", RELEASE, release_command},
	{"status", STATUS, status_command},
	{"break", BREAK, break_command},
	{"run", RUN, run_command},
	{"events", EVENTS, events_command},
	{"mcp", MCP, mcp_command},
};

#define SUBCOMMANDS ((int) (sizeof(subcommands) / sizeof(subcommands[0])))

/* Options without a single-letter form. */
enum
{
	OPT_OWNER = 256,
	OPT_LEASE,
	OPT_WAIT,
	OPT_AT_LEAST,
	OPT_SCOPE,
	OPT_REQUEST,
	OPT_NOTE,
	OPT_FENCE,
	OPT_GRACE,
	OPT_JSON,
	OPT_WATCH,
	OPT_QUEUE,
	OPT_ALL,
	OPT_INTERVAL,
	OPT_NAME,
	OPT_SINCE,
	OPT_FOLLOW,
	OPT_ANSWER_WITHIN,
	OPT_MAX_KEEP,
	OPT_ALLOW_BREAK,
	OPT_RELEASE_ON_EXIT,
	OPT_HELP
};

static const struct option long_options[] = {
	{"host", required_argument, NULL, 'h'},
	{"port", required_argument, NULL, 'p'},
	{"username", required_argument, NULL, 'U'},
	{"dbname", required_argument, NULL, 'd'},
	{"owner", required_argument, NULL, OPT_OWNER},
	{"lease-seconds", required_argument, NULL, OPT_LEASE},
	{"wait-seconds", required_argument, NULL, OPT_WAIT},
	{"at-least-seconds", required_argument, NULL, OPT_AT_LEAST},
	{"scope", required_argument, NULL, OPT_SCOPE},
	{"request-uuid", required_argument, NULL, OPT_REQUEST},
	{"note", required_argument, NULL, OPT_NOTE},
	{"fence", required_argument, NULL, OPT_FENCE},
	{"grace", required_argument, NULL, OPT_GRACE},
	{"json", no_argument, NULL, OPT_JSON},
	{"watch", no_argument, NULL, OPT_WATCH},
	{"queue", no_argument, NULL, OPT_QUEUE},
	{"all", no_argument, NULL, OPT_ALL},
	{"interval", required_argument, NULL, OPT_INTERVAL},
	{"name", required_argument, NULL, OPT_NAME},
	{"since", required_argument, NULL, OPT_SINCE},
	{"follow", no_argument, NULL, OPT_FOLLOW},
	{"answer-within", required_argument, NULL, OPT_ANSWER_WITHIN},
	{"max-keep", required_argument, NULL, OPT_MAX_KEEP},
	{"allow-break", no_argument, NULL, OPT_ALLOW_BREAK},
	{"release-on-exit", no_argument, NULL, OPT_RELEASE_ON_EXIT},
	{"quiet", no_argument, NULL, 'q'},
	{"version", no_argument, NULL, 'V'},
	{"help", no_argument, NULL, OPT_HELP},
	{NULL, 0, NULL, 0}
};

#define SHORT_OPTIONS	"+:h:p:U:d:qV"

/* In the order of long_options. */
static const int takers[] = {
	EVERY, EVERY, EVERY, EVERY,
	ACQUIRE | RUN, ACQUIRE | RUN | HEARTBEAT, ACQUIRE | RUN, RUN,
	ACQUIRE | RUN | STATUS | BREAK | EVENTS | MCP, ACQUIRE, ACQUIRE | RUN, BREAK, RUN,
	EVERY & ~(RUN | MCP), STATUS, STATUS, STATUS, STATUS,
	EVENTS, EVENTS, EVENTS, MCP, MCP, MCP, MCP,
	EVERY, EVERY, EVERY
};

#define OPTIONS ((int) (sizeof(takers) / sizeof(takers[0])))

static const char *const usage_text =
"leaselock acquires, keeps and shows leases of the PostgreSQL extension leaselock.\n"
"\n"
"Usage:\n"
"  leaselock acquire NAME --owner OWNER [--lease-seconds N] [--wait-seconds N]\n"
"                    [--scope SCOPE] [--request-uuid UUID] [--note TEXT] [--json]\n"
"  leaselock get TICKET [--json]\n"
"  leaselock heartbeat TICKET [--lease-seconds N] [--json]\n"
"  leaselock release TICKET [--json]\n"
"  leaselock status [NAME] [--scope SCOPE] [--all | --queue] [--json]\n"
"                    [--watch [--interval N]]\n"
"  leaselock events [--scope SCOPE] [--name NAME] [--since TIME] [--json]\n"
"                    [--follow]\n"
"  leaselock break NAME --fence FENCE [--scope SCOPE] [--json]\n"
"  leaselock run NAME [--owner OWNER] [--lease-seconds N] [--wait-seconds N]\n"
"                    [--at-least-seconds N] [--scope SCOPE] [--note TEXT]\n"
"                    [--grace N] -- COMMAND [ARGUMENT]...\n"
"  leaselock mcp [--scope SCOPE] [--answer-within N] [--max-keep N]\n"
"                    [--allow-break] [--release-on-exit]\n"
"\n"
"Options:\n"
"      --owner OWNER       owner label; run makes one up unless given\n"
"      --lease-seconds N   how long the lease lasts unless renewed (60)\n"
"      --wait-seconds N    how long to wait for a turn (0); inf: for ever\n"
"      --at-least-seconds N\n"
"                          minimum time that the lock stays taken, counted from\n"
"                          its grant, even if the command ends sooner (0)\n"
"      --scope SCOPE       the namespace of NAME (public)\n"
"      --request-uuid UUID identifies the acquisition, so that it can be retried\n"
"      --note TEXT         shown with the lease; run makes one up unless given\n"
"      --fence FENCE       the grant to end, as status shows it\n"
"      --grace N           seconds between TERM and KILL, at most half of the\n"
"                          lease (5, or a quarter of the lease if that is less)\n"
"      --all               show lapsed leases, too\n"
"      --queue             show the tickets that hold or wait, in order\n"
"      --json              print one JSON object per line\n"
"      --watch             show the status repeatedly, until interrupted\n"
"      --interval N        seconds between repetitions (2)\n"
"      --name NAME         show only events of that lock\n"
"      --since TIME        show only events since TIME, as the server reads it\n"
"      --follow            keep showing new events; start now unless --since\n"
"      --answer-within N   mcp answers after N seconds and keeps waiting (45)\n"
"      --max-keep N        mcp renews a lease for at most N seconds (3600)\n"
"      --allow-break       mcp offers the tool break_lock\n"
"      --release-on-exit   mcp releases what it holds when its input ends\n"
"  -q, --quiet             no status line, no warnings of passing problems,\n"
"                          nothing that the exit status already says\n"
"  -V, --version           show the version, then exit\n"
"      --help              show this help, then exit\n"
"\n"
"Connection options, as in psql; PG* variables and service files work, too:\n"
"  -h, --host HOST         server, or directory of its socket\n"
"  -p, --port PORT         port\n"
"  -U, --username NAME     role\n"
"  -d, --dbname DBNAME     database, or a connection string\n"
"\n"
"Exit status: 0 held or done, 1 contended or the wait ran out, 2 lost or gone,\n"
"3 usage, 4 connection or server error.  run exits with the status of COMMAND.\n";

/* ---------------------------------------------------------------------
 * Errors
 * ---------------------------------------------------------------------
 */

static void usage_error(const char *format,...)
			__attribute__((format(printf, 1, 2), noreturn));

static void
usage_error(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	complain_args(format, args);
	va_end(args);
	fputs("Try \"leaselock --help\".\n", stderr);
	exit(EXIT_USAGE);
}

/* ---------------------------------------------------------------------
 * Values
 * ---------------------------------------------------------------------
 */

/*
 * check_seconds
 *	  Parses a plain decimal number of seconds.
 */
static double
check_seconds(const char *option, const char *value, double min, double max)
{
	char	   *end;
	double		seconds = strtod(value, &end);

	if (value[strspn(value, "0123456789.")] != '\0' || end == value ||
		*end != '\0' || !(seconds >= min && seconds <= max))
		usage_error("%s must be a number of seconds from %.15g to %.15g, not \"%s\"",
					option, min, max, value);
	return seconds;
}

static void
check_characters(const char *what, const char *value)
{
	for (size_t i = 0; value[i]; i++)
		if ((unsigned char) value[i] < 32 || value[i] == 127)
			usage_error("%s must not contain control characters (byte %zu is %d)",
						what, i + 1, value[i]);
}

/*
 * check_label
 *	  Checks the server's rules for scope, name and owner.
 */
static const char *
check_label(const char *what, const char *value)
{
	size_t		length = strlen(value);

	if (length < 1 || length > 255)
		usage_error("%s must be 1 to 255 bytes long, not %zu", what, length);
	check_characters(what, value);
	if (value[0] == ' ' || value[length - 1] == ' ')
		usage_error("%s must not begin or end with a space: \"%s\"", what, value);
	return value;
}

static const char *
check_note(const char *value)
{
	if (strlen(value) > MAX_NOTE_BYTES)
		usage_error("--note must be at most %d bytes long, not %zu",
					MAX_NOTE_BYTES, strlen(value));
	check_characters("--note", value);
	return value;
}

static const char *
check_uuid(const char *what, const char *value)
{
	if (!is_uuid(value))
		usage_error("%s must be a uuid (xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx), not \"%s\"",
					what, value);
	return value;
}

static const char *
check_fence(const char *value)
{
	if (!is_number(value, 1, INT64_MAX))
		usage_error("--fence must be a whole number from 1 to %lld, not \"%s\"",
					(long long) INT64_MAX, value);
	return value;
}

/* ---------------------------------------------------------------------
 * Parsing
 * ---------------------------------------------------------------------
 */

/*
 * set_mcp_option
 *	  Sets an option that only mcp takes.
 */
static void
set_mcp_option(Options *options, int option, const char *value)
{
	switch (option)
	{
		case OPT_ANSWER_WITHIN:
			options->answer_within_seconds =
				check_seconds("--answer-within", value, 0.1, MAX_SECONDS);
			break;
		case OPT_MAX_KEEP:
			options->max_keep_seconds = check_seconds("--max-keep", value,
													  0, MAX_SECONDS);
			break;
		case OPT_ALLOW_BREAK:
			options->allow_break = true;
			break;
		case OPT_RELEASE_ON_EXIT:
			options->release_on_exit = true;
			break;
	}
}

/*
 * set_option
 *	  Sets an option.  --grace is checked later, because it depends on the
 *	  lease.
 */
static void
set_option(Options *options, int option, const char *value)
{
	switch (option)
	{
		case 'h':
			options->host = value;
			break;
		case 'p':
			options->port = value;
			break;
		case 'U':
			options->user = value;
			break;
		case 'd':
			options->dbname = value;
			break;
		case 'q':
			options->quiet = true;
			break;
		case OPT_OWNER:
			options->owner = check_label("--owner", value);
			break;
		case OPT_LEASE:
			options->lease_seconds = check_seconds("--lease-seconds", value,
												   0.001, MAX_SECONDS);
			options->lease = value;
			break;
		case OPT_WAIT:
			options->wait_seconds = strcmp(value, "inf") == 0 ? MAX_SECONDS :
				check_seconds("--wait-seconds", value, 0, MAX_SECONDS);
			break;
		case OPT_AT_LEAST:
			(void) check_seconds("--at-least-seconds", value, 0, MAX_SECONDS);
			options->at_least = value;
			break;
		case OPT_SCOPE:
			options->scope = check_label("--scope", value);
			break;
		case OPT_REQUEST:
			options->request = check_uuid("--request-uuid", value);
			options->request_is_known = true;
			break;
		case OPT_NOTE:
			options->note = check_note(value);
			break;
		case OPT_FENCE:
			options->fence = check_fence(value);
			break;
		case OPT_GRACE:
			options->grace = value;
			break;
		case OPT_JSON:
			options->json = true;
			break;
		case OPT_WATCH:
			options->watch = true;
			break;
		case OPT_QUEUE:
			options->queue = true;
			break;
		case OPT_ALL:
			options->all = true;
			break;
		case OPT_NAME:
			options->name = check_label("--name", value);
			break;
		case OPT_SINCE:
			options->since = value;
			break;
		case OPT_FOLLOW:
			options->follow = true;
			break;
		case OPT_INTERVAL:
			options->interval_seconds = check_seconds("--interval", value,
													  0.1, 86400);
			break;
		default:
			set_mcp_option(options, option, value);
	}
}

/*
 * refuse_option
 *	  Reports an invalid option as getopt_long() would, but as it was written
 *	  on the command line.
 */
static void
refuse_option(int option, const char *argument)
{
	bool		is_long = strncmp(argument, "--", 2) == 0;
	int			length = is_long ? (int) strcspn(argument, "=") : 0;
	char		letter[] = {'-', (char) optopt, '\0'};

	if (!is_long)
		argument = letter;
	if (option == ':')
		usage_error("option \"%s\" needs a value", argument);
	if (is_long && optopt != 0)
		usage_error("option \"%.*s\" takes no value", length, argument);
	usage_error("option \"%s\" is unknown%s", argument,
				is_long ? " or ambiguous" : "");
}

/*
 * show_and_exit
 *	  Prints what needs no server, and exits.
 */
static void
show_and_exit(const char *text)
{
	fputs(text, stdout);
	exit(fflush(stdout) == 0 ? EXIT_DONE : EXIT_SERVER);
}

/*
 * take_options
 *	  Parses the options and operands before "--", and returns the number of
 *	  operands.  Arguments after "--" start at optind.  A bit is set in "given"
 *	  for each option, by its index in long_options.
 */
static int
take_options(int argc, char **argv, Options *options, const char **operands,
			 int max, int *given, bool *separated)
{
	int			count = 0;

	*separated = false;
	opterr = 0;
	while (optind < argc)
	{
		int			before = optind;
		int			option = getopt_long(argc, argv, SHORT_OPTIONS,
										 long_options, NULL);

		if (option == -1)
		{
			/* it has skipped a "--", or is at an operand */
			*separated = optind > before;
			if (*separated || optind >= argc)
				break;
			if (count >= max && strcmp(operands[0], "run") == 0)
				usage_error("run needs \"--\" before the COMMAND \"%s\"",
							argv[optind]);
			if (count >= max)
				usage_error("too many arguments: \"%s\"", argv[optind]);
			operands[count++] = argv[optind++];
			continue;
		}
		if (option == '?' || option == ':')
			refuse_option(option, argv[before]);
		if (option == 'V')
			show_and_exit("leaselock " LEASELOCK_VERSION "\n");
		if (option == OPT_HELP)
		{
			print_help(usage_text, count > 0 ? operands[0] : NULL);
			show_and_exit("");
		}
		for (int i = 0; i < OPTIONS; i++)
			if (long_options[i].val == option)
				*given |= 1 << i;
		set_option(options, option, optarg);
	}
	return count;
}

static void
require_operand(const char *subcommand, const char *what, const char *value)
{
	if (value == NULL)
		usage_error("%s needs a %s", subcommand, what);
}

/*
 * complete
 *	  Checks what a subcommand requires besides its options, and sets defaults.
 */
static void
complete(Options *options, int bit, const char *subcommand,
		 const char *operand)
{
	static char request[40];
	static char owner[256];
	char		host[128] = "";

	if (bit == MCP)
	{
		if (operand)
			usage_error("too many arguments: \"%s\"", operand);
		options->scope = options->scope ? options->scope : "public";
		return;
	}
	if (bit & (GET | HEARTBEAT | RELEASE))
	{
		require_operand(subcommand, "TICKET", operand);
		options->ticket = check_uuid("TICKET", operand);
		return;
	}
	if (bit == EVENTS && operand)
		usage_error("events takes NAME as the option --name, not as an argument: \"%s\"", operand);
	if (!(bit & (STATUS | EVENTS)))
		require_operand(subcommand, "NAME", operand);
	if (operand)
		options->name = check_label("NAME", operand);
	if (options->queue && options->all)
		usage_error("--queue shows only live tickets and cannot be combined with --all");
	if (bit == BREAK && options->fence == NULL)
		usage_error("break needs --fence; \"leaselock status %s\" shows it", operand);
	if (bit == ACQUIRE && options->owner == NULL)
		usage_error("acquire needs --owner");
	if (options->scope == NULL && operand)
		options->scope = "public";
	if (options->request == NULL)
	{
		make_uuid(request, sizeof(request));
		options->request = request;
	}
	if (options->owner == NULL)
	{
		gethostname(host, sizeof(host) - 1);
		snprintf(owner, sizeof(owner), "%s/%ld/%.8s", host, (long) getpid(),
				 options->request);
		options->owner = owner;
	}
}

/*
 * make_note
 *	  Makes the note "host:pid command", truncated to the length of a note.  A
 *	  character takes at least one byte after cleaning, and at most two before
 *	  if it was replaced.
 */
static const char *
make_note(char *const *command)
{
	static char note[4 * MAX_NOTE_BYTES];
	char		host[128] = "";
	size_t		length;

	gethostname(host, sizeof(host) - 1);
	length = snprintf(note, sizeof(note), "%s:%ld", host, (long) getpid());
	for (; *command && length < sizeof(note); command++)
		length += snprintf(note + length, sizeof(note) - length, " %s",
						   *command);
	clean_text(note);
	cut_text(note, MAX_NOTE_BYTES);
	return note;
}

/*
 * set_lease
 *	  Sets defaults that depend on each other.
 */
static void
set_lease(Options *options, int bit)
{
	double		max;

	if (options->lease == NULL && bit != HEARTBEAT)
	{
		options->lease = "60";
		options->lease_seconds = 60;
	}
	max = options->lease_seconds / 2;
	options->grace_seconds = max / 2 < 5 ? max / 2 : 5;
	if (options->grace)
		options->grace_seconds = check_seconds("--grace", options->grace,
											   0, max);
}

static const char *
list_subcommands(void)
{
	static char list[256];
	size_t		length = 0;

	for (int i = 0; i < SUBCOMMANDS; i++)
		length += snprintf(list + length, sizeof(list) - length, "%s%s",
						   i == 0 ? "" : i < SUBCOMMANDS - 1 ? ", " : " and ",
						   subcommands[i].name);
	return list;
}

static int
find_subcommand(const char *name)
{
	if (name == NULL)
		usage_error("no subcommand is given; the subcommands are %s",
					list_subcommands());
	for (int i = 0; i < SUBCOMMANDS; i++)
		if (strcmp(subcommands[i].name, name) == 0)
			return i;
	usage_error("unknown subcommand \"%s\"; the subcommands are %s", name,
				list_subcommands());
}

/*
 * parse_options
 *	  Parses the command line.  Exits if it is wrong.
 */
Command
parse_options(int argc, char **argv, Options *options)
{
	const char *operands[2] = {NULL, NULL};
	bool		separated;
	int			given = 0;
	int			count = take_options(argc, argv, options, operands, 2, &given,
									 &separated);
	int			found = find_subcommand(operands[0]);
	int			bit = subcommands[found].bit;

	/* a NAME that begins with "-" follows "--" */
	if (separated && count == 1 && optind < argc)
	{
		operands[1] = argv[optind++];
		separated = optind < argc && strcmp(argv[optind], "--") == 0;
		if (separated)
			optind++;
	}
	for (int i = 0; i < OPTIONS; i++)
		if ((given & (1 << i)) && !(takers[i] & bit))
			usage_error("%s does not take --%s", subcommands[found].name,
						long_options[i].name);
	complete(options, bit, subcommands[found].name, operands[1]);
	set_lease(options, bit);
	options->argv = argv + optind;
	if (bit == RUN && (!separated || optind >= argc))
		usage_error("run needs \"--\" and a COMMAND after its options");
	if (bit != RUN && optind < argc)
		usage_error("too many arguments: \"%s\"", argv[optind]);
	if (bit == RUN && options->note == NULL)
	{
		options->note = make_note(options->argv);
		options->note_is_generated = true;
	}
	return subcommands[found].command;
}
