/*-------------------------------------------------------------------------
 *
 * output.c
 *	  Output of answers, as text or JSON.
 *
 * The output is assembled in memory and written at the end, in pieces for
 * which there is room.  A reader that does not read therefore cannot delay the
 * reaction to a signal, and we know whether everything was written.
 *
 * JSON comes from the server, as the last column of each answer.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

/* A pipe that is ready accepts this much at once. */
#define PIECE	((size_t) _POSIX_PIPE_BUF)

static FILE *output = NULL;
static char *text;
static size_t text_length;

/* ---------------------------------------------------------------------
 * Assembling
 * ---------------------------------------------------------------------
 */

static FILE *
open_output(void)
{
	if (output == NULL)
		output = open_memstream(&text, &text_length);
	if (output == NULL)
	{
		complain("%s", strerror(errno));
		exit(EXIT_SERVER);
	}
	return output;
}

/*
 * print_heading
 *	  Adds text of our own, unchanged.
 */
void
print_heading(const char *heading)
{
	fputs(heading, open_output());
}

void
print_line(const char *line)
{
	put_text(open_output(), line);
	putc('\n', output);
}

/*
 * print_lines
 *	  Adds what complain() would print.
 */
void
print_lines(const char *lines)
{
	while (*lines)
	{
		size_t		length = strcspn(lines, "\n");
		char	   *line = strndup(lines, length);

		if (line)
			print_line(line);
		free(line);
		lines += length + (lines[length] == '\n');
	}
}

void
print_json_row(const PGresult *answer, int row)
{
	put_json(open_output(), PQgetvalue(answer, row, PQnfields(answer) - 1));
	putc('\n', output);
}

void
print_json(const PGresult *answer)
{
	open_output();
	for (int row = 0; row < PQntuples(answer); row++)
		print_json_row(answer, row);
}

/* ---------------------------------------------------------------------
 * Formats for people
 * ---------------------------------------------------------------------
 */

#define MAX_HEADING	64

/*
 * is_length
 *	  Whether a column is a length of time in milliseconds.
 */
static bool
is_length(const PGresult *answer, int column)
{
	const char *name = PQfname(answer, column);
	size_t		length = strlen(name);

	return length > 3 && strcmp(name + length - 3, "_ms") == 0;
}

/*
 * column_heading
 *	  The name of a column, without the unit of its values.
 */
static const char *
column_heading(const PGresult *answer, int column)
{
	static char heading[MAX_HEADING];
	int			length = (int) strlen(PQfname(answer, column));

	snprintf(heading, sizeof(heading), "%.*s",
			 length - (is_length(answer, column) ? 3 : 0),
			 PQfname(answer, column));
	return heading;
}

/*
 * column_value
 *	  A value as displayed; overwritten by the next call.
 */
static const char *
column_value(const PGresult *answer, int row, int column)
{
	static char length[MAX_HEADING];
	const char *value = PQgetvalue(answer, row, column);

	if (!is_length(answer, column) || value[0] == '\0')
		return value;
	format_length(length, sizeof(length), strtoll(value, NULL, 10));
	return length;
}

/*
 * print_record
 *	  Prints one row, with a line for each column that has a value.
 */
void
print_record(const PGresult *answer)
{
	open_output();
	for (int i = 0; i < PQnfields(answer) - 1; i++)
	{
		if (PQgetisnull(answer, 0, i))
			continue;
		fprintf(output, "%-12s  ", column_heading(answer, i));
		print_line(column_value(answer, 0, i));
	}
}

/* The layout of a table column. */
typedef struct Layout
{
	int			width;
	bool		right;			/* right-aligned, for numbers */
} Layout;

static Layout
lay_out(const PGresult *answer, int column)
{
	Oid			type = PQftype(answer, column);
	Layout		layout;

	layout.right = type == 20 || type == 23;	/* int8, int4 */
	layout.width = text_width(column_heading(answer, column));
	for (int row = 0; row < PQntuples(answer); row++)
	{
		int			width = text_width(column_value(answer, row, column));

		layout.width = width > layout.width ? width : layout.width;
	}
	return layout;
}

static void
print_cell(const char *value, Layout layout)
{
	int			padding = layout.width - text_width(value);

	padding = padding < 0 ? 0 : padding;
	if (layout.right)
		fprintf(output, "%*s", padding, "");
	put_text(output, value);
	if (!layout.right)
		fprintf(output, "%*s", padding, "");
}

/*
 * last_filled
 *	  The last column of a row that is not empty; row -1 is the heading.
 */
static int
last_filled(const PGresult *answer, int row)
{
	int			column = PQnfields(answer) - 2;

	while (row >= 0 && column > 0 && PQgetlength(answer, row, column) == 0)
		column--;
	return column;
}

/*
 * print_cells
 *	  Prints one line.  With widths, cells are aligned and an empty cell is
 *	  shown as a dash; without them, cells are separated by tabs.  Cell number
 *	  "colored" is printed in a colour, without its padding, unless the colour
 *	  is NULL.
 */
void
print_cells(const char *const *cells, const int *widths, int count,
			int colored, const char *color)
{
	open_output();
	for (int i = 0; i < count; i++)
	{
		const char *value = widths && cells[i][0] == '\0' ? "-" : cells[i];
		int			padding = (widths && i < count - 1 ?
							   widths[i] + 2 - text_width(value) : 0);

		if (color && i == colored)
			fprintf(output, "\033[%sm", color);
		put_text(output, value);
		if (color && i == colored)
			fputs("\033[m", output);
		if (widths == NULL && i < count - 1)
			putc('\t', output);
		fprintf(output, "%*s", padding < 0 ? 0 : padding, "");
	}
	putc('\n', output);
}

/*
 * print_table
 *	  Prints all rows, with aligned columns.
 */
void
print_table(const PGresult *answer)
{
	int			columns = PQnfields(answer) - 1;
	Layout	   *layout = calloc(columns, sizeof(Layout));
	Layout		none = {0};

	open_output();
	if (layout == NULL)
		return;
	for (int i = 0; i < columns; i++)
		layout[i] = lay_out(answer, i);
	for (int row = -1; row < PQntuples(answer); row++)
	{
		int			last = last_filled(answer, row);

		for (int i = 0; i <= last; i++)
		{
			if (i > 0)
				fputs("  ", output);
			print_cell(row < 0 ? column_heading(answer, i) :
					   column_value(answer, row, i),
					   layout[i].right || i < last ? layout[i] : none);
		}
		putc('\n', output);
	}
	free(layout);
}

/*
 * fit_output
 *	  Truncates the assembled output to the size of the terminal.  A row that
 *	  wraps would break the table, and a row too many would scroll its heading
 *	  away.
 */
void
fit_output(void)
{
	struct winsize size;
	char	   *whole;
	char	   *line;
	int			left = 0;
	int			room;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 ||
		size.ws_row < 3)
		return;
	if (fclose(open_output()) != 0)
		text[0] = '\0';
	output = NULL;
	whole = line = text;
	for (const char *at = whole; (at = strchr(at, '\n')) != NULL; at++)
		left++;
	/* the last line of the terminal is the cursor's */
	room = left < size.ws_row ? left : size.ws_row - 2;
	open_output();
	for (; room > 0; room--, left--)
	{
		char	   *end = strchr(line, '\n');

		*end = '\0';
		cut_to_width(line, size.ws_col);
		fprintf(output, "%s\n", line);
		line = end + 1;
	}
	if (left > 0)
		fprintf(output, "... and %d more\n", left);
	free(whole);
}

/* ---------------------------------------------------------------------
 * Writing
 * ---------------------------------------------------------------------
 */

/*
 * wait_for_room
 *	  Waits until output can be written; returns false if a caught signal
 *	  arrives.
 */
static bool
wait_for_room(void)
{
	struct pollfd fds[2] = {{0}};

	fds[1].fd = STDOUT_FILENO;
	fds[1].events = POLLOUT;
	do
	{
		if (signal_is_pending())
		{
			errno = EINTR;
			return false;
		}
		sleep_until(fds, 2, INT64_MAX);
	} while (fds[1].revents == 0);
	return true;
}

static bool
write_all(const char *rest, size_t length)
{
	while (length > 0)
	{
		ssize_t		written;

		if (!wait_for_room())
			return false;
		written = write(STDOUT_FILENO, rest, length < PIECE ? length : PIECE);
		if (written < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		if (written > 0)
		{
			rest += written;
			length -= written;
		}
	}
	return true;
}

/*
 * write_output
 *	  Writes the assembled output.  Returns false and sets errno if that failed
 *	  or a signal arrived first.
 */
bool
write_output(void)
{
	bool		written;
	int			reason;

	if (output == NULL)
		return true;
	written = fflush(output) == 0 && !ferror(output) &&
		write_all(text, text_length);
	reason = errno;
	fclose(output);
	free(text);
	output = NULL;
	errno = reason;
	return written;
}
