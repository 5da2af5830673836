-- dedupe: whether a job is the first of its tenant with a dedupe key within a time. The specification is src/rules/dedupe.rs. Needs clock.lua before it.
--
-- KEYS[1]  the first (STRING): "UNTIL,BY,JOB"; UNTIL: until when no other one is (ms), BY: whose delivery of it asked, JOB: its id
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  who asks: a name that no other delivery has, without a comma
-- ARGV[3]  the id of its job
-- ARGV[4]  1: a worker may have had the job before, 0: none had
-- ARGV[5]  for so long no other one is the first (ms)
--
-- Reply: integers.
-- [1]  1
-- [2]  the clock in milliseconds since the epoch, rounded down
-- [3]  1: it is the first, 0: another one was
-- [4]  for 0: for how long nobody else is (ms)

local now = read_clock(ARGV[1])
local key, by, job = KEYS[1], ARGV[2], ARGV[3]
local text = redis.call('GET', key)
local until_ms, first_by, first_job = string.match(text or '', '^(%d+),([^,]*),(.*)$')
local left = tonumber(until_ms or 0) - now

if left > 0 then
  if first_by == by or (ARGV[4] == '1' and first_job == job) then
    return { 1, now, 1, 0 }
  end
  return { 1, now, 0, left }
end
redis.call('SET', key, int(now + tonumber(ARGV[5])) .. ',' .. by .. ',' .. job, 'PX', ARGV[5])
return { 1, now, 1, 0 }
