-- pulse: tells whether Redis still has all usage. It is the last call of a pipeline, whose
-- decisions count only if Redis has all of it. src/gate/epoch/stored.rs describes the hash,
-- src/gate/epoch/decide.rs what happens otherwise. Needs clock.lua before it.
--
-- KEYS[1]  the epoch (HASH)
--
-- ARGV[1]  a test's clock in microseconds since the Unix epoch; '' in production, for Redis's own
-- ARGV[2]  the epoch's ID, and
-- ARGV[3]  the server identity that it was confirmed for, both as the worker knows them
-- ARGV[4]  the replication history of that server: its master_replid
-- ARGV[5]  the worker's field
-- ARGV[6]  after how long without a pulse a worker is removed, in milliseconds
-- ARGV[7]  how many fields are checked for such workers
-- ARGV[8]  the slots that the epoch covers, as the worker knows them; '' without a cluster
-- ARGV[9]  the server's count of evicted keys, as the worker knows it; '' to skip this check
-- ARGV[10] the epoch's `cold`, as the worker knows it, which decided the permitted questions
--
-- Reply: integers.
-- [1]  1 if Redis has all usage; 0 if that is not certain, nothing was changed, and the reply ends
--      after [2]
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
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
