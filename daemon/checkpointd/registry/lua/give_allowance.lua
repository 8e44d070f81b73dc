-- give_allowance: give back what was taken and not used.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string field     ARGV[2]  int  how many     ARGV[3]  string epoch it was taken in
-- ARGV[4]  string token, drawn for this gift
--
-- Returns  how many are left; nothing is given back into another epoch, nor twice
--
-- Sent again, it finds its token among the last ones given: what is added twice would allow more
-- than the operator did.
if ARGV[3] ~= '' and get('canary') ~= ARGV[3] then return get(ARGV[1]) end
local given = get('given')
if string.find(given, ARGV[4], 1, true) then return get(ARGV[1]) end
put('given', string.sub(ARGV[4] .. ' ' .. given, 1, 32 * (#ARGV[4] + 1)))
return integer(redis.call('HINCRBY', META, ARGV[1], ARGV[2]))
