# Which test would fail if a sentence of README.md or doc/ were not true.
#
# test/trace/PAGE.tsv has a line for each sentence of a page, in the page's order:
# the sentence, a tab, and what stands behind it, separated by "; ":
#
#   FILE: NAME   a test; NAME is text that occurs in it: what an assertion is called,
#                a permutation, a statement.  FILE is a file of test/t without .pl, of
#                test/sql without .sql, of test/specs without .spec, a file of
#                test/unit, or a script of test/ or packaging/
#   output       the block beside it shows this, and the page's test compares it
#   server       PostgreSQL's own behaviour
#   other        the behaviour of another product
#   measured     a figure of test/bench or test/count, or that follows from one
#   advice       states no behaviour: an instruction, a question, a lead to elsewhere
#
# test/trace/update writes the sentences, and "?" behind those that are new.

package PageTrace;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);

our @EXPORT = qw(sentences read_trace trace_file wrong_traces);

my $abbreviation = qr/(?:\b(?:e\.g|i\.e|vs|etc|cf)|\b[A-Z])\.$/;

# split_text(TEXT): the sentences of a paragraph.  A full stop in code ends none.
sub split_text
{
	my ($text) = @_;
	my (@code, @parts);

	$text =~ s/(`+)(.+?)\1/push @code, $&; "\0$#code\0"/ge;
	foreach my $part (split /(?:(?<=[.?!])|(?<=[.?!][*_)]))\s+(?=["*_(\[\0A-Z0-9])/, $text)
	{
		if (@parts && $parts[-1] =~ $abbreviation) { $parts[-1] .= " $part" }
		else { push @parts, $part }
	}
	s/\0(\d+)\0/$code[$1]/g foreach @parts;
	return @parts;
}

# sentences(TEXT): those of a page, without its headings, blocks, comments, pictures and
# lists of links.  A row of a table counts as a sentence.
sub sentences
{
	my ($text) = @_;
	my @sentences;

	$text =~ s/^ *```.*?^ *```$//msg;
	$text =~ s/<!--.*?-->//sg;
	$text =~ s{<(picture|p|div|a)\b.*?</\1>}{}sg;
	# the head of a table, and the line below it
	$text =~ s/^ *\|.*\n *\|[\s|:-]+\|$//mg;
	foreach my $line (split /\n/, $text)
	{
		next if $line =~ /^\s*$|^#|^\s*<|^\s*!\[|^\s*[-*]\s+\[[^\]]*\]\([^)]*\)$/;
		my $plain = $line =~ s/^\s*(?:[-*]|\d+\.)\s+//r =~ s/^\s*>\s*//r =~ s/^\s+|\s+$//gr;
		push @sentences, map { tr/\t/ /r } $plain =~ /^\|/ ? $plain : split_text($plain);
	}
	return @sentences;
}

sub trace_file
{
	my ($top, $page) = @_;
	return "$top/test/trace/" . $page =~ s{.*/}{}r =~ s/\.md$/.tsv/r;
}

# read_trace(FILE): its lines, as pairs of a sentence and what stands behind it
sub read_trace
{
	my ($file) = @_;

	open my $in, '<', $file or return ();
	chomp(my @lines = <$in>);
	return map { [ split /\t/, $_, 2 ] } @lines;
}

# text_of(TOP, FILE): that of a test, with its expected output; undef if there is none
sub text_of
{
	my ($top, $file) = @_;
	my @found = grep { -f } map { "$top/$_" } "test/t/$file.pl", "test/sql/$file.sql", "test/specs/$file.spec",
	  "expected/$file.out", "test/unit/$file", "test/$file", "packaging/$file";

	return undef if !@found;
	return join '', map { local (@ARGV, $/) = ($_); <> } @found;
}

# wrong_traces(TOP, TRACE...): what is wrong with them
sub wrong_traces
{
	my ($top, @trace) = @_;
	my (%text, @wrong);

	foreach my $pair (@trace)
	{
		my ($sentence, $by) = @$pair;
		foreach my $one (split /; /, $by // '?')
		{
			next if $one =~ /^(?:output|server|other|measured|advice)$/;
			my ($file, $name) = split /: /, $one, 2;
			$text{$file} //= text_of($top, $file);
			next if defined $name && defined $text{$file} && index($text{$file}, $name) >= 0;
			push @wrong, "$one: " . (defined $text{$file} ? 'not in that file' : 'no such test') . ": $sentence";
		}
	}
	return @wrong;
}

1;
