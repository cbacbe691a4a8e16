# Runs the code blocks of a page of the documentation, from top to bottom, and
# compares what they print with what the page shows.
#
# The comment on the line before a block says what happens to it:
#
#   <!-- test: NAME in SESSION -->    runs in that session and must succeed
#     ... in the background -->       is started; whatever comes next does not wait
#     ... with status N -->           a shell block that ends with that status
#   <!-- output: NAME -->             is compared with what block NAME printed
#   <!-- not run: REASON -->          is left alone
#
# A session of SQL is a psql that stays for the whole page.  A session of sh or
# bash keeps its variables from block to block; all of them work in one directory.
# Whatever a block prints has to be on the page, or be taken by a hook.
#
# What the page tells in words is checked by hooks:
#
#   my $page = PageTest->new('doc/waiting.md');
#   $page->before(promoted => sub { ... });     # by the name of the block
#   $page->after(promoted => sub { ... });
#   $page->run;                                 # plans nothing: done_testing() follows

package PageTest;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IPC::Run;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $top = abs_path(dirname(__FILE__) . '/../..');

# PageTest->new(PATH, OPTIONS).  OPTIONS:
#   node        a running server that has the extension; by default a new one
#   settings    further lines of postgresql.conf for the new one
#   psql        further commands for each new psql, such as '\set VERBOSITY verbose'
#   env         further environment variables of shell blocks
#   normal      what else is to be made equal in both texts before they are
#               compared: changes $_
#   language    { NAME => sub ($page, $text, $session) }: runs the blocks of a
#               language that is not sql, sh or bash; returns what they printed
#   session     the same for the blocks of one session
#   skip        { LANGUAGE or SESSION => REASON }: these blocks cannot run here
sub new
{
	my ($class, $path, %options) = @_;
	my $page = bless {
		%options, path => $path, text => slurp_file("$top/$path"), block => {}, printed => {},
		shown => '', before => {}, after => {}, psql_sessions => {}, shells => [], dir => PostgreSQL::Test::Utils::tempdir() }, $class;

	if (!$page->{node})
	{
		my ($name) = $path =~ m{([^/.]+)\.md$};
		$page->{node} = new_node(lc $name, $options{settings});
		$page->sql('CREATE EXTENSION leaselock');
	}
	return $page;
}

sub node { return $_[0]{node} }
sub dir { return $_[0]{dir} }

# block(NAME): the text of a block that has been reached
sub block
{
	my ($page, $name) = @_;
	return $page->{block}{$name} // die "no block $name so far";
}

# printed(NAME): what it printed; it is no longer expected on the page
sub printed
{
	my ($page, $name) = @_;

	await_psql($page, $name);
	return delete $page->{printed}{$name};
}

# shown(): everything that was printed and compared so far
sub shown { return $_[0]{shown} }

sub before { my ($page, %hooks) = @_; return hook($page->{before}, %hooks) }
sub after { my ($page, %hooks) = @_; return hook($page->{after}, %hooks) }

sub hook
{
	my ($known, %hooks) = @_;
	$known->{$_} = $hooks{$_} foreach keys %hooks;
	return;
}

# sql(TEXT): the output of queries in a session of their own, which must succeed
sub sql
{
	my ($page, $text) = @_;
	return $page->{node}->safe_psql('postgres', $text);
}

# ---------------------------------------------------------------------
# psql
# ---------------------------------------------------------------------

my $banner = 'the block has ended';

# psql(SESSION): prints as on a terminal, results and messages in their order
sub psql
{
	my ($page, $name) = @_;

	return $page->{psql_sessions}{$name} if $page->{psql_sessions}{$name};
	my $psql = $page->{psql_sessions}{$name} = { in => '', out => '' };
	local %ENV = (%ENV, connection($page));
	$psql->{run} = IPC::Run::start([ 'sh', '-c', 'exec psql -X -q -P footer=off 2>&1' ],
		'<', \$psql->{in}, '>', \$psql->{out}, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	run_sql($page, $name, join "\n", @{ $page->{psql} }) if $page->{psql};
	return $psql;
}

# begin_sql(SESSION, TEXT): does not wait
sub begin_sql
{
	my ($page, $name, $text) = @_;
	my $psql = psql($page, $name);

	# an empty statement would be the last one that pg_stat_activity shows
	$text .= "\n;" if $text !~ /;\s*\z/;
	$psql->{in} .= "$text\n\\echo '$banner'\n";
	# pump() would wait for output
	$psql->{run}->pump_nb while length $psql->{in};
	return;
}

# awaited_sql(SESSION): what was begun there has printed
sub awaited_sql
{
	my ($page, $name) = @_;
	my $psql = psql($page, $name);

	$psql->{run}->pump until $psql->{out} =~ /^\Q$banner\E\n/m || !$psql->{run}->pumpable;
	$psql->{out} =~ s/\A(.*?)^\Q$banner\E\n//ms or die "psql ended: $psql->{out}";
	return $1;
}

# run_sql(SESSION, TEXT): what it prints; errors are no failure
sub run_sql
{
	my ($page, $name, $text) = @_;

	begin_sql($page, $name, $text);
	return awaited_sql($page, $name);
}

# await_psql(NAME): for a block that was begun in the background
sub await_psql
{
	my ($page, $name) = @_;
	my $session = delete $page->{begun}{$name};

	$page->{printed}{$name} = awaited_sql($page, $session) if defined $session;
	return;
}

# ---------------------------------------------------------------------
# Shells
# ---------------------------------------------------------------------

sub connection
{
	my ($page) = @_;
	return (PGHOST => $page->{node}->host, PGPORT => $page->{node}->port, PGDATABASE => 'postgres', %{ $page->{env} // {} });
}

# start_shell(TEXT, SESSION, LANGUAGE): { run, out, pid }.  With a session, its
# variables are kept; without, the process that was started is that of a single command.
sub start_shell
{
	my ($page, $text, $session, $language) = @_;
	my $shell = { out => '' };
	my $kept = defined $session ? "$page->{dir}/.$session.variables" : undef;
	local %ENV = (%ENV, connection($page));
	local $SIG{$_} = 'DEFAULT' foreach qw(HUP INT QUIT TERM USR1 USR2);

	$text =~ s/\s+\z//;
	$text = defined $kept ? "set -a; [ ! -e $kept ] || . $kept; trap 'export -p >$kept' EXIT; $text" : $text =~ /(?<!\\)\n/ ? $text : "exec $text";
	$shell->{run} = IPC::Run::start([ $language // 'sh', '-c', "exec 2>&1; cd $page->{dir}; $text" ],
		'<', '/dev/null', '>', \$shell->{out}, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$shell->{pid} = $shell->{run}{KIDS}[0]{PID};
	push @{ $page->{shells} }, $shell;
	return $shell;
}

# shell_status(SHELL): waits for its end; minus the signal's number if one ended it
sub shell_status
{
	my ($page, $shell) = @_;

	$shell->{run}->finish;
	my $status = $shell->{run}->full_result(0);
	return $status & 127 ? -($status & 127) : $status >> 8;
}

# write_command(NAME, TEXT): a program that the page only names, in the directory
# of the page's shells
sub write_command
{
	my ($page, $name, $text) = @_;

	append_to_file("$page->{dir}/$name", "#!/bin/sh\n$text\n");
	chmod 0755, "$page->{dir}/$name";
	return;
}

# ---------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------

# plain(TEXT): what differs from run to run, and the width of columns, made equal
sub plain
{
	my ($page, $text) = @_;

	$text =~ s/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/TICKET/g;
	$text =~ s/\b[1-9]\d{14}\b/FENCE/g;
	$text =~ s/\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[+-]\d\d(?::\d\d)?|Z)?/TIME/g;
	$text =~ s/^LOCATION:.*(?:\n|\z)//mg;
	$text =~ s/^psql:\S+ //mg;
	if ($page->{normal}) { $page->{normal}->() foreach $text }
	$text =~ s/-{2,}/-/g;
	$text =~ s/[ \t]+/ /g;
	$text =~ s/ +$//mg;
	$text =~ s/^ +//mg;
	$text =~ s/\n{2,}/\n/g;
	return $text =~ s/\A\n+|\n+\z//gr;
}

# run_block(NAME, LANGUAGE, TEXT, SESSION, BACKGROUND, STATUS)
sub run_block
{
	my ($page, $name, $language, $text, $session, $background, $expected) = @_;
	my $own = $page->{session}{$session} // $page->{language}{$language};

	if ($own) { $page->{printed}{$name} = $own->($page, $text, $session) // '' }
	elsif ($language eq 'sql' && $background)
	{
		begin_sql($page, $session, $text);
		$page->{begun}{$name} = $session;
	}
	elsif ($language eq 'sql') { $page->{printed}{$name} = run_sql($page, $session, $text) }
	elsif ($language !~ /^(?:sh|bash)$/) { die "$page->{path}: nobody runs a block of $language" }
	elsif ($background) { $page->{shell}{$name} = start_shell($page, $text, undef, $language) }
	else
	{
		my $shell = start_shell($page, $text, $session, $language);
		is(shell_status($page, $shell), $expected // 0, "$name: status " . ($expected // 0)) or diag $shell->{out};
		$page->{printed}{$name} = $shell->{out};
	}
	return;
}

sub compare_output
{
	my ($page, $name, $text) = @_;

	await_psql($page, $name);
	return if $page->{skipped}{$name};
	if (my $shell = delete $page->{shell}{$name})
	{
		is(shell_status($page, $shell), 0, "$name: status 0") or diag $shell->{out};
		$page->{printed}{$name} = $shell->{out};
	}
	exists $page->{printed}{$name} or die "$page->{path}: there is output of $name, which has not run";
	my $printed = delete $page->{printed}{$name};
	$page->{shown} .= $printed;
	is(plain($page, $printed), plain($page, $text), "$name prints what the page says");
	return;
}

# background(NAME): the shell of a block that was started in the background
sub background
{
	my ($page, $name) = @_;
	return $page->{shell}{$name} // die "$name is not in the background";
}

# run(): all blocks in their order, and what is true of every page
sub run
{
	my ($page) = @_;
	my $seen = 0;

	while ($page->{text} =~ /^ *<!-- ([^\n]*) -->\n *```(\w*)\n(.*?)^ *```$/msg)
	{
		my ($comment, $language, $text) = ($1, $2, $3);

		$seen++;
		next if $comment =~ /^not run: \w/;
		if ($comment =~ /^output: (\S+)$/)
		{
			compare_output($page, $1, $text);
			next;
		}
		my ($name, $session, $background, $status) =
		  $comment =~ /^test: (\S+) in (\S+)( in the background)?(?: with status (\d+))?$/
		  or die "$page->{path}: what is to be done with a block: $comment";
		die "$page->{path}: two blocks are called $name" if exists $page->{block}{$name};
		$page->{block}{$name} = $text;
		if (my $reason = $page->{skip}{$language} // $page->{skip}{$session})
		{
			$page->{skipped}{$name} = 1;
		  SKIP: { skip "$name IS NOT TESTED: $reason", 1; }
			next;
		}
		note "== $name";
		$page->{before}{$name}->() if $page->{before}{$name};
		run_block($page, $name, $language, $text, $session, $background, $status);
		$page->{after}{$name}->() if $page->{after}{$name};
	}
	is($seen, scalar(() = $page->{text} =~ /^ *```\w*\n.*?^ *```$/msg), 'every block of the page says what is done with it');
	foreach my $name (sort keys %{ $page->{begun} }) { await_psql($page, $name) }
	is_deeply([ grep { plain($page, $page->{printed}{$_}) ne '' } sort keys %{ $page->{printed} } ], [],
		'what is printed is on the page');
	foreach my $hooks (qw(before after))
	{
		is_deeply([ grep { !exists $page->{block}{$_} } sort keys %{ $page->{$hooks} } ], [], "each hook has its block ($hooks)");
	}
	is_deeply([ internal_errors($page->{node}) ], [], 'no internal error in the log');
	stop($page);
	return;
}

# stop(): ends whatever still runs
sub stop
{
	my ($page) = @_;

	foreach my $shell (@{ $page->{shells} })
	{
		$shell->{run}->kill_kill if $shell->{run}->pumpable;
	}
	end_sessions($page);
	$page->{node}->stop;
	return;
}

# end_sessions(): of SQL; the next block begins a new one
sub end_sessions
{
	my ($page) = @_;

	foreach my $psql (values %{ $page->{psql_sessions} })
	{
		$psql->{in} .= "\\q\n";
		eval { $psql->{run}->finish };
	}
	$page->{psql_sessions} = {};
	return;
}

1;
