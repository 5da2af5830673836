-- token-bucket-algo and leaky-bucket-algo: a STRING of six packed numbers: (1) the level at a time,
-- in tokens times the span; (2) that time (ms); (3) when the bucket is full; (4) its highest level
-- since another time; (5) that time; (6) its highest level in the minute or more before. The
-- specification is src/rules/algorithms/bucket.rs. Constants that no Lua file sets come from
-- src/gate/scripts.rs, which takes their values from the specification's constants.
local BUCKET_FORMAT, BUCKET_BYTES = '>i8I6I8i8I6i8', 44

-- Returns what a full bucket may hold beyond `burst` tokens at a start: the inflow during the
-- lateness that it forgives. If starts are kept apart, it is lower, so that the next start is at
-- least window / max and limit.apart later. Below 0, the next start waits longer than the refill
-- takes.
local function bucket_allowance(limit)
  local max = limit.max
  local forgiven = limit.margin * max
  if limit.apart == 0 then
    return forgiven
  end
  local apart = limit.apart * max
  -- The minimum inflow until the next start.
  local needed = limit.window + math.ceil(apart / 1000)
  if limit.burst == 1 then
    -- Starts are whole milliseconds apart, so this is not reached a millisecond earlier.
    needed = (math.ceil((1000 * limit.window + apart) / (1000 * max)) - 1) * max + 1
  end
  return math.min(forgiven, limit.span - needed)
end

-- Returns the highest level that a start finds. The bucket flows over above it.
local function bucket_highest_at_start(limit)
  return limit.burst * limit.span + bucket_allowance(limit)
end

-- Returns the level of a full bucket: `burst` tokens and the allowance.
local function bucket_most(limit)
  return limit.burst * limit.span + math.max(bucket_allowance(limit), 0)
end

-- Returns the lowest level.
local function bucket_least(limit)
  return -math.min(DEBT_MS * limit.max, DEBT)
end

local function bucket_refilled(limit, level, millis)
  return math.min(math.max(level, bucket_least(limit)) + millis * limit.max, bucket_most(limit))
end

ALGORITHMS['token-bucket-algo'] = {
  bucket = true,

  load = function(limit, limits)
    local now = limits.now
    local level, at, full, peak, since, before = 0, 0, 0, 0, 0, 0
    local value = redis.call('GET', KEYS[limit.key])
    if value then
      if #value ~= BUCKET_BYTES then
        wrong_value(limit.key, 'a level')
      end
      level, at, full, peak, since, before = struct.unpack(BUCKET_FORMAT, value)
    end
    if full <= now then
      level = bucket_most(limit)
    end
    -- A time later than now means that the clock was stepped back. The bucket refills from now on.
    limit.taken = at > now
    level = bucket_refilled(limit, level, now - math.min(at, now))
    if full <= now or since > now then
      since, peak, before = now, bucket_most(limit), bucket_most(limit)
    end
    -- The level has only risen since it was stored.
    peak = math.max(peak, level)
    if now >= since + 2 * PERIOD_MS then
      since, peak, before = now, level, level
    elseif now >= since + PERIOD_MS then
      since, peak, before = now, level, peak
    end
    limit.level, limit.since, limit.peak, limit.before = level, since, peak, before
    return true
  end,

  count = function(limit)
    return math.max(limit.burst - math.floor(limit.level / limit.span), 0)
  end,

  nth = function(limit, base, k)
    local wanted = k * limit.span
    if limit.burst == 1 then
      -- Each start but the first pays for its distance to the previous one.
      wanted = wanted + math.max(-bucket_allowance(limit), 0) * (math.max(k, 1) - 1)
    end
    local missing = wanted - bucket_refilled(limit, limit.level, base - limit.now)
    return base + math.ceil(math.max(missing, 0) / limit.max)
  end,

  take = function(limit, _, units)
    local level = math.min(limit.level, bucket_highest_at_start(limit))
    limit.level = math.max(level - units * limit.span, bucket_least(limit))
    limit.taken = true
  end,

  -- The call arrives now at the latest, so the next start keeps its distance from now.
  late = function(limit, _, job)
    local left = bucket_highest_at_start(limit) - (limit.calls and 1 or job.cost) * limit.span
    limit.level = math.max(math.min(limit.level, left), bucket_least(limit))
    limit.taken = true
  end,

  -- Without the charge, a bucket that was full in between would have overflowed. So only tokens are
  -- returned that still fit at its highest level since then, or that can't have flowed in again
  -- since.
  settle = function(limit, _, job, more)
    local tokens = -more * limit.span
    if tokens > 0 then
      local certain = tokens - math.max(limit.now - job.started, 0) * limit.max
      local room = 0
      if job.started >= limit.since then
        room = bucket_most(limit) - limit.peak
      elseif job.started + PERIOD_MS >= limit.since then
        room = bucket_most(limit) - math.max(limit.peak, limit.before)
      end
      tokens = math.min(tokens, math.max(room, certain, 0))
    end
    limit.level = math.max(math.min(limit.level + tokens, bucket_most(limit)), bucket_least(limit))
    limit.peak = math.max(limit.peak, limit.level)
    limit.taken = true
  end,

  hold = function(limit, until_ms)
    limit.level = math.max(math.min(limit.level, -(until_ms - limit.now) * limit.max), bucket_least(limit))
    limit.taken = true
  end,

  save = function(limit)
    if limit.taken then
      local full = math.min(limit.now + math.ceil((bucket_most(limit) - limit.level) / limit.max), LATEST_MS)
      redis.call('SET', KEYS[limit.key],
        struct.pack(BUCKET_FORMAT, limit.level, limit.now, full, limit.peak, limit.since, limit.before), 'PXAT', int(full))
    end
  end,
}

ALGORITHMS['leaky-bucket-algo'] = ALGORITHMS['token-bucket-algo']
