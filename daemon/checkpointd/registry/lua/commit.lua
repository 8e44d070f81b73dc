-- commit: register what a replay produced and link it, while the lease is held.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread          KEYS[9]  string the ref's lease
-- ARGV[1]  string thread id           ARGV[2]  string legacy checkpoint id
-- ARGV[3]  string the holder's value, fence:token
-- ARGV[4]  string new checkpoint id   ARGV[5]  string its line, l or k
-- ARGV[6]  string boundary id         ARGV[7]  string actor
--
-- Returns  {'migrated', record}          linked by this lease, now or by the same commit sent before
--          {'already_migrated', record}  another was first; its link stands
--          {'stale', ''}                 the lease is not held any more
--          {'refused', reason}           not_authoritative, writer_line or id_conflict
--          Nothing was written but for the first. The record is the legacy ref's, with its link.
--
-- Registration and link are one script, so that no replayed ref is without its link. The lease
-- is checked here since nothing before can be trusted: the holder may have slept. The new ref
-- takes the legacy ref's created_at: a conversation does not go back in time.
local rec, raw = load_record(KEYS[8], ARGV[2])
if rec and rec[STATE] == 'm' then
  -- The stub of the lease that a migrated record keeps tells whose link it is.
  local mine = rec[BECAME] == ARGV[4] and rec[LEASE] ~= ''
    and string.sub(ARGV[3], 1, #rec[LEASE]) == rec[LEASE]
  return {mine and 'migrated' or 'already_migrated', raw}
end
if redis.call('GET', KEYS[9]) ~= ARGV[3] then return {'stale', ''} end
if not rec or rec[STATE] ~= 'x' then return {'refused', 'not_authoritative'} end
if rec[LINE] ~= 'l' or ARGV[5] ~= 'k' then return {'refused', 'writer_line'} end
local new, problem = load_record(KEYS[8], ARGV[4])
if problem == 'corrupt' then return {'refused', 'id_conflict'} end
if new then
  if new[LINE] ~= 'k' then return {'refused', 'writer_line'} end
  if new[STATE] ~= 'f' or (new[REPLAY_OF] ~= '' and new[REPLAY_OF] ~= ARGV[2]) then
    return {'refused', 'id_conflict'}
  end
  new[REPLAY_OF] = ARGV[2]
  store(KEYS[8], ARGV[4], new)
else
  new = fresh_record('k', rec[CREATED])
  new[REPLAY_OF] = ARGV[2]
  shift(KEYS[8], ARGV[1], ARGV[4], new, 'f', 0, ARGV[7], 'ref_registered', '')
end
redis.call('DEL', KEYS[9])
local was_code, now = rec[CODE], integer(now_us())
rec[BECAME], rec[BOUNDARY], rec[LINKED] = ARGV[4], ARGV[6], now
rec[LEASE] = string.sub(ARGV[3], 1, string.find(ARGV[3], ':', 1, true) + 8)
rec[CODE], rec[DETAIL] = '', ''
shift(KEYS[8], ARGV[1], ARGV[2], rec, 'm', 0, ARGV[7], 'ref_migrated', was_code)
count('replays:migrated', 1)
settle()
redis.call('HSET', COUNTERS, 'last_migrated', now)
return {'migrated', pack_record(rec)}
