-- let_go: end the hold of a pause that no scan will confirm, since the source has it no more.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id     ARGV[2]  string checkpoint id     ARGV[3]  string actor
--
-- Returns  'due'    the drain may claim it, and finds for itself what became of it
--          'other'  not under such a hold: nothing was written
--
-- One script, since a scan may supersede it between a look and the write.
local rec = load_record(KEYS[8], ARGV[2])
if not rec or (rec[STATE] ~= 'p' and rec[STATE] ~= 'r') or rec[HOLD] ~= 'p' then return 'other' end
rec[HOLD] = ''
shift(KEYS[8], ARGV[1], ARGV[2], rec, rec[STATE], now_us(), ARGV[3], 'ref_made_due', rec[CODE])
settle()
return 'due'
