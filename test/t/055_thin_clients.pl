# The clients of contrib/clients: a worker of each language is led, line by line,
# through all that can happen to a lease while somebody works under it.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use FindBin;
use IPC::Run;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $clients = abs_path(dirname(__FILE__) . '/../../contrib/clients');
# inside the source tree: a module of node is looked for from here upwards
my $dir = abs_path($PostgreSQL::Test::Utils::tmp_check) . '/thin_clients';
mkdir $dir;

foreach my $file ('leaselock.py', 'leaselock.mjs', 'Lease.java')
{
	cmp_ok(slurp_file("$clients/$file") =~ tr/\n//, '<', 100, "$file: under 100 lines");
}

# ---------------------------------------------------------------------
# The workers.  Arguments: name of the lock, owner, seconds of lease and of wait.
#
# Each says "held FENCE" or "not held STATE", and "lost REASON" as soon as it is
# told.  Of what it reads, "write TEXT" is a fenced row, "spoil TEXT" one whose
# transaction goes on after an error, "end" the end of the work.
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
# Which languages are here
# ---------------------------------------------------------------------

# Debian's modules are seen by Debian's interpreter alone
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
# small heaps: there are three at once
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

# Short leases, where one is to run out; and calls of the holder that are held up
# wait as long as the test wants them to.
my $node = new_node('thin_clients', q{
fsync = off
listen_addresses = '127.0.0.1'
leaselock.min_lease = '1 s'
leaselock.lock_timeout = '3 min'
}, extra => ['--encoding=UTF8']);
append_to_file($node->data_dir . '/pg_hba.conf', "host all app 127.0.0.1/32 trust\n");
$node->reload;
# A writer that has inserted its row waits here as long as the test wants it to;
# the sequence counts the rows also of transactions that do not commit.
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
# sees the time in a minute
my $later = session($node, q{LOAD 'leaselock'}, q{SET leaselock.clock_offset = '61 s'});

my %connection = (
	PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app',
	JDBC_URL => 'jdbc:postgresql://127.0.0.1:' . $node->port . '/postgres?user=app');

# ---------------------------------------------------------------------
# Leading a worker
# ---------------------------------------------------------------------

# start(LANGUAGE, LOCK, OWNER, LEASE, WAIT)
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

# said(WORKER): the next line that it says
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

# both(WORKER): the next two, in the order of the alphabet: threads speak
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

# taken(LOCK): ends its grant, and makes another; what came of that
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
	# the lock of each scenario, for itself
	my $lock = "$language.free";
	$worker = start($language, $lock, 'a', 60, 0);
	like(said($worker), qr/^held [1-9]\d{14,}$/, "$language: a free lock is held");
	my $contended = start($language, $lock, 'b', 60, 0);
	is(said($contended), 'not held contended', "$language: another worker does not get it");
	$contended->{run}->finish;
	is(sql("SELECT string_agg(owner, ',') FROM leaselock.lease_tickets WHERE name = '$lock'"), 'a', "$language: and keeps nothing");
	order($worker, 'write one');
	is(said($worker), 'written', "$language: a fenced write");
	order($worker, 'spoil two');
	like(said($worker), qr/^refused (25P02|rollback)$/, "$language: a transaction that has failed is not taken for committed");
	order($worker, 'write three');
	is(said($worker), 'written', "$language: the next one is not concerned");
	is(ended($worker), 'ended', "$language: the work ends");
	is(body($lock), 'a one,a three', "$language: what was written");
	ok(given_back($lock), "$language: the lease is given back");

	# three in line
	$lock = "$language.line";
	my @line;
	foreach my $owner (qw(a b c))
	{
		push @line, start($language, $lock, $owner, 60, 120);
		my $place = @line - 1;
		$place == 0 ? like(said($line[0]), qr/^held /, "$language: the first of three")
		  : ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM leaselock.lease_tickets
				WHERE name = '$lock' AND owner = '$owner' AND position = $place"), "$language: the next one waits at place $place");
	}
	foreach my $place (0 .. 2)
	{
		like(said($line[$place]), qr/^held /, "$language: the next one's turn") if $place > 0;
		order($line[$place], 'write line');
		is(said($line[$place]), 'written', "$language: it writes");
		is(ended($line[$place]), 'ended', "$language: and ends");
	}
	is(body($lock), 'a line,b line,c line', "$language: in the order in which they came");
	my @fences = map { $_->{out} =~ /held (\d+)/ } @line;
	ok($fences[0] < $fences[1] && $fences[1] < $fences[2], "$language: with growing fences");

	# broken while nothing is written: the next renewal tells
	$lock = "$language.broken";
	$worker = start($language, $lock, 'a', 3, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(taken($lock), "t\nheld", "$language: an operator ends the grant, and another gets the lock");
	is(said($worker), 'lost broken', "$language: the work is told that the lease is lost");
	order($worker, 'write one');
	is(said($worker), 'refused NotHeld broken', "$language: and does not write any more");
	is(ended($worker), 'not held broken', "$language: nor does it end as if nothing had been");

	# broken between a write and its COMMIT, long before a renewal
	$lock = "$language.stale";
	sql(q{SELECT setval('tries', 1)});
	$worker = start($language, $lock, 'a', 60, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(outcome($gate, 'SELECT pg_advisory_lock(42) IS NULL'), 'f', 'the gate is shut');
	order($worker, 'write one');
	ok(writer_waits(), "$language: a write is under way");
	is(taken($lock), "t\nheld", "$language: an operator ends the grant, and another gets the lock");
	is(outcome($gate, 'SELECT pg_advisory_unlock(42)'), 't', 'the gate is open');
	is(both($worker), 'lost broken; refused LS001', "$language: COMMIT is refused, and the work told at once");
	is(ended($worker), 'not held broken', "$language: the end says so, too");
	is(body($lock), '', "$language: nothing is written");
	is(sql('SELECT last_value FROM tries'), '2', "$language: it was not tried again");

	# a worker that is stopped, and wakes up when its lease has run out
	$lock = "$language.stopped";
	$worker = start($language, $lock, 'a', 60, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	kill 'STOP', $worker->{pid};
	is(outcome($later, "SELECT state FROM leaselock.lease_acquire('$lock', 'other')"), 'held', "$language: a minute later it is another's");
	order($worker, 'write one');
	kill 'CONT', $worker->{pid};
	is(both($worker), 'lost expired; refused LS001', "$language: who was stopped does not write, and is told at once");
	is(ended($worker), 'not held expired', "$language: the end says so, too");
	is(body($lock), '', "$language: nothing is written");

	# the same, with a server that gives no answer: its own clock tells
	$lock = "$language.clock";
	$worker = start($language, $lock, 'a', 3, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	kill 'STOP', $worker->{pid};
	is(outcome($other, "BEGIN; SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$lock')"), 't', "$language: it is held up");
	ok($node->poll_query_until('postgres', "SELECT lapsed FROM leaselock.lease_peek('$lock')"), "$language: until its lease has run out");
	order($worker, 'write one');
	kill 'CONT', $worker->{pid};
	is(both($worker), 'lost not renewed in time; refused NotHeld not renewed in time', "$language: it knows that by itself");
	is(outcome($other, 'ROLLBACK'), '', "$language: the server answers again");
	like(ended($worker), qr/^not held not renewed in time$/, "$language: the end says so, too");
	is(body($lock), '', "$language: nothing is written");

	# renewals that are not answered, with a worker that is awake
	$lock = "$language.silence";
	$worker = start($language, $lock, 'a', 3, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(outcome($other, "BEGIN; SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$lock')"), 't', "$language: renewals are held up");
	is(said($worker), 'lost not renewed in time', "$language: the work is told in time");
	is(outcome($other, 'ROLLBACK'), '', "$language: the server answers again");
	is(ended($worker), 'not held not renewed in time', "$language: that does not bring the lease back");

	# a connection that is lost within the work
	$lock = "$language.connection";
	$worker = start($language, $lock, 'a', 60, 0);
	like(said($worker), qr/^held /, "$language: another lock is held");
	is(outcome($gate, 'SELECT pg_advisory_lock(42) IS NULL'), 'f', 'the gate is shut');
	order($worker, 'write one');
	ok(writer_waits(), "$language: a write is under way");
	sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'});
	like(said($worker), qr/^refused (57P01|None)$/, "$language: its connection is lost");
	is(outcome($gate, 'SELECT pg_advisory_unlock(42)'), 't', 'the gate is open');
	order($worker, 'write two');
	is(said($worker), 'written', "$language: the lease is not: another write");
	is(ended($worker), 'ended', "$language: the work ends");
	is(body($lock), 'a two', "$language: what was written");
}

# ---------------------------------------------------------------------
# Connections that are lost by the calls themselves, of all at once
# ---------------------------------------------------------------------

# renewals
my %holder = map { $_ => start($_, "$_.renewal", 'a', 20, 0) } @present;
like(said($holder{$_}), qr/^held /, "$_: another lock is held") foreach @present;
my $begun = sql(q{SELECT max(expires_at) FROM leaselock.lease_tickets WHERE name LIKE '%.renewal'});
is(outcome($other, "BEGIN; SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_status WHERE name LIKE '%.renewal'"),
	join("\n", map { 't' } @present), 'all renewals are held up');
my $calls = q{pg_stat_activity WHERE usename = 'app' AND state = 'active' AND query LIKE '%lease_renew%'};
ok($node->poll_query_until('postgres', "SELECT count(*) = @{[ scalar @present ]} FROM $calls"), 'and wait');
is(sql("SELECT bool_and(pg_terminate_backend(pid)) FROM $calls"), 't', 'their connections are lost');
is(outcome($other, 'ROLLBACK'), '', 'they are not held up any more');
ok($node->poll_query_until('postgres', "SELECT count(*) = @{[ scalar @present ]} FROM leaselock.lease_tickets
		WHERE name LIKE '%.renewal' AND expires_at > '$begun'"), 'all are renewed, over others');
is(ended($holder{$_}), 'ended', "$_: the work was not told") foreach @present;

# and the wait, through a restart of the server
is(sql("SELECT state FROM leaselock.lease_acquire('$_.wait', 'other', '300 s')"), 'held', "$_: a lock is another's") foreach @present;
my %waiter = map { $_ => start($_, "$_.wait", 'a', 60, 120) } @present;
my $tickets = q{SELECT string_agg(ticket::text, ',' ORDER BY name) FROM leaselock.lease_tickets WHERE owner = 'a' AND };
ok($node->poll_query_until('postgres', "SELECT count(*) = @{[ scalar @present ]} FROM leaselock.lease_tickets WHERE state = 'waiting'"), 'all wait');
my $waiting = sql("$tickets state = 'waiting'");
$_->quit foreach $gate, $other, $later;
$node->restart;
sql(q{SELECT leaselock.lease_release_all('other')});
like(said($waiter{$_}), qr/^held /, "$_: its turn has come") foreach @present;
is(sql("$tickets state = 'held'"), $waiting, 'with the tickets of before the restart');
is(ended($waiter{$_}), 'ended', "$_: the work ends") foreach @present;

# ---------------------------------------------------------------------
# A wait that is interrupted
# ---------------------------------------------------------------------

SKIP:
{
	skip 'THE CLIENT FOR python IS NOT TESTED', 1 if !$worker{python}{here};
	is(sql("SELECT state FROM leaselock.lease_acquire('interrupt', 'other')"), 'held', "a lock is another's");
	$worker = start('python', 'interrupt', 'a', 60, 120);
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM leaselock.lease_tickets WHERE state = 'waiting'}), 'python: a worker waits');
	# it knows its ticket when it asks again
	my $heard = sql(q{SELECT alive_until FROM leaselock.tickets WHERE name = 'interrupt' AND owner = 'a'});
	ok($node->poll_query_until('postgres', qq{SELECT alive_until > '$heard' FROM leaselock.tickets WHERE name = 'interrupt' AND owner = 'a'}),
		'python: and asks again');
	kill 'INT', $worker->{pid};
	is(said($worker), 'interrupted', 'python: Control-C ends the wait');
	$worker->{run}->finish;
	is(sql(q{SELECT count(*) FROM leaselock.lease_tickets WHERE state = 'waiting'}), '0', 'python: and gives back the place in the queue');
	sql(q{SELECT leaselock.lease_release_all('other')});
}

is_deeply([ internal_errors($node) ], [], 'no internal error in the log');
is_deeply([ crashes($node) ], [], 'no crash');
$node->stop;

done_testing();
