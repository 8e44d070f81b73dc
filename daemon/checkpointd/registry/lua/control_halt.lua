-- control_halt: the breaker: stop the drain, since most of its replays fail for reasons of their own.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  string reason     ARGV[2]  string actor
-- ARGV[3]  int    the epoch that was judged: a resume in between makes this void
--
-- Returns  {'halted', epoch} or {'known', epoch}
if get('halted') ~= '' or get('epoch') ~= ARGV[3] then return {'known', get('epoch')} end
put('halted', ARGV[1])
audit('drain_halted', ARGV[2], ARGV[1])
return {'halted', next_epoch()}
