/*-------------------------------------------------------------------------
 *
 * operate.c
 *	  Operators' actions: break a grant, register a scope, raise the floor of
 *	  fences.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "core/operate.h"
#include "core/protocol.h"
#include "core/record.h"
#include "core/scope.h"
#include "store/rows.h"
#include "store/table.h"

/* Number of locks to read at once. */
#define BATCH		1000

/*
 * Ends the grant with the given fence; returns false if that is not the
 * present grant.  Raises 55P03, 40P01, 54000 and LS001.
 */
bool
lease_break(const LockKey *key, int64 fence)
{
	LeaseEvent	event = {0};
	Outcome		outcome;

	event.kind = EVENT_BREAK;
	event.key = *key;
	event.fence = fence;
	carry_out(&event, NULL, &outcome);
	return outcome.yes;
}

static int
compare_locks(const ListCell *a, const ListCell *b)
{
	return compare_lock_keys(&((LockRow *) lfirst(a))->key,
							 &((LockRow *) lfirst(b))->key);
}

/* Breaks the grants in a scope whose holder's role may not use it. */
static void
break_unauthorized(const char *scope)
{
	List	   *locks = store_list_scope(scope);
	ListCell   *cell;

	list_sort(locks, compare_locks);
	foreach(cell, locks)
	{
		LeaseEvent	event = {0};
		Outcome		outcome;

		event.kind = EVENT_BREAK_UNAUTHORIZED;
		event.key = ((LockRow *) lfirst(cell))->key;
		carry_out(&event, NULL, &outcome);
	}
}

/* Cancels the waits in a scope whose owner's role may not use it. */
static void
cancel_unauthorized(const char *scope)
{
	TicketScan *scan = store_open_queues(scope);
	TicketRow	ticket;

	while (store_next_ticket(scan, &ticket))
	{
		LeaseEvent	event = {0};
		Outcome		outcome;

		if (may_use_scope(scope, ticket.who.role))
			continue;
		event.kind = EVENT_CANCEL;
		event.key = ticket.key;
		event.ticket = ticket.ticket;
		carry_out(&event, &ticket, &outcome);
	}
	store_close_tickets(scan);
}

/*
 * Acquires the scope tag.  The table is locked first: if the extension were
 * dropped and created again, the tag would be a different one.  Raises 55P03
 * and 40P01.
 */
static void
wait_scope_tag(const char *scope)
{
	Tag			tag;

	store_close_table(store_open_table(REL_SCOPES));
	tag = scope_tag(scope);
	wait_tag(NULL, &tag, ExclusiveLock);
}

/*
 * Registers a scope to a role, and ends the grants and waits of others in it.
 * The scope tag prevents new grants until we have committed, so none is
 * missed.  Raises 55P03 and 40P01; 54000 and LS001 if it breaks a grant.
 */
void
lease_scope_create(const char *scope, const char *role_name, Oid role)
{
	wait_scope_tag(scope);
	store_save_scope(scope, role_name, role);
	record_operation(CHANGE_SCOPE_CREATED, scope, 0);
	cancel_unauthorized(scope);
	break_unauthorized(scope);
}

/*
 * Opens a scope to every role; returns false if it was not registered.  Raises
 * 55P03 and 40P01.
 */
bool
lease_scope_drop(const char *scope)
{
	wait_scope_tag(scope);
	if (!store_delete_scope(scope))
		return false;
	record_operation(CHANGE_SCOPE_DROPPED, scope, 0);
	return true;
}

/*
 * Raises the floor of all future fences, and returns it.  Raises 54000, 55P03
 * and 40P01.
 */
int64
fence_bump(void)
{
	Tag			tag = floor_tag();
	int64		newest = 0;
	int64		floor;
	List	   *locks = NIL;
	ListCell   *cell;

	wait_tag(NULL, &tag, ExclusiveLock);
	do
	{
		const LockKey *last = (locks == NIL ? NULL :
							   &((LockRow *) llast(locks))->key);

		locks = store_next_locks(last, BATCH);
		foreach(cell, locks)
			newest = Max(newest, ((LockRow *) lfirst(cell))->fence);
	} while (list_length(locks) == BATCH);
	floor = store_bump_floor(newest);
	record_operation(CHANGE_BUMPED, NULL, floor);
	ForceSyncCommit();
	return floor;
}
