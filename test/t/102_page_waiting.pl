# doc/waiting.md: its blocks, as they stand there, and what the page says of them.
#
# Native only: no server version matters to it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use CliTest;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $page = PageTest->new('doc/waiting.md');
my $node = $page->node;

sub sql { return $page->sql(@_) }

# at(SECONDS, SQL): what a session answers whose clock is ahead
sub at
{
	my ($seconds, $sql) = @_;
	return sql("LOAD 'leaselock'; SET leaselock.clock_offset = '$seconds s'; $sql");
}

# ticket(NAME, OWNER, ARGUMENTS): acquires, and returns the ticket
sub ticket
{
	my ($name, $owner, $arguments) = @_;
	return sql("SELECT ticket FROM leaselock.lease_acquire('$name', '$owner'" . ($arguments // '') . ')');
}

sub waits
{
	my ($name, $owner) = @_;
	return $node->poll_query_until('postgres', qq{SELECT count(*) = 1 FROM leaselock.lease_tickets
		WHERE name = '$name' AND owner = '$owner' AND state = 'waiting'});
}

# ---------------------------------------------------------------------
# The script that polls
# ---------------------------------------------------------------------

# script(ENVIRONMENT): another run of it, in the background
sub script
{
	my (%environment) = @_;
	local $page->{env} = \%environment;
	return $page->start_shell($page->block('script'), undef, 'bash');
}

$page->after(
	queue => sub {
		my $row = q{SELECT xmin FROM leaselock.tickets WHERE owner = 'host-b'};
		my $before = sql($row);
		is(sql(q{SELECT g.state FROM leaselock.lease_tickets t, leaselock.lease_get(t.ticket) g WHERE t.owner = 'host-b'}),
			'waiting', 'a poll by the ticket');
		isnt(sql($row), $before, 'which writes its row');
		is(sql('SELECT count(*) FROM leaselock.tickets'), '2', 'and adds none');
		is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid() AND backend_type = 'client backend'}),
			'0', 'a ticket that waits keeps no connection busy');
	},
	'lease-wait' => sub {
		is(sql(q{SELECT state, position FROM leaselock.lease_tickets WHERE owner = 'host-d'}), 'waiting|2', 'the ticket keeps its place');
		is(sql(q{SELECT leaselock.lease_release_all('host-d')}), '1', 'and is given up');
	},
	procedure => sub {
		is(sql(q{SELECT count(*), count(DISTINCT g.fence) FROM leaselock.lease_tickets t, leaselock.lease_get(t.ticket) g WHERE t.owner = 'host-b' AND t.state = 'held'}),
			'2|1', 'the lease of the procedure has the fence of the other');
		my $script = $page->background('script');
		is(sql(q{SELECT leaselock.lease_release_all('host-b')}), '2', 'host-b gives both its tickets back');
		is($page->shell_status($script), 0, 'the script ends when its turn comes');
		like($script->{out}, qr/^held [1-9]\d{14}$/m, 'and says so, with the fence');
		is(sql(q{SELECT leaselock.lease_release_all('host-c')}), '1', 'the lease that it leaves is given back');
	});
$page->before(
	'lease-wait' => sub { ok(waits('nightly', 'host-c'), 'the script waits') });

$page->after(deadlock => \&in_words);

# What the page says without a block
sub in_words
{
	sql($_) foreach map { "SELECT leaselock.lease_release_all('$_')" } qw(a b);

	# the script, where the server is away, and where the statement fails
	my $away = PostgreSQL::Test::Utils::tempdir_short() . '/sockets';
	my $script = script(PGHOST => $away);
	ok(wait_until(sub { $script->{run}->pump_nb; $script->{out} =~ /No such file.*No such file/s }), 'the script repeats its request while the server is away');
	symlink $node->host, $away or die;
	is($page->shell_status($script), 0, 'and gets the lock when it is back') or diag $script->{out};
	is(sql(q{SELECT count(*) FROM leaselock.lease_tickets WHERE owner = 'host-c'}), '1', 'by one ticket');
	sql(q{SELECT leaselock.lease_release_all('host-c')});
	$script = script(PGDATABASE => 'template1');
	is($page->shell_status($script), 1, 'where the statement fails it ends with status 1');
	is(scalar(() = $script->{out} =~ /ERROR:/g), 1, 'after the first error');

	# and where nothing comes of it
	$script = script(PGHOST => "$away.never", SECONDS => 149);
	is($page->shell_status($script), 1, 'it gives up after 150 seconds without a server');
	ticket('nightly', 'holder', ", '300 s'");
	$script = script();
	ok(waits('nightly', 'host-c'), 'the script waits again');
	sql(q{LOAD 'leaselock'; ALTER DATABASE postgres SET leaselock.clock_offset = '121 s'});
	is($page->shell_status($script), 1, 'a script whose two minutes are over ends');
	sql('ALTER DATABASE postgres RESET leaselock.clock_offset');
	like($script->{out}, qr/^timed_out $/m, 'and says so');

	# a wait in one call, for as long as the server looks twice: each look is a
	# transaction
	ticket('rows', 'holder', ", '300 s'");
	my $session = session($node);
	my $pid = outcome($session, 'SELECT pg_backend_pid()');
	begin($session, q{CALL leaselock.lease_acquire_wait('rows', 'waiter', wait => '200 s')});
	my $transaction = sub { sql("SELECT virtualtransaction FROM pg_locks WHERE pid = $pid AND locktype = 'virtualxid' AND granted") };
	my $row = q{SELECT xmin, ctid FROM leaselock.tickets WHERE name = 'rows' AND owner = 'waiter' AND waiter_pid IS NOT NULL};
	ok(wait_until(sub { sql($row) }), 'a wait in one call');
	my $written = sql($row);
	foreach my $look (1, 2)
	{
		my $now = $transaction->();
		ok(wait_until(sub { ($transaction->() || $now) ne $now }), "the server looks, $look");
	}
	is(sql($row), $written, 'a wait in one call writes its row no more while it lasts');
	sql(q{SELECT leaselock.lease_release_all('holder')});
	like(awaited($session), qr/\|held\|/, 'it ends with the lock');
	isnt(sql($row =~ s/ AND waiter_pid.*//r), $written, 'and writes its row then');
	$session->quit;

	# lease_wait, to the end of the ticket's own wait, and for a ticket that does not wait
	ticket('over', 'holder');
	my $waiter = ticket('over', 'waiter', ", wait => '1 s'");
	is(sql("CALL leaselock.lease_wait('$waiter')"), 'timed_out||', 'without a timeout lease_wait waits until the wait of the ticket is over');
	is(sql("CALL leaselock.lease_wait('$waiter')"), 'timed_out||', 'for a ticket that does not wait it returns at once');

	# whoever is first in the queue may try
	foreach my $try (q{SELECT fence FROM leaselock.lease_acquire('%s', 'first') WHERE state = 'held'}, q{SELECT leaselock.try_lock('%s', 'first', '1 min')})
	{
		my $name = 'try ' . length $try;
		ticket($name, 'holder', ", '5 s'");
		my ($first, $second) = map { ticket($name, $_, ", wait => '2 min'") } qw(first second);
		is(sql(sprintf($try, $name)), '', 'the first in the queue does not get a lock that is held');
		is(at(6, sprintf($try, $name) =~ s/first/second/r), '', 'the second does not get one that is free');
		my $fence = at(6, sprintf($try, $name));
		like($fence, qr/^[1-9]\d{14}$/, 'the first does');
		is(at(6, "SELECT state, fence FROM leaselock.lease_get('$first')"), "held|$fence", 'and its waiting ticket is held at the next poll, with the same fence');
		is(at(6, "SELECT state FROM leaselock.lease_get('$second')"), 'waiting', 'the second waits on');
	}

	# to wait again is to wait at the end
	ticket('again', 'holder');
	ticket('again', 'early', ", wait => '1 s'");
	ticket('again', 'late', ", wait => '60 s'");
	is(at(2, q{SELECT state, position FROM leaselock.lease_acquire('again', 'early', wait => '60 s')}),
		'waiting|2', 'whose wait has run out, and who acquires again, is at the end of the queue');

	# a cycle of three; the one in the middle is in a scope that a may not see
	sql(q{
		CREATE ROLE outsider; CREATE ROLE team;
		SELECT leaselock.lease_scope_create('secret', 'team');
		SET ROLE outsider;
		SELECT state FROM leaselock.lease_acquire('ring x', 'a');
		RESET ROLE; SET ROLE team;
		SELECT state FROM leaselock.lease_acquire('ring y', 'b');
		SELECT state FROM leaselock.lease_acquire('ring z', 'c', scope => 'secret');
		SELECT state FROM leaselock.lease_acquire('ring z', 'b', wait => '60 s', scope => 'secret');
		SELECT state FROM leaselock.lease_acquire('ring x', 'c', wait => '60 s')});
	my ($out, $err);
	$node->psql('postgres', q{SET ROLE outsider; SELECT ticket, state FROM leaselock.lease_acquire('ring y', 'a', wait => '60 s')},
		stdout => \$out, stderr => \$err);
	is($out, '|deadlock', 'a cycle of three, in two scopes, is refused');
	like($err, qr/"ring y".*"ring x"/s, 'the NOTICE names it');
	unlike($err, qr/secret|ring z/, 'but for the scope that the caller may not see');

	# two waits at the same moment, so that neither sees the other
	my %blind = (one => 'two', two => 'one');
	my %in = map { $_ => session($node) } keys %blind;
	ticket("blind $_", $_, ", '300 s'") foreach keys %blind;
	my %wait = map { $_ => qq{SELECT state FROM leaselock.lease_acquire('blind $blind{$_}', '$_', wait => '60 s',
		request_id => md5('$_')::uuid)} } keys %blind;
	is(outcome($in{$_}, "BEGIN; $wait{$_}"), 'waiting', 'a wait that is not committed') foreach 'one', 'two';
	outcome($in{$_}, 'COMMIT') foreach 'one', 'two';
	is(outcome($in{two}, $wait{two}), 'deadlock', 'the newest ticket becomes deadlock at its next poll');
	is(outcome($in{one}, $wait{one}), 'waiting', 'the other waits on');
	sql(q{SELECT leaselock.lease_release_all('one')});
	is(outcome($in{two}, $wait{two}), 'deadlock', 'its request id returns the ticket that ended');
	is(outcome($in{two}, $wait{two} =~ s/md5\('two'\)/md5('again')/r), 'held', 'a new one gets the lock');

	# a transaction with a row lock that the holder of the lease wants
	sql('CREATE TABLE work (id int); INSERT INTO work VALUES (1)');
	outcome($in{one}, 'BEGIN; UPDATE work SET id = 1');
	begin($in{two}, 'UPDATE work SET id = 2');
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'}), 'the holder waits for the row');
	is(outcome($in{one}, q{SELECT state FROM leaselock.lease_acquire('blind two', 'one', wait => '60 s')}), 'waiting', 'a row lock closes no cycle of leases');
	outcome($in{one}, 'ROLLBACK');
	awaited($in{two});
	$_->quit foreach values %in;
	return;
}

$page->run;

done_testing();
