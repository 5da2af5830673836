-- strict-window and max-concurrent: a ZSET with the lease of each start. The specification is
-- src/rules/algorithms/held.rs.
--
-- Score (ms, rounded up): when the call ended; while it may be running, when its lease ends unless
-- it is renewed. Member: "PERMIT:UNITS".
--
-- Constants that no Lua file sets come from src/gate/scripts.rs, which takes their values from the
-- specification's constants.

local function held_member(limit, permit, cost)
  return string.format('%s:%d', permit, limit.calls and 1 or cost)
end

-- Reads the leases that count, as units and ends, in the order of their ends.
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

-- Estimates how much longer a running call takes: as long as other calls did. If it has already
-- taken longer, its lateness again, so that jobs don't ask every millisecond about a call that
-- takes a minute.
local function held_left(limit, ends_at)
  local elapsed = math.max(limit.now - math.max(ends_at - LEASE_MS, 0), 0)
  if elapsed < limit.usual then
    return limit.usual - elapsed
  end
  return math.max(math.min(elapsed - limit.usual, LOOK_MS), math.floor(limit.usual / 8), 1)
end

-- Returns when the `unit`-th unit becomes available. It counts from 1 and must exist.
local function held_leaves(limit, unit)
  held_read(limit)
  local units = 0
  for i, of_lease in ipairs(limit.leases) do
    units = units + of_lease
    if units >= unit then
      -- Ends are rounded up, so a call that ended within this millisecond counts until the next
      -- one.
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
      -- No call has ended yet: a call takes at least as long as the newest one so far. The duration
      -- of a call that has ended is not known.
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
    -- A unit starts when the unit that started `max` units before it becomes available.
    local turn, laps = (k - 1) % limit.max + 1, math.floor((k - 1) / limit.max)
    local leaving, first = limit.held + turn - limit.max, base
    if leaving > 0 then
      first = math.max(base, held_leaves(limit, leaving))
    end
    return first + laps_ms(laps, limit.span + limit.lap)
  end,

  -- A unit may start ahead of others if a lease is free: its next holder can't be predicted, since
  -- the duration of calls is an estimate. In every limit that can predict turns, the unit's turn
  -- must be about now.
  overtake = function(limits, waitlist, base, k, units)
    local calls, reach, guessed = waitlist_jobs(waitlist, k, units), limits_reach(limits), false
    for i = 1, #limits do
      local limit = limits[i]
      local of_units, of_calls = k, calls
      if SHARED then
        of_units, of_calls = SHARED.place(limits, waitlist, limit, k, units, calls)
      end
      if limit.algorithm.holds and limit.span == 0 then
        guessed = true
        if of_units > reach then
          return false
        end
      elseif limit.algorithm.nth(limit, base, limit.calls and of_calls or of_units) > limits.now + AHEAD_MS then
        return false
      end
    end
    return guessed
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
    -- A lease lasts for one span after its call. With a span of 0 it ends with the call.
    if redis.call('ZREM', key, held_member(limit, job.permit, job.cost)) == 1 and job.used and limit.span > 0 then
      redis.call('ZADD', key, int(limits.stamp), held_member(limit, job.permit, job.used))
      redis.call('PEXPIREAT', key, int(limits.stamp + LEASE_MS + limit.span))
    end
  end,

  keep = function(limit, limits, job, for_ms)
    -- A missing lease is taken again: this Redis may have lost data during the call.
    local key = KEYS[limit.key]
    local ends = limits.stamp + math.min(for_ms, LEASE_MS)
    redis.call('ZADD', key, int(ends), held_member(limit, job.permit, job.cost))
    -- Other leases may count longer than this one.
    redis.call('PEXPIREAT', key, int(limits.stamp + LEASE_MS + limit.span))
  end,
}
ALGORITHMS['strict-window'] = ALGORITHMS['max-concurrent']
