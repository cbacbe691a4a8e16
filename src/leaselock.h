/*-------------------------------------------------------------------------
 *
 * leaselock.h
 *	  The module: its names, its SQLSTATEs and its settings.
 *
 * Folders are layers, and each file knows only those below it:
 *
 *	api		what SQL calls
 *	core	the rules (decide.c), the protocol that carries them out
 *			(protocol.c), and what these two need to know
 *	store	tables, rows, tags, the clock; knows no rules
 *
 * Within core and store as well no two files need each other.  "make
 * check-layers" sees to that.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_H
#define LEASELOCK_H

#define LEASELOCK_EXTENSION	"leaselock"
#define LEASELOCK_SCHEMA	"leaselock"

/* The longest scope, name or owner. */
#define MAX_TEXT_BYTES		255

/*
 * The longest note.  With the longest names a ticket's row still fits where no
 * part of it is moved out of the table, as a larger one's would be.
 */
#define MAX_NOTE_BYTES		1000

/*
 * Own SQLSTATEs.  The class begins with a letter that the SQL standard leaves
 * to implementations, so that no client takes them for an error to retry.
 */
#define ERRCODE_STALE_FENCE			MAKE_SQLSTATE('L', 'S', '0', '0', '1')
#define ERRCODE_FOREIGN_REQUEST		MAKE_SQLSTATE('L', 'S', '0', '0', '2')
#define ERRCODE_FENCE_NOT_CHECKED	MAKE_SQLSTATE('L', 'S', '0', '0', '3')

/* Which changes of leases become events. */
typedef enum EventsSetting
{
	EVENTS_OFF,
	EVENTS_GRANTS,				/* of grants, and what operators do */
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
