/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  Checking a fence, and verifying it again when the transaction commits.
 *
 * A check reads the lock's row without a lock, so that a stalled transaction
 * holds nobody up.  What it found is remembered for the transaction, and
 * verified just before the commit under the name tag in RowShareLock, which no
 * grant can pass and which is kept until the commit is complete.  So no write
 * of a superseded holder commits after a newer grant.
 *
 * The memory is a hash in TopTransactionContext.  An entry belongs to the
 * subtransaction that checked first, and is dropped if that is rolled back.
 * If the transaction itself ends the grant that it has checked, it verifies
 * the entry there and then, under the tag in ExclusiveLock: the lock is its own
 * until it ends.  The entry is verified by that subtransaction, and pending
 * again if that is rolled back.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "core/decide.h"
#include "core/fence.h"
#include "core/scope.h"
#include "core/serverlog.h"
#include "leaselock.h"
#include "store/clock.h"
#include "store/recent.h"
#include "store/rows.h"
#include "store/table.h"
#include "store/tag.h"

typedef struct PendingKey
{
	LockKey		lock;
	int64		fence;
} PendingKey;

typedef struct PendingFence
{
	PendingKey	key;			/* strings live in TopTransactionContext */
	RowVersion	version;		/* of the lock's row, which passed the check */
	uint64		generation;		/* what was known of its table then */
	SubTransactionId checked_by;
	SubTransactionId verified_by;	/* Invalid: to be verified at commit */
	Oid			role;			/* the last that was allowed to check it */
	TimestampTz live_until;		/* no need to read the lease again before */
	char		status;			/* the hash's own */
} PendingFence;

static uint32
hash_pending(const PendingKey *key)
{
	return hash_combine((uint32) key->lock.hash,
						hash_bytes_uint32((uint32) key->fence));
}

static int
compare_pending(const PendingKey *a, const PendingKey *b)
{
	if (a->fence != b->fence)
		return a->fence < b->fence ? -1 : 1;
	return compare_lock_keys(&a->lock, &b->lock);
}

#define SH_PREFIX		pending
#define SH_ELEMENT_TYPE	PendingFence
#define SH_KEY_TYPE		PendingKey
#define SH_KEY			key
#define SH_HASH_KEY(table, key)	hash_pending(&(key))
#define SH_EQUAL(table, a, b)	(compare_pending(&(a), &(b)) == 0)
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* NULL: none.  An entry moves when another is added. */
static pending_hash * pending_fences = NULL;

/* ----------------------------------------------------------------------
 * Pending fences
 * ----------------------------------------------------------------------
 */

/* Begins a walk through all, on which they may be removed. */
static pending_iterator
begin_pending(void)
{
	pending_iterator walk = {0};

	if (pending_fences != NULL)
		pending_start_iterate(pending_fences, &walk);
	return walk;
}

/* The next; NULL at the end. */
static PendingFence *
next_pending(pending_iterator * walk)
{
	return pending_fences == NULL ? NULL :
		pending_iterate(pending_fences, walk);
}

static PendingFence *
find_pending(const LockKey *key, int64 fence)
{
	PendingKey	pending = {*key, fence};

	if (pending_fences == NULL)
		return NULL;
	return pending_lookup(pending_fences, pending);
}

static PendingFence *
add_pending(const LockKey *key, int64 fence)
{
	PendingKey	copy = {*key, fence};
	PendingFence *pending;
	bool		found;

	if (pending_fences == NULL)
		pending_fences = pending_create(TopTransactionContext, 1, NULL);
	copy.lock.scope = MemoryContextStrdup(TopTransactionContext, key->scope);
	copy.lock.name = MemoryContextStrdup(TopTransactionContext, key->name);
	pending = pending_insert(pending_fences, copy, &found);
	pending->checked_by = GetCurrentSubTransactionId();
	pending->verified_by = InvalidSubTransactionId;
	return pending;
}

/* Remembers a check that passed, of the lock as it was loaded. */
static void
remember_pending(const LockKey *key, int64 fence, const LockRow *lock,
				 uint64 generation)
{
	PendingFence *pending = find_pending(key, fence);

	if (pending == NULL)
		pending = add_pending(key, fence);
	pending->version = lock->version;
	pending->generation = generation;
	pending->role = GetUserId();
	pending->live_until = grant_until(lock);
}

/* ----------------------------------------------------------------------
 * Checking
 * ----------------------------------------------------------------------
 */

/*
 * With a transaction-wide snapshot, refuses a grant that the snapshot cannot
 * see (40001): what the transaction has read may be older than the previous
 * holder's last write.  The row tells who granted it, because to look for it
 * with the old snapshot would leave a predicate lock on it.
 */
static void
reject_younger_grant(const LockRow *lock)
{
	uint64		granted = U64FromFullTransactionId(lock->granted_xid);
	uint64		next;
	TransactionId xid;

	if (!IsolationUsesXactSnapshot())
		return;

	/* Too old to be compared with the 32-bit ids of a snapshot. */
	next = U64FromFullTransactionId(ReadNextFullTransactionId());
	if (granted + PG_INT32_MAX / 2 < next)
		return;

	xid = XidFromFullTransactionId(lock->granted_xid);
	if (TransactionIdIsCurrentTransactionId(xid) ||
		XidInMVCCSnapshot(xid, GetTransactionSnapshot()))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access: lock \"%s\" in scope \"%s\" was granted after this transaction's snapshot was taken",
						lock->key.name, lock->key.scope),
				 errhint("Retry the transaction, and begin it after the lock has been acquired.")));
}

/*
 * Loads a lock that this session may know: the same fence is checked for one
 * write after the other.
 */
static void
load_known_lock(const LockKey *key, LockRow *lock)
{
	if (recall_lock(key, lock) &&
		store_is_current(REL_LOCKS, &lock->version))
	{
		lock->recalled = false;
		return;
	}
	store_load_lock(key, lock);
	if (ItemPointerIsValid(&lock->version.tid))
		remember_lock(lock);
}

/*
 * Whether a fence may write, by the lock's present row; remembers a yes for
 * the commit.  A check that was made before in this transaction is answered
 * from memory until its lease runs out.
 */
static FenceVerdict
check_fence(const LockKey *key, int64 fence, bool allow_lapsed,
			LockRow *lock)
{
	PendingFence *pending = find_pending(key, fence);
	FenceVerdict verdict;
	TimestampTz now;
	uint64		generation;

	if (pending != NULL && pending->verified_by == InvalidSubTransactionId &&
		pending->role == GetUserId() &&
		(allow_lapsed || clock_read(NO_TIME) < pending->live_until))
		return FENCE_CURRENT;

	store_begin_call(false);
	store_begin_event();
	load_known_lock(key, lock);
	generation = store_event_generation();
	store_end_event();
	require_fence_access(lock);
	now = clock_read(lock->changed_at);
	verdict = judge_fence(lock, fence, now);
	if (verdict == FENCE_LAPSED && allow_lapsed)
		verdict = FENCE_CURRENT;
	if (verdict == FENCE_CURRENT)
	{
		reject_younger_grant(lock);
		remember_pending(key, fence, lock, generation);
	}
	return verdict;
}

#define STOP_HINT \
	"Stop this work: it may now belong to another holder. Acquire the lock again before you write."

/* What to do about a fence that is stale for this reason. */
static const char *
stale_hint(FenceVerdict verdict, int64 present)
{
	if (verdict == FENCE_UNKNOWN && present == 0)
		return "Check the name and the scope: a fence is valid only in the scope in which the lock was acquired. If they are right, the grant ended long ago: acquire the lock again.";
	if (verdict == FENCE_UNKNOWN)
		return "Check the fence, the name and the scope: all three must come from the same acquisition.";
	if (verdict == FENCE_LAPSED)
		return "Stop this work, and acquire the lock again before you write. If the work takes longer than its lease, renew the lease.";
	return STOP_HINT;
}

/* Raises LS001 and says why; the hint is what the caller knows better, or NULL. */
static void
report_stale_fence(const LockKey *key, int64 fence, FenceVerdict verdict,
				   int64 present, const char *hint)
{
	const char *reason = NULL;

	switch (verdict)
	{
		case FENCE_SUPERSEDED:
			reason = psprintf("The newest fence of the lock is " INT64_FORMAT ".",
							  present);
			break;
		case FENCE_ENDED:
			reason = "The grant with this fence is the newest, but it was released or broken.";
			break;
		case FENCE_LAPSED:
			reason = "The grant with this fence is the newest, but its lease has run out.";
			break;
		case FENCE_UNKNOWN:
			reason = present == 0 ?
				"The lock has no grant on record." :
				psprintf("This fence was never issued for the lock, whose newest fence is " INT64_FORMAT ".",
						 present);
			break;
		case FENCE_CURRENT:
			elog(ERROR, "a current fence is not stale");
	}
	ereport(ERROR,
			(errcode(ERRCODE_STALE_FENCE),
			 errmsg("stale fence " INT64_FORMAT " for lock \"%s\" in scope \"%s\"",
					fence, key->name, key->scope),
			 errdetail_internal("%s", reason),
			 errhint("%s", hint ? hint : stale_hint(verdict, present))));
}

/*
 * Whether a fence is the lock's present grant.  A yes is verified at commit.
 * Raises 40001 as reject_younger_grant says.
 */
bool
fence_check(const LockKey *key, int64 fence, bool allow_lapsed)
{
	LockRow		lock;

	return check_fence(key, fence, allow_lapsed, &lock) == FENCE_CURRENT;
}

/*
 * The same, but raises LS001 where fence_check is false, with the hint unless
 * that is NULL.
 */
void
fence_assert(const LockKey *key, int64 fence, bool allow_lapsed,
			 const char *hint)
{
	LockRow		lock;
	FenceVerdict verdict = check_fence(key, fence, allow_lapsed, &lock);

	if (verdict != FENCE_CURRENT)
		report_stale_fence(key, fence, verdict, lock.fence, hint);
}

/*
 * Raises LS003 unless this transaction has checked a fence of the lock, and
 * has not ended that grant itself since.
 */
void
fence_require_check(const LockKey *key)
{
	pending_iterator walk = begin_pending();
	PendingFence *pending;
	const char *other = NULL;	/* a scope in which that name was checked */

	while ((pending = next_pending(&walk)) != NULL)
	{
		const LockKey *checked = &pending->key.lock;

		if (pending->verified_by != InvalidSubTransactionId)
			continue;
		if (compare_lock_keys(checked, key) == 0)
			return;
		if (strcmp(checked->name, key->name) == 0)
			other = checked->scope;
	}
	ereport(ERROR,
			(errcode(ERRCODE_FENCE_NOT_CHECKED),
			 errmsg("transaction has not checked its fence for lock \"%s\" in scope \"%s\"",
					key->name, key->scope),
			 other ? errdetail("It has checked the lock with that name in scope \"%s\".",
							   other) : 0,
			 errhint("Call leaselock.fence_assert() with the fence of your grant in an earlier statement of the same transaction. A check within the statement that fires this trigger comes too late.")));
}

/* ----------------------------------------------------------------------
 * Verifying
 * ----------------------------------------------------------------------
 */

/* Raises LS001 unless the fence is still the lock's, lapsed or not. */
static void
verify_fence(const LockRow *lock, int64 fence)
{
	if (!fence_may_commit(lock, fence))
		report_stale_fence(&lock->key, fence,
						   judge_fence(lock, fence, NO_TIME), lock->fence, STOP_HINT);
}

/*
 * Verifies what this transaction has checked of a lock whose grant it is
 * about to end or replace.  The caller holds the name tag in ExclusiveLock and
 * passes the row as it was before.  Raises LS001.
 */
void
fences_verify_early(const LockRow *lock)
{
	pending_iterator walk = begin_pending();
	PendingFence *pending;

	while ((pending = next_pending(&walk)) != NULL)
	{
		if (pending->verified_by != InvalidSubTransactionId ||
			compare_lock_keys(&pending->key.lock, &lock->key) != 0)
			continue;
		verify_fence(lock, pending->key.fence);
		pending->verified_by = GetCurrentSubTransactionId();
	}
}

static int
compare_entries(const void *a, const void *b)
{
	const PendingFence *x = *(PendingFence *const *) a;
	const PendingFence *y = *(PendingFence *const *) b;

	return compare_pending(&x->key, &y->key);
}

static int
compare_entry_locks(const void *a, const void *b)
{
	const PendingFence *x = *(PendingFence *const *) a;
	const PendingFence *y = *(PendingFence *const *) b;
	int			result = compare_lock_keys(&x->key.lock, &y->key.lock);

	return result != 0 ? result : compare_entries(a, b);
}

/* Whether the commit may have to wait, to verify a fence. */
bool
fences_are_pending(void)
{
	return pending_fences != NULL;
}

/* The fences that are to be verified, in the order of the locks' keys. */
static PendingFence **
list_pending(int *count)
{
	PendingFence **entries = palloc(sizeof(PendingFence *) *
									pending_fences->members);
	pending_iterator walk = begin_pending();
	PendingFence *pending;

	*count = 0;
	while ((pending = next_pending(&walk)) != NULL)
	{
		if (pending->verified_by == InvalidSubTransactionId)
			entries[(*count)++] = pending;
	}
	qsort(entries, *count, sizeof(PendingFence *), compare_entry_locks);
	return entries;
}

/*
 * Raises LS001 at a commit, and tells the server's log of it first.  The fence
 * has passed a check, so it is not a mistake in the name or the scope.
 */
static void
refuse_commit(const LockKey *key, int64 fence, FenceVerdict verdict,
			  int64 present)
{
	if (leaselock_log_refusals)
		log_refusal(key, fence);
	report_stale_fence(key, fence, verdict, present, STOP_HINT);
}

/*
 * Verifies one fence under the name tag.  As long as the lock's row is the
 * version that passed the check, it passes again: what is verified is less.  In a
 * table that was rewritten since, another row of the same transaction may have
 * the version's place.  The caller has locked the table.
 */
static void
verify_pending(PendingFence *pending)
{
	Tag			tag = name_tag(&pending->key.lock);
	LockRow		lock;

	wait_tag(NULL, &tag, RowShareLock);
	if (pending->generation == store_generation() &&
		store_is_current(REL_LOCKS, &pending->version))
		return;
	store_load_lock(&pending->key.lock, &lock);
	if (!fence_may_commit(&lock, pending->key.fence))
		refuse_commit(&lock.key, pending->key.fence,
					  judge_fence(&lock, pending->key.fence, NO_TIME),
					  lock.fence);
}

/*
 * Verifies all pending fences before a commit, in the order of the locks'
 * keys.  The tags are kept until the commit is visible to others, and so is a
 * lock on the table: in an extension that was dropped and created again the
 * tags would be others, and grants would pass this commit.  Raises LS001, and
 * 55P03 or 40P01 if a tag is not to be had.
 */
void
fences_verify(void)
{
	int			count;
	PendingFence **entries;

	if (pending_fences == NULL)
		return;
	entries = list_pending(&count);
	if (count == 0)
		return;
	/* dropping the extension ends every grant */
	if (!store_begin_verification())
		refuse_commit(&entries[0]->key.lock, entries[0]->key.fence,
					  FENCE_UNKNOWN, 0);
	for (int i = 0; i < count; i++)
		verify_pending(entries[i]);
	store_end_event();
}

/* ----------------------------------------------------------------------
 * The transaction's course
 * ----------------------------------------------------------------------
 */

/*
 * Makes the next check of a lock (NULL: of any) read its lease again, because
 * this transaction has changed it, or has undone a change.
 */
void
fences_forget_leases(const LockKey *key)
{
	pending_iterator walk = begin_pending();
	PendingFence *pending;

	while ((pending = next_pending(&walk)) != NULL)
	{
		if (key == NULL || compare_lock_keys(&pending->key.lock, key) == 0)
			pending->live_until = NO_TIME;
	}
}

/* A subtransaction has become part of its parent. */
void
fences_commit_sub(SubTransactionId sub, SubTransactionId parent)
{
	pending_iterator walk = begin_pending();
	PendingFence *pending;

	while ((pending = next_pending(&walk)) != NULL)
	{
		if (pending->checked_by == sub)
			pending->checked_by = parent;
		if (pending->verified_by == sub)
			pending->verified_by = parent;
	}
}

/* A subtransaction has been rolled back, with the checks made in it. */
void
fences_abort_sub(SubTransactionId sub)
{
	pending_iterator walk = begin_pending();
	PendingFence *pending;

	while ((pending = next_pending(&walk)) != NULL)
	{
		if (pending->checked_by == sub)
			pending_delete_item(pending_fences, pending);
		else if (pending->verified_by == sub)
			pending->verified_by = InvalidSubTransactionId;
	}
}

/* The transaction has ended, and with it the memory that the hash is in. */
void
fences_end(void)
{
	pending_fences = NULL;
}
