-- restore_late: bring back a ref that expired as crashed though its writer came back.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id     ARGV[2]  string checkpoint id
-- ARGV[3]  int    its writer must have come back since then, microseconds
-- ARGV[4]  string reason        ARGV[5]  string actor
--
-- Returns  'restored', or 'other' (not expired by the reconciler, or nobody came back since)
--
-- The only way back from expiry, audited: a late finalization proves that the state is whole.
local rec = load_record(KEYS[8], ARGV[2])
if not rec or rec[STATE] ~= 'e' or rec[EXPIRY_KIND] ~= 'c' or rec[LATE] == ''
    or tonumber(rec[LATE]) < tonumber(ARGV[3]) then
  return 'other'
end
rec[REASON], rec[OPENED], rec[EXPIRY_KIND], rec[GRACE] = ARGV[4], '', '', ''
if rec[LINE] == 'l' then count_birth(rec[CREATED]) end
shift(KEYS[8], ARGV[1], ARGV[2], rec, rec[LINE] == 'l' and 'p' or 'f', now_us(), ARGV[5],
  'ref_restored', '')
settle()
return 'restored'
