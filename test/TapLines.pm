# How prove reports to test/run: a line a file, all of a file where it failed, and
# the counts last, in the form that test/run reads.
#
# Run it with --merge, so that what a file writes to standard error stands where it
# belongs among its results.

package TapLines;

use strict;
use warnings FATAL => 'all';

use base 'TAP::Formatter::Base';

sub open_test
{
	my ($self, $name, $parser) = @_;

	return TapLines::File->new({
		formatter => $self, name => $name, parser => $parser, show_count => 0 });
}

sub say_lines
{
	my ($self, @lines) = @_;

	$self->_output(join '', map { "$_\n" } @lines);
	return;
}

# What is skipped is neither passed nor failed.
sub count
{
	my ($self, $passed, $failed, $skipped) = @_;

	$self->{passed} += $passed;
	$self->{failed} += $failed;
	$self->{skipped} += $skipped;
	return;
}

sub summary
{
	my ($self) = @_;

	$self->say_lines(sprintf '# %d passed, %d failed, %d skipped',
		map { $_ // 0 } @$self{qw(passed failed skipped)});
	return;
}

package TapLines::File;

use strict;
use warnings FATAL => 'all';

use base 'TAP::Formatter::Session';

sub result
{
	my ($self, $result) = @_;

	push @{ $self->{lines} }, $result->raw;
	push @{ $self->{reasons} }, $result->explanation
	  if $result->is_test && $result->has_skip;
	return;
}

# failures(PARSER): a file that broke without a failed assertion is one failure
sub failures
{
	my ($parser) = @_;
	my $failed = () = $parser->failed;

	return $failed || ($parser->has_problems ? 1 : 0);
}

sub close_test
{
	my ($self) = @_;
	my ($formatter, $parser, $name) = ($self->formatter, $self->parser, $self->name);
	my $failed = failures($parser);
	my $skipped = () = $parser->skipped;
	my $passed = () = $parser->actual_passed;
	my $time = sprintf '%.0f s', $parser->end_time - $parser->start_time;

	if (defined $parser->skip_all && !$failed)
	{
		$formatter->count(0, 0, 1);
		$formatter->say_lines("skipped $name: " . $parser->skip_all);
		return;
	}
	$passed -= $skipped;
	$formatter->count($passed, $failed, $skipped);
	$formatter->say_lines($failed
		? "not ok $name, $failed failed, $passed passed, $time"
		: "ok $name, $passed passed, $time");
	if ($failed)
	{
		my $wait = $parser->wait // 0;

		$formatter->say_lines(@{ $self->{lines} // [] },
			($wait ? "$name ended with wait status $wait" : ()),
			map { "$name: $_" } $parser->parse_errors);
	}
	my %seen;
	$formatter->say_lines(map { "skipped $name: $_" }
		  grep { !$seen{$_}++ } @{ $self->{reasons} // [] });
	return;
}

1;
