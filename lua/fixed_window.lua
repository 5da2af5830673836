-- fixed-window-algo: a STRING for each window aligned to the epoch, KEYS[limit.key] for the window limit.index and the
-- next key for the next one. The specification is src/rules/log/fixed.rs.

local function fixed_free(limit, at)
  local index = math.floor(at / limit.span)
  if at >= (index + 1) * limit.span - limit.margin then
    return 0
  end
  if index == limit.window then
    return math.max(limit.max - limit.held, 0)
  end
  return limit.max
end

ALGORITHMS['fixed-window-algo'] = {
  load = function(limit, limits, line, own)
    local now = limits.now
    local index = math.floor(now / limit.span)
    local ahead = index - limit.index
    if ahead ~= 0 and ahead ~= 1 then
      return false
    end
    limit.window_key = KEYS[limit.key + ahead]
    local value = redis.call('GET', limit.window_key)
    limit.known = value
    value = value or '0'
    if not string.match(value, '^%d+$') then
      wrong_value(limit.key + ahead, 'a count')
    end
    limit.window, limit.stored, limit.taken = index, tonumber(value), 0
    limit.held = limit.stored
    -- Before the newest window that was seen: the clock was stepped back, and what this window let pass may be
    -- forgotten.
    own.newest = own.newest or line.window
    if index < math.floor(own.newest / limit.span) then
      limit.held = math.max(limit.held, limit.max)
    end
    local start = index * limit.span
    if start > line.window then
      line.window = start
      line.changed = true
    end
    own.fixed = math.max(own.fixed or 0, limit.span)
    return true
  end,

  count = function(limit)
    return limit.held
  end,

  nth = function(limit, base, k)
    local free = fixed_free(limit, base)
    if k <= free then
      return base
    end
    local next_window = math.floor(base / limit.span) + 1
    return (next_window + math.floor((k - free - 1) / limit.max)) * limit.span
  end,

  take = function(limit, _, units)
    limit.held = limit.held + units
    limit.taken = limit.taken + units
  end,

  -- A window that is over is over.
  settle = function(limit, _, job, more)
    if math.floor(job.started / limit.span) == limit.window and limit.known then
      limit.taken = math.max(limit.taken + more, -limit.stored)
    end
  end,

  -- In the window of now it counts, too; as often as that is told.
  late = function(limit, _, job)
    if math.floor(job.started / limit.span) ~= limit.window then
      limit.taken = limit.taken + (limit.calls and 1 or job.cost)
    end
  end,

  save = function(limit)
    if limit.taken ~= 0 then
      if limit.known then
        -- It has the same expiry already.
        redis.call('SET', limit.window_key, int(limit.stored + limit.taken), 'KEEPTTL')
      else
        redis.call('SET', limit.window_key, int(limit.taken), 'PXAT', int((limit.window + 1) * limit.span))
      end
    end
  end,
}
