/*-------------------------------------------------------------------------
 *
 * arguments.c
 *	  Validation of arguments: NULL, texts, intervals.
 *
 * Every function here raises 22004 for a NULL and 22023 for a value that is
 * out of bounds; the message contains the argument, the value and the bounds.
 * A call validates all its arguments before it reads or writes anything.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "common/int.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/arguments.h"
#include "compat.h"
#include "leaselock.h"
#include "store/table.h"

#define MAX_TIMEOUT_US	(INT64CONST(36500) * USECS_PER_DAY)

/* How many bytes of a refused value an error message shows. */
#define SHOWN_BYTES		64

/*
 * Must be called first by every function that may write.  Raises 25006 on a
 * standby and in a read-only transaction, and 25000 in a parallel worker,
 * before anything is locked.
 */
void
require_writable(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	store_begin_call(true);
}

static void
require_not_null(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"%s\" must not be null", argname)));
}

/*
 * The beginning of a value for an error message: whole characters, with
 * control characters replaced.
 */
char *
shown_value(const char *value)
{
	int			len = strlen(value);
	int			clipped = pg_mbcliplen(value, len, SHOWN_BYTES);
	char	   *result = palloc(clipped + 4);

	memcpy(result, value, clipped);
	for (int i = 0; i < clipped; i++)
	{
		if ((unsigned char) result[i] < 0x20 || result[i] == 0x7F)
			result[i] = '?';
	}
	strcpy(result + clipped, clipped < len ? "..." : "");
	return result;
}

/* The constraints on a text. */
typedef struct TextRules
{
	int			min_bytes;
	int			max_bytes;
	const char *hint;
} TextRules;

static const TextRules label_rules = {
	1, MAX_TEXT_BYTES,
	"Pass 1 to " CppAsString2(MAX_TEXT_BYTES) " bytes, without control characters and without leading or trailing spaces."
};

static const TextRules note_rules = {
	0, MAX_NOTE_BYTES,
	"Pass up to " CppAsString2(MAX_NOTE_BYTES) " bytes, without control characters."
};

static void
reject_text(const char *argname, const TextRules *rules, const char *problem,
			char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"%s\" %s", argname, problem),
			 errdetail_internal("%s", detail),
			 errhint("%s", rules->hint)));
}

/* Checks the length and the characters of a text; returns its length. */
static int
check_bytes(const char *value, const char *argname, const TextRules *rules)
{
	int			len = strlen(value);

	if (len < rules->min_bytes)
		reject_text(argname, rules, "must not be empty",
					psprintf("The value has 0 bytes, but must have %d to %d.",
							 rules->min_bytes, rules->max_bytes));
	if (len > rules->max_bytes)
		reject_text(argname, rules, "is too long",
					psprintf("\"%s\" has %d bytes, but must have %d to %d.",
							 shown_value(value), len, rules->min_bytes,
							 rules->max_bytes));
	for (int i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) value[i];

		if (c < 0x20 || c == 0x7F)
			reject_text(argname, rules, "must not contain a control character",
						psprintf("Byte %d of \"%s\" is 0x%02X.",
								 i + 1, shown_value(value), c));
	}
	return len;
}

/* Checks a scope, name or owner.  Raises 22023. */
void
check_text(const char *value, const char *argname)
{
	int			len = check_bytes(value, argname, &label_rules);

	if (value[0] == ' ' || value[len - 1] == ' ')
		reject_text(argname, &label_rules,
					"must not begin or end with white space",
					psprintf("The value is \"%s\".",
							 shown_value(value)));
}

/* A scope, name or owner as a C string. */
char *
argument_text(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	char	   *value;

	require_not_null(fcinfo, argno, argname);
	value = text_to_cstring(PG_GETARG_TEXT_PP(argno));
	check_text(value, argname);
	return value;
}

/* A note; NULL if it is NULL or empty. */
char *
argument_note(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	char	   *value;

	if (PG_ARGISNULL(argno))
		return NULL;
	value = text_to_cstring(PG_GETARG_TEXT_PP(argno));
	return check_bytes(value, argname, &note_rules) > 0 ? value : NULL;
}

/* The next two accept any value of the type except NULL. */
pg_uuid_t *
argument_uuid(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	require_not_null(fcinfo, argno, argname);
	return PG_GETARG_UUID_P(argno);
}

int64
argument_bigint(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	require_not_null(fcinfo, argno, argname);
	return PG_GETARG_INT64(argno);
}

/* A count; at least 1. */
int
argument_count(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	int			count;

	require_not_null(fcinfo, argno, argname);
	count = PG_GETARG_INT32(argno);
	if (count < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is out of range: %d", argname, count),
				 errdetail("The value must be 1 or more.")));
	return count;
}

/* The name of a role; the caller must check that the role exists. */
char *
argument_name(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	require_not_null(fcinfo, argno, argname);
	return NameStr(*PG_GETARG_NAME(argno));
}

bool
argument_boolean(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	require_not_null(fcinfo, argno, argname);
	return PG_GETARG_BOOL(argno);
}

/* Formats a length of time in the largest unit that represents it exactly. */
static char *
format_length(int64 us)
{
	if (us % USECS_PER_DAY == 0 && us != 0)
		return psprintf(INT64_FORMAT " d", us / USECS_PER_DAY);
	if (us % USECS_PER_SEC == 0)
		return psprintf(INT64_FORMAT " s", us / USECS_PER_SEC);
	if (us % 1000 == 0)
		return psprintf(INT64_FORMAT " ms", us / 1000);
	return psprintf(INT64_FORMAT " us", us);
}

static char *
show_interval(const Interval *interval)
{
	return DatumGetCString(DirectFunctionCall1(interval_out,
											   IntervalPGetDatum(interval)));
}

/* The bounds of a length of time, and hints for values outside them. */
typedef struct LengthRules
{
	int64		min_us;
	int64		max_us;
	const char *min_hint;		/* below the minimum; NULL: none */
	const char *max_hint;		/* above the maximum; NULL: none */
} LengthRules;

/*
 * "us" is the interval's length, unless it is unknown because of an overflow.
 */
static void
reject_length(const char *argname, const Interval *interval, bool is_known,
			  int64 us, const LengthRules *rules)
{
	bool		below = is_known ? us < rules->min_us : interval->day < 0;
	const char *hint = below ? rules->min_hint : rules->max_hint;

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"%s\" is out of range: \"%s\"",
					argname, show_interval(interval)),
			 errdetail("The value %s%smust be from %s to %s.",
					   is_known ? psprintf("is %s", format_length(us)) : "",
					   is_known ? ", but " : "",
					   format_length(rules->min_us),
					   format_length(rules->max_us)),
			 hint ? errhint("%s", hint) : 0));
}

/*
 * An exact length of time in microseconds.  A day is 24 hours, whatever the
 * time zone does.  For this reason we never add the interval to a timestamp
 * with the server's own operator.
 */
static int64
argument_length(FunctionCallInfo fcinfo, int argno, const char *argname,
				const LengthRules *rules)
{
	Interval   *interval;
	int64		us;
	bool		is_known;

	require_not_null(fcinfo, argno, argname);
	interval = PG_GETARG_INTERVAL_P(argno);

	if (IntervalIsInfiniteCompat(interval) || interval->month != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is not an exact length of time: \"%s\"",
						argname, show_interval(interval)),
				 errdetail("Months, years and infinities have no fixed length."),
				 errhint("Pass a length from %s to %s, in days or smaller units.",
						 format_length(rules->min_us),
						 format_length(rules->max_us))));

	is_known = !pg_mul_s64_overflow(interval->day, USECS_PER_DAY, &us) &&
		!pg_add_s64_overflow(us, interval->time, &us);
	if (!is_known || us < rules->min_us || us > rules->max_us)
		reject_length(argname, interval, is_known, us, rules);
	return us;
}

/* The lease and the wait of a ticket, in microseconds. */
int64
argument_lease(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	LengthRules rules = {
		leaselock_min_lease * INT64CONST(1000),
		leaselock_max_lease * INT64CONST(1000),
		"The lower bound is the setting leaselock.min_lease.",
		"The upper bound is the setting leaselock.max_lease. To hold a lock longer, renew its lease or use try_lock()."
	};

	return argument_length(fcinfo, argno, argname, &rules);
}

int64
argument_wait(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	LengthRules rules = {
		0, leaselock_max_wait * INT64CONST(1000), NULL,
		"The upper bound is the setting leaselock.max_wait. To wait longer, acquire again before the wait runs out; the new ticket shares the place of the first."
	};

	return argument_length(fcinfo, argno, argname, &rules);
}

/* Any exact length of time that is not negative, in microseconds. */
int64
argument_timeout(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	LengthRules rules = {0, MAX_TIMEOUT_US, NULL, NULL};

	return argument_length(fcinfo, argno, argname, &rules);
}

/* The lease of a named hold, in microseconds. */
int64
argument_ttl(FunctionCallInfo fcinfo, int argno, const char *argname)
{
	LengthRules rules = {
		1, (int64) (leaselock_max_ttl * USECS_PER_SEC), NULL,
		"The upper bound is the setting leaselock.max_ttl."
	};

	return argument_length(fcinfo, argno, argname, &rules);
}
