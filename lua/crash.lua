-- crash: notes on calls of a job that was delivered again. The specification is
-- src/rules/failures/crash.rs. Needs clock.lua before it.
--
-- KEYS[1]  the suspect (STRING): "CRASHES,UNTIL,BY". UNTIL: until when a call counts as running
--          (ms), 0 if there is none; BY: the author of that note
--
-- ARGV[1]  'begin', 'alone' (begin without other suspects), 'renew', 'end' (it was not called) or
--          'answered'
-- ARGV[2]  the author of the note: a name that no other delivery has
-- ARGV[3]  for begin and alone: the number of crashes after which the job is not called any more
-- ARGV[4]  after how long without renewal a call counts as having crashed its worker (ms)
-- ARGV[5]  how long the suspect is kept after the last note (ms)
--
-- Reply: integers.
-- [1]  1
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- [3]  0: another call may be running; 1: the job may be called, and its call is noted; 2: the job
--      has crashed too many workers; 3: the job must begin alone
-- [4]  the number of crashes; if [3] is 0, the wait in milliseconds

local key, what, by = KEYS[1], ARGV[1], ARGV[2]
local lease = tonumber(ARGV[4])
local text = redis.call('GET', key)
local crashes, until_ms, owner = string.match(text or '', '^(%d+),(%d+),(.*)$')
-- The clock may have been stepped back.
crashes, until_ms = tonumber(crashes or 0), math.min(tonumber(until_ms or 0), now + lease)
local is_own = owner == by
local verdict, number = 1, 0

if what == 'renew' then
  if until_ms > 0 and is_own then
    until_ms = now + lease
  end
elseif what == 'end' or what == 'answered' then
  if what == 'answered' then
    crashes = 0
  end
  if is_own then
    until_ms = 0
  end
elseif until_ms > now and not is_own then
  verdict, number = 0, until_ms - now
else
  if until_ms > 0 and not is_own then
    crashes = crashes + 1
  end
  until_ms, number = 0, crashes
  local most = tonumber(ARGV[3])
  if crashes >= most then
    -- A dead letter that is replayed, or that could not be published, gets one more call.
    verdict, crashes = 2, math.max(most - 1, 0)
  elseif crashes > 0 and what ~= 'alone' then
    verdict = 3
  else
    until_ms, owner = now + lease, by
  end
end

if until_ms == 0 then
  owner = ''
end
if crashes > 0 or until_ms > 0 then
  redis.call('SET', key, int(crashes) .. ',' .. int(until_ms) .. ',' .. owner, 'PX', ARGV[5])
elseif text then
  redis.call('DEL', key)
end
return { 1, now, verdict, number }
