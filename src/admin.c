/*-------------------------------------------------------------------------
 *
 * admin.c
 *	  What an operator does to other people's leases: break a grant, register
 *	  a scope, raise the floor of fences.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "leaselock.h"

/* How far fence_bump raises the floor: more than a clock is likely to be off. */
#define BUMP_US		(INT64CONST(366) * USECS_PER_DAY)

/* How many locks are read at once. */
#define BATCH		1000

/*
 * Ends a grant against its holder's will, and promotes the first waiter.  The
 * caller holds the name tag in NAME_CHANGE.
 */
static void
break_grant(Call *call)
{
	ListCell   *cell;

	foreach(cell, store_list_grant(&call->lock.key, call->lock.fence))
	{
		LeaseTicket *ticket = (LeaseTicket *) lfirst(cell);

		if (ticket->state != LEASE_HELD)
			continue;
		if (ticket_state(ticket, &call->lock, call->now) != LEASE_HELD)
		{
			expire_ticket(ticket);
			continue;
		}
		ticket->state = LEASE_BROKEN;
		ticket->ended_at = call->now;
		ticket->place = 0;
		store_save_ticket(ticket);
	}
	end_grant(call);
	promote_head(call);
	save_lock(call);
}

/* Whether that fence is the lock's present grant, live or lapsed. */
static bool
is_present_grant(const LeaseLock *lock, int64 fence)
{
	return OidIsValid(lock->holder.role) && lock->fence == fence;
}

/* Ends the grant with a fence; false if it is not the present one. */
bool
lease_break(const LockKey *key, int64 fence)
{
	Call		call = {0};

	store_load_lock(key, &call.lock);
	if (!is_present_grant(&call.lock, fence))
		return false;
	wait_name_tag(&call.tags, key, NAME_CHANGE);
	load_call(&call, key);
	if (!is_present_grant(&call.lock, fence))
	{
		give_back_tags(&call.tags);
		return false;
	}
	break_grant(&call);
	return true;
}

static int
compare_locks(const ListCell *a, const ListCell *b)
{
	return compare_lock_keys(&((LeaseLock *) lfirst(a))->key,
							 &((LeaseLock *) lfirst(b))->key);
}

/* Whether a lock is held by a role that may not use its scope. */
static bool
is_held_by_stranger(const LeaseLock *lock)
{
	return OidIsValid(lock->holder.role) &&
		!may_use_scope(lock->key.scope, lock->holder.role);
}

/* Breaks the grants, in a scope, of roles that may not use it. */
static void
break_strangers(const char *scope)
{
	List	   *locks = store_list_scope(scope);
	ListCell   *cell;

	list_sort(locks, compare_locks);
	foreach(cell, locks)
	{
		const LockKey *key = &((LeaseLock *) lfirst(cell))->key;
		Call		call = {0};

		if (!is_held_by_stranger((LeaseLock *) lfirst(cell)))
			continue;
		wait_name_tag(&call.tags, key, NAME_CHANGE);
		load_call(&call, key);
		if (is_held_by_stranger(&call.lock))
			break_grant(&call);
		else
			give_back_tags(&call.tags);
	}
}

/* Cancels the waits, in a scope, of roles that may not use it. */
static void
cancel_strangers(const char *scope)
{
	ListCell   *cell;

	foreach(cell, store_list_scope_waits(scope))
	{
		LeaseTicket *ticket = (LeaseTicket *) lfirst(cell);
		Call		call = {0};

		if (ticket->state == LEASE_WAITING &&
			!may_use_scope(scope, ticket->who.role))
			(void) cancel_wait(&call, ticket);
	}
}

/*
 * Registers a scope to a role, and ends what others have in it.  The scope tag
 * keeps new grants out until we have committed, so none slips past.
 */
void
lease_scope_create(const char *scope, const char *role, Oid role_oid)
{
	wait_scope_tag(scope);
	store_save_scope(scope, role, role_oid);
	cancel_strangers(scope);
	break_strangers(scope);
}

/* Opens a scope to every role; false if it was not registered. */
bool
lease_scope_drop(const char *scope)
{
	wait_scope_tag(scope);
	return store_delete_scope(scope);
}

/* Raises the floor of all future fences, and returns it. */
int64
fence_bump(void)
{
	FenceFloor	floor;
	int64		newest = 0;
	List	   *locks = NIL;
	ListCell   *cell;

	wait_floor_tag();
	do
	{
		const LockKey *last = locks == NIL ? NULL :
			&((LeaseLock *) llast(locks))->key;

		locks = store_next_locks(last, BATCH);
		foreach(cell, locks)
			newest = Max(newest, ((LeaseLock *) lfirst(cell))->fence);
	} while (list_length(locks) == BATCH);

	floor = store_load_floor();
	newest = next_fence(newest, &floor);
	if (newest > MAX_FENCE - BUMP_US)
		report_no_fence();
	floor.fence = newest + BUMP_US;
	floor.reading = fence_reading();
	store_save_floor(&floor);
	ForceSyncCommit();
	return floor.fence;
}
