-- How settle corrects a sliding log: entries are corrected but never removed. The specification is
-- src/rules/algorithms/sliding.rs. Needs sliding_log.lua, corrections.lua and sliding_window.lua
-- before it, if a limit has that algorithm.
local SLIDING = ALGORITHMS['sliding-window-algo'] or {}

-- Number of fields that each correction checks for entries that are gone.
local LOOKED_AT = 16

-- Returns the correction of the entry itself: its field without the fields within it.
local function corrections_of(corrections, number)
  local numbers, size, step = { number }, corrections.size(number, 1), 1
  while step < size do
    numbers[#numbers + 1] = number + step
    step = 2 * step
  end
  corrections.read(numbers)
  local units, calls = corrections.sum(number)
  for i = 2, #numbers do
    local of_units, of_calls = corrections.sum(numbers[i])
    units, calls = units - of_units, calls - of_calls
  end
  return units, calls
end

-- Corrects an entry by this many units and calls. `first` is the number of the oldest entry in the
-- log.
local function corrections_add(corrections, number, units, calls, first)
  local numbers, at, step = {}, number, 1
  while at >= math.max(first, 1) do
    numbers[#numbers + 1] = at
    step = corrections.size(at, step)
    at = at - step
  end
  corrections.read(numbers)
  local sums = {}
  for i, of in ipairs(numbers) do
    local of_units, of_calls = corrections.sum(of)
    sums[2 * i - 1], sums[2 * i] = int(of), struct.pack(SUM_FORMAT, of_units + units, of_calls + calls)
  end
  if number > corrections.last then
    corrections.last = number
    sums[#sums + 1], sums[#sums + 2] = 'corrected', int(number)
  end
  redis.call('HSET', corrections.key, unpack(sums))
  local found = redis.call('HRANDFIELD', corrections.key, int(LOOKED_AT), 'WITHVALUES')
  for i = 1, #found, 2 do
    local last = tonumber(found[i]) or first
    if string.sub(found[i], 1, 3) == 'to:' then
      last = struct.unpack(MOVED_FORMAT, found[i + 1])
    end
    if last < first then
      redis.call('HDEL', corrections.key, found[i])
    end
  end
end

-- Returns the entry with this number and when it started, or nil if there is none, and the number
-- of the oldest entry.
local function find_entry(log, number)
  local oldest = redis.call('ZRANGE', log.key, '0', '0')
  local first = oldest[1] and log_parse(oldest[1]) or 0
  if first > 0 then
    if number < first then
      return nil
    end
    -- Its rank if the log has only our entries.
    local rank = int(number - first)
    local found = redis.call('ZRANGE', log.key, rank, rank, 'WITHSCORES')
    if found[1] and log_parse(found[1]) == number then
      return found[1], math.ceil(tonumber(found[2])), first
    end
    local newest = redis.call('ZRANGE', log.key, '-1', '-1')
    local last = log_parse(newest[1])
    if last and last - first + 1 == redis.call('ZCARD', log.key) then
      return nil
    end
  end
  local all = redis.call('ZRANGE', log.key, '0', '-1', 'WITHSCORES')
  for i = 1, #all, 2 do
    if log_parse(all[i]) == number then
      return all[i], math.ceil(tonumber(all[i + 1])), first
    end
  end
end

-- Finds the entry of a start that got this number at `started`. Returns its number, its current
-- cost and the number of the oldest entry, or nil if it is gone or was returned.
local function find_start(log, number, started)
  local corrections = log.corrections
  local moved = corrections.last > 0 and redis.call('HGET', corrections.key, 'to:' .. int(number))
  local from, to = started, started + 1
  if moved then
    local at, at_started = struct.unpack(MOVED_FORMAT, moved)
    if at_started == started then
      number, from, to = at, 0, math.huge
    end
  end
  local member, score, first = find_entry(log, number)
  if not member or score < from or score > to then
    return nil
  end
  local units, calls = corrections_of(corrections, number)
  if calls < 0 then
    return nil
  end
  local _, _, cost = log_parse(member)
  return number, cost + units, first
end

-- Returns the number and total of our newest entry, and when the newest entry of all started.
local function newest_entry(log)
  local found = redis.call('ZRANGE', log.key, '-1', '-1', 'WITHSCORES')
  local score = math.ceil(tonumber(found[2]))
  local number, total = log_parse(found[1])
  if not number then
    local all = redis.call('ZRANGE', log.key, '0', '-1')
    for i = #all, 1, -1 do
      if not number then
        number, total = log_parse(all[i])
      end
    end
  end
  return number, total, score
end

-- Returns the number of the job's start, and the results of find_start; nil if this limit keeps no
-- entry of it.
local function start_of(limit, job)
  local number = limit.owner and limit.log.corrections and job.sequences[limit.partition or 0] or 0
  if number > 0 then
    return number, find_start(limit.log, number, job.started)
  end
end

-- Other effective limits may look back further by now, so nothing is pruned.
SLIDING.load = function(limit, _, _, own)
  if not own.log then
    local beside = KEYS[limit.key + 1]
    local noted = redis.call('HMGET', beside, 'spans', 'corrected')
    own.log = { key = KEYS[limit.key], taken = {}, spans = noted[1], longest = false }
    -- The HASH lives longer than the entries: without it there is none that counts.
    own.log.corrections = noted[1] and corrections_load(beside, tonumber(noted[2] or 0))
    limit.owner = true
  end
  limit.log = own.log
  return true
end

-- Corrects the entry of a job that never called, or whose actual cost differs.
SLIDING.settle = function(limit, _, job)
  local _, entry_number, cost, first = start_of(limit, job)
  if entry_number and job.used ~= cost then
    corrections_add(limit.log.corrections, entry_number, (job.used or 0) - cost, job.used and 0 or -1, first)
  end
end

-- Moves the start of a late call, beyond what the guard covers: it counts from now, as a new entry
-- after all others.
SLIDING.late = function(limit, limits, job)
  local number, entry_number, cost, first = start_of(limit, job)
  if not entry_number then
    return
  end
  local log, corrections = limit.log, limit.log.corrections
  corrections_add(corrections, entry_number, -cost, -1, first)
  local newest, total, score = newest_entry(log)
  local own = limit.partition and limits.partitions[limit.partition] or limits
  log.longest = log.longest or log_note_span(corrections.key, log.spans, own.longest, limits.now)
  score = math.max(score, limits.stamp)
  log_write(log.key, score, newest, total, 1, { cost }, log.longest)
  corrections.last = newest + 1
  local moved = struct.pack(MOVED_FORMAT, corrections.last, job.started)
  redis.call('HSET', corrections.key, 'to:' .. int(number), moved, 'corrected', int(corrections.last))
end
