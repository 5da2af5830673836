-- The log of sliding windows: sliding_window.lua, which describes the keys, sliding_settle.lua and
-- sliding_shortcut.lua read and write entries with these functions. The specification is
-- src/rules/algorithms/sliding.rs, of spans src/rules/algorithms/span.rs.

-- The fields `spans` and `corrected` of KEYS[3], if the shortcut has read them without deciding.
local log_known

-- Compares the ends of a log with its number of entries. Returns the cost of all entries, the
-- number and the total of the last one, the number of the first one, and the total before it; nil
-- if the log has gaps or entries of other writers.
local function log_sum(first, last, entries)
  if #first == ENTRY_BYTES and #last == ENTRY_BYTES then
    local ours, from, up_to, cost = struct.unpack(ENTRY_FORMAT, first)
    local also, sequence, total = struct.unpack(ENTRY_FORMAT, last)
    if ours == 1 and also == 1 and sequence - from + 1 == entries then
      local before = (up_to - cost) % TOTALS
      return (total - before) % TOTALS, sequence, total, from, before
    end
  end
end

-- Returns the period of the field `spans` at `now`: when it began, the longest span in use in it,
-- the span of the previous one, and when the stored one began.
local function log_period(spans, now)
  local since, longest, before = 0, 0, 0
  if spans then
    since, longest, before = struct.unpack(SPANS_FORMAT, spans)
  end
  local begin = math.min(since, now)
  if now >= begin + math.max(longest, before) then
    return now, 0, longest, since
  end
  return begin, longest, before, since
end

-- Records that a limit with `span` is in use. `spans` is the current field of the HASH `key`.
-- Returns the longest span in use.
local function log_note_span(key, spans, span, now)
  local begin, longest, before, since = log_period(spans, now)
  if begin ~= since or span > longest then
    redis.call('HSET', key, 'spans', struct.pack(SPANS_FORMAT, begin, math.max(longest, span), before))
    longest = math.max(longest, span, before)
    redis.call('PEXPIREAT', key, int(begin + 3 * longest))
    return longest
  end
  return math.max(longest, before)
end

-- Removes the entries that count for no limit, if there are any: `oldest` is the first score.
-- Returns whether there were.
local function log_prune(key, oldest, now, longest)
  if oldest <= now - longest then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', int(now - longest))
    return true
  end
end

-- Returns true if `k` more units may start at once.
local function log_fits(max, used, k)
  return used + k <= max
end

-- Writes entries that started at `stamp`, with these costs, behind the entry with the number
-- `sequence` and the total `total`.
local function log_write(key, stamp, sequence, total, costs, longest)
  local score = int(stamp)
  -- The constructor sizes the table for the usual call with one entry.
  local entries = { score, score }
  for n = 1, #costs do
    total = (total + costs[n]) % TOTALS
    entries[2 * n - 1], entries[2 * n] = score, struct.pack(ENTRY_FORMAT, 1, sequence + n, total, costs[n])
  end
  local first, last, most = 1, 2 * #costs, 4000
  -- More than one ZADD only if unpack would overflow Lua's stack.
  while last - first >= most do
    redis.call('ZADD', key, unpack(entries, first, first + most - 1))
    first = first + most
  end
  redis.call('ZADD', key, unpack(entries, first, last))
  redis.call('PEXPIREAT', key, int(stamp + longest))
end
