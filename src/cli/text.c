/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Messages, the status line, and the display of text from elsewhere.
 *
 * Names, messages of the server and of libpq, and the command line itself may
 * contain control characters, which a terminal would obey.  They are never
 * written: all output passes through scan().
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

/* Longer lines are cut.  Nobody reads more, and a server may be malicious. */
#define MAX_LINE	4096

static bool text_is_utf8 = true;
static bool line_is_shown = false;

/* ---------------------------------------------------------------------
 * Text from elsewhere
 * ---------------------------------------------------------------------
 */

/* Classes of characters. */
typedef enum Glyph
{
	GLYPH_PLAIN,
	GLYPH_CONTROL,				/* C0, DEL or C1 */
	GLYPH_INVALID				/* not valid UTF-8 */
} Glyph;

/*
 * set_text_encoding
 *	  Sets the client encoding of the connection, by name.  If it is not UTF-8,
 *	  the bytes 80 to 9F are treated as control characters anywhere, as a
 *	  terminal that does not use UTF-8 may treat them.
 */
void
set_text_encoding(const char *name)
{
	text_is_utf8 = name == NULL || name[0] == '\0' ||
		strcasecmp(name, "auto") == 0 || strcasecmp(name, "unicode") == 0 ||
		strcasecmp(name, "utf8") == 0 || strcasecmp(name, "utf-8") == 0;
}

/*
 * utf8_length
 *	  The number of bytes of a character; 0 if it is not well formed.  The
 *	  bounds of the second byte exclude overlong encodings, surrogates and code
 *	  points beyond Unicode.
 */
static int
utf8_length(const unsigned char *c)
{
	int			length = (c[0] < 0xC2 || c[0] > 0xF4 ? 0 :
						  c[0] < 0xE0 ? 2 : c[0] < 0xF0 ? 3 : 4);
	int			min = c[0] == 0xE0 ? 0xA0 : c[0] == 0xF0 ? 0x90 : 0x80;
	int			max = c[0] == 0xED ? 0x9F : c[0] == 0xF4 ? 0x8F : 0xBF;

	for (int i = 1; i < length; i++)
	{
		if (c[i] < min || c[i] > max)
			return 0;
		min = 0x80;
		max = 0xBF;
	}
	return length;
}

/*
 * scan
 *	  Examines the first character of a text: returns its length in bytes, and
 *	  sets its class and, for a control character, its code.
 */
static int
scan(const char *text, Glyph *glyph, int *code)
{
	const unsigned char *c = (const unsigned char *) text;
	int			length = 1;

	*code = c[0];
	*glyph = c[0] < 32 || c[0] == 127 ? GLYPH_CONTROL : GLYPH_PLAIN;
	if (c[0] < 128)
		return length;
	if (!text_is_utf8)
		*glyph = c[0] < 0xA0 ? GLYPH_CONTROL : GLYPH_PLAIN;
	else if ((length = utf8_length(c)) == 0)
	{
		*glyph = GLYPH_INVALID;
		length = 1;
	}
	else if (c[0] == 0xC2 && c[1] < 0xA0)
	{
		*glyph = GLYPH_CONTROL;
		*code = c[1];
	}
	return length;
}

/*
 * clean_text
 *	  Replaces each character that must not be written by "?".
 */
void
clean_text(char *text)
{
	char	   *end = text;

	while (*text)
	{
		Glyph		glyph;
		int			code;
		int			length = scan(text, &glyph, &code);

		if (glyph == GLYPH_PLAIN)
			memmove(end, text, length);
		else
			*end = '?';
		end += glyph == GLYPH_PLAIN ? length : 1;
		text += length;
	}
	*end = '\0';
}

/*
 * cut_text
 *	  Truncates a text to at most that many bytes, at a character boundary.
 */
void
cut_text(char *text, size_t max)
{
	Glyph		glyph;
	int			code;
	size_t		length = 0;

	while (text[length])
	{
		size_t		next = length + scan(text + length, &glyph, &code);

		if (next > max)
			text[length] = '\0';
		else
			length = next;
	}
}

/*
 * put_text
 *	  Writes a value for people.
 */
void
put_text(FILE *stream, const char *value)
{
	while (*value)
	{
		Glyph		glyph;
		int			code;
		int			length = scan(value, &glyph, &code);

		if (glyph == GLYPH_PLAIN)
			fwrite(value, 1, length, stream);
		else
			putc('?', stream);
		value += length;
	}
}

/*
 * put_json
 *	  Writes a JSON value; characters that must not be written are escaped.
 */
void
put_json(FILE *stream, const char *value)
{
	while (*value)
	{
		Glyph		glyph;
		int			code;
		int			length = scan(value, &glyph, &code);

		if (glyph == GLYPH_PLAIN)
			fwrite(value, 1, length, stream);
		else
			fprintf(stream, "\\u%04x", glyph == GLYPH_INVALID ? 0xFFFD : code);
		value += length;
	}
}

/*
 * glyph_width
 *	  The number of terminal columns of a text's first character.
 */
static int
glyph_width(const char *text, Glyph glyph)
{
	int			width = 1;

	if (text_is_utf8 && glyph == GLYPH_PLAIN && (unsigned char) text[0] >= 128)
		width = PQdsplen(text, pg_char_to_encoding("UTF8"));
	return width < 0 ? 1 : width;
}

/*
 * text_width
 *	  The number of terminal columns that put_text() fills.
 */
int
text_width(const char *value)
{
	int			width = 0;

	while (*value)
	{
		Glyph		glyph;
		int			code;
		int			length = scan(value, &glyph, &code);

		width += glyph_width(value, glyph);
		value += length;
	}
	return width;
}

/*
 * format_length
 *	  Formats a length of time for people, in its two largest units.
 */
void
format_length(char *buffer, size_t size, int64_t ms)
{
	static const struct
	{
		int64_t		ms;
		const char *name;
	}			units[] = {
		{86400000, "d"}, {3600000, "h"}, {60000, "min"}, {1000, "s"},
	};
	int			i = 0;
	int64_t		rest;

	if (ms < 10000)
	{
		snprintf(buffer, size, ms % 1000 < 100 ? "%.0f s" : "%.1f s",
				 (double) (ms / 100) / 10);
		return;
	}
	while (ms < units[i].ms)
		i++;
	rest = i < 3 ? ms % units[i].ms / units[i + 1].ms : 0;
	if (rest > 0)
		snprintf(buffer, size, "%lld %s %lld %s",
				 (long long) (ms / units[i].ms), units[i].name,
				 (long long) rest, units[i + 1].name);
	else
		snprintf(buffer, size, "%lld %s", (long long) (ms / units[i].ms),
				 units[i].name);
}

/* ---------------------------------------------------------------------
 * Lines
 * ---------------------------------------------------------------------
 */

/*
 * cut_to_width
 *	  Cuts a line to the given width, because a line that fills the last column
 *	  of a terminal would wrap.
 */
void
cut_to_width(char *line, int columns)
{
	int			width = 0;

	while (*line)
	{
		Glyph		glyph;
		int			code;
		int			length = scan(line, &glyph, &code);

		width += glyph_width(line, glyph);
		if (width < columns)
			line += length;
		else
			*line = '\0';
	}
}

/*
 * show_status_line
 *	  Replaces the line at the bottom of the terminal.
 */
void
show_status_line(const Options *options, const char *format,...)
{
	char		line[MAX_LINE];
	struct winsize size;
	va_list		args;

	if (options->quiet || !isatty(STDERR_FILENO))
		return;
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		size.ws_col = 80;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	clean_text(line);
	cut_to_width(line, size.ws_col);
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

void
complain_args(const char *format, va_list args)
{
	char		line[MAX_LINE];

	clear_status_line();
	vsnprintf(line, sizeof(line), format, args);
	clean_text(line);
	fprintf(stderr, "leaselock: %s\n", line);
}

/*
 * complain_of_lines
 *	  Prints a line to stderr with a message after it.  If the message has
 *	  several lines, as libpq's may have, they stay separate.
 */
void
complain_of_lines(const char *message, const char *format,...)
{
	char		text[MAX_LINE];
	char	   *line = text;
	va_list		args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	clear_status_line();
	clean_text(text);
	fprintf(stderr, "leaselock: %s", text);
	snprintf(text, sizeof(text), "%s", message);
	while (line)
	{
		char	   *rest = strchr(line, '\n');

		if (rest)
			*rest++ = '\0';
		clean_text(line);
		fprintf(stderr, "%s%s\n", line == text ? "" : "  ", line);
		line = rest;
	}
}

/*
 * complain
 *	  Prints a line to stderr.
 */
void
complain(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	complain_args(format, args);
	va_end(args);
}
