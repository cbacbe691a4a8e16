/*-------------------------------------------------------------------------
 *
 * fence.h
 *	  Fence checks, and their verification when the transaction commits.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_FENCE_H
#define LEASELOCK_FENCE_H

#include "core/model.h"

extern bool fence_check(const LockKey *key, int64 fence, bool allow_lapsed);
extern void fence_assert(const LockKey *key, int64 fence, bool allow_lapsed,
						 const char *hint);
extern void fence_require_check(const LockKey *key);
extern void fences_verify_early(const LockRow *lock);
extern bool fences_are_pending(void);
extern void fences_verify(void);
extern void fences_forget_leases(const LockKey *key);
extern void fences_commit_sub(SubTransactionId sub, SubTransactionId parent);
extern void fences_abort_sub(SubTransactionId sub);
extern void fences_end(void);

#endif							/* LEASELOCK_FENCE_H */
