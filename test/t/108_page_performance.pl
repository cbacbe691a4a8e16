# doc/performance.md: its blocks, as they stand there, and what the page says of them.
#
# Native only: PL/Proxy is not in the trees of the other majors.

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

chomp(my $libdir = `pg_config --pkglibdir`);
my $reason = -e "$libdir/plproxy.so" ? undef : 'PL/Proxy is NOT INSTALLED';
my @shards = map { "shard$_" } 0 .. 2;

# nothing but a commit flushes WAL, once the WAL writer is stopped
my $node = new_node('performance', q{
fsync = off
shared_buffers = 64MB
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
leaselock.ticket_retention = '20d'
leaselock.waiter_timeout = '300 s'
});
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

# ---------------------------------------------------------------------
# What a call costs: the rows that it writes, and whether it waits for the disk
# ---------------------------------------------------------------------

my ($other, $session, $scene, $stopped);
END { kill 'CONT', $stopped if $stopped }

# per table: rows inserted, updated, deleted by this transaction so far
sub counts
{
	return { map { my ($table, @n) = split /\|/; $table => \@n } split /\n/, outcome($session, q{
		SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_xact_user_tables WHERE schemaname = 'leaselock'}) };
}

# what_it_writes(CALL): as "locks: 1 updated, tickets: 1 inserted"; rolled back
sub what_it_writes
{
	my ($call) = @_;

	outcome($session, 'BEGIN');
	my $before = counts();
	my $answer = outcome($session, $call);
	my $after = counts();
	outcome($session, 'ROLLBACK');
	my @written;
	foreach my $table (sort keys %$after)
	{
		my @verbs = qw(inserted updated deleted);
		my @n = map { $after->{$table}[$_] - ($before->{$table} // [ 0, 0, 0 ])->[$_] } 0 .. 2;
		push @written, map { $n[$_] ? "$table: $n[$_] $verbs[$_]" : () } 0 .. 2;
	}
	return ($answer, join ', ', @written);
}

# waits_for_disk(CALL, SETTING): whether a commit that did not wait is on disk after it
sub waits_for_disk
{
	my ($call, $setting) = @_;

	outcome($session, 'SET synchronous_commit = off');
	my $lsn = outcome($session, 'INSERT INTO written VALUES (1) RETURNING pg_current_wal_insert_lsn()');
	my $on_disk = "SELECT pg_current_wal_flush_lsn() >= '$lsn'";
	is(outcome($session, $on_disk), 'f', 'a commit that does not wait is not on disk');
	outcome($session, "SET synchronous_commit = $setting");
	outcome($session, $call);
	return outcome($session, $on_disk);
}

# costs(WHAT, BEFORE, CALL, ANSWER, ROWS, DISK): each N in BEFORE and CALL is the
# number of a scene of its own.  DISK: whether it waits for the disk with
# synchronous_commit off and on; ROWS undef: not counted
sub costs
{
	my ($what, $before, $call, $answer, $rows, @disk) = @_;
	my $prepared = sub {
		$scene++;
		outcome($other, $before =~ s/\bN\b/$scene/gr);
		return $call =~ s/\bN\b/$scene/gr;
	};

	if (defined $rows)
	{
		my ($is, $written) = what_it_writes($prepared->());
		is($is, $answer, "$what: $answer");
		is($written, $rows, "$what: the rows that it writes");
	}
	is(waits_for_disk($prepared->(), 'off'), $disk[0], "$what: does it wait with synchronous_commit = off");
	is(waits_for_disk($prepared->(), 'on'), $disk[1], "$what: does it wait with synchronous_commit = on");
	return;
}

sub acquire { return "SELECT state FROM leaselock.lease_acquire('N', '$_[0]', '300 s'" . ($_[1] // '') . ')' }
sub queue { return acquire($_[0], q{, '300 s'}) }
sub of_ticket { return "SELECT r.state FROM leaselock.tickets t, leaselock.$_[0](t.ticket) r WHERE t.name = 'N' AND t.owner = '$_[1]'" }
sub hold { return q{SELECT leaselock.try_lock('N', 'a', '1 h') > 0} }

sub test_costs
{
	my $walwriter = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});

	$node->safe_psql('postgres', 'CREATE TABLE written (n int)');
	($other, $session) = map { session($node, q{LOAD 'leaselock'}) } 1, 2;
	$stopped = $walwriter;
	kill 'STOP', $walwriter or die "could not stop the WAL writer: $!";
	my $known = acquire('x') . '; ' . of_ticket('lease_release', 'x');
	costs('lease_acquire, granted', $known, acquire('a'), 'held', 'locks: 1 updated, tickets: 1 inserted', 't', 't');
	costs('lease_acquire, a new name', '', acquire('a'), 'held', 'locks: 1 inserted, tickets: 1 inserted', 't', 't');
	costs('lease_acquire, the first waiter in the database', 'TRUNCATE leaselock.queues; ' . acquire('a'), queue('b'), 'waiting',
		'blockers: 1 inserted, queues: 1 inserted, tickets: 1 inserted', 'f', 't');
	costs('lease_acquire, the first waiter behind a holder', acquire('a'), queue('b'), 'waiting', 'blockers: 1 inserted, tickets: 1 inserted', 'f', 't');
	costs('lease_acquire, a further waiter', acquire('a') . '; ' . queue('b'), queue('c'), 'waiting', 'tickets: 1 inserted', 'f', 't');
	costs('contended', acquire('a'), acquire('b'), 'contended', '', 'f', 'f');
	costs('deadlock', acquire('a') . q{; SELECT FROM leaselock.lease_acquire('x N', 'b N', '300 s'); SELECT FROM leaselock.lease_acquire('x N', 'a', '300 s', '300 s')},
		queue('b N'), 'deadlock', '', 'f', 'f');
	costs('try_lock, NULL', acquire('b'), hold(), '', '', 'f', 'f');
	costs('poll', acquire('a') . '; ' . queue('b'), of_ticket('lease_get', 'b'), 'waiting', 'tickets: 1 updated', 'f', 't');
	costs('lease_get, held', acquire('a'), of_ticket('lease_get', 'a'), 'held', '', 'f', 'f');
	costs('lease_get, promoted', acquire('a') . '; ' . queue('b') . '; ' . of_ticket('lease_release', 'a'),
		of_ticket('lease_get', 'b'), 'held', 'locks: 1 updated, tickets: 1 updated', 'f', 't');
	costs('lease_renew', acquire('a'), of_ticket('lease_renew', 'a'), 'held', 'locks: 1 updated, tickets: 1 updated', 'f', 't');
	my $release = of_ticket('lease_release', 'a');
	costs('lease_release', acquire('a'), $release, 'released', 'locks: 1 updated, tickets: 1 updated', 'f', 'f');
	costs('lease_release in a block', acquire('a'), "BEGIN; $release; COMMIT", '', undef, 'f', 't');
	costs('lease_release with async_release off', acquire('a'), "SET leaselock.async_release = off; $release; RESET leaselock.async_release", '', undef, 'f', 't');
	costs('lease_release, a promotion', acquire('a') . '; ' . queue('b'), $release, 'released', 'blockers: 1 deleted, locks: 1 updated, tickets: 2 updated', 't', 't');
	costs('try_lock, granted', $known, hold(), 't', 'locks: 1 updated', 't', 't');
	costs('renew_lock', hold(), q{SELECT leaselock.renew_lock('N', 'a', '1 h')}, 't', 'locks: 1 updated', 'f', 't');
	costs('release_lock', hold(), q{SELECT leaselock.release_lock('N', 'a')}, 't', 'locks: 1 updated', 'f', 'f');
	costs('release_lock, a promotion', hold() . '; ' . queue('b'), q{SELECT leaselock.release_lock('N', 'a')}, 't',
		'blockers: 1 deleted, locks: 1 updated, tickets: 1 updated', 't', 't');
	costs("leaselock.$_", hold(), "SELECT count(*) FROM leaselock.lease_peek('N') p, leaselock.$_(p.name, p.fence) f", '1', '', 'f', 'f')
	  foreach 'fence_check', 'fence_assert';
	outcome($session, q{SET leaselock.events = 'all'});
	costs('an event', acquire('a'), of_ticket('lease_renew', 'a'), 'held', 'events: 1 inserted, locks: 1 updated, tickets: 1 updated', 'f', 't');
	costs('an event of a release', acquire('a'), $release, 'released', 'events: 1 inserted, locks: 1 updated, tickets: 1 updated', 'f', 'f');
	outcome($session, 'RESET leaselock.events');
	costs("leaselock.$_", hold(), "SELECT count(*) > 0 FROM leaselock.$_", 't', '', 'f', 'f')
	  foreach 'lease_status', 'lease_tickets', q{lease_peek('N')}, 'lease_events()';
	kill 'CONT', $walwriter;
	$stopped = undef;
	return;
}

# While nobody waits in the database, the index of places is not read
sub test_queues
{
	my $looks = q{SELECT pg_stat_get_xact_numscans('leaselock.tickets_place'::regclass)};
	my $reads = sub {
		my ($call) = @_;
		outcome($session, $call =~ s/\bN\b/warm/gr);
		outcome($session, 'BEGIN');
		my $before = outcome($session, $looks);
		is(outcome($session, $call =~ s/\bN\b/looked for/gr), 'held', 'a lock is acquired');
		my $reads = outcome($session, $looks) - $before;
		outcome($session, 'ROLLBACK');
		return $reads;
	};

	outcome($other, 'TRUNCATE leaselock.queues, leaselock.tickets, leaselock.blockers, leaselock.locks');
	is($reads->(acquire('a')), 0, 'while nobody waits, no call looks for waiters');
	outcome($other, (acquire('a') . '; ' . queue('b') . '; ' . of_ticket('lease_release', 'b')) =~ s/\bN\b/queue/gr);
	cmp_ok($reads->(acquire('a')), '>', 0, 'once somebody has waited, they do');
	is(outcome($other, 'SELECT count(*) FROM leaselock.queues'), 1, 'that is recorded');
	# a call in a thousand finds out, so there are enough of them
	outcome($other, q{SET leaselock.ticket_retention = 0; SET synchronous_commit = off; DO $$ BEGIN
		FOR n IN 1 .. 100000 LOOP
			PERFORM leaselock.lease_release(ticket) FROM leaselock.lease_acquire('n ' || n, 'a', '5 s');
			COMMIT;
			EXIT WHEN NOT EXISTS (SELECT FROM leaselock.queues);
		END LOOP;
	END $$; RESET leaselock.ticket_retention});
	is(outcome($other, 'SELECT count(*) FROM leaselock.queues'), 0, 'normal use notices that the last queue has gone');
	is($reads->(acquire('a')), 0, 'then no call looks for waiters again');
	$_->quit foreach $other, $session;
	return;
}

# The table of the page and the file that it is from
sub test_figures
{
	my ($top) = abs_path("$FindBin::RealBin/../..");
	my (undef, @lines) = split /\n/, slurp_file("$top/test/bench/pairs.tsv");
	my (%rates, @expected);

	foreach (@lines)
	{
		my ($round, $setting, $clients, $case, $rate) = split /\t/;
		push @{ $rates{"$setting $clients $case"} }, $rate;
	}
	foreach my $clients (1, 8, 32)
	{
		my @medians = map { (sort { $a <=> $b } @{ $rates{$_} })[ $#{ $rates{$_} } / 2 ] }
		  "on $clients tickets", "on $clients named", "nofsync $clients tickets", "nofsync $clients named";
		push @expected, '| ' . join(' | ', $clients, map { sprintf('%.0f', $_ / 100) * 100 } @medians) . ' |';
	}
	# a copy: the page is being walked through
	my $text = $page->{text};
	is_deeply([ map { s/(?<=\d) (?=\d{3}\b)//gr } $text =~ /^(\| (?:1|8|32) \| [\d |]+\|)$/mg ], \@expected, 'the table has the medians of pairs.tsv');

	# those of "make count"
	my %count = map { /^([\w-]+)\t(\w+)\t([\d.]+)/ ? ("$1 $2" => $3) : () } split /\n/, slurp_file("$top/test/count/figures.tsv");
	my $rounded = sub { my ($n, $to) = @_; return sprintf('%.0f', $n / $to) * $to };
	my %says = (
		'A ticket pair takes N instructions' => $rounded->($count{'tickets instructions'}, 1000),
		'a named pair N.' => $rounded->($count{'named instructions'}, 1000),
		'Two UPDATEs take N (' => $rounded->($count{'updates-roomy instructions'}, 1000),
		'(N on the filled table)' => $rounded->($count{'updates instructions'}, 1000),
		'two calls of an empty function N.' => $rounded->($count{'empty instructions'}, 1000),
		'by N instructions a pair' => $rounded->($count{'tickets instructions'} - $count{'tickets-list instructions'}, 1000),
		'cost a ticket pair N instructions more' => $rounded->($count{'tickets-grants instructions'} - $count{'tickets instructions'}, 1000),
		'and N bytes of WAL' => $rounded->($count{'tickets-grants wal'} - $count{'tickets wal'}, 10));
	my $plain = $page->{text} =~ s/(?<=\d) (?=\d{3}\b)//gr;
	is_deeply([ grep { index($plain, s/\bN\b/$says{$_}/r) < 0 } sort keys %says ], [], 'the counts are those of figures.tsv');
	return;
}

my $written;
$page->after(
	measure => sub {
		is($page->sql(q{SELECT count(*) FROM leaselock.tickets WHERE fence IS NOT NULL}), 8000, 'that were 8000 pairs');
		is($page->sql('SELECT count(*) FROM leaselock.lease_status'), 0, 'all given back');
		is($page->sql(q{SELECT count(DISTINCT owner) FROM leaselock.tickets GROUP BY name ORDER BY 1 DESC LIMIT 1}), 1, 'each client had names of its own');
		test_costs();
		test_queues();
		test_figures();
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
