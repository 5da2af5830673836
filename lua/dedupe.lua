-- dedupe: decides whether a job is the first of its tenant with a dedupe key within a period. The
-- specification is src/rules/dedupe.rs. Needs clock.lua before it.
--
-- KEYS[1]  the first job (STRING): "UNTIL,PERIOD,BY,JOB". UNTIL: until when no other job is the
--          first (ms); PERIOD: how long that was at first (ms); BY: the delivery of it that asked;
--          JOB: its ID
--
-- ARGV[1]  the caller: a name without commas that no other delivery has
-- ARGV[2]  the job's ID
-- ARGV[3]  1 if a worker may have had the job before, else 0
-- ARGV[4]  the period in which no other job is the first (ms)
--
-- Reply: integers.
-- [1]  1
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- [3]  1 if the job is the first, 0 if another one was
-- [4]  if [3] is 0: how long the other job remains the first (ms)

local key, by, job = KEYS[1], ARGV[1], ARGV[2]
local text = redis.call('GET', key)
local until_ms, period, first_by, first_job = string.match(text or '', '^(%d+),(%d+),([^,]*),(.*)$')
local left = tonumber(until_ms or 0) - now

local function set(lasts, owner, first)
  local value = table.concat({ int(now + lasts), int(lasts), owner, first }, ',')
  redis.call('SET', key, value, 'PX', int(lasts))
end

if left > 0 then
  -- The clock was stepped back.
  if left > tonumber(period) then
    left = tonumber(period)
    set(left, first_by, first_job)
  end
  if first_by == by or (ARGV[3] == '1' and first_job == job) then
    return { 1, now, 1, 0 }
  end
  return { 1, now, 0, left }
end
set(tonumber(ARGV[4]), by, job)
return { 1, now, 1, 0 }
