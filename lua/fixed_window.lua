-- fixed-window-algo: a STRING per window aligned to the Unix epoch. KEYS[limit.key] is the key of
-- the window limit.index, and the key after it belongs to the next window. The specification is
-- src/rules/algorithms/fixed.rs. Needs fixed_usage.lua before it.

local function fixed_free(limit, at)
  local index = math.floor(at / limit.span)
  local held = index == limit.window and limit.held or 0
  return fixed_room(at, index * limit.span, limit.span, limit.margin, limit.max, held)
end

-- Returns true if the usage of the window `start` is uncertain because the clock was stepped back
-- before the newest window seen. Usage of such a window may have been forgotten. A window that
-- begins a span plus the guard after the step was noticed is certain. The hash `key` stores, for
-- all limits, when the step was noticed, the newest window since then, and the newest window
-- before: FixedWindows::load in src/rules/algorithms/fixed.rs.
local function fixed_is_doubtful(limit, limits, key, own, start)
  local stepped = own.stepped
  if not stepped then
    local at, seen, newest = string.match(redis.call('HGET', key, 'stepped') or '', '^(%d+),(%d+),(%d+)$')
    stepped = { at = tonumber(at), seen = tonumber(seen), newest = tonumber(newest) }
    own.stepped = stepped
  end
  local again = stepped.newest ~= own.newest or limit.now < stepped.at or start + limit.span <= stepped.seen
  if again or start > stepped.seen then
    stepped.at, stepped.seen, stepped.newest = again and limit.now or stepped.at, start, own.newest
    if limits.writing then
      redis.call('HSET', key, 'stepped', int(stepped.at) .. ',' .. int(start) .. ',' .. int(own.newest))
    end
  end
  return start < stepped.at + limit.span + limit.margin
end

ALGORITHMS['fixed-window-algo'] = {
  load = function(limit, limits, waitlist, own)
    own.newest = own.newest or waitlist.window
    local ahead, start, order = fixed_find(limits.now, limit.span, limit.index, own.newest)
    if ahead ~= 0 and ahead ~= 1 then
      return false
    end
    limit.window_key = KEYS[limit.key + ahead]
    limit.known, limit.stored = fixed_read(limit.window_key)
    if not limit.stored then
      wrong_value(limit.key + ahead, 'a count')
    end
    limit.window, limit.held, limit.taken, limit.repeated = limit.index + ahead, limit.stored, 0, order < 0
    if order < 0 and fixed_is_doubtful(limit, limits, waitlist.key, own, start) then
      limit.held = math.max(limit.held, limit.max)
    elseif order > 0 then
      waitlist.window = math.max(waitlist.window, start)
      waitlist.changed = true
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
    return next_window * limit.span + laps_ms(math.floor((k - free - 1) / limit.max), limit.span)
  end,

  take = function(limit, _, units)
    limit.held = limit.held + units
    limit.taken = limit.taken + units
  end,

  -- Windows in the past are not corrected. Units of other jobs must not be returned: if the clock
  -- was stepped back, the job may have been counted in this window before.
  settle = function(limit, _, job, more)
    if limit.repeated and more < 0 then
      return
    end
    if math.floor(job.started / limit.span) == limit.window and limit.known then
      limit.taken = math.max(limit.taken + more, -limit.stored)
    end
  end,

  -- The call counts in the current window as well, each time it is reported.
  late = function(limit, _, job)
    if math.floor(job.started / limit.span) ~= limit.window then
      limit.taken = limit.taken + (limit.calls and 1 or job.cost)
    end
  end,

  -- Returns true if a call that started at `started` counts in the clock's window.
  counts = function(limit, started)
    return math.floor(started / limit.span) == limit.window
  end,

  save = function(limit)
    if limit.taken ~= 0 then
      fixed_write(limit.window_key, limit.known, limit.stored + limit.taken, (limit.window + 1) * limit.span)
    end
  end,
}
