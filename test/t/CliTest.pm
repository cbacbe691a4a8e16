# Shared by the tests of the program leaselock: running it against a server, to
# its end or in the background

package CliTest;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use IPC::Run;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  need_program use_server cli cli_json start_cli finish wait_until
  spawn_cli reap_cli run_many control_characters
);

# A process started with nohup or in the background of a shell ignores these
# signals.  The program would inherit that, so reset them.
foreach my $signal (qw(HUP INT QUIT))
{
	$SIG{$signal} = 'DEFAULT' if ($SIG{$signal} // '') eq 'IGNORE';
}

my %connection;

# need_program(): skips the test if the program was not built
sub need_program
{
	return if grep { -x "$_/leaselock" } split /:/, $ENV{PATH};
	die 'the program leaselock is not built' if ($ENV{CI} // '') eq 'true';
	plan skip_all => 'THE PROGRAM leaselock IS NOT BUILT: libpq-fe.h is missing';
	return;
}

# use_server(NODE): the server for the functions below
sub use_server
{
	my ($node) = @_;
	%connection = (
		PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres');
	return;
}

# cli(ARGUMENTS): returns exit status, output and errors
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

# cli_json(ARGUMENTS): returns exit status and the object in the one line of
# output
sub cli_json
{
	my ($rc, $out) = cli('--json', @_);
	my @lines = split /\n/, $out;

	return ($rc, {}) if @lines != 1;
	return ($rc, JSON::PP->new->utf8->decode($lines[0]));
}

# start_cli(ARGUMENTS): starts the program in the background; returns { run,
# out, err, pid }
sub start_cli
{
	my (@arguments) = @_;
	my $client = { in => '', out => '', err => '' };
	local %ENV = (%ENV, %connection);

	# the test may have been started with these ignored; the program keeps
	# ignored signals ignored
	local $SIG{$_} = 'DEFAULT' foreach qw(INT HUP QUIT USR1 USR2);
	$client->{run} = IPC::Run::start([ 'leaselock', @arguments ],
		'<', \$client->{in}, '>', \$client->{out}, '2>', \$client->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$client->{pid} = $client->{run}{KIDS}[0]{PID};
	return $client;
}

# finish(CLIENT): returns its exit status, or minus the number of the signal
# that ended it
sub finish
{
	my ($client) = @_;

	$client->{run}->finish;
	my $status = $client->{run}->full_result(0);
	return $status & 127 ? -($status & 127) : $status >> 8;
}

# ---------------------------------------------------------------------
# Many programs at once, with files as their output
# ---------------------------------------------------------------------

my $files = 0;
my $directory;

# spawn_cli(ARGUMENTS, OPTIONS): starts the program in the background with its
# output in files.  It uses only fork and exec, so that hundreds can run.
# OPTIONS: "in", "out" and "err", paths or open handles; "closed", descriptors
# to close; "close", handles of the test to close; "dir", its working
# directory; "program", the program to run.
sub spawn_cli
{
	my ($arguments, %options) = @_;
	my %client = (until => time + $PostgreSQL::Test::Utils::timeout_default);

	$directory //= PostgreSQL::Test::Utils::tempdir();
	foreach my $stream (qw(out err))
	{
		$client{$stream} = $options{$stream} // "$directory/" . $files++;
	}
	# emptied here, so that the files exist for any reader
	foreach my $path (grep { !ref } @client{qw(out err)})
	{
		open my $file, '>>', $path or die "$path: $!";
	}
	$client{pid} = fork // die "no process: $!";
	return \%client if $client{pid};

	eval { become_cli($arguments, \%client, %options) };
	warn $@ if $@;
	POSIX::_exit(255);
}

# become_cli(): runs in the new process
sub become_cli
{
	my ($arguments, $client, %options) = @_;
	my @handles = ($options{in} // '/dev/null', @$client{qw(out err)});
	my @command = ($options{program} // 'leaselock', @$arguments);

	%ENV = (%ENV, %connection);
	foreach my $fd (0 .. 2)
	{
		my $file = $handles[$fd];
		if (!ref $handles[$fd])
		{
			undef $file;
			open $file, ($fd ? '>>' : '<'), $handles[$fd] or die "$handles[$fd]: $!";
		}
		POSIX::dup2(fileno $file, $fd) if fileno $file != $fd;
	}
	close $_ foreach @{ $options{close} // [] };
	if ($options{dir}) { chdir $options{dir} or die "$options{dir}: $!" }
	$SIG{$_} = 'DEFAULT' foreach qw(HUP INT QUIT USR1 USR2 PIPE);
	POSIX::close($_) foreach @{ $options{closed} // [] };
	no warnings 'exec';
	exec { $command[0] } @command;
	return;
}

# has_ended(CLIENT): whether it has ended; if so, sets "rc", as finish() does,
# "out" and "err". A program that takes much too long is killed, and its "rc"
# is "hangs".
sub has_ended
{
	my ($client) = @_;
	my $ended = waitpid($client->{pid}, POSIX::WNOHANG) == $client->{pid};

	return 0 if !$ended && time < $client->{until};
	$client->{rc} = $? & 127 ? -($? & 127) : $? >> 8;
	if (!$ended)
	{
		kill 'KILL', $client->{pid};
		waitpid $client->{pid}, 0;
		$client->{rc} = 'hangs';
	}
	foreach my $stream (qw(out err))
	{
		$client->{$stream} = ref $client->{$stream} || $client->{$stream} =~ m{^/dev/} ?
		  '' : PostgreSQL::Test::Utils::slurp_file($client->{$stream});
	}
	return 1;
}

# reap_cli(CLIENT): waits for its end
sub reap_cli
{
	my ($client) = @_;

	usleep(5_000) until has_ended($client);
	return $client;
}

# run_many(COUNT, CASES): runs COUNT at a time, each case a list for
# spawn_cli(); returns the clients in the order of the cases
sub run_many
{
	my ($count, @cases) = @_;
	my (@clients, @running);

	while (@cases || @running)
	{
		while (@cases && @running < $count)
		{
			push @running, spawn_cli(@{ shift @cases });
			push @clients, $running[-1];
		}
		my @others = grep { !has_ended($_) } @running;
		usleep(5_000) if @others == @running;
		@running = @others;
	}
	return @clients;
}

# wait_until(SUB): waits until SUB returns something true, and returns that;
# false after a time-out
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

# control_characters(BYTES): the control characters of C0 except newline, DEL,
# and C1, as UTF-8 or as bytes that do not belong to it
sub control_characters
{
	my ($bytes) = @_;

	$bytes =~ s/\xC2[\xA0-\xBF]|[\xC3-\xDF][\x80-\xBF]|\xE0[\xA0-\xBF][\x80-\xBF]
		|[\xE1-\xEC\xEE\xEF][\x80-\xBF]{2}|\xED[\x80-\x9F][\x80-\xBF]
		|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2}//gx;
	return join ' ', map { sprintf '%02X', ord } $bytes =~ /[\x00-\x09\x0B-\x1F\x7F-\x9F]/g;
}

1;
