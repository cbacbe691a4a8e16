/*-------------------------------------------------------------------------
 *
 * types.h
 *	  Locks and tickets as stored in their rows.
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

/* "No time": earlier than any clock reading. */
#define NO_TIME		DT_NOBEGIN

/* Identifies a lock; its tags are derived from the hash. */
typedef struct LockKey
{
	const char *scope;
	const char *name;
	uint64		hash;
	uint32		hashed_for;		/* the Installation's number */
} LockKey;

/* Who acts.  Two callers with the same role and owner label are the same. */
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

/*
 * The version of a row that was read, and its TID; an invalid TID means that
 * there is no row.
 */
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
	int64		fence;			/* the newest fence; 0: none yet */
	int64		passed;			/* the passed mark */
	TimestampTz changed_at;		/* the lock's time; NO_TIME: none yet */
	Identity	holder;			/* role InvalidOid: nobody */
	TimestampTz granted_at;
	FullTransactionId granted_xid;
	int			tickets;		/* of the grant, stored as held */
	bool		has_first;		/* one of them is named here: */
	pg_uuid_t	first_ticket;	/* not on the grant's list */
	TimestampTz expires_at;		/* latest expiry of those; NO_TIME: none */
	TimestampTz hold_expires_at;	/* of the named hold; NO_TIME: none */
	bool		recalled;		/* not read, but remembered */
} LockRow;

typedef struct TicketRow
{
	RowVersion	version;
	LockKey		key;
	pg_uuid_t	ticket;
	bool		has_request_id;
	pg_uuid_t	request_id;
	Identity	who;
	LeaseState	state;			/* as stored */
	int64		place;			/* in the queue; 0: not in it */
	bool		listed;			/* on the list of its grant */
	int64		fence;			/* 0: never held */
	int64		lease_us;		/* the length last requested */
	TimestampTz requested_at;
	TimestampTz expires_at;		/* NO_TIME: never held */
	TimestampTz wait_until;		/* NO_TIME: never queued */
	TimestampTz alive_until;	/* NO_TIME: never queued, or attended */
	int			waiter_pid;		/* backend to wake; 0: none */
	bool		claimed;
	TimestampTz ended_at;		/* NO_TIME: not ended */
	const char *note;			/* for people; NULL: none */
	/* not stored: what else is known about a waiter */
	bool		attended;
	bool		allowed;		/* its role may use the scope */
	bool		recalled;		/* not read, but remembered */
} TicketRow;

/* What happened to a lease, as shown by lease_events(). */
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
	/* these only if leaselock.events is "all" */
	CHANGE_QUEUED,
	CHANGE_RENEWED,
	CHANGE_CANCELLED,
	CHANGE_TIMED_OUT,
	CHANGE_DEADLOCK
} ChangeKind;

/* A recorded change of a lease. */
typedef struct EventRow
{
	RowVersion	version;
	FullTransactionId xid;		/* of the top-level transaction */
	int64		id;				/* number within that, from 1 */
	TimestampTz at;				/* when it happened */
	TimestampTz recorded_at;	/* when it was written */
	ChangeKind	kind;
	const char *scope;			/* NULL: none */
	const char *name;			/* NULL: none */
	Identity	who;			/* whose lease; owner NULL: the operator */
	int64		fence;			/* 0: none */
	bool		has_ticket;
	pg_uuid_t	ticket;
	const char *note;			/* NULL: none */
} EventRow;

#endif							/* LEASELOCK_TYPES_H */
