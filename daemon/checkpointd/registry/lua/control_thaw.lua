-- control_thaw: declare issuance open again.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string reason     ARGV[2]  string actor
--
-- Returns  {'thawed', epoch} or {'known', epoch}: it was open
--
-- The epoch rises, so a late copy of the freeze cannot close a partition again.
if get('frozen') == '' then return {'known', get('epoch')} end
redis.call('HSET', META, 'frozen', '', 'reason', '', 'frozen_at', '', 'in_force_at', '',
  'clean_births', '')
audit('issuance_thawed', ARGV[2], ARGV[1])
return {'thawed', next_epoch()}
