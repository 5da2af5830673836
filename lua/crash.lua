-- crash: what is known of the calls of jobs that were delivered again. The specification is src/rules/crash.rs. Needs clock.lua before it.
--
-- KEYS[1]  the tenant's suspects (HASH): for each job "CRASHES,UNTIL", UNTIL: until when a call is taken to be under way (ms), 0: none
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  'begin', 'alone' (begin it alone), 'renew', 'end' (it was not called) or 'answered'
-- ARGV[3]  the job's id
-- ARGV[4]  for begin and alone: after so many crashes nobody may call it
-- ARGV[5]  a call that is not renewed for so long has ended its worker (ms)
-- ARGV[6]  the hash is kept for so long after its last change (ms)
-- ARGV[7]  so many jobs are remembered; of others crashes are not counted
--
-- Reply: integers.
-- [1]  0: another call may be under way, 1: it may be called, and is noted, 2: it has ended too many workers, 3: it is to be begun alone
-- [2]  crashes; for 0: the wait in milliseconds

local now = read_clock(ARGV[1])
local key, what, job = KEYS[1], ARGV[2], ARGV[3]
local lease = tonumber(ARGV[5])
local text = redis.call('HGET', key, job)
local crashes, until_ms = string.match(text or '0,0', '^(%d+),(%d+)$')
crashes, until_ms = tonumber(crashes or 0), math.min(tonumber(until_ms or 0), now + lease)

local function keep()
  if crashes == 0 and until_ms == 0 then
    redis.call('HDEL', key, job)
  elseif text or redis.call('HLEN', key) < tonumber(ARGV[7]) then
    redis.call('HSET', key, job, int(crashes) .. ',' .. int(until_ms))
    redis.call('PEXPIRE', key, ARGV[6])
  end
end

if what == 'end' or what == 'answered' then
  until_ms = 0
  if what == 'answered' then
    crashes = 0
  end
  keep()
elseif what == 'renew' then
  if until_ms > 0 then
    until_ms = now + lease
    keep()
  end
elseif until_ms > now then
  return { 0, until_ms - now }
else
  if until_ms > 0 then
    crashes, until_ms = crashes + 1, 0
  end
  local counted, most = crashes, tonumber(ARGV[4])
  local verdict = 1
  if crashes >= most then
    -- A dead letter that is replayed is called once more.
    verdict, crashes = 2, most - 1
  elseif crashes > 0 and what ~= 'alone' then
    verdict = 3
  else
    until_ms = now + lease
  end
  keep()
  return { verdict, counted }
end
return { 1, crashes }
