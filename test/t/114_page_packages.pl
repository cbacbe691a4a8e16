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

# said_in_source(TEXT): what it prints.  No options of the make that runs this test, and
# no bitcode, for which a compiler may be missing.
sub said_in_source
{
	my ($text) = @_;
	local %ENV = (%ENV, MAKEFLAGS => ' -- with_llvm=no', DESTDIR => "$source/to");

	delete $ENV{MAKELEVEL};
	return scalar `cd '$source' && exec 2>&1 && ( $text )`;
}

sub in_source
{
	my ($text) = @_;
	my $printed = said_in_source($text);

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
	collect => sub { ok(!-e "$source/out" . pg_config('bindir') . '/leaselock', 'CLI=no leaves the program out') },
	image => sub { is(files($image), join('', map { "$_\n" } sort split /\n/, $layout), 'the image has these files') });
$page->run;

# ---------------------------------------------------------------------
# What is said of make
# ---------------------------------------------------------------------

my ($bindir, $mandir) = map { pg_config($_) } qw(bindir mandir);

like(said_in_source('make all PG_CONFIG=/nonexistent'), qr/install the server's development files/, 'without development files nothing is built');
in_source(qq{make install DESTDIR="$source/all"});
ok(-x "$bindir/psql" && -x "$source/all$bindir/leaselock", 'make install puts the program beside psql');
ok(-e "$source/all$mandir/man1/leaselock.1" && -e "$source/all$mandir/../bash-completion/completions/leaselock", 'with its manual page and completion');
like(files("$source/all"), qr{\Q${\ pg_config('pkglibdir')}\E/leaselock\.so\n}, 'and the extension into the folders of the server');

# another server: one whose libraries are elsewhere
my $other = "$source/pg_config";
append_to_file($other, qq{#!/bin/sh\n[ "\$1" != --pkglibdir ] || { echo /elsewhere/lib; exit; }\nexec "${\ ($ENV{PG_CONFIG} // 'pg_config')}" "\$@"\n});
chmod 0755, $other;
like(said_in_source("make -n CLI=no install PG_CONFIG=$other"), qr{/elsewhere/lib}, 'PG_CONFIG chooses the server');

my $folders = qq{PGXS= DESTDIR= bindir="$source/programs" mandir="$source/share/man"};
like(said_in_source("make install-cli $folders"), qr/\Q$source\E\/programs is not in PATH/, 'it says that the folder is not in PATH');
unlike(said_in_source(qq{PATH="\$PATH:$source/programs" make install-cli $folders}), qr/in PATH/, 'unless it is');
like(files($source), qr{^/programs/leaselock\n.*^/share/bash-completion/completions/leaselock\n/share/man/man1/leaselock\.1$}ms, 'bindir and mandir choose the folders');
in_source(qq{make install-cli PGXS= DESTDIR="$source/plain"});
is(files("$source/plain"), "/usr/local/bin/leaselock\n/usr/local/share/bash-completion/completions/leaselock\n/usr/local/share/man/man1/leaselock.1\n",
	'without them they are below /usr/local');

in_source(qq{make uninstall DESTDIR="$source/all" && make uninstall-cli PGXS= DESTDIR="$source/plain"});
is(files("$source/all") . files("$source/plain"), '', 'make uninstall leaves nothing');

like(said_in_source('make all includedir=/nonexistent'), qr/no libpq-fe\.h in \/nonexistent: the program leaselock is not built/, 'without libpq the program is not built');
like(said_in_source('make cli PGXS= HAVE_JANSSON='), qr/no jansson\.h: the program leaselock is built without its subcommand mcp/, 'without jansson the build says what it leaves out');
like(said_in_source('src/cli/leaselock mcp </dev/null'), qr/not available in this build/, 'without jansson there is no leaselock mcp');

# ---------------------------------------------------------------------
# What make deb packs, with programs that only look like those of Debian
# ---------------------------------------------------------------------

SKIP:
{
	skip 'GIT IS NOT INSTALLED', 1 if !grep { -x "$_/git" } split /:/, $ENV{PATH};
	my ($tree, $stubs) = ("$source/tree", "$source/stubs");
	my %stub = (
		dh => ':', pg_buildext => ':',
		'dpkg-buildpackage' => qq{cat packed debian/changelog >"$source/packed" && cd .. && for kind in deb dsc changes buildinfo; do touch x.\$kind; done});

	mkdir $_ or die "$_: $!" foreach $tree, $stubs;
	foreach my $name (sort keys %stub)
	{
		append_to_file("$stubs/$name", "#!/bin/sh\n$stub{$name}\n");
		chmod 0755, "$stubs/$name";
	}
	# packed(ENVIRONMENT): the lines of what was packed
	my $packed = sub {
		my ($environment) = @_;
		in_source(qq{cd tree && env PATH="$stubs:\$PATH" $environment packaging/deb});
		return slurp_file("$source/packed");
	};
	in_source('cp -r META.json packaging tree && cd tree && echo committed >packed && rm -rf .git && git init -q . && git add . && git -c user.name=x -c user.email=x commit -qm x && echo changed >packed');
	like($packed->(''), qr/^committed\n(?s:.*) -- leaselock maintainers <\S+\.example>/, 'make deb packs the newest commit, for a placeholder');
	in_source('rm -rf tree/.git');
	like($packed->("GIT_CEILING_DIRECTORIES='$source' DEBFULLNAME='Some Body' DEBEMAIL=body\@example.org"), qr/^changed\n(?s:.*) -- Some Body <body\@example\.org>/,
		'outside a repository the files that are there, for whoever is named');
}
done_testing();
