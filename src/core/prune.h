/*-------------------------------------------------------------------------
 *
 * prune.h
 *	  Removal of ended tickets, idle locks and old events.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_PRUNE_H
#define LEASELOCK_PRUNE_H

extern int64 lease_prune(int64 older_us, int64 max_rows);
extern void prune_before_commit(bool will_wait);

#endif							/* LEASELOCK_PRUNE_H */
