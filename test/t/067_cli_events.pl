# leaselock events: what it shows, from which time on, in which format, and
# that it ends at once
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use IPC::Run;
use JSON::PP;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $node = new_node('events', 'leaselock.events = all');
use_server($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my ($rc, $out, $err);

sub sql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# the kinds and names of the lines, text or JSON
sub told
{
	my ($text) = @_;
	return join ' ', map {
		/^\{/
		  ? do { my $event = JSON::PP->new->utf8->decode($_); "$event->{kind}:" . ($event->{name} // '') }
		  : do { my @cells = split /\t/, $_, -1; "$cells[1]:$cells[3]" }
	} split /\n/, $text;
}

# ---------------------------------------------------------------------
# Usage
# ---------------------------------------------------------------------

foreach (
	[ 'an invalid name', [ qw(events --name), '' ], qr/--name .*1 to 255 bytes/ ],
	[ 'an operand', [qw(events job)], qr/the option --name, .*: "job"/ ],
	[ 'an invalid time', [qw(events --since soon)], qr/soon.*22007/ ],
	[ 'an empty time', [ qw(events --since), '' ], qr/22007/ ],
	[ 'a time out of range', [qw(events --since 999999-01-01)], qr/22008/ ],
	[ '--follow since an invalid time', [qw(events --follow --since soon)], qr/22007/ ],
	[ 'an option of other subcommands', [qw(events --owner o)], qr/events does not take --owner/ ],
	[ 'its option with another subcommand', [qw(status --follow)], qr/status does not take --follow/ ])
{
	my ($test, $arguments, $message) = @$_;

	($rc, $out, $err) = cli(@$arguments);
	is("$rc|$out", '3|', "usage: $test");
	like($err, $message, "usage: $test: the message names the error");
}
($rc, $out, $err) = cli(qw(-d template1 events));
is($rc, 4, 'without the extension: a server error');
like($err, qr/CREATE EXTENSION leaselock/, 'without the extension: the message has a hint');

# ---------------------------------------------------------------------
# Past events
# ---------------------------------------------------------------------

is(join('|', cli('events')), '0||', 'no events: nothing is printed');
sql(q{SELECT leaselock.lease_release(ticket) FROM leaselock.lease_acquire('a', 'owner 1', note => 'nightly')});
my $between = sql('SELECT clock_timestamp()');
sql(q{SELECT leaselock.lease_release(ticket) FROM leaselock.lease_acquire('b', 'owner 2', scope => 'team')});
sql(q{SELECT leaselock.lease_scope_create('closed', current_user)});

($rc, $out, $err) = cli('events');
is("$rc|$err", '0|', 'all: no error');
is(told($out), 'granted:a released:a granted:b released:b scope_created:', 'all: one line per event');
like((split /\n/, $out)[0],
	qr/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d(:\d\d)?\tgranted\tpublic\ta\towner 1\t\S+\t\d+\t[0-9a-f-]{36}\tnightly$/,
	'all: without a terminal, tabs separate the columns');
like((split /\n/, $out)[4], qr/\tscope_created\tclosed\t\t\t\S+\t\t\t$/, 'all: missing values are empty');
foreach (
	[ [qw(--scope team)], 'granted:b released:b' ],
	[ [qw(--name a)], 'granted:a released:a' ],
	[ [qw(--name a --scope team)], '' ],
	[ [ '--since', $between ], 'granted:b released:b scope_created:' ],
	[ [qw(--since tomorrow)], '' ],
	[ [qw(--since -infinity --scope closed)], 'scope_created:' ])
{
	my ($arguments, $expected) = @$_;

	($rc, $out) = cli('events', @$arguments);
	is("$rc|" . told($out), "0|$expected", "events @$arguments");
	($rc, $out) = cli('events', @$arguments, '--json');
	is("$rc|" . told($out), "0|$expected", "events @$arguments --json");
}
($rc, $out) = cli(qw(events --json --name a));
is_deeply([ sort keys %{ JSON::PP->new->utf8->decode((split /\n/, $out)[0]) } ],
	[ sort qw(id xid at kind scope name owner role fence ticket note) ],
	'--json: the columns of lease_events');

# more than a page, and a page without a matching event
sql(q{SELECT leaselock.lease_release_all('many') FROM (SELECT count(leaselock.lease_acquire('many ' || i, 'many'))
	FROM generate_series(1, 1100) i) held});
($rc, $out) = cli('events');
is("$rc|" . ($out =~ tr/\n//), '0|2205', 'several pages: all lines are printed');
is(scalar(keys %{ { map { $_ => 1 } split /\n/, $out } }), 2205, 'several pages: each line is printed once');
sql(q{SELECT leaselock.lease_acquire('last', 'l')});
($rc, $out) = cli(qw(events --name last));
is("$rc|" . told($out), '0|granted:last', 'several pages: a match after other pages is found');

# text from other users
cli(qw(acquire --owner evil --scope evil --), "c1 \xC2\x9B31m");
($rc, $out) = cli(qw(events --scope evil));
is(control_characters($out =~ tr/\t//dr) . ($out =~ /c1 \?31m/ ? '' : $out), '', 'control characters are replaced in text output');

# ---------------------------------------------------------------------
# New events
# ---------------------------------------------------------------------

# behind(CLIENT, TEXT): its output, once that contains TEXT
sub behind
{
	my ($client, $text) = @_;
	my $shown = wait_until(sub { $client->{run}->pump_nb; index($client->{out}, $text) >= 0 });

	return $shown ? told($client->{out}) : "not shown: $client->{out}";
}

# from now on: shows an open transaction when it commits, but not the earlier
# events that the transaction holds back
my $old = session($node, 'BEGIN', 'SELECT pg_current_xact_id()');
sql(q{SELECT leaselock.lease_acquire('before', 'o')});
my $open = session($node, 'BEGIN', q{SELECT leaselock.lease_acquire('open', 'o')});
my $follower = start_cli(qw(events --follow));
my $since = start_cli(qw(events --follow --json --since), $between, qw(--name a));
# it has read the present position when it queries events
ok($node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM pg_stat_activity
	WHERE query LIKE 'WITH e AS%'}), 'follow: both clients query events');
sql(q{SELECT leaselock.lease_acquire('later', 'o')});
outcome($open, 'COMMIT');
outcome($old, 'COMMIT');
is(behind($follower, 'later'), 'granted:open granted:later', 'follow: starts at the present');
sql(q{SELECT leaselock.lease_release_all('o')});
like(behind($follower, "released\tpublic\tlater"), qr/^granted:open granted:later (released:\w+ ?){3}$/,
	'follow: shows each event once');
sql(q{SELECT leaselock.lease_acquire('a', 'again')});
is(behind($since, '"again"'), 'granted:a', 'follow --since: starts at that time and filters by name');

# a restart of the server loses no event
$node->restart;
sql(q{SELECT leaselock.lease_acquire('restarted', 'r')});
like(behind($follower, 'restarted'), qr/^granted:open granted:later (released:\w+ ){3}granted:a granted:restarted$/,
	'follow: a restart of the server loses no event');
like($follower->{err}, qr/^leaselock: /, 'follow: the lost connection is reported');
is($follower->{err} =~ tr/\n//, 1, 'follow: it is reported once');

# it ends at once
foreach ([ INT => 2, $follower ], [ TERM => 15, $since ])
{
	my ($name, $number, $client) = @$_;

	kill $name, $client->{pid};
	is(finish($client), 128 + $number, "follow: $name ends it with status 128 + $number");
	unlike($client->{out}, qr/[^\n]\z/, "follow: $name leaves no partial line");
}
foreach ([ INT => 2 ], [ TERM => 15 ])
{
	my ($name, $number) = @$_;
	my $blocked = session($node, 'BEGIN', 'LOCK TABLE leaselock.events');
	my $client = start_cli('events');

	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_locks WHERE NOT granted}),
		"$name: the program waits for an answer");
	kill $name, $client->{pid};
	is(finish($client), 128 + $number, "$name ends the program during that wait");
	$blocked->quit;
}
# the reader may stop
{
	my ($head, $sh) = ('', $node->connstr('postgres'));

	# the setting that a shell starts with
	local $SIG{PIPE} = 'DEFAULT';
	IPC::Run::run([ 'sh', '-c', 'leaselock -d "$0" events --follow --since -infinity | head -n 2' , $sh ],
		'<', \'', '>', \$head, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	is(($head =~ tr/\n//) . "|$err", '2|', 'it ends silently when its reader stops');
}

# ---------------------------------------------------------------------
# On a terminal
# ---------------------------------------------------------------------

SKIP:
{
	skip 'no terminal is available here', 4
	  if !eval { local $SIG{__WARN__} = sub { }; require IO::Pty; IO::Pty->new };
	my $screen = sub {
		my ($term, $no_color) = @_;
		my $shown = '';
		local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', TERM => $term);

		delete $ENV{NO_COLOR};
		$ENV{NO_COLOR} = $no_color if defined $no_color;
		IPC::Run::run([ qw(leaselock events --name a) ], '>pty>', \$shown,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
		return $shown =~ tr/\r//dr;
	};
	my $plain = $screen->('xterm', '1');
	my @at = map { index $_, 'public' } split /\n/, $plain;
	is(scalar(keys %{ { map { $_ => 1 } @at } }) . ($plain =~ /\t|\033/ ? ' not plain' : ''), '1',
		'NO_COLOR: columns are aligned, without colours') or diag($plain);
	is($screen->('dumb'), $plain, 'a dumb terminal gets the same output');
	my $colored = $screen->('xterm');
	like($colored, qr/\033\[32mgranted\033\[m/, 'the kinds have colours');
	is($colored =~ s/\033\[\d*m//gr, $plain, 'colours change nothing else');
}

is_deeply([ internal_errors($node) ], [], 'no internal error in the server log');
$node->stop;

done_testing();
