/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  What is done with tickets: events of their owners, and answers to them.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_LEASE_H
#define LEASELOCK_LEASE_H

#include "core/protocol.h"

/*
 * What a ticket call answers with.  Strings live where the call was made, or,
 * of an acquisition, where its event does.
 */
typedef struct LeaseAnswer
{
	LeaseState	state;
	bool		has_ticket;
	TicketRow	ticket;			/* key, who, request id also without a ticket */
	int			depth;			/* 0: not held */
	int			position;		/* 0: does not wait */
	Identity	holder;			/* another identity's grant, role InvalidOid:
								 * none */
	TimestampTz holder_until;	/* when that grant runs out */
	bool		has_head;		/* nobody holds the lock, and this is next: */
	pg_uuid_t	head_id;		/* what its tags are made from */
	TimestampTz now;			/* the reading that all of it was judged by */
} LeaseAnswer;

/* How a look behaves, see LeaseEvent. */
#define LOOK_MAY_WAIT		0x01
#define LOOK_ATTENDING		0x02
#define LOOK_SILENT			0x04
#define LOOK_LEAVE_WAITING	0x08

extern void lease_acquire(LeaseEvent *event, int64 wait_us, LeaseAnswer *answer);
extern bool lease_try_acquire(LeaseEvent *event, TimestampTz until, bool first,
							  LeaseAnswer *answer, Obstacle *obstacle);
extern void lease_look(const pg_uuid_t *uuid, int flags, LeaseAnswer *answer);
extern void lease_renew(const pg_uuid_t *uuid, int64 lease_us,
						LeaseAnswer *answer);
extern void lease_release(const pg_uuid_t *uuid, LeaseAnswer *answer);
extern int	lease_release_all(const Identity *who, const char *scope);
extern void require_own_request(const LeaseEvent *event);

#endif							/* LEASELOCK_LEASE_H */
