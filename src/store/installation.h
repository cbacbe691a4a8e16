/*-------------------------------------------------------------------------
 *
 * installation.h
 *	  Which installation of the extension this is.
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
	pg_uuid_t	home;			/* its id, and the oid of this database */
	unsigned char secret[16];	/* the key of hashes that others can see */
	uint32		number;			/* which one this session has met */
} Installation;

extern const Installation *store_load_installation(void);

#endif							/* LEASELOCK_INSTALLATION_H */
