-- Time and numbers. Part of every script that src/gate/scripts.rs assembles.

-- Formats an integer. tostring() and bare numbers keep only 14 digits, and Redis 7.2 writes 2e+8.
-- '%d' takes half the time of '%.0f' and is as exact, since all numbers here are integers.
local function int(n)
  return string.format('%d', n)
end

-- Returns Redis's clock in milliseconds since the Unix epoch, rounded down (for comparisons) and up
-- (the time recorded for starts).
local function read_clock()
  local time = redis.call('TIME')
  local now, rest = tonumber(time[1]) * 1000, tonumber(time[2])
  local whole = math.floor(rest / 1000)
  if rest > 1000 * whole then
    return now + whole, now + whole + 1
  end
  return now + whole, now + whole
end
