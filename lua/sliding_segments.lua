-- sliding-segments-algo: a STRING of numbers, packed: the highest index of a segment whose units were pulled to an earlier one, since
-- the clock was stepped back, or 0; then pairs, the oldest first: the index of a segment of time, each limit.margin milliseconds
-- long, and the units that were started in it. The specification is src/rules/algorithms/segments.rs.
local PULLED_FORMAT, PULLED_BYTES = '>I6', 6
local SEGMENT_FORMAT, SEGMENT_BYTES = '>I6I8', 14

-- When what was started in a segment counts no more.
local function segment_over(limit, index)
  return (index + 1) * limit.margin + limit.span
end

ALGORITHMS['sliding-segments-algo'] = {
  load = function(limit, limits)
    local now = limits.now
    local current = math.floor(now / limit.margin)
    local value = redis.call('GET', KEYS[limit.key])
    local indexes, counts, last, held, pulled = {}, {}, 0, 0, 0
    limit.taken = false
    if value then
      if #value < PULLED_BYTES or (#value - PULLED_BYTES) % SEGMENT_BYTES ~= 0 then
        wrong_value(limit.key, 'segments')
      end
      pulled = struct.unpack(PULLED_FORMAT, value)
    end
    for at = PULLED_BYTES + 1, value and #value or 0, SEGMENT_BYTES do
      local index, units = struct.unpack(SEGMENT_FORMAT, value, at)
      -- Beyond the clock: it was stepped back, and what was counted counts from here.
      if index > current then
        pulled = math.max(pulled, index)
        index, limit.taken = current, true
      end
      if segment_over(limit, index) > now then
        if indexes[last] == index then
          counts[last] = counts[last] + units
        else
          last = last + 1
          indexes[last], counts[last] = index, units
        end
        held = held + units
      end
    end
    limit.current, limit.indexes, limit.counts, limit.held, limit.pulled = current, indexes, counts, held, pulled
    return true
  end,

  count = function(limit)
    return limit.held
  end,

  nth = function(limit, base, k)
    local max, indexes, counts = limit.max, limit.indexes, limit.counts
    local first, used = 1, limit.held
    while indexes[first] and segment_over(limit, indexes[first]) <= base do
      used = used - counts[first]
      first = first + 1
    end
    -- Of more than `max` (the limit was lowered) only the last `max` stand in the way.
    used = math.min(used, max)
    local free = max - used
    local turn, laps = (k - 1) % max, math.floor((k - 1) / max)
    -- Who starts when a segment no longer counts stands in the way for so long.
    local lap = limit.span + 1
    if turn < free then
      if laps == 0 then
        return base
      end
      return segment_over(limit, math.floor(base / limit.margin)) + (laps - 1) * lap
    end
    local rest, units = used - (turn - free + 1), 0
    for at = #indexes, first, -1 do
      units = units + counts[at]
      if units > rest then
        return segment_over(limit, indexes[at]) + laps * lap
      end
    end
    return base + laps * lap
  end,

  take = function(limit, _, units)
    local last = #limit.indexes
    if limit.indexes[last] == limit.current then
      limit.counts[last] = limit.counts[last] + units
    else
      limit.indexes[last + 1], limit.counts[last + 1] = limit.current, units
    end
    limit.held = limit.held + units
    limit.taken = true
  end,

  -- One that no longer counts is left alone. What others started must not be given back: after a step of the clock a start may be
  -- somewhere else.
  settle = function(limit, _, job, more)
    local index = math.floor(job.started / limit.margin)
    if index <= limit.pulled and more < 0 then
      return
    end
    for at = #limit.indexes, 1, -1 do
      if limit.indexes[at] == index then
        local units = math.max(limit.counts[at] + more, 0)
        limit.held = limit.held + units - limit.counts[at]
        limit.counts[at] = units
        limit.taken = true
        return
      end
    end
  end,

  save = function(limit)
    local last = #limit.indexes
    if limit.taken and last > 0 then
      local packed = { [0] = struct.pack(PULLED_FORMAT, limit.pulled) }
      for at = 1, last do
        packed[at] = struct.pack(SEGMENT_FORMAT, limit.indexes[at], limit.counts[at])
      end
      redis.call('SET', KEYS[limit.key], table.concat(packed, '', 0), 'PXAT', int(segment_over(limit, limit.indexes[last])))
    end
  end,
}
