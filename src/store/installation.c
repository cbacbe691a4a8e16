/*-------------------------------------------------------------------------
 *
 * installation.c
 *	  The identity of this installation of the extension.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "store/installation.h"
#include "store/table.h"

/*
 * The contents of the row, and the generation of the tables when it was read.
 */
static Installation installation;
static uint64 read_in_generation = 0;

static void
read_row(HeapTuple tuple, TupleDesc desc)
{
	Datum		values[2];
	bool		nulls[2];
	bytea	   *secret;
	Oid			database = MyDatabaseId;

	heap_deform_tuple(tuple, desc, values, nulls);
	installation.home = *DatumGetUUIDP(values[0]);
	for (int i = 0; i < (int) sizeof(Oid); i++)
		installation.home.data[i] ^= ((unsigned char *) &database)[i];
	secret = DatumGetByteaPP(values[1]);
	if (VARSIZE_ANY_EXHDR(secret) != sizeof(installation.secret))
		store_report_table(REL_INSTALLATION, "the secret is too short");
	memcpy(installation.secret, VARDATA_ANY(secret),
		   sizeof(installation.secret));
	for (int i = 0; i < (int) sizeof(Oid); i++)
		installation.secret[i] ^= ((unsigned char *) &database)[i];
}

/*
 * Loads the row of leaselock.installation.  It never changes, so it is valid
 * for as long as the table is the same.  A copy made by CREATE DATABASE has
 * the same row but another database oid, while pg_upgrade keeps the oid.  The
 * oid is therefore mixed into the id and the secret, so that a copy does not
 * take the original's holders for its own.  Raises 55000 if the table is not
 * as expected.
 */
const Installation *
store_load_installation(void)
{
	uint64		present = store_event_generation();
	CallModes	modes;
	TableScan  *scan;
	HeapTuple	tuple;

	if (read_in_generation == present)
		return &installation;
	/* a call's arguments may need this before the call has begun */
	modes = store_interrupt_call();
	scan = store_open_scan(REL_INSTALLATION, REL_NONE, NULL, 0);
	tuple = store_next_row(scan, ForwardScanDirection);
	if (!HeapTupleIsValid(tuple))
		store_report_table(REL_INSTALLATION, "the table is empty");
	read_row(tuple, RelationGetDescr(scan->rel));
	installation.number++;

	/*
	 * not store_event_generation() again: an announcement since then may be
	 * missing from what was read
	 */
	read_in_generation = present;
	store_close_scan(scan);
	store_resume_call(modes);
	return &installation;
}
