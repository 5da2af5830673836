-- learn: an answer of the API says something of limits that learn: they sink, or less holds them down. What counts is not changed,
-- but that buckets and sliding counters save nothing up while the API is closed.
-- The specification is Scopes::learn in src/rules/model/learn.rs, and src/rules/learned.rs. Needs clock.lua, learned.lua, waitlist.lua,
-- limits.lua, fair_queue.lua and shared_partitions.lua where a limit is shared, and the algorithms before it.
--
-- KEYS[1]  the waitlist (HASH); the others as acquire.lua has them
--
-- ARGV     the clock and the limits, as limits.lua says; then
-- ARGV[3]  'refused' or 'advertised'
-- ARGV[4]  for refused: the clock when the call started, in milliseconds; else 0
-- ARGV[5]  for refused: what it was charged; else 0
-- ARGV[6]  for refused: for how long the API says that it refuses, in milliseconds, 0: it does not say; for advertised: for each limit
--          the max that keeps what the API says, 0: the limit does, with commas between them
-- ARGV[7]  for each limit its window in milliseconds and whether its windows begin with the epoch (1) or not (0), with commas between
-- ARGV[8]  for refused: for how long nothing starts now that a limit which learns counts, in milliseconds; else 0
--
-- Reply: integers.
-- [1]  1: done; 0: the clock is in a fixed window that is not among KEYS, nothing was changed, and [2] is all
-- [2]  the clock in milliseconds since the epoch, rounded down
-- [3 + 6n]  of the n-th limit that has learned something: which it is, from 0
-- [4 + 6n]  the max that was in force
-- [5 + 6n]  the max in force now
-- [6 + 6n]  the max that is set: the configuration's, or an operator's
-- [7 + 6n]  when it is whole again if nothing more happens, in milliseconds since the epoch
-- [8 + 6n]  1: an event of its own; 0: one more refusal of the last
--
-- Constants that no file here sets are those of the same names in the specification: src/gate/scripts.rs sets them.

local now, stamp = read_clock(ARGV[1])

-- The limits as they are configured: what limits_load has is in force.
local function configured()
  local all, text, at = {}, ARGV[2], 1
  local windows = string.gmatch(ARGV[7], '%d+')
  while at <= #text do
    local max, burst, floor, name, algorithm, _
    max, _, _, _, _, burst, floor, _, _, _, _, name, algorithm, at = struct.unpack(LIMIT_FORMAT, text, at)
    local window, aligned = tonumber(windows()), windows() == '1'
    all[#all + 1] = {
      max = max, floor = floor, learns = floor < NEVER, name = name, window = window, aligned = aligned,
      burst = burst, leaky = algorithm == 'leaky-bucket-algo',
    }
  end
  return all
end

local all = configured()
local waitlist = waitlist_load(KEYS[1], now)
local limits = limits_load(waitlist, now, stamp, 1, false)
if not limits then
  return { 0, now }
end

local function home(n)
  return limits[n].partition and limits.partitions[limits[n].partition] or waitlist
end

-- What an operator set in place of limit `n`; nil: nothing.
local function by_operator(n)
  local control = limits.partitions and limits.partitions.control or waitlist
  return not home(n).everybody and control.overrides and control.overrides[all[n].name] or nil
end

-- The max of limit `n` that is set: the configuration's, or an operator's.
local function set_max(n)
  local set = by_operator(n)
  return set and set.max or all[n].max
end

-- What it learns of: an operator's max counts where it is more than the configuration's. Of less, what was learned would be forgotten with it.
local function highest(n)
  return math.max(set_max(n), all[n].max)
end

-- What is known of limit `n`; nil: nothing that counts yet.
local function known(n)
  local text = redis.call('HGET', home(n).key, 'overrides') or ''
  for name, numbers in string.gmatch(text, '([%w-]+)~([%d,]+)') do
    if name == all[n].name then
      local learned = learned_parse(numbers)
      return learned.ends > now and learned or nil
    end
  end
  return nil
end

-- The longest wait (ms) that the window of limit `n` explains.
local function explained(n)
  return math.max(EXPLAINED_MS, 2 * all[n].window)
end

-- Whether a refusal says how much of limit `n` the API gives.
local function is_heard(n, started, after)
  local limit = limits[n]
  if not all[n].learns or all[n].window == 0 or after > explained(n) then
    return false
  end
  if limit.algorithm.bucket then
    return true
  elseif all[n].aligned then
    return math.floor(started / limit.span) == math.floor(now / limit.span)
  end
  return math.max(now - started, 0) < limit.span
end

-- The limit that a refusal is about, and how much of it is used.
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

-- When all that was learned is over, for a limit of `max`.
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
  for _, name in ipairs(LEARNED) do
    learned[name] = 0
  end
  return learned
end

-- A call of so many `units` was refused when `count` units counted against limit `n`. Second: it is an event of its own.
local function refused(learned, n, started, units, count)
  local is_new = not learned
  learned = learned or fresh()
  local max, floor, bucket = highest(n), all[n].floor, limits[n].algorithm.bucket
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
  local current = math.max(math.min(learned_most(learned, now), max), floor)
  local given = math.max(count - units, 0)
  local step = math.ceil(max / STEPS)
  local to = math.min(given, current - 1)
  if bucket then
    local far = learned.at > 0 and now < learned.at + 2 * all[n].window
    to = current - (far and FAR or 1) * step
  elseif given < floor then
    to = current - math.max(math.floor(current / SINKS), 1)
  end
  local least = all[n].window * math.ceil(CALLS * step / max)
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

-- The API says of its own limits that `max` keeps them. nil: nothing is left to say.
local function told(learned, n, max)
  learned = learned or fresh()
  learned.told, learned.till = 0, 0
  if max > 0 then
    learned.told, learned.till = math.max(max, all[n].floor), now + TOLD_MS
  end
  learned.since = learned.since > 0 and learned.since or now
  learned.ends = ends(learned, highest(n))
  return learned.ends > now and learned or nil
end

-- Writes what was learned of limit `n`, without what is over.
local function save(n, learned)
  local key, kept = home(n).key, now
  local texts = {}
  for text, name, rest in string.gmatch(redis.call('HGET', key, 'overrides') or '', '(([%w-]+)([^;]*);)') do
    local numbers = string.match(rest, '^~([%d,]+)$')
    local other = numbers and learned_parse(numbers)
    if not other then
      texts[#texts + 1] = text
    elseif name ~= all[n].name and other.ends > now then
      texts[#texts + 1] = text
      kept = math.max(kept, other.ends)
    end
  end
  if learned then
    local numbers = {}
    for i, name in ipairs(LEARNED) do
      numbers[i] = int(learned[name])
    end
    for _, number in ipairs(learned.past) do
      numbers[#numbers + 1] = int(number)
    end
    texts[#texts + 1] = all[n].name .. '~' .. table.concat(numbers, ',') .. ';'
    kept = math.max(kept, learned.ends)
  end
  if #texts > 0 then
    redis.call('HSET', key, 'overrides', table.concat(texts))
  else
    redis.call('HDEL', key, 'overrides')
  end
  waitlist_keep(key, now, kept)
end

-- The max of limit `n` that is in force with `learned`, and the burst, as limits_load has them.
local function in_force(n, learned)
  local set = by_operator(n)
  local max, burst = all[n].max, all[n].burst
  if set then
    max, burst = set.max, burst == max and not all[n].leaky and set.max or burst
  end
  -- Where an operator set more than is configured, what was learned may be over at once.
  local most = learned and learned.ends > now and math.max(learned_most(learned, now), all[n].floor)
  if most and most < max then
    max, burst = most, burst == max and not all[n].leaky and most or burst
  end
  return max, burst
end

-- Nothing that limit `n` counts starts before then. What it saved up meanwhile would come on top of an even flow.
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
  reply[at + 4], reply[at + 5], reply[at + 6] = set_max(n), learned and learned.ends or now, is_new and 1 or 0
end

if ARGV[3] == 'refused' then
  local n, count = most_used(tonumber(ARGV[4]), tonumber(ARGV[6]))
  if n then
    local units = limits[n].calls and 1 or math.max(tonumber(ARGV[5]), 1)
    local learned, is_new = refused(known(n), n, tonumber(ARGV[4]), units, count)
    learn(n, learned, is_new)
    if is_new then
      hold(n, learned, now + math.min(tonumber(ARGV[8]), explained(n)))
    end
  end
else
  local n = 0
  for number in string.gmatch(ARGV[6], '%d+') do
    n = n + 1
    local max, learned = tonumber(number), all[n] and all[n].learns and known(n)
    if all[n] and all[n].learns and (max > 0 or learned and learned.till > 0) then
      learn(n, told(learned or nil, n, max), true)
    end
  end
end
return reply
