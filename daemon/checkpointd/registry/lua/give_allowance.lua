-- give_allowance: give back what was taken and not used.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string field     ARGV[2]  int  how many     ARGV[3]  string epoch it was taken in
--
-- Returns  how many are left; nothing is given back into another epoch
if ARGV[3] ~= '' and get('canary') ~= ARGV[3] then return get(ARGV[1]) end
return integer(redis.call('HINCRBY', META, ARGV[1], ARGV[2]))
