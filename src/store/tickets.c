/*-------------------------------------------------------------------------
 *
 * tickets.c
 *	  The rows of leaselock.tickets.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "store/columns.h"
#include "store/tidcache.h"
#include "store/recent.h"
#include "store/rows.h"
#include "store/table.h"
#include "store/tag.h"

/* Columns, in the order of the install script. */
enum
{
	TICKETS_SCOPE = 1,
	TICKETS_NAME,
	TICKETS_OWNER,
	TICKETS_ROLE,
	TICKETS_TICKET,
	TICKETS_STATE,
	TICKETS_CLAIMED,
	TICKETS_LEASE_US,
	TICKETS_REQUESTED_AT,
	TICKETS_REQUEST_ID,
	TICKETS_PLACE,
	TICKETS_MEMBER_OF,
	TICKETS_FENCE,
	TICKETS_EXPIRES_AT,
	TICKETS_WAIT_UNTIL,
	TICKETS_ALIVE_UNTIL,
	TICKETS_ENDED_AT,
	TICKETS_WAITER_PID,
	TICKETS_NOTE,
	TICKETS_COLUMNS = TICKETS_NOTE
};

/* Number of bytes of a ticket's uuid that are part of the hash. */
#define SIGNED_BYTES	5

/* The representation of a state in rows and in answers. */
typedef struct StateName
{
	char		letter;
	const char *name;
} StateName;

static const StateName states[] = {
	[LEASE_HELD] = {'h', "held"},
	[LEASE_WAITING] = {'w', "waiting"},
	[LEASE_CONTENDED] = {'\0', "contended"},
	[LEASE_DEADLOCK] = {'d', "deadlock"},
	[LEASE_RELEASED] = {'r', "released"},
	[LEASE_EXPIRED] = {'e', "expired"},
	[LEASE_TIMED_OUT] = {'t', "timed_out"},
	[LEASE_CANCELLED] = {'c', "cancelled"},
	[LEASE_BROKEN] = {'b', "broken"},
	[LEASE_GONE] = {'\0', "gone"}
};

/* The name of a state, as lease_ticket.state shows it. */
const char *
lease_state_name(LeaseState state)
{
	return states[state].name;
}

static LeaseState
read_state(char letter)
{
	for (int i = 0; i < (int) lengthof(states); i++)
	{
		if (letter != '\0' && states[i].letter == letter)
			return (LeaseState) i;
	}
	store_report_row(REL_TICKETS, "The state is unknown.");
	return LEASE_GONE;			/* not reached */
}

/*
 * Stores part of the hash of a lock's key in the uuid of a new ticket.  It
 * identifies the installation that made the ticket, and the lock could be
 * found by it.
 */
void
store_sign_ticket(pg_uuid_t *ticket, const LockKey *key)
{
	for (int i = 0; i < SIGNED_BYTES; i++)
		ticket->data[UUID_LEN - SIGNED_BYTES + i] =
			(unsigned char) (key->hash >> (8 * i));
}

/*
 * A ticket made by another installation came here with the database of which
 * this one is a copy.  It counts as ended: copying a database does not make
 * anybody wait or hold.
 */
static void
end_foreign_ticket(TicketRow *ticket)
{
	pg_uuid_t	own = ticket->ticket;

	store_sign_ticket(&own, &ticket->key);
	if (memcmp(&own, &ticket->ticket, sizeof(pg_uuid_t)) == 0)
		return;
	if (ticket->state == LEASE_HELD)
		ticket->state = LEASE_EXPIRED;
	if (ticket->state == LEASE_WAITING)
		ticket->state = LEASE_TIMED_OUT;
	if (ticket->ended_at == NO_TIME)
		ticket->ended_at = ticket->requested_at;
}

/* "key" is the key of the ticket's lock, or NULL to read it from the row. */
static void
read_ticket(HeapTuple tuple, TupleDesc desc, const LockKey *key,
			TicketRow *ticket)
{
	Datum		values[TICKETS_COLUMNS];
	bool		nulls[TICKETS_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	memset(ticket, 0, sizeof(TicketRow));
	ticket->version = store_row_version(tuple);
	ticket->key = key ? *key :
		make_lock_key(TextDatumGetCString(VALUE(TICKETS_SCOPE)),
					  TextDatumGetCString(VALUE(TICKETS_NAME)));
	ticket->ticket = *DatumGetUUIDP(VALUE(TICKETS_TICKET));
	ticket->has_request_id = !ISNULL(TICKETS_REQUEST_ID);
	if (ticket->has_request_id)
		ticket->request_id = *DatumGetUUIDP(VALUE(TICKETS_REQUEST_ID));
	ticket->who.role = DatumGetObjectId(VALUE(TICKETS_ROLE));
	ticket->who.owner = TextDatumGetCString(VALUE(TICKETS_OWNER));
	ticket->state = read_state(DatumGetChar(VALUE(TICKETS_STATE)));
	ticket->place = ISNULL(TICKETS_PLACE) ? 0 :
		DatumGetInt64(VALUE(TICKETS_PLACE));
	ticket->listed = !ISNULL(TICKETS_MEMBER_OF);
	ticket->fence = ISNULL(TICKETS_FENCE) ? 0 :
		DatumGetInt64(VALUE(TICKETS_FENCE));
	ticket->lease_us = DatumGetInt64(VALUE(TICKETS_LEASE_US));
	ticket->requested_at = DatumGetTimestampTz(VALUE(TICKETS_REQUESTED_AT));
	ticket->expires_at = TIME(TICKETS_EXPIRES_AT);
	ticket->wait_until = TIME(TICKETS_WAIT_UNTIL);
	ticket->alive_until = TIME(TICKETS_ALIVE_UNTIL);
	ticket->waiter_pid = ISNULL(TICKETS_WAITER_PID) ? 0 :
		DatumGetInt32(VALUE(TICKETS_WAITER_PID));
	ticket->claimed = DatumGetBool(VALUE(TICKETS_CLAIMED));
	ticket->ended_at = TIME(TICKETS_ENDED_AT);
	ticket->note = ISNULL(TICKETS_NOTE) ? NULL :
		TextDatumGetCString(VALUE(TICKETS_NOTE));
	end_foreign_ticket(ticket);
}

/* ----------------------------------------------------------------------
 * Scans
 * ----------------------------------------------------------------------
 */

struct TicketScan
{
	TableScan  *scan;
	const LockKey *key;			/* of all tickets; NULL: of several locks */
};

static TicketScan *
open_tickets(StoreRelation index, ScanKey keys, int nkeys,
			 const LockKey *key)
{
	TicketScan *tickets = palloc(sizeof(TicketScan));

	tickets->key = key;
	tickets->scan = store_open_scan(REL_TICKETS, index, keys, nkeys);
	return tickets;
}

static bool
next_ticket(TicketScan *tickets, ScanDirection direction, TicketRow *ticket)
{
	HeapTuple	tuple = store_next_row(tickets->scan, direction);

	if (!HeapTupleIsValid(tuple))
		return false;
	read_ticket(tuple, RelationGetDescr(tickets->scan->rel), tickets->key,
				ticket);
	return true;
}

/* Ends a scan of tickets, whether or not it has reached the end. */
void
store_close_tickets(TicketScan *tickets)
{
	store_close_scan(tickets->scan);
	pfree(tickets);
}

/* Reads the next ticket of a scan into *ticket; returns false at the end. */
bool
store_next_ticket(TicketScan *tickets, TicketRow *ticket)
{
	return next_ticket(tickets, ForwardScanDirection, ticket);
}

/* The tickets that an index scan finds, in index order (TicketRow *). */
static List *
list_tickets(StoreRelation index, ScanKey keys, int nkeys, const LockKey *key)
{
	TicketScan *scan = open_tickets(index, keys, nkeys, key);
	TicketRow	ticket;
	List	   *rows = NIL;

	while (store_next_ticket(scan, &ticket))
	{
		TicketRow  *copy = palloc(sizeof(TicketRow));

		*copy = ticket;
		rows = lappend(rows, copy);
	}
	store_close_tickets(scan);
	return rows;
}

static void
set_lock_keys(ScanKey keys, const LockKey *key)
{
	store_set_key(&keys[0], TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	store_set_key(&keys[1], TICKETS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
}

/* ----------------------------------------------------------------------
 * One ticket
 * ----------------------------------------------------------------------
 */

/* Loads the ticket that the keys identify in an index. */
static bool
load_ticket(StoreRelation index, ScanKey keys, int nkeys, const LockKey *key,
			TicketRow *row)
{
	TableScan  *scan = store_open_scan(REL_TICKETS, index, keys, nkeys);
	HeapTuple	tuple = store_only_row(scan);
	bool		found = HeapTupleIsValid(tuple);

	if (found)
		read_ticket(tuple, RelationGetDescr(scan->rel), key, row);
	store_close_scan(scan);
	return found;
}

/* Where this session last saw tickets, by the hash of their uuids. */
static TidCacheEntry tid_cache[TID_CACHE_SIZE];

static uint64
hash_uuid(const pg_uuid_t *ticket)
{
	return hash_bytes_extended(ticket->data, UUID_LEN, 0);
}

static void
read_any_ticket(HeapTuple tuple, TupleDesc desc, void *ticket)
{
	read_ticket(tuple, desc, NULL, (TicketRow *) ticket);
}

/* Loads a ticket by its uuid; returns false if there is none. */
bool
store_load_ticket(const pg_uuid_t *ticket, TicketRow *row)
{
	ScanKeyData key;
	ItemPointerData tid;

	if (find_cached_tid(tid_cache, hash_uuid(ticket), &tid) &&
		store_read_row(REL_TICKETS, &tid, read_any_ticket, row) &&
		memcmp(&row->ticket, ticket, sizeof(pg_uuid_t)) == 0)
		return true;
	store_set_key(&key, TICKETS_TICKET, F_UUID_EQ, UUIDPGetDatum(ticket));
	return load_ticket(REL_TICKETS_TICKET, &key, 1, NULL, row);
}

/*
 * Loads a ticket by its lock and request id; returns false if there is none.
 */
bool
store_load_request(const LockKey *key, const pg_uuid_t *request_id,
				   TicketRow *row)
{
	ScanKeyData keys[3];

	set_lock_keys(keys, key);
	store_set_key(&keys[2], TICKETS_REQUEST_ID, F_UUID_EQ, UUIDPGetDatum(request_id));
	return load_ticket(REL_TICKETS_REQUEST, keys, 3, key, row);
}

/* Reads a ticket whose lock's key is already in *ticket. */
static void
read_ticket_of_lock(HeapTuple tuple, TupleDesc desc, void *ticket)
{
	LockKey		key = ((TicketRow *) ticket)->key;

	read_ticket(tuple, desc, &key, (TicketRow *) ticket);
}

/*
 * Loads a ticket again; returns false if it is gone.  Its row is usually where
 * it was.  A ticket never changes its lock, so the key is not read again.
 */
bool
store_reload_ticket(TicketRow *row)
{
	TicketRow	there;

	there.key = row->key;
	if (store_read_row(REL_TICKETS, &row->version.tid, read_ticket_of_lock,
					   &there) &&
		memcmp(&there.ticket, &row->ticket, sizeof(pg_uuid_t)) == 0)
	{
		*row = there;
		return true;
	}
	there.ticket = row->ticket;
	return store_load_ticket(&there.ticket, row);
}

/*
 * Writes a ticket's row.  The caller holds the ticket tag if the row is new
 * and has a request id, or if the ticket waits; otherwise the name tag.
 */
void
store_save_ticket(TicketRow *ticket)
{
	Datum		values[TICKETS_COLUMNS];
	bool		nulls[TICKETS_COLUMNS];
	ShortText	scope,
				name,
				owner;

	SET(TICKETS_TICKET, UUIDPGetDatum(&ticket->ticket));
	SET(TICKETS_LEASE_US, Int64GetDatum(ticket->lease_us));
	SET(TICKETS_REQUESTED_AT, TimestampTzGetDatum(ticket->requested_at));
	SET(TICKETS_ROLE, ObjectIdGetDatum(ticket->who.role));
	SET(TICKETS_STATE, CharGetDatum(states[ticket->state].letter));
	SET(TICKETS_CLAIMED, BoolGetDatum(ticket->claimed));
	SET(TICKETS_SCOPE, text_value(&scope, ticket->key.scope));
	SET(TICKETS_NAME, text_value(&name, ticket->key.name));
	SET(TICKETS_OWNER, text_value(&owner, ticket->who.owner));
	SET_IF(ticket->has_request_id, TICKETS_REQUEST_ID,
		   UUIDPGetDatum(&ticket->request_id));
	SET_IF(ticket->place != 0, TICKETS_PLACE, Int64GetDatum(ticket->place));
	SET_IF(ticket->listed, TICKETS_MEMBER_OF, Int64GetDatum(ticket->fence));
	SET_IF(ticket->fence != 0, TICKETS_FENCE, Int64GetDatum(ticket->fence));
	SET_TIME(TICKETS_EXPIRES_AT, ticket->expires_at);
	SET_TIME(TICKETS_WAIT_UNTIL, ticket->wait_until);
	SET_TIME(TICKETS_ALIVE_UNTIL, ticket->alive_until);
	SET_TIME(TICKETS_ENDED_AT, ticket->ended_at);
	SET_IF(ticket->waiter_pid != 0, TICKETS_WAITER_PID,
		   Int32GetDatum(ticket->waiter_pid));
	SET_IF(ticket->note != NULL, TICKETS_NOTE,
		   CStringGetTextDatum(ticket->note));

	store_write_row(REL_TICKETS, values, nulls, &ticket->version);
	cache_tid(tid_cache, hash_uuid(&ticket->ticket), &ticket->version.tid);
	if (ticket->state == LEASE_HELD)
		remember_ticket(ticket);
	else
		forget_ticket(&ticket->ticket);
}

/*
 * Removes a ticket that has ended and that nobody writes any more; returns
 * false if another session is removing it.
 */
bool
store_try_delete_ticket(TicketRow *ticket)
{
	return store_try_delete_row(REL_TICKETS, &ticket->version);
}

/* ----------------------------------------------------------------------
 * Several tickets
 * ----------------------------------------------------------------------
 */

/*
 * The tickets on the list of the lock's grant.  Most grants do not have a
 * list.
 */
static List *
list_members(const LockRow *lock)
{
	ScanKeyData keys[3];

	if (lock->tickets <= (lock->has_first ? 1 : 0))
		return NIL;
	set_lock_keys(keys, &lock->key);
	store_set_key(&keys[2], TICKETS_MEMBER_OF, F_INT8EQ, Int64GetDatum(lock->fence));
	return list_tickets(REL_TICKETS_MEMBER, keys, 3, &lock->key);
}

/* The tickets of the lock's grant that are stored as held. */
TicketRow *
store_load_shares(const LockRow *lock, int *count)
{
	List	   *listed = list_members(lock);
	ListCell   *cell;
	TicketRow  *shares;

	shares = palloc((list_length(listed) + 1) * sizeof(TicketRow));
	*count = 0;
	if (lock->has_first &&
		store_load_ticket(&lock->first_ticket, &shares[*count]))
		(*count)++;
	foreach(cell, listed)
		shares[(*count)++] = *(TicketRow *) lfirst(cell);
	return shares;
}

/* The tickets of an identity that are stored in a queue (TicketRow *). */
List *
store_list_waits(const Identity *who)
{
	ScanKeyData keys[2];

	store_set_key(&keys[0], TICKETS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	store_set_key(&keys[1], TICKETS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	return list_tickets(REL_TICKETS_WAITER, keys, 2, NULL);
}

/* Starts a scan of a lock's queue after a place, in the order of places. */
TicketScan *
store_open_queue(const LockKey *key, int64 after)
{
	ScanKeyData keys[3];

	set_lock_keys(keys, key);
	ScanKeyInit(&keys[2], TICKETS_PLACE, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(after));
	return open_tickets(REL_TICKETS_PLACE, keys, 3, key);
}

/*
 * Starts a scan of all queues, or of those of one scope, in the order of
 * (scope, name, place).
 */
TicketScan *
store_open_queues(const char *scope)
{
	ScanKeyData key;

	if (scope == NULL)
		return open_tickets(REL_TICKETS_PLACE, NULL, 0, NULL);
	store_set_key(&key, TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	return open_tickets(REL_TICKETS_PLACE, &key, 1, NULL);
}

/* Starts a scan of all tickets, in no particular order. */
TicketScan *
store_open_tickets(void)
{
	return open_tickets(REL_NONE, NULL, 0, NULL);
}

/* The last visible place in a lock's queue; 0 if it is empty. */
int64
store_last_place(const LockKey *key)
{
	TicketScan *scan = store_open_queue(key, 0);
	TicketRow	ticket;
	int64		place = 0;

	if (next_ticket(scan, BackwardScanDirection, &ticket))
		place = ticket.place;
	store_close_tickets(scan);
	return place;
}

static void *
read_old_ticket(HeapTuple tuple, TupleDesc desc)
{
	TicketRow  *ticket = palloc(sizeof(TicketRow));

	read_ticket(tuple, desc, NULL, ticket);
	return ticket;
}

/*
 * The tickets (TicketRow *) on a random page of the table that were requested
 * before the given time.
 */
List *
store_sample_tickets(TimestampTz before, int *seen)
{
	return store_sample_rows(REL_TICKETS, TICKETS_REQUESTED_AT, before, seen,
							 read_old_ticket);
}
