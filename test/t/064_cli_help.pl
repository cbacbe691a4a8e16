# Every subcommand has a help of its own: what it does, what it takes and nothing
# else, in one screen.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PostgreSQL::Test::Utils;
use Test::More;
use CliTest;

need_program();
$ENV{PGHOST} = '/nowhere';
my ($rc, $usage, $err) = cli('--help');
my @commands = $usage =~ /^  leaselock ([a-z]+)/mg;
cmp_ok(scalar @commands, '>=', 7, 'the help names commands');
my ($options) = $usage =~ /^Options:\n(.*?)^$/ms;
my @options = $options =~ /^ +(?:-., )?--([a-z-]+)/mg;
cmp_ok(scalar @options, '>=', 10, '... and options');

foreach my $command (@commands)
{
	my ($synopsis) = $usage =~ /^(  leaselock $command\b.*?)(?=^  leaselock |^$)/ms;
	my ($status, $help, $errors) = cli($command, '--help');
	is("$status|$errors", '0|', "$command --help: success");
	like($help, qr/\Aleaselock $command [a-z].*\.\n/, '... says what it does');
	like($help, qr/^Usage:\n\Q$synopsis\E\nOptions:\n/m, '... and how it is called');

	# an option is in the help if and only if the command takes it
	my %listed = map { $_ => 1 } ($help =~ /^Options:\n(.*?)^$/ms)[0] =~ /^ +(?:-., )?--([a-z-]+)/mg;
	foreach my $option (@options)
	{
		next if $option eq 'help' || $option eq 'version';
		my $value = $options =~ /--$option [A-Z]/ ? '=' : '';
		# an operand that no subcommand takes keeps it from going on
		my @operand = $synopsis =~ /^  leaselock $command \[?(?:NAME|TICKET)/ ? ('--', '', '--', 'b') : ('a');
		my (undef, undef, $complaint) = cli($command, "--$option$value" . ($value && value_of($option)), @operand);
		my $refused = $complaint =~ /$command does not take --$option/ ? 1 : 0;
		is($listed{$option} // 0, 1 - $refused, "... lists --$option, if it takes that");
	}
	my @lines = split /\n/, $help;
	cmp_ok(scalar @lines, '<=', 32, '... in one screen');
	ok(!(grep { length > 80 } @lines), '... of 80 columns');
}

($rc, my $all) = cli('nonsense', '--help');
is($all, $usage, 'an unknown command: the help for all');
($rc, $all) = cli('--help', 'get');
is($all, $usage, '--help before the command: the same');

done_testing();

# value_of(OPTION): one that is not refused, so that whether the option is, shows
sub value_of
{
	my ($option) = @_;
	return {
		'request-uuid' => '00000000-0000-0000-0000-000000000000',
		'lease-seconds' => 60, 'grace' => 1,
	}->{$option} // ($options =~ /--$option N\b/ ? 1 : $option eq 'fence' ? 1 : 'x');
}
