# doc/internals.md names only what there is: files, functions, types, tags, tables,
# indexes, configurations of the model; and of those that make up the protocol, all.
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
is_deeply([ grep { !/^Lease\w+$/ || $all !~ /^\} $_;/m } grep { /^Lease[A-Z]/ } @words ], [], 'as the types are');

# "`f()` in `src/x.c`": it is there
while ($prose =~ /`(\w+)\(\)` in `(src\/[\w\/.]+)`/g)
{
	my ($function, $file) = ($1, $2);
	like($source{$file}, qr/^\Q$function\E\(/m, "$function() is in $file");
}

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

# "No index contains a state or a deadline"
is_deeply([ grep { /state|_until|_at\b/ } $script =~ /^CREATE (?:UNIQUE )?INDEX [^;]*\(([^;]*);/mg ], [], 'no index has a state or a deadline');

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

my $page = PageTest->new('doc/internals.md');
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
	});
$page->run;

done_testing();
