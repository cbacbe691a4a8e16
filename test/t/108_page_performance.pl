# doc/performance.md: its blocks, as they stand there, and what the page says of them.
#
# Native only: PL/Proxy is not in the trees of the other majors.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $libdir = `pg_config --pkglibdir`);
my $reason = -e "$libdir/plproxy.so" ? undef : 'PL/Proxy is NOT INSTALLED';
my @shards = map { "shard$_" } 0 .. 2;

my $node = new_node('performance');
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock; CREATE ROLE app LOGIN');
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach @shards, 'proxy';

# the three databases "app" of the page are on one server
my $page = PageTest->new('doc/performance.md',
	node => $node,
	normal => sub { s/^tps = [1-9][\d.]* /tps = RATE /mg; s/\[shard\d\]/[app]/g },
	session => {
		shards => sub { join '', map { $node->safe_psql($_, $_[1]) } @shards },
		cluster => sub {
			my ($its, $text) = @_;
			my $servers = $text =~ s/host=db(\d)\.example dbname=app/'host=' . $node->host . ' port=' . $node->port . " dbname=shard$1"/ger;

			isnt($servers, $text, 'the hosts of the page are those of the test');
			$its->run_sql('proxy', '\connect proxy');
			return $its->run_sql('proxy', $servers);
		} },
	skip => { map { $reason ? ($_ => $reason) : () } qw(shards cluster proxy) });

# documents(): what is in each database
sub documents
{
	return join ',', map { $node->safe_psql($_, q{SELECT string_agg(body, ';') FROM document}) } @shards;
}

my $written;
$page->after(
	measure => sub {
		is($page->sql(q{SELECT count(*) FROM leaselock.tickets WHERE fence IS NOT NULL}), 8000, 'that were 8000 pairs');
		is($page->sql('SELECT count(*) FROM leaselock.lease_status'), 0, 'all given back');
	},
	functions => sub {
		# the function that the page leaves out, as it says
		my ($release) = $page->block('functions') =~ /^(CREATE FUNCTION lease_release.*?^\$\$;)/ms;
		is($page->run_sql('proxy', $release =~ s/release/renew/gr), '', 'lease_renew is written like lease_release');
		is($page->run_sql('proxy', q{
				SELECT lease_renew('renewed', ticket) FROM lease_acquire('renewed', 'worker-1');
				SELECT state FROM lease_acquire('renewed', 'worker-2', its_wait => '60 s')}) =~ s/\s+/ /gr,
			' lease_renew ------------- held state --------- waiting ', 'and renews; another owner waits');
	},
	acquire => sub {
		$written = documents();
		like($written, qr/^,*first words,*$/, 'the document is in one of the databases');
		my %home = map { $_ => $node->safe_psql($_, q{SELECT count(*) FROM leaselock.locks WHERE name = 'readme'}) } @shards;
		is(join(',', map { $home{$_} ? 'first words' : '' } @shards), $written, 'which is that of its lock');
	},
	stale => sub {
		is(documents(), $written, 'nothing is written');
	});
$page->run;

done_testing();
