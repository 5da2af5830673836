-- forecast: when the units of one waitlist have their turns, as things stand and if something were different; writes nothing.
-- The specification is Scopes::schedule in src/rules/model/scopes/schedule.rs. Needs what inspect.lua needs.
--
-- KEYS[1]  the waitlist (HASH); the others as acquire.lua has them, those of the limits as they are first
-- ARGV[1]  the clock, as limits.lua says
-- ARGV[2]  the limits as they are, and behind them those as they would be
-- ARGV[3]  how many of them are as they are
-- ARGV[4]  the names, with a comma behind each, of those that would be whose max an operator's does not replace
-- ARGV[5]  when the tenant would be open: '' when it is, 'now', or after so many milliseconds
-- ARGV[6]  nobody starts before, in milliseconds since the epoch; 0: that is not so
-- ARGV[7]  up to where in the waitlist: the cost of a job; 0: all of it
-- ARGV[8]  the generation of that job's ticket, and
-- ARGV[9]  its number; both 0: it has none
-- ARGV[10] the shared partitions, where there are any
--
-- Reply: integers.
-- [1]  1: here it is; 0: the clock is in a fixed window that is not among KEYS, and [2] is all
-- [2]  the clock in milliseconds since the epoch, rounded down
-- Then twice, as it is and as it would be:
-- [a]      nobody starts before, in milliseconds since the epoch
-- [a + 1]  units that wait in the waitlist
-- [a + 2]  those up to the place that was asked for, its own among them
-- [a + 3]  about how many jobs have these
-- [a + 4 …]  the max of each limit that is in force, and then of each the max that is set, whatever was learned
-- then for each of up to POINTS of these units, the last of them at the end: which it is, from 1; and for each limit when
-- it lets that one start, in milliseconds since the epoch

local now, stamp = read_clock(ARGV[1])
local shared = SHARED and ARGV[#ARGV]
local said, opens, not_before = ARGV[4], ARGV[5], tonumber(ARGV[6])

local cost, generation, number = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

local function forget_overrides(control)
  for name in string.gmatch(said, '([^,]+),') do
    if control.overrides then
      control.overrides[name] = nil
    end
  end
end

-- Until when the tenant is closed.
local function closed_until(control, as_it_is)
  local blocked, paused = waitlist_closings(control.key, now, false)
  local breaker = control.breaker and breaker_closed(control.breaker, now) or 0
  if not as_it_is and opens == 'now' then
    return 0
  elseif not as_it_is and opens ~= '' then
    paused = now + tonumber(opens)
  end
  return math.max(blocked, paused, breaker)
end

-- How many units there are up to the place, and how many of them are its own.
local function up_to(limits, waitlist)
  local waiting = waitlist_waiting(waitlist)
  if cost == 0 then
    return waiting, 1
  end
  local own = limits.cost and math.min(cost, limits.most) or 1
  if generation == waitlist.generation and number >= 1 and number <= waitlist.last_issued then
    return math.max(own, number - waitlist.now_serving - waitlist.claimed), own
  end
  return waiting + own, own
end

-- Adds what is said of the limits in ARGV[2] to `reply`; false: a fixed window of now is not among KEYS.
local function schedule(reply, as_it_is)
  local waitlist = waitlist_load(KEYS[1], now)
  if not as_it_is then
    forget_overrides(waitlist)
  end
  local limits = limits_load(waitlist, now, stamp, 1, false)
  if not limits then
    return false
  end
  local control = waitlist
  if SHARED then
    SHARED.look(limits)
    control = limits.partitions.control
  end
  local base = math.max(now, closed_until(control, as_it_is), not_before)
  local units, own = up_to(limits, waitlist)
  reply[#reply + 1] = base
  reply[#reply + 1] = waitlist_waiting(waitlist)
  reply[#reply + 1] = units
  reply[#reply + 1] = units > 0 and waitlist_jobs(waitlist, units, own) or 0
  for i = 1, #limits do
    reply[#reply + 1] = limits[i].max
  end
  for _, max in ipairs(limits_set(limits, waitlist)) do
    reply[#reply + 1] = max
  end
  local points = math.min(units, POINTS)
  for point = 1, points do
    local unit = math.floor(units * point / points)
    reply[#reply + 1] = unit
    for i = 1, #limits do
      reply[#reply + 1] = (limits_turn({ limits[i], partitions = limits.partitions }, waitlist, base, unit, unit == units and own or 1))
    end
  end
  return true
end

local reply = { 1, now }
local text, behind = ARGV[2], 1
for _ = 1, tonumber(ARGV[3]) do
  behind = select(14, struct.unpack(LIMIT_FORMAT, text, behind))
end

ARGV[2] = string.sub(text, 1, behind - 1)
local known = schedule(reply, true)
if known then
  ARGV[2] = string.sub(text, behind)
  if SHARED then
    -- It was taken from ARGV.
    ARGV[#ARGV + 1] = shared
    local load = SHARED.load
    SHARED.load = function(waitlist, at)
      local partitions = load(waitlist, at)
      forget_overrides(partitions.control)
      return partitions
    end
  end
  known = schedule(reply, false)
end
return known and reply or { 0, now }
