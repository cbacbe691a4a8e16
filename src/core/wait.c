/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Waiting for a turn inside the server, and waking who waits.
 *
 * A wait is a series of looks, each a transaction of its own.  Between them
 * the backend sleeps on its latch, with neither a snapshot nor a transaction
 * id.  It holds the ticket's liveness tag all the while, at session level, so
 * that its ticket lives exactly as long as it does.
 *
 * Whoever ends a grant sets the latch of the next waiter after its own locks
 * have been released.  Nothing relies on that: a sleep ends when the holder's
 * lease does, and after a second anyway.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "leaselock.h"

/* The longest sleep between two looks. */
#define MAX_SLEEP_MS	1000

/* The first sleep of a waiter whose turn it is while the lock is busy. */
#define MIN_SLEEP_MS	10

/* ----------------------------------------------------------------------
 * Waking
 * ----------------------------------------------------------------------
 */

/* Whoever finds no place here wakes by itself within a second. */
#define MAX_WAKES	64

static int	wake_pids[MAX_WAKES];
static int	wake_count = 0;

/* Has the backend that waits for a ticket look again once we have committed. */
void
wake_at_commit(const LeaseTicket *ticket)
{
	if (ticket->waiter_pid != 0 && wake_count < MAX_WAKES)
		wake_pids[wake_count++] = ticket->waiter_pid;
}

/*
 * Sets the latches after the locks are free, so that nobody wakes up to find
 * them taken.  The pid may be another process by now, which a latch does no
 * harm.  Must not fail.
 */
void
leaselock_release_callback(ResourceReleasePhase phase, bool is_commit,
						   bool is_top_level, void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level)
		return;
	for (int i = 0; is_commit && i < wake_count; i++)
	{
		PGPROC	   *proc = BackendPidGetProc(wake_pids[i]);

		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	wake_count = 0;
}

/* ----------------------------------------------------------------------
 * Sleeping
 * ----------------------------------------------------------------------
 */

/*
 * How long to sleep after a look: until the holder's lease, the wait or our
 * own time is over.  If nobody holds the lock and we did not get it, it is
 * the turn of another, or another transaction works on the lock; that is over
 * soon, or takes long.
 */
static long
sleep_ms(const LeaseAnswer *answer, TimestampTz until, long last_sleep)
{
	int64		ms = MAX_SLEEP_MS;

	if (TransactionTimeoutCompat() > 0)
		ms = Min(ms, Max(TransactionTimeoutCompat() / 2, 1));
	if (!OidIsValid(answer->holder.role))
		return Min(ms, Max(last_sleep * 2, MIN_SLEEP_MS));
	ms = Min(ms, clock_remaining_ms(answer->holder_until, answer->now));
	ms = Min(ms, clock_remaining_ms(answer->ticket.wait_until, answer->now));
	ms = Min(ms, clock_remaining_ms(until, answer->now));
	return Max(ms, 1);
}

/*
 * Sleeps until the latch is set or the time is over.  Notices that the client
 * has gone, whatever client_connection_check_interval says.
 */
static void
sleep_on_latch(long ms)
{
	InvalidateCatalogSnapshotConditionally();
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, LeaseWaitEventCompat());
	if (MyProcPort != NULL && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}

/*
 * One look for a ticket that this backend waits for, in the current
 * transaction.  Interrupts are held, so that an error raised in here is never
 * a cancel: a cancel comes when nothing is going on.  For the same reason the
 * tables are locked before, where that can be cancelled.
 *
 * A cancel that came meanwhile is raised right after, though the look may have
 * got the lock: that is not committed yet.  Left to itself a statement_timeout
 * would strike when the statement is over, and the client get an error that it
 * takes for the answer to its next one.
 */
static void
look_uninterrupted(const pg_uuid_t *uuid, int flags, volatile bool *looking,
				   LeaseAnswer *answer)
{
	store_lock_tables();
	*looking = true;
	HOLD_INTERRUPTS();
	lease_look(uuid, flags, answer);
	RESUME_INTERRUPTS();
	*looking = false;
	CHECK_FOR_INTERRUPTS();
}

/*
 * Looks and sleeps until the ticket waits no more, or the time is over; then
 * the ticket is a polling one again, and that is committed.  Any other answer
 * is given in the transaction of the last look, which is left to be committed.
 */
static void
wait_loop(const pg_uuid_t *uuid, int flags, TimestampTz until,
		  volatile bool *looking, LeaseAnswer *answer)
{
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext look_context = AllocSetContextCreate(caller_context,
													   "leaselock look",
													   ALLOCSET_SMALL_SIZES);
	long		ms = 0;

	for (;;)
	{
		ResetLatch(MyLatch);
		MemoryContextReset(look_context);
		MemoryContextSwitchTo(look_context);
		look_uninterrupted(uuid, flags, looking, answer);
		if (answer->state == LEASE_WAITING && until <= answer->now)
		{
			/*
			 * The ticket lives on without us, by this sign of life.  It
			 * counts once it is committed, which must be before our liveness
			 * tag goes.
			 */
			lease_look(uuid, LOOK_MAY_WAIT, answer);
			MemoryContextSwitchTo(caller_context);
			if (answer->state == LEASE_WAITING)
				SPI_commit();
			break;
		}
		if (answer->state != LEASE_WAITING)
			break;
		ms = sleep_ms(answer, until, ms);
		MemoryContextSwitchTo(caller_context);
		SPI_commit();
		sleep_on_latch(ms);
		flags = LOOK_SERVED | LOOK_SILENT;
	}
	MemoryContextSwitchTo(caller_context);
}

/*
 * After an error that struck between looks: in a transaction of its own gives
 * the ticket up, or (lease_wait) makes it a polling one again.  If that fails
 * too, the ticket dies with our liveness tag.
 */
static void
tidy_after_error(const pg_uuid_t *uuid, bool give_up)
{
	MemoryContext context = CurrentMemoryContext;
	LeaseAnswer answer;

	PG_TRY();
	{
		SPI_rollback();
		if (give_up)
			lease_release(uuid, &answer);
		else
			lease_look(uuid, LOOK_MAY_WAIT | LOOK_NO_GRANT, &answer);
		SPI_commit();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
}

/*
 * Waits for a ticket to have its turn, until a time at the most.  The caller
 * has connected to SPI non-atomically.  With "request" the ticket is acquired
 * first, and given up if an error ends the wait; uuid, key and request id name
 * it.  Raises what ends a statement: cancel, time-outs, termination.
 */
void
wait_for_turn(const pg_uuid_t *uuid, const LockKey *key,
			  const pg_uuid_t *request_id, const LeaseRequest *request,
			  TimestampTz until, LeaseAnswer *answer)
{
	MemoryContext caller_context = CurrentMemoryContext;
	pg_uuid_t	ticket = *uuid;
	volatile int flags = LOOK_SERVED;
	volatile bool looking = false;
	volatile bool committed = false;

	take_liveness_tag(key, request_id);
	PG_TRY();
	{
		answer->state = LEASE_WAITING;
		if (request != NULL)
		{
			lease_acquire(request, answer);
			ticket = answer->ticket.ticket;
			if (answer->state == LEASE_WAITING)
				SPI_commit();
			/* mostly it says already that this backend waits */
			if (answer->ticket.waiter_pid == MyProcPid)
				flags |= LOOK_SILENT;
		}
		committed = true;
		if (answer->state == LEASE_WAITING)
			wait_loop(&ticket, flags, until, &looking, answer);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller_context);
		error = CopyErrorData();
		FlushErrorState();
		if (committed && !looking)
			tidy_after_error(&ticket, request != NULL);
		drop_liveness_tag(key, request_id);
		ReThrowError(error);
	}
	PG_END_TRY();
	drop_liveness_tag(key, request_id);
}
