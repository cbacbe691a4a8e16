/*-------------------------------------------------------------------------
 *
 * transaction.c
 *	  What the module remembers of a transaction, and does when it ends.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "leaselock.h"

/* The subtransaction that changed a lease first, or Invalid. */
static SubTransactionId lease_changed_by = InvalidSubTransactionId;

/*
 * Where the WAL of this transaction ends, if all that it has written so far
 * may be lost in a crash; else Invalid.
 */
static XLogRecPtr losable_end = InvalidXLogRecPtr;

/* When the statement began that wrote it. */
static TimestampTz losable_statement = 0;

/* Notes that this transaction changes a lease of a lock. */
void
note_lease_change(const LockKey *key)
{
	if (lease_changed_by == InvalidSubTransactionId)
		lease_changed_by = GetCurrentSubTransactionId();
	forget_checked_leases(key);
}

/*
 * Says that this transaction makes a grant, or extends it to one more claim, or
 * hands it over: that is acknowledged by its commit, and must survive a crash,
 * whatever synchronous_commit says.
 */
void
note_acknowledged(void)
{
	losable_end = InvalidXLogRecPtr;
	ForceSyncCommit();
}

/*
 * Brackets the writes of a release, which may be lost in a crash: the lease
 * then runs out instead.  If the statement is a transaction by itself, writes
 * nothing else and hands the lock to nobody, its commit need not wait for the
 * disk, which saves every second wait of a pair of acquire and release.
 *
 * In a transaction block, or behind another statement of a pipeline, it must:
 * other statements may do what the commit makes known to others without WAL of
 * this transaction, a NOTIFY for example, or what is written only after this.
 */
void
begin_losable_write(void)
{
	if (XactLastRecEnd != losable_end || !leaselock_async_release ||
		IsTransactionBlock() || (MyXactFlags & XACT_FLAGS_PIPELINING))
		losable_end = InvalidXLogRecPtr;
	else
		losable_end = PG_UINT64_MAX;	/* still to be written */
}

void
end_losable_write(void)
{
	if (losable_end != PG_UINT64_MAX)
		return;
	losable_end = XactLastRecEnd;
	losable_statement = GetCurrentStatementStartTimestamp();
}

/*
 * Behind the release, a statement of the same pipeline has begun at another
 * time, or has opened a transaction block.
 */
static void
relax_commit(void)
{
	if (losable_end != InvalidXLogRecPtr && losable_end == XactLastRecEnd &&
		losable_statement == GetCurrentStatementStartTimestamp() &&
		!IsTransactionBlock())
		(void) set_config_option("synchronous_commit", "off",
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Whether the commit is going to wait for others: for locks, to verify a
 * fence, or for a standby.
 */
static bool
commit_will_wait(void)
{
	return fences_are_pending() ||
		(SyncRepRequested() && SyncRepStandbyNames[0] != '\0');
}

/*
 * A prepared transaction would keep everybody from the locks that it has
 * changed until somebody ends it, and could wake nobody.
 */
static void
reject_prepare(void)
{
	if (lease_changed_by != InvalidSubTransactionId)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that has changed leases"),
				 errhint("Acquire, renew and release leases in transactions of their own.")));
}

/*
 * At this point there is no active snapshot, which nothing here needs, and in
 * the COMMIT of a procedure the resource owner is not the transaction's.  The
 * verification comes last, so that its tags are kept as short as can be.
 */
static void
before_commit(bool prepare)
{
	MemoryContext old_context = MemoryContextSwitchTo(TopTransactionContext);
	ResourceOwner old_owner = CurrentResourceOwner;

	CurrentResourceOwner = TopTransactionResourceOwner;
	if (prepare)
		reject_prepare();
	else if (lease_changed_by != InvalidSubTransactionId)
	{
		relax_commit();
		tidy_before_commit(commit_will_wait());
	}
	fences_verify();
	CurrentResourceOwner = old_owner;
	MemoryContextSwitchTo(old_context);
}

/* Called by the server at the turning points of a transaction. */
void
leaselock_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			before_commit(true);
			break;
		case XACT_EVENT_PRE_COMMIT:
			before_commit(false);
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			fences_end();
			forget_ticket_tags();
			lease_changed_by = InvalidSubTransactionId;
			losable_end = InvalidXLogRecPtr;
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* nothing of ours runs in a parallel worker */
			break;
	}
}

/* The same for subtransactions. */
void
leaselock_subxact_callback(SubXactEvent event, SubTransactionId sub,
						   SubTransactionId parent, void *arg)
{
	switch (event)
	{
		case SUBXACT_EVENT_COMMIT_SUB:
			fences_commit_sub(sub, parent);
			if (lease_changed_by == sub)
				lease_changed_by = parent;
			break;
		case SUBXACT_EVENT_ABORT_SUB:
			fences_abort_sub(sub);
			forget_checked_leases(NULL);
			if (lease_changed_by == sub)
				lease_changed_by = InvalidSubTransactionId;
			break;
		case SUBXACT_EVENT_START_SUB:
		case SUBXACT_EVENT_PRE_COMMIT_SUB:
			break;
	}
}
