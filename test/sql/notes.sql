-- Notes: a text for people that is kept with the ticket.  No rule looks at it.
LOAD 'leaselock';
\set id '''00000000-0000-0000-0000-0000000000b1'''
\set id2 '''00000000-0000-0000-0000-0000000000b2'''
\set id3 '''00000000-0000-0000-0000-0000000000b3'''

--
-- Kept, and shown with the ticket
--

SELECT * FROM leaselock.lease_acquire('notes', 'w', note => 'host-a, job 17') \gset a_
SELECT :'a_state' AS state, :'a_note' AS note;
-- ok: in every answer, as long as the ticket is on record
SELECT state, note FROM leaselock.lease_get(:'a_ticket');
SELECT state, note FROM leaselock.lease_renew(:'a_ticket', '90 s');
SELECT state, note FROM leaselock.lease_tickets WHERE name = 'notes';
SELECT owner, note FROM leaselock.lease_status WHERE name = 'notes';
SELECT owner, note FROM leaselock.lease_peek('notes');
SELECT state, note FROM leaselock.lease_release(:'a_ticket');
SELECT state, note FROM leaselock.lease_get(:'a_ticket');
SELECT count(*) FROM leaselock.lease_peek('notes');
-- ok: none
SELECT state, note FROM leaselock.lease_acquire('notes', 'w');
SELECT note FROM leaselock.lease_peek('notes');
SELECT leaselock.lease_release_all('w');
-- ok: an empty note is none
SELECT * FROM leaselock.lease_acquire('notes', 'w', note => '') \gset a_
SELECT state, note, note IS NULL AS none FROM leaselock.lease_get(:'a_ticket');
SELECT note IS NULL AS none FROM leaselock.lease_tickets WHERE name = 'notes';
SELECT leaselock.lease_release_all('w');
-- ok: neither an unknown ticket nor a call without a ticket has a note
SELECT state, note FROM leaselock.lease_get('00000000-0000-0000-0000-000000000000');
SELECT state FROM leaselock.lease_acquire('notes', 'w', note => 'the holder''s');
SELECT state, ticket, note, holder FROM leaselock.lease_acquire('notes', 'other', note => 'mine');
SELECT note FROM leaselock.lease_peek('notes');
SELECT leaselock.lease_release_all('w');

--
-- Retries
--

-- ok: the first one stays, whatever the retry says
SELECT note FROM leaselock.lease_acquire('notes', 'w', request_id => :id, note => 'first');
SELECT note FROM leaselock.lease_acquire('notes', 'w', request_id => :id, note => 'second');
SELECT note FROM leaselock.lease_acquire('notes', 'w', request_id => :id);
-- fail: it must obey the rules, as the other arguments must
SELECT note FROM leaselock.lease_acquire('notes', 'w', request_id => :id, note => E'a\nb');
\echo :SQLSTATE
SELECT leaselock.lease_release_all('w');
SELECT state, note FROM leaselock.lease_acquire('notes', 'w', request_id => :id, note => 'third');
-- ok: none stays none
SELECT state, note FROM leaselock.lease_acquire('notes', 'w', request_id => :id2);
SELECT state, note FROM leaselock.lease_acquire('notes', 'w', request_id => :id2, note => 'late');
SELECT leaselock.lease_release_all('w');

--
-- Several tickets of a grant
--

-- ok: each keeps its own; the lock shows the newest, as long as that lives
SELECT ticket AS a FROM leaselock.lease_acquire('notes', 'w', note => 'one') \gset
SELECT ticket AS b FROM leaselock.lease_acquire('notes', 'w', note => 'two') \gset
SELECT ticket AS c FROM leaselock.lease_acquire('notes', 'w') \gset
SELECT depth, note FROM leaselock.lease_status WHERE name = 'notes';
SELECT note FROM leaselock.lease_tickets WHERE name = 'notes' ORDER BY note;
SELECT state FROM leaselock.lease_release(:'b');
SELECT depth, note FROM leaselock.lease_peek('notes');
SELECT state FROM leaselock.lease_renew(:'a');
SELECT ticket AS d FROM leaselock.lease_acquire('notes', 'w', note => 'three') \gset
SELECT state FROM leaselock.lease_renew(:'a');
SELECT depth, note FROM leaselock.lease_peek('notes');
SELECT state FROM leaselock.lease_release(:'a');
SELECT state FROM leaselock.lease_release(:'d');
SELECT depth, note FROM leaselock.lease_peek('notes');
-- ok: a named hold has no note and hides none
SELECT leaselock.try_lock('notes', 'w', '300 s') IS NOT NULL AS held;
SELECT state, note FROM leaselock.lease_acquire('notes', 'w', note => 'beside a hold');
SELECT depth, note FROM leaselock.lease_peek('notes');
SELECT leaselock.lease_release_all('w');
SELECT depth, note FROM leaselock.lease_peek('notes');
SELECT leaselock.release_lock('notes', 'w');

--
-- Waiters, and the lapse
--

SELECT ticket AS a FROM leaselock.lease_acquire('notes', 'w', '5 s', note => 'the first job') \gset
SELECT state, note FROM leaselock.lease_acquire('notes', 'next', wait => '60 s', request_id => :id3, note => 'the next job');
SELECT owner, state, note FROM leaselock.lease_tickets WHERE name = 'notes' ORDER BY state;
SELECT owner, note, waiters FROM leaselock.lease_peek('notes');
-- ok: a lapsed hold is shown with its note
SET leaselock.clock_offset = '6 s';
SELECT owner, note, lapsed FROM leaselock.lease_peek('notes');
SELECT owner, note, lapsed FROM leaselock.lease_status WHERE name = 'notes';
SELECT state, note FROM leaselock.lease_get(:'a');
-- ok: the new holder has its own
SELECT state, note FROM leaselock.lease_acquire('notes', 'next', wait => '60 s', request_id => :id3);
SELECT owner, note, lapsed FROM leaselock.lease_peek('notes');
SELECT state, note FROM leaselock.lease_get(:'a');
RESET leaselock.clock_offset;
-- ok: so has a promoted waiter, before its next call
SELECT leaselock.lease_release_all('next');
SELECT ticket AS a FROM leaselock.lease_acquire('notes', 'w', note => 'broken') \gset
SELECT state FROM leaselock.lease_acquire('notes', 'next', wait => '60 s', note => 'waits');
SELECT leaselock.lease_break('notes', fence) FROM leaselock.lease_peek('notes');
SELECT state, note FROM leaselock.lease_get(:'a');
SELECT owner, note FROM leaselock.lease_peek('notes');
SELECT leaselock.lease_release_all('next');

--
-- The procedure
--

CALL leaselock.lease_acquire_wait('notes', 'w', note => 'waits inside') \gset c_
SELECT :'c_state' AS state, note FROM leaselock.lease_get(:'c_ticket');
SELECT leaselock.lease_release_all('w');
-- ok: by position it comes last
CALL leaselock.lease_acquire_wait('notes', 'w', '60 s', '0 s', 'public', NULL, NULL, NULL, NULL, NULL, 'last') \gset c_
SELECT note FROM leaselock.lease_get(:'c_ticket');
SELECT leaselock.lease_release_all('w');
SELECT state, note FROM leaselock.lease_acquire('notes', 'w', '60 s', '0 s', 'public', NULL, 'last');
SELECT leaselock.lease_release_all('w');
-- fail
CALL leaselock.lease_acquire_wait('notes', 'w', note => repeat('n', 1001));
\echo :SQLSTATE

--
-- Bounds
--

-- ok: 1000 bytes, of one byte and of two
SELECT length(note) FROM leaselock.lease_acquire('notes', 'w', note => repeat('n', 1000));
SELECT length(note), octet_length(note) FROM leaselock.lease_acquire('notes', 'w', note => repeat(U&'\00e4', 500));
-- ok: blanks, quotes and non-ASCII characters
SELECT note FROM leaselock.lease_acquire('notes', 'w', note => ' "x" '' \ <&> % ');
SELECT leaselock.lease_release_all('w');
-- fail: more, and control characters
SELECT leaselock.lease_acquire('notes', 'w', note => repeat('n', 1001));
\echo :SQLSTATE
SELECT leaselock.lease_acquire('notes', 'w', note => repeat(U&'\00e4', 501));
\echo :SQLSTATE
SELECT leaselock.lease_acquire('notes', 'w', note => E'tab\there');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('notes', 'w', note => E'\x7f');
\echo :SQLSTATE
SELECT count(*) FROM leaselock.lease_tickets WHERE name = 'notes';

-- ok: the largest possible ticket is stored in its row, uncompressed
SELECT string_agg(chr(33 + (i * 7919 + i * i * 31) % 90), '') AS mixed FROM generate_series(1, 1000) i \gset
SELECT state FROM leaselock.lease_acquire(left(:'mixed', 255), 'holder', scope => right(:'mixed', 255));
SELECT state, note = :'mixed' AS whole
FROM leaselock.lease_acquire(left(:'mixed', 255), right(left(:'mixed', 600), 255), wait => '60 s', scope => right(:'mixed', 255), request_id => :id, note => :'mixed');
SELECT leaselock.lease_release_all('holder');
SELECT state, note = :'mixed' AS whole
FROM leaselock.lease_acquire(left(:'mixed', 255), right(left(:'mixed', 600), 255), scope => right(:'mixed', 255), request_id => :id);
SELECT max(pg_column_size(note)) AS note, max(pg_column_size(t)) < 2032 AS fits FROM leaselock.tickets t WHERE note = :'mixed';
SELECT pg_relation_size(reltoastrelid) AS toasted FROM pg_class WHERE oid = 'leaselock.tickets'::regclass;
SELECT note = :'mixed' AS whole FROM leaselock.lease_peek(left(:'mixed', 255), right(:'mixed', 255));
SELECT leaselock.lease_release_all(right(left(:'mixed', 600), 255));
