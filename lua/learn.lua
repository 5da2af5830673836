-- learn: updates adaptive limits after an answer of the API: lowers them, or ends what kept them
-- low. Counted usage does not change, except that buckets and sliding counters save up nothing
-- while the tenant is throttled. The specification is Scopes::learn in
-- src/rules/gate/model/learn.rs, and src/rules/learned.rs. Files that must come before it:
-- clock.lua, learned.lua, waitlist.lua, limits.lua, fair_queue.lua and shared_partitions.lua if a
-- limit is shared, and the algorithms.
--
-- KEYS[1]  the waitlist (HASH); the others as in acquire.lua
--
-- ARGV     the limits, described in limits.lua; then
-- ARGV[2]  'refused' or 'advertised'
-- ARGV[3]  for refused: the clock when the call started, in milliseconds; else 0
-- ARGV[4]  for refused: the call's charge; else 0
-- ARGV[5]  for refused: how long the API says that it refuses, in milliseconds, 0 if it does not
--          say; for advertised: for each limit, separated by commas, the max that complies with the
--          API's limits, 0 if the limit itself does, - if the answer says nothing of it
-- ARGV[6]  for refused: how long no job with an adaptive limit starts now, in milliseconds; else 0
--
-- Reply: integers.
-- [1]  1: done; 0: the clock is in a fixed window that is not among KEYS, nothing was changed, and
--      the reply ends after [2]
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- [3 + 6n]  the n-th limit that has learned: its index, from 0
-- [4 + 6n]  the previous effective max
-- [5 + 6n]  the effective max now
-- [6 + 6n]  the max that is set: the configuration's or an operator's
-- [7 + 6n]  when the limit is whole again if nothing more happens, in milliseconds since the Unix
--           epoch
-- [8 + 6n]  1 for a new event; 0 for one more refusal of the last event
--
-- Constants that no Lua file sets come from src/gate/scripts.rs, which takes their values from the
-- specification's constants.

local waitlist = waitlist_load(KEYS[1], now)
local limits = limits_load(waitlist, now, stamp, 1, false)
if not limits then
  return { 0, now }
end

local LEARNED = learned_functions()

local function home(n)
  return limits[n].partition and limits.partitions[limits[n].partition] or waitlist
end

-- Returns true if limit `n` is adaptive.
local function learns(n)
  return limits[n] and limits[n].floor < NEVER
end

-- Returns the name of the learned state of limit `n`.
local function record(n)
  return limits[n].name .. '/' .. int(limits[n].length)
end

-- Returns the max on which learning is based: the configuration's, or an operator's if that is
-- higher. An operator's lower max is ignored here: otherwise the learned value would be discarded
-- when that max ends.
local function highest(n)
  return math.max(limits[n].set, limits[n].own_max)
end

-- Returns the learned state of limit `n`, or nil if none of it counts.
local function known(n)
  local text = redis.call('HGET', home(n).key, 'overrides') or ''
  for name, numbers in string.gmatch(text, '([%w-]+/%d+)~([%d,]+)') do
    if name == record(n) then
      local learned = LEARNED.parse(numbers)
      return learned.ends > now and learned or nil
    end
  end
  return nil
end

-- Returns the longest wait (ms) that the window of limit `n` explains.
local function explained(n)
  return math.max(EXPLAINED_MS, 2 * limits[n].length)
end

-- Returns true if a refusal tells how much quota the API grants for limit `n`.
local function is_heard(n, started, after)
  local limit = limits[n]
  if not learns(n) or limit.length == 0 or after > explained(n) then
    return false
  end
  if limit.algorithm.bucket then
    return true
  elseif limit.algorithm.counts then
    return limit.algorithm.counts(limit, started)
  end
  return math.max(now - started, 0) < limit.span
end

-- Returns the limit that a refusal is about (the one with the highest share used), and its usage.
local function most_used(started, after)
  local which, more, size
  for n = 1, #limits do
    if is_heard(n, started, after) then
      local count = limits[n].algorithm.count(limits[n])
      local own = limits[n].algorithm.bucket and limits[n].burst or limits[n].max
      if not which or count * size > more * own then
        which, more, size = n, count, own
      end
    end
  end
  return which, more
end

-- Returns when everything learned of a limit of `max` expires.
local function ends(learned, max)
  if learned.at == 0 then
    return learned.till
  end
  local steps = math.ceil(math.max(max - learned.to, 0) / math.max(learned.step, 1))
  local at, wait = learned.at, learned.first
  while steps > 0 and wait > learned.least do
    at = at + wait
    steps = steps - 1
    wait = math.max(math.floor(wait / 2), learned.least)
  end
  return math.max(math.min(at + steps * learned.least, learned.at + LEARNED_MS), learned.till)
end

local function fresh()
  local learned = { past = {} }
  for _, name in ipairs(LEARNED.fields) do
    learned[name] = 0
  end
  return learned
end

-- Takes the refusal of a call of `units` when `count` units counted against limit `n`. Also returns
-- whether it is a new event.
local function refused(learned, n, started, units, count)
  local is_new = not learned
  learned = learned or fresh()
  local max, floor, bucket = highest(n), limits[n].floor, limits[n].algorithm.bucket
  learned.times = learned.times + 1
  if learned.at > 0 and started <= learned.at then
    learned.refused = learned.refused + units
    learned.seen = math.max(learned.seen, count)
    local given = math.max(learned.seen - learned.refused, 0)
    if not bucket and given >= floor and given < learned.to then
      learned.to = given
      learned.ends = ends(learned, max)
    end
    return learned, false
  end
  is_new = is_new or learned.at ~= now
  local current = math.max(math.min(LEARNED.most(learned, now), max), floor)
  local given = math.max(count - units, 0)
  local step = math.ceil(max / STEPS)
  local to = math.min(given, current - 1)
  if bucket then
    local far = learned.at > 0 and now < learned.at + 2 * limits[n].length
    to = current - (far and FAR or 1) * step
  elseif given < floor then
    to = current - math.max(math.floor(current / SINKS), 1)
  end
  local least = limits[n].length * math.ceil(CALLS * step / max)
  local first = least
  if learned.at > 0 then
    if current <= learned.to + 2 * step then
      first = math.min(math.max(2 * learned.first, least), PATIENCE * least)
    end
    table.insert(learned.past, 1, learned.to)
    table.insert(learned.past, 1, learned.at)
    learned.past[2 * PAST + 1], learned.past[2 * PAST + 2] = nil, nil
  else
    learned.since = now
  end
  learned.at, learned.first, learned.least, learned.step = now, first, least, step
  learned.to = math.max(to, floor)
  learned.seen, learned.refused = count, units
  learned.ends = ends(learned, max)
  return learned, is_new
end

-- Takes the API's advertised limits, with which `max` complies. Returns nil if nothing learned is
-- left.
local function told(learned, n, max)
  learned = learned or fresh()
  learned.told, learned.till = 0, 0
  if max > 0 then
    learned.told, learned.till = math.max(max, limits[n].floor), now + TOLD_MS
  end
  learned.since = learned.since > 0 and learned.since or now
  learned.ends = ends(learned, highest(n))
  return learned.ends > now and learned or nil
end

-- Stores the learned state of limit `n`, without expired entries.
local function save(n, learned)
  local key, kept = home(n).key, now
  local texts = {}
  for text, name, rest in string.gmatch(redis.call('HGET', key, 'overrides') or '', '(([%w/-]+)([^;]*);)') do
    local numbers = string.match(rest, '^~([%d,]+)$')
    local other = numbers and LEARNED.parse(numbers)
    if not other then
      texts[#texts + 1] = text
    elseif name ~= record(n) and other.ends > now then
      texts[#texts + 1] = text
      kept = math.max(kept, other.ends)
    end
  end
  if learned then
    local numbers = {}
    for i, name in ipairs(LEARNED.fields) do
      numbers[i] = int(learned[name])
    end
    for _, number in ipairs(learned.past) do
      numbers[#numbers + 1] = int(number)
    end
    texts[#texts + 1] = record(n) .. '~' .. table.concat(numbers, ',') .. ';'
    kept = math.max(kept, learned.ends)
  end
  if #texts > 0 then
    redis.call('HSET', key, 'overrides', table.concat(texts))
  else
    redis.call('HDEL', key, 'overrides')
  end
  waitlist_keep(key, now, kept)
end

-- Returns the effective max of limit `n` with `learned`, and the burst, as limits_load computes
-- them.
local function in_force(n, learned)
  local algorithm = limits[n].algorithm
  local max, burst = limits_with_max(algorithm, limits[n].own_max, limits[n].own_burst, limits[n].set)
  -- If an operator's max is above the configured one, the learned number may expire at once.
  local most = learned and learned.ends > now and math.max(LEARNED.most(learned, now), limits[n].floor)
  if most and most < max then
    max, burst = limits_with_max(algorithm, max, burst, most)
  end
  return max, burst
end

-- Prevents the starts that limit `n` counts, up to the time `until_ms`. Quota saved up in the
-- meantime would add to an even flow.
local function hold(n, learned, until_ms)
  local limit = limits[n]
  if limit.algorithm.hold then
    limit.max, limit.burst = in_force(n, learned)
    limit.algorithm.hold(limit, until_ms)
    limit.algorithm.save(limit, limits)
  end
end

local reply = { 1, now }
local function learn(n, learned, is_new)
  save(n, learned)
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = n - 1, limits[n].max, in_force(n, learned)
  reply[at + 4], reply[at + 5], reply[at + 6] = limits[n].set, learned and learned.ends or now, is_new and 1 or 0
end

if ARGV[2] == 'refused' then
  local n, count = most_used(tonumber(ARGV[3]), tonumber(ARGV[5]))
  if n then
    local units = limits[n].calls and 1 or math.max(tonumber(ARGV[4]), 1)
    local learned, is_new = refused(known(n), n, tonumber(ARGV[3]), units, count)
    learn(n, learned, is_new)
    if is_new then
      hold(n, learned, now + math.min(tonumber(ARGV[6]), explained(n)))
    end
  end
else
  local n = 0
  for number in string.gmatch(ARGV[5], '[^,]+') do
    n = n + 1
    local max, learned = tonumber(number), learns(n) and known(n)
    if max and learns(n) and (max > 0 or learned and learned.till > 0) then
      learn(n, told(learned or nil, n, max), true)
    end
  end
end
return reply
