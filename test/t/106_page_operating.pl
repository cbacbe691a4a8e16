# doc/operating.md: its blocks, as they stand there, and what the page says of them.
#
# Native only: no server version matters to it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $has_program = grep { -x "$_/leaselock" } split /:/, $ENV{PATH};
# Debian's modules are seen by Debian's interpreter alone
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my $has_psycopg = eval { run_log([ $python, '-c', 'import psycopg' ], '>', \my $out, '2>', \my $err) };

my $node = new_node('operating', q{
max_prepared_transactions = 5
wal_level = replica
max_wal_senders = 1
leaselock.waiter_timeout = '5min'
});
my $page = PageTest->new('doc/operating.md',
	node => $node,
	psql => [ '\set VERBOSITY verbose', '\set SHOW_CONTEXT never' ],
	env => { LOGFILE => $node->logfile },
	# how long something lasts, and numbers of more than one digit
	normal => sub { s/\b\d+:\d\d:\d\d\b/DURATION/g; s/\b\d{2,}\b/N/g; s/^NOTICE: +\w{5}:/NOTICE:/mg },
	language => { python => sub { run_reader($_[1]) } },
	session => { log => sub { compare_log($_[1]) } },
	skip => { $has_program ? () : (cli => 'the program leaselock is not built'), $has_psycopg ? () : (python => 'psycopg IS NOT INSTALLED') });

sub sql { return $page->sql(@_) }
sub run_sql { return $page->run_sql(@_) }
sub as { return node_outcome($node, "SET SESSION AUTHORIZATION $_[0]; $_[1]", $_[2]) }

# what the whole page needs
$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE jobs LOGIN; CREATE ROLE jobs_owner LOGIN; CREATE ROLE guest LOGIN;
CREATE ROLE app LOGIN; CREATE ROLE dba LOGIN SUPERUSER;
CREATE ROLE watch LOGIN IN ROLE pg_monitor;
CREATE DATABASE jobs OWNER jobs_owner;
CREATE TABLE report (line text);
GRANT INSERT ON report TO jobs});

# ---------------------------------------------------------------------
# The sheet
# ---------------------------------------------------------------------

# another_clock(OFFSET): for a superuser who then goes on as jobs
sub another_clock { return "LOAD 'leaselock'; SET leaselock.clock_offset = '$_[0]'; SET ROLE jobs; " }

my %ticket;

sub set_the_scene
{
	sql(another_clock('-260 s') . q{SELECT FROM leaselock.lease_acquire('index', 'host-c')});
	$ticket{import} = sql(q{SET ROLE jobs; SELECT ticket FROM leaselock.lease_acquire('import', 'host-c', '300 s')});
	$ticket{nightly} = sql(q{SET ROLE jobs; SELECT ticket FROM leaselock.lease_acquire('nightly', 'host-a', '300 s', note => 'report, pid 7')});
	$ticket{$_} = sql("SET ROLE jobs; SELECT ticket FROM leaselock.lease_acquire('nightly', '$_', wait => '300 s')") foreach qw(host-b host-d);
	run_sql('careless', "\\c - jobs\nSET application_name = 'careless'; BEGIN; SELECT state FROM leaselock.lease_acquire('backup', 'careless');");
	sql(q{SET ROLE jobs; BEGIN; SELECT leaselock.fence_assert(name, fence) FROM leaselock.lease_peek('import'); PREPARE TRANSACTION 'import-42'});
	# one that has only looked keeps nothing
	run_sql('looks', q{BEGIN; SELECT FROM leaselock.lease_peek('nightly'); SELECT leaselock.fence_check('nightly', 1);});
	# a worker in the middle of its work
	run_sql('stalled', q{SET SESSION AUTHORIZATION jobs; BEGIN; SELECT leaselock.fence_assert(name, fence) FROM leaselock.lease_peek('nightly');
		INSERT INTO report VALUES ('stalled');});
	return;
}

# the same to a member of pg_monitor
sub seen_by_monitor
{
	my ($name) = @_;

	run_sql('watch', 'SET SESSION AUTHORIZATION watch;');
	is($page->plain(run_sql('watch', $page->block($name))), $page->plain($page->{printed}{$name}), "$name: a member of pg_monitor sees it");
	return;
}

$page->before(
	holders => sub { set_the_scene() },
	sizes => sub { sql('ANALYZE leaselock.tickets') });
$page->after(map { my $name = $_; $name => sub { seen_by_monitor($name) } } qw(one waiters lapsed prepared));
$page->after(
	holders => sub {
		seen_by_monitor('holders');
		is(sql(q{SELECT state FROM leaselock.lease_acquire('index', 'x', wait => '0 s', scope => 'elsewhere')}), 'held', 'scopes have nothing to do with each other');
	},
	transactions => sub {
		seen_by_monitor('transactions');
		my ($pid) = $page->{printed}{transactions} =~ /^ +(\d+) \| jobs/m or die $page->{printed}{transactions};
		is(sql(q{SELECT state, holder IS NULL FROM leaselock.lease_acquire('backup', 'host-a')}), 'contended|t', 'contended, and the lock has no holder');
		is(sql("SELECT pg_terminate_backend($pid, 10000)"), 't', 'the transaction is ended');
		is(sql(q{SET ROLE jobs; SELECT state FROM leaselock.lease_acquire('backup', 'host-a')}), 'held', 'the lock can be had');
		delete $page->{psql_sessions}{careless};
	},
	prepared => sub {
		seen_by_monitor('prepared');
		like($page->{printed}{prepared}, qr/import-42/, 'what is prepared is found');
		is(node_outcome($node, q{SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('import')}), '55P03', 'while it is there the grant cannot be broken');
		is(as('jobs', q{SELECT leaselock.lease_release_all('host-c')}), '55P03', 'nor released');
		is(as('jobs', "SELECT state FROM leaselock.lease_renew('$ticket{import}')"), 'held', 'but renewed');
		is(sql(q{LOAD 'leaselock'; SET leaselock.clock_offset = '10 min'; SELECT state FROM leaselock.lease_acquire('import', 'late')}), 'contended', 'past the lease it still keeps the lock');
		sql(q{ROLLBACK PREPARED 'import-42'});
		is(as('jobs', q{SELECT leaselock.lease_release_all('host-c')}), '1', 'then it can');
		like(run_sql('dba', $page->block('prepared')), qr/\A[^\n]*gid[^\n]*\n[-+]+\n\s*\z/, 'and nothing is found');
		run_sql('dba', 'SET leaselock.log_breaks = on;');
	},
	lapsed => sub {
		seen_by_monitor('lapsed');
		is(sql(q{SELECT state FROM leaselock.lease_acquire('index', 'next')}), 'held', 'it blocks nobody');
		like(run_sql('dba', $page->block('lapsed')), qr/\A[^\n]*lapsed_for[^\n]*\n[-+]+\n\s*\z/, 'it is taken over');
	},
	break => sub {
		is(sql(q{SELECT owner FROM leaselock.lease_peek('nightly')}), 'host-b', 'the first waiter is promoted');
		is(sql("SET ROLE jobs; SELECT state FROM leaselock.lease_get('$ticket{nightly}')"), 'broken', 'the former holder learns of it');
		is(run_sql('stalled', q{INSERT INTO report VALUES ('goes on');}), '', 'its code goes on running');
		like(run_sql('stalled', 'COMMIT;'), qr/^ERROR:  LS001:/m, 'what it has fenced does not commit');
		is(sql('SELECT count(*) FROM report'), '0', 'nothing is written');
		# \gset has kept the fence
		like(run_sql('dba', q{SELECT leaselock.lease_break('nightly', :fence) AS again;}), qr/\n f\n/, 'that is not the present grant any more');
		is(sql(q{SELECT leaselock.lease_break(name, fence, 'elsewhere') FROM leaselock.lease_peek('nightly')}), 'f', 'false for a wrong scope');
		is(sql(q{SELECT owner FROM leaselock.lease_peek('nightly')}), 'host-b', 'it has changed nothing');
		is(sql("SET ROLE jobs; SELECT position FROM leaselock.lease_get('$ticket{'host-d'}')"), '1', 'the next one is the first of the queue');
	},
	sizes => sub {
		my $printed = $page->printed('sizes');
		like($printed, qr/^ +$_ +\| +\d+ \w+ +\| +\d/m, "the size of $_") foreach qw(locks tickets events blockers);
	},
	limits => sub {
		my $printed = $page->printed('limits');
		like($printed, qr/^ +leaselock\.max_lease +\| 5min +\| default/m, 'a limit in force');
		like($printed, qr/^ +leaselock\.waiter_timeout +\| 5min +\| configuration file/m, 'and where it comes from');
		is(as('guest', $page->block('limits') =~ s/\A.*?;//sr), '', 'without the first statement there are none');
		like(as('guest', $page->block('limits')), qr/^leaselock\.max_wait\|5min\|default$/m, 'and with it anybody sees them');
	},
	grep => sub {
		like($page->printed('grep'), qr/lease broken: lock "nightly" [^\n]*by session role [^\n]*$/, 'what has happened: the log');
	},
	'last-events' => sub {
		like($page->printed('last-events'), qr/\A[^\n]*\bat\b.*kind[^\n]*\n[-+]+\n\s*\z/, 'what has happened: no events unless they are on');
	});

# ---------------------------------------------------------------------
# Events
# ---------------------------------------------------------------------

# the reader of the page, with what it leaves to others, until it has read all
sub run_reader
{
	my ($reader) = @_;
	my $program = $page->dir . '/reader.py';

	append_to_file($program, <<'PROGRAM' . $reader);
import psycopg
connection = psycopg.connect("", autocommit=True, client_encoding="utf8")
cursor_file = "cursor"
class time:
    def sleep(seconds):
        raise SystemExit
def load_cursor():
    try:
        return open(cursor_file).read().split()
    except FileNotFoundError:
        return None, None
def save_cursor(xid, id):
    open(cursor_file, "w").write(f"{xid} {id}")
def handle(event):
    print(event[1], event[3])
PROGRAM
	my $read = sub {
		my $shell = $page->start_shell("$python $program");
		is($page->shell_status($shell), 0, 'the reader: status 0') or diag $shell->{out};
		return $shell->{out};
	};
	my $all = sql(q{SELECT string_agg(kind || ' ' || name, E'\n' ORDER BY xid, id) FROM leaselock.events});
	is($read->(), "$all\n", 'the reader: it reads everything from the first');
	sql(q{SELECT leaselock.lease_release(t.ticket) FROM leaselock.lease_acquire('more', 'm') t; SELECT leaselock.try_lock('last', 'm', '1 s')});
	is($read->(), "granted more\nreleased more\ngranted last\n", 'the reader: then what has come since');
	is($read->(), '', 'the reader: nothing twice');
	return '';
}

# a transaction that began to write first and changed the lease last
sub check_order
{
	my $events = q{SELECT string_agg(kind || ' ' || owner, ', ' ORDER BY %s) FROM leaselock.lease_events() WHERE name = 'order'};

	run_sql('first', 'BEGIN; SELECT pg_current_xact_id() IS NOT NULL AS writes;');
	sql(q{SELECT leaselock.try_lock('order', 'second', '1 min'); SELECT leaselock.release_lock('order', 'second')});
	run_sql('elsewhere', '\c jobs');
	run_sql('elsewhere', 'BEGIN; SELECT pg_current_xact_id() IS NOT NULL AS writes;');
	run_sql('first', q{SELECT leaselock.try_lock('order', 'first', '1 min') > 0 AS held;});
	is(sql(sprintf $events, 'xid, id'), '', 'events are held back by a transaction that began to write earlier');
	run_sql('first', 'COMMIT;');
	is(sql(sprintf $events, 'xid, id'), 'granted first, granted second, released second', 'then they come in the order of their transactions');
	is(sql(sprintf $events, $_), 'granted second, released second, granted first', "what happened first: by $_") foreach 'at', 'fence, at';
	sql(q{SELECT leaselock.release_lock('order', 'first')});
	is(sql(sprintf $events, 'xid, id'), 'granted first, granted second, released second', 'a transaction in another database holds them back, too');
	run_sql('elsewhere', 'COMMIT;');
	is(sql(sprintf $events, 'at'), 'granted second, released second, granted first, released first', 'until it has ended');
	return;
}

$page->before(
	work => sub { run_sql('worker', 'SET SESSION AUTHORIZATION jobs;') },
	'events-on' => sub {
		is(node_outcome($node, 'ALTER DATABASE postgres SET leaselock.events = all'), '42601', "'all' needs its quotes");
		is(as('jobs_owner', q{ALTER DATABASE jobs SET leaselock.events = 'all'}), '42501', 'not everybody has the right');
	});
$page->after(
	'events-on' => sub {
		run_sql('dba', q{SELECT leaselock.try_lock('unrecorded', 'x', '1 s') AS fence;});
		is(sql('SELECT count(*) FROM leaselock.events'), '0', 'sessions that were there before record nothing');
	},
	'cli-events' => sub {
		like($page->printed('cli-events'), qr/granted.*nightly-mail.*host-b/, 'the shell: the events of today');
		like(run_sql('dba', $page->block('last-events')), qr/released \| public \| nightly-mail \| host-b \| jobs/, 'the last events');
		# undone
		run_sql('gap', q{BEGIN; SELECT FROM leaselock.lease_acquire('one', 'x'); SAVEPOINT s; SELECT FROM leaselock.lease_acquire('two', 'x');
			ROLLBACK TO s; SELECT FROM leaselock.lease_acquire('three', 'x'); COMMIT;});
		is(sql(q{SELECT string_agg(name || id, ' ' ORDER BY xid, id) FROM leaselock.lease_events() WHERE name IN ('one', 'two', 'three')}),
			'one1 three3', 'what a savepoint undid leaves a gap');
		check_order();
		is(as('guest', q{SELECT count(*) FROM leaselock.lease_events() WHERE scope IS NULL}), '0', 'events without a scope are not for everybody');
	});

# ---------------------------------------------------------------------
# The server's log
# ---------------------------------------------------------------------

# plays what the page shows, and compares the lines
sub compare_log
{
	my ($shown) = @_;
	my $offset;

	$node->safe_psql('postgres', q{
		SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('nightly');
		SET ROLE jobs; SELECT leaselock.lease_release_all('host-d'), leaselock.lease_release_all('host-b')});
	sql('GRANT SET ON PARAMETER leaselock.clock_offset TO app');
	run_sql('worker-1', q{SET application_name = 'worker-1'; SET SESSION AUTHORIZATION app;});
	run_sql('worker-1', q{SELECT fence FROM leaselock.lease_acquire('nightly', 'worker-1') \gset
		BEGIN; SELECT leaselock.fence_assert('nightly', :fence);});
	$offset = -s $node->logfile;
	sql(q{LOAD 'leaselock'; SET SESSION AUTHORIZATION app; SET leaselock.clock_offset = '62113 ms';
		SELECT state FROM leaselock.lease_acquire('nightly', 'worker-2')});
	run_sql('breaker', q{SET application_name = 'psql'; SET SESSION AUTHORIZATION dba; LOAD 'leaselock'; SET leaselock.clock_offset = '71 s';
		SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('nightly');});
	like(run_sql('worker-1', 'COMMIT;'), qr/LS001/, 'log: a commit is refused');
	my @lines = map { s/.*? LOG: /LOG: /r } grep { / LOG: .*(?:lease |stale commit)/ }
	  split /\n/, slurp_file($node->logfile, $offset);
	is($page->plain(join "\n", @lines), $page->plain($shown), 'log: the lines of the page');
	return '';
}

# ---------------------------------------------------------------------
# Pruning
# ---------------------------------------------------------------------

my $request = '6f0d7a2e-4d3f-4c55-9d5a-7a0f5a3f2f10';

$page->before(
	prune => sub {
		is(sql('SELECT leaselock.lease_prune()'), '0', 'nothing is old enough');
		$ticket{fresh} = sql(q{SELECT (leaselock.lease_release(t.ticket)).ticket FROM leaselock.lease_acquire('fresh', 'a') t});
		is(sql(q{SELECT leaselock.lease_prune('0') >= 0}), 't', 'it is told to remove everything');
		is(sql("SELECT state FROM leaselock.lease_get('$ticket{fresh}')"), 'released', 'an ended ticket is kept all the same');
		$ticket{old} = sql(another_clock('-2 h') . qq{SELECT (leaselock.lease_release(t.ticket)).ticket
			FROM leaselock.lease_acquire('pruned', 'a', request_id => '$request') t});
	});
$page->after(
	prune => sub {
		is(sql("SET ROLE jobs; SELECT state FROM leaselock.lease_get('$ticket{old}')"), 'gone', 'a pruned ticket is gone');
		is(sql("SET ROLE jobs; SELECT state FROM leaselock.lease_acquire('pruned', 'a', request_id => '$request')"), 'held', 'its request id is forgotten');
	});
$page->before('prune-all' => sub {
	sql(another_clock('-2 h') . q{SELECT FROM generate_series(1, 1600) n, leaselock.try_lock('idle ' || n, 'a', '1 s') f, leaselock.release_lock('idle ' || n, 'a')});
	my $read = q{BEGIN; SELECT count(*) FROM leaselock.%s; SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) %s
		FROM pg_stat_xact_user_tables WHERE schemaname = 'leaselock' AND relname = 'locks'; COMMIT};
	like(sql(sprintf $read, 'lease_status', '>= 1600'), qr/\nt\z/, 'lease_status reads idle locks, too');
	is(sql(sprintf $read, q{lease_peek('idle 1')}, '<= 2'), "0\nt", 'lease_peek finds its lock by key');
	my $removed = sql(q{SELECT leaselock.lease_prune('1 hour')});
	is($removed, 500, 'one call removes 500 idle locks');
	run_sql('holds', q{BEGIN; SELECT FROM leaselock.lease_acquire('idle 1600', 'holds');});
});
$page->after('prune-all' => sub {
	is(sql(q{SELECT count(*) FROM leaselock.locks WHERE name LIKE 'idle %'}), '1', 'many remove all but what is busy');
	run_sql('holds', 'ROLLBACK;');
});

# ---------------------------------------------------------------------
# Scopes, operators, settings
# ---------------------------------------------------------------------

$page->before(scope => sub {
	$ticket{strange} = sql(q{SET ROLE jobs; SELECT ticket FROM leaselock.lease_acquire('x', 'stranger', scope => 'teams/platform')});
	$ticket{stranger} = sql(q{SET ROLE jobs; SELECT ticket FROM leaselock.lease_acquire('x', 'other', wait => '60 s', scope => 'teams/platform')});
});
$page->after(
	scope => sub {
		is(sql("SET ROLE jobs; SELECT state FROM leaselock.lease_get('$ticket{strange}')"), 'broken', 'grants of others are broken');
		is(sql("SET ROLE jobs; SELECT state FROM leaselock.lease_get('$ticket{stranger}')"), 'cancelled', 'their waits cancelled');
		my $try = q{SELECT leaselock.try_lock('x', 'y', '1 min', scope => 'teams/platform')};
		is(as('guest', $try), '42501', 'others are refused');
		is(as('guest', $try =~ s/platform/platform\/website/r . ' > 0'), 't', 'exactly that text is the scope');
		is(as('guest', q{SELECT count(*) FROM leaselock.lease_scopes}), '0', 'others do not see it');
		sql('GRANT platform TO guest');
		is(as('guest', "$try > 0"), 't', 'members are let in');
		is(as('guest', q{SELECT count(*) FROM leaselock.lease_status WHERE scope = 'teams/platform'}), '1', 'and see');
		is(as('jobs', q{SELECT count(*) FROM leaselock.lease_status WHERE scope = 'teams/platform'}), '0', 'what others do not');
		is(as('watch', q{SELECT count(*) FROM leaselock.lease_status WHERE scope = 'teams/platform'}), '1', 'but for members of pg_monitor');
		is(sql(q{SELECT leaselock.lease_scope_create('teams/platform', 'jobs'); SELECT role FROM leaselock.lease_scopes}), "\njobs", 'a second call moves the scope');
		is(as('guest', $try), '42501', 'its former users are out');
		is(sql(q{SELECT leaselock.lease_scope_drop('teams/platform'), leaselock.lease_scope_drop('teams/platform')}), 't|f', 'it is opened, and false says that it was not registered');
		is(as('watch', "$try > 0"), 't', 'to everybody');
	},
	operator => sub {
		is(as('operator', q{SELECT leaselock.lease_break('none', 1), leaselock.lease_prune() >= 0}), 'f|t', 'an operator may do what was granted');
		is(as('operator', q{SELECT leaselock.fence_bump()}), '42501', 'and no more');
	},
	idle => sub {
		is(sql(q{SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'jobs'::regrole}), '{"idle_in_transaction_session_timeout=1 min"}', 'the limit is set');
	});
$page->before(
	'grant-set' => sub {
		is(as('jobs_owner', q{CREATE EXTENSION leaselock}, 'jobs'), '', 'the owner of a database installs it');
		is(as('jobs_owner', q{ALTER DATABASE jobs SET leaselock.max_lease = '10 min'}), '42501', 'and may not set its limits');
		is(sql(q{SELECT leaselock.lease_break('x', 1)}), 'f', 'a superuser may do everything');
		is(as('jobs_owner', q{SELECT leaselock.lease_scope_create('s', 'app')}, 'jobs'), '', 'an owner registers a scope to another role');
		is(as('jobs_owner', q{SELECT leaselock.try_lock('x', 'y', '1 s', 's')}, 'jobs'), '42501', 'and cannot acquire in it');
	},
	'set-limit' => sub { run_sql('owner', 'SET SESSION AUTHORIZATION jobs_owner;') });
$page->after('set-limit' => sub {
	is(as('jobs_owner', 'CREATE INDEX ON leaselock.locks (owner)', 'jobs'), '42501', "an owner of the database is not the owner of the extension's tables");
	is(as('jobs_owner', q{SELECT state FROM leaselock.lease_acquire('long', 'a', '10 min')}, 'jobs'), 'held', 'then he may');
	is(as('jobs_owner', q{ALTER DATABASE jobs SET leaselock.max_wait = '10 min'}), '42501', 'what was granted, and no more');
	is(node_outcome($node, q{ALTER DATABASE jobs SET leaselock.max_laese = '10 min'; ALTER DATABASE jobs RESET leaselock.max_laese}), '', 'a misspelt name goes unnoticed');
	is(node_outcome($node, q{LOAD 'leaselock'; ALTER DATABASE jobs SET leaselock.max_laese = '10 min'}), '42602', 'unless the library is loaded');
});

# ---------------------------------------------------------------------
# Version, fences
# ---------------------------------------------------------------------

my $fence;

$page->before(
	'drop-refused' => sub {
		sql(q{CREATE TABLE ledger (amount int);
			CREATE TRIGGER ledger_fence BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION leaselock.fence_guard('transaction', 'ledger')});
	},
	bump => sub { $fence = sql(q{SELECT leaselock.try_lock('bumped', 'a', '1 min')}) });
$page->after(
	version => sub {
		is(sql(q{SELECT extversion FROM pg_extension WHERE extname = 'leaselock'}), sql(q{SELECT installed_version FROM pg_available_extensions WHERE name = 'leaselock'}),
			'it is the version of this database');
		like(slurp_file("$FindBin::RealBin/../../contrib/sql_exporter.yml"), qr/\A(?:#.*\n)*#   CREATE ROLE \w+ LOGIN IN ROLE pg_monitor;\n/, 'the configuration of the exporter says which role it needs');
		check_dumps();
		check_publications();
		set_clock_back();
	  SKIP: {
			skip 'the program leaselock is not built', 1 if !$has_program;
			run_log([qw(leaselock --version)], '>', \my $version);
			like($version, qr/^leaselock \d/, 'and that of the program');
		}
	},
	bump => sub {
		my ($floor) = $page->{printed}{bump} =~ /(\d{15})/;
		cmp_ok($floor - $fence, '>', 365 * 86400 * 1e6, "a year's worth above every fence on record");
		my $next = sql(q{SELECT leaselock.release_lock('bumped', 'a'); SELECT leaselock.try_lock('bumped', 'a', '1 min')}) =~ s/t\n//r;
		cmp_ok($next, '>', $floor, 'fences are above the floor');
		cmp_ok(sql(q{SELECT leaselock.release_lock('bumped', 'a'); SELECT leaselock.try_lock('bumped', 'a', '1 min')}) =~ s/t\n//r, '>', $next + 1, 'and go on with the time');
		# the floor goes with the extension
		sql('DROP TABLE ledger; DROP EXTENSION leaselock; CREATE EXTENSION leaselock');
		cmp_ok(sql(q{SELECT leaselock.try_lock('bumped', 'a', '1 min')}), '<', $floor, 'dropping the extension takes the floor along');
		my @floors = map { sql('SELECT leaselock.fence_bump()') } 1, 2;
		cmp_ok($floors[1], '>', $next, 'raised again, it is above every fence that was seen');
		cmp_ok(sql(q{SELECT leaselock.release_lock('bumped', 'a'); SELECT leaselock.try_lock('bumped', 'a', '1 min')}) =~ s/t\n//r, '>', $next, 'as fences are');
		without_standby();
	});

# ---------------------------------------------------------------------
# Dumps, publications, the clock
# ---------------------------------------------------------------------

# copied(DATABASE, OPTIONS): what pg_dump carries into a new database
sub copied
{
	my ($database, @options) = @_;
	my $dump = $page->dir . "/$database.sql";

	sql("CREATE DATABASE $database");
	$node->command_ok([ 'pg_dump', @options, '-f', $dump, 'postgres' ], "$database: pg_dump @options");
	# that a schema exists is no matter
	$node->psql($database, undef, extra_params => [ '-f', $dump ], on_error_stop => 0, stdout => \my $out, stderr => \my $err);
	return slurp_file($dump);
}

sub check_dumps
{
	my $last = sql(q{SELECT leaselock.try_lock('dumped', 'a', '1 min')});
	my $enter = q{SELECT leaselock.try_lock(current_user::text, 'y', '1 min', 'dumped') > 0};

	# some tables, some schemas
	foreach my $options ([ '--table', 'report' ], [ '--schema', 'public' ])
	{
		my $database = 'some' . $options->[0] =~ s/\W//gr;

		unlike(copied($database, @$options), qr/leaselock\.(?:locks|floor|scopes)|EXTENSION/, "$database: nothing of the extension");
		cmp_ok($node->safe_psql($database, q{CREATE EXTENSION leaselock; SELECT leaselock.try_lock('dumped', 'a', '1 min')}),
			'>', $last, "$database: fences grow");
	}
	# a scope's role that is renamed
	sql(q{CREATE ROLE crew; CREATE ROLE mate LOGIN IN ROLE crew; SELECT leaselock.lease_scope_create('dumped', 'crew');
		ALTER ROLE crew RENAME TO gang});
	is(as('mate', $enter), 't', 'a scope follows its renamed role');
	copied('renamed');
	is(as('mate', $enter, 'renamed'), '42501', 'in a dump it goes by the former name');
	is($node->safe_psql('renamed', $enter), 't', 'no role of that name: for superusers alone');
	sql('CREATE ROLE crew; CREATE ROLE other LOGIN IN ROLE crew');
	is(as('other', $enter, 'renamed'), 't', 'until there is one');
	sql(q{SELECT leaselock.lease_scope_create('dumped', 'gang')});
	copied('registered');
	is(as('mate', $enter, 'registered'), 't', 'registered again before the dump: the scope is that of the renamed role');
	$node->safe_psql('registered', q{SELECT leaselock.lease_scope_create('dumped', 'gang')});
	sql('ALTER ROLE gang RENAME TO band');
	is(as('mate', $enter, 'registered'), 't', 'registered again after the restore: it follows the role');
	return;
}

# what a publication includes; its subscriber is in 021_logical.pl
sub check_publications
{
	my $published = q{SELECT count(*) FROM pg_publication_tables WHERE pubname = '%s' AND schemaname = 'leaselock'};

	sql('SET client_min_messages = error; CREATE PUBLICATION everything FOR ALL TABLES; CREATE PUBLICATION by_name FOR TABLE report');
	cmp_ok(sql(sprintf $published, 'everything'), '>', 0, 'FOR ALL TABLES includes the tables of leaselock');
	is(sql(sprintf $published, 'by_name'), '0', 'a publication by name does not');
	sql('DROP PUBLICATION everything; DROP PUBLICATION by_name');
	return;
}

# by more than max_lease, while a lease is held
sub set_clock_back
{
	my $at = "LOAD 'leaselock'; SET leaselock.clock_offset = '%s'; ";
	my $former = sql(sprintf($at, '400 s') . q{SELECT fence FROM leaselock.lease_acquire('stepped', 'a', '60 s')});

	is(sql(sprintf($at, '300 s') . q{SELECT remaining_ms BETWEEN 1 AND 60000 FROM leaselock.lease_peek('stepped')}), 't', 'clock: a step back by less than max_lease does not count');
	is(sql(q{SELECT remaining_ms BETWEEN 400000 AND 460000 FROM leaselock.lease_peek('stepped')}), 't', 'clock: a step by more lengthens the lease');
	is(sql(sprintf($at, '390 s') . q{SELECT state FROM leaselock.lease_acquire('stepped', 'b')}), 'contended', 'clock: by that much');
	is(sql(q{SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('stepped')}), 't', 'clock: lease_break ends it');
	cmp_ok(sql(q{SELECT leaselock.try_lock('stepped', 'b', '1 s')}), '>', $former, 'clock: the fence is greater');
	return;
}

# ---------------------------------------------------------------------
# A synchronous standby that is not there
# ---------------------------------------------------------------------

sub without_standby
{
	my $local = q{SET synchronous_commit = local; };
	my $held = sql(q{SELECT ticket FROM leaselock.lease_acquire('fenced', 'a', '300 s')});

	sql(q{LOAD 'leaselock'; SET leaselock.clock_offset = '-2 h'; SELECT leaselock.lease_release(t.ticket) FROM leaselock.lease_acquire('old', 'a') t});
	my $walwriter = sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
	kill 'STOP', $walwriter or die "could not stop the WAL writer: $!";
	is(sql(q{SELECT leaselock.lease_prune('1 hour') > 0; SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()}), "t\nt", 'lease_prune by itself does not wait for the disk');
	kill 'CONT', $walwriter;
	sql(q{LOAD 'leaselock'; SET leaselock.clock_offset = '-2 h'; SELECT leaselock.lease_release(t.ticket) FROM leaselock.lease_acquire('old', 'a') t});
	$page->end_sessions;
	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$node->restart;
	$page->begin_sql('waits', q{SELECT fence FROM leaselock.lease_peek('fenced') \gset
		BEGIN; SELECT leaselock.fence_assert('fenced', :fence); INSERT INTO report VALUES ('waits'); COMMIT;});
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'}), 'a fenced commit waits for a standby');
	like(run_sql('dba', $local . $page->block('transactions')), qr/\| active +\|[^\n]*COMMIT;/, 'query 5 finds it');
	$page->begin_sql('prunes', q{SELECT leaselock.lease_prune('1 hour') > 0 AS pruned;});
	ok($node->poll_query_until('postgres', q{SELECT state = 'idle' OR wait_event = 'SyncRep' FROM pg_stat_activity WHERE query LIKE 'SELECT leaselock.lease_prune%'}), 'lease_prune is called');
	is(sql(q{SELECT state FROM pg_stat_activity WHERE query LIKE 'SELECT leaselock.lease_prune%'}), 'idle', 'and does not wait');
	is(node_outcome($node, $local . q{SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('fenced')}), '55P03', 'the commit keeps its lock from a break');
	is(node_outcome($node, $local . "SELECT leaselock.lease_release('$held')"), '55P03', 'and a release');
	is(sql($local . "SELECT state FROM leaselock.lease_renew('$held')"), 'held', 'but not from a renewal');
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	unlike($page->awaited_sql('waits'), qr/ERROR/, 'it goes on without one');
	like($page->awaited_sql('prunes'), qr/^ t$/m, 'lease_prune has removed rows');
	is(sql("SELECT state FROM leaselock.lease_release('$held')"), 'released', 'then the lock can be released');
	return;
}

$page->run;

done_testing();
