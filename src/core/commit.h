/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  The callbacks at the end of transactions and subtransactions.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_COMMIT_H
#define LEASELOCK_COMMIT_H

#include "access/xact.h"
#include "utils/resowner.h"

extern void leaselock_xact_callback(XactEvent event, void *arg);
extern void leaselock_subxact_callback(SubXactEvent event,
									   SubTransactionId sub,
									   SubTransactionId parent, void *arg);
extern void leaselock_release_callback(ResourceReleasePhase phase,
									   bool is_commit, bool is_top_level,
									   void *arg);

#endif							/* LEASELOCK_COMMIT_H */
