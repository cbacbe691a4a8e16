# Every subcommand has its own help: its purpose and exactly the options that
# it takes, on one screen.
#
# One major: the program is the same for all of them.

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
cmp_ok(scalar @commands, '>=', 7, 'the help lists commands');
my ($options) = $usage =~ /^Options:\n(.*?)^$/ms;
my @options = $options =~ /^ +(?:-., )?--([a-z-]+)/mg;
cmp_ok(scalar @options, '>=', 10, '... it lists options');

foreach my $command (@commands)
{
	my ($synopsis) = $usage =~ /^(  leaselock $command\b.*?)(?=^  leaselock |^$)/ms;
	my ($status, $help, $errors) = cli($command, '--help');
	is("$status|$errors", '0|', "$command --help: success");
	like($help, qr/\Aleaselock $command [a-z].*\.\n/, '... it says what the command does');
	like($help, qr/^Usage:\n\Q$synopsis\E\nOptions:\n/m, '... it shows the synopsis');

	# an option is in the help if and only if the command takes it
	my %listed = map { $_ => 1 } ($help =~ /^Options:\n(.*?)^$/ms)[0] =~ /^ +(?:-., )?--([a-z-]+)/mg;
	foreach my $option (@options)
	{
		next if $option eq 'help' || $option eq 'version';
		my $value = $options =~ /--$option [A-Z]/ ? '=' : '';
		# an operand that no subcommand takes prevents execution
		my @operand = $synopsis =~ /^  leaselock $command \[?(?:NAME|TICKET)/ ? ('--', '', '--', 'b') : ('a');
		my (undef, undef, $complaint) = cli($command, "--$option$value" . ($value && value_of($option)), @operand);
		my $refused = $complaint =~ /$command does not take --$option/ ? 1 : 0;
		is($listed{$option} // 0, 1 - $refused, "... it lists --$option if and only if the command takes it");
	}
	my @lines = split /\n/, $help;
	cmp_ok(scalar @lines, '<=', 32, '... it has at most 32 lines');
	ok(!(grep { length > 80 } @lines), '... it has at most 80 columns');
}

($rc, my $all) = cli('nonsense', '--help');
is($all, $usage, 'an unknown command gets the general help');
($rc, $all) = cli('--help', 'get');
is($all, $usage, '--help before the command prints the general help');

done_testing();

# value_of(OPTION): a valid value, so that only the option itself can be
# refused
sub value_of
{
	my ($option) = @_;
	return {
		'request-uuid' => '00000000-0000-0000-0000-000000000000',
		'lease-seconds' => 60, 'grace' => 1,
	}->{$option} // ($options =~ /--$option N\b/ ? 1 : $option eq 'fence' ? 1 : 'x');
}
