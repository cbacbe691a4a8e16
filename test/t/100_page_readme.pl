# README.md
#
# Blocks of "console" are sessions as psql shows them: behind a prompt, which names
# the session, stands a statement, and below it what it printed, without headings.
# The numbers of the page stand for those that the server gives.
#
# What the README says of behaviour is tested here where it is cheap; %tested names
# the assertions of other files for the rest.
#
# Native only: what psql and the program print does not depend on the server's major.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use JSON::PP;
use LeaseTest;
use McpTest;
use PageTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();

my $top = abs_path(dirname(__FILE__) . '/../..');
my $readme = slurp_file("$top/README.md");
my $node = new_node('readme');
my $page = PageTest->new('README.md', node => $node,
	language => { console => \&run_console, json => \&run_client },
	session => { source => \&run_demo });

use_server($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock; CREATE TABLE reply (thread int, author text)');
$node->safe_psql('postgres', 'CREATE DATABASE jobs');

# ---------------------------------------------------------------------
# Kinds of blocks
# ---------------------------------------------------------------------

# run_console(PAGE, TEXT): each statement in the session of its prompt
sub run_console
{
	my (undef, $text) = @_;
	my (%begun, %real);

	foreach my $step (split /^(?=[\w-]+=> )/m, $text)
	{
		my ($session, $statement, $shown) = $step =~ /^([\w-]+)=> ([^\n]*)\n(.*)\z/s or die "no prompt: $step";

		$page->run_sql($session, '\t on') if !$begun{$session}++;
		$statement =~ s/\b([1-9]\d{14})\b/$real{$1} \/\/ die "where does $1 come from?"/ge;
		my $printed = $page->run_sql($session, $statement);
		# an error may be shown without its hint
		$printed =~ s/^HINT:.*\n//mg if $shown !~ /^HINT:/m;
		my @real = $printed =~ /\b[1-9]\d{14}\b/g;
		my @there = $shown =~ /\b[1-9]\d{14}\b/g;
		is(scalar(@real), scalar(@there), "as many numbers: $statement");
		foreach my $i (0 .. $#there)
		{
			is($real[$i], $real{ $there[$i] } //= $real[$i], "$there[$i] is the same number everywhere");
		}
		is($page->plain($printed), $page->plain($shown), "$session: $statement");
	}
	is(join(' ', sort { $a <=> $b } keys %real), join(' ', sort { $real{$a} <=> $real{$b} } keys %real), 'the numbers of the page are in the order of the real ones');
	return '';
}

# run_client(PAGE, TEXT): the client starts what the entry names, and is offered tools
sub run_client
{
	my (undef, $text) = @_;
	my ($server) = values %{ JSON::PP->new->decode($text)->{mcpServers} };
	my (undef, undef, $err) = cli('mcp');

  SKIP:
	{
		skip 'LEASELOCK MCP IS NOT BUILT IN', 1 if $err =~ /not (?:built in|available)/;
		append_to_file($page->dir . '/services', sprintf "[work]\nhost=%s\nport=%d\ndbname=postgres\n", $node->host, $node->port);
		local $ENV{PGSERVICEFILE} = $page->dir . '/services';
		my @arguments = @{ $server->{args} };
		is("$server->{command} " . shift @arguments, 'leaselock mcp', 'the client starts the program');
		my $mcp = start_mcp(\@arguments);
		initialize($mcp);
		is(tool($mcp, 'acquire_lock', { lock_name => 'issue.17' })->{state}, 'held', 'an agent acquires a lock');
		is($page->sql(q{SELECT count(*) FROM leaselock.lease_peek('issue.17', 'agents')}), '1', 'in the scope of the entry');
		is(end_mcp($mcp), 0, 'it ends with its input');
	}
	return '';
}

# run_demo(PAGE, TEXT): in a copy of the source, as whoever runs this, who is taken for
# root: what needs the right of root is only written down
sub run_demo
{
	my (undef, $text) = @_;
	my $copy = $page->dir . '/source';
	my ($command) = $text =~ /^([^#\n]+?) *(?:#.*)?$/ or die 'no command';

	mkdir $copy or die "$copy: $!";
	system(qq{cd "$top" && tar -cf - Makefile META.json CHANGELOG.md README.md LICENSE leaselock.control expected sql src doc packaging test | tar -C "$copy" -xf -}) == 0
	  or die 'no copy of the source';
	# the programs of the machine, of which this test may run a copy
	my $path = $ENV{PATH};
	my $machine = ($ENV{PG_CONFIG} // "pg_config") =~ s{^\Q${\ ($ENV{LEASELOCK_WORK} // "")}\E/server}{}r;
	my ($programs, $temporary, $done) = map { $page->dir . "/$_" } qw(as-root temporary done);
	mkdir $_ or die "$_: $!" foreach $programs, $temporary;
	my %program = (
		id => '[ "$*" != -u ] || { echo 0; exit; }; exec /usr/bin/id "$@"',
		chown => ':', 'dpkg-query' => 'exit 1',
		'apt-get' => qq{echo "apt-get \$*" >>$done},
		setpriv => qq{echo "\$1" >>$done; while [ "\$1" != env ]; do shift; done; exec "\$@"});
	foreach my $name (sort keys %program)
	{
		append_to_file("$programs/$name", "#!/bin/sh\n$program{$name}\n");
		chmod 0755, "$programs/$name";
	}
	my $seen = -s $node->logfile;
	local %ENV = (PGHOST => $node->host, PGPORT => $node->port, PG_CONFIG => $machine, map { $_ => $ENV{$_} } grep { exists $ENV{$_} } qw(HOME LC_ALL));
	@ENV{qw(PATH TMPDIR)} = ("$programs:$path", $temporary);
	my $out = '';
	ok(run_log([ 'sh', '-c', "cd $copy && $command" ], '<', \'', '&>', \$out), "$command ends well") or diag $out;
	like(slurp_file($done), qr/^--reuid=(?:postgres|nobody)$/m, 'for root it is played by an unprivileged user');
	is(join(' ', glob "$temporary/*"), '', 'in a temporary folder, of which nothing is left');
	unlike(substr(slurp_file($node->logfile), $seen), qr/ERROR|FATAL/, 'the cluster that is there sees nothing of it');
	{
		# a machine without a server; installing does nothing here
		local @ENV{qw(PG_CONFIG PG_MAJOR)} = ('/nonexistent', 15);
		my $missing = '';
		ok(!run_log([ 'sh', '-c', "cd $copy && $command" ], '<', \'', '&>', \$missing), "$command needs a server");
		like(slurp_file($done), qr/^apt-get .* install .* postgresql-15 postgresql-server-dev-15$/m, 'for root it installs the missing packages') or diag $missing;
	}
	my ($fence, $greater) = $out =~ /^worker-2> COMMIT;\n(?:.*\n)*worker-1> COMMIT;\n +ERROR:  LS001: stale fence (\d+) .*\n +DETAIL:  The newest fence of the lock is (\d+)/m;
	cmp_ok($greater // 0, '>', $fence // 0, 'it shows the stale write refused') or diag $out;
	return '';
}

# ---------------------------------------------------------------------
# The blocks
# ---------------------------------------------------------------------

my %jobs;
$page->before(
	story => sub { is($page->run_sql('worker-2', q{LOAD 'leaselock'; SET leaselock.clock_offset = '61 s';}), '', 'worker-2 comes 61 seconds later') },
	first => sub { is($page->run_sql('jobs', '\c jobs'), '', 'in a database without the extension') },
	run => sub { $page->write_command('report', 'echo "$LEASELOCK_NAME $LEASELOCK_FENCE $$" >ran') });

$page->after(
	story => sub {
		is($page->sql('SELECT count(*) FROM reply'), '0', 'nothing of the refused transaction was written');
		is($page->sql(q{SELECT leaselock.lease_release_all('worker-2')}), '1', 'the lock is released');
	},
	first => sub {
		is($node->safe_psql('jobs', 'SELECT count(*) FROM leaselock.lease_status'), '0', 'the lock is free');
	},
	run => sub {
		like(slurp_file($page->dir . '/ran'), qr/^nightly \d{15} \d+$/, 'the command has run, with the fence');
		is($page->sql('SELECT count(*) FROM leaselock.lease_tickets'), '0', 'and the lock is released');
	},
	guard => sub { is($page->sql('SELECT id FROM ledger'), '1', 'only the transaction that checked its fence has written') });

# PageTest ends the server, so this comes before the last block
$page->after(mcp => \&claims);
$page->run;

# ---------------------------------------------------------------------
# What is said in words
# ---------------------------------------------------------------------

sub outcome_of { return node_outcome($node, $_[0]) }

sub claims
{
	my $acquire = q{SELECT state FROM leaselock.lease_acquire(name => 'c', owner => 'w', lease => '%s')};

	is(outcome_of(sprintf $acquire, $_), 'held', "a ticket's lease: $_") foreach '5 s', '300 s';
	is(outcome_of(sprintf $acquire, $_), '22023', "and not $_") foreach '4.9 s', '301 s';
	is(outcome_of(q{SELECT leaselock.lease_release_all('w')}), '2', 'released');
	is(outcome_of(q{SELECT leaselock.try_lock(name => 'y', owner => 'w', ttl => '3650 days') IS NOT NULL}), 't', 'a named lock for years');
	is(outcome_of(q{SELECT leaselock.try_lock(name => 'y', owner => 'x', ttl => '1 s') IS NULL}), 't', 'NULL if it is taken');
	is(outcome_of(q{SELECT leaselock.try_lock(name => 'y', owner => 'w', ttl => '1 s') = fence FROM leaselock.lease_peek('y')}), 't', 'the same fence when the call is repeated');
	is(outcome_of(q{SELECT state FROM leaselock.lease_acquire(name => 'y', owner => 'x')}), 'contended', 'and the same lock as that of tickets');
	is(outcome_of(q{SELECT remaining_ms FROM leaselock.lease_acquire(name => 'd', owner => 'w')}), '60000', '60 seconds unless another length is given');
	is(outcome_of(q{
		CREATE ROLE other;
		SET ROLE other;
		SELECT state FROM leaselock.lease_acquire(name => 'd', owner => 'w')}), 'contended', 'the same owner under another role is another identity');
	is(outcome_of(q{SELECT depth FROM leaselock.lease_acquire(name => 'd', owner => 'w')}), '2', 'the same identity is let in again');
	is(outcome_of(q{SHOW shared_preload_libraries}), '', 'without shared_preload_libraries');
	is(outcome_of(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'lease'}), '0', 'and without a background worker');

	my $open = session($node);
	is(outcome($open, q{BEGIN; SELECT state FROM leaselock.lease_acquire(name => 'e', owner => 'w')}), 'held', 'acquired in an open transaction');
	is(outcome_of(q{SELECT state FROM leaselock.lease_acquire(name => 'e', owner => 'x')}), 'contended', 'busy for everybody else');
	is(outcome_of(q{SELECT count(*) FROM leaselock.lease_peek('e')}), '0', 'but not granted');
	is(outcome($open, 'ROLLBACK'), '', 'rolled back');
	is(outcome_of(q{SELECT state FROM leaselock.lease_acquire(name => 'e', owner => 'x')}), 'held', 'it was never acquired');
	$open->quit;

	is($node->safe_psql('jobs', 'ALTER EXTENSION leaselock UPDATE; DROP EXTENSION leaselock'), '', 'upgraded, and removed');
	is(outcome_of('DROP EXTENSION leaselock'), '2BP01', 'refused while a guard uses it');
	like((cli('--version'))[1], qr/^leaselock (\d+\.\d+)$/m, 'the version of the program');
	return;
}

# What the README says => [ the file, the name of an assertion of it ]
my %tested = (
	'through a transaction pooler' => [ '051_pgbouncer.pl', 'a fenced transaction commits', 'COMMIT through the pooler fails' ],
	'The extension is trusted' => [ '031_trusted.pl', 'the database owner can install it', 'the database owner is no superuser' ],
	'At most one identity holds a lock at any moment' => [ '040_history.pl', 'the history keeps every guarantee' ],
	'The fences of a lock grow strictly' => [ '022_fences_grow.pl', 'the fence of $name grows', 'DROP and CREATE EXTENSION $round: the fence grows' ],
	'failover, restore, `pg_upgrade`' => [ '023_failover.pl', 'the fence of $name grows' ],
	'A transaction that has checked a fence does not commit once a newer fence' => [ '005_commit.pl', '$name: the commit is refused', '$name: nothing is written' ],
	'An acknowledged grant survives a crash' => [ '001_crash.pl', '$what: the ticket is held', 'the crashes lost asynchronous commits' ],
	'ends the command if the lease is lost' => [ '061_cli_run.pl', 'the command is ended when the lease cannot be renewed' ],
	'renews the lease meanwhile' => [ '061_cli_run.pl', 'the lease is renewed' ],
	'repeat the call with its request id' => [ '../sql/request_id.sql' ],
	'outlives the connection' => [ '001_crash.pl', '$what: the ticket is held' ],
	'unless you [register a scope]' => [ '031_trusted.pl', 'strangers are kept out' ],
	'first in, first out' => [ '010_fifo.pl', 'often: newcomers do not overtake' ]);

foreach my $said (sort keys %tested)
{
	my ($file, @names) = @{ $tested{$said} };
	my $test = slurp_file("$top/test/t/$file");

	ok(index($readme, $said) >= 0, "the README says: $said");
	is_deeply([ grep { index($test, $_) < 0 } @names ], [], "and $file tests it");
}

# ---------------------------------------------------------------------
# Pictures, and what is installed
# ---------------------------------------------------------------------

my @states = qw(held waiting contended deadlock released expired timed_out cancelled broken);
my $ticket = slurp_file("$top/doc/ticket.svg");
my $dot = slurp_file("$top/doc/pictures/ticket.dot");
is_deeply([ grep { $ticket !~ />$_</ } @states ], [], 'the picture of a ticket has its states');
# every word of the text is drawn
my %drawn = map { $_ => 1 } map { s/&gt;/>/gr } $ticket =~ />([^<>\n]+)<\/text>/g;
is_deeply([ grep { !$drawn{$_} } map { split /\\n/ } $dot =~ /label="([^"]+)"/g ], [], 'and all that its text says');
chomp(my $drawn = `awk -f $top/doc/pictures/timeline.awk $top/doc/pictures/stale-write.txt`);
is($drawn . "\n", slurp_file("$top/doc/stale-write.svg"), 'the time line is drawn from its text');
foreach my $picture (glob "$top/doc/*.svg")
{
	unlike(slurp_file($picture), qr/<(?:image|script|style|foreignObject)|\@font-face|data:|font-family="(?!sans-serif")/, "$picture: no font, nothing from elsewhere");
}

my $meta = JSON::PP->new->decode(slurp_file("$top/META.json"));
is_deeply($meta->{x_documentation}, [ 'README.md', map { s{^\Q$top\E/}{}r } sort glob "$top/doc/*.md" ], 'META.json names every page');

done_testing();
