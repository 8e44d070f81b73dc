-- renew: hold a lease for another TTL.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  string the ref's lease
-- ARGV[1]  string the holder's value, fence:token     ARGV[2]  int  TTL, milliseconds
-- ARGV[3]  string member of the ref
--
-- Returns  'held'  for another TTL; the ref is due no sooner, so nobody looks at it meanwhile
--          'lost'  the value is another's, or none; nothing was written
--
-- One script: a foreign lease must not be prolonged.
if redis.call('GET', KEYS[8]) ~= ARGV[1] then return 'lost' end
redis.call('PEXPIRE', KEYS[8], ARGV[2])
redis.call('ZADD', DUE_IX, 'XX', integer(now_us() + tonumber(ARGV[2]) * 1000), ARGV[3])
return 'held'
