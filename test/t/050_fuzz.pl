# Random arguments for every function and procedure of the schema: no crash, no
# internal error, no undocumented SQLSTATE, and the session survives.
# LEASELOCK_SEED repeats the statements of a run, but not the timing between
# the sessions.

use strict;
use warnings FATAL => 'all';

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seed = $ENV{LEASELOCK_SEED} || int(time * 1000) % 2**31;
srand $seed;
note "LEASELOCK_SEED=$seed";

# per session: number of statements, and number of tables with triggers
my $calls = 2000;
my $tables = 80;

my $node = PostgreSQL::Test::Cluster->new('fuzz');
$node->init(extra => [ '--encoding=UTF8', '--no-locale' ]);
$node->append_conf('postgresql.conf', qq{
fsync = off
autovacuum = off
log_statement = none
log_min_error_statement = panic
log_line_prefix = '%m [%p] %e %q%a '
client_min_messages = warning
leaselock.lock_timeout = 30
leaselock.max_waiters = 4
});
$node->start;
$node->safe_psql('postgres', q{
CREATE ROLE ordinary LOGIN;
CREATE ROLE team ROLE ordinary;
CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0;
});
foreach my $database ('postgres', 'bytes')
{
	$node->safe_psql($database, q{
CREATE EXTENSION leaselock;
GRANT CREATE ON SCHEMA public TO ordinary;
CREATE DOMAIN token AS bigint CHECK (VALUE > 0);
});
}

# ---------------------------------------------------------------------
# The routines to call
# ---------------------------------------------------------------------

# Each input argument is "type:name"
my @routines;
foreach my $line (
	split /\n/,
	$node->safe_psql('postgres', q{
	SELECT p.oid, p.proname, p.prokind, p.prorettype::regtype, p.pronargdefaults,
		(SELECT coalesce(string_agg(format_type(a.type, NULL) || ':' || coalesce(p.proargnames[a.n], ''), ',' ORDER BY a.n), '')
			FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY a (type, n)
			WHERE p.proargmodes IS NULL OR p.proargmodes[a.n] IN ('i', 'b', 'v'))
	FROM pg_proc p WHERE p.pronamespace = 'leaselock'::regnamespace
	ORDER BY p.oid::regprocedure::text}))
{
	my %routine;
	@routine{ 'oid', 'name', 'kind', 'returns', 'defaults', 'arguments' } =
	  split /\|/, $line, -1;
	$routine{arguments} =
	  [ map { [ split /:/, $_, 2 ] } split /,/, $routine{arguments} ];
	push @routines, \%routine;
}
my @triggers = grep { $_->{returns} eq 'trigger' } @routines;
cmp_ok(scalar @routines, '>=', 20, 'the functions are found');
cmp_ok(scalar @triggers, '>=', 2, 'the trigger functions are found');

# ---------------------------------------------------------------------
# Values: an SQL expression, or [literal], which its type may reject
# ---------------------------------------------------------------------

# Existing tickets of both roles, in addition to those that the sessions create
my @tickets = split /\n/, $node->safe_psql('postgres', q{
	SELECT ticket FROM leaselock.lease_acquire('lock 1', 'one', '300 s');
	SELECT ticket FROM leaselock.lease_acquire('lock 1', 'two', wait => '300 s');
	SELECT ticket FROM leaselock.lease_acquire('lock 2', 'one', '300 s');
	SET ROLE ordinary;
	SELECT ticket FROM leaselock.lease_acquire('lock 2', 'one', wait => '300 s');
	SELECT ticket FROM leaselock.lease_acquire('lock 3', 'one', '300 s');
});

# Arguments that let a call succeed; "*" stands for the number of an earlier
# acquisition, the same number throughout a call
my %usual = (
	text => [ "'lock 1'", "'lock 2'", "'lock 3'", "'one'", "'one'", "'two'",
		"'public'", "'public'", "'scope'", ":'name*'", ":'owner*'", ":'scope*'" ],
	interval => [ "'5 s'", "'10 s'", "'60 s'", "'20 ms'", "'0 s'" ]);
my %values = (
	text => [
		"''", "' '", "' a'", "'a '", q{E'\t'}, q{E'a\n'}, q{E'a\nb'}, q{E'\001'},
	'chr(127)', "'\xC2\xA0'", "'\xC2\x85'", "'\xEF\xBB\xBF'",
	"'\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E'", "'\xF0\x9F\x98\x80'",
	"'e\xCC\x81'", "repeat('\xC3\xA9', 127) || 'a'", "repeat('\xC3\xA9', 128)",
	"repeat('\xE2\x82\xAC', 1000)", "repeat('x', 255)", "repeat('x', 256)",
	"repeat('x', 1048576)", "repeat('\xF0\x9F\x98\x80', 262144)",
	"repeat('x', 1048576) || chr(1)", "repeat(E'\\n', 100)", "repeat(' ', 1048576)",
	q{'%s%n%d%*d%'}, q{'\\'}, q{''''}, q{'"'}, q{'$1'}, q{'NULL'}, q{'a/../b'},
	q{'; DROP TABLE leaselock.locks'}, 'NULL', "'" . ('x' x 20000) . "'",
	'current_user', q{('a' COLLATE "C")} ],
	interval => [
		'NULL', "'60 s'", "'5 s'", "'300 s'", "'4.999999 s'", "'300.000001 s'",
		"'0'", "'-1 us'", "'1 us'", "'20 ms'", "'1 day'", "'-1 day'",
		"'1 month'", "'-1 month'", "'1 month -30 days'", "'-178000000 years'",
		"'178000000 years'", "'2562047788:00:54.775807'",
		"'-2562047788:00:54.775807'", "'36500 d'", "'36501 d'",
		"'106751991 days'", "'106751992 days'", "'-106751992 days'",
		"'2147483647 days 2562047788:00:54.775807'",
		"'-2147483648 days -2562047788:00:54.775807'",
		'make_interval(months => 2147483647)',
		'make_interval(months => -2147483648)',
		'make_interval(days => 2147483647, hours => -2147483647)',
		"'1 day -24 hours'", "'-1 day 24:00:10'",
		["'infinity'"], ["'-infinity'"], ["'999999999999 years'"], ["'soon'"], ["''"] ],
	uuid => [
		'NULL', "'00000000-0000-0000-0000-000000000000'",
		"'ffffffff-ffff-ffff-ffff-ffffffffffff'", 'gen_random_uuid()',
		"'6f0d7a2e-4d3f-4c55-9d5a-7a0f5a3f2f10'", ["''"], ["'6f0d7a2e'"],
		["'{6f0d7a2e4d3f4c559d5a7a0f5a3f2f1g}'"], (map { "'$_'" } @tickets),
		(":'ticket*'") x 12 ],
	bigint => [
		'NULL', '0', '1', '-1', '9223372036854775807', "'-9223372036854775808'",
		'2147483648', '9007199254740993', '-9007199254740993',
		["'9223372036854775808'"], ["'1e3'"], ["''"],
		(':fence*') x 12 ],
	xid8 => [
		'NULL', "'0'", "'1'", "'3'", "'18446744073709551615'", "'-1'",
		'pg_current_xact_id()', 'pg_snapshot_xmin(pg_current_snapshot())',
		["'18446744073709551616'"], ["'x'"], ["''"] ],
	integer => [
		'NULL', '0', '1', '-1', '2', '10', '2147483647', '-2147483647 - 1',
		["'2147483648'"], ["'x'"] ],
	boolean => [ 'NULL', 'true', 'false', ["'maybe'"] ],
	name => [
		'NULL', "'ordinary'", "'team'", 'current_user', "'pg_monitor'",
		"'nobody at all'", "''", "' '", "'public'", "'none'", q{E'\n'},
		"repeat('x', 1048576)::name", "repeat('\xC3\xA9', 1000)::name",
		"'" . ('n' x 70) . "'" ],
	'timestamp with time zone' =>
	  [ 'NULL', 'now()', "'infinity'", "'-infinity'", ["'yesterday or so'"] ]);

foreach my $routine (@routines)
{
	foreach my $argument (@{ $routine->{arguments} })
	{
		die "no values for type $argument->[0] of $routine->{name}" if !$values{ $argument->[0] };
	}
}

sub any { return $_[ rand @_ ] }
sub chance { return rand() < $_[0] }

# A value for an argument of that type: the expression, and whether the type
# may reject it
sub value
{
	my ($type) = @_;
	my $value =
	  any(exists $usual{$type} && chance(0.7) ? @{ $usual{$type} } : @{ $values{$type} });

	($value, my $risky) = ref $value ? ($value->[0], 1) : ($value, 0);
	$value = chance(0.5) ? "($value)::$type" : "CAST($value AS $type)"
	  if chance(0.3) && $value !~ /::/;
	return ($value, $risky);
}

# A call: its text, and the SQLSTATEs it may return besides the common ones
sub call
{
	my ($routine) = @_;
	my @may;
	my $required = @{ $routine->{arguments} } - $routine->{defaults};
	my $count = $required + int rand $routine->{defaults} + 1;
	my $named_from = chance(0.5) ? int rand $count + 1 : $count;
	my (@positional, @named);

	foreach my $n (0 .. $#{ $routine->{arguments} })
	{
		my ($type, $name) = @{ $routine->{arguments}[$n] };

		# named notation may leave out any argument that has a default
		next
		  if $named_from < $count ? $n >= $required && $n >= $named_from && chance(0.5)
		  : $n >= $count;
		my ($value, $risky) = value($type);
		push @may, '22P02', '22007', '22008', '22015', '22003' if $risky;
		if ($n < $named_from)
		{
			push @positional, $value;
		}
		else
		{
			push @named, qq{"$name" => $value};
		}
	}
	@named = sort { rand() <=> 0.5 } @named;
	my $call =
	  "leaselock.$routine->{name}(" . join(', ', @positional, @named) . ')';
	my $n = 1 + int rand 4;
	$call =~ s/(:'?(?:name|owner|scope|ticket|fence))\*/$1$n/g;

	push @may, 'LS002', '53400' if $routine->{name} =~ /^lease_acquire/;
	push @may, 'LS001', '40001' if $routine->{name} =~ /^fence_/;
	push @may, '42704' if $routine->{name} eq 'lease_scope_create';
	push @may, '2D000' if $routine->{kind} eq 'p';
	push @may, '39P01', '42804' if $routine->{returns} eq 'trigger';
	return ($call, @may);
}

# ---------------------------------------------------------------------
# A session's script.  "\warn" prints the number of each statement, so that an
# error can be matched to its statement.
# ---------------------------------------------------------------------

my (@script, @statement, @allowed);

# After an error that aborts the block, statements fail with 25P02
my %block;

sub say_sql
{
	my ($sql, @may) = @_;

	push @statement, $sql;
	push @allowed, {
		map { $_ => 1 } qw(22023 22004 42501 55P03 40P01 57014),
		$block{read_only} ? '25006' : (), $block{aborts} ? '25P02' : (), @may };
	# psql sends "\gset" itself
	my $n = 1 + int rand 4;
	$sql =~ s/(:'?(?:name|owner|scope|ticket|fence))\*/$1$n/g;
	push @script, "\\warn statement $#statement", $sql =~ /\\gset/ ? $sql : "$sql;";
	return;
}

sub say_call
{
	my ($routine) = @_;
	my ($call, @may) = call($routine);

	if ($routine->{kind} eq 'p')
	{
		return say_sql("CALL $call", @may);
	}
	my $form = int rand 7;
	return say_sql("SELECT * FROM $call", @may) if $form == 0;
	if ($form == 1 && $call !~ /:['f]|\$/)
	{
		return say_sql("DO \$do\$ BEGIN PERFORM $call; "
			  . ' EXCEPTION WHEN OTHERS THEN RAISE; END $do$', @may);
	}
	return say_sql("SELECT $call FROM generate_series(1, 2)", @may) if $form == 2;
	return say_sql("SELECT 1 WHERE ($call) IS NULL", @may)
	  if $form == 3 && $call !~ /_rows|peek|lease_events/;
	# the row as a client sees it, and tickets and fences for later calls
	if ($form >= 5 && $routine->{name} =~ /^(?:lease_acquire|try_lock)$/)
	{
		my $n = 1 + int rand 4;

		return say_sql(
			$routine->{name} eq 'try_lock'
			? "SELECT coalesce($call, 1) AS fence$n \\gset"
			: "SELECT coalesce(ticket, gen_random_uuid()) AS ticket$n, coalesce(fence, 2) AS fence$n,"
			  . " name AS name$n, owner AS owner$n, scope AS scope$n FROM $call \\gset", @may);
	}
	return say_sql("SELECT $call", @may);
}

# As in the extended protocol: parameters have a declared or an inferred type
sub say_prepared
{
	my ($routine) = @_;
	my (@values, @may);

	foreach my $argument (@{ $routine->{arguments} })
	{
		my ($value, $risky) = value($argument->[0]);
		push @may, '22P02', '22007', '22008', '22015', '22003' if $risky;
		push @values, $value;
	}
	my $n = 0;
	my $call = "leaselock.$routine->{name}("
	  . join(', ', map { $n++; qq{"$_->[1]" => \$$n} } @{ $routine->{arguments} }) . ')';
	my $types = join ', ', map { $_->[0] } @{ $routine->{arguments} };
	my (undef, @also) = call($routine);

	say_sql('DEALLOCATE ALL');
	say_sql('PREPARE p' . (chance(0.5) ? "($types)" : '') . " AS SELECT $call");
	say_sql('EXECUTE p(' . join(', ', @values) . ')', @may, @also) for 1 .. 1 + int rand 2;
	return;
}

sub say_any
{
	my @not_triggers = grep { $_->{returns} ne 'trigger' } @routines;
	# otherwise most calls of the other roles would fail with 42501
	return say_sql("SELECT leaselock.lease_scope_drop('public')") if chance(0.04);
	# a wait usually lasts until statement_timeout
	my $routine = any(chance(0.3) ? @routines : grep { $_->{kind} ne 'p' } @not_triggers);

	return chance(0.1) && $routine->{kind} ne 'p' && @{ $routine->{arguments} }
	  ? say_prepared($routine)
	  : say_call($routine);
}

# A transaction block
sub say_block
{
	my $level = any('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE');
	my $savepoints = 0;

	%block = (read_only => chance(0.15), aborts => chance(0.5));
	push @script, '\set ON_ERROR_ROLLBACK ' . ($block{aborts} ? 'off' : 'on');
	say_sql("BEGIN ISOLATION LEVEL $level" . ($block{read_only} ? ' READ ONLY' : ''));
	foreach (1 .. 1 + int rand 6)
	{
		if (chance(0.15))
		{
			say_sql('SAVEPOINT s');
			$savepoints++;
		}
		elsif ($savepoints && chance(0.3))
		{
			say_sql(any('ROLLBACK TO SAVEPOINT s', 'ROLLBACK TO SAVEPOINT s', 'RELEASE SAVEPOINT s'),
				'3B001');
		}
		say_any();
	}
	# a transaction with changes cannot be prepared, and here none can (55000)
	chance(0.1)
	  ? say_sql("PREPARE TRANSACTION 'p'", 'LS001', '40001', '0A000', '55000')
	  : say_sql(any('COMMIT', 'COMMIT', 'ROLLBACK'), 'LS001', '40001');
	%block = ();
	push @script, '\set ON_ERROR_ROLLBACK off';
	return;
}

# ---------------------------------------------------------------------
# Triggers
# ---------------------------------------------------------------------

sub literal { return "'" . ($_[0] =~ s/'/''/gr) . "'" }

my @trigger_arguments = (
	('column', 'columns', 'transaction') x 4, ('fence', 'name', 'scope') x 4,
	('lock 1', 'lock 2', 'public') x 2, 'small', 'amount', 'dom', 'flag', 'plus',
	'', ' ', 'COLUMN', 'ctid', 'tableoid', '........pg.dropped.1........',
	'no such', "a\nb", "'", '"fence"', "\xE6\x97\xA5\xE6\x9C\xAC", 'x' x 255,
	'x' x 256, '%s%n', '\\', '\\000');

my $serial = 0;

sub say_trigger
{
	my ($session) = @_;
	my $name = "t_${session}_" . ++$serial;
	my $kind = any('table', 'table', 'table', 'partitioned', 'view', 'constraint');
	my $function = any(@triggers);
	my @arguments = map { any(@trigger_arguments) } 1 .. rand 6;
	my @may = ('LS001', 'LS003', '0A000', '40001', '22003', '22001', '23514', '23505', '55006');
	my ($timing, $each, @events);

	# usually a valid set of arguments, otherwise anything
	@arguments = @{ any(
		[ 'column', 'fence', 'lock 1' ], [ 'column', 'fence', 'lock 2', 'public' ],
		[ 'columns', 'fence', 'name' ], [ 'columns', 'fence', 'name', 'scope' ],
		[ 'transaction', 'lock 1' ], [ 'transaction', 'lock 2', 'public' ],
		['fence'], [ 'column', 'dom', 'lock 1' ]) } if chance(0.6);
	push @arguments, 'y' x 1048576 if chance(0.03);

	say_sql("CREATE TABLE $name (gone int, id int, fence bigint, name text, scope varchar(300),"
		  . ' small int, amount numeric, dom token, flag bool, plus bigint GENERATED ALWAYS AS (fence + 1) STORED,'
		  . ($kind eq 'partitioned' ? ' PRIMARY KEY (id)) PARTITION BY RANGE (id)' : ' PRIMARY KEY (id))'));
	say_sql("ALTER TABLE $name DROP COLUMN gone");
	say_sql("INSERT INTO $name SELECT n, n, 'lock 1', 'public', n, n, n, true FROM generate_series(1, 3) n")
	  if $kind ne 'partitioned';
	my $on = $name;
	if ($kind eq 'partitioned')
	{
		say_sql("CREATE TABLE ${name}_1 PARTITION OF $name FOR VALUES FROM (0) TO (2)");
		say_sql("CREATE TABLE ${name}_2 PARTITION OF $name FOR VALUES FROM (2) TO (100)");
		say_sql("INSERT INTO $name SELECT n, n, 'lock 1', 'public', n, n, n, true FROM generate_series(1, 3) n");
	}
	elsif ($kind eq 'view')
	{
		$on = "${name}_v";
		say_sql("CREATE VIEW $on AS SELECT id, fence, name, scope, small, amount, dom, flag FROM $name");
	}

	($timing, $each) =
	    $kind eq 'view' && chance(0.6) ? ('INSTEAD OF', 'ROW')
	  : $kind eq 'view' ? (any('BEFORE', 'AFTER'), 'STATEMENT')
	  : $kind eq 'constraint' ? ('AFTER', 'ROW')
	  : (any('BEFORE', 'BEFORE', 'BEFORE', 'AFTER'), any('ROW', 'STATEMENT'));
	@events = grep { chance(0.6) } 'INSERT', 'UPDATE', 'DELETE',
	  $each eq 'STATEMENT' && $kind ne 'view' ? 'TRUNCATE' : ();
	@events = ('UPDATE') if !@events;
	my $create = 'CREATE ' . ($kind eq 'constraint' ? 'CONSTRAINT ' : '')
	  . "TRIGGER fuzz $timing " . join(' OR ', @events) . " ON $on "
	  . ($kind eq 'constraint' && chance(0.5) ? 'DEFERRABLE INITIALLY DEFERRED ' : '')
	  . "FOR EACH $each EXECUTE FUNCTION leaselock.$function->{name}("
	  . join(', ', map { literal($_) } @arguments) . ')';
	say_sql($create);

	my $block = chance(0.6);
	%block = (aborts => 1) if $block;
	say_sql('BEGIN ISOLATION LEVEL ' . any('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')) if $block;
	say_sql("SELECT leaselock.fence_check('lock 1', :fence1)", 'LS001', '40001') if chance(0.5);
	foreach (1 .. 4)
	{
		my $id = 1 + int rand 6;
		my ($fence, $risky) = value('bigint');
		$fence = ':fence1' if $risky || $fence =~ /'/ || chance(0.4);
		my $lock = any("'lock 1'", "'lock 1'", 'NULL', "''", "repeat('x', 1000)", "'lock 2'");
		my $row = "$id, $fence, $lock, 'public', 1, 1, 1, true";

		say_sql(any(
				"INSERT INTO $on (id, fence, name, scope, small, amount, dom, flag) VALUES ($row)",
				"INSERT INTO $on (id, fence, name, scope) VALUES ($id, $fence, $lock, $lock)",
				"UPDATE $on SET fence = $fence, name = $lock",
				"UPDATE $on SET id = id + 3, fence = $fence WHERE id < 3",
				"UPDATE $on SET small = NULL, amount = NULL, dom = NULL",
				"DELETE FROM $on WHERE id = $id",
				"DELETE FROM $on",
				$kind ne 'view' ? (
					"TRUNCATE $on",
					"INSERT INTO $on (id, fence, name) VALUES ($id, $fence, $lock)"
					  . " ON CONFLICT (id) DO UPDATE SET fence = excluded.fence",
					"MERGE INTO $on t USING (VALUES ($id)) s (id) ON t.id = s.id"
					  . " WHEN MATCHED THEN UPDATE SET fence = $fence"
					  . " WHEN NOT MATCHED THEN INSERT (id, fence) VALUES (s.id, $fence)") : ()),
			@may);
	}
	say_sql(any('COMMIT', 'ROLLBACK'), @may) if $block;
	%block = ();
	return;
}

# ---------------------------------------------------------------------
# The sessions run side by side
# ---------------------------------------------------------------------

my $files = PostgreSQL::Test::Utils::tempdir;
my @sessions;
foreach my $plan (
	[ 'postgres', 'superuser', undef ],
	[ 'postgres', 'ordinary', 'ordinary' ],
	[ 'bytes', 'bytes', undef ])
{
	my ($database, $label, $user) = @$plan;
	my %session = (label => $label, map { $_ => "$files/$label.$_" } 'in', 'out', 'err');

	@script = @statement = @allowed = ();
	push @script, '\set VERBOSITY verbose', 
	  (map { "\\set ticket$_ $tickets[$_]\n\\set fence$_ $_\n\\set name$_ lock\n\\set owner$_ one\n\\set scope$_ public" } 1 .. 4),
	  "SET statement_timeout = '40ms';", 'SELECT pg_backend_pid();';
	# each routine at least once
	say_call($_) foreach @routines;
	while (@statement < $calls)
	{
		chance(0.3) ? say_block() : say_any();
	}
	# one role without privileges on its tables, and others
	push @script, "SET statement_timeout = '10s';";
	say_sql('SELECT coalesce(fence, 3) AS fence1 FROM leaselock.lease_acquire(\'lock 1\', \'one\', \'300 s\') \gset');
	say_trigger($label) foreach 1 .. $tables;
	push @script, '\warn end', 'SELECT pg_backend_pid();',
	  q{SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';};

	append_to_file($session{in}, join("\n", @script) . "\n");
	@session{ 'statement', 'allowed', 'connstr' } = ([@statement], [@allowed],
		$node->connstr($database) . ($user ? " user=$user" : ''));
	push @sessions, \%session;
}
foreach my $session (@sessions)
{
	$session->{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $session->{connstr}, '-f', $session->{in} ],
		'>', $session->{out}, '2>', $session->{err});
}

my $start = time;
my %seen;
foreach my $session (@sessions)
{
	my $label = $session->{label};
	my ($now, @bad, $others) = (-1);

	$session->{run}->finish;
	my @lines = split /\n/, slurp_file($session->{out});
	is($lines[-2], $lines[0], "$label: the connection is the same at the end");
	is($lines[-1], '0', "$label: the session holds no lock");

	foreach my $line (split /\n/, slurp_file($session->{err}))
	{
		$now = $1 if $line =~ /^statement (\d+)$/;
		next if $line !~ /^(?:psql:\S+: )?(ERROR|WARNING|FATAL|PANIC):  (\w{5}): (.*)/;
		my ($kind, $state, $message) = ($1, $2, $3);
		my $statement = $session->{statement}[$now];

		$seen{$state}++;
		push @bad, "$kind $state $message, after: " . substr $statement, 0, 2000
		  if $kind ne 'ERROR' || !$session->{allowed}[$now]{$state}
		  # messages quote a value only in part and without control characters
		  || $statement =~ /leaselock\./ && (length $message > 1000 || $message =~ /[\x00-\x1F\x7F]/);
	}
	is($now, $#{ $session->{statement} }, "$label: all statements were sent");
	is(scalar @bad, 0, "$label: only documented errors occur")
	  or diag "LEASELOCK_SEED=$seed\n" . join "\n", splice @bad, 0, 20;
}
note sprintf 'statements: %d, seconds: %.1f, errors: %s',
  eval { my $n = 0; $n += @{ $_->{statement} } foreach @sessions; $n }, time - $start,
  join ', ', map { "$_ $seen{$_}" } sort keys %seen;

# the test proves nothing unless the calls get past the parser
cmp_ok($seen{$_} // 0, '>', 0, "$_ was raised") foreach '22004', '22023', '42501', 'LS001';
is($seen{'42601'} // 0, 0, 'no syntax error');

# ---------------------------------------------------------------------
# The server afterwards
# ---------------------------------------------------------------------

is($node->safe_psql('postgres', q{
	SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no advisory lock is left');
foreach my $database ('postgres', 'bytes')
{
	is($node->safe_psql($database, q{
		SELECT state FROM leaselock.lease_acquire('afterwards', 'one', scope => 'afterwards');
		SELECT count(*) >= 0 FROM leaselock.lease_status;
		SELECT count(*) >= 0 FROM leaselock.lease_tickets;
		SELECT leaselock.lease_prune('0') >= 0}), "held\nt\nt\nt", "$database still works");
}
my $log = slurp_file($node->logfile);
is_deeply([ $log =~ /.*terminated by signal.*/g ], [], 'no crash');
is_deeply([ $log =~ /.*\] XX\w{3} .*/g ], [], 'no internal error');
is_deeply([ $log =~ /.*(?:WARNING|PANIC): .*/g ], [], 'no warning');
$node->stop;

done_testing();
