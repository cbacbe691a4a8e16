/*-------------------------------------------------------------------------
 *
 * journal.c
 *	  The subcommand events: the history of leases, one line per event.
 *
 * Events are read in pages after a cursor, which each answer advances.  No
 * event is therefore shown twice, and none is missed when the connection is
 * lost in between.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/*
 * How long to wait for an answer, and how long to pause when all events have
 * been read.
 */
#define ANSWER_MS	30000
#define POLL_MS		1000

/*
 * The displayed columns of an answer; the columns before them hold the cursor.
 */
#define FIRST_SHOWN		3
#define SHOWN			9

/* Colours of the kinds, on a terminal. */
static const struct
{
	const char *kind;
	const char *color;
}			colors[] = {
	{"granted", "32"},
	{"promoted", "32"},
	{"released", "36"},
	{"expired", "33"},
	{"timed_out", "33"},
	{"broken", "31"},
	{"deadlock", "31"},
	{"scope_created", "35"},
	{"scope_dropped", "35"},
	{"pruned", "35"},
	{"bumped", "35"},
	{"queued", "2"},
	{"renewed", "2"},
	{"cancelled", "2"},
};

#define COLORS	((int) (sizeof(colors) / sizeof(colors[0])))

/* The cursor, as the server returned it; NULL: the beginning. */
typedef struct Cursor
{
	char	   *xid;
	char	   *id;
	char	   *snapshot;		/* do not show events that it sees */
} Cursor;

/*
 * replace_string
 *	  Replaces a string by a copy of another.
 */
static void
replace_string(char **string, const char *value)
{
	free(*string);
	*string = strdup(value);
}

/* ---------------------------------------------------------------------
 * Output
 * ---------------------------------------------------------------------
 */

static const char *
kind_color(const char *kind)
{
	for (int i = 0; i < COLORS; i++)
		if (strcmp(colors[i].kind, kind) == 0)
			return colors[i].color;
	return NULL;
}

/*
 * colors_are_allowed
 *	  Whether colours may be used: as https://no-color.org requires, and only
 *	  if the terminal can show them.
 */
static bool
colors_are_allowed(void)
{
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	return (no_color == NULL || no_color[0] == '\0') &&
		term != NULL && strcmp(term, "dumb") != 0;
}

/*
 * show_page
 *	  Prints a page.  On a terminal, columns are aligned to the greatest width
 *	  so far, and an empty value is shown as a dash.  Otherwise, columns are
 *	  separated by tabs, and an empty value is empty.
 */
static void
show_page(const PGresult *answer)
{
	static int	widths[SHOWN];
	bool		terminal = isatty(STDOUT_FILENO);
	bool		colored = terminal && colors_are_allowed();

	for (int i = 0; terminal && i < SHOWN - 1; i++)
		for (int row = 0; row < PQntuples(answer); row++)
		{
			int			width = text_width(PQgetvalue(answer, row,
													  FIRST_SHOWN + i));

			widths[i] = width > widths[i] ? width : widths[i];
		}
	for (int row = 0; row < PQntuples(answer); row++)
	{
		const char *cells[SHOWN];

		for (int i = 0; i < SHOWN; i++)
			cells[i] = PQgetvalue(answer, row, FIRST_SHOWN + i);
		/* the last row may contain only the cursor */
		if (cells[1][0] != '\0')
			print_cells(cells, terminal ? widths : NULL, SHOWN, 1,
						colored ? kind_color(cells[1]) : NULL);
	}
}

/*
 * show_json
 *	  Prints a page as JSON, as the server formatted it.
 */
static void
show_json(const PGresult *answer)
{
	for (int row = 0; row < PQntuples(answer); row++)
		if (PQgetvalue(answer, row, FIRST_SHOWN + 1)[0] != '\0')
			print_json_row(answer, row);
}

/* ---------------------------------------------------------------------
 * Reading
 * ---------------------------------------------------------------------
 */

/*
 * query_server
 *	  Sends a query and waits for the answer.  A caught signal ends the wait.
 */
static bool
query_server(Link *link, QueryKind what, const char *const *parameters)
{
	link_send(link, what, parameters, now() + ANSWER_MS);
	return link_await(link, true) == ANSWERED;
}

/*
 * find_present
 *	  Sets the cursor to the present, so that only events follow that the
 *	  current snapshot does not see.
 */
static bool
find_present(Link *link, Cursor *cursor)
{
	if (!query_server(link, QUERY_PRESENT, NULL))
		return false;
	replace_string(&cursor->xid, PQgetvalue(link->answer, 0, 0));
	replace_string(&cursor->id, "0");
	replace_string(&cursor->snapshot, PQgetvalue(link->answer, 0, 1));
	return true;
}

/*
 * read_page
 *	  Reads one page; *more says whether another is available at once.
 */
static bool
read_page(Link *link, const Options *options, Cursor *cursor, bool *more)
{
	const char *parameters[] = {
		cursor->xid, cursor->id, options->scope, options->name,
		options->since, cursor->snapshot
	};
	char	   *next_xid = NULL;
	char	   *next_id = NULL;

	if (options->follow && !options->since && !cursor->xid &&
		!find_present(link, cursor))
		return false;
	parameters[0] = cursor->xid;
	parameters[1] = cursor->id;
	parameters[5] = cursor->snapshot;
	if (!query_server(link, QUERY_EVENTS, parameters))
		return false;
	replace_string(&next_xid, PQgetvalue(link->answer, 0, 0));
	replace_string(&next_id, PQgetvalue(link->answer, 0, 1));
	free(cursor->xid);
	free(cursor->id);
	cursor->xid = next_xid;
	cursor->id = next_id;
	*more = PQgetvalue(link->answer, 0, 2)[0] == 't';
	return true;
}

static void
sleep_between_pages(Link *link)
{
	Instant		until = now() + POLL_MS;

	while (now() < until && !signal_is_pending())
	{
		if (link->state != LINK_DOWN)
			link_step(link);
		link_sleep(link, -1, until);
	}
}

/*
 * show_events
 *	  Shows events up to the last and, with --follow, new ones until a signal
 *	  arrives.  A lost connection is opened again.
 */
static ExitCode
show_events(Link *link, const Options *options, Cursor *cursor)
{
	bool		first = true;
	bool		lost = false;
	bool		more = false;

	while (!signal_is_pending())
	{
		bool		answered = read_page(link, options, cursor, &more);

		if (signal_is_pending())
			break;
		if (answered && options->json)
			show_json(link->answer);
		else if (answered)
			show_page(link->answer);
		else if (first || !options->follow || !link_may_recover(link))
			return complain_of_failure(link);
		else if (!lost && !options->quiet)
			complain("%s", link->error);
		if (!write_output())
			return write_failed();
		lost = !answered;
		first = false;
		if (answered && more)
			continue;
		if (!options->follow)
			return EXIT_DONE;
		sleep_between_pages(link);
	}
	return EXIT_SIGNAL + next_signal();
}

ExitCode
events_command(const Options *options)
{
	Link		link;
	Cursor		cursor = {NULL, NULL, NULL};
	ExitCode	code;

	catch_ending_signals();
	link_open(&link, options);
	code = show_events(&link, options, &cursor);
	link_close(&link);
	free(cursor.xid);
	free(cursor.id);
	free(cursor.snapshot);
	return code;
}
