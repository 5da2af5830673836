-- Learned limits: how far a limit is lowered when the API grants less than configured,
-- and how it rises again. The specification is src/rules/learned.rs. It is stored in the field
-- `overrides`, as "NAME/WINDOW~NUMBERS;" for each limit, with its window in milliseconds, for which
-- alone the numbers count, and commas between the numbers:
--
-- at       when a refusal last lowered the limit (ms); 0 if none has
-- to       the max it was lowered to
-- first    the wait before the first step up (ms)
-- least    the minimum wait before later steps (ms)
-- step     units of a step
-- ends     when everything learned is forgotten (ms)
-- told     the maximum that the API advertises; 0 if it advertises no lower one
-- till     until when that counts (ms)
-- seen     the maximum number of units that counted in the last event,
-- refused  and how many of them were refused
-- times    refused calls since the limit was whole
-- since    when the limit was last whole (ms)
-- then, for each earlier time that it was lowered, the latest first: when (ms), and to which max

-- Prefix of the names of learned limits in the result of the function `overrides`. No limit's name
-- begins with it.
local LEARNED_OF = '~'

-- Returns the functions of learned limits and of the field `overrides`. Only calls that need them
-- create them.
local function learned_functions()
  local fields = { 'at', 'to', 'first', 'least', 'step', 'ends', 'told', 'till', 'seen', 'refused', 'times', 'since' }

  local function parse(text)
    local learned, n = { past = {} }, 0
    for number in string.gmatch(text, '%d+') do
      n = n + 1
      if fields[n] then
        learned[fields[n]] = tonumber(number)
      else
        learned.past[n - #fields] = tonumber(number)
      end
    end
    return learned
  end

  -- Returns the maximum that is in force.
  local function most(learned, now)
    local max = NEVER
    if learned.at > 0 then
      local left, wait, steps = math.max(now - learned.at, 0), learned.first, 0
      while wait > learned.least and left >= wait do
        left = left - wait
        steps = steps + 1
        wait = math.max(math.floor(wait / 2), learned.least)
      end
      if wait <= learned.least then
        steps = steps + math.floor(left / math.max(learned.least, 1))
      end
      max = math.min(learned.to + steps * learned.step, max)
    end
    if learned.till > now then
      max = math.min(max, learned.told)
    end
    return max
  end

  -- Parses the field `overrides`. Returns a table with an operator's { max, ends } under the
  -- limit's name, and a learned maximum under LEARNED_OF and NAME/WINDOW, without expired entries.
  -- Also returns the latest end.
  local function overrides(text, now)
    local found, latest = {}, 0
    for name, max, ends in string.gmatch(text, '([%w-]+)=(%d+)@(%d+);') do
      if tonumber(ends) > now then
        found[name] = { max = tonumber(max), ends = tonumber(ends) }
        latest = math.max(latest, tonumber(ends))
      end
    end
    for name, numbers in string.gmatch(text, '([%w-]+/%d+)~([%d,]+)') do
      local learned = parse(numbers)
      if learned.ends > now then
        found[LEARNED_OF .. name] = most(learned, now)
        latest = math.max(latest, learned.ends)
      end
    end
    return found, latest
  end

  return { fields = fields, parse = parse, most = most, overrides = overrides }
end
