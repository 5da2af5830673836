-- block: closes one tenant for a while; never shortens what is in force.
-- The specification is State::block in src/rules/model.rs. Needs clock.lua and line.lua before it.
--
-- KEYS[1]  the line (HASH)
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  for how long, in milliseconds from now
-- ARGV[3]  what closes it
--
-- Reply: until when the tenant is closed now, in milliseconds since the epoch.

local now = read_clock(ARGV[1])
local until_ms = now + tonumber(ARGV[2])
local line = line_load(KEYS[1], now)
if until_ms <= line.blocked then
  return line.blocked
end
redis.call('HSET', KEYS[1], 'blocked', int(until_ms), 'by', ARGV[3])
-- The line may have to live longer than the block: its expiry is only ever put off.
local left = redis.call('PTTL', KEYS[1])
if left < until_ms - now + KEEP_MS then
  redis.call('PEXPIRE', KEYS[1], int(until_ms - now + KEEP_MS))
end
return until_ms
