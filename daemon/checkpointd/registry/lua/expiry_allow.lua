-- expiry_allow: an operator lets so many expiries happen, whatever holds them.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  int count     ARGV[2]  string reason     ARGV[3]  string actor
--
-- Returns  how many are allowed now
redis.call('HSET', META, 'allowed', ARGV[1], 'held', '', 'held_until', '')
audit('expiry_allowed', ARGV[3], ARGV[1] .. ': ' .. ARGV[2])
return ARGV[1]
