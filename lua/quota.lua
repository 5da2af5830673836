-- quota: notes what the downstream says of its own limits, for inspect; it decides nothing.
-- The specification is State::advertised in src/rules/model.rs. Needs clock.lua and waitlist.lua before it.
--
-- KEYS[1]  the waitlist (HASH)
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  the limits: "LIMIT/WINDOW_S", with commas between them
--
-- Reply: the clock in milliseconds since the epoch, rounded down.

local now = read_clock(ARGV[1])
redis.call('HSET', KEYS[1], 'quota', ARGV[2] .. '@' .. int(now))
waitlist_keep(KEYS[1], now, now)
return now
