-- token-bucket-algo and leaky-bucket-algo: a STRING of packed numbers: (1) the level at a time; (2)
-- that time (ms); (3) when the bucket is full, even if its size follows another max by then; (4)
-- its highest level since another time; (5) that time; (6) its highest level in the minute or more
-- before. A level is two numbers: whole tokens, and a part of the next one, in `span`ths. A level
-- times the span would not be exact in a double. The specification is
-- src/rules/algorithms/bucket.rs. Constants that no Lua file sets come from src/gate/scripts.rs,
-- which takes their values from the specification's constants. The block ends the functions' scope:
-- a script can have 200 local variables.
do
  local BUCKET_FORMAT, BUCKET_BYTES = '>i8I4I6I8i8I4I6i8I4', 56

  local function level_sum(limit, level, part, more, more_part)
    part = part + more_part
    if part >= limit.span then
      return level + more + 1, part - limit.span
    end
    return level + more, part
  end

  local function level_difference(limit, level, part, less, less_part)
    part = part - less_part
    if part < 0 then
      return level - less - 1, part + limit.span
    end
    return level - less, part
  end

  local function level_min(level, part, other, other_part)
    if level < other or level == other and part < other_part then
      return level, part
    end
    return other, other_part
  end

  local function level_max(level, part, other, other_part)
    if level > other or level == other and part > other_part then
      return level, part
    end
    return other, other_part
  end

  -- Returns what flows in during this time.
  local function bucket_inflow(limit, millis)
    return muldiv(millis, limit.max, limit.span)
  end

  -- Returns how long it takes until this much has flowed in, in milliseconds, rounded up.
  local function bucket_millis(limit, level, part)
    local millis, rest = muldiv(level, limit.span, limit.max)
    return math.min(millis + math.ceil((rest + part) / limit.max), LATEST_MS)
  end

  -- Returns what a full bucket may hold beyond `burst` tokens at a start: the inflow during the
  -- lateness that it forgives. If starts are kept apart, it is lower, so that the next start is at
  -- least window / max and limit.apart later. Below 0, the next start waits longer than the refill
  -- takes.
  local function bucket_allowance(limit)
    local max, apart = limit.max, limit.apart
    local forgiven, forgiven_part = bucket_inflow(limit, limit.margin)
    if apart == 0 then
      return forgiven, forgiven_part
    end
    -- The minimum inflow until the next start.
    local needed, part
    if limit.burst == 1 then
      -- Starts are whole milliseconds apart, so this is not reached a millisecond earlier.
      local micros, rest = muldiv(1000, limit.window, max)
      local millis = math.floor((micros + apart) / 1000)
      if rest == 0 and (micros + apart) % 1000 == 0 then
        millis = millis - 1
      end
      needed, part = bucket_inflow(limit, millis)
      needed, part = level_sum(limit, needed, part, 0, 1)
    else
      needed, part = muldiv(apart, max, 1000 * limit.span)
      needed, part = level_sum(limit, needed, math.ceil(part / 1000), 0, limit.window)
    end
    return level_min(forgiven, forgiven_part, level_difference(limit, 1, 0, needed, part))
  end

  -- Returns the highest level that a start finds. The bucket flows over above it.
  local function bucket_highest_at_start(limit)
    local allowance, part = bucket_allowance(limit)
    return limit.burst + allowance, part
  end

  -- Returns the level of a full bucket: `burst` tokens and the allowance.
  local function bucket_most(limit)
    local allowance, part = bucket_allowance(limit)
    if allowance < 0 then
      return limit.burst, 0
    end
    return limit.burst + allowance, part
  end

  -- Returns a level that is not below the lowest one.
  local function bucket_above_least(limit, level, part)
    if level >= 0 then
      return level, part
    end
    local debt, debt_part = bucket_inflow(limit, DEBT_MS)
    debt, debt_part = level_min(debt, debt_part, DEBT, 0)
    return level_max(level, part, level_difference(limit, 0, 0, debt, debt_part))
  end

  local function bucket_refilled(limit, level, part, millis)
    level, part = bucket_above_least(limit, level, part)
    local inflow, inflow_part = bucket_inflow(limit, millis)
    level, part = level_sum(limit, level, part, inflow, inflow_part)
    return level_min(level, part, bucket_most(limit))
  end

  ALGORITHMS['token-bucket-algo'] = {
    bucket = true,

    load = function(limit, limits)
      local now = limits.now
      local level, part, at, full, peak, peak_part, since, before, before_part = 0, 0, 0, 0, 0, 0, 0, 0, 0
      local value = redis.call('GET', KEYS[limit.key])
      if value then
        if #value ~= BUCKET_BYTES then
          wrong_value(limit.key, 'a level')
        end
        level, part, at, full, peak, peak_part, since, before, before_part = struct.unpack(BUCKET_FORMAT, value)
      end
      local most, most_part = bucket_most(limit)
      if full <= now then
        level, part = most, most_part
      end
      -- A time later than now means that the clock was stepped back. The bucket refills from now
      -- on.
      limit.taken = at > now
      level, part = bucket_refilled(limit, level, part, now - math.min(at, now))
      if full <= now or since > now then
        since, peak, peak_part, before, before_part = now, most, most_part, most, most_part
      end
      -- The level has only risen since it was stored.
      peak, peak_part = level_max(peak, peak_part, level, part)
      if now >= since + 2 * PERIOD_MS then
        since, peak, peak_part, before, before_part = now, level, part, level, part
      elseif now >= since + PERIOD_MS then
        since, peak, peak_part, before, before_part = now, level, part, peak, peak_part
      end
      limit.level, limit.part, limit.since = level, part, since
      limit.peak, limit.peak_part, limit.before, limit.before_part = peak, peak_part, before, before_part
      return true
    end,

    count = function(limit)
      return math.max(limit.burst - limit.level, 0)
    end,

    nth = function(limit, base, k)
      local millis, rest = muldiv(k, limit.span, limit.max)
      if limit.burst == 1 then
        -- Each start but the first pays for its distance to the previous one.
        local each, part = level_difference(limit, 0, 0, bucket_allowance(limit))
        if each >= 0 then
          local more, more_rest = muldiv(each * limit.span + part, math.max(k, 1) - 1, limit.max)
          millis, rest = millis + more, rest + more_rest
        end
      end
      local level, part = bucket_refilled(limit, limit.level, limit.part, base - limit.now)
      local sign = level < 0 and -1 or 1
      local saved, saved_rest = muldiv(sign * level, limit.span, limit.max)
      millis = millis - sign * saved + math.ceil((rest - sign * saved_rest - part) / limit.max)
      return base + math.min(math.max(millis, 0), LATEST_MS)
    end,

    take = function(limit, _, units)
      local level, part = level_min(limit.level, limit.part, bucket_highest_at_start(limit))
      limit.level, limit.part = bucket_above_least(limit, level - units, part)
      limit.taken = true
    end,

    -- The call arrives now at the latest, so the next start keeps its distance from now.
    late = function(limit, _, job)
      local left, part = bucket_highest_at_start(limit)
      left, part = level_min(left - (limit.calls and 1 or job.cost), part, limit.level, limit.part)
      limit.level, limit.part = bucket_above_least(limit, left, part)
      limit.taken = true
    end,

    -- A bucket that was full after the start would have overflowed without the charge. So this
    -- returns only tokens that fit above the highest level since the start, or that can't have
    -- flowed in again.
    settle = function(limit, _, job, more)
      local tokens, tokens_part = -more, 0
      if tokens > 0 then
        local room, room_part = 0, 0
        if job.started + PERIOD_MS >= limit.since then
          local peak, peak_part = limit.peak, limit.peak_part
          if job.started < limit.since then
            peak, peak_part = level_max(peak, peak_part, limit.before, limit.before_part)
          end
          local most, most_part = bucket_most(limit)
          room, room_part = level_difference(limit, most, most_part, peak, peak_part)
        end
        local inflow, inflow_part = bucket_inflow(limit, math.max(limit.now - job.started, 0))
        local certain, certain_part = level_difference(limit, tokens, 0, inflow, inflow_part)
        room, room_part = level_max(room, room_part, certain, certain_part)
        if room < 0 then
          room, room_part = 0, 0
        end
        tokens, tokens_part = level_min(tokens, 0, room, room_part)
      end
      local level, part = level_sum(limit, limit.level, limit.part, tokens, tokens_part)
      level, part = level_min(level, part, bucket_most(limit))
      limit.level, limit.part = bucket_above_least(limit, level, part)
      limit.peak, limit.peak_part = level_max(limit.peak, limit.peak_part, limit.level, limit.part)
      limit.taken = true
    end,

    hold = function(limit, until_ms)
      local level, part = level_difference(limit, 0, 0, bucket_inflow(limit, until_ms - limit.now))
      level, part = level_min(limit.level, limit.part, level, part)
      limit.level, limit.part = bucket_above_least(limit, level, part)
      limit.taken = true
    end,

    save = function(limit)
      if limit.taken then
        local most, most_part = bucket_most(limit)
        local missing, part = level_difference(limit, most, most_part, limit.level, limit.part)
        local wait = bucket_millis(limit, missing, part)
        if limit.algorithm.burst_follows and limit.burst == limit.max then
          -- The end of a lower max makes the bucket larger, and it may not be full then.
          wait = math.max(wait, limit.span + limit.margin)
        end
        local full = math.min(limit.now + wait, LATEST_MS)
        redis.call('SET', KEYS[limit.key],
          struct.pack(BUCKET_FORMAT, limit.level, limit.part, limit.now, full, limit.peak, limit.peak_part, limit.since, limit.before,
            limit.before_part), 'PXAT', int(full))
      end
    end,
  }

  -- The default burst of a token bucket is its max, of a leaky bucket 1.
  ALGORITHMS['leaky-bucket-algo'] = {}
  for name, value in pairs(ALGORITHMS['token-bucket-algo']) do
    ALGORITHMS['leaky-bucket-algo'][name] = value
  end
  ALGORITHMS['token-bucket-algo'].burst_follows = true
end
