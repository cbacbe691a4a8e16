-- The functions of empty.c.  The psql variable "empty" is the path of the compiled
-- empty.c.  Runs after pairs.sql.
CREATE FUNCTION empty_lock(name text, owner text, ttl interval) RETURNS bigint
	AS :'empty', 'empty_lock' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION empty_assert(name text, fence bigint, scope text DEFAULT 'public', allow_lapsed boolean DEFAULT false)
	RETURNS void AS :'empty', 'empty_assert' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION empty_trigger() RETURNS trigger AS :'empty', 'empty_trigger' LANGUAGE C;
