-- epoch: changes the epoch if it is still as the worker read it. src/gate/epoch/decide.rs decides
-- on the fields, which src/gate/epoch/stored.rs describes.
--
-- KEYS[1]  the epoch (HASH)
--
-- ARGV[1]     the number of fields that must be unchanged
-- ARGV[2…]    these fields, each with the value that was read, '' if it was absent
-- ARGV[…]     then fields with their new values; '' deletes a field
--
-- Reply: 1 if it was written; 0 if a field has changed, and nothing was written.

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
