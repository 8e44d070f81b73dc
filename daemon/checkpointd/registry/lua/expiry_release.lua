-- expiry_release: the mass of overdue refs has gone by itself, so nothing needs to be held.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string the hold to end
--
-- Returns  'released', or 'other' (not held, or for another reason)
if get('held') ~= ARGV[1] then return 'other' end
redis.call('HSET', META, 'held', '', 'held_until', '')
audit('expiry_released', 'reconcile', ARGV[1])
return 'released'
