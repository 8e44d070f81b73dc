-- recount_note: keep what a recount of this partition's legacy refs found.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- ARGV[1]  int  legacy transitions at which it was begun
-- ARGV[2..9] int  refs found: open, pending, replaying, retryable, quarantined, waived, migrated,
--                 expired
--
-- Returns  'agrees', 'differs' (counters are set to what was found; audited), or
--          'moved': the partition changed meanwhile; nothing was written
--
-- Valid only while the count of transitions stands still, which is checked here and by readers.
local words = {'open', 'pending', 'replaying', 'retryable', 'quarantined', 'waived', 'migrated',
  'expired'}
if (redis.call('HGET', COUNTERS, 'transitions') or '0') ~= ARGV[1] then return 'moved' end
local answer = 'agrees'
for i, word in ipairs(words) do
  if tonumber(redis.call('HGET', COUNTERS, 'legacy:' .. word) or '0') ~= tonumber(ARGV[i + 1]) then
    redis.call('HSET', COUNTERS, 'legacy:' .. word, ARGV[i + 1])
    answer = 'differs'
  end
end
if answer == 'differs' then audit('counters_mended', SEP, '', '', 'recount', '') end
redis.call('HSET', COUNTERS, 'recounted', ARGV[1])
settle()
return answer
