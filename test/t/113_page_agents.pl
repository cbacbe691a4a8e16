# doc/agents.md: the configuration that it shows is that of a server which works, the
# answer that it shows is one, it has every tool with its arguments, and what it says
# in words is true, as far as 080 to 083 do not test it.
# Native only: the program is the same for every major.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IO::Socket::INET;
use JSON::PP;
use LeaseTest;
use McpTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_mcp();
my $text = slurp_file("$FindBin::RealBin/../../doc/agents.md");
my $json = JSON::PP->new->utf8;
my ($page, $agent, $ticket);

$page = PageTest->new('doc/agents.md',
	session => {
		client => \&configure,
		answer => \&answer,
		agent => \&write_under_lock });
my $node = $page->node;
use_server($node);

# The entry of a client's configuration, but for the server
sub configure
{
	my (undef, $block) = @_;
	my $entry = $json->decode($block)->{mcpServers}{leaselock};
	my @arguments = @{ $entry->{args} };
	my ($host, $port) = ($node->host, $node->port);

	is($entry->{command}, 'leaselock', 'the command is the program');
	is(shift @arguments, 'mcp', 'and its subcommand');
	is(scalar(grep { s/host=db\.example\.com dbname=work/host=$host port=$port dbname=postgres/ } @arguments), 1, 'the host is in the connection string');
	is_deeply([ keys %{ $entry->{env} } ], ['PGPASSFILE'], 'a variable');
	$agent = initialize(start_mcp(\@arguments));
	return '';
}

# What the first four tools answer with
sub answer
{
	my (undef, $block) = @_;
	my $shown = $json->decode($block);

	$ticket = tool($agent, 'acquire_lock', { lock_name => $shown->{name} });
	is_deeply([ sort keys %$ticket ], [ sort keys %$shown ], 'a ticket has the members that the page shows');
	my $columns = $page->sql(q{
		SELECT string_agg('"' || attname || '": ', '.*' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 'leaselock.lease_ticket'::regclass AND attnum > 0});
	like($block, qr/$columns/s, 'those of lease_ticket, in their order');
	is($ticket->{$_}, $shown->{$_}, "the ticket's $_")
	  foreach qw(state scope name depth position wait_until holder holder_role note);
	is($ticket->{owner}, "mcp:$ticket->{request_id}", 'the owner is made of the request');
	is($shown->{owner}, "mcp:$shown->{request_id}", '... on the page, too');
	foreach my $name (qw(ticket fence expires_at remaining_ms next_call_ms))
	{
		my $like = $shown->{$name} =~ s/[0-9a-f]/./gr;
		like($ticket->{$name}, $name =~ /_ms$/ ? qr/^\d+$/ : qr/^$like$/, "the ticket's $name is written like that");
	}
	foreach (
		[ 'get_lock_ticket', 'held' ], [ 'heartbeat_lock_ticket', 'held' ])
	{
		my ($tool, $state) = @$_;
		my $other = tool($agent, $tool, { ticket => $ticket->{ticket} });
		is_deeply([ sort keys %$other ], [ sort keys %$shown ], "$tool answers with the same");
		is($other->{state}, $state, "$tool: it is $state");
	}
	is($page->sql(q{SELECT role FROM leaselock.lease_peek('thread-work.42', 'agents')}), 'agents', 'the role is that of the agents');
	return '';
}

# The statements, with the fence of that ticket
sub write_under_lock
{
	my (undef, $block) = @_;

	$page->sql('CREATE TABLE IF NOT EXISTS reply (id int, by text, body text)');
	is($block =~ s/\b\d{15}\b/$ticket->{fence}/g, 1, 'the fence is shown');
	PageTest::run_sql($page, 'writer', $block);
	is($page->sql('SELECT by FROM reply'), 'agent', 'it writes under the lock');
	my $writer = session($node);
	my ($before, $commit) = $block =~ /(.*)(COMMIT;)/s;
	outcome($writer, $before);
	is(tool($agent, 'release_lock_ticket', { ticket => $ticket->{ticket} })->{state}, 'released', 'the lock is given back');
	is(tool($agent, 'acquire_lock', { lock_name => 'thread-work.42' })->{state}, 'held', 'and has gone to somebody else');
	is(outcome($writer, $commit), 'LS001', 'then it fails at COMMIT');
	like(outcome($writer, $before), qr/^LS001\b/, 'or before');
	$writer->quit;
	is($page->sql('SELECT count(*) FROM reply'), '1', 'as a whole');
	return '';
}

# ---------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------

my $mcp = initialize(start_mcp(['--allow-break']));
my (%tool, %default);
foreach (@{ legacy($mcp, 'tools/list')->{result}{tools} })
{
	my $schema = $_->{inputSchema};
	my %required = map { $_ => 1 } @{ $schema->{required} // [] };
	$tool{ $_->{name} } = join '; ', join(' ', sort keys %required),
	  join(' ', sort grep { !$required{$_} } keys %{ $schema->{properties} });
	# that of the scope is an option of the program
	$default{ $_->{name} } = { map { exists $schema->{properties}{$_}{default} && $_ ne 'scope' ? ($_ => $schema->{properties}{$_}{default}) : () }
		  keys %{ $schema->{properties} } };
}
my %described;
my ($table) = $text =~ /^\| tool \|.*?\n\|[- |]+\|\n((?:\|.*\|\n)+)/m;
foreach (split /\n/, $table)
{
	my (undef, $name, $required, $optional) = split / *\| */;
	$described{ ($name =~ /`(\w+)`/)[0] } = join '; ', join(' ', sort $required =~ /`(\w+)`/g),
	  join(' ', sort $optional =~ /`(\w+)`/g);
	my %shown = $optional =~ /`(\w+)` \((\d+)\)/g;
	is_deeply(\%shown, $default{ ($name =~ /`(\w+)`/)[0] }, "$name: the defaults");
}
is_deeply(\%described, \%tool, 'the page has every tool with its arguments, and no other');
my ($versions) = $text =~ /^- The server speaks revision (.*?)\. /m;
cmp_ok(scalar(() = $versions =~ /\d{4}-\d\d-\d\d/g), '>', 2, 'it names revisions');
foreach my $version ($versions =~ /\d{4}-\d\d-\d\d/g)
{
	next if $version eq '2026-07-28';
	is(legacy($mcp, 'initialize', { protocolVersion => $version, capabilities => {}, clientInfo => { name => 'x', version => '1' } })
		  ->{result}{protocolVersion}, $version, "it speaks $version");
}
end_mcp($mcp);

# ---------------------------------------------------------------------
# What the page says in words
# ---------------------------------------------------------------------

# a wait that would outlast a client's patience, see the end of the page
my $patient = initialize(start_mcp([]));
$page->sql(q{SELECT leaselock.lease_acquire('long', 'holder', lease => '300 s')});
my $long = begin_tool($patient, 'acquire_lock', { lock_name => 'long', wait_seconds => 300 }, { progressToken => 'long' });

# listens(PID): the inodes of the ports on which a process listens
sub listens
{
	my ($pid) = @_;
	my %listening = map { my @fields = split; $fields[3] eq '0A' ? ($fields[9] => 1) : () }
	  map { split /\n/, slurp_file("/proc/$pid/net/$_") } grep { -e "/proc/$pid/net/$_" } qw(tcp tcp6);

	return grep { $listening{$_} } map { (readlink // '') =~ /^socket:\[(\d+)\]/ } glob "/proc/$pid/fd/*";
}

my $listener = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die "no socket: $!";
is(scalar listens($$), 1, 'a port would be seen');
close $listener;

my $one = initialize(start_mcp([]));
my $other = initialize(start_mcp([qw(--answer-within 0.1 --max-keep 0)]));
my $held = tool($one, 'acquire_lock', { lock_name => 'words', note => 'edits a page' });
is_deeply([ listens($one->{pid}) ], [], 'the server listens on no port');
is(tool($one, 'get_lock_ticket', { ticket => $held->{ticket} })->{expires_at}, $held->{expires_at}, 'looking at a ticket does not renew it');
cmp_ok(tool($one, 'heartbeat_lock_ticket', { ticket => $held->{ticket} })->{expires_at}, 'gt', $held->{expires_at}, 'a heartbeat does');

my $waiting = tool($other, 'acquire_lock', { lock_name => 'words', wait_seconds => 100 });
my ($lock) = @{ tool($one, 'lock_status', { lock_name => 'words' })->{locks} };
is("$waiting->{state}|$lock->{owner}|$lock->{waiters}", "waiting|$held->{owner}|1", 'lock_status shows who holds a lock and how many wait');
is(join(' ', sort keys %$lock), $page->sql(q{
	SELECT string_agg(attname, ' ' ORDER BY attname COLLATE "C") FROM pg_attribute
	WHERE attrelid = 'leaselock.lease_status'::regclass AND attnum > 0}), 'lock_status has the columns of lease_status');
is(tool($other, 'release_lock_ticket', { ticket => $waiting->{ticket} })->{state}, 'cancelled', 'releasing a ticket that waits gives up its place');
is(tool($one, 'lock_status', { lock_name => 'words' })->{locks}[0]{waiters}, 0, 'then nobody waits');
is(tool($other, 'release_lock_ticket', { ticket => $held->{ticket} })->{state}, 'released', 'an agent of the same role can release the ticket of another');

like(tool_error($other, 'acquire_lock', { lock_name => 'words', keep_seconds => 1 }), qr/^keep_seconds must be/, '--max-keep 0 turns keeping off');
is(tool($other, 'acquire_lock', { lock_name => 'words' })->{state}, 'held', 'and nothing else');

is(end_mcp($_), 0, 'the server ends with its input') foreach $one, $other;

$other = initialize(start_mcp([qw(-p 1)]));
like(tool_error($other, 'lock_status', {}), qr/\.s\.PGSQL\.1\b|port 1\b/, '-p names the port');
end_mcp($other);

# no more locks than it can look after
$other = initialize(start_mcp([]));
foreach my $hundred (0 .. 9)
{
	my @calls = map { begin_tool($other, 'acquire_lock', { lock_name => "many $_", keep_seconds => 600 }) } 100 * $hundred + 1 .. 100 * $hundred + 100;
	$held = tool($other, $_) foreach @calls;
}
is("$held->{state} $held->{name}", 'held many 1000', 'a server keeps a thousand locks');
like(tool_error($other, 'acquire_lock', { lock_name => 'many 1001' }), qr/too many locks/, 'and no more');
tool($other, 'release_lock_ticket', { ticket => $held->{ticket} });
is(tool($other, 'acquire_lock', { lock_name => 'many 1001' })->{state}, 'held', 'one is released, and the next can be acquired');
end_mcp($other);

# ---------------------------------------------------------------------
# The blocks
# ---------------------------------------------------------------------

$page->before(
	try => sub {
		$page->sql('CREATE DATABASE work');
		$node->safe_psql('work', 'CREATE EXTENSION leaselock');
	});
$page->after(
	try => sub {
		my @answers = map { $json->decode($_) } split /\n/, $page->printed('try');
		is_deeply([ map { $_->{id} } @answers ], [ 1, 2 ], 'both messages are answered');
		is_deeply($answers[1]{result}{structuredContent}, { locks => [], more => JSON::PP::false }, 'nobody holds anything');
	},
	role => sub {
		like($page->printed('role'), qr/lease_scope_create/, 'the scope is registered');
		is($page->sql(q{SELECT role FROM leaselock.lease_scopes WHERE scope = 'agents'}), 'agents', 'the scope is for the agents only');
	},
	# the last block
	write => sub {
		is(tool($patient, $long)->{state}, 'waiting', 'a long wait is answered before it is over');
		my $last = (progress_of($patient, 'long'))[-1]{progress};
		ok($last > 30 && $last <= 45, 'after 45 seconds') or diag $last;
		end_mcp($patient);
	});
$page->run;

done_testing();
