/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  The queue of a lock: who waits, and in which order.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_QUEUE_H
#define LEASELOCK_QUEUE_H

#include "core/model.h"

/* This position, or number of waiters, means "this many or more". */
#define MAX_POSITION	100

/*
 * Number of rows to read when counting up to MAX_POSITION.  It is greater,
 * because one identity may wait with many tickets, and dead tickets are among
 * them.
 */
#define MAX_POSITION_ROWS	1000

/* The first live waiter, and the dead waiters before it. */
typedef struct QueueHead
{
	bool		exists;
	TicketRow	ticket;
	int			dead_count;
	int64		dead_place;		/* place of the last of those */
} QueueHead;

extern void complete_waiter(TicketRow *ticket, TimestampTz now);
extern void find_head(const LockRow *lock, const Identity *except,
					  TimestampTz now, QueueHead *head);
extern bool has_queue(const LockKey *key);
extern int	queue_position(const LockRow *lock, const TicketRow *own,
						   TimestampTz now);
extern int	queue_length(const LockRow *lock, TimestampTz now, int enough,
						 int max_rows);
extern int	count_depth(const LockRow *lock, TimestampTz now);

#endif							/* LEASELOCK_QUEUE_H */
