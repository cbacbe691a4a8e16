/*-------------------------------------------------------------------------
 *
 * mcp_none.c
 *	  The subcommand mcp in a build without jansson.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "cli.h"

ExitCode
mcp_command(const Options *options)
{
	complain("mcp is not available in this build: it needs the JSON library jansson");
	complain("install the development files of jansson (libjansson-dev, jansson-devel), then rebuild leaselock");
	return EXIT_USAGE;
}
