-- Several limits at once. The specification is src/rules/model.rs.
--
-- Every script that knows limits has these before its own arguments:
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  the limits, packed, one after the other: as text, nine arguments for each, they would take six times as long.
--          Each: max: units in a window; the span in milliseconds: the window, with the guard where the algorithm counts
--          over both; its margin in milliseconds (fixed window: the guard; segments: the length of one; counter and buckets: the
--          lateness that they forgive); the window in milliseconds; by how much more than window / max starts of a bucket are apart, in
--          microseconds; the burst in units; what it may sink to by what is learned, 4294967295: it does not learn; the
--          unit: 1: calls, 0: cost, of a shadow 3 and 2; which of KEYS is its first; the index of the fixed
--          window that this key belongs to, 0 for the others; whose it is: 0: the waitlist's, n: that of the n-th shared
--          partition; its name; its algorithm
-- ARGV[#ARGV]  what shared_partitions.lua says, where any of the limits is shared; behind it what shadows.lua says, where any is a shadow

-- What shared_partitions.lua does with partitions that several waitlists share; nil where it is not part of the script.
local SHARED
-- What shadows.lua does with limits that deny nothing; as SHARED.
local SHADOWS

-- An algorithm is a table of functions, put into ALGORITHMS by its file:
-- load(limit, limits, waitlist, own)  what the store has of it at limits.now; nil if the window of now is not among KEYS.
--                                    `waitlist` is the HASH of the partition whose limit it is, `own` what all of its limits share
-- count(limit)               units that count against it
-- nth(limit, base, k)        when the k-th next unit may start if nobody starts before `base`, which is now or later
-- take(limit, limits, units, cost)  a job starts, with as job number limits.job; may return its number in the log
-- settle(limit, limits, job, more)  a job of settle.lua used so many units more (or fewer) than it was charged
-- late(limit, limits, job)   the call of a job of settle.lua came later than the guard covers; not all have it
-- hold(limit, until_ms)      nothing starts before then, and nothing is saved up meanwhile; only where an algorithm saves up
-- save(limit, limits)        writes what was taken
-- renew(limit, limits, job)  a job of settle.lua still holds its lease; only where the mark `holds` is set
-- and of the marks bucket (its capacity is the burst) and shared (all limits of
-- the algorithm have one log, which must remember the longest span).
local ALGORITHMS = {}

-- The value of KEYS[n] is not `what` it has to be. src/gate/refusal.rs has the words for it.
local function wrong_value(n, what)
  error('WRONGTYPE KEYS[' .. int(n) .. '] holds not ' .. what .. ';')
end

-- Members of the ZSET `key` are in the future, since the clock was stepped back: all with a score above `latest` get that one.
local function pull_back(key, latest)
  local chunk = 64
  local future = redis.call('ZRANGEBYSCORE', key, '(' .. int(latest), '+inf')
  for i = 1, #future, chunk do
    local args = {}
    for j = i, math.min(i + chunk - 1, #future) do
      args[#args + 1] = int(latest)
      args[#args + 1] = future[j]
    end
    redis.call('ZADD', key, unpack(args))
  end
end

-- What all limits of the partition share whose limit this is: `longest`, the longest span of those with one log, `log`, that
-- log, `newest`, the newest fixed window before this call, and `fixed`, the longest of these.
local function limits_own(limits, limit)
  return limit.partition and limits.partitions[limit.partition] or limits
end

-- The limits at `now`; nil if a fixed window of now is not among KEYS. `jobs`: how many the call decides for.
local function limits_load(waitlist, now, stamp, jobs, writing)
  local partitions = SHARED and SHARED.load(waitlist, now)
  if SHADOWS then
    partitions = SHADOWS.partitions(partitions)
  end
  local control = partitions and partitions.control or waitlist
  local overrides = control.overrides
  if writing and overrides and not next(overrides) then
    -- All of it is over: shortcuts are good again.
    redis.call('HDEL', control.key, 'overrides')
  end
  -- All fields at once: a table that grows takes longer.
  local limits = {
    now = now, stamp = stamp, jobs = jobs, writing = writing, most = 4294967295, usual = waitlist.usual,
    partitions = partitions, cost = false, permits = false, job = 0, longest = 0, log = false, newest = false, fixed = false,
  }
  local text, at = ARGV[2], 1
  while at <= #text do
    local max, span, margin, window, apart, burst, floor, unit, key, index, partition, name, algorithm
    max, span, margin, window, apart, burst, floor, unit, key, index, partition, name, algorithm, at =
      struct.unpack(LIMIT_FORMAT, text, at)
    local limit = {
      algorithm = ALGORITHMS[algorithm],
      max = max,
      span = span,
      margin = margin,
      window = window,
      apart = apart,
      burst = burst,
      calls = unit % 2 == 1,
      key = key,
      index = index,
      -- nil for the waitlist's own, as in all scripts without shared partitions: one field more, and the table doubles.
      partition = partition > 0 and partition or nil,
      now = now,
      ends = 0,
    }
    local own = limits_own(limits, limit)
    local set = overrides and unit < 2 and not own.everybody and overrides[name]
    if set then
      -- A burst that was the default of the old max becomes that of the new one. A leaky bucket's default is 1.
      if burst == max and algorithm ~= 'leaky-bucket-algo' then
        limit.burst = set.max
      end
      limit.max, limit.ends = set.max, set.ends
    end
    local home = limit.partition and own or waitlist
    local most = home.overrides and home.overrides[LEARNED_OF .. name]
    if most and math.max(most, floor) < limit.max then
      most = math.max(most, floor)
      if limit.burst == limit.max and algorithm ~= 'leaky-bucket-algo' then
        limit.burst = most
      end
      limit.max = most
    end
    if unit > 1 then
      limit.shadow = true
    elseif not limit.calls then
      limits.cost = true
      limits.most = math.min(limits.most, limit.algorithm.bucket and limit.burst or limit.max)
    end
    if limit.algorithm.shared then
      own.longest = math.max(own.longest, limit.span)
    end
    limits[#limits + 1] = limit
  end
  for i = 1, #limits do
    local limit = limits[i]
    local own = limits_own(limits, limit)
    local known = limit.partition and own or waitlist
    if limit.shadow and not limit.algorithm.shared then
      own = SHADOWS.own(own)
      known = own
    end
    if not limit.algorithm.load(limit, limits, known, own) then
      return nil
    end
  end
  return limits
end

-- How far behind the newest start a ticket is given up.
local function limits_reach(limits)
  local reach = 2
  for _, limit in ipairs(limits) do
    reach = math.max(reach, math.floor(limit.max * AHEAD_MS / math.max(limit.span, 1)))
  end
  return math.min(reach, MAX_REACH)
end

-- When all limits allow the next `units` units in `calls` calls, not before `base`, and the first of the limits that
-- allow them last.
local function limits_earliest(limits, base, units, calls)
  local latest, which = 0, 1
  for i = 1, #limits do
    local limit = limits[i]
    local at = limit.algorithm.nth(limit, base, limit.calls and calls or units)
    if at > latest then
      latest, which = at, i
    end
  end
  return latest, which
end

-- When the k-th unit of the waitlist may start, the last of a job of so many units, and which limit says so.
local function limits_turn(limits, waitlist, base, k, units)
  if SHARED then
    return SHARED.turn(limits, waitlist, base, k, units)
  end
  return limits_earliest(limits, base, k, waitlist_jobs(waitlist, k, units))
end

-- Whether the k-th unit of the waitlist, the last of a job of so many, may start in front of others: a lease is free, whose next holder
-- can't be told by time, since how long calls take is a guess. Of the limits that can tell, each has its turn about now.
local function limits_overtake(limits, waitlist, base, k, units)
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
end
