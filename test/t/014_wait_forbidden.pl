# lease_wait and lease_acquire_wait commit between looks.  Where they cannot
# commit, they fail with one and the same error before they have done anything;
# everywhere else they work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('wait_forbidden');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock; CREATE TABLE done (what text)');

# A lock that is held, and a ticket that waits for it
$node->safe_psql('postgres',
	q{SELECT leaselock.lease_acquire('busy', 'holder', lease => '300 s')});
my $ticket = $node->safe_psql('postgres',
	q{SELECT ticket FROM leaselock.lease_acquire('busy', 'waiter', wait => '300 s')});

# The two calls, as a statement of PL/pgSQL with variables for the results, and
# as a statement of SQL
my %call = (
	lease_wait => qq{CALL leaselock.lease_wait('$ticket', '50 ms')},
	lease_acquire_wait =>
	  q{CALL leaselock.lease_acquire_wait('busy', 'other', wait => '50 ms')});
my %answer = (lease_wait => 'waiting', lease_acquire_wait => 'timed_out');
my %in_plpgsql = (
	lease_wait => qq{CALL leaselock.lease_wait('$ticket', '50 ms', s, f, e);},
	lease_acquire_wait =>
	  q{CALL leaselock.lease_acquire_wait('busy', 'other', '60 s', '50 ms', 'public', NULL, t, s, f, e);});

foreach my $call (sort keys %call)
{
	my $body = "DECLARE t uuid; s text; f bigint; e timestamptz;
		BEGIN INSERT INTO done VALUES ('%s'); %s INSERT INTO done VALUES (s); END";
	my $catching = "DECLARE t uuid; s text; f bigint; e timestamptz;
		BEGIN BEGIN $in_plpgsql{$call} EXCEPTION WHEN division_by_zero THEN NULL; END; END";
	my $plain = sprintf($body, $call, $in_plpgsql{$call});

	$node->safe_psql('postgres', qq{
CREATE PROCEDURE ${call}_plain() LANGUAGE plpgsql AS \$\$$plain\$\$;
CREATE PROCEDURE ${call}_nested() LANGUAGE plpgsql AS \$\$BEGIN CALL ${call}_plain(); END\$\$;
CREATE PROCEDURE ${call}_catching() LANGUAGE plpgsql AS \$\$$catching\$\$;
CREATE PROCEDURE ${call}_setting() LANGUAGE plpgsql SET work_mem = '1MB' AS \$\$$plain\$\$;
CREATE PROCEDURE ${call}_definer() LANGUAGE plpgsql SECURITY DEFINER AS \$\$$plain\$\$;
CREATE FUNCTION ${call}_function() RETURNS int LANGUAGE plpgsql AS
	\$\$DECLARE t uuid; s text; f bigint; e timestamptz; BEGIN $in_plpgsql{$call} RETURN 1; END\$\$;
CREATE FUNCTION ${call}_trigger() RETURNS trigger LANGUAGE plpgsql AS
	\$\$DECLARE t uuid; s text; f bigint; e timestamptz; BEGIN $in_plpgsql{$call} RETURN NEW; END\$\$;
CREATE TABLE ${call}_table (n int);
CREATE TRIGGER t BEFORE INSERT ON ${call}_table FOR EACH ROW EXECUTE FUNCTION ${call}_trigger();
});
}

# Everything that a refused call could have left behind
sub traces
{
	return $node->safe_psql('postgres', q{
		SELECT (SELECT count(*) FROM leaselock.tickets), (SELECT count(*) FROM done),
			(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
			(SELECT string_agg(xmin::text || ctid::text, ' ' ORDER BY ctid) FROM leaselock.tickets)});
}

# Runs SQL whose call must be refused
sub refused
{
	my ($call, $sql, $what) = @_;
	my $before = traces();
	my ($ret, $out, $err) = $node->psql('postgres', $sql,
		on_error_stop => 0,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);

	my @errors = $err =~ /(?:ERROR|FATAL|PANIC):\s+(.*)/g;
	is_deeply(\@errors,
		["2D000: $call() cannot wait here, because it commits while it waits"],
		"$call, $what: the error")
	  or diag($err);
	my @hints = $err =~ /HINT:\s+(.*)/g;
	is_deeply(\@hints,
		[ 'CALL it outside transaction blocks, functions, exception blocks and pipelines; inside them, poll with lease_get(). A driver without autocommit opens a transaction block by itself.'
		], "$call, $what: the hint");
	unlike($out, qr/waiting|timed_out|held/, "$call, $what: no answer");
	is(traces(), $before, "$call, $what: nothing was done");
	return;
}

foreach my $call (sort keys %call)
{
	refused($call, "BEGIN;\n$call{$call};\nROLLBACK", 'transaction block');
	refused($call, "BEGIN;\nSAVEPOINT s;\n$call{$call};\nCOMMIT", 'savepoint');
	refused($call, "BEGIN;\nCALL ${call}_plain();\nROLLBACK",
		'procedure in a transaction block');
	refused($call, "INSERT INTO done VALUES ('before')\\; $call{$call};",
		'several statements at once, last');
	refused($call, "$call{$call}\\; INSERT INTO done VALUES ('after');",
		'several statements at once, first');
	refused($call, "SELECT ${call}_function()", 'function');
	refused($call, "INSERT INTO ${call}_table VALUES (1)", 'trigger');
	refused($call, "CALL ${call}_catching()", 'exception block');
	refused($call, "CALL ${call}_setting()", 'procedure with SET');
	refused($call, "CALL ${call}_definer()", 'SECURITY DEFINER');
	refused($call,
		"DO \$\$ BEGIN BEGIN CALL ${call}_nested(); EXCEPTION WHEN division_by_zero THEN NULL; END; END \$\$",
		'exception block around procedures');
	refused($call,
		"DO \$\$ BEGIN PERFORM ${call}_function(); END \$\$",
		'function in DO');
}

# in a pipeline the call would commit what came before it
foreach my $call (sort keys %call)
{
	foreach my $mode ('extended', 'prepared')
	{
		my $before = traces();
		my $logged = -s $node->logfile;
		$node->pgbench(
			"-n -M $mode -c 1 -t 1",
			2,
			[qr{processed: 0/1}],
			[],
			"$call in a pipeline, $mode",
			{
				"pipeline_${call}_$mode" => qq{
\\startpipeline
INSERT INTO done VALUES ('pipeline');
$call{$call};
INSERT INTO done VALUES ('pipeline after');
\\endpipeline
}
			});
		# pgbench of 16 does not print the message
		like(slurp_file($node->logfile, $logged), qr/ERROR:  $call\(\) cannot wait here/, "$call in a pipeline, $mode: the error");
		is(traces(), $before, "$call in a pipeline, $mode: nothing was done");
	}
}

# ---------------------------------------------------------------------
# Where it is allowed
# ---------------------------------------------------------------------

# what the call returns, and that the session still works and holds nothing
sub allowed
{
	my ($call, $sql, $answer, $what) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', qq{
$sql;
SELECT 'works', count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'});
	is($err, '', "$call, $what: no error");
	like($out, qr/$answer\nworks\|0$/, "$call, $what: the answer");
	return;
}

foreach my $call (sort keys %call)
{
	my $answer = $answer{$call};
	my $end = "$answer\\|\\|";
	my $plain = "INSERT INTO done VALUES ('$call'); $in_plpgsql{$call} INSERT INTO done VALUES (s);";
	my $shown = ";\nSELECT string_agg(what, ' ' ORDER BY what) FROM done;\nTRUNCATE done";
	my $both = join ' ', sort $call, $answer;

	$node->safe_psql('postgres', 'TRUNCATE done');
	allowed($call, $call{$call}, $end, 'top level');
	allowed($call, "SET default_transaction_isolation = '$_';\n$call{$call}",
		$end, $_)
	  foreach 'serializable', 'repeatable read';
	allowed($call, "SET default_transaction_deferrable = on;
		SET default_transaction_isolation = serializable;\n$call{$call}",
		$end, 'deferrable');
	allowed(
		$call,
		"DO \$\$ DECLARE t uuid; s text; f bigint; e timestamptz; BEGIN $plain END \$\$$shown",
		$both,
		'DO');
	allowed($call, "CALL ${call}_plain()$shown", $both, 'procedure');
	allowed($call, "CALL ${call}_nested()$shown", $both, 'nested procedures');
	allowed(
		$call,
		"DO \$\$ DECLARE n int; t uuid; s text; f bigint; e timestamptz; BEGIN
			FOR n IN SELECT generate_series(1, 2) LOOP $plain END LOOP; END \$\$$shown",
		"$call $call $answer $answer",
		'cursor loop');

	foreach my $mode ('simple', 'extended', 'prepared')
	{
		# a variable is part of the statement's text, or a parameter
		my $state = $mode eq 'simple' ? "':state'" : ':state';
		$node->pgbench(
			"-n -M $mode -c 1 -t 2",
			0,
			[qr{processed: 2/2}],
			[qr/^$/],
			"$call with the protocol $mode",
			{
				"allowed_${call}_$mode" => qq{
$call{$call} \\gset
SELECT 1 / ($state = '$answer')::int;
}
			});
	}
}

is( $node->safe_psql('postgres', qq{
		SELECT state FROM leaselock.lease_get('$ticket')}),
	'waiting', 'the ticket waits all the time');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0', 'no lock is left over');

# errors in the arguments are reported first
foreach my $wrong (
	[ "CALL leaselock.lease_wait(NULL)", '22004' ],
	[ "CALL leaselock.lease_wait('$ticket', '-1 s')", '22023' ],
	[ "CALL leaselock.lease_wait('$ticket', '1 month')", '22023' ],
	[ "CALL leaselock.lease_acquire_wait('busy', NULL)", '22004' ],
	[ "CALL leaselock.lease_acquire_wait('busy', 'other', wait => '-1 s')", '22023' ])
{
	my ($ret, $out, $err) = $node->psql('postgres', $wrong->[0],
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	like($err, qr/ERROR:\s+$wrong->[1]$/, "$wrong->[0]");
}

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');

$node->stop;

done_testing();
