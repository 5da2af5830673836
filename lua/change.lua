-- change: what an operator changes for one tenant, at once for all workers.
-- The specification is State::change in src/rules/model.rs. Needs clock.lua, waitlist.lua and fair_queue.lua before
-- it.
--
-- KEYS[1]  the waitlist (HASH); for resume also the HASH of the API as a whole
-- KEYS[2…] for reset, where all of them are in one place: the five of the partition that all tenants share, as fair_queue.lua says
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  'pause', 'resume', 'limit', 'unlimit' or 'reset'
-- ARGV[3]  for pause and limit: for how long, in milliseconds from now; else 0
-- ARGV[4]  for limit and unlimit: the limit's name; else ''
-- ARGV[5]  for limit: its max; else 0
-- ARGV[6]  of a tenant, for reset: what the tenant is called where it waits for what all tenants share
--
-- Reply: until when the change is in force, in milliseconds since the epoch; 0 where it has no end.
--
-- Constants that no file here sets are those of the same names in the specification: src/gate/scripts.rs sets them.

local now = read_clock(ARGV[1])
local key, what, name = KEYS[1], ARGV[2], ARGV[4]
local until_ms = now + tonumber(ARGV[3])

-- The overrides without those that are over and without `name`, as text, with what was learned.
local function overrides_without()
  local stored = redis.call('HGET', key, 'overrides') or ''
  local text = ''
  for learned in string.gmatch(stored, '[%w-]+~[%d,]+;') do
    text = text .. learned
  end
  for other, set in pairs(overrides_parse(stored, now)) do
    if other ~= name and string.sub(other, 1, 1) ~= LEARNED_OF then
      text = text .. string.format('%s=%.0f@%.0f;', other, set.max, set.ends)
    end
  end
  return text
end

-- The tenant waits no longer for what all tenants share: FairQueue::leave in src/rules/fair_queue.rs.
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
  local set = string.format('%s=%s@%.0f;', name, ARGV[5], until_ms)
  redis.call('HSET', key, 'overrides', overrides_without() .. set)
elseif what == 'reset' then
  -- Also where there is no waitlist: the generation reaches those of the tenant's parts.
  local waitlist = waitlist_load(key, now)
  -- Newer than the waitlists of its parts that began in this very millisecond.
  waitlist_reset(waitlist, now + 1)
  -- What was learned of its limits is forgotten.
  local by_operators = string.gsub(redis.call('HGET', key, 'overrides') or '', '[%w-]+~[%d,]+;', '')
  if by_operators ~= '' then
    redis.call('HSET', key, 'overrides', by_operators)
  else
    redis.call('HDEL', key, 'overrides')
  end
  -- Its parts are reset by their next call; until then they are in nobody's way. The keys of fair_queue.lua go by this field.
  redis.call('HDEL', key, 'register')
  waitlist_save(waitlist, now + math.max(RESET_MS, redis.call('PTTL', key)) - KEEP_MS)
  if KEYS[2] then
    leave_fair_queue(ARGV[6])
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
