# "leaselock mcp" in hostile surroundings: input of every kind, output that
# nobody reads, and a server that hangs, closes the connection or sends
# nonsense.
#
# LEASELOCK_SEED repeats the random input; LEASELOCK_HOSTILE_CASES sets its
# amount.
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use HostileServer;
use IO::Select;
use IO::Socket::UNIX;
use JSON::PP;
use LeaseTest;
use McpTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

need_mcp();

my $seed = $ENV{LEASELOCK_SEED} || int(time * 1000) % 2**31;
my $cases = $ENV{LEASELOCK_HOSTILE_CASES} || 120;
note "LEASELOCK_SEED=$seed LEASELOCK_HOSTILE_CASES=$cases";
srand $seed;

my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $json = JSON::PP->new->utf8->canonical->allow_nonref;
my ($mcp, $answer, $id, $error);
my $pings = 0;

# the messages before the answer to a ping: all answers to earlier input
sub until_ping
{
	my ($mcp) = @_;
	my $ping = request($mcp, 'ping', undef, 'ping ' . ++$pings);
	my @before;

	while (my $message = read_message($mcp))
	{
		return @before if defined $message->{id} && $message->{id} eq $ping;
		push @before, $message;
	}
	die 'the server has ended';
}

sub brief
{
	return join ' ', map {
		(exists $_->{id} ? $json->encode($_->{id}) : 'no id') . ':'
		  . ($_->{error} ? $_->{error}{code} : $_->{method} ? $_->{method} : 'result')
	} @_;
}

# ---------------------------------------------------------------------
# Lines that are not messages
# ---------------------------------------------------------------------

my $list = '"method":"tools/list","params":{}';
my $good = qq({"jsonrpc":"2.0","id":1,$list});
my $deep = sub { my ($depth) = @_; return qq({"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":) . '[' x $depth . ']' x $depth . '}}' };
my $mib = 1024 * 1024;

$mcp = initialize(start_mcp([ '-h', '/nonexistent' ]));
foreach (
	[ 'a valid message', $good, '1:result' ],
	[ 'a valid message with white space around it', " \t$good \r", '1:result' ],
	[ 'an empty line', '', '' ],
	[ 'a blank line', " \t ", '' ],
	[ 'a carriage return', "\r", '' ],
	[ 'text that is not JSON', 'hello', 'no id:-32700' ],
	[ 'part of a message', substr($good, 0, 20), 'no id:-32700' ],
	[ 'two messages on a line', "$good$good", 'no id:-32700' ],
	[ 'a message followed by rubbish', "$good x", 'no id:-32700' ],
	[ 'a trailing comma', qq({"jsonrpc":"2.0","id":1,$list,}), 'no id:-32700' ],
	[ 'single quotes', qq({'jsonrpc':'2.0'}), 'no id:-32700' ],
	[ 'a comment', qq({"jsonrpc":"2.0",/* */"id":1,$list}), 'no id:-32700' ],
	[ 'a byte order mark', "\xEF\xBB\xBF$good", 'no id:-32700' ],
	[ 'a NUL', qq({"jsonrpc":"2.0","id":1,"method":"tools\0/list"}), 'no id:-32700' ],
	[ 'an escaped NUL', qq({"jsonrpc":"2.0","id":1,"method":"tools\\u0000/list"}), 'no id:-32700' ],
	[ 'a raw tab in a string', qq({"jsonrpc":"2.0","id":"a\tb",$list}), 'no id:-32700' ],
	[ 'invalid UTF-8', qq({"jsonrpc":"2.0","id":"\xFF",$list}), 'no id:-32700' ],
	[ 'overlong UTF-8', qq({"jsonrpc":"2.0","id":"\xC0\xAF",$list}), 'no id:-32700' ],
	[ 'a surrogate in UTF-8', qq({"jsonrpc":"2.0","id":"\xED\xA0\x80",$list}), 'no id:-32700' ],
	[ 'a lone surrogate', qq({"jsonrpc":"2.0","id":"\\ud800",$list}), 'no id:-32700' ],
	[ 'a pair of surrogates', qq({"jsonrpc":"2.0","id":"\\ud83d\\ude00",$list}), '"' . "\xF0\x9F\x98\x80" . '":result' ],
	[ 'two ids', qq({"jsonrpc":"2.0","id":1,"id":2,$list}), 'no id:-32700' ],
	[ 'a duplicate key in a nested object', qq({"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":{"a":1,"a":1}}}), 'no id:-32700' ],
	[ 'a number out of range', qq({"jsonrpc":"2.0","id":1e400,$list}), 'no id:-32700' ],
	[ 'an integer beyond 64 bits', qq({"jsonrpc":"2.0","id":9223372036854775808,$list}), 'no id:-32700' ],
	[ 'a number that begins with 0', qq({"jsonrpc":"2.0","id":01,$list}), 'no id:-32700' ],
	[ 'NaN', qq({"jsonrpc":"2.0","id":NaN,$list}), 'no id:-32700' ],
	[ 'a string', '"hello"', 'no id:-32700' ],
	[ 'a number', '5', 'no id:-32700' ],
	[ 'null', 'null', 'no id:-32700' ],
	[ 'a batch', "[$good]", 'no id:-32600' ],
	[ 'an empty batch', '[]', 'no id:-32600' ],
	[ 'an empty object', '{}', 'no id:-32600' ],
	[ 'no version', qq({"id":1,$list}), '1:-32600' ],
	[ 'another version', qq({"jsonrpc":"1.0","id":1,$list}), '1:-32600' ],
	[ 'a version that is a number', qq({"jsonrpc":2.0,"id":1,$list}), '1:-32600' ],
	[ 'a null id', qq({"jsonrpc":"2.0","id":null,$list}), 'no id:-32600' ],
	[ 'an id with a fraction', qq({"jsonrpc":"2.0","id":1.0,$list}), 'no id:-32600' ],
	[ 'an id that is true', qq({"jsonrpc":"2.0","id":true,$list}), 'no id:-32600' ],
	[ 'an id that is a list', qq({"jsonrpc":"2.0","id":[1],$list}), 'no id:-32600' ],
	[ 'an id that is an object', qq({"jsonrpc":"2.0","id":{},$list}), 'no id:-32600' ],
	[ 'the smallest id', qq({"jsonrpc":"2.0","id":-9223372036854775808,$list}), '-9223372036854775808:result' ],
	[ 'the largest id', qq({"jsonrpc":"2.0","id":9223372036854775807,$list}), '9223372036854775807:result' ],
	[ 'an empty id', qq({"jsonrpc":"2.0","id":"",$list}), '"":result' ],
	[ 'an id with escapes', qq({"jsonrpc":"2.0","id":"\\"\\\\\\n\\u2028",$list}), $json->encode("\"\\\n\x{2028}") . ':result' ],
	[ 'a long id', qq({"jsonrpc":"2.0","id":") . 'i' x 100_000 . qq(",$list}), '"' . 'i' x 100_000 . '":result' ],
	[ 'no method', qq({"jsonrpc":"2.0","id":1}), '1:-32600' ],
	[ 'a method that is a number', qq({"jsonrpc":"2.0","id":1,"method":5}), '1:-32600' ],
	[ 'a method that is null', qq({"jsonrpc":"2.0","id":1,"method":null}), '1:-32600' ],
	[ 'params that are a list', qq({"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}), '1:-32600' ],
	[ 'params that are null', qq({"jsonrpc":"2.0","id":1,"method":"ping","params":null}), '1:-32600' ],
	[ 'an unknown notification', qq({"jsonrpc":"2.0","method":"notifications/nonsense"}), '' ],
	[ 'a request without an id', qq({"jsonrpc":"2.0",$list}), '' ],
	[ 'a cancellation without an id', qq({"jsonrpc":"2.0","method":"notifications/cancelled"}), '' ],
	[ 'a cancellation whose id is an object', qq({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}), '' ],
	[ 'a response', qq({"jsonrpc":"2.0","id":1,"result":{}}), '' ],
	[ 'an error', qq({"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}), '' ],
	[ 'deep', $deep->(1500), '1:result' ],
	[ 'nesting that is too deep', $deep->(3000), 'no id:-32700' ],
	[ 'nesting that is much too deep', $deep->(400_000), 'no id:-32700' ],
	[ 'arrays that are never closed', '[' x 1_000_000, 'no id:-32700' ],
	[ 'a message of the maximum length', $good . ' ' x ($mib - length $good), '1:result' ],
	[ 'a message one byte too long', $good . ' ' x ($mib - length($good) + 1), 'no id:-32700' ],
	[ 'a line that is much too long', 'x' x (5 * $mib), 'no id:-32700' ],
	[ 'a line that is too long, with messages in it', ' ' x $mib . $good . '   ' . $good, 'no id:-32700' ],
	[ 'many keys', qq({"jsonrpc":"2.0","id":1,"method":"ping","params":{) . join(',', map { qq("k$_":$_) } 1 .. 50_000) . '}}', '1:result' ])
{
	my ($test, $line, $expected) = @$_;

	write_text($mcp, "$line\n");
	is(brief(until_ping($mcp)), $expected, "a line: $test");
}

# in pieces, and several at the same time
write_text($mcp, $_) foreach split //, "$good\n";
is(brief(until_ping($mcp)), '1:result', 'a message sent byte by byte is answered');
write_text($mcp, "$good\n" x 500);
is(brief(until_ping($mcp)), join(' ', ('1:result') x 500), 'five hundred messages sent at once are answered');
is(end_mcp($mcp), 0, 'the program survives all that and ends with its input');
is($mcp->{err}, '', 'nothing is printed on standard error');

# ---------------------------------------------------------------------
# Random input: every valid request gets one answer
# ---------------------------------------------------------------------

sub one_of { return $_[ rand @_ ] }

# a value of any kind
sub value
{
	my ($depth) = @_;
	my $kind = int rand($depth > 3 ? 7 : 9);

	return undef if $kind == 0;
	return one_of(JSON::PP::true, JSON::PP::false) if $kind == 1;
	return int(rand 2**31) - 2**30 if $kind == 2;
	return rand() * 10**(int(rand 20) - 5) if $kind == 3;
	return one_of('', 'x', "\x{FFFF}", "\n", '"', 'tools/list', "\x{1F512}" x 50) if $kind <= 6;
	return [ map { value($depth + 1) } 1 .. rand 5 ] if $kind == 7;
	return { map { one_of(qw(name arguments _meta id method jsonrpc lock_name ticket)) => value($depth + 1) } 1 .. rand 5 };
}

sub random_message
{
	my %message = (jsonrpc => '2.0', id => one_of(1, 'a', 0, -1, 'x' x 20),
		method => one_of(qw(initialize ping tools/list server/discover nonsense notifications/cancelled)));
	$message{params} = { one_of(qw(name cursor protocolVersion requestId)) => value(0) } if rand() < 0.5;
	$message{params}{_meta} = one_of($modern_meta, value(0)) if rand() < 0.3;
	$message{ one_of(qw(id method jsonrpc params extra)) } = value(0) if rand() < 0.3;
	delete $message{ one_of(keys %message) } if rand() < 0.1;
	return $json->encode(\%message);
}

sub damaged
{
	my ($text) = @_;
	my $place = int rand length $text;

	substr($text, $place, int rand 4) = one_of('', chr int(rand 256), '"', '{', '[', "\\", "\xC3", ',', '0');
	$text =~ tr/\n/ /;
	return $text;
}

$mcp = initialize(start_mcp([ '-h', '/nonexistent' ]));
my @wrong;
foreach (1 .. 20 * $cases)
{
	my $line = random_message();
	$line = damaged($line) foreach 1 .. rand 3;
	write_text($mcp, "$line\n");
	my @answers = until_ping($mcp);
	my $message = eval { $json->decode($line) };
	my $is_request = ref $message eq 'HASH' && exists $message->{method} && exists $message->{id};
	push @wrong, "$line: " . brief(@answers)
	  if @answers > 1 || ($is_request && @answers != 1) ||
	  grep { !exists $_->{result} == !exists $_->{error} } @answers;
}
is_deeply(\@wrong, [], 'random messages: each request gets exactly one answer');
is(end_mcp($mcp), 0, 'random messages: the program ends with its input');
is($mcp->{err}, '', 'random messages: nothing is printed on standard error');

# ---------------------------------------------------------------------
# The end of the input
# ---------------------------------------------------------------------

foreach ([ 'in the middle of a message', substr($good, 0, 30), qr/ended in the middle of a message/ ],
	[ 'before the end of a line', $good, qr/ended in the middle of a message/ ],
	[ 'in a line that is too long', 'x' x (2 * $mib), qr/ended in the middle of a message/ ],
	[ 'after an empty line', "\n", qr/^$/ ], [ 'at once', '', qr/^$/ ])
{
	my ($test, $text, $says) = @$_;
	$mcp = start_mcp([ '-h', '/nonexistent' ]);
	write_text($mcp, $text);
	is(end_mcp($mcp), 0, "the input ends $test");
	is(brief(@{ $mcp->{stash} }), $text =~ /xxx/ ? 'no id:-32700' : '', "$test: nothing is carried out");
	like($mcp->{err}, $says, "$test: the error output");
}
append_to_file("$dir/input", qq({"jsonrpc":"2.0","id":1,"method":"ping"}\n));
foreach my $way ('a file', '/dev/null', 'closed')
{
	my $client = reap_cli(spawn_cli(['mcp'], in => $way eq 'a file' ? "$dir/input" : '/dev/null', closed => $way eq 'closed' ? [0] : []));
	is($client->{rc}, 0, "the input is $way");
	is($client->{out}, $way eq 'a file' ? qq({"jsonrpc":"2.0","id":1,"result":{}}\n) : '', "the input is $way: the answers");
}
is(reap_cli(spawn_cli(['mcp'], in => "$dir/input", closed => [1]))->{rc}, 4, 'the output is closed');
is(reap_cli(spawn_cli(['mcp'], in => "$dir/input", out => '/dev/full'))->{rc}, 4, 'the output is full');

# ---------------------------------------------------------------------
# Output that nobody reads
# ---------------------------------------------------------------------

my $node = new_node('mcp_hostile', q{
leaselock.min_lease = '1s'
session_preload_libraries = 'leaselock'
});
use_server($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

sub expires_at { return $node->safe_psql('postgres', q{SELECT expires_at FROM leaselock.lease_status WHERE name = 'kept'}) }

foreach my $stream (qw(output errors))
{
	# a message about a lost connection cannot be written
	pipe my $read, my $write or die "no pipe: $!";
	if ($stream eq 'errors')
	{
		fcntl $write, F_SETFL, fcntl($write, F_GETFL, 0) | O_NONBLOCK;
		1 while defined syswrite $write, 'x' x 4096;
		1 while defined syswrite $write, 'x';
		fcntl $write, F_SETFL, fcntl($write, F_GETFL, 0) & ~O_NONBLOCK;
	}
	$mcp = initialize(start_mcp([], $stream eq 'errors' ? (err => $write) : ()));
	close $write;
	$answer = tool($mcp, 'acquire_lock', { lock_name => 'kept', lease_seconds => 4, keep_seconds => 600 });
	if ($stream eq 'output')
	{
		# send requests until it takes no more; the answers are shorter than
		# the requests
		my $good = qq({"jsonrpc":"2.0","id":1,"method":"ping"}) . ' ' x 400;
		fcntl $mcp->{to}, F_SETFL, fcntl($mcp->{to}, F_GETFL, 0) | O_NONBLOCK;
		my ($sent, $part) = (0, '');
		while (IO::Select->new($mcp->{to})->can_write(2))
		{
			$part = "$good\n" x 100 if $part eq '';
			my $size = syswrite $mcp->{to}, $part;
			last if !defined $size && !$!{EAGAIN};
			substr $part, 0, $size // 0, '';
			$sent += $size // 0;
		}
		cmp_ok($sent, '>', length $good, 'no output is read: the program stops reading its input');
		cmp_ok($sent, '<', 10 * $mib, 'no output is read: it stops soon');
		fcntl $mcp->{to}, F_SETFL, fcntl($mcp->{to}, F_GETFL, 0) & ~O_NONBLOCK;
		foreach (1 .. 2)
		{
			my $before = expires_at();
			ok(wait_until(sub { expires_at() ne $before }), 'no output is read: the lease is still renewed');
		}
		my $all = int($sent / length "$good\n");
		my $count = 0;
		while ($count < $all) { $count++ if exists read_message($mcp)->{result} }
		is($count, $all, 'no output is read: every answer arrives later');
		# the rest of the message that was cut
		write_text($mcp, substr "$good\n", $sent % length "$good\n");
		is(brief(until_ping($mcp)), '1:result', 'no output is read: the rest of the input is handled');
	}
	else
	{
		$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'leaselock mcp%'});
		ok(wait_until(sub { my $found = tool($mcp, 'get_lock_ticket', { ticket => $answer->{ticket} }); $found->{state} eq 'held' }),
			'no errors are read: calls do not wait for that');
	}
	is(tool($mcp, 'release_lock_ticket', { ticket => $answer->{ticket} })->{state}, 'released', "no $stream read: calls are answered");
	is(end_mcp($mcp), 0, "no $stream read: the program ends with its input");
}

# the input ends while nobody reads the output
$mcp = initialize(start_mcp([]));
write_text($mcp, "$good\n" x 200);
close $mcp->{to};
reap_cli($mcp);
is($mcp->{rc}, 0, 'no output is read: the program ends with its input');

# requests before the end of the input are answered to a reader that starts late
$mcp = initialize(start_mcp([ '-h', '/nonexistent' ]));
write_text($mcp, "$good\n" x 200);
is(end_mcp($mcp), 0, 'a slow reader: the program ends with its input');
is(scalar(grep { exists $_->{result}{tools} } @{ $mcp->{stash} }), 200, 'a slow reader: every request is answered');

# ---------------------------------------------------------------------
# A hostile server
# ---------------------------------------------------------------------

my $ticket = '01a22b43-617b-7e88-a5e0-f9af01cea561';
my %calls = (
	acquire_lock => { lock_name => 'n' },
	get_lock_ticket => { ticket => $ticket },
	heartbeat_lock_ticket => { ticket => $ticket },
	release_lock_ticket => { ticket => $ticket },
	lock_status => { lock_name => 'n' },
	break_lock => { lock_name => 'n', fence => 5 });

sub asked
{
	my ($query) = @_;

	return (\@status_columns, status_row()) if $query =~ /lease_status|lease_peek/;
	return (\@break_columns, break_row()) if $query =~ /lease_break/;
	return (\@ticket_columns, ticket_row(state => $query =~ /lease_release/ ? 'released' : 'held'));
}

my %nonsense = (
	'no rows' => sub { answer((asked($_[0]))[0]) },
	'two rows' => sub { my ($columns, $row) = asked($_[0]); answer($columns, $row, $row) },
	'other columns' => sub { answer([ 'x', 'json' ], row(1, '{}')) },
	'invalid JSON' => sub { answer(\@ticket_columns, ticket_row(json => '{"state":')) },
	'JSON that is a list' => sub { answer(\@ticket_columns, ticket_row(json => '[]')) },
	'an unknown state' => sub { answer(\@ticket_columns, ticket_row(state => 'mine')) },
	'a fence that is not a number' => sub { answer(\@ticket_columns, ticket_row(fence => '5; DROP')) },
	'COPY' => sub { (message('1', ''), message('2', ''), message('G', pack 'Cn', 0, 0)) },
	'an answer without its end' => sub { (answer(asked($_[0])))[ 0 .. 3 ] },
	'arbitrary bytes' => sub { "\0" x 100 },
	'a message that is too long' => sub { 'D' . pack('N', 2**31 - 1) },
);
my @nonsense = sort keys %nonsense;

start_hostile($dir, sub {
	my ($database, $query, $count) = @_;
	return [ join('', greeting()), $database eq 'silent at once' ? 'silent' : 'go on' ] if !defined $query;
	append_to_file("$dir/$database", 'x');
	my $asked = -s "$dir/$database";

	return [ '', 'silent' ] if $database =~ /^silent/;
	return [ '', 'close' ] if $database eq 'closes' || ($database =~ /^closes once/ && $asked == 1);
	return [ join('', failure('XX000', "evil$evil", D => "detail$evil", H => "hint$evil"), message('Z', 'I')), 'go on' ] if $database eq 'evil';
	return [ join('', (notice("notice$evil")) x 200, answer(asked($query))), 'go on' ] if $database eq 'notices';
	return [ join('', $nonsense{ $nonsense[$1] }->($query)), 'close' ] if $database =~ /^nonsense (\d+)/;
	return [ join('', answer(asked($query))), 'go on' ];
});
sub at { my ($database) = @_; return [ '--allow-break', '-d', connection_string($dir, "'$database'") ] }

# silent servers are called first and checked last, so that the test need not
# wait for them
my @silent;
foreach my $name (sort keys %calls)
{
	$mcp = initialize(start_mcp(at('silent')));
	$mcp->{calls} = [ map { begin_tool($mcp, $name, $calls{$name}) } 1 .. 3 ];
	is_deeply(legacy($mcp, 'ping')->{result}, {}, "a silent server: $name delays no ping");
	push @silent, [ $name, $mcp ];
}
# nor does a server that does not accept the connection
my $listener = IO::Socket::UNIX->new(Local => "$dir/.s.PGSQL.5433", Listen => 5) or die "no socket: $!";
$mcp = initialize(start_mcp([ '-d', "host=$dir port=5433" ]));
begin_tool($mcp, $_, $calls{$_}) foreach sort keys %calls;
is_deeply(legacy($mcp, 'ping')->{result}, {}, 'a pending connection delays no ping');
is(end_mcp($mcp), 0, 'a pending connection does not delay the end of the input');
$mcp = initialize(start_mcp(at('silent end')));
begin_tool($mcp, 'acquire_lock', { lock_name => 'n', wait_seconds => 200 });
begin_tool($mcp, 'lock_status', {});
ok(wait_until(sub { -e "$dir/silent end" }), 'a silent server gets a query');
kill 'TERM', $mcp->{pid};
is(end_mcp($mcp), 143, 'a silent server does not delay a signal');

foreach my $name (sort keys %calls)
{
	$mcp = initialize(start_mcp(at('good')));
	$answer = tool($mcp, $name, $calls{$name});
	is($name eq 'break_lock' ? $answer->{broken} : ($answer->{locks} // [$answer])->[0]{owner},
		$name eq 'break_lock' ? 1 : "\e[2J\e]0;pwned\a\x{FFFD}2J\x{9B}31m\x7F\b\r\t" . "\x{FFFD}" x 5 . "\x{E4}\x{FFFD}",
		"$name: answered, with invalid text marked as such");
	is(end_mcp($mcp), 0, "$name: the program ends");

	$mcp = initialize(start_mcp(at('evil')));
	$error = tool_error($mcp, $name, $calls{$name});
	like($error, qr/^evil.* \(XX000\)\. detail.* hint/, "$name: the error has message, detail and hint");
	unlike($error, qr/[\x00-\x1F\x7F-\x9F]/, "$name: the error has no control characters");
	is(end_mcp($mcp), 0, "$name: the program ends");

	$mcp = initialize(start_mcp(at('notices')));
	tool($mcp, $name, $calls{$name});
	is(end_mcp($mcp) . $mcp->{err}, '0', "$name: notices of the server are not printed");

	# the answer is lost: the call is repeated, unless a repetition could have
	# another result
	$mcp = initialize(start_mcp(at("closes once $name")));
	if ($name eq 'break_lock')
	{
		like(tool_error($mcp, $name, $calls{$name}), qr/It may have been done nevertheless: check/, "$name: a lost answer is an error");
		is(-s "$dir/closes once $name", 1, "$name: the call is not repeated");
	}
	else
	{
		tool($mcp, $name, $calls{$name});
		is(-s "$dir/closes once $name", 2, "$name: a call whose answer was lost is repeated");
	}
	is(end_mcp($mcp), 0, "$name: the program ends");
}
foreach my $quiet ([], ['-q'])
{
	$mcp = initialize(start_mcp([ @$quiet, @{ at("closes once @$quiet") } ]));
	tool($mcp, 'acquire_lock', $calls{acquire_lock});
	is(end_mcp($mcp), 0, "a lost answer, @$quiet: the program ends");
	like($mcp->{err}, @$quiet ? qr/^$/ : qr/trying again/, "a lost answer, @$quiet: what is said of it");
}
$mcp = initialize(start_mcp(at('closes')));
my $asked = time;
$error = tool_error($mcp, 'acquire_lock', $calls{acquire_lock});
cmp_ok(time - $asked, '>=', 3, 'lost answers: the call is repeated for three seconds');
like($error, qr/It may have been done nevertheless: call again with request_uuid [0-9a-f-]{36}$/, 'lost answers: the error names the request id');
$error = tool_error($mcp, 'acquire_lock', { %{ $calls{acquire_lock} }, owner => 'me', request_uuid => $ticket });
like($error, qr/call again with request_uuid $ticket and the same owner$/, 'lost answers: the error says to use the same owner, if one was given');
unlike(tool_error($mcp, 'lock_status', {}), qr/done nevertheless/, 'lost answers: the error of lock_status says nothing of a possible effect');
is(end_mcp($mcp), 0, 'lost answers: the program ends');

foreach my $kind (0 .. $#nonsense)
{
	$mcp = initialize(start_mcp(at("nonsense $kind")));
	$error = tool_error($mcp, 'get_lock_ticket', $calls{get_lock_ticket});
	like($error, qr/is malformed|cannot allocate|closed the connection|lost synchron|unexpected|invalid|is not responding/, "nonsense: $nonsense[$kind]: the call fails");
	is_deeply(legacy($mcp, 'ping')->{result}, {}, "nonsense: $nonsense[$kind]: the program survives");
	is(end_mcp($mcp), 0, "nonsense: $nonsense[$kind]: the program ends");
}

# more calls than anybody needs
$mcp = initialize(start_mcp(at('silent')));
my @ids = map { begin_tool($mcp, 'get_lock_ticket', $calls{get_lock_ticket}) } 1 .. 1001;
like(tool_error($mcp, $ids[1000]), qr/too many calls/, 'a call above the limit is refused');
@ids = map { begin_tool($mcp, 'acquire_lock', { lock_name => "n$_" }) } 1 .. 3;
like(tool_error($mcp, $_), qr/too many calls/, 'an acquisition above the limit is refused, too') foreach @ids;
close $mcp->{to};
close $mcp->{from};
reap_cli($mcp);
like($mcp->{rc}, qr/^[04]$/, 'too many calls: the program ends with its input');

foreach (@silent)
{
	my ($name, $mcp) = @$_;
	like(tool_error($mcp, $_), qr/the server is not responding/, "a silent server: $name is an error") foreach @{ $mcp->{calls} };
	is(end_mcp($mcp), 0, "a silent server: $name: the program ends");
}

is_deeply([ internal_errors($node) ], [], 'no internal errors');
is_deeply([ crashes($node) ], [], 'no server process crashed');
$node->stop;
done_testing();
