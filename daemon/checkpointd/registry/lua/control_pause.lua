-- control_pause: hold a pass until it is resumed.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string pass     ARGV[2]  string reason     ARGV[3]  string actor
--
-- Returns  {'paused', epoch} or {'known', epoch}: it was paused; the first reason stays
--
-- One script, so that a pause and a resume have an order: the epoch's.
if get('paused:' .. ARGV[1]) ~= '' then return {'known', get('epoch')} end
redis.call('HSET', META, 'paused:' .. ARGV[1], ARGV[2], 'paused_at:' .. ARGV[1],
  integer(now_us()), 'paused_by:' .. ARGV[1], ARGV[3])
if ARGV[1] == 'drain' then put('canary', '') end
audit('pass_paused', ARGV[3], ARGV[1] .. ': ' .. ARGV[2])
return {'paused', next_epoch()}
