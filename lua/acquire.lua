-- acquire: decides for jobs of one tenant, in order, as if they arrived one by one. The
-- specification is Scopes::ask in src/rules/gate/model/scopes.rs and src/rules/gate/model/call.rs.
-- Files that must come before it: clock.lua, waitlist.lua, limits.lua, fair_queue.lua and
-- shared_partitions.lua if a limit is shared, shadows.lua if there are shadows, and the algorithms.
--
-- KEYS[1]  the waitlist (HASH)
-- KEYS[2…] the keys of the limits: two for all sliding windows of a partition together (see
--          sliding_window.lua); two for each fixed window, that of the index given with the limit
--          and the next one; one for each other limit; then five for each shared partition (see
--          fair_queue.lua); then three for each shadow (see shadows.lua)
--
-- ARGV     the limits, described in limits.lua; then
-- ARGV[2]  the budget: the maximum number of jobs that may start
-- ARGV[3]  the name of the permits: job n gets this name and ":n"
-- ARGV[4]  the number of jobs if all are new and cost 1; otherwise the packed jobs, each with its
--          ticket, as generation and number (0 and 0: a new job; 0 and 1: it had its turn but did
--          not use its permit, so it is the first of the waitlist), and its cost. If there are
--          shadows, AGAIN is added to the cost of a job that has started before without using its
--          permit
--
-- Reply: that of shortcut.lua if all jobs start; else integers.
-- [1]  1: decided; 2: decided, and calls of the tenant have failed in a row, so a call that
--      succeeds must be reported; 0: the clock is in a fixed window that is not among KEYS, nothing
--      was changed, and the reply ends after [2]
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- [3]  until when the tenant is suspended, in milliseconds since the Unix epoch; 0 if it is not
-- [4 + 6n]  job n: 1 if it starts, 0 if it waits, 2 if quota is available but no budget is left
-- [5 + 6n]  the index of the limit with the longest wait, from 0; 0 unless it waits
-- [6 + 6n]  units that count against that limit; 0 unless it waits
-- [7 + 6n]  when to ask again, in milliseconds from now, at least 1; 0 unless it waits
-- [8 + 6n]  the generation of its ticket; 0 unless it waits
-- [9 + 6n]  the number of its ticket; if it starts, its number in the sliding log, 0 without a log.
--           With shared partitions, a text: its numbers in the logs of all partitions, the
--           waitlist's first, joined by ':'
-- then, for each shadow, four numbers. (1) Jobs that start for the first time. (2) Jobs of (1) that
--      the shadow would have denied. (3) Jobs of (2) that it would never have admitted. (4) The
--      longest wait, in milliseconds, of the other jobs of (2)

local waitlist = waitlist_load(KEYS[1], now)
local new_jobs = #ARGV[4] < JOB_BYTES and tonumber(ARGV[4])
local jobs = new_jobs or #ARGV[4] / JOB_BYTES
local limits = limits_load(waitlist, now, stamp, jobs, true)
if not limits then
  return { 0, now }
end

if SHADOWS then
  SHADOWS.part(limits)
end
if SHARED then
  SHARED.begin(limits)
end

limits.permits = ARGV[3]
local budget = tonumber(ARGV[2])
local control = limits.partitions and limits.partitions.control or waitlist
local breaker = control.breaker
if control.closed > now then
  control.closed = math.max(breaker and breaker_functions().closed(breaker, now) or 0, waitlist_closings(control.key, now, true))
end
local closed = control.closed
local half_open = breaker and breaker.since > 0
if half_open then
  -- One call is the probe.
  budget = math.min(budget, 1)
end
local open = closed <= now
local base = open and now or closed
local full = false

-- The latest result of `alone`, and its units; nil after a start.
local alone_units, alone_at, alone_which

-- Returns when one job of `units` may start without jobs ahead, and the index of the decisive limit.
-- A decision needs it up to four times.
local function alone(units)
  if units ~= alone_units then
    alone_units, alone_at, alone_which = units, limits_earliest(limits, base, units, 1)
  end
  return alone_at, alone_which
end

-- Returns the results of limits_turn.
local function turn(k, units)
  if k <= units and not SHARED then
    return alone(k)
  end
  return limits_turn(limits, waitlist, base, k, units)
end

-- Returns when a job that costs more than some limit allows can start: once each limit either has
-- room for the whole cost, or is completely free. Also returns the index of the limit with the
-- longest wait.
local function whole(cost)
  local latest, which = 0, 1
  for i = 1, #limits do
    local limit = limits[i]
    local units = math.min(cost, limit.algorithm.bucket and limit.burst or limit.max)
    local at = limit.algorithm.nth(limit, base, limit.calls and 1 or units)
    if at > latest then
      latest, which = at, i
    end
  end
  return latest, which
end

-- Returns the results of limits_turn for the first of the waitlist, regardless of its cost: for the
-- highest cost of a job in the waitlist, which it returns as well.
local function first()
  local widest = math.min(math.max(waitlist.widest, 1), limits.most)
  local at, which = turn(widest, widest)
  return at, which, widest
end

-- Charges the limits and advances the waitlists. Returns the start's number in the sliding log, or
-- its numbers in several logs.
local function start(ticket, cost, units, due)
  local sequences = { [0] = 0 }
  for i = 1, #limits do
    local limit = limits[i]
    local sequence = limit.algorithm.take(limit, limits, limit.calls and 1 or cost, cost)
    local partition = limit.partition or 0
    sequences[partition] = sequence or sequences[partition]
  end
  alone_units = nil
  if SHADOWS then
    SHADOWS.start(limits, cost, sequences, limits.again)
  end
  if not due then
    waitlist_reset(waitlist, now)
  elseif ticket then
    waitlist_claim(waitlist, ticket, units, limits_reach, limits)
  end
  if SHARED then
    SHARED.start(limits, units)
  end
  waitlist_note(waitlist, 0, waitlist_waiting(waitlist) > 0 and first() or waitlist.room)
  if not limits.partitions then
    return sequences[0]
  end
  for n = 0, #limits.partitions do
    sequences[n] = int(sequences[n] or 0)
  end
  local numbers = table.concat(sequences, ':', 0, #limits.partitions)
  return SHADOWS and SHADOWS.numbers(numbers, sequences) or numbers
end

-- Records, after a denial, since when quota has been unclaimed: available, but claimed neither by
-- this waitlist nor by others that share the quota. The denied job has `units` units, the last of
-- which is the k-th of the waitlist, and would start at `at`. Returns when the job is to ask again:
-- at `at`, or earlier at the end of the grace period for unclaimed quota, after which the jobs
-- ahead count as vanished.
local function watch(at, k, units)
  local room, which, widest = first()
  if open and room == now then
    if waitlist.seen == 0 then
      waitlist_note(waitlist, now, waitlist.room)
    end
    -- A job with no job ahead waits for its own turn.
    if now - waitlist.room > GRACE_MS and waitlist_waiting(waitlist) > 0 then
      at = math.min(at, waitlist.seen + GRACE_MS + 1)
    end
  else
    -- Forgets the unclaimed quota only if jobs or other waitlists' turns have used it. (In the
    -- guard at a fixed window's end, a limit has no quota although no job started.) Without other
    -- waitlists, the jobs have usually charged the limit with the longest wait, which is checked
    -- first.
    local used = not open or not SHARED and limits[which].algorithm.count(limits[which]) > 0
    for i = 1, used and 0 or #limits do
      local limit = limits[i]
      used = used or limit.algorithm.nth(limit, now, limit.calls and 1 or widest) > now and limit.algorithm.count(limit) > 0
    end
    if used or SHARED and alone(widest) == now then
      waitlist_note(waitlist, 0, room)
    end
  end
  return SHARED and open and SHARED.watch(limits, base, at, k, units) or at
end

-- Returns the six elements of the reply for job `n`, counted from 0.
local function decide(n)
  local generation, ticket, cost = 0, 0, 1
  if not new_jobs then
    generation, ticket, cost = struct.unpack(JOB_FORMAT, ARGV[4], n * JOB_BYTES + 1)
  end
  limits.job = n
  if SHADOWS then
    limits.again = cost >= AGAIN or generation == 0 and ticket == 1
    cost = cost % AGAIN
  end
  cost = cost > 1 and cost or 1
  -- If an operator or other workers have lowered a limit below the job's cost, the job starts
  -- alone. It is still charged in full, and needs room for all of its cost where a limit is higher.
  local units = not limits.cost and 1 or cost < limits.most and cost or limits.most
  if generation == 0 and ticket == 1 and waitlist.last_issued > 0 then
    -- The job is the first of the waitlist, and its start claims no ticket.
    ticket = waitlist.now_serving
  elseif generation ~= waitlist.generation or ticket < 1 or ticket > waitlist.last_issued then
    ticket = nil
  end
  if full and not ticket then
    return 2, 0, 0, 0, 0, 0
  end

  if SHARED and open then
    SHARED.give_up(limits, waitlist)
  end
  local stale = open and waitlist.seen > 0 and now - waitlist.seen > GRACE_MS and waitlist_waiting(waitlist) > 0 and first() == now
  -- `k`: the position in the waitlist, in units, of the job's last unit.
  local at, which, due, k
  if ticket then
    k = math.max(units, ticket - waitlist.now_serving - waitlist.claimed)
    at, which = turn(k, units)
    -- No job may overtake where jobs cost several units: small jobs would take the quota that a
    -- large one waits for.
    local wide = waitlist.widest > 1 or SHARED and SHARED.wide(limits)
    due = at <= now + (wide and 0 or AHEAD_MS)
    local held = ALGORITHMS['max-concurrent']
    if not due and not wide and held then
      due = held.overtake(limits, waitlist, base, k, units)
    end
  else
    due = waitlist_waiting(waitlist) == 0 and (not SHARED or turn(units, units) <= now)
  end

  local fits, last = now, 1
  if limits.cost and cost > units then
    fits, last = whole(cost)
  end
  if open and (due or stale) and fits == now and alone(units) == now then
    if budget == 0 then
      full = true
      return 2, 0, 0, 0, 0, 0
    end
    budget = budget - 1
    local sequences = start(ticket, cost, units, due)
    return 1, 0, 0, 0, 0, sequences
  end

  if not ticket then
    ticket = waitlist_issue(waitlist, now, units)
    k = math.max(units, ticket - waitlist.now_serving - waitlist.claimed)
    at, which = turn(k, units)
  end
  at = watch(at, k, units)
  if fits > at then
    at, which = fits, last
  end
  if limits.foresees ~= nil then
    -- The job asks as soon as it may start once an operator's max has ended.
    limits.foresees = true
    local soonest = limits_turn(limits, waitlist, base, k, units)
    at = math.min(at, math.max(soonest, fits > now and whole(cost) or now))
    limits.foresees = false
  end
  local limit, wait = limits[which], at - now
  return 0, which - 1, limit.algorithm.count(limit), wait > 1 and wait or 1, waitlist.generation, math.max(ticket, 1)
end

-- The first job is decided in the constructor, which sizes the table for the usual call with one
-- job.
local until_ms = open and 0 or closed
local decided = breaker and 2 or 1
local before = budget
local reply = jobs > 0 and { decided, now, until_ms, decide(0) } or { decided, now, until_ms }
for n = 1, jobs - 1 do
  local at = 3 + 6 * n
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5], reply[at + 6] = decide(n)
end

local ends = now
local waiting = waitlist_waiting(waitlist)
if waiting > 0 and (waitlist.changed or SHARED) then
  ends = turn(waiting, 1)
end
for i = 1, #limits do
  local limit = limits[i]
  limit.algorithm.save(limit, limits)
end
if SHADOWS then
  SHADOWS.save(limits, reply)
end
if SHARED then
  SHARED.save(limits, base, ends)
end
if waitlist.changed then
  if limits.fixed then
    ends = math.max(ends, waitlist.window + limits.fixed)
  end
  waitlist_write(waitlist, ends)
end
if half_open and (breaker.changed or budget < before) then
  if budget < before then
    breaker.began = now
  end
  local BREAKER = breaker_functions()
  BREAKER.save(control.key, breaker)
  waitlist_keep(control.key, now, math.max(now, BREAKER.kept(breaker)))
end
return reply
