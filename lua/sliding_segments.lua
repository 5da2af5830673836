-- sliding-segments-algo: a STRING of packed numbers: the highest index of a segment whose units
-- were moved to an earlier one since the clock was stepped back, or 0; then pairs, the oldest
-- first: the index of a segment of limit.margin milliseconds, and the units started in it. The
-- specification is src/rules/algorithms/segments.rs.
local PULLED_FORMAT = '>I6'
local PULLED_BYTES = 6
local SEGMENT_FORMAT = '>I6I8'
local SEGMENT_BYTES = 14

-- Returns when units started in a segment no longer count.
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
      -- A segment beyond the clock means that the clock was stepped back. Its units count from now
      -- on.
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
    -- If the limit was lowered below the usage, only the last `max` units delay others.
    used = math.min(used, max)
    local free = max - used
    local turn, laps = (k - 1) % max, math.floor((k - 1) / max)
    -- A unit that starts when a segment no longer counts delays others this long.
    local lap = limit.span + 1
    if turn < free then
      if laps == 0 then
        return base
      end
      return segment_over(limit, math.floor(base / limit.margin)) + laps_ms(laps - 1, lap)
    end
    local rest, units = used - (turn - free + 1), 0
    for at = #indexes, first, -1 do
      units = units + counts[at]
      if units > rest then
        return segment_over(limit, indexes[at]) + laps_ms(laps, lap)
      end
    end
    return base + laps_ms(laps, lap)
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

  -- Units that no longer count are not corrected. Units of other jobs must not be returned: after a
  -- step of the clock, the job's units may be in another segment.
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
