/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Deadlock detection: does a wait close a cycle?
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_DEADLOCK_H
#define LEASELOCK_DEADLOCK_H

#include "core/model.h"
#include "nodes/pg_list.h"

extern List *find_deadlock(const LockRow *lock, const TicketRow *self);
extern void report_deadlock(const List *cycle);

#endif							/* LEASELOCK_DEADLOCK_H */
