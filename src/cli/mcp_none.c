/*-------------------------------------------------------------------------
 *
 * mcp_none.c
 *	  The subcommand mcp where the program was built without jansson.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "cli.h"

ExitCode
mcp_command(const Options *options)
{
	complain("mcp is not built in: it needs the JSON library jansson");
	complain("install its development files (libjansson-dev, jansson-devel), then build leaselock again");
	return EXIT_USAGE;
}
