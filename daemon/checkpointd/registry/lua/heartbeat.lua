-- heartbeat: say that somebody watches; notice when nobody did.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  int gap from which expiry is held, microseconds
-- ARGV[2]  int how long it is held then: one grace, microseconds
--
-- Returns  {now, held, until}: held is 'mass', 'store_gap' or empty
--
-- After a gap (a restored backup, or nobody was watching) everything looks dead, so nothing is
-- expired for one grace. One script, so that the look comes before the beat that hides the gap.
local now, last = now_us(), tonumber(get('heartbeat'))
if last and now - last > tonumber(ARGV[1]) and get('held') == '' then
  redis.call('HSET', META, 'held', 'store_gap', 'held_until', integer(now + tonumber(ARGV[2])))
  audit('expiry_held', 'heartbeat', 'store_gap')
elseif get('held') == 'store_gap' and now >= (tonumber(get('held_until')) or 0) then
  redis.call('HSET', META, 'held', '', 'held_until', '')
end
put('heartbeat', integer(now))
return {integer(now), get('held'), get('held_until')}
