/*-------------------------------------------------------------------------
 *
 * output.c
 *	  Answers as text or JSON, the status line, and complaints.
 *
 * The JSON is the server's own, the last column of each answer.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

static bool line_is_shown = false;

/* ---------------------------------------------------------------------
 * Tickets
 * ---------------------------------------------------------------------
 */

static const char *
column(const PGresult *answer, const char *name)
{
	int			i = PQfnumber(answer, name);

	return PQgetisnull(answer, 0, i) ? "" : PQgetvalue(answer, 0, i);
}

/*
 * read_ticket
 *	  Everything but asked_at, which only the one who asked knows.
 */
void
read_ticket(const PGresult *answer, Ticket *ticket)
{
	snprintf(ticket->state, sizeof(ticket->state), "%s",
			 column(answer, "state"));
	snprintf(ticket->ticket, sizeof(ticket->ticket), "%s",
			 column(answer, "ticket"));
	snprintf(ticket->fence, sizeof(ticket->fence), "%s",
			 column(answer, "fence"));
	snprintf(ticket->holder, sizeof(ticket->holder), "%s",
			 column(answer, "holder"));
	ticket->position = atoi(column(answer, "position"));
	ticket->remaining_ms = strtoll(column(answer, "remaining_ms"), NULL, 10);
	ticket->next_call_ms = strtoll(column(answer, "next_call_ms"), NULL, 10);
}

/*
 * ticket_exit_code
 *	  DONE: the ticket holds the lock.  NOT_HELD: it does not, and one may try
 *	  again.  LOST: it is over.
 */
ExitCode
ticket_exit_code(const char *state)
{
	static const char *const not_held[] = {
		"waiting", "contended", "deadlock", "timed_out"
	};

	if (strcmp(state, "held") == 0)
		return EXIT_DONE;
	for (size_t i = 0; i < sizeof(not_held) / sizeof(not_held[0]); i++)
		if (strcmp(state, not_held[i]) == 0)
			return EXIT_NOT_HELD;
	return EXIT_LOST;
}

/* ---------------------------------------------------------------------
 * Text
 * ---------------------------------------------------------------------
 */

/*
 * is_control
 *	  Whether a control character begins at the byte, one of ASCII or one of
 *	  the second set in UTF-8: a terminal might obey it.
 */
static bool
is_control(const unsigned char *byte)
{
	return byte[0] < 32 || byte[0] == 127 ||
		(byte[0] == 0xC2 && byte[1] >= 0x80 && byte[1] < 0xA0);
}

/*
 * print_text
 *	  A value for people, with "?" for what a terminal might obey.
 */
static void
print_text(const char *value)
{
	for (const unsigned char *c = (const unsigned char *) value; *c; c++)
	{
		if (!is_control(c))
			putchar(*c);
		else
		{
			putchar('?');
			if (*c == 0xC2)
				c++;
		}
	}
}

/*
 * text_width
 *	  How many characters of UTF-8 it is.
 */
static int
text_width(const char *value)
{
	int			width = 0;

	for (const unsigned char *c = (const unsigned char *) value; *c; c++)
		if ((*c & 0xC0) != 0x80)
			width++;
	return width;
}

static void
print_padded(const char *value, int width, bool right)
{
	int			padding = width - text_width(value);

	padding = padding < 0 ? 0 : padding;
	if (right)
		printf("%*s", padding, "");
	print_text(value);
	if (!right)
		printf("%*s", padding, "");
}

void
print_json(const PGresult *answer)
{
	for (int row = 0; row < PQntuples(answer); row++)
		puts(PQgetvalue(answer, row, PQnfields(answer) - 1));
}

/*
 * print_record
 *	  One row, a line for each column that has a value.
 */
void
print_record(const PGresult *answer)
{
	for (int i = 0; i < PQnfields(answer) - 1; i++)
	{
		if (PQgetisnull(answer, 0, i))
			continue;
		printf("%-12s  ", PQfname(answer, i));
		print_text(PQgetvalue(answer, 0, i));
		putchar('\n');
	}
}

/*
 * print_table
 *	  All rows, the columns aligned.  Numbers go to the right.
 */
void
print_table(const PGresult *answer)
{
	int			columns = PQnfields(answer) - 1;
	int			rows = PQntuples(answer);

	for (int row = -1; row < rows; row++)
	{
		for (int i = 0; i < columns; i++)
		{
			int			width = text_width(PQfname(answer, i));
			Oid			type = PQftype(answer, i);
			bool		number = type == 20 || type == 23;	/* int8, int4 */

			for (int other = 0; other < rows; other++)
			{
				int			w = text_width(PQgetvalue(answer, other, i));

				width = w > width ? w : width;
			}
			if (i > 0)
				fputs("  ", stdout);
			print_padded(row < 0 ? PQfname(answer, i) :
						 PQgetvalue(answer, row, i),
						 i == columns - 1 && !number ? 0 : width, number);
		}
		putchar('\n');
	}
}

/* ---------------------------------------------------------------------
 * The status line
 * ---------------------------------------------------------------------
 */

/*
 * cut_to_terminal
 *	  A line that wraps could not be replaced.
 */
static void
cut_to_terminal(char *line)
{
	struct winsize size;
	int			width = 0;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		size.ws_col = 80;
	for (; *line; line++)
		if (((unsigned char) *line & 0xC0) != 0x80 && ++width >= size.ws_col)
		{
			*line = '\0';
			break;
		}
}

/*
 * show_status_line
 *	  Replaces the line at the bottom of a terminal.
 */
void
show_status_line(const Options *options, const char *format,...)
{
	char		line[512];
	va_list		args;

	if (options->quiet || !isatty(STDERR_FILENO))
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	for (unsigned char *c = (unsigned char *) line; *c; c++)
		if (is_control(c))
			*c = '?';
	cut_to_terminal(line);
	fprintf(stderr, "\r\033[K%s", line);
	fflush(stderr);
	line_is_shown = true;
}

void
clear_status_line(void)
{
	if (line_is_shown)
		fputs("\r\033[K", stderr);
	line_is_shown = false;
}

/*
 * complain
 *	  A line to stderr.
 */
void
complain(const char *format,...)
{
	va_list		args;

	clear_status_line();
	fputs("leaselock: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}
