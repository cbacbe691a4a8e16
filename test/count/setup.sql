-- What test/count/run needs in addition to test/bench/pairs.sql and empty.sql.  The
-- psql variable "counter" is the path of the compiled counter.c.
CREATE FUNCTION start_counting() RETURNS boolean AS :'counter', 'start_counting' LANGUAGE C;
CREATE FUNCTION stop_counting(of_case text) RETURNS boolean AS :'counter', 'stop_counting' LANGUAGE C STRICT;

-- With other triggers than the table "guarded" of pairs.sql.
CREATE TABLE empty_guarded (LIKE unguarded INCLUDING ALL) WITH (fillfactor = 50);
INSERT INTO empty_guarded SELECT * FROM unguarded;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON empty_guarded FOR EACH ROW EXECUTE FUNCTION empty_trigger();
CREATE TABLE column_guarded (LIKE unguarded INCLUDING ALL) WITH (fillfactor = 50);
INSERT INTO column_guarded SELECT * FROM unguarded;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON column_guarded FOR EACH ROW
	EXECUTE FUNCTION leaselock.fence_guard('column', 'fence', 'hold.0');
VACUUM ANALYZE;
CHECKPOINT;
