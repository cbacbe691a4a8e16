/*-------------------------------------------------------------------------
 *
 * locktag.c
 *	  The heavyweight locks that order all work on a lease lock.
 *
 * They are advisory lock tags of classes of our own, which no SQL function
 * can take or release.  Their hashes only serialise: two locks with one hash
 * wait for each other and are otherwise unrelated.
 *
 *	name	 (scope, name).  NAME_CHANGE to begin or end a grant, NAME_KEEP to
 *			 write a lock whose grant stays, NAME_VERIFY to commit under it.
 *	queue	 (scope, name).  ExclusiveLock, by enqueue and prune.
 *	ticket	 (scope, name, request id).  ExclusiveLock, by whoever inserts that
 *			 ticket, or writes it while it waits.
 *	liveness the same.  Session-level, by the backend that waits.
 *
 * Who holds a name tag only tries for queue and ticket tags; who holds a
 * ticket tag only tries for a queue tag; a name tag may be waited for at any
 * time.  Only releases, renewals and commits wait in line for a name tag:
 * a grant that stood in line would hold up the renewals and fenced commits
 * behind it.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/guc.h"

#include "compat.h"
#include "leaselock.h"

/* The hash covers the lengths, so that ("ab","c") and ("a","bc") differ. */
LockKey
make_lock_key(const char *scope, const char *name)
{
	LockKey		key = {scope, name, 0};
	uint32		scope_len = strlen(scope);
	uint32		name_len = strlen(name);

	key.hash = hash_bytes_extended((const unsigned char *) scope, scope_len,
								   scope_len);
	key.hash = hash_bytes_extended((const unsigned char *) name, name_len,
								   key.hash);
	return key;
}

/* The order in which several name tags are taken. */
int
compare_lock_keys(const LockKey *a, const LockKey *b)
{
	int			result;

	if (a->hash != b->hash)
		return a->hash < b->hash ? -1 : 1;
	result = strcmp(a->scope, b->scope);
	return result != 0 ? result : strcmp(a->name, b->name);
}

static void
set_tag(LOCKTAG *tag, LockTagClass class, uint64 hash)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId,
						 (uint32) (hash >> 32), (uint32) hash, class);
}

/*
 * Whether this transaction has the tag already, in a mode that does for the
 * one asked for.  Asking again would fail, or stand in line, behind whoever
 * waits for it.
 */
static bool
tag_is_held(const LOCKTAG *tag, LOCKMODE mode)
{
	if (LockHeldByMeCompat(tag, ExclusiveLock))
		return true;
	if (mode != ExclusiveLock &&
		LockHeldByMeCompat(tag, ShareUpdateExclusiveLock))
		return true;
	return LockHeldByMeCompat(tag, mode);
}

static void
remember_tag(TagSet *set, const LOCKTAG *tag, LOCKMODE mode)
{
	if (set == NULL)
		return;
	if (set->count >= MAX_CALL_TAGS)
		elog(ERROR, "too many lease lock tags in one call");
	set->tags[set->count] = *tag;
	set->modes[set->count] = mode;
	set->count++;
}

static bool
try_tag(TagSet *set, const LOCKTAG *tag, LOCKMODE mode)
{
	if (tag_is_held(tag, mode))
		return true;
	if (LockAcquire(tag, mode, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	remember_tag(set, tag, mode);
	return true;
}

static void
describe_wait(void *arg)
{
	const LockKey *key = (const LockKey *) arg;

	errcontext("waiting for lease lock \"%s\" in scope \"%s\"",
			   key->name, key->scope);
}

/*
 * Takes a name tag in line, for leaselock.lock_timeout at the most (55P03).
 * The time-out is our own because statement_timeout does not cover COMMIT.
 */
static void
wait_tag(const LOCKTAG *tag, LOCKMODE mode, const LockKey *key)
{
	ErrorContextCallback context;
	int			nest_level;
	char		timeout[16];

	context.callback = describe_wait;
	context.arg = unconstify(LockKey *, key);
	context.previous = error_context_stack;
	error_context_stack = &context;

	nest_level = NewGUCNestLevel();
	if (LockTimeout == 0 || LockTimeout > leaselock_lock_timeout)
	{
		snprintf(timeout, sizeof(timeout), "%d", leaselock_lock_timeout);
		(void) set_config_option("lock_timeout", timeout,
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	}
	(void) LockAcquire(tag, mode, false, false);
	AtEOXact_GUC(true, nest_level);

	error_context_stack = context.previous;
}

/* Tries for a name tag; true if the transaction has it now. */
bool
try_name_tag(TagSet *set, const LockKey *key, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_tag(&tag, TAG_NAME, key->hash);
	return try_tag(set, &tag, mode);
}

/* Waits for a name tag.  With set NULL it is kept until the transaction ends. */
void
wait_name_tag(TagSet *set, const LockKey *key, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_tag(&tag, TAG_NAME, key->hash);
	if (try_tag(set, &tag, mode))
		return;
	wait_tag(&tag, mode, key);
	remember_tag(set, &tag, mode);
}

/* Tries for a ticket tag; true if the transaction has it now. */
bool
try_ticket_tag(TagSet *set, const LockKey *key, const pg_uuid_t *request_id)
{
	LOCKTAG		tag;

	set_tag(&tag, TAG_TICKET,
			hash_bytes_extended(request_id->data, UUID_LEN, key->hash));
	return try_tag(set, &tag, ExclusiveLock);
}

/*
 * Gives back what the call took.  Only for a call that has written nothing:
 * what is written stays locked until the transaction ends.
 */
void
give_back_tags(TagSet *set)
{
	while (set->count > 0)
	{
		set->count--;
		(void) LockRelease(&set->tags[set->count],
						   set->modes[set->count], false);
	}
}
