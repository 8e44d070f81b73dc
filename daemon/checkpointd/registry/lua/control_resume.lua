-- control_resume: let a pass go on; for the drain it also clears the breaker.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string pass     ARGV[2]  int  refs of a canary; 0 for no limit
-- ARGV[3]  string actor
-- ARGV[4]  int    replays that failed for reasons of their own so far, store-wide
-- ARGV[5]  int    replays that ended so far, store-wide: the breaker counts anew from here
--
-- Returns  {'resumed', epoch} or {'known', epoch}: nothing held it
--
-- A canary is bound to this epoch: a claim must show it, and takes its refs from the number here.
local held = get('paused:' .. ARGV[1]) ~= ''
  or (ARGV[1] == 'drain' and (get('halted') ~= '' or get('canary') ~= ''))
if not held and ARGV[2] == '0' then return {'known', get('epoch')} end
put('paused:' .. ARGV[1], '')
local epoch = next_epoch()
if ARGV[1] == 'drain' then
  redis.call('HSET', META, 'resumed_at', integer(now_us()), 'halted', '', 'breaker_failed', ARGV[4], 'breaker_ended', ARGV[5],
    'canary', ARGV[2] == '0' and '' or epoch, 'canary_left', ARGV[2])
end
audit('pass_resumed', ARGV[3], ARGV[1] .. (ARGV[2] == '0' and '' or ': ' .. ARGV[2] .. ' refs'))
return {'resumed', epoch}
