-- take_allowance: take from a number that only an operator raises.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string field: 'allowed' or 'canary_left'     ARGV[2]  int  how many are wanted
--
-- Returns  how many were granted
--
-- One script, since replicas share the number. A process that dies with its grant uses less than
-- was allowed, never more.
local left = tonumber(get(ARGV[1])) or 0
local granted = math.min(left, tonumber(ARGV[2]))
if granted > 0 then put(ARGV[1], integer(left - granted)) end
return integer(granted)
