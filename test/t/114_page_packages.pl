# The page on installing: what can be tried without the right to change the system.
# Files go to a folder of their own; make test-deb and make test-dist try the
# packages and the zip.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = abs_path("$FindBin::RealBin/../..");
my $source = PostgreSQL::Test::Utils::tempdir();
my $node = new_node('packages', "max_prepared_transactions = 0\n");
my ($layout, $image) = ('', "$source/image");

sub pg_config
{
	my ($name) = @_;
	chomp(my $value = `pg_config --$name`);
	return $value;
}

# files(FOLDER): those below it, a line each
sub files
{
	my ($folder) = @_;
	return join '', sort map { s/^\Q$folder\E//r } grep { !/\.bc$/ } `find '$folder' -type f`;
}

# The source as it has been built, so that nothing is compiled again.
system("tar -C '$top' --exclude=./tmp_check --exclude=./.git -cf - . | tar -C '$source' -xf -") == 0
  or die 'could not copy the source';

# in_source(TEXT): its output.  No options of the make that runs this test, and no
# bitcode, for which a compiler may be missing.
sub in_source
{
	my ($text) = @_;
	local %ENV = (%ENV, MAKEFLAGS => ' -- with_llvm=no', DESTDIR => "$source/to");

	delete $ENV{MAKELEVEL};
	my $printed = `cd '$source' && exec 2>&1 && ( $text )`;
	is($? >> 8, 0, "status 0: $text") or diag $printed;
	return '';
}

# copy_as_docker(TEXT): its COPY lines, from the folders of this server
sub copy_as_docker
{
	my ($text) = @_;
	my ($lib, $share) = map { pg_config($_) } qw(pkglibdir sharedir);

	$text =~ s{out/usr/lib/postgresql/18/lib}{out$lib};
	$text =~ s{out/usr/share/postgresql/18}{out$share};
	while ($text =~ /^COPY (\S+) (\S+)$/mg)
	{
		my ($from, $to) = ("$source/$1", "$image$2");
		$from .= '.' if $from =~ m{/$};
		system("mkdir -p '$to' && cp -r '$from' '$to'") == 0 or die "could not copy $from";
	}
	return '';
}

# start_with(SETTINGS): a server that has the extension from the image alone
sub start_with
{
	my ($settings) = @_;
	my ($major) = pg_config('version') =~ /(\d+)/;

  SKIP:
	{
		skip "$major has no extension_control_path", 3 if $major < 18;
		$settings =~ s{/extensions/leaselock}{$image}g;
		# so that it shows which of the two that are there is used
		my $control = "$image/share/extension/leaselock.control";
		append_to_file($control, "comment = 'from the image'\n");
		my $server = new_node('mounted', $settings);
		is($server->safe_psql('postgres', q{
				CREATE EXTENSION leaselock;
				SELECT obj_description(oid, 'pg_extension') FROM pg_extension WHERE extname = 'leaselock'}),
			'from the image', 'the control file and the script of the image are used');
		my $session = $server->background_psql('postgres');
		is($session->query_safe(q{SELECT state FROM leaselock.lease_acquire(name => 'n', owner => 'o')}), 'held', 'a call works');
		my $pid = $session->query_safe('SELECT pg_backend_pid()');
		like(slurp_file("/proc/$pid/maps"), qr{\Q$image\E/lib/leaselock\.so}, 'the library of the image is used');
		$session->quit;
		$server->stop;
	}
	return '';
}

my $page = PageTest->new(
	'doc/packages.md',
	node => $node,
	session => {
		source => sub { in_source($_[1]) },
		layout => sub { $layout = $_[1]; return '' },
		dockerfile => sub { copy_as_docker($_[1]) },
		server => sub { start_with($_[1]) },
		installcheck => sub {
			my (undef, $text) = @_;
			local %ENV = (%ENV, MAKEFLAGS => '', PGHOST => $node->host, PGPORT => $node->port);
			my ($first) = `make -C '$source' --no-print-directory -n installcheck`;
			is($first, $text, 'installcheck: the first line');
			return '';
		} });
$page->after(
	program => sub {
		is(files("$source/to"), "/usr/bin/leaselock\n/usr/share/bash-completion/completions/leaselock\n/usr/share/man/man1/leaselock.1\n",
			'the program, its page and its completion');
		like(`'$source/to/usr/bin/leaselock' --version`, qr/^leaselock \d/, 'the program runs');
	},
	image => sub { is(files($image), join('', map { "$_\n" } sort split /\n/, $layout), 'the image has these files') });
$page->run;
done_testing();
