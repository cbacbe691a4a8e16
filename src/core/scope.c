/*-------------------------------------------------------------------------
 *
 * scope.c
 *	  The caller's identity and its permissions.
 *
 * The functions are not SECURITY DEFINER, so GetUserId() is the caller's
 * current_user, to which all other privileges apply as well.  It is read in
 * each call; nothing is remembered between calls.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"

#include "core/scope.h"
#include "store/rows.h"

/* The caller's identity: its role, and a label that it chooses. */
Identity
caller_identity(const char *owner)
{
	Identity	who = {GetUserId(), owner};

	return who;
}

/*
 * The role to which a scope is registered; InvalidOid if it is known by name
 * and no role has that name.  A role that is known by its oid may have been
 * dropped; the caller must check that.
 */
Oid
scope_role(const ScopeRow *row)
{
	return OidIsValid(row->role) ? row->role :
		get_role_oid(NameStr(row->role_name), true);
}

/* Loads who may use a scope, for several calls of access_allows(). */
ScopeAccess
scope_access(const char *scope)
{
	ScopeAccess access = {false, InvalidOid};
	ScopeRow	row;

	access.registered = store_load_scope(scope, &row);
	if (access.registered)
		access.role = scope_role(&row);
	return access;
}

/*
 * Whether a role may acquire, renew and check in a scope: the scope is not
 * registered, or the role is a member of the role to which it is registered.
 * If that role does not exist, only superusers may.
 */
bool
access_allows(const ScopeAccess *access, Oid role)
{
	if (!access->registered)
		return true;
	if (!OidIsValid(access->role))
		return superuser_arg(role);
	return has_privs_of_role(role, access->role);
}

/* Likewise, for a single role. */
bool
may_use_scope(const char *scope, Oid role)
{
	ScopeAccess access = scope_access(scope);

	return access_allows(&access, role);
}

/* Raises 42501 unless the caller may use the scope. */
void
require_scope(const char *scope)
{
	if (!may_use_scope(scope, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for scope \"%s\"", scope),
				 errdetail("Role \"%s\" is not a member of the role to which the scope is registered.",
						   GetUserNameFromId(GetUserId(), false)),
				 errhint("Ask for membership in that role, or use another scope.")));
}

/*
 * Likewise for checking a fence.  Members of the holder's role may do that as
 * well.
 */
void
require_fence_access(const LockRow *lock)
{
	if (!OidIsValid(lock->holder.role) ||
		!has_privs_of_role(GetUserId(), lock->holder.role))
		require_scope(lock->key.scope);
}

/* Whether the caller may see the locks and events of a scope. */
bool
may_see_scope(const char *scope)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_MONITOR) ||
		may_use_scope(scope, GetUserId());
}

/* Raises 42501 unless the caller is a member of the ticket's role. */
void
require_ticket_role(const TicketRow *ticket)
{
	if (!has_privs_of_role(GetUserId(), ticket->who.role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for lease ticket"),
				 errdetail("Role \"%s\" is not a member of the role that acquired the ticket.",
						   GetUserNameFromId(GetUserId(), false)),
				 errhint("Use the role that acquired the ticket, or acquire a ticket of your own.")));
}

/*
 * Whether the caller is a member of the ticket's role.  A superuser counts
 * only if it is an actual member.
 */
bool
owns_ticket(const TicketRow *ticket)
{
	return !superuser() ||
		is_member_of_role_nosuper(GetUserId(), ticket->who.role);
}
