-- take_turn: be the one replica that does a piece of store-wide work, for a time.
--
-- KEYS[1..2]  as in the meta prelude     KEYS[3]  string the turn
-- ARGV[1]  string token, 128 random bits     ARGV[2]  int  TTL, milliseconds
--
-- Returns  'held' (also when this token held it: it is prolonged) or 'busy'
local value = redis.call('GET', KEYS[3])
if value and value ~= ARGV[1] then return 'busy' end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return 'held'
