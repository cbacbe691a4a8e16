/*-------------------------------------------------------------------------
 *
 * recent.h
 *	  Rows as this session last wrote them, or read them to check a fence.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_RECENT_H
#define LEASELOCK_RECENT_H

#include "store/types.h"

extern void remember_lock(const LockRow *lock);
extern bool recall_lock(const LockKey *key, LockRow *lock);
extern void forget_lock(const LockKey *key);
extern void remember_ticket(const TicketRow *ticket);
extern bool recall_ticket(const pg_uuid_t *id, TicketRow *ticket);
extern void forget_ticket(const pg_uuid_t *id);

#endif							/* LEASELOCK_RECENT_H */
