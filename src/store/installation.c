/*-------------------------------------------------------------------------
 *
 * installation.c
 *	  Which installation of the extension this is.
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

/* What the row says, and what was known of the tables when it was read. */
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
 * The row of leaselock.installation.  It is never changed, so it is as good as
 * the table that it was read from.  A copy that CREATE DATABASE makes has the
 * same row and another oid; pg_upgrade keeps the oid.  So the oid goes into the
 * id and the secret: what the copy took over from the original is not its own.
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
	/* a call's arguments may need it, before the call has begun */
	modes = store_interrupt_call();
	scan = store_open_scan(REL_INSTALLATION, REL_NONE, NULL, 0);
	tuple = store_next_row(scan, ForwardScanDirection);
	if (!HeapTupleIsValid(tuple))
		store_report_table(REL_INSTALLATION, "the table is empty");
	read_row(tuple, RelationGetDescr(scan->rel));
	installation.number++;
	/* not a later one: what is announced meanwhile may be missing */
	read_in_generation = present;
	store_close_scan(scan);
	store_resume_call(modes);
	return &installation;
}
