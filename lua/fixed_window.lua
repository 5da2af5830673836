-- fixed-window-algo: a STRING for each window aligned to the epoch. The specification is src/rules/window.rs.
--
-- An algorithm offers log_load, log_free, log_nth, log_take and log_save, and the fields count and span of what
-- log_load returns. `limit` has max, window, guard and index: the index of the window that KEYS[2] belongs to;
-- KEYS[3] belongs to the next one.

-- The log at `now`; nil if the window of `now` is not among KEYS.
local function log_load(line, limit, now, stamp, writing)
  local index = math.floor(now / limit.window)
  local key = KEYS[2 + index - limit.index]
  if index < limit.index or not key then
    return nil
  end
  local value = redis.call('GET', key) or '0'
  if not string.match(value, '^%d+$') then
    error('WRONGTYPE the value is not a count')
  end
  local count = tonumber(value)
  -- Before the newest window that was seen: the clock was stepped back, and what this window let pass may be
  -- forgotten.
  if now < line.window then
    count = math.max(count, limit.max)
  end
  local start = index * limit.window
  if start > line.window then
    line.window = start
    line.changed = true
  end
  return {
    key = key, index = index, count = count, taken = 0, limit = limit, span = limit.window, now = now,
    remembered = line.window + limit.window,
  }
end

local function free_at(log, at)
  local index = math.floor(at / log.span)
  if at >= (index + 1) * log.span - log.limit.guard then
    return 0
  end
  if index == log.index then
    return math.max(log.limit.max - log.count, 0)
  end
  return log.limit.max
end

-- Units that may start now.
local function log_free(log)
  return free_at(log, log.now)
end

-- When the k-th next unit may start if nobody starts before `base`.
local function log_nth(log, base, k)
  local free = free_at(log, base)
  if k <= free then
    return base
  end
  local next_window = math.floor(base / log.span) + 1
  return (next_window + math.floor((k - free - 1) / log.limit.max)) * log.span
end

local function log_take(log, cost)
  log.count = log.count + cost
  log.taken = log.taken + cost
end

local function log_save(log)
  if log.taken > 0 then
    redis.call('INCRBY', log.key, int(log.taken))
    redis.call('PEXPIREAT', log.key, int((log.index + 1) * log.span))
  end
end
