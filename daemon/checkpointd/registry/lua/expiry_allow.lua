-- expiry_allow: an operator lets so many expiries happen, whatever holds them.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  int count     ARGV[2]  string reason     ARGV[3]  string actor
-- ARGV[4]  string token, drawn for this decision
--
-- Returns  how many are allowed now
--
-- Sent again, it finds its token among the last ones given: some may have been taken since, and
-- they must not be allowed twice.
local given = get('given')
if string.find(given, ARGV[4], 1, true) then return get('allowed') end
put('given', string.sub(ARGV[4] .. ' ' .. given, 1, 32 * (#ARGV[4] + 1)))
redis.call('HSET', META, 'allowed', ARGV[1], 'held', '', 'held_until', '')
audit('expiry_allowed', ARGV[3], ARGV[1] .. ': ' .. ARGV[2])
return ARGV[1]
