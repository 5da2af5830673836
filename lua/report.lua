-- report: a breaker is told how a call ended, or asked for the next probe.
-- The specification is State::report in src/rules/model.rs. Needs clock.lua, breaker.lua and waitlist.lua before it.
--
-- KEYS[1]  the waitlist (HASH) of the tenant, or the HASH of the API as a whole
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  'failed', 'sound', 'probe', 'release' or 'look', which writes nothing
-- ARGV[3]  it opens after so many failures in a row
-- ARGV[4]  the first probe comes after this (ms); then after twice as long each time,
-- ARGV[5]  up to this (ms)
-- ARGV[6]  a probe is given up after this (ms)
-- ARGV[7]  for failed and release: the clock when the call started (ms); 0: it is no probe
-- ARGV[8]  for failed: which job's, or tenant's, failure it is, of which several must fail; '': it counts whosever it is
-- ARGV[9]  for failed: why
-- ARGV[10] for failed: jitter, from 0 to 1000: the wait is up to a quarter shorter by it
--
-- Reply: integers, and a text at the end.
-- [1]  1
-- [2]  the clock in milliseconds since the epoch, rounded down
-- [3]  failures in a row
-- [4]  1: it is open or half-open
-- [5]  1: this opened it, or closed it
-- [6]  1: the probe that was asked for may be made
-- [7]  until when nobody may start, whatever the reason, in milliseconds since the epoch; 0: now
-- [8]  the same where the API itself, or an operator, said so
-- [9]  what closed it; empty: nothing

local now = read_clock(ARGV[1])
local key, what = KEYS[1], ARGV[2]
local f = redis.call('HMGET', key, 'breaker', 'breaker-by', 'by')
local breaker, by = breaker_parse(f[1], now), f[2] or ''
local was_open = breaker ~= nil and breaker.since > 0
local blocked, paused = waitlist_closings(key, now, what ~= 'look')
local named = math.max(blocked, paused)
local granted, changed = 0, 0

local function keep()
  breaker_save(key, breaker)
  waitlist_keep(key, now, math.max(now, breaker_kept(breaker)))
end

local function wait_until(wait)
  return now + wait - math.floor(wait * math.min(tonumber(ARGV[10]), 1000) / 4000)
end

if what == 'failed' then
  breaker = breaker or { failures = 0, since = 0, until_ms = 0, wait = 0, began = 0, lease = 0, of = '' }
  breaker.failures = breaker.failures + 1
  if was_open then
    -- A call that could not be prepared never starts: it is a probe if its preparation began while nobody probed.
    if tonumber(ARGV[7]) >= (breaker.began > 0 and breaker.began or breaker.until_ms) then
      breaker.wait = math.min(breaker.wait * 2, tonumber(ARGV[5]))
      breaker.until_ms, breaker.began, breaker.lease = wait_until(breaker.wait), 0, tonumber(ARGV[6])
      by = ARGV[9]
    end
  else
    local of = ARGV[8]
    by = ARGV[9]
    if of == '' or breaker.of ~= '' and breaker.of ~= of then
      of = '*'
    end
    breaker.of = of
    if breaker.failures >= tonumber(ARGV[3]) and of == '*' then
      changed = 1
      breaker.since, breaker.wait, breaker.lease = now, tonumber(ARGV[4]), tonumber(ARGV[6])
      breaker.until_ms, breaker.began = wait_until(breaker.wait), 0
    end
  end
  redis.call('HSET', key, 'breaker-by', by)
  keep()
elseif what == 'sound' then
  changed = was_open and 1 or 0
  if breaker then
    -- Something stays: a hash without fields would be gone.
    redis.call('HSET', key, 'breaker-by', '')
    redis.call('HDEL', key, 'breaker')
  end
  breaker, by = nil, ''
elseif was_open and what == 'probe' then
  if named <= now and breaker_closed(breaker, now) == 0 then
    granted, breaker.began = 1, now
  end
  keep()
elseif was_open and what == 'release' then
  if breaker.began > 0 and tonumber(ARGV[7]) >= breaker.began then
    breaker.began = 0
  end
  keep()
end

local is_open = breaker ~= nil and breaker.since > 0
local closed, why = math.max(named, breaker_closed(breaker, now)), ''
if closed <= now then
  closed = 0
end
if paused > now then
  why = 'an operator (tenant pause)'
elseif blocked > now then
  why = f[3] or ''
elseif is_open then
  why = breaker_words(breaker, by)
end
return { 1, now, breaker and breaker.failures or 0, is_open and 1 or 0, changed, granted, closed, named > now and named or 0, why }
