-- block: suspends one tenant, or all tenants, for a while, and never shortens a suspension that is
-- in force. The specification is State::block in src/rules/gate/model.rs. Needs clock.lua and
-- waitlist.lua before it.
--
-- KEYS[1]  the waitlist (HASH) of the tenant, or the HASH of the whole API
--
-- ARGV[1]  for how long, in milliseconds from now
-- ARGV[2]  the cause
--
-- Reply: until when the API now suspends calls, in milliseconds since the Unix epoch.

local until_ms = now + tonumber(ARGV[1])
local blocked = waitlist_closings(KEYS[1], now, true)
if until_ms <= blocked then
  return blocked
end
redis.call('HSET', KEYS[1], 'blocked', int(until_ms), 'blocked-at', int(now), 'by', ARGV[2])
waitlist_keep(KEYS[1], now, until_ms)
return until_ms
