/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  Fence checks, and their verification when the transaction commits.
 *
 * A check reads the lock's row without taking a lock, so that a stalled
 * transaction does not delay anybody.  The result is remembered for the
 * transaction and verified immediately before the commit, under the name tag
 * in RowShareLock.  No grant can be made while that is held, and it is held
 * until the commit is complete.  Therefore no write of a superseded holder
 * commits after a newer grant.
 *
 * Pending fences are kept in a hash table in TopTransactionContext.  An entry
 * belongs to the subtransaction that first checked the fence, and is removed
 * if that is rolled back.  If the transaction itself ends a grant that it has
 * checked, it verifies the entry immediately, under the name tag in
 * ExclusiveLock: nobody else can change the lock until the transaction ends.
 * The entry then counts as verified by that subtransaction, and is pending
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
	PendingKey	key;			/* strings are in TopTransactionContext */
	RowVersion	version;		/* of the lock's row at the check */
	uint64		generation;		/* store_event_generation() then */
	SubTransactionId checked_by;
	SubTransactionId verified_by;	/* Invalid: to be verified at commit */
	Oid			role;			/* last role allowed to check it */
	TimestampTz live_until;		/* do not read the lease before */
	char		status;			/* used by simplehash */
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

/* NULL: none.  Adding an entry may move the others. */
static pending_hash * pending_fences = NULL;

/* ----------------------------------------------------------------------
 * Pending fences
 * ----------------------------------------------------------------------
 */

/* Starts a walk through all entries, during which entries may be removed. */
static pending_iterator
begin_pending(void)
{
	pending_iterator walk = {0};

	if (pending_fences != NULL)
		pending_start_iterate(pending_fences, &walk);
	return walk;
}

/* Returns the next entry; NULL at the end. */
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

/* Remembers that a check passed, given the row of the lock that was loaded. */
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
 * In a transaction with a transaction-wide snapshot, refuses a grant that the
 * snapshot cannot see (40001): what the transaction has read may be older than
 * the previous holder's last write.  The row records which transaction made
 * the grant, because reading the row with the old snapshot would leave a
 * predicate lock.
 */
static void
reject_younger_grant(const LockRow *lock)
{
	uint64		granted = U64FromFullTransactionId(lock->granted_xid);
	uint64		next;
	TransactionId xid;

	if (!IsolationUsesXactSnapshot())
		return;

	/* too old to be compared with the 32-bit ids of a snapshot */
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
 * Loads a lock's row, or recalls it: the same fence is often checked for many
 * writes in a row.
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
 * Judges a fence by the lock's present row, and remembers it for the commit if
 * it is current.  If the transaction has checked the fence before, the check
 * is answered from memory until the lease runs out.  Raises 42501, and 40001
 * as reject_younger_grant() does.
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

/* The hint for a fence that is stale for the given reason. */
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

/*
 * Raises LS001 with the reason.  "hint" replaces the standard hint if the
 * caller knows more; otherwise it is NULL.
 */
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
				psprintf("This fence was not issued; the newest fence of the lock is " INT64_FORMAT ".",
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
 * Whether a fence belongs to the lock's present grant.  If so, it is verified
 * again at commit.  Raises 42501 without access, and 40001 as
 * reject_younger_grant() does.
 */
bool
fence_check(const LockKey *key, int64 fence, bool allow_lapsed)
{
	LockRow		lock;

	return check_fence(key, fence, allow_lapsed, &lock) == FENCE_CURRENT;
}

/*
 * Like fence_check(), but raises LS001 if that returns false.  "hint" may be
 * NULL.
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
 * Raises LS003 unless this transaction has checked a fence of the lock and has
 * not ended that grant since.
 */
void
fence_require_check(const LockKey *key)
{
	pending_iterator walk = begin_pending();
	PendingFence *pending;
	const char *other = NULL;	/* a scope in which this name was checked */

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

/* Raises LS001 unless the fence is that of the lock's grant, lapsed or not. */
static void
verify_fence(const LockRow *lock, int64 fence)
{
	if (!fence_may_commit(lock, fence))
		report_stale_fence(&lock->key, fence,
						   judge_fence(lock, fence, NO_TIME), lock->fence, STOP_HINT);
}

/*
 * Verifies the pending fences of a lock whose grant this transaction is about
 * to end or replace.  The caller holds the name tag in ExclusiveLock and
 * passes the row before the change.  Raises LS001.
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

/* Whether the commit may have to wait in order to verify a fence. */
bool
fences_are_pending(void)
{
	return pending_fences != NULL;
}

/* The fences to be verified, sorted by the keys of their locks. */
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
 * Raises LS001 at commit, after writing to the server log if
 * leaselock.log_refusals is on.  The fence has passed a check before, so the
 * name and the scope cannot be wrong.
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
 * Verifies one fence under the name tag.  If the lock's row is still the
 * version that passed the check, the fence passes again, because the
 * verification requires less than the check did.  The generation is compared
 * too: if the table has been rewritten, another row of the same transaction
 * may have the same version.  The caller has locked the table.
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
 * Verifies all pending fences before a commit, in the order of the keys of
 * their locks.  The tags are held until the commit is visible to others, and
 * so is a lock on the table: if the extension were dropped and created again,
 * its tags would differ, and grants could be made during this commit.  Raises
 * LS001, and 55P03 or 40P01 if a tag cannot be acquired.
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
	/* dropping the extension ended every grant */
	if (!store_begin_verification())
		refuse_commit(&entries[0]->key.lock, entries[0]->key.fence,
					  FENCE_UNKNOWN, 0);
	for (int i = 0; i < count; i++)
		verify_pending(entries[i]);
	store_end_event();
}

/* ----------------------------------------------------------------------
 * End of a transaction
 * ----------------------------------------------------------------------
 */

/*
 * Makes the next check of a lock (of any lock if NULL) read the lease again,
 * because this transaction has changed it or has undone a change.
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

/* A subtransaction was committed into its parent. */
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

/* A subtransaction was rolled back, together with the checks made in it. */
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

/*
 * The transaction has ended, and the memory context of the hash table with it.
 */
void
fences_end(void)
{
	pending_fences = NULL;
}
