/*-------------------------------------------------------------------------
 *
 * leaselock.h
 *	  Names, SQLSTATEs and settings of the module.
 *
 * Each folder is a layer, and a file may use only the layers below its own:
 *
 *	api		the functions that SQL calls
 *	core	the rules (decide.c), the protocol that carries them out
 *			(protocol.c), and the files that these two need
 *	store	tables, rows, lock tags and the clock; knows no rules
 *
 * Within core and within store there are no cyclic dependencies either.  "make
 * check-layers" verifies this.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_H
#define LEASELOCK_H

#define LEASELOCK_EXTENSION	"leaselock"
#define LEASELOCK_SCHEMA	"leaselock"

/* Maximum length of a scope, name or owner. */
#define MAX_TEXT_BYTES		255

/*
 * Maximum length of a note.  A ticket's row with a note and names of maximum
 * length still fits into the table without being toasted.
 */
#define MAX_NOTE_BYTES		1000

/*
 * Our own SQLSTATEs.  The SQL standard reserves classes that begin with this
 * letter for implementations, and no client treats them as errors to retry.
 */
#define ERRCODE_STALE_FENCE			MAKE_SQLSTATE('L', 'S', '0', '0', '1')
#define ERRCODE_FOREIGN_REQUEST		MAKE_SQLSTATE('L', 'S', '0', '0', '2')
#define ERRCODE_FENCE_NOT_CHECKED	MAKE_SQLSTATE('L', 'S', '0', '0', '3')

/* Which changes of leases are recorded as events. */
typedef enum EventsSetting
{
	EVENTS_OFF,
	EVENTS_GRANTS,				/* changes of grants, and operators' actions */
	EVENTS_ALL
} EventsSetting;

/* settings */
extern int	leaselock_min_lease;	/* ms */
extern int	leaselock_max_lease;	/* ms */
extern int	leaselock_max_wait; /* ms */
extern double leaselock_max_ttl;	/* s */
extern int	leaselock_lock_timeout; /* ms */
extern int	leaselock_waiter_timeout;	/* ms */
extern int	leaselock_max_waiters;
extern int	leaselock_ticket_retention; /* s */
extern double leaselock_clock_offset;	/* ms */
extern bool leaselock_async_release;
extern int	leaselock_events;	/* EventsSetting */
extern int	leaselock_event_retention;	/* s */
extern bool leaselock_log_takeovers;
extern bool leaselock_log_breaks;
extern bool leaselock_log_refusals;

#endif							/* LEASELOCK_H */
