-- epoch: changes the epoch if it is still as the worker read it. src/rules/epoch.rs decides what is written; the
-- specification of this script is src/rules/epoch/kept.rs.
--
-- KEYS[1]  the epoch (HASH)
--
-- ARGV[1…10]  id, run, cold, next and slots, each with the value that was read; '': there was none
-- ARGV[11…]   fields and their new values; '' deletes one
--
-- Reply: 1: it was written; 0: it is different, and nothing was changed.

for i = 1, 10, 2 do
  if (redis.call('HGET', KEYS[1], ARGV[i]) or '') ~= ARGV[i + 1] then
    return 0
  end
end
for i = 11, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return 1
