/*-------------------------------------------------------------------------
 *
 * status_api.c
 *	  What serves lease_status, lease_tickets and lease_peek.
 *
 * Reads the latest committed state, changes nothing, takes no lease lock.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "leaselock.h"

PG_FUNCTION_INFO_V1(leaselock_lease_peek);
PG_FUNCTION_INFO_V1(leaselock_status_rows);
PG_FUNCTION_INFO_V1(leaselock_ticket_rows);

/* Columns of lease_status and lease_peek. */
enum
{
	STATUS_SCOPE,
	STATUS_NAME,
	STATUS_OWNER,
	STATUS_ROLE,
	STATUS_FENCE,
	STATUS_DEPTH,
	STATUS_GRANTED_AT,
	STATUS_EXPIRES_AT,
	STATUS_REMAINING_MS,
	STATUS_LAPSED,
	STATUS_WAITERS,
	STATUS_COLUMNS
};

/* Columns of lease_tickets. */
enum
{
	TICKET_SCOPE,
	TICKET_NAME,
	TICKET_OWNER,
	TICKET_ROLE,
	TICKET_TICKET,
	TICKET_STATE,
	TICKET_POSITION,
	TICKET_DEPTH,
	TICKET_REQUESTED_AT,
	TICKET_EXPIRES_AT,
	TICKET_WAIT_UNTIL,
	TICKET_REMAINING_MS,
	TICKET_COLUMNS
};

static const Oid status_types[STATUS_COLUMNS] = {
	TEXTOID, TEXTOID, TEXTOID, NAMEOID, INT8OID, INT4OID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, INT8OID, BOOLOID, INT4OID
};

static const Oid ticket_types[TICKET_COLUMNS] = {
	TEXTOID, TEXTOID, TEXTOID, NAMEOID, UUIDOID, TEXTOID, INT4OID, INT4OID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID
};

/* Begins a function that answers with rows of these columns. */
static ReturnSetInfo *
begin_rows(FunctionCallInfo fcinfo, const char *function, const Oid *types,
		   int columns)
{
	ReturnSetInfo *result;

	store_begin_call(false);
	InitMaterializedSRF(fcinfo, 0);
	result = (ReturnSetInfo *) fcinfo->resultinfo;
	store_check_result(function, result->setDesc, types, columns);
	return result;
}

/* How many locks are read in one go. */
#define LOCKS_AT_ONCE	100

/* Waiters are counted up to "enough", from that many tickets. */
static void
put_status_row(ReturnSetInfo *result, const LeaseLock *lock, int enough,
			   int max_rows)
{
	TimestampTz now = clock_read(lock->changed_at);
	TimestampTz until = Max(lock->expires_at, lock->hold_expires_at);
	bool		held = OidIsValid(lock->holder.role);
	int			waiters;
	Datum		values[STATUS_COLUMNS] = {0};
	bool		nulls[STATUS_COLUMNS];

	if (!may_see_scope(lock->key.scope))
		return;
	waiters = queue_length(lock, now, enough, max_rows);
	if (!held && waiters == 0)
		return;
	memset(nulls, !held, sizeof(nulls));
	nulls[STATUS_SCOPE] = false;
	nulls[STATUS_NAME] = false;
	nulls[STATUS_LAPSED] = false;
	nulls[STATUS_WAITERS] = false;
	values[STATUS_SCOPE] = CStringGetTextDatum(lock->key.scope);
	values[STATUS_NAME] = CStringGetTextDatum(lock->key.name);
	if (held)
	{
		values[STATUS_OWNER] = CStringGetTextDatum(lock->holder.owner);
		values[STATUS_ROLE] = role_name_datum(lock->holder.role);
		values[STATUS_FENCE] = Int64GetDatum(lock->fence);
		values[STATUS_DEPTH] = Int32GetDatum(grant_depth(lock, now));
		values[STATUS_GRANTED_AT] = TimestampTzGetDatum(lock->granted_at);
		values[STATUS_EXPIRES_AT] = TimestampTzGetDatum(until);
		values[STATUS_REMAINING_MS] =
			Int64GetDatum(clock_remaining_ms(until, now));
	}
	values[STATUS_LAPSED] = BoolGetDatum(held && !grant_is_live(lock, now));
	values[STATUS_WAITERS] = Int32GetDatum(waiters);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
leaselock_lease_peek(PG_FUNCTION_ARGS)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *scope = argument_text(fcinfo, 1, "scope");
	LockKey		key = make_lock_key(scope, name);
	ReturnSetInfo *result = begin_rows(fcinfo, "lease_peek", status_types,
									   STATUS_COLUMNS);
	LeaseLock	lock;

	store_load_lock(&key, &lock);
	put_status_row(result, &lock, MAX_POSITION, MAX_POSITION_ROWS);
	return (Datum) 0;
}

/* A context for what is forgotten after each row, or each few. */
static MemoryContext
create_row_context(void)
{
	return AllocSetContextCreate(CurrentMemoryContext, "leaselock rows",
								 ALLOCSET_DEFAULT_SIZES);
}

static LockKey
copy_key(MemoryContext context, const LockKey *key)
{
	LockKey		copy = *key;

	copy.scope = MemoryContextStrdup(context, key->scope);
	copy.name = MemoryContextStrdup(context, key->name);
	return copy;
}

/* Locks that have a row, some at a time. */
static void
put_locks(ReturnSetInfo *result)
{
	MemoryContext row_context = create_row_context();
	MemoryContext key_context = create_row_context();
	MemoryContext old_context = MemoryContextSwitchTo(row_context);
	LockKey		last;
	List	   *locks = store_next_locks(NULL, LOCKS_AT_ONCE);

	while (locks != NIL)
	{
		ListCell   *cell;

		foreach(cell, locks)
			put_status_row(result, (LeaseLock *) lfirst(cell), INT_MAX,
						   INT_MAX);
		MemoryContextReset(key_context);
		last = copy_key(key_context, &((LeaseLock *) llast(locks))->key);
		MemoryContextReset(row_context);
		locks = store_next_locks(&last, LOCKS_AT_ONCE);
	}
	MemoryContextSwitchTo(old_context);
}

/* Locks that were never granted have no row yet, but perhaps waiters. */
static void
put_locks_of_waiters(ReturnSetInfo *result)
{
	MemoryContext row_context = create_row_context();
	MemoryContext key_context = create_row_context();
	TicketScan *tickets = store_open_all();
	LeaseTicket ticket;
	LockKey		last = {NULL, NULL, 0};

	while (store_next_live(tickets, row_context, &ticket))
	{
		MemoryContext old_context = MemoryContextSwitchTo(row_context);
		LeaseLock	lock;

		if (ticket.state == LEASE_WAITING &&
			(last.name == NULL || compare_lock_keys(&last, &ticket.key) != 0))
		{
			MemoryContextReset(key_context);
			last = copy_key(key_context, &ticket.key);
			store_load_lock(&ticket.key, &lock);
			if (!ItemPointerIsValid(&lock.tid))
				put_status_row(result, &lock, INT_MAX, INT_MAX);
		}
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(row_context);
	}
	store_close_tickets(tickets);
}

Datum
leaselock_status_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = begin_rows(fcinfo, "status_rows", status_types,
									   STATUS_COLUMNS);

	put_locks(result);
	put_locks_of_waiters(result);
	return (Datum) 0;
}

static void
put_ticket_row(ReturnSetInfo *result, const LeaseTicket *ticket,
			   LeaseState state, int position, const LeaseLock *lock,
			   TimestampTz now)
{
	bool		held = state == LEASE_HELD;
	TimestampTz until = held ? ticket->expires_at : ticket->wait_until;
	Datum		values[TICKET_COLUMNS] = {0};
	bool		nulls[TICKET_COLUMNS] = {0};

	values[TICKET_SCOPE] = CStringGetTextDatum(ticket->key.scope);
	values[TICKET_NAME] = CStringGetTextDatum(ticket->key.name);
	values[TICKET_OWNER] = CStringGetTextDatum(ticket->who.owner);
	values[TICKET_ROLE] = role_name_datum(ticket->who.role);
	values[TICKET_TICKET] = UUIDPGetDatum(&ticket->ticket);
	values[TICKET_STATE] = CStringGetTextDatum(lease_state_name(state));
	values[TICKET_POSITION] = Int32GetDatum(position);
	nulls[TICKET_POSITION] = held;
	values[TICKET_DEPTH] = Int32GetDatum(held ? grant_depth(lock, now) : 0);
	nulls[TICKET_DEPTH] = !held;
	values[TICKET_REQUESTED_AT] = TimestampTzGetDatum(ticket->requested_at);
	values[TICKET_EXPIRES_AT] = TimestampTzGetDatum(ticket->expires_at);
	nulls[TICKET_EXPIRES_AT] = !held;
	values[TICKET_WAIT_UNTIL] = TimestampTzGetDatum(ticket->wait_until);
	nulls[TICKET_WAIT_UNTIL] = held;
	values[TICKET_REMAINING_MS] = Int64GetDatum(clock_remaining_ms(until, now));
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* The place of an identity in a list of them, from 1; 0: it is not there. */
static int
identity_position(const List *identities, const Identity *who)
{
	ListCell   *cell;

	foreach(cell, identities)
	{
		if (same_identity((Identity *) lfirst(cell), who))
			return foreach_current_index(cell) + 1;
	}
	return 0;
}

/* What is known of the lock whose tickets are being put. */
typedef struct LockTickets
{
	MemoryContext context;		/* for all of it, until the next lock */
	LeaseLock	lock;			/* no name: none yet */
	TimestampTz now;
	List	   *identities;		/* that wait, each once, in their order */
} LockTickets;

/* Adds an identity to those that wait, unless it is among them. */
static void
note_identity(LockTickets *known, const Identity *who)
{
	MemoryContext old_context;
	Identity   *copy;

	if (identity_position(known->identities, who) != 0)
		return;
	old_context = MemoryContextSwitchTo(known->context);
	copy = palloc(sizeof(Identity));
	copy->role = who->role;
	copy->owner = pstrdup(who->owner);
	known->identities = lappend(known->identities, copy);
	MemoryContextSwitchTo(old_context);
}

/* Makes the lock of a ticket the known one, unless it is. */
static void
know_lock(LockTickets *known, const LockKey *key)
{
	MemoryContext old_context;
	LockKey		copy;

	if (known->lock.key.name != NULL &&
		compare_lock_keys(&known->lock.key, key) == 0)
		return;
	MemoryContextReset(known->context);
	old_context = MemoryContextSwitchTo(known->context);
	copy = copy_key(known->context, key);
	store_load_lock(&copy, &known->lock);
	known->now = clock_read(known->lock.changed_at);
	known->identities = NIL;
	MemoryContextSwitchTo(old_context);
}

/* Puts a ticket that is live by what is stored, if it is by the clock. */
static void
put_ticket(ReturnSetInfo *result, LockTickets *known,
		   const LeaseTicket *ticket)
{
	LeaseState	state;

	if (!may_see_scope(ticket->key.scope))
		return;
	know_lock(known, &ticket->key);
	state = ticket_state(ticket, &known->lock, known->now);
	if (state == LEASE_WAITING)
		note_identity(known, &ticket->who);
	if (state == LEASE_HELD || state == LEASE_WAITING)
		put_ticket_row(result, ticket, state,
					   identity_position(known->identities, &ticket->who),
					   &known->lock, known->now);
}

/*
 * Tickets come lock by lock, and within a lock in the order of their places,
 * so that exact positions can be counted on the way.
 */
Datum
leaselock_ticket_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = begin_rows(fcinfo, "ticket_rows", ticket_types,
									   TICKET_COLUMNS);
	MemoryContext row_context = create_row_context();
	LockTickets known = {.context = create_row_context()};
	TicketScan *tickets;
	LeaseTicket ticket;

	tickets = store_open_all();
	while (store_next_live(tickets, row_context, &ticket))
	{
		MemoryContext old_context = MemoryContextSwitchTo(row_context);

		put_ticket(result, &known, &ticket);
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(row_context);
	}
	store_close_tickets(tickets);
	return (Datum) 0;
}
