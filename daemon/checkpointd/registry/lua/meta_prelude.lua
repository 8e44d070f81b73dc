-- meta_prelude: what the scripts of the store-wide record share; the loader puts it before them.
--
-- KEYS[1]  hash   meta: what is true of the whole store
-- KEYS[2]  stream audit of the store as a whole, bounded
-- ARGV            the script's own
--
-- Returns  nothing: it only defines.
local META, AUDIT = KEYS[1], KEYS[2]
local function integer(n) return string.format('%.0f', n) end
local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
local function get(field) return redis.call('HGET', META, field) or '' end
local function put(field, value) redis.call('HSET', META, field, value) end
local function audit(event, actor, reason)
  redis.call('XADD', AUDIT, 'MAXLEN', '~', 5000, '*', 'event', event, 'thread', '', 'checkpoint', '',
    'from', '', 'to', '', 'by', actor, 'reason', reason)
  redis.call('HINCRBY', META, 'audited', 1)
end
local function next_epoch() return integer(redis.call('HINCRBY', META, 'epoch', 1)) end
