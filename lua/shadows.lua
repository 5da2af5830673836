-- Shadow limits: charged for each start, and asked for nothing. The specification is src/rules/shadow.rs. Only in scripts for limits of
-- which some are shadows; between shared_partitions.lua and the algorithms.
--
-- Shadows come behind the other limits; limits.lua tells them by their unit. What they count is kept as for any limit. Each has three keys
-- more, those of its trial: its starts as they would have been.
-- 1  a STRING of seven numbers, packed: since when (ms); starts; those that would have waited; those of them that would have for more
--    than MOST_BEHIND_MS, or cost more than the whole limit; the longest wait of the others (ms); the last start as it would have been
--    (ms); when it last heard of one (ms)
-- 2  what the algorithm keeps of these starts, at the times that they would have had
-- 3  a HASH beside that, where the algorithm has one
--
-- The very last argument is taken from ARGV. It is packed: which of KEYS is the first of all these; how many partitions there are
-- in which shadows alone count. Their numbers begin with BESIDE.
--
-- Constants that no file here sets are those of the same names in the specification: src/gate/scripts.rs sets them.
local BESIDE = 128
local TRIAL_FORMAT, TRIAL_BYTES = '>I6I6I6I6I6I6I6', 42
local FIRST_TRIAL, BESIDES = struct.unpack('>I8I1', table.remove(ARGV))

-- What the store has of the trial of the n-th shadow (from 1) at `now`.
local function trial_load(limit, n, now)
  local key = FIRST_TRIAL + 3 * (n - 1)
  local trial = {
    limit = limit, key = key, since = now, starts = 0, waited = 0, never = 0, worst = 0, at = 0, heard = 0,
    -- What this call adds.
    more_starts = 0, more_waited = 0, more_never = 0, more_worst = 0,
  }
  local value = redis.call('GET', KEYS[key])
  if value then
    if #value ~= TRIAL_BYTES then
      wrong_value(key, 'a trial')
    end
    local since, starts, waited, never, worst, at, heard = struct.unpack(TRIAL_FORMAT, value)
    if heard + TRIAL_MS > now then
      trial.since, trial.starts, trial.waited, trial.never, trial.worst = since, starts, waited, never, worst
      trial.at, trial.heard = at, heard
    end
  end
  return trial
end

-- Writes what the algorithm counted at the moment that is open.
local function trial_close(trial)
  if trial.world then
    trial.usage.algorithm.save(trial.usage, trial.world)
    trial.world = nil
  end
end

-- Brings the usage to the moment `at`, which is now or later, and not before the last start.
local function trial_open(trial, limits, at, stamp)
  trial_close(trial)
  local limit = trial.limit
  local usage = {
    algorithm = limit.algorithm, max = limit.max, span = limit.span, margin = limit.margin, window = limit.window,
    apart = limit.apart, burst = limit.burst, calls = limit.calls, key = trial.key + 1, index = 0, now = at, ends = 0,
  }
  if limit.index > 0 then
    -- One key for all windows, of which one counts at a time.
    usage.index = math.floor(at / limit.span)
    if usage.index > math.floor(trial.at / limit.span) then
      redis.call('DEL', KEYS[usage.key])
    end
  end
  local world = {
    now = at, stamp = stamp, jobs = limits.jobs, writing = true, usual = 0, permits = '', job = 0, longest = limit.span,
    log = false, newest = false, fixed = false, window = 0,
  }
  limit.algorithm.load(usage, world, world, world)
  trial.usage, trial.world, trial.open = usage, world, at
end

-- When a job of `cost` that starts now would have; nil: never.
local function trial_take(trial, limits, cost)
  local limit, now = trial.limit, limits.now
  if not limit.calls and cost > (limit.algorithm.bucket and limit.burst or limit.max) then
    return nil
  end
  local units = limit.calls and 1 or cost
  local at = math.max(now, trial.at)
  for tries = 1, TRIES do
    if not trial.world or trial.open ~= at then
      trial_open(trial, limits, at, at == now and limits.stamp or at)
    end
    local earliest = limit.algorithm.nth(trial.usage, at, units)
    if earliest > now + MOST_BEHIND_MS then
      return nil
    end
    if earliest <= at or tries == TRIES then
      break
    end
    at = earliest
  end
  limit.algorithm.take(trial.usage, trial.world, units, cost)
  trial.at = at
  return at
end

local function trial_start(trial, limits, cost)
  local now = limits.now
  if now < trial.heard then
    -- The clock was stepped back. What was ahead of it would wait for ever.
    trial.at = 0
    redis.call('DEL', KEYS[trial.key + 1], KEYS[trial.key + 2])
  end
  trial.heard = now
  trial.more_starts = trial.more_starts + 1
  local at = trial_take(trial, limits, cost)
  if not at then
    trial.more_waited, trial.more_never = trial.more_waited + 1, trial.more_never + 1
  elseif at > now then
    trial.more_waited, trial.more_worst = trial.more_waited + 1, math.max(trial.more_worst, at - now)
  end
end

local function trial_save(trial)
  trial_close(trial)
  local value = struct.pack(TRIAL_FORMAT, trial.since, trial.starts + trial.more_starts, trial.waited + trial.more_waited,
    trial.never + trial.more_never, math.max(trial.worst, trial.more_worst), trial.at, trial.heard)
  redis.call('SET', KEYS[trial.key], value, 'PXAT', int(trial.heard + TRIAL_MS))
end

SHADOWS = {
  -- The partitions of the call, and those in which shadows alone count.
  partitions = function(partitions)
    if BESIDES > 0 then
      partitions = partitions or {}
      for n = 0, BESIDES - 1 do
        partitions[BESIDE + n] = { longest = 0, log = false, newest = false, fixed = false }
      end
    end
    return partitions
  end,

  -- A shadow shares with the limits that are enforced only the log of sliding windows: what it knows of windows is its own.
  own = function(own)
    return { longest = own.longest, log = false, newest = false, fixed = false, window = 0 }
  end,

  -- Takes the shadows out of `limits`: limits.shadows.
  part = function(limits)
    limits.shadows = {}
    local first = 1
    while limits[first] and not limits[first].shadow do
      first = first + 1
    end
    for n = first, #limits do
      limits.shadows[n - first + 1], limits[n] = limits[n], nil
    end
  end,

  -- A job starts. Its numbers in the logs are added to `sequences`. One that does so `again`, since it did not use its permit, is the same
  -- start.
  start = function(limits, cost, sequences, again)
    for n, limit in ipairs(limits.shadows) do
      local sequence = limit.algorithm.take(limit, limits, limit.calls and 1 or cost, cost)
      local partition = limit.partition or 0
      sequences[partition] = sequence or sequences[partition]
      if not again then
        limit.trial = limit.trial or trial_load(limit, n, limits.now)
        trial_start(limit.trial, limits, cost)
      end
    end
  end,

  -- The numbers in the logs of the partitions in which shadows alone count, joined to those of the others.
  numbers = function(text, sequences)
    for n = 0, BESIDES - 1 do
      text = text .. ':' .. int(sequences[BESIDE + n] or 0)
    end
    return text
  end,

  -- By partition, of such a text: `others` are shared.
  read = function(sequences, others)
    for n = 0, BESIDES - 1 do
      sequences[BESIDE + n] = sequences[1 + others + n]
    end
  end,

  -- Writes all, and adds to the reply what this call added: of each shadow the starts, those that would have waited, those of them that
  -- never would have started, and the longest wait.
  save = function(limits, reply)
    for _, limit in ipairs(limits.shadows) do
      limit.algorithm.save(limit, limits)
      local trial = limit.trial
      if trial then
        trial_save(trial)
      end
      reply[#reply + 1] = trial and trial.more_starts or 0
      reply[#reply + 1] = trial and trial.more_waited or 0
      reply[#reply + 1] = trial and trial.more_never or 0
      reply[#reply + 1] = trial and trial.more_worst or 0
    end
  end,

  -- Adds to the reply of inspect.lua what each has seen.
  look = function(limits, reply)
    for n, limit in ipairs(limits.shadows) do
      local trial = trial_load(limit, n, limits.now)
      local behind = limits.now < trial.heard and 0 or math.max(trial.at - limits.now, 0)
      for _, number in ipairs({
        trial.starts > 0 and trial.since or 0, trial.starts, trial.waited, trial.never, trial.worst, behind,
      }) do
        reply[#reply + 1] = number
      end
    end
  end,
}
