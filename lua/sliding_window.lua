-- sliding-window-algo: a ZSET with one entry per start, for all sliding limits of a scope. The
-- specification is src/rules/algorithms/sliding.rs. Needs sliding_log.lua and corrections.lua before it.
--
-- Score: when the job started (ms, rounded up). Member: the byte 1, then packed the running number
-- of the entry, the running total of cost (including this entry; see TOTALS), and the cost,
-- big-endian, so that entries with the same score stay in order. An entry with another member is
-- from another writer and costs 1.
--
-- Next to it a HASH, with the fields of corrections.lua and
-- spans      packed: the start (ms) of a period as long as the longest span of any limit in use;
--            that span (ms); the span of the previous period. The specification is
--            src/rules/algorithms/span.rs
--
-- `log` is shared by all limits: ranks count from the first entry that counts for any of them.

-- Maximum number of entries read or written at once. A call for few jobs reads few, since each job
-- needs two.
local CHUNK = 64
-- Number of interpolating guesses in the search for a unit's entry. After that, the search bisects.
local GUESSES = 8
-- Number of neighbors on each side that are read as well if there are corrections.
local NEIGHBORS = 6

-- Reads the whole window, since it has gaps or entries of other writers, and computes the running
-- total of cost at each entry.
local function read_mixed(log)
  local entries = redis.call('ZRANGE', log.key, int(log.gone), '-1', 'WITHSCORES')
  local units = 0
  log.sequence, log.total, log.first, log.numbers = 0, 0, 0, {}
  for i = 1, #entries, 2 do
    local sequence, total, cost = log_parse(entries[i])
    if sequence then
      log.sequence, log.total = sequence, total
      log.first = log.first > 0 and log.first or sequence
    end
    units = units + (cost or 1)
    local rank = (i - 1) / 2
    log.numbers[rank] = log.sequence
    log.totals[rank] = units
    log.scores[rank] = math.min(math.ceil(tonumber(entries[i + 1])), log.stamp)
  end
  log.cost = units
end

-- Returns the cost up to the entry at `rank`, and when it started. If that is unknown, the window
-- has only our entries, and those from there on are read.
local function entry(log, rank)
  if log.scores[rank] then
    return log.totals[rank], log.scores[rank]
  end
  local chunk = math.max(2, math.min(log.chunk, CHUNK))
  local last = math.min(rank + chunk, log.entries) - 1
  local entries = redis.call('ZRANGE', log.key, int(log.gone + rank), int(log.gone + last), 'WITHSCORES')
  for i = 1, #entries, 2 do
    local _, total = log_parse(entries[i])
    if not total then
      -- Another writer has added as many entries as are missing of ours, so the numbers alone did
      -- not show it.
      read_mixed(log)
      break
    end
    local at = rank + (i - 1) / 2
    log.totals[at] = (total - log.before) % LAP
    log.scores[at] = math.min(math.ceil(tonumber(entries[i + 1])), log.stamp)
  end
  return log.totals[rank], log.scores[rank]
end

-- Reads the log at limits.now. Prunes and repairs it when writing; otherwise `gone` is the number
-- of expired entries at its front.
local function read_log(limit, limits, longest)
  local key, beside, now, stamp, writing = KEYS[limit.key], KEYS[limit.key + 1], limits.now, limits.stamp, limits.writing
  local noted = log_known or redis.call('HMGET', beside, 'spans', 'corrected')
  log_known = nil
  if log_longest then
    longest, log_longest = log_longest, nil
  elseif writing then
    longest = log_note_span(beside, noted[1], longest, now)
    log_prune(key, now, longest)
  end
  -- `first` and `sequence` are the numbers of our first and last entries. The table has 15 fields,
  -- and one more with corrections; with another one, Lua would double it.
  local log = {
    key = key, stamp = stamp, gone = 0, entries = 0, cost = 0, before = 0, first = 0, sequence = 0, total = 0, scores = false,
    totals = false, taken = {}, taken_cost = 0, longest = longest, chunk = limits.jobs,
  }
  if not writing then
    log.gone = redis.call('ZCOUNT', key, '-inf', int(now - longest))
  end
  log.entries = redis.call('ZCARD', key) - log.gone
  if log.entries > 0 then
    log.scores, log.totals = {}, {}
    local first = redis.call('ZRANGE', key, int(log.gone), int(log.gone), 'WITHSCORES')
    local last = log.entries > 1 and redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES') or first
    if writing and tonumber(last[2]) > stamp then
      -- Entries in the future count from now on, which wastes at most one window.
      pull_back(key, stamp)
      redis.call('PEXPIREAT', key, int(stamp + longest))
      first = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')
      last = redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    end
    local number, from, cost = log_parse(first[1])
    local sequence, total = log_parse(last[1])
    if number and sequence and sequence - number + 1 == log.entries then
      log.cost, log.sequence, log.total, log.first, log.before = log_cost(total, from, cost), sequence, total, number, (from - cost) % LAP
      log.totals[0], log.scores[0] = cost, math.min(math.ceil(tonumber(first[2])), stamp)
    else
      -- The log has gaps or entries of other writers.
      read_mixed(log)
    end
  end
  if noted[2] then
    local corrections = corrections_load(beside, tonumber(noted[2]))
    if log.first > 0 and corrections.last >= log.first then
      log.corrections = corrections
      -- Corrections make a unit's entry harder to predict, so its neighbors are read as well.
      log.chunk = math.max(log.chunk, 2 * NEIGHBORS)
    elseif writing then
      corrections.forget()
    end
  end
  return log
end

-- Returns the number of entries that no longer count for the limit at `base`, which is now or
-- later.
local function dead_entries(limit, base)
  local log, span = limit.log, limit.span
  if log.entries == 0 then
    return 0
  end
  local _, first = entry(log, 0)
  if first + span > base then
    return 0
  end
  local low, high = 0, log.entries
  if base == limit.now then
    return high - redis.call('ZCOUNT', log.key, '(' .. int(base - span), '+inf')
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, score = entry(log, middle)
    if score + span <= base then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Returns the correction of the entries from `rank` on, in units of the limit.
local function corrected_from(limit, rank, neighbors)
  local log = limit.log
  local number = log.first - 1
  if rank > 0 then
    number = log.numbers and math.max(log.numbers[rank - 1], number) or number + rank
  end
  local units, calls = log.corrections.behind(number, neighbors or 0)
  return limit.calls and calls or units
end

-- Returns the units of the first `entries` entries. If there are corrections, the fields for this
-- many neighbors are read as well.
local function units_up_to(limit, entries, neighbors)
  local log = limit.log
  local units = entries
  if not limit.calls and entries > 0 then
    units = entry(log, entries - 1)
  end
  if log.corrections then
    units = units + corrected_from(limit, 0) - corrected_from(limit, entries, neighbors)
  end
  return units
end

-- Returns the units of all entries, including those of this call.
local function all_units(limit)
  local log = limit.log
  local units = limit.calls and log.entries + #log.taken or log.cost + log.taken_cost
  return log.corrections and units + corrected_from(limit, 0) or units
end

-- Returns when the `unit`-th unit (from 1) started: the first entry at which the running sum
-- reaches it.
local function score_of(limit, unit)
  local log = limit.log
  local low, high, all = 0, log.entries - 1, all_units(limit) - (limit.calls and #log.taken or log.taken_cost)
  if unit > all then
    return log.stamp
  end
  -- `before`: units from the lowest candidate entry up to the one sought. `beyond`: units from the
  -- one sought to the end of the highest candidate.
  local before, beyond, was_below = unit - 1, all - unit + 1, nil
  if limit.calls and not log.corrections then
    low, high = unit - 1, unit - 1
  end
  local guesses = 0
  while low < high do
    local middle = math.floor((low + high) / 2)
    if guesses < GUESSES then
      -- Guess one entry too low: the same read returns the next entry, and if all cost the same,
      -- these two end the search.
      local guess = math.floor(before * (high - low + 1) / (before + beyond)) - 1
      middle, guesses = low + math.min(math.max(guess, 0), high - low - 1), guesses + 1
    end
    -- The first guess is close, and the second one is usually among its neighbors.
    local neighbors = guesses > 1 and NEIGHBORS or 1
    if log.corrections and not limit.calls and not log.scores[middle] then
      entry(log, math.max(middle - neighbors, 0))
    end
    local units = units_up_to(limit, middle + 1, neighbors)
    -- After two guesses on the same side, the other bound counts half. Otherwise all guesses could
    -- stay on one side where costs change (the Illinois algorithm: Dowell and Jarratt, 1971).
    if units < unit then
      low, before = middle + 1, unit - 1 - units
      beyond, was_below = was_below and beyond / 2 or beyond, true
    else
      high, beyond = middle, units - unit + 1
      before, was_below = was_below == false and before / 2 or before, false
    end
  end
  local _, score = entry(log, low)
  return score
end

ALGORITHMS['sliding-window-algo'] = {
  shared = true,

  load = function(limit, limits, _, own)
    if not own.log then
      own.log = read_log(limit, limits, own.longest)
      limit.owner = true
    end
    limit.log = own.log
    limit.dead = own.log.entries > 0 and units_up_to(limit, dead_entries(limit, limits.now)) or 0
    return true
  end,

  count = function(limit)
    return all_units(limit) - limit.dead
  end,

  nth = function(limit, base, k)
    local log, max, span = limit.log, limit.max, limit.span
    local all, dead = all_units(limit), limit.dead
    if base >= log.stamp + span then
      dead = all
    elseif base > limit.now then
      dead = units_up_to(limit, dead_entries(limit, base))
    end
    local turn = (k - 1) % max
    local laps = (k - 1 - turn) / max
    local later = laps > 0 and math.min(laps * span, LATEST_MS) or 0
    if all - dead + turn < max then
      return base + later
    end
    -- If the limit was lowered below the usage, only the last `max` units delay others.
    return score_of(limit, all - max + turn + 1) + span + later
  end,

  take = function(limit, _, _, cost)
    if not limit.owner then
      return nil
    end
    local log = limit.log
    log.taken_cost = log.taken_cost + cost
    log.taken[#log.taken + 1] = cost
    return log.sequence + #log.taken
  end,

  save = function(limit)
    local log = limit.log
    if limit.owner and #log.taken > 0 then
      log_write(log.key, log.stamp, log.sequence, log.total, #log.taken, log.taken, log.longest)
    end
  end,
}
