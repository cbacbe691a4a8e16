# "leaselock mcp": every message of both eras of the protocol, every tool and
# every argument, and invalid messages
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use JSON::PP;
use LeaseTest;
use McpTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_mcp();
my $node = new_node('mcp', 'max_connections = 50');
use_server($node);

my $unknown = '00000000-0000-0000-0000-000000000000';
my @tools = qw(acquire_lock get_lock_ticket heartbeat_lock_ticket release_lock_ticket lock_status);
my ($mcp, $answer, $ticket, $error, $id);

sub code_of
{
	my ($message) = @_;
	return $message->{error} ? $message->{error}{code} : 'a result';
}

# ---------------------------------------------------------------------
# The command line
# ---------------------------------------------------------------------

foreach (
	[ 'an operand', [ 'mcp', 'x' ], qr/too many arguments: "x"/ ],
	[ 'an operand after "--"', [ 'mcp', '--', 'x' ], qr/too many arguments: "x"/ ],
	[ 'an option of another subcommand', [qw(mcp --json)], qr/mcp does not take --json/ ],
	[ 'its option with another subcommand', [qw(status --allow-break)], qr/status does not take --allow-break/ ],
	[ 'a time to answer of zero', [qw(mcp --answer-within 0)], qr/--answer-within .*0\.1 to .*"0"/ ],
	[ 'an invalid time to keep', [qw(mcp --max-keep x)], qr/--max-keep .*"x"/ ],
	[ 'an invalid scope', [ qw(mcp --scope), '' ], qr/--scope/ ])
{
	my ($test, $arguments, $message) = @$_;
	my ($rc, $out, $err) = cli(@$arguments);

	is("$rc|$out", '3|', "usage: $test");
	like($err, $message, "usage: $test: the message names the error");
}

# ---------------------------------------------------------------------
# The legacy era
# ---------------------------------------------------------------------

# there is no database to connect to, and none is needed yet
$mcp = start_mcp([ '-h', '/nonexistent' ]);
foreach ([ '2025-11-25', '2025-11-25' ], [ '2025-06-18', '2025-06-18' ],
	[ '2025-03-26', '2025-03-26' ], [ '2024-11-05', '2024-11-05' ],
	[ '1999-01-01', '2025-11-25' ], [ '2026-07-28', '2025-11-25' ], [ '', '2025-11-25' ])
{
	my ($asked, $given) = @$_;
	$answer = legacy($mcp, 'initialize', { protocolVersion => $asked, capabilities => {},
			clientInfo => { name => 'test', version => '1' } });
	is($answer->{result}{protocolVersion}, $given, "initialize: version \"$asked\"");
}
is_deeply([ sort keys %{ $answer->{result} } ],
	[qw(capabilities instructions protocolVersion serverInfo)], 'initialize: the fields of the answer');
is_deeply($answer->{result}{capabilities}, { tools => {} }, 'initialize: offers only tools');
is($answer->{result}{serverInfo}{name}, 'leaselock', 'initialize: the name of the server');
like($answer->{result}{instructions}, qr/$_/, "instructions: $_")
  foreach 'read the state of the work again', 'heartbeat_lock_ticket', 'fence_assert',
  'expired', 'LS001', 'release_lock_ticket', 'request_id';
cmp_ok(length $answer->{result}{instructions}, '<', 1500, 'instructions: are short');
is(code_of(legacy($mcp, 'initialize', {})), -32602, 'initialize: a version is required');
is(code_of(legacy($mcp, 'initialize')), -32602, 'initialize: params are required');

is_deeply(legacy($mcp, 'ping')->{result}, {}, 'ping');
$answer = legacy($mcp, 'tools/list');
is_deeply([ map { $_->{name} } @{ $answer->{result}{tools} } ], \@tools, 'tools/list');
is_deeply([ keys %{ $answer->{result} } ], ['tools'], 'tools/list: has no fields of the other era');
is(code_of(legacy($mcp, 'tools/list', { cursor => 'x' })), -32602, 'tools/list: has only one page');
is(code_of(legacy($mcp, $_)), -32601, "$_ is not found")
  foreach qw(resources/list resources/templates/list prompts/list logging/setLevel completion/complete
  resources/subscribe tasks/list sampling/createMessage nonsense TOOLS/LIST), '', 'notifications/cancelled';
is(code_of(legacy($mcp, 'server/discover')), -32602, 'server/discover does not belong to this era');
is(end_mcp($mcp), 0, 'the program ends with its input');
is($mcp->{err}, '', 'nothing is printed on standard error');

# ---------------------------------------------------------------------
# The modern era
# ---------------------------------------------------------------------

$mcp = start_mcp([ '-h', '/nonexistent' ]);
my %meta = %$modern_meta;
my ($version, $capabilities, $client) = map { "io.modelcontextprotocol/$_" } qw(protocolVersion clientCapabilities clientInfo);

is(code_of(legacy($mcp, $_)), -32602, "$_ needs _meta or initialize")
  foreach qw(server/discover tools/list tools/call);
is_deeply(legacy($mcp, 'ping')->{result}, {}, 'ping is answered before initialize');
$answer = modern($mcp, 'server/discover')->{result};
is_deeply([ sort keys %$answer ],
	[qw(_meta cacheScope capabilities instructions resultType supportedVersions ttlMs)], 'server/discover: the fields of the answer');
is($answer->{resultType}, 'complete', 'server/discover: resultType');
is($answer->{supportedVersions}[0], '2026-07-28', 'server/discover: the version');
is_deeply($answer->{_meta}{'io.modelcontextprotocol/serverInfo'}{name}, 'leaselock', 'server/discover: serverInfo');
is("$answer->{cacheScope}|$answer->{ttlMs}", 'public|3600000', 'server/discover: can be cached');
$answer = modern($mcp, 'tools/list')->{result};
is_deeply([ map { $_->{name} } @{ $answer->{tools} } ], \@tools, 'tools/list');
is("$answer->{resultType}|$answer->{cacheScope}|$answer->{ttlMs}", 'complete|public|3600000', 'tools/list: can be cached');
is(code_of(modern($mcp, $_)), -32601, "$_ is not found in the modern era")
  foreach qw(ping initialize logging/setLevel resources/subscribe subscriptions/listen tasks/get nonsense);

$answer = legacy($mcp, 'tools/list', { _meta => { %meta, $version => '1900-01-01' } })->{error};
is($answer->{code}, -32022, 'an unsupported version is refused');
is("$answer->{data}{requested}|$answer->{data}{supported}[0]", '1900-01-01|2026-07-28', 'the error lists the supported versions');
is(code_of(legacy($mcp, 'tools/list', { _meta => { %meta, $version => '2025-11-25' } })),
	-32022, 'a version of the other era needs its handshake');
foreach ([ 'a version that is not a string', { %meta, $version => 1 } ],
	[ 'a version that is null', { %meta, $version => undef } ],
	[ 'no capabilities', { $version => '2026-07-28' } ],
	[ 'capabilities that are not an object', { %meta, $capabilities => [] } ],
	[ 'no version', { $capabilities => {} } ])
{
	my ($test, $meta) = @$_;
	is(code_of(legacy($mcp, 'tools/list', { _meta => $meta })), -32602, "_meta: $test");
}
is(code_of(legacy($mcp, 'tools/list', { _meta => { %meta, $client => 'x' } })),
	'a result', '_meta: invalid clientInfo is accepted');
is(code_of(legacy($mcp, 'tools/list', { _meta => [] })), -32602, '_meta: must be an object');

# one process serves both eras, as each request says
initialize($mcp);
is_deeply([ keys %{ legacy($mcp, 'tools/list')->{result} } ], ['tools'], 'both eras: a legacy request is answered');
is(modern($mcp, 'tools/list')->{result}{resultType}, 'complete', 'both eras: a modern request is answered');
is(end_mcp($mcp), 0, 'the program ends with its input');

# ---------------------------------------------------------------------
# Descriptions of the tools
# ---------------------------------------------------------------------

$mcp = initialize(start_mcp([qw(--allow-break --max-keep 120.5 --scope team)]));
my $list = legacy($mcp, 'tools/list')->{result}{tools};
is_deeply([ map { $_->{name} } @$list ], [ @tools, 'break_lock' ], '--allow-break: adds one tool');
my %tool = map { $_->{name} => $_ } @$list;
foreach my $tool (@$list)
{
	my $input = $tool->{inputSchema};
	is($input->{type} . ($input->{additionalProperties} ? 'open' : ''), 'object', "$tool->{name}: its input is a closed object");
	ok(!(grep { !$_->{description} || !$_->{type} } values %{ $input->{properties} }),
		"$tool->{name}: every argument is described");
	ok(!(grep { !$input->{properties}{$_} } @{ $input->{required} }), "$tool->{name}: every required argument exists");
	is($tool->{outputSchema}{type}, 'object', "$tool->{name}: its output is an object");
	cmp_ok(length $tool->{description}, '<', 700, "$tool->{name}: its description is short");
}
my $true = JSON::PP::true;
my $false = JSON::PP::false;
my %hints = map { my $hint = $_->{annotations};
	($_->{name} => join '', map { $hint->{$_} ? 1 : 0 } qw(readOnlyHint destructiveHint idempotentHint openWorldHint)) } @$list;
is_deeply(\%hints, { acquire_lock => '0010', get_lock_ticket => '0010', heartbeat_lock_ticket => '0010',
		release_lock_ticket => '0110', lock_status => '1010', break_lock => '0100' }, 'annotations');
is_deeply([ sort keys %{ $tool{acquire_lock}{inputSchema}{properties} } ],
	[ sort qw(lock_name scope repo owner request_uuid lease_seconds wait_seconds keep_seconds note) ],
	'acquire_lock: its arguments');
is_deeply($tool{acquire_lock}{outputSchema}{properties}{state}{enum},
	[qw(held waiting contended deadlock released expired timed_out cancelled broken gone)], 'the ten states');
is($tool{acquire_lock}{inputSchema}{properties}{keep_seconds}{maximum}, 120.5, '--max-keep is in the schema');
is($tool{$_}{inputSchema}{properties}{scope}{default}, 'team', "--scope is in the schema: $_") foreach qw(acquire_lock break_lock);

# ---------------------------------------------------------------------
# A database that is not ready
# ---------------------------------------------------------------------

$error = tool_error($mcp, 'acquire_lock', { lock_name => 'n' });
like($error, qr/schema "leaselock" does not exist \(3F000\).*CREATE EXTENSION leaselock/, 'no extension: the error says what to do');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');
$ticket = tool($mcp, 'acquire_lock', { lock_name => 'n' });
is("$ticket->{state}|$ticket->{scope}", 'held|team', 'it works once the extension exists; --scope is the default');
is($node->safe_psql('postgres', q{SELECT application_name FROM pg_stat_activity WHERE query LIKE '%lease_acquire%' AND pid <> pg_backend_pid()}),
	'leaselock mcp: test', 'the application name has the program and its client');
is(end_mcp($mcp), 0, 'the program ends with its input');

my $other = start_mcp([ '-d', 'nonexistent' ]);
like(tool_error($other, 'lock_status', {}), qr/database "nonexistent" does not exist/, 'no database: an error of the tool');
$error = tool_error($other, 'acquire_lock', { lock_name => 'n' });
like($error, qr/database "nonexistent" does not exist/, 'no database: acquire_lock fails, too');
unlike($error, qr/done nevertheless/, 'no database: the error says nothing of a possible effect');
is(end_mcp($other), 0, 'no database: the program ends normally');
$other = start_mcp([ '-d', 'host=/nonexistent connect_timeout=1' ]);
like(tool_error($other, 'get_lock_ticket', { ticket => $unknown }), qr/No such file/, 'no server: an error of the tool');
is(end_mcp($other), 0, 'no server: the program ends normally');

# ---------------------------------------------------------------------
# A ticket's life
# ---------------------------------------------------------------------

foreach my $era (qw(legacy modern))
{
	$mcp = start_mcp([]);
	initialize($mcp) if $era eq 'legacy';
	$ticket = tool($mcp, 'acquire_lock', { lock_name => "nightly $era" });
	is_deeply([ @$ticket{qw(state scope name depth remaining_ms next_call_ms)} ],
		[ 'held', 'public', "nightly $era", 1, 60000, 20000 ], "$era: held, for 60 s by default");
	like($ticket->{request_id}, qr/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, "$era: a request id is generated and returned");
	is($ticket->{owner}, "mcp:$ticket->{request_id}", "$era: the owner is derived from the request id");
	like($ticket->{expires_at}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$/, "$era: times have the format of RFC 3339");
	is($ticket->{fence}, $node->safe_psql('postgres', "SELECT fence FROM leaselock.lease_get('$ticket->{ticket}')"), "$era: the fence is exact");

	$answer = tool($mcp, 'acquire_lock', { lock_name => "nightly $era" });
	is("$answer->{state}|$answer->{holder}", "contended|$ticket->{owner}", "$era: another call is another owner and gets contended");
	is($answer->{owner}, "mcp:$answer->{request_id}", "$era: the request id of a contended call is returned, too");
	$answer = tool($mcp, 'acquire_lock', { lock_name => "nightly $era", request_uuid => uc $ticket->{request_id} });
	is("$answer->{ticket}|$answer->{depth}|$answer->{owner}", "$ticket->{ticket}|1|$ticket->{owner}",
		"$era: a repeated request finds its ticket, in upper case too");
	like(tool_error($mcp, 'acquire_lock', { lock_name => "nightly $era", request_uuid => $ticket->{request_id}, owner => 'x' }),
		qr/^request id belongs to another identity \(LS002\)\. Another .*\. Use a new .*\.$/, "$era: another owner gets an error with message, detail and hint");

	is(tool($mcp, 'get_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'held', "$era: get_lock_ticket");
	is(tool($mcp, 'get_lock_ticket', { ticket => uc $ticket->{ticket} })->{ticket}, $ticket->{ticket}, "$era: get_lock_ticket with a uuid in upper case");
	is(tool($mcp, 'heartbeat_lock_ticket', { ticket => $ticket->{ticket}, lease_seconds => 90 })->{remaining_ms}, 90000, "$era: heartbeat with a length");
	is(tool($mcp, 'heartbeat_lock_ticket', { ticket => $ticket->{ticket} })->{remaining_ms}, 90000, "$era: heartbeat keeps the last requested length");
	$answer = tool($mcp, 'lock_status', { lock_name => "nightly $era" });
	is_deeply([ map { "$_->{name}|$_->{owner}|$_->{fence}" } @{ $answer->{locks} } ],
		["nightly $era|$ticket->{owner}|$ticket->{fence}"], "$era: lock_status");
	is(tool($mcp, 'release_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', "$era: release_lock_ticket");
	is(tool($mcp, 'release_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', "$era: release_lock_ticket can be repeated");
	is(tool($mcp, 'heartbeat_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', "$era: a heartbeat of a released ticket returns released");
	is(tool($mcp, 'get_lock_ticket', { ticket => $unknown })->{state}, 'gone', "$era: an unknown ticket is gone, without an error");
	is_deeply(tool($mcp, 'lock_status', { lock_name => "nightly $era" }), { locks => [], more => $false }, "$era: lock_status of a free lock");
	is(end_mcp($mcp), 0, "$era: the program ends with its input");
}

# a retry reaches another process
$mcp = start_mcp([]);
$ticket = tool($mcp, 'acquire_lock', { lock_name => 'retry' });
is(end_mcp($mcp), 0, 'the process ends');
$mcp = start_mcp([]);
$answer = tool($mcp, 'acquire_lock', { lock_name => 'retry', request_uuid => $ticket->{request_id} });
is("$answer->{ticket}|$answer->{state}", "$ticket->{ticket}|held", 'a repeated request finds its ticket from any process');

# the same owner label is the same owner in every call
$ticket = tool($mcp, 'acquire_lock', { lock_name => 'owned', owner => 'me', scope => 'team', lease_seconds => 7.5 });
is("$ticket->{owner}|$ticket->{scope}|$ticket->{remaining_ms}", 'me|team|7500', 'owner, scope and a fractional lease are taken');
$answer = tool($mcp, 'acquire_lock', { lock_name => 'owned', owner => 'me', repo => 'team' });
is("$answer->{state}|$answer->{depth}|$answer->{fence}", "held|2|$ticket->{fence}", 'the same owner shares the grant; repo means scope');

# a note is shown; an empty note is no note
$ticket = tool($mcp, 'acquire_lock', { lock_name => 'noted', note => "see \x{20AC} #5" });
is($ticket->{note}, "see \x{20AC} #5", 'a note is kept with the ticket');
is(tool($mcp, 'lock_status', { lock_name => 'noted' })->{locks}[0]{note}, "see \x{20AC} #5", 'the note is shown with the lock');
is(tool($mcp, 'acquire_lock', { lock_name => 'noted', owner => $ticket->{owner}, note => '' })->{note}, undef, 'an empty note is no note');

# ---------------------------------------------------------------------
# Arguments
# ---------------------------------------------------------------------

my $big = 2**53 + 1;
my %count = (before => $node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.lease_tickets'));
foreach (
	[ 'acquire_lock', {}, qr/^acquire_lock needs the argument lock_name$/ ],
	[ 'get_lock_ticket', {}, qr/needs the argument ticket/ ],
	[ 'acquire_lock', { lock_name => 5 }, qr/^lock_name must be a string, not 5$/ ],
	[ 'acquire_lock', { lock_name => undef }, qr/^lock_name must be a string, not null$/ ],
	[ 'acquire_lock', { lock_name => ['x'] }, qr/^lock_name must be a string, not \["x"\]$/ ],
	[ 'acquire_lock', { lock_name => { a => 1 } }, qr/^lock_name must be a string/ ],
	[ 'acquire_lock', { lock_name => '' }, qr/"name".*1 to 255.*22023|22023.*1 to 255/ ],
	[ 'acquire_lock', { lock_name => 'x' x 256 }, qr/22023/ ],
	[ 'acquire_lock', { lock_name => ' x' }, qr/22023/ ],
	[ 'acquire_lock', { lock_name => "a\tb" }, qr/22023/ ],
	[ 'acquire_lock', { lock_name => 'x', scope => 'a', repo => 'b' }, qr/^scope and repo mean the same thing/ ],
	[ 'acquire_lock', { lock_name => 'x', lockname => 'y' }, qr/^acquire_lock does not take the argument "lockname"; it takes \["lock_name", "scope"/ ],
	[ 'acquire_lock', { lock_name => 'x', ('y' x 1000) => 1 }, qr/does not take the argument "y{79}\.\.\.; it takes/ ],
	[ 'acquire_lock', { lock_name => 'x', owner => '' }, qr/22023/ ],
	[ 'acquire_lock', { lock_name => 'x', request_uuid => 'u' }, qr/^request_uuid must be a uuid .*, not "u"$/ ],
	[ 'acquire_lock', { lock_name => 'x', request_uuid => "$unknown " }, qr/^request_uuid must be a uuid/ ],
	[ 'acquire_lock', { lock_name => 'x', lease_seconds => '60' }, qr/^lease_seconds must be a number of seconds from 0\.001 to 3153600000, not "60"$/ ],
	[ 'acquire_lock', { lock_name => 'x', lease_seconds => 0 }, qr/^lease_seconds must be .*, not 0$/ ],
	[ 'acquire_lock', { lock_name => 'x', lease_seconds => 4 }, qr/"lease".*\(22023\).*5 s to 300 s/ ],
	[ 'acquire_lock', { lock_name => 'x', lease_seconds => 301 }, qr/"lease".*\(22023\).*5 s to 300 s/ ],
	[ 'acquire_lock', { lock_name => 'x', wait_seconds => -1 }, qr/^wait_seconds must be .* from 0 to .*, not -1$/ ],
	[ 'acquire_lock', { lock_name => 'x', wait_seconds => 301 }, qr/"wait".*\(22023\)/ ],
	[ 'acquire_lock', { lock_name => 'x', wait_seconds => $true }, qr/^wait_seconds must be .*, not true$/ ],
	[ 'acquire_lock', { lock_name => 'x', keep_seconds => 3600.5 }, qr/^keep_seconds must be .* from 0 to 3600, not 3600\.5$/ ],
	[ 'acquire_lock', { lock_name => 'x', note => 'x' x 1001 }, qr/"note".*22023.*1000/ ],
	[ 'acquire_lock', { lock_name => 'x', note => "a\nb" }, qr/"note".*22023/ ],
	[ 'acquire_lock', { lock_name => 'x', note => 5 }, qr/^note must be a string, not 5$/ ],
	[ 'acquire_lock', { lock_name => 'x', ticket => $unknown }, qr/does not take the argument "ticket"/ ],
	[ 'heartbeat_lock_ticket', { ticket => $ticket->{ticket}, lease_seconds => 1000 }, qr/\(22023\)/ ],
	[ 'heartbeat_lock_ticket', { ticket => $ticket->{ticket}, keep_seconds => 1 }, qr/does not take the argument/ ],
	[ 'release_lock_ticket', { ticket => "$unknown\n" }, qr/^ticket must be a uuid/ ],
	[ 'lock_status', { limit => 0 }, qr/^limit must be a whole number from 1 to 1000, not 0$/ ],
	[ 'lock_status', { limit => 1.5 }, qr/^limit must be a whole number/ ],
	[ 'lock_status', { limit => $big }, qr/^limit must be a whole number/ ])
{
	my ($name, $arguments, $message) = @$_;
	$error = tool_error($mcp, $name, $arguments);
	like($error, $message, "arguments: $message");
}
$count{after} = $node->safe_psql('postgres', 'SELECT count(*) FROM leaselock.lease_tickets');
is($count{after}, $count{before}, 'arguments: none of these calls has acquired a lock');

is(code_of(modern($mcp, 'tools/call', $_->[1])), -32602, "tools/call: $_->[0]")
  foreach [ 'no name', {} ], [ 'a name that is not a string', { name => 5 } ],
  [ 'an unknown tool', { name => 'take_lock' } ], [ 'a tool that is not offered', { name => 'break_lock' } ],
  [ 'arguments that are a list', { name => 'lock_status', arguments => [] } ],
  [ 'arguments that are null', { name => 'lock_status', arguments => undef } ],
  [ 'an invalid token', { name => 'lock_status', _meta => { %meta, progressToken => 1.5 } } ];
like(modern($mcp, 'tools/call', { name => "take\n_lock" })->{error}{message}, qr/^Unknown tool: take\?_lock$/, 'tools/call: the unknown tool is named');
is(code_of(modern($mcp, 'tools/call', { name => 'lock_status' })), 'a result', 'tools/call: arguments may be left out');

# ---------------------------------------------------------------------
# Text of all kinds
# ---------------------------------------------------------------------

my $name = "\x{20AC} \"quoted\" \\ \x{1F512} \x{2028} \x{85} a\x{301}";
$ticket = tool($mcp, 'acquire_lock', { lock_name => $name, owner => "\x{FC}" });
is("$ticket->{state}|$ticket->{name}|$ticket->{owner}", "held|$name|\x{FC}", 'unusual names are returned unchanged');
is(tool($mcp, 'lock_status', { lock_name => $name })->{locks}[0]{name}, $name, 'unusual names are found');
is(tool($mcp, 'release_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', 'unusual names are released');
is(end_mcp($mcp), 0, 'unusual names: the program ends normally');
{
	local $ENV{PGCLIENTENCODING} = 'LATIN1';
	$mcp = start_mcp([ '-d', 'client_encoding=LATIN1' ]);
	is(tool($mcp, 'acquire_lock', { lock_name => $name })->{name}, $name, "the environment's encoding has no effect");
	is(end_mcp($mcp), 0, 'another encoding: the program ends normally');
}

# names that are not UTF-8, in a database whose encoding allows them
$node->safe_psql('postgres', q{CREATE DATABASE bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
$node->safe_psql('bytes', 'CREATE EXTENSION leaselock');
$node->safe_psql('bytes', q{SELECT leaselock.lease_acquire(E'\xFF\x9B', 'o'), leaselock.lease_acquire('good', E'\x80')});
$mcp = start_mcp([ '-d', 'bytes' ]);
like(tool_error($mcp, 'lock_status', {}), qr/\(22021\)/, 'names that are not UTF-8 cannot be shown: an error');
is(tool($mcp, 'acquire_lock', { lock_name => $name })->{name}, $name, 'other names can be acquired there');
is(end_mcp($mcp), 0, 'names that are not UTF-8: the program ends normally');

# ---------------------------------------------------------------------
# lock_status and break_lock
# ---------------------------------------------------------------------

$node->safe_psql('postgres', q{SELECT leaselock.lease_acquire('s' || lpad(i::text, 3, '0'), 'o', scope => 'many') FROM generate_series(1, 150) i});
$mcp = start_mcp(['--allow-break']);
$answer = tool($mcp, 'lock_status', { scope => 'many' });
is(scalar @{ $answer->{locks} } . "|$answer->{more}", '100|1', 'lock_status: shows a hundred and says that there are more');
$answer = tool($mcp, 'lock_status', { scope => 'many', limit => 150 });
is(scalar @{ $answer->{locks} } . "|$answer->{more}|$answer->{locks}[149]{name}", '150|0|s150', 'lock_status: shows all with a higher limit');
$answer = tool($mcp, 'lock_status', { limit => 1000 });
ok((grep { $_->{scope} eq 'team' } @{ $answer->{locks} }) && (grep { $_->{scope} eq 'many' } @{ $answer->{locks} }),
	'lock_status: covers all scopes by default');
is(scalar @{ tool($mcp, 'lock_status', { scope => 'many', lock_name => 's007' })->{locks} }, 1, 'lock_status: shows one lock of a scope');

my $fence = $answer->{locks}[0]{fence};
my %lock = map { $_ => $answer->{locks}[0]{$_} } qw(name scope);
foreach ({}, { fence => 0 }, { fence => -5 }, { fence => 1.5 }, { fence => "$fence" }, { fence => undef })
{
	like(tool_error($mcp, 'break_lock', { lock_name => $lock{name}, scope => $lock{scope}, %$_ }),
		qr/fence/, 'break_lock: a missing or invalid fence is an error');
}
is_deeply(tool($mcp, 'break_lock', { lock_name => $lock{name}, scope => $lock{scope}, fence => $fence + 1 }), { broken => $false }, 'break_lock: another fence breaks nothing');
is_deeply(tool($mcp, 'break_lock', { lock_name => $lock{name}, scope => $lock{scope}, fence => $fence }), { broken => $true }, 'break_lock: the fence of the grant ends it');
is_deeply(tool($mcp, 'break_lock', { lock_name => $lock{name}, scope => $lock{scope}, fence => $fence }), { broken => $false }, 'break_lock: only once');
is_deeply(tool($mcp, 'break_lock', { lock_name => 'none', fence => 9223372036854775807 }), { broken => $false }, 'break_lock: accepts the greatest fence');
is(end_mcp($mcp), 0, 'break_lock: the program ends normally');

# ---------------------------------------------------------------------
# A role for agents and a registered scope
# ---------------------------------------------------------------------

$node->safe_psql('postgres', q{
	CREATE ROLE agents LOGIN;
	SELECT leaselock.lease_scope_create('agents', 'agents');
	SELECT leaselock.lease_scope_create('secret', 'postgres');
	SELECT leaselock.lease_acquire('hidden', 'o', scope => 'secret')});
$mcp = start_mcp([qw(-U agents --scope agents --allow-break)]);
$ticket = tool($mcp, 'acquire_lock', { lock_name => 'n' });
is("$ticket->{state}|$ticket->{scope}", 'held|agents', 'agents: acquire in their scope');
is(scalar(grep { $_->{scope} eq 'secret' } @{ tool($mcp, 'lock_status', {})->{locks} }), 0, 'agents: do not see another registered scope');
like(tool_error($mcp, 'acquire_lock', { lock_name => 'n', scope => 'secret' }), qr/\(42501\)/, 'agents: may not use that scope');
like(tool_error($mcp, 'break_lock', { lock_name => 'n', fence => $ticket->{fence} }), qr/\(42501\)/, 'agents: --allow-break does not give them the privilege');
is(end_mcp($mcp), 0, 'agents');

is_deeply([ internal_errors($node) ], [], 'no internal errors');
is_deeply([ crashes($node) ], [], 'no server process crashed');
$node->stop;
done_testing();
