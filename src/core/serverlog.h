/*-------------------------------------------------------------------------
 *
 * serverlog.h
 *	  Lines in the server log for DBAs.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_SERVERLOG_H
#define LEASELOCK_SERVERLOG_H

#include "core/model.h"

extern void log_takeover(const LockRow *lapsed, const LockRow *taken);
extern void log_break(const LockRow *broken, TimestampTz now);
extern void log_refusal(const LockKey *key, int64 fence);
extern void write_log_lines(void);
extern void commit_log_sub(SubTransactionId sub, SubTransactionId parent);
extern void abort_log_sub(SubTransactionId sub);
extern void end_log(void);

#endif							/* LEASELOCK_SERVERLOG_H */
