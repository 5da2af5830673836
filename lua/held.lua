-- strict-window and max-concurrent: a ZSET with the lease of each start. The specification is
-- src/rules/algorithms/held.rs.
--
-- Score: when the call ended (ms, rounded up), or, while it may be under way, when its lease ends unless it is kept
-- for longer.
-- Member: "PERMIT:UNITS".
--
-- Constants that no file here sets are those of the same names in the specification: src/gate/scripts.rs sets them.

local function held_member(limit, permit, cost)
  return string.format('%s:%d', permit, limit.calls and 1 or cost)
end

-- The leases that count, the first to end first: units and ends.
local function held_read(limit)
  if limit.leases then
    return
  end
  limit.leases, limit.ends_at = {}, {}
  local found = redis.call('ZRANGEBYSCORE', KEYS[limit.key], '(' .. int(limit.now - limit.span), '+inf', 'WITHSCORES')
  for i = 1, #found, 2 do
    limit.leases[#limit.leases + 1] = tonumber(string.match(found[i], ':(%d+)$'))
    limit.ends_at[#limit.ends_at + 1] = tonumber(found[i + 1])
  end
end

-- How long a call that is under way may still take: as long as others did or, where it has taken longer, as long again as
-- it is late, so that nobody looks every millisecond for a call that takes a minute.
local function held_left(limit, ends_at)
  local elapsed = math.max(limit.now - math.max(ends_at - LEASE_MS, 0), 0)
  if elapsed < limit.usual then
    return limit.usual - elapsed
  end
  return math.max(math.min(elapsed - limit.usual, LOOK_MS), math.floor(limit.usual / 8), 1)
end

-- When the `unit`-th unit (from 1, and there is one) leaves.
local function held_leaves(limit, unit)
  held_read(limit)
  local units = 0
  for i, of_lease in ipairs(limit.leases) do
    units = units + of_lease
    if units >= unit then
      -- An end is rounded up, so a call that ended within this millisecond counts until the next one.
      if limit.ends_at[i] <= limit.now + 1 then
        return limit.ends_at[i] + limit.span
      end
      return limit.now + held_left(limit, limit.ends_at[i]) + limit.span
    end
  end
  return limit.now + limit.usual + limit.span
end

ALGORITHMS['max-concurrent'] = {
  holds = true,

  load = function(limit, limits)
    local key = KEYS[limit.key]
    if limits.writing then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', int(limits.now - limit.span))
      -- No lease ends later than LEASE_MS from now.
      local last = redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
      if last[1] and tonumber(last[2]) > limits.stamp + LEASE_MS then
        pull_back(key, limits.stamp + LEASE_MS)
        redis.call('PEXPIREAT', key, int(limits.stamp + LEASE_MS + limit.span))
      end
    end
    limit.usual, limit.taken, limit.held = math.max(limits.usual, 1), {}, 0
    if limit.calls then
      limit.held = redis.call('ZCOUNT', key, '(' .. int(limits.now - limit.span), '+inf')
    else
      held_read(limit)
      for _, units in ipairs(limit.leases) do
        limit.held = limit.held + units
      end
    end
    limit.lap = limit.usual
    if limits.usual == 0 and limit.held > 0 then
      -- None has ended yet: a call takes as long as the newest has, at least. Of one that has ended nobody knows how long it took.
      held_read(limit)
      local newest = limit.ends_at[#limit.ends_at]
      if newest > limit.now + 1 then
        limit.lap = math.max(limit.now - math.max(newest - LEASE_MS, 0), 1)
      end
    end
    return true
  end,

  count = function(limit)
    return limit.held
  end,

  nth = function(limit, base, k)
    -- A unit starts when the one that started max units before it leaves.
    local turn, laps = (k - 1) % limit.max + 1, math.floor((k - 1) / limit.max)
    local leaving, first = limit.held + turn - limit.max, base
    if leaving > 0 then
      first = math.max(base, held_leaves(limit, leaving))
    end
    return first + laps * (limit.span + limit.lap)
  end,

  take = function(limit, limits, units, cost)
    limit.held = limit.held + units
    limit.taken[#limit.taken + 1] = int(limits.stamp + LEASE_MS)
    limit.taken[#limit.taken + 1] = held_member(limit, limits.permits .. ':' .. int(limits.job), cost)
  end,

  save = function(limit, limits)
    local most = 4000
    for i = 1, #limit.taken, most do
      redis.call('ZADD', KEYS[limit.key], unpack(limit.taken, i, math.min(i + most - 1, #limit.taken)))
    end
    if #limit.taken > 0 then
      redis.call('PEXPIREAT', KEYS[limit.key], int(limits.stamp + LEASE_MS + limit.span))
    end
  end,

  settle = function(limit, limits, job)
    local key = KEYS[limit.key]
    -- A lease lasts for a span after its call; where that is none, nothing is left of it.
    if redis.call('ZREM', key, held_member(limit, job.permit, job.cost)) == 1 and job.used and limit.span > 0 then
      redis.call('ZADD', key, int(limits.stamp), held_member(limit, job.permit, job.used))
      redis.call('PEXPIREAT', key, int(limits.stamp + LEASE_MS + limit.span))
    end
  end,

  keep = function(limit, limits, job, for_ms)
    -- A lease that is not there is taken again: this Redis may have lost its memory while the call was under way.
    local key = KEYS[limit.key]
    local ends = limits.stamp + math.min(for_ms, LEASE_MS)
    redis.call('ZADD', key, int(ends), held_member(limit, job.permit, job.cost))
    -- Other leases may count for longer than this one.
    redis.call('PEXPIREAT', key, int(limits.stamp + LEASE_MS + limit.span))
  end,
}
ALGORITHMS['strict-window'] = ALGORITHMS['max-concurrent']
