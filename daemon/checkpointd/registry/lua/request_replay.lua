-- request_replay: move a thread's claimable legacy refs to the front of the drain.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id
--
-- Returns  how many refs are at the front now; a ref under a hold, or being replayed, is not moved
--
-- One script, since a claim may take one between a look and the write.
local fields, moved = redis.call('HGETALL', KEYS[8]), 0
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == 'c' and readable(fields[i + 1]) then
    local rec = unpack_record(fields[i + 1])
    if (rec[STATE] == 'p' or rec[STATE] == 'r') and rec[HOLD] == '' and rec[LINE] == 'l' then
      redis.call('ZADD', DUE_IX, 0, ARGV[1] .. SEP .. string.sub(fields[i], 2))
      moved = moved + 1
    end
  end
end
return moved
