# Notes: those that the program passes on, and those that leaselock run
# generates
#
# One major: the program is the same for all of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use JSON::PP;
use LeaseTest;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

need_program();
my $node = new_node('notes');
use_server($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

my ($rc, $out, $err, $answer);
my $host = (POSIX::uname())[1];
my $shown = 'leaselock --json status job';

# ---------------------------------------------------------------------
# Given notes
# ---------------------------------------------------------------------

($rc, $answer) = cli_json(qw(acquire a --owner o --note), 'ticket 17, https://example.org/17');
is("$rc|$answer->{note}", '0|ticket 17, https://example.org/17', 'acquire: the answer has the note');
($rc, $answer) = cli_json(qw(status a));
is($answer->{note}, 'ticket 17, https://example.org/17', 'status: shows the note');
($rc, $out) = cli(qw(acquire b --owner o --note n));
like($out, qr/^note +n$/m, 'acquire: text output has the note');
($rc, $out) = cli(qw(acquire c --owner o));
unlike($out, qr/^note/m, 'acquire: there is no note by default');
($rc, $answer) = cli_json(qw(acquire d --owner o --note), '');
is_deeply([ $rc, $answer->{note} ], [ 0, undef ], 'acquire: an empty note is stored as no note');
($rc, $answer) = cli_json(qw(acquire e --owner o --note), 'x' x 1000);
is_deeply([ $rc, length $answer->{note} ], [ 0, 1000 ], 'acquire: 1000 bytes');
foreach (
	[ 'a note that is too long', 'x' x 1001, qr/--note .*1000 bytes long, not 1001/ ],
	[ 'a note of two lines', "a\nb", qr/--note .*control.*byte 2 is 10/ ])
{
	my ($test, $note, $message) = @$_;

	($rc, $out, $err) = cli(qw(acquire f --owner o --note), $note);
	is("$rc|$out", '3|', "usage: $test");
	like($err, $message, "usage: $test: the message names the error");
}
is((cli(qw(status --note x)))[0], 3, 'usage: status takes no note');

# a repeated request keeps the first note, also when the program repeats it
# during a wait
my $request = '00000000-0000-0000-0000-000000000001';
cli(qw(acquire g --owner o --note first --request-uuid), $request);
($rc, $answer) = cli_json(qw(acquire g --owner o --note second --request-uuid), $request);
is($answer->{note}, 'first', 'acquire: a repeated request keeps its note');

# ---------------------------------------------------------------------
# Generated notes
# ---------------------------------------------------------------------

# status_of(ARGUMENTS): the note of the lock "job", looked up by the command of
# run; the arguments follow "sh -c SCRIPT"
sub status_of
{
	my ($run, @arguments) = @_;

	($rc, $out, $err) = cli('run', 'job', @$run, '--', 'sh', '-c', $shown, @arguments);
	return '' if $rc != 0 || $err ne '' || $out !~ /\n\z/;
	return JSON::PP->new->utf8->decode($out)->{note};
}

like(status_of([]), qr/^\Q$host\E:\d+ sh -c \Q$shown\E$/, 'run: the note has host, process and command');
is(status_of([qw(--note mine)]), 'mine', 'run: a given note replaces it');
is(status_of([ '--note', '' ]), undef, 'run: an empty note leaves no note');
like(status_of([], "a\tb\nc\x7F", "\xC2\x9B2J", "\xFF"),
	qr/ a\?b\?c\? \?2J \?$/, 'run: control characters and invalid UTF-8 are replaced');

# characters of two bytes: with one of the two lengths before them they do not
# fill 1000
foreach my $before ('', 'x')
{
	my $note = status_of([], $before . "\xC3\xA4" x 2000);
	ok(defined $note && $note =~ /^\Q$host\E.*x?\xE4{100,}$/, 'run: the note is cut between characters');
	utf8::encode($note);
	cmp_ok(length $note, '>=', 999, 'run: the note uses the maximum length');
	cmp_ok(length $note, '<=', 1000, 'run: the note is not longer');
}
my $note = status_of([], "\xC2\x9B" x 3000);
is(length $note, 1000, 'run: the length counts after replacement');
like(status_of([], ('y') x 3000), qr/^\Q$host\E.*( y)+ ?$/, 'run: many arguments are cut');

# a database whose encoding lacks the character
$node->safe_psql('postgres', q{CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
$node->safe_psql('latin', 'CREATE EXTENSION leaselock');
($rc, $out, $err) = cli(qw(-d latin run job -- printf %s), "\xE2\x82\xAC");
is("$rc|$out|$err", "0|\xE2\x82\xAC|", 'run: a note that the database cannot hold is left out');
($rc, $out, $err) = cli(qw(-d latin run job --note), "\xE2\x82\xAC", '--', 'true');
is("$rc|$out", '3|', 'run: a given note that cannot be stored is an error');
like($err, qr/22P05/, 'run: the message has the SQLSTATE');

is_deeply([ internal_errors($node) ], [], 'no internal error');
$node->stop;

done_testing();
