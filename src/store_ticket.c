/*-------------------------------------------------------------------------
 *
 * store_ticket.c
 *	  The rows of leaselock.tickets.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "leaselock.h"

enum
{
	TICKETS_SCOPE = 1,
	TICKETS_NAME,
	TICKETS_REQUEST_ID,
	TICKETS_TICKET,
	TICKETS_ROLE,
	TICKETS_OWNER,
	TICKETS_PLACE,
	TICKETS_WAITING,
	TICKETS_STATE,
	TICKETS_FENCE,
	TICKETS_LEASE_US,
	TICKETS_REQUESTED_AT,
	TICKETS_EXPIRES_AT,
	TICKETS_WAIT_UNTIL,
	TICKETS_ALIVE_UNTIL,
	TICKETS_WAITER_PID,
	TICKETS_CLAIMED,
	TICKETS_ENDED_AT,
	TICKETS_COLUMNS = TICKETS_ENDED_AT
};

/* What a state is called, in rows and in answers. */
static const char *const state_names[] = {
	[LEASE_HELD] = "held",
	[LEASE_WAITING] = "waiting",
	[LEASE_CONTENDED] = "contended",
	[LEASE_DEADLOCK] = "deadlock",
	[LEASE_RELEASED] = "released",
	[LEASE_EXPIRED] = "expired",
	[LEASE_TIMED_OUT] = "timed_out",
	[LEASE_CANCELLED] = "cancelled",
	[LEASE_BROKEN] = "broken",
	[LEASE_GONE] = "gone"
};

/* The name of a state, as in the contract of lease_ticket.state. */
const char *
lease_state_name(LeaseState state)
{
	return state_names[state];
}

static LeaseState
parse_state(const text *name)
{
	size_t		length = VARSIZE_ANY_EXHDR(name);

	for (int i = 0; i < (int) lengthof(state_names); i++)
	{
		if (strlen(state_names[i]) == length &&
			memcmp(state_names[i], VARDATA_ANY(name), length) == 0)
			return (LeaseState) i;
	}
	elog(ERROR, "unknown lease ticket state \"%s\"", text_to_cstring(name));
}

/* The key of the ticket's lock is taken from the row unless it is known. */
static void
deform_ticket(HeapTuple tuple, TupleDesc desc, const LockKey *key,
			  LeaseTicket *ticket)
{
	Datum		values[TICKETS_COLUMNS];
	bool		nulls[TICKETS_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	ticket->tid = tuple->t_self;
	ticket->key = key ? *key :
		make_lock_key(TextDatumGetCString(VALUE(TICKETS_SCOPE)),
					  TextDatumGetCString(VALUE(TICKETS_NAME)));
	ticket->request_id = *DatumGetUUIDP(VALUE(TICKETS_REQUEST_ID));
	ticket->ticket = *DatumGetUUIDP(VALUE(TICKETS_TICKET));
	ticket->who.role = DatumGetObjectId(VALUE(TICKETS_ROLE));
	ticket->who.owner = TextDatumGetCString(VALUE(TICKETS_OWNER));
	ticket->place = DatumGetInt64(VALUE(TICKETS_PLACE));
	ticket->waiting = DatumGetBool(VALUE(TICKETS_WAITING));
	ticket->state = parse_state(DatumGetTextPP(VALUE(TICKETS_STATE)));
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
}

/* A scan of tickets in the order of an index. */
struct TicketScan
{
	TableScan  *scan;
	const LockKey *key;			/* the lock of all of them; NULL: of several */
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
next_ticket(TicketScan *tickets, ScanDirection direction, LeaseTicket *ticket)
{
	HeapTuple	tuple = store_next_row(tickets->scan, direction);

	if (!HeapTupleIsValid(tuple))
		return false;
	deform_ticket(tuple, RelationGetDescr(tickets->scan->rel), tickets->key,
				  ticket);
	return true;
}

/* Closes a scan of tickets, at its end or before. */
void
store_close_tickets(TicketScan *tickets)
{
	store_close_scan(tickets->scan);
	pfree(tickets);
}

/* The next ticket of a scan into *ticket; false at the end. */
bool
store_next_ticket(TicketScan *tickets, LeaseTicket *ticket)
{
	return next_ticket(tickets, ForwardScanDirection, ticket);
}

/* The ticket rows that an index scan finds, in the index's order. */
static List *
scan_tickets(StoreRelation index, ScanKey keys, int nkeys)
{
	TicketScan *scan = open_tickets(index, keys, nkeys, NULL);
	LeaseTicket ticket;
	List	   *rows = NIL;

	while (store_next_ticket(scan, &ticket))
	{
		LeaseTicket *copy = palloc(sizeof(LeaseTicket));

		*copy = ticket;
		rows = lappend(rows, copy);
	}
	store_close_tickets(scan);
	return rows;
}

/* The ticket that the keys name in a unique index, or one that is used as such. */
static bool
load_ticket(StoreRelation index, ScanKey keys, int nkeys, LeaseTicket *row)
{
	TableScan  *scan = store_open_scan(REL_TICKETS, index, keys,
									   nkeys);
	HeapTuple	tuple = store_only_row(scan);
	bool		found = HeapTupleIsValid(tuple);

	if (found)
		deform_ticket(tuple, RelationGetDescr(scan->rel), NULL, row);
	store_close_scan(scan);
	return found;
}

/* Loads a ticket by its uuid; false if there is none. */
bool
store_load_ticket(const pg_uuid_t *ticket, LeaseTicket *row)
{
	ScanKeyData key;

	store_set_key(&key, TICKETS_TICKET, F_UUID_EQ, UUIDPGetDatum(ticket));
	return load_ticket(REL_TICKETS_TICKET, &key, 1, row);
}

/* Loads a ticket by its lock and request id; false if there is none. */
bool
store_load_request(const LockKey *key, const pg_uuid_t *request_id,
				   LeaseTicket *row)
{
	ScanKeyData keys[3];

	store_set_key(&keys[0], TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	store_set_key(&keys[1], TICKETS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	store_set_key(&keys[2], TICKETS_REQUEST_ID, F_UUID_EQ, UUIDPGetDatum(request_id));
	return load_ticket(REL_TICKETS_PKEY, keys, 3, row);
}

static void
take_ticket(HeapTuple tuple, TupleDesc desc, void *ticket)
{
	deform_ticket(tuple, desc, NULL, (LeaseTicket *) ticket);
}

/* Loads a ticket anew; false if it is gone.  Mostly it is where it was. */
bool
store_reload_ticket(LeaseTicket *row)
{
	LockKey		key = row->key;
	pg_uuid_t	request_id = row->request_id;
	LeaseTicket there;

	if (!store_read_row(REL_TICKETS, &row->tid, take_ticket,
						&there) ||
		memcmp(&there.request_id, &request_id, sizeof(pg_uuid_t)) != 0 ||
		compare_lock_keys(&there.key, &key) != 0)
		return store_load_request(&key, &request_id, row);
	*row = there;
	return true;
}

/* The tickets of one grant that have not been ended by what is stored. */
List *
store_list_grant(const LockKey *key, int64 fence)
{
	ScanKeyData keys[3];

	store_set_key(&keys[0], TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	store_set_key(&keys[1], TICKETS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	store_set_key(&keys[2], TICKETS_PLACE, F_INT8EQ, Int64GetDatum(-fence));
	return scan_tickets(REL_TICKETS_PLACE, keys, 3);
}

/* All tickets of an identity, ended ones included. */
List *
store_list_owner(const Identity *who)
{
	ScanKeyData keys[2];

	store_set_key(&keys[0], TICKETS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	store_set_key(&keys[1], TICKETS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	return scan_tickets(REL_TICKETS_OWNER, keys, 2);
}

/* The waiting tickets of an identity, by what is stored. */
List *
store_list_waits(const Identity *who)
{
	ScanKeyData keys[3];

	store_set_key(&keys[0], TICKETS_OWNER, F_TEXTEQ, CStringGetTextDatum(who->owner));
	store_set_key(&keys[1], TICKETS_ROLE, F_OIDEQ, ObjectIdGetDatum(who->role));
	store_set_key(&keys[2], TICKETS_WAITING, F_BOOLEQ, BoolGetDatum(true));
	return scan_tickets(REL_TICKETS_OWNER, keys, 3);
}

static TicketScan *
open_places(const LockKey *key, int64 after)
{
	ScanKeyData keys[3];

	store_set_key(&keys[0], TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(key->scope));
	store_set_key(&keys[1], TICKETS_NAME, F_TEXTEQ, CStringGetTextDatum(key->name));
	ScanKeyInit(&keys[2], TICKETS_PLACE, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(after));
	return open_tickets(REL_TICKETS_PLACE, keys, 3, key);
}

/* Begins to read a lock's queue behind a place, in the order of places. */
TicketScan *
store_open_queue(const LockKey *key, int64 after)
{
	return open_places(key, after);
}

/* The last place of a lock's queue that is visible, 0: none. */
int64
store_last_place(const LockKey *key)
{
	TicketScan *scan = open_places(key, 0);
	LeaseTicket ticket;
	int64		place = 0;

	if (next_ticket(scan, BackwardScanDirection, &ticket))
		place = ticket.place;
	store_close_tickets(scan);
	return place;
}

/* The tickets of a scope; what waits is among them. */
List *
store_list_scope_waits(const char *scope)
{
	ScanKeyData key;

	store_set_key(&key, TICKETS_SCOPE, F_TEXTEQ, CStringGetTextDatum(scope));
	return scan_tickets(REL_TICKETS_PLACE, &key, 1);
}

/* Begins to read all tickets in the order of (scope, name, place). */
TicketScan *
store_open_all(void)
{
	return open_tickets(REL_TICKETS_PLACE, NULL, 0, NULL);
}

static LeaseState
read_state(HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;

	return parse_state(DatumGetTextPP(heap_getattr(tuple, TICKETS_STATE, desc,
												   &isnull)));
}

/*
 * The next ticket of a scan that is held or waits by what is stored, into
 * *ticket, with its strings in a context of the caller's choice; false at the
 * end.  Most tickets have ended, and nothing else of those is read.
 */
bool
store_next_live(TicketScan *tickets, MemoryContext context,
				LeaseTicket *ticket)
{
	TupleDesc	desc = RelationGetDescr(tickets->scan->rel);
	MemoryContext old_context;
	HeapTuple	tuple;
	LeaseState	state;

	do
	{
		tuple = store_next_row(tickets->scan, ForwardScanDirection);
		if (!HeapTupleIsValid(tuple))
			return false;
		state = read_state(tuple, desc);
	} while (state != LEASE_HELD && state != LEASE_WAITING);

	old_context = MemoryContextSwitchTo(context);
	deform_ticket(tuple, desc, NULL, ticket);
	MemoryContextSwitchTo(old_context);
	return true;
}

/*
 * Up to "count" tickets in the order of (scope, name, request id), the first
 * behind *after; NULL: from the beginning.
 */
List *
store_next_tickets(const LeaseTicket *after, int count)
{
	List	   *rows = NIL;

	for (int equal = after ? 2 : 0;
		 equal >= 0 && list_length(rows) < count; equal--)
	{
		ScanKeyData keys[3];
		int			nkeys = after ?
			store_set_behind(keys, &after->key, &after->request_id, equal) : 0;
		TicketScan *scan = open_tickets(REL_TICKETS_PKEY, keys, nkeys, NULL);
		LeaseTicket ticket;

		while (list_length(rows) < count && store_next_ticket(scan, &ticket))
		{
			LeaseTicket *copy = palloc(sizeof(LeaseTicket));

			*copy = ticket;
			rows = lappend(rows, copy);
		}
		store_close_tickets(scan);
	}
	return rows;
}

/* Before the rest of a row is read, for most rows are not taken. */
static void *
take_old_ticket(HeapTuple tuple, TupleDesc desc, TimestampTz before)
{
	LeaseTicket *ticket;
	bool		isnull;

	if (DatumGetTimestampTz(heap_getattr(tuple, TICKETS_REQUESTED_AT, desc,
										 &isnull)) >= before)
		return NULL;
	ticket = palloc(sizeof(LeaseTicket));
	deform_ticket(tuple, desc, NULL, ticket);
	return ticket;
}

/* The tickets on a random page of the table that were requested before. */
List *
store_sample_tickets(TimestampTz before, int *seen)
{
	return store_sample_rows(REL_TICKETS, before, seen,
							 take_old_ticket);
}

/*
 * Writes a ticket's row.  The caller holds the ticket tag if the row is new
 * and names a request id, or if the ticket waits; else the name tag.
 */
void
store_save_ticket(LeaseTicket *ticket)
{
	Datum		values[TICKETS_COLUMNS];
	bool		nulls[TICKETS_COLUMNS];

	SET(TICKETS_SCOPE, CStringGetTextDatum(ticket->key.scope));
	SET(TICKETS_NAME, CStringGetTextDatum(ticket->key.name));
	SET(TICKETS_REQUEST_ID, UUIDPGetDatum(&ticket->request_id));
	SET(TICKETS_TICKET, UUIDPGetDatum(&ticket->ticket));
	SET(TICKETS_ROLE, ObjectIdGetDatum(ticket->who.role));
	SET(TICKETS_OWNER, CStringGetTextDatum(ticket->who.owner));
	SET(TICKETS_PLACE, Int64GetDatum(ticket->place));
	SET(TICKETS_WAITING, BoolGetDatum(ticket->waiting));
	SET(TICKETS_STATE, CStringGetTextDatum(state_names[ticket->state]));
	SET_NULLABLE(TICKETS_FENCE, Int64GetDatum(ticket->fence),
				 ticket->fence != 0);
	SET(TICKETS_LEASE_US, Int64GetDatum(ticket->lease_us));
	SET(TICKETS_REQUESTED_AT, TimestampTzGetDatum(ticket->requested_at));
	store_set_time(values, nulls, TICKETS_EXPIRES_AT, ticket->expires_at);
	store_set_time(values, nulls, TICKETS_WAIT_UNTIL, ticket->wait_until);
	store_set_time(values, nulls, TICKETS_ALIVE_UNTIL, ticket->alive_until);
	SET_NULLABLE(TICKETS_WAITER_PID, Int32GetDatum(ticket->waiter_pid),
				 ticket->waiter_pid != 0);
	SET(TICKETS_CLAIMED, BoolGetDatum(ticket->claimed));
	store_set_time(values, nulls, TICKETS_ENDED_AT, ticket->ended_at);

	store_write_row(REL_TICKETS, values, nulls, &ticket->tid);
}

/* The caller holds the ticket tag, and the name tag if the ticket is held. */
void
store_delete_ticket(LeaseTicket *ticket)
{
	store_delete_row(REL_TICKETS, &ticket->tid);
}

/*
 * Removes a ticket that has ended, which nobody writes any more; false if
 * another session is removing it.
 */
bool
store_try_delete_ticket(LeaseTicket *ticket)
{
	return store_try_delete_row(REL_TICKETS, &ticket->tid);
}
