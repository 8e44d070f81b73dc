-- waive: declare that the drain may end without this quarantined ref. It is not resumable then.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id     ARGV[2]  string checkpoint id
-- ARGV[3]  string reason        ARGV[4]  string actor
-- ARGV[5]  string its reason must still be this word; empty for any
--
-- Returns  'waived', or 'other' (not quarantined, or for another reason: nothing was written)
--
-- The word for which it was quarantined stays on the record, so that `unwaive` goes back to it.
local rec = load_record(KEYS[8], ARGV[2])
if not rec or rec[STATE] ~= 'q' or (ARGV[5] ~= '' and rec[CODE] ~= ARGV[5]) then return 'other' end
rec[REASON] = ARGV[3]
shift(KEYS[8], ARGV[1], ARGV[2], rec, 'w', 0, ARGV[4], 'quarantine_waived', rec[CODE])
settle()
return 'waived'
