-- give_turn: let another replica have the turn.
--
-- KEYS[1..2]  as in the meta prelude     KEYS[3]  string the turn
-- ARGV[1]  string token
--
-- Returns  'given' or 'other' (it was not ours)
if redis.call('GET', KEYS[3]) ~= ARGV[1] then return 'other' end
redis.call('DEL', KEYS[3])
return 'given'
