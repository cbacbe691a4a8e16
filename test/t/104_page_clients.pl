# doc/clients.md: its programs, as they stand there, in whatever can happen to them;
# and what each driver does with a transaction.
#
# Native only: the drivers are not in the trees of the other majors.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Copy qw(copy);
use FindBin;
use IPC::Run;
use lib $FindBin::RealBin;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = abs_path(dirname(__FILE__) . '/../..');
# inside the source tree: a module of node is looked for from here upwards
my $dir = abs_path($PostgreSQL::Test::Utils::tmp_check) . '/page_clients';
mkdir $dir;
copy("$top/contrib/clients/$_", $dir) or die foreach qw(leaselock.py leaselock.mjs Lease.java);

# ---------------------------------------------------------------------
# Which drivers are here
# ---------------------------------------------------------------------

# Debian's modules are seen by Debian's interpreter alone
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my ($jar) = grep { -e } '/usr/share/java/postgresql.jar', split /:/, $ENV{CLASSPATH} // '';
my @java = ('-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-Xmx64m', '-cp', "$dir:" . ($jar // ''));

my %connection;

# program(COMMAND): { run, out, err }, in the background
sub program
{
	my (@command) = @_;
	my $program = { out => '', err => '' };
	local %ENV = (%ENV, %connection, PYTHONDONTWRITEBYTECODE => 1);

	$program->{run} = IPC::Run::start(\@command, '<', '/dev/null', '>', \$program->{out}, '2>', \$program->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $program;
}

# said(PROGRAM): its lines, when it has ended well
sub said
{
	my ($program) = @_;

	$program->{run}->finish;
	return $program->{run}->full_result(0) == 0 ? $program->{out} : "failed: $program->{out}$program->{err}";
}

sub runs
{
	my (@command) = @_;
	my $program = eval { program(@command) };
	return $program && said($program) !~ /^failed/;
}

append_to_file("$dir/probe.js", q{require('pg')});
my %here = (
	(map { $_ => runs($python, '-c', "import $_") } qw(psycopg psycopg2 django)),
	sqlalchemy => runs($python, '-c', 'import sqlalchemy, psycopg2'),
	node => runs('node', "$dir/probe.js"),
	java => $jar && runs('javac', '-version'));
$here{django} &&= $here{psycopg2};

# ---------------------------------------------------------------------
# The server; pgjdbc needs TCP
# ---------------------------------------------------------------------

my $node = new_node('page_clients', q{
fsync = off
listen_addresses = '127.0.0.1'
}, extra => ['--encoding=UTF8']);
append_to_file($node->data_dir . '/pg_hba.conf', "host all app 127.0.0.1/32 trust\n");
$node->reload;
# A writer that has inserted its row waits here as long as the test wants it to
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE app LOGIN;
CREATE TABLE reply (thread int, body text);
GRANT ALL ON reply TO app;
CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NEW; END $$;
CREATE TRIGGER stall BEFORE INSERT ON reply FOR EACH ROW EXECUTE FUNCTION stall();
});
%connection = (
	PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app',
	JDBC_URL => 'jdbc:postgresql://127.0.0.1:' . $node->port . '/postgres?user=app');
my $gate = session($node);
my $lock = 'thread-work.42';

sub sql { return $node->safe_psql('postgres', $_[0]) }

sub rows { return sql('SELECT count(*) FROM reply') }

# stalled(COMMAND): the program, when it has inserted a row and cannot go on
sub stalled
{
	my (@command) = @_;

	is(outcome($gate, 'SELECT pg_advisory_lock(42) IS NULL'), 'f', 'the gate is shut');
	my $program = program(@command);
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_locks
		WHERE locktype = 'advisory' AND objid = 42 AND NOT granted}), 'a write is under way');
	return $program;
}

sub go_on { return is(outcome($gate, 'SELECT pg_advisory_unlock(42)'), 't', 'the gate is open') }

# superseded(COMMAND): what it says whose lock is another's before its COMMIT
sub superseded
{
	my (@command) = @_;
	my $program = stalled(@command);

	is(sql(qq{
			SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('$lock');
			SELECT state FROM leaselock.lease_acquire('$lock', 'other')}), "t\nheld", 'the lock is taken from it');
	go_on();
	return said($program);
}

# ---------------------------------------------------------------------
# The programs of the page
# ---------------------------------------------------------------------

# with_helper(LANGUAGE, COMMAND)
sub with_helper
{
	my ($language, @command) = @_;
	my $rows = rows();

	is(said(program(@command)), "written\n", "$language: the lock is free");
	is(rows(), $rows + 1, "$language: it has written");
	is(sql(qq{SELECT count(*) FROM leaselock.lease_peek('$lock')}), '0', "$language: and released");

	is(sql(qq{SELECT state FROM leaselock.lease_acquire('$lock', 'other')}), 'held', 'the lock is held by somebody else');
	my $program = program(@command);
	ok($node->poll_query_until('postgres', qq{SELECT waiters = 1 FROM leaselock.lease_peek('$lock')}), "$language: it waits");
	is(sql(q{SELECT leaselock.lease_release_all('other')}), '1', 'until that is released');
	is(said($program), "written\n", "$language: and writes");

	is(join("\n", sort split /\n/, superseded(@command)), "lost: broken\nstale", "$language: it is told that it is stale");
	is(rows(), $rows + 2, "$language: and has written nothing");
	sql(q{SELECT leaselock.lease_release_all('other')});
	return '';
}

sub by_hand
{
	my ($file, $text) = @_;
	my @command = ($python, $file);
	my $rows = rows();

	is(said(program(@command)), "held\nwritten\nwritten\nwritten\nreleased\n", 'steps: the lock is free');
	is(rows(), $rows + 3, 'steps: it has written');
	is(superseded(@command), "held\nstale\nbroken\n", 'steps: it is told that it is stale');
	is(rows(), $rows + 3, 'steps: and has written nothing');
	is(said(program(@command)), "contended\n", 'steps: the lock is busy');
	sql(q{SELECT leaselock.lease_release_all('other')});

	# a shorter lease, so that a renewal is due sooner
	$text =~ s/'60 s'/'12 s'/ or die;
	append_to_file("$file.short.py", $text);
	my $program = stalled($python, "$file.short.py");
	ok($node->poll_query_until('postgres', qq{SELECT remaining_ms < 8000 FROM leaselock.lease_peek('$lock')}), 'steps: a third of the lease is over');
	go_on();
	is(said($program), "held\nwritten\nheld\nwritten\nwritten\nreleased\n", 'steps: the lease is renewed before the next step');
	return '';
}

sub run_python
{
	my ($page, $text) = @_;
	my $by_hand = $text !~ /import Lease/;
	my $file = "$dir/" . ($by_hand ? 'steps.py' : 'worker.py');

	append_to_file($file, $text);
	return $by_hand ? by_hand($file, $text) : with_helper('python', $python, $file);
}

sub run_node
{
	my ($page, $text) = @_;

	append_to_file("$dir/worker.mjs", $text);
	return with_helper('node', 'node', "$dir/worker.mjs");
}

sub run_java
{
	my ($page, $text) = @_;

	append_to_file("$dir/Worker.java", $text);
	ok(runs('javac', '-d', $dir, '-cp', $jar, "$dir/Lease.java", "$dir/Worker.java"), 'java: it compiles');
	return with_helper('java', 'java', @java, 'Worker');
}

my $page = PageTest->new('doc/clients.md',
	node => $node,
	language => { python => \&run_python, js => \&run_node, java => \&run_java },
	skip => {
		$here{psycopg} ? () : (python => 'psycopg IS NOT INSTALLED'),
		$here{node} ? () : (js => 'node-postgres IS NOT INSTALLED'),
		$here{java} ? () : (java => 'pgjdbc IS NOT INSTALLED') });
$page->after('trap-after' => sub { drivers(); sql(q{SELECT leaselock.lease_release_all('host-b')}) });

# ---------------------------------------------------------------------
# The table of the drivers
# ---------------------------------------------------------------------

# Each acquires in a transaction that it leaves open, and that is rolled back; then
# by the setting of the page; and writes a row by the way of the page.  What others
# see of that is asked by psql; what a server undoes when a connection ends, it undoes
# a little later, so that this is waited for.
my %driver;

my $common = <<'PROGRAM';
import os, subprocess
ACQUIRE = "SELECT fence FROM leaselock.lease_acquire(name => '%s', owner => 'worker')"
INSERT = "INSERT INTO reply VALUES (43, 'DRIVER')"
def ask(what, sql):
    print(what, subprocess.run(["psql", "-XAtc", sql], capture_output=True, text=True, check=True).stdout, end="", flush=True)
def other(what, name, wait=0):
    ask(what, f"SELECT state, holder FROM leaselock.lease_acquire(name => '{name}', owner => 'other', wait => '{wait} s')")
def rows(what):
    ask(what, "SELECT count(*) FROM reply WHERE body = 'DRIVER'")
PROGRAM

$driver{psycopg} = { name => 'psycopg 3', lease => 'psycopg.connect(..., autocommit=True)', write => 'with db.transaction():', program => <<'PROGRAM' };
import psycopg
db = psycopg.connect("")
db.execute(ACQUIRE % "psycopg open")
other("open", "psycopg open")
db.close()
other("closed", "psycopg open", 60)
db = LEASE
db.execute(ACQUIRE % "psycopg lease")
other("lease", "psycopg lease")
WRITE
    db.execute(INSERT)
    rows("inside")
rows("after")
PROGRAM

$driver{psycopg2} = { name => 'psycopg2', lease => 'db.autocommit = True', write => 'with db:', program => <<'PROGRAM' };
import psycopg2
db = psycopg2.connect("")
db.cursor().execute(ACQUIRE % "psycopg2 open")
other("open", "psycopg2 open")
db.close()
other("closed", "psycopg2 open", 60)
db = psycopg2.connect("")
LEASE
db.cursor().execute(ACQUIRE % "psycopg2 lease")
other("lease", "psycopg2 lease")
WRITE
    db.cursor().execute(INSERT)
    rows("inside")
rows("after")
PROGRAM

$driver{sqlalchemy} = { name => 'SQLAlchemy', lease => 'engine.execution_options(isolation_level="AUTOCOMMIT")', write => 'with engine.begin() as db:', program => <<'PROGRAM' };
from sqlalchemy import create_engine, text
engine = create_engine("postgresql+psycopg2://", future=True)
with engine.connect() as db:
    db.execute(text(ACQUIRE % "sqlalchemy open"))
    other("open", "sqlalchemy open")
other("closed", "sqlalchemy open", 60)
with LEASE.connect() as db:
    db.execute(text(ACQUIRE % "sqlalchemy lease"))
    other("lease", "sqlalchemy lease")
WRITE
    db.execute(text(INSERT))
    rows("inside")
rows("after")
PROGRAM

$driver{django} = { name => 'Django', lease => '@transaction.non_atomic_requests', write => 'with transaction.atomic(durable=True):', program => <<'PROGRAM' };
import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path
urlpatterns = []
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"], DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": os.environ["PGUSER"],
    "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"], "ATOMIC_REQUESTS": True}})
django.setup()
from django.db import connection, transaction
from django.test import Client
def acquire(name):
    with connection.cursor() as cursor:
        cursor.execute(ACQUIRE % name)
def atomic(request):
    acquire("django open")
    other("open", "django open")
    raise ValueError
LEASE
def lease(request):
    acquire("django lease")
    other("lease", "django lease")
    return HttpResponse()
urlpatterns += [path("atomic", atomic), path("lease", lease)]
client = Client(raise_request_exception=False)
import logging
logging.disable()
client.get("/atomic")
other("closed", "django open", 60)
client.get("/lease")
WRITE
    with connection.cursor() as cursor:
        cursor.execute(INSERT)
    rows("inside")
rows("after")
PROGRAM

$driver{node} = { name => 'node-postgres', lease => 'pool.query(...)', write => 'pool.connect()', program => <<'PROGRAM' };
const { execFileSync } = require('node:child_process');
const { Client, Pool } = require('pg');
const ACQUIRE = name => `SELECT fence FROM leaselock.lease_acquire(name => '${name}', owner => 'worker')`;
const ask = (what, sql) => console.log(what, execFileSync('psql', ['-XAtc', sql]).toString().trim());
const other = (what, name, wait = 0) =>
  ask(what, `SELECT state, holder FROM leaselock.lease_acquire(name => '${name}', owner => 'other', wait => '${wait} s')`);
const rows = what => ask(what, "SELECT count(*) FROM reply WHERE body = 'node'");
(async () => {
  let client = new Client();
  await client.connect();
  await client.query('BEGIN');
  await client.query(ACQUIRE('node open'));
  other('open', 'node open');
  await client.end();
  other('closed', 'node open', 60);
  const pool = new Pool();
  await LEASE(ACQUIRE('node lease'));
  other('lease', 'node lease');
  client = await WRITE;
  await client.query('BEGIN');
  await client.query("INSERT INTO reply VALUES (43, 'node')");
  rows('inside');
  await client.query('COMMIT');
  rows('after');
  client.release();
  await pool.end();
})();
PROGRAM

$driver{java} = { name => 'pgjdbc', lease => 'db.setAutoCommit(true)', write => 'db.setAutoCommit(false)', program => <<'PROGRAM' };
import java.sql.*;

public class Driver {
    static void ask(String what, String sql) throws Exception {
        Process psql = new ProcessBuilder("psql", "-XAtc", sql).start();
        System.out.println(what + " " + new String(psql.getInputStream().readAllBytes()).trim());
    }
    static void other(String what, String name, int wait) throws Exception {
        ask(what, "SELECT state, holder FROM leaselock.lease_acquire(name => '" + name + "', owner => 'other', wait => '" + wait + " s')");
    }
    static void run(Connection db, String sql) throws SQLException {
        try (Statement statement = db.createStatement()) { statement.execute(sql); }
    }
    static final String ACQUIRE = "SELECT fence FROM leaselock.lease_acquire(name => '%s', owner => 'worker')";

    public static void main(String[] args) throws Exception {
        Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"));
        WRITE;
        run(db, String.format(ACQUIRE, "java open"));
        other("open", "java open", 0);
        db.close();
        other("closed", "java open", 60);
        db = DriverManager.getConnection(System.getenv("JDBC_URL"));
        run(db, String.format(ACQUIRE, "java first"));
        other("first", "java first", 0);
        WRITE;
        LEASE;
        run(db, String.format(ACQUIRE, "java lease"));
        other("lease", "java lease", 0);
        WRITE;
        run(db, "INSERT INTO reply VALUES (43, 'java')");
        ask("inside", "SELECT count(*) FROM reply WHERE body = 'java'");
        db.commit();
        ask("after", "SELECT count(*) FROM reply WHERE body = 'java'");
        db.setAutoCommit(true);
        for (String interval : new String[] { "?", "?::interval" })
            try (PreparedStatement statement = db.prepareStatement("SELECT state FROM leaselock.lease_acquire('java interval', 'worker', lease => " + interval + ")")) {
                statement.setString(1, "60 s");
                ResultSet answer = statement.executeQuery();
                answer.next();
                System.out.println(interval + " " + answer.getString(1));
            } catch (SQLException error) {
                System.out.println(interval + " " + error.getSQLState());
            }
    }
}
PROGRAM
$driver{java}{before} = "first contended|worker\n";
$driver{java}{more} = "? 42883\n?::interval held\n";

sub drivers
{
	foreach my $driver (sort keys %driver)
	{
		my ($name, $lease, $write, $text) = @{ $driver{$driver} }{qw(name lease write program)};
		my ($row) = $page->{text} =~ /^\| \Q$name\E \| (.*)$/m;

		ok(index($row, "`$lease`") > 0, "$driver: the setting of the page");
		ok(index($row, "`$write`") > 0, "$driver: how the page writes");
		if (!$here{$driver})
		{
		  SKIP: { skip "$name IS NOT INSTALLED, so it is not tested", 1; }
			next;
		}
		$lease =~ s/\.\.\./""/;
		$lease =~ s/\(""\)// if $driver eq 'node';
		my $python_program = $driver !~ /^(?:node|java)$/;
		$text = $common =~ s/DRIVER/$driver/gr . $text if $python_program;
		$text =~ s/\bLEASE\b/$lease/g;
		$text =~ s/\bWRITE\b/$write/g;
		my $file = "$dir/" . ($driver eq 'java' ? 'Driver.java' : $driver eq 'node' ? 'driver.js' : "driver_$driver.py");
		append_to_file($file, $text);
		is(said(program($python_program ? $python : $driver, $driver eq 'java' ? @java : (), $file)),
			"open contended|\nclosed held|\n"
			  . ($driver{$driver}{before} // '')
			  . "lease contended|worker\ninside 0\nafter 1\n"
			  . ($driver{$driver}{more} // ''),
			"$driver: a transaction that is open, the setting, and a write");
	}
	return;
}

$page->run;

done_testing();
