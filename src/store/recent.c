/*-------------------------------------------------------------------------
 *
 * recent.c
 *	  Rows as this session wrote them last.
 *
 * Who gives a lock back is mostly the session that took it, and who takes it
 * next is often the one that gave it back.  Neither need read the rows that it
 * has written to know which tags to take: once it has those, it asks whether
 * the rows are still the versions that it remembers (store_is_current).  Until
 * then, what is recalled here is as old as it may be, and may have been rolled
 * back: it is good for choosing tags, and for nothing that is answered.
 *
 * Nothing is remembered across an announcement (store_generation): the table
 * may be another one by then.  Nor for long, for a version is told by the
 * transaction that wrote it, and in time the numbers of those are used again.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "store/recent.h"
#include "store/table.h"

/* How many rows are remembered, and for how long. */
#define RECENT_LOCKS	1024
#define RECENT_TICKETS	64
#define RECENT_US		(10 * USECS_PER_MINUTE)

/* Rows whose texts are longer than this together are not remembered. */
#define RECENT_TEXT		96

/* What is remembered of any row. */
typedef struct Recent
{
	uint64		generation;		/* 0: nothing */
	TimestampTz written_at;		/* when the statement began that wrote it */
	char text[	RECENT_TEXT];	/* scope, name, owner and note */
} Recent;

typedef struct RecentLock
{
	Recent		recent;
	LockRow		row;			/* its texts are in "recent" */
} RecentLock;

typedef struct RecentTicket
{
	Recent		recent;
	TicketRow	row;
} RecentTicket;

static RecentLock locks[RECENT_LOCKS];
static RecentTicket tickets[RECENT_TICKETS];

/* ----------------------------------------------------------------------
 * Any row
 * ----------------------------------------------------------------------
 */

/* Copies a text to *end, and sets *text to the copy; false if there is no room. */
static bool
store_text(Recent *recent, char **end, const char **text)
{
	size_t		size = strlen(*text) + 1;
	size_t		used = *end - recent->text;

	if (used + size > RECENT_TEXT)
		return false;
	memcpy(*end, *text, size);
	*text = *end;
	*end += size;
	return true;
}

/*
 * Begins to remember a row, whose texts are copied and pointed to anew; false
 * if they are too long.  What was there before must not be used any more.
 */
static bool
begin_recent(Recent *recent, LockKey *key, const char **owner,
			 const char **note)
{
	char	   *end = recent->text;

	recent->generation = 0;
	if (!store_text(recent, &end, &key->scope) ||
		!store_text(recent, &end, &key->name) ||
		(*owner != NULL && !store_text(recent, &end, owner)) ||
		(*note != NULL && !store_text(recent, &end, note)))
		return false;
	recent->generation = store_event_generation();
	recent->written_at = GetCurrentStatementStartTimestamp();
	return true;
}

/* Whether what is remembered may still be so. */
static bool
is_recent(const Recent *recent)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();

	return recent->generation != 0 &&
		recent->generation == store_event_generation() &&
		now >= recent->written_at && now - recent->written_at < RECENT_US;
}

static const char *
copy_text(const char *text)
{
	return text !=NULL ? pstrdup(text) : NULL;
}

/* ----------------------------------------------------------------------
 * Locks
 * ----------------------------------------------------------------------
 */

/* Either of two places may have it, so that two names can have one number. */
static RecentLock *
find_lock(const LockKey *key)
{
	RecentLock *pair = &locks[key->hash % (RECENT_LOCKS / 2) * 2];

	for (int i = 0; i < 2; i++)
	{
		if (pair[i].recent.generation != 0 && pair[i].row.key.hash == key->hash)
			return &pair[i];
	}
	return NULL;
}

/* The place for a lock that has none: what was written longer ago makes room. */
static RecentLock *
clear_lock(const LockKey *key)
{
	RecentLock *pair = &locks[key->hash % (RECENT_LOCKS / 2) * 2];

	return pair[0].recent.generation == 0 ||
		pair[0].recent.written_at < pair[1].recent.written_at ?
		&pair[0] : &pair[1];
}

/* To be called with a row that was just written. */
void
remember_lock(const LockRow *lock)
{
	RecentLock *slot = find_lock(&lock->key);
	LockRow		row = *lock;
	const char *note = NULL;

	if (slot == NULL)
		slot = clear_lock(&lock->key);
	if (begin_recent(&slot->recent, &row.key, &row.holder.owner, &note))
		slot->row = row;
}

/* Recalls a lock's row as this session last wrote it; false if it cannot. */
bool
recall_lock(const LockKey *key, LockRow *lock)
{
	const RecentLock *slot = find_lock(key);

	if (slot == NULL || !is_recent(&slot->recent) ||
		strcmp(slot->row.key.scope, key->scope) != 0 ||
		strcmp(slot->row.key.name, key->name) != 0)
		return false;
	*lock = slot->row;
	lock->key = *key;
	lock->holder.owner = copy_text(lock->holder.owner);
	lock->recalled = true;
	return true;
}

/* To be called once another version was found. */
void
forget_lock(const LockKey *key)
{
	RecentLock *slot = find_lock(key);

	if (slot != NULL)
		slot->recent.generation = 0;
}

/* ----------------------------------------------------------------------
 * Tickets
 * ----------------------------------------------------------------------
 */

/* By the bits of the uuid that differ from one ticket of a session to the next. */
static RecentTicket *
ticket_slot(const pg_uuid_t *id)
{
	return &tickets[id->data[7] % RECENT_TICKETS];
}

/* To be called with a row that was just written. */
void
remember_ticket(const TicketRow *ticket)
{
	RecentTicket *slot = ticket_slot(&ticket->ticket);
	TicketRow	row = *ticket;

	if (begin_recent(&slot->recent, &row.key, &row.who.owner, &row.note))
		slot->row = row;
}

/* Recalls a ticket's row as this session last wrote it; false if it cannot. */
bool
recall_ticket(const pg_uuid_t *id, TicketRow *ticket)
{
	const RecentTicket *slot = ticket_slot(id);

	if (!is_recent(&slot->recent) ||
		memcmp(&slot->row.ticket, id, sizeof(pg_uuid_t)) != 0)
		return false;
	*ticket = slot->row;
	ticket->key.scope = copy_text(ticket->key.scope);
	ticket->key.name = copy_text(ticket->key.name);
	ticket->who.owner = copy_text(ticket->who.owner);
	ticket->note = copy_text(ticket->note);
	ticket->attended = false;
	ticket->recalled = true;
	return true;
}

/* To be called once another version was found, or none. */
void
forget_ticket(const pg_uuid_t *id)
{
	RecentTicket *slot = ticket_slot(id);

	if (memcmp(&slot->row.ticket, id, sizeof(pg_uuid_t)) == 0)
		slot->recent.generation = 0;
}
