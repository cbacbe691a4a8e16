/*-------------------------------------------------------------------------
 *
 * main.c
 *	  leaselock, for scripts and operators: leases from the command line.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "cli.h"

int
main(int argc, char **argv)
{
	Options		options = {
		.interval_seconds = 2,
		.answer_within_seconds = 45,
		.max_keep_seconds = 3600
	};
	Command		command;

	fill_standard_descriptors();
	set_text_encoding(getenv("PGCLIENTENCODING"));
	command = parse_options(argc, argv, &options);
	return command(&options);
}
