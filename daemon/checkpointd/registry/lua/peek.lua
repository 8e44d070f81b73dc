-- peek: which refs of a partition may be claimed now. They become the KEYS of the claim.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- ARGV[1]  int    how many to look at, at most
--
-- Returns  {word, member, member, …}: word is 'go', or why a claim would be refused:
--          'not_frozen', 'paused', 'halted', 'canary:<epoch>'; members are due, earliest first
--
-- A script only for TIME: due is judged by the store's clock. Nothing is written.
local copy = redis.call('HMGET', CONTROL, 'in_force', 'paused', 'halted', 'canary', 'frozen')
local word = 'go'
if copy[1] ~= '1' or not string.find(copy[5] or '', 'l', 1, true) then
  word = 'not_frozen'
elseif copy[2] and copy[2] ~= '' then
  word = 'paused'
elseif copy[3] and copy[3] ~= '' then
  word = 'halted'
elseif copy[4] and copy[4] ~= '' then
  word = 'canary:' .. copy[4]
end
local due = redis.call('ZRANGEBYSCORE', DUE_IX, '-inf', integer(now_us()), 'LIMIT', 0, ARGV[1])
table.insert(due, 1, word)
return due
