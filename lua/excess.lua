-- What the starts of a sliding log cost beyond 1 each: the sums of stretches of time, in fields of the log's HASH. Needed only
-- where a cost differs from 1. The specification is src/rules/log/sliding.rs, which simply adds up.
--
-- LEVEL:INDEX  what the starts in stretch INDEX cost beyond 1 each (ms since the epoch; a stretch of LEVEL has 4^LEVEL ms)
--
-- log.excess: no start after this (ms) cost anything else than 1.
-- Entries of the log can be taken out, moved, or given another cost in a few commands, whatever lies behind them.
local BRANCHES, LEVELS = 4, 16

-- So many fields are looked at with each change, for stretches that nobody counts any more.
local LOOKED_AT = 16

local function excess_field(level, index)
  return string.format('%d:%d', level, index)
end

-- What the starts after `at` cost beyond 1 each; `first` is when the first one of the log was: sums of before may be there yet.
local function excess_after(log, at, first)
  local fields, index, last, level = {}, math.max(at, first - 1), log.excess, 0
  while index < last do
    -- What is to the right, within the same stretch of the next level.
    local ends = level < LEVELS - 1 and math.min(index - index % BRANCHES + BRANCHES - 1, last) or last
    for right = index + 1, ends do
      fields[#fields + 1] = excess_field(level, right)
    end
    if level == LEVELS - 1 then
      break
    end
    index, last, level = math.floor(index / BRANCHES), math.floor(last / BRANCHES), level + 1
  end
  local sum = 0
  if #fields > 0 then
    for _, value in ipairs(redis.call('HMGET', log.more, unpack(fields))) do
      sum = sum + tonumber(value or 0)
    end
  end
  return sum
end

-- Starts at `at` cost so much more (or less).
local function excess_add(log, at, units)
  if units == 0 then
    return
  end
  local index, fields, sums = at, {}, {}
  for level = 0, LEVELS - 1 do
    fields[level + 1] = excess_field(level, index)
    index = math.floor(index / BRANCHES)
  end
  for i, sum in ipairs(redis.call('HMGET', log.more, unpack(fields))) do
    sums[2 * i - 1], sums[2 * i] = fields[i], int(tonumber(sum or 0) + units)
  end
  redis.call('HSET', log.more, unpack(sums))
  log.excess = math.max(log.excess, at)
  local dead = log.now - log.longest
  for _, field in ipairs(redis.call('HRANDFIELD', log.more, LOOKED_AT)) do
    local at_level, at_index = string.match(field, '^(%d+):(%d+)$')
    if at_level and (tonumber(at_index) + 1) * BRANCHES ^ tonumber(at_level) <= dead then
      redis.call('HDEL', log.more, field)
    end
  end
end

-- Forgets all sums: no entry is left, or the clock was stepped back behind some of them.
local function excess_forget(log)
  for _, field in ipairs(redis.call('HKEYS', log.more)) do
    if string.match(field, '^%d+:%d+$') then
      redis.call('HDEL', log.more, field)
    end
  end
  log.excess = 0
end

-- A stretch with few entries, in which lies the first moment after `low` with at most `rest` units after it: how many entries,
-- and how many units, are after its end; how many entries are in it. There are more units after `low`. `calls_after` counts
-- the entries after a moment; `newest` is when the last started; `few` entries are few.
local function excess_find(log, calls_after, newest, low, rest, few)
  local level, size, first, last = 0, 1, low + 1, newest
  while last - first >= BRANCHES do
    level, size = level + 1, size * BRANCHES
    first, last = math.floor((low + 1) / size), math.floor(newest / size)
  end
  -- Entries after the start and the end of the stretches that are looked at, and what those after the end cost beyond 1.
  local calls, after, beyond = log.entries, 0, 0
  while true do
    local fields = {}
    for index = first + 1, last do
      fields[#fields + 1] = excess_field(level, index)
    end
    local sums = #fields > 0 and redis.call('HMGET', log.more, unpack(fields)) or fields
    local index = last
    while index > first do
      local inside = calls_after(log, index * size - 1)
      local more = beyond + tonumber(sums[index - first] or 0)
      if inside + more > rest then
        calls = inside
        break
      end
      after, beyond, index = inside, more, index - 1
    end
    if level == 0 or calls - after <= few then
      return after, after + beyond, calls - after
    end
    level, size = level - 1, size / BRANCHES
    first, last = index * BRANCHES, math.min(index * BRANCHES + BRANCHES - 1, math.floor(newest / size))
  end
end
