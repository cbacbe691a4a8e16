# doc/command-line.md: it has every command and every option of the program, as their
# --help has them, and no other; and its examples work as they stand there.
# Native only: the program is the same for every major.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IPC::Run;
use JSON::PP;
use LeaseTest;
use POSIX ();
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $has_jq = grep { -x "$_/jq" } split /:/, $ENV{PATH};
die 'jq is not installed' if !$has_jq && ($ENV{CI} // '') eq 'true';

my $page = PageTest->new('doc/command-line.md',
	settings => "listen_addresses = '127.0.0.1'\nleaselock.events = all\nleaselock.min_lease = '1 s'\n",
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
		PageTest::run_sql($page, 'host-a', $page->block('at-least'));
		is($page->sql('SELECT string_agg(host, $$ $$) FROM runs'), 'host-a host-a', 'a host that comes back gets in again');
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
		in_words();
		on_terminal();
	});

# What the page says without a block
sub in_words
{
	my ($rc, $out, $err, $answer);
	my $holds = sub { my ($name) = @_; return wait_until(sub { $page->sql("SELECT count(*) FROM leaselock.lease_peek('$name')") eq '1' }) };

	# a ticket that waits
	cli(qw(acquire queue --owner first));
	my $waiting = $page->sql(q{SELECT ticket FROM leaselock.lease_acquire('queue', 'second', wait => '200 s')});
	is((cli('heartbeat', $waiting))[0], 1, 'heartbeat: a ticket that waits gives status 1');
	($rc, $answer) = cli_json('release', $waiting);
	is("$rc|$answer->{state}", '0|cancelled', 'release: a wait is cancelled, with status 0');

	# owners
	my $host = (POSIX::uname())[1];
	($rc, $out) = cli(qw(run generated -- leaselock status generated --json));
	like(JSON::PP->new->utf8->decode($out)->{owner}, qr{^\Q$host\E/\d+/[0-9a-f]{8}$}, 'run makes up an owner from host, process and a random number');
	my $first = start_cli(qw(run twin --owner one -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/twin");
	ok($holds->('twin'), 'a run');
	is((cli(qw(run twin --owner one -- true)))[0], 0, 'another run of the same owner gets the lock, too');
	append_to_file("$dir/twin", '');
	is(finish($first), 0, 'the first run ends');

	# a process that has left the group
	my $run = start_cli(qw(run away --owner one --lease-seconds 3 -- sh -c), 'setsid sleep 1000 >/dev/null 2>&1 & echo $! >"$0"; wait', "$dir/away");
	ok(wait_until(sub { -s "$dir/away" && (stat_of("$dir/away"))[3] == (stat_of("$dir/away"))[0] }), 'a command with a process in a session of its own');
	$page->sql(q{SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('away')});
	is(finish($run), 2, 'the lease is broken, and the command ended');
	my ($away) = stat_of("$dir/away");
	is(kill('KILL', $away), 1, 'but not the process that has left its group');

	# a hold that remains
	cli(qw(run hold --owner one --at-least-seconds 600 -- true));
	is((cli(qw(break hold --fence), $page->sql(q{SELECT fence FROM leaselock.lease_peek('hold')})))[0], 0, 'break ends a hold');
	is($page->sql(q{SELECT count(*) FROM leaselock.lease_peek('hold')}), '0', 'so that the lock is free');

	# events of a name
	cli(qw(acquire team-lock --owner one --scope team));
	like((cli(qw(events --name team-lock --json)))[1], qr/"scope":"team"/, 'events --name: in all scopes');
	is((cli(qw(events --name team-lock --scope public)))[1], '', 'events --name: or in one');
	like((cli(qw(events --name team-lock --since today)))[1], qr/team-lock/, 'events --since today');

	# trouble that passes
	my $nowhere = PostgreSQL::Test::Utils::tempdir_short();
	foreach my $quiet ([], ['--quiet'])
	{
		($rc, $out, $err) = cli('-h', $nowhere, @$quiet, qw(acquire x --owner y --wait-seconds 0.1));
		is($err =~ /trying again/ ? 'told' : 'quiet', @$quiet ? 'quiet' : 'told', "@$quiet: what is said of trouble that may pass");
	}

	# a name in another encoding
	$page->sql(q{CREATE DATABASE unicode ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
	$node->safe_psql('unicode', 'CREATE EXTENSION leaselock');
	{
		local $ENV{PGCLIENTENCODING} = 'LATIN1';
		is((cli(qw(-d unicode acquire), "\xE4", qw(--owner o)))[0], 0, 'a name in the encoding of PGCLIENTENCODING');
	}
	is($node->safe_psql('unicode', q{SELECT name = U&'\00e4' FROM leaselock.lease_status}), 't', 'is the same in the database');

	# a password
	my $hba = $node->data_dir . '/pg_hba.conf';
	my $rules = slurp_file($hba);
	unlink $hba;
	append_to_file($hba, "host all secret 127.0.0.1/32 scram-sha-256\n$rules");
	$page->sql(q{CREATE ROLE secret LOGIN PASSWORD 'open'; SELECT pg_reload_conf()});
	my @secret = ('-d', sprintf 'host=127.0.0.1 port=%d dbname=postgres user=secret', $node->port);
	local $ENV{PGPASSFILE} = "$dir/none";
	ok(wait_until(sub { ($rc, $out, $err) = cli(@secret, 'status'); $rc == 4 }), 'without a password, there is no connection');
	like($err, qr/no password supplied/, 'and the program does not ask for one');
	$ENV{PGPASSFILE} = "$dir/passwords";
	append_to_file($ENV{PGPASSFILE}, "*:*:*:secret:open\n");
	chmod 0600, $ENV{PGPASSFILE};
	is((cli(@secret, 'status'))[0], 0, 'the password file works');
	return;
}

# stat_of(FILE): the pid in the file, its group and session: pid, parent, group, session
sub stat_of
{
	my ($pid) = slurp_file($_[0]) =~ /(\d+)/ or return (0, 0, 0, -1);
	my ($parent, $group, $session) = eval { slurp_file("/proc/$pid/stat") =~ /\) \w (\d+) (\d+) (\d+)/ } or return ($pid, 0, 0, -1);
	return ($pid, $parent, $group, $session);
}

sub on_terminal
{
  SKIP:
	{
		skip 'no terminal is available here', 1 if !eval { local $SIG{__WARN__} = sub { }; require IO::Pty; IO::Pty->new };
		local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', TERM => 'dumb', PS1 => '$ ');
		my ($keys, $screen) = ('', '');
		my $terminal = sub {
			return IPC::Run::start([@_], '<pty<', \$keys, '>pty>', \$screen, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)) };
		my $shows = sub { my ($run, $pattern) = @_; return wait_until(sub { $run->pump_nb; $screen =~ $pattern }) };

		# the status line of a wait, with and without --quiet
		foreach my $quiet ([], ['--quiet'])
		{
			$page->sql(q{SELECT leaselock.try_lock('line', 'holder', '1 h')});
			$screen = '';
			my $run = $terminal->(qw(leaselock acquire line --owner one --wait-seconds 200 --json), @$quiet);
			ok($node->poll_query_until('postgres', q{SELECT waiters = 1 FROM leaselock.lease_peek('line')}), 'a wait on a terminal');
			ok($shows->($run, qr/waiting up to/), 'has a status line') if !@$quiet;
			$page->sql(q{SELECT leaselock.release_lock('line', 'holder')});
			ok($shows->($run, qr/"state":"held"/), 'and ends');
			$run->finish;
			unlike($screen, qr/waiting/, '--quiet: there is no status line') if @$quiet;
			$page->sql(q{SELECT leaselock.lease_release_all('one')});
		}

		# Control-Z, in a shell with job control
		$screen = '';
		my $shell = $terminal->(qw(bash --norc --noprofile -i));
		$keys .= qq{leaselock run stopped --lease-seconds 2 -- sh -c 'echo "pid=\$\$"; exec sleep 1000'\n};
		ok($shows->($shell, qr/pid=(\d+)/), 'a command on a terminal');
		my ($pid) = $screen =~ /pid=(\d+)/;
		append_to_file("$dir/stopped", "$pid\n");
		$keys .= "\cZ";
		ok($shows->($shell, qr/Stopped/), 'Control-Z stops the job');
		ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM leaselock.lease_status WHERE name = 'stopped' AND NOT lapsed}), 'the lease of a stopped job is not renewed');
		ok(wait_until(sub { !-e "/proc/$pid/stat" || slurp_file("/proc/$pid/stat") =~ /\) Z / }), 'and its command is ended');
		$keys .= "fg\n";
		$keys .= qq{echo "status=\$?"\n};
		ok($shows->($shell, qr/status=2/), 'with status 2');
		$keys .= "exit\n";
		$shell->finish;
	}
	return;
}

$page->run;

done_testing();
