/*-------------------------------------------------------------------------
 *
 * text.c
 *	  What the program says: complaints, the status line, and how text that
 *	  came from elsewhere is shown.
 *
 * Names, messages of the server and of libpq, and the command line itself may
 * hold characters that a terminal obeys.  None of them is ever written: all
 * that is said goes through scan().
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

/* Longer ones are cut: nobody reads more, and not every server is a friend. */
#define LONGEST_LINE	4096

static bool text_is_utf8 = true;
static bool line_is_shown = false;

/* ---------------------------------------------------------------------
 * Text from elsewhere
 * ---------------------------------------------------------------------
 */

/* What stands at a place of a text. */
typedef enum Glyph
{
	GLYPH_PLAIN,
	GLYPH_CONTROL,				/* C0, DEL or C1 */
	GLYPH_BROKEN				/* no UTF-8 */
} Glyph;

/*
 * set_text_encoding
 *	  The client encoding of the connection, by its name.  Where it is not
 *	  UTF-8 the bytes 80 to 9F are taken for control characters wherever they
 *	  stand, as a terminal may that knows no UTF-8 either.
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
 *	  How many bytes the character has; 0 if there is none that is well formed.
 *	  Bounds of the second byte keep out what is longer than it need be,
 *	  surrogates, and what is beyond Unicode.
 */
static int
utf8_length(const unsigned char *c)
{
	int			length = (c[0] < 0xC2 || c[0] > 0xF4 ? 0 :
						  c[0] < 0xE0 ? 2 : c[0] < 0xF0 ? 3 : 4);
	int			least = c[0] == 0xE0 ? 0xA0 : c[0] == 0xF0 ? 0x90 : 0x80;
	int			most = c[0] == 0xED ? 0x9F : c[0] == 0xF4 ? 0x8F : 0xBF;

	for (int i = 1; i < length; i++)
	{
		if (c[i] < least || c[i] > most)
			return 0;
		least = 0x80;
		most = 0xBF;
	}
	return length;
}

/*
 * scan
 *	  Looks at the character at the head of a text: its length in bytes, what
 *	  it is, and the code of a control character.
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
		*glyph = GLYPH_BROKEN;
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
 *	  Puts "?" for each character that must not be written.
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
 *	  Leaves as many whole characters as have no more bytes than that.
 */
void
cut_text(char *text, size_t most)
{
	Glyph		glyph;
	int			code;
	size_t		length = 0;

	while (text[length])
	{
		size_t		next = length + scan(text + length, &glyph, &code);

		if (next > most)
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
 *	  Writes a JSON value, in which nothing of this kind need stand as it is.
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
			fprintf(stream, "\\u%04x", glyph == GLYPH_BROKEN ? 0xFFFD : code);
		value += length;
	}
}

/*
 * text_width
 *	  How many characters put_text() writes.
 */
int
text_width(const char *value)
{
	int			width = 0;
	Glyph		glyph;
	int			code;

	for (; *value; value += scan(value, &glyph, &code))
		width++;
	return width;
}

/* ---------------------------------------------------------------------
 * Lines
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
	Glyph		glyph;
	int			code;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		size.ws_col = 80;
	for (int width = 1; *line; line += scan(line, &glyph, &code))
		if (width++ >= size.ws_col)
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
	char		line[LONGEST_LINE];
	va_list		args;

	if (options->quiet || !isatty(STDERR_FILENO))
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	clean_text(line);
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

void
complain_args(const char *format, va_list args)
{
	char		line[LONGEST_LINE];

	clear_status_line();
	vsnprintf(line, sizeof(line), format, args);
	clean_text(line);
	fprintf(stderr, "leaselock: %s\n", line);
}

/*
 * complain
 *	  A line to stderr.
 */
void
complain(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	complain_args(format, args);
	va_end(args);
}
