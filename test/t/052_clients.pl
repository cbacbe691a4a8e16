# psycopg, psycopg2, node-postgres and pgjdbc: every way to pass a parameter.
# 104_page_clients.pl tests the programs of doc/clients.md.
#
# Native only: the drivers are not in the trees of the other majors.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# inside the source tree, because Node looks up modules from here upwards
my $dir = abs_path($PostgreSQL::Test::Utils::tmp_check) . '/clients';
mkdir $dir;

# ---------------------------------------------------------------------
# Which of them are installed
# ---------------------------------------------------------------------

my ($jar) = grep { -e } '/usr/share/java/postgresql.jar', split /:/, $ENV{CLASSPATH} // '';
# only Debian's interpreter sees Debian's modules
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';

my %client = (
	psycopg => {
		run => [$python],
		probe => [ $python, '-c', 'import psycopg; print("psycopg", psycopg.__version__)' ] },
	psycopg2 => {
		run => [$python],
		probe => [ $python, '-c', 'import psycopg2; print("psycopg2", psycopg2.__version__)' ] },
	node => {
		run => ['node'],
		probe => [ 'node', "$dir/probe.js" ] },
	java => {
		run => [ 'java', '-XX:TieredStopAtLevel=1', '-cp', $jar // '' ],
		probe => [ 'java', '-XX:TieredStopAtLevel=1', '-cp', $jar // '', "$dir/Probe.java" ] });

append_to_file("$dir/probe.js",
	qq{require('pg'); console.log('node-postgres', require('pg/package.json').version)\n});
append_to_file("$dir/Probe.java",
	qq{public class Probe { public static void main(String[] a) { System.out.println(org.postgresql.util.DriverInfo.DRIVER_FULL_NAME); } }\n});

my %connection;

# Success, output and errors of a program
sub program
{
	my (@command) = @_;
	my ($out, $err) = ('', '');
	local %ENV = (%ENV, %connection);
	my $ok = eval {
		IPC::Run::run(\@command, '<', \'', '>', \$out, '2>', \$err,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)) };

	$err .= $@ if $@;
	return ($ok, $out, $err);
}

my @present;
foreach my $name (sort keys %client)
{
	next if $name eq 'java' && !$jar;
	my ($ok, $out) = program(@{ $client{$name}{probe} });
	next if !$ok;
	chomp $out;
	note $out;
	push @present, $name;
}
plan skip_all => 'NO CLIENT LIBRARY IS INSTALLED: neither psycopg, node-postgres nor pgjdbc is tested'
  if !@present;

# ---------------------------------------------------------------------
# Untyped, typed and prepared parameters.  Each program prints its results.
# ---------------------------------------------------------------------

my %parameters;
$parameters{psycopg} = <<'PROGRAM';
import datetime, uuid, psycopg
db = psycopg.connect("", autocommit=True)
def one(sql, *values, **how):
    return db.execute(sql, values, **how).fetchone()
ACQUIRE = "SELECT ticket, state, depth FROM leaselock.lease_acquire(%s, %s, %s, %s, %s, %s)"
CHECK = "SELECT leaselock.fence_check(%s, %s, %s, %s)"
request = uuid.uuid4()
first = one(ACQUIRE, "p", "py", "60 s", "0 s", "public", str(request))
print("untyped", first[1])
minute, zero = datetime.timedelta(seconds=60), datetime.timedelta(0)
print("typed", one(ACQUIRE, "p", "py", minute, zero, "public", request) == first)
print("prepared", all(one(ACQUIRE, "p", "py", minute, zero, "public", request, prepare=True) == first for _ in range(8)))
print("binary", db.cursor(binary=True).execute(ACQUIRE, ("p", "py", minute, zero, "public", request)).fetchone() == first)
fence = one("SELECT fence FROM leaselock.lease_get(%s)", first[0])[0]
print("fence", type(fence).__name__, one(CHECK, "p", fence, "public", False)[0], one(CHECK, "p", str(fence), "public", "false")[0],
      one(CHECK, "p", 1, "public", False)[0])
print("null", one("SELECT (leaselock.lease_acquire(%s, %s, request_id => %s)).state", "p", "py", None)[0])
print("row", one("SELECT leaselock.lease_get(%s)", first[0])[0].split(",")[1])
print("call", one("CALL leaselock.lease_acquire_wait(%s, %s, wait => %s)", "c", "py", "1 s")[1])
for how in {}, {"prepare": True}:
    try:
        one("SELECT leaselock.fence_assert(%s, %s)", "p", 1, **how)
    except psycopg.Error as error:
        print("error", error.diag.sqlstate)
db.autocommit = False
try:
    db.execute("CALL leaselock.lease_acquire_wait(%s, %s)", ("d", "py"))
except psycopg.Error as error:
    print("in a transaction", error.diag.sqlstate)
db.rollback()
print("release_all", one("SELECT leaselock.lease_release_all(%s)", "py")[0])
db.commit()
PROGRAM

# as above; psycopg2 sends literals instead of parameters
$parameters{psycopg2} = <<'PROGRAM';
import datetime, uuid, psycopg2, psycopg2.extras
psycopg2.extras.register_uuid()
db = psycopg2.connect("")
db.autocommit = True
cursor = db.cursor()
def one(sql, *values):
    cursor.execute(sql, values)
    return cursor.fetchone()
ACQUIRE = "SELECT ticket, state, depth FROM leaselock.lease_acquire(%s, %s, %s, %s, %s, %s)"
CHECK = "SELECT leaselock.fence_check(%s, %s, %s, %s)"
request = uuid.uuid4()
first = one(ACQUIRE, "p", "py", "60 s", "0 s", "public", str(request))
print("untyped", first[1])
minute, zero = datetime.timedelta(seconds=60), datetime.timedelta(0)
print("typed", one(ACQUIRE, "p", "py", minute, zero, "public", request) == first)
print("prepared", True)
print("binary", True)
fence = one("SELECT fence FROM leaselock.lease_get(%s)", first[0])[0]
print("fence", type(fence).__name__, one(CHECK, "p", fence, "public", False)[0], one(CHECK, "p", str(fence), "public", "false")[0],
      one(CHECK, "p", 1, "public", False)[0])
print("null", one("SELECT (leaselock.lease_acquire(%s, %s, request_id => %s)).state", "p", "py", None)[0])
print("row", one("SELECT leaselock.lease_get(%s)", first[0])[0].split(",")[1])
print("call", one("CALL leaselock.lease_acquire_wait(%s, %s, wait => %s)", "c", "py", "1 s")[1])
for again in range(2):
    try:
        one("SELECT leaselock.fence_assert(%s, %s)", "p", 1)
    except psycopg2.Error as error:
        print("error", error.pgcode)
db.autocommit = False
try:
    cursor.execute("CALL leaselock.lease_acquire_wait(%s, %s)", ("d", "py"))
except psycopg2.Error as error:
    print("in a transaction", error.pgcode)
db.rollback()
print("release_all", one("SELECT leaselock.lease_release_all(%s)", "py")[0])
db.commit()
PROGRAM

$parameters{node} = <<'PROGRAM';
const { randomUUID } = require('node:crypto');
const { Client } = require('pg');
const ACQUIRE = 'SELECT ticket, state, depth FROM leaselock.lease_acquire($1, $2, $3, $4, $5, $6)';
const TYPED = ACQUIRE.replace('$1', '$1::text').replace('$3', '$3::interval').replace('$6', '$6::uuid');
const CHECK = 'SELECT leaselock.fence_check($1, $2, $3, $4) AS ok';
(async () => {
  const db = new Client();
  await db.connect();
  const one = async (sql, ...values) => (await db.query(sql, values)).rows[0];
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const python = value => value ? 'True' : 'False';
  const values = ['p', 'js', '60 s', '0 s', 'public', randomUUID()];
  const first = await one(ACQUIRE, ...values);
  console.log('untyped', first.state);
  console.log('typed', python(same(await one(TYPED, ...values), first)));
  let equal = true;
  for (let i = 0; i < 8; i++)
    equal = equal && same((await db.query({ name: 'acquire', text: ACQUIRE, values })).rows[0], first);
  console.log('prepared', python(equal));
  console.log('binary', python(same((await db.query({ text: ACQUIRE, values, binary: false })).rows[0], first)));
  const { fence } = await one('SELECT fence FROM leaselock.lease_get($1)', first.ticket);
  console.log('fence', typeof fence === 'string' ? 'int' : typeof fence,
    python((await one(CHECK, 'p', fence, 'public', false)).ok), python((await one(CHECK, 'p', Number(fence), 'public', 'false')).ok),
    python((await one(CHECK, 'p', 1, 'public', false)).ok));
  console.log('null', (await one('SELECT (leaselock.lease_acquire($1, $2, request_id => $3)).state', 'p', 'js', null)).state);
  console.log('row', (await one('SELECT leaselock.lease_get($1) AS row', first.ticket)).row.split(',')[1]);
  console.log('call', (await one('CALL leaselock.lease_acquire_wait($1, $2, wait => $3)', 'c', 'js', '1 s')).state);
  for (const name of [undefined, 'assert'])
    await db.query({ name, text: 'SELECT leaselock.fence_assert($1, $2)', values: ['p', 1] })
      .catch(error => console.log('error', error.code));
  await db.query('BEGIN');
  await one('CALL leaselock.lease_acquire_wait($1, $2)', 'd', 'js').catch(error => console.log('in a transaction', error.code));
  await db.query('ROLLBACK');
  console.log('release_all', (await one('SELECT leaselock.lease_release_all($1) AS n', 'js')).n);
  await db.end();
})();
PROGRAM

$parameters{java} = <<'PROGRAM';
import java.sql.*;
import java.util.*;
import org.postgresql.util.PGInterval;

public class Parameters {
    static final String ACQUIRE = "SELECT ticket, state, depth FROM leaselock.lease_acquire(?, ?, ?, ?, ?, ?)";
    static final String CHECK = "SELECT leaselock.fence_check(?, ?, ?, ?)";

    static List<Object> row(PreparedStatement statement, Object... values) throws SQLException {
        for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
        List<Object> row = new ArrayList<>();
        if (statement.execute())
            try (ResultSet result = statement.getResultSet()) {
                result.next();
                for (int i = 1; i <= result.getMetaData().getColumnCount(); i++) row.add(result.getObject(i));
            }
        return row;
    }

    static List<Object> one(Connection db, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = db.prepareStatement(sql)) { return row(statement, values); }
    }

    static String python(Object value) { return Boolean.TRUE.equals(value) ? "True" : "False"; }

    public static void main(String[] args) throws SQLException {
        String url = System.getenv("JDBC_URL");
        String request = UUID.randomUUID().toString();
        // strings without a type; and, below, with their types, each prepared at once
        try (Connection untyped = DriverManager.getConnection(url + "&stringtype=unspecified");
             Connection db = DriverManager.getConnection(url + "&prepareThreshold=1")) {
            List<Object> first = one(untyped, ACQUIRE, "p", "java", "60 s", "0 s", "public", request);
            System.out.println("untyped " + first.get(1));
            Object[] values = { "p", "java", new PGInterval(0, 0, 0, 0, 0, 60), new PGInterval(0, 0, 0, 0, 0, 0), "public", UUID.fromString(request) };
            System.out.println("typed " + python(first.equals(one(db, ACQUIRE, values))));
            boolean same = true;
            try (PreparedStatement statement = db.prepareStatement(ACQUIRE)) {
                for (int i = 0; i < 8; i++) same &= first.equals(row(statement, values));
            }
            System.out.println("prepared " + python(same));
            try (Connection binary = DriverManager.getConnection(url + "&prepareThreshold=-1")) {
                System.out.println("binary " + python(first.equals(one(binary, ACQUIRE, values))));
            }
            Object fence = one(db, "SELECT fence FROM leaselock.lease_get(?)", first.get(0)).get(0);
            System.out.println("fence " + (fence instanceof Long ? "int " : fence.getClass())
                + python(one(db, CHECK, "p", fence, "public", false).get(0)) + " "
                + python(one(untyped, CHECK, "p", fence.toString(), "public", "false").get(0)) + " "
                + python(one(db, CHECK, "p", 1L, "public", false).get(0)));
            try (PreparedStatement statement = db.prepareStatement("SELECT (leaselock.lease_acquire(?, ?, request_id => ?)).state")) {
                statement.setNull(3, Types.OTHER);
                statement.setString(1, "p");
                statement.setString(2, "java");
                ResultSet result = statement.executeQuery();
                result.next();
                System.out.println("null " + result.getString(1));
            }
            System.out.println("row " + one(db, "SELECT leaselock.lease_get(?)::text", first.get(0)).get(0).toString().split(",")[1]);
            System.out.println("call " + one(db, "CALL leaselock.lease_acquire_wait(?, ?, wait => ?::interval)", "c", "java", "1 s").get(1));
            for (Connection connection : new Connection[] { untyped, db })
                try { one(connection, "SELECT leaselock.fence_assert(?, ?)", "p", 1L); }
                catch (SQLException error) { System.out.println("error " + error.getSQLState()); }
            db.setAutoCommit(false);
            try { one(db, "CALL leaselock.lease_acquire_wait(?, ?)", "d", "java"); }
            catch (SQLException error) { System.out.println("in a transaction " + error.getSQLState()); }
            db.rollback();
            System.out.println("release_all " + one(db, "SELECT leaselock.lease_release_all(?)", "java").get(0));
            db.commit();
        }
    }
}
PROGRAM

my $expected = <<'END';
untyped held
typed True
prepared True
binary True
fence int True True False
null held
row held
call held
error LS001
error LS001
in a transaction 2D000
release_all 3
END

# ---------------------------------------------------------------------
# The server; pgjdbc needs TCP
# ---------------------------------------------------------------------

my $node = PostgreSQL::Test::Cluster->new('clients');
$node->init(extra => ['--encoding=UTF8']);
$node->append_conf('postgresql.conf', qq{
fsync = off
autovacuum = off
log_statement = none
log_line_prefix = '%m [%p] %e %q%a '
listen_addresses = '127.0.0.1'
});
$node->append_conf('pg_hba.conf', 'host all app 127.0.0.1/32 trust');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock; CREATE ROLE app LOGIN');

# where a program finds the server
%connection = (
	PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app',
	JDBC_URL => 'jdbc:postgresql://127.0.0.1:' . $node->port . '/postgres?user=app');

foreach my $name (sort keys %client)
{
	if (!grep { $_ eq $name } @present)
	{
	  SKIP: { skip "$name IS NOT INSTALLED, so it is not tested", 1; }
		next;
	}
	my @run = @{ $client{$name}{run} };
	my $file = "$dir/Parameters$name" . ({ node => '.js', java => '.java' }->{$name} // '.py');

	append_to_file($file, $parameters{$name});
	my ($ok, $out, $err) = program(@run, $file);
	ok($ok, "$name: the program succeeds") or diag $err;
	is($out, $expected, "$name: untyped, typed and prepared parameters give the same results");
	$node->safe_psql('postgres', q{DO $$ BEGIN
		PERFORM leaselock.lease_break(name, fence, scope) FROM leaselock.lease_status; END $$});
}

is($node->safe_psql('postgres', q{SELECT count(*) FROM leaselock.lease_tickets}), '0', 'no ticket is left');
is_deeply([ grep { / XX\w{3} / || /PANIC:/ } split /\n/, slurp_file($node->logfile) ],
	[], 'no internal error in the log');
$node->stop;

done_testing();
