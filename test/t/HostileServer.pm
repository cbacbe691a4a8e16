# A fake server: speaks as much of version 3 of the protocol as a test needs,
# correctly or not

package HostileServer;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use IO::Socket::UNIX;
use POSIX ();

our @EXPORT = qw(
  start_hostile connection_string message notice failure columns row
  greeting answer ticket_row status_row queue_row event_row break_row
  $evil @ticket_columns @status_columns @queue_columns @event_columns @break_columns
);

# Control characters for a terminal: C0, DEL, C1 as UTF-8 and as bytes, and C1
# in an overlong form
our $evil = "\e[2J\e]0;pwned\a\x9B2J\xC2\x9B31m\x7F\x08\r\t\xC1\x9B\xE0\x82\x9B\xC3\xA4\xFF";

our @ticket_columns = qw(state ticket scope name owner fence depth position expires_at
  wait_until remaining_ms next_call_ms holder holder_role request_id note json);
our @status_columns = qw(scope name owner role fence depth waiters held_ms remaining_ms state note json);
our @queue_columns = qw(scope name owner role state position age_ms remaining_ms note json);
our @event_columns = qw(next_xid next_id more at kind scope name owner role fence ticket note json);
our @break_columns = qw(broken json);

# ---------------------------------------------------------------------
# Messages
# ---------------------------------------------------------------------

sub message { my ($type, $body) = @_; return $type . pack('N', 4 + length $body) . $body }

# fields of an error or a notice, keyed by their letters
sub fields
{
	my (%field) = @_;
	return join('', map { "$_$field{$_}\0" } sort keys %field) . "\0";
}

sub failure
{
	my ($sqlstate, $text, %more) = @_;
	return message('E', fields(S => 'ERROR', V => 'ERROR', C => $sqlstate, M => $text, %more));
}

sub notice
{
	my ($text, %more) = @_;
	return message('N', fields(S => 'NOTICE', V => 'NOTICE', C => '00000', M => $text, %more));
}

sub columns
{
	return message('T', pack('n', scalar @_) . join '',
		map { "$_\0" . pack('NnNnNn', 0, 0, 25, 65535, 2**32 - 1, 0) } @_);
}

sub row
{
	return message('D', pack('n', scalar @_) . join '',
		map { defined $_ ? pack('N/a*', $_) : pack('N', 2**32 - 1) } @_);
}

# the messages before the first query, one per element
sub greeting
{
	return (message('R', pack 'N', 0), message('S', "client_encoding\0UTF8\0"),
		message('S', "server_version\x0015.0\0"), message('K', pack 'NN', 1, 2),
		message('Z', 'I'));
}

# an answer with these rows, one message per element
sub answer
{
	my ($columns, @rows) = @_;
	return (message('1', ''), message('2', ''), columns(@$columns), @rows,
		message('C', 'SELECT ' . @rows . "\0"), message('Z', 'I'));
}

# the values of a ticket, some of them changed
sub ticket_row
{
	my (%change) = @_;
	my %value = (
		state => 'held', ticket => '01a22b43-617b-7e88-a5e0-f9af01cea561', scope => 'public',
		name => 'n', owner => "o$evil", fence => 5, depth => 1, remaining_ms => 2000,
		next_call_ms => 600, json => qq({"owner":"$evil"}), %change);

	return row(map { $value{$_} } @ticket_columns);
}

sub status_row
{
	my (%change) = @_;
	my %value = (
		scope => "s$evil", name => 'n', state => 'held', owner => "o$evil", role => 'r', fence => 5, depth => 1,
		waiters => 0, held_ms => 3000, remaining_ms => 2000, note => $evil, json => qq({"owner":"$evil"}), %change);

	return row(map { $value{$_} } @status_columns);
}

sub queue_row
{
	my (%change) = @_;
	my %value = (
		scope => "s$evil", name => 'n', state => 'waiting', position => 1, owner => "o$evil", role => 'r',
		age_ms => 3000, remaining_ms => 2000, note => $evil, json => qq({"owner":"$evil"}), %change);

	return row(map { $value{$_} } @queue_columns);
}

sub event_row
{
	my (%change) = @_;
	my %value = (
		next_xid => 800, next_id => 1, more => 'f', at => "2026-11-30$evil", kind => "granted$evil",
		scope => "s$evil", name => 'n', owner => "o$evil", role => 'r', fence => 5, ticket => 't',
		json => qq({"owner":"$evil"}), %change);

	return row(map { $value{$_} } @event_columns);
}

sub break_row { return row('t', qq({"broken":true})) }

# ---------------------------------------------------------------------
# The server
# ---------------------------------------------------------------------

my @servers;
my $owner = $$;
END
{
	local $?;
	# each process with all processes below it
	if ($$ == $owner)
	{
		kill 'KILL', map { -$_ } @servers;
		waitpid $_, 0 foreach @servers;
	}
}

sub receive
{
	my ($socket, $size) = @_;
	my $bytes = '';

	while (length $bytes < $size)
	{
		sysread($socket, $bytes, $size - length $bytes, length $bytes) or POSIX::_exit(0);
	}
	return $bytes;
}

sub send_all
{
	my ($socket, $bytes) = @_;

	while ($bytes ne '')
	{
		my $size = syswrite $socket, $bytes, 65536;
		POSIX::_exit(0) if !$size;
		substr $bytes, 0, $size, '';
	}
	return;
}

# One connection.  PLAY is called with the name of the database and returns
# what to send first; then, for each query and its number, what to send and how
# to go on: [BYTES, END].  END "close" closes the connection afterwards,
# "silent" sends nothing more, anything else continues.
sub serve
{
	my ($socket, $play) = @_;
	my $startup = receive($socket, unpack('N', receive($socket, 4)) - 4);
	# the request to cancel a query
	POSIX::_exit(0) if unpack('N', $startup) == 80877102;
	my %parameter = split /\0/, substr($startup, 4), -1;
	my ($bytes, $end) = @{ $play->($parameter{database}) };
	my ($query, $silent, $count) = ('', 0, 0);

	for (;;)
	{
		send_all($socket, $bytes) if !$silent;
		POSIX::_exit(0) if $end eq 'close';
		$silent ||= $end eq 'silent';
		for (;;)
		{
			my ($type, $size) = unpack 'aN', receive($socket, 5);
			my $body = receive($socket, $size - 4);
			$query = $body if $type eq 'P';
			POSIX::_exit(0) if $type eq 'X';
			last if $type eq 'S';
		}
		($bytes, $end) = @{ $play->($parameter{database}, $query, ++$count) } if !$silent;
	}
}

# start_hostile(DIRECTORY, PLAY): listens in DIRECTORY until the test ends
sub start_hostile
{
	my ($directory, $play) = @_;
	my $listener = IO::Socket::UNIX->new(Local => "$directory/.s.PGSQL.5432", Listen => 100)
	  or die "no socket: $!";
	my $server = fork // die "no process: $!";

	if ($server == 0)
	{
		setpgrp;
		$SIG{CHLD} = 'IGNORE';
		$SIG{PIPE} = 'IGNORE';
		for (;;)
		{
			my $socket = $listener->accept or next;
			my $child = fork;
			next if $child || !defined $child;
			close $listener;
			eval { serve($socket, $play); 1 } or warn $@;
			POSIX::_exit(1);
		}
	}
	# both processes do this, so that it is done whichever runs first
	setpgrp $server, $server;
	push @servers, $server;
	close $listener;
	return;
}

sub connection_string
{
	my ($directory, $database) = @_;
	return "host=$directory port=5432 user=u dbname=$database";
}

1;
