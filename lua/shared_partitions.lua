-- The partitions of a call that several waitlists share. The specification is
-- src/rules/gate/model/call.rs. Part of scripts for limits with such scopes; comes between
-- fair_queue.lua and the algorithms.
--
-- The last argument is removed from ARGV, so that the others keep their positions. It is packed:
-- the partition with the tenant's control (suspensions and operators' overrides), 0 for the
-- waitlist; then for each shared partition, from 1: the partition through which its waitlists come,
-- which has a lower number, 0 for none; whether all tenants share it; the index in KEYS of its
-- first key (listed in fair_queue.lua); and the name of the waitlist, or of the tenant, in it.
local SHARED_FORMAT = '>I1I1I8s'

-- Returns the highest cost that can start under the limits of the partition `n`.
local function limits_most(limits, n)
  local most = NEVER
  for i = 1, #limits do
    local limit = limits[i]
    if limit.partition == n and not limit.calls then
      most = math.min(most, limit.algorithm.bucket and limit.burst or limit.max)
    end
  end
  return most
end

-- Loads the partitions of the call: partitions[0] is the waitlist, partitions[n] the n-th shared
-- one, partitions.control the tenant's.
local function shared_load(waitlist, now)
  local partitions = { [0] = waitlist }
  local text = table.remove(ARGV)
  local control, at = string.byte(text), 2
  while at <= #text do
    local below, everybody, first, flow
    below, everybody, first, flow, at = struct.unpack(SHARED_FORMAT, text, at)
    local partition = waitlist_load(KEYS[first], now)
    partition.below, partition.everybody = below, everybody == 1
    partition.longest = 0
    fair_queue_load(partition, flow, first, now)
    partitions[#partitions + 1] = partition
  end
  partitions.control = partitions[control]
  partitions.started = 0
  return partitions
end

-- Returns true if jobs that wait for the partition `n` also wait for `wider`: it is the same one,
-- or its waitlists come through `n`.
local function shared_behind(partitions, wider, n)
  return wider == n or wider > 0 and partitions[wider].below == n
end

-- Returns how many turns a flow that waits for the partition `n` may miss before it counts as gone:
-- as many as may start at once.
local function shared_reach(limits, n)
  local reach = 2
  for _, limit in ipairs(limits) do
    if shared_behind(limits.partitions, limit.partition or 0, n) then
      local ahead = math.floor(limit.max * AHEAD_MS / math.max(limit.span, 1))
      reach = math.max(reach, (limit.algorithm.bucket and limit.burst or limit.max) + ahead)
    end
  end
  return reach
end

-- Resets this partition's waitlist if an operator reset the tenant after it was created.
local function shared_reset(partitions, now)
  local waitlist, control = partitions[0], partitions.control
  local reset = control ~= waitlist and control.fair_queue.reset or 0
  if waitlist.generation > 0 and waitlist.generation < reset then
    waitlist_reset(waitlist, math.max(now, reset))
  end
end

-- Returns the distance between two new flows, in tags.
local function shared_join(limits)
  return limits.most >= MANY and limits.most < NEVER and STEP or 1
end

-- Prepares the partitions before the first decision.
local function shared_begin(limits)
  shared_reset(limits.partitions, limits.now)
  for n, partition in ipairs(limits.partitions) do
    local q = partition.fair_queue
    if limits.writing then
      fair_queue_purge(q, shared_reach(limits, n))
    end
    fair_queue_view(q, limits_most(limits, n), shared_join(limits))
    if q.waiting > 0 and not q.first then
      -- The flows have expired before the HASH, which a pause, say, keeps for longer.
      if limits.writing then
        redis.call('HDEL', partition.key, 'register')
      end
      q.stored = nil
      fair_queue_forget(q)
    end
  end
end

-- Returns how many units start in the partition `n` up to the k-th unit of the waitlist, the last
-- of a job of `units`, if all flows take turns. A job has the turn of its first unit.
local function shared_rank(partitions, n, k, units)
  local partition = partitions[n]
  if partition.below > 0 then
    k = shared_rank(partitions, partition.below, k, units)
  end
  local q, started = partition.fair_queue, partitions.started
  return k + fair_queue_before(q, started + k + 1 - units) + fair_queue_whole(q, started)
end

-- Estimates how many jobs have this many units, if the others' jobs cost as much as the waitlist's.
local function shared_calls(waitlist, units)
  return math.floor(units / math.max(math.floor(waitlist.last_issued / math.max(waitlist.jobs, 1)), 1))
end

-- Returns the rank of the k-th unit of the waitlist among all units that wait for `limit`, and the
-- number of calls up to it.
local function shared_place(limits, waitlist, limit, k, units, calls)
  if not limit.partition then
    return k, calls
  end
  local rank = shared_rank(limits.partitions, limit.partition, k, units)
  return rank, calls + shared_calls(waitlist, rank - k)
end

-- Replaces limits_turn if some limits are shared.
local function shared_turn(limits, waitlist, base, k, units)
  local calls, latest, which = waitlist_jobs(waitlist, k, units), 0, 1
  for i = 1, #limits do
    local limit = limits[i]
    local of_units, of_calls = shared_place(limits, waitlist, limit, k, units, calls)
    local at = limit.algorithm.nth(limit, base, limit.calls and of_calls or of_units)
    if at > latest then
      latest, which = at, i
    end
  end
  return latest, which
end

-- Returns when the k-th unit may start under the limits of the partition `n`, or nil if it has
-- none.
local function shared_nth(limits, n, base, k)
  local latest
  local calls = math.max(shared_calls(limits.partitions[0], k), 1)
  for i = 1, #limits do
    local limit = limits[i]
    if (limit.partition or 0) == n then
      latest = math.max(latest or 0, limit.algorithm.nth(limit, base, limit.calls and calls or k))
    end
  end
  return latest
end

local function shared_widest(limits, q)
  return math.min(math.max(q.widest, 1), limits.most)
end

-- Returns when the partition `n`, and those behind it, have room for its next unit, whatever its
-- cost. Also returns true if a lack of room is due to starts.
local function shared_room(limits, n)
  local now, latest, taken = limits.now, 0, false
  local widest = shared_widest(limits, limits.partitions[n].fair_queue)
  for i = 1, #limits do
    local limit = limits[i]
    if shared_behind(limits.partitions, limit.partition or 0, n) then
      local at = limit.algorithm.nth(limit, now, limit.calls and 1 or widest)
      latest = math.max(latest, at)
      taken = taken or at > now and limit.algorithm.count(limit) > 0
    end
  end
  return latest > 0 and latest or now, taken
end

-- Clears the queues of partitions whose quota was left unclaimed for too long. The first jobs of
-- this waitlist did not claim it either, so the waitlist's grace period began at the same time. If
-- it began only now, any flow that joins in the meantime would end it, again and again.
local function shared_give_up(limits, waitlist)
  for n, partition in ipairs(limits.partitions) do
    local q = partition.fair_queue
    if q.waiting > 0 and q.seen > 0 and limits.now - q.seen > GRACE_MS and shared_room(limits, n) == limits.now then
      if waitlist.seen == 0 and waitlist_waiting(waitlist) > 0 then
        waitlist_note(waitlist, q.seen, waitlist.room)
      end
      fair_queue_clear(q)
    end
  end
end

-- Returns true if a job of several units waits, so that no job may overtake.
local function shared_wide(limits)
  for _, partition in ipairs(limits.partitions) do
    if partition.fair_queue.widest > 1 then
      return true
    end
  end
  return false
end

-- Records the start of a job of `units`.
local function shared_start(limits, units)
  limits.partitions.started = limits.partitions.started + units
  for n, partition in ipairs(limits.partitions) do
    if partition.fair_queue.waiting > 0 then
      partition.fair_queue.seen, partition.fair_queue.room = 0, (shared_room(limits, n))
    end
  end
end

-- Returns true if the k-th unit must wait because other flows have turns before it: in the
-- partition `n`, or in the wider one that they wait for through it.
local function shared_waits(limits, n, base, k, units)
  local partitions = limits.partitions
  local below = partitions[n].below > 0 and shared_rank(partitions, partitions[n].below, k, units) or k
  if shared_rank(partitions, n, k, units) <= below then
    return false
  end
  for wider = n, #partitions do
    if shared_behind(partitions, wider, n) then
      local turn = shared_nth(limits, wider, base, shared_rank(partitions, wider, k, units))
      if turn and turn > limits.now then
        return true
      end
    end
  end
  return false
end

-- Called after the denial of the k-th unit, the last of a job of `units`, which must wait until
-- `at`. Does what waitlist_note does, if other flows have turns before it.
local function shared_watch(limits, base, at, k, units)
  local now = limits.now
  for n, partition in ipairs(limits.partitions) do
    local q = partition.fair_queue
    if q.waiting > 0 then
      if shared_waits(limits, n, base, k, units) then
        local room, taken = shared_room(limits, n)
        if room == now then
          q.seen = q.seen > 0 and q.seen or now
          if now - q.room > GRACE_MS then
            at = math.min(at, q.seen + GRACE_MS + 1)
          end
        elseif taken then
          q.seen, q.room = 0, room
        end
      end
    end
  end
  return at
end

-- Returns true if the waitlist's unit number `units` waits for the partition `n`, or for a wider
-- one behind it, at least as long as for narrower limits.
local function shared_demands(limits, n, base, units)
  local partitions = limits.partitions
  local partition = partitions[n]
  local narrow = shared_nth(limits, partition.below, base, units) or base
  local rank = units + fair_queue_before(partition.fair_queue, partitions.started + units)
  local wide = shared_nth(limits, n, base, rank) or 0
  for wider, other in ipairs(partitions) do
    if other.below == n then
      local further = rank + fair_queue_before(other.fair_queue, partitions.started + rank)
      wide = math.max(wide, shared_nth(limits, wider, base, further) or 0)
    end
  end
  return math.max(narrow, base) <= wide
end

-- Returns how many of the next `units` units wait for the partition `n`; none while the tenant is
-- suspended.
local function shared_demand(limits, n, base, units)
  if base > limits.now or units > 0 and not shared_demands(limits, n, base, 1) then
    return 0
  end
  while units > 1 and not shared_demands(limits, n, base, units) do
    units = math.floor(units / 2)
  end
  return units
end

-- Stores which flows wait, after the last decision. `ends` is as in waitlist_write.
local function shared_save(limits, base, ends)
  local partitions = limits.partitions
  local waitlist = partitions[0]
  local each = math.max(math.floor(waitlist.last_issued * 16 / math.max(waitlist.jobs, 1)), 16)
  for n, partition in ipairs(partitions) do
    local q = partition.fair_queue
    local units, widest = waitlist_waiting(waitlist), waitlist.widest
    if partition.below > 0 then
      units, widest = partitions[partition.below].fair_queue.waiting, partitions[partition.below].fair_queue.widest
    end
    units = shared_demand(limits, n, base, units)
    local changed = fair_queue_settle(q, partitions.started, units, widest, each, limits_most(limits, n))
    if changed or partition.changed then
      local needed = math.max(ends, partition.fixed and partition.window + partition.fixed or 0)
      local until_ms = waitlist_write(partition, needed, 'register', fair_queue_pack(q))
      redis.call('PEXPIREAT', q.fronts, int(until_ms))
      redis.call('PEXPIREAT', q.ends, int(until_ms))
      redis.call('PEXPIREAT', q.wides, int(until_ms))
      redis.call('PEXPIREAT', q.idles, int(until_ms))
    end
  end
end

SHARED = {
  load = shared_load, begin = shared_begin, turn = shared_turn, give_up = shared_give_up, wide = shared_wide,
  start = shared_start, watch = shared_watch, save = shared_save, place = shared_place,
}
