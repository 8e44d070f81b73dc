-- commit: register what replays produced and link it, while their leases are held.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8], KEYS[9], then two for each: hash the thread, string the legacy ref's lease
-- ARGV[1]  string actor
-- ARGV[2..7], then six for each:
--   string thread id                 string legacy checkpoint id
--   string the holder's value, fence:token
--   string new checkpoint id         string its line, l or k
--   string boundary id
--
-- Returns  an answer for each, in their order:
--          {'migrated', record}          linked by this lease, now or by the same commit sent before
--          {'already_migrated', record}  another was first; its link stands
--          {'stale', ''}                 the lease is not held any more
--          {'refused', reason}           not_authoritative, writer_line or id_conflict
--          Nothing was written but for the first. The record is the legacy ref's, with its link.
--
-- Registration and link are one script, so that no replayed ref is without its link. The lease
-- is checked here since nothing before can be trusted: the holder may have slept. The new ref
-- takes the legacy ref's created_at: a conversation does not go back in time. Several are one
-- script only for speed: each is judged by itself.
local actor, linked = ARGV[1], false

local function commit(thread_key, lease_key, thread, legacy, value, became, line, boundary)
  local rec, raw = load_record(thread_key, legacy)
  if rec and rec[STATE] == 'm' then
    -- The stub of the lease that a migrated record keeps tells whose link it is.
    local mine = rec[BECAME] == became and rec[LEASE] ~= ''
      and sub(value, 1, #rec[LEASE]) == rec[LEASE]
    return {mine and 'migrated' or 'already_migrated', raw}
  end
  if call('GET', lease_key) ~= value then return {'stale', ''} end
  if not rec or rec[STATE] ~= 'x' then return {'refused', 'not_authoritative'} end
  if rec[LINE] ~= 'l' or line ~= 'k' then return {'refused', 'writer_line'} end
  local new, problem = load_record(thread_key, became)
  if problem == 'corrupt' then return {'refused', 'id_conflict'} end
  if new then
    if new[LINE] ~= 'k' then return {'refused', 'writer_line'} end
    if new[STATE] ~= 'f' or (new[REPLAY_OF] ~= '' and new[REPLAY_OF] ~= legacy) then
      return {'refused', 'id_conflict'}
    end
    new[REPLAY_OF] = legacy
    store(thread_key, became, new)
  else
    new = fresh_record('k', rec[CREATED])
    new[REPLAY_OF] = legacy
    shift(thread_key, thread, became, new, 'f', 0, actor, 'ref_registered', '')
  end
  call('DEL', lease_key)
  local was_code = rec[CODE]
  rec[BECAME], rec[BOUNDARY], rec[LINKED] = became, boundary, now_text()
  rec[LEASE] = sub(value, 1, find(value, ':', 1, true) + 8)
  rec[CODE], rec[DETAIL] = '', ''
  count('replays:migrated', 1)
  linked = true
  return {'migrated', shift(thread_key, thread, legacy, rec, 'm', 0, actor, 'ref_migrated', was_code)}
end

local answers = {}
for n = 0, (#ARGV - 1) / 6 - 1 do
  local a = 6 * n
  answers[n + 1] = commit(KEYS[8 + 2 * n], KEYS[9 + 2 * n], ARGV[2 + a], ARGV[3 + a], ARGV[4 + a],
    ARGV[5 + a], ARGV[6 + a], ARGV[7 + a])
end
if linked then call('HSET', COUNTERS, 'last_migrated', now_text()) end
settle()
return answers
