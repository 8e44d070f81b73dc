-- register: record a checkpoint, or return the record that is there.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id          ARGV[2]  string checkpoint id
-- ARGV[3]  string line, l or k       ARGV[4]  int    created_at, microseconds
-- ARGV[5]  string state to begin in: o, p, f or e
-- ARGV[6]  string 'issue' (refused while the line is frozen), 'replay' (while any line is
--                 frozen the legacy ref ARGV[7] must be known) or 'catch_up' (never refused)
-- ARGV[7]  string the legacy checkpoint that was replayed, for 'replay', else empty
-- ARGV[8]  string expiry reason, for state e     ARGV[9]  string actor
-- ARGV[10] int    when it expired, for state e, microseconds; empty for now
-- ARGV[11] string '1' if it was finalized before it expired, else empty
--
-- Returns  {'stored', record}        this call recorded it
--          {'known', record}         it was there; nothing was written
--          {'line_changed', record}  it is there as the other line; nothing was written
--          {'frozen', reason}        refused, counted
--          {'corrupt', ''}           a record is there that this build cannot read
--
-- One script, since between a look at the freeze and the write the freeze may come.
local thread_key, thread, checkpoint = KEYS[8], ARGV[1], ARGV[2]
local line, created, state, manner = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local raw = redis.call('HGET', thread_key, 'c' .. checkpoint)
if raw then
  if not readable(raw) then return {'corrupt', ''} end
  if unpack_record(raw)[LINE] ~= line then return {'line_changed', raw} end
  return {'known', raw}
end
local refused = manner == 'issue' and is_frozen(line)
if manner == 'replay' and (redis.call('HGET', CONTROL, 'frozen') or '') ~= '' then
  refused = redis.call('HEXISTS', thread_key, 'c' .. ARGV[7]) == 0
end
if refused then
  count('refused:' .. (line == 'l' and 'legacy' or 'kernel'), 1)
  settle()
  return {'frozen', redis.call('HGET', CONTROL, 'reason') or ''}
end
local rec = fresh_record(line, created)
rec[REPLAY_OF] = ARGV[7]
if state == 'o' then rec[OPENED] = created end
if state == 'e' then
  rec[REASON], rec[EXPIRY_KIND] = ARGV[8], 'o'
  if ARGV[11] == '' then rec[OPENED] = created end
  count('expired:operator', 1)
end
if line == 'l' and state ~= 'e' then count_birth(created) end
shift(thread_key, thread, checkpoint, rec, state, now_us(), ARGV[9], 'ref_registered', '')
if state == 'e' and ARGV[10] ~= '' then
  rec[CHANGED] = ARGV[10]
  store(thread_key, checkpoint, rec)
end
settle()
return {'stored', redis.call('HGET', thread_key, 'c' .. checkpoint)}
