-- settle: calls have ended, or are still under way: what they used in fact is set against what they were charged, and
-- leases that they hold are given back or kept.
-- The specification is Scopes::settle in src/rules/model/scopes.rs. Needs clock.lua, waitlist.lua, limits.lua, fair_queue.lua and
-- shared_partitions.lua where a limit is shared, shadows.lua where one is a shadow, and the algorithms before it.
--
-- KEYS[1]  the waitlist (HASH); then the limits' keys, as acquire.lua has them
-- KEYS[#KEYS]  a mark (STRING) of this very call: one that is repeated because its answer was lost does nothing
--
-- ARGV     the clock and the limits, as limits.lua says; then for job n (from 0)
-- ARGV[3 + 5n]  its permit's name
-- ARGV[4 + 5n]  the clock at its start, in milliseconds
-- ARGV[5 + 5n]  its number in the sliding log, or its numbers, as acquire.lua gave them
-- ARGV[6 + 5n]  the cost it was charged
-- ARGV[7 + 5n]  the cost it had in fact; 'none': it was never called; 'held:N': it may be under way for N milliseconds more, and
--               its lease is kept for so long (0: it has ended, and what it cost is not told); 'late': it came later than the
--               guard covers, and may go on: it counts from now
--
-- Reply: integers.
-- [1]  1: done, now or before; 0: the clock is in a fixed window that is not among KEYS, nothing was changed
-- [2]  the clock in milliseconds since the epoch, rounded down
--
-- Constants that no file here sets are those of the same names in the specification: src/gate/scripts.rs sets them.

local now, stamp = read_clock(ARGV[1])
local waitlist = waitlist_load(KEYS[1], now)
local limits = limits_load(waitlist, now, stamp, 1, true)
if not limits then
  return { 0, now }
end
if not redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', int(MARK_MS)) then
  return { 1, now }
end

-- By partition, the waitlist's at 0.
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
for i = 3, #ARGV, 5 do
  local job = {
    permit = ARGV[i], started = tonumber(ARGV[i + 1]), sequences = sequences_parse(ARGV[i + 2]),
    cost = math.max(tonumber(ARGV[i + 3]), 1), used = tonumber(ARGV[i + 4]),
  }
  local keep = tonumber(string.match(ARGV[i + 4], '^held:(%d+)$'))
  for _, limit in ipairs(limits) do
    holds = holds or limit.algorithm.holds
    if keep then
      if limit.algorithm.holds then
        limit.algorithm.keep(limit, limits, job, keep)
      end
    elseif ARGV[i + 4] == 'late' then
      if limit.algorithm.late then
        limit.algorithm.late(limit, limits, job)
      end
    else
      local used = job.used and (limit.calls and 1 or job.used) or 0
      limit.algorithm.settle(limit, limits, job, used - (limit.calls and 1 or job.cost))
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
    local left = redis.call('PTTL', partition.key)
    local fixed = n == 0 and limits.fixed or partition.fixed
    local newest = fixed and partition.window + fixed or 0
    waitlist_save(partition, math.max(now, newest, now + left - KEEP_MS))
  end
end
return { 1, now }
