-- change: applies an operator's change to one tenant, at once for all workers. The specification is
-- State::change in src/rules/gate/model.rs. Needs clock.lua, learned.lua, waitlist.lua and
-- fair_queue.lua before it.
--
-- KEYS[1]  the waitlist (HASH); for resume also the HASH of the whole API
-- KEYS[2…] for reset, if all tenants' keys are on one server: the five keys of the partition that
--          all tenants share (see fair_queue.lua)
--
-- ARGV[1]  'pause', 'resume', 'limit', 'unlimit' or 'reset'
-- ARGV[2]  for pause and limit: for how long, in milliseconds from now; else 0
-- ARGV[3]  for limit and unlimit: the limit's name; else ''
-- ARGV[4]  for limit: its max; else 0
-- ARGV[5]  for reset of a tenant: the tenant's name in the fair queue of the global partition
--
-- Reply: when the change ends, in milliseconds since the Unix epoch; 0 if it has no end.
--
-- Constants that no Lua file sets come from src/gate/scripts.rs, which takes their values from the
-- specification's constants.

local key, what, name = KEYS[1], ARGV[1], ARGV[3]
local until_ms = now + tonumber(ARGV[2])

-- Returns the overrides as text, with learned numbers, without expired ones and without `name`.
local function overrides_without()
  local stored = redis.call('HGET', key, 'overrides') or ''
  local text = ''
  for learned in string.gmatch(stored, '[%w-]+/%d+~[%d,]+;') do
    text = text .. learned
  end
  for other, set in pairs(learned_functions().overrides(stored, now)) do
    if other ~= name and string.sub(other, 1, 1) ~= LEARNED_OF then
      text = text .. string.format('%s=%.0f@%.0f;', other, set.max, set.ends)
    end
  end
  return text
end

-- Removes the tenant from the fair queue of the global partition: FairQueue::leave in
-- src/rules/gate/fair_queue.rs.
local function leave_fair_queue(flow)
  local partition = {}
  fair_queue_load(partition, flow, 2, now)
  local q = partition.fair_queue
  local front = q.stored and redis.call('ZSCORE', q.fronts, flow)
  if not front then
    return
  end
  q.front = tonumber(front)
  local last = tonumber(redis.call('ZSCORE', q.ends, flow) or front)
  q.waiting = q.waiting - (last - q.front) / STEP
  if q.waiting <= 0 then
    fair_queue_clear(q)
  else
    redis.call('ZREM', q.wides, flow)
    fair_queue_move(q, q.front, q.front)
    redis.call('PEXPIRE', q.idles, int(redis.call('PTTL', KEYS[2])))
  end
  redis.call('HSET', KEYS[2], 'register', fair_queue_pack(q))
end

if what == 'pause' then
  redis.call('HSET', key, 'paused', int(until_ms), 'paused-at', int(now))
elseif what == 'limit' then
  local set = string.format('%s=%s@%.0f;', name, ARGV[4], until_ms)
  redis.call('HSET', key, 'overrides', overrides_without() .. set)
elseif what == 'reset' then
  -- Reset works without a waitlist, too, since it also applies to the tenant's partitions.
  local waitlist = waitlist_load(key, now)
  -- Newer than waitlists of the tenant's partitions that began in this very millisecond.
  waitlist_reset(waitlist, now + 1)
  -- Forget the learned numbers of the tenant's limits.
  local by_operators = string.gsub(redis.call('HGET', key, 'overrides') or '', '[%w-]+/%d+~[%d,]+;', '')
  if by_operators ~= '' then
    redis.call('HSET', key, 'overrides', by_operators)
  else
    redis.call('HDEL', key, 'overrides')
  end
  -- The tenant's partitions are reset by their next call, and delay no other job until then. This
  -- field decides whether the keys of fair_queue.lua count.
  redis.call('HDEL', key, 'register')
  waitlist_write(waitlist, now + RESET_MS - KEEP_MS, 'reset', int(waitlist.generation))
  if KEYS[2] then
    leave_fair_queue(ARGV[5])
  end
  return 0
elseif redis.call('EXISTS', key) == 0 then
  return 0
elseif what == 'resume' then
  redis.call('HSET', key, 'paused', '0', 'blocked', '0')
  redis.call('HDEL', key, 'breaker')
  return 0
else
  redis.call('HSET', key, 'overrides', overrides_without())
  return 0
end
waitlist_keep(key, now, until_ms)
return until_ms
