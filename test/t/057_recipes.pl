# doc/recipes.md: its blocks, as they stand there, and what the page says of them.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $libdir = `pg_config --pkglibdir`);
my $has_cron = -e "$libdir/pg_cron.so";
my $has_program = grep { -x "$_/leaselock" } split /:/, $ENV{PATH};
my $has_compiler = eval { run_log([ qw(gcc --version) ], '>', \my $unused) };

# Longer than the leases of the page is waited nowhere: a session that comes later
# has a clock that is ahead.
my $node = new_node('recipes', $has_cron ? q{
shared_preload_libraries = 'pg_cron'
cron.database_name = 'postgres'
cron.use_background_workers = on
} : '');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_cron') if $has_cron;

my $page = PageTest->new('doc/recipes.md',
	node => $node,
	# of an error the page shows the first line, with its SQLSTATE
	psql => [ '\set VERBOSITY verbose', '\set SHOW_CONTEXT never' ],
	normal => sub { s/^(?:DETAIL|HINT):.*(?:\n|\z)//mg },
	language => { c => sub { run_c($_[1]) }, crontab => sub { run_crontab($_[1]) } },
	session => { cron => sub { run_cron($_[1]) } },
	skip => {
		$has_program ? () : (sh => 'the program leaselock is not built', crontab => 'the program leaselock is not built'),
		$has_cron ? () : (cron => 'pg_cron IS NOT INSTALLED'),
		$has_compiler ? () : (c => 'there is no compiler') });
my $dir = $page->dir;

sub sql { return $page->sql(@_) }
sub run_sql { return $page->run_sql(@_) }
sub block { return $page->block(@_) }

# shell(TEXT): a command of the page, in the background
sub shell { return $page->start_shell($_[0]) }

# holder(NAME): who holds a lock, if anybody does
sub holder
{
	return sql("SELECT owner FROM leaselock.lease_peek('$_[0]') WHERE NOT lapsed");
}

# write_report(NAME): a command that the page names.  It appends a line to its file,
# so that the test sees it run, and ends when the test lets it.
sub write_report
{
	my ($name) = @_;

	$page->write_command($name, <<"SCRIPT");
echo "begins \$LEASELOCK_NAME \$LEASELOCK_FENCE" >>"$dir/$name.log"
until [ -e "$dir/$name.end" ]; do sleep 0.05; done
echo ends >>"$dir/$name.log"
SCRIPT
	return;
}

sub lines
{
	my ($name, $count) = @_;
	my @lines;

	wait_until(sub {
		@lines = -e "$dir/$name.log" ? split /\n/, slurp_file("$dir/$name.log") : ();
		return @lines >= $count;
	});
	return @lines;
}

# ---------------------------------------------------------------------
# What the page tells in words
# ---------------------------------------------------------------------

$page->before(
	'semaphore-full' => sub {
		foreach my $owner ('job-18', 'job-19')
		{
			run_sql('others', block('semaphore') =~ s/job-17/$owner/r);
		}
		is(join(',', map { holder("gpu.$_") } 1 .. 3), 'job-17,job-18,job-19', 'each takes the first slot that is free');
	},
	nested => sub { write_report('close-month'); append_to_file("$dir/close-month.end", '') },
	leader => sub { write_report('scheduler') },
	cron => sub { write_report('report') },
	'take-over' => sub { run_sql('b', q{LOAD 'leaselock'; SET leaselock.clock_offset = '61 s'}) },
	'request-stale' => sub {
		is(sql(q{
				SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('site');
				SELECT state FROM leaselock.lease_acquire('site', 'editor-2')}),
			"t\nheld", 'somebody else is granted the lock');
	});

$page->after(
	semaphore => sub {
		is(sql(q{SELECT string_agg(name, ',') FROM leaselock.lease_status WHERE name LIKE 'gpu.%'}), 'gpu.1', 'one slot is taken');
	},
	'semaphore-full' => sub {
		is(sql(q{SELECT count(*) FROM leaselock.lease_tickets WHERE owner = 'job-20'}), '0', 'nothing is kept');
		is(sql(q{SELECT leaselock.lease_release_all('job-18')}), '1', 'a slot in the middle is given back');
		like(run_sql('others', block('semaphore') =~ s/job-17/job-20/r), qr/held.*gpu\.2/, 'and taken by the next one');
		like(run_sql('others', block('semaphore')), qr/held.*gpu\.1/, 'one owner gets its slot again');
		is(sql(q{SELECT depth FROM leaselock.lease_peek('gpu.1')}), '2', 'with depth 2');
		is(sql(q{SELECT leaselock.lease_release_all('job-17')}), '2', 'and gives back all by its label');
		like(run_sql('others', block('semaphore') =~ s/job-17/job-20/r), qr/held.*gpu\.1/, 'an owner gets a free slot that comes before its own');
		is(sql(q{SELECT leaselock.lease_release_all('job-19') + leaselock.lease_release_all('job-20')}), '3', 'all slots are free');
		my $ordered = block('semaphore') =~ s/LIMIT/ORDER BY slot LIMIT/r;
		like(run_sql('others', $ordered =~ s/job-17/job-21/r), qr/held.*gpu\.1/, 'the statement with ORDER BY');
		is(sql(q{SELECT leaselock.lease_release_all('job-21')}), '3', 'acquires every slot');
		my $retry = block('semaphore') =~ s/'job-17'/'job-22', request_id => '00000000-0000-0000-0000-000000000022'/r;
		my $ticket = sql(q{SELECT ticket FROM leaselock.lease_acquire('gpu.1', 'job-23')});
		like(run_sql('others', $retry), qr/held.*gpu\.2/, 'with a request id it gets a slot');
		is(sql(qq{SELECT state FROM leaselock.lease_release('$ticket')}), 'released', 'an earlier one becomes free');
		like(run_sql('others', $retry), qr/held.*gpu\.1/, 'a retry with the same request id gets another slot');
		is(sql(q{SELECT leaselock.lease_release_all('job-22')}), '2', 'in addition');
	},
	'all-contended' => sub {
		is(holder('repo.db'), '', 'the one that is free is not taken');
		is(sql(q{SELECT count(*) FROM leaselock.lease_tickets WHERE owner = 'deploy-2'}), '0', 'there is no trace');
	},
	nested => sub {
		is(join(',', lines('close-month', 2)) =~ s/ \d+//r, 'begins invoices,ends', 'it runs under both');
		is(holder('accounts') . holder('invoices'), '', 'which are given back');
		my $wait = q{SELECT state FROM leaselock.lease_acquire('%s', '%s', wait => '60 s')};
		is(join(',', map { sql(sprintf $wait, @$_) } [ 'one', 'x' ], [ 'one', 'y' ], [ 'two', 'x' ]), 'held,waiting,held',
			'in the same order one party waits and the other goes on');
		is(sql(q{SELECT leaselock.lease_release_all('x') + leaselock.lease_release_all('y')}), '3', 'both give up');
		is(join(',', map { sql(sprintf $wait, @$_) } [ 'one', 'x' ], [ 'two', 'y' ], [ 'two', 'x' ], [ 'one', 'y' ]), 'held,held,waiting,deadlock',
			'in different orders one of them is refused');
		sql(q{SELECT leaselock.lease_release_all('x'), leaselock.lease_release_all('y')});
	},
	leader => sub {
		my $first = $page->background('leader');
		like((lines('scheduler', 1))[0], qr/^begins scheduler [1-9]\d+$/, 'one node runs the service');
		my $second = shell(block('leader'));
		ok($node->poll_query_until('postgres', q{SELECT waiters = 1 FROM leaselock.lease_peek('scheduler')}), 'the other waits in line');
		kill 'TERM', $first->{pid};
		my @begun = lines('scheduler', 2);
		is(scalar(@begun), 2, 'when the leader ends the next begins');
		cmp_ok((split / /, $begun[1])[2], '>', (split / /, $begun[0])[2], 'with a greater fence');
		kill 'KILL', $second->{pid};
		$page->shell_status($second);
		is(sql(q{SELECT lapsed, remaining_ms BETWEEN 1 AND 20000 FROM leaselock.lease_peek('scheduler')}), 'f|t', 'the lease of a leader that died lasts');
		move_clock(20);
		my $third = shell(block('leader'));
		is(scalar(lines('scheduler', 3)), 3, 'when it has run out the next node begins');
		append_to_file("$dir/scheduler.end", '');
		$page->shell_status($first);
		is($page->shell_status($third), 0, 'and its status is passed on');
		move_clock(0);
	},
	beat => sub {
		my $fence = sql(q{SELECT fence FROM leaselock.lease_peek('leader')});
		my $expiry = sql(q{SELECT expires_at FROM leaselock.lease_peek('leader')});
		like(run_sql('a', block('beat')), qr/$fence.*t$/m, 'the next beat: the same fence');
		is(sql(qq{SELECT expires_at > '$expiry' FROM leaselock.lease_peek('leader')}), 't', 'and a longer lease');
	},
	resign => sub {
		like(run_sql('b', block('beat-b')), qr/\d{15}.*t$/m, 'another is the leader at its next beat');
		like(run_sql('a', block('beat')), qr/\| f$/m, 'and the first is not');
		run_sql('late', q{LOAD 'leaselock'; SET leaselock.clock_offset = '31 s'});
		like(run_sql('late', block('beat')), qr/\d{15}.*t$/m, 'when its lease has run out the lock is free');
	},
	once => sub {
		is(sql(q{SELECT remaining_ms > 11 * 3600 * 1000 FROM leaselock.lease_peek('nightly-mail')}), 't', 'for hours');
	},
	'once-more' => sub {
		is(sql(q{SELECT leaselock.release_lock('nightly-mail', 'host-a')}), 't', 'given back');
		like(run_sql('b', block('once-more')), qr/\d{15}/, 'it is another host that has it');
	},
	next => sub {
		is(holder('mail.1') . holder('mail.2'), 'sender-3', 'one is given back, the other held');
		is(sql(q{SELECT leaselock.lease_release_all('sender-3')}), '1', 'by one ticket');
		sql(q{SELECT FROM leaselock.lease_acquire('mail.2', 'sender-9')});
		run_sql('a', block('first'));
		like(run_sql('a', block('next')), qr/released +\| contended +\| mail\.2 /, 'the second lock is taken');
		is(holder('mail.1'), '', 'the first is released all the same');
		sql(q{SELECT leaselock.lease_release_all('sender-9')});
	},
	late => sub {
		is(sql('SELECT id, result FROM job ORDER BY id'), "1|by worker-b\n2|\n3|", 'nothing is written by the one that was late');
		run_sql('a', block('take'));
		is(holder('job.2'), 'worker-a', 'the next job is another one');
		# one that is done between the look at the table and the grant
		my ($take) = block('take') =~ /\A(.*?) \\gset/s;
		run_sql('b', "BEGIN; DECLARE next CURSOR FOR $take;");
		sql(q{UPDATE job SET result = 'meanwhile' WHERE id = 2; SELECT leaselock.lease_release_all('worker-a')});
		like(run_sql('b', 'FETCH next;'), qr/^ +2 \| job\.2 /m, 'a job that was done after the look is granted');
		like(run_sql('b', q{UPDATE job SET result = 'again' WHERE id = 2 AND result IS NULL RETURNING id; COMMIT;}), qr/\A id *\n-+\n\n?\z/, 'then no row is updated');
		is(sql('SELECT result FROM job WHERE id = 2'), 'meanwhile', 'the result stays');
		run_sql('a', block('take'));
		is(holder('job.3'), 'worker-a', 'somebody works on the last job');
		like(run_sql('c', $take =~ s/worker-a/worker-c/r . ';'), qr/\A[^\n]+\n[-+]+\n\n?\z/, 'nothing is left to take: no row');
		my $reads = q{SELECT 'reads ' || sum(coalesce(idx_scan, 0) + seq_scan) FROM pg_stat_xact_user_tables WHERE schemaname = 'leaselock';};
		my $try = q{SELECT state FROM leaselock.lease_acquire('job.3', 'd');};
		# the first call of a session reads more
		run_sql('d', $try =~ s/job\.3/job.2/r);
		my ($before, $after) = run_sql('d', "BEGIN; $reads $try $reads COMMIT;") =~ /reads (\d+)/g;
		is($after - $before, 1, 'a job that somebody is working on costs one index read');
	},
	request => sub { is(sql('SELECT body FROM page'), 'hello', 'it has written') },
	'request-bare' => sub { is(sql('SELECT body FROM page'), 'hello', 'they have not') });

# ---------------------------------------------------------------------
# Kinds of blocks
# ---------------------------------------------------------------------

# Every session judges by a clock that is ahead by SECONDS
sub move_clock
{
	my ($seconds) = @_;

	sql("LOAD 'leaselock'; ALTER SYSTEM SET leaselock.clock_offset = '$seconds s'");
	$node->reload;
	return;
}

# The line of a crontab, at half past two on two hosts
sub run_crontab
{
	my ($text) = @_;
	my ($command) = $text =~ /^(?:\S+ +){5}(\S.*)$/m or die 'no crontab';
	my $first = shell($command);
	is(scalar(lines('report', 1)), 1, 'one host runs the report');
	my $second = shell($command);
	is($page->shell_status($second), 1, 'the other one ends with status 1');
	is($second->{out}, '', 'and without a word');
	append_to_file("$dir/report.end", '');
	is($page->shell_status($first), 0, 'the report ends');
	my $late = shell($command);
	is($page->shell_status($late), 1, 'a host whose clock is late still finds the lock taken');
	is(scalar(lines('report', 2)), 2, 'it ran once');
	is(sql(q{SELECT remaining_ms > 0 AND depth = 1 FROM leaselock.lease_peek('nightly-report')}), 't', 'by a hold that is no ticket');
	return;
}

# The function, in a program that is called with its arguments
sub run_c
{
	my ($text) = @_;
	my $source = "$dir/next.c";
	my ($out, $err) = ('', '');
	chomp(my $includedir = `pg_config --includedir`);
	chomp(my $libdir = `pg_config --libdir`);

	append_to_file($source, "#include <stdio.h>\n#include <libpq-fe.h>\n\n$text" . <<'PROGRAM');

int
main(int argc, char **argv)
{
	PGconn	   *db = PQconnectdb("");
	PGresult   *next = take_next(db, argv[1], argv[2], argv[3]);

	if (PQresultStatus(next) == PGRES_TUPLES_OK)
		printf("%s %s %s\n", PQgetvalue(next, 0, 0), PQgetvalue(next, 0, 1), PQgetvalue(next, 0, 2));
	else
		printf("%s", PQresultErrorMessage(next));
	PQclear(next);
	/* the connection is as it was */
	next = PQexec(db, "SELECT 1");
	printf("%s\n", PQresStatus(PQresultStatus(next)));
	PQclear(next);
	PQfinish(db);
	return argc != 4;
}
PROGRAM
	ok(run_log([ qw(gcc -Wall -Wextra -Werror), "-I$includedir", $source, "-L$libdir", '-lpq', '-o', "$dir/next" ], '2>', \$err), 'it compiles')
	  or diag $err;
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres');
	my ($ticket) = sql(q{SELECT ticket FROM leaselock.lease_acquire('mail.3', 'sender-4')});
	ok(run_log([ "$dir/next", $ticket, 'mail.4', 'sender-4' ], '>', \$out), 'it runs');
	my ($next) = $out =~ /^(\S{36}) held \d{15}\nPGRES_TUPLES_OK\n$/ or diag $out;
	is(holder('mail.3') . holder('mail.4'), 'sender-4', 'one is given back, the other held');
	# two transactions: of an error in the first the second knows nothing
	run_log([ "$dir/next", 'no ticket', 'mail.5', 'sender-4' ], '>', \$out);
	like($out, qr/^\S{36} held \d{15}\nPGRES_TUPLES_OK\n$/, 'an error of the one is none of the other');
	is(sql(q{SELECT leaselock.lease_release_all('sender-4')}), '2', 'two tickets are left');
	return;
}

# The job is called when pg_cron starts, not at the time for which it was scheduled
sub run_cron
{
	my ($text) = @_;
	my $printed = run_sql('cron', $text);

	sql(q{LOAD 'leaselock'; SET leaselock.clock_offset = '-2 h';
		SELECT leaselock.lease_release(t.ticket) FROM leaselock.lease_acquire('pruned', 'a') t});
	my $ended = q{SELECT count(*) FROM leaselock.tickets WHERE name = 'pruned'};
	is(sql($ended), '1', 'there is a ticket that has ended long ago');
	sql(q{SELECT cron.alter_job(jobid, schedule => '@reboot') FROM cron.job});
	$page->end_sessions;
	$node->restart;
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM cron.job_run_details WHERE status = 'succeeded'}), 'pg_cron runs it');
	is(sql($ended), '0', 'that ticket is gone');
	is(sql('SELECT count(*) FROM pg_database d JOIN cron.job j ON j.username = pg_get_userbyid(d.datdba) WHERE d.datname = j.database'), '1', 'by the owner of the database');
	return $printed;
}

# ---------------------------------------------------------------------

is(join('|', slurp_file("$FindBin::RealBin/../../doc/recipes.md") =~ /^<!-- not run: (.*) -->$/mg), 'needs PostgREST|needs PostgREST', 'only the blocks of PostgREST are not run');
$page->run;

done_testing();
