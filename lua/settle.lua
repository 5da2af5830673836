-- settle: settles calls that have ended or are still running: corrects charges by the actual cost,
-- and releases or renews leases. The specification is Scopes::settle in
-- src/rules/gate/model/scopes.rs. Files that must come before it: clock.lua, waitlist.lua,
-- limits.lua, fair_queue.lua and shared_partitions.lua if a limit is shared, shadows.lua if there
-- are shadows, and the algorithms.
--
-- KEYS[1]  the waitlist (HASH); then the limits' keys as in acquire.lua
-- KEYS[#KEYS]  the mark (STRING) of this call: a call that is repeated because its answer was lost
--              has no effect
--
-- ARGV     the limits, described in limits.lua; then for job n (from 0)
-- ARGV[2 + 5n]  the name of its permit
-- ARGV[3 + 5n]  the clock at its start, in milliseconds
-- ARGV[4 + 5n]  its number in the sliding log, or its numbers, as returned by acquire.lua
-- ARGV[5 + 5n]  the cost it was charged
-- ARGV[6 + 5n]  its actual cost; 'none' if it was never called; 'held:N' if it may be running for N
--               milliseconds more, for which its lease is kept (0 if it has ended at unknown cost);
--               'late' if it was later than the guard covers and may still run: it counts from now
--
-- Reply: integers.
-- [1]  1: done, now or before; 0: the clock is in a fixed window that is not among KEYS, and
--      nothing was changed
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
--
-- Constants that no Lua file sets come from src/gate/scripts.rs, which takes their values from the
-- specification's constants.

local waitlist = waitlist_load(KEYS[1], now)
local limits = limits_load(waitlist, now, stamp, 1, true)
if not limits then
  return { 0, now }
end
if not redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', int(MARK_MS)) then
  return { 1, now }
end

-- Parses the numbers by partition, the waitlist's at 0.
local function sequences_parse(text)
  local sequences, n = {}, 0
  for number in string.gmatch(text, '%d+') do
    sequences[n], n = tonumber(number), n + 1
  end
  if SHADOWS then
    SHADOWS.read(sequences, limits.partitions and #limits.partitions or 0)
  end
  return sequences
end

local holds = false
for i = 0, #ARGV - 2, 5 do
  local job = {
    permit = ARGV[2 + i], started = tonumber(ARGV[3 + i]), sequences = sequences_parse(ARGV[4 + i]),
    cost = math.max(tonumber(ARGV[5 + i]), 1), used = tonumber(ARGV[6 + i]),
  }
  local keep = tonumber(string.match(ARGV[6 + i], '^held:(%d+)$'))
  for _, limit in ipairs(limits) do
    holds = holds or limit.algorithm.holds
    if keep then
      if limit.algorithm.holds then
        limit.algorithm.keep(limit, limits, job, keep)
      end
    elseif ARGV[6 + i] == 'late' then
      if limit.algorithm.late then
        limit.algorithm.late(limit, limits, job)
      end
    else
      local used = job.used and (limit.calls and 1 or job.used) or 0
      local more = used - (limit.calls and 1 or job.cost)
      -- The clock was stepped back since the start. Other jobs may have used these units.
      if job.started > stamp then
        more = math.max(more, 0)
      end
      limit.algorithm.settle(limit, limits, job, more)
    end
  end
  if holds and job.used then
    local took = math.max(now - job.started, 0)
    if waitlist.usual == 0 then
      waitlist.usual = math.max(took, 1)
    else
      waitlist.usual = math.max(math.floor((waitlist.usual * 7 + took) / 8), 1)
    end
    waitlist.changed = true
  end
end

for _, limit in ipairs(limits) do
  limit.algorithm.save(limit, limits)
end
for n = 0, limits.partitions and #limits.partitions or 0 do
  local partition = n == 0 and waitlist or limits.partitions[n]
  if partition.changed then
    local fixed = n == 0 and limits.fixed or partition.fixed
    waitlist_write(partition, math.max(now, fixed and partition.window + fixed or 0))
  end
end
return { 1, now }
