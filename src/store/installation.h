/*-------------------------------------------------------------------------
 *
 * installation.h
 *	  The identity of this installation of the extension.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_INSTALLATION_H
#define LEASELOCK_INSTALLATION_H

#include "utils/uuid.h"

/* The row of leaselock.installation, see the install script. */
typedef struct Installation
{
	pg_uuid_t	home;			/* its id, mixed with this database's oid */
	unsigned char secret[16];	/* key for hashes that others can see */
	uint32		number;			/* counts the installations seen */
} Installation;

extern const Installation *store_load_installation(void);

#endif							/* LEASELOCK_INSTALLATION_H */
