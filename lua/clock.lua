-- Time and numbers. Part of every script that src/gate/scripts.rs assembles.

-- Formats an integer. tostring() and bare numbers keep only 14 digits, and Redis 7.2 writes 2e+8.
-- '%d' takes half the time of '%.0f' and is as exact, since all numbers here are integers.
local function int(n)
  return string.format('%d', n)
end

-- Returns Redis's clock in milliseconds since the Unix epoch, rounded down (for comparisons) and up
-- (the time recorded for starts). A script reads it once: before Redis 7.2 it does not stand still.
local clock_now, clock_stamp
local function read_clock()
  if not clock_now then
    local time = redis.call('TIME')
    local micros = tonumber(time[2])
    local rest = micros % 1000
    clock_now = tonumber(time[1]) * 1000 + (micros - rest) / 1000
    clock_stamp = rest > 0 and clock_now + 1 or clock_now
  end
  return clock_now, clock_stamp
end
