-- prelude: what every script of a partition shares; the loader puts it before each of them.
--
-- KEYS[1]  zset   open refs, by the start of their crash window   (microseconds)
-- KEYS[2]  zset   legacy refs that a drain may claim, by not-before time
-- KEYS[3]  zset   unfinished legacy refs, by created_at
-- KEYS[4]  zset   quarantined refs, by the time they came there
-- KEYS[5]  hash   counters: refs by state, and totals that only rise
-- KEYS[6]  hash   this partition's copy of the control word
-- KEYS[7]  stream audit, bounded
-- ARGV           the script's own; a script's header lists them
--
-- Returns  nothing: it only defines. A record is read, decided on, then written by `shift`,
--          which keeps indexes, counters and the audit equal to the state. What a batch can
--          write once is written by `settle`, which each script calls last: the counters, the
--          members that leave the open index (none comes back to it in the script in which it
--          left), and the audit.
--
-- An entry of the audit tells of up to 25 refs that one script took the same way: `event`, `from`,
--          `to`, `by`, `reason`; `refs`, their members, with record separators between them; and
--          `audited`, how many transitions have been audited up to its last one, by which a
--          reader knows how many were trimmed.
--
-- Why here: the same step must mean the same in every script, or an index and a state part.

local OPEN_IX, DUE_IX, UNFINISHED_IX, QUARANTINE_IX = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local COUNTERS, CONTROL, AUDIT = KEYS[5], KEYS[6], KEYS[7]
local SEP = '\31'
local AUDIT_LENGTH, AUDIT_REFS, NEXT_REF = 2000, 25, '\30'
local SUPERSEDED = 'superseded: the thread moved on to another checkpoint'

-- A record's fields, in the order in which they are stored.
local VERSION, STATE, LINE, CREATED, OPENED, CHANGED, BY, REASON, CODE, DETAIL, ATTEMPTS, LEASE,
  BECAME, BOUNDARY, LINKED, STANDS_IN_FOR, FALLBACK, REPLAY_OF, LATE, HOLD, CONFIRMED, GRACE,
  EXPIRY_KIND = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23
local FIELD_COUNT = 23

local WORD = {o = 'open', p = 'pending', x = 'replaying', r = 'retryable', q = 'quarantined',
  w = 'waived', m = 'migrated', e = 'expired', f = 'finalized'}
local KIND = {c = 'crash', s = 'superseded', o = 'operator'}
local UNFINISHED = {o = true, p = true, x = true, r = true, q = true}
local DRAINABLE = {p = true, x = true, r = true}

-- Locals are found faster than the fields of globals.
local call, find, match, sub, concat, format = redis.call, string.find, string.match, string.sub,
  table.concat, string.format

local function integer(n) return format('%.0f', n) end

local clock, clock_text
local function now_us()
  if not clock then
    local t = call('TIME')
    clock = t[1] * 1000000 + t[2]
    clock_text = integer(clock)
  end
  return clock
end
local function now_text()
  now_us()
  return clock_text
end

-- The first five fields in one match, and the table written out, so that it is made at its size
-- at once: this runs for each ref of a batch, and most records that a batch changes have no more.
local FIRST = '^([^\31]*)\31?([^\31]*)\31?([^\31]*)\31?([^\31]*)\31?([^\31]*)()'
local function unpack_record(raw)
  local version, state, line, created, opened, at = match(raw, FIRST)
  local rec = {version, state, line, created, opened, '', '', '', '', '', '', '', '', '', '', '',
    '', '', '', '', '', '', ''}
  local n, stop = 5, #raw + 1
  while at < stop do
    local till = find(raw, SEP, at + 1, true) or stop
    n = n + 1
    rec[n] = sub(raw, at + 1, till - 1)
    at = till
  end
  return rec
end

local function pack_record(rec)
  local last = FIELD_COUNT
  while rec[last] == '' do last = last - 1 end
  return concat(rec, SEP, 1, last)
end

-- A record that this build cannot account for is left alone and named by the caller.
local function readable(raw)
  return sub(raw, 1, 2) == '1\31' and WORD[sub(raw, 3, 3)] ~= nil
end

local function load_record(thread_key, checkpoint)
  local raw = call('HGET', thread_key, 'c' .. checkpoint)
  if not raw then return nil end
  if not readable(raw) then return nil, 'corrupt' end
  return unpack_record(raw), raw
end

local function fresh_record(line, created)
  return unpack_record(concat({'1', '', line, created}, SEP))
end

local deltas, of_legacy, of_kernel, closed = {}, {}, {}, {}
local function count(field, by) deltas[field] = (deltas[field] or 0) + by end

-- Write that these members were taken from one state to another.
local function audit_all(event, members, from, to, actor, reason)
  for first = 1, #members, AUDIT_REFS do
    local last = math.min(first + AUDIT_REFS - 1, #members)
    local audited = call('HINCRBY', COUNTERS, 'audited', last - first + 1)
    call('XADD', AUDIT, 'MAXLEN', '~', AUDIT_LENGTH, '*', 'event', event, 'from', from, 'to', to,
      'by', actor, 'reason', reason, 'refs', concat(members, NEXT_REF, first, last),
      'audited', integer(audited))
  end
end

-- The transitions that are not written yet, by kind. One full entry writes them all, in the order
-- in which their kinds came up: so those of one ref stay in their order.
local kinds, kinds_in_order = {}, {}
local function write_audit()
  for _, kind in ipairs(kinds_in_order) do
    audit_all(kind.event, kind.members, kind.from, kind.to, kind.actor, kind.reason)
  end
  kinds, kinds_in_order = {}, {}
end

local function audit(event, member, from, to, actor, reason)
  local name = concat({event, from, to, actor, reason}, SEP)
  local kind = kinds[name]
  if not kind then
    kind = {event = event, from = from, to = to, actor = actor, reason = reason, members = {}}
    kinds[name] = kind
    kinds_in_order[#kinds_in_order + 1] = kind
  end
  local members = kind.members
  members[#members + 1] = member
  if #members == AUDIT_REFS then write_audit() end
end

local function settle()
  for state, by in pairs(of_legacy) do count('legacy:' .. WORD[state], by) end
  for state, by in pairs(of_kernel) do count('kernel:' .. WORD[state], by) end
  write_audit()
  for field, by in pairs(deltas) do
    if by ~= 0 then call('HINCRBY', COUNTERS, field, integer(by)) end
  end
  if closed[1] then call('ZREM', OPEN_IX, unpack(closed)) end
  deltas, of_legacy, of_kernel, closed = {}, {}, {}, {}
end

local function store(thread_key, checkpoint, rec)
  local raw = pack_record(rec)
  call('HSET', thread_key, 'c' .. checkpoint, raw)
  return raw
end

-- Take `rec` to state `to`: indexes, counters and audit follow. `due` is its not-before time,
-- for a state in which a drain may claim it; a hold keeps it out of that index.
-- `rec[REASON]` and `rec[CODE]` are set by the caller beforehand; `was_code` is the old CODE.
-- Returns the record as it is stored now.
local function shift(thread_key, thread, checkpoint, rec, to, due, actor, event, was_code)
  local from, legacy = rec[STATE] ~= '' and rec[STATE] or nil, rec[LINE] == 'l'
  local member = thread .. SEP .. checkpoint
  local states = legacy and of_legacy or of_kernel
  if from then states[from] = (states[from] or 0) - 1 end
  states[to] = (states[to] or 0) + 1
  if from == 'o' and to ~= 'o' then closed[#closed + 1] = member end
  if to == 'o' then call('ZADD', OPEN_IX, rec[OPENED], member) end
  if legacy then
    count('transitions', 1)
    local was, is = from and UNFINISHED[from], UNFINISHED[to]
    if is and not was then call('ZADD', UNFINISHED_IX, rec[CREATED], member) end
    if was and not is then call('ZREM', UNFINISHED_IX, member) end
    if DRAINABLE[to] and rec[HOLD] == '' then
      call('ZADD', DUE_IX, integer(due), member)
    elseif from and DRAINABLE[from] then
      call('ZREM', DUE_IX, member)
    end
    if from == 'q' then
      count('blocked:' .. was_code, -1)
      if to ~= 'q' then call('ZREM', QUARANTINE_IX, member) end
    end
    if to == 'q' then
      count('blocked:' .. rec[CODE], 1)
      call('ZADD', QUARANTINE_IX, now_text(), member)
    end
  end
  rec[STATE], rec[CHANGED], rec[BY] = to, now_text(), actor
  local raw = store(thread_key, checkpoint, rec)
  audit(event, member, from and WORD[from] or '', WORD[to], actor,
    to == 'q' and rec[CODE] or rec[REASON])
  return raw
end

local function count_expiry(kind, by) count('expired:' .. KIND[kind], by) end

-- Expire `rec` and return it as it is stored, by kind c(rash), s(uperseded) or o(perator). A head's fallback becomes due in
-- the same script, unless the thread moved on, in which case it goes the same way.
local expire_record
local function end_fallback(thread_key, thread, checkpoint, rec, kind, actor)
  local id = rec[FALLBACK]
  if id == '' then return end
  local ancestor = load_record(thread_key, id)
  if not ancestor or ancestor[STANDS_IN_FOR] ~= checkpoint or ancestor[HOLD] ~= 'f' then return end
  if kind == 's' then
    expire_record(thread_key, thread, id, ancestor, 's', SUPERSEDED, actor, '')
  else
    ancestor[HOLD] = ''
    shift(thread_key, thread, id, ancestor, ancestor[STATE], now_us(), actor, 'ref_made_due',
      ancestor[CODE])
  end
end

expire_record = function(thread_key, thread, checkpoint, rec, kind, reason, actor, grace)
  local was_code = rec[CODE]
  rec[REASON], rec[CODE], rec[HOLD], rec[LEASE] = reason, '', '', ''
  rec[EXPIRY_KIND], rec[GRACE] = kind, grace
  local raw = shift(thread_key, thread, checkpoint, rec, 'e', 0, actor, 'ref_expired', was_code)
  count_expiry(kind, 1)
  if kind == 's' then count('births', 1) end
  if rec[FALLBACK] ~= '' then end_fallback(thread_key, thread, checkpoint, rec, kind, actor) end
  return raw
end

-- A legacy ref came into being: it voids a clean scan, and is discovered if it came after the
-- freeze was in force; one created after it is counted apart, since somebody went on writing.
local function count_birth(created)
  count('births', 1)
  local copy = call('HMGET', CONTROL, 'in_force', 'frozen_at')
  if copy[1] == '1' then
    local late = tonumber(created) > tonumber(copy[2])
    count(late and 'discovered:written_after_freeze' or 'discovered:catch_up', 1)
  end
end

local function is_frozen(line)
  local lines = call('HGET', CONTROL, 'frozen')
  return lines and string.find(lines, line, 1, true) ~= nil
end

local function token_of(value) return string.sub(value, (string.find(value, ':', 1, true) or 0) + 1) end
