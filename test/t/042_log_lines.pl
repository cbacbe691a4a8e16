# Lines in the server's log: one line for each takeover, break and refused
# commit.  Rolled-back work is not logged, and no text from a caller can forge
# a line.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('lines');
$node->safe_psql('postgres', q{
	CREATE EXTENSION leaselock;
	CREATE ROLE worker LOGIN;
	CREATE ROLE "odd ""role""" LOGIN;
	ALTER DATABASE postgres SET client_min_messages = log});

my $offset;

# lines(): the lines that the library has logged since the last call, without
# the prefix
sub lines
{
	my $log = slurp_file($node->logfile, $offset);

	$offset += length $log;
	return map { /LOG:  ((?:lease taken over|lease broken|stale commit refused):.*)/ ? $1 : () }
	  split /\n/, $log;
}

# at(SECONDS, SQL): the output of a session whose clock is ahead by SECONDS and
# which has the settings on
sub at
{
	my ($seconds, $sql, %options) = @_;
	return $node->safe_psql('postgres', qq{
		LOAD 'leaselock';
		SET leaselock.clock_offset = '$seconds s';
		} . join('', map { "SET leaselock.log_$_ = on;" } @{ $options{log} // [qw(takeovers breaks refusals)] }) .
		"$sql;", extra_params => $options{user} ? [ '-U', $options{user} ] : []);
}

sub take
{
	my ($name, $owner) = @_;
	return "SELECT fence FROM leaselock.lease_acquire('$name', '$owner', '60 s')";
}

$offset = -s $node->logfile;

# ---------------------------------------------------------------------
# Off
# ---------------------------------------------------------------------

at(0, take('off', 'a'), log => []);
at(61, take('off', 'b'), log => []);
at(61, "SELECT leaselock.lease_break('off', fence) FROM leaselock.lease_peek('off')", log => []);
is_deeply([ lines() ], [], 'off: nothing');

# ---------------------------------------------------------------------
# Takeovers
# ---------------------------------------------------------------------

my $old = $node->safe_psql('postgres', take('job', 'w-1'), extra_params => [ '-U', 'worker' ]);
my $new = at(63, take('job', 'w-2'));
my $me = $node->safe_psql('postgres', 'SELECT current_user');
my @lines = lines();
is(scalar(@lines), 1, 'takeover: one line is logged');
like($lines[0], qr/^lease taken over: lock "job" in scope "public" by owner "w-2" of role "\Q$me\E" with fence $new, from owner "w-1" of role "worker" with fence $old, which held it for 60000 ms and had lapsed for (\d+) ms$/,
	'takeover: the line names both owners and the times');
ok($lines[0] =~ /lapsed for (\d+) ms/ && $1 >= 3000 && $1 < 60000, 'takeover: the line tells how long ago the lease lapsed');

# a release, a promotion or a further ticket is not a takeover
at(63, "SELECT leaselock.lease_release_all('w-2'); " . take('job', 'w-3') . '; ' . take('job', 'w-3') . '; ' . take('job', 'w-4'));
is_deeply([ lines() ], [], 'takeover: a released or held lock is not logged');
# by a named hold, and by a waiter whose turn has come
at(130, "SELECT leaselock.try_lock('job', 'n', '5 s')");
like(join("\n", lines()), qr/^lease taken over: .* by owner "n" .* from owner "w-3" [^\n]*$/, 'takeover: a takeover by a named hold is logged');
at(130, "SELECT state FROM leaselock.lease_acquire('job', 'q', '60 s', '60 s')");
at(136, 'SELECT g.state FROM leaselock.lease_tickets t, leaselock.lease_get(t.ticket) g');
like(join("\n", lines()), qr/^lease taken over: .* by owner "q" .* from owner "n" .* held it for 5000 ms[^\n]*$/, 'takeover: a takeover by a waiter is logged');

# rolled back, entirely or to a savepoint
at(0, take('undone', 'a') . '; ' . take('kept', 'a'));
at(61, 'BEGIN; ' . take('undone', 'b') . '; ROLLBACK');
at(61, 'BEGIN; SAVEPOINT s; ' . take('undone', 'b') . '; ROLLBACK TO s; SAVEPOINT t; ' . take('kept', 'b') . '; RELEASE t; COMMIT');
like(join("\n", lines()), qr/^lease taken over: lock "kept" [^\n]*$/, 'takeover: a takeover that was rolled back is not logged');

# ---------------------------------------------------------------------
# Breaks
# ---------------------------------------------------------------------

my $fence = at(0, take('stuck', 's'));
at(0, "SELECT leaselock.lease_break('stuck', $fence + 1)");
is_deeply([ lines() ], [], 'break: a wrong fence logs nothing');
at(10, "SET application_name = 'console'; SELECT leaselock.lease_break('stuck', $fence)");
@lines = lines();
is(scalar(@lines), 1, 'break: one line is logged');
like($lines[0], qr/^lease broken: lock "stuck" in scope "public" of owner "s" of role "\Q$me\E" with fence $fence, which held it for (\d+) ms, by session role "\Q$me\E", application "console"$/,
	'break: the line names the owner and the session');
ok($lines[0] =~ /held it for (\d+) ms/ && $1 >= 10000 && $1 < 60000, 'break: the line tells how long the lock was held');
$node->safe_psql('postgres', "SELECT leaselock.lease_acquire('stranger', 's', scope => 'team')", extra_params => [ '-U', 'worker' ]);
at(0, qq{SELECT leaselock.lease_scope_create('team', '$me')});
like(join("\n", lines()), qr/^lease broken: lock "stranger" in scope "team" of owner "s" of role "worker" [^\n]*$/,
	'break: a break by registering a scope is logged');

# ---------------------------------------------------------------------
# Refused commits
# ---------------------------------------------------------------------

$node->safe_psql('postgres', q{CREATE TABLE doc (fence bigint); GRANT ALL ON doc TO PUBLIC;
	ALTER ROLE "odd ""role""" SET session_preload_libraries = 'leaselock';
	ALTER ROLE "odd ""role""" SET leaselock.log_refusals = on});
my $stalled = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'odd "role"' ]);
$stalled->query_safe($_) foreach '\set VERBOSITY sqlstate', q{SET application_name = 'batch "7"'},
  q{SELECT count(leaselock.lease_acquire('fenced', 'stalled'))};
$fence = at(0, q{SELECT fence FROM leaselock.lease_peek('fenced')});
outcome($stalled, 'BEGIN');
is(outcome($stalled, "INSERT INTO doc SELECT $fence FROM leaselock.fence_assert('fenced', $fence)"), '', 'refusal: the write itself succeeds');
$new = at(61, take('fenced', 'taker'), log => []);
is_deeply([ lines() ], [], 'refusal: nothing is logged before the COMMIT');
is(outcome($stalled, 'COMMIT'), 'LS001', 'refusal: the COMMIT is refused');
is_deeply([ lines() ], [ qq{stale commit refused: lock "fenced" in scope "public", fence $fence, by session role "odd \\"role\\"", application "batch \\"7\\""} ],
	'refusal: one line is logged, with the role and the application');
is(outcome($stalled, "SELECT leaselock.fence_check('fenced', $fence)"), 'f', 'refusal: fence_check returns false');
is(outcome($stalled, "SELECT leaselock.fence_assert('fenced', $fence)"), 'LS001', 'refusal: fence_assert raises an error');
is_deeply([ lines() ], [], 'refusal: neither counts as a refused commit');
$stalled->quit;

# ---------------------------------------------------------------------
# Names that imitate a log line
# ---------------------------------------------------------------------

my $name = 'x" in scope "y" by owner "z\\';
at(0, "SELECT count(leaselock.lease_acquire(\$n\$$name\$n\$, \$n\$%s %n \$\$ ${name}\$n\$))", log => []);
at(61, "SELECT count(leaselock.lease_acquire(\$n\$$name\$n\$, 'o'))");
@lines = lines();
is(scalar(@lines), 1, 'forged name: one line is logged');
like($lines[0], qr/^lease taken over: lock "x\\" in scope \\"y\\" by owner \\"z\\\\" in scope "public" by owner "o" .* from owner "%s %n \$\$ x\\" in scope \\"y\\" by owner \\"z\\\\" of role /,
	'forged name: names are quoted');

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');
$node->stop;

done_testing();
