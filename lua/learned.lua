-- What was learned of limits: how far one sinks where the API gives less than it says, and how it rises again. The specification is
-- src/rules/learned.rs. It stands in the field `overrides`, as "NAME~NUMBERS;" for each limit, with commas between the numbers:
--
-- at       when a refusal lowered it last (ms); 0: none did
-- to       to how much
-- first    the wait (ms) before the first step up
-- least    that before the later ones at least (ms)
-- step     units of a step
-- ends     when all of it is forgotten (ms)
-- told     the most that the API advertises; 0: it does not say less
-- till     until when that counts (ms)
-- seen     in the last event: the most units that counted,
-- refused  and how many of them were refused
-- times    calls that were refused since it was whole
-- since    when it was whole last (ms)
-- then for each time that it sank before, the latest first: when (ms), and to how much
local LEARNED = { 'at', 'to', 'first', 'least', 'step', 'ends', 'told', 'till', 'seen', 'refused', 'times', 'since' }

local function learned_parse(text)
  local learned, n = { past = {} }, 0
  for number in string.gmatch(text, '%d+') do
    n = n + 1
    if LEARNED[n] then
      learned[LEARNED[n]] = tonumber(number)
    else
      learned.past[n - #LEARNED] = tonumber(number)
    end
  end
  return learned
end

-- What is in force at most.
local function learned_most(learned, now)
  local most = 4294967295
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
    most = math.min(learned.to + steps * learned.step, most)
  end
  if learned.till > now then
    most = math.min(most, learned.told)
  end
  return most
end
