-- The log of sliding windows: sliding_window.lua, which describes the keys, sliding_settle.lua and
-- sliding_shortcut.lua read and write entries with these functions. The specification is
-- src/rules/algorithms/sliding.rs, of spans src/rules/algorithms/span.rs.

-- The fields `spans` and `corrected` of KEYS[3], if the shortcut has read them without deciding,
-- and the longest span in use, if it has recorded that and pruned the log.
local log_known, log_longest

-- Returns the number, total and cost of one of our members, or nil for another writer's.
local function log_parse(member)
  if #member == ENTRY_BYTES then
    local ours, sequence, total, cost = struct.unpack(ENTRY_FORMAT, member)
    if ours == 1 then
      return sequence, total, cost
    end
  end
end

-- Returns the cost of all entries of a log without gaps, whose last total is `total`. The first
-- entry has the total `first` and costs `cost`.
local function log_cost(total, first, cost)
  return (total - first + cost) % LAP
end

-- Records that a limit with `span` is in use. `spans` is the current field of the HASH `key`: when
-- a period began, the longest span in use in it, and the span of the previous one. Returns the
-- longest span in use.
local function log_note_span(key, spans, span, at)
  local since, longest, before = 0, 0, 0
  if spans then
    since, longest, before = struct.unpack(SPANS_FORMAT, spans)
  end
  local begin = since < at and since or at
  if at >= begin + (before > longest and before or longest) then
    begin, longest, before = at, 0, longest
  end
  if begin ~= since or span > longest then
    longest = span > longest and span or longest
    redis.call('HSET', key, 'spans', struct.pack(SPANS_FORMAT, begin, longest, before))
    redis.call('PEXPIREAT', key, int(begin + 3 * (before > longest and before or longest)))
  end
  return before > longest and before or longest
end

-- Removes the entries that count for no limit.
local function log_prune(key, at, longest)
  return redis.call('ZREMRANGEBYSCORE', key, '-inf', int(at - longest))
end

-- Maximum number of arguments of a ZADD: unpack puts them on Lua's stack.
local MAX_WRITTEN = 4000

-- Writes `count` entries that started at `at`, with these costs, or 1 each, behind the entry with
-- the number `sequence` and the total `total`.
local function log_write(key, at, sequence, total, count, costs, longest)
  local score = int(at)
  if count == 1 then
    local cost = costs and costs[1] or 1
    total = total + cost
    redis.call('ZADD', key, score, struct.pack(ENTRY_FORMAT, 1, sequence + 1, total < TOTALS and total or total - LAP, cost))
  else
    -- The constructor sizes the table for few entries.
    local entries = { score, score, score, score, score, score }
    for n = 1, count do
      local cost = costs and costs[n] or 1
      total = total + cost
      total = total < TOTALS and total or total - LAP
      entries[2 * n - 1], entries[2 * n] = score, struct.pack(ENTRY_FORMAT, 1, sequence + n, total, cost)
    end
    for first = 1, 2 * count, MAX_WRITTEN do
      redis.call('ZADD', key, unpack(entries, first, math.min(first + MAX_WRITTEN - 1, 2 * count)))
    end
  end
  redis.call('PEXPIREAT', key, int(at + longest))
end
