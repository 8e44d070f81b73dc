-- fail: say that a replay failed: try again later, or quarantine.
--
-- KEYS[1..7]  the partition's, as in the prelude
-- KEYS[8]  hash   the thread          KEYS[9]  string the ref's lease
-- ARGV[1]  string thread id           ARGV[2]  string checkpoint id
-- ARGV[3]  string the holder's value, fence:token
-- ARGV[4]  string reason, a word of the closed set      ARGV[5]  string detail
-- ARGV[6]  string 'permanent' or 'transient'            ARGV[7]  int  back-off, microseconds
-- ARGV[8]  int    most attempts       ARGV[9]  string actor
-- ARGV[10] string 'own' if the ref is to blame, so that the breaker counts it, else empty
--
-- Returns  'retryable'    due again after the back-off
--          'quarantined'  for the reason; or, its attempts spent, as attempts_exhausted
--          'stale'        the lease is not held any more; nothing was written, since a stale
--                         holder must not quarantine what another migrated
--
-- Sent again, it finds its value on the record and answers as it did the first time.
local rec = load_record(KEYS[8], ARGV[2])
if not rec then return 'stale' end
local value = redis.call('GET', KEYS[9])
if value ~= ARGV[3] then
  if not value and rec[LEASE] == ARGV[3] and (rec[STATE] == 'r' or rec[STATE] == 'q') then
    return WORD[rec[STATE]]
  end
  return 'stale'
end
if rec[STATE] ~= 'x' then return 'stale' end
redis.call('DEL', KEYS[9])
local spent = (tonumber(rec[ATTEMPTS]) or 0) >= tonumber(ARGV[8])
local was_code = rec[CODE]
rec[DETAIL] = ARGV[5]
count(ARGV[10] == 'own' and 'replays:failed' or 'replays:other', 1)
if ARGV[6] == 'permanent' or spent then
  rec[CODE] = ARGV[6] == 'permanent' and ARGV[4] or 'attempts_exhausted'
  if ARGV[6] ~= 'permanent' then rec[DETAIL] = ARGV[4] .. ': ' .. ARGV[5] end
  shift(KEYS[8], ARGV[1], ARGV[2], rec, 'q', 0, ARGV[9], 'ref_quarantined', was_code)
  settle()
  return 'quarantined'
end
rec[CODE] = ARGV[4]
shift(KEYS[8], ARGV[1], ARGV[2], rec, 'r', now_us() + tonumber(ARGV[7]), ARGV[9],
  'ref_failed', was_code)
settle()
return 'retryable'
