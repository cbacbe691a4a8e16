# lease_release_all and the views read what is live, and not what has ended.
# This is counted in rows and in buffers, with hardly any ended tickets and
# with thousands of them, both of the identity that the calls are about and of
# others.
#
# One major: it is long, and what it finds hardly depends on the version.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use Test::More;

my $node = new_node('live_only', "leaselock.waiter_timeout = '600 s'");
$node->safe_psql('postgres', 'CREATE EXTENSION leaselock');

# w holds five tickets of four locks in two scopes, and a named hold, and waits
# for two locks; there are other owners, too
$node->safe_psql('postgres', q{
SELECT leaselock.lease_acquire('busy', 'h', '300 s'),
	leaselock.lease_acquire('busy', 'h', '300 s', scope => 'one'),
	leaselock.lease_acquire('busy', 'w', '300 s', '300 s'),
	leaselock.lease_acquire('busy', 'w', '300 s', '300 s', scope => 'one'),
	leaselock.lease_acquire('a', 'w', '300 s', scope => 'one'),
	leaselock.lease_acquire('a', 'w', '300 s', scope => 'one'),
	leaselock.lease_acquire('b', 'w', '300 s', scope => 'one'),
	leaselock.lease_acquire('a', 'w', '300 s'),
	leaselock.lease_acquire('b', 'w', '300 s'),
	leaselock.try_lock('named', 'w', '1 h');
SELECT leaselock.lease_acquire('other ' || i, 'other ' || i, '300 s'),
	leaselock.lease_acquire('busy', 'other ' || i, '300 s', '300 s')
FROM generate_series(1, 20) i});

# name, call, answer, and the rows of tickets that it may read: it reads each
# ticket that it ends several times
my $live = 2 + 7 + 20 + 20;
my @calls = (
	[ 'release_all', q{leaselock.lease_release_all('w')}, 7, 10 * 7 ],
	[ 'release_all in a scope', q{leaselock.lease_release_all('w', 'one')}, 4, 10 * 7 ],
	[ 'release_all of nothing', q{leaselock.lease_release_all('nobody')}, 0, 0 ],
	[ 'lease_status', '(SELECT count(*) FROM leaselock.lease_status)', 27, 2 * $live ],
	[ 'lease_tickets', '(SELECT count(*) FROM leaselock.lease_tickets)', $live, 3 * $live ]);

my $session = session($node);

# How many rows of tickets and of locks the session has read, to take a
# difference: the server adds them up only at the end of some transactions.
sub rows_read
{
	return split /\|/, outcome($session, q{
		SELECT max(n) FILTER (WHERE relname = 'tickets'), max(n) FILTER (WHERE relname = 'locks')
		FROM (SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) AS n
			FROM pg_stat_xact_user_tables WHERE schemaname = 'leaselock') t});
}

# What a call answers, the rows of tickets and of locks that it reads, and the
# buffers that it touches: the minimum of several runs, since the first runs
# fill the caches of the session and mark dead entries.  Every run is rolled
# back.
sub cost
{
	my ($call) = @_;
	my %least;

	foreach my $run (1 .. 5)
	{
		outcome($session, 'BEGIN');
		my ($tickets, $locks) = rows_read();
		my $answer = outcome($session, "SELECT $call");
		my ($tickets_then, $locks_then) = rows_read();
		outcome($session, 'ROLLBACK; BEGIN');
		my $plan = outcome($session, "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT $call");
		outcome($session, 'ROLLBACK');

		my ($line) = $plan =~ /Buffers: shared(.*)/;
		my $buffers = 0;
		$buffers += $1 while ($line // '') =~ /(?:hit|read)=(\d+)/g;
		my %now = (answer => $answer, buffers => $buffers,
			tickets => $tickets_then - $tickets, locks => $locks_then - $locks);
		foreach my $what (keys %now)
		{
			$least{$what} = $now{$what}
			  if !defined $least{$what} || $what eq 'answer' || $now{$what} < $least{$what};
		}
	}
	return \%least;
}

sub count_of
{
	my ($what) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM leaselock.$what");
}

my %before = map { $_->[0] => cost($_->[1]) } @calls;
my $tickets_before = count_of('tickets');

# ended by the calls themselves: held and released tickets, re-entrant ones,
# and cancelled waits for the lock that is now waited for.  No vacuum runs.
$node->safe_psql('postgres', q{
DO $$
DECLARE
	state text;
BEGIN
	FOR i IN 1..2000 LOOP
		SELECT r.state INTO state FROM
			leaselock.lease_acquire(CASE i % 4 WHEN 0 THEN 'a' WHEN 1 THEN 'v' ELSE 'busy' END,
				CASE WHEN i % 2 = 0 THEN 'w' ELSE 'v' END, '60 s', '60 s') a,
			leaselock.lease_release(a.ticket) r;
		ASSERT state = CASE WHEN i % 4 < 2 THEN 'released' ELSE 'cancelled' END;
		COMMIT;
	END LOOP;
END $$});
# and many more at once
$node->safe_psql('postgres', q{
INSERT INTO leaselock.tickets SELECT (jsonb_populate_record(t, jsonb_build_object('ticket', u, 'request_id', u))).*
FROM leaselock.tickets t, generate_series(1, 5000) i, md5(ticket::text || i) u
WHERE ticket IN (SELECT DISTINCT ON (owner, state) ticket FROM leaselock.tickets WHERE owner IN ('w', 'v') AND ended_at IS NOT NULL)});
cmp_ok(count_of('tickets'), '>=', $tickets_before + 22_000, 'there are many ended tickets');

# $pages: how many more pages of locks there are than before
sub compare
{
	my ($among, $pages) = @_;

	foreach my $case (@calls)
	{
		my ($what, $call, $answer, $rows) = @$case;
		my $few = $before{$what};
		my $many = cost($call);

		note("$what, among $among: $few->{tickets}, then $many->{tickets} rows of tickets; "
			  . "$few->{locks}, then $many->{locks} of locks; $few->{buffers}, then $many->{buffers} buffers");
		is($few->{answer}, $answer, "$what: the answer");
		is($many->{answer}, $answer, "$what, among $among: the same answer");
		cmp_ok($few->{tickets}, '<=', $rows, "$what: reads few tickets");
		is($many->{tickets}, $few->{tickets}, "$what, among $among: reads as many tickets");
		cmp_ok($many->{buffers}, '<=', 1.5 * $few->{buffers} + 10 + $pages, "$what, among $among: touches as many buffers");
	}
	return;
}
compare('ended tickets', 0);

# Idle locks are read past, each page of them once, until they are removed
# after the retention of tickets.
my $locks = count_of('locks');
$node->safe_psql('postgres', q{
INSERT INTO leaselock.locks SELECT (jsonb_populate_record(l, jsonb_build_object('name', 'idle ' || i))).*
FROM leaselock.locks l, generate_series(1, 10000) i WHERE l.name = 'v'});
is(count_of('locks'), $locks + 10_000, 'there are many idle locks');
compare('idle locks', $node->safe_psql('postgres', q{SELECT pg_relation_size('leaselock.locks') / current_setting('block_size')::int}));

$session->quit;
is_deeply([ logged_errors($node) ], [], 'no error in the server log');
$node->stop;

done_testing();
