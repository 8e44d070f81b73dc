-- drain_mark: record that the drain has ended, or that it began again.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string 'drained' or 'reopened'
-- ARGV[2]  int    legacy transitions, store-wide, on which this was judged
-- ARGV[3]  int    legacy births, likewise: more of them later, and late state came
--
-- Returns  'marked' or 'other' (marked before, or judged on an older view)
--
-- One script with a number that only rises, since replicas judge at different moments.
local mark = tonumber(get('mark')) or -1
if ARGV[1] == 'drained' then
  if get('drained_at') ~= '' or get('frozen') == '' or tonumber(ARGV[2]) < mark then return 'other' end
  redis.call('HSET', META, 'drained_at', integer(now_us()), 'mark', ARGV[2], 'drained_births', ARGV[3])
  audit('drain_finished', 'census', '')
  return 'marked'
end
if get('drained_at') == '' or tonumber(ARGV[2]) <= mark then return 'other' end
redis.call('HSET', META, 'drained_at', '', 'reopened_at', integer(now_us()), 'mark', ARGV[2])
redis.call('HINCRBY', META, 'reopened', 1)
audit('drain_reopened', 'census', '')
return 'marked'
