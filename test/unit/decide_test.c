/*-------------------------------------------------------------------------
 *
 * decide_test.c
 *	  Enumerates small worlds and every event in them, and checks every plan
 *	  that the rules make.
 *
 * Usage: decide_test [--first]
 *
 * A world is a lock, up to three tickets of its grant, and up to three waiters.
 * All locks are combined with all short queues, and the plain locks with all
 * queues.  Each event is carried out once for every combination of tags that
 * could be busy on its way.  Prints TAP, one line for each promise; --first
 * stops at the first violation.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "unit.h"

#include <stdio.h>

#define MAX_LOCKS		1000
#define MAX_SHARES		3
#define MAX_WAITERS		3

/* Fences: of the present grant, and of an earlier one. */
#define FENCE			100
#define OLD_FENCE		50

/* How many variants are tried in a world. */
typedef enum Effort
{
	QUICK,
	THOROUGH
} Effort;

/* A waiter's deadlines, and its backend. */
typedef struct Life
{
	TimestampTz wait_until;
	TimestampTz alive_until;
	int			pid;
	bool		attended;
} Life;

static World locks[MAX_LOCKS];
static int	lock_count = 0;
static int	plain_lock_count = 0;	/* the first of them are plain */

static long worlds = 0;
static long cases = 0;

/* ----------------------------------------------------------------------
 * Locks
 * ----------------------------------------------------------------------
 */

static pg_uuid_t
make_uuid(unsigned char kind, unsigned char number)
{
	pg_uuid_t	uuid = {{0}};

	uuid.data[0] = kind;
	uuid.data[UUID_LEN - 1] = number;
	return uuid;
}

/* A lock without a row. */
static World
empty_world(void)
{
	World		world;

	memset(&world, 0, sizeof(World));
	ItemPointerSetInvalid(&world.lock.version.tid);
	world.lock.key.scope = "public";
	world.lock.key.name = "lock";
	world.lock.changed_at = NO_TIME;
	world.lock.granted_at = NO_TIME;
	world.lock.expires_at = NO_TIME;
	world.lock.hold_expires_at = NO_TIME;
	world.role_allowed[0] = true;
	world.role_allowed[1] = true;
	world.next_fence = 2 * FENCE;
	return world;
}

static World
free_world(void)
{
	World		world = empty_world();

	ItemPointerSet(&world.lock.version.tid, 1, 1);
	world.lock.fence = FENCE;
	world.lock.changed_at = PAST - 2;
	return world;
}

/* A grant of A without a ticket; a named hold unless "hold" is NO_TIME. */
static World
granted_world(TimestampTz hold)
{
	World		world = free_world();

	world.lock.holder = identities[A];
	world.lock.granted_at = PAST - 2;
	world.lock.granted_xid = FullTransactionIdFromU64(FENCE);
	world.lock.hold_expires_at = hold;
	return world;
}

static TicketRow *
add_ticket(World *world, const Identity *who)
{
	int			i = world->count++;
	TicketRow  *ticket = &world->tickets[i];

	ItemPointerSet(&ticket->version.tid, 1, i + 1);
	ticket->key = world->lock.key;
	ticket->ticket = make_uuid(1, i);
	ticket->has_request_id = i % 2 == 0;
	if (ticket->has_request_id)
		ticket->request_id = make_uuid(2, i);
	ticket->who = *who;
	ticket->lease_us = i % 2 == 0 ? LEASE : SHORT_LEASE;
	ticket->requested_at = PAST - 2;
	ticket->expires_at = NO_TIME;
	ticket->wait_until = NO_TIME;
	ticket->alive_until = NO_TIME;
	ticket->ended_at = NO_TIME;
	return ticket;
}

static void
add_share(World *world, TimestampTz expires_at, bool is_first, bool claimed)
{
	LockRow    *lock = &world->lock;
	TicketRow  *ticket = add_ticket(world, &lock->holder);

	ticket->state = LEASE_HELD;
	ticket->fence = lock->fence;
	ticket->expires_at = expires_at;
	ticket->claimed = claimed;
	ticket->listed = !is_first;
	lock->tickets++;
	lock->expires_at = Max(lock->expires_at, expires_at);
	if (is_first)
	{
		lock->has_first = true;
		lock->first_ticket = ticket->ticket;
	}
}

static void
keep_lock(const World *world)
{
	if (lock_count == MAX_LOCKS)
		fprintf(stderr, "too many locks\n");
	else
		locks[lock_count++] = *world;
}

/*
 * Adds a lock with tickets that have these expiries; "first" is the index of
 * the first ticket, or -1.  If ticket 0 is not claimed, it was promoted, so
 * its lease is shorter.
 */
static void
keep_held(int count, const TimestampTz *expiries, int first, bool claimed,
		  TimestampTz hold)
{
	World		world = granted_world(hold);

	for (int i = 0; i < count; i++)
	{
		if (claimed || i > 0)
			add_share(&world, expiries[i], i == first, true);
		else
			add_share(&world, Min(expiries[i], SOMETIME), i == first, false);
	}
	keep_lock(&world);
}

/* The lapse of the only ticket is written; its grant is still the newest. */
static World
settled_world(void)
{
	World		world = granted_world(NO_TIME);

	world.lock.expires_at = PAST;
	return world;
}

/* Adds tickets of A that are not shares of the present grant. */
static void
add_former_tickets(World *world)
{
	TicketRow  *ended = add_ticket(world, &identities[A]);
	TicketRow  *superseded = add_ticket(world, &identities[A]);
	TicketRow  *lapsed;

	ended->state = LEASE_RELEASED;
	ended->ended_at = PAST;
	ended->fence = OLD_FENCE;
	ended->expires_at = LATER;
	superseded->state = LEASE_HELD;
	superseded->fence = OLD_FENCE;
	superseded->expires_at = LATER;
	superseded->listed = true;
	superseded->claimed = true;
	lapsed = add_ticket(world, &identities[A]);
	lapsed->state = LEASE_HELD;
	lapsed->fence = OLD_FENCE;
	lapsed->expires_at = PAST - 1;
	lapsed->claimed = true;
}

/* Makes the locks that are combined with long queues. */
static void
make_plain_locks(void)
{
	static const TimestampTz live[] = {SOON, SOMETIME};
	static const TimestampTz lapsed[] = {NOW, SOON};
	World		world = empty_world();

	keep_lock(&world);
	world = free_world();
	keep_lock(&world);
	world = settled_world();
	keep_lock(&world);
	keep_held(0, NULL, -1, true, SOON);
	keep_held(0, NULL, -1, true, NOW);
	keep_held(1, live, 0, true, NO_TIME);
	keep_held(1, live, 0, true, NOW);
	keep_held(1, lapsed, 0, true, NO_TIME);
	keep_held(2, live, 0, true, NO_TIME);
	plain_lock_count = lock_count;
}

static void
make_deep_locks(int depth, const TimestampTz *times, int count)
{
	TimestampTz expiries[MAX_SHARES] = {0};
	int			all = 1;

	for (int i = 0; i < depth; i++)
		all *= count;
	for (int n = 0; n < all; n++)
	{
		for (int i = 0, rest = n; i < depth; i++, rest /= count)
			expiries[i] = times[rest % count];
		for (int first = -1; first < depth; first++)
		{
			keep_held(depth, expiries, first, true, NO_TIME);
			keep_held(depth, expiries, first, false, NOW);
			if (depth < MAX_SHARES)
				keep_held(depth, expiries, first, true, SOON);
		}
	}
}

static void
make_locks(void)
{
	static const TimestampTz times[] = {SOON, NOW, LATER, PAST};
	World		world;

	make_plain_locks();
	keep_held(0, NULL, -1, true, PAST);
	world = free_world();
	add_former_tickets(&world);
	keep_lock(&world);
	world = granted_world(SOON);
	add_share(&world, SOMETIME, true, true);
	add_former_tickets(&world);
	keep_lock(&world);
	/* changed_at is not in the past, as after the clock was set back */
	world = free_world();
	world.lock.changed_at = NOW;
	keep_lock(&world);
	make_deep_locks(1, times, 4);
	make_deep_locks(2, times, 4);
	make_deep_locks(3, times, 3);
}

/* ----------------------------------------------------------------------
 * Events
 * ----------------------------------------------------------------------
 */

/* Looks at what was just written, with all tags free. */
static void
look_again(const Play *first)
{
	LeaseState	state = first->plan.state;
	World		world = *first->world;
	World		before = world;
	Path		path = {.length = 0};
	Play		again = {.world = &world,.path = &path,.ticket = first->ticket};

	if (again.ticket < 0)
		again.ticket = find_ticket(&world, &first->event.ticket);
	again.event.kind = EVENT_LOOK;
	again.event.key = world.lock.key;
	again.event.ticket = world.tickets[again.ticket].ticket;
	again.event.waiter_timeout_us = WAITER_TIMEOUT;
	again.event.pid = OWN_PID;
	check(PROGRESS, play(&again), &again, "it does not end");
	check_outcome(&again, &before, &world);
	check(ASKED_AGAIN, again.plan.state == state ||
		  (state == LEASE_WAITING && (again.plan.state == LEASE_HELD ||
									  again.plan.state == LEASE_DEADLOCK)),
		  &again, "another state");
}

/* Carries out an event on every path, each time from the same world. */
static void
try_paths(const World *world, const LeaseEvent *event, int ticket,
		  unsigned first_busy)
{
	Path		path = {.length = 0};

	do
	{
		World		copy = *world;
		Play		first = {
			.world = &copy,
			.event = *event,
			.ticket = ticket,
			.first_busy = first_busy,
			.path = &path
		};

		cases++;
		check(PROGRESS, play(&first), &first, "it does not end");
		check_outcome(&first, world, &copy);
		if (first.wrote && event->kind <= EVENT_CANCEL)
			look_again(&first);
	} while (next_path(&path));
}

static bool
has_dead(const World *world)
{
	for (int i = 0; i < world->count; i++)
	{
		if (world->tickets[i].place > world->lock.passed &&
			!world->attended[i] && world->tickets[i].alive_until <= NOW)
			return true;
	}
	return false;
}

/*
 * Tries the variants of a world that matter to an event: a wait that closes a
 * cycle, a full queue, many dead waiters.
 */
static void
try_event(const World *world, LeaseEvent *event, int ticket)
{
	World		copy = *world;
	bool		may_wait = event->kind == EVENT_LOOK ||
		event->kind == EVENT_RENEW ||
		(event->kind == EVENT_ACQUIRE && event->may_queue);

	event->key = world->lock.key;
	event->waiter_timeout_us = WAITER_TIMEOUT;
	event->pid = OWN_PID;
	try_paths(world, event, ticket, 0);
	if (may_wait && (world->count > 0 || is_held(world)))
	{
		copy.has_cycle = true;
		try_paths(&copy, event, ticket, 0);
		copy.has_cycle = false;
	}
	if (event->kind == EVENT_ACQUIRE && event->may_queue && !event->first_try)
	{
		copy.is_full = true;
		try_paths(&copy, event, ticket, 0);
		copy.is_full = false;
	}
	if (event->kind != EVENT_LOOK && event->kind != EVENT_RENEW &&
		event->kind != EVENT_CANCEL && event->kind != EVENT_RENEW_LOCK &&
		has_dead(world))
	{
		copy.crowded = true;
		try_paths(&copy, event, ticket, 0);
	}
}

/* The same, and with tags that were busy for a plan made in another world. */
static void
try_event_after_busy(const World *world, LeaseEvent *event, int ticket)
{
	static const unsigned busy[] = {TAG_NAME, TAG_QUEUE, TAG_TICKET,
	TAG_SCOPE, TAG_HEAD, ANY_TAG};

	try_event(world, event, ticket);
	for (int i = 0; i < (int) lengthof(busy); i++)
		try_paths(world, event, ticket, busy[i]);
}

static void
try_how(const World *world, LeaseEvent *event, int ticket, Effort effort)
{
	if (effort == THOROUGH)
		try_event_after_busy(world, event, ticket);
	else
		try_event(world, event, ticket);
}

/* Acquires with and without queueing, at the first try and later. */
static void
try_acquire(const World *world, LeaseEvent *event, Effort effort)
{
	event->kind = EVENT_ACQUIRE;
	event->lease_us = LEASE;
	event->ticket = make_uuid(3, 0);
	event->may_queue = false;
	event->left_us = 0;
	try_how(world, event, -1, effort);
	event->may_queue = true;
	event->left_us = WAIT;
	try_how(world, event, -1, effort);
	event->first_try = true;
	try_how(world, event, -1, QUICK);
	event->first_try = false;
	event->left_us = 0;
	if (effort == THOROUGH)
		try_how(world, event, -1, QUICK);
}

static void
try_requests(const World *world, const Identity *who, Effort effort)
{
	LeaseEvent	event = {.who = *who};

	try_acquire(world, &event, effort);
	event.has_request_id = true;
	event.request_id = make_uuid(2, 99);
	if (effort == THOROUGH || is_blocked(world, who, 0))
		try_acquire(world, &event, QUICK);
	for (int i = 0; i < world->count && effort == THOROUGH; i++)
	{
		if (!world->tickets[i].has_request_id)
			continue;
		event.request_id = world->tickets[i].request_id;
		try_acquire(world, &event, QUICK);
	}
}

static void
try_named(const World *world, const Identity *who, Effort effort)
{
	LeaseEvent	event = {.who = *who,.lease_us = TTL};
	bool		allowed = world->role_allowed[who->role - 1];

	event.kind = EVENT_TRY_LOCK;
	if (allowed)
		try_how(world, &event, -1, effort);
	event.kind = EVENT_RENEW_LOCK;
	if (allowed)
		try_how(world, &event, -1, effort);
	event.kind = EVENT_RELEASE_LOCK;
	try_how(world, &event, -1, effort);
}

/* Tries what an identity can do without a ticket. */
static void
try_identity(const World *world, const Identity *who, Effort effort)
{
	try_named(world, who, effort);
	if (world->role_allowed[who->role - 1])
		try_requests(world, who, effort);
}

/* Tries a look; the bits are the flags in the order of LeaseEvent. */
static void
try_look(const World *world, int ticket, unsigned flags, Effort effort)
{
	LeaseEvent	event = {.kind = EVENT_LOOK};

	if (ticket >= 0)
		event.ticket = world->tickets[ticket].ticket;
	event.silent = (flags & 1) != 0;
	event.attending = (flags & 2) != 0;
	event.leave_waiting = (flags & 4) != 0;
	event.may_wait = (flags & 8) != 0;
	event.only_judge = (flags & 16) != 0;
	try_how(world, &event, ticket, effort);
}

static void
try_looks(const World *world, int ticket, Effort effort)
{
	static const unsigned quick[] = {0, 3, 12};

	if (effort == THOROUGH)
	{
		for (unsigned flags = 0; flags <= 16; flags++)
			try_look(world, ticket, flags, flags == 8 ? THOROUGH : QUICK);
		return;
	}
	for (int i = 0; i < (int) lengthof(quick); i++)
		try_look(world, ticket, quick[i], QUICK);
}

static void
try_prune_ticket(const World *world, int ticket)
{
	static const TimestampTz times[] = {NOW, PAST, PAST - 1};
	LeaseEvent	event = {.kind = EVENT_PRUNE_TICKET};

	for (int i = 0; i < (int) lengthof(times); i++)
	{
		event.before = times[i];
		try_event_after_busy(world, &event, ticket);
	}
}

/* Tries what can be done with a ticket. */
static void
try_ticket(const World *world, int ticket, Effort effort)
{
	const TicketRow *row = &world->tickets[ticket];
	LeaseEvent	event = {.ticket = row->ticket};

	try_looks(world, ticket, effort);
	event.kind = EVENT_RELEASE;
	try_how(world, &event, ticket, effort);
	event.kind = EVENT_CANCEL;
	if (row->state == LEASE_WAITING)
		try_how(world, &event, ticket, effort);
	event.kind = EVENT_RENEW;
	event.may_wait = true;
	event.lease_us = OTHER_LEASE;
	if (world->role_allowed[row->who.role - 1])
		try_how(world, &event, ticket, effort);
	if (effort == QUICK)
		return;
	event.lease_us = 0;
	if (world->role_allowed[row->who.role - 1])
		try_how(world, &event, ticket, effort);
	try_prune_ticket(world, ticket);
}

/* Tries what operators do, and pruning of the lock. */
static void
try_operators(const World *world, Effort effort)
{
	LeaseEvent	event = {.kind = EVENT_BREAK};
	World		copy = *world;

	event.fence = world->lock.fence;
	try_how(world, &event, -1, effort);
	event.fence = OLD_FENCE;
	if (effort == THOROUGH)
		try_how(world, &event, -1, QUICK);
	event.kind = EVENT_BREAK_UNAUTHORIZED;
	try_how(world, &event, -1, effort);
	event.kind = EVENT_PRUNE_LOCK;
	for (int i = 0; i < (effort == THOROUGH ? 3 : 1); i++)
	{
		copy.floor_fence = FENCE - 1 + i;
		event.before = NOW - i;
		try_how(&copy, &event, -1, effort);
	}
}

/* Tries events for a ticket that was pruned. */
static void
try_gone(const World *world)
{
	static const EventKind kinds[] = {EVENT_LOOK, EVENT_RENEW, EVENT_RELEASE,
	EVENT_CANCEL, EVENT_PRUNE_TICKET};
	LeaseEvent	event = {.ticket = make_uuid(4, 0)};

	for (int i = 0; i < (int) lengthof(kinds); i++)
	{
		event.kind = kinds[i];
		try_event(world, &event, GONE_TICKET);
	}
}

static void
try_world(const World *world, Effort effort)
{
	worlds++;
	for (int who = 0; who < IDENTITIES; who++)
		try_identity(world, &identities[who], effort);
	for (int i = 0; i < world->count; i++)
		try_ticket(world, i, effort);
	try_operators(world, effort);
	if (effort == THOROUGH)
		try_gone(world);
	check_judgements(world);
}

/* ----------------------------------------------------------------------
 * Queues
 * ----------------------------------------------------------------------
 */

/* Every way to wait; long queues use only the first few. */
static const Life lives[] = {
	{SOMETIME, SOON, 0, false}, /* polls */
	{SOMETIME, NOW, 0, false},	/* has stopped polling */
	{SOMETIME, NO_TIME, OTHER_PID, true},	/* is attended */
	{NOW, SOMETIME, 0, false},	/* its wait has run out */
	{SOMETIME, PAST, 0, false},
	{SOON, SOON, 0, false},
	{SOON, NOW, 0, false},
	{PAST, SOMETIME, 0, false},
	{PAST, PAST, 0, false},
	{NOW, NOW, 0, false},
	{SOMETIME, NO_TIME, OTHER_PID, false},	/* its backend has died */
	{SOMETIME, NO_TIME, OWN_PID, true},
	{NOW, NO_TIME, OTHER_PID, true},
	{PAST, NO_TIME, OTHER_PID, false},
	{SOMETIME, SOON, OTHER_PID, true},	/* polled beside an attending backend */
	{SOMETIME, NOW, OTHER_PID, true},
	{SOMETIME, NOW, OTHER_PID, false},
	{SOMETIME, PAST, OTHER_PID, true}
};

static void
add_waiter(World *world, int who, const Life *life, int64 place)
{
	TicketRow  *ticket = add_ticket(world, &identities[who]);

	ticket->state = LEASE_WAITING;
	ticket->place = place;
	ticket->wait_until = life->wait_until;
	ticket->alive_until = life->alive_until;
	ticket->waiter_pid = life->pid;
	world->attended[world->count - 1] = life->attended;
}

/*
 * Tries a world with every passed mark up to the last waiter, and, with
 * "with_access", with each role in turn denied access to the scope.
 */
static void
try_marks(World *world, int length, Effort effort, bool with_access)
{
	int			marks = ItemPointerIsValid(&world->lock.version.tid) ?
		length : 0;

	for (int mark = 0; mark <= marks; mark++)
	{
		world->lock.passed = mark;
		try_world(world, effort);
		for (int role = 0; role < 2 && with_access; role++)
		{
			world->role_allowed[role] = false;
			try_world(world, QUICK);
			world->role_allowed[role] = true;
		}
	}
}

/* Tries all queues of a length; the waiters take the first "ways" of lives. */
static void
try_queues(const World *lock, int length, int ways, Effort effort,
		   bool with_access)
{
	int			one = ways * IDENTITIES;
	int			all = 1;

	for (int i = 0; i < length; i++)
		all *= one;
	for (int n = 0; n < all; n++)
	{
		World		world = *lock;

		for (int i = 0, rest = n; i < length; i++, rest /= one)
			add_waiter(&world, rest % one / ways, &lives[rest % one % ways],
					   i + 1);
		try_marks(&world, length, effort, with_access);
	}
}

static void
try_locks(void)
{
	for (int i = 0; i < lock_count; i++)
	{
		bool		plain = i < plain_lock_count;

		try_queues(&locks[i], 0, 1, THOROUGH, true);
		if (plain)
		{
			try_queues(&locks[i], 1, lengthof(lives), THOROUGH, true);
			try_queues(&locks[i], 2, 4, QUICK, true);
			try_queues(&locks[i], 3, 3, QUICK, false);
		}
		else
			try_queues(&locks[i], 1, 2, QUICK, false);
	}
}

int
main(int argc, char **argv)
{
	int			failed;

	stop_at_first = argc > 1 && strcmp(argv[1], "--first") == 0;
	make_locks();
	try_locks();
	test_siphash();
	failed = report_promises();
	printf("# %ld cases in %ld worlds, %d locks\n", cases, worlds, lock_count);
	return failed > 0;
}
