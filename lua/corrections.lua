-- What the calls of a sliding log used in fact, where that differs from what their entries say: sums over the numbers of the
-- entries, in fields of the HASH beside the log. The specification is src/rules/algorithms/sliding.rs, which changes the entry itself.
--
-- corrected  the highest number of an entry that was corrected, or as which another one counts
-- NUMBER     packed: how many units and calls more (or fewer) this entry and those behind it used, as many as the largest power of
--            two by which NUMBER can be divided: a Fenwick tree that is read from its end
-- to:NUMBER  packed: this start came late and counts as another entry: its number, and when (ms) it was asked for
--
-- So an entry is never taken out or rewritten, and what follows it stays right. The sum behind an entry is that of a few fields,
-- all with higher numbers than its own: those below the oldest entry's are never read again, and go bit by bit. A number is given
-- once as long as one of ours is in the log; where none is, all is forgotten before numbers begin anew.
local SUM_FORMAT, MOVED_FORMAT = '>i6i6', '>I6I6'

-- As many numbers, from `number` on, are summed up in its field; at least `step`, by which it can be divided.
local function sum_size(number, step)
  while number % (2 * step) == 0 do
    step = 2 * step
  end
  return step
end

-- Those of the HASH `key`, up to number `last`. `sums` are the fields that are known, packed, '' where there is none; `units` and
-- `calls` what is known to be behind an entry.
local function corrections_load(key, last)
  return { key = key, last = last, sums = {}, units = {}, calls = {} }
end

-- Reads the fields of these numbers.
local function corrections_read(corrections, numbers)
  local fields = {}
  for i, number in ipairs(numbers) do
    fields[i] = int(number)
  end
  local values = #fields > 0 and redis.call('HMGET', corrections.key, unpack(fields)) or fields
  for i, value in ipairs(values) do
    corrections.sums[numbers[i]] = value or ''
  end
end

-- The units and calls that are summed up in the field of `number`.
local function corrections_sum(corrections, number)
  local sum = corrections.sums[number]
  if sum == '' then
    return 0, 0
  end
  local units, calls = struct.unpack(SUM_FORMAT, sum)
  return units, calls
end

-- How many units and calls more (or fewer) the entries behind `number` used. What tells it of so many to each side is read, too.
local function corrections_behind(corrections, number, neighbors)
  local last, sums = corrections.last, corrections.sums
  if number >= last then
    return 0, 0
  elseif corrections.units[number] then
    return corrections.units[number], corrections.calls[number]
  end
  local missing = {}
  for first = math.max(number - neighbors, 0) + 1, math.min(number + neighbors + 1, last) do
    local at, step = first, 1
    -- Behind a known one all are known.
    while at <= last and not sums[at] do
      sums[at], missing[#missing + 1] = '', at
      step = sum_size(at, step)
      at = at + step
    end
  end
  corrections_read(corrections, missing)
  local units, calls, at, step = 0, 0, number + 1, 1
  while at <= last do
    local more_units, more_calls = corrections_sum(corrections, at)
    units, calls = units + more_units, calls + more_calls
    step = sum_size(at, step)
    at = at + step
  end
  corrections.units[number], corrections.calls[number] = units, calls
  return units, calls
end

-- None of the corrected entries is there any more, and numbers may begin anew.
local function corrections_forget(corrections)
  local spans, left = redis.call('HGET', corrections.key, 'spans'), redis.call('PTTL', corrections.key)
  redis.call('DEL', corrections.key)
  if spans then
    redis.call('HSET', corrections.key, 'spans', spans)
    redis.call('PEXPIRE', corrections.key, int(math.max(left, 1)))
  end
end
