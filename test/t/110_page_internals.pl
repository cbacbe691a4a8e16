# doc/internals.md names only what there is: files, functions, types, tags, tables,
# indexes, configurations of the model; and of those that make up the protocol, all.
# What it says of the order of steps is read in the source; what it says of tags is seen
# in pg_locks.
#
# Native only: it reads the source.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = abs_path("$FindBin::RealBin/../..");
my $text = slurp_file("$top/doc/internals.md");
my $prose = $text =~ s/^```.*?^```$//msgr;
my @words = $prose =~ /`([^`\n]+)`/g;
my %source = map { s{^\Q$top/\E}{}r => slurp_file($_) } glob "$top/src/*.[ch] $top/src/{api,core,store}/*.[ch]";
my $all = join "\n", values %source;
my $model = slurp_file("$top/test/model/lease.pml");

# column(HEADING, NUMBER): what is in backticks in a column of a section's table
sub column
{
	my ($heading, $number) = @_;
	my ($section) = $prose =~ /^## \Q$heading\E\n(.*?)(?=^## |\z)/ms;
	my ($rows) = $section =~ /^\|[- |]+\|\n((?:\|.*\|\n)+)/m or die "no table in $heading";
	return map { [ (split / *\| */, $_, -1)[ $number + 1 ] =~ /`([^`]+)`/g ] } split /\n/, $rows;
}

# ---------------------------------------------------------------------
# Files and functions
# ---------------------------------------------------------------------

my @paths = grep { m{^(?:src|sql|test)/} } @words;
cmp_ok(scalar @paths, '>', 30, 'the page names files');
is_deeply([ grep { !-e "$top/$_" } @paths ], [], 'and each of them is there');

my @functions = map { /^(\w+)\(\)$/ ? $1 : () } @words;
cmp_ok(scalar @functions, '>', 20, 'the page names functions');
is_deeply([ grep { $all !~ /^\Q$_\E\(/m } @functions ], [], 'and each of them is in the source');
my @types = grep { /^Lease[A-Z]/ } @words;
cmp_ok(scalar @types, '>=', 3, 'the page names types');
is_deeply([ grep { $source{'src/core/model.h'} !~ /^\} $_;/m } @types ], [], 'and each of them is in model.h');

# "`f()` in `src/x.c`": it is there
while ($prose =~ /`(\w+)\(\)` in `(src\/[\w\/.]+)`/g)
{
	my ($function, $file) = ($1, $2);
	like($source{$file}, qr/^\Q$function\E\(/m, "$function() is in $file");
}

# ---------------------------------------------------------------------
# What follows what
# ---------------------------------------------------------------------

# body(FILE, FUNCTION): the statements of a C function
sub body
{
	my ($file, $function) = @_;
	my ($body) = $source{$file} =~ /^\Q$function\E\([^;{]*\)\n\{\n(.*?)^\}/ms or die "no $function() in $file";
	return $body;
}

# in_order(BODY, TEXT...): all are there, one after the other
sub in_order
{
	my ($body, @texts) = @_;
	my $pattern = join '.*?', map { quotemeta } @texts;
	return $body =~ /$pattern/s;
}

like($source{'src/core/decide.h'}, qr/^extern LeasePlan decide\(const LeaseView \*view,\s+const LeaseEvent \*event,\s+TimestampTz now\);$/m,
	'decide() makes a plan of a view, an event and the time');
is_deeply([ map { my $file = $_; map { $file } $source{$file} =~ /\bdecide\(&/g } sort keys %source ], ['src/core/protocol.c'],
	'decide() is called in one place');
is_deeply([ grep { $source{$_} =~ /\bwrite_plan\(call/ } sort keys %source ], ['src/core/protocol.c'], 'and only there are plans written');
my $protocol = 'src/core/protocol.c';
ok(in_order(body($protocol, 'carry_out_with'), 'for (read_rows(', 'decide(', 'proceed('),
	'the rows are read, and a plan is made before each step');
ok(in_order(body($protocol, 'proceed'), 'asks != 0', 'read_parts(', 'else if (plan->needs_name', 'take_needed(', 'refresh_rows(', 'else if (plan->optional_tags', 'take_optional(', 'complete('),
	'the steps follow each other as on the page');
ok(in_order(body($protocol, 'complete'), 'if (writes_anything(plan))', 'write_plan(', 'else', 'give_back('),
	'a plan that writes nothing gives its tags back');
ok(in_order(body($protocol, 'write_plan'), 'save_rows(', 'keep_tags('), 'one that writes keeps them');
ok(in_order(body($protocol, 'reset_view'), 'clock_read(view->lock.changed_at)') && in_order(body($protocol, 'read_rows'), 'store_load_lock(', 'reset_view(')
	  && in_order(body($protocol, 'refresh_rows'), 'refresh_lock(', 'reset_view('), "the clock is read after the lock's row");
ok(in_order(body('src/store/tag.c', 'wait_tag'), 'Assert(obeys_order(tag))', 'LockAcquire(') && in_order(body('src/store/tag.c', 'obeys_order'), 'may_stand_in_line('),
	'wait_tag() asserts what may_stand_in_line() says');
ok(in_order(body('src/store/tag.c', 'is_attended'), 'LockAcquire(&tag.locktag, RowExclusiveLock, false, true)'), 'liveness is tested by trying RowExclusiveLock');
ok(in_order(body('src/core/fence.c', 'fences_verify'), 'list_pending(', 'for (', 'verify_pending(') && in_order(body('src/core/fence.c', 'list_pending'), 'qsort(', 'compare_entry_locks')
	  && in_order(body('src/core/fence.c', 'compare_entry_locks'), 'compare_lock_keys('), 'fences are verified in the order of the keys of their locks');
ok(in_order(body('src/core/fence.c', 'verify_pending'), 'wait_tag(NULL, &tag, RowShareLock)', 'store_is_current(', 'store_load_lock('), 'under the tag the row is read again');
ok(in_order(body('src/core/wait.c', 'wait_loop'), 'find_tag_holder(&name, RowShareLock)', 'look_uninterrupted('), 'a waiter asks who holds the tag before it looks');
like($source{'src/core/wait.c'}, qr/^#define MAX_SLEEP_MS\s+1000$/m, 'a sleep lasts a second at most');
like($source{'src/store/recent.c'}, qr/^#define RECENT_US\s+\(10 \* USECS_PER_MINUTE\)$/m, 'a row is remembered for ten minutes');
unlike($source{'src/core/deadlock.c'}, qr/\b(?:try_tag|wait_tag|LockAcquire)\(/, 'the search for deadlocks takes no tag');
ok(in_order(body('src/core/queue.c', 'begin_walk'), 'store_open_queue(&lock->key, lock->passed)') && in_order(body('src/core/queue.c', 'find_head'), 'begin_walk(', 'next_waiter('),
	'a walk of the queue begins at the passed mark');

# "src/cli: libpq": it includes nothing of the library's
is_deeply([ sort grep { !-e "$top/src/cli/$_" } map { slurp_file($_) =~ /^\s*#\s*include "([^"]+)"/mg } glob "$top/src/cli/*.[ch]" ], ['libpq-fe.h'],
	'the program uses libpq');

# ---------------------------------------------------------------------
# Tags, tables, indexes
# ---------------------------------------------------------------------

my ($kinds) = $source{'src/store/tag.h'} =~ /^typedef enum TagKind\n\{(.*?)^\} TagKind;/ms;
my ($first) = $kinds =~ /= (0x\w+)/;
my $class = hex $first;
my ($tags) = $prose =~ /^## Tags\n(.*?)(?=^## )/ms;
is_deeply([ map { "$1 $2" if /^\| (\d+) \| (\w+) / } $tags =~ /^(\| \d+ \|.*)$/mg ],
	[ map { $class++ . ' ' . lc } $kinds =~ /TAG_KIND_(\w+)/g ], 'the page has every tag, with its class');

my $script = slurp_file("$top/sql/leaselock--1.0.sql");
my %indexes;
while ($script =~ /^CREATE TABLE leaselock\.(\w+) \((.*?)^\)/msg)
{
	my ($table, $columns) = ($1, $2);
	$indexes{$table} = [ $columns =~ /CONSTRAINT (\w+) PRIMARY KEY/g ];
}
push @{ $indexes{$2} }, $1 while $script =~ /^CREATE (?:UNIQUE )?INDEX (\w+) ON leaselock\.(\w+)/mg;
my @tables = column('Tables and indexes', 0);
my @of_table = column('Tables and indexes', 2);
is_deeply({ map { $tables[$_][0] => $of_table[$_] } 0 .. $#tables }, \%indexes, 'the page has every table with its indexes');

my %only = $script =~ /^CREATE (?:UNIQUE )?INDEX (\w+) ON leaselock\.tickets[^;]*?(?:WHERE (\w+) IS NOT NULL)?;/mg;
is_deeply(\%only, {
		tickets_ticket => undef, tickets_request => 'request_id', tickets_place => 'place', tickets_waiter => 'place', tickets_member => 'member_of' },
	'the other indexes of tickets have the rows that the page says');
my @unique = $script =~ /^CREATE UNIQUE INDEX \w+ ON leaselock\.tickets\s+\(([^)]*)\)/mg;
is_deeply([ grep { !/^scope, name\b/ } @unique ], [], "a unique key of tickets begins with the lock's");
is_deeply([ grep { /\bplace\b/ } @unique, $script =~ /(?:PRIMARY KEY|UNIQUE) \(([^)]*)\)/g ], [], 'no unique key has a place');
is_deeply([ $script =~ /\n\nCREATE TABLE (leaselock\.\w+)/g ], [], 'each table has a comment above it');

# "No index contains a state or a deadline"
is_deeply([ grep { /state|_until|_at\b/ } $script =~ /^CREATE (?:UNIQUE )?INDEX [^;]*\(([^;]*);/mg ], [], 'no index has a state or a deadline');

my ($levels) = slurp_file("$top/Makefile") =~ /^EVERY_LEVEL = ((?:.*\\\n)*.*)/m;
my @every_level = grep { $_ ne '\\' } split ' ', $levels;
cmp_ok(2 * @every_level, '>', scalar(my @specs = glob "$top/test/specs/*.spec"), 'most specs run at every isolation level');

# ---------------------------------------------------------------------
# The model
# ---------------------------------------------------------------------

my ($section) = $prose =~ /^## The model\n(.*?)(?=^## )/ms;
is_deeply([ grep { $model !~ /^inline \Q$_\E\(/m } $section =~ /`(\w+)\(\)`/g ], [], 'the model has functions of these names');
is_deeply([ sort map { @$_ } column('The model', 0) ],
	[ sort map { m{([^/]+)\.pml$} && $1 ne 'lease' ? $1 : () } glob "$top/test/model/*.pml" ], 'the page has every configuration of the model');
# what the model bears the names of, is in the C
my @decisions = grep { /^decide/ || /^(?:take_needed|take_optional|refresh_rows|find_head|write_plan|carry_out|wait_for_tag_holder|pass_dead|enqueue|end_grant|answer_ended|write_look)$/ } $model =~ /^inline (\w+)\(/mg;
cmp_ok(scalar @decisions, '>', 12, 'the model follows the source');
is_deeply([ grep { $all !~ /^\Q$_\E\(/m } @decisions ], [], 'its functions are called as those of the source');

# ---------------------------------------------------------------------
# The blocks
# ---------------------------------------------------------------------

# room for few locks in the lock table, which is to become full below
my $page = PageTest->new('doc/internals.md', settings => "max_prepared_transactions = 2\nmax_locks_per_transaction = 10");

# ---------------------------------------------------------------------
# Which calls take which tags
# ---------------------------------------------------------------------

my $held_tags = q{SELECT string_agg(DISTINCT objsubid || ' ' || mode, ', ') FROM pg_locks WHERE locktype = 'advisory' AND };
my %seen;

# takes(WHAT, SQL, EXPECTED, BEFORE): the tags that a transaction holds after a call;
# BEFORE runs in a session of its own
sub takes
{
	my ($what, $sql, $expected, $before) = @_;

	$page->sql($before) if $before;
	my $session = session($page->node, q{LOAD 'leaselock'}, 'BEGIN');
	unlike(outcome($session, $sql), qr/^\w{5}$/, "$what: succeeds");
	is(outcome($session, "$held_tags pid = pg_backend_pid()"), $expected, "$what: its tags");
	$seen{$1}{$2} = 1 while $expected =~ /(\d+) (\w+)/g;
	outcome($session, 'ROLLBACK');
	$session->quit;
	return;
}

sub acquire { return "SELECT state FROM leaselock.lease_acquire('$_[0]', '$_[1]', '300 s'" . ($_[2] // '') . ')' }

sub test_tags
{
	my $own = q{SELECT r.state FROM leaselock.tickets t, leaselock.%s(t.ticket) r WHERE t.owner = '%s'};

	takes('a grant', acquire('new', 'o'), '19532 ExclusiveLock, 19536 RowShareLock', acquire('held', 'o'));
	takes('with a request id', acquire('new', 'o', ', request_id => gen_random_uuid()'), '19532 ExclusiveLock, 19534 ExclusiveLock, 19536 RowShareLock');
	takes('a grant by name', q{SELECT leaselock.try_lock('new', 'o', '1 h') > 0}, '19532 ExclusiveLock, 19536 RowShareLock');
	takes('a renewal', sprintf($own, 'lease_renew', 'o'), '19532 ShareUpdateExclusiveLock');
	takes('another ticket', acquire('held', 'o'), '19532 ShareUpdateExclusiveLock');
	takes('another hold', q{SELECT leaselock.try_lock('held', 'o', '1 h') > 0}, '19532 ShareUpdateExclusiveLock');
	takes('the release of the only one', sprintf($own, 'lease_release', 'o'), '19532 ExclusiveLock');
	takes('the release of one of several', sprintf($own, 'lease_release', 'o') . ' LIMIT 1', '19532 ShareUpdateExclusiveLock', acquire('held', 'o'));
	takes('a check', q{SELECT leaselock.fence_check(name, fence) FROM leaselock.lease_peek('held')}, '');
	takes('a place', acquire('held', 'w', q{, '300 s'}), '19533 ExclusiveLock, 19538 RowShareLock');
	takes('a place with a request id', acquire('held', 'w', q{, '300 s', request_id => gen_random_uuid()}), '19533 ExclusiveLock, 19534 ExclusiveLock, 19538 RowShareLock');
	takes('a poll', sprintf($own, 'lease_get', 'w'), '19534 ExclusiveLock, 19538 RowShareLock', acquire('held', 'w', q{, '300 s'}));
	is($page->sql(q{SELECT owner, name FROM leaselock.blockers}), 'o|held', 'blockers tells that others wait for what an identity holds');
	takes('the end of a wait', sprintf($own, 'lease_release', 'w'), '19534 ExclusiveLock');
	takes('a registration', q{SELECT leaselock.lease_scope_create('s', current_user)}, '19536 ExclusiveLock');
	takes('an opening', q{SELECT leaselock.lease_scope_drop('s')}, '19536 ExclusiveLock', q{SELECT leaselock.lease_scope_create('s', current_user)});
	takes('a bump', q{SELECT leaselock.fence_bump() > 0}, '19537 ExclusiveLock');
	takes('a grant that passes 16 dead waiters', "SET LOCAL leaselock.clock_offset = '61 s'; " . acquire('dead', 'o'),
		'19532 ExclusiveLock, 19533 ExclusiveLock, 19536 RowShareLock', q{
		SELECT FROM leaselock.lease_acquire('dead', 'h', '60 s');
		SELECT FROM generate_series(1, 16) n, leaselock.lease_acquire('dead', 'w' || n, '60 s', '60 s')});
	takes('one that passes 15', "SET LOCAL leaselock.clock_offset = '61 s'; " . acquire('living', 'o'), '19532 ExclusiveLock, 19536 RowShareLock', q{
		SELECT FROM leaselock.lease_acquire('living', 'h', '60 s');
		SELECT FROM generate_series(1, 15) n, leaselock.lease_acquire('living', 'w' || n, '60 s', '60 s')});
	takes('the end of the last queue', q{SELECT leaselock.lease_prune() >= 0}, '19538 ExclusiveLock', 'DELETE FROM leaselock.tickets WHERE place IS NOT NULL');
	takes('the removal of idle locks', q{SET LOCAL leaselock.clock_offset = '2 d'; SELECT leaselock.lease_prune('1 s') > 0}, '19532 ExclusiveLock, 19533 ExclusiveLock, 19537 ExclusiveLock',
		'TRUNCATE leaselock.queues, leaselock.tickets, leaselock.blockers');

	# what a transaction that has only checked a fence keeps while it commits
	$page->sql(q{SELECT FROM leaselock.lease_acquire('checked', 'o')});
	$page->sql(q{BEGIN; SELECT leaselock.fence_check(name, fence) FROM leaselock.lease_peek('checked'); PREPARE TRANSACTION 'checked'});
	is($page->sql("$held_tags pid IS NULL"), '19532 RowShareLock', 'a verified commit: its tags');
	$seen{19532}{RowShareLock} = 1;
	$page->sql(q{COMMIT PREPARED 'checked'});

	# a backend that waits
	my $waiter = session($page->node);
	my $pid = outcome($waiter, 'SELECT pg_backend_pid()');
	begin($waiter, q{CALL leaselock.lease_acquire_wait('checked', 'w', wait => '100 s')});
	ok($page->node->poll_query_until('postgres', "$held_tags pid = $pid", '19535 ShareLock'), 'a waiting backend: its tags');
	$seen{19535}{ShareLock} = 1;
	$page->sql(q{SELECT leaselock.lease_release_all('o')});
	like(awaited($waiter), qr/\|held\|/, 'and it gets the lock');
	$waiter->quit;

	my %on_page;
	while ($prose =~ /^\| (\d+) (\|.*)$/mg)
	{
		my ($class, $row) = ($1, $2);
		$on_page{$class} = { map { $_ => 1 } $row =~ s/Tested by.*//r =~ /\b(\w+Lock)\b/g };
	}
	is_deeply(\%seen, \%on_page, 'the page has the modes of each tag');
	return;
}

# ---------------------------------------------------------------------
# Places, and a try on a lock that is held
# ---------------------------------------------------------------------

sub place { return $page->sql("SELECT place FROM leaselock.tickets WHERE name = 'places' AND owner = '$_[0]' AND place IS NOT NULL") }

sub test_places
{
	my $wait = q{SELECT FROM leaselock.lease_acquire('places', '%s', '60 s', '300 s')};

	$page->sql(q{SELECT FROM leaselock.lease_acquire('places', 'o')});
	$page->sql(sprintf $wait, $_) foreach qw(a b);
	my $first = place('a');
	is(place('b'), $first + 1, 'a place is the last one plus 1');
	$page->sql("SELECT leaselock.lease_release_all('$_')") foreach qw(o a);
	is($page->sql(q{SELECT owner, passed FROM leaselock.locks WHERE name = 'places'}), 'b|' . ($first + 1), 'a grant out of the queue writes the place into the row');
	$page->sql(sprintf $wait, 'c');
	is(place('c'), $first + 2, 'in an empty queue, a place is the passed mark plus 1');
	return;
}

sub test_try
{
	my $session = session($page->node, q{LOAD 'leaselock'});
	my $try = q{SELECT leaselock.try_lock('%s', 'o', '1 h') IS NULL};
	my $rows = q{SELECT sum(idx_tup_fetch + seq_tup_read) FROM pg_stat_xact_user_tables WHERE schemaname = 'leaselock'};

	$page->sql("SELECT leaselock.try_lock('$_', 'other', '1 h')") foreach 'held 1', 'held 2';
	is(outcome($session, sprintf $try, 'held 1'), 't', 'a try on a lock that is held');
	outcome($session, 'BEGIN');
	my $before = outcome($session, $rows);
	is(outcome($session, sprintf $try, 'held 2'), 't', 'another');
	is(outcome($session, $rows) - $before, 1, 'reads one row');
	outcome($session, 'COMMIT');

	# nobody can take a new tag any more
	my $full = session($page->node, 'BEGIN');
	outcome($full, q{DO $$ BEGIN
		FOR i IN 1..1000000 LOOP
			BEGIN
				PERFORM pg_advisory_xact_lock(i);
			EXCEPTION WHEN out_of_memory THEN
				EXIT;
			END;
		END LOOP;
	END $$});
	is(outcome($session, sprintf $try, 'free'), '53200', 'where no tag can be had, a free lock cannot be taken');
	is(outcome($session, sprintf $try, 'held 1'), 't', 'a try on one that is held takes no tag');
	outcome($full, 'ROLLBACK');
	$_->quit foreach $session, $full;
	return;
}

# rule (g): behind an open transaction a try has taken some tags before it meets one
# that is not to be had
my $own_tags = q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()};
my $try = q{SELECT state FROM leaselock.lease_acquire('busy', 'o', request_id => gen_random_uuid())};
$page->after(tags => sub {
		my $other = session($page->node, 'BEGIN', q{SELECT leaselock.try_lock('busy', 'other', '1 h')});
		my $session = session($page->node, 'BEGIN');
		is(outcome($session, $try), 'contended', 'a try fails');
		is(outcome($session, $own_tags), '0', 'and gives back its tags');
		is(outcome($session, q{SELECT leaselock.try_lock('free', 'o', '1 h') IS NOT NULL}), 't', 'another succeeds');
		my $kept = outcome($session, $own_tags);
		outcome($session, $try);
		is(outcome($session, $own_tags), $kept, 'and keeps its own, when the next one fails');
		$_->quit foreach $session, $other;
		test_tags();
		test_places();
		test_try();
	});
$page->run;

done_testing();
