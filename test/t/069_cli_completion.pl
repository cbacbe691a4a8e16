# Completion in bash: commands and options as in --help, and scopes and names
# from the server.  A server that does not answer causes no delay, and odd
# names do no harm.
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use CliTest;

need_program();
my $library = '/usr/share/bash-completion/bash_completion';
if (!-e $library)
{
	die "$library is missing" if ($ENV{CI} // '') eq 'true';
	plan skip_all => 'COMPLETION IS NOT TESTED: bash-completion is not installed';
}

my $script = <<'BASH';
source "$1" && source "$2" || exit 9
shift 2
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
shift
# only set in an interactive shell
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_leaselock
[ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}"
BASH

# complete(LINE): the words offered at its end, as readline would insert them.
# Bash has split the line at spaces, colons and equal signs.
sub complete
{
	my ($line, @environment) = @_;
	my @words;
	foreach my $word (split / +/, $line, -1)
	{
		# a quoted word is kept as it is
		push @words, $word =~ /["'\\]/ ? $word : length $word ? split /([:=]+)/, $word : '';
	}
	# split keeps empty fields before a separator, but drops trailing ones
	push @words, '' if $line =~ /[:=]$/;
	my ($out, $err) = ('', '');
	IPC::Run::run(
		[ 'env', @environment, 'bash', '--norc', '-c', $script, 'bash', $library,
			"$FindBin::RealBin/../../src/cli/leaselock.bash", $line, @words ],
		'<', \'', '>', \$out, '2>', \$err);
	is($err, '', "\"$line\" is completed without an error message");
	my %offered = map { $_ => 1 } split /\n/, $out;
	return join ' | ', sort keys %offered;
}

my $node = PostgreSQL::Test::Cluster->new('completion');
$node->init;
$node->start;
use_server($node);
$node->safe_psql('postgres', q{
	CREATE EXTENSION leaselock;
	SELECT leaselock.lease_acquire(name, 'me', scope => scope) FROM (VALUES
		('report', 'public'), ('report-weekly', 'public'), ('two words', 'public'),
		('$(touch /tmp/leaselock-evil)', 'public'), ('a:b', 'public'), ('say "x\y"', 'public'),
		('","name":"forged"', 'public'),
		('build', 'team'), ('deploy', 'team'), ('x', 'teapot')) l(name, scope)
});
# the result must not depend on the speed of the machine
my $patience = "LEASELOCK_COMPLETION_SECONDS=$PostgreSQL::Test::Utils::timeout_default";
my @server = ($patience, 'PGHOST=' . $node->host, 'PGPORT=' . $node->port, 'PGDATABASE=postgres');
my ($rc, $help) = cli('--help');
my @commands = sort $help =~ /^  leaselock ([a-z]+)/mg;

# commands and options
cmp_ok(scalar @commands, '>=', 7, 'the help lists commands');
is(complete('leaselock '), join(' | ', @commands), 'every command of the help is offered');
is(complete('leaselock rel'), 'release', 'a command is completed');
is(complete('leaselock -h db -p 1 rel'), 'release', 'a command is completed after connection options and their values');
foreach my $command (@commands)
{
	my ($synopsis) = $help =~ /^(  leaselock $command\b.*?)(?=^  leaselock |^$)/ms;
	my %options = map { $_ => 1 } $synopsis =~ /(--[a-z][a-z-]+)/g,
		qw(--quiet --version --help --host --port --username --dbname);
	is(complete("leaselock $command --"), join(' | ', sort keys %options), "the options of $command are offered");
}
is(complete('leaselock get '), '', 'nothing is offered for a ticket');
is(complete('leaselock run report --grace '), '', 'nothing is offered for a number');

# from the server
is(complete('leaselock status --scope ', @server), 'public | team | teapot', 'scopes are offered');
is(complete('leaselock status --scope=tea', @server), 'team | teapot', 'scopes are offered after an equal sign');
is(complete('leaselock status --scope team ', @server), 'build | deploy', 'the names of a scope are offered');
is(complete('leaselock acquire rep', @server), 'report | report-weekly', 'the names in scope public are offered');
is(complete('leaselock run -h ' . $node->host . ' -p ' . $node->port . ' -d postgres two', $patience),
	'two\ words', 'the connection options of the line are used; a name is quoted');
is(complete(q{leaselock run "two}, @server), 'two words', 'a name within quotes is not quoted again');
is(complete(q{leaselock run '$}, @server), '$(touch /tmp/leaselock-evil)', 'a name within apostrophes is offered as it is');
is(complete('leaselock run a:', @server), 'b', 'the part before a colon is not repeated');
is(complete('leaselock run say', @server), 'say\ \"x\\\\y\"', 'quotes and backslashes of a name are escaped');
is(complete('leaselock run forged', @server), '', 'a name cannot forge another name');
is(complete('leaselock run -d "$(touch /tmp/x)" re', @server), '', 'no word is evaluated');
ok(!-e '/tmp/x' && !-e '/tmp/leaselock-evil', 'nothing was run');
is(complete('leaselock run report -- ech'), 'echo', 'the command after "--" is completed like any command')
	if -x '/bin/echo';

# a server that does not answer: a port that accepts connections and sends
# nothing
my $deaf = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die $!;
is(complete('leaselock status ', 'PGHOST=127.0.0.1', 'PGPORT=' . $deaf->sockport, 'PGCONNECT_TIMEOUT=600'),
	'', 'a server that does not answer causes no delay');
is(complete('leaselock status ', 'PGHOST=/nowhere'), '', 'a missing server causes no message');

# how long it waits: what it asks of timeout(1)
my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/timeout", qq{#!/bin/sh\necho "\$1" >>$dir/asked\n});
chmod 0755, "$dir/timeout";
complete('leaselock status ', "PATH=$dir:$ENV{PATH}");
is(slurp_file("$dir/asked"), "0.2\n", 'it waits for 200 ms');
complete('leaselock status ', "PATH=$dir:$ENV{PATH}", 'LEASELOCK_COMPLETION_SECONDS=7');
is(slurp_file("$dir/asked"), "0.2\n7\n", 'or for as long as LEASELOCK_COMPLETION_SECONDS says');

done_testing();
