-- control_in_force: all partitions carry the freeze, so it is in force from now.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  int epoch that all partitions carry
--
-- Returns  'in_force' (now or before) or 'other' (the control word has changed meanwhile)
--
-- One script, so that a thaw in between is not overwritten.
if get('epoch') ~= ARGV[1] or get('frozen') == '' then return 'other' end
if get('in_force_at') == '' then put('in_force_at', integer(now_us())) end
return 'in_force'
