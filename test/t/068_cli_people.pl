# The program leaselock for people: what it says and shows, and waits without end.

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
# time is moved by hand, and who is silent meanwhile is no dead waiter
my $node = new_node('people', "leaselock.max_wait = '100 s'\nleaselock.waiter_timeout = '1 h'\n");
use_server($node);
# what connections are told apart by
delete $ENV{PGAPPNAME};
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my ($rc, $out, $err, $answer);

sub query { return $node->safe_psql('postgres', $_[0]) }

# move_clock(SECONDS): the server's, for sessions and statements to come
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
# Where something is missing
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
	like($err, qr/\(\w{5}\)\n.*CREATE EXTENSION leaselock\n\z/, "@$_[0]: what to do about that");
}

my $nowhere = PostgreSQL::Test::Utils::tempdir_short();
($rc, $out, $err) = cli('-h', $nowhere, 'status');
like($err, qr/\Aleaselock: connection to server .*: No such file or directory\n  Is the server running .*\?\n\z/,
	"libpq's lines are kept apart");
($rc, $out, $err) = cli('-h', "$nowhere,$nowhere", qw(acquire x --owner y --wait-seconds 0.1));
like($err, qr/\Aleaselock: trying again: connection to server .*\n  Is .*\n  connection to server .*\n  Is .*\n/,
	'also behind words of our own, and for several hosts');

# ---------------------------------------------------------------------
# What an answer leaves open
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
	is((cli(@$arguments, '--json'))[2], '', "@$arguments[0]: nothing of that beside JSON")
	  if $arguments->[0] eq 'status';
	# behind "--" it would be the command's
	splice @$arguments, 1, 0, '--quiet';
	is((cli(@$arguments))[2], $arguments->[0] eq 'break' ? $err : '', "@$arguments: nothing")
}

# an open transaction: nobody is named, for it may come to nothing
my $open = $node->background_psql('postgres', on_error_stop => 0);
$open->query_safe(q{BEGIN; SELECT FROM leaselock.lease_acquire('open', 'a')});
foreach my $command ([qw(acquire open --owner b)], [qw(run open -- true)])
{
	($rc, $out, $err) = cli(@$command);
	is("$rc|$err", qq{1|leaselock: "open" is in use: a transaction that has not ended is changing it, or others wait for it\n},
		"@$command[0]: a lock that an open transaction has acquired");
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

# names(ARGUMENTS): of the locks that status shows, with their states
sub names
{
	my ($text) = (cli('status', @_))[1];
	my ($heading, @rows) = split /\n/, $text;
	my $at = index $heading, ' state ';

	return join ' ', map { my ($name, $state) = ((split ' ')[1], (split ' ', substr $_, $at)[0]); "$name:$state" } @rows;
}

is(names(), 'live:held wanted:lapsed other:held', 'status: what is live, or waited for');
is(names('--all'), 'lapsed:lapsed live:held wanted:lapsed other:held', 'status: lapsed ones with --all');
is((cli(qw(status lapsed)))[0], 2, 'status of a lock: nobody holds it any more');
is(names(qw(lapsed --all)), 'lapsed:lapsed', 'status of a lock: but it has not been taken over');
is((cli(qw(status lapsed --all)))[0], 0, 'status of a lock: which is an answer');
is(join(' ', map { decode_json($_)->{name} } split /\n/, (cli(qw(status --json)))[1]), 'live wanted other', 'status: JSON likewise');
is(join(' ', map { decode_json($_)->{name} } split /\n/, (cli(qw(status --json --all)))[1]), 'lapsed live wanted other',
	'status: JSON with all');

($rc, $out) = cli(qw(status live));
like($out, qr/ 9 d 23 h +held$/m, 'status: a length of time as a person reads it');
unlike($out, qr/_ms/, 'status: no milliseconds');
unlike($out, qr/ $/m, 'status: no blanks at the end');
($rc, $answer) = cli_json(qw(status live));
cmp_ok($answer->{remaining_ms}, '>', 863_000_000, 'status: milliseconds in JSON');
($rc, $out) = cli(qw(status --scope s));
like($out, qr/note\n.* a note\n\z/, 'status: notes');

# lengths(MS...): how leases of so many milliseconds are shown, by a ticket
foreach (
	[ 5_000, '5 s' ], [ 7_500, '7.5 s' ], [ 59_000, '59 s' ], [ 60_000, '1 min' ], [ 61_999, '1 min 1 s' ],
	[ 299_000, '4 min 59 s' ], [ 300_000, '5 min' ])
{
	my ($ms, $shown) = @$_;
	($rc, $out) = cli(qw(acquire lengths --owner o --lease-seconds), $ms / 1000);
	like($out, qr/^remaining +\Q$shown\E$/m, "acquire: $ms ms are $shown");
	like($out, qr/^expires_at +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S{0,6}$/m, 'acquire: until when, in seconds') if $ms == 5_000;
	unlike($out, qr/_ms/, 'acquire: no milliseconds') if $ms == 5_000;
}

# ---------------------------------------------------------------------
# status --queue
# ---------------------------------------------------------------------

($rc, $out) = cli(qw(status --queue));
is($rc, 0, 'status --queue: success');
my ($heading, @rows) = split /\n/, $out;
is($heading =~ s/ +/ /gr, 'scope name owner role state position age remaining note', 'status --queue: what it shows');
is(join(' ', map { join ':', (split ' ')[ 1, 2, 4 ] } grep { !/lengths/ } @rows),
	'live:d:waiting live:e:waiting wanted:g:waiting other:f:held', 'status --queue: all tickets, in their order');
($rc, $out) = cli(qw(status live --queue));
like($out, qr/ d +\S+ +waiting +1 .* the next one\n.* e +\S+ +waiting +2 /, 'status --queue: of one lock, with places and notes');
($rc, $out) = cli(qw(status --queue --scope s));
is(scalar(split /\n/, $out), 2, 'status --queue: of a scope');
is((cli(qw(status lapsed --queue)))[0], 2, 'status --queue: of a lock without tickets');
my @answers = map { decode_json($_) } split /\n/, (cli(qw(status live --queue --json)))[1];
is(join(' ', map { "$_->{owner}:$_->{position}:" . length $_->{ticket} } @answers), 'd:1:36 e:2:36',
	'status --queue: JSON, with the tickets');
cmp_ok($answers[0]{remaining_ms}, '>', 90_000, 'status --queue: and milliseconds');

query('SELECT leaselock.lease_release_all(owner) FROM leaselock.lease_tickets');
move_clock(0);

# ---------------------------------------------------------------------
# Waits that are longer than the server's
# ---------------------------------------------------------------------

# free locks first: nothing is refused, whatever the bound is
foreach ('101', '200', '301', '86400', 'inf')
{
	($rc, $answer) = cli_json(qw(acquire free --owner), "o$_", '--wait-seconds', $_);
	is("$rc|$answer->{state}", '0|held', "a wait of $_");
	query(qq{SELECT leaselock.lease_release_all('o$_')});
}
foreach my $bound ('1500ms', '7min', '2d')
{
	query("LOAD 'leaselock'; ALTER SYSTEM SET leaselock.max_wait = '$bound'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('leaselock.max_wait', true) = '$bound'") or die;
	is((cli(qw(acquire free --owner o --wait-seconds inf)))[0], 0, "the bound is $bound");
}
query("LOAD 'leaselock'; ALTER SYSTEM SET leaselock.max_wait = '100s'");
$node->reload;
$node->poll_query_until('postgres', "SELECT current_setting('leaselock.max_wait', true) = '100s'") or die;
is(query(q{SELECT max(depth) FROM leaselock.lease_peek('free')}), '3', 'each time a ticket');

# places(NAME): who waits, in the order of the tickets: owner and position
sub places
{
	my ($name) = @_;
	return query(qq{SELECT string_agg(owner || position, ' ' ORDER BY requested_at) FROM leaselock.lease_tickets
		WHERE name = '$name' AND state = 'waiting'});
}

# waits(NAME, PLACES): until they are so
sub waits
{
	my ($name, $places) = @_;
	return wait_until(sub { places($name) eq $places });
}

# One waits for ever; others come before and after, and wait as long as they may.
query(q{SELECT leaselock.try_lock('line', 'holder', '1 d')});
query(q{SELECT leaselock.lease_acquire('line', 'before', wait => '100 s')});
my $endless = start_cli(qw(acquire line --owner endless --wait-seconds inf --note patient --json));
ok(waits('line', 'before1 endless2'), 'a wait without end');
move_clock(20);
query(q{SELECT leaselock.lease_acquire('line', 'after', wait => '100 s')});
is(places('line'), 'before1 endless2 after3', 'somebody comes after that');
move_clock(60);
ok(waits('line', 'before1 endless2 after3 endless2'), 'when half of it is over, it asks for a further place, and keeps the first');
query(q{SELECT leaselock.lease_acquire('line', 'late', wait => '100 s')});
move_clock(101);
ok(waits('line', 'after1 endless2 late3'), 'when the first is over, it has the second: behind who came before that, before who came after');
move_clock(110);
ok(waits('line', 'after1 endless2 late3 endless2'), 'and asks for the next');
move_clock(130);
is(places('line'), 'endless1 late2 endless1', 'the others end');
move_clock(170);
ok(waits('line', 'endless1'), 'it does not');
query(q{SELECT leaselock.release_lock('line', 'holder')});
is(finish($endless), 0, 'until it is held');
$answer = decode_json($endless->{out});
is("$answer->{state}|$answer->{depth}|$answer->{note}", 'held|1|patient', 'by one ticket');
is(query(q{SELECT string_agg(state, ' ') FROM leaselock.lease_tickets WHERE name = 'line'}), 'held', 'and nothing waits any more');
is($endless->{err}, '', 'nothing is said of that');
move_clock(0);

# held while there are two places
query(q{SELECT leaselock.try_lock('two', 'holder', '1 d')});
$endless = start_cli(qw(run two --owner endless --wait-seconds 1000 -- leaselock status two --json));
ok(waits('two', 'endless1'), 'a long wait');
move_clock(60);
ok(waits('two', 'endless1 endless1'), 'with two places');
query(q{SELECT leaselock.release_lock('two', 'holder')});
is(finish($endless), 0, 'is over');
$answer = decode_json($endless->{out});
is("$answer->{owner}|$answer->{depth}|$answer->{waiters}", 'endless|1|0', 'the other place has been left');
move_clock(0);

# ended by a signal
query(q{SELECT leaselock.try_lock('signal', 'holder', '1 d')});
$endless = start_cli(qw(acquire signal --owner endless --wait-seconds inf));
ok(waits('signal', 'endless1'), 'a wait without end');
move_clock(60);
ok(waits('signal', 'endless1 endless1'), 'with two places');
$endless->{run}->signal('TERM');
is(finish($endless), 128 + 15, 'ends by a signal');
is(places('signal'), '', 'and both are given back');
move_clock(0);

# its own end
query(q{SELECT leaselock.try_lock('ends', 'holder', '1 d')});
($rc, $answer) = cli_json(qw(acquire ends --owner o --wait-seconds 0.3));
is("$rc|$answer->{state}", '1|timed_out', 'a short wait');

# repeated by its request: it finds what came of that
my $request = '00000000-0000-0000-0000-0000000009ff';
my @again = (qw(acquire again --owner endless --wait-seconds inf --json --request-uuid), $request);
query(q{SELECT leaselock.try_lock('again', 'holder', '1 d')});
$endless = start_cli(@again);
ok(waits('again', 'endless1'), 'a wait without end, by a request');
move_clock(60);
ok(waits('again', 'endless1 endless1'), 'with two places');
$endless->{run}->signal('KILL');
finish($endless);
move_clock(101);
is(places('again'), 'endless1', 'is killed, and its first place is over');
$endless = start_cli(@again);
query(q{SELECT leaselock.release_lock('again', 'holder')});
is(finish($endless), 0, 'repeated, it is held');
$answer = decode_json($endless->{out});
is("$answer->{request_id}|$answer->{depth}", '00000000-0000-0000-0000-000000000a00|1', 'by the second place');
is((cli(@again))[0], 0, 'repeated once more');
is(query(q{SELECT depth FROM leaselock.lease_peek('again')}), '1', 'it is the same');
move_clock(0);

# the server goes and comes back
query(q{SELECT leaselock.try_lock('restart', 'holder', '1 d')});
$endless = start_cli(qw(acquire restart --owner endless --wait-seconds inf --json));
ok(waits('restart', 'endless1'), 'a wait without end');
$node->stop('immediate');
$node->start;
ok(wait_until(sub { places('restart') eq 'endless1' && query(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leaselock'}) eq '1' }),
	'the server was away');
query(q{SELECT leaselock.release_lock('restart', 'holder')});
is(finish($endless), 0, 'it is held');

# ---------------------------------------------------------------------
# The status line
# ---------------------------------------------------------------------

SKIP:
{
	skip 'no terminal is to be had here', 4
	  if !eval { local $SIG{__WARN__} = sub { }; require IO::Pty; IO::Pty->new };
	my $owner = 'ip-10-0-12-34.eu-west-1.compute.internal/12345/0a1b2c3d';
	query(qq{SELECT leaselock.try_lock('billing-nightly-report', '$owner', '1 d')});
	my $wide = "\xF0\x9F\x94\x92" . "\xE6\xBC\xA2\xE5\xAD\x97" x 4;
	query(qq{SELECT leaselock.try_lock('$wide', 'holder', '1 d')});
	foreach (
		[ 80, 'inf', 'billing-nightly-report', qr/^waiting, position 1: "billing-nightly-report", held by "ip-10-0-12-34\.eu-w.*$/ ],
		[ 40, '60', 'billing-nightly-report', qr/^waiting up to (1 min|\d+ s), position 1: "bill.*$/ ],
		# each of these takes two columns
		[ 40, 'inf', $wide, qr/^waiting, position 1: "(?:[\xE0-\xFF][\x80-\xBF]+)+.*$/ ])
	{
		my ($columns, $wait, $name, $pattern) = @$_;
		my ($keys, $screen) = ('', '');
		my $pty = IO::Pty->new;
		my $run = IPC::Run::start([ 'sh', '-c', 'stty cols "$0"; exec leaselock "$@"', $columns, '-h', $node->host, '-p', $node->port,
				'-d', 'postgres', 'acquire', $name, qw(--owner o --wait-seconds), $wait ],
			'<pty<', \$keys, '>pty>', \$screen, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
		my $line = sub { return (split /\r\e\[K/, $screen)[-1] // '' };
		ok(wait_until(sub { $run->pump_nb; $line->() =~ $pattern }), "the status line, in $columns columns: $wait");
		my $shown = $line->();
		utf8::decode($shown);
		my $width = length($shown) + (() = $shown =~ /[^\x00-\x{2000}]/g);
		cmp_ok($width, '<', $columns, 'and no more than fits');
		$run->signal('INT');
		$run->finish;
	}
}

# ---------------------------------------------------------------------
# status --watch on a terminal
# ---------------------------------------------------------------------

SKIP:
{
	skip 'no terminal is to be had here', 3
	  if !eval { local $SIG{__WARN__} = sub { }; require IO::Pty; IO::Pty->new };
	query(q{SELECT leaselock.try_lock('watched' || i, 'an owner with a long label', '1 d', 'w') FROM generate_series(1, 30) i});
	my ($keys, $screen) = ('', '');
	my $run = IPC::Run::start([ 'sh', '-c', 'stty cols 50 rows 12; exec leaselock "$@"', 'sh', '-h', $node->host, '-p', $node->port,
			qw(-d postgres status --watch --scope w --interval 60) ],
		'<pty<', \$keys, '>pty>', \$screen, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	ok(wait_until(sub { $run->pump_nb; $screen =~ /more\r?\n/ }), 'status --watch: what the terminal has no room for');
	my @shown = split /\r?\n/, $screen =~ s/\A.*\e\[J//sr;
	is(join('|', map { length > 49 ? 'too long' : () } @shown), '', 'status --watch: no row wraps');
	is(@shown . '|' . $shown[-1], '11|... and 23 more', 'status --watch: the heading stays in sight');
	$run->signal('INT');
	$run->finish;
	query(q{SELECT leaselock.release_lock('watched' || i, 'an owner with a long label', 'w') FROM generate_series(1, 30) i});
}

# ---------------------------------------------------------------------
# What the README tells people to write
# ---------------------------------------------------------------------

my $readme = slurp_file("$FindBin::RealBin/../../README.md");

my $home = PostgreSQL::Test::Utils::tempdir();

is_deeply([ internal_errors($node) ], [], 'no internal error');
$node->stop;

done_testing();
