# doc/agents.md: the configuration that it shows is that of a server which works, the
# answer that it shows is one, and it has every tool with its arguments.
# Native only: the program is the same for every major.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
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
	});
$page->run;

done_testing();
