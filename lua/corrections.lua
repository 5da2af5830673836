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

-- Creates the state of the corrections in the HASH `key`, up to number `last`, with its functions,
-- which calls without corrections do not need.
local function corrections_load(key, last)
  local corrections = { key = key, last = last }
  -- The packed fields, or '' if absent, and the sums after an entry.
  local sums, units_behind, calls_behind = {}, {}, {}

  -- Returns how many numbers the field of `number` sums up, from `number` on. That is at least
  -- `step`, a divisor of `number`.
  function corrections.size(number, step)
    while number % (2 * step) == 0 do
      step = 2 * step
    end
    return step
  end

  -- Reads the fields of these numbers.
  function corrections.read(numbers)
    local fields = {}
    for i, number in ipairs(numbers) do
      fields[i] = int(number)
    end
    local values = #fields > 0 and redis.call('HMGET', key, unpack(fields)) or fields
    for i, value in ipairs(values) do
      sums[numbers[i]] = value or ''
    end
  end

  -- Returns the units and calls summed up in the field of `number`.
  function corrections.sum(number)
    local packed = sums[number]
    if packed == '' then
      return 0, 0
    end
    local units, calls = struct.unpack(SUM_FORMAT, packed)
    return units, calls
  end

  -- Returns how many more (or fewer) units and calls the entries after `number` used. Also reads
  -- the fields for this many neighbors on each side.
  function corrections.behind(number, neighbors)
    local last = corrections.last
    if number >= last then
      return 0, 0
    elseif units_behind[number] then
      return units_behind[number], calls_behind[number]
    end
    local missing = {}
    for first = math.max(number - neighbors, 0) + 1, math.min(number + neighbors + 1, last) do
      local at, step = first, 1
      -- Everything after a known number is known.
      while at <= last and not sums[at] do
        sums[at], missing[#missing + 1] = '', at
        step = corrections.size(at, step)
        at = at + step
      end
    end
    corrections.read(missing)
    local units, calls, at, step = 0, 0, number + 1, 1
    while at <= last do
      local more_units, more_calls = corrections.sum(at)
      units, calls = units + more_units, calls + more_calls
      step = corrections.size(at, step)
      at = at + step
    end
    units_behind[number], calls_behind[number] = units, calls
    return units, calls
  end

  -- Deletes the corrections once none of the corrected entries is left and numbering may restart.
  function corrections.forget()
    local spans, left = redis.call('HGET', key, 'spans'), redis.call('PTTL', key)
    redis.call('DEL', key)
    if spans then
      redis.call('HSET', key, 'spans', spans)
      redis.call('PEXPIRE', key, int(math.max(left, 1)))
    end
  end

  return corrections
end
