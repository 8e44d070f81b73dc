-- extend: start a crash window anew.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id     ARGV[2]  string checkpoint id
--
-- Returns  {'extended', record}  the window begins now, by the store's clock
--          {'known', record}     it is closed; nothing was written
--          {'expired', record}   too late; nothing was written
--          {'unknown', ''} / {'corrupt', ''}
--
-- One script, since a reconciler may expire between a look and the write.
local rec, raw = load_record(KEYS[8], ARGV[2])
if not rec then return {raw or 'unknown', ''} end
if rec[STATE] == 'e' then return {'expired', raw} end
if rec[STATE] ~= 'o' then return {'known', raw} end
-- A ref from the future is not made older by being extended.
rec[OPENED] = integer(math.max(now_us(), tonumber(rec[CREATED])))
redis.call('ZADD', OPEN_IX, rec[OPENED], ARGV[1] .. SEP .. ARGV[2])
store(KEYS[8], ARGV[2], rec)
return {'extended', pack_record(rec)}
