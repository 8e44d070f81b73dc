-- expire: mark a ref not resumable, by hand. Recorded, never deleted.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- KEYS[9]  string the ref's lease; deleted, so that a replay under way cannot commit
-- ARGV[1]  string thread id     ARGV[2]  string checkpoint id
-- ARGV[3]  string reason        ARGV[4]  string actor
--
-- Returns  {'expired', record}   this call expired it
--          {'repeat', record}    expired before; the first reason and time stay
--          {'migrated', record}  it has its link; nothing was written
--          {'unknown', ''} / {'corrupt', ''}
--
-- One script, since a commit may link it between a look and the write.
local rec, raw = load_record(KEYS[8], ARGV[2])
if not rec then return {raw or 'unknown', ''} end
if rec[STATE] == 'e' then return {'repeat', raw} end
if rec[STATE] == 'm' then return {'migrated', raw} end
redis.call('DEL', KEYS[9])
expire_record(KEYS[8], ARGV[1], ARGV[2], rec, 'o', ARGV[3], ARGV[4], '')
settle()
return {'expired', pack_record(rec)}
