-- fixed-window-algo whose windows are days, weeks or months of a time zone: a STRING 'START,END,COUNT'
-- with the boundaries (ms) of the newest window and its units. The client computes the boundaries
-- around its estimate of the clock; see limits.lua. The specification is
-- src/rules/algorithms/calendar.rs.

-- Parses the boundaries, unless that is done.
local function calendar_parse(limit)
  if limit.starts then
    return
  end
  local starts, n = {}, 0
  for number in string.gmatch(limit.windows, '%d+') do
    n = n + 1
    if n == 1 then
      limit.mean = tonumber(number)
    elseif n == 2 then
      limit.slack = tonumber(number)
    else
      starts[n - 2] = (starts[n - 3] or 0) + tonumber(number)
    end
  end
  limit.starts = starts
end

-- Returns the start of the window of `now` and the known ends of windows from it on, or nil if the
-- boundaries are not those around `now`. The simulated starts of a shadow may be later.
local function calendar_around(limit, now, trial)
  local starts, first = limit.starts, 1
  if now < starts[1] then
    return nil
  end
  while first < #starts and starts[first + 1] <= now do
    first = first + 1
  end
  if first > #starts - KNOWN_WINDOWS and not trial then
    return nil
  end
  local start, ends = starts[first], {}
  for n = first + 1, math.min(first + KNOWN_WINDOWS, #starts) do
    ends[#ends + 1] = starts[n]
  end
  if first == #starts then
    start = start + math.floor((now - start) / limit.mean) * limit.mean
  end
  for n = #ends + 1, 3 do
    ends[n] = (ends[n - 1] or start) + limit.mean
  end
  return start, ends
end

-- Returns the end of the window that is `windows` after the one in force. If it is not known, the
-- estimate is never late.
local function calendar_end(limit, windows)
  local later, known = limit.later, #limit.later
  if windows == 0 then
    return limit.closes
  elseif windows <= known then
    return later[windows]
  end
  return (later[known] or limit.closes) + (windows - known) * limit.mean - limit.slack
end

-- Returns the distance, in windows, from the one in force to the first that ends after `at`.
local function calendar_until(limit, at)
  for windows = 0, KNOWN_WINDOWS do
    if calendar_end(limit, windows) > at then
      return windows
    end
  end
  return KNOWN_WINDOWS + math.floor((at - calendar_end(limit, KNOWN_WINDOWS)) / limit.mean) + 1
end

local function calendar_store(limit)
  local value = int(limit.opens) .. ',' .. int(limit.closes) .. ',' .. int(limit.held)
  redis.call('SET', KEYS[limit.key], value, 'PXAT', int(limit.closes + limit.span))
end

ALGORITHMS['calendar-window'] = {
  load = function(limit, limits)
    calendar_parse(limit)
    local now = limits.now
    local start, ends = calendar_around(limit, now, limits.trial)
    if not start then
      return false
    end
    local opens, closes, held, changed = start, ends[1], 0, false
    local value = redis.call('GET', KEYS[limit.key])
    limit.known = false
    if value then
      local stored, ends_at, count = string.match(value, '^(%d+),(%d+),(%d+)$')
      if not stored then
        wrong_value(limit.key, 'a window')
      end
      stored, ends_at, count = tonumber(stored), tonumber(ends_at), tonumber(count)
      if ends_at > start then
        if stored > ends[2] then
          -- The clock was stepped back by windows: the counts of those in between are forgotten, so
          -- nothing starts before a whole window has passed.
          opens, closes, changed = ends[2], ends[3], true
        elseif stored <= now and ends_at < closes and closes - stored <= limit.span then
          -- Another worker's windows end earlier: this one lasts until both have ended.
          opens, held, changed = stored, count, true
        elseif ends_at <= now then
          -- Another worker's windows differ by more: their units may belong to this one.
          opens, held = ends_at, count
        else
          limit.known = true
          opens, closes, held = stored, ends_at, count
        end
      end
    end
    limit.known = limit.known or changed
    limit.start, limit.next_start = start, ends[1]
    limit.opens, limit.closes, limit.held = opens, closes, held
    limit.later = {}
    for _, later in ipairs(ends) do
      if later > closes then
        limit.later[#limit.later + 1] = later
      end
    end
    if changed and limits.writing then
      calendar_store(limit)
    end
    return true
  end,

  count = function(limit)
    return limit.held
  end,

  nth = function(limit, base, k)
    local at = math.max(base, limit.opens)
    local windows = calendar_until(limit, at)
    local free = 0
    if at < calendar_end(limit, windows) - limit.margin then
      free = windows == 0 and math.max(limit.max - limit.held, 0) or limit.max
    end
    if k <= free then
      return at
    end
    return calendar_end(limit, windows + math.min(math.floor((k - free - 1) / limit.max), MAX_WINDOWS_AHEAD))
  end,

  take = function(limit, _, units)
    limit.held = limit.held + units
    limit.taken = true
  end,

  -- Windows in the past are not corrected.
  settle = function(limit, _, job, more)
    if limit.known and job.started >= limit.opens then
      limit.held = math.max(limit.held + more, 0)
      limit.taken = true
    end
  end,

  -- The call counts in the current window as well, each time it is reported.
  late = function(limit, _, job)
    if job.started < limit.opens then
      limit.held = limit.held + (limit.calls and 1 or job.cost)
      limit.taken = true
      limit.known = true
    end
  end,

  -- Returns true if a call that started at `started` counts in the clock's window.
  counts = function(limit, started)
    return started >= limit.start and started < limit.next_start
  end,

  save = function(limit)
    if limit.taken then
      calendar_store(limit)
    end
  end,
}
