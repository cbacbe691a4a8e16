/*-------------------------------------------------------------------------
 *
 * leaselock.c
 *	  Module entry point: magic block, settings and callbacks.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "compat.h"
#include "core/commit.h"
#include "leaselock.h"
#include "store/table.h"

LEASELOCK_MODULE_MAGIC;

int			leaselock_min_lease;
int			leaselock_max_lease;
int			leaselock_max_wait;
double		leaselock_max_ttl;
int			leaselock_lock_timeout;
int			leaselock_waiter_timeout;
int			leaselock_max_waiters;
int			leaselock_ticket_retention;
double		leaselock_clock_offset;
bool		leaselock_async_release;
int			leaselock_events;
int			leaselock_event_retention;
bool		leaselock_log_takeovers;
bool		leaselock_log_breaks;
bool		leaselock_log_refusals;

static const struct config_enum_entry events_settings[] = {
	{"off", EVENTS_OFF, false},
	{"grants", EVENTS_GRANTS, false},
	{"all", EVENTS_ALL, false},
	{NULL, 0, false}
};

#define SECONDS				1000	/* in ms */
#define MAX_TTL_DAYS		36500.0
#define MAX_OFFSET_MS		(200.0 * 365 * SECS_PER_DAY * SECONDS)

void		_PG_init(void);

static void
define_time(const char *name, const char *description, int *variable,
			int boot_value, int min_value)
{
	DefineCustomIntVariable(name, description, NULL, variable,
							boot_value, min_value, INT_MAX, PGC_SUSET,
							GUC_UNIT_MS, NULL, NULL, NULL);
}

static void
define_logging(const char *name, const char *description, bool *variable)
{
	DefineCustomBoolVariable(name, description, NULL, variable,
							 false, PGC_SUSET, 0, NULL, NULL, NULL);
}

/* Settings that control events and the lines in the server log. */
static void
define_records(void)
{
	DefineCustomEnumVariable("leaselock.events",
							 "Sets which changes of leases are recorded as events.",
							 NULL, &leaselock_events,
							 EVENTS_OFF, events_settings, PGC_SUSET,
							 0, NULL, NULL, NULL);
	DefineCustomIntVariable("leaselock.event_retention",
							"Sets the minimum time for which an event is kept.",
							NULL, &leaselock_event_retention,
							7 * SECS_PER_DAY, 0, INT_MAX, PGC_SUSET,
							GUC_UNIT_S, NULL, NULL, NULL);
	define_logging("leaselock.log_takeovers",
				   "Logs each grant that is taken over from a holder whose lease has run out.",
				   &leaselock_log_takeovers);
	define_logging("leaselock.log_breaks",
				   "Logs each grant that an operator ends.",
				   &leaselock_log_breaks);
	define_logging("leaselock.log_refusals",
				   "Logs each commit that is refused because of a stale fence.",
				   &leaselock_log_refusals);
}

void
_PG_init(void)
{
	define_time("leaselock.min_lease",
				"Sets the shortest lease that a ticket can request.",
				&leaselock_min_lease, 5 * SECONDS, 1);
	define_time("leaselock.max_lease",
				"Sets the longest lease that a ticket can request.",
				&leaselock_max_lease, 300 * SECONDS, 1);
	define_time("leaselock.max_wait",
				"Sets the longest time that a ticket can wait for its turn.",
				&leaselock_max_wait, 300 * SECONDS, 0);
	define_time("leaselock.lock_timeout",
				"Sets the longest time that a call or a commit waits for another transaction that is changing the same lock.",
				&leaselock_lock_timeout, 2 * SECONDS, 1);
	define_time("leaselock.waiter_timeout",
				"Sets how long a polling waiter can go without a call before its ticket times out.",
				&leaselock_waiter_timeout, 20 * SECONDS, 1);
	DefineCustomIntVariable("leaselock.ticket_retention",
							"Sets the minimum time for which an ended ticket is kept.",
							NULL, &leaselock_ticket_retention,
							3600, 0, INT_MAX, PGC_SUSET,
							GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("leaselock.max_waiters",
							"Sets the maximum number of tickets that can wait for one lock.",
							NULL, &leaselock_max_waiters,
							10000, 0, INT_MAX, PGC_SUSET,
							0, NULL, NULL, NULL);
	DefineCustomRealVariable("leaselock.max_ttl",
							 "Sets the longest time for which a named lock can be taken.",
							 NULL, &leaselock_max_ttl,
							 MAX_TTL_DAYS * SECS_PER_DAY, 0.001,
							 MAX_TTL_DAYS * SECS_PER_DAY, PGC_SUSET,
							 GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomRealVariable("leaselock.clock_offset",
							 "Shifts the clock by which leases are judged.",
							 "For use in tests, so that they do not have to sleep.",
							 &leaselock_clock_offset,
							 0.0, -MAX_OFFSET_MS, MAX_OFFSET_MS, PGC_SUSET,
							 GUC_UNIT_MS | GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomBoolVariable("leaselock.async_release",
							 "Lets a release return before it has been flushed to disk.",
							 "If a crash loses the release, the lease runs out instead.",
							 &leaselock_async_release,
							 true, PGC_USERSET,
							 0, NULL, NULL, NULL);
	define_records();
	MarkGUCPrefixReserved("leaselock");

	store_watch_relations();
	RegisterXactCallback(leaselock_xact_callback, NULL);
	RegisterSubXactCallback(leaselock_subxact_callback, NULL);
	RegisterResourceReleaseCallback(leaselock_release_callback, NULL);
}
