/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  Ticket operations: the events that owners cause, and the answers to them.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_LEASE_H
#define LEASELOCK_LEASE_H

#include "core/protocol.h"

/*
 * The answer of a ticket call.  Strings are in the memory context of the call
 * or, for an acquisition, in that of its event.
 */
typedef struct LeaseAnswer
{
	LeaseState	state;
	bool		has_ticket;
	TicketRow	ticket;			/* key, who and request id even without one */
	int			depth;			/* 0 unless held */
	int			position;		/* 0 unless waiting */
	Identity	holder;			/* another identity; role InvalidOid: none */
	TimestampTz holder_until;	/* when that grant runs out */
	bool		has_head;		/* nobody holds the lock, and this is next: */
	pg_uuid_t	head_id;		/* the id that its tags are made from */
	TimestampTz now;			/* the clock reading used for all of it */
} LeaseAnswer;

/* Options of a look, see LeaseEvent. */
#define LOOK_MAY_WAIT		0x01
#define LOOK_ATTENDING		0x02
#define LOOK_SILENT			0x04
#define LOOK_LEAVE_WAITING	0x08

extern void lease_acquire(LeaseEvent *event, int64 wait_us, LeaseAnswer *answer);
extern bool lease_try_acquire(LeaseEvent *event, TimestampTz until, bool first,
							  LeaseAnswer *answer, BusyTag *busy_tag);
extern void lease_look(const pg_uuid_t *uuid, int flags, LeaseAnswer *answer);
extern void lease_renew(const pg_uuid_t *uuid, int64 lease_us,
						LeaseAnswer *answer);
extern void lease_release(const pg_uuid_t *uuid, LeaseAnswer *answer);
extern int	lease_release_all(const Identity *who, const char *scope);
extern void require_own_request(const LeaseEvent *event);

#endif							/* LEASELOCK_LEASE_H */
