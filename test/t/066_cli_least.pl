# leaselock run --at-least-seconds: the lock stays held for at least that long
# after its grant, however soon and in whatever way the command ends.
#
# One major: the program is the same for all of them.

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

# move_clock(MS): sets the server's clock, for later sessions
sub move_clock
{
	my ($ms) = @_;
	$node->safe_psql('postgres', "LOAD 'leaselock'; ALTER SYSTEM SET leaselock.clock_offset = $ms");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('leaselock.clock_offset', true) = '$ms'")
	  or die 'the clock does not move';
	return;
}

# the state of a lock: owner, depth, whole seconds from the grant to the
# expiry, whether lapsed, number of waiters, number of held tickets
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
	is($rc, $status, "$test: the exit status is passed on");
	is(lock($name), 'o|1|600|f|0|0', "$test: the lock is held until 600 s after its grant, without a ticket");
}

($rc, $out, $err) = cli(qw(run success -- true));
is($rc, 1, 'nobody else gets the lock');
like($err, qr/"success".*"o"/, 'the message names the owner');
# ten minutes are left for what happens in between, however slow the machine
is((cli(qw(run later --owner o --at-least-seconds 6000 -- true)))[0], 0, 'another command ends');
move_clock(5_400_000);
is((cli(qw(run later -- true)))[0], 1, 'the lock is still held shortly before the end');
move_clock(6_001_000);
is((cli(qw(run later -- true)))[0], 0, 'the lock is free one second after the end');
is(lock('later'), '', 'without the option the lock is free at the end');
move_clock(0);

# a generated owner and a scope have the same effect
is((cli(qw(run nobody --at-least-seconds 3000 --scope s --lease-seconds 5 -- true)))[0], 0,
	'the option works with a generated owner and a scope');
is($node->safe_psql('postgres', q{SELECT floor(extract(epoch FROM expires_at - granted_at)) FROM leaselock.lease_peek('nobody', 's')}),
	'3000', 'the hold may last longer than any lease');
is((cli(qw(run nobody --at-least-seconds 3000 --scope s -- true)))[0], 1, 'the hold keeps others out');
is((cli(qw(run nobody -- true)))[0], 0, 'the hold affects only that scope');

# another request waits
$run = start_cli(qw(run line --owner first --at-least-seconds 200 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/line");
ok(wait_until(sub { lock('line') =~ /^first/ }), 'a command runs');
my $waiter = start_cli(qw(acquire line --owner second --wait-seconds 300 --json));
ok(wait_until(sub { lock('line') =~ /^first\|1\|60\|f\|1/ }), 'another request waits for the lock');
append_to_file("$dir/line", '');
is(finish($run), 0, 'the command ends');
is(lock('line'), 'first|1|200|f|1|0', 'the lock stays held although a request waits');
is($node->safe_psql('postgres', q{SELECT leaselock.release_lock('line', 'first')}), 't', 'its owner can release it');
is(finish($waiter), 0, 'then the waiter gets the lock');

# ---------------------------------------------------------------------
# Shorter than the command, or after the lease has ended
# ---------------------------------------------------------------------

is((cli(qw(run short --at-least-seconds 0 -- true)))[0], 0, 'run accepts zero seconds');
is(lock('short'), '', 'zero seconds leave the lock free');

# the command takes 20 s of the server's time
$run = start_cli(qw(run short --owner o --at-least-seconds 10 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/short");
ok(wait_until(sub { lock('short') =~ /^o/ }), 'a command that takes longer runs');
move_clock(20_000);
append_to_file("$dir/short", '');
is(finish($run), 0, 'the command ends');
is(lock('short'), '', 'the lock is free afterwards');
$run = start_cli(qw(run long --owner o --at-least-seconds 50 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/long");
ok(wait_until(sub { lock('long') =~ /^o/ }), 'a command that takes part of the time runs');
move_clock(50_000);
append_to_file("$dir/long", '');
is(finish($run), 0, 'the command ends');
is(lock('long'), 'o|1|50|f|0|0', 'the time counts from the grant');
move_clock(0);

$run = start_cli(qw(run broken --owner o --at-least-seconds 600 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done', "$dir/broken");
ok(wait_until(sub { lock('broken') =~ /^o/ }), 'a command runs under a lease');
$node->safe_psql('postgres', q{SELECT leaselock.lease_break('broken', fence) FROM leaselock.lease_peek('broken')});
append_to_file("$dir/broken", '');
is(finish($run), 2, 'a break ends it');
is(lock('broken'), '', 'the lock is not acquired again');
like($run->{err}, qr/was broken/, 'the program reports the break');

# ---------------------------------------------------------------------
# Where the lock cannot be kept
# ---------------------------------------------------------------------

foreach (
	[ 'an invalid number', [qw(run n --at-least-seconds 1h -- true)], qr/--at-least-seconds .*from 0 to 3153600000.*"1h"/ ],
	[ 'a negative number', [qw(run n --at-least-seconds -1 -- true)], qr/--at-least-seconds .*"-1"/ ],
	[ 'a subcommand other than run', [qw(acquire n --owner o --at-least-seconds 1)], qr/acquire does not take --at-least-seconds/ ])
{
	my ($test, $arguments, $message) = @$_;

	($rc, $out, $err) = cli(@$arguments);
	is("$rc|$out", '3|', "usage: $test");
	like($err, $message, "usage: $test: the message names the error");
}

$node->safe_psql('postgres', q{LOAD 'leaselock'; ALTER SYSTEM SET leaselock.max_ttl = '100 s'});
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT current_setting('leaselock.max_ttl', true) = '100 s'}), 'max_ttl limits named holds');
($rc, $out, $err) = cli(qw(run limit --owner o --at-least-seconds 200 -- sh -c), 'exit 5');
is($rc, 5, 'a hold that the server refuses: the exit status is passed on');
like($err, qr/could not keep "limit" taken; its lease will run out by itself: .*"ttl".*22023/, 'the program reports it');
is(lock('limit'), 'o|1|60|f|0|1', 'the ticket keeps its lease');

$node->safe_psql('postgres', q{LOAD 'leaselock'; ALTER SYSTEM RESET leaselock.max_ttl});
$node->reload;

$run = start_cli(qw(run gone --owner o --at-least-seconds 50 -- sh -c), 'until [ -e "$0" ]; do sleep 0.05; done; exit 6', "$dir/gone");
ok(wait_until(sub { lock('gone') =~ /^o/ }), 'a command runs before the server stops');
$node->stop('immediate');
append_to_file("$dir/gone", '');
is(finish($run), 6, 'the server has stopped: the exit status is passed on');
like($run->{err}, qr/could not keep "gone" taken/, 'the program reports it');
$node->start;
is(lock('gone'), 'o|1|60|f|0|1', 'the ticket keeps its lease');

is_deeply([ internal_errors($node) ], [], 'no internal error');
$node->stop;

done_testing();
