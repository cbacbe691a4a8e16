/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  What happens at the turning points of a transaction.
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

/* What synchronous_commit was, while a commit does without it. */
static int	relaxed_from = -1;

/*
 * Lets the commit return before it is on disk, if all that it may lose is a
 * release: the lease then runs out instead.  That saves every second wait of a
 * pair of acquire and release.  The variable is set as its assign hook would;
 * to set it as SET LOCAL does costs as much as a write.
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

/* Once the commit is done, or has failed. */
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
	if (leases_were_changed())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that has changed leases"),
				 errhint("Acquire, renew and release leases in separate transactions.")));
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
	else if (leases_were_changed())
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

/* Called by the server while it frees what a transaction has held. */
void
leaselock_release_callback(ResourceReleasePhase phase, bool is_commit,
						   bool is_top_level, void *arg)
{
	if (phase == RESOURCE_RELEASE_AFTER_LOCKS && is_top_level)
		wake_waiters(is_commit);
}
