-- What a call does with partitions that several waitlists share. The specification is src/rules/model/call.rs. Only in scripts for
-- limits of such scopes; between register.lua and the algorithms.
--
-- The last argument is taken from ARGV, so that the others stand where they always do. It is packed: which of the
-- partitions is the tenant's own control (what closes it, what an operator set), 0: the waitlist; then for each shared one, from
-- 1: through which of the others, which have lower numbers, its waitlists come, 0: none; whether all tenants share it; which
-- of KEYS is its first (register.lua names them); what the waitlist, or the tenant, is called there.
local SHARED_FORMAT = '>I1I1I8s'

-- The highest cost that can start under the limits of the partition `n`.
local function limits_most(limits, n)
  local most = 4294967295
  for i = 1, #limits do
    local limit = limits[i]
    if limit.partition == n and not limit.calls then
      most = math.min(most, limit.algorithm.bucket and limit.burst or limit.max)
    end
  end
  return most
end

-- The partitions of the call: partitions[0] is the waitlist, partitions[n] the n-th shared one; partitions.control the one of the tenant.
local function shares_load(waitlist, now)
  local partitions = { [0] = waitlist }
  local text = table.remove(ARGV)
  local control, at = string.byte(text), 2
  while at <= #text do
    local below, everybody, first, flow
    below, everybody, first, flow, at = struct.unpack(SHARED_FORMAT, text, at)
    local partition = waitlist_load(KEYS[first], now)
    partition.below, partition.everybody = below, everybody == 1
    partition.longest = 0
    register_load(partition, flow, first, now)
    partitions[#partitions + 1] = partition
  end
  partitions.control = partitions[control]
  partitions.started = 0
  return partitions
end

-- What waits for the partition `n` waits for `wider` too: that is the same one, or its waitlists come through it.
local function shares_behind(partitions, wider, n)
  return wider == n or wider > 0 and partitions[wider].below == n
end

-- How many turns one that waits for the partition `n` may let pass before it counts as gone: as many as may start at once.
local function shares_reach(limits, n)
  local reach = 2
  for _, limit in ipairs(limits) do
    if shares_behind(limits.partitions, limit.partition or 0, n) then
      local ahead = math.floor(limit.max * AHEAD_MS / math.max(limit.span, 1))
      reach = math.max(reach, (limit.algorithm.bucket and limit.burst or limit.max) + ahead)
    end
  end
  return reach
end

-- The tenant's own waitlist is newer than this one of its parts: all that waited was reset.
local function shares_reset(partitions, now)
  local waitlist, control = partitions[0], partitions.control
  if control ~= waitlist and waitlist.generation > 0 and waitlist.generation < control.generation then
    waitlist_reset(waitlist, math.max(now, control.generation))
  end
end

-- Before the first decision.
local function shares_begin(limits, now)
  local partitions = limits.partitions
  shares_reset(partitions, now)
  for n, partition in ipairs(partitions) do
    register_purge(partition.register, shares_reach(limits, n))
    register_view(partition.register, limits_most(limits, n))
  end
end

-- The same for a script that writes nothing.
local function shares_look(limits)
  shares_reset(limits.partitions, limits.now)
  for n, partition in ipairs(limits.partitions) do
    register_view(partition.register, limits_most(limits, n))
  end
end

-- How many units start from the partition `n` up to the k-th of the waitlist, the last of a job of so many, if all take turns: a
-- job's turn is that of its first unit.
local function shares_rank(partitions, n, k, units)
  local partition = partitions[n]
  if partition.below > 0 then
    k = shares_rank(partitions, partition.below, k, units)
  end
  local r, started = partition.register, partitions.started
  return k + register_before(r, started + k + 1 - units) + register_whole(r, started)
end

-- About how many jobs have so many units, if the others' cost what those of the waitlist do.
local function shares_calls(waitlist, units)
  return math.floor(units / math.max(math.floor(waitlist.last_issued / math.max(waitlist.jobs, 1)), 1))
end

-- limits_turn, where some of the limits are shared.
local function shares_turn(limits, waitlist, base, k, units)
  local calls, latest, which = waitlist_jobs(waitlist, k, units), 0, 1
  for i = 1, #limits do
    local limit = limits[i]
    local of_units, of_calls = k, calls
    if limit.partition then
      of_units = shares_rank(limits.partitions, limit.partition, k, units)
      of_calls = calls + shares_calls(waitlist, of_units - k)
    end
    local at = limit.algorithm.nth(limit, base, limit.calls and of_calls or of_units)
    if at > latest then
      latest, which = at, i
    end
  end
  return latest, which
end

-- When the k-th unit may start as far as the partition `n` goes; nil: it has no limit.
local function shares_nth(limits, n, base, k)
  local latest
  local calls = math.max(shares_calls(limits.partitions[0], k), 1)
  for i = 1, #limits do
    local limit = limits[i]
    if (limit.partition or 0) == n then
      latest = math.max(latest or 0, limit.algorithm.nth(limit, base, limit.calls and calls or k))
    end
  end
  return latest
end

local function shares_widest(limits, r)
  return math.min(math.max(r.widest, 1), limits.most)
end

-- When the partition `n` has room for its next unit, whatever it costs, and so have those behind it; and whether one has none
-- because something started.
local function shares_room(limits, n)
  local now, latest, taken = limits.now, 0, false
  local widest = shares_widest(limits, limits.partitions[n].register)
  for i = 1, #limits do
    local limit = limits[i]
    if shares_behind(limits.partitions, limit.partition or 0, n) then
      local at = limit.algorithm.nth(limit, now, limit.calls and 1 or widest)
      latest = math.max(latest, at)
      taken = taken or at > now and limit.algorithm.count(limit) > 0
    end
  end
  return latest > 0 and latest or now, taken
end

-- Forgets who waits for a partition in which room was left unclaimed for too long. The front of this waitlist did not come either: if
-- its grace began only now, whoever comes in again meanwhile would end it, and so on for ever.
local function shares_give_up(limits, waitlist)
  for n, partition in ipairs(limits.partitions) do
    local r = partition.register
    if r.waiting > 0 and r.seen > 0 and limits.now - r.seen > GRACE_MS and shares_room(limits, n) == limits.now then
      if waitlist.seen == 0 and waitlist_waiting(waitlist) > 0 then
        waitlist_note(waitlist, r.seen, waitlist.room)
      end
      register_clear(r)
    end
  end
end

-- A job of several units waits: nobody may go ahead.
local function shares_wide(limits)
  for _, partition in ipairs(limits.partitions) do
    if partition.register.widest > 1 then
      return true
    end
  end
  return false
end

-- A job of so many units has started.
local function shares_start(limits, units)
  limits.partitions.started = limits.partitions.started + units
  for n, partition in ipairs(limits.partitions) do
    if partition.register.waiting > 0 then
      partition.register.seen, partition.register.room = 0, (shares_room(limits, n))
    end
  end
end

-- Others have turns before the k-th unit, and that is why it is not its own: in the partition `n`, or in the wider one that
-- they wait for through it.
local function shares_waits(limits, n, base, k, units)
  local partitions = limits.partitions
  local below = partitions[n].below > 0 and shares_rank(partitions, partitions[n].below, k, units) or k
  if shares_rank(partitions, n, k, units) <= below then
    return false
  end
  for wider = n, #partitions do
    if shares_behind(partitions, wider, n) then
      local turn = shares_nth(limits, wider, base, shares_rank(partitions, wider, k, units))
      if turn and turn > limits.now then
        return true
      end
    end
  end
  return false
end

-- After an ask for the k-th unit, the last of a job of so many, that must wait until `at`: as waitlist_note does, where others
-- have turns before it.
local function shares_watch(limits, base, at, k, units)
  local now = limits.now
  for n, partition in ipairs(limits.partitions) do
    local r = partition.register
    if r.waiting > 0 then
      if shares_waits(limits, n, base, k, units) then
        local room, taken = shares_room(limits, n)
        if room == now then
          r.seen = r.seen > 0 and r.seen or now
          if now - r.room > GRACE_MS then
            at = math.min(at, r.seen + GRACE_MS + 1)
          end
        elseif taken then
          r.seen, r.room = 0, room
        end
      end
    end
  end
  return at
end

-- The waitlist's unit number `units` waits for the partition `n`, or for a wider one behind it, and not longer for what is narrower.
local function shares_demands(limits, n, base, units)
  local partitions = limits.partitions
  local partition = partitions[n]
  local narrow = shares_nth(limits, partition.below, base, units) or base
  local rank = units + register_before(partition.register, partitions.started + units)
  local wide = shares_nth(limits, n, base, rank) or 0
  for wider, other in ipairs(partitions) do
    if other.below == n then
      local further = rank + register_before(other.register, partitions.started + rank)
      wide = math.max(wide, shares_nth(limits, wider, base, further) or 0)
    end
  end
  return math.max(narrow, base) <= wide
end

-- How many of the next `units` do; none while the tenant is closed.
local function shares_demand(limits, n, base, units)
  if base > limits.now or units > 0 and not shares_demands(limits, n, base, 1) then
    return 0
  end
  while units > 1 and not shares_demands(limits, n, base, units) do
    units = math.floor(units / 2)
  end
  return units
end

-- After the last decision: tells the partitions who waits; all that is written lives until `ends` and a while longer.
local function shares_save(limits, base, ends)
  local partitions = limits.partitions
  local waitlist = partitions[0]
  local each = math.max(math.floor(waitlist.last_issued * 16 / math.max(waitlist.jobs, 1)), 16)
  for n, partition in ipairs(partitions) do
    local r = partition.register
    local units, widest = waitlist_waiting(waitlist), waitlist.widest
    if partition.below > 0 then
      units, widest = partitions[partition.below].register.waiting, partitions[partition.below].register.widest
    end
    units = shares_demand(limits, n, base, units)
    local changed = register_settle(r, partitions.started, units, widest, each, limits_most(limits, n))
    if changed or partition.changed then
      local until_ms = math.max(ends, partition.kept, partition.fixed and partition.window + partition.fixed or 0) + KEEP_MS
      if partition.changed then
        waitlist_save(partition, until_ms - KEEP_MS)
      end
      redis.call('HSET', partition.key, 'register', register_pack(r))
      redis.call('PEXPIREAT', partition.key, int(until_ms))
      redis.call('PEXPIREAT', r.fronts, int(until_ms))
      redis.call('PEXPIREAT', r.ends, int(until_ms))
      redis.call('PEXPIREAT', r.wides, int(until_ms))
      redis.call('PEXPIREAT', r.idles, int(until_ms))
    end
  end
end

SHARES = {
  load = shares_load, begin = shares_begin, look = shares_look, turn = shares_turn, give_up = shares_give_up, wide = shares_wide,
  start = shares_start, watch = shares_watch, save = shares_save,
}
