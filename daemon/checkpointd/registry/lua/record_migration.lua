-- record_migration: link a legacy ref to the kernel ref it became; the first link wins.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- KEYS[9]  string the legacy ref's lease; deleted
-- ARGV[1]  string thread id          ARGV[2]  string legacy checkpoint id
-- ARGV[3]  string new checkpoint id  ARGV[4]  string boundary id     ARGV[5]  string actor
--
-- Returns  {'linked', record}       the legacy ref's record, with this link
--          {'known', record}        it had its link; nothing was written
--          {'expired', record}      it expired; nothing was written
--          {'unknown', id}          this checkpoint was never registered
--          {'line_changed', id}     the legacy ref is of line kernel
--          {'new_line_changed', id} the new ref is of line legacy
--          {'id_conflict', id}      the new ref is another legacy ref's
--          {'corrupt', id}
--
-- One script, since two migrators may link at once.
local rec, raw = load_record(KEYS[8], ARGV[2])
if not rec then return {raw or 'unknown', ARGV[2]} end
if rec[LINE] ~= 'l' then return {'line_changed', ARGV[2]} end
if rec[STATE] == 'm' then return {'known', raw} end
if rec[STATE] == 'e' then return {'expired', raw} end
local new, new_raw = load_record(KEYS[8], ARGV[3])
if not new then return {new_raw or 'unknown', ARGV[3]} end
if new[LINE] ~= 'k' then return {'new_line_changed', ARGV[3]} end
if new[REPLAY_OF] ~= '' and new[REPLAY_OF] ~= ARGV[2] then return {'id_conflict', ARGV[3]} end
redis.call('DEL', KEYS[9])
if new[REPLAY_OF] == '' then
  new[REPLAY_OF] = ARGV[2]
  store(KEYS[8], ARGV[3], new)
end
local was_code = rec[CODE]
rec[BECAME], rec[BOUNDARY], rec[LINKED] = ARGV[3], ARGV[4], integer(now_us())
rec[OPENED], rec[CODE], rec[DETAIL], rec[HOLD], rec[LEASE] = '', '', '', '', ''
shift(KEYS[8], ARGV[1], ARGV[2], rec, 'm', 0, ARGV[5], 'ref_migrated', was_code)
end_fallback(KEYS[8], ARGV[1], ARGV[2], rec, 's', ARGV[5])
redis.call('HSET', COUNTERS, 'last_migrated', integer(now_us()))
settle()
return {'linked', pack_record(rec)}
