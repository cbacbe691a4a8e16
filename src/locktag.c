/*-------------------------------------------------------------------------
 *
 * locktag.c
 *	  The heavyweight locks that order all work on a lease lock.
 *
 * They are advisory lock tags of classes of our own, which no SQL function
 * can take or release.  Their hashes only serialise: two locks with one hash
 * wait for each other and are otherwise unrelated.  The hashes are keyed with
 * a secret of the installation, so that nobody can find a name that shares
 * the tags of somebody else's, nor tell from pg_locks which name is in use.
 *
 *	name	 (scope, name).  NAME_CHANGE to begin or end a grant, NAME_KEEP to
 *			 write a lock whose grant stays, NAME_VERIFY to commit under it.
 *	queue	 (scope, name).  ExclusiveLock, by enqueue and prune.
 *	ticket	 (scope, name, request id).  ExclusiveLock, by whoever inserts that
 *			 ticket, or writes it while it waits.
 *	liveness the same.  Session-level, by the backend that waits.
 *	scope	 (scope).  RowShareLock by a grant to a newcomer, ExclusiveLock to
 *			 register the scope, so that no grant slips past that.
 *	floor	 ExclusiveLock, by whoever raises the floor of fences.
 *
 * Who holds a name tag only tries for queue and ticket tags; who holds a
 * ticket tag only tries for a queue tag and for other ticket tags of that
 * lock; a name tag may be waited for at any time.  This holds whether the tag
 * was taken in this call or in an earlier one of the transaction.  A grant
 * never waits in line for a name tag in NAME_CHANGE, where it would hold up
 * the renewals and fenced commits behind it; a release and a break do.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "leaselock.h"
#include "siphash.h"

/* How long most transactions keep a tag at the longest. */
#define BRIEF_SLEEP_MS	10

/* The ticket tags that this transaction has taken. */
typedef struct TicketTag
{
	uint64		lock_hash;
	LOCKTAG		tag;
} TicketTag;

static List *ticket_tags = NIL;

/* What is hashed, so that tags of different kinds have nothing in common. */
typedef enum HashedKind
{
	HASHED_LOCK = 'L',
	HASHED_TICKET = 'T',
	HASHED_SCOPE = 'S'
} HashedKind;

#define MAX_HASHED	(2 + 2 * MAX_TEXT_BYTES)

static uint64
hash_with_secret(const unsigned char *data, size_t len)
{
	return siphash(store_load_installation()->secret, data, len);
}

/* Appends a text; what is longer than any name may be has no lock. */
static size_t
append_text(unsigned char *data, size_t len, const char *text)
{
	size_t		text_len = strlen(text);

	if (text_len > MAX_TEXT_BYTES)
		text_len = MAX_TEXT_BYTES;
	memcpy(data + len, text, text_len);
	return len + text_len;
}

/*
 * The key of a lock.  The hash covers the length of the scope, so that
 * ("ab", "c") and ("a", "bc") differ.
 */
LockKey
make_lock_key(const char *scope, const char *name)
{
	LockKey		key = {scope, name, 0};
	unsigned char data[MAX_HASHED] = {HASHED_LOCK};
	size_t		len = append_text(data, 2, scope);

	data[1] = (unsigned char) (len - 2);
	len = append_text(data, len, name);
	key.hash = hash_with_secret(data, len);
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
	bool		taken;

	if (tag_is_held(tag, mode))
		return true;
	if (set != NULL && set->quiet)
		taken = TryLockQuietlyCompat(tag, mode);
	else
		taken = LockAcquire(tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL;
	if (taken)
		remember_tag(set, tag, mode);
	return taken;
}

/* Error context of a wait; also says what to do about a lock_timeout. */
static void
describe_wait(void *arg)
{
	const LockKey *key = (const LockKey *) arg;

	if (geterrcode() == ERRCODE_LOCK_NOT_AVAILABLE)
		errhint("Another transaction is changing the same lock; try again when it has ended.");
	if (key->name[0] != '\0')
		errcontext("waiting for lease lock \"%s\" in scope \"%s\"",
				   key->name, key->scope);
	else if (key->scope[0] != '\0')
		errcontext("waiting for grants in scope \"%s\"", key->scope);
	else
		errcontext("waiting for the floor of fences");
}

/*
 * Limits the lock waits that follow, until AtEOXact_GUC of the level that is
 * returned.  A shorter limit of the session's own stays.
 */
static int
set_lock_timeout(int timeout_ms)
{
	int			nest_level = NewGUCNestLevel();
	char		timeout[16];

	if (LockTimeout == 0 || LockTimeout > timeout_ms)
	{
		snprintf(timeout, sizeof(timeout), "%d", timeout_ms);
		(void) set_config_option("lock_timeout", timeout,
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	}
	return nest_level;
}

/*
 * Takes a tag in line, for leaselock.lock_timeout at the most (55P03).  The
 * time-out is our own because statement_timeout does not cover COMMIT.
 */
static void
wait_tag(const LOCKTAG *tag, LOCKMODE mode, const LockKey *key)
{
	ErrorContextCallback context;
	int			nest_level;

	context.callback = describe_wait;
	context.arg = unconstify(LockKey *, key);
	context.previous = error_context_stack;
	error_context_stack = &context;

	nest_level = set_lock_timeout(leaselock_lock_timeout);
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

/* Whether this transaction has the name tag, in any mode. */
bool
has_name_tag(const LockKey *key)
{
	LOCKTAG		tag;

	set_tag(&tag, TAG_NAME, key->hash);
	return tag_is_held(&tag, NAME_VERIFY);
}

static void
set_ticket_tag(LOCKTAG *tag, LockTagClass class, const LockKey *key,
			   const pg_uuid_t *request_id)
{
	unsigned char data[1 + sizeof(key->hash) + UUID_LEN] = {HASHED_TICKET};

	memcpy(data + 1, &key->hash, sizeof(key->hash));
	memcpy(data + 1 + sizeof(key->hash), request_id->data, UUID_LEN);
	set_tag(tag, class, hash_with_secret(data, sizeof(data)));
}

/*
 * Notes a ticket tag that the transaction takes, unless it is noted.  The note
 * may outlive the tag, which a rolled-back savepoint gives back.
 */
static void
note_ticket_tag(const LockKey *key, const LOCKTAG *tag)
{
	MemoryContext context;
	TicketTag  *note;
	ListCell   *cell;

	foreach(cell, ticket_tags)
	{
		if (memcmp(&((TicketTag *) lfirst(cell))->tag, tag,
				   sizeof(LOCKTAG)) == 0)
			return;
	}
	context = MemoryContextSwitchTo(TopTransactionContext);
	note = palloc(sizeof(TicketTag));
	note->lock_hash = key->hash;
	note->tag = *tag;
	ticket_tags = lappend(ticket_tags, note);
	MemoryContextSwitchTo(context);
}

/* Whether this transaction has the tag of some ticket of the lock. */
bool
has_ticket_tag(const LockKey *key)
{
	ListCell   *cell;

	foreach(cell, ticket_tags)
	{
		TicketTag  *note = (TicketTag *) lfirst(cell);

		if (note->lock_hash == key->hash &&
			tag_is_held(&note->tag, ExclusiveLock))
			return true;
	}
	return false;
}

/* The transaction has ended, and with it the memory that the notes are in. */
void
forget_ticket_tags(void)
{
	ticket_tags = NIL;
}

/* Tries for a ticket tag; true if the transaction has it now. */
bool
try_ticket_tag(TagSet *set, const LockKey *key, const pg_uuid_t *request_id)
{
	LOCKTAG		tag;

	set_ticket_tag(&tag, TAG_TICKET, key, request_id);
	if (!try_tag(set, &tag, ExclusiveLock))
		return false;
	note_ticket_tag(key, &tag);
	return true;
}

/* Waits for a ticket tag. */
void
wait_ticket_tag(TagSet *set, const LockKey *key, const pg_uuid_t *request_id)
{
	LOCKTAG		tag;

	set_ticket_tag(&tag, TAG_TICKET, key, request_id);
	if (!try_tag(set, &tag, ExclusiveLock))
	{
		wait_tag(&tag, ExclusiveLock, key);
		remember_tag(set, &tag, ExclusiveLock);
	}
	note_ticket_tag(key, &tag);
}

/* Tries for the queue tag; true if the transaction has it now. */
bool
try_queue_tag(TagSet *set, const LockKey *key)
{
	LOCKTAG		tag;

	set_tag(&tag, TAG_QUEUE, key->hash);
	return try_tag(set, &tag, ExclusiveLock);
}

/* ----------------------------------------------------------------------
 * Liveness: session-level, so that it outlasts the waiter's transactions
 * ----------------------------------------------------------------------
 */

/* Says that this backend waits for a ticket, until it takes that back. */
void
take_liveness_tag(const LockKey *key, const pg_uuid_t *request_id)
{
	LOCKTAG		tag;

	set_ticket_tag(&tag, TAG_LIVENESS, key, request_id);
	(void) LockAcquire(&tag, ShareLock, true, false);
}

/* Takes that back.  Needed after an error as well: it is a session's lock. */
void
drop_liveness_tag(const LockKey *key, const pg_uuid_t *request_id)
{
	LOCKTAG		tag;

	set_ticket_tag(&tag, TAG_LIVENESS, key, request_id);
	(void) LockRelease(&tag, ShareLock, true);
}

/*
 * Whether some backend waits for a ticket.  The mode tried for conflicts with
 * the waiters' and not with itself, and is given back at once.  On a standby,
 * where nobody holds the primary's tags, the backend that is on record counts.
 */
bool
is_served(const LeaseTicket *ticket)
{
	LOCKTAG		tag;

	if (RecoveryInProgress())
		return ticket->waiter_pid != 0;
	set_ticket_tag(&tag, TAG_LIVENESS, &ticket->key, &ticket->request_id);
	if (LockHeldByMeCompat(&tag, ShareLock))
		return true;
	if (LockAcquire(&tag, RowExclusiveLock, false, true) ==
		LOCKACQUIRE_NOT_AVAIL)
		return true;
	(void) LockRelease(&tag, RowExclusiveLock, false);
	return false;
}

/* ----------------------------------------------------------------------
 * Scopes and the floor
 * ----------------------------------------------------------------------
 */

static void
set_scope_tag(LOCKTAG *tag, const char *scope)
{
	unsigned char data[MAX_HASHED] = {HASHED_SCOPE};

	set_tag(tag, TAG_SCOPE,
			hash_with_secret(data, append_text(data, 1, scope)));
}

/* Tries for the right to make grants in a scope. */
bool
try_scope_tag(TagSet *set, const char *scope)
{
	LOCKTAG		tag;

	set_scope_tag(&tag, scope);
	return try_tag(set, &tag, RowShareLock);
}

/* Waits for the right to register a scope, until the transaction ends. */
void
wait_scope_tag(const char *scope)
{
	LOCKTAG		tag;
	LockKey		key = {scope, "", 0};

	set_scope_tag(&tag, scope);
	if (!try_tag(NULL, &tag, ExclusiveLock))
		wait_tag(&tag, ExclusiveLock, &key);
}

/* Tries for the right to raise the floor. */
bool
try_floor_tag(TagSet *set)
{
	LOCKTAG		tag;

	set_tag(&tag, TAG_FLOOR, 0);
	return try_tag(set, &tag, ExclusiveLock);
}

/* Waits for the right to raise the floor, until the transaction ends. */
void
wait_floor_tag(void)
{
	LOCKTAG		tag;
	LockKey		key = {"", "", 0};

	set_tag(&tag, TAG_FLOOR, 0);
	if (!try_tag(NULL, &tag, ExclusiveLock))
		wait_tag(&tag, ExclusiveLock, &key);
}

/* What has been written stays locked until the transaction ends. */
void
keep_tags(TagSet *set)
{
	set->count = 0;
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

/* ----------------------------------------------------------------------
 * Waiting for whoever keeps a tag, without standing in line for it
 * ----------------------------------------------------------------------
 */

TagWait
wait_on_name(const LockKey *key, LOCKMODE mode)
{
	TagWait		wait = {.mode = mode};

	set_tag(&wait.tag, TAG_NAME, key->hash);
	return wait;
}

TagWait
wait_on_queue(const LockKey *key)
{
	TagWait		wait = {.mode = ExclusiveLock};

	set_tag(&wait.tag, TAG_QUEUE, key->hash);
	return wait;
}

TagWait
wait_on_ticket(const LockKey *key, const pg_uuid_t *request_id)
{
	TagWait		wait = {.mode = ExclusiveLock};

	set_ticket_tag(&wait.tag, TAG_TICKET, key, request_id);
	return wait;
}

TagWait
wait_on_scope(const char *scope)
{
	TagWait		wait = {.mode = RowShareLock};

	set_scope_tag(&wait.tag, scope);
	return wait;
}

/*
 * A transaction that holds a tag in a mode that conflicts with ours; an invalid
 * id if there is none.  Whose commit is visible to a snapshot taken from now on
 * is not among them, though it may not have given the tag back yet.
 */
VirtualTransactionId
find_keeper(const TagWait *wait)
{
	VirtualTransactionId *keepers = GetLockConflicts(&wait->tag, wait->mode,
													 NULL);
	VirtualTransactionId keeper = keepers[0];

	pfree(keepers);
	return keeper;
}

/*
 * Waits for a transaction to end, for a limited time, in a subtransaction:
 * the deadlock detector sees the wait, and its time-out is no error.  False
 * if the time ran out.
 */
bool
wait_for_transaction(VirtualTransactionId vxid, int timeout_ms)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool ended = false;

	InvalidateCatalogSnapshotConditionally();
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		int			nest_level = set_lock_timeout(timeout_ms);

		(void) VirtualXactLock(vxid, true);
		AtEOXact_GUC(true, nest_level);
		ended = true;
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	return ended;
}

static void
sleep_briefly(long ms)
{
	InvalidateCatalogSnapshotConditionally();
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Waits for whoever keeps the caller from a tag, until a time and for max_ms at
 * the most; the caller then tries again.  It must hold no tag of that lock that
 * it took in this call.
 */
void
wait_for_keeper(const TagWait *wait, TimestampTz until, int max_ms)
{
	int64		left = Max((until - clock_read(NO_TIME)) / 1000, 1);
	VirtualTransactionId keeper = {0};

	if (!wait->brief)
		keeper = find_keeper(wait);
	if (VirtualTransactionIdIsValid(keeper))
		(void) wait_for_transaction(keeper, Min(left, max_ms));
	else
		sleep_briefly(Min(left, BRIEF_SLEEP_MS));
}
