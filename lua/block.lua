-- block: closes one tenant for a while; never shortens what is in force.
-- The specification is State::block in src/rules/model.rs. Needs clock.lua and waitlist.lua before it.
--
-- KEYS[1]  the waitlist (HASH)
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  for how long, in milliseconds from now
-- ARGV[3]  what closes it
--
-- Reply: until when the downstream has closed the tenant now, in milliseconds since the epoch.

local now = read_clock(ARGV[1])
local until_ms = now + tonumber(ARGV[2])
local blocked = waitlist_closings(KEYS[1], now, true)
if until_ms <= blocked then
  return blocked
end
redis.call('HSET', KEYS[1], 'blocked', int(until_ms), 'blocked-at', int(now), 'by', ARGV[3])
waitlist_keep(KEYS[1], now, until_ms)
return until_ms
