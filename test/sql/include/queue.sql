\set ECHO none
-- What the tests of queues share.
LOAD 'leaselock';
\set look 'state, depth, position, holder'
-- what there is of a ticket
\set has 'ticket IS NOT NULL AS ticket, fence IS NOT NULL AS fence, expires_at IS NOT NULL AS expires, wait_until IS NOT NULL AS wait_until'
\set tickets 'owner, state, position, depth'
\set status 'owner, depth, lapsed, waiters'
-- a request id
\set id '''00000000-0000-0000-0000-0000000000c1'''

-- The owners in the order in which a lock is given to them, if each releases
-- it as soon as it has it.
CREATE PROCEDURE pg_temp.drain(lock text, INOUT owners text DEFAULT '') LANGUAGE plpgsql AS $$
DECLARE
	t uuid;
	o text;
BEGIN
	LOOP
		SELECT ticket, owner INTO t, o FROM leaselock.lease_tickets WHERE name = lock AND state = 'held';
		EXIT WHEN t IS NULL;
		owners := concat_ws(' ', nullif(owners, ''), o);
		PERFORM leaselock.lease_release(t);
		COMMIT;
	END LOOP;
END $$;
\set ECHO all
