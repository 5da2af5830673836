-- epoch: changes the epoch if it is still as the worker read it. src/gate/epoch/decide.rs decides what is written; the
-- specification of this script is src/gate/epoch/kept.rs.
--
-- KEYS[1]  the epoch (HASH)
--
-- ARGV[1]     so many fields must be as they were read
-- ARGV[2…]    these fields, each with the value that was read; '': there was none
-- ARGV[…]     after them: fields and their new values; '' deletes one
--
-- Reply: 1: it was written; 0: it is different, and nothing was changed.

local last = 1 + 2 * tonumber(ARGV[1])
for i = 2, last, 2 do
  if (redis.call('HGET', KEYS[1], ARGV[i]) or '') ~= ARGV[i + 1] then
    return 0
  end
end
for i = last + 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return 1
