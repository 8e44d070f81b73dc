-- release_quarantined: give a quarantined ref back to the drain, its attempts reset.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id     ARGV[2]  string checkpoint id
-- ARGV[3]  string reason        ARGV[4]  string actor
-- ARGV[5]  string its reason must still be this word; empty for any
--
-- Returns  'released', or 'other' (not quarantined, or for another reason: nothing was written)
--
-- One script, since a scan may supersede it between a look and the write.
local rec = load_record(KEYS[8], ARGV[2])
if not rec or rec[STATE] ~= 'q' or (ARGV[5] ~= '' and rec[CODE] ~= ARGV[5]) then return 'other' end
local was_code = rec[CODE]
rec[CODE], rec[REASON], rec[ATTEMPTS], rec[LEASE], rec[HOLD] = '', ARGV[3], '', '', ''
-- The fallback of a head that may be running waits for that head's end as any fallback does.
local head = rec[STANDS_IN_FOR] ~= '' and load_record(KEYS[8], rec[STANDS_IN_FOR])
if head and head[STATE] == 'o' then rec[HOLD] = 'f' end
shift(KEYS[8], ARGV[1], ARGV[2], rec, 'p', now_us(), ARGV[4], 'quarantine_released', was_code)
settle()
return 'released'
