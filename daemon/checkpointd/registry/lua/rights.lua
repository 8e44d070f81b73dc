-- rights: find out which commands of the scripts this user may not run. Leaves nothing behind.
--
-- KEYS[1], KEYS[2]  the store-wide record and its audit, as in the prelude; not touched
-- KEYS[3]  any    a key of nobody's
-- ARGV     none
--
-- Returns  the names of the commands that are denied or not known; none if all is well
--
-- Asked before any work is begun: a script that is denied a command half-way has written by
-- then what came before it.
local key, denied = KEYS[3], {}
local function try(...)
  local reply = redis.pcall(...)
  local told = type(reply) == 'table' and reply.err
  if told and (string.find(told, 'NOPERM', 1, true) or string.find(told, 'ACL failure', 1, true)
      or string.find(told, "can't run this command", 1, true)
      or string.find(told, 'nknown Redis command', 1, true)) then
    denied[#denied + 1] = (...)
  end
end
try('TIME')
try('SET', key, '1', 'PX', '1000')
try('GET', key)
try('PTTL', key)
try('PEXPIRE', key, '1000')
try('DEL', key)
try('HSET', key, 'f', '1')
try('HSETNX', key, 'f', '1')
try('HGET', key, 'f')
try('HMGET', key, 'f')
try('HGETALL', key)
try('HEXISTS', key, 'f')
try('HINCRBY', key, 'f', '1')
redis.pcall('DEL', key)
try('ZADD', key, '1', 'm')
try('ZRANGEBYSCORE', key, '0', '1')
try('ZREM', key, 'm')
redis.pcall('DEL', key)
try('XADD', key, '*', 'f', 'v')
redis.pcall('DEL', key)
return denied
