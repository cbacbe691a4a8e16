/*-------------------------------------------------------------------------
 *
 * operate.h
 *	  Operators' actions.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_OPERATE_H
#define LEASELOCK_OPERATE_H

#include "core/model.h"

extern bool lease_break(const LockKey *key, int64 fence);
extern void lease_scope_create(const char *scope, const char *role_name,
							   Oid role);
extern bool lease_scope_drop(const char *scope);
extern int64 fence_bump(void);

#endif							/* LEASELOCK_OPERATE_H */
