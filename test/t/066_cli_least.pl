# leaselock run --at-least-seconds: the lock stays taken for so long after its grant,
# however soon the command ends, and however.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $node = new_node('least');
use_server($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($rc, $out, $err, $run);

# move_clock(MS): the server's, for sessions to come
sub move_clock
{
	my ($ms) = @_;
	$node->safe_psql('postgres', "LOAD 'leaselock'; ALTER SYSTEM SET leaselock.clock_offset = $ms");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('leaselock.clock_offset', true) = '$ms'")
	  or die 'the clock does not move';
	return;
}

# what is known of a lock: who has it, by how many leases, until how long after the
# grant, in whole seconds, how many wait, and how many tickets there are
sub lock
{
	my ($name) = @_;
	return $node->safe_psql('postgres', qq{
		SELECT owner, depth, floor(extract(epoch FROM expires_at - granted_at)), lapsed, waiters,
			(SELECT count(*) FROM leaselock.lease_tickets t WHERE t.name = s.name AND state = 'held')
		FROM leaselock.lease_peek('$name') s});
}

# ---------------------------------------------------------------------
# Longer than the command
# ---------------------------------------------------------------------

foreach (
	[ 'success', 0, qw(true) ],
	[ 'failure', 7, 'sh', '-c', 'exit 7' ],
	[ 'a signal', 128 + 15, 'sh', '-c', 'kill $$' ],
	[ 'no command', 127, 'no-such-command' ])
{
	my ($test, $status, @command) = @$_;
	my $name = $test =~ tr/ /-/r;

	($rc) = cli('run', $name, qw(--owner o --at-least-seconds 600 --), @command);
	is($rc, $status, "$test: is passed on");
	is(lock($name), 'o|1|600|f|0|0', "$test: the lock is taken until 600 s after its grant, by no ticket");
}

($rc, $out, $err) = cli(qw(run success -- true));
is($rc, 1, 'nobody else gets it');
like($err, qr/"success".*"o"/, 'and is told whose it is');
move_clock(599_000);
is((cli(qw(run success -- true)))[0], 1, 'nor a second before the end');
move_clock(601_000);
is((cli(qw(run success -- true)))[0], 0, 'but behind it');
is(lock('success'), '', 'without the option the lock is free at the end');
move_clock(0);

# those who come later find the same, whatever they bring
is((cli(qw(run nobody --at-least-seconds 3000 --scope s --lease-seconds 5 -- true)))[0], 0,
	'an owner that was made up, a scope');
is($node->safe_psql('postgres', q{SELECT floor(extract(epoch FROM expires_at - granted_at)) FROM leaselock.lease_peek('nobody', 's')}),
	'3000', 'longer than any lease');
is((cli(qw(run nobody --at-least-seconds 3000 --scope s -- true)))[0], 1, 'keeps others out');
is((cli(qw(run nobody -- true)))[0], 0, 'of that scope alone');

# somebody waits
$run = start_cli(qw(run line --owner first --at-least-seconds 200 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/line");
ok(wait_until(sub { lock('line') =~ /^first/ }), 'a command runs');
my $waiter = start_cli(qw(acquire line --owner second --wait-seconds 300 --json));
ok(wait_until(sub { lock('line') =~ /^first\|1\|60\|f\|1/ }), 'and somebody waits for the lock');
append_to_file("$dir/line", '');
is(finish($run), 0, 'the command ends');
is(lock('line'), 'first|1|200|f|1|0', 'the lock stays taken all the same');
is($node->safe_psql('postgres', q{SELECT leaselock.release_lock('line', 'first')}), 't', 'until it is given back');
is(finish($waiter), 0, 'then who waits has it');

# ---------------------------------------------------------------------
# Shorter, or over
# ---------------------------------------------------------------------

is((cli(qw(run short --at-least-seconds 0 -- true)))[0], 0, 'no time at all');
is(lock('short'), '', 'leaves the lock free');

# the command takes 20 s of the server's time
$run = start_cli(qw(run short --owner o --at-least-seconds 10 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/short");
ok(wait_until(sub { lock('short') =~ /^o/ }), 'a command that lasts longer');
move_clock(20_000);
append_to_file("$dir/short", '');
is(finish($run), 0, 'ends');
is(lock('short'), '', 'and the lock is free');
$run = start_cli(qw(run long --owner o --at-least-seconds 50 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/long");
ok(wait_until(sub { lock('long') =~ /^o/ }), 'a command that takes a part of it');
move_clock(50_000);
append_to_file("$dir/long", '');
is(finish($run), 0, 'ends');
is(lock('long'), 'o|1|50|f|0|0', 'what is left counts from the grant');
move_clock(0);

$run = start_cli(qw(run broken --owner o --at-least-seconds 600 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/broken");
ok(wait_until(sub { lock('broken') =~ /^o/ }), 'a lease');
$node->safe_psql('postgres', q{SELECT leaselock.lease_break('broken', fence) FROM leaselock.lease_peek('broken')});
append_to_file("$dir/broken", '');
is(finish($run), 2, 'that is broken');
is(lock('broken'), '', 'is not taken again');
like($run->{err}, qr/was broken/, 'which is said');

# ---------------------------------------------------------------------
# Where it cannot be
# ---------------------------------------------------------------------

foreach (
	[ 'a number that is none', [qw(run n --at-least-seconds 1h -- true)], qr/--at-least-seconds .*from 0 to 3153600000.*"1h"/ ],
	[ 'a negative one', [qw(run n --at-least-seconds -1 -- true)], qr/--at-least-seconds .*"-1"/ ],
	[ 'a subcommand that does not end', [qw(acquire n --owner o --at-least-seconds 1)], qr/acquire does not take --at-least-seconds/ ])
{
	my ($test, $arguments, $message) = @$_;

	($rc, $out, $err) = cli(@$arguments);
	is("$rc|$out", '3|', "usage: $test");
	like($err, $message, "usage: $test: the message says what");
}

$node->safe_psql('postgres', q{LOAD 'leaselock'; ALTER SYSTEM SET leaselock.max_ttl = '100 s'});
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT current_setting('leaselock.max_ttl', true) = '100 s'}), 'a limit for named holds');
($rc, $out, $err) = cli(qw(run limit --owner o --at-least-seconds 200 -- sh -c), 'exit 5');
is($rc, 5, 'a hold that the server refuses: the exit status is passed on');
like($err, qr/could not keep "limit" taken; its lease will run out by itself: .*"ttl".*22023/, 'it is said');
is(lock('limit'), 'o|1|60|f|0|1', 'and the ticket keeps its lease');

$node->safe_psql('postgres', q{LOAD 'leaselock'; ALTER SYSTEM RESET leaselock.max_ttl});
$node->reload;

$run = start_cli(qw(run gone --owner o --at-least-seconds 50 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done; exit 6', "$dir/gone");
ok(wait_until(sub { lock('gone') =~ /^o/ }), 'a server');
$node->stop('immediate');
append_to_file("$dir/gone", '');
is(finish($run), 6, 'that is gone: the exit status is passed on');
like($run->{err}, qr/could not keep "gone" taken/, 'it is said');
$node->start;
is(lock('gone'), 'o|1|60|f|0|1', 'and the ticket keeps its lease');

is_deeply([ internal_errors($node) ], [], 'no internal error');
$node->stop;

done_testing();
