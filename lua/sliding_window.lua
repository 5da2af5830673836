-- sliding-window-algo: a ZSET with one entry for each start. The specification is src/rules/window.rs.
--
-- Score: when the job started (ms, rounded up). Member: "SEQUENCE:TOTAL:COST", with SEQUENCE the running number of
-- the entry in 16 digits, TOTAL the running total of units (this entry's included) and COST the units. An entry
-- with any other member is another writer's: it counts one unit.
--
-- The offered functions are those of fixed_window.lua. `limit` also has jobs: how many jobs the call decides for.
-- `line` and `limit.index` are not used.

-- Entries that are read or written at once at most. A call for few jobs reads few: each looks at one or two.
local CHUNK = 64

-- Sequence, total and cost of one of our members; nil for another writer's.
local function parse(member)
  local sequence, total, cost = string.match(member, '^(%d+):(%d+):(%d+)$')
  if sequence and #sequence == 16 then
    return tonumber(sequence), tonumber(total), tonumber(cost)
  end
end

-- Reads the whole window, because of entries that are not ours: the running total of units at each entry.
local function read_mixed(log)
  local entries = redis.call('ZRANGE', log.key, int(log.gone), '-1', 'WITHSCORES')
  local units = 0
  for i = 1, #entries, 2 do
    local sequence, total, cost = parse(entries[i])
    if sequence then
      log.sequence, log.total = sequence, total
    end
    units = units + (cost or 1)
    local rank = (i - 1) / 2
    log.totals[rank] = units
    log.scores[rank] = math.min(math.ceil(tonumber(entries[i + 1])), log.stamp)
  end
  log.held = units
end

-- Reads the entries around `rank` of a window of our own.
local function read_own(log, rank)
  if log.scores[rank] then
    return
  end
  local last = math.min(rank + log.chunk, log.entries) - 1
  local entries = redis.call('ZRANGE', log.key, int(log.gone + rank), int(log.gone + last), 'WITHSCORES')
  for i = 1, #entries, 2 do
    local _, total = parse(entries[i])
    local at = rank + (i - 1) / 2
    log.totals[at] = total - log.before
    log.scores[at] = math.min(math.ceil(tonumber(entries[i + 1])), log.stamp)
  end
end

-- Units up to the entry at `rank`, and when it started.
local function entry(log, rank)
  read_own(log, rank)
  return log.totals[rank], log.scores[rank]
end

-- When the `unit`-th unit of the window (from 1) started: the first entry whose total reaches it.
local function score_of(log, unit)
  if unit > log.held then
    return log.stamp
  end
  -- Entries of one unit each give the rank at once; each unit beyond that is one rank of doubt.
  local low = math.max(0, unit - 1 - (log.held - log.entries))
  local high = math.min(unit, log.entries) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(log, middle) < unit then
      low = middle + 1
    else
      high = middle
    end
  end
  local _, score = entry(log, low)
  return score
end

-- Entries that are in the future after the clock was stepped back count from now: that wastes at most one window.
local function pull_back(log)
  local future = redis.call('ZRANGEBYSCORE', log.key, '(' .. int(log.stamp), '+inf')
  for i = 1, #future, CHUNK do
    local args = {}
    for j = i, math.min(i + CHUNK - 1, #future) do
      args[#args + 1] = int(log.stamp)
      args[#args + 1] = future[j]
    end
    redis.call('ZADD', log.key, unpack(args))
  end
  redis.call('PEXPIREAT', log.key, int(log.stamp + log.span))
end

-- The log at `now`. Prunes and repairs it when `writing`; otherwise `gone` is how many dead entries lie in front.
local function log_load(line, limit, now, stamp, writing)
  local log = {
    key = KEYS[2], span = limit.window + limit.guard, now = now, stamp = stamp, max = limit.max, remembered = 0,
    gone = 0, entries = 0, held = 0, before = 0, sequence = 0, total = 0, scores = {}, totals = {}, taken = {},
    count = 0, chunk = math.max(1, math.min(limit.jobs, CHUNK)),
  }
  local dead = int(now - log.span)
  local first = redis.call('ZRANGE', log.key, '0', '0', 'WITHSCORES')
  if first[1] and tonumber(first[2]) <= now - log.span then
    if writing then
      redis.call('ZREMRANGEBYSCORE', log.key, '-inf', dead)
    else
      log.gone = redis.call('ZCOUNT', log.key, '-inf', dead)
    end
    first = redis.call('ZRANGE', log.key, int(log.gone), int(log.gone), 'WITHSCORES')
  end
  if not first[1] then
    return log
  end
  local last = redis.call('ZRANGE', log.key, '-1', '-1', 'WITHSCORES')
  if writing and tonumber(last[2]) > stamp then
    pull_back(log)
    first = redis.call('ZRANGE', log.key, '0', '0', 'WITHSCORES')
    last = redis.call('ZRANGE', log.key, '-1', '-1', 'WITHSCORES')
  end
  log.entries = redis.call('ZCARD', log.key) - log.gone
  local sequence, total, cost = parse(first[1])
  log.sequence, log.total = parse(last[1])
  if sequence and log.sequence and log.sequence - sequence + 1 == log.entries then
    log.before = total - cost
    log.held = log.total - log.before
    log.totals[0], log.scores[0] = cost, math.min(math.ceil(tonumber(first[2])), stamp)
  else
    log.sequence, log.total = 0, 0
    read_mixed(log)
  end
  log.count = log.held
  return log
end

local function log_free(log)
  return math.max(log.max - log.count, 0)
end

-- Units that no longer count at `base`, which is now or later.
local function dead_at(log, base)
  if base == log.now or log.entries == 0 then
    return 0
  end
  if base >= log.stamp + log.span then
    return log.count
  end
  local low, high = 0, log.entries
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, score = entry(log, middle)
    if score + log.span <= base then
      low = middle + 1
    else
      high = middle
    end
  end
  if low == 0 then
    return 0
  end
  local units = entry(log, low - 1)
  return units
end

local function log_nth(log, base, k)
  -- Of more than `max` (the limit was lowered) only the last `max` stand in the way.
  local used = math.min(log.count - dead_at(log, base), log.max)
  local free = log.max - used
  local turn = (k - 1) % log.max
  local laps = (k - 1 - turn) / log.max
  if turn < free then
    return base + laps * log.span
  end
  return score_of(log, log.count - used + turn - free + 1) + log.span + laps * log.span
end

local function log_take(log, cost)
  log.sequence = log.sequence + 1
  log.total = log.total + cost
  log.count = log.count + cost
  log.taken[#log.taken + 1] = int(log.stamp)
  log.taken[#log.taken + 1] = string.format('%016.0f:%.0f:%.0f', log.sequence, log.total, cost)
end

local function log_save(log)
  if #log.taken == 0 then
    return
  end
  -- One ZADD; more only where unpack would overflow Lua's stack.
  local most = 4000
  for i = 1, #log.taken, most do
    redis.call('ZADD', log.key, unpack(log.taken, i, math.min(i + most - 1, #log.taken)))
  end
  redis.call('PEXPIREAT', log.key, int(log.stamp + log.span))
end
