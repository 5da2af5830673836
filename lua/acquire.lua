-- acquire: decides for jobs of one tenant, in order, as if they came one after the other.
-- The specification is State::ask in src/rules/model.rs. Needs clock.lua, line.lua and an algorithm before it.
--
-- KEYS[1]  the line (HASH)
-- KEYS[2]  the log: the ZSET of the sliding window, or the STRING of the fixed window with the index ARGV[5]
-- KEYS[3]  the STRING of the next fixed window; absent for the sliding window
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  max: units in a window
-- ARGV[3]  the window in milliseconds
-- ARGV[4]  the guard in milliseconds
-- ARGV[5]  the index of the window of KEYS[2]; 0 for the sliding window
-- ARGV[6]  the budget: how many jobs may start at most
-- ARGV[7 + 3n], ARGV[8 + 3n], ARGV[9 + 3n]  job n (from 0): generation and place of its ticket (0 and 0: fresh), cost
--
-- Reply: integers.
-- [1]  1: decided; 0: the clock is in a window that is not among KEYS, nothing was changed, and [2] is all
-- [2]  the clock in milliseconds since the epoch, rounded down
-- [3]  until when the tenant is closed, in milliseconds since the epoch; 0: it is not
-- [4 + 5n]  job n: 1 it starts, 0 it waits, 2 there is room but no budget
-- [5 + 5n]  units that the window holds after the decision
-- [6 + 5n]  when to come back, in milliseconds from now, at least 1; 0 unless it waits
-- [7 + 5n], [8 + 5n]  generation and place of its ticket; 0 unless it waits

local now, stamp = read_clock(ARGV[1])
local limit = {
  max = tonumber(ARGV[2]), window = tonumber(ARGV[3]), guard = tonumber(ARGV[4]), index = tonumber(ARGV[5]),
  jobs = (#ARGV - 6) / 3,
}
local budget = tonumber(ARGV[6])
local line = line_load(KEYS[1], now)
local log = log_load(line, limit, now, stamp, true)
if not log then
  return { 0, now }
end

local base = math.max(now, line.blocked)
local open = base == now
local reach = math.min(math.max(math.floor(limit.max * AHEAD_MS / log.span), 2), MAX_REACH)
local full = false

local function widest()
  return math.min(math.max(line.widest, 1), limit.max)
end

-- When `place` may start, if its job of `cost` comes in time.
local function turn_of(place, cost)
  return log_nth(log, base, math.max(cost, place - line.front - line.claimed))
end

-- Charges the log, and moves the line on.
local function start(place, cost, due)
  log_take(log, cost)
  if not due then
    line_reset(line, now)
  elseif place then
    line_claim(line, place, cost, reach)
  end
  local room = line.room
  if line_waiting(line) > 0 then
    room = log_nth(log, now, widest())
  end
  line_note(line, 0, room)
end

-- After an ask that must wait until `at`: notes since when room has been there and nobody of the line came for it.
-- Once that is longer than the grace, the ask is to come back when it can be told whether they vanished.
local function watch(at)
  if not open or log_free(log) < widest() then
    line_note(line, 0, log_nth(log, base, widest()))
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

-- The five elements of the reply for one job.
local function decide(gen, place, cost)
  cost = math.min(math.max(cost, 1), limit.max)
  if gen ~= line.gen or place < 1 or place > line.issued then
    place = nil
  end
  if full and not place then
    return 2, log.count, 0, 0, 0
  end

  local room = open and log_free(log) >= cost
  local stale = open and line_waiting(line) > 0 and log_free(log) >= widest()
    and line.seen > 0 and now - line.seen > GRACE_MS
  local at, due
  if place then
    at = turn_of(place, cost)
    -- Beside jobs of several units nobody goes ahead: small ones would take what a large one waits for.
    due = at <= now + (line.widest > 1 and 0 or AHEAD_MS)
  else
    due = line_waiting(line) == 0
  end

  if room and (due or stale) then
    if budget == 0 then
      full = true
      return 2, log.count, 0, 0, 0
    end
    budget = budget - 1
    start(place, cost, due)
    return 1, log.count, 0, 0, 0
  end

  if not place then
    place = line_issue(line, now, cost)
    at = turn_of(place, cost)
  end
  at = watch(at)
  return 0, log.count, math.max(at - now, 1), line.gen, place
end

local reply = { 1, now, open and 0 or line.blocked }
for i = 7, #ARGV, 3 do
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] =
    decide(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
end

local ends = log.remembered
local waiting = line_waiting(line)
if line.changed then
  ends = math.max(ends, waiting > 0 and log_nth(log, base, waiting) or now)
end
log_save(log)
line_save(line, ends)
return reply
