# PREPARE TRANSACTION verifies the fences that the transaction has checked.
# From then on a taker waits for the end of the transaction, also across a
# restart of the server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('two_phase', 'max_prepared_transactions = 10');
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE TABLE written (lock text, fence bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON written FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'lock');
});

sub value
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# The same after the lease has run out
sub later
{
	my ($sql) = @_;
	return value("LOAD 'leaselock'; SET leaselock.clock_offset = '61 s'; $sql");
}

# A grant, and a transaction under it; returns the ticket and the fence
sub acquire
{
	my ($name) = @_;
	return split /\|/, value(
		"SELECT ticket, fence FROM leaselock.lease_acquire('$name', 'holder')");
}

# Prepares a transaction that has written a row under a lock's new grant
sub prepare
{
	my ($name) = @_;
	my ($ticket, $fence) = acquire($name);

	value(qq{
		BEGIN;
		INSERT INTO written VALUES ('$name', $fence);
		PREPARE TRANSACTION '$name'});
	return ($ticket, $fence);
}

sub written
{
	my ($name) = @_;
	return value("SELECT count(*) FROM written WHERE lock = '$name'");
}

my $main = session($node);
my $taker = session($node);

# ---------------------------------------------------------------------
# What PREPARE TRANSACTION refuses
# ---------------------------------------------------------------------

my $takeover = q{SELECT state FROM leaselock.lease_acquire('%s', 'taker')};
my %ended = (
	'superseded' => sub { later(sprintf $takeover, $_[0]) },
	'released' => sub { value("SELECT state FROM leaselock.lease_release('$_[1]')") },
	'broken' => sub { value("SELECT leaselock.lease_break('$_[0]', $_[2])") },
	'pruned' => sub {
		value(q{LOAD 'leaselock'; SET leaselock.clock_offset = '2 h';
			SELECT leaselock.lease_prune('0 s') > 0});
	},
	'dropped and made again' => sub {
		value(q{SET client_min_messages = warning; DROP EXTENSION leaselock CASCADE;
			CREATE EXTENSION leaselock; SELECT true})
	});

foreach my $end (sort { ($a =~ /^dropped/) <=> ($b =~ /^dropped/) || $a cmp $b }
	keys %ended)
{
	foreach my $check ('fence_check', 'guard')
	{
		next if $check eq 'guard' && $end =~ /^dropped/;
		my $name = "$end $check";
		my ($ticket, $fence) = acquire($name);

		outcome($main, 'BEGIN');
		is( outcome($main, $check eq 'guard'
				? "INSERT INTO written VALUES ('$name', $fence) RETURNING true"
				: "SELECT leaselock.fence_check('$name', $fence)"),
			't', "$name: the check passes");
		like($ended{$end}->($name, $ticket, $fence),
			qr/^(held|released|t)$/, "$name: the grant ends");
		is(outcome($main, "PREPARE TRANSACTION '$name'"),
			'LS001', "$name: PREPARE TRANSACTION fails");
		is(outcome($main, 'SELECT 1'), '1', "$name: the transaction is over");
		is(value('SELECT count(*) FROM pg_prepared_xacts'),
			'0', "$name: nothing is prepared");
		is(written($name), '0', "$name: nothing is written");
	}
}
value(q{CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON written FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('columns', 'fence', 'lock')});

# a lapse alone does not make it fail
my ($ticket, $fence) = acquire('lapsed');
outcome($main, q{LOAD 'leaselock'; BEGIN});
is(outcome($main, "SELECT leaselock.fence_check('lapsed', $fence)"),
	't', 'lapsed: the check passes');
outcome($main, q{SET LOCAL leaselock.clock_offset = '61 s'});
is(later("SELECT state FROM leaselock.lease_get('$ticket')"),
	'expired', 'lapsed: the lapse is recorded');
is(outcome($main, q{PREPARE TRANSACTION 'lapsed'}),
	'', 'lapsed: PREPARE TRANSACTION succeeds');
is(outcome($main, q{COMMIT PREPARED 'lapsed'}), '', 'lapsed: COMMIT PREPARED succeeds');

# leases that the transaction changed
foreach my $change (
	q{SELECT state FROM leaselock.lease_acquire('changed', 'worker')},
	q{SELECT leaselock.try_lock('changed too', 'worker', '1 h') > 0},
	"SELECT state FROM leaselock.lease_release('$ticket')",
	q{SELECT leaselock.lease_release_all('nobody')},
	q{SELECT leaselock.lease_prune()})
{
	outcome($main, 'BEGIN');
	my $answer = outcome($main, $change);
	my $changed = outcome($main, 'SELECT pg_current_xact_id_if_assigned() IS NOT NULL');
	is( outcome($main, q{PREPARE TRANSACTION 'changed'}),
		$changed eq 't' ? '0A000' : '',
		"$change: " . ($changed eq 't' ? 'refused' : 'nothing changed, prepared'));
	outcome($main, q{ROLLBACK PREPARED 'changed'}) if $changed ne 't';
}
outcome($main, 'BEGIN');
outcome($main, 'SAVEPOINT s');
is(outcome($main, q{SELECT state FROM leaselock.lease_acquire('undone', 'worker')}),
	'held', 'a lock is acquired in a savepoint');
outcome($main, 'ROLLBACK TO s');
is(outcome($main, q{PREPARE TRANSACTION 'undone'}),
	'', 'rolled back with its savepoint: prepared');
is(outcome($main, q{ROLLBACK PREPARED 'undone'}), '', 'the prepared transaction is rolled back');
outcome($main, 'BEGIN; SAVEPOINT a; SAVEPOINT s');
is(outcome($main, q{SELECT state FROM leaselock.lease_acquire('undone', 'worker')}),
	'held', 'a lock is acquired in a nested savepoint');
outcome($main, 'RELEASE s; ROLLBACK TO a');
is(outcome($main, q{PREPARE TRANSACTION 'undone'}),
	'', 'rolled back with the outer savepoint: prepared');
is(outcome($main, q{ROLLBACK PREPARED 'undone'}), '', 'the prepared transaction is rolled back');
outcome($main, 'BEGIN; SAVEPOINT a; SAVEPOINT s');
is(outcome($main, q{SELECT state FROM leaselock.lease_acquire('undone', 'worker')}),
	'held', 'a lock is acquired in a nested savepoint');
outcome($main, 'RELEASE s');
is(outcome($main, q{PREPARE TRANSACTION 'undone'}),
	'0A000', 'the nested savepoint is released: refused');

# a transaction-wide snapshot
($ticket, $fence) = acquire('serializable');
outcome($main, 'BEGIN ISOLATION LEVEL SERIALIZABLE');
outcome($main, "INSERT INTO written VALUES ('serializable', $fence)");
value("SELECT FROM leaselock.lease_renew('$ticket')");
is(outcome($main, q{PREPARE TRANSACTION 'serializable'}),
	'', 'serializable, renewed meanwhile: prepared');
is(outcome($main, q{COMMIT PREPARED 'serializable'}), '', 'serializable, renewed: committed');

# ---------------------------------------------------------------------
# Prepared: a taker waits for its end, the holder does not
# ---------------------------------------------------------------------

# What is true while a transaction is prepared whose lease has run out
sub check_prepared
{
	my ($name, $fence, $what) = @_;

	my $start = time;
	is(later(sprintf $takeover, $name), 'contended', "$what: no takeover");
	is( later("SELECT leaselock.try_lock('$name', 'taker', '1 h') IS NULL"),
		't', "$what: no takeover by a named hold");
	# generous, for a busy machine; the connections count as well
	cmp_ok(time - $start, '<', 1.5, "$what: both answers come at once");
	is( later("SELECT fence, owner, lapsed FROM leaselock.lease_peek('$name')"),
		"$fence|holder|t", "$what: the lapsed grant is still there");
	return;
}

foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $name = lc $end;
	($ticket, $fence) = prepare($name);

	# the holder continues: renews, checks, commits, acquires once more
	is(value("SELECT state FROM leaselock.lease_renew('$ticket')"),
		'held', "$name: the holder renews");
	is( value("BEGIN; SELECT leaselock.fence_check('$name', $fence); COMMIT"),
		't', "$name: the holder commits under the fence");
	my $again = value(
		"SELECT ticket FROM leaselock.lease_acquire('$name', 'holder')");
	is(value("SELECT depth FROM leaselock.lease_get('$again')"),
		'2', "$name: the holder acquires again");
	is(value("SELECT state FROM leaselock.lease_release('$again')"),
		'released', "$name: the second ticket is released");

	# a change that ends the grant has to wait
	outcome($taker, q{LOAD 'leaselock'; SET leaselock.lock_timeout = '300 ms'});
	is(outcome($taker, "SELECT state FROM leaselock.lease_release('$ticket')"),
		'55P03', "$name: the release waits for it, but not for ever");
	is(outcome($taker, "SELECT leaselock.lease_break('$name', $fence)"),
		'55P03', "$name: the break waits, too");
	outcome($taker, 'RESET leaselock.lock_timeout');

	check_prepared($name, $fence, $name);
	cmp_ok(
		later(q{SELECT leaselock.lease_prune('0 s')}), '>=', 0,
		"$name: prune skips it");
	is( value("SELECT fence FROM leaselock.lease_peek('$name')"),
		$fence, "$name: the lock is still there");

	# a waiting taker is queued, and has its turn when the prepared transaction
	# ends
	outcome($taker, q{SET leaselock.clock_offset = '61 s'});
	begin($taker, "CALL leaselock.lease_acquire_wait('$name', 'taker', wait => '100 s')");
	ok( $node->poll_query_until('postgres', qq{
			SELECT count(*) = 1 FROM leaselock.tickets
			WHERE name = '$name' AND waiter_pid IS NOT NULL}),
		"$name: a taker waits");
	is(later(qq{SELECT waiters FROM leaselock.lease_peek('$name')}),
		'1', "$name: the taker is queued");
	value("$end PREPARED '$name'");
	my $start = time;
	like(awaited($taker), qr/\|held\|/, "$name: it has its turn after $end PREPARED");
	# a second at the very worst, plus some for a busy machine
	cmp_ok(time - $start, '<', 2.5, "$name: the turn comes soon");
	is(written($name), $end eq 'COMMIT' ? '1' : '0', "$name: what was written");
	cmp_ok(later("SELECT fence FROM leaselock.lease_peek('$name')"),
		'>', $fence, "$name: the fence has grown");
	is( later("SELECT leaselock.fence_check('$name', $fence, allow_lapsed => true)"),
		'f', "$name: the old fence is stale");
	outcome($taker, 'RESET leaselock.clock_offset');
}

# a poller is queued, and holds the lock at its first poll after the end
($ticket, $fence) = prepare('polled');
my $poll = later(q{SELECT ticket FROM
	leaselock.lease_acquire('polled', 'taker', wait => '100 s')});
isnt($poll, '', 'polled: a taker is queued');
is(later("SELECT state, position FROM leaselock.lease_get('$poll')"),
	'waiting|1', 'polled: the taker waits');
value(q{COMMIT PREPARED 'polled'});
is(later("SELECT state FROM leaselock.lease_get('$poll')"),
	'held', 'polled: the taker holds the lock after the end');

# ---------------------------------------------------------------------
# Restart
# ---------------------------------------------------------------------

my %fence;
foreach my $name ('over a restart', 'over a crash', 'orphan')
{
	($ticket, $fence{$name}) = prepare($name);
}
$_->quit foreach $main, $taker;
$node->restart;
check_prepared('over a restart', $fence{'over a restart'}, 'after a restart');
value(q{COMMIT PREPARED 'over a restart'});
is(written('over a restart'), '1', 'after a restart: committed');
is(later(sprintf $takeover, 'over a restart'),
	'held', 'after a restart: the lock can be taken over');

$node->stop('immediate');
$node->start;
check_prepared('over a crash', $fence{'over a crash'}, 'after a crash');
value(q{COMMIT PREPARED 'over a crash'});
is(written('over a crash'), '1', 'after a crash: committed');
is(later(sprintf $takeover, 'over a crash'),
	'held', 'after a crash: the lock can be taken over');

# an orphan is visible for what it is, and whoever ends it frees the lock
check_prepared('orphan', $fence{orphan}, 'orphan');
is( value(q{SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND pid IS NULL AND objsubid = x'4C4C'::int}),
	'1', 'orphan: pg_locks shows it');
value(q{ROLLBACK PREPARED 'orphan'});
is(written('orphan'), '0', 'orphan: rolled back');
is(later(sprintf $takeover, 'orphan'), 'held', 'orphan: the lock can be taken over');
is(value('SELECT count(*) FROM pg_prepared_xacts'), '0', 'no prepared transaction is left');
is(value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no lock is left');

# ---------------------------------------------------------------------

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');

$node->stop;

done_testing();
