-- Time and numbers. Part of every script that src/gate/scripts.rs assembles.
--
-- Each call of a script creates its functions anew, and binds the names that they use. So functions
-- that few calls need are within a function, or in a part that few scripts have, and acquire.lua's
-- usual path has minima and maxima written out.

-- Formats an integer. tostring() and bare numbers keep only 14 digits, and Redis 7.2 writes 2e+8.
-- '%d' takes half the time of '%.0f' and is as exact, since all numbers here are integers.
local function int(n)
  return string.format('%d', n)
end

-- Redis's clock in milliseconds since the Unix epoch, rounded down (for comparisons) and up (the
-- time recorded for starts). A script reads it once: before Redis 7.2 it does not stand still.
local now, stamp
do
  local time = redis.call('TIME')
  local rest = time[2] % 1000
  now = time[1] * 1000 + (time[2] - rest) / 1000
  stamp = rest > 0 and now + 1 or now
end
