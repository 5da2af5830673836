-- pulse: tells whether Redis still has all usage. It is the last call of a pipeline, whose
-- decisions count only if Redis has all of it. src/gate/epoch/stored.rs describes the hash,
-- src/gate/epoch/decide.rs what happens otherwise. Needs clock.lua before it.
--
-- KEYS[1]  the epoch (HASH)
--
-- ARGV[1]  the epoch's ID, and
-- ARGV[2]  the server identity that it was confirmed for, both as the worker knows them
-- ARGV[3]  the replication history of that server: its master_replid
-- ARGV[4]  the worker's field
-- ARGV[5]  after how long without a pulse a worker is removed, in milliseconds
-- ARGV[6]  how many fields are checked for such workers
-- ARGV[7]  the slots that the epoch covers, as the worker knows them; '' without a cluster
-- ARGV[8]  the server's count of evicted keys, as the worker knows it; '' to skip this check
-- ARGV[9]  the epoch's `cold`, as the worker knows it, which decided the permitted questions
--
-- Reply: integers.
-- [1]  1 if Redis has all usage; 0 if that is not certain, nothing was changed, and the reply ends
--      after [2]
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- [3]  the worker's pulse

local key = KEYS[1]
local f = redis.call('HMGET', key, 'id', 'run', 'cold', ARGV[4])
if f[1] ~= ARGV[1] or f[2] ~= ARGV[2] or (f[3] or '') ~= ARGV[9]
  or ARGV[7] ~= '' and redis.call('HGET', key, 'slots') ~= ARGV[7]
  or not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. ARGV[3], 1, true)
  or ARGV[8] ~= '' and (string.match(redis.call('INFO', 'stats'), '\nevicted_keys:(%d+)') or '0') ~= ARGV[8] then
  return { 0, now }
end

local pulse = tonumber(string.match(f[4] or '', '^%d+') or 0) + 1
redis.call('HSET', key, ARGV[4], int(pulse) .. ':' .. int(now))

if ARGV[6] ~= '0' then
  local some = redis.call('HRANDFIELD', key, ARGV[6], 'WITHVALUES')
  for i = 1, #some, 2 do
    local at = string.match(some[i + 1], '^%d+:(%d+)')
    if at and string.sub(some[i], 1, 2) == 'w:' and tonumber(at) < now - tonumber(ARGV[5]) then
      redis.call('HDEL', key, some[i])
    end
  end
end
return { 1, now, pulse }
