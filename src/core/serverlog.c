/*-------------------------------------------------------------------------
 *
 * serverlog.c
 *	  Lines in the server log for DBAs.
 *
 * What a transaction did is logged after it has committed, so that the log
 * never mentions anything that was rolled back; a refused commit is logged at
 * once.  Names are chosen by callers, so they are quoted as in JSON: each
 * entry is a single line, and nobody can forge the rest of it.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "core/decide.h"
#include "core/serverlog.h"
#include "store/clock.h"

/* A line to be written at commit. */
typedef struct LogLine
{
	SubTransactionId sub;		/* the subtransaction that did it */
	char	   *text;
} LogLine;

/* In TopTransactionContext. */
static List *lines = NIL;

/* ----------------------------------------------------------------------
 * Texts
 * ----------------------------------------------------------------------
 */

static void
add_quoted(StringInfo text, const char *word, const char *value)
{
	appendStringInfoString(text, word);
	escape_json(text, value);
}

static void
add_role(StringInfo text, Oid role)
{
	const char *name = GetUserNameFromId(role, true);

	if (name != NULL)
		add_quoted(text, " of role ", name);
	else
		appendStringInfo(text, " of unknown role %u", role);
}

static void
add_lock(StringInfo text, const LockKey *key)
{
	add_quoted(text, " lock ", key->name);
	add_quoted(text, " in scope ", key->scope);
}

static void
add_holder(StringInfo text, const char *word, const LockRow *lock)
{
	add_quoted(text, word, lock->holder.owner);
	add_role(text, lock->holder.role);
	appendStringInfo(text, " with fence " INT64_FORMAT, lock->fence);
}

/* How long a grant lasted that ended at the given time. */
static int64
held_ms(const LockRow *lock, TimestampTz ended_at)
{
	return clock_remaining_ms(ended_at, lock->granted_at);
}

static void
add_session(StringInfo text)
{
	const char *application = application_name ? application_name : "";

	add_quoted(text, " by session role ",
			   GetUserNameFromId(GetSessionUserId(), false));
	add_quoted(text, ", application ", application);
}

/* ----------------------------------------------------------------------
 * Lines
 * ----------------------------------------------------------------------
 */

static StringInfoData
begin_line(const char *what)
{
	MemoryContext old_context = MemoryContextSwitchTo(TopTransactionContext);
	StringInfoData text;

	initStringInfo(&text);
	MemoryContextSwitchTo(old_context);
	appendStringInfoString(&text, what);
	return text;
}

static void
keep_line(StringInfo text)
{
	MemoryContext old_context = MemoryContextSwitchTo(TopTransactionContext);
	LogLine    *line = palloc(sizeof(LogLine));

	line->sub = GetCurrentSubTransactionId();
	line->text = text->data;

	lines = lappend(lines, line);
	MemoryContextSwitchTo(old_context);
}

/*
 * A grant that follows a lapsed grant of another identity, or of the same one.
 */
void
log_takeover(const LockRow *lapsed, const LockRow *taken)
{
	StringInfoData text = begin_line("lease taken over:");
	TimestampTz until = grant_until(lapsed);

	add_lock(&text, &taken->key);
	add_holder(&text, " by owner ", taken);
	add_holder(&text, ", from owner ", lapsed);
	appendStringInfo(&text, ", which held it for " INT64_FORMAT " ms and had lapsed for " INT64_FORMAT " ms",
					 held_ms(lapsed, until),
					 clock_remaining_ms(taken->granted_at, until));
	keep_line(&text);
}

/* An operator ends a grant. */
void
log_break(const LockRow *broken, TimestampTz now)
{
	StringInfoData text = begin_line("lease broken:");

	add_lock(&text, &broken->key);
	add_holder(&text, " of owner ", broken);
	appendStringInfo(&text, ", which held it for " INT64_FORMAT " ms,",
					 held_ms(broken, Min(now, grant_until(broken))));
	add_session(&text);
	keep_line(&text);
}

static void
write_line(const char *text)
{
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("%s", text), errhidestmt(true)));
}

/*
 * A commit is refused because of a stale fence; called before the error is
 * raised.
 */
void
log_refusal(const LockKey *key, int64 fence)
{
	StringInfoData text = begin_line("stale commit refused:");

	add_lock(&text, key);
	appendStringInfo(&text, ", fence " INT64_FORMAT ",", fence);
	add_session(&text);
	write_line(text.data);
	pfree(text.data);
}

/* ----------------------------------------------------------------------
 * End of a transaction
 * ----------------------------------------------------------------------
 */

/* Writes the lines.  Called after the commit, so it must not fail. */
void
write_log_lines(void)
{
	ListCell   *cell;

	foreach(cell, lines)
		write_line(((LogLine *) lfirst(cell))->text);
}

/* A subtransaction was committed into its parent. */
void
commit_log_sub(SubTransactionId sub, SubTransactionId parent)
{
	ListCell   *cell;

	foreach(cell, lines)
	{
		LogLine    *line = (LogLine *) lfirst(cell);

		if (line->sub == sub)
			line->sub = parent;
	}
}

/* A subtransaction was rolled back, together with its lines. */
void
abort_log_sub(SubTransactionId sub)
{
	ListCell   *cell;

	foreach(cell, lines)
	{
		if (((LogLine *) lfirst(cell))->sub == sub)
			lines = foreach_delete_current(lines, cell);
	}
}

/* The transaction has ended, and the memory context of the lines with it. */
void
end_log(void)
{
	lines = NIL;
}
