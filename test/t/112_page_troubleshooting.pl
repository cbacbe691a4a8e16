# doc/troubleshooting.md: every symptom is produced as the page shows it, with the
# message that is its heading, and is gone once one has done what the page says.
#
# Native only: no server version matters to it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use LeaseTest;
use PageTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $has_program = grep { -x "$_/leaselock" } split /:/, $ENV{PATH};
my $node = new_node('troubleshooting');
my $printed = '';
my $page = PageTest->new('doc/troubleshooting.md',
	node => $node,
	psql => [ '\set VERBOSITY verbose', '\set SHOW_CONTEXT never' ],
	# where in the text of a statement the error is, the page does not show
	normal => sub { s/^LINE \d+:.*\n +\^.*(?:\n|\z)//mg; s/^NOTICE: +\w{5}:/NOTICE:/mg; s/\b[1-9]\d{4}\b/MS/g },
	skip => { $has_program ? () : (shell => 'the program leaselock is not built') });

sub sql { return $page->sql(@_) }
sub run_sql { return $page->run_sql(@_) }
sub as { return node_outcome($node, "SET SESSION AUTHORIZATION $_[0]; $_[1]", $_[2]) }
sub holder { return sql("SELECT owner FROM leaselock.lease_peek('$_[0]', '" . ($_[1] // 'public') . "')") }

$node->safe_psql('postgres', q{
CREATE EXTENSION leaselock;
CREATE ROLE guest LOGIN; CREATE ROLE web LOGIN; CREATE ROLE mail LOGIN; CREATE ROLE jobs_owner LOGIN;
CREATE DATABASE jobs OWNER jobs_owner});
$node->safe_psql('jobs', 'SET SESSION AUTHORIZATION jobs_owner; CREATE EXTENSION leaselock');

# ---------------------------------------------------------------------
# Calls that fail
# ---------------------------------------------------------------------

# The calls in a table of the page: each fails as its section says
my ($table) = $page->{text} =~ /^### `function \.\.\. does not exist`\n(.*?)^###/ms;
my @wrong = $table =~ /^\| `(SELECT [^`]+)` \|/mg;
is(scalar(@wrong), 7, 'calls that PostgreSQL does not find');
foreach my $call (@wrong)
{
	my $message = run_sql('wrong', "$call;");
	$printed .= $message;
	like($message, qr/^ERROR:  42883: function (?:leaselock\.)?\w+\(.*\) does not exist$/m, $call);
	like($message, qr/^HINT: .*explicit type casts/m, 'and hears of casts');
}
# what the table says is right
foreach my $call (q{lease_acquire('nightly', 'host-a')}, q{lease_acquire('nightly', 'host-a', lease => '60 s')}, q{lease_acquire('nightly', 'host-a', '60 s'::varchar::interval)})
{
	is(sql("SELECT (leaselock.$call).state"), 'held', $call);
}
like(run_sql('wrong', q{SELECT leaselock.fence_assert('nightly', 1::numeric);}), qr/42883/, 'a fence is no decimal number');
is(sql(q{SELECT fence FROM leaselock.lease_peek('nightly') WHERE leaselock.fence_check('nightly', fence, allow_lapsed => true)}) > 0, 1, 'allow_lapsed has a name');
is(sql(q{SELECT leaselock.lease_release_all('host-a')}), '3', 'they are given back');
# where the extension is not
my ($unused, $out, $err) = $node->psql('template1', q{SELECT leaselock.lease_get(NULL)});
$printed .= $err;
like($err, qr/schema "leaselock" does not exist/, 'without the extension');
my ($order) = $page->{text} =~ /(`scope` is the .*?)\. Name the arguments/ or die;
foreach my $place ([ fifth => 'lease_acquire' ], [ fourth => 'try_lock' ], [ third => 'fence_assert' ])
{
	my ($nth, $function) = @$place;
	like($order, qr/\b$nth (?:argument )?of `$function`/, "the place of the scope in $function");
	is(sql("SELECT array_position(proargnames, 'scope') FROM pg_proc WHERE proname = '$function'"),
		{ fifth => 5, fourth => 4, third => 3 }->{$nth}, 'is the one of the page');
}

$page->before(
	look => sub { sql(q{CREATE ROLE jobs; SET ROLE jobs; SELECT FROM leaselock.lease_acquire('nightly', 'host-b')}) },
	scope => sub {
		sql(q{SELECT leaselock.lease_scope_create('teams/web', 'web')});
		run_sql('web', 'SET SESSION AUTHORIZATION guest;');
	},
	'busy-break' => sub {
		is(sql(q{SELECT state FROM pg_stat_activity WHERE query LIKE '%lease_renew%' AND pid <> pg_backend_pid()}), 'idle in transaction', 'a transaction is open');
	});
$page->after(
	look => sub { sql(q{SET ROLE jobs; SELECT leaselock.lease_release_all('host-b')}) },
	order => sub { sql(q{SELECT leaselock.lease_release_all('host-a')}) },
	lease => sub {
		is(sql(q{SELECT leaselock.try_lock('import', 'host-a', '10 min') > 0}), 't', 'a named lock may be taken for longer');
		is(sql(q{SELECT leaselock.release_lock('import', 'host-a')}), 't', 'it is released');
	},
	wait => sub {
		# a place that is kept for longer than one wait
		is(sql(q{
				SELECT state FROM leaselock.lease_acquire('long', 'holder', '300 s');
				SELECT position FROM leaselock.lease_acquire('long', 'first', wait => '300 s');
				SELECT position FROM leaselock.lease_acquire('long', 'second', wait => '300 s');
				SELECT position FROM leaselock.lease_acquire('long', 'first', wait => '300 s')}),
			"held\n1\n2\n1", 'the next request of an owner shares the place of the one that still waits');
	},
	block => sub {
		run_sql('b', q{CALL leaselock.lease_acquire_wait('outside', 'host-a');});
		is(holder('outside'), 'host-a', 'outside a transaction block it waits');
	},
	procedure => sub {
		like(run_sql('a', q{CALL leaselock.lease_get('58c9c1d7-9d0c-4a4c-8c4e-f5b6c7f2b7a1');}), qr/To call a function, use SELECT/, 'a function is no procedure');
		is(sql(q{SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'leaselock'::regnamespace AND prokind = 'p'}),
			'lease_acquire_wait lease_wait', 'these two are procedures');
	},
	'busy-end' => sub {
		is(sql(q{SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('busy')}), 't', 'when that has ended it can be broken');
	},
	scope => sub {
		is(sql(q{SELECT role FROM leaselock.lease_scopes WHERE scope = 'teams/web'}), 'web', 'an operator sees which role that is');
		sql('GRANT web TO guest');
		like(run_sql('web', $page->block('scope')), qr/held/, 'a member is let in');
	},
	prepare => sub {
		run_sql('a', 'ROLLBACK;');
	},
	memory => sub {
		is(sql(q{SELECT count(*) FROM leaselock.locks WHERE name LIKE 'item-%'}), '0', 'it leaves no trace');
		run_sql('a', q{DO $$ BEGIN FOR n IN 1..20 LOOP PERFORM leaselock.try_lock('item-' || n || '-' || i, 'host-a', '60 s') FROM generate_series(1, 100) i; COMMIT; END LOOP; END $$;});
		is(sql(q{SELECT count(*) FROM leaselock.locks WHERE name LIKE 'item-%'}), '2000', 'with a COMMIT in between there is room');
	},
	gset => sub { is(holder('import'), 'host-a', 'somebody else has it') });

# ---------------------------------------------------------------------
# Answers that surprise
# ---------------------------------------------------------------------

$page->after(
	nobody => sub {
		is(sql('SELECT count(*) FROM leaselock.lease_status WHERE name = \'nightly-report\''), '0', 'lease_status shows nothing');
		is(sql(q{LOAD 'leaselock'; SET leaselock.clock_offset = '10 min'; SELECT state FROM leaselock.lease_acquire('nightly-report', 'host-c')}),
			'contended', 'past the lease too');
	  SKIP: {
			skip 'the program leaselock is not built', 2 if !$has_program;
			my $status = $page->start_shell('leaselock status nightly-report');
			is($page->shell_status($status), 2, 'leaselock status: nobody holds it');
			unlike($status->{out}, qr/^ *public +nightly-report/m, 'and shows nothing');
		}
	},
	free => sub {
		# waited for, and held by nobody
		is(sql(q{SELECT leaselock.lease_release_all('host-b')}) > 0, 1, 'it is given back');
		sql(q{SELECT FROM leaselock.lease_acquire('turn', 'holder', '5 s'); SELECT FROM leaselock.lease_acquire('turn', 'first', wait => '300 s')});
		is(sql(q{LOAD 'leaselock'; SET leaselock.clock_offset = '6 s'; SELECT state, holder IS NULL FROM leaselock.lease_acquire('turn', 'newcomer')}),
			'contended|t', 'contended, because somebody waits');
	},
	star => sub {
		is(sql(q{SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'report'}), '15', 'of sixteen tickets one is given back');
		is(sql(q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'leaselock.lease_ticket'::regclass AND attnum > 0}), '16', 'there are as many columns');
	},
	'star-all' => sub {
		is(holder('report'), '', 'the lock is free');
		sql(q{SELECT leaselock.lease_release_all('host-a')});
	},
	swapped => sub {
		is(sql(q{SELECT state FROM leaselock.lease_acquire('thread-work.42', 'worker-1')}), 'held', 'one owner is let in again');
		is(sql(q{SELECT state FROM leaselock.lease_acquire('thread-work.42', 'worker-3', scope => 'elsewhere')}), 'held', 'another scope is another lock');
		is($node->safe_psql('jobs', q{SELECT state FROM leaselock.lease_acquire('thread-work.42', 'worker-3')}), 'held', 'so is another database');
	},
	false => sub {
		is(sql(q{SELECT leaselock.try_lock('named', 'a', '1 min', scope => 'shop') > 0, leaselock.release_lock('named', 'a')}), 't|f', 'without an argument the scope is public');
		is(sql(q{SELECT leaselock.release_lock('named', 'a', 'shop')}), 't', 'with it, it is released');
		is(sql(q{SELECT leaselock.release_lock('named', 'a', 'shop')}), 'f', 'but not twice');
		is(sql(q{SELECT leaselock.lease_break('thread-work.42', 1)}), 'f', 'nothing to break');
	},
	all => sub {
		is(sql(q{SELECT leaselock.release_lock('report', 'host-a')}), 't', 'release_lock ends it');
	},
	'old-request' => sub {
		is(sql(q{SELECT state FROM leaselock.lease_acquire('again', 'host-a', request_id => gen_random_uuid())}), 'held', 'a new request id makes a new acquisition');
		# the other rows of the table
		my $wait = q{SELECT FROM leaselock.lease_acquire('ended', 'holder', '300 s'); SELECT ticket FROM leaselock.lease_acquire('ended', 'silent', wait => '300 s')};
		my $ticket = sql($wait);
		my $later = q{LOAD 'leaselock'; SET leaselock.clock_offset = };
		is(sql("$later '21 s'; SELECT state FROM leaselock.lease_get('$ticket')"), 'timed_out', 'nobody polled');
		$ticket = sql(q{SELECT ticket FROM leaselock.lease_acquire('ended', 'promoted', wait => '300 s')});
		sql(q{SELECT leaselock.lease_release_all('holder')});
		is(sql("$later '32 s'; SELECT state FROM leaselock.lease_get('$ticket')"), 'expired', 'nobody asked for the promoted ticket');
		is($node->safe_psql('jobs', "SELECT state FROM leaselock.lease_get('$ticket')"), 'gone', 'it belongs to another database');
	});

# ---------------------------------------------------------------------
# Writes that are refused
# ---------------------------------------------------------------------

$page->before(
	update => sub {
		sql(q{
			CREATE TABLE reply (thread int, body text, fence bigint);
			CREATE TABLE ledger (id int, amount int);
			CREATE TABLE draft (id int, fence bigint);
			CREATE TRIGGER ledger_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
				FOR EACH STATEMENT EXECUTE FUNCTION leaselock.fence_guard('transaction', 'ledger');
			INSERT INTO reply SELECT 42, 'draft', leaselock.try_lock('thread-work', 'worker-1', '1 min');
			SELECT leaselock.release_lock('thread-work', 'worker-1');
			CREATE TRIGGER reply_fence BEFORE INSERT OR UPDATE ON reply
				FOR EACH ROW EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'thread-work')});
	});
$page->after(
	'wrong-scope' => sub {
		# the lease has run out
		run_sql('late', q{SELECT fence FROM leaselock.lease_acquire('late', 'worker-2') \gset});
		like(run_sql('late', q{SET leaselock.clock_offset = '61 s'; SELECT leaselock.fence_assert('late', :fence);}), qr/LS001.*\nDETAIL:  The grant with this fence is the newest, but its lease has run out\.\n/,
			'the lease has run out');
		# the check passes, COMMIT fails
		run_sql('stalled', q{CREATE TABLE work (what text); SELECT fence FROM leaselock.lease_acquire('stall', 'worker-1') \gset
			BEGIN; SELECT leaselock.fence_assert('stall', :fence); INSERT INTO work VALUES ('late');});
		sql(q{SELECT leaselock.lease_break(name, fence) FROM leaselock.lease_peek('stall'); SELECT state FROM leaselock.lease_acquire('stall', 'worker-2')});
		like(run_sql('stalled', 'COMMIT;'), qr/LS001/, 'LS001 at COMMIT');
		is(sql('SELECT count(*) FROM work'), '0', 'nothing of the transaction has happened');
		run_sql('ended', q{SELECT ticket, fence FROM leaselock.lease_acquire('over', 'worker-1') \gset
			BEGIN; SELECT leaselock.fence_assert('over', :fence);});
		is(sql(q{SELECT leaselock.lease_release_all('worker-1') > 0}), 't', 'the grant ends');
		like(run_sql('ended', 'COMMIT;'), qr/LS001/, 'LS001 at COMMIT, though nobody else has the lock');
	},
	late => sub { is(sql('SELECT count(*) FROM ledger'), '1', 'the right way writes') },
	snapshot => sub {
		is(sql(q{SELECT state FROM leaselock.lease_acquire('before', 'host-a');
				BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT leaselock.fence_check(name, fence) FROM leaselock.lease_peek('before'); COMMIT}),
			"held\nt", 'acquired in a transaction before, it passes');
	});
$page->before(verbosity => sub { run_sql('plain', '\set VERBOSITY default'); sql(q{SELECT 1}) });
$page->after(verbosity => sub {
	my $again = $page->block('verbosity') =~ s/^\\set.*\n//mr =~ s/\n.*\n\z/\n\\errverbose/sr;
	run_sql('again', '\set VERBOSITY default');
	like(run_sql('again', $again), qr/^ERROR:  stale fence.*^ERROR:  LS001: stale fence/ms, '\errverbose shows that of the last error');
	like(slurp_file($node->logfile), qr/ LS001 [^\n]*stale fence 1 for lock "job"/, 'the log with %e');
});

# ---------------------------------------------------------------------
# Views, settings and operators
# ---------------------------------------------------------------------

$page->before(
	unloaded => sub {
		is(node_outcome($node, q{SELECT count(*) FROM pg_settings WHERE name LIKE 'leaselock.%'}), '0', 'no settings before the library is loaded');
		is(node_outcome($node, q{LOAD 'leaselock'; SELECT count(*) > 10 FROM pg_settings WHERE name LIKE 'leaselock.%'}), 't', 'LOAD loads it');
		is(as('guest', q{LOAD 'leaselock'}), '42501', 'for superusers');
	},
	limit => sub { run_sql('owner', "\\c jobs jobs_owner\n") },
	blind => sub {
		$node->safe_psql('jobs', q{SET SESSION AUTHORIZATION jobs_owner; SELECT leaselock.lease_scope_create('teams/mail', 'mail')});
		is(as('mail', q{SELECT leaselock.try_lock('m', 'a', '1 min', 'teams/mail') > 0}, 'jobs'), 't', 'somebody holds a lock in the scope');
	},
	'stale-rows' => sub { sql(q{LOAD 'leaselock'; SET leaselock.clock_offset = '-1 h'; SELECT FROM leaselock.lease_acquire('forsaken', 'host-z')}) });
$page->after(
	blind => sub {
		is(as('jobs_owner', q{SELECT leaselock.try_lock('m', 'b', '1 min', 'teams/mail')}, 'jobs'), '42501', 'the owner cannot acquire in it');
		sql('GRANT pg_monitor TO jobs_owner');
		is(as('jobs_owner', q{SELECT count(*) FROM leaselock.lease_status WHERE scope = 'teams/mail'}, 'jobs'), '1', 'a member of pg_monitor sees it');
	},
	'stale-rows' => sub {
		is(sql(q{SELECT count(*) FROM leaselock.lease_status WHERE owner = 'host-z' AND NOT lapsed}), '0', 'WHERE NOT lapsed leaves it out');
	  SKIP: {
			skip 'the program leaselock is not built', 1 if !$has_program;
			my $status = $page->start_shell('leaselock status');
			$page->shell_status($status);
			unlike($status->{out}, qr/forsaken/, 'as leaselock status does');
		}
		sql(q{SELECT FROM leaselock.lease_acquire('forsaken', 'host-y')});
		is(sql(q{SELECT owner FROM leaselock.lease_status WHERE name = 'forsaken'}), 'host-y', 'the row is gone when somebody acquires the lock');
	},
	dx => sub {
		is(sql(q{SELECT count(*) > 20, string_agg(o.identity, ', ') FILTER (WHERE o.schema <> 'leaselock' OR o.schema IS NULL AND o.identity <> 'leaselock')
				FROM pg_depend d, pg_identify_object(d.classid, d.objid, d.objsubid) o WHERE d.deptype = 'e'
					AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leaselock')}), 't|', 'all its objects are there');
	},
	'nothing-old' => sub {
		my $ticket = sql(q{SELECT (leaselock.lease_release(t.ticket)).ticket FROM leaselock.lease_acquire('kept', 'a') t});
		sql(q{SELECT leaselock.lease_prune('0')});
		is(sql("SELECT state FROM leaselock.lease_get('$ticket')"), 'released', 'ended tickets are kept');
	});

# ---------------------------------------------------------------------
# The command line
# ---------------------------------------------------------------------

$page->before(
	run => sub {
		sql(q{SELECT state FROM leaselock.lease_acquire('nightly-report', 'host-b')});
	});
$page->after(
	path => sub {
		chomp(my $mandir = `pg_config --mandir`);
		ok(-s "$mandir/man1/leaselock.1", 'its manual page is where the page looks for it');
	});

# ---------------------------------------------------------------------
# Each heading that is a message was seen
# ---------------------------------------------------------------------

my @messages = grep { !/\.\.\.|command not found/ } $page->{text} =~ /^### `([^`]+)`$/mg;
$page->run;
cmp_ok(scalar(@messages), '>=', 15, 'headings that are messages');
like($printed . $page->shown, qr/\Q$_\E/, "seen: $_") foreach @messages;

done_testing();
