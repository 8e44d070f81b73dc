-- control_enforce: the freeze is in force everywhere: note here what was unfinished at that moment.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- ARGV[1]  int  epoch that is in force
--
-- Returns  'enforced', 'known' (noted before) or 'other' (the copy is of another epoch)
--
-- The baseline is taken in the script that begins to count discoveries, so none is in both.
local copy = redis.call('HMGET', CONTROL, 'epoch', 'in_force', 'frozen')
if copy[1] ~= ARGV[1] or (copy[3] or '') == '' then return 'other' end
if copy[2] == '1' then return 'known' end
local unfinished = 0
for state in pairs(UNFINISHED) do
  unfinished = unfinished + (tonumber(redis.call('HGET', COUNTERS, 'legacy:' .. WORD[state])) or 0)
end
local seen = redis.call('HMGET', COUNTERS, 'discovered:catch_up', 'discovered:written_after_freeze')
redis.call('HSET', CONTROL, 'in_force', '1', 'baseline', integer(unfinished), 'seen_catch_up',
  seen[1] or '0', 'seen_written_after_freeze', seen[2] or '0')
return 'enforced'
