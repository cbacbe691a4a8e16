/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  The callbacks at the end of transactions and subtransactions.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "utils/memutils.h"

#include "compat.h"
#include "core/changes.h"
#include "core/commit.h"
#include "core/fence.h"
#include "core/prune.h"
#include "core/serverlog.h"
#include "store/tag.h"

/*
 * The value of synchronous_commit while a commit runs without it; -1
 * otherwise.
 */
static int	relaxed_from = -1;

/*
 * Lets the commit return before it is on disk if it can lose nothing but a
 * release: the lease then runs out instead.  This saves every other disk wait
 * when a client acquires and releases in turn.  We set the variable as its
 * assign hook does, because doing it as SET LOCAL does would cost as much as a
 * write.
 */
static void
relax_commit(void)
{
	if (!may_lose_all() || synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		return;
	relaxed_from = synchronous_commit;
	synchronous_commit = SYNCHRONOUS_COMMIT_OFF;
	assign_synchronous_commit(synchronous_commit, NULL);
}

/* Undoes relax_commit() after the commit has succeeded or failed. */
static void
restore_commit(void)
{
	if (relaxed_from < 0)
		return;
	synchronous_commit = relaxed_from;
	assign_synchronous_commit(synchronous_commit, NULL);
	relaxed_from = -1;
}

/*
 * Whether the commit will have to wait: for locks, to verify a fence, or for a
 * synchronous standby.
 */
static bool
commit_will_wait(void)
{
	return fences_are_pending() ||
		(SyncRepRequested() && SyncRepStandbyNames[0] != '\0');
}

/*
 * A prepared transaction would keep the locks that it has changed from
 * everybody until it is finished, and could not wake any waiter.
 */
static void
reject_prepare(void)
{
	if (leases_were_changed())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that has changed leases"),
				 errhint("Acquire, renew and release leases in separate transactions.")));
}

/*
 * At this point there is no active snapshot (nothing here needs one), and in a
 * COMMIT within a procedure CurrentResourceOwner is not the transaction's.
 * Fences are verified last, so that their tags are held as briefly as
 * possible.
 */
static void
before_commit(bool prepare)
{
	MemoryContext old_context = MemoryContextSwitchTo(TopTransactionContext);
	ResourceOwner old_owner = CurrentResourceOwner;

	CurrentResourceOwner = TopTransactionResourceOwner;
	if (prepare)
		reject_prepare();
	else if (leases_were_changed())
	{
		relax_commit();
		prune_before_commit(commit_will_wait());
	}
	fences_verify();
	CurrentResourceOwner = old_owner;
	MemoryContextSwitchTo(old_context);
}

/*
 * Transaction callback.  Before a commit or PREPARE it may raise what
 * reject_prepare(), pruning and fences_verify() raise; afterwards it must not
 * fail.
 */
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
			if (event == XACT_EVENT_COMMIT)
				write_log_lines();
			restore_commit();
			fences_end();
			forget_tags();
			end_changes();
			end_log();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* none of our functions runs in a parallel worker */
			break;
	}
}

/* Subtransaction callback. */
void
leaselock_subxact_callback(SubXactEvent event, SubTransactionId sub,
						   SubTransactionId parent, void *arg)
{
	switch (event)
	{
		case SUBXACT_EVENT_COMMIT_SUB:
			fences_commit_sub(sub, parent);
			commit_changes_sub(sub, parent);
			commit_log_sub(sub, parent);
			break;
		case SUBXACT_EVENT_ABORT_SUB:
			fences_abort_sub(sub);
			fences_forget_leases(NULL);
			abort_changes_sub(sub);
			abort_log_sub(sub);
			break;
		case SUBXACT_EVENT_START_SUB:
		case SUBXACT_EVENT_PRE_COMMIT_SUB:
			break;
	}
}

/*
 * Resource release callback: wakes waiters after the locks have been released.
 */
void
leaselock_release_callback(ResourceReleasePhase phase, bool is_commit,
						   bool is_top_level, void *arg)
{
	if (phase == RESOURCE_RELEASE_AFTER_LOCKS && is_top_level)
		wake_waiters(is_commit);
}
