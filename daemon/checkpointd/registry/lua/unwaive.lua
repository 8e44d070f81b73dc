-- unwaive: take a waiver back; the ref is quarantined again for its old reason.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id     ARGV[2]  string checkpoint id
-- ARGV[3]  string reason        ARGV[4]  string actor
-- ARGV[5]  string its reason must still be this word; empty for any
--
-- Returns  'unwaived', or 'other' (not waived, or for another reason: nothing was written)
--
-- One script, since two operators may act at once.
local rec = load_record(KEYS[8], ARGV[2])
if not rec or rec[STATE] ~= 'w' or (ARGV[5] ~= '' and rec[CODE] ~= ARGV[5]) then return 'other' end
rec[REASON] = ARGV[3]
shift(KEYS[8], ARGV[1], ARGV[2], rec, 'q', 0, ARGV[4], 'waiver_revoked', '')
settle()
return 'unwaived'
