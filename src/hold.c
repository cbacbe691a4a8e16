/*-------------------------------------------------------------------------
 *
 * hold.c
 *	  Named holds: a lock for callers that want a yes or no and no ticket.
 *
 * A named hold is a claim of the lock's grant like a ticket, but it lives in
 * the lock's row, and a lapse does not end it: it is there to renew or release
 * until somebody else is granted the lock, or waits for it.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leaselock.h"

/* Whether the identity has the named hold, lapsed or not. */
static bool
has_hold(const Call *call, const Identity *who)
{
	return same_identity(&call->lock.holder, who) &&
		call->lock.hold_expires_at != NO_TIME;
}

/* Whether the identity has a named hold that has not run out. */
static bool
has_live_hold(const Call *call, const Identity *who)
{
	return has_hold(call, who) && call->lock.hold_expires_at > call->now;
}

/*
 * Takes the named hold; returns the fence, or 0 if another identity has the
 * lock.  The hold is taken anew only if it has run out: asking again neither
 * refreshes the lease nor adds depth.
 */
int64
hold_try(const LeaseRequest *request)
{
	const Identity *who = &request->who;

	require_scope(request->key.scope);

	/* A lock that changes at each look is taken. */
	for (int tries = 0; tries < 2; tries++)
	{
		Call		call = {0};
		LOCKMODE	mode;
		LeaseLock	seen;

		load_call(&call, &request->key);
		seen = call.lock;
		if (has_live_hold(&call, who))
			return call.lock.fence;
		mode = grant_mode(&call, who);
		if (mode == NoLock)
			return 0;
		if ((mode == NAME_CHANGE &&
			 !try_scope_tag(&call.tags, request->key.scope)) ||
			!try_name_tag(&call.tags, &request->key, mode))
		{
			give_back_tags(&call.tags);
			return 0;
		}

		load_call(&call, &request->key);
		if (!has_live_hold(&call, who) &&
			mode_is_same(&call, &seen, who, mode))
		{
			if (mode == NAME_CHANGE)
			{
				require_scope(request->key.scope);
				begin_grant(&call, who);
				pass_dead_waiters(&call);
			}
			call.lock.hold_expires_at = call.now + request->lease_us;
			save_acknowledged(&call);
			return call.lock.fence;
		}
		give_back_tags(&call.tags);
	}
	return 0;
}

/*
 * Makes the named hold last a full ttl from now; false if the identity has
 * none.  A lapsed hold is still there until somebody else is granted the
 * lock, or waits for it.
 */
bool
hold_renew(const LeaseRequest *request)
{
	Call		call = {0};

	require_scope(request->key.scope);
	store_load_lock(&request->key, &call.lock);
	if (!has_hold(&call, &request->who))
		return false;
	wait_name_tag(&call.tags, &request->key, NAME_KEEP);
	load_call(&call, &request->key);
	if (!has_hold(&call, &request->who) ||
		(!grant_is_live(&call.lock, call.now) &&
		 queue_has_other(&call, &request->who)))
	{
		give_back_tags(&call.tags);
		return false;
	}
	call.lock.hold_expires_at = call.now + request->lease_us;
	save_lock(&call);
	return true;
}

/* Ends the named hold; false if the identity has none. */
bool
hold_release(const LeaseRequest *request)
{
	Call		call = {0};
	LOCKMODE	mode;
	bool		last;

	store_load_lock(&request->key, &call.lock);
	call.now = clock_read(call.lock.changed_at);
	do
	{
		if (!has_hold(&call, &request->who))
		{
			give_back_tags(&call.tags);
			return false;
		}
		mode = call.lock.expires_at > call.now ? NAME_KEEP : NAME_CHANGE;
		give_back_tags(&call.tags);
		wait_name_tag(&call.tags, &request->key, mode);
		load_call(&call, &request->key);
		last = call.lock.expires_at <= call.now;
	} while ((last && mode != NAME_CHANGE) ||
			 !has_hold(&call, &request->who));

	begin_losable_write();
	if (last)
	{
		end_grant(&call);
		promote_head(&call);
	}
	else
		call.lock.hold_expires_at = NO_TIME;
	save_lock(&call);
	end_losable_write();
	return true;
}
