# The program leaselock for people: its messages and displays, and waits
# without end
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use JSON::PP;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
# the test moves the clock, which must not time out silent waiters
my $node = new_node('people', "leaselock.max_wait = '1000 s'\nleaselock.waiter_timeout = '1 h'\n");
use_server($node);
# the test tells connections apart by application name
delete $ENV{PGAPPNAME};
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my ($rc, $out, $err, $answer);

sub query { return $node->safe_psql('postgres', $_[0]) }

# move_clock(SECONDS): sets the server's clock, for later sessions and
# statements
sub move_clock
{
	my ($s) = @_;
	query("LOAD 'leaselock'; ALTER SYSTEM SET leaselock.clock_offset = '${s}s'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('leaselock.clock_offset', true) = '${s}s'")
	  or die 'the clock does not move';
	return;
}

# ---------------------------------------------------------------------
# Missing extension and missing server
# ---------------------------------------------------------------------

query('CREATE DATABASE bare');
my $unknown = '00000000-0000-0000-0000-000000000000';
foreach (
	[qw(acquire x --owner y)], [ 'get', $unknown ], [ 'heartbeat', $unknown ], [ 'release', $unknown ], ['status'],
	[qw(status x)], [qw(status --queue)], [qw(break x --fence 1)], [qw(run x -- true)],
	[qw(acquire x --owner y --wait-seconds inf)])
{
	($rc, $out, $err) = cli('-d', 'bare', @$_);
	is("$rc|$out", '4|', "@$_[0]: no extension");
	like($err, qr/\(\w{5}\)\n.*CREATE EXTENSION leaselock\n\z/, "@$_[0]: the message says what to do");
}

my $nowhere = PostgreSQL::Test::Utils::tempdir_short();
($rc, $out, $err) = cli('-h', $nowhere, 'status');
like($err, qr/\Aleaselock: connection to server .*: No such file or directory\n  Is the server running .*\?\n\z/,
	"the lines of a libpq message are kept");
($rc, $out, $err) = cli('-h', "$nowhere,$nowhere", qw(acquire x --owner y --wait-seconds 0.1));
like($err, qr/\Aleaselock: trying again: connection to server .*\n  Is .*\n  connection to server .*\n  Is .*\n/,
	'they are kept after a prefix and for several hosts');

# ---------------------------------------------------------------------
# Messages that explain an answer
# ---------------------------------------------------------------------

cli(qw(acquire taken --owner a));
foreach (
	[ [qw(acquire taken --owner b)], 1, '"taken" is held by "a"' ],
	[ [qw(acquire taken --owner b --wait-seconds 0.2)], 1, 'gave up after 0.2 s: "taken" is held by "a"' ],
	[ [qw(run taken -- true)], 1, '"taken" is held by "a"' ],
	[ [qw(break taken --fence 7)], 2, '"taken" has no grant with fence 7; "leaselock status" shows the fence of the present one' ],
	[ [ 'heartbeat', $unknown ], 2, 'not renewed: the ticket is gone' ],
	[ [qw(status free)], 2, 'nobody holds "free" in scope "public" or waits for it now (--all shows lapsed leases, too)' ],
	[ [qw(status --scope s --all)], 0, 'no lock is held or waited for in scope "s"' ],
	[ [qw(status free --queue)], 2, 'nobody holds "free" in scope "public" or waits for it' ])
{
	my ($arguments, $status, $message) = @$_;
	($rc, $out, $err) = cli(@$arguments);
	is("$rc|$err", "$status|leaselock: $message\n", "@$arguments[0]: $message");
	is((cli(@$arguments, '--json'))[2], '', "@$arguments[0]: no message with --json")
	  if $arguments->[0] eq 'status';
	# after "--" the option would belong to the command
	splice @$arguments, 1, 0, '--quiet';
	is((cli(@$arguments))[2], $arguments->[0] eq 'break' ? $err : '', "@$arguments: no message")
}

# an open transaction: the message names no holder, because the transaction may
# roll back
my $open = $node->background_psql('postgres', on_error_stop => 0);
$open->query_safe(q{BEGIN; SELECT FROM leaselock.lease_acquire('open', 'a')});
foreach my $command ([qw(acquire open --owner b)], [qw(run open -- true)])
{
	($rc, $out, $err) = cli(@$command);
	is("$rc|$err", qq{1|leaselock: "open" is in use: a transaction that has not ended is changing it, or others wait for it\n},
		"@$command[0]: a lock acquired in an open transaction is in use");
}
$open->query_safe('ROLLBACK');
$open->quit;
query(q{SELECT leaselock.lease_release_all('a'), leaselock.lease_prune('0 s')});

# ---------------------------------------------------------------------
# status
# ---------------------------------------------------------------------

query(q{
	SELECT leaselock.try_lock('lapsed', 'a', '1 s');
	SELECT leaselock.try_lock('wanted', 'b', '1 s');
	SELECT leaselock.try_lock('live', 'c', '10 d');
	SELECT leaselock.lease_acquire('live', 'd', wait => '100 s', note => 'the next one');
	SELECT leaselock.lease_acquire('live', 'e', wait => '100 s');
	SELECT leaselock.lease_acquire('other', 'f', scope => 's', note => 'a note');
	SELECT leaselock.lease_acquire('wanted', 'g', wait => '100 s')});
move_clock(2);

# names(ARGUMENTS): the locks that status shows, with their states
sub names
{
	my ($text) = (cli('status', @_))[1];
	my ($heading, @rows) = split /\n/, $text;
	my $at = index $heading, ' state ';

	return join ' ', map { my ($name, $state) = ((split ' ')[1], (split ' ', substr $_, $at)[0]); "$name:$state" } @rows;
}

is(names(), 'live:held wanted:lapsed other:held', 'status: shows live locks and locks with waiters');
is(names('--all'), 'lapsed:lapsed live:held wanted:lapsed other:held', 'status: --all adds lapsed locks');
is((cli(qw(status lapsed)))[0], 2, 'status of a lock: a lapsed lock is not held');
is(names(qw(lapsed --all)), 'lapsed:lapsed', 'status of a lock: --all shows the lapsed holder');
is((cli(qw(status lapsed --all)))[0], 0, 'status of a lock: --all gives status 0');
is(join(' ', map { decode_json($_)->{name} } split /\n/, (cli(qw(status --json)))[1]), 'live wanted other', 'status: JSON has the same locks');
is(join(' ', map { decode_json($_)->{name} } split /\n/, (cli(qw(status --json --all)))[1]), 'lapsed live wanted other',
	'status: JSON with --all has the same locks');

($rc, $out) = cli(qw(status live));
like($out, qr/ 9 d 23 h +held$/m, 'status: times are in readable units');
unlike($out, qr/_ms/, 'status: text has no milliseconds');
unlike($out, qr/ $/m, 'status: lines have no trailing blanks');
($rc, $answer) = cli_json(qw(status live));
cmp_ok($answer->{remaining_ms}, '>', 863_000_000, 'status: JSON has milliseconds');
($rc, $out) = cli(qw(status --scope s));
like($out, qr/note\n.* a note\n\z/, 'status: shows notes');

# how a lease of so many milliseconds is shown
foreach (
	[ 5_000, '5 s' ], [ 7_500, '7.5 s' ], [ 59_000, '59 s' ], [ 60_000, '1 min' ], [ 61_999, '1 min 1 s' ],
	[ 299_000, '4 min 59 s' ], [ 300_000, '5 min' ])
{
	my ($ms, $shown) = @$_;
	($rc, $out) = cli(qw(acquire lengths --owner o --lease-seconds), $ms / 1000);
	like($out, qr/^remaining +\Q$shown\E$/m, "acquire: $ms ms are shown as $shown");
	like($out, qr/^expires_at +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S{0,6}$/m, 'acquire: the expiry has no fractions of a second') if $ms == 5_000;
	unlike($out, qr/_ms/, 'acquire: text has no milliseconds') if $ms == 5_000;
}

# ---------------------------------------------------------------------
# status --queue
# ---------------------------------------------------------------------

($rc, $out) = cli(qw(status --queue));
is($rc, 0, 'status --queue: succeeds');
my ($heading, @rows) = split /\n/, $out;
is($heading =~ s/ +/ /gr, 'scope name owner role state position age remaining note', 'status --queue: prints these columns');
is(join(' ', map { join ':', (split ' ')[ 1, 2, 4 ] } grep { !/lengths/ } @rows),
	'live:d:waiting live:e:waiting wanted:g:waiting other:f:held', 'status --queue: shows all tickets in order');
($rc, $out) = cli(qw(status live --queue));
like($out, qr/ d +\S+ +waiting +1 .* the next one\n.* e +\S+ +waiting +2 /, 'status --queue: one lock, with places and notes');
($rc, $out) = cli(qw(status --queue --scope s));
is(scalar(split /\n/, $out), 2, 'status --queue: one scope');
is((cli(qw(status lapsed --queue)))[0], 2, 'status --queue: a lock without tickets gives status 2');
my @answers = map { decode_json($_) } split /\n/, (cli(qw(status live --queue --json)))[1];
is(join(' ', map { "$_->{owner}:$_->{position}:" . length $_->{ticket} } @answers), 'd:1:36 e:2:36',
	'status --queue: JSON has the tickets');
cmp_ok($answers[0]{remaining_ms}, '>', 90_000, 'status --queue: JSON has milliseconds');

query('SELECT leaselock.lease_release_all(owner) FROM leaselock.lease_tickets');
move_clock(0);

# ---------------------------------------------------------------------
# Waits longer than the server's limit
# ---------------------------------------------------------------------

# free locks first: no wait is refused, whatever the limit is
foreach ('101', '200', '301', '86400', 'inf')
{
	($rc, $answer) = cli_json(qw(acquire free --owner), "o$_", '--wait-seconds', $_);
	is("$rc|$answer->{state}", '0|held', "a wait of $_ is accepted");
	query(qq{SELECT leaselock.lease_release_all('o$_')});
}
foreach my $bound ('1500ms', '7min', '2d')
{
	query("LOAD 'leaselock'; ALTER SYSTEM SET leaselock.max_wait = '$bound'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('leaselock.max_wait', true) = '$bound'") or die;
	is((cli(qw(acquire free --owner o --wait-seconds inf)))[0], 0, "an endless wait is accepted with max_wait = $bound");
}
query("LOAD 'leaselock'; ALTER SYSTEM SET leaselock.max_wait = '1000s'");
$node->reload;
$node->poll_query_until('postgres', "SELECT current_setting('leaselock.max_wait', true) = '1000s'") or die;
is(query(q{SELECT max(depth) FROM leaselock.lease_peek('free')}), '3', 'each call made one ticket');

# places(NAME): the waiters in the order of their tickets: owner and position
sub places
{
	my ($name) = @_;
	return query(qq{SELECT string_agg(owner || position, ' ' ORDER BY requested_at) FROM leaselock.lease_tickets
		WHERE name = '$name' AND state = 'waiting'});
}

# waits(NAME, PLACES): waits until the places are PLACES
sub waits
{
	my ($name, $places) = @_;
	return wait_until(sub { places($name) eq $places });
}

# One program waits without end; others queue before and after it, each for the
# maximum wait
query(q{SELECT leaselock.try_lock('line', 'holder', '1 d')});
query(q{SELECT leaselock.lease_acquire('line', 'before', wait => '1000 s')});
my $endless = start_cli(qw(acquire line --owner endless --wait-seconds inf --note patient --json));
ok(waits('line', 'before1 endless2'), 'an endless wait starts');
move_clock(200);
query(q{SELECT leaselock.lease_acquire('line', 'after', wait => '1000 s')});
is(places('line'), 'before1 endless2 after3', 'another waiter queues behind it');
move_clock(600);
ok(waits('line', 'before1 endless2 after3 endless2'), 'after half of the maximum wait it queues a second time and keeps its first place');
query(q{SELECT leaselock.lease_acquire('line', 'late', wait => '1000 s')});
move_clock(1010);
ok(waits('line', 'after1 endless2 late3'), 'when the first place times out, it keeps the second, between earlier and later waiters');
move_clock(1100);
ok(waits('line', 'after1 endless2 late3 endless2'), 'it queues again');
move_clock(1300);
is(places('line'), 'endless1 late2 endless1', 'the other waits time out');
move_clock(1700);
ok(waits('line', 'endless1'), 'the endless wait continues');
query(q{SELECT leaselock.release_lock('line', 'holder')});
is(finish($endless), 0, 'the endless wait gets the lock');
$answer = decode_json($endless->{out});
is("$answer->{state}|$answer->{depth}|$answer->{note}", 'held|1|patient', 'the lock is held by one ticket');
is(query(q{SELECT string_agg(state, ' ') FROM leaselock.lease_tickets WHERE name = 'line'}), 'held', 'no waiting ticket is left');
is($endless->{err}, '', 'no message is printed about the further places');
move_clock(0);

# the lock is granted while there are two places
query(q{SELECT leaselock.try_lock('two', 'holder', '1 d')});
$endless = start_cli(qw(run two --owner endless --wait-seconds 9000 -- leaselock status two --json));
ok(waits('two', 'endless1'), 'a long wait starts');
move_clock(600);
ok(waits('two', 'endless1 endless1'), 'it has two places');
query(q{SELECT leaselock.release_lock('two', 'holder')});
is(finish($endless), 0, 'the command has run');
$answer = decode_json($endless->{out});
is("$answer->{owner}|$answer->{depth}|$answer->{waiters}", 'endless|1|0', 'the other place is given up');
move_clock(0);

# ended by a signal
query(q{SELECT leaselock.try_lock('signal', 'holder', '1 d')});
$endless = start_cli(qw(acquire signal --owner endless --wait-seconds inf));
ok(waits('signal', 'endless1'), 'an endless wait starts');
move_clock(600);
ok(waits('signal', 'endless1 endless1'), 'it has two places');
$endless->{run}->signal('TERM');
is(finish($endless), 128 + 15, 'a signal ends it');
is(places('signal'), '', 'both places are given up');
move_clock(0);

# a wait that times out
query(q{SELECT leaselock.try_lock('ends', 'holder', '1 d')});
($rc, $answer) = cli_json(qw(acquire ends --owner o --wait-seconds 0.3));
is("$rc|$answer->{state}", '1|timed_out', 'a short wait times out');

# repeated with its request id: it finds the outcome of the request
my $request = '00000000-0000-0000-0000-0000000009ff';
my @again = (qw(acquire again --owner endless --wait-seconds inf --json --request-uuid), $request);
query(q{SELECT leaselock.try_lock('again', 'holder', '1 d')});
$endless = start_cli(@again);
ok(waits('again', 'endless1'), 'an endless wait with a request id starts');
move_clock(600);
ok(waits('again', 'endless1 endless1'), 'it has two places');
$endless->{run}->signal('KILL');
finish($endless);
move_clock(1010);
is(places('again'), 'endless1', 'it is killed, and its first place times out');
$endless = start_cli(@again);
query(q{SELECT leaselock.release_lock('again', 'holder')});
is(finish($endless), 0, 'the repeated call gets the lock');
$answer = decode_json($endless->{out});
is("$answer->{request_id}|$answer->{depth}", '00000000-0000-0000-0000-000000000a00|1', 'the second place was granted');
is((cli(@again))[0], 0, 'another repetition succeeds');
is(query(q{SELECT depth FROM leaselock.lease_peek('again')}), '1', 'it finds the same ticket');
move_clock(0);

# the server stops and starts again
query(q{SELECT leaselock.try_lock('restart', 'holder', '1 d')});
$endless = start_cli(qw(acquire restart --owner endless --wait-seconds inf --json));
ok(waits('restart', 'endless1'), 'an endless wait starts');
$node->stop('immediate');
$node->start;
ok(wait_until(sub { places('restart') eq 'endless1' && query(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leaselock'}) eq '1' }),
	'after the restart it waits again');
query(q{SELECT leaselock.release_lock('restart', 'holder')});
is(finish($endless), 0, 'it gets the lock');

# ---------------------------------------------------------------------
# The status line
# ---------------------------------------------------------------------

SKIP:
{
	skip 'no terminal is available here', 4
	  if !eval { local $SIG{__WARN__} = sub { }; require IO::Pty; IO::Pty->new };
	my $owner = 'ip-10-0-12-34.eu-west-1.compute.internal/12345/0a1b2c3d';
	query(qq{SELECT leaselock.try_lock('billing-nightly-report', '$owner', '1 d')});
	my $wide = "\xF0\x9F\x94\x92" . "\xE6\xBC\xA2\xE5\xAD\x97" x 4;
	query(qq{SELECT leaselock.try_lock('$wide', 'holder', '1 d')});
	foreach (
		[ 80, 'inf', 'billing-nightly-report', qr/^waiting, position 1: "billing-nightly-report", held by "ip-10-0-12-34\.eu-w.*$/ ],
		[ 40, '60', 'billing-nightly-report', qr/^waiting up to (1 min|\d+ s), position 1: "bill.*$/ ],
		# each of these characters takes two columns
		[ 40, 'inf', $wide, qr/^waiting, position 1: "(?:[\xE0-\xFF][\x80-\xBF]+)+.*$/ ])
	{
		my ($columns, $wait, $name, $pattern) = @$_;
		my ($keys, $screen) = ('', '');
		my $pty = IO::Pty->new;
		my $run = IPC::Run::start([ 'sh', '-c', 'stty cols "$0"; exec leaselock "$@"', $columns, '-h', $node->host, '-p', $node->port,
				'-d', 'postgres', 'acquire', $name, qw(--owner o --wait-seconds), $wait ],
			'<pty<', \$keys, '>pty>', \$screen, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
		my $line = sub { return (split /\r\e\[K/, $screen)[-1] // '' };
		ok(wait_until(sub { $run->pump_nb; $line->() =~ $pattern }), "the status line is shown in $columns columns: $wait");
		my $shown = $line->();
		utf8::decode($shown);
		my $width = length($shown) + (() = $shown =~ /[^\x00-\x{2000}]/g);
		cmp_ok($width, '<', $columns, 'the status line fits');
		$run->signal('INT');
		$run->finish;
	}
}

# ---------------------------------------------------------------------
# status --watch on a terminal
# ---------------------------------------------------------------------

SKIP:
{
	skip 'no terminal is available here', 3
	  if !eval { local $SIG{__WARN__} = sub { }; require IO::Pty; IO::Pty->new };
	query(q{SELECT leaselock.try_lock('watched' || i, 'an owner with a long label', '1 d', 'w') FROM generate_series(1, 30) i});
	my ($keys, $screen) = ('', '');
	my $run = IPC::Run::start([ 'sh', '-c', 'stty cols 50 rows 12; exec leaselock "$@"', 'sh', '-h', $node->host, '-p', $node->port,
			qw(-d postgres status --watch --scope w --interval 60) ],
		'<pty<', \$keys, '>pty>', \$screen, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	ok(wait_until(sub { $run->pump_nb; $screen =~ /more\r?\n/ }), 'status --watch: hidden rows are announced');
	my @shown = split /\r?\n/, $screen =~ s/\A.*\e\[J//sr;
	is(join('|', map { length > 49 ? 'too long' : () } @shown), '', 'status --watch: no row wraps');
	is(@shown . '|' . $shown[-1], '11|... and 23 more', 'status --watch: the heading stays visible');
	$run->signal('INT');
	$run->finish;
	query(q{SELECT leaselock.release_lock('watched' || i, 'an owner with a long label', 'w') FROM generate_series(1, 30) i});
}

is_deeply([ internal_errors($node) ], [], 'no internal error');
$node->stop;

done_testing();
