-- sliding-counter-algo: a STRING of three packed numbers: the index of a window, aligned to the
-- Unix epoch, its count, and the count of the window before. The specification is
-- src/rules/algorithms/counter.rs.
local COUNTER_FORMAT = '>I6I8I8'
local COUNTER_BYTES = 22

-- Returns the counts in the window `index` and the one before, if no job starts until then.
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
    limit.stored, limit.current, limit.previous = 0, 0, 0
    local value = redis.call('GET', KEYS[limit.key])
    if value then
      if #value ~= COUNTER_BYTES then
        wrong_value(limit.key, 'two counts')
      end
      limit.stored, limit.current, limit.previous = struct.unpack(COUNTER_FORMAT, value)
    end
    -- A window beyond the clock means that the clock was stepped back. Its count counts from now
    -- on.
    limit.window = math.min(limit.stored, index)
    limit.current, limit.previous = counter_at(limit, index)
    limit.window = index
    return true
  end,

  -- The previous window does not count during the last limit.margin milliseconds of a window.
  count = function(limit)
    local sight = limit.span - limit.margin
    local weighted, rest = muldiv(limit.previous, math.max(sight - limit.now % limit.span, 0), sight)
    return limit.current + weighted + (rest > 0 and 1 or 0)
  end,

  nth = function(limit, base, k)
    local span, max = limit.span, limit.max
    local sight = span - limit.margin
    local index = math.floor(base / span)
    local from = base % span
    local current, previous = counter_at(limit, index)
    local most = math.max(max - current, 0)
    if k > most then
      local windows = math.min(math.floor((k - most - 1) / max), math.floor(LATEST_MS / span))
      k = (k - most - 1) % max + 1
      index, current, previous, from = index + 1 + windows, 0, windows == 0 and current + most or max, 0
    end
    local since, room = 0, max - current - k
    if previous > room then
      since = sight - muldiv(room, sight, previous)
    end
    return index * span + math.max(from, since)
  end,

  take = function(limit, _, units)
    limit.current = limit.current + units
    limit.taken = true
  end,

  -- Counts as if as many units had started as an even flow admits.
  hold = function(limit, until_ms)
    local flows = muldiv(until_ms - limit.now, limit.max, limit.span)
    limit.current = math.max(limit.current, math.min(limit.current + flows, limit.max))
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
      local value = struct.pack(COUNTER_FORMAT, limit.window, limit.current, limit.previous)
      if limit.stored == limit.window then
        -- The key has the right expiry already.
        redis.call('SET', KEYS[limit.key], value, 'KEEPTTL')
      else
        redis.call('SET', KEYS[limit.key], value, 'PXAT', int((limit.window + 2) * limit.span))
      end
    end
  end,
}
