-- expire_overdue: close overdue crash windows with a reason. Recorded, never deleted.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8..]   hash   the thread of each candidate, in the order of ARGV[4..]
-- ARGV[1]  int    grace, microseconds
-- ARGV[2]  string the pass, as the actor: a step that is sent again finds its own name on what
--                 it expired and answers as it did the first time
-- ARGV[3]  string reason
-- ARGV[4..] string members of the index of open refs: thread, separator, checkpoint
--
-- Returns  {now, answer, …}: the time, microseconds, and for each candidate one of
--          line letter, created: this step expired it, now
--          line letter, created, separator, time: this step expired it then, and was sent again
--          'closed' (finalized or expired by another: the ref is left alone),
--          'young' (extended since the look), 'unknown' (never registered), 'corrupt'
--
-- The state is read and written in one script because a writer may finalize between a
-- reconciler's look and its write, and a finalized ref that is then expired is a resumable
-- turn thrown away. TIME is the store's: pods disagree.
local grace, grace_text, actor, reason = tonumber(ARGV[1]), ARGV[1], ARGV[2], ARGV[3]
local now = now_us()

-- A kernel ref that a crash left as `register` or `extend` wrote it: nothing follows its BY. It is
-- cut instead of taken apart, which is most of the work, and becomes what `expire_record` makes.
local PLAIN = '^1\31o(\31k\31(%d+)\31(%d+))\31?%d*\31?[^\31]*$'
local EXPIRED = SEP .. concat({now_text(), actor, reason}, SEP)
  .. string.rep(SEP, GRACE - REASON) .. grace_text .. SEP .. 'c'
local plain = {}

local function expire_plain(thread_key, checkpoint, member)
  local field = 'c' .. checkpoint
  local kept, created, opened = match(call('HGET', thread_key, field) or '', PLAIN)
  if not kept or now - opened < grace then return nil end
  call('HSET', thread_key, field, '1\31e' .. kept .. EXPIRED)
  plain[#plain + 1] = member
  return 'k' .. created
end

local function expire_any(thread_key, thread, checkpoint, member)
  local rec, problem = load_record(thread_key, checkpoint)
  if not rec then
    if not problem then redis.call('ZREM', OPEN_IX, member) end
    return problem or 'unknown'
  elseif rec[STATE] == 'e' and rec[BY] == actor then
    return rec[LINE] .. rec[CREATED] .. SEP .. rec[CHANGED]
  elseif rec[STATE] ~= 'o' then
    redis.call('ZREM', OPEN_IX, member)
    return 'closed'
  elseif now - tonumber(rec[OPENED]) < grace then
    return 'young'
  end
  expire_record(thread_key, thread, checkpoint, rec, 'c', reason, actor, grace_text)
  return rec[LINE] .. rec[CREATED]
end

local replies = {now_text()}
for i = 4, #ARGV do
  local thread_key, member = KEYS[i + 4], ARGV[i]
  local at = find(member, SEP, 1, true)
  local checkpoint = sub(member, at + 1)
  replies[i - 2] = expire_plain(thread_key, checkpoint, member)
    or expire_any(thread_key, sub(member, 1, at - 1), checkpoint, member)
end
if plain[1] then
  of_kernel.o, of_kernel.e = (of_kernel.o or 0) - #plain, (of_kernel.e or 0) + #plain
  count_expiry('c', #plain)
  call('ZREM', OPEN_IX, unpack(plain))
  audit_all('ref_expired', plain, 'open', 'expired', actor, reason)
end
settle()
return replies
