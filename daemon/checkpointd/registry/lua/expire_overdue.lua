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
-- Returns  for each candidate its record if this pass expired it, else one of
--          'closed' (finalized or expired by another: the ref is left alone),
--          'young' (extended since the look), 'unknown' (never registered), 'corrupt'
--
-- The state is read and written in one script because a writer may finalize between a
-- reconciler's look and its write, and a finalized ref that is then expired is a resumable
-- turn thrown away. TIME is the store's: pods disagree.
local grace, actor, reason = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local replies = {}
for i = 4, #ARGV do
  local thread_key, at = KEYS[i + 4], find(ARGV[i], SEP, 1, true)
  local thread, checkpoint = sub(ARGV[i], 1, at - 1), sub(ARGV[i], at + 1)
  local rec, raw = load_record(thread_key, checkpoint)
  local answer
  if not rec then
    answer = raw or 'unknown'
    if not raw then redis.call('ZREM', OPEN_IX, ARGV[i]) end
  elseif rec[STATE] == 'e' and rec[BY] == actor then
    answer = raw
  elseif rec[STATE] ~= 'o' then
    answer = 'closed'
    redis.call('ZREM', OPEN_IX, ARGV[i])
  elseif now_us() - tonumber(rec[OPENED]) < grace then
    answer = 'young'
  else
    answer = expire_record(thread_key, thread, checkpoint, rec, 'c', reason, actor, ARGV[1])
  end
  replies[#replies + 1] = answer
end
settle()
return replies
