/*-------------------------------------------------------------------------
 *
 * tickets.h
 *	  Shared by the functions that acquire a ticket.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_TICKETS_H
#define LEASELOCK_TICKETS_H

#include "core/lease.h"
#include "fmgr.h"

extern LeaseEvent acquire_event(FunctionCallInfo fcinfo, int note_argno,
								int64 *wait_us);

#endif							/* LEASELOCK_TICKETS_H */
