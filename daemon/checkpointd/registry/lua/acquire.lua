-- acquire: take the lease of one ref, for a migrator that is not the drain.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread          KEYS[9]  string the ref's lease
-- ARGV[1]  string thread id           ARGV[2]  string checkpoint id
-- ARGV[3]  string token, 128 random bits     ARGV[4]  int  TTL, milliseconds
-- ARGV[5]  string actor
--
-- Returns  {'held', fence, record}     ours, also when this token held it already
--          {'busy', milliseconds left} another's
--          {'migrated', record}        it has its link; nothing was taken
--          {'refused', record}         not to be replayed: expired, waived, open, or no legacy ref
--          {'unknown', ''} / {'corrupt', ''}
--
-- No freeze is asked for: the lock is the registry's promise to every migrator. One script,
-- since the link and the lease must be judged in one instant.
local rec, raw = load_record(KEYS[8], ARGV[2])
if not rec then return {raw or 'unknown', ''} end
if rec[STATE] == 'm' then return {'migrated', raw} end
local value = redis.call('GET', KEYS[9])
if value and token_of(value) ~= ARGV[3] then return {'busy', redis.call('PTTL', KEYS[9])} end
if not DRAINABLE[rec[STATE]] then return {'refused', raw} end
if value then
  redis.call('PEXPIRE', KEYS[9], ARGV[4])
else
  value = integer(redis.call('HINCRBY', COUNTERS, 'fence', 1)) .. ':' .. ARGV[3]
  redis.call('SET', KEYS[9], value, 'PX', ARGV[4])
  rec[LEASE], rec[ATTEMPTS] = value, integer((tonumber(rec[ATTEMPTS]) or 0) + 1)
  -- A hold would keep it out of the due index, where nobody finds it if this holder dies.
  rec[HOLD] = ''
  shift(KEYS[8], ARGV[1], ARGV[2], rec, 'x', now_us() + tonumber(ARGV[4]) * 1000, ARGV[5],
    'ref_claimed', rec[CODE])
  settle()
end
return {'held', string.match(value, '^%d+'), pack_record(rec)}
