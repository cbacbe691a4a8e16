# What the TAP tests share: servers, sessions that report errors by their
# SQLSTATE, pgbench in the background, and checks of the server's log.  A test
# loads this module as follows:
#
#   use FindBin;
#   use lib $FindBin::RealBin;
#   use LeaseTest;

package LeaseTest;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  new_node promote_standby node_outcome
  session outcome begin awaited
  start_pgbench clients_at_gate
  logged_errors internal_errors crashes unsound
);

# ---------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------

# new_node(NAME, SETTINGS, OPTIONS): a running server.  Its log shows the
# SQLSTATE and the application of each message, and a statement only where it
# failed.  SETTINGS are further lines for postgresql.conf, OPTIONS those of
# init().
sub new_node
{
	my ($name, $settings, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(%options);
	$node->append_conf('postgresql.conf', qq{
autovacuum = off
log_statement = none
log_line_prefix = '%m [%p] %e %q%a '
} . ($settings // ''));
	$node->start;
	return $node;
}

# promote_standby(NODE): promotes it, and waits until it is a primary
sub promote_standby
{
	my ($node) = @_;

	$node->promote;
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die $node->name . ' is not promoted';
	return;
}

# node_outcome(NODE, SQL, DATABASE): the output of a query in a session of its
# own, or the SQLSTATE of its error
sub node_outcome
{
	my ($node, $sql, $database) = @_;
	my ($rc, $out, $err) =
	  $node->psql($database // 'postgres', "\\set VERBOSITY sqlstate\n$sql");

	return $rc == 0 ? $out : $err =~ /ERROR:\s+(\w{5})/ ? $1 : $err;
}

# ---------------------------------------------------------------------
# Sessions
# ---------------------------------------------------------------------

# The library of some minor versions of 16 leaves its banner in the output of a query
# that prints nothing.
{
	no warnings 'redefine';
	my $query = \&PostgreSQL::Test::BackgroundPsql::query;

	*PostgreSQL::Test::BackgroundPsql::query = sub {
		my @result = wantarray ? $query->(@_) : scalar $query->(@_);

		$result[0] =~ s/\Abackground_psql: QUERY_SEPARATOR\n//;
		return wantarray ? @result : $result[0];
	};
}

# session(NODE, SETUP...): a session that reports errors by their SQLSTATE
# alone, for the functions below; the statements of SETUP must succeed
sub session
{
	my ($node, @setup) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	$session->query_safe($_)
	  foreach '\set VERBOSITY sqlstate', grep { defined } @setup;
	return $session;
}

# outcome(SESSION, SQL): runs a query that may fail; returns its output,
# followed by the SQLSTATEs of its errors, one a line
sub outcome
{
	my ($session, $sql) = @_;
	my $begun = delete $session->{begun} // '';

	$session->{stderr} = '' if $begun eq '';
	my $output = $begun . $session->query($sql);
	$output = join "\n", grep { $_ ne '' } $output,
	  $session->{stderr} =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5})/g;
	$session->{stderr} = '';
	return $output;
}

# begin(SESSION, SQL): starts a query that will block
sub begin
{
	my ($session, $sql) = @_;

	$session->{stderr} = '';
	my $output = $session->query_until(qr/blocking: \n/,
		"\\echo 'blocking: '\n$sql;\n");
	$session->{begun} = $output =~ s/.*blocking: \n//sr;
	return;
}

# awaited(SESSION): waits for the query that begin() started; returns what
# outcome() would have returned for it
sub awaited
{
	my ($session) = @_;
	return outcome($session, '');
}

# ---------------------------------------------------------------------
# Many clients
# ---------------------------------------------------------------------

my $scripts;

# start_pgbench(NODE, OPTIONS, FILE => SCRIPT...): starts pgbench in the
# background, with the scripts in the order of their names.  Returns { run,
# out, err }; call finish() or kill_kill() on run.
sub start_pgbench
{
	my ($node, $options, %files) = @_;
	my @command = (
		'pgbench', '-n', '-h', $node->host, '-p', $node->port,
		split(' ', $options));

	$scripts //= PostgreSQL::Test::Utils::tempdir();
	foreach my $file (sort keys %files)
	{
		my $path = "$scripts/$file";
		unlink $path;
		append_to_file($path, $files{$file});
		push @command, '-f', $path;
	}
	my $client = { in => '', out => '', err => '' };
	$client->{run} = IPC::Run::start([ @command, 'postgres' ],
		'<', \$client->{in}, '>', \$client->{out}, '2>', \$client->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $client;
}

# clients_at_gate(NODE, COUNT): waits until that many clients wait for advisory
# lock 1, which the test holds so that they all start together; returns false
# if they do not arrive
sub clients_at_gate
{
	my ($node, $count) = @_;
	return $node->poll_query_until('postgres', qq{
		SELECT count(*) = $count FROM pg_locks
		WHERE locktype = 'advisory' AND objid = 1 AND objsubid = 1
		AND NOT granted});
}

# ---------------------------------------------------------------------
# The server's log
# ---------------------------------------------------------------------

# logged_errors(NODE, OFFSET): all errors in the log from the offset on
sub logged_errors
{
	my ($node, $offset) = @_;
	return grep { / (?:ERROR|FATAL|PANIC):/ }
	  split /\n/, slurp_file($node->logfile, $offset);
}

# internal_errors(NODE): the errors that must never occur, whatever a client
# does
sub internal_errors
{
	my ($node) = @_;
	return grep { / XX\w{3} / || / PANIC:/ }
	  split /\n/, slurp_file($node->logfile);
}

# crashes(NODE): what the server's log says about backends that crashed
sub crashes
{
	my ($node) = @_;
	return slurp_file($node->logfile) =~
	  /^.*(?:terminated by signal|terminated by exception|TRAP:|interrupted; last known up).*$/mg;
}

# ---------------------------------------------------------------------
# The tables and their indexes
# ---------------------------------------------------------------------

# unsound(NODE, DATABASE): what amcheck finds wrong with the tables of the
# extension and with their b-tree indexes, each of which must have an entry for
# every row.  Invalid indexes that maintenance has left behind are skipped.
sub unsound
{
	my ($node, $database) = @_;
	my @objects = split /\n/, $node->safe_psql($database // 'postgres', q{
		SELECT format('bt_index_check(%L::regclass, true)', i.indexrelid::regclass)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
		WHERE c.relnamespace = 'leaselock'::regnamespace AND a.amname = 'btree' AND i.indisvalid
		UNION ALL
		SELECT format('verify_heapam(%L::regclass)', c.oid::regclass) FROM pg_class c
		WHERE c.relnamespace = 'leaselock'::regnamespace AND c.relkind = 'r'
		ORDER BY 1});
	my @found = @objects < 14 ? 'too few tables and indexes' : ();

	$node->safe_psql($database // 'postgres', q{
		SET client_min_messages = warning;
		CREATE SCHEMA IF NOT EXISTS amcheck;
		CREATE EXTENSION IF NOT EXISTS amcheck SCHEMA amcheck});
	foreach my $object (@objects)
	{
		my ($rc, $out, $err) = $node->psql($database // 'postgres',
			"SELECT * FROM amcheck.$object");
		push @found, "$object: $out$err" if $rc != 0 || $out ne '';
	}
	return @found;
}

1;
