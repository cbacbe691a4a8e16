/*-------------------------------------------------------------------------
 *
 * types.h
 *	  Locks and tickets, as their rows say.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_TYPES_H
#define LEASELOCK_TYPES_H

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "storage/itemptr.h"
#include "utils/uuid.h"

/* "No such time": earlier than every reading of the clock. */
#define NO_TIME		DT_NOBEGIN

/* Names a lock; the hash is what its tags are made from. */
typedef struct LockKey
{
	const char *scope;
	const char *name;
	uint64		hash;
	uint32		hashed_for;		/* the Installation's number */
} LockKey;

/* Who acts: two callers with the same role and owner label are one. */
typedef struct Identity
{
	Oid			role;
	const char *owner;
} Identity;

typedef enum LeaseState
{
	LEASE_HELD,
	LEASE_WAITING,
	LEASE_CONTENDED,
	LEASE_DEADLOCK,
	LEASE_RELEASED,
	LEASE_EXPIRED,
	LEASE_TIMED_OUT,
	LEASE_CANCELLED,
	LEASE_BROKEN,
	LEASE_GONE
} LeaseState;

/* Which version of a row was read, and where it is; no tid: there is no row. */
typedef struct RowVersion
{
	ItemPointerData tid;
	TransactionId xmin;
} RowVersion;

/* A lock.  Without a row it is free, and no fence of it is known. */
typedef struct LockRow
{
	RowVersion	version;
	LockKey		key;
	int64		fence;			/* the newest handed out, 0: none yet */
	int64		passed;			/* the passed mark */
	TimestampTz changed_at;		/* the lock's time, NO_TIME: none yet */
	Identity	holder;			/* role InvalidOid: nobody */
	TimestampTz granted_at;
	FullTransactionId granted_xid;
	int			tickets;		/* of the grant, not ended by what is stored */
	bool		has_first;		/* one of them is named here: */
	pg_uuid_t	first_ticket;	/* it is not in the grant's list */
	TimestampTz expires_at;		/* the latest of those, NO_TIME: none */
	TimestampTz hold_expires_at;	/* of the named hold, NO_TIME: none */
	bool		recalled;		/* not read: as this session wrote it last */
} LockRow;

typedef struct TicketRow
{
	RowVersion	version;
	LockKey		key;
	pg_uuid_t	ticket;
	bool		has_request_id;
	pg_uuid_t	request_id;
	Identity	who;
	LeaseState	state;			/* by what is stored */
	int64		place;			/* in the queue, 0: not in it */
	bool		listed;			/* in the list of its grant */
	int64		fence;			/* 0: never held */
	int64		lease_us;		/* last asked for */
	TimestampTz requested_at;
	TimestampTz expires_at;		/* NO_TIME: never held */
	TimestampTz wait_until;		/* NO_TIME: never queued */
	TimestampTz alive_until;	/* NO_TIME: never queued, or attended */
	int			waiter_pid;		/* the backend to be woken, 0: none */
	bool		claimed;
	TimestampTz ended_at;		/* NO_TIME: not ended */
	const char *note;			/* for people, NULL: none */
	/* not stored: what is known of a waiter beside its row */
	bool		attended;
	bool		allowed;		/* its role may use the scope */
	bool		recalled;		/* it was not read: as this session wrote it
								 * last */
} TicketRow;

/* What became of a lease, as leaselock.events tells it. */
typedef enum ChangeKind
{
	CHANGE_GRANTED,
	CHANGE_PROMOTED,
	CHANGE_RELEASED,
	CHANGE_EXPIRED,
	CHANGE_BROKEN,
	CHANGE_SCOPE_CREATED,
	CHANGE_SCOPE_DROPPED,
	CHANGE_PRUNED,
	CHANGE_BUMPED,
	/* these only if all are recorded */
	CHANGE_QUEUED,
	CHANGE_RENEWED,
	CHANGE_CANCELLED,
	CHANGE_TIMED_OUT,
	CHANGE_DEADLOCK
} ChangeKind;

/* A change of a lease that is on record. */
typedef struct EventRow
{
	RowVersion	version;
	FullTransactionId xid;		/* of the transaction, not a subtransaction */
	int64		id;				/* its number in that, from 1 */
	TimestampTz at;				/* when it happened */
	TimestampTz recorded_at;	/* when it was written */
	ChangeKind	kind;
	const char *scope;			/* NULL: none */
	const char *name;			/* NULL: none */
	Identity	who;			/* whose lease, owner NULL: which operator */
	int64		fence;			/* 0: none */
	bool		has_ticket;
	pg_uuid_t	ticket;
	const char *note;			/* NULL: none */
} EventRow;

#endif							/* LEASELOCK_TYPES_H */
