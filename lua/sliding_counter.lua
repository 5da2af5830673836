-- sliding-counter-algo: a STRING "INDEX:CURRENT:PREVIOUS": the counts of the window INDEX, aligned to the epoch, and of
-- the one before. The specification is src/rules/log/counter.rs.

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
    local window, current, previous =
      string.match(redis.call('GET', KEYS[limit.key]) or '0:0:0', '^(%d+):(%d+):(%d+)$')
    if not window then
      error('WRONGTYPE the value is not two counts')
    end
    limit.window, limit.current, limit.previous = tonumber(window), tonumber(current), tonumber(previous)
    -- Beyond the clock: it was stepped back, and what was counted counts from here.
    limit.window = math.min(limit.window, index)
    limit.current, limit.previous = counter_at(limit, index)
    limit.window = index
    return true
  end,

  -- limit.margin: in so many last milliseconds of a window the one before is out of sight.
  count = function(limit)
    local sight = limit.span - limit.margin
    return limit.current + math.ceil(limit.previous * math.max(sight - limit.now % limit.span, 0) / sight)
  end,

  nth = function(limit, base, k)
    local span, max = limit.span, limit.max
    local sight = span - limit.margin
    local index = math.floor(base / span)
    local from = base % span
    local current, previous = counter_at(limit, index)
    local most = math.max(max - current, 0)
    if k > most then
      local windows = math.floor((k - most - 1) / max)
      k = (k - most - 1) % max + 1
      index, current, previous, from = index + 1 + windows, 0, windows == 0 and current + most or max, 0
    end
    local since = 0
    if previous > 0 then
      since = sight - math.min(math.floor((max - current - k) * sight / previous), sight)
    end
    return index * span + math.max(from, since)
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
        string.format('%d:%d:%d', limit.window, limit.current, limit.previous),
        'PXAT', int((limit.window + 2) * limit.span))
    end
  end,
}
