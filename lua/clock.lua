-- Time and numbers. Part of every script that src/gate/scripts.rs assembles.

-- Formats an integer. tostring() and bare numbers keep only 14 digits, and Redis 7.2 writes 2e+8.
-- '%d' takes half the time of '%.0f' and is as exact, since all numbers here are integers.
local function int(n)
  return string.format('%d', n)
end

-- Returns now in milliseconds since the Unix epoch, rounded down (for comparisons) and up (the time
-- recorded for starts). `micros` is a test's clock, or '' in production, where Redis's clock is
-- read once.
local function read_clock(micros)
  if micros == '' then
    local time = redis.call('TIME')
    micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
  else
    micros = tonumber(micros)
  end
  local rest = micros % 1000
  local now = (micros - rest) / 1000
  if rest > 0 then
    return now, now + 1
  end
  return now, now
end
