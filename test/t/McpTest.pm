# Shared by the tests of "leaselock mcp": a client that writes and reads lines
# and checks everything that it reads

package McpTest;

use strict;
use warnings FATAL => 'all';

use CliTest;
use Encode ();
use Exporter qw(import);
use IO::Select;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  need_mcp start_mcp write_text write_message request legacy modern read_message
  read_line answer_to begin_tool tool tool_error progress_of close_input end_mcp
  initialize $modern_meta
);

our $modern_meta = {
	'io.modelcontextprotocol/protocolVersion' => '2026-07-28',
	'io.modelcontextprotocol/clientCapabilities' => {},
	'io.modelcontextprotocol/clientInfo' => { name => 'test', version => '1' },
};

my $json = JSON::PP->new->utf8->canonical->allow_nonref;
my $timeout = $PostgreSQL::Test::Utils::timeout_default;
my $last_id = 0;

# need_mcp(): skips the test if the program was built without it
sub need_mcp
{
	my (undef, undef, $err);

	need_program();
	(undef, undef, $err) = cli('mcp');
	return if $err !~ /not available in this build/;
	die $err if ($ENV{CI} // '') eq 'true';
	plan skip_all => "LEASELOCK MCP IS NOT BUILT IN: jansson.h is missing";
	return;
}

# start_mcp(ARGUMENTS, OPTIONS): starts the program; OPTIONS as for spawn_cli()
sub start_mcp
{
	my ($arguments, %options) = @_;

	# the application name of the test's own connections
	delete local $ENV{PGAPPNAME};
	pipe my $in, my $to or die "no pipe: $!";
	pipe my $from, my $out or die "no pipe: $!";
	my $mcp = spawn_cli([ 'mcp', @{ $arguments // [] } ],
		in => $in, out => $out, close => [ $to, $from ], %options);
	close $in;
	close $out;
	$to->autoflush(1);
	return { %$mcp, to => $to, from => $from, buffer => '', stash => [], legacy => 0 };
}

# write_text(MCP, TEXT): writes bytes unchanged
sub write_text
{
	my ($mcp, $text) = @_;
	local $SIG{PIPE} = 'IGNORE';

	while ($text ne '')
	{
		my $size = syswrite $mcp->{to}, $text, 65536;
		return 0 if !defined $size;
		substr $text, 0, $size, '';
	}
	return 1;
}

sub write_message { my ($mcp, $message) = @_; return write_text($mcp, $json->encode($message) . "\n") }

# read_line(MCP): returns the next line; undef at the end of the output
sub read_line
{
	my ($mcp) = @_;
	my $until = time + $timeout;

	while ($mcp->{buffer} !~ /\n/)
	{
		die 'the server says nothing' if time > $until;
		next if !IO::Select->new($mcp->{from})->can_read(1);
		my $size = sysread $mcp->{from}, $mcp->{buffer}, 65536, length $mcp->{buffer};
		return if !$size;
	}
	$mcp->{buffer} =~ s/\A(.*)\n//;
	return $1;
}

# read_message(MCP): returns one message; a line that is not JSON-RPC, or not
# ASCII, ends the test
sub read_message
{
	my ($mcp) = @_;
	my $line = read_line($mcp);

	return defined $line ? decode_message($line) : ();
}
sub decode_message
{
	my ($line) = @_;

	die "not ASCII: $line" if $line =~ /[^\x20-\x7E]/;
	my $message = $json->decode($line);
	die "not JSON-RPC: $line" if ($message->{jsonrpc} // '') ne '2.0';
	return $message;
}

# request(MCP, METHOD, PARAMS, ID): writes a request, returns its id
sub request
{
	my ($mcp, $method, $params, $id) = @_;

	$id //= ++$last_id;
	write_message($mcp, { jsonrpc => '2.0', id => $id, method => $method,
			defined $params ? (params => $params) : () });
	return $id;
}

# answer_to(MCP, ID): waits for the answer; keeps earlier messages in "stash"
sub answer_to
{
	my ($mcp, $id) = @_;

	foreach (0 .. $#{ $mcp->{stash} })
	{
		my $message = $mcp->{stash}[$_];
		return splice @{ $mcp->{stash} }, $_, 1 if defined $message->{id} && $message->{id} eq $id;
	}
	while (my $message = read_message($mcp))
	{
		return $message if defined $message->{id} && $message->{id} eq $id;
		push @{ $mcp->{stash} }, $message;
	}
	die "the server has ended before it answered $id";
}

# legacy(), modern(MCP, METHOD, PARAMS): sends a request of that era, returns
# its answer
sub legacy { my ($mcp, @request) = @_; return answer_to($mcp, request($mcp, @request)) }

sub modern
{
	my ($mcp, $method, $params) = @_;
	return legacy($mcp, $method, { _meta => $modern_meta, %{ $params // {} } });
}

# initialize(MCP): the handshake; later calls are legacy ones
sub initialize
{
	my ($mcp) = @_;

	legacy($mcp, 'initialize', { protocolVersion => '2025-11-25', capabilities => {},
			clientInfo => { name => 'test', version => '1' } });
	write_message($mcp, { jsonrpc => '2.0', method => 'notifications/initialized' });
	$mcp->{legacy} = 1;
	return $mcp;
}

# begin_tool(MCP, NAME, ARGUMENTS, META): calls a tool, returns the id
sub begin_tool
{
	my ($mcp, $name, $arguments, $meta) = @_;
	return request($mcp, 'tools/call', { name => $name, arguments => $arguments // {},
			_meta => { $mcp->{legacy} ? () : %$modern_meta, %{ $meta // {} } } });
}

# content(ANSWER): the structured content of a result, which must equal its
# text; any other answer ends the test
sub content
{
	my ($answer) = @_;
	my $result = $answer->{result} // die 'no result: ' . $json->encode($answer);

	die 'an error: ' . $result->{content}[0]{text} if $result->{isError};
	die 'the text differs: ' . $json->encode($result)
	  if $json->encode($json->decode(Encode::encode('UTF-8', $result->{content}[0]{text})))
	  ne $json->encode($result->{structuredContent});
	return $result->{structuredContent};
}

# tool(MCP, NAME, ARGUMENTS) or tool(MCP, ID): calls a tool, waits, returns the
# content
sub tool
{
	my ($mcp, $name, $arguments) = @_;
	return content(answer_to($mcp, $arguments ? begin_tool($mcp, $name, $arguments) : $name));
}

# tool_error(MCP, NAME, ARGUMENTS) or tool_error(MCP, ID): returns the text of
# the error
sub tool_error
{
	my ($mcp, $name, $arguments) = @_;
	my $answer = answer_to($mcp, $arguments ? begin_tool($mcp, $name, $arguments) : $name);

	return 'no error: ' . $json->encode($answer) if !$answer->{result}{isError};
	return 'structured' if exists $answer->{result}{structuredContent};
	return $answer->{result}{content}[0]{text};
}

# progress_of(MCP, TOKEN): the progress notifications received for the token
sub progress_of
{
	my ($mcp, $token) = @_;
	return map { $_->{params} }
	  grep { ($_->{method} // '') eq 'notifications/progress' && $_->{params}{progressToken} eq $token }
	  @{ $mcp->{stash} };
}

sub close_input { my ($mcp) = @_; close $mcp->{to}; return }

# end_mcp(MCP): closes its input and waits for its end; returns its status and
# keeps the unread messages in "stash"
sub end_mcp
{
	my ($mcp) = @_;

	my @lines;

	close $mcp->{to};
	# all of it is read before any is decoded: the server does not wait long for a
	# reader that pauses
	while (defined(my $line = read_line($mcp))) { push @lines, $line }
	push @{ $mcp->{stash} }, map { decode_message($_) } @lines;
	reap_cli($mcp);
	return $mcp->{rc};
}

1;
