/*-------------------------------------------------------------------------
 *
 * changes.c
 *	  What this transaction has changed, and owes when it ends.
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

/* The subtransaction that changed a lease first, or Invalid. */
static SubTransactionId changed_by = InvalidSubTransactionId;

/*
 * Where the WAL of this transaction ends, if all that it has written so far
 * may be lost in a crash; else Invalid.
 */
static XLogRecPtr losable_end = InvalidXLogRecPtr;

/* When the statement began that wrote it. */
static TimestampTz losable_statement = 0;

/* Rows that this session has added since they were last asked for. */
static int	rows_added = 0;
static int	events_added = 0;

/* Notes that this transaction changes a lease. */
void
note_lease_change(void)
{
	if (changed_by == InvalidSubTransactionId)
		changed_by = GetCurrentSubTransactionId();
}

bool
leases_were_changed(void)
{
	return changed_by != InvalidSubTransactionId;
}

/* Notes that a row was added to the tables, which some day is to be removed. */
void
note_row_added(void)
{
	rows_added++;
}

/* How many rows were added since the last call. */
int
take_rows_added(void)
{
	int			added = rows_added;

	rows_added = 0;
	return added;
}

/* The same for events, which have a table of their own to be tidied. */
void
note_event_added(void)
{
	events_added++;
}

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
 * Whether this statement is a transaction by itself, as far as it can be told
 * while it runs.  In a block, or in a pipeline, other statements may do what
 * leaves no trace in XactLastRecEnd: a NOTIFY tells its listeners before the
 * commit is on disk, and other modules write when the transaction commits.
 */
static bool
statement_is_alone(void)
{
	return !IsTransactionBlock() && !(MyXactFlags & XACT_FLAGS_PIPELINING);
}

/*
 * Brackets the writes of a release, which may be lost in a crash: the lease
 * then runs out instead.
 */
void
begin_losable_write(void)
{
	if (XactLastRecEnd != losable_end || !leaselock_async_release ||
		!statement_is_alone())
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
 * Says that this transaction makes a grant, or extends it to one more share, or
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
 * Whether the transaction has written nothing but what may be lost.  Behind the
 * release, a statement of the same pipeline has begun at another time, or has
 * opened a transaction block.
 */
bool
may_lose_all(void)
{
	return losable_end != InvalidXLogRecPtr && losable_end == XactLastRecEnd &&
		losable_statement == GetCurrentStatementStartTimestamp() &&
		!IsTransactionBlock();
}

/* ----------------------------------------------------------------------
 * Whom to wake
 * ----------------------------------------------------------------------
 */

/* Whoever finds no place here wakes by itself within a second. */
#define MAX_WAKES	64

static int	wake_pids[MAX_WAKES];
static int	wake_count = 0;

/* Has the backend that waits for a ticket look again once we have committed. */
void
wake_at_commit(const TicketRow *ticket)
{
	if (ticket->waiter_pid != 0 && wake_count < MAX_WAKES)
		wake_pids[wake_count++] = ticket->waiter_pid;
}

/*
 * Sets the latches, if the transaction has committed.  To be called once its
 * locks are free, so that nobody wakes up to find them taken.  The pid may have
 * been reused; a spurious SetLatch does no harm.  Must not fail.
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
 * The transaction's course
 * ----------------------------------------------------------------------
 */

void
commit_changes_sub(SubTransactionId sub, SubTransactionId parent)
{
	if (changed_by == sub)
		changed_by = parent;
}

void
abort_changes_sub(SubTransactionId sub)
{
	if (changed_by == sub)
		changed_by = InvalidSubTransactionId;
}

void
end_changes(void)
{
	changed_by = InvalidSubTransactionId;
	losable_end = InvalidXLogRecPtr;
}
