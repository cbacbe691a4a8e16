-- What every argument must be; a refused call changes nothing.
-- Text: 1 to 255 bytes, no control characters (ASCII 0-31, 127), no leading
-- or trailing ASCII white space; compared byte for byte, stored whole.
-- Intervals are exact lengths: a day is 24 hours; months, years and
-- infinities are refused.  A NULL without a NULL default is an error.
\set SHOW_CONTEXT never
SHOW server_encoding;

-- How a statement was refused: SQLSTATE, message, detail, hint.
CREATE FUNCTION pg_temp.refusal(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text;
	message text;
	detail text;
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', state, message,
		'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, ''));
END $$;

-- Every call that takes a text, with a place for the value.
CREATE TEMP TABLE text_arguments (function text, argument text, call text);
INSERT INTO text_arguments VALUES
	('lease_acquire', 'name', 'lease_acquire(%L, ''w'')'),
	('lease_acquire', 'owner', 'lease_acquire(''arguments'', %L)'),
	('lease_acquire', 'scope', 'lease_acquire(''arguments'', ''w'', scope => %L)'),
	('lease_release_all', 'owner', 'lease_release_all(%L)'),
	('lease_release_all', 'scope', 'lease_release_all(''w'', %L)'),
	('try_lock', 'name', 'try_lock(%L, ''w'', ''60 s'')'),
	('try_lock', 'owner', 'try_lock(''arguments'', %L, ''60 s'')'),
	('try_lock', 'scope', 'try_lock(''arguments'', ''w'', ''60 s'', %L)'),
	('renew_lock', 'name', 'renew_lock(%L, ''w'', ''60 s'')'),
	('renew_lock', 'owner', 'renew_lock(''arguments'', %L, ''60 s'')'),
	('renew_lock', 'scope', 'renew_lock(''arguments'', ''w'', ''60 s'', %L)'),
	('release_lock', 'name', 'release_lock(%L, ''w'')'),
	('release_lock', 'owner', 'release_lock(''arguments'', %L)'),
	('release_lock', 'scope', 'release_lock(''arguments'', ''w'', %L)'),
	('fence_check', 'name', 'fence_check(%L, 1)'),
	('fence_check', 'scope', 'fence_check(''arguments'', 1, %L)'),
	('fence_assert', 'name', 'fence_assert(%L, 1)'),
	('fence_assert', 'scope', 'fence_assert(''arguments'', 1, %L)'),
	('lease_peek', 'name', 'lease_peek(%L)'),
	('lease_peek', 'scope', 'lease_peek(''arguments'', %L)');

-- What must be the same afterwards.
SELECT ticket, fence FROM leaselock.lease_acquire('arguments', 'first', '300 s',
	request_id => '00000000-0000-0000-0000-00000000a001') \gset
SELECT leaselock.try_lock('arguments', 'first', '1 day') = :fence AS same_grant;
CREATE FUNCTION pg_temp.everything() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT (to_jsonb(s) - 'remaining_ms')::text FROM leaselock.lease_status s
	UNION ALL
	SELECT (to_jsonb(t) - 'remaining_ms')::text FROM leaselock.lease_tickets t
$$;
CREATE TEMP TABLE before AS SELECT pg_temp.everything() AS row;

--
-- Text
--

-- fail: one of each kind in full
SELECT leaselock.lease_acquire('', 'w');
\echo :SQLSTATE
SELECT leaselock.lease_acquire(repeat('a', 256), 'w');
\echo :SQLSTATE
SELECT leaselock.lease_acquire(E'a\tb', 'w');
\echo :SQLSTATE
SELECT leaselock.lease_acquire(' a', 'w');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('a ', 'w');
\echo :SQLSTATE
SELECT leaselock.lease_acquire(NULL, 'w');
\echo :SQLSTATE

-- fail: every text argument of every function obeys the rules, and the message
-- names the argument
CREATE TEMP TABLE bad_texts (what text, value text);
INSERT INTO bad_texts VALUES
	('empty', ''),
	('one blank', ' '),
	('leading blank', ' a'),
	('trailing blank', 'a '),
	('leading tab', E'\ta'),
	('trailing newline', E'a\n'),
	('byte 1', E'a\x01b'),
	('byte 31', E'a\x1fb'),
	('byte 127', E'a\x7fb'),
	('256 bytes', repeat('a', 256)),
	('256 bytes in 128 characters', repeat('é', 128)),
	('256 bytes in 64 characters', repeat('😀', 64)),
	('one megabyte', repeat('a', 1024 * 1024));
SELECT function, argument, count(*) AS refused, bool_and(answer LIKE '22023%"' || argument || '"%') AS named
FROM text_arguments, bad_texts, pg_temp.refusal('SELECT leaselock.' || format(call, value)) AS answer
WHERE answer LIKE '22023%'
GROUP BY function, argument ORDER BY function, argument;
-- fail: the same values, once in full
SELECT what, pg_temp.refusal(format('SELECT leaselock.lease_acquire(%L, ''w'')', value)) AS answer
FROM bad_texts;
-- fail: NULL, where NULL is not the default
SELECT function, argument, pg_temp.refusal('SELECT leaselock.' || format(call, NULL)) AS answer
FROM text_arguments ORDER BY function, argument;

-- fail: owner has no default
\set VERBOSITY terse
SELECT leaselock.lease_acquire('arguments');
\echo :SQLSTATE
SELECT leaselock.try_lock('arguments', ttl => '60 s');
\echo :SQLSTATE
\set VERBOSITY default

-- fail: a long value read from a table is refused like any other
CREATE TEMP TABLE stored (what text, value text);
ALTER TABLE stored ALTER value SET STORAGE EXTERNAL;
INSERT INTO stored VALUES ('toasted', repeat('a', 1024 * 1024));
ALTER TABLE stored ALTER value SET STORAGE EXTENDED;
INSERT INTO stored VALUES ('compressed', repeat('b', 1024 * 1024)), ('packed', 'packed'),
	('packed, 255 bytes', repeat('c', 255)), ('packed, 256 bytes', repeat('d', 256));
SELECT what, split_part(pg_temp.refusal(format(
	'SELECT leaselock.fence_check(value, 1) FROM stored WHERE what = %L', what)), E'\n', 1) AS answer
FROM stored;
SELECT what, t.name = value AS whole, state
FROM stored, leaselock.lease_acquire(value, 'w') t WHERE what LIKE 'packed%' AND length(value) < 256; -- ok
SELECT leaselock.lease_release_all('w');

-- ok: allowed values come back whole
CREATE TEMP TABLE good_texts (what text, value text);
INSERT INTO good_texts VALUES
	('one byte', 'x'),
	('255 bytes', repeat('a', 255)),
	('255 bytes in 128 characters', repeat('é', 127) || 'a'),
	('255 bytes in 85 characters', repeat('€', 85)),
	('255 bytes in 66 characters', repeat('😀', 63) || 'abc'),
	('blank inside', 'a b'),
	('path', 'teams/platform/website'),
	('quotes', $q$a'b"c\d%s%1$s_;--$q$),
	('no-break space outside', E'\u00a0a\u00a0'),
	('ideographic space outside', E'\u3000a\u3000'),
	('control character that is not ASCII', E'a\u0085b'),
	('byte 126', 'a~b');
SELECT what, state, n.name = value AS whole, octet_length(n.name)
FROM good_texts, leaselock.lease_acquire(value, 'w') n;
SELECT what, state, o.owner = value AS whole, octet_length(o.owner)
FROM good_texts, leaselock.lease_acquire('arguments.owner', value) o;
SELECT what, state, s.scope = value AS whole, octet_length(s.scope)
FROM good_texts, leaselock.lease_acquire('arguments.scope', 'w', scope => value) s;
SELECT what, n.name = value AS name, s.scope = value AS scope
FROM good_texts, leaselock.lease_peek(value) n, leaselock.lease_peek('arguments.scope', value) s;
SELECT count(*) FROM leaselock.lease_status WHERE owner = 'w';
SELECT leaselock.lease_release_all('w');
SELECT sum(leaselock.lease_release_all(value)) FROM good_texts;

-- ok: compared byte for byte, so these are different locks
CREATE TEMP TABLE pairs (what text, a text, b text);
INSERT INTO pairs VALUES
	('NFC and NFD', U&'caf\00e9', U&'cafe\0301'),
	('case', 'a', 'A'),
	('last of 255 bytes', repeat('a', 254) || 'x', repeat('a', 254) || 'y'),
	('sharp s', 'straße', 'strasse'),
	('full width', 'ａ', 'a.'),
	('zero width', 'ab', U&'a\200bb');
SELECT what, x.state AS a, y.state AS b
FROM pairs, leaselock.lease_acquire(a, 'one') x, leaselock.lease_acquire(b, 'two') y;
SELECT leaselock.lease_release_all('one'), leaselock.lease_release_all('two');
-- ok: different owners ...
SELECT what, x.state AS a, y.state AS b
FROM pairs, leaselock.lease_acquire('arguments.' || what, a) x,
	leaselock.lease_acquire('arguments.' || what, b) y;
SELECT sum(leaselock.lease_release_all(a)) AS a, sum(leaselock.lease_release_all(b)) AS b FROM pairs;
-- ok: ... and different scopes
SELECT what, x.state AS a, y.state AS b
FROM pairs, leaselock.lease_acquire('arguments', 'one', scope => a) x,
	leaselock.lease_acquire('arguments', 'two', scope => b) y;
SELECT leaselock.lease_release_all('one'), leaselock.lease_release_all('two');
-- ok: scope and name are kept apart
SELECT x.state, y.state, z.state
FROM leaselock.lease_acquire('bc', 'one', scope => 'a') x,
	leaselock.lease_acquire('c', 'two', scope => 'ab') y,
	leaselock.lease_acquire('a', 'three', scope => 'bc') z;
SELECT sum(leaselock.lease_release_all(owner)) FROM unnest(ARRAY['one', 'two', 'three']) owner;

--
-- Intervals
--

-- fail: one of each kind in full
SELECT leaselock.lease_acquire('arguments', 'w', '4.999999 s');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'w', '300.000001 s');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'w', '1 month');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'w', wait => '-1 microsecond');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'w', wait => '300.000001 s');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'w', wait => '1 month');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'w', NULL);
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'w', wait => NULL);
\echo :SQLSTATE
SELECT leaselock.lease_renew(:'ticket', '4.999999 s');
\echo :SQLSTATE
SELECT leaselock.try_lock('arguments', 'w', '0');
\echo :SQLSTATE
SELECT leaselock.try_lock('arguments', 'w', '36500 days 1 microsecond');
\echo :SQLSTATE
SELECT leaselock.try_lock('arguments', 'w', '1 year');
\echo :SQLSTATE
SELECT leaselock.try_lock('arguments', 'w', NULL);
\echo :SQLSTATE
SELECT leaselock.renew_lock('arguments', 'w', NULL);
\echo :SQLSTATE

-- At, just below and just above each bound, and lengths that are inexact or do not
-- fit.  Acquired by a stranger, renewed for a ticket that does not exist, so that
-- an accepted value changes nothing.
CREATE TEMP TABLE lengths (id int GENERATED ALWAYS AS IDENTITY, value interval);
INSERT INTO lengths (value) VALUES
	('-1 day'), ('-5 s'), ('-1 microsecond'), ('0'), ('1 microsecond'),
	('4.999999 s'), ('5 s'), ('5.000001 s'),
	('299.999999 s'), ('300 s'), ('300.000001 s'),
	('1 day'), ('1 day -23:59:00'), ('-1 day 24:01:00'), ('1 day -24:00:00'),
	('36500 days -00:00:00.000001'), ('36500 days'), ('36499 days 24:00:00'), ('36500 days 00:00:00.000001'),
	('1 month'), ('1 month -30 days'), ('-1 month 30 days 60 s'), ('1 year'), ('1 year -12 months 60 s'), ('-1 year'),
	('2147483647 days'), ('-2147483648 days'), ('178000000 years'),
	('2562047788:00:54.775807'), ('-2562047788:00:54.775807'),
	('2147483647 days 2562047788:00:54.775807'), ('-2147483648 days -2562047788:00:54.775807'),
	('106751991 days 04:00:54.775807'), ('106751991 days 04:00:54.775808'), ('213503982 days 08:01:49.551616');
SELECT value,
	split_part(pg_temp.refusal(format('SELECT leaselock.lease_acquire(''arguments'', ''w'', value) FROM lengths WHERE id = %s', id)), E'\n', 1) AS lease,
	split_part(pg_temp.refusal(format('SELECT leaselock.lease_renew(''00000000-0000-0000-0000-000000000000'', value) FROM lengths WHERE id = %s', id)), E'\n', 1) AS renew,
	split_part(pg_temp.refusal(format('SELECT leaselock.try_lock(''arguments'', ''w'', value) FROM lengths WHERE id = %s', id)), E'\n', 1) AS try_lock,
	split_part(pg_temp.refusal(format('SELECT leaselock.renew_lock(''arguments'', ''w'', value) FROM lengths WHERE id = %s', id)), E'\n', 1) AS renew_lock
FROM lengths ORDER BY id;
-- A wait is tried on a free lock, which needs no waiting.
SELECT value,
	split_part(pg_temp.refusal(format('SELECT leaselock.lease_acquire(''arguments.wait'', ''w'', wait => value) FROM lengths WHERE id = %s', id)), E'\n', 1) AS wait
FROM lengths ORDER BY id;
SELECT state, wait_until FROM leaselock.lease_acquire('arguments.wait', 'w', wait => '300 s'); -- ok: held at once
SELECT leaselock.lease_release_all('w') > 0 AS released;

-- fail: the messages for unusual values
SELECT pg_temp.refusal(format('SELECT leaselock.try_lock(''arguments'', ''w'', %L)', value)) AS answer
FROM unnest(ARRAY['-5 s', '1 month -30 days', '36500 days 00:00:00.000001',
	'2147483647 days 2562047788:00:54.775807', '-2147483648 days']) AS value;

-- fail: infinity, where the server has it (from 17 on; before that the cast fails)
SELECT argument, count(*) FILTER (WHERE left(answer, 5) = CASE
		WHEN current_setting('server_version_num')::int < 170000 THEN '22007' ELSE '22023' END) AS refused
FROM (VALUES ('lease', 'lease_acquire(''arguments'', ''w'', %L)'),
	('wait', 'lease_acquire(''arguments'', ''w'', wait => %L)'),
	('renew', 'lease_renew(''00000000-0000-0000-0000-000000000000'', %L)'),
	('try_lock', 'try_lock(''arguments'', ''w'', %L)'),
	('renew_lock', 'renew_lock(''arguments'', ''w'', %L)')) v (argument, call),
	unnest(ARRAY['infinity', '-infinity']) AS value,
	pg_temp.refusal('SELECT leaselock.' || format(call, value)) AS answer
GROUP BY argument ORDER BY argument;

-- ok: the length is exact whatever the time zone does that day
SET TimeZone = 'America/New_York';
SELECT leaselock.try_lock('arguments.zone', 'w', '36500 days') IS NOT NULL AS got;
SELECT extract(epoch FROM expires_at) - extract(epoch FROM granted_at) = 36500 * 86400.0 AS exact
FROM leaselock.lease_peek('arguments.zone');
SELECT leaselock.release_lock('arguments.zone', 'w');
RESET TimeZone;

--
-- Uuids, fences, flags
--

-- fail: NULL
SELECT leaselock.lease_get(NULL);
\echo :SQLSTATE
SELECT leaselock.lease_renew(NULL);
\echo :SQLSTATE
SELECT leaselock.lease_release(NULL);
\echo :SQLSTATE
SELECT leaselock.fence_check('arguments', NULL);
\echo :SQLSTATE
SELECT leaselock.fence_assert('arguments', NULL);
\echo :SQLSTATE
SELECT leaselock.fence_check('arguments', 1, allow_lapsed => NULL);
\echo :SQLSTATE
SELECT leaselock.fence_assert('arguments', 1, allow_lapsed => NULL);
\echo :SQLSTATE
-- fail: not a uuid
SELECT leaselock.lease_get('arguments');
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'w', request_id => 'again');
\echo :SQLSTATE
-- ok: any uuid can be looked up, any bigint can be checked
SELECT state FROM leaselock.lease_get('00000000-0000-0000-0000-000000000000');
SELECT state FROM leaselock.lease_get('ffffffff-ffff-ffff-ffff-ffffffffffff');
SELECT fence, leaselock.fence_check('arguments', fence)
FROM unnest(ARRAY[-9223372036854775808, -1, 0, 1, 9223372036854775807]) fence;

--
-- Arguments are checked first: before a retry is recognised, before anything else
--

SELECT leaselock.lease_acquire('arguments', 'first', '1 s',
	request_id => '00000000-0000-0000-0000-00000000a001'); -- fail: a retry keeps the rules
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'first', wait => '-1 s',
	request_id => '00000000-0000-0000-0000-00000000a001'); -- fail: a retry keeps the rules
\echo :SQLSTATE
SELECT leaselock.lease_acquire('arguments', 'second', '1 s',
	request_id => '00000000-0000-0000-0000-00000000a001'); -- fail: the bad lease, not the foreign request id
\echo :SQLSTATE
BEGIN READ ONLY;
SELECT leaselock.lease_acquire('arguments', 'w', '1 s'); -- fail: the bad lease, not the read-only transaction
\echo :SQLSTATE
ROLLBACK;

-- ok: nothing above has changed anything
(TABLE before EXCEPT SELECT pg_temp.everything()) UNION ALL (SELECT pg_temp.everything() EXCEPT TABLE before);
SELECT state, fence = :fence AS same_fence FROM leaselock.lease_get(:'ticket');
SELECT leaselock.lease_release_all('first'), leaselock.release_lock('arguments', 'first');
SELECT count(*) FROM leaselock.lease_status;
