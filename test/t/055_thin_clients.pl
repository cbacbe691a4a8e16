# The clients of contrib/clients: the test leads a worker of each language,
# line by line, through everything that can happen to a lease while work is
# done under it.
#
# Native only: the drivers are not in the trees of the other majors.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use FindBin;
use IPC::Run;
use lib $FindBin::RealBin;
use CliTest qw(wait_until);
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $clients = abs_path(dirname(__FILE__) . '/../../contrib/clients');
# inside the source tree, because Node looks up modules from here upwards
my $dir = abs_path($PostgreSQL::Test::Utils::tmp_check) . '/thin_clients';
mkdir $dir;

foreach my $file ('leaselock.py', 'leaselock.mjs', 'Lease.java')
{
	cmp_ok(slurp_file("$clients/$file") =~ tr/\n//, '<', 100, "$file: under 100 lines");
}

# ---------------------------------------------------------------------
# The workers.  Arguments: name of the lock, owner, lease and wait in seconds.
#
# Each prints "held FENCE" or "not held STATE", and "lost REASON" as soon as
# the client reports it.  Commands on its input: "write TEXT" writes a row under
# the fence, "spoil TEXT" writes a row in a transaction that continues after an
# error, "end" ends the work.
# ---------------------------------------------------------------------

my %worker;
$worker{python}{file} = 'worker.py';
$worker{python}{text} = <<'PROGRAM';
import psycopg, sys
sys.path.insert(0, CLIENTS)
from leaselock import Lease, NotHeld

name, owner, seconds, wait = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def say(*words):
    print(*words, flush=True)

def write(lease, word, text):
    try:
        with lease.transaction() as db:
            db.execute("INSERT INTO written (lock, worker, body) VALUES (%s, %s, %s)", (name, owner, text))
            if word == "spoil":
                try:
                    db.execute("SELECT 1 / 0")
                except psycopg.Error:
                    pass
        say("written")
    except NotHeld as error:
        say("refused NotHeld", error)
    except psycopg.Error as error:
        say("refused", error.diag.sqlstate)

try:
    with Lease(lambda: psycopg.connect(""), name, owner, lease=seconds, wait=wait) as lease:
        lease.lost.add_done_callback(lambda lost: say("lost", lost.result()))
        say("held", lease.fence)
        while (line := sys.stdin.readline().split()) and line[0] != "end":
            write(lease, *line)
    say("ended")
except NotHeld as error:
    say("not held", error)
except KeyboardInterrupt:
    say("interrupted")
PROGRAM

$worker{node}{file} = 'worker.mjs';
$worker{node}{text} = <<'PROGRAM';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
const { Pool } = createRequire(import.meta.url)('pg');
const { withLease } = await import(CLIENTS + '/leaselock.mjs');

const [name, owner, lease, wait] = process.argv.slice(2);
const pool = new Pool({ max: 2 });
const lines = createInterface({ input: process.stdin });
const say = (...words) => console.log(...words);

const write = (transaction, word, text) => transaction(async client => {
  await client.query('INSERT INTO written (lock, worker, body) VALUES ($1, $2, $3)', [name, owner, text]);
  if (word === 'spoil') await client.query('SELECT 1 / 0').catch(() => {});
}).then(() => say('written'), error => say('refused', error.state ? `NotHeld ${error.state}` : error.code ?? 'rollback'));

await withLease(pool, name, async ({ fence, signal, transaction }) => {
  signal.addEventListener('abort', () => say('lost', signal.reason.state));
  say('held', fence);
  for await (const line of lines) {
    if (line === 'end') break;
    await write(transaction, ...line.split(' '));
  }
}, { owner, lease: Number(lease), wait: Number(wait) })
  .then(() => say('ended'), error => say('not held', error.state ?? error));
lines.close();
await pool.end();
PROGRAM

$worker{java}{file} = 'Worker.java';
$worker{java}{text} = <<'PROGRAM';
import java.io.*;
import java.sql.*;
import org.postgresql.ds.PGSimpleDataSource;

public class Worker {
    static synchronized void say(String words) { System.out.println(words); }

    static void write(Lease lease, String name, String owner, String word, String text) {
        try {
            lease.transaction(db -> {
                try (PreparedStatement insert = db.prepareStatement("INSERT INTO written (lock, worker, body) VALUES (?, ?, ?)")) {
                    insert.setString(1, name);
                    insert.setString(2, owner);
                    insert.setString(3, text);
                    insert.executeUpdate();
                }
                if (word.equals("spoil"))
                    try (Statement spoil = db.createStatement()) { spoil.execute("SELECT 1 / 0"); }
                    catch (SQLException error) { }
                return null;
            });
            say("written");
        } catch (Lease.NotHeld error) {
            say("refused NotHeld " + error.getMessage());
        } catch (SQLException error) {
            say("refused " + error.getSQLState());
        }
    }

    public static void main(String[] args) throws Exception {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl(System.getenv("JDBC_URL"));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (Lease lease = new Lease(source, args[0], args[1], "public", Integer.parseInt(args[2]), Integer.parseInt(args[3]))) {
            lease.lost.thenAccept(reason -> say("lost " + reason));
            say("held " + lease.fence());
            for (String line; (line = lines.readLine()) != null && !line.equals("end"); )
                write(lease, args[0], args[1], line.split(" ")[0], line.split(" ")[1]);
        } catch (Lease.NotHeld error) {
            say("not held " + error.getMessage());
            return;
        }
        say("ended");
    }
}
PROGRAM

# ---------------------------------------------------------------------
# Which languages are available
# ---------------------------------------------------------------------

# only Debian's interpreter sees Debian's modules
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my ($jar) = grep { -e } '/usr/share/java/postgresql.jar', split /:/, $ENV{CLASSPATH} // '';

foreach my $language (keys %worker)
{
	my $text = $worker{$language}{text};
	$text =~ s/\bCLIENTS\b/'$clients'/;
	append_to_file("$dir/$worker{$language}{file}", $text);
}
append_to_file("$dir/probe.js", q{require('pg')});

$worker{python}{run} = [ $python, '-B', "$dir/worker.py" ];
my $unused;
$worker{python}{here} = eval { run_log([ $python, '-c', 'import psycopg' ], '2>', \$unused) };
$worker{node}{run} = [ 'node', "$dir/worker.mjs" ];
$worker{node}{here} = eval { run_log([ 'node', "$dir/probe.js" ], '2>', \$unused) };
# small heaps, because three run at the same time
my @java = ('-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-Xmx64m');
$worker{java}{run} = [ 'java', @java, '-cp', "$dir:" . ($jar // ''), 'Worker' ];
$worker{java}{here} = $jar && eval { run_log([ 'java', '-version' ], '>', \$unused, '2>', \$unused) };
if ($worker{java}{here})
{
	my $err = '';
	my $javac = eval { run_log([ 'javac', '-version' ], '>', \$unused, '2>', \$unused) };
	$worker{java}{here} = $javac;
	ok(run_log([ 'javac', '-Xlint:all,-try,-serial', '-Werror', '-d', $dir, '-cp', $jar, "$clients/Lease.java", "$dir/Worker.java" ],
			'2>', \$err), 'java: Lease.java compiles without a warning')
	  or diag $err
	  if $javac;
}

my @present = grep { $worker{$_}{here} } sort keys %worker;
foreach my $language (grep { !$worker{$_}{here} } sort keys %worker)
{
  SKIP: { skip "THE CLIENT FOR $language IS NOT TESTED: no such language or driver here", 1; }
}
if (!@present)
{
	done_testing();
	exit;
}

# ---------------------------------------------------------------------
# The server
# ---------------------------------------------------------------------

# Short leases, so that some run out.  Delayed calls of the holder wait as long
# as the test lets them.
my $node = new_node('thin_clients', q{
fsync = off
listen_addresses = '127.0.0.1'
leaselock.min_lease = '1 s'
leaselock.lock_timeout = '3 min'
}, extra => ['--encoding=UTF8']);
append_to_file($node->data_dir . '/pg_hba.conf', "host all app 127.0.0.1/32 trust\n");
$node->reload;
# A writer that has inserted its row waits here as long as the test lets it.
# The sequence also counts rows of transactions that do not commit.
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE app LOGIN;
CREATE SEQUENCE tries;
CREATE TABLE written (id int DEFAULT nextval('tries'), lock text, worker text, body text);
GRANT ALL ON written, tries TO app;
CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NEW; END $$;
CREATE TRIGGER stall BEFORE INSERT ON written FOR EACH ROW EXECUTE FUNCTION stall();
});
my $gate = session($node);
my $other = session($node);
# sees the state one minute later
my $later = session($node, q{LOAD 'leaselock'}, q{SET leaselock.clock_offset = '61 s'});

my %connection = (
	PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app',
	JDBC_URL => 'jdbc:postgresql://127.0.0.1:' . $node->port . '/postgres?user=app');

# ---------------------------------------------------------------------
# Leading a worker
# ---------------------------------------------------------------------

# start(LANGUAGE, LOCK, OWNER, LEASE, WAIT): starts a worker
sub start
{
	my ($language, @arguments) = @_;
	my $worker = { in => '', out => '', err => '', seen => 0, name => "$language: $arguments[1]" };
	local %ENV = (%ENV, %connection);
	local $SIG{INT} = 'DEFAULT';

	$worker->{run} = IPC::Run::start([ @{ $worker{$language}{run} }, @arguments ],
		'<', \$worker->{in}, '>', \$worker->{out}, '2>', \$worker->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$worker->{pid} = $worker->{run}{KIDS}[0]{PID};
	return $worker;
}

# said(WORKER): the next line that it prints
sub said
{
	my ($worker) = @_;

	my $end;
	while (($end = index $worker->{out}, "\n", $worker->{seen}) < 0)
	{
		return "nothing: $worker->{err}" if !eval { $worker->{run}->pump };
	}
	my $line = substr $worker->{out}, $worker->{seen}, $end - $worker->{seen};
	$worker->{seen} = $end + 1;
	return $line;
}

# both(WORKER): the next two lines, sorted, because threads print them
sub both { my ($worker) = @_; return join '; ', sort(said($worker), said($worker)) }

sub order { my ($worker, $line) = @_; $worker->{in} .= "$line\n"; eval { $worker->{run}->pump_nb }; return }

sub ended
{
	my ($worker) = @_;

	order($worker, 'end');
	my $said = said($worker);
	$worker->{run}->finish;
	return $said . substr($worker->{out}, $worker->{seen});
}

sub sql { return $node->safe_psql('postgres', $_[0]) }

sub body { my ($lock) = @_; return sql("SELECT string_agg(worker || ' ' || body, ',' ORDER BY id) FROM written WHERE lock = '$lock'") }

# taken(LOCK): ends its grant and makes another; returns both results
sub taken
{
	my ($lock) = @_;
	return sql(qq{
		SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$lock');
		SELECT state FROM leaselock.lease_acquire('$lock', 'other')});
}

sub given_back { my ($lock) = @_; return sql("SELECT count(*) FROM leaselock.lease_tickets WHERE name = '$lock'") == 0 }

sub writer_waits
{
	return $node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_locks
		WHERE locktype = 'advisory' AND objid = 42 AND NOT granted});
}

my ($worker, $fence);
foreach my $language (@present)
{
	# each scenario uses its own lock
	my $lock = "$language.free";
	$worker = start($language, $lock, 'a', 60, 0);
	like(said($worker), qr/^held [1-9]\d{14,}$/, "$language: a free lock is held");
	my $contended = start($language, $lock, 'b', 60, 0);
	is(said($contended), 'not held contended', "$language: another worker does not get the lock");
	$contended->{run}->finish;
	is(sql("SELECT string_agg(owner, ',') FROM leaselock.lease_tickets WHERE name = '$lock'"), 'a', "$language: that worker keeps no ticket");
	order($worker, 'write one');
	is(said($worker), 'written', "$language: a fenced write succeeds");
	order($worker, 'spoil two');
	like(said($worker), qr/^refused (25P02|rollback)$/, "$language: a failed transaction is not reported as committed");
	order($worker, 'write three');
	is(said($worker), 'written', "$language: the next transaction is not affected");
	is(ended($worker), 'ended', "$language: the work ends");
	is(body($lock), 'a one,a three', "$language: only the committed rows are written");
	ok(given_back($lock), "$language: the lease is released");

	# three workers in the queue
	$lock = "$language.line";
	my @line;
	foreach my $owner (qw(a b c))
	{
		push @line, start($language, $lock, $owner, 60, 120);
		my $place = @line - 1;
		$place == 0 ? like(said($line[0]), qr/^held /, "$language: the first of three gets the lock")
		  : ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM leaselock.lease_tickets
				WHERE name = '$lock' AND owner = '$owner' AND position = $place"), "$language: the next worker waits at place $place");
	}
	foreach my $place (0 .. 2)
	{
		like(said($line[$place]), qr/^held /, "$language: the next worker gets the lock") if $place > 0;
		order($line[$place], 'write line');
		is(said($line[$place]), 'written', "$language: the worker writes");
		is(ended($line[$place]), 'ended', "$language: the worker ends");
	}
	is(body($lock), 'a line,b line,c line', "$language: the rows are in the order of arrival");
	my @fences = map { $_->{out} =~ /held (\d+)/ } @line;
	ok($fences[0] < $fences[1] && $fences[1] < $fences[2], "$language: the fences grow");

	# broken while nothing is written: the next renewal finds out
	$lock = "$language.broken";
	$worker = start($language, $lock, 'a', 3, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(taken($lock), "t\nheld", "$language: an operator ends the grant, and another gets the lock");
	is(said($worker), 'lost broken', "$language: the worker is told that the lease is lost");
	order($worker, 'write one');
	is(said($worker), 'refused NotHeld broken', "$language: it cannot write any more");
	is(ended($worker), 'not held broken', "$language: its end reports the loss");

	# broken between a write and its COMMIT, long before a renewal
	$lock = "$language.stale";
	sql(q{SELECT setval('tries', 1)});
	$worker = start($language, $lock, 'a', 60, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(outcome($gate, 'SELECT pg_advisory_lock(42) IS NULL'), 'f', 'the gate is closed');
	order($worker, 'write one');
	ok(writer_waits(), "$language: a write is in progress");
	is(taken($lock), "t\nheld", "$language: an operator ends the grant, and another gets the lock");
	is(outcome($gate, 'SELECT pg_advisory_unlock(42)'), 't', 'the gate is open');
	is(both($worker), 'lost broken; refused LS001', "$language: the COMMIT is refused, and the worker is told at once");
	is(ended($worker), 'not held broken', "$language: its end reports the loss");
	is(body($lock), '', "$language: nothing is written");
	is(sql('SELECT last_value FROM tries'), '2', "$language: the write was not retried");

	# the connection of the work is busy for longer than the lease
	$lock = "$language.busy";
	$worker = start($language, $lock, 'a', 3, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(outcome($gate, 'SELECT pg_advisory_lock(42) IS NULL'), 'f', 'the gate is closed');
	my $look = "SELECT extract(epoch FROM expires_at) FROM leaselock.lease_peek('$lock')";
	my @expiry = (outcome($other, $look));
	order($worker, 'write one');
	ok(writer_waits(), "$language: a write is in progress");
	wait_until(sub {
		my $now = outcome($other, $look) || 0;
		push @expiry, $now if $now > $expiry[-1];
		return @expiry > 6;
	});
	# some may come late on a busy machine, but not all
	my @between = sort { $a <=> $b } map { $expiry[$_] - $expiry[ $_ - 1 ] } 1 .. $#expiry;
	ok(@between == 6 && $between[0] < 1.4 && $between[-1] > 0.9, "$language: meanwhile the lease is renewed whenever a third of it has passed") or diag("@between");
	is(outcome($gate, 'SELECT pg_advisory_unlock(42)'), 't', 'the gate is open');
	is(said($worker), 'written', "$language: the write succeeds");
	is(ended($worker), 'ended', "$language: the work ends");

	# a worker that is stopped, and continues after its lease has run out
	$lock = "$language.stopped";
	$worker = start($language, $lock, 'a', 60, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	kill 'STOP', $worker->{pid};
	is(outcome($later, "SELECT state FROM leaselock.lease_acquire('$lock', 'other')"), 'held', "$language: a minute later another owner gets the lock");
	order($worker, 'write one');
	kill 'CONT', $worker->{pid};
	is(both($worker), 'lost expired; refused LS001', "$language: the continued worker cannot write, and is told at once");
	is(ended($worker), 'not held expired', "$language: its end reports the loss");
	is(body($lock), '', "$language: nothing is written");

	# the same, with a server that does not answer: the client's own clock
	# decides
	$lock = "$language.clock";
	$worker = start($language, $lock, 'a', 3, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	kill 'STOP', $worker->{pid};
	is(outcome($other, "BEGIN; SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$lock')"), 't', "$language: renewals are blocked");
	ok($node->poll_query_until('postgres', "SELECT lapsed FROM leaselock.lease_peek('$lock')"), "$language: the lease runs out meanwhile");
	order($worker, 'write one');
	kill 'CONT', $worker->{pid};
	is(both($worker), 'lost not renewed in time; refused NotHeld not renewed in time', "$language: the worker detects the loss by itself");
	is(outcome($other, 'ROLLBACK'), '', "$language: the server answers again");
	like(ended($worker), qr/^not held not renewed in time$/, "$language: its end reports the loss");
	is(body($lock), '', "$language: nothing is written");

	# unanswered renewals, with a worker that is running
	$lock = "$language.silence";
	$worker = start($language, $lock, 'a', 3, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(outcome($other, "BEGIN; SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$lock')"), 't', "$language: renewals are blocked");
	is(said($worker), 'lost not renewed in time', "$language: the worker is told in time");
	is(outcome($other, 'ROLLBACK'), '', "$language: the server answers again");
	is(ended($worker), 'not held not renewed in time', "$language: a late answer does not restore the lease");

	# a connection that is lost during the work
	$lock = "$language.connection";
	$worker = start($language, $lock, 'a', 60, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(outcome($gate, 'SELECT pg_advisory_lock(42) IS NULL'), 'f', 'the gate is closed');
	order($worker, 'write one');
	ok(writer_waits(), "$language: a write is in progress");
	sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'});
	like(said($worker), qr/^refused (57P01|None)$/, "$language: the write loses its connection");
	is(outcome($gate, 'SELECT pg_advisory_unlock(42)'), 't', 'the gate is open');
	order($worker, 'write two');
	is(said($worker), 'written', "$language: the lease is not lost, and another write succeeds");
	is(ended($worker), 'ended', "$language: the work ends");
	is(body($lock), 'a two', "$language: only the committed rows are written");
}

# ---------------------------------------------------------------------
# Connections lost during the client's own calls, for all languages at once
# ---------------------------------------------------------------------

# renewals
my %holder = map { $_ => start($_, "$_.renewal", 'a', 20, 0) } @present;
like(said($holder{$_}), qr/^held /, "$_: another lock is held") foreach @present;
my $begun = sql(q{SELECT max(expires_at) FROM leaselock.lease_tickets WHERE name LIKE '%.renewal'});
is(outcome($other, "BEGIN; SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_status WHERE name LIKE '%.renewal'"),
	join("\n", map { 't' } @present), 'all renewals are blocked');
my $calls = q{pg_stat_activity WHERE usename = 'app' AND state = 'active' AND query LIKE '%lease_renew%'};
ok($node->poll_query_until('postgres', "SELECT count(*) = @{[ scalar @present ]} FROM $calls"), 'all renewals wait');
is(sql("SELECT bool_and(pg_terminate_backend(pid)) FROM $calls"), 't', 'their connections are terminated');
is(outcome($other, 'ROLLBACK'), '', 'renewals are no longer blocked');
ok($node->poll_query_until('postgres', "SELECT count(*) = @{[ scalar @present ]} FROM leaselock.lease_tickets
		WHERE name LIKE '%.renewal' AND expires_at > '$begun'"), 'all leases are renewed over new connections');
is(ended($holder{$_}), 'ended', "$_: the worker saw no loss") foreach @present;

# a wait continues through a restart of the server
is(sql("SELECT state FROM leaselock.lease_acquire('$_.wait', 'other', '300 s')"), 'held', "$_: another owner holds the lock") foreach @present;
my %waiter = map { $_ => start($_, "$_.wait", 'a', 60, 120) } @present;
my $tickets = q{SELECT string_agg(ticket::text, ',' ORDER BY name) FROM leaselock.lease_tickets WHERE owner = 'a' AND };
ok($node->poll_query_until('postgres', "SELECT count(*) = @{[ scalar @present ]} FROM leaselock.lease_tickets WHERE state = 'waiting'"), 'all wait');
my $waiting = sql("$tickets state = 'waiting'");
$_->quit foreach $gate, $other, $later;
$node->restart;
sql(q{SELECT leaselock.lease_release_all('other')});
like(said($waiter{$_}), qr/^held /, "$_: the waiter gets the lock") foreach @present;
is(sql("$tickets state = 'held'"), $waiting, 'the tickets are those from before the restart');
is(ended($waiter{$_}), 'ended', "$_: the work ends") foreach @present;

# ---------------------------------------------------------------------
# A wait that is interrupted
# ---------------------------------------------------------------------

SKIP:
{
	skip 'THE CLIENT FOR python IS NOT TESTED', 1 if !$worker{python}{here};
	is(sql("SELECT state FROM leaselock.lease_acquire('interrupt', 'other')"), 'held', "another owner holds the lock");
	$worker = start('python', 'interrupt', 'a', 60, 120);
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM leaselock.lease_tickets WHERE state = 'waiting'}), 'python: a worker waits');
	# the client knows its ticket when it polls again
	my $heard = sql(q{SELECT alive_until FROM leaselock.tickets WHERE name = 'interrupt' AND owner = 'a'});
	ok($node->poll_query_until('postgres', qq{SELECT alive_until > '$heard' FROM leaselock.tickets WHERE name = 'interrupt' AND owner = 'a'}),
		'python: the worker polls again');
	kill 'INT', $worker->{pid};
	is(said($worker), 'interrupted', 'python: Control-C ends the wait');
	$worker->{run}->finish;
	is(sql(q{SELECT count(*) FROM leaselock.lease_tickets WHERE state = 'waiting'}), '0', 'python: the place in the queue is given up');
	sql(q{SELECT leaselock.lease_release_all('other')});
}

is_deeply([ internal_errors($node) ], [], 'no internal error in the log');
is_deeply([ crashes($node) ], [], 'no crash');
$node->stop;

done_testing();
