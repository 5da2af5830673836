-- Time and numbers. Part of every script: src/gate/scripts.rs puts the parts together.

-- An integer as text. Never tostring() or a bare number: those keep 14 digits, and Redis 7.2 writes 2e+8. Everywhere '%d',
-- which takes half of the time of '%.0f' and is as exact: all numbers here are whole.
local function int(n)
  return string.format('%d', n)
end

-- Now in milliseconds since the epoch, rounded down (what is compared) and up (what a start is written with).
-- `micros` is a test's clock, '' in production: then Redis's own, read once.
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
