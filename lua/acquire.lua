-- acquire: decides for jobs of one tenant, in order, as if they came one after the other.
-- The specification is State::ask in src/rules/model.rs. Needs clock.lua, line.lua, limits.lua and the algorithms
-- before it.
--
-- KEYS[1]  the line (HASH)
-- KEYS[2…] the limits' keys: one for each that is not a fixed window (all sliding windows have one together), two for
--          each fixed window: that of the index that is given with the limit, and the next one
--
-- ARGV     the clock and the limits, as limits.lua says; then
-- ARGV[3]  the budget: how many jobs may start at most
-- ARGV[4]  what permits are called: this and ":n" for job n
-- ARGV[5]  the jobs, at least one, packed one after the other. Each: generation and place of its ticket (0 and 0: fresh);
--          its cost
--
-- Reply: integers.
-- [1]  1: decided; 0: the clock is in a fixed window that is not among KEYS, nothing was changed, and [2] is all
-- [2]  the clock in milliseconds since the epoch, rounded down
-- [3]  until when the tenant is closed, in milliseconds since the epoch; 0: it is not
-- [4 + 6n]  job n: 1 it starts, 0 it waits, 2 there is room but no budget
-- [5 + 6n]  which limit makes it wait the longest, from 0; 0 unless it waits
-- [6 + 6n]  units that count against that limit after the decision
-- [7 + 6n]  when to come back, in milliseconds from now, at least 1; 0 unless it waits
-- [8 + 6n]  generation of its ticket; 0 unless it waits
-- [9 + 6n]  place of its ticket; where it starts, its number in the sliding log, 0 without one

local now, stamp = read_clock(ARGV[1])
local line = line_load(KEYS[1], now)
local JOB_FORMAT, JOB_BYTES = '>I8I8I4', 20
local jobs = #ARGV[5] / JOB_BYTES
local limits = limits_load(line, now, stamp, jobs, true)
if not limits then
  return { 0, now }
end

limits.permits = ARGV[4]
local budget = tonumber(ARGV[3])
local base = math.max(now, line.closed)
local open = base == now
local full = false

local function widest()
  return math.min(math.max(line.widest, 1), limits.most)
end

local function has_room(units)
  return limits_earliest(limits, now, units, 1) == now
end

local function count(which)
  return limits[which].algorithm.count(limits[which])
end

-- Charges the limits, and moves the line on. Returns the start's number in the sliding log.
local function start(place, cost, units, due)
  local sequence = 0
  for i = 1, #limits do
    local limit = limits[i]
    sequence = limit.algorithm.take(limit, limits, limit.calls and 1 or cost, cost) or sequence
  end
  if not due then
    line_reset(line, now)
  elseif place then
    line_claim(line, place, units, limits_reach(limits))
  end
  local room = line.room
  if line_waiting(line) > 0 then
    room = limits_earliest(limits, now, widest(), 1)
  end
  line_note(line, 0, room)
  return sequence
end

-- A limit that has no room for so many units has let something start.
local function is_taken(units)
  for i, limit in ipairs(limits) do
    if limit.algorithm.nth(limit, now, limit.calls and 1 or units) > now and count(i) > 0 then
      return true
    end
  end
  return false
end

-- After an ask that must wait until `at`: notes since when room has been there and nobody of the line came for it.
-- Once that is longer than the grace, the ask is to come back when it can be told whether they vanished.
local function watch(at)
  local first, which = limits_earliest(limits, base, widest(), 1)
  if not open or first ~= now then
    -- Only a start takes room away: in the guard at a fixed window's end there may be none without. Mostly it is the limit
    -- at hand that was taken, so that the others need not be looked at again.
    if not open or count(which) > 0 or is_taken(widest()) then
      line_note(line, 0, first)
    end
    return at
  end
  if line.seen == 0 then
    line_note(line, now, line.room)
  end
  if now - line.room > GRACE_MS then
    return math.min(at, line.seen + GRACE_MS + 1)
  end
  return at
end

-- When `place` may start if its job of `units` comes in time, and which limit says so.
local function turn_of(place, units)
  return limits_turn(limits, line, base, math.max(units, place - line.front - line.claimed), units)
end

-- The six elements of the reply for job number `n`, from 0.
local function decide(n)
  local gen, place, cost = struct.unpack(JOB_FORMAT, ARGV[5], n * JOB_BYTES + 1)
  limits.job = n
  cost = math.max(cost, 1)
  -- An operator's lower limit lets a job that costs more start alone; it is charged all the same.
  local units = limits.cost and math.min(cost, limits.most) or 1
  if gen ~= line.gen or place < 1 or place > line.issued then
    place = nil
  end
  if full and not place then
    return 2, 0, count(1), 0, 0, 0
  end

  local stale = open and line.seen > 0 and now - line.seen > GRACE_MS and line_waiting(line) > 0
    and has_room(widest())
  local at, which, due
  if place then
    at, which = turn_of(place, units)
    -- Beside jobs of several units nobody goes ahead: small ones would take what a large one waits for.
    due = at <= now + (line.widest > 1 and 0 or AHEAD_MS)
  else
    due = line_waiting(line) == 0
  end

  if open and (due or stale) and has_room(units) then
    if budget == 0 then
      full = true
      return 2, 0, count(1), 0, 0, 0
    end
    budget = budget - 1
    local sequence = start(place, cost, units, due)
    return 1, 0, count(1), 0, 0, sequence
  end

  if not place then
    place = line_issue(line, now, units)
    at, which = turn_of(place, units)
  end
  at = watch(at)
  return 0, which - 1, count(which), math.max(at - now, 1), line.gen, place
end

-- The first job here, so that a table of the right size is made at once for the usual call, which is for one job.
local reply = { 1, now, open and 0 or line.closed, decide(0) }
for n = 1, jobs - 1 do
  local at = 3 + 6 * n
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5], reply[at + 6] = decide(n)
end

local ends = limits.fixed and line.window + limits.fixed or 0
local waiting = line_waiting(line)
if line.changed then
  ends = math.max(ends, waiting > 0 and limits_turn(limits, line, base, waiting, 1) or now)
end
for i = 1, #limits do
  local limit = limits[i]
  limit.algorithm.save(limit, limits)
end
line_save(line, ends)
return reply
