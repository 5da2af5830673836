-- Several limits at once. The specification is src/rules/gate/model.rs.
--
-- Every script that knows limits has these before its own arguments:
-- ARGV[1]  the packed limits: as text, with 14 arguments each, they would take six times as long.
--          Each has: its size in bytes; the unit: 1 for calls, 0 for cost, 3 and 2 for those of a
--          shadow; max, the units in a window; the span in milliseconds, which is the window, plus
--          the guard if the algorithm counts over both; its margin in milliseconds (fixed window:
--          the guard; segments: the length of one; counter and buckets: the lateness that they
--          forgive); the index in KEYS of its first key; the index of the fixed window that this
--          key belongs to, 0 for other algorithms; the window in milliseconds; for buckets: the
--          extra distance between two starts, beyond window / max, in microseconds; the burst in
--          units; the minimum that learning may lower it to, NEVER if it does not learn; its
--          partition: 0 for the waitlist's, n for the n-th shared one; its name; its algorithm;
--          for windows of a calendar these, all in milliseconds, as text, else '':
--          - mean: a window's mean length
--          - slack: how far n consecutive windows together may fall short of n means
--          - start of the current window
--          - lengths of the current window and the next ones
-- ARGV[#ARGV]  the argument of shared_partitions.lua if a limit is shared; after it that of
--              shadows.lua if there are shadows

-- Set by shared_partitions.lua for partitions that several waitlists share; nil in scripts without
-- it.
local SHARED
-- Set by shadows.lua for limits that deny nothing; nil in scripts without it.
local SHADOWS

-- An algorithm is a table of functions, which its file adds to ALGORITHMS:
-- load(limit, limits, waitlist, own)  reads its state at limits.now; returns nil if the window of
--                            now is not among KEYS. `waitlist` is the HASH of the limit's
--                            partition, `own` the state that all limits of the partition share:
--                            `longest`, the longest span of the limits that have one log together;
--                            `log`, that log; `newest`, the newest fixed window before this call;
--                            and `fixed`, the longest fixed window
-- count(limit)               returns the units that count against it
-- nth(limit, base, k)        returns when the k-th next unit may start if no job starts before
--                            `base`, which is now or later
-- take(limit, limits, units, cost)  admits job limits.job; may return its number in the log
-- settle(limit, limits, job, more)  corrects a job of settle.lua that used `more` units than
--                            charged (or fewer, below 0)
-- late(limit, limits, job)   handles a call of settle.lua that was later than the guard covers;
--                            optional
-- hold(limit, until_ms)      until `until_ms`, admits nothing and accumulates no quota; only in
--                            algorithms that accumulate
-- counts(limit, started)     returns true if a call that started at `started` is in the current
--                            window; only for aligned windows
-- save(limit, limits)        writes the charges
-- keep(limit, limits, job, for_ms)  renews the lease of a job of settle.lua; only with the mark
--                            `holds`
-- overtake(limits, waitlist, base, k, units)  returns true if the k-th unit of the waitlist, the
--                            last of a job of `units`, may start ahead of others; only in
--                            max-concurrent
-- and the marks `bucket` (its capacity is the burst), `burst_follows` (the burst is the max if no
-- other is set), `holds` (starts hold leases) and `shared` (all limits of the algorithm have one log,
-- which must reach back the longest span).
local ALGORITHMS = {}

-- Fails because the value of KEYS[n] is not `what` it must be. src/gate/refusal.rs parses this
-- text.
local function wrong_value(n, what)
  error('WRONGTYPE KEYS[' .. int(n) .. '] holds not ' .. what .. ';')
end

-- Returns the duration of `laps` turns of `lap` milliseconds, at most LATEST_MS.
local function laps_ms(laps, lap)
  return math.min(laps * lap, LATEST_MS)
end

-- Pulls back members of the ZSET `key` that are in the future because the clock was stepped back:
-- scores above `latest` become `latest`.
local function pull_back(key, latest)
  local chunk = 64
  local future = redis.call('ZRANGEBYSCORE', key, '(' .. int(latest), '+inf')
  for i = 1, #future, chunk do
    local args = {}
    for j = i, math.min(i + chunk - 1, #future) do
      args[#args + 1] = int(latest)
      args[#args + 1] = future[j]
    end
    redis.call('ZADD', key, unpack(args))
  end
end

-- Returns the new max, and the burst with it: a burst that is the default of `max` follows.
local function limits_with_max(algorithm, max, burst, new)
  return new, burst == max and algorithm.burst_follows and new or burst
end

-- Loads the limits at `now`, or returns nil if the current fixed window is not among KEYS. `jobs`
-- is the number of jobs that the call decides on. Unless `writing`, each limit also has its `name`,
-- its `floor`, the `length` of its window in milliseconds (algorithms may change `window`), the
-- configured `own_max` and `own_burst`, and `set`, the max without learning: the configuration's or
-- an operator's.
local function limits_load(waitlist, now, stamp, jobs, writing)
  local partitions = SHARED and SHARED.load(waitlist, now)
  if SHADOWS then
    partitions = SHADOWS.partitions(partitions)
  end
  local control = partitions and partitions.control or waitlist
  local overrides = control.overrides
  if writing and overrides and not next(overrides) then
    -- All overrides have expired, so shortcuts work again.
    redis.call('HDEL', control.key, 'overrides')
  end
  -- All fields at once, since a table that grows takes longer.
  local limits = {
    now = now, stamp = stamp, jobs = jobs, writing = writing, most = NEVER, usual = waitlist.usual,
    partitions = partitions, cost = false, permits = false, job = 0, longest = 0, log = false, newest = false, fixed = false,
  }
  local text, at = ARGV[1], 1
  while at <= #text do
    local unit, max, span, margin, key, index, window, apart, burst, floor, partition, name, algorithm, windows, _
    _, unit, max, span, margin, key, index, window, apart, burst, floor, partition, name, algorithm, windows, at =
      struct.unpack(LIMIT_FORMAT, text, at)
    local limit = {
      algorithm = ALGORITHMS[algorithm],
      max = max,
      span = span,
      margin = margin,
      window = window,
      apart = apart,
      burst = burst,
      calls = unit % 2 == 1,
      key = key,
      index = index,
      windows = windows,
      now = now,
      ends = 0,
    }
    -- Absent for the waitlist's own, as in all scripts without shared partitions: with more than 16
    -- fields, even nil, Lua would double the table.
    if partition > 0 then
      limit.partition = partition
    end
    -- `limits` has the common state of all limits without a shared partition.
    local own = limit.partition and partitions[partition] or limits
    local set = overrides and unit < 2 and not own.everybody and overrides[name]
    local home = limit.partition and own or waitlist
    local most = home.overrides and home.overrides[string.format('%s%s/%d', LEARNED_OF, name, window)]
    if set then
      -- If `foresees` is true, a unit that the override would let start after its end starts as the
      -- limit then lets it, but not before the end. Decisions do not foresee: such a turn may be
      -- early, and a job would overtake others.
      local algorithm = limit.algorithm
      local next_max, next_burst = limits_with_max(algorithm, max, burst, math.min(most and math.max(most, floor) or max, max))
      limit.max, limit.burst = limits_with_max(algorithm, max, burst, set.max)
      limit.ends, limits.foresees = set.ends, not writing
      limit.algorithm = setmetatable({
        nth = function(_, base, k)
          local at, set_max, set_burst = algorithm.nth(limit, base, k), limit.max, limit.burst
          if limits.foresees and at > set.ends then
            limit.max, limit.burst = next_max, next_burst
            at = math.min(at, math.max(algorithm.nth(limit, base, k), set.ends))
            limit.max, limit.burst = set_max, set_burst
          end
          return at
        end,
      }, { __index = algorithm })
    end
    if not writing then
      limit.name, limit.floor, limit.length = name, floor, window
      limit.own_max, limit.own_burst, limit.set = max, burst, set and set.max or max
    end
    if most and math.max(most, floor) < limit.max then
      limit.max, limit.burst = limits_with_max(limit.algorithm, limit.max, limit.burst, math.max(most, floor))
    end
    if unit > 1 then
      limit.shadow = true
    elseif not limit.calls then
      local size = limit.algorithm.bucket and limit.burst or limit.max
      limits.cost, limits.most = true, size < limits.most and size or limits.most
    end
    if limit.algorithm.shared and limit.span > own.longest then
      own.longest = limit.span
    end
    limits[#limits + 1] = limit
  end
  for i = 1, #limits do
    local limit = limits[i]
    local own = limit.partition and partitions[limit.partition] or limits
    local known = limit.partition and own or waitlist
    if limit.shadow and not limit.algorithm.shared then
      own = SHADOWS.own(own)
      known = own
    end
    if not limit.algorithm.load(limit, limits, known, own) then
      return nil
    end
  end
  return limits
end

-- Returns how many tickets behind the newest start a ticket is given up.
local function limits_reach(limits)
  local reach = 2
  for _, limit in ipairs(limits) do
    reach = math.max(reach, math.floor(limit.max * AHEAD_MS / math.max(limit.span, 1)))
  end
  return math.min(reach, MAX_REACH)
end

-- Returns when all limits allow the next `units` units in `calls` calls, not before `base`, and the
-- index of the first limit with the latest time.
local function limits_earliest(limits, base, units, calls)
  local latest, which = 0, 1
  for i = 1, #limits do
    local limit = limits[i]
    local at = limit.algorithm.nth(limit, base, limit.calls and calls or units)
    if at > latest then
      latest, which = at, i
    end
  end
  return latest, which
end

-- Returns when the k-th unit of the waitlist, the last of a job of `units`, may start, and the
-- index of the decisive limit.
local function limits_turn(limits, waitlist, base, k, units)
  if SHARED then
    return SHARED.turn(limits, waitlist, base, k, units)
  end
  return limits_earliest(limits, base, k, waitlist_jobs(waitlist, k, units))
end
