-- Corrections of a sliding log: the difference between the actual cost of calls and their entries,
-- as sums over the entries' numbers, in fields of the HASH next to the log. The specification,
-- src/rules/algorithms/sliding.rs, changes the entry itself instead.
--
-- corrected  the highest number of an entry that was corrected, or that replaces a late entry
-- NUMBER     packed: how many more (or fewer) units and calls this entry and the following ones
--            used, for as many entries as the largest power of two that divides NUMBER: a Fenwick
--            tree that is read from its end
-- to:NUMBER  packed: a new entry replaces the entry NUMBER of a late start: the new entry's number,
--            and when (ms) the start was asked for
--
-- So entries are never removed or rewritten, and everything after them stays valid. The sum after
-- an entry is the sum of a few fields, all with numbers above its own. Fields below the oldest
-- entry's are never read again, and are deleted bit by bit. A number is not reused while the log
-- has a corrected entry; otherwise everything is forgotten before numbering restarts.
local SUM_FORMAT = '>i8i6'
local MOVED_FORMAT = '>I6I6'

-- Returns how many numbers the field of `number` sums up, from `number` on. That is at least
-- `step`, a divisor of `number`.
local function sum_size(number, step)
  while number % (2 * step) == 0 do
    step = 2 * step
  end
  return step
end

-- Creates the state of the corrections in the HASH `key`, up to number `last`. `sums` caches
-- fields, packed, or '' if absent. `units` and `calls` cache the sums after an entry.
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

-- Returns the units and calls summed up in the field of `number`.
local function corrections_sum(corrections, number)
  local sum = corrections.sums[number]
  if sum == '' then
    return 0, 0
  end
  local units, calls = struct.unpack(SUM_FORMAT, sum)
  return units, calls
end

-- Returns how many more (or fewer) units and calls the entries after `number` used. Also reads the
-- fields for this many neighbors on each side.
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
    -- Everything after a known number is known.
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

-- Deletes the corrections once none of the corrected entries is left and numbering may restart.
local function corrections_forget(corrections)
  local spans, left = redis.call('HGET', corrections.key, 'spans'), redis.call('PTTL', corrections.key)
  redis.call('DEL', corrections.key)
  if spans then
    redis.call('HSET', corrections.key, 'spans', spans)
    redis.call('PEXPIRE', corrections.key, int(math.max(left, 1)))
  end
end
