/*-------------------------------------------------------------------------
 *
 * rows.h
 *	  The rows of each table as structs.
 *
 * Loaded rows and their strings are in the caller's memory context.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_ROWS_H
#define LEASELOCK_ROWS_H

#include "nodes/pg_list.h"
#include "store/table.h"
#include "store/types.h"

/* A scan of tickets in some order. */
typedef struct TicketScan TicketScan;

/* A hint that an identity holds a lock for which others queue. */
typedef struct Blocker
{
	RowVersion	version;
	Identity	who;
	LockKey		key;
} Blocker;

/* The role to which a scope is registered. */
typedef struct ScopeRow
{
	RowVersion	version;
	const char *scope;			/* NULL if the caller passed it */
	NameData	role_name;
	Oid			role;			/* InvalidOid: only the name is valid */
} ScopeRow;

/* A scan of events in the order of (xid, id). */
typedef struct EventScan EventScan;

/* The event after which to start. */
typedef struct EventCursor
{
	bool		has_xid;		/* if not: start at the beginning */
	FullTransactionId xid;
	bool		has_id;			/* if not: after all of that transaction */
	int64		id;
} EventCursor;

/* in locks.c */
extern void store_load_lock(const LockKey *key, LockRow *lock);
extern void store_save_lock(LockRow *lock);
extern void store_delete_lock(LockRow *lock);
extern List *store_list_scope(const char *scope);
extern List *store_list_held(const Identity *who, const char *scope);
extern TableScan *store_open_held(void);
extern bool store_next_held(TableScan *scan, LockRow *lock);
extern List *store_next_locks(const LockKey *after, int count);
extern List *store_sample_locks(TimestampTz before, int *seen);

/* in tickets.c */
extern const char *lease_state_name(LeaseState state);
extern void store_sign_ticket(pg_uuid_t *ticket, const LockKey *key);
extern bool store_load_ticket(const pg_uuid_t *ticket, TicketRow *row);
extern bool store_load_request(const LockKey *key,
							   const pg_uuid_t *request_id, TicketRow *row);
extern bool store_reload_ticket(TicketRow *row);
extern void store_save_ticket(TicketRow *row);
extern bool store_try_delete_ticket(TicketRow *row);
extern TicketRow *store_load_shares(const LockRow *lock, int *count);
extern List *store_list_waits(const Identity *who);
extern TicketScan *store_open_queue(const LockKey *key, int64 after);
extern TicketScan *store_open_queues(const char *scope);
extern TicketScan *store_open_tickets(void);
extern bool store_next_ticket(TicketScan *scan, TicketRow *ticket);
extern void store_close_tickets(TicketScan *scan);
extern int64 store_last_place(const LockKey *key);
extern List *store_sample_tickets(TimestampTz before, int *seen);

/* in hints.c */
extern bool store_has_queues(void);
extern void store_announce_queues(bool in_any_case);
extern List *store_list_queues(void);
extern void store_forget_queues(List *rows);
extern List *store_list_blocked(const Identity *who);
extern List *store_list_blockers(int count);
extern void store_note_blocker(const Identity *who, const LockKey *key);
extern void store_forget_blocker(const Identity *who, const LockKey *key);

/* in scopes.c */
extern bool store_load_scope(const char *scope, ScopeRow *row);
extern List *store_list_scopes(void);
extern void store_save_scope(const char *scope, const char *role_name,
							 Oid role);
extern bool store_delete_scope(const char *scope);

/* in events.c */
extern const char *change_kind_name(ChangeKind kind);
extern void store_add_event(EventRow *event);
extern EventScan *store_open_events(const EventCursor *after,
									FullTransactionId horizon);
extern bool store_next_event(EventScan *scan, EventRow *event);
extern void store_close_events(EventScan *scan);
extern List *store_sample_events(TimestampTz before, int *seen);
extern bool store_try_delete_event(RowVersion *version);

/* in floor.c */
extern int64 store_load_floor(void);
extern int64 store_next_fence(int64 last);
extern void store_cover_fence(int64 fence);
extern int64 store_bump_floor(int64 newest);

#endif							/* LEASELOCK_ROWS_H */
