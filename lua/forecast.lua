-- forecast: when the units of one waitlist have their turns, now and under other limits. Writes
-- nothing. The specification is Scopes::schedule in src/rules/gate/model/scopes/schedule.rs. Needs
-- what inspect.lua needs, and muldiv.lua.
--
-- KEYS[1]  the waitlist (HASH); the others as in acquire.lua, those of the current limits first
-- ARGV[1]  the current limits, then the hypothetical ones, described in limits.lua
-- ARGV[2]  the number of current limits
-- ARGV[3]  the names of hypothetical limits that ignore an operator's max, each followed by a comma
-- ARGV[4]  when the tenant is hypothetically open: '' as it is, 'now', or a wait in milliseconds
-- ARGV[5]  no job starts before this time, in milliseconds since the Unix epoch; 0 for no bound
-- ARGV[6]  the cost of the job at which the forecast ends, or 0 to forecast the whole waitlist
-- ARGV[7]  the generation of that job's ticket, and
-- ARGV[8]  its number; both 0 if it has no ticket
-- ARGV[9]  the shared partitions, if there are any
--
-- Reply: integers.
-- [1]  1 for a forecast; 0: the clock is in a fixed window that is not among KEYS, and the reply
--      ends after [2]
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- Then twice, for the current and for the hypothetical limits:
-- [a]      no job starts before this time, in milliseconds since the Unix epoch
-- [a + 1]  units in the waitlist
-- [a + 2]  units up to the given place, including the job's own
-- [a + 3]  the approximate number of jobs with these units
-- [a + 4 …]  the effective max of each limit, then the configured max of each, without learning
-- then, for each of up to POINTS of these units, including the last: its position, from 1, and for
-- each limit when it admits that unit, in milliseconds since the Unix epoch

local shared = SHARED and ARGV[#ARGV]
local said, opens, not_before = ARGV[3], ARGV[4], tonumber(ARGV[5])

local cost, generation, number = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local function forget_overrides(control)
  for name in string.gmatch(said, '([^,]+),') do
    if control.overrides then
      control.overrides[name] = nil
    end
  end
end

-- Returns until when the tenant is suspended.
local function closed_until(control, as_it_is)
  local blocked, paused = waitlist_closings(control.key, now, false)
  local breaker = control.breaker and breaker_functions().closed(control.breaker, now) or 0
  if not as_it_is and opens == 'now' then
    return 0
  elseif not as_it_is and opens ~= '' then
    paused = now + tonumber(opens)
  end
  return math.max(blocked, paused, breaker)
end

-- Returns the units up to the given place, and how many of them are the job's own.
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

-- Appends the forecast for the limits in ARGV[1] to `reply`. Returns false if the current fixed
-- window is not among KEYS.
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
    SHARED.begin(limits)
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
  for i = 1, #limits do
    reply[#reply + 1] = limits[i].set
  end
  local points = math.min(units, POINTS)
  for point = 1, points do
    local unit = muldiv(units, point, points)
    reply[#reply + 1] = unit
    for i = 1, #limits do
      reply[#reply + 1] = (limits_turn({ limits[i], partitions = limits.partitions }, waitlist, base, unit, unit == units and own or 1))
    end
  end
  return true
end

local reply = { 1, now }
local text, behind = ARGV[1], 1
for _ = 1, tonumber(ARGV[2]) do
  behind = behind + (struct.unpack(LIMIT_FORMAT, text, behind))
end

ARGV[1] = string.sub(text, 1, behind - 1)
local known = schedule(reply, true)
if known then
  ARGV[1] = string.sub(text, behind)
  if SHARED then
    -- Loading removed it from ARGV.
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
