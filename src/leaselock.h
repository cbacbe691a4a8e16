/*-------------------------------------------------------------------------
 *
 * leaselock.h
 *	  What the files of the module share.
 *
 * Calls go one way: the SQL-callable functions (*_api.c, guard.c) call the
 * rules (lease.c, hold.c, queue.c, deadlock.c, wait.c, fence.c, admin.c and
 * prune.c, on top of grant.c and transaction.c), the rules call the ground
 * (store_*.c, locktag.c, clock.c, identity.c, arguments.c).  The rules see
 * structs; the store sees tuples and knows no rules.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_H
#define LEASELOCK_H

#include "access/htup.h"
#include "access/sdir.h"
#include "access/skey.h"
#include "access/transam.h"
#include "access/tupdesc.h"
#include "access/xact.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/pg_list.h"
#include "storage/itemptr.h"
#include "storage/lock.h"
#include "utils/relcache.h"
#include "utils/resowner.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

#define LEASELOCK_EXTENSION	"leaselock"
#define LEASELOCK_SCHEMA	"leaselock"

/* The longest scope, name or owner. */
#define MAX_TEXT_BYTES		255

/*
 * Own SQLSTATEs.  The class begins with a letter that the SQL standard leaves
 * to implementations, so that no client takes them for an error to retry.
 */
#define ERRCODE_STALE_FENCE			MAKE_SQLSTATE('L', 'S', '0', '0', '1')
#define ERRCODE_FOREIGN_REQUEST		MAKE_SQLSTATE('L', 'S', '0', '0', '2')
#define ERRCODE_FENCE_NOT_CHECKED	MAKE_SQLSTATE('L', 'S', '0', '0', '3')

/* "No such time": earlier than every reading of the clock. */
#define NO_TIME		DT_NOBEGIN

/* Names a lock; the hash is what its heavyweight locks are made from. */
typedef struct LockKey
{
	const char *scope;
	const char *name;
	uint64		hash;
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

/*
 * A lock, as its row says.  Without a row the tid is invalid and the lock is
 * free; store_save_lock then makes one.
 */
typedef struct LeaseLock
{
	ItemPointerData tid;
	LockKey		key;
	int64		fence;			/* the newest handed out, 0: none yet */
	int64		passed;			/* queue places up to this had their turn */
	TimestampTz changed_at;		/* the lock's time, NO_TIME: none yet */
	Identity	holder;			/* role InvalidOid: nobody */
	TimestampTz granted_at;
	FullTransactionId granted_xid;
	int			tickets;		/* of the grant, not ended by what is stored */
	TimestampTz expires_at;		/* the latest of those, NO_TIME: none */
	TimestampTz hold_expires_at;	/* of the named hold, NO_TIME: none */
} LeaseLock;

/* A ticket, as its row says.  Without a row the tid is invalid. */
typedef struct LeaseTicket
{
	ItemPointerData tid;
	LockKey		key;
	pg_uuid_t	request_id;		/* the ticket itself if none was given */
	pg_uuid_t	ticket;
	Identity	who;
	int64		place;			/* see the install script */
	bool		waiting;
	LeaseState	state;
	int64		fence;			/* 0: never held */
	int64		lease_us;
	TimestampTz requested_at;
	TimestampTz expires_at;		/* NO_TIME: never held */
	TimestampTz wait_until;		/* NO_TIME: never queued */
	TimestampTz alive_until;	/* NO_TIME: never queued, or in lease_wait */
	int			waiter_pid;		/* 0: nobody in lease_wait */
	bool		claimed;
	TimestampTz ended_at;		/* NO_TIME: not ended */
} LeaseTicket;

/* No fence is beyond this, as the constraints of the tables say as well. */
#define MAX_FENCE	(INT64CONST(1) << 62)

/* Which installation of the extension this is, see the install script. */
typedef struct Installation
{
	pg_uuid_t	home;			/* its id, and the oid of this database */
	unsigned char secret[16];	/* the key of hashes that others can see */
} Installation;

/* No fence is given at or below a floor, see the install script. */
typedef struct FenceFloor
{
	int64		fence;
	int64		reading;
} FenceFloor;

/* A hint that an identity holds a lock which others queue for. */
typedef struct Blocker
{
	ItemPointerData tid;
	Identity	who;
	LockKey		key;
} Blocker;

/* Who may use a scope. */
typedef struct ScopeAccess
{
	bool		registered;		/* else everybody */
	Oid			role;			/* InvalidOid: it is gone */
} ScopeAccess;

/* What a call asks for. */
typedef struct LeaseRequest
{
	LockKey		key;
	Identity	who;
	int64		lease_us;
	int64		wait_us;
	pg_uuid_t	ticket;			/* for the new ticket */
	const pg_uuid_t *request_id;	/* NULL: none */
	bool		served;			/* a backend will wait, see LOOK_SERVED */
} LeaseRequest;

/* A wait that closes a cycle: who waits for which lock, and who for him. */
typedef struct WaitEdge
{
	LockKey		key;
	Identity	waiter;
	Identity	blocker;
} WaitEdge;

/* What a ticket call answers with. */
typedef struct LeaseAnswer
{
	LeaseState	state;
	bool		has_ticket;
	LeaseTicket ticket;			/* key, who, request_id also without a ticket */
	bool		has_request_id;
	int			depth;			/* 0: not held */
	int			position;		/* 0: does not wait */
	Identity	holder;			/* another identity's grant, role InvalidOid:
								 * none */
	TimestampTz holder_until;	/* when that grant runs out */
	bool		has_head;		/* nobody holds the lock, this one is next: */
	pg_uuid_t	head_request_id;
	TimestampTz now;			/* the reading that all of it was judged by */
} LeaseAnswer;

typedef struct TicketScan TicketScan;

typedef enum LockTagClass
{
	TAG_NAME = 0x4C4C,
	TAG_QUEUE,
	TAG_TICKET,
	TAG_LIVENESS,
	TAG_SCOPE,
	TAG_FLOOR
} LockTagClass;

#define MAX_CALL_TAGS	5

/*
 * The heavyweight locks that one call has taken, so that a call that wrote
 * nothing can give back what it took itself.
 */
typedef struct TagSet
{
	bool		quiet;			/* a full lock table is no error */
	int			count;
	LOCKTAG		tags[MAX_CALL_TAGS];
	LOCKMODE	modes[MAX_CALL_TAGS];
} TagSet;

/* A tag that a caller was refused, and waits for outside the line. */
typedef struct TagWait
{
	LOCKTAG		tag;
	LOCKMODE	mode;
	bool		brief;			/* it may be free again in a moment */
} TagWait;

/* One call's view of one lock. */
typedef struct Call
{
	TagSet		tags;
	LeaseLock	lock;
	TimestampTz now;
	bool		heads_queue;	/* the caller's identity is its first */
	int			dead_count;		/* dead waiters met at the head of the queue */
	int64		dead_place;		/* the last of them */
	bool		has_head;		/* a look at a free lock found a first waiter */
	pg_uuid_t	head_request_id;	/* whose ticket this is */
} Call;

/* How a look at a waiting ticket behaves. */
#define LOOK_MAY_WAIT	0x01	/* stand in line for the tags that it needs */
#define LOOK_SERVED		0x02	/* a backend waits and holds the liveness tag */
#define LOOK_SILENT		0x04	/* no sign of life is due */
#define LOOK_NO_GRANT	0x08	/* leave the ticket waiting */

/* Modes of the name tag, by what the caller is going to do. */
#define NAME_VERIFY		RowShareLock	/* read a grant that must not change */
#define NAME_KEEP		ShareUpdateExclusiveLock	/* write, grant stays */
#define NAME_CHANGE		ExclusiveLock	/* begin or end a grant */

/* in file leaselock.c */
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

/* in file arguments.c */
extern char *shown_value(const char *value);
extern void check_text(const char *value, const char *argname);
extern char *argument_text(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern pg_uuid_t *argument_uuid(FunctionCallInfo fcinfo, int argno,
								const char *argname);
extern int64 argument_bigint(FunctionCallInfo fcinfo, int argno,
							 const char *argname);
extern int	argument_count(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern char *argument_name(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern bool argument_boolean(FunctionCallInfo fcinfo, int argno,
							 const char *argname);
extern int64 argument_lease(FunctionCallInfo fcinfo, int argno,
							const char *argname);
extern int64 argument_wait(FunctionCallInfo fcinfo, int argno,
						   const char *argname);
extern int64 argument_timeout(FunctionCallInfo fcinfo, int argno,
							  const char *argname);
extern int64 argument_ttl(FunctionCallInfo fcinfo, int argno,
						  const char *argname);

/* in file identity.c */
extern Identity caller_identity(const char *owner);
extern bool same_identity(const Identity *a, const Identity *b);
extern void require_ticket_role(const LeaseTicket *ticket);
extern ScopeAccess scope_access(const char *scope);
extern bool access_allows(const ScopeAccess *access, Oid role);
extern bool may_use_scope(const char *scope, Oid role);
extern void require_scope(const char *scope);
extern void require_fence_access(const LeaseLock *lock);
extern bool may_see_scope(const char *scope);
extern bool owns_ticket(const LeaseTicket *ticket);
extern void require_writable(const char *function);
extern Datum role_name_datum(Oid role);

/* in file clock.c */
extern TimestampTz clock_read(TimestampTz not_before);
extern int64 clock_remaining_ms(TimestampTz until, TimestampTz now);
extern int64 fence_reading(void);
extern void report_no_fence(void);
extern int64 next_fence(int64 last, const FenceFloor *floor);
extern void raise_floor(FenceFloor *floor, FenceFloor other);

/* in file locktag.c */
extern LockKey make_lock_key(const char *scope, const char *name);
extern int	compare_lock_keys(const LockKey *a, const LockKey *b);
extern bool try_name_tag(TagSet *set, const LockKey *key, LOCKMODE mode);
extern void wait_name_tag(TagSet *set, const LockKey *key, LOCKMODE mode);
extern bool has_name_tag(const LockKey *key);
extern bool has_ticket_tag(const LockKey *key);
extern void forget_ticket_tags(void);
extern bool try_ticket_tag(TagSet *set, const LockKey *key,
						   const pg_uuid_t *request_id);
extern void wait_ticket_tag(TagSet *set, const LockKey *key,
							const pg_uuid_t *request_id);
extern bool try_queue_tag(TagSet *set, const LockKey *key);
extern void take_liveness_tag(const LockKey *key,
							  const pg_uuid_t *request_id);
extern void drop_liveness_tag(const LockKey *key,
							  const pg_uuid_t *request_id);
extern bool is_served(const LeaseTicket *ticket);
extern bool try_scope_tag(TagSet *set, const char *scope);
extern void wait_scope_tag(const char *scope);
extern bool try_floor_tag(TagSet *set);
extern void wait_floor_tag(void);
extern void keep_tags(TagSet *set);
extern void give_back_tags(TagSet *set);
extern TagWait wait_on_name(const LockKey *key, LOCKMODE mode);
extern TagWait wait_on_queue(const LockKey *key);
extern TagWait wait_on_ticket(const LockKey *key,
							  const pg_uuid_t *request_id);
extern TagWait wait_on_scope(const char *scope);
extern VirtualTransactionId find_keeper(const TagWait *wait);
extern bool wait_for_transaction(VirtualTransactionId vxid, int timeout_ms);
extern void wait_for_keeper(const TagWait *wait, TimestampTz until,
							int max_ms);

/*
 * What the store_*.c files share
 */

/* The tables, and their indexes. */
typedef enum StoreRelation
{
	REL_INSTALLATION,
	REL_LOCKS,
	REL_TICKETS,
	REL_BLOCKERS,
	REL_FLOOR,
	REL_SCOPES,
	REL_LAST_TABLE = REL_SCOPES,
	REL_LOCKS_PKEY,
	REL_TICKETS_PKEY,
	REL_TICKETS_TICKET,
	REL_TICKETS_PLACE,
	REL_TICKETS_OWNER,
	REL_BLOCKERS_OWNER,
	REL_SCOPES_PKEY,
	REL_NONE					/* no index: the scan has no order */
} StoreRelation;

/* A scan of a table, in the order of an index if there is one. */
typedef struct TableScan
{
	Relation	rel;
	Relation	index;			/* NULL: no order */
	Snapshot	snapshot;		/* which versions count */
	struct SysScanDescData *scan;
} TableScan;

/* Columns of a row in arrays "values" and "nulls", numbered from 1. */
#define VALUE(column)		values[(column) - 1]
#define ISNULL(column)		nulls[(column) - 1]
#define TIME(column)		store_time_or_none(VALUE(column), ISNULL(column))
#define SET(column, value)	store_set_value(values, nulls, column, value, false)
#define SET_NULLABLE(column, value, valid) \
	store_set_value(values, nulls, column, value, !(valid))

/* in file store_table.c */
extern void store_watch_relations(void);
extern bool store_is_installed(void);
extern void store_check_result(const char *function, TupleDesc desc,
							   const Oid *types, int columns);
extern void store_begin_call(bool may_write);
extern Relation store_open_table(StoreRelation table);
extern void store_close_table(Relation rel);
extern bool store_is_empty(StoreRelation table);
extern void store_lock_tables(void);
extern Relation store_open_index(StoreRelation which, Relation rel);
extern void store_close_index(Relation index);
extern const Installation *store_load_installation(void);
extern void store_report_row(StoreRelation table, const char *problem);

/* in file store_scan.c */
extern void store_set_key(ScanKey key, AttrNumber column, RegProcedure equal,
						  Datum value);
extern int	store_set_behind(ScanKey keys, const LockKey *key,
							 const pg_uuid_t *request_id, int equal);
extern TableScan *store_open_scan(StoreRelation table, StoreRelation index,
								  ScanKey keys, int nkeys);
extern HeapTuple store_next_row(TableScan *scan, ScanDirection direction);
extern HeapTuple store_only_row(TableScan *scan);
extern void store_close_scan(TableScan *scan);
extern bool store_read_row(StoreRelation table, ItemPointer tid,
						   void (*take) (HeapTuple tuple, TupleDesc desc,
										 void *row),
						   void *row);
extern List *store_sample_rows(StoreRelation table, TimestampTz before,
							   int *seen,
							   void *(*take) (HeapTuple tuple, TupleDesc desc,
											  TimestampTz before));
extern TimestampTz store_time_or_none(Datum value, bool isnull);

/* in file store_write.c */
extern void store_write_row(StoreRelation table, Datum *values, bool *nulls,
							ItemPointer tid);
extern void store_delete_row(StoreRelation table, ItemPointer tid);
extern bool store_try_delete_row(StoreRelation table, ItemPointer tid);
extern void store_set_value(Datum *values, bool *nulls, int column,
							Datum value, bool isnull);
extern void store_set_time(Datum *values, bool *nulls, int column,
						   TimestampTz value);

/* in file store_lock.c */
extern void store_load_lock(const LockKey *key, LeaseLock *lock);
extern void store_save_lock(LeaseLock *lock);
extern List *store_list_scope(const char *scope);
extern List *store_next_locks(const LockKey *after, int count);
extern List *store_sample_locks(TimestampTz before, int *seen);
extern void store_delete_lock(LeaseLock *lock);

/* in file store_ticket.c */
extern const char *lease_state_name(LeaseState state);
extern bool store_load_ticket(const pg_uuid_t *ticket, LeaseTicket *row);
extern bool store_load_request(const LockKey *key,
							   const pg_uuid_t *request_id, LeaseTicket *row);
extern bool store_reload_ticket(LeaseTicket *row);
extern void store_save_ticket(LeaseTicket *row);
extern List *store_list_grant(const LockKey *key, int64 fence);
extern List *store_list_owner(const Identity *who);
extern List *store_list_waits(const Identity *who);
extern TicketScan *store_open_queue(const LockKey *key, int64 after);
extern bool store_next_ticket(TicketScan *scan, LeaseTicket *ticket);
extern void store_close_tickets(TicketScan *scan);
extern int64 store_last_place(const LockKey *key);
extern TicketScan *store_open_all(void);
extern bool store_next_live(TicketScan *tickets, MemoryContext context,
							LeaseTicket *ticket);
extern List *store_next_tickets(const LeaseTicket *after, int count);
extern List *store_sample_tickets(TimestampTz before, int *seen);
extern void store_delete_ticket(LeaseTicket *ticket);
extern bool store_try_delete_ticket(LeaseTicket *ticket);
extern List *store_list_scope_waits(const char *scope);

/* in file store_misc.c */
extern List *store_list_blocked(const Identity *who);
extern void store_note_blocker(const Identity *who, const LockKey *key);
extern void store_forget_blocker(const Identity *who, const LockKey *key);
extern FenceFloor store_load_floor(void);
extern void store_save_floor(const FenceFloor *floor);
extern bool store_load_scope(const char *scope, NameData *role, Oid *role_oid);
extern void store_save_scope(const char *scope, const char *role,
							 Oid role_oid);
extern bool store_delete_scope(const char *scope);
extern List *store_list_blockers(int count);

/* in file grant.c */
extern bool grant_is_live(const LeaseLock *lock, TimestampTz now);
extern int	grant_depth(const LeaseLock *lock, TimestampTz now);
extern LeaseState ticket_state(const LeaseTicket *ticket,
							   const LeaseLock *lock, TimestampTz now);
extern bool same_ticket(const LeaseTicket *a, const LeaseTicket *b);
extern void load_call(Call *call, const LockKey *key);
extern void reload_ticket(LeaseTicket *ticket);
extern LeaseState rejudge_ticket(Call *call, LeaseTicket *ticket);
extern void expire_ticket(LeaseTicket *ticket);
extern LeaseState judge_ticket(Call *call, LeaseTicket *ticket);
extern void save_lock(Call *call);
extern void save_acknowledged(Call *call);
extern void begin_grant(Call *call, const Identity *who);
extern void end_grant(Call *call);
extern void init_ticket(const Call *call, const LeaseRequest *request,
						LeaseTicket *ticket);
extern void join_grant(Call *call, LeaseTicket *ticket, bool claimed,
					   int64 claim_us);

/* in file lease.c */
extern bool lease_try_acquire(const LeaseRequest *request, TimestampTz until,
							  bool first, LeaseAnswer *answer,
							  TagWait *obstacle);
extern void lease_acquire(const LeaseRequest *request, LeaseAnswer *answer);
extern void lease_look(const pg_uuid_t *ticket, int flags,
					   LeaseAnswer *answer);
extern void lease_renew(const pg_uuid_t *ticket, int64 lease_us,
						LeaseAnswer *answer);
extern void lease_release(const pg_uuid_t *ticket, LeaseAnswer *answer);
extern int	lease_release_all(const Identity *who, const char *scope);

/* in file hold.c */
extern int64 hold_try(const LeaseRequest *request);
extern bool hold_renew(const LeaseRequest *request);
extern bool hold_release(const LeaseRequest *request);

/* in file queue.c */

/* The position, or the number of waiters, that stands for "that or more". */
#define MAX_POSITION	100

/*
 * How many rows they are counted from.  More than MAX_POSITION, since one
 * identity may wait with many tickets, and dead ones stand among them.
 */
#define MAX_POSITION_ROWS	1000

extern LeaseState waiter_state(const LeaseTicket *ticket,
							   const LeaseLock *lock, TimestampTz now);
extern bool queue_has_other(Call *call, const Identity *who);
extern int	queue_position(const LeaseLock *lock, const LeaseTicket *own,
						   TimestampTz now);
extern int	queue_length(const LeaseLock *lock, TimestampTz now, int enough,
						 int max_rows);
extern LOCKMODE grant_mode(Call *call, const Identity *who);
extern bool mode_is_same(Call *call, LeaseLock *seen, const Identity *who,
						 LOCKMODE mode);
extern void pass_dead_waiters(Call *call);
extern LeaseState look_at_ticket(Call *call, LeaseTicket *ticket, int flags);
extern LeaseState cancel_wait(Call *call, LeaseTicket *ticket);
extern LeaseState enqueue(Call *call, const LeaseRequest *request,
						  TimestampTz until, LeaseTicket *ticket);
extern void promote_head(Call *call);

/* in file deadlock.c */
extern List *find_deadlock(const LeaseLock *lock, const LeaseTicket *self);
extern void report_deadlock(const List *cycle);

/* in file admin.c */
extern bool lease_break(const LockKey *key, int64 fence);
extern void lease_scope_create(const char *scope, const char *role,
							   Oid role_oid);
extern bool lease_scope_drop(const char *scope);
extern int64 fence_bump(void);

/* in file prune.c */
extern void note_row_added(void);
extern int64 lease_prune(int64 older_us, int64 max_rows);
extern void tidy_before_commit(bool will_wait);

/* in file wait.c */
extern void wake_at_commit(const LeaseTicket *ticket);
extern void wait_for_turn(const pg_uuid_t *uuid, const LockKey *key,
						  const pg_uuid_t *request_id,
						  const LeaseRequest *request, TimestampTz until,
						  LeaseAnswer *answer);
extern void leaselock_release_callback(ResourceReleasePhase phase,
									   bool is_commit, bool is_top_level,
									   void *arg);

/* in file ticket_api.c */
extern LeaseRequest acquire_request(FunctionCallInfo fcinfo);

/* in file fence.c */
extern bool fence_check(const LockKey *key, int64 fence, bool allow_lapsed);
extern void fence_assert(const LockKey *key, int64 fence, bool allow_lapsed);
extern void fence_require_check(const LockKey *key);
extern void fence_settle(const LeaseLock *lock);
extern bool fences_are_pending(void);
extern void fences_verify(void);
extern void forget_checked_leases(const LockKey *key);
extern void fences_commit_sub(SubTransactionId sub, SubTransactionId parent);
extern void fences_abort_sub(SubTransactionId sub);
extern void fences_end(void);

/* in file transaction.c */
extern void note_lease_change(const LockKey *key);
extern void note_acknowledged(void);
extern void begin_losable_write(void);
extern void end_losable_write(void);
extern void leaselock_xact_callback(XactEvent event, void *arg);
extern void leaselock_subxact_callback(SubXactEvent event,
									   SubTransactionId sub,
									   SubTransactionId parent, void *arg);

#endif							/* LEASELOCK_H */
