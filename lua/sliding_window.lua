-- sliding-window-algo: a ZSET with one entry for each start, for all sliding limits of a scope. The specification is
-- src/rules/log/sliding.rs. Needs excess.lua before it.
--
-- Score: when the job started (ms, rounded up). Member: the byte 2, then packed the running number of the entry and its cost.
-- An entry with any other member is another writer's: it costs 1. So what started after a moment is the number of entries after
-- it, which Redis knows from their ranks, and what they cost beyond 1 each.
--
-- Beside it a HASH, with the fields of excess.lua and
-- log        packed: since when (ms) a period runs that is as long as the longest span that anybody counts with; that span
--            (ms); that of the period before (the specification is src/rules/log/span.rs); no number above the next was given
--            to an entry that is not there any more; after the last (ms) no start cost anything else than 1
local LOG_FORMAT = '>I6I6I6I6I6'
local ENTRY_FORMAT, ENTRY_BYTES = '>BI6I4', 11
-- As versions wrote it that had running totals: the byte 1, number, total, cost.
local OLD_FORMAT, OLD_BYTES = '>BI6I8I4', 19

-- Entries that are read or written at once at most. A call for few jobs reads few.
local CHUNK = 64
-- So many are looked through sooner than others' sums are asked for.
local FEW = 24
-- Places in the log that one call remembers.
local RUNS = 4

-- The number of one of our entries, 0 of another writer's; its cost.
local function entry_parse(member)
  if #member == ENTRY_BYTES and string.byte(member) == 2 then
    local _, sequence, cost = struct.unpack(ENTRY_FORMAT, member)
    return sequence, cost
  elseif #member == OLD_BYTES and string.byte(member) == 1 then
    local _, sequence, _, cost = struct.unpack(OLD_FORMAT, member)
    return sequence, cost
  end
  return 0, 1
end

-- The highest number that was given. Others' entries may lie behind ours.
local function highest_number(log)
  local number, from = log.member and entry_parse(log.member) or 0, 1
  while number == 0 and from < log.entries do
    local entries = redis.call('ZRANGE', log.key, int(-from - CHUNK), int(-from - 1))
    for i = #entries, 1, -1 do
      number = math.max(number, (entry_parse(entries[i])))
    end
    from = from + CHUNK
  end
  return math.max(number, log.last)
end

local function write_more(log)
  redis.call('HSET', log.more, 'log',
    struct.pack(LOG_FORMAT, log.since, log.span, log.before, log.last, log.excess))
  redis.call('PEXPIREAT', log.more, int(log.since + 3 * log.longest))
end

-- So much more (or less) than 1 each cost what started at `at`.
local function change_cost(log, at, units)
  if units ~= 0 then
    local excess = log.excess
    excess_add(log, at, units)
    if log.excess ~= excess then
      write_more(log)
    end
  end
end

-- Sums up what all entries cost: an older version wrote the log, or the clock was stepped back behind what was summed up.
local function count_costs(log)
  excess_forget(log)
  local from = 0
  repeat
    local entries = redis.call('ZRANGE', log.key, int(from), int(from + 999), 'WITHSCORES')
    for i = 1, #entries, 2 do
      local _, cost = entry_parse(entries[i])
      excess_add(log, math.ceil(tonumber(entries[i + 1])), cost - 1)
    end
    from = from + 1000
  until #entries == 0
  write_more(log)
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
  redis.call('PEXPIREAT', log.key, int(log.stamp + log.longest))
end

-- Somebody counts with `span` now.
local function note_span(log, span)
  local since = math.min(log.since, log.now)
  if log.now >= since + log.longest then
    since, log.span, log.before = log.now, 0, log.span
  end
  if since ~= log.since or span > log.span then
    log.since, log.span = since, math.max(log.span, span)
    log.longest = math.max(log.span, log.before)
    write_more(log)
  end
end

-- The log at limits.now. Prunes and repairs it when writing.
local function read_log(limit, limits, span)
  local now, stamp = limits.now, limits.stamp
  local key = KEYS[limit.key]
  local more = redis.call('HGET', KEYS[limit.key + 1], 'log')
  local since, longest, before, last, excess = 0, 0, 0, 0, 0
  if more then
    since, longest, before, last, excess = struct.unpack(LOG_FORMAT, more)
  end
  local log = {
    key = key, more = KEYS[limit.key + 1], now = now, stamp = stamp, since = since, span = longest, before = before, last = last,
    excess = excess, longest = math.max(longest, before), entries = 0, newest = 0, member = false, first = false, number = false, runs = {},
    taken = {}, cost = 0, score = false, scores = false, chunk = math.min(math.max(limits.jobs, 1), CHUNK),
  }
  local first = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')
  if limits.writing then
    if not (limits.settles and more) then
      note_span(log, span)
    end
    if first[1] and tonumber(first[2]) <= now - log.longest then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', int(now - log.longest))
      first = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')
    end
  end
  if not first[1] then
    if limits.writing and log.excess > 0 then
      excess_forget(log)
      write_more(log)
    end
    return log
  end
  local found = redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  local newest = math.ceil(tonumber(found[2]))
  log.member, log.first, log.newest = found[1], math.ceil(tonumber(first[2])), newest
  if limits.writing then
    if newest > stamp then
      pull_back(log)
      log.first, log.newest = math.min(log.first, stamp), stamp
    end
    -- Sums of entries that are gone lie where others are to be.
    if not more or log.excess > stamp or log.excess == stamp and newest ~= stamp then
      count_costs(log)
    end
  end
  log.entries = redis.call('ZCARD', key)
  return log
end

-- Entries after `at`.
local function calls_after(log, at)
  if log.newest <= at then
    return 0
  end
  return redis.call('ZCOUNT', log.key, '(' .. int(at), '+inf')
end

-- What entries after `at` cost.
local function units_after(limit, at)
  local log = limit.log
  if log.newest <= at then
    return 0
  end
  local calls = log.first > at and log.entries or calls_after(log, at)
  if limit.calls or log.excess <= at then
    return calls
  end
  return calls + excess_after(log, at, log.first)
end

-- When the entry started after which there are so many.
local function score_before(log, entries)
  local rank = log.entries - 1 - entries
  log.scores = log.scores or {}
  if not log.scores[rank] then
    local last = math.min(rank + log.chunk, log.entries) - 1
    local found = redis.call('ZRANGE', log.key, int(rank), int(last), 'WITHSCORES')
    for i = 2, #found, 2 do
      log.scores[rank + i / 2 - 1] = math.ceil(tonumber(found[i]))
    end
  end
  return log.scores[rank]
end

-- Entries next to each other, the newest first, each with the units after it: those around the first moment after `low` after
-- which there are at most `rest` units. A few such runs are kept, since the jobs of one call wait for neighbors.
local function run_around(log, low, rest)
  for _, run in ipairs(log.runs) do
    if rest >= run.after and rest < run.before then
      return run
    end
  end
  local few = math.max(FEW, log.chunk)
  local after, units, entries = excess_find(log, calls_after, log.newest, math.max(low, log.first - 1), rest, few)
  local last = log.entries - after - 1
  local found = redis.call('ZRANGE', log.key, int(last - entries + 1), int(last), 'WITHSCORES')
  local run = { after = units, before = units }
  for i = #found, 2, -2 do
    local _, cost = entry_parse(found[i - 1])
    run[#run + 1] = { math.ceil(tonumber(found[i])), run.before }
    run.before = run.before + cost
  end
  table.insert(log.runs, 1, run)
  log.runs[RUNS + 1] = nil
  return run
end

-- As score_before, by units: the first moment after `low` after which there are at most `rest`; after `low` there are more.
local function moment_before(log, low, rest)
  local run = run_around(log, low, rest)
  -- The oldest that has at most so many after it.
  local from, to = 1, #run
  while from < to do
    local middle = math.ceil((from + to) / 2)
    if run[middle][2] <= rest then
      from = middle
    else
      to = middle - 1
    end
  end
  return run[from][1]
end

-- The first moment after `low` after which there are at most `rest` units; after `low` there are more.
local function when_left(limit, low, rest)
  local log = limit.log
  local taken = limit.calls and #log.taken / 2 or log.cost
  if rest < taken then
    return log.stamp
  end
  if limit.calls or log.excess <= low then
    return math.min(score_before(log, rest - taken), log.stamp)
  end
  return math.min(moment_before(log, low, rest - taken), log.stamp)
end

ALGORITHMS['sliding-window-algo'] = {
  shared = true,

  load = function(limit, limits, _, own)
    if not own.log then
      own.log = read_log(limit, limits, own.longest)
      limit.owner = true
    end
    limit.log = own.log
    limit.held = limits.settles and 0 or units_after(limit, limits.now - limit.span)
    return true
  end,

  count = function(limit)
    local log = limit.log
    return limit.held + (limit.calls and #log.taken / 2 or log.cost)
  end,

  nth = function(limit, base, k)
    local log, max, span = limit.log, limit.max, limit.span
    local used = 0
    if base < log.stamp + span then
      used = (base == limit.now and limit.held or units_after(limit, base - span))
        + (limit.calls and #log.taken / 2 or log.cost)
    end
    -- Of more than `max` (the limit was lowered) only the last `max` stand in the way.
    used = math.min(used, max)
    local free = max - used
    local turn = (k - 1) % max
    local laps = (k - 1 - turn) / max
    if turn < free then
      return base + laps * span
    end
    return when_left(limit, base - span, used - (turn - free + 1)) + span + laps * span
  end,

  take = function(limit, _, _, cost)
    if not limit.owner then
      return nil
    end
    local log = limit.log
    log.number = (log.number or highest_number(log)) + 1
    log.cost = log.cost + cost
    log.score = log.score or int(log.stamp)
    log.taken[#log.taken + 1] = log.score
    log.taken[#log.taken + 1] = struct.pack(ENTRY_FORMAT, 2, log.number, cost)
    return log.number
  end,

  -- A start that never called is taken out; one that cost more or less gets another cost.
  settle = function(limit, _, job)
    local log = limit.log
    local sequence = job.sequences[limit.home or 0] or 0
    if not limit.owner or sequence == 0 then
      return
    end
    local member = struct.pack(ENTRY_FORMAT, 2, sequence, job.cost)
    local score = tonumber(redis.call('ZSCORE', log.key, member) or 0)
    if score < job.started or score > job.started + 1 or job.used == job.cost then
      return
    end
    if job.used then
      -- Added first: a key that is empty for a moment loses its expiry.
      redis.call('ZADD', log.key, int(score), struct.pack(ENTRY_FORMAT, 2, sequence, job.used))
    else
      log.number = log.number or highest_number(log)
      if log.last < log.number then
        log.last = log.number
        write_more(log)
      end
    end
    redis.call('ZREM', log.key, member)
    change_cost(log, score, (job.used or 1) - job.cost)
  end,

  save = function(limit)
    local log = limit.log
    if not limit.owner or #log.taken == 0 then
      return
    end
    -- One ZADD; more only where unpack would overflow Lua's stack.
    local most = 4000
    for i = 1, #log.taken, most do
      redis.call('ZADD', log.key, unpack(log.taken, i, math.min(i + most - 1, #log.taken)))
    end
    redis.call('PEXPIREAT', log.key, int(log.stamp + log.longest))
    change_cost(log, log.stamp, log.cost - #log.taken / 2)
  end,
}
