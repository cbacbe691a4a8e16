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
 * have been released; see wait_loop for why no wake-up is lost.  A sleep ends
 * when the holder's lease does, and after a second anyway.
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

/* What a backend that waits for a ticket knows from one look to the next. */
typedef struct Waiter
{
	const LockKey *key;
	const pg_uuid_t *request_id;
	TimestampTz until;			/* when its own patience ends */
	int			flags;			/* for its next look */
	bool		known;			/* the ticket's row has said that it waits */
	bool		announced;		/* whoever releases from now on reads that */
	long		nap;			/* the last short sleep, 0: none */
	bool		overslept;		/* the last sleep took its whole second */
	TimestampTz holder_until;	/* of another's grant, NO_TIME: none seen */
} Waiter;

/* How long to wait in one go. */
static long
slice_ms(void)
{
	if (TransactionTimeoutCompat() > 0)
		return Min(MAX_SLEEP_MS, Max(TransactionTimeoutCompat() / 2, 1));
	return MAX_SLEEP_MS;
}

/*
 * How long a look may be away at the longest: until the holder's lease, the
 * wait or our own time is over.
 */
static long
look_due_ms(const Waiter *waiter, const LeaseAnswer *answer)
{
	int64		ms = slice_ms();

	if (OidIsValid(answer->holder.role))
		ms = Min(ms, clock_remaining_ms(answer->holder_until, answer->now));
	ms = Min(ms, clock_remaining_ms(answer->ticket.wait_until, answer->now));
	ms = Min(ms, clock_remaining_ms(waiter->until, answer->now));
	return Max(ms, 1);
}

/*
 * Notices that the client has gone, whatever client_connection_check_interval
 * says.
 */
static void
check_client(void)
{
	if (MyProcPort != NULL && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}

/* Sleeps until the latch is set; false if the time was over before. */
static bool
sleep_on_latch(long ms)
{
	int			events;

	InvalidateCatalogSnapshotConditionally();
	events = WaitLatch(MyLatch,
					   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   ms, LeaseWaitEventCompat());
	check_client();
	return (events & WL_LATCH_SET) != 0;
}

/*
 * The transaction that kept from a look what it needed, if it is still there:
 * the ticket's tag, to say that we wait; and where it is our turn, all tags of
 * a grant.  Where it is another's turn, who has that one's ticket tag takes the
 * turn or gives it up.
 */
static VirtualTransactionId
find_obstacle(const Waiter *waiter, const LeaseAnswer *answer)
{
	VirtualTransactionId keeper = {0};
	bool		own_turn = !OidIsValid(answer->holder.role) &&
		answer->position == 1;
	TagWait		waits[3];
	int			count = 0;

	if (!waiter->known || own_turn)
		waits[count++] = wait_on_ticket(waiter->key, waiter->request_id);
	if (own_turn)
	{
		waits[count++] = wait_on_name(waiter->key, NAME_CHANGE);
		waits[count++] = wait_on_scope(waiter->key->scope);
	}
	else if (answer->has_head)
		waits[count++] = wait_on_ticket(waiter->key,
										&answer->head_request_id);
	for (int i = 0; i < count && !VirtualTransactionIdIsValid(keeper); i++)
		keeper = find_keeper(&waits[i]);
	return keeper;
}

/*
 * Sleeps until a look is due.  If nobody holds the lock and we did not get it,
 * it is the turn of another; that is over soon, or takes long.
 */
static void
sleep_till_look(Waiter *waiter, const LeaseAnswer *answer)
{
	long		ms = look_due_ms(waiter, answer);

	if (OidIsValid(answer->holder.role))
		waiter->nap = 0;
	else
	{
		waiter->nap = Max(waiter->nap * 2, MIN_SLEEP_MS);
		ms = Min(ms, waiter->nap);
	}
	waiter->holder_until = OidIsValid(answer->holder.role) ?
		answer->holder_until : NO_TIME;
	waiter->overslept = !sleep_on_latch(ms) && ms == MAX_SLEEP_MS;
}

/*
 * Says in the log that a turn came by a release and no wake-up: a fault, which
 * the tests look for.
 */
static void
report_lost_wakeup(const Waiter *waiter, const LeaseAnswer *answer)
{
	if (waiter->overslept && answer->state == LEASE_HELD &&
		waiter->holder_until > answer->now)
		ereport(DEBUG1,
				(errmsg_internal("nobody woke the waiter for lock \"%s\" in scope \"%s\"",
								 waiter->key->name, waiter->key->scope)));
}

/* ----------------------------------------------------------------------
 * Looking
 * ----------------------------------------------------------------------
 */

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
 * After a look that left the ticket waiting: commits it, and waits until
 * another is due.  See wait_loop for "releaser".
 */
static void
wait_till_look(Waiter *waiter, VirtualTransactionId releaser,
			   const LeaseAnswer *answer)
{
	bool		wrote = TransactionIdIsValid(GetTopTransactionIdIfAny());
	VirtualTransactionId obstacle = releaser;

	if (answer->ticket.waiter_pid == MyProcPid)
	{
		waiter->known = true;
		waiter->flags |= LOOK_SILENT;
	}
	if (!wrote && !VirtualTransactionIdIsValid(releaser))
	{
		waiter->announced = waiter->known;
		obstacle = find_obstacle(waiter, answer);
	}
	SPI_commit();

	waiter->overslept = false;
	if (wrote)
		return;
	if (!VirtualTransactionIdIsValid(obstacle))
		sleep_till_look(waiter, answer);
	else
	{
		bool		ended = wait_for_transaction(obstacle,
												 look_due_ms(waiter, answer));

		if (ended && VirtualTransactionIdIsValid(releaser))
			waiter->announced = waiter->known;
		waiter->nap = 0;
		check_client();
	}
}

/*
 * Looks and sleeps until the ticket waits no more, or the time is over; then
 * the ticket is a polling one again, and that is committed.  Any other answer
 * is given in the transaction of the last look, which is left to be committed.
 *
 * No wake-up is lost.  Whoever ends a grant takes the name tag in NAME_CHANGE,
 * then reads the queue, sets the latch of the first waiter that it finds there
 * once its commit is visible, and keeps the tag until then.  We commit the
 * ticket with our pid, then ask who has the tag in that mode, then look.
 * Whoever has it at that moment may have read the queue without us: it is the
 * releaser whose end is waited for.  Whoever gave it back before has
 * committed, so the look sees that.  Whoever takes it later finds our ticket,
 * and from then on so does everybody: we are announced, and need not ask again.
 *
 * A latch that is set while we wait for something else, in a look or its
 * commit, counts for nothing.  That does no harm before a look reads the lock,
 * which the releaser had committed by then.  After that a look that writes
 * nothing waits for nothing more.  One that wrote something may have waited to
 * commit it, so it is followed by another look at once.  That ends, for what a
 * silent look writes is not written again by the next.
 */
static void
wait_loop(const pg_uuid_t *uuid, Waiter *waiter, volatile bool *looking,
		  LeaseAnswer *answer)
{
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext look_context = AllocSetContextCreate(caller_context,
													   "leaselock look",
													   ALLOCSET_SMALL_SIZES);
	TagWait		release = wait_on_name(waiter->key, NAME_VERIFY);

	for (;;)
	{
		VirtualTransactionId releaser = {0};

		ResetLatch(MyLatch);
		MemoryContextReset(look_context);
		MemoryContextSwitchTo(look_context);
		if (!waiter->announced)
			releaser = find_keeper(&release);
		look_uninterrupted(uuid, waiter->flags, looking, answer);
		report_lost_wakeup(waiter, answer);
		if (answer->state == LEASE_WAITING && waiter->until <= answer->now)
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
		wait_till_look(waiter, releaser, answer);
	}
	MemoryContextSwitchTo(caller_context);
}

/*
 * Acquires a ticket to wait for, within the time that the request gives it,
 * behind transactions that keep the queue or the ticket too.  Each round is a
 * transaction of its own, so that no snapshot is held between them.
 */
static void
acquire_ticket(const LeaseRequest *request, LeaseAnswer *answer)
{
	TimestampTz until = clock_read(NO_TIME) + request->wait_us;
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext round_context = AllocSetContextCreate(caller_context,
														"leaselock round",
														ALLOCSET_SMALL_SIZES);
	TagWait		obstacle;
	bool		first = true;

	MemoryContextSwitchTo(round_context);
	while (!lease_try_acquire(request, until, first, answer, &obstacle))
	{
		MemoryContextReset(round_context);
		SPI_commit();
		wait_for_keeper(&obstacle, until, slice_ms());
		check_client();
		first = false;
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
	Waiter		waiter = {.key = key, .request_id = request_id,
	.until = until, .flags = LOOK_SERVED, .holder_until = NO_TIME};
	volatile bool looking = false;
	volatile bool committed = false;

	take_liveness_tag(key, request_id);
	PG_TRY();
	{
		answer->state = LEASE_WAITING;
		if (request != NULL)
		{
			acquire_ticket(request, answer);
			ticket = answer->ticket.ticket;
			if (answer->state == LEASE_WAITING)
				SPI_commit();
			/* mostly it says already that this backend waits */
			if (answer->ticket.waiter_pid == MyProcPid)
				waiter.flags |= LOOK_SILENT;
		}
		committed = true;
		if (answer->state == LEASE_WAITING)
			wait_loop(&ticket, &waiter, &looking, answer);
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
