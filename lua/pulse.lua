-- pulse: whether Redis still knows all that has started; the last call of a pipeline whose decisions count only then.
-- src/gate/epoch/stored.rs says what the hash holds, src/gate/epoch/decide.rs what is done when it is not so; the specification of this
-- script is src/gate/epoch/kept.rs. Needs clock.lua before it.
--
-- KEYS[1]  the epoch (HASH)
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  the epoch's id, and
-- ARGV[3]  the memory that it was confirmed for, both as the worker knows them
-- ARGV[4]  that memory's history: the server's master_replid
-- ARGV[5]  the worker's field
-- ARGV[6]  a worker that is silent for longer than this, in milliseconds, is dropped
-- ARGV[7]  so many fields are looked at for such workers
-- ARGV[8]  the slots that it speaks for, as the worker knows them; '' without a cluster
-- ARGV[9]  how many keys the server has evicted, as the worker knows it; '': not looked at
-- ARGV[10] the epoch's `cold`, as the worker knows it: by that it has judged what may be asked
--
-- Reply: integers.
-- [1]  1: it does; 0: it is not sure, nothing was changed, and [2] is all
-- [2]  the clock in milliseconds since the epoch, rounded down
-- [3]  the worker's pulse

local now = read_clock(ARGV[1])
local key = KEYS[1]
local f = redis.call('HMGET', key, 'id', 'run', 'cold', ARGV[5])
if f[1] ~= ARGV[2] or f[2] ~= ARGV[3] or (f[3] or '') ~= ARGV[10]
  or ARGV[8] ~= '' and redis.call('HGET', key, 'slots') ~= ARGV[8]
  or not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. ARGV[4], 1, true)
  or ARGV[9] ~= '' and (string.match(redis.call('INFO', 'stats'), '\nevicted_keys:(%d+)') or '0') ~= ARGV[9] then
  return { 0, now }
end

local pulse = tonumber(string.match(f[4] or '', '^%d+') or 0) + 1
redis.call('HSET', key, ARGV[5], int(pulse) .. ':' .. int(now))

if ARGV[7] ~= '0' then
  local some = redis.call('HRANDFIELD', key, ARGV[7], 'WITHVALUES')
  for i = 1, #some, 2 do
    local at = string.match(some[i + 1], '^%d+:(%d+)')
    if at and string.sub(some[i], 1, 2) == 'w:' and tonumber(at) < now - tonumber(ARGV[6]) then
      redis.call('HDEL', key, some[i])
    end
  end
end
return { 1, now, pulse }
