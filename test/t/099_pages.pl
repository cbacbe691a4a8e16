# README.md and doc/: every page has a test that runs its blocks, every block says
# what that test does with it, every link leads somewhere, and every sentence names
# the test that would fail if it were not true.
# Native only: it reads files.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use FindBin;
use lib $FindBin::RealBin;
use PageTrace;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = abs_path(dirname(__FILE__) . '/../..');
my @pages = map { s{^\Q$top\E/}{}r } "$top/README.md", "$top/CONTRIBUTING.md", "$top/CHANGELOG.md", glob "$top/doc/*.md";
my %text = map { $_ => slurp_file("$top/$_") } @pages;

# prose(TEXT): without its blocks, and with \0 for what is code in a line
sub prose
{
	my ($text) = @_;

	$text =~ s/^ *```.*?^ *```$//msg;
	return $text =~ s/(`+)(.+?)\1/\0$2\0/gr;
}

# anchors(TEXT): what its headings are called in links: small letters, no
# punctuation, hyphens for blanks, a number behind a name that was there before
sub anchors
{
	my ($text) = @_;
	my (%count, @anchors);

	foreach my $heading (prose($text) =~ /^#+ +(.*?) *#*$/mg)
	{
		my $anchor = lc $heading;
		$anchor =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;
		$anchor =~ s/[^\w\- ]//g;
		$anchor =~ tr/ /-/;
		my $before = $count{$anchor}++;
		push @anchors, $before ? "$anchor-$before" : $anchor;
	}
	return map { $_ => 1 } @anchors;
}

my %anchors = map { $_ => { anchors($text{$_}) } } @pages;

# wrong_link(PAGE, TARGET): what is wrong with it, if anything is
sub wrong_link
{
	my ($page, $target) = @_;
	my ($path, $anchor) = $target =~ /^([^#]*)(?:#(.*))?$/;
	my $dir = dirname($page);

	return $target =~ m{^https://[\w.-]+\.[a-z]+(?:/\S*)?$} ? () : "$target: not https" if $target =~ /^\w+:/;
	my $file = $path eq '' ? $page : abs_path("$top/" . ($dir eq '.' ? '' : "$dir/") . $path);
	return "$target: no such file" if !defined $file || ($path ne '' && !-e $file);
	$file =~ s{^\Q$top\E/}{};
	return "$target: not in the repository" if $file =~ m{^/};
	return "$target: no such heading" if defined $anchor && !$anchors{$file}{$anchor};
	return ();
}

foreach my $page (@pages)
{
	my $prose = prose($text{$page});
	my @targets = ($prose =~ /\]\(([^)\s]+)(?: "[^"]*")?\)/g, $prose =~ /\b(?:src|srcset|href)="([^"]+)"/g);

	is_deeply([ map { wrong_link($page, $_) } @targets ], [], "$page: every link leads somewhere");
}

# ---------------------------------------------------------------------
# Blocks
# ---------------------------------------------------------------------

my %tests = map { $_ => slurp_file($_) } glob "$top/test/t/*.pl";

foreach my $page (grep { !m{^CHANGELOG} } @pages)
{
	my @blocks = $text{$page} =~ /(^[^\n]*)\n *```\w*\n.*?^ *```$/msg;
	my @unsaid = grep { !/^ *<!-- (?:test|output|not run): \S.* -->$/ } @blocks;

	is_deeply(\@unsaid, [], "$page: every block says how it is tested");
	next if !grep { /<!-- test: / } @blocks;
	my @by = grep { index($tests{$_}, $page) >= 0 } sort keys %tests;
	isnt(scalar(@by), 0, "$page: a test runs its blocks");
}

# ---------------------------------------------------------------------
# Sentences
# ---------------------------------------------------------------------

foreach my $page (grep { m{^README|^doc/} } @pages)
{
	my @trace = read_trace(trace_file($top, $page));

	is_deeply([ map { $_->[0] } @trace ], [ sentences($text{$page}) ],
		"$page: its sentences are those of test/trace (if not: test/trace/update)");
	is_deeply([ wrong_traces($top, @trace) ], [], "$page: every sentence names its test");
}

cmp_ok($text{'README.md'} =~ tr/\n//, '<=', 250, 'the README has at most 250 lines');

foreach my $page (grep { m{^doc/} } @pages)
{
	like($text{$page}, qr/\A# \S[^\n]*\n\n[^\n]*\?/, "$page: begins with the question that it answers");
	ok(index($text{'README.md'}, $page) >= 0, "$page: the README leads to it");
}

done_testing();
