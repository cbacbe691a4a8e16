# What the tests of the program leaselock share: running it against a server, to
# its end or in the background.

package CliTest;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(need_program use_server cli cli_json start_cli finish wait_until);

# What was started with nohup, or in the background of a shell, ignores these, and
# so would the program, which must not be told by that.
foreach my $signal (qw(HUP INT QUIT))
{
	$SIG{$signal} = 'DEFAULT' if ($SIG{$signal} // '') eq 'IGNORE';
}

my %connection;

# need_program(): skips the test where the program was not built
sub need_program
{
	return if grep { -x "$_/leaselock" } split /:/, $ENV{PATH};
	die 'the program leaselock is not built' if ($ENV{CI} // '') eq 'true';
	plan skip_all => 'THE PROGRAM leaselock IS NOT BUILT: libpq-fe.h was not there';
	return;
}

# use_server(NODE): where the functions below connect to
sub use_server
{
	my ($node) = @_;
	%connection = (
		PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres');
	return;
}

# cli(ARGUMENTS): exit status, output and errors
sub cli
{
	my (@arguments) = @_;
	my ($out, $err) = ('', '');
	local %ENV = (%ENV, %connection);

	IPC::Run::run([ 'leaselock', @arguments ],
		'<', \'', '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return ($? & 127 ? -($? & 127) : $? >> 8, $out, $err);
}

# cli_json(ARGUMENTS): exit status, and the object of the one line of output
sub cli_json
{
	my ($rc, $out) = cli('--json', @_);
	my @lines = split /\n/, $out;

	return ($rc, {}) if @lines != 1;
	return ($rc, JSON::PP->new->utf8->decode($lines[0]));
}

# start_cli(ARGUMENTS): the program in the background: { run, out, err, pid }
sub start_cli
{
	my (@arguments) = @_;
	my $client = { in => '', out => '', err => '' };
	local %ENV = (%ENV, %connection);

	# what a test may be started with; the program leaves alone what is ignored
	local $SIG{$_} = 'DEFAULT' foreach qw(INT HUP QUIT USR1 USR2);
	$client->{run} = IPC::Run::start([ 'leaselock', @arguments ],
		'<', \$client->{in}, '>', \$client->{out}, '2>', \$client->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$client->{pid} = $client->{run}{KIDS}[0]{PID};
	return $client;
}

# finish(CLIENT): its exit status; minus the signal's number if one ended it
sub finish
{
	my ($client) = @_;

	$client->{run}->finish;
	my $status = $client->{run}->full_result(0);
	return $status & 127 ? -($status & 127) : $status >> 8;
}

# wait_until(SUB): until it returns something true, which is returned; false if
# that takes too long
sub wait_until
{
	my ($condition) = @_;

	foreach (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $result = $condition->();
		return $result if $result;
		usleep(50_000);
	}
	return 0;
}

1;
