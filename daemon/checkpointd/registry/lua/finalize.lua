-- finalize: close a crash window, unless it was closed by expiry.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread
-- ARGV[1]  string thread id     ARGV[2]  string checkpoint id     ARGV[3]  string actor
-- ARGV[4..] int   upper bounds of the time-to-finalize histogram, microseconds, rising
--
-- Returns  {'finalized', record}  this call closed it
--          {'known', record}      it was closed before; nothing was written
--          {'expired', record}    too late: stamped and counted the first time, never revived
--          {'unknown', ''} / {'corrupt', ''}
--
-- One script, since a reconciler may expire between a look and the write.
local thread_key, thread, checkpoint, actor = KEYS[8], ARGV[1], ARGV[2], ARGV[3]
local rec, raw = load_record(thread_key, checkpoint)
if not rec then return {raw or 'unknown', ''} end
if rec[STATE] == 'e' then
  if rec[LATE] == '' and rec[OPENED] ~= '' then
    rec[LATE] = integer(now_us())
    store(thread_key, checkpoint, rec)
    count('late', 1)
    audit('ref_finalized_late', thread .. SEP .. checkpoint, 'expired', 'expired', actor, rec[REASON])
    settle()
  end
  return {'expired', pack_record(rec)}
end
if rec[STATE] ~= 'o' then return {'known', raw} end
local took = math.max(0, now_us() - tonumber(rec[CREATED]))
local bucket = 'inf'
for i = 4, #ARGV do
  if took <= tonumber(ARGV[i]) then bucket = ARGV[i] break end
end
count('ttf:' .. bucket, 1)
count('ttf_sum', took)
rec[OPENED] = ''
shift(thread_key, thread, checkpoint, rec, rec[LINE] == 'l' and 'p' or 'f', now_us(), actor,
  'ref_finalized', '')
end_fallback(thread_key, thread, checkpoint, rec, 's', actor)
settle()
return {'finalized', pack_record(rec)}
