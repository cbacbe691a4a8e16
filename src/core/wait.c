/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Waiting for a turn inside the server.
 *
 * A wait is a series of looks, each in its own transaction.  Between looks the
 * backend sleeps on its latch, without a snapshot or a transaction id.
 * Throughout the wait it holds the ticket's liveness tag at session level, so
 * that the ticket is alive exactly as long as the backend is.
 *
 * Whoever ends a grant sets the latch of the next waiter after releasing its
 * own locks.  A sleep also ends when the holder's lease runs out, and after a
 * second at the latest.
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
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "core/wait.h"
#include "store/clock.h"
#include "store/rows.h"
#include "store/table.h"

/* The longest sleep between two looks. */
#define MAX_SLEEP_MS	1000

/* The first sleep of a waiter while nobody holds the lock. */
#define MIN_SLEEP_MS	10

/* The state of a waiting backend from one look to the next. */
typedef struct Waiter
{
	LockKey		key;
	pg_uuid_t	ticket;
	pg_uuid_t	id;				/* the id used in the ticket's tags */
	Tag			liveness;		/* advertises that this backend waits */
	TimestampTz until;			/* end of the time-out of lease_wait */
	int			flags;			/* for the next look */
	bool		looking;		/* an error now comes from the look */
	bool		known;			/* the row has our pid */
	bool		announced;		/* all later releasers will see that */
	long		short_sleep_ms; /* last short sleep in ms; 0: none */
	bool		slept_full_second;	/* the last sleep lasted a whole second */
	TimestampTz holder_until;	/* of another's grant; NO_TIME: none seen */
} Waiter;

/* ----------------------------------------------------------------------
 * Sleeping
 * ----------------------------------------------------------------------
 */

/*
 * The longest time that a single sleep or wait may take.  It stays well below
 * transaction_timeout.
 */
static long
max_sleep_ms(void)
{
	if (TransactionTimeoutCompat() > 0)
		return Min(MAX_SLEEP_MS, Max(TransactionTimeoutCompat() / 2, 1));
	return MAX_SLEEP_MS;
}

/*
 * The time until the next look is due: when the holder's lease, the wait or
 * our own time-out ends, or earlier.
 */
static long
look_due_ms(const Waiter *waiter, const LeaseAnswer *answer)
{
	int64		ms = max_sleep_ms();

	if (OidIsValid(answer->holder.role))
		ms = Min(ms, clock_remaining_ms(answer->holder_until, answer->now));
	ms = Min(ms, clock_remaining_ms(answer->ticket.wait_until, answer->now));
	ms = Min(ms, clock_remaining_ms(waiter->until, answer->now));
	return Max(ms, 1);
}

/*
 * Detects that the client has gone, whatever client_connection_check_interval
 * is set to.
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

/* Sleeps until the latch is set; returns false if the time runs out first. */
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
 * Finds a running transaction that holds a tag that the look needed: the
 * ticket tag, if our pid is not yet recorded or it is our turn; and, if it is
 * our turn, the other tags of a grant.  If it is another waiter's turn, finds
 * the holder of that waiter's ticket tag, which takes the turn or gives it up.
 */
static VirtualTransactionId
find_blocking_transaction(const Waiter *waiter, const LeaseAnswer *answer)
{
	VirtualTransactionId tag_holder = {0};
	bool		own_turn = (!OidIsValid(answer->holder.role) &&
							answer->position == 1);
	Tag			tags[3];
	LOCKMODE	modes[3] = {ExclusiveLock, ExclusiveLock, RowShareLock};
	int			count = 0;

	if (!waiter->known || own_turn)
		tags[count++] = ticket_tag(&waiter->key, &waiter->id);
	if (own_turn)
	{
		tags[count++] = name_tag(&waiter->key);
		tags[count++] = scope_tag(waiter->key.scope);
	}
	else if (answer->has_head)
		tags[count++] = ticket_tag(&waiter->key, &answer->head_id);
	for (int i = 0; i < count && !VirtualTransactionIdIsValid(tag_holder); i++)
		tag_holder = find_tag_holder(&tags[i], modes[i]);
	return tag_holder;
}

/*
 * Sleeps until a look is due.  If nobody holds the lock and we did not get it,
 * it is the turn of another waiter.  That usually ends soon; if not, back off.
 */
static void
sleep_till_look(Waiter *waiter, const LeaseAnswer *answer)
{
	bool		is_held = OidIsValid(answer->holder.role);
	long		ms = look_due_ms(waiter, answer);

	waiter->short_sleep_ms = is_held ? 0 :
		Max(waiter->short_sleep_ms * 2, MIN_SLEEP_MS);
	if (!is_held)
		ms = Min(ms, waiter->short_sleep_ms);
	waiter->holder_until = is_held ? answer->holder_until : NO_TIME;
	waiter->slept_full_second = !sleep_on_latch(ms) && ms == MAX_SLEEP_MS;
}

/*
 * Logs that the turn came through a release without a wake-up.  The tests look
 * for this bug.
 */
static void
report_lost_wakeup(const Waiter *waiter, const LeaseAnswer *answer)
{
	if (waiter->slept_full_second && answer->state == LEASE_HELD &&
		waiter->holder_until > answer->now)
		ereport(DEBUG1,
				(errmsg_internal("nobody woke the waiter for lock \"%s\" in scope \"%s\"",
								 waiter->key.name, waiter->key.scope)));
}

/* ----------------------------------------------------------------------
 * Looking
 * ----------------------------------------------------------------------
 */

/*
 * One look at a ticket that this backend waits for, in the current
 * transaction.  Interrupts are held off, so that an error raised in here is
 * never a cancel: cancels arrive only while nothing is in progress.  For the
 * same reason the tables are locked beforehand, where that can be cancelled.
 *
 * A cancel that arrived meanwhile is raised immediately afterwards, even if
 * the look got the lock, because that is not committed yet.  Otherwise a
 * statement_timeout would fire after the end of the statement, and the client
 * would take the error for the answer to its next one.
 */
static void
look_uninterrupted(Waiter *waiter, LeaseAnswer *answer)
{
	store_lock_tables();
	waiter->looking = true;
	HOLD_INTERRUPTS();
	lease_look(&waiter->ticket, waiter->flags, answer);
	RESUME_INTERRUPTS();
	waiter->looking = false;
	CHECK_FOR_INTERRUPTS();
}

/*
 * After a look that left the ticket waiting: commits it, and waits until the
 * next look is due.  See wait_loop() for "releaser".
 */
static void
wait_till_look(Waiter *waiter, VirtualTransactionId releaser,
			   const LeaseAnswer *answer)
{
	bool		wrote = TransactionIdIsValid(GetTopTransactionIdIfAny());
	VirtualTransactionId blocking = releaser;
	bool		ended;

	if (answer->ticket.waiter_pid == MyProcPid)
	{
		waiter->known = true;
		waiter->flags |= LOOK_SILENT;
	}
	if (!wrote && !VirtualTransactionIdIsValid(releaser))
	{
		waiter->announced = waiter->known;
		blocking = find_blocking_transaction(waiter, answer);
	}
	SPI_commit();

	waiter->slept_full_second = false;
	if (wrote)
		return;
	if (!VirtualTransactionIdIsValid(blocking))
	{
		sleep_till_look(waiter, answer);
		return;
	}
	ended = wait_for_transaction(blocking, look_due_ms(waiter, answer));
	if (ended && VirtualTransactionIdIsValid(releaser))
		waiter->announced = waiter->known;
	waiter->short_sleep_ms = 0;
	check_client();
}

/*
 * Looks and sleeps until the ticket no longer waits or the time runs out.  In
 * the latter case the ticket becomes a polling one again, and that is
 * committed.  Any other answer comes from the transaction of the last look,
 * which the caller leaves open to be committed.
 *
 * No wake-up is lost.  Whoever ends a grant acquires the name tag in
 * ExclusiveLock, then reads the queue, and sets the latch of the first waiter
 * found there once its commit is visible; it holds the tag until then.  We
 * commit the ticket with our pid, then find out who holds the tag in that
 * mode, then look.  There are three cases.  A session that holds the tag at
 * that moment may have read the queue without us: it is the releaser, and we
 * wait for the end of its transaction.  A session that released the tag before
 * has committed, so the look sees its changes.  A session that acquires the
 * tag later finds our ticket, as will all others from then on: we are
 * announced, and need not find out again.
 *
 * A latch that is set while we wait for something else, in a look or its
 * commit, is ignored.  Before a look reads the lock this does no harm, because
 * the releaser had committed by then.  After that, a look that writes nothing
 * does not wait any more.  A look that has written something may have waited
 * to commit it, so another look follows at once.  This ends, because a silent
 * look does not repeat what the previous one wrote.
 */
static void
wait_loop(Waiter *waiter, LeaseAnswer *answer)
{
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext look_context = AllocSetContextCreate(caller_context,
													   "leaselock look",
													   ALLOCSET_SMALL_SIZES);
	Tag			name = name_tag(&waiter->key);

	for (;;)
	{
		VirtualTransactionId releaser = {0};

		ResetLatch(MyLatch);
		MemoryContextReset(look_context);
		MemoryContextSwitchTo(look_context);
		if (!waiter->announced)
			releaser = find_tag_holder(&name, RowShareLock);
		look_uninterrupted(waiter, answer);
		report_lost_wakeup(waiter, answer);
		if (answer->state == LEASE_WAITING && waiter->until <= answer->now)
		{
			/*
			 * This sign of life keeps the ticket alive without us.  It counts
			 * once it has been committed, which must happen before we release
			 * the liveness tag.
			 */
			lease_look(&waiter->ticket, LOOK_MAY_WAIT, answer);
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
 * Initializes the waiter for the ticket that an acquisition is going to
 * create.
 */
static void
attend_request(Waiter *waiter, const LeaseEvent *event)
{
	waiter->key = event->key;
	waiter->ticket = event->ticket;
	waiter->id = event->has_request_id ? event->request_id : event->ticket;
	waiter->liveness = liveness_tag(&waiter->key, &waiter->id);
}

/*
 * Locks a table until the transaction ends, so that the extension cannot be
 * dropped.  If the extension has been dropped and created again since the key
 * was computed, the ticket must belong to the new extension, and others must
 * be able to see from the new tags that we are alive.
 */
static void
renew_request(Waiter *waiter, LeaseEvent *event)
{
	store_close_table(store_open_table(REL_LOCKS));
	renew_lock_key(&event->key);
	if (waiter->key.hash == event->key.hash)
		return;
	store_sign_ticket(&event->ticket, &event->key);
	drop_liveness(&waiter->liveness);
	attend_request(waiter, event);
	take_liveness(&waiter->liveness);
}

/*
 * Acquires a ticket to wait for, within the time that the call allows, even
 * while other transactions hold the queue tag or the ticket tag.  Each round
 * is a transaction of its own, so that no snapshot is held in between.
 */
static void
acquire_ticket(Waiter *waiter, LeaseEvent *event, int64 wait_us,
			   LeaseAnswer *answer)
{
	TimestampTz until = clock_read(NO_TIME) + wait_us;
	MemoryContext caller_context = CurrentMemoryContext;
	MemoryContext round_context = AllocSetContextCreate(caller_context,
														"leaselock round",
														ALLOCSET_SMALL_SIZES);
	BusyTag		busy_tag;
	bool		first = true;

	event->may_queue = wait_us > 0;
	MemoryContextSwitchTo(round_context);
	for (;;)
	{
		renew_request(waiter, event);
		if (lease_try_acquire(event, until, first, answer, &busy_tag))
			break;
		SPI_commit();
		wait_for_tag_holder(&busy_tag.tag, busy_tag.mode, busy_tag.brief,
							until - clock_read(NO_TIME), max_sleep_ms());
		check_client();
		MemoryContextReset(round_context);
		first = false;
	}
	MemoryContextSwitchTo(caller_context);
}

/* ----------------------------------------------------------------------
 * Waits
 * ----------------------------------------------------------------------
 */

/*
 * Cleans up after an error between looks: in its own transaction, gives the
 * ticket up or (lease_wait) makes it a polling one again.  If that fails too,
 * the ticket dies with our liveness tag.
 */
static void
clean_up_after_error(const pg_uuid_t *uuid, bool give_up)
{
	MemoryContext context = CurrentMemoryContext;
	LeaseAnswer answer;

	PG_TRY();
	{
		SPI_rollback();
		if (give_up)
			lease_release(uuid, &answer);
		else
			lease_look(uuid, LOOK_MAY_WAIT | LOOK_LEAVE_WAITING, &answer);
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
 * The first part of an acquisition that waits.  Afterwards the ticket, if
 * there is one, is committed.
 */
static void
begin_acquired_wait(Waiter *waiter, LeaseEvent *event, int64 wait_us,
					LeaseAnswer *answer)
{
	acquire_ticket(waiter, event, wait_us, answer);
	waiter->ticket = answer->ticket.ticket;
	if (answer->state != LEASE_WAITING)
		return;
	/* usually the row already says that this backend waits */
	if (answer->ticket.waiter_pid == MyProcPid)
		waiter->flags |= LOOK_SILENT;
	SPI_commit();
}

/*
 * Waits until the ticket no longer waits.  With an event, acquires the ticket
 * first, and gives it up if an error ends the wait.  The caller has connected
 * to SPI non-atomically.  Raises whatever ends a statement: cancellation,
 * time-outs, termination; and what lease_look() and lease_try_acquire() raise.
 */
static void
wait_for_turn(Waiter *waiter, LeaseEvent *event, int64 wait_us,
			  LeaseAnswer *answer)
{
	MemoryContext caller_context = CurrentMemoryContext;
	volatile bool committed = false;

	waiter->flags = LOOK_ATTENDING;
	waiter->holder_until = NO_TIME;
	answer->state = LEASE_WAITING;
	take_liveness(&waiter->liveness);
	PG_TRY();
	{
		if (event != NULL)
			begin_acquired_wait(waiter, event, wait_us, answer);
		committed = true;
		if (answer->state == LEASE_WAITING)
			wait_loop(waiter, answer);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller_context);
		error = CopyErrorData();
		FlushErrorState();
		if (committed && !waiter->looking)
			clean_up_after_error(&waiter->ticket, event != NULL);
		drop_liveness(&waiter->liveness);
		ReThrowError(error);
	}
	PG_END_TRY();
	drop_liveness(&waiter->liveness);
}

/*
 * Waits for a ticket's turn, at most until the given time.  If an error ends
 * the wait, the ticket stays in the queue.  The caller has connected to SPI
 * non-atomically.  Raises what wait_for_turn() raises.
 */
void
wait_for_ticket(const TicketRow *ticket, TimestampTz until,
				LeaseAnswer *answer)
{
	Waiter	   *waiter = palloc0(sizeof(Waiter));

	waiter->key = ticket->key;
	waiter->ticket = ticket->ticket;
	waiter->id = *tag_id(ticket);
	waiter->liveness = liveness_tag(&waiter->key, &waiter->id);
	waiter->until = until;
	wait_for_turn(waiter, NULL, 0, answer);
}

/*
 * Acquires a lock, waiting for its turn in the queue.  If an error ends the
 * wait, the ticket is given up.  A request id of another identity is refused
 * before this backend advertises that it waits for that ticket.  The caller
 * has connected to SPI non-atomically.  Raises 42501, LS002 and what
 * wait_for_turn() raises.
 */
void
acquire_and_wait(LeaseEvent *event, int64 wait_us, LeaseAnswer *answer)
{
	Waiter	   *waiter = palloc0(sizeof(Waiter));

	require_own_request(event);
	event->attending = true;
	attend_request(waiter, event);
	waiter->until = DT_NOEND;
	wait_for_turn(waiter, event, wait_us, answer);
}
