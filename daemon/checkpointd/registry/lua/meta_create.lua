-- meta_create: found the registry, or say what it was founded with.
--
-- KEYS[1..2]  as in the meta prelude
-- ARGV[1]  int schema     ARGV[2]  int oldest schema whose clients may read it
-- ARGV[3]  int partitions ARGV[4]  string environment
--
-- Returns  {schema, min_reader, partitions, environment, epoch}, of the first call
--
-- One script, so that two daemons that start at once agree on one number of partitions.
if redis.call('HSETNX', META, 'schema', ARGV[1]) == 1 then
  redis.call('HSET', META, 'min_reader', ARGV[2], 'partitions', ARGV[3], 'environment', ARGV[4],
    'epoch', '0', 'founded_at', integer(now_us()))
end
return {get('schema'), get('min_reader'), get('partitions'), get('environment'), get('epoch')}
