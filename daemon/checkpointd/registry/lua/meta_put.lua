-- meta_put: write fields of the store-wide record, if this replica has the turn for that work.
--
-- KEYS[1..2]  as in the meta prelude     KEYS[3]  string the turn
-- ARGV[1]  string token of the turn      ARGV[2..] field, value, …
--
-- Returns  'written', or 'stale': the turn is another's; nothing was written
if redis.call('GET', KEYS[3]) ~= ARGV[1] then return 'stale' end
for i = 2, #ARGV, 2 do put(ARGV[i], ARGV[i + 1] == '@now' and integer(now_us()) or ARGV[i + 1]) end
return 'written'
