-- sliding-counter-algo: a STRING "SPAN:INDEX:CURRENT:PREVIOUS": the counts of the window INDEX, of SPAN ms and aligned
-- to the epoch, and of the one before. The specification is src/rules/log/counter.rs.

-- How many more a window will let start.
local function counter_most(limit, current, previous)
  return math.max(limit.max - current - math.ceil(previous / limit.span), 0)
end

-- The counts in the window `index`, if nobody starts before.
local function counter_at(limit, index)
  local later = index - limit.window
  if later == 0 then
    return limit.current, limit.previous
  elseif later == 1 then
    return 0, limit.current
  end
  return 0, 0
end

ALGORITHMS['sliding-counter-algo'] = {
  load = function(limit, limits)
    local now = limits.now
    local index = math.floor(now / limit.span)
    local span, window, current, previous =
      string.match(redis.call('GET', KEYS[limit.key]) or '0:0:0:0', '^(%d+):(%d+):(%d+):(%d+)$')
    if not span then
      error('WRONGTYPE the value is not two counts')
    end
    span = tonumber(span)
    limit.window, limit.current, limit.previous = tonumber(window), tonumber(current), tonumber(previous)
    if (limit.window + 2) * span <= now then
      limit.current, limit.previous = 0, 0
    elseif span ~= limit.span then
      -- Both may lie in the window of the new length.
      limit.window, limit.current, limit.previous = index, limit.current + limit.previous, 0
    end
    -- Beyond the clock: it was stepped back, and what was counted counts from here.
    limit.window = math.min(limit.window, index)
    limit.current, limit.previous = counter_at(limit, index)
    limit.window = index
    return true
  end,

  count = function(limit)
    local left = limit.span - limit.now % limit.span
    return limit.current + math.ceil(limit.previous * left / limit.span)
  end,

  nth = function(limit, base, k)
    local span, max = limit.span, limit.max
    local index = math.floor(base / span)
    local from = base % span
    local current, previous = counter_at(limit, index)
    while true do
      local most = counter_most(limit, current, previous)
      if k <= most then
        local since = 0
        if previous > 0 then
          since = span - math.min(math.floor((max - current - k) * span / previous), span)
        end
        return index * span + math.max(from, since)
      end
      k = k - most
      index, current, previous, from = index + 1, 0, current + most, 0
      -- From here on windows repeat in pairs, sooner or later: whole pairs are skipped.
      local first = counter_most(limit, 0, previous)
      local second = counter_most(limit, 0, first)
      if second == previous then
        local pairs_of = math.floor((k - 1) / (first + second))
        k = k - pairs_of * (first + second)
        index = index + 2 * pairs_of
      end
    end
  end,

  take = function(limit, _, units)
    limit.current = limit.current + units
    limit.taken = true
  end,

  settle = function(limit, _, job, more)
    local back = limit.window - math.floor(job.started / limit.span)
    if back == 0 then
      limit.current = math.max(limit.current + more, 0)
    elseif back == 1 then
      limit.previous = math.max(limit.previous + more, 0)
    else
      return
    end
    limit.taken = true
  end,

  save = function(limit)
    if limit.taken then
      redis.call('SET', KEYS[limit.key],
        string.format('%.0f:%.0f:%.0f:%.0f', limit.span, limit.window, limit.current, limit.previous),
        'PXAT', int((limit.window + 2) * limit.span))
    end
  end,
}
