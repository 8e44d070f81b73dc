-- claim: take the leases of due refs, counting the attempt and issuing the fence beforehand.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8], KEYS[9], then two for each candidate: hash the thread, string the ref's lease
-- ARGV[1]  int    lease TTL, milliseconds     ARGV[2]  int   most attempts of a ref
-- ARGV[3]  string actor                       ARGV[4]  string canary epoch, or empty
-- ARGV[5]  int    how many to take, at most
-- ARGV[6], ARGV[7], then two for each candidate: member, and the token drawn for it (128 bits)
--
-- Returns  {word}: 'not_frozen', 'paused', 'halted' or 'canary': nothing was written; else
--          {'go', now, frozen_at, answer, …}, an answer for each candidate that was looked at:
--          {i, 'held', fence, attempts, record, boundary, boundary id}  the lease is ours
--          {i, 'busy'}         another holds it; it is due again when that lease ends
--          {i, 'quarantined', record}  it had spent its attempts, so a ref that kills its
--                              process needs no survivor to say so
--          {i, 'repaired'}     it was not claimable after all; the index was mended
--          {i, 'corrupt'}      a record that this build cannot read; moved out of the way
--
-- A claim that is sent again carries the same tokens: what it holds already it is given again,
-- without another attempt. One script, since the freeze, the link and the lease must be judged
-- in the instant in which the attempt is counted.
local ttl, max_attempts, actor, canary = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local copy = redis.call('HMGET', CONTROL, 'in_force', 'paused', 'halted', 'canary', 'frozen',
  'frozen_at')
if copy[1] ~= '1' or not string.find(copy[5] or '', 'l', 1, true) then return {'not_frozen'} end
if copy[2] and copy[2] ~= '' then return {'paused'} end
if copy[3] and copy[3] ~= '' then return {'halted'} end
if (copy[4] or '') ~= canary then return {'canary'} end
local ttl_us = tonumber(ttl) * 1000
local taken, most = 0, tonumber(ARGV[5])
local replies = {'go', integer(now_us()), copy[6] or '0'}
for n = 0, (#ARGV - 5) / 2 - 1 do
  if taken >= most then break end
  local thread_key, lease_key = KEYS[8 + 2 * n], KEYS[9 + 2 * n]
  local member, token = ARGV[6 + 2 * n], ARGV[7 + 2 * n]
  local at = string.find(member, SEP, 1, true)
  local thread, checkpoint = string.sub(member, 1, at - 1), string.sub(member, at + 1)
  local rec, problem = load_record(thread_key, checkpoint)
  local value = rec and redis.call('GET', lease_key)
  local answer
  if not rec and problem == 'corrupt' then
    redis.call('ZADD', DUE_IX, integer(now_us() + 300000000), member)
    answer = {n, 'corrupt'}
  elseif not rec or not DRAINABLE[rec[STATE]] or rec[HOLD] ~= '' then
    redis.call('ZREM', DUE_IX, member)
    answer = {n, 'repaired'}
  elseif value and token_of(value) ~= token then
    redis.call('ZADD', DUE_IX, integer(now_us() + redis.call('PTTL', lease_key) * 1000), member)
    answer = {n, 'busy'}
  elseif not value and (tonumber(rec[ATTEMPTS]) or 0) >= max_attempts then
    rec[CODE], rec[LEASE] = 'attempts_exhausted', ''
    shift(thread_key, thread, checkpoint, rec, 'q', 0, actor, 'ref_quarantined', '')
    answer = {n, 'quarantined', pack_record(rec)}
  else
    if value then
      redis.call('PEXPIRE', lease_key, ttl)
    else
      rec[ATTEMPTS] = integer((tonumber(rec[ATTEMPTS]) or 0) + 1)
      value = integer(redis.call('HINCRBY', COUNTERS, 'fence', 1)) .. ':' .. token
      rec[LEASE] = value
      redis.call('SET', lease_key, value, 'PX', ttl)
      shift(thread_key, thread, checkpoint, rec, 'x', now_us() + ttl_us, actor, 'ref_claimed',
        rec[CODE])
    end
    local boundary_id = rec[BOUNDARY]
    if boundary_id == '' then boundary_id = redis.call('HGET', thread_key, '>l') or '' end
    local boundary = boundary_id ~= '' and redis.call('HGET', thread_key, 'b' .. boundary_id)
    answer = {n, 'held', string.match(value, '^%d+'), rec[ATTEMPTS], pack_record(rec),
      boundary or '', boundary_id}
    taken = taken + 1
  end
  replies[#replies + 1] = answer
end
settle()
return replies
