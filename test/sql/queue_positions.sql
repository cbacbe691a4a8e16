-- What a waiter is told: its position and when to call again.
\getenv sql PG_ABS_SRCDIR
\set queue :sql '/sql/include/queue.sql'
\i :queue

SELECT state FROM leaselock.lease_acquire('queue.long', 'h', '300 s');
CREATE TEMP TABLE waiter (nr int, ticket uuid, position int, next_call_ms bigint);
INSERT INTO waiter SELECT i, t.ticket, t.position, t.next_call_ms
FROM generate_series(1, 120) i, leaselock.lease_acquire('queue.long', 'w' || i, '60 s', '300 s') t;
-- ok: the position stops at 100: that or more
SELECT nr, position FROM waiter WHERE nr IN (1, 2, 98, 99, 100, 101, 120) ORDER BY nr;
SELECT bool_and(position = least(nr, 100)) FROM waiter;
-- ok: exact in the view
SELECT count(*), bool_and(t.position = nr) AS exact FROM waiter JOIN leaselock.lease_tickets t USING (ticket);
-- ok: so is their number; lease_peek counts up to 100 as well
SELECT p.waiters AS peek, s.waiters AS status
FROM leaselock.lease_peek('queue.long') p, leaselock.lease_status s WHERE s.name = 'queue.long';
-- ok: the head polls fastest, nobody slower than a quarter of waiter_timeout
SELECT bool_and(next_call_ms > 0) AS positive, bool_and(next_call_ms >= before) AS growing, max(next_call_ms)
FROM (SELECT next_call_ms, lag(next_call_ms, 1, 0::bigint) OVER (ORDER BY nr) AS before FROM waiter) w;
SELECT min(next_call_ms) < max(next_call_ms) AS head_fastest FROM waiter;
SET leaselock.waiter_timeout = '400 ms';
SELECT next_call_ms BETWEEN 1 AND 100 AS quick FROM leaselock.lease_acquire('queue.long', 'z', '60 s', '300 s');
SELECT leaselock.lease_release_all('z') <= 1 AS gone;
RESET leaselock.waiter_timeout;
-- ok: when a waiter leaves, those behind move up
SELECT count(*), bool_and(state = 'cancelled') AS cancelled FROM waiter w, leaselock.lease_release(w.ticket) WHERE nr BETWEEN 1 AND 60;
SELECT nr, t.position FROM waiter, leaselock.lease_get(ticket) t WHERE nr IN (61, 120) ORDER BY nr;
SELECT leaselock.lease_release_all('h');
SELECT nr, t.state, t.position FROM waiter, leaselock.lease_get(ticket) t WHERE nr IN (60, 61, 62, 120) ORDER BY nr;
CALL pg_temp.drain('queue.long') \gset
SELECT :'owners' = (SELECT string_agg('w' || i, ' ' ORDER BY i) FROM generate_series(61, 120) i) AS in_order;

-- ok: identities are counted, not tickets: many tickets of one make no long queue
SELECT state FROM leaselock.lease_acquire('queue.distinct', 'h', '300 s');
SELECT count(*), min(position), max(position)
FROM generate_series(1, 10) i, leaselock.lease_acquire('queue.distinct', 'a', '60 s', (290 + i) * interval '1 s');
SELECT :look, ticket FROM leaselock.lease_acquire('queue.distinct', 'b', '60 s', '300 s') \gset b_
SELECT :b_position AS position;
SELECT owner, array_agg(DISTINCT position) AS positions FROM leaselock.lease_tickets WHERE name = 'queue.distinct' AND state = 'waiting' GROUP BY owner ORDER BY owner;
SELECT waiters FROM leaselock.lease_peek('queue.distinct');
SELECT leaselock.lease_release_all('a');
SELECT :look FROM leaselock.lease_get(:'b_ticket');
SELECT leaselock.lease_release_all('b'), leaselock.lease_release_all('h');

-- Nothing is left behind.
SELECT count(leaselock.lease_release_all(owner)) >= 0 AS tidied
FROM (SELECT DISTINCT owner FROM leaselock.lease_tickets WHERE name LIKE 'queue%') o;
SELECT count(*) FROM leaselock.lease_tickets WHERE name LIKE 'queue%';
SELECT name FROM leaselock.lease_status WHERE name LIKE 'queue%' AND NOT lapsed;
