# doc/moving.md: its blocks, and the calls in its tables, as they stand there.
#
# Native only: no server version matters to it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PageTest;
use Test::More;

my $page = PageTest->new('doc/moving.md', psql => [ '\set VERBOSITY verbose', q{\set run 'host-a/4711'}, q{\set token 'f00d'} ]);

sub sql { return $page->sql(@_) }
sub run_sql { return $page->plain($page->run_sql(@_)) }
sub holder { return sql("SELECT owner FROM leaselock.lease_peek('$_[0]', '" . ($_[1] // 'public') . "') WHERE NOT lapsed") }

# calls(HEADING): what the second column of the table under that heading says to call
sub calls
{
	my ($heading) = @_;
	my ($section) = $page->{text} =~ /^## \Q$heading\E\n(.*?)(?=^## |\z)/ms or die "no section $heading";
	my @calls;

	foreach my $row (grep { /^\| .*leaselock\./ } split /\n/, $section)
	{
		my $cell = (split /(?<!\\)\|/, $row)[2];
		push @calls, $cell =~ /`([^`]*leaselock\.[^`]*)`/g;
	}
	return @calls;
}

# a call in a session of psql, its result on a line
sub value
{
	my ($session, $call) = @_;
	my $printed = $page->run_sql($session, "\\t on\n$call;\n\\t off");
	return $page->plain($printed) =~ s/\s+\z//r;
}

$page->before(
	shedlock => sub {
		sql(q{
			CREATE TABLE shedlock (name varchar(64) NOT NULL PRIMARY KEY, lock_until timestamp NOT NULL,
				locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL);
			INSERT INTO shedlock
				SELECT name, (now() AT TIME ZONE 'UTC') + until, now() AT TIME ZONE 'UTC', 'host-c'
				FROM (VALUES ('invoice', interval '10 min'), ('over', interval '-1 min')) v (name, until)});
		# the times of the table are UTC, whatever those of the session are
		$page->run_sql('a', q{SET timezone = 'Asia/Tokyo'});
	},
	'shedlock-least' => sub {
		$page->run_sql('b', q{\set run 'host-b/1'});
		is(value('b', q{SELECT leaselock.try_lock('report', :'run', '10 min', scope => 'shedlock')}), 'FENCE',
			'once it is given back, another run takes the lock');
	},
	table => sub {
		sql(q{
			CREATE TABLE job_locks (name text PRIMARY KEY, locked_by text, locked_until timestamptz);
			INSERT INTO job_locks VALUES ('cleanup', 'worker-3', now() + '5 min'), ('old', 'worker-3', now() - interval '1 s')});
	});

$page->after(
	advisory => sub { is(holder('report'), '', 'it is given back') },
	'shedlock' => sub {
		is(sql(q{SELECT owner, remaining_ms BETWEEN 590000 AND 600000 FROM leaselock.lease_peek('invoice', 'shedlock')}),
			'host-c|t', 'the hold lapses when the old lock would have ended');
	},
	'shedlock-lock' => sub {
		is(value('b', q{SELECT leaselock.try_lock('report', 'host-b/1', '10 min', scope => 'shedlock') IS NULL}), 't', 'another run is skipped');
		is(sql(q{SELECT remaining_ms > 590000 FROM leaselock.lease_peek('report', 'shedlock')}), 't', 'it is taken for lockAtMostFor');
		is(value('b', q{SELECT leaselock.try_lock('report', :'run', '10 min', scope => 'shedlock')}), 'FENCE', 'the same label is let in again');
	},
	'shedlock-least' => sub {
		is(sql(q{SELECT remaining_ms BETWEEN 1 AND 20000 FROM leaselock.lease_peek('report', 'shedlock')}), 't', 'it lapses in 20 seconds');
		my $fence = sql(q{SELECT fence FROM leaselock.lease_peek('report', 'shedlock')});
		is(sql(q{LOAD 'leaselock'; SET leaselock.clock_offset = '21 s';
				SELECT leaselock.try_lock('report', 'host-c/1', '10 min', scope => 'shedlock') IS NOT NULL}), 't', 'then the next run takes it');
		is(node_outcome($page->node, "SELECT leaselock.fence_assert('report', $fence, 'shedlock')"), 'LS001', 'and the former one cannot write');
	},
	table => sub {
		is(sql(q{SELECT remaining_ms BETWEEN 290000 AND 300000 FROM leaselock.lease_peek('cleanup', 'jobs')}), 't', 'until the same time');
		is(holder('old', 'jobs'), '', 'what is over is not carried over');
	},
	redis => sub {
		my @calls = calls('Redis');
		is(scalar(@calls), 4, 'Redis: four calls');
		is(value('a', $calls[0]), 'FENCE', "Redis: $calls[0]");
		is(holder('key'), 'f00d', 'Redis: the token is the owner');
		is(value('a', "$calls[0] = (SELECT fence FROM leaselock.lease_peek('key'))"), 't', 'Redis: a second time the same fence');
		like($page->run_sql('a', $calls[3]), qr/\b(?:29|30)\d{3}\b/, "Redis: $calls[3]");
		is(value('b', $calls[0] =~ s/:'token'/'beef'/r), '', 'Redis: another token gets NULL');
		is(value('b', $calls[1] =~ s/:'token'/'beef'/r), 'f', 'Redis: and releases nothing');
		is(value('a', $calls[2]), 't', "Redis: $calls[2]");
		is(value('a', $calls[1]), 't', "Redis: $calls[1]");
		my $former = sql(q{SELECT leaselock.try_lock('key', 'one', '1 s')});
		is(sql(q{SELECT leaselock.release_lock('key', 'one')}), 't', 'Redis: it is released');
		cmp_ok(sql(q{SELECT leaselock.try_lock('key', 'two', '1 s')}), '>', $former, 'Redis: the next grant has a greater number');
	});

$page->after('table-view' => sub {
	my @calls = calls('A hand-written locks table');
	is(scalar(@calls), 3, 'table: three calls');
	is(value('a', $calls[0]), '', "table: $calls[0]: NULL if it is taken");
	is(value('a', $calls[1]), 'f', "table: $calls[1]: false, it is another's");
	is(value('a', $calls[2]), 'f', "table: $calls[2]: false, it is another's");
	is(sql(q{SELECT leaselock.release_lock('cleanup', 'worker-3', 'jobs')}), 't', 'table: the holder releases it');
	is(sql('SELECT count(*) FROM job_locks'), '0', 'table: the view shows that');
	is(value('a', $calls[0]), 'FENCE', "table: $calls[0]");
	is(value('a', $calls[1]), 't', "table: $calls[1]");
	# lapsed, without and with a waiter
	my $later = q{LOAD 'leaselock'; SET leaselock.clock_offset = '6 s'; };
	my $renew = q{SELECT leaselock.renew_lock('cleanup', 'host-a/4711', '5 s', 'jobs')};
	is(sql($renew), 't', 'table: it lasts for 5 seconds');
	is(sql($later . $renew), 't', 'table: once it has lapsed it can be renewed');
	is(value('b', q{SELECT state FROM leaselock.lease_acquire('cleanup', 'next', wait => '300 s', scope => 'jobs')}), 'waiting', 'table: somebody waits');
	is(sql($later =~ s/6/12/r . $renew), 'f', 'table: then it cannot');
	is(value('b', q{SELECT leaselock.lease_release_all('next')}), '1', 'table: nobody waits any more');
	is(value('a', $calls[2]), 't', "table: $calls[2]");
});

$page->after('advisory-before' => sub {
	my @calls = calls('Advisory locks');
	is(scalar(@calls), 6, 'advisory locks: six calls');
	is(value('a', $calls[0]), 'FENCE', "advisory locks: $calls[0]");
	is(value('b', $calls[0] =~ s/:'run'/'host-b'/r), '', 'advisory locks: NULL for another');
	is(value('a', $calls[4]), 't', "advisory locks: $calls[4]");
	is(value('a', $calls[2]), 't', "advisory locks: $calls[2]");
	like($page->run_sql('a', "$calls[1] \\gset"), qr/\A\s*\z/, "advisory locks: $calls[1]");
	is(holder('42'), 'host-a/4711', 'advisory locks: it is held');
	# the lock outlives the connection, and is given back by another
	my ($ticket) = $page->run_sql('a', '\echo :ticket') =~ /(\S+)/;
	$page->end_sessions;
	is(holder('42'), 'host-a/4711', 'advisory locks: it outlives the connection');
	$page->run_sql('a', "\\set ticket $ticket");
	like($page->run_sql('a', $calls[5]), qr/,held,/, "advisory locks: $calls[5]");
	like($page->run_sql('a', $calls[3]), qr/,released,/, "advisory locks: $calls[3]");
});

$page->run;

done_testing();
