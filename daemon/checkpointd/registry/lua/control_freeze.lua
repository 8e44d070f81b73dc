-- control_freeze: declare issuance closed; the partitions' copies bring it into force.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string lines, of the letters l and k     ARGV[2]  string reason
-- ARGV[3]  string actor
--
-- Returns  {'frozen', epoch} or {'known', epoch}: the first freeze stays, with its reason
--
-- One script, since two operators may freeze at once.
if get('frozen') ~= '' then return {'known', get('epoch')} end
local now = integer(now_us())
redis.call('HSET', META, 'frozen', ARGV[1], 'reason', ARGV[2], 'frozen_at', now,
  'frozen_by', ARGV[3], 'in_force_at', '', 'drained_at', '', 'clean_births', '')
audit('issuance_frozen', ARGV[3], ARGV[2])
return {'frozen', next_epoch()}
