/*-------------------------------------------------------------------------
 *
 * scope.h
 *	  The caller's identity and its permissions.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_SCOPE_H
#define LEASELOCK_SCOPE_H

#include "core/model.h"
#include "store/rows.h"

/* Who may use a scope. */
typedef struct ScopeAccess
{
	bool		registered;		/* if not, everybody may use it */
	Oid			role;			/* InvalidOid: there is no such role */
} ScopeAccess;

extern Identity caller_identity(const char *owner);
extern Oid	scope_role(const ScopeRow *row);
extern ScopeAccess scope_access(const char *scope);
extern bool access_allows(const ScopeAccess *access, Oid role);
extern bool may_use_scope(const char *scope, Oid role);
extern void require_scope(const char *scope);
extern void require_fence_access(const LockRow *lock);
extern bool may_see_scope(const char *scope);
extern void require_ticket_role(const TicketRow *ticket);
extern bool owns_ticket(const TicketRow *ticket);

#endif							/* LEASELOCK_SCOPE_H */
