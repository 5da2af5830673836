-- Several limits at once. The specification is src/rules/model.rs.
--
-- Every script that knows limits has these before its own arguments:
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  how many limits there are; then for each of them nine:
--          its name; its algorithm; max: units in a window; the span in milliseconds: the window, with the guard where
--          the algorithm counts over both; its margin in milliseconds (fixed window: the guard; counter and buckets: the
--          lateness that they forgive); the burst in units; the unit: 'calls' or 'cost'; which of KEYS is its first; the index of the
--          fixed window that this key belongs to, 0 for the others
--
-- An algorithm is a table of functions, put into ALGORITHMS by its file:
-- load(limit, limits, line)  what the store has of it at limits.now; nil if the window of now is not among KEYS
-- count(limit)               units that count against it
-- nth(limit, base, k)        when the k-th next unit may start if nobody starts before `base`, which is now or later
-- take(limit, limits, units, cost)  a job starts, with the permit limits.permit; may return its number in the log
-- settle(limit, limits, job, more)  a job of settle.lua used so many units more (or fewer) than it was charged
-- save(limit, limits)        writes what was taken
-- renew(limit, limits, job)  a job of settle.lua still holds its place; only where the mark `holds` is set
-- and of the marks bucket (its capacity is the burst), spaced (whose default is 1, not max) and shared (all limits of
-- the algorithm have one log, which must remember the longest span).
local ALGORITHMS = {}

local FIXED_ARGUMENTS = 2
local LIMIT_ARGUMENTS = 9

-- The limits at `now`; nil if a fixed window of now is not among KEYS. `jobs`: how many the call decides for. `whole`: what
-- is shared is kept as it is.
local function limits_load(line, now, stamp, jobs, writing, whole)
  local limits = { now = now, stamp = stamp, jobs = jobs, writing = writing, whole = whole, most = 4294967295, reach = 2, longest = 0 }
  for i = 1, tonumber(ARGV[2]) do
    local at = FIXED_ARGUMENTS + (i - 1) * LIMIT_ARGUMENTS
    local limit = {
      algorithm = ALGORITHMS[ARGV[at + 2]],
      max = tonumber(ARGV[at + 3]),
      span = tonumber(ARGV[at + 4]),
      margin = tonumber(ARGV[at + 5]),
      burst = tonumber(ARGV[at + 6]),
      calls = ARGV[at + 7] == 'calls',
      key = tonumber(ARGV[at + 8]),
      index = tonumber(ARGV[at + 9]),
      now = now,
      ends = 0,
    }
    local set = line.overrides and line.overrides[ARGV[at + 1]]
    if set then
      -- A burst that was the default of the old max becomes that of the new one.
      if limit.burst == limit.max and not limit.algorithm.spaced then
        limit.burst = set.max
      end
      limit.max, limit.ends = set.max, set.ends
    end
    if not limit.calls then
      limits.cost = true
      limits.most = math.min(limits.most, limit.algorithm.bucket and limit.burst or limit.max)
    end
    if limit.algorithm.shared then
      limits.longest = math.max(limits.longest, limit.span)
    end
    limits.reach = math.max(limits.reach, math.floor(limit.max * AHEAD_MS / math.max(limit.span, 1)))
    limits[i] = limit
  end
  limits.reach = math.min(limits.reach, MAX_REACH)
  for _, limit in ipairs(limits) do
    if not limit.algorithm.load(limit, limits, line) then
      return nil
    end
  end
  return limits
end

-- When all limits allow the next `units` units in `calls` calls, not before `base`, and the first of the limits that
-- allow them last.
local function limits_earliest(limits, base, units, calls)
  local latest, which = 0, 1
  for i, limit in ipairs(limits) do
    local at = limit.algorithm.nth(limit, base, limit.calls and calls or units)
    if at > latest then
      latest, which = at, i
    end
  end
  return latest, which
end

-- Units that may start at once now.
local function limit_free(limit)
  local free, most = 0, limit.algorithm.bucket and limit.burst or limit.max
  while free < most do
    local middle = math.ceil((free + most) / 2)
    if limit.algorithm.nth(limit, limit.now, middle) == limit.now then
      free = middle
    else
      most = middle - 1
    end
  end
  return free
end

-- When the k-th unit of the line may start, the last of a job of so many units, and which limit says so.
local function limits_turn(limits, line, base, k, units)
  return limits_earliest(limits, base, k, line_jobs(line, k, units))
end
