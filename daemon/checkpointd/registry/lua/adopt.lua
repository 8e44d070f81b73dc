-- adopt: bring the books of a thread up to its head.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- KEYS[9]  string the lease that must be held for this (of ARGV[11]); unused if ARGV[12] is empty
-- KEYS[10..]  string the leases of the refs that moved on, in the order of ARGV[18..]
-- ARGV[1]  string thread id            ARGV[2]  string head's checkpoint id
-- ARGV[3]  int    its created_at, microseconds
-- ARGV[4]  string 'settled' if its writer is done with it, else 'open'
-- ARGV[5]  string hold it is to be under: 'p' while a pause may be being answered, else empty
-- ARGV[6]  string '1' if this scan may confirm a hold's end     ARGV[7]  string actor
-- ARGV[8]  string boundary id, or empty     ARGV[9]  string boundary record
-- ARGV[10] string its sequence
-- ARGV[11] string a checkpoint whose lease guards this          ARGV[12] string the lease's value
-- ARGV[13] string fallback's checkpoint id, or empty            ARGV[14] int its created_at
-- ARGV[15] string its boundary id      ARGV[16] string its boundary record
-- ARGV[17] string its sequence
-- ARGV[18..] string checkpoints of the thread that the source shows and that are not its head
--
-- Returns  {word, fallback registered 0/1, superseded, record}, word being
--          'new', 'closed' (its window was open, or it had expired though its writer ran on),
--          'unchanged', 'stale' (the guarding lease is not held: nothing was written), 'corrupt'
--
-- A fallback that had been superseded is reinstated: what becomes of a thread must not hang on
-- when it was looked at. A fallback that is the ref whose lease guards this is given back under its hold: a drain that
-- meets a newer open head must not take its last good turn away.
--
-- One script, since a head and what it supersedes or falls back to must change together.
local thread_key, thread, head, actor = KEYS[8], ARGV[1], ARGV[2], ARGV[7]
if ARGV[12] ~= '' and redis.call('GET', KEYS[9]) ~= ARGV[12] then return {'stale', 0, 0, ''} end
local rec, problem = load_record(thread_key, head)
if problem == 'corrupt' then return {'corrupt', 0, 0, ''} end

local function keep_boundary(into, id, raw, sequence)
  if id == '' then return end
  if redis.call('HSETNX', thread_key, 'b' .. id, raw) == 1 then
    local newest = redis.call('HGET', thread_key, '>l')
    local known = newest and redis.call('HGET', thread_key, 'b' .. newest)
    if not known or tonumber(string.match(known, '^1\31(%-?%d+)')) <= tonumber(sequence) then
      redis.call('HSET', thread_key, '>l', id)
    end
  end
  into[BOUNDARY] = id
end

local word, settled, new_fallback = 'unchanged', ARGV[4] == 'settled', 0
if not rec then
  word = 'new'
  rec = fresh_record('l', ARGV[3])
  rec[HOLD] = settled and ARGV[5] or ''
  if not settled then rec[OPENED] = ARGV[3] end
  keep_boundary(rec, ARGV[8], ARGV[9], ARGV[10])
  count_birth(ARGV[3])
  shift(thread_key, thread, head, rec, settled and 'p' or 'o', now_us(), actor, 'ref_adopted', '')
elseif rec[LINE] == 'k' or rec[STATE] == 'm' then
  word = 'unchanged'
elseif rec[STATE] == 'o' and settled then
  word = 'closed'
  rec[OPENED], rec[HOLD] = '', ARGV[5]
  keep_boundary(rec, ARGV[8], ARGV[9], ARGV[10])
  shift(thread_key, thread, head, rec, 'p', now_us(), actor, 'ref_closed', '')
  end_fallback(thread_key, thread, head, rec, 's', actor)
elseif rec[STATE] == 'e' and rec[EXPIRY_KIND] == 'c' and settled then
  word = 'closed'
  local reason = rec[REASON]
  rec[CODE], rec[DETAIL], rec[OPENED], rec[EXPIRY_KIND] = 'closed_after_expiry', reason, '', ''
  keep_boundary(rec, ARGV[8], ARGV[9], ARGV[10])
  count('reborn', 1)
  count_birth(rec[CREATED])
  shift(thread_key, thread, head, rec, 'q', 0, actor, 'ref_quarantined', '')
elseif rec[STATE] == 'p' or rec[STATE] == 'r' then
  local hold = ARGV[5]
  if rec[BOUNDARY] == '' then keep_boundary(rec, ARGV[8], ARGV[9], ARGV[10]) end
  if rec[HOLD] == 'f' then rec[STANDS_IN_FOR] = '' end
  if rec[HOLD] ~= hold or (ARGV[6] == '1' and rec[CONFIRMED] == '') then
    rec[HOLD] = hold
    rec[CONFIRMED] = ARGV[6] == '1' and hold == '' and integer(now_us()) or ''
    shift(thread_key, thread, head, rec, rec[STATE], now_us(), actor,
      hold == '' and 'ref_made_due' or 'ref_held', rec[CODE])
  end
end

-- An open head has its fallback under a hold; of one that expired it is due, also where nobody
-- knew of it then.
local kept = ''
if not settled and ARGV[13] ~= '' and rec[LINE] == 'l'
    and (rec[STATE] == 'o' or (rec[STATE] == 'e' and rec[EXPIRY_KIND] ~= 's')) then
  kept = ARGV[13]
  local hold = rec[STATE] == 'o' and 'f' or ''
  local ancestor, trouble = load_record(thread_key, kept)
  if not ancestor and not trouble then
    ancestor = fresh_record('l', ARGV[14])
    ancestor[HOLD], ancestor[STANDS_IN_FOR] = hold, head
    keep_boundary(ancestor, ARGV[15], ARGV[16], ARGV[17])
    count_birth(ARGV[14])
    shift(thread_key, thread, kept, ancestor, 'p', now_us(), actor, 'ref_adopted', '')
    new_fallback = 1
  elseif ancestor and ancestor[LINE] == 'l' then
    local to = ancestor[STATE]
    if to == 'e' and ancestor[EXPIRY_KIND] == 's' then
      -- The thread had moved on from it to a turn that was left unfinished: it is the last good
      -- one again, as it would be had nobody looked in between.
      to, ancestor[REASON], ancestor[EXPIRY_KIND], ancestor[OPENED] = 'p', '', '', ''
      count_birth(ancestor[CREATED])
    elseif to == 'o' then
      -- Its writer never said that it was whole; the source shows that it is.
      to, ancestor[OPENED] = 'p', ''
    elseif to == 'x' and ARGV[12] ~= '' and ARGV[11] == kept then
      local attempts = math.max(0, (tonumber(ancestor[ATTEMPTS]) or 0) - 1)
      ancestor[ATTEMPTS], ancestor[LEASE] = attempts > 0 and integer(attempts) or '', ''
      to = attempts > 0 and 'r' or 'p'
      redis.call('DEL', KEYS[9])
    end
    if to == 'p' or to == 'r' then
      if to ~= ancestor[STATE] or ancestor[HOLD] ~= hold or ancestor[STANDS_IN_FOR] ~= head then
        ancestor[HOLD], ancestor[STANDS_IN_FOR] = hold, head
        if ancestor[BOUNDARY] == '' then keep_boundary(ancestor, ARGV[15], ARGV[16], ARGV[17]) end
        shift(thread_key, thread, kept, ancestor, to, now_us(), actor,
          hold == '' and 'ref_made_due' or 'ref_held', ancestor[CODE])
      end
    elseif to == 'q' and ancestor[STANDS_IN_FOR] ~= head then
      ancestor[STANDS_IN_FOR] = head
      store(thread_key, kept, ancestor)
    end
  end
  if rec[FALLBACK] ~= kept then
    rec[FALLBACK] = kept
    store(thread_key, head, rec)
  end
end

local superseded = 0
for i = 18, #ARGV do
  local id, lease_key = ARGV[i], KEYS[i - 8]
  local old = load_record(thread_key, id)
  if old and id ~= head and id ~= kept and old[LINE] == 'l' and UNFINISHED[old[STATE]] then
    redis.call('DEL', lease_key)
    expire_record(thread_key, thread, id, old, 's', SUPERSEDED, actor, '')
    superseded = superseded + 1
  end
end
settle()
return {word, new_fallback, superseded, redis.call('HGET', thread_key, 'c' .. head) or ''}
