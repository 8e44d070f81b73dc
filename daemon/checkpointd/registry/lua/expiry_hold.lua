-- expiry_hold: too much is overdue at once: hold expiry until an operator allows it.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  int  how many are overdue
--
-- Returns  'held', or 'allowed' while an operator's allowance is not used up
if (tonumber(get('allowed')) or 0) > 0 then return 'allowed' end
if get('held') ~= 'mass' then
  redis.call('HSET', META, 'held', 'mass', 'held_until', '', 'held_overdue', ARGV[1])
  audit('expiry_held', 'reconcile', 'mass: ' .. ARGV[1] .. ' overdue at once')
end
return 'held'
