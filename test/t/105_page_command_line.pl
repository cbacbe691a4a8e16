# doc/command-line.md: it has every command and every option of the program, as their
# --help has them, and no other; and its examples work as they stand there.
# Native only: the program is the same for every major.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $has_jq = grep { -x "$_/jq" } split /:/, $ENV{PATH};
die 'jq is not installed' if !$has_jq && ($ENV{CI} // '') eq 'true';

my $page = PageTest->new('doc/command-line.md',
	psql => ['\set host host-a'],
	language => { '' => sub { run_crontab($_[1]) } },
	session => { files => sub { append_to_file($_[0]->dir . "/import", $_[1]); return } },
	skip => { $has_jq ? () : (json => 'jq is not installed') });
my $node = $page->node;
my $dir = $page->dir;
my $text = slurp_file("$FindBin::RealBin/../../doc/command-line.md");
my $agents = slurp_file("$FindBin::RealBin/../../doc/agents.md");
my $manual = slurp_file("$FindBin::RealBin/../../src/cli/leaselock.1") =~ s/\\(?:f[BIR]|(-))/$1 \/\/ ''/ger;
use_server($node);

# ---------------------------------------------------------------------
# Commands and options
# ---------------------------------------------------------------------

# section(PAGE, HEADING)
sub section
{
	my ($of, $heading) = @_;
	return ($of =~ /^## \Q$heading\E\n(.*?)(?=^## |\z)/ms)[0] // die "no section $heading";
}

# cells(SECTION): the rows of its table
sub cells
{
	my ($section) = @_;
	my ($rows) = $section =~ /^\|[- |]+\|\n((?:\|.*\|\n)+)/m or die 'no table';
	return map { [ split / \| /, s/^\| (.*?) *\|$/$1/r, -1 ] } split /\n/, $rows;
}

# options(TEXT): "--option VALUE" of each, and the letters
sub options
{
	my ($of) = @_;
	return sort $of =~ /(?<![\w-])(-[a-zA-Z]\b|--[a-z-]+(?: [A-Z]+)?)/g;
}

my (undef, $usage) = cli('--help');
my @commands = $usage =~ /^  leaselock ([a-z]+)/mg;
cmp_ok(scalar @commands, '>', 7, 'there are commands');

my @listed = map { $_->[0] =~ /`leaselock ([a-z]+)[^`]*`/ } cells(section($text, 'Commands'));
is_deeply([ sort @listed ], [ sort @commands ], 'the page has every command, and no other');
foreach (cells(section($text, 'Commands')))
{
	my ($name, $arguments) = $_->[0] =~ /`leaselock ([a-z]+) ?([^`]*)`/;
	# what is required of the synopsis
	my ($synopsis) = $usage =~ /^  leaselock $name\b(.*?)(?=^  leaselock |^$)/ms or next;
	1 while $synopsis =~ s/\[(?!NAME\])[^\[\]]*\](?:\.\.\.)?//g;
	is($arguments =~ s/ \.\.\.//r, join(' ', split ' ', $name eq 'status' ? '[NAME]' : $synopsis), "$name: its arguments");
}

# options by command, as the page has them
my %page_options = map { $_ => [] } @commands;
foreach (cells(section($text, 'Options')))
{
	my ($options, $takers, $meaning) = @$_;
	my @takers = $takers =~ /`([a-z]+)`/g;

	if ($takers =~ /^all/)
	{
		my %but = map { $_ => 1 } @takers;
		@takers = grep { !$but{$_} } @commands;
	}
	push @{ $page_options{$_} }, options(join ' ', $options =~ /`([^`]*)`/g) foreach @takers;
	isnt($meaning, '', "$options: the meaning");
}
foreach my $command (@commands)
{
	my (undef, $help) = cli($command, '--help');
	my ($entries) = $help =~ /^(Options:\n.*)^Exit status/ms;
	my @there = map { options($_) } $entries =~ /^ {2,6}(-.*?)(?:  .*)?$/mg;
	is_deeply([ sort @{ $page_options{$command} } ], [ sort @there ], "$command: the page has its options, and no other");

	my ($synopsis) = $usage =~ /^  (leaselock $command\b.*?)(?=^  leaselock |^$)/ms;
	my ($in_manual) = $manual =~ /^(leaselock $command\b.*?)(?=^leaselock |^\.fi)/ms;
	is(join(' ', split ' ', $in_manual), join(' ', split ' ', $synopsis), "$command: the manual has the same synopsis");
}
is_deeply([ options(join ' ', map { $_->[0] } grep { $_->[0] !~ /^`-q/ } cells(section($agents, 'Options'))) ],
	[ options(($usage =~ /^  leaselock mcp (.*?)\n\n/ms)[0]) ], 'what is of agents alone stands on their page');

# ---------------------------------------------------------------------
# Examples
# ---------------------------------------------------------------------

# The crontab, under the little that cron sets, on two hosts
sub run_crontab
{
	my ($lines) = @_;
	my ($program) = grep { -x "$_/leaselock" } split /:/, $ENV{PATH};
	my %environment = (HOME => $dir, LOGNAME => 'cron', SHELL => '/bin/sh', PATH => '/usr/bin:/bin');
	my $command;

	append_to_file("$dir/.pg_service.conf", sprintf "[jobs]\nhost=%s\nport=%d\ndbname=postgres\nuser=%s\n",
		$node->host, $node->port, $page->sql('SELECT current_user'));
	$page->write_command('nightly', 'echo ran >>"$HOME/runs"');
	$lines =~ s{/usr/lib/postgresql/15/bin}{$program};
	$lines =~ s{/usr/local/bin/report}{$dir/nightly};
	foreach (split /\n/, $lines)
	{
		if (/^(\w+)=(.*)$/) { $environment{$1} = $2 }
		elsif (/^\S+ \S+ \S+ \S+ \S+ +(.*)$/) { $command = $1 }
	}
	foreach my $host (1, 2)
	{
		local %ENV = %environment;
		my ($out, $err);
		IPC::Run::run([ '/bin/sh', '-c', $command ], '<', \'', '>', \$out, '2>', \$err);
		is(($? >> 8) . "|$out|$err", ($host == 1 ? '0' : '1') . '||', "the crontab, on host $host");
	}
	is(slurp_file("$dir/runs"), "ran\n", 'the report ran once');
	is($page->sql(q{SELECT remaining_ms BETWEEN 500000 AND 600000 FROM leaselock.lease_peek('nightly-report')}), 't', 'the lock stays taken');
	return;
}

# what is held or waited for now
sub taken { return $page->sql(q{SELECT string_agg(name, ',' ORDER BY name) FROM leaselock.lease_status}) }

$page->before(
	hello => sub { $page->write_command('report', qq{echo "ran \$LEASELOCK_NAME" >>$dir/reports}) },
	'at-least' => sub { $page->sql('CREATE TABLE runs (host text)') },
	migrate => sub { $page->write_command('migrate', qq{echo "\$LEASELOCK_SCOPE \$1" >>$dir/migrations}) },
	'run-import' => sub {
		chmod 0755, "$dir/import" or die;
		$page->sql(q{
			CREATE TABLE orders (id int);
			CREATE TABLE staged_orders (id int);
			INSERT INTO staged_orders VALUES (1), (2)});
	});
$page->after(
	hello => sub {
		is(slurp_file("$dir/reports"), "ran nightly-report\n", 'the report has run under the lock');
		my $holder = session($node, q{SELECT leaselock.try_lock('nightly-report', 'host-b', '1 h')});
		my $shell = PageTest::start_shell($page, $page->block('hello'), 'other', 'sh');
		is(PageTest::shell_status($page, $shell), 1, 'if another host has it the status is 1');
		is(slurp_file("$dir/reports"), "ran nightly-report\n", 'and nothing is run');
		is(outcome($holder, q{SELECT leaselock.release_lock('nightly-report', 'host-b')}), 't', 'it is given back');
		$holder->quit;
	},
	script => sub { is(taken(), '', 'the script gives its lease back') },
	environment => sub { is(taken(), '', 'the command too') },
	'at-least' => sub {
		my $again = PageTest::run_sql($page, 'host-b', "\\set host host-b\n" . $page->block('at-least'));
		is($page->sql('SELECT string_agg(host, $$ $$) FROM runs'), 'host-a', 'the job ran on one host');
		unlike($again, qr/released/, 'not on the other');
		is($page->sql(q{SELECT owner, depth, remaining_ms > 500000 FROM leaselock.lease_peek('nightly')}), 'host-a|1|t', 'the lock stays taken');
	},
	migrate => sub { is(slurp_file("$dir/migrations"), "shop up\n", 'the migration has run') },
	'run-import' => sub {
		is($page->sql('SELECT count(*) FROM orders'), '2', 'the batch writer has written');
		local $ENV{LEASELOCK_NAME} = 'import-orders';
		local $ENV{LEASELOCK_FENCE} = (cli_json(qw(acquire import-orders --owner earlier)))[1]{fence};
		$page->sql(q{INSERT INTO staged_orders VALUES (3); SELECT leaselock.lease_release_all('earlier')});
		cli(qw(run import-orders -- true));
		my $late = PageTest::start_shell($page, './import', undef, 'sh');
		isnt(PageTest::shell_status($page, $late), 0, 'with the fence of an earlier lease it is refused');
		like($late->{out}, qr/stale fence/, 'which it says');
		is($page->sql('SELECT count(*) FROM orders'), '2', 'and has not written');
	});
$page->run;

done_testing();
