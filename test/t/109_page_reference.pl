# doc/reference.md against the catalog, the settings, the source and the server: it
# names everything that there is, as it is, and nothing else.
# Native only: it has a standby, and reads the source.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $node = new_node('reference', "max_locks_per_transaction = 10\nmax_connections = 20\nleaselock.waiter_timeout = '1 h'\n", allows_streaming => 1);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');
my $page = PageTest->new('doc/reference.md', node => $node);
my $text = slurp_file("$top/doc/reference.md");

# rows(SQL): each row a list of its columns
sub rows
{
	my ($sql) = @_;
	return map { [ split /\|/, $_, -1 ] } split /\n/, $node->safe_psql('postgres', $sql);
}

# ---------------------------------------------------------------------
# What the page says
# ---------------------------------------------------------------------

# sections, by their headings
my %section;
while ($text =~ /^##+ ([^\n]+)\n(.*?)(?=^##|\z)/msg) { $section{$1} = $2 }

# table(SECTION, COLUMN...): the rows of its tables that have these columns
sub table
{
	my ($heading, @columns) = @_;
	my $head = join ' \| ', map { quotemeta } @columns;
	my @rows;

	while ($section{$heading} =~ /^\| $head \|\n\|[- |]+\|\n((?:\|.*\|\n)+)/mg)
	{
		push @rows, map { [ split / \| /, s/^\| (.*?) *\|$/$1/r, -1 ] } split /\n/, $1;
	}
	return @rows;
}

# codes(TEXT): the words in backticks
sub codes { return $_[0] =~ /`([^`]+)`/g }

# columns(SECTION): "name type" of each column; several in a row of the table share
# a type, or have one each
sub columns
{
	my ($heading) = @_;
	my @columns;

	foreach (table($heading, qw(column type meaning)))
	{
		my ($names, $types, $meaning) = @$_;
		my @names = codes($names);
		my @types = codes($types);
		@types = map { @types == 1 ? $types[0] : $types[$_] } 0 .. $#names;
		push @columns, map { "$names[$_] $types[$_]" } 0 .. $#names;
		isnt($meaning, '', "$names has a meaning");
	}
	return @columns;
}

# signatures, by the name of the function: its kind, arguments and result
my %signature;
foreach my $heading (sort keys %section)
{
	my ($procedure, $name, $arguments, $result) =
	  $section{$heading} =~ /^```sql\n(PROCEDURE )?leaselock\.(\w+)\((.*?)\)(?:\s+RETURNS (\S.*?))?\n```$/ms or next;
	is($name, $heading, "the section $heading has the signature of its function");
	$signature{$name} = [ $procedure ? 'PROCEDURE' : 'FUNCTION', $arguments, $result ];
}

# ---------------------------------------------------------------------
# The catalog
# ---------------------------------------------------------------------

# Functions are made from the page's signatures, and never called; the catalog then has to say the
# same of them as of those of the extension.
$node->safe_psql('postgres', 'CREATE SCHEMA page');
foreach my $name (sort keys %signature)
{
	my ($kind, $arguments, $result) = @{ $signature{$name} };

	if (($result // '') eq 'SETOF record')
	{
		like($section{$name}, qr/\[`lease_status`\]\(#lease_status\) for one lock, with the same columns/, "$name refers to its columns")
		  if $name eq 'lease_peek';
		$arguments = join ', ', $arguments, map { "OUT $_" } columns($name eq 'lease_peek' ? 'lease_status' : $name);
	}
	$node->safe_psql('postgres', "CREATE $kind page.$name($arguments) " . ($result ? "RETURNS $result " : '') .
		  q{AS '$libdir/leaselock', 'leaselock_fence_bump' LANGUAGE C});
}

sub catalog
{
	my ($schema) = @_;
	return { map { $_->[0] => $_->[1] } rows(qq{
		SELECT proname, format('%s (%s) %s', prokind, pg_get_function_arguments(oid), pg_get_function_result(oid))
		FROM pg_proc WHERE pronamespace = '$schema'::regnamespace AND proname NOT LIKE 'internal\\_%'}) };
}

my $functions = catalog('leaselock');
cmp_ok(scalar keys %$functions, '>', 15, 'there are functions');
is_deeply(catalog('page'), $functions, 'the page has every function and procedure, as the catalog has it, and no other');

# views and row types
my %relation = map { $_->[0] => $_->[1] } rows(q{
	SELECT c.relname, string_agg(attname || ' ' || format_type(atttypid, atttypmod), ',' ORDER BY attnum)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE relnamespace = 'leaselock'::regnamespace AND relkind NOT IN ('r', 'i') AND attnum > 0 AND NOT attisdropped
	GROUP BY c.relname});
my %described;
foreach my $heading (sort keys %section)
{
	next if $signature{$heading} || !table($heading, qw(column type meaning));
	my ($type) = $section{$heading} =~ /row of the type `leaselock\.(\w+)`/;
	$described{ $type // $heading } = join ',', columns($heading);
}
is_deeply(\%described, \%relation, 'the page has every view and row type with its columns, and no other');

is($node->safe_psql('postgres', q{
	SELECT string_agg(what, ', ') FROM (
		SELECT oid::regprocedure::text AS what FROM pg_proc
		WHERE pronamespace = 'leaselock'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
		UNION ALL
		SELECT oid::regclass::text FROM pg_class
		WHERE relnamespace = 'leaselock'::regnamespace AND relkind <> 'i' AND obj_description(oid, 'pg_class') IS NULL
		AND relkind <> 'c'
		UNION ALL
		SELECT attrelid::regclass || '.' || attname FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
		WHERE relnamespace = 'leaselock'::regnamespace AND relkind IN ('v', 'c') AND attnum > 0
		AND col_description(attrelid, attnum) IS NULL) AS without}), '', 'all of them have comments');
is($node->safe_psql('postgres', q{
	CREATE ROLE anybody;
	SELECT string_agg(relname, ', ') FROM pg_class
	WHERE relnamespace = 'leaselock'::regnamespace AND relkind = 'r'
	AND has_any_column_privilege('anybody', oid, 'SELECT, INSERT, UPDATE')}), '', 'what is not on the page is closed');

# ---------------------------------------------------------------------
# Settings
# ---------------------------------------------------------------------

# range(UNIT, LEAST, GREATEST, VALUES, TYPE): as the page says it
sub range
{
	my ($unit, $least, $greatest, $values, $type) = @_;

	return join ', ', map { "`$_`" } $values =~ /[^{},]+/g if $type eq 'enum';
	return '`on`, `off`' if $type eq 'bool';
	my ($low, $high) = map { sprintf('%.16g', $_) . ($unit ? " $unit" : '') } $least, $greatest;
	return $greatest == 2**31 - 1 ? "$low or more" : "$low to $high";
}

my @settings = rows(q{
	LOAD 'leaselock';
	SET leaselock.waiter_timeout = '20 s';
	SELECT name, current_setting(name), unit, min_val, max_val, enumvals, vartype, context, boot_val = reset_val OR name = 'leaselock.waiter_timeout'
	FROM pg_settings WHERE name LIKE 'leaselock.%' ORDER BY name});
cmp_ok(scalar @settings, '>', 10, 'there are settings');
my @documented = table('Settings', qw(setting default range meaning));
is_deeply(
	[ sort map { "$_->[0] $_->[1] $_->[2]" } @documented ],
	[ map { "`$_->[0]` `$_->[1]` " . range(@$_[2 .. 6]) } @settings ],
	'the page has every setting with its default and range, and no other');
is(join(',', map { $_->[8] } @settings), join(',', map { 't' } @settings), 'they have their defaults');
isnt($_->[3], '', "$_->[0] has a meaning") foreach @documented;
my ($everybody) = $section{Settings} =~ /everybody can change ([^.]*\.[^.]*)\./;
is_deeply([ codes($everybody) ], [ map { $_->[0] } grep { $_->[7] eq 'user' } @settings ], 'who can change which');
is_deeply([ grep { $_->[7] !~ /^(?:user|superuser)$/ } @settings ], [], 'and superusers the others');
foreach my $setting (grep { $_->[2] } @settings)
{
	my ($name, $unit) = @$setting[ 0, 2 ];
	is($node->safe_psql('postgres', qq{
		LOAD 'leaselock'; SET $name = 4000; SELECT current_setting('$name')}),
		$node->safe_psql('postgres', qq{
		LOAD 'leaselock'; SET $name = '4000 $unit'; SELECT current_setting('$name')}), "$name: a number without a unit");
}

# ---------------------------------------------------------------------
# Words of the source: states, kinds of events, SQLSTATEs
# ---------------------------------------------------------------------

my %source = map { $_ => slurp_file($_) } glob "$top/src/*.c $top/src/*.h $top/src/{api,core,store}/*";

my @states = $source{"$top/src/store/tickets.c"} =~ /\[LEASE_\w+\] = \{.*?"(\w+)"\}/g;
cmp_ok(scalar @states, '>', 5, 'there are states');
is_deeply([ sort map { codes($_->[0]) } table('Ticket states', 'state', 'meaning', 'what to do') ],
	[ sort @states ], 'the page has every state of a ticket, and no other');

my %kind = $source{"$top/src/store/events.c"} =~ /\[CHANGE_(\w+)\] = "(\w+)"/g;
my ($group, %recorded_by) = 'grants';
my ($enum) = $source{"$top/src/store/types.h"} =~ /^typedef enum ChangeKind\n\{(.*?)^\} ChangeKind;/ms;
foreach my $name ($enum =~ /CHANGE_(\w+)/g)
{
	$group = 'all' if $name eq 'QUEUED';
	$recorded_by{ $kind{$name} } = $group;
}
cmp_ok(scalar keys %recorded_by, '>', 10, 'there are kinds of events');
my %told;
foreach (table('Event kinds', 'kind', 'recorded by', 'what happened'))
{
	my ($kinds, $by, $what) = @$_;
	$told{$_} = (codes($by))[0] foreach codes($kinds);
	isnt($what, '', "$kinds: what happened");
}
is_deeply(\%told, \%recorded_by, 'the page has every kind of event under its setting, and no other');

chomp(my $include = `pg_config --includedir-server`);
my %sqlstate;
foreach (slurp_file("$include/utils/errcodes.h"), $source{"$top/src/leaselock.h"})
{
	while (/^#define ERRCODE_(\w+)\s+MAKE_SQLSTATE\(([^)]*)\)/mg)
	{
		my ($name, $letters) = ($1, $2);
		$sqlstate{$name} = join '', $letters =~ /'(.)'/g;
	}
}
my %raised = map { $sqlstate{$_} => 1 } map { /errcode\(ERRCODE_(\w+)\)/g } values %source;
$raised{XX000} = 1 if grep { /\belog\(ERROR/ } values %source;
my @own = table('Errors', 'SQLSTATE', 'meaning', 'what to do');
my @servers = table('Errors', 'SQLSTATE of PostgreSQL', 'when', 'what to do');
is_deeply([ sort map { $_->[0] } @own ], [ sort keys %raised ], 'the page has every SQLSTATE that the source raises, and no other');
foreach (@own, @servers) { isnt($_->[1], '', "$_->[0]: when"); isnt($_->[2], '', "$_->[0]: what to do") }

# ---------------------------------------------------------------------
# Which errors a function raises: each is provoked
# ---------------------------------------------------------------------

$node->safe_psql('postgres', q{
	CREATE ROLE team;
	CREATE ROLE stranger;
	GRANT ALL ON SCHEMA public TO stranger;
	SELECT leaselock.lease_scope_create('closed', 'team');
	CREATE TABLE guarded (fence bigint);
	GRANT ALL ON guarded TO stranger;
	CREATE TABLE plain (fence bigint)});

my $unknown = '00000000-0000-0000-0000-000000000000';
my ($held, $held_fence) = split /\|/, $node->safe_psql('postgres', q{SELECT ticket, fence FROM leaselock.lease_acquire('mine', 'holder', lease => '300 s')});
my ($closed, $closed_fence) = split /\|/, $node->safe_psql('postgres', q{SELECT ticket, fence FROM leaselock.lease_acquire('mine', 'holder', scope => 'closed', lease => '300 s')});
my $busy_fence = $node->safe_psql('postgres', q{SELECT leaselock.try_lock('busy', 'holder', '1 day')});
my $waiting = $node->safe_psql('postgres', q{SELECT ticket FROM leaselock.lease_acquire('busy', 'waiter', wait => '300 s')});
$node->safe_psql('postgres', qq{SELECT leaselock.lease_acquire('mine', 'holder', request_id => '$unknown')});

# what keeps others from it
my $blocker = session($node, 'BEGIN',
	"SELECT leaselock.lease_get('$waiting')",
	q{SELECT leaselock.renew_lock('busy', 'holder', '1 day')},
	q{SELECT leaselock.lease_acquire('new', 'blocker', scope => 'kept')},
	q{SELECT leaselock.fence_bump()});
my $quick = q{LOAD 'leaselock'; SET leaselock.lock_timeout = '20 ms';};
my $read_only = 'SET default_transaction_read_only = on;';
my $stranger = 'SET ROLE stranger;';
my $standby;

# Statements, or a function that returns what comes of them
my %provoke = (
	lease_acquire => {
		'22004' => q{SELECT leaselock.lease_acquire('n', NULL)},
		'22023' => q{SELECT leaselock.lease_acquire('n', 'o', lease => '1 ms')},
		'25006' => qq{$read_only SELECT leaselock.lease_acquire('n', 'o')},
		'42501' => qq{$stranger SELECT leaselock.lease_acquire('n', 'o', scope => 'closed')},
		'53400' => q{LOAD 'leaselock'; SET leaselock.max_waiters = 0; SELECT leaselock.lease_acquire('busy', 'o', wait => '1 s')},
		LS002 => qq{SELECT leaselock.lease_acquire('mine', 'o', request_id => '$unknown')} },
	lease_get => {
		'22004' => q{SELECT leaselock.lease_get(NULL)},
		'25006' => qq{$read_only SELECT leaselock.lease_get('$held')},
		'42501' => qq{$stranger SELECT leaselock.lease_get('$held')},
		'55P03' => qq{$quick SELECT leaselock.lease_get('$waiting')} },
	lease_renew => {
		'22004' => q{SELECT leaselock.lease_renew(NULL)},
		'22023' => qq{SELECT leaselock.lease_renew('$held', '1 day')},
		'25006' => qq{$read_only SELECT leaselock.lease_renew('$held')},
		'42501' => qq{$stranger SELECT leaselock.lease_renew('$held')},
		'55P03' => qq{$quick SELECT leaselock.lease_renew('$waiting')} },
	lease_release => {
		'22004' => q{SELECT leaselock.lease_release(NULL)},
		'25006' => qq{$read_only SELECT leaselock.lease_release('$held')},
		'42501' => qq{$stranger SELECT leaselock.lease_release('$held')},
		'55P03' => qq{$quick SELECT leaselock.lease_release('$waiting')} },
	lease_release_all => {
		'22004' => q{SELECT leaselock.lease_release_all(NULL)},
		'22023' => q{SELECT leaselock.lease_release_all(' blank')},
		'25006' => qq{$read_only SELECT leaselock.lease_release_all('waiter')},
		'55P03' => qq{$quick SELECT leaselock.lease_release_all('waiter')} },
	lease_wait => {
		'22004' => q{CALL leaselock.lease_wait(NULL)},
		'22023' => qq{CALL leaselock.lease_wait('$held', '-1 s')},
		'25006' => qq{$read_only CALL leaselock.lease_wait('$held')},
		'2D000' => qq{BEGIN; CALL leaselock.lease_wait('$held')},
		'42501' => qq{$stranger CALL leaselock.lease_wait('$held')},
		'55P03' => qq{$quick CALL leaselock.lease_wait('$waiting', '10 ms')},
		'57014' => qq{SET statement_timeout = '100 ms'; CALL leaselock.lease_wait('$waiting')} },
	lease_acquire_wait => {
		'22004' => q{CALL leaselock.lease_acquire_wait(NULL, 'o')},
		'22023' => q{CALL leaselock.lease_acquire_wait('n', 'o', wait => '1 month')},
		'25006' => qq{$read_only CALL leaselock.lease_acquire_wait('n', 'o')},
		'2D000' => q{BEGIN; CALL leaselock.lease_acquire_wait('n', 'o')},
		'42501' => qq{$stranger CALL leaselock.lease_acquire_wait('n', 'o', scope => 'closed')},
		'53400' => q{LOAD 'leaselock'; SET leaselock.max_waiters = 0; CALL leaselock.lease_acquire_wait('busy', 'o')},
		'57014' => q{SET statement_timeout = '100 ms'; CALL leaselock.lease_acquire_wait('busy', 'o')},
		LS002 => qq{CALL leaselock.lease_acquire_wait('mine', 'o', request_id => '$unknown')} },
	try_lock => {
		'22004' => q{SELECT leaselock.try_lock('n', 'o', NULL)},
		'22023' => q{SELECT leaselock.try_lock('n', 'o', '0 s')},
		'25006' => qq{$read_only SELECT leaselock.try_lock('n', 'o', '1 s')},
		'42501' => qq{$stranger SELECT leaselock.try_lock('n', 'o', '1 s', 'closed')} },
	renew_lock => {
		'22004' => q{SELECT leaselock.renew_lock('n', 'o', NULL)},
		'22023' => q{SELECT leaselock.renew_lock('n', 'o', '-1 s')},
		'25006' => qq{$read_only SELECT leaselock.renew_lock('n', 'o', '1 s')},
		'42501' => qq{$stranger SELECT leaselock.renew_lock('n', 'o', '1 s', 'closed')},
		'55P03' => qq{$quick SELECT leaselock.renew_lock('busy', 'holder', '1 s')} },
	release_lock => {
		'22004' => q{SELECT leaselock.release_lock('n', NULL)},
		'22023' => q{SELECT leaselock.release_lock('', 'o')},
		'25006' => qq{$read_only SELECT leaselock.release_lock('n', 'o')},
		'55P03' => qq{$quick SELECT leaselock.release_lock('busy', 'holder')} },
	fence_check => {
		'22004' => q{SELECT leaselock.fence_check('mine', NULL)},
		'22023' => q{SELECT leaselock.fence_check('', 1)},
		'25006' => sub { node_outcome($standby, "SELECT leaselock.fence_check('mine', $held_fence)") },
		'40001' => q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1;
			SELECT fence AS f FROM leaselock.lease_acquire('young', 'o') \gset
			SELECT leaselock.fence_check('young', :f)},
		'40P01' => \&crossed,
		'42501' => qq{$stranger SELECT leaselock.fence_check('mine', $closed_fence, 'closed')},
		'55P03' => \&held_up,
		LS001 => \&superseded },
	fence_guard => {
		'0A000' => sub { trigger('AFTER INSERT', 'ROW', "'column', 'fence', 'mine'", "INSERT INTO guarded VALUES ($held_fence)") },
		'22004' => sub { trigger('BEFORE INSERT', 'ROW', "'column', 'fence', 'mine'", 'INSERT INTO guarded VALUES (NULL)') },
		'22023' => sub { trigger('BEFORE INSERT', 'ROW', "'nonsense', 'fence', 'mine'", "INSERT INTO guarded VALUES ($held_fence)") },
		'39P01' => q{SELECT leaselock.fence_guard()},
		'40001' => sub {
			trigger('BEFORE INSERT', 'ROW', "'column', 'fence', 'young'", q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1;
				SELECT fence AS f FROM leaselock.lease_acquire('young', 'o') \gset
				INSERT INTO guarded VALUES (:f)})
		},
		'42501' => sub { trigger('BEFORE INSERT', 'ROW', "'column', 'fence', 'mine', 'closed'", "$stranger INSERT INTO guarded VALUES ($closed_fence)") },
		LS001 => sub { trigger('BEFORE INSERT', 'ROW', "'column', 'fence', 'mine'", 'INSERT INTO guarded VALUES (1)') },
		LS003 => sub { trigger('BEFORE INSERT', 'STATEMENT', "'transaction', 'mine'", 'INSERT INTO guarded VALUES (1)') } },
	fence_monotonic => {
		'0A000' => sub { trigger('AFTER UPDATE', 'ROW', "'fence'", 'INSERT INTO guarded VALUES (2); UPDATE guarded SET fence = 3', 'fence_monotonic') },
		'22004' => sub { trigger('BEFORE UPDATE', 'ROW', "'fence'", 'INSERT INTO guarded VALUES (2); UPDATE guarded SET fence = NULL', 'fence_monotonic') },
		'22023' => sub { trigger('BEFORE UPDATE', 'ROW', "'nothing'", 'INSERT INTO guarded VALUES (2); UPDATE guarded SET fence = 3', 'fence_monotonic') },
		'39P01' => q{SELECT leaselock.fence_monotonic()},
		LS001 => sub { trigger('BEFORE UPDATE', 'ROW', "'fence'", 'INSERT INTO guarded VALUES (2); UPDATE guarded SET fence = 1', 'fence_monotonic') } },
	lease_peek => {
		'22004' => q{SELECT leaselock.lease_peek(NULL)},
		'22023' => q{SELECT leaselock.lease_peek('')} },
	lease_events => {
		'22004' => q{SELECT leaselock.lease_events(max_rows => NULL)},
		'22023' => q{SELECT leaselock.lease_events(after_id => 1)} },
	lease_break => {
		'22004' => q{SELECT leaselock.lease_break('n', NULL)},
		'22023' => q{SELECT leaselock.lease_break('', 1)},
		'25006' => qq{$read_only SELECT leaselock.lease_break('n', 1)},
		'42501' => qq{$stranger SELECT leaselock.lease_break('n', 1)},
		'55P03' => qq{$quick SELECT leaselock.lease_break('busy', $busy_fence)} },
	lease_prune => {
		'22004' => q{SELECT leaselock.lease_prune(NULL)},
		'22023' => q{SELECT leaselock.lease_prune(max_rows => 0)},
		'25006' => qq{$read_only SELECT leaselock.lease_prune()},
		'42501' => qq{$stranger SELECT leaselock.lease_prune()} },
	lease_scope_create => {
		'22004' => q{SELECT leaselock.lease_scope_create(NULL, 'team')},
		'22023' => q{SELECT leaselock.lease_scope_create('', 'team')},
		'25006' => qq{$read_only SELECT leaselock.lease_scope_create('s', 'team')},
		'42501' => qq{$stranger SELECT leaselock.lease_scope_create('s', 'team')},
		'42704' => q{SELECT leaselock.lease_scope_create('s', 'nobody')},
		'55P03' => qq{$quick SELECT leaselock.lease_scope_create('kept', 'team')} },
	lease_scope_drop => {
		'22004' => q{SELECT leaselock.lease_scope_drop(NULL)},
		'22023' => q{SELECT leaselock.lease_scope_drop('')},
		'25006' => qq{$read_only SELECT leaselock.lease_scope_drop('closed')},
		'42501' => qq{$stranger SELECT leaselock.lease_scope_drop('closed')},
		'55P03' => qq{$quick SELECT leaselock.lease_scope_drop('kept')} },
	fence_bump => {
		'25006' => qq{$read_only SELECT leaselock.fence_bump()},
		'42501' => qq{$stranger SELECT leaselock.fence_bump()},
		'54000' => \&full,
		'55P03' => qq{$quick SELECT leaselock.fence_bump()} });
$provoke{fence_assert} = { map { $_ => ref $provoke{fence_check}{$_} && $_ ne '25006' ? $provoke{fence_check}{$_} :
		ref $provoke{fence_check}{$_} ? sub { node_outcome($standby, "SELECT leaselock.fence_assert('mine', $held_fence)") } :
		$provoke{fence_check}{$_} =~ s/fence_check/fence_assert/r } keys %{ $provoke{fence_check} } };

# trigger(TIMING, LEVEL, ARGUMENTS, SQL, FUNCTION): what comes of writing the table
sub trigger
{
	my ($timing, $level, $arguments, $sql, $function) = @_;

	$function //= 'fence_guard';
	$node->safe_psql('postgres', qq{
		DROP TABLE guarded; CREATE TABLE guarded (fence bigint); GRANT ALL ON guarded TO stranger;
		CREATE TRIGGER guard $timing ON guarded FOR EACH $level EXECUTE FUNCTION leaselock.$function($arguments)});
	return node_outcome($node, $sql);
}

# A check, and another grant before its commit
sub superseded
{
	my $session = session($node, 'BEGIN',
		q{SELECT fence AS f FROM leaselock.lease_acquire('passed', 'o') \gset}, 'COMMIT', 'BEGIN',
		q{SELECT leaselock.fence_check('passed', :f)});
	$node->safe_psql('postgres', q{SELECT leaselock.lease_break('passed', fence) FROM leaselock.lease_peek('passed')});
	my $code = outcome($session, 'COMMIT');
	$session->quit;
	return $code;
}

# A commit behind an open release
sub held_up
{
	$node->safe_psql('postgres', q{SELECT leaselock.try_lock('held up', 'o', '1 h')});
	my $session = session($node, q{LOAD 'leaselock'}, q{SET leaselock.lock_timeout = '20 ms'},
		'BEGIN', q{SELECT leaselock.fence_check('held up', fence) FROM leaselock.lease_peek('held up')});
	my $other = session($node, 'BEGIN', q{SELECT leaselock.release_lock('held up', 'o')});
	my $code = outcome($session, 'COMMIT');
	$_->quit foreach $session, $other;
	return $code;
}

# One checks y and renews x, the other has y and wants x
sub crossed
{
	$node->safe_psql('postgres', q{SELECT leaselock.try_lock(name, 'o', '1 h') FROM unnest('{x, y}'::text[]) AS name});
	my @patient = (q{LOAD 'leaselock'}, q{SET leaselock.lock_timeout = '100 s'});
	my $session = session($node, @patient, q{SET deadlock_timeout = '10 ms'}, 'BEGIN',
		q{SELECT leaselock.fence_check('y', fence) FROM leaselock.lease_peek('y')}, q{SELECT leaselock.renew_lock('x', 'o', '1 h')});
	my $other = session($node, @patient, q{SET deadlock_timeout = '100 s'}, 'BEGIN', q{SELECT leaselock.release_lock('y', 'o')});
	begin($other, q{SELECT leaselock.renew_lock('x', 'o', '1 h')});
	$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%renew_lock(''x''%'}) or die;
	my $code = outcome($session, 'COMMIT');
	is(awaited($other), 't', 'the other goes on');
	$_->quit foreach $session, $other;
	return $code;
}

# A floor at the end of all fences
sub full
{
	outcome($blocker, 'ROLLBACK');
	return node_outcome($node, q{BEGIN; ALTER TABLE leaselock.floor DROP CONSTRAINT floor_fence;
		INSERT INTO leaselock.floor VALUES (4611686018427387903, 0); SELECT leaselock.fence_bump()});
}

# come_of(WHAT): the last line, which is the SQLSTATE
sub come_of
{
	my ($what) = @_;
	my $code = ref $what ? $what->() : node_outcome($node, $what);
	return $code =~ s/.*\n//sr;
}

$node->backup('backup');
$standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;

my $sqlstate = qr/\b(?:LS\d{3}|\d[0-9A-Z]{4})\b/;
is_deeply([ sort keys %provoke ], [ sort keys %signature ], 'each function is tried');
# the last statement of fence_bump ends what is in the way of others
foreach my $name (sort { ($a eq 'fence_bump') <=> ($b eq 'fence_bump') || $a cmp $b } keys %signature)
{
	my ($errors) = $section{$name} =~ /^Errors: (.*)$/m or die "$name: no errors on the page";
	my ($other) = $errors =~ /^those of `(\w+)`/;
	my %codes = map { $_ => 1 } join(' ', $errors, $other ? $section{$other} =~ /^Errors: (.*)$/m : ()) =~ /$sqlstate/g;

	is_deeply([ sort keys %codes ], [ sort keys %{ $provoke{$name} } ], "$name: which errors");
	is(come_of($provoke{$name}{$_}), $_, "$name: $_") foreach sort { ($a eq '54000') <=> ($b eq '54000') || $a cmp $b } keys %codes;
}
$standby->stop;

# those of PostgreSQL that no list above has
my %server = (
	'53200' => q{SELECT leaselock.try_lock(g::text, 'o', '1 s') FROM generate_series(1, 20000) AS g});
my %in_lists = map { $_ => 1 } map { keys %$_ } values %provoke;
foreach my $code (map { $_->[0] } @servers)
{
	ok($in_lists{$code} || $server{$code}, "$code is provoked");
	is(come_of($server{$code}), $code, "PostgreSQL's $code") if $server{$code};
}

# ---------------------------------------------------------------------
# Sentences that no other test is about
# ---------------------------------------------------------------------

is($node->safe_psql('postgres', q{
	SELECT (leaselock.lease_acquire('composite', 'o')).*;
	SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'composite'}) =~ s/.*\n//sr,
	scalar(split /,/, $relation{lease_ticket}), '(f()).* makes a ticket for each column');

my $session = session($node, q{SELECT fence AS f FROM leaselock.lease_acquire('early', 'o') \gset}, 'BEGIN',
	q{SELECT leaselock.fence_check('early', :f)});
$node->safe_psql('postgres', q{SELECT leaselock.lease_break('early', fence) FROM leaselock.lease_peek('early')});
is(outcome($session, q{SELECT state FROM leaselock.lease_acquire('early', 'o')}), 'LS001',
	'a check is verified when the transaction itself begins another grant');
outcome($session, 'ROLLBACK');
$session->quit;

cmp_ok($node->safe_psql('postgres', q{
	SELECT fence - 1000000 * extract(epoch FROM now() - '2020-01-01 00:00 UTC')
	+ 1000000 * extract(epoch FROM '2300-01-01 00:00 UTC'::timestamptz - '2020-01-01 00:00 UTC') < 2::numeric ^ 53
	FROM leaselock.lease_acquire('fence', 'o')}), 'eq', 't', 'fences stay below 2^53 until 2300');

is($node->safe_psql('postgres', q{
	SELECT leaselock.try_lock(E'caf\xC3\xA9', 'a', '1 h') IS NOT NULL, leaselock.try_lock(E'cafe\xCC\x81', 'b', '1 h') IS NOT NULL}),
	't|t', 'two spellings of a letter make two names');
is($node->safe_psql('postgres', q{
	LOAD 'leaselock';
	SET timezone = 'Europe/Berlin';
	SELECT set_config('leaselock.clock_offset', (1000 * extract(epoch FROM '2027-03-27 12:00'::timestamptz - now()))::bigint::text, false) \g /dev/null
	SELECT leaselock.try_lock('summer time', 'o', '1 day') \g /dev/null
	SELECT extract(epoch FROM expires_at - granted_at)::int FROM leaselock.lease_peek('summer time')}), 86400,
	'a day has 24 hours when the clocks change');
is($node->safe_psql('postgres', q{
	SELECT ticket AS first FROM leaselock.lease_acquire('age 1', 'o') \gset
	SELECT ticket AS second FROM leaselock.lease_acquire('age 2', 'o') \gset
	SELECT :'first'::uuid < :'second'::uuid, substr(:'first', 15, 1)}), 't|8', 'tickets are version 8, and sort by age');
$session = session($node, q{SELECT state FROM leaselock.lease_acquire('all 1', 'all')}, q{SELECT state FROM leaselock.lease_acquire('all 2', 'all')},
	'BEGIN', q{SELECT state FROM leaselock.lease_acquire('all 2', 'all')});
is(node_outcome($node, qq{$quick SELECT leaselock.lease_release_all('all')}), '55P03', 'one of the locks is busy');
is($node->safe_psql('postgres', q{SELECT count(*) FROM leaselock.lease_tickets WHERE owner = 'all'}), '2', 'then none is released');
outcome($session, 'COMMIT');
$session->quit;
is($node->safe_psql('postgres', q{SELECT leaselock.lease_release_all('all')}), '3', 'otherwise all are');
is($node->safe_psql('postgres', q{SELECT count(*) FROM leaselock.lease_scopes WHERE scope = 'kept'}), '0',
	'lease_scope_create that fails changes nothing');
is($node->safe_psql('postgres', q{
	SELECT (leaselock.lease_acquire('composite id', 'o', request_id => '00000000-0000-0000-0000-000000000001')).*;
	SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'composite id'}) =~ s/.*\n//sr, '1', '(f()).* with a request id makes one');

my ($ended, $ends, $fence) = split /\|/, $node->safe_psql('postgres', q{SELECT ticket, expires_at, fence FROM leaselock.lease_acquire('ended', 'o', note => 'for people')});
is($node->safe_psql('postgres', q{SET ROLE stranger; SELECT note FROM leaselock.lease_peek('ended')}), 'for people', 'everybody sees a note');
is($node->safe_psql('postgres', "LOAD 'leaselock'; SET leaselock.clock_offset = '61 s'; SELECT state, expires_at FROM leaselock.lease_get('$ended')"),
	"expired|$ends", 'an expired ticket tells when its lease ran out');
is($node->safe_psql('postgres', "LOAD 'leaselock'; SELECT state, expires_at FROM leaselock.lease_release('$ended')"),
	"released|$ends", 'a released one when it would have');

my $logged = -s $node->logfile;
$node->safe_psql('postgres', q{
	LOAD 'leaselock';
	SELECT FROM leaselock.lease_acquire('taken over', 'same', '5 s');
	SET leaselock.clock_offset = '6 s';
	SET leaselock.log_takeovers = on;
	SELECT FROM leaselock.lease_acquire('taken over', 'same', '5 s')});
like(slurp_file($node->logfile, $logged), qr/LOG:  lease taken over: lock "taken over" .* by owner "same" .*, from owner "same"/, 'log_takeovers: one of the same identity');

# of the same identity, in another session
$session = session($node, q{SELECT FROM leaselock.lease_acquire('own', 'o', '300 s')}, 'BEGIN', q{SELECT FROM leaselock.lease_acquire('own', 'o')});
is($node->safe_psql('postgres', q{SELECT state, holder IS NULL FROM leaselock.lease_acquire('own', 'o')}), 'contended|t',
	'contended without a holder: a transaction of the same identity');
is($node->safe_psql('postgres', q{SELECT state, holder FROM leaselock.lease_acquire('own', 'p')}), 'contended|o', 'others are told the holder');
outcome($session, 'ROLLBACK');
$session->quit;
is($node->safe_psql('postgres', q{
	LOAD 'leaselock';
	SELECT FROM leaselock.lease_acquire('behind', 'o', '5 s');
	SELECT FROM leaselock.lease_acquire('behind', 'p', wait => '300 s');
	SET leaselock.clock_offset = '6 s';
	SELECT state, holder IS NULL FROM leaselock.lease_acquire('behind', 'q')}) =~ s/.*\n//sr, 'contended|t', 'contended without a holder: somebody waits');

# Which tables a call reads as a whole.  The first calls of a session read more.
sub scans
{
	my ($call) = @_;
	my $of = q{SELECT string_agg(relname || ' ' || seq_scan, ',' ORDER BY relname) FROM pg_stat_xact_user_tables
		WHERE schemaname = 'leaselock' AND seq_scan > 0};
	my $reader = session($node, "SELECT $call", "SELECT $call", 'BEGIN');
	my %before = map { split / / } split /,/, outcome($reader, $of);
	outcome($reader, "SELECT $call");
	my %after = map { split / / } split /,/, outcome($reader, $of);
	$reader->quit;
	return join ' ', grep { $after{$_} > ($before{$_} // 0) } sort keys %after;
}
is(scans(q{leaselock.lease_release_all('nobody')}), 'locks', 'lease_release_all reads all locks, and no other table');
is(scans(q{leaselock.lease_peek('mine')}), '', 'lease_peek reads no table as a whole');
is(scans(q{count(*) FROM leaselock.lease_status}), 'locks', 'the view does');

is($node->safe_psql('postgres', "CALL leaselock.lease_wait('$ended', '36500 days', 'nonsense', 1, '2000-01-01')"), "released|$fence|$ends", 'lease_wait ignores what is passed for its results');
is(node_outcome($node, "CALL leaselock.lease_wait('$ended', '36500 days 1 microsecond')"), '22023', 'lease_wait: the longest timeout');
is(node_outcome($node, q{SELECT leaselock.lease_prune('36500 days') >= 0}), 't', 'lease_prune: the longest time');
is(node_outcome($node, q{SELECT leaselock.lease_prune('36500 days 1 microsecond')}), '22023', 'lease_prune: no longer one');

my $known = q{CALL leaselock.lease_acquire_wait('known', 'w', wait => '300 s', request_id => '00000000-0000-0000-0000-000000000002')};
$node->safe_psql('postgres', q{SELECT FROM leaselock.lease_acquire('known', 'o')});
$session = session($node);
begin($session, $known);
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM leaselock.lease_tickets WHERE name = 'known' AND state = 'waiting'}), 'a call waits');
is($node->safe_psql('postgres', q{SELECT leaselock.lease_release_all('w')}), '1', 'another session cancels its ticket');
like(awaited($session), qr/\|cancelled\|/, 'lease_acquire_wait returns cancelled');
like(outcome($session, $known), qr/\|cancelled\|/, 'and the same for a known request id');
$session->quit;

# a restore, which takes none of the locks of the functions
$session = session($node, 'BEGIN', q{INSERT INTO leaselock.locks
	SELECT (jsonb_populate_record(l, '{"name": "restored"}')).* FROM leaselock.locks l WHERE name = 'mine' AND scope = 'public'});
is(node_outcome($node, q{SELECT leaselock.lease_acquire('restored', 'o')}), '55P03', 'a restore is inserting the same row');
outcome($session, 'ROLLBACK');
is(node_outcome($node, q{SELECT state FROM leaselock.lease_acquire('restored', 'o')}), 'held', 'until it ends');
$session->quit;

# in databases of their own
$node->safe_psql('postgres', 'CREATE DATABASE dropped');
$node->safe_psql('dropped', 'CREATE EXTENSION leaselock');
my $gate = $node->background_psql('dropped');
$gate->query_safe('SELECT pg_advisory_lock(5)');
my $caller = $node->background_psql('dropped', on_error_stop => 0);
$caller->query_safe('\set VERBOSITY sqlstate');
# with the lock of a relation it learns what has been dropped
begin($caller, q{SELECT pg_advisory_lock(5), pg_relation_size('pg_database'), leaselock.lease_peek('a')});
ok($node->poll_query_until('dropped', q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}), 'a statement has been parsed');
$node->safe_psql('dropped', 'DROP EXTENSION leaselock');
$gate->query_safe('SELECT pg_advisory_unlock(5)');
is(awaited($caller), '42883', 'then the function is dropped');
$_->quit foreach $caller, $gate;

$node->safe_psql('dropped', 'CREATE EXTENSION leaselock');
my ($one, $two) = split /\n/, $node->safe_psql('dropped', 'SELECT leaselock.fence_bump(); SELECT leaselock.fence_bump()');
cmp_ok((2**62 - $two) / ($two - $one), '>', 100_000, 'fence_bump can be called more than a hundred thousand times');
$node->safe_psql('dropped', 'ALTER TABLE leaselock.floor DROP CONSTRAINT floor_fence; INSERT INTO leaselock.floor VALUES (4611686018427387903, 0)');
is(node_outcome($node, q{SELECT leaselock.try_lock('a', 'o', '1 h')}, 'dropped'), '54000', 'no greater fence is left');
is(node_outcome($node, 'BEGIN; UPDATE leaselock.floor SET fence = -1; SELECT leaselock.fence_bump()', 'dropped'), '55000', 'a row breaks a constraint of its table');
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '--exclude-table-data=leaselock.*', '-d', $node->connstr('dropped'), '-f', $dump ], "a dump without the extension's tables");
$node->safe_psql('postgres', 'CREATE DATABASE again');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('again'), '-f', $dump ], 'is restored');
is(node_outcome($node, q{SELECT leaselock.try_lock('a', 'o', '1 h') > 0}, 'again'), 't', 'there are fences again');

is(node_outcome($node, qq{$stranger LOAD 'leaselock'; SET leaselock.max_waiters = 1; SHOW leaselock.max_waiters}), '42501', 'a setting is not for everybody');
is(node_outcome($node, q{LOAD 'leaselock'; GRANT SET ON PARAMETER leaselock.max_waiters TO stranger;
	SET ROLE stranger; SET leaselock.max_waiters = 1; SHOW leaselock.max_waiters}), '1', 'but for who has SET on it');

# ---------------------------------------------------------------------
# The blocks
# ---------------------------------------------------------------------

$page->before(
	first => sub { $page->sql('CREATE TABLE report (result text)') },
	settings => sub {
		is(node_outcome($node, q{ALTER SYSTEM SET leaselock.max_lease = '10 min'}), '42704', 'not known before the library is loaded');
	});
$page->after(
	first => sub {
		like($page->printed('first'), qr/released/, 'the example works');
		is($page->sql('SELECT result FROM report'), 'done', 'and has written');
	},
	settings => sub {
		like($page->printed('settings'), qr/^ t$/m, 'the configuration is read again');
		ok($node->poll_query_until('postgres', q{SELECT current_setting('leaselock.max_lease', true) = '10 min'}), 'the setting counts');
	});
$page->run;

done_testing();
