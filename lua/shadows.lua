-- Shadow limits are charged for each start, but never deny one. The specification is
-- src/rules/gate/shadow.rs. Part of scripts with shadow limits; comes between shared_partitions.lua
-- and the algorithms.
--
-- Shadows follow the other limits; limits.lua recognizes them by their unit. Their usage is kept as
-- for any limit. Each has three more keys for its trial, which simulates the starts under this
-- limit:
-- 1  a STRING of seven packed numbers: (1) since when it counts (ms); (2) starts; (3) starts of (2)
--    that would have waited; (4) starts of (3) that would have waited longer than MOST_BEHIND_MS,
--    or that cost more than the whole limit; (5) the longest wait of the other starts of (3) (ms);
--    (6) the last simulated start (ms); (7) when a start was last reported (ms)
-- 2  the algorithm's state for the simulated starts
-- 3  a HASH next to it, if the algorithm has one
--
-- The very last argument is removed from ARGV. It is packed: the index in KEYS of the first of
-- these keys, and the number of partitions that only shadows use. Their numbers begin at BESIDE.
--
-- Constants that no Lua file sets come from src/gate/scripts.rs, which takes their values from the
-- specification's constants.
local BESIDE = 128
local TRIAL_FORMAT = '>I6I6I6I6I6I6I6'
local TRIAL_BYTES = 42
local FIRST_TRIAL, BESIDES = struct.unpack('>I8I1', table.remove(ARGV))

-- Loads the trial of the n-th shadow (from 1) at `now`.
local function trial_load(limit, n, now)
  local key = FIRST_TRIAL + 3 * (n - 1)
  local trial = {
    limit = limit, key = key, since = now, starts = 0, waited = 0, never = 0, worst = 0, at = 0, heard = 0,
    -- The additions of this call.
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

-- Writes the algorithm's state for the moment that is open.
local function trial_close(trial)
  if trial.world then
    trial.usage.algorithm.save(trial.usage, trial.world)
    trial.world = nil
  end
end

-- Opens the usage at the moment `at`, which is now or later, and not before the last start.
local function trial_open(trial, limits, at, stamp)
  trial_close(trial)
  local limit = trial.limit
  local usage = {
    algorithm = limit.algorithm, max = limit.max, span = limit.span, margin = limit.margin, window = limit.window,
    apart = limit.apart, burst = limit.burst, calls = limit.calls, key = trial.key + 1, index = 0, now = at, ends = 0,
    windows = limit.windows,
  }
  if limit.index > 0 then
    -- One key for all windows, since only one counts at a time.
    usage.index = math.floor(at / limit.span)
    if usage.index > math.floor(trial.at / limit.span) then
      redis.call('DEL', KEYS[usage.key])
    end
  end
  local world = {
    now = at, stamp = stamp, jobs = limits.jobs, writing = true, trial = true, usual = 0, permits = '', job = 0, longest = limit.span,
    log = false, newest = false, fixed = false, window = 0,
  }
  limit.algorithm.load(usage, world, world, world)
  trial.usage, trial.world, trial.open = usage, world, at
end

-- Returns when a job of `cost` that starts now would have started, or nil for never.
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
  if trial.heard == 0 or now < trial.heard then
    -- A new trial, or the clock was stepped back. A start in its future would delay all others
    -- forever.
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
  -- Adds the partitions that only shadows use.
  partitions = function(partitions)
    if BESIDES > 0 then
      partitions = partitions or {}
      for n = 0, BESIDES - 1 do
        partitions[BESIDE + n] = { longest = 0, log = false, newest = false, fixed = false }
      end
    end
    return partitions
  end,

  -- A shadow shares only the sliding log with enforced limits. Its knowledge of fixed windows is
  -- its own.
  own = function(own)
    return { longest = own.longest, log = false, newest = false, fixed = false, window = 0 }
  end,

  -- Moves the shadows from `limits` to limits.shadows.
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

  -- Charges the start of a job, and adds its numbers in the logs to `sequences`. A job that starts
  -- `again` because it did not use its permit is the same start.
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

  -- Appends the numbers in the logs of partitions that only shadows use.
  numbers = function(text, sequences)
    for n = 0, BESIDES - 1 do
      text = text .. ':' .. int(sequences[BESIDE + n] or 0)
    end
    return text
  end,

  -- Assigns the numbers that `numbers` appended to their partitions. `others` is the number of
  -- shared partitions.
  read = function(sequences, others)
    for n = 0, BESIDES - 1 do
      sequences[BESIDE + n] = sequences[1 + others + n]
    end
  end,

  -- Writes everything, and appends to the reply what this call added for each shadow: the four
  -- numbers in acquire.lua.
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

  -- Appends each trial to the reply of inspect.lua.
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
