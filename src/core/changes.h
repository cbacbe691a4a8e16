/*-------------------------------------------------------------------------
 *
 * changes.h
 *	  What this transaction has changed, and what it still has to do when it
 *	  ends.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_CHANGES_H
#define LEASELOCK_CHANGES_H

#include "core/model.h"

extern void note_lease_change(void);
extern bool leases_were_changed(void);
extern void begin_losable_write(void);
extern void end_losable_write(void);
extern void note_acknowledged(void);
extern bool may_lose_all(void);
extern void note_row_added(void);
extern int	take_rows_added(void);
extern void note_event_added(void);
extern int	take_events_added(void);
extern void wake_at_commit(const TicketRow *ticket);
extern void wake_waiters(bool is_commit);
extern void commit_changes_sub(SubTransactionId sub, SubTransactionId parent);
extern void abort_changes_sub(SubTransactionId sub);
extern void end_changes(void);

#endif							/* LEASELOCK_CHANGES_H */
