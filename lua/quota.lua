-- quota: stores the limits that the API advertises, for inspect. They don't affect decisions. The
-- specification is State::advertised in src/rules/gate/model.rs. Needs clock.lua and waitlist.lua
-- before it.
--
-- KEYS[1]  the waitlist (HASH)
--
-- ARGV[1]  the limits: "LIMIT/WINDOW_S", separated by commas
--
-- Reply: the clock in milliseconds since the Unix epoch, rounded down.

redis.call('HSET', KEYS[1], 'quota', ARGV[1] .. '@' .. int(now))
waitlist_keep(KEYS[1], now, now)
return now
