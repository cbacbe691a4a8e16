/*-------------------------------------------------------------------------
 *
 * changes.c
 *	  What this transaction has changed, and what it still has to do when it
 *	  ends.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"

#include "core/changes.h"
#include "leaselock.h"

/* The subtransaction that was the first to change a lease, or Invalid. */
static SubTransactionId changed_by = InvalidSubTransactionId;

/*
 * The end of this transaction's WAL, if a crash may lose all that it has
 * written so far; otherwise Invalid.
 */
static XLogRecPtr losable_end = InvalidXLogRecPtr;

/* Start time of the statement that wrote that WAL. */
static TimestampTz losable_statement = 0;

/*
 * Rows that this session has added since the last take_rows_added() or
 * take_events_added().
 */
static int	rows_added = 0;
static int	events_added = 0;

/* Records that this transaction changes a lease. */
void
note_lease_change(void)
{
	if (changed_by == InvalidSubTransactionId)
		changed_by = GetCurrentSubTransactionId();
}

/* Whether this transaction has changed a lease. */
bool
leases_were_changed(void)
{
	return changed_by != InvalidSubTransactionId;
}

/*
 * Records that a row was added to the tables, which will have to be removed
 * some day.
 */
void
note_row_added(void)
{
	rows_added++;
}

/* Number of rows added since the last call. */
int
take_rows_added(void)
{
	int			added = rows_added;

	rows_added = 0;
	return added;
}

/* Likewise for events; their table is pruned separately. */
void
note_event_added(void)
{
	events_added++;
}

/* Number of events added since the last call. */
int
take_events_added(void)
{
	int			added = events_added;

	events_added = 0;
	return added;
}

/* ----------------------------------------------------------------------
 * Writes that a crash may lose
 * ----------------------------------------------------------------------
 */

/*
 * Whether this statement is a transaction by itself, as far as can be told
 * while it runs.  In a transaction block or a pipeline, other statements may
 * have effects that XactLastRecEnd does not show: a NOTIFY reaches its
 * listeners before the commit is on disk, and other modules write when the
 * transaction commits.
 */
static bool
statement_is_alone(void)
{
	return !IsTransactionBlock() && !(MyXactFlags & XACT_FLAGS_PIPELINING);
}

/*
 * begin_losable_write() and end_losable_write() enclose the writes of a
 * release.  A crash may lose these: the lease then runs out instead.
 */
void
begin_losable_write(void)
{
	if (XactLastRecEnd != losable_end || !leaselock_async_release ||
		!statement_is_alone())
		losable_end = InvalidXLogRecPtr;
	else
		losable_end = PG_UINT64_MAX;	/* set by end_losable_write() */
}

/* See begin_losable_write(). */
void
end_losable_write(void)
{
	if (losable_end != PG_UINT64_MAX)
		return;
	losable_end = XactLastRecEnd;
	losable_statement = GetCurrentStatementStartTimestamp();
}

/*
 * Records that this transaction makes a grant, adds a share to it, or hands it
 * over.  The commit acknowledges that, so it must survive a crash whatever
 * synchronous_commit says.
 */
void
note_acknowledged(void)
{
	losable_end = InvalidXLogRecPtr;
	ForceSyncCommit();
}

/*
 * Whether a crash may lose everything that the transaction has written.  If
 * another statement of the same pipeline follows the release, then either the
 * statement's start time differs or a transaction block has been opened.
 */
bool
may_lose_all(void)
{
	return losable_end != InvalidXLogRecPtr && losable_end == XactLastRecEnd &&
		losable_statement == GetCurrentStatementStartTimestamp() &&
		!IsTransactionBlock();
}

/* ----------------------------------------------------------------------
 * Wake-ups
 * ----------------------------------------------------------------------
 */

/* A waiter that does not fit in here wakes up by itself within a second. */
#define MAX_WAKES	64

static int	wake_pids[MAX_WAKES];
static int	wake_count = 0;

/* Wakes the backend that waits for a ticket after we have committed. */
void
wake_at_commit(const TicketRow *ticket)
{
	if (ticket->waiter_pid != 0 && wake_count < MAX_WAKES)
		wake_pids[wake_count++] = ticket->waiter_pid;
}

/*
 * Sets the latches if the transaction has committed.  Must be called after its
 * locks have been released, so that no waiter wakes up only to find them
 * taken.  A pid may have been reused; a spurious SetLatch does no harm.  Must
 * not fail.
 */
void
wake_waiters(bool is_commit)
{
	for (int i = 0; is_commit && i < wake_count; i++)
	{
		PGPROC	   *proc = BackendPidGetProc(wake_pids[i]);

		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	wake_count = 0;
}

/* ----------------------------------------------------------------------
 * End of a transaction
 * ----------------------------------------------------------------------
 */

/* A subtransaction was committed into its parent. */
void
commit_changes_sub(SubTransactionId sub, SubTransactionId parent)
{
	if (changed_by == sub)
		changed_by = parent;
}

/* A subtransaction was rolled back. */
void
abort_changes_sub(SubTransactionId sub)
{
	if (changed_by == sub)
		changed_by = InvalidSubTransactionId;
}

/* The transaction has ended. */
void
end_changes(void)
{
	changed_by = InvalidSubTransactionId;
	losable_end = InvalidXLogRecPtr;
}
