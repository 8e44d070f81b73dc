-- release: give leases back whose replay was not made, and their attempts with them.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8], KEYS[9], then two for each: hash the thread, string the ref's lease
-- ARGV[1]  string actor     ARGV[2]  int  due again in so many microseconds
-- ARGV[3]  string hold to put the refs under ('p', or empty)
-- ARGV[4], ARGV[5], then two for each: member; the value fence:token, or the token alone (from a
--                 claim whose reply was never seen, so that the fence is not known)
--
-- Returns  how many were released; what is not ours is left alone
--
-- One script: a foreign lease must not be deleted, nor its attempt given back.
local released = 0
for n = 0, (#ARGV - 3) / 2 - 1 do
  local thread_key, lease_key = KEYS[8 + 2 * n], KEYS[9 + 2 * n]
  local member, mine = ARGV[4 + 2 * n], ARGV[5 + 2 * n]
  local value = redis.call('GET', lease_key)
  if value and (value == mine or token_of(value) == mine) then
    local at = string.find(member, SEP, 1, true)
    local thread, checkpoint = string.sub(member, 1, at - 1), string.sub(member, at + 1)
    local rec = load_record(thread_key, checkpoint)
    redis.call('DEL', lease_key)
    if rec and rec[STATE] == 'x' and rec[LEASE] == value then
      local attempts = math.max(0, (tonumber(rec[ATTEMPTS]) or 0) - 1)
      rec[ATTEMPTS] = attempts > 0 and integer(attempts) or ''
      rec[LEASE], rec[HOLD] = '', ARGV[3]
      -- A pause that no scan has confirmed: the scan that did not see it is not the last one.
      if ARGV[3] ~= '' then count('births', 1) end
      shift(thread_key, thread, checkpoint, rec, attempts > 0 and 'r' or 'p',
        now_us() + tonumber(ARGV[2]), ARGV[1], 'ref_released', rec[CODE])
    end
    released = released + 1
  end
end
settle()
return released
