-- report: reports the end of a call to a breaker, or requests the next probe. The specification is
-- State::report in src/rules/gate/model.rs. Needs clock.lua, breaker.lua and waitlist.lua before
-- it.
--
-- KEYS[1]  the waitlist (HASH) of the tenant, or the HASH of the whole API
--
-- ARGV[1]  'failed', 'sound', 'probe', 'release' or 'look', which writes nothing
-- ARGV[2]  the number of failures in a row that opens it
-- ARGV[3]  the wait before the first probe (ms), doubled for each further probe
-- ARGV[4]  the maximum wait (ms)
-- ARGV[5]  after how long a probe is given up (ms)
-- ARGV[6]  for failed and release: the clock when the call started (ms); 0 if it is not a probe
-- ARGV[7]  for failed: the job or tenant that failed, since several must fail to open the breaker;
--          '' if the failure counts by itself
-- ARGV[8]  for failed: the cause
-- ARGV[9]  for failed: jitter from 0 to 1000, which shortens the wait by up to a quarter
--
-- Reply: integers, and a text at the end.
-- [1]  1
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- [3]  failures in a row
-- [4]  1 if it is open or half-open
-- [5]  1 if this call opened or closed it
-- [6]  1 if the requested probe may be made
-- [7]  until when no job may start, for any reason, in milliseconds since the Unix epoch; 0 for now
-- [8]  the same, but only for suspensions by the API or an operator
-- [9]  the cause of the suspension; empty if there is none

local BREAKER = breaker_functions()
local key, what = KEYS[1], ARGV[1]
local f = redis.call('HMGET', key, 'breaker', 'breaker-by', 'by')
local breaker, by = BREAKER.parse(f[1], now), f[2] or ''
local was_open = breaker ~= nil and breaker.since > 0
local blocked, paused = waitlist_closings(key, now, what ~= 'look')
local named = math.max(blocked, paused)
local granted, changed = 0, 0

local function keep()
  BREAKER.save(key, breaker)
  waitlist_keep(key, now, math.max(now, BREAKER.kept(breaker)))
end

local function wait_until(wait)
  return now + wait - math.floor(wait * math.min(tonumber(ARGV[9]), 1000) / 4000)
end

if what == 'failed' then
  breaker = breaker or { failures = 0, since = 0, until_ms = 0, wait = 0, began = 0, lease = 0, of = '' }
  breaker.failures = breaker.failures + 1
  if was_open then
    -- A call that could not be prepared never starts. It is a probe if its preparation began while
    -- no other probe was running.
    if tonumber(ARGV[6]) >= (breaker.began > 0 and breaker.began or breaker.until_ms) then
      breaker.wait = math.min(breaker.wait * 2, tonumber(ARGV[4]))
      breaker.until_ms, breaker.began, breaker.lease = wait_until(breaker.wait), 0, tonumber(ARGV[5])
      by = ARGV[8]
    end
  else
    local of = ARGV[7]
    by = ARGV[8]
    if of == '' or breaker.of ~= '' and breaker.of ~= of then
      of = '*'
    end
    breaker.of = of
    if breaker.failures >= tonumber(ARGV[2]) and of == '*' then
      changed = 1
      breaker.since, breaker.wait, breaker.lease = now, tonumber(ARGV[3]), tonumber(ARGV[5])
      breaker.until_ms, breaker.began = wait_until(breaker.wait), 0
    end
  end
  redis.call('HSET', key, 'breaker-by', by)
  keep()
elseif what == 'sound' then
  changed = was_open and 1 or 0
  if breaker then
    -- Keeps one field: a hash without fields would be gone.
    redis.call('HSET', key, 'breaker-by', '')
    redis.call('HDEL', key, 'breaker')
  end
  breaker, by = nil, ''
elseif was_open and what == 'probe' then
  if named <= now and BREAKER.closed(breaker, now) == 0 then
    granted, breaker.began = 1, now
  end
  keep()
elseif was_open and what == 'release' then
  if breaker.began > 0 and tonumber(ARGV[6]) >= breaker.began then
    breaker.began = 0
  end
  keep()
end

local is_open = breaker ~= nil and breaker.since > 0
local closed, why = math.max(named, BREAKER.closed(breaker, now)), ''
if closed <= now then
  closed = 0
end
if paused > now then
  why = 'an operator (tenant pause)'
elseif blocked > now then
  why = f[3] or ''
elseif is_open then
  why = BREAKER.words(breaker, by)
end
return { 1, now, breaker and breaker.failures or 0, is_open and 1 or 0, changed, granted, closed, named > now and named or 0, why }
