-- control_copy: bring a partition's copy of the control word up to an epoch.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- ARGV[1]  int    epoch              ARGV[2]  string frozen lines, of l and k, or empty
-- ARGV[3]  string reason             ARGV[4]  int    frozen_at, microseconds, or empty
-- ARGV[5]  string why the drain is paused, or empty
-- ARGV[6]  string why it is halted, or empty     ARGV[7]  string canary epoch, or empty
--
-- Returns  'copied', or 'known': the copy is as new or newer; nothing was written
--
-- Only a higher epoch is taken, so what was thawed is not frozen again by a late copy. A freeze
-- that goes on stays in force here, with its baseline.
local copy = redis.call('HMGET', CONTROL, 'epoch', 'frozen_at')
if tonumber(copy[1] or '-1') >= tonumber(ARGV[1]) then return 'known' end
redis.call('HSET', CONTROL, 'epoch', ARGV[1], 'frozen', ARGV[2], 'reason', ARGV[3],
  'frozen_at', ARGV[4], 'paused', ARGV[5], 'halted', ARGV[6], 'canary', ARGV[7])
if ARGV[4] == '' or ARGV[4] ~= copy[2] then redis.call('HSET', CONTROL, 'in_force', '') end
return 'copied'
