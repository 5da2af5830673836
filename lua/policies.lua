-- policies: registers the policies that a worker has in force, and reads those of all workers.
-- src/gate/fleet/mod.rs explains the use. Needs clock.lua before it.
--
-- KEYS[1]  the registry (HASH): for each policy its text in the field ID, and in the field
--          "ID:times" its times "SINCE:USED:KEPT": when it was first and last registered, and how
--          long after that it is kept (ms)
--
-- ARGV[1]  the maximum number of policies
-- ARGV[2]  the number of policies that the worker has in force; 0 to only read
-- ARGV[3 + 3n], ARGV[4 + 3n], ARGV[5 + 3n]  policy n (from 0): its ID; how long it is kept, in
--          milliseconds; its text, or '' if the registry should have it
-- then the number of policies that need not be kept, and two arguments for each: its ID, and when
--          it was last registered (ms)
-- the rest: the IDs of policies whose text the worker knows
--
-- Reply:
-- [1]  1
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- [3]  'ok'; 'text' if the registry lacks a text of the worker's; 'full' if it has no room for one
--      more. In the last two cases nothing was registered, and the reply ends here
-- then four elements per policy: its ID, when it was first registered (ms), when it was last
--      registered (ms), and its text, '' if the worker knows it

local key, most, mine = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])

local policies, texts, number, longest = {}, {}, 0, 0
for _, field in ipairs(redis.call('HKEYS', key)) do
  texts[field] = true
  local id = string.match(field, '^(%x+):times$')
  local since, used, kept = string.match(id and redis.call('HGET', key, field) or '', '^(%d+):(%d+):(%d+)$')
  if since then
    -- A time later than now means that the clock was stepped back.
    policies[id] = { since = math.min(tonumber(since), now), used = math.min(tonumber(used), now), kept = tonumber(kept) }
    longest = math.max(longest, policies[id].kept)
  end
end
for i = 0, mine - 1 do
  longest = math.max(longest, tonumber(ARGV[4 + 3 * i]))
end
local after = 3 + 3 * mine
local last = after + 2 * tonumber(ARGV[after])
local superseded = {}
for i = after + 1, last, 2 do
  superseded[ARGV[i]] = tonumber(ARGV[i + 1])
end
for id, policy in pairs(policies) do
  if policy.used + longest < now or superseded[id] == policy.used then
    -- A caller that only reads may not have the right to write.
    if mine > 0 then
      redis.call('HDEL', key, id, id .. ':times')
    end
    policies[id] = nil
  else
    number = number + 1
  end
end

local full = false
for i = 0, mine - 1 do
  local id, text = ARGV[3 + 3 * i], ARGV[5 + 3 * i]
  if not policies[id] or not texts[id] then
    if text == '' then
      return { 1, now, 'text' }
    end
    number = number + 1
    full = number > most
  end
end
if full then
  return { 1, now, 'full' }
end
for i = 0, mine - 1 do
  local id, kept, text = ARGV[3 + 3 * i], tonumber(ARGV[4 + 3 * i]), ARGV[5 + 3 * i]
  local policy = policies[id] or { since = now }
  policy.used, policy.kept = now, kept
  policies[id] = policy
  if text ~= '' then
    redis.call('HSET', key, id, text)
  end
end

local known = {}
for i = last + 1, #ARGV do
  known[ARGV[i]] = true
end
local reply = { 1, now, 'ok' }
for id, policy in pairs(policies) do
  if mine > 0 then
    redis.call('HSET', key, id .. ':times',
      string.format('%.0f:%.0f:%.0f', policy.since, policy.used, policy.kept))
  end
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = id, policy.since, policy.used
  reply[n + 4] = known[id] and '' or redis.call('HGET', key, id) or ''
end
if mine > 0 then
  redis.call('PEXPIREAT', key, int(now + longest))
end
return reply
