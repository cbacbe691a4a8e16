/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Waiting for a turn inside the server.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_WAIT_H
#define LEASELOCK_WAIT_H

#include "core/lease.h"

extern void wait_for_ticket(const TicketRow *ticket, TimestampTz until,
							LeaseAnswer *answer);
extern void acquire_and_wait(LeaseEvent *event, int64 wait_us,
							 LeaseAnswer *answer);

#endif							/* LEASELOCK_WAIT_H */
