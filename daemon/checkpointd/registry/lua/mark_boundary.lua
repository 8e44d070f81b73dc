-- mark_boundary: record a point to replay from, or return the one that is there.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string boundary id      ARGV[2]  int sequence
-- ARGV[3]  string line, l or k     ARGV[4]  string digest
-- ARGV[5]  string a checkpoint of the thread whose boundary this is, or empty
--
-- Returns  the stored boundary, without its id
--
-- One script, since the newest boundary of a line is kept beside it.
local field = 'b' .. ARGV[1]
local raw = redis.call('HGET', KEYS[8], field)
if not raw then
  raw = table.concat({'1', ARGV[2], ARGV[3], integer(now_us()), ARGV[4]}, SEP)
  redis.call('HSET', KEYS[8], field, raw)
end
local newest = redis.call('HGET', KEYS[8], '>' .. ARGV[3])
local known = newest and redis.call('HGET', KEYS[8], 'b' .. newest)
if not known or tonumber(string.match(known, '^1\31(%-?%d+)')) <= tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[8], '>' .. ARGV[3], ARGV[1])
end
if ARGV[5] ~= '' then
  local rec = load_record(KEYS[8], ARGV[5])
  if rec and rec[BOUNDARY] == '' then
    rec[BOUNDARY] = ARGV[1]
    store(KEYS[8], ARGV[5], rec)
  end
end
return raw
