/*-------------------------------------------------------------------------
 *
 * tag.c
 *	  The heavyweight locks ("tags") that serialize all work on a lease lock.
 *
 * They are advisory lock tags of classes of our own, which no SQL function can
 * acquire or release.  The hashes in them only serialize: two locks with the
 * same hash wait for each other, and are otherwise unrelated.  The hashes are
 * keyed with a secret of the installation, so that nobody can find a name that
 * shares its tags with somebody else's lock, or tell from pg_locks which names
 * are in use.
 *
 *	name	 (scope, name).  ExclusiveLock to begin or end a grant,
 *			 ShareUpdateExclusiveLock to write a lock whose grant stays,
 *			 RowShareLock to commit under the grant.
 *	queue	 (scope, name).  ExclusiveLock to assign a place, to pass dead
 *			 waiters, or to remove the lock's row.
 *	ticket	 (scope, name, request id, or the ticket if there is none).
 *			 ExclusiveLock to insert the ticket, or to write it while it
 *			 waits.
 *	liveness (the same).  Held at session level by the backend that waits.
 *	scope	 (scope).  RowShareLock to make a grant, ExclusiveLock to register
 *			 the scope, so that no grant is missed.
 *	floor	 ExclusiveLock to raise the floor of fences.
 *	queues	 RowShareLock to put a ticket into a queue, ExclusiveLock to record
 *			 that no lock of this database has a queue.
 *
 * Deadlocks are avoided by the order in which tags may be waited for.  A
 * transaction that holds a name tag may only try for queue and ticket tags.  A
 * transaction that holds a ticket tag may only try for a queue tag, and for
 * other ticket tags of that lock.  A name tag may be waited for at any time.
 * It does not matter whether the held tag was acquired in this call or in an
 * earlier call of the transaction.  wait_tag() asserts this order.  A grant
 * never waits in line for a name tag in ExclusiveLock, because it would block
 * renewals and fenced commits behind it; releases and breaks do wait in line.
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
#include "store/installation.h"
#include "store/siphash.h"
#include "store/table.h"
#include "store/tag.h"

/* Most transactions hold a tag no longer than this. */
#define BRIEF_SLEEP_MS	10

/* ----------------------------------------------------------------------
 * Hashes
 * ----------------------------------------------------------------------
 */

/* Kinds of hashed data, so that tags of different kinds do not collide. */
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

/*
 * Appends a text.  Texts beyond the maximum length are truncated; no lock has
 * such a name.
 */
static size_t
append_text(unsigned char *data, size_t len, const char *text)
{
	size_t		text_len = strlen(text);

	if (text_len > MAX_TEXT_BYTES)
		text_len = MAX_TEXT_BYTES;
	memcpy(data + len, text, text_len);
	return len + text_len;
}

/* The last hash.  The next call is usually about the same lock or scope. */
typedef struct LastHash
{
	uint32		hashed_for;		/* the Installation's number; 0: none */
	size_t		len;
	unsigned char data[MAX_HASHED];
	uint64		hash;
} LastHash;

static uint64
hash_unless_last(LastHash *last, const unsigned char *data, size_t len,
				 uint32 number)
{
	if (last->hashed_for == number && last->len == len &&
		memcmp(last->data, data, len) == 0)
		return last->hash;
	last->hash = hash_with_secret(data, len);
	last->len = len;
	memcpy(last->data, data, len);
	last->hashed_for = number;
	return last->hash;
}

/*
 * The key of a lock.  The hash includes the length of the scope, so that
 * ("ab", "c") and ("a", "bc") differ.
 */
LockKey
make_lock_key(const char *scope, const char *name)
{
	static LastHash last = {0};
	LockKey		key = {scope, name, 0, 0};
	unsigned char data[MAX_HASHED];
	size_t		len = append_text(data, 2, scope);

	data[0] = HASHED_LOCK;
	data[1] = (unsigned char) (len - 2);
	len = append_text(data, len, name);
	key.hashed_for = store_load_installation()->number;
	key.hash = hash_unless_last(&last, data, len, key.hashed_for);
	return key;
}

/*
 * Computes the hash of a key again if the extension has been dropped and
 * created since.  The caller has locked a table, so that this cannot happen
 * again.
 */
void
renew_lock_key(LockKey *key)
{
	if (key->hashed_for != store_load_installation()->number)
		*key = make_lock_key(key->scope, key->name);
}

/* The order in which several name tags are acquired. */
int
compare_lock_keys(const LockKey *a, const LockKey *b)
{
	int			result;

	if (a->hash != b->hash)
		return a->hash < b->hash ? -1 : 1;
	result = strcmp(a->scope, b->scope);
	return result != 0 ? result : strcmp(a->name, b->name);
}

/* ----------------------------------------------------------------------
 * Tags
 * ----------------------------------------------------------------------
 */

static Tag
make_tag(TagKind kind, const LockKey *key, uint64 hash)
{
	static const LockKey no_key = {"", "", 0, 0};
	Tag			tag;

	tag.kind = kind;
	tag.key = key ? *key : no_key;
	SET_LOCKTAG_ADVISORY(tag.locktag, MyDatabaseId,
						 (uint32) (hash >> 32), (uint32) hash, kind);
	return tag;
}

/*
 * The tags of each kind, see the file header.  "id" is tag_id() of the ticket.
 */
Tag
name_tag(const LockKey *key)
{
	return make_tag(TAG_KIND_NAME, key, key->hash);
}

Tag
queue_tag(const LockKey *key)
{
	return make_tag(TAG_KIND_QUEUE, key, key->hash);
}

static uint64
hash_ticket(const LockKey *key, const pg_uuid_t *id)
{
	unsigned char data[1 + sizeof(key->hash) + UUID_LEN];

	data[0] = HASHED_TICKET;
	memcpy(data + 1, &key->hash, sizeof(key->hash));
	memcpy(data + 1 + sizeof(key->hash), id->data, UUID_LEN);
	return hash_with_secret(data, sizeof(data));
}

Tag
ticket_tag(const LockKey *key, const pg_uuid_t *id)
{
	return make_tag(TAG_KIND_TICKET, key, hash_ticket(key, id));
}

Tag
liveness_tag(const LockKey *key, const pg_uuid_t *id)
{
	return make_tag(TAG_KIND_LIVENESS, key, hash_ticket(key, id));
}

Tag
scope_tag(const char *scope)
{
	static LastHash last = {0};
	LockKey		key = {scope, "", 0, 0};
	unsigned char data[MAX_HASHED];
	size_t		len = append_text(data, 1, scope);

	data[0] = HASHED_SCOPE;
	return make_tag(TAG_KIND_SCOPE, &key,
					hash_unless_last(&last, data, len,
									 store_load_installation()->number));
}

Tag
floor_tag(void)
{
	return make_tag(TAG_KIND_FLOOR, NULL, 0);
}

Tag
queues_tag(void)
{
	return make_tag(TAG_KIND_QUEUES, NULL, 0);
}

/* The id used in the ticket and liveness tags of a ticket. */
const pg_uuid_t *
tag_id(const TicketRow *ticket)
{
	return ticket->has_request_id ? &ticket->request_id : &ticket->ticket;
}

/*
 * The kinds of tags that this transaction has acquired, as a bit set.  It is
 * usually empty, which saves asking the lock manager.
 */
static unsigned kinds_taken = 0;

#define KIND_BIT(kind)	(1u << ((kind) - TAG_KIND_NAME))

/*
 * Whether this transaction already holds the tag in a mode at least as strong
 * as the requested mode.  Requesting it again could fail, or wait behind
 * another transaction that waits for it.
 */
static bool
holds_tag(TagKind kind, const LOCKTAG *tag, LOCKMODE mode)
{
	if (!(kinds_taken & KIND_BIT(kind)))
		return false;
	if (LockHeldByMeCompat(tag, ExclusiveLock))
		return true;
	if (mode != ExclusiveLock &&
		LockHeldByMeCompat(tag, ShareUpdateExclusiveLock))
		return true;
	return LockHeldByMeCompat(tag, mode);
}

/* ----------------------------------------------------------------------
 * Order of waiting
 * ----------------------------------------------------------------------
 */

/* A ticket tag that this transaction has acquired. */
typedef struct TakenTag
{
	uint64		lock_hash;
	LOCKTAG		tag;
} TakenTag;

static List *ticket_tags = NIL;

/*
 * Records a ticket tag that the transaction acquires, unless it is recorded
 * already.  The record may outlast the tag, which a rollback to a savepoint
 * releases.
 */
static void
note_ticket_tag(const Tag *tag)
{
	MemoryContext context;
	TakenTag   *note;
	ListCell   *cell;

	foreach(cell, ticket_tags)
	{
		if (memcmp(&((TakenTag *) lfirst(cell))->tag, &tag->locktag,
				   sizeof(LOCKTAG)) == 0)
			return;
	}
	context = MemoryContextSwitchTo(TopTransactionContext);
	note = palloc(sizeof(TakenTag));
	note->lock_hash = tag->key.hash;
	note->tag = tag->locktag;
	ticket_tags = lappend(ticket_tags, note);
	MemoryContextSwitchTo(context);
}

/* The transaction has ended, and the memory context of the list with it. */
void
forget_tags(void)
{
	ticket_tags = NIL;
	kinds_taken = 0;
}

/*
 * Whether this transaction may wait for a queue tag or ticket tag of a lock:
 * it holds neither the name tag nor any ticket tag of that lock.
 */
bool
may_stand_in_line(const LockKey *key)
{
	Tag			name = name_tag(key);
	ListCell   *cell;

	if (holds_tag(name.kind, &name.locktag, RowShareLock))
		return false;
	foreach(cell, ticket_tags)
	{
		TakenTag   *note = (TakenTag *) lfirst(cell);

		if (note->lock_hash == key->hash &&
			holds_tag(TAG_KIND_TICKET, &note->tag, ExclusiveLock))
			return false;
	}
	return true;
}

#ifdef USE_ASSERT_CHECKING
static bool
obeys_order(const Tag *tag)
{
	return (tag->kind != TAG_KIND_QUEUE && tag->kind != TAG_KIND_TICKET) ||
		may_stand_in_line(&tag->key);
}
#endif

/* ----------------------------------------------------------------------
 * Acquiring and releasing
 * ----------------------------------------------------------------------
 */

static void
remember_tag(TagSet *set, const Tag *tag, LOCKMODE mode)
{
	kinds_taken |= KIND_BIT(tag->kind);
	if (tag->kind == TAG_KIND_TICKET)
		note_ticket_tag(tag);
	if (set == NULL)
		return;
	if (set->count >= MAX_CALL_TAGS)
		elog(ERROR, "too many lease lock tags in one call");
	set->tags[set->count] = tag->locktag;
	set->modes[set->count] = mode;
	set->count++;
}

/*
 * Tries to acquire a tag; returns true if the transaction holds it now.  The
 * tag is added to the set if it was acquired.  If set is NULL, the tag is held
 * until the transaction ends.
 */
bool
try_tag(TagSet *set, const Tag *tag, LOCKMODE mode)
{
	bool		taken;

	if (holds_tag(tag->kind, &tag->locktag, mode))
		return true;
	if (set != NULL && set->quiet)
		taken = TryLockQuietlyCompat(&tag->locktag, mode);
	else
		taken = LockAcquire(&tag->locktag, mode, false, true) !=
			LOCKACQUIRE_NOT_AVAIL;
	if (taken)
		remember_tag(set, tag, mode);
	return taken;
}

/* Error context of a wait.  Also adds a hint if the wait times out. */
static void
describe_wait(void *arg)
{
	const LockKey *key = &((const Tag *) arg)->key;

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
 * Limits the time of subsequent lock waits, until AtEOXact_GUC() is called
 * with the level returned.  A shorter lock_timeout of the session stays in
 * effect.
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
 * Acquires a tag, waiting in line for up to leaselock.lock_timeout.  We need
 * our own time-out because statement_timeout does not apply to COMMIT.  The
 * caller obeys the order in the file header.  Raises 55P03 on a time-out, and
 * 40P01 for a deadlock.
 */
void
wait_tag(TagSet *set, const Tag *tag, LOCKMODE mode)
{
	ErrorContextCallback context;
	int			nest_level;

	if (try_tag(set, tag, mode))
		return;
	Assert(obeys_order(tag));
	context.callback = describe_wait;
	context.arg = unconstify(Tag *, tag);
	context.previous = error_context_stack;
	error_context_stack = &context;

	nest_level = set_lock_timeout(leaselock_lock_timeout);
	(void) LockAcquire(&tag->locktag, mode, false, false);
	AtEOXact_GUC(true, nest_level);

	error_context_stack = context.previous;
	remember_tag(set, tag, mode);
}

/* Leaves the acquired tags held until the transaction ends. */
void
keep_tags(TagSet *set)
{
	set->count = 0;
}

/*
 * Releases the tags that the call has acquired.  Allowed only if it has
 * written nothing: what has been written stays locked until the transaction
 * ends.
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
 * Liveness: at session level, so that it outlasts the waiter's transactions
 * ----------------------------------------------------------------------
 */

/* Advertises that this backend waits for a ticket. */
void
take_liveness(const Tag *tag)
{
	(void) LockAcquire(&tag->locktag, ShareLock, true, false);
}

/*
 * Withdraws that.  Must also be called after an error, because it is a session
 * lock.
 */
void
drop_liveness(const Tag *tag)
{
	(void) LockRelease(&tag->locktag, ShareLock, true);
}

/*
 * Whether any backend waits for a ticket.  We try a mode that conflicts with
 * the waiters' mode but not with itself, and release it at once.
 */
bool
is_attended(const TicketRow *ticket)
{
	Tag			tag;

	/* the backend and its tag are on the primary */
	if (RecoveryInProgress())
		return ticket->waiter_pid != 0;
	tag = liveness_tag(&ticket->key, tag_id(ticket));
	if (LockHeldByMeCompat(&tag.locktag, ShareLock))
		return true;
	if (LockAcquire(&tag.locktag, RowExclusiveLock, false, true) ==
		LOCKACQUIRE_NOT_AVAIL)
		return true;
	(void) LockRelease(&tag.locktag, RowExclusiveLock, false);
	return false;
}

/* ----------------------------------------------------------------------
 * Waiting for the holder of a tag, but not in line for the tag
 * ----------------------------------------------------------------------
 */

/*
 * Finds a transaction that holds a tag in a mode that conflicts with the given
 * one; returns an invalid id if there is none.  A transaction whose commit is
 * already visible to new snapshots does not count, even if it has not released
 * the tag yet.
 */
VirtualTransactionId
find_tag_holder(const Tag *tag, LOCKMODE mode)
{
	VirtualTransactionId *holders = GetLockConflicts(&tag->locktag, mode,
													 NULL);
	VirtualTransactionId holder = holders[0];

	pfree(holders);
	return holder;
}

/*
 * Waits until a transaction has ended; returns false if the time runs out
 * first.  The caller must not hold any tag of the lock that it acquired in
 * this call.  Raises 40P01 for a deadlock.
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
 * Waits for a transaction that holds a tag in a conflicting mode, for left_us
 * or max_ms at most, whichever is less; the caller then tries again.  The
 * caller must not hold any tag of the lock that it acquired in this call.
 * Most transactions end soon, so with "brief" this only sleeps briefly.
 * Otherwise raises 40P01 for a deadlock.
 */
void
wait_for_tag_holder(const Tag *tag, LOCKMODE mode, bool brief, int64 left_us,
					int max_ms)
{
	long		ms = Max(Min(left_us / 1000, max_ms), 1);
	VirtualTransactionId holder = {0};

	if (!brief)
		holder = find_tag_holder(tag, mode);
	if (VirtualTransactionIdIsValid(holder))
		(void) wait_for_transaction(holder, ms);
	else
		sleep_briefly(Min(ms, BRIEF_SLEEP_MS));
}
