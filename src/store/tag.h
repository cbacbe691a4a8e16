/*-------------------------------------------------------------------------
 *
 * tag.h
 *	  The heavyweight locks that serialize all work on a lease lock.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_TAG_H
#define LEASELOCK_TAG_H

#include "storage/lock.h"
#include "store/types.h"

typedef enum TagKind
{
	TAG_KIND_NAME = 0x4C4C,
	TAG_KIND_QUEUE,
	TAG_KIND_TICKET,
	TAG_KIND_LIVENESS,
	TAG_KIND_SCOPE,
	TAG_KIND_FLOOR,
	TAG_KIND_QUEUES
} TagKind;

/* A tag, and the names for error contexts. */
typedef struct Tag
{
	TagKind		kind;
	LOCKTAG		locktag;
	LockKey		key;			/* "" for names that do not apply */
} Tag;

#define MAX_CALL_TAGS	8

/*
 * The tags that one call has acquired, so that a call that wrote nothing can
 * release exactly these.
 */
typedef struct TagSet
{
	bool		quiet;			/* a full lock table is not an error */
	int			count;
	LOCKTAG		tags[MAX_CALL_TAGS];
	LOCKMODE	modes[MAX_CALL_TAGS];
} TagSet;

extern LockKey make_lock_key(const char *scope, const char *name);
extern void renew_lock_key(LockKey *key);
extern int	compare_lock_keys(const LockKey *a, const LockKey *b);

extern Tag	name_tag(const LockKey *key);
extern Tag	queue_tag(const LockKey *key);
extern Tag	ticket_tag(const LockKey *key, const pg_uuid_t *id);
extern Tag	liveness_tag(const LockKey *key, const pg_uuid_t *id);
extern Tag	scope_tag(const char *scope);
extern Tag	floor_tag(void);
extern Tag	queues_tag(void);
extern const pg_uuid_t *tag_id(const TicketRow *ticket);

extern bool try_tag(TagSet *set, const Tag *tag, LOCKMODE mode);
extern void wait_tag(TagSet *set, const Tag *tag, LOCKMODE mode);
extern void keep_tags(TagSet *set);
extern void give_back_tags(TagSet *set);
extern bool may_stand_in_line(const LockKey *key);
extern void forget_tags(void);
extern VirtualTransactionId find_tag_holder(const Tag *tag, LOCKMODE mode);
extern bool wait_for_transaction(VirtualTransactionId vxid, int timeout_ms);
extern void wait_for_tag_holder(const Tag *tag, LOCKMODE mode, bool brief,
								int64 left_us, int max_ms);

extern void take_liveness(const Tag *tag);
extern void drop_liveness(const Tag *tag);
extern bool is_attended(const TicketRow *ticket);

#endif							/* LEASELOCK_TAG_H */
