/*-------------------------------------------------------------------------
 *
 * recent.c
 *	  Rows as this session last wrote them, or read them to check a fence.
 *
 * A lock is usually released by the session that acquired it, and often
 * acquired next by the session that released it.  Such a session need not read
 * the rows that it wrote in order to know which tags to acquire.  Once it
 * holds these, it checks whether the rows are still the versions that it
 * remembers (store_is_current).  Until then, recalled rows may be outdated and
 * may have been rolled back.  They serve to choose tags, and must not be used
 * for an answer.
 *
 * Nothing is remembered across an announcement (store_generation), because the
 * table may then be a different one.  Nor is anything remembered for long: a
 * version is identified by its xmin, and transaction ids are reused
 * eventually.
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

/* Rows whose texts are longer than this in total are not remembered. */
#define RECENT_TEXT		96

/* Common part of a remembered row. */
typedef struct Recent
{
	uint64		generation;		/* 0: no row */
	TimestampTz written_at;		/* start time of the statement that wrote it */
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
 * Common part
 * ----------------------------------------------------------------------
 */

/*
 * Copies a text to *end and makes *text point to the copy; returns false if it
 * does not fit.
 */
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
 * Starts to remember a row: copies its texts and makes the row point to the
 * copies.  Returns false if they are too long.  Either way, the slot's
 * previous row is gone.
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

/* Whether a remembered row may still be valid. */
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

/*
 * A lock may be in either slot of a pair, so that two locks that share a pair
 * can both be remembered.
 */
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

/* The slot for a lock that has none: that of the older row in the pair. */
static RecentLock *
clear_lock(const LockKey *key)
{
	RecentLock *pair = &locks[key->hash % (RECENT_LOCKS / 2) * 2];

	return pair[0].recent.generation == 0 ||
		pair[0].recent.written_at < pair[1].recent.written_at ?
		&pair[0] : &pair[1];
}

/* Must be called with a row that was just written or read. */
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

/*
 * Recalls a lock's row as this session last saw it; returns false if it is not
 * remembered.
 */
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

/* Must be called when another version was found. */
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

/*
 * The slot is given by bits of the uuid that differ between the tickets of a
 * session.
 */
static RecentTicket *
ticket_slot(const pg_uuid_t *id)
{
	return &tickets[id->data[7] % RECENT_TICKETS];
}

/* Must be called with a row that was just written. */
void
remember_ticket(const TicketRow *ticket)
{
	RecentTicket *slot = ticket_slot(&ticket->ticket);
	TicketRow	row = *ticket;

	if (begin_recent(&slot->recent, &row.key, &row.who.owner, &row.note))
		slot->row = row;
}

/*
 * Recalls a ticket's row as this session last wrote it; returns false if it is
 * not remembered.
 */
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

/* Must be called when another version, or none, was found. */
void
forget_ticket(const pg_uuid_t *id)
{
	RecentTicket *slot = ticket_slot(id);

	if (memcmp(&slot->row.ticket, id, sizeof(pg_uuid_t)) == 0)
		slot->recent.generation = 0;
}
