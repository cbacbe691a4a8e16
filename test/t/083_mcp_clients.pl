# "leaselock mcp" with clients from others: two SDKs in every era and mode and,
# where LEASELOCK_MCP_TOOLS=1 installed them, the command line of the inspector
# and the conformance suite.  package.json in test/mcp and test/mcp/tools sets
# their versions; to install them by hand, run "npm ci" and "npm install"
# there.
#
# Native only: npm is not in the trees of the other majors

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IPC::Run;
use JSON::PP;
use LeaseTest;
use McpTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_mcp();
my $mcp = "$FindBin::RealBin/../mcp";
plan skip_all => 'THE CLIENTS ARE NOT INSTALLED: node and the packages of test/mcp'
  if !-d "$mcp/node_modules" || !grep { -x "$_/node" } split /:/, $ENV{PATH};

my $node = new_node('mcp_clients');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');
my %connection = (PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres');
@ENV{ keys %connection } = values %connection;

sub run_it
{
	my (@command) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run(\@command, '<', \'', '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return ($? >> 8, $out, $err);
}

# each program prints TAP, which is reported again here
foreach ([ 'sdk.mjs', 25 ], [ 'client.mjs', 88 ])
{
	my ($program, $least) = @$_;
	my ($rc, $out, $err) = run_it('node', "$mcp/$program");
	my @checks = $out =~ /^((?:not )?ok \d+ - .*)$/mg;

	ok(/^ok/, s/^(not )?ok \d+ - //r) foreach @checks;
	is($rc, 0, "$program: succeeds");
	cmp_ok(scalar @checks, '>=', $least, "$program: all checks have run");
	diag($out, $err) if $rc;
}

SKIP:
{
	skip 'THE INSPECTOR AND THE CONFORMANCE SUITE ARE NOT INSTALLED: set LEASELOCK_MCP_TOOLS=1', 1
	  if !-d "$mcp/tools/node_modules";
	local $ENV{PATH} = "$mcp/tools/node_modules/.bin:$ENV{PATH}";
	my ($rc, $out, $err);

	my @inspector = (qw(mcp-inspector --cli), (map { ('-e', "$_=$connection{$_}") } sort keys %connection), qw(leaselock mcp));
	($rc, $out, $err) = run_it(@inspector, qw(--method tools/list --strict));
	is($rc, 0, 'inspector: the tools are valid');
	is(scalar @{ decode_json($out)->{tools} }, 5, 'inspector: finds five tools');
	unlike($err, qr/Warning|[1-9]\d* warnings/, 'inspector: no warnings');
	($rc, $out, $err) = run_it(@inspector, qw(--method tools/call --tool-name acquire_lock --tool-arg lock_name=inspected));
	is("$rc|" . decode_json($out)->{structuredContent}{state}, '0|held', 'inspector: a call succeeds');

	# The failing checks need tools that only a server made for the suite has,
	# methods that are of no use in a lock server, or features of HTTP.
	my %not_ours = map { $_ => 1 } qw(
	  sep-2575-http-server-header-mismatch-400 sep-2575-server-rejects-undeclared-capability
	  sep-2575-missing-capability-http-400 sep-2575-http-server-no-independent-requests-on-stream
	  sep-2575-server-no-log-without-loglevel);
	foreach ([ 'server-initialize', '2025-11-25' ], [ 'ping', '2025-11-25' ],
		[ 'tools-list', '2025-06-18' ], [ 'tools-list', '2025-11-25' ], [ 'tools-list', '2026-07-28' ],
		[ 'server-stateless', '2026-07-28' ], [ 'input-required-result-unsupported-methods', '2026-07-28' ])
	{
		my ($scenario, $version) = @$_;
		my $results = PostgreSQL::Test::Utils::tempdir();
		my ($in, $address) = ('', '');
		my $bridge = IPC::Run::start([ 'node', "$mcp/bridge.mjs", 'leaselock', 'mcp' ], '<', \$in, '>', \$address,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
		$bridge->pump until $address =~ /\n/;
		chomp $address;
		run_it('conformance', 'server', '--url', $address, '--scenario', $scenario, '--spec-version', $version, '-o', $results);
		$bridge->finish;
		my ($file) = glob "$results/*/checks.json";
		my @checks = $file ? @{ decode_json(slurp_file($file)) } : ();
		my @failed = map { "$_->{id}: " . ($_->{errorMessage} // '') }
		  grep { $_->{status} !~ /^(SUCCESS|SKIPPED|INFO)$/ && !$not_ours{ $_->{id} } } @checks;
		is_deeply(\@failed, [], "conformance, $version: $scenario");
		cmp_ok(scalar(grep { $_->{status} eq 'SUCCESS' } @checks), '>=', 2, "conformance, $version: $scenario has run");
	}
}

is_deeply([ internal_errors($node) ], [], 'no internal errors');
is_deeply([ crashes($node) ], [], 'no server process crashed');
$node->stop;
done_testing();
