/*-------------------------------------------------------------------------
 *
 * status.c
 *	  The functions behind lease_status, lease_tickets, lease_scopes and
 *	  lease_peek.
 *
 * They read the latest committed state, change nothing and take no lease
 * locks.  What is live is found through the locks that have a holder and
 * through the queues; what has ended is not read.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/arguments.h"
#include "api/result.h"
#include "core/decide.h"
#include "core/queue.h"
#include "core/scope.h"
#include "leaselock.h"
#include "store/clock.h"
#include "store/rows.h"
#include "store/table.h"
#include "store/tag.h"

PG_FUNCTION_INFO_V1(leaselock_lease_peek);
PG_FUNCTION_INFO_V1(leaselock_internal_status_rows);
PG_FUNCTION_INFO_V1(leaselock_internal_ticket_rows);
PG_FUNCTION_INFO_V1(leaselock_internal_scope_rows);

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
	STATUS_NOTE,
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
	TICKET_NOTE,
	TICKET_COLUMNS
};

/* Columns of lease_scopes. */
enum
{
	SCOPE_SCOPE,
	SCOPE_ROLE,
	SCOPE_ROLE_EXISTS,
	SCOPE_COLUMNS
};

static const Oid scope_types[SCOPE_COLUMNS] = {TEXTOID, NAMEOID, BOOLOID};

static const Oid status_types[STATUS_COLUMNS] = {
	TEXTOID, TEXTOID, TEXTOID, NAMEOID, INT8OID, INT4OID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, INT8OID, BOOLOID, INT4OID, TEXTOID
};

static const Oid ticket_types[TICKET_COLUMNS] = {
	TEXTOID, TEXTOID, TEXTOID, NAMEOID, UUIDOID, TEXTOID, INT4OID, INT4OID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, TEXTOID
};

/* ----------------------------------------------------------------------
 * Walking through live locks
 * ----------------------------------------------------------------------
 */

/*
 * Adds the rows of one lock to the result.  A lock without a holder has a
 * queue.
 */
typedef void (*PutLock) (ReturnSetInfo *result, const LockRow *lock,
						 bool is_queued);

/* State of a walk through the live locks. */
typedef struct LiveWalk
{
	ReturnSetInfo *result;
	PutLock		put;
	HTAB	   *queued;			/* hashes of the held locks with a queue */
	MemoryContext context;		/* reset for each lock */
} LiveWalk;

static HTAB *
create_hash_set(void)
{
	HASHCTL		info = {0};

	info.keysize = sizeof(uint64);
	info.entrysize = sizeof(uint64);
	info.hcxt = CurrentMemoryContext;
	return hash_create("leaselock queued locks", 64, &info,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * Adds a lock that has a queue but no holder.  If it has a holder, only
 * records that it has a queue.
 */
static void
put_queued_lock(LiveWalk *walk, const LockKey *key)
{
	LockRow		lock;

	store_load_lock(key, &lock);
	if (OidIsValid(lock.holder.role))
		hash_search(walk->queued, &key->hash, HASH_ENTER, NULL);
	else if (may_see_scope(lock.key.scope))
		walk->put(walk->result, &lock, true);
}

/* Adds the locks without a holder that somebody waits for. */
static void
put_free_locks(LiveWalk *walk)
{
	TicketScan *scan = store_open_queues(NULL);
	char		scope[MAX_TEXT_BYTES + 1];
	char		name[MAX_TEXT_BYTES + 1];
	LockKey		last = {scope, name, 0, 0};
	TicketRow	ticket;

	scope[0] = name[0] = '\0';
	MemoryContextSwitchTo(walk->context);
	while (store_next_ticket(scan, &ticket))
	{
		if (compare_lock_keys(&last, &ticket.key) != 0)
		{
			put_queued_lock(walk, &ticket.key);
			last.hash = ticket.key.hash;
			snprintf(scope, sizeof(scope), "%s", ticket.key.scope);
			snprintf(name, sizeof(name), "%s", ticket.key.name);
		}
		MemoryContextReset(walk->context);
	}
	store_close_tickets(scan);
}

/*
 * Adds the locks that have a holder.  Those with a queue are known by now.
 */
static void
put_held_locks(LiveWalk *walk)
{
	TableScan  *scan = store_open_held();
	LockRow		lock;

	MemoryContextSwitchTo(walk->context);
	while (store_next_held(scan, &lock))
	{
		if (may_see_scope(lock.key.scope))
			walk->put(walk->result, &lock,
					  hash_search(walk->queued, &lock.key.hash, HASH_FIND,
								  NULL) != NULL);
		MemoryContextReset(walk->context);
	}
	store_close_scan(scan);
}

/*
 * Adds every live lock once, as of one moment.  Otherwise a lock might be seen
 * first without a holder and then with one.
 */
static void
put_live_locks(ReturnSetInfo *result, PutLock put)
{
	MemoryContext old_context = CurrentMemoryContext;
	LiveWalk	walk = {0};

	walk.result = result;
	walk.put = put;
	walk.queued = create_hash_set();
	walk.context = AllocSetContextCreate(old_context, "leaselock status",
										 ALLOCSET_SMALL_SIZES);
	store_begin_shared_snapshot();
	PG_TRY();
	{
		put_free_locks(&walk);
		MemoryContextSwitchTo(old_context);
		put_held_locks(&walk);
	}
	PG_FINALLY();
	{
		MemoryContextSwitchTo(old_context);
		store_end_shared_snapshot();
	}
	PG_END_TRY();
	MemoryContextDelete(walk.context);
	hash_destroy(walk.queued);
}

/* ----------------------------------------------------------------------
 * Locks
 * ----------------------------------------------------------------------
 */

static void
set_holder(Datum *values, const LockRow *lock, TimestampTz now)
{
	TimestampTz until = grant_until(lock);

	values[STATUS_OWNER] = CStringGetTextDatum(lock->holder.owner);
	values[STATUS_ROLE] = role_name_datum(lock->holder.role);
	values[STATUS_FENCE] = Int64GetDatum(lock->fence);
	values[STATUS_DEPTH] = Int32GetDatum(count_depth(lock, now));
	values[STATUS_GRANTED_AT] = TimestampTzGetDatum(lock->granted_at);
	values[STATUS_EXPIRES_AT] = TimestampTzGetDatum(until);
	values[STATUS_REMAINING_MS] =
		Int64GetDatum(clock_remaining_ms(until, now));
}

/*
 * The note of the newest ticket of the grant that has one; NULL if there is
 * none.  Tickets that have been released do not count.
 */
static const char *
newest_note(const LockRow *lock)
{
	const TicketRow *newest = NULL;
	TicketRow	only;
	TicketRow  *shares = &only;
	int			count = 0;

	/* the ticket of most locks can be loaded without the list */
	if (lock->tickets == 1 && lock->has_first)
		count = store_load_ticket(&lock->first_ticket, &only) ? 1 : 0;
	else if (lock->tickets > 0)
		shares = store_load_shares(lock, &count);
	for (int i = 0; i < count; i++)
	{
		if (shares[i].note != NULL &&
			(newest == NULL || shares[i].requested_at >= newest->requested_at))
			newest = &shares[i];
	}
	return newest ? newest->note : NULL;
}

/*
 * Counts waiters up to "enough", reading at most max_rows rows; enough 0 means
 * that the lock has no queue.
 */
static void
put_status_row(ReturnSetInfo *result, const LockRow *lock, int enough,
			   int max_rows)
{
	TimestampTz now = clock_read(lock->changed_at);
	bool		held = OidIsValid(lock->holder.role);
	int			waiters = enough == 0 ? 0 : queue_length(lock, now, enough,
														 max_rows);
	const char *note = held ? newest_note(lock) : NULL;
	Datum		values[STATUS_COLUMNS] = {0};
	bool		nulls[STATUS_COLUMNS];

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
		set_holder(values, lock, now);
	values[STATUS_LAPSED] = BoolGetDatum(held && !grant_is_live(lock, now));
	values[STATUS_WAITERS] = Int32GetDatum(waiters);
	values[STATUS_NOTE] = text_or_null(note);
	nulls[STATUS_NOTE] = note == NULL;
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static void
put_whole_status_row(ReturnSetInfo *result, const LockRow *lock,
					 bool is_queued)
{
	put_status_row(result, lock, is_queued ? INT_MAX : 0, INT_MAX);
}

Datum
leaselock_lease_peek(PG_FUNCTION_ARGS)
{
	const char *name = argument_text(fcinfo, 0, "name");
	const char *scope = argument_text(fcinfo, 1, "scope");
	ReturnSetInfo *result = begin_result_rows(fcinfo, "lease_peek",
											  status_types, STATUS_COLUMNS);
	LockKey		key = make_lock_key(scope, name);
	LockRow		lock;

	/* with a single snapshot, like the views */
	store_begin_shared_snapshot();
	PG_TRY();
	{
		store_load_lock(&key, &lock);
		if (may_see_scope(scope))
			put_status_row(result, &lock, MAX_POSITION, MAX_POSITION_ROWS);
	}
	PG_FINALLY();
	{
		store_end_shared_snapshot();
	}
	PG_END_TRY();
	return (Datum) 0;
}

Datum
leaselock_internal_status_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = begin_result_rows(fcinfo, "internal_status_rows",
											  status_types, STATUS_COLUMNS);

	put_live_locks(result, put_whole_status_row);
	return (Datum) 0;
}

/* ----------------------------------------------------------------------
 * Tickets
 * ----------------------------------------------------------------------
 */

/*
 * Adds a live ticket.  "number" is the depth of a held ticket and the position
 * of a waiting one.
 */
static void
put_ticket_row(ReturnSetInfo *result, const TicketRow *ticket,
			   LeaseState state, int number, TimestampTz now)
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
	values[TICKET_POSITION] = Int32GetDatum(number);
	nulls[TICKET_POSITION] = held;
	values[TICKET_DEPTH] = Int32GetDatum(number);
	nulls[TICKET_DEPTH] = !held;
	values[TICKET_REQUESTED_AT] = TimestampTzGetDatum(ticket->requested_at);
	values[TICKET_EXPIRES_AT] = TimestampTzGetDatum(ticket->expires_at);
	nulls[TICKET_EXPIRES_AT] = !held;
	values[TICKET_WAIT_UNTIL] = TimestampTzGetDatum(ticket->wait_until);
	nulls[TICKET_WAIT_UNTIL] = held;
	values[TICKET_REMAINING_MS] = Int64GetDatum(clock_remaining_ms(until, now));
	values[TICKET_NOTE] = text_or_null(ticket->note);
	nulls[TICKET_NOTE] = ticket->note == NULL;
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static void
put_shares(ReturnSetInfo *result, const LockRow *lock, TimestampTz now)
{
	int			count;
	TicketRow  *shares = store_load_shares(lock, &count);
	int			depth = grant_depth(lock, shares, count, now);

	for (int i = 0; i < count; i++)
	{
		if (ticket_state(&shares[i], lock, now) == LEASE_HELD)
			put_ticket_row(result, &shares[i], LEASE_HELD, depth, now);
	}
}

/* An identity that waits for a lock, and its position. */
typedef struct WaiterPosition
{
	char		who[MAX_TEXT_BYTES + 16];	/* role and owner */
	int			position;
} WaiterPosition;

static HTAB *
create_positions(void)
{
	HASHCTL		info = {0};

	info.keysize = sizeof(((WaiterPosition *) NULL)->who);
	info.entrysize = sizeof(WaiterPosition);
	info.hcxt = CurrentMemoryContext;
	return hash_create("leaselock waiting identities", 64, &info,
					   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* The position of an identity among those so far; adds it if it is new. */
static int
exact_position(HTAB *positions, const Identity *who)
{
	char		key[MAX_TEXT_BYTES + 16];
	WaiterPosition *entry;
	bool		found;

	snprintf(key, sizeof(key), "%u %s", who->role, who->owner);
	entry = hash_search(positions, key, HASH_ENTER, &found);
	if (!found)
		entry->position = (int) hash_get_num_entries(positions);
	return entry->position;
}

/*
 * Positions are counted during the walk, so they are exact.  Waiters of the
 * holder's identity wait to join its grant, whatever their place.
 */
static void
put_waiters(ReturnSetInfo *result, const LockRow *lock, TimestampTz now)
{
	TicketScan *scan = store_open_queue(&lock->key, 0);
	HTAB	   *positions = create_positions();
	TicketRow	ticket;

	while (store_next_ticket(scan, &ticket))
	{
		complete_waiter(&ticket, now);
		if (waiter_is_live(&ticket, lock, now))
			put_ticket_row(result, &ticket, LEASE_WAITING,
						   exact_position(positions, &ticket.who), now);
	}
	hash_destroy(positions);
	store_close_tickets(scan);
}

static void
put_tickets(ReturnSetInfo *result, const LockRow *lock, bool is_queued)
{
	TimestampTz now = clock_read(lock->changed_at);

	if (OidIsValid(lock->holder.role))
		put_shares(result, lock, now);
	if (is_queued)
		put_waiters(result, lock, now);
}

Datum
leaselock_internal_ticket_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = begin_result_rows(fcinfo, "internal_ticket_rows",
											  ticket_types, TICKET_COLUMNS);

	put_live_locks(result, put_tickets);
	return (Datum) 0;
}

/* ----------------------------------------------------------------------
 * Scopes
 * ----------------------------------------------------------------------
 */

/* Whether the caller may register scopes, and so may see them all. */
static bool
may_register_scopes(void)
{
	Oid			types[] = {TEXTOID, NAMEOID};
	Oid			function = LookupFuncName(list_make2(makeString(LEASELOCK_SCHEMA),
													 makeString("lease_scope_create")),
										  lengthof(types), types, true);

	return OidIsValid(function) &&
		DatumGetBool(DirectFunctionCall2(has_function_privilege_id,
										 ObjectIdGetDatum(function),
										 CStringGetTextDatum("EXECUTE")));
}

/*
 * Shows the current name of a role that was renamed, and the last known name
 * of a role that was dropped.
 */
static void
put_scope_row(ReturnSetInfo *result, const ScopeRow *scope)
{
	Oid			role = scope_role(scope);
	const char *name = OidIsValid(role) ? GetUserNameFromId(role, true) : NULL;
	NameData	shown = scope->role_name;
	Datum		values[SCOPE_COLUMNS];
	bool		nulls[SCOPE_COLUMNS] = {0};

	if (name != NULL)
		namestrcpy(&shown, name);
	values[SCOPE_SCOPE] = CStringGetTextDatum(scope->scope);
	values[SCOPE_ROLE] = NameGetDatum(&shown);
	values[SCOPE_ROLE_EXISTS] = BoolGetDatum(name != NULL);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
leaselock_internal_scope_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = begin_result_rows(fcinfo, "internal_scope_rows",
											  scope_types, SCOPE_COLUMNS);
	bool		all = may_register_scopes();
	ListCell   *cell;

	foreach(cell, store_list_scopes())
	{
		const ScopeRow *scope = (ScopeRow *) lfirst(cell);

		if (all || may_see_scope(scope->scope))
			put_scope_row(result, scope);
	}
	return (Datum) 0;
}
