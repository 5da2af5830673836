-- The waitlist and the state stored with it: a HASH, the same for every algorithm. The
-- specification is src/rules/gate/waitlist.rs.
--
-- Its fields, by their names in Redis:
-- line       the ten numbers below, packed: they are read and written together, in a sixth of the
--            time that ten texts take
-- past       claimed_ahead: a character for each ticket after now_serving, up to the newest claimed
--            one: '1' if the ticket was claimed, else '0'
-- blocked    until when (ms) no job may start, since when, and why: written by block.lua
-- blocked-at
-- by
-- paused     until when (ms) an operator pauses the tenant, and since when: written by change.lua,
--            as are the following fields
-- paused-at
-- reset      the generation that an operator's reset gave this waitlist: waitlists of the tenant's
--            partitions with a lower one are void
-- stepped    state of fixed windows after the clock was stepped back: see fixed_window.lua
-- overrides  "NAME=MAX@UNTIL;" for each limit whose max an operator set, and the learned limits:
--            see learned.lua
-- quota      "LIMIT/WINDOW_S,…@AT": the limits that the API advertises (window 0 if it names none),
--            and when (ms) they were stored: written by quota.lua
-- breaker    failures in a row, and whether they stop calls: see breaker.lua; written by report.lua
--            and by acquire.lua
-- breaker-by
--
-- The numbers in `line`, in their order:
-- generation   identifies this waitlist; 0 if there was none yet
-- now_serving  all tickets up to this one were claimed or given up
-- last_issued  the last ticket that was issued
-- jobs         jobs that got tickets
-- seen         since when (ms) quota has been seen unclaimed; 0 if it has not
-- room         from when on (ms) quota is available for the first of the waitlist
-- widest       the largest cost in the waitlist
-- window       the start (ms) of the newest fixed window seen
-- usual        the recent average time (ms) that a call holds a lease; 0 if none has ended yet
-- kept         until when (ms) the HASH is needed: calls of other plans may need it for longer
--
-- Together they take 64 bytes: beyond that, Redis would need three times the memory for the HASH.
--
-- Constants that no Lua file sets come from src/gate/scripts.rs, which takes their values from the
-- specification's constants.

-- Returns until when the tenant is suspended by the API, and until when by an operator. A
-- suspension that begins in the future, because the clock was stepped back, lasts for its original
-- duration from now on. If `writing`, its new end is stored.
local function waitlist_closings(key, now, writing)
  local f = redis.call('HMGET', key, 'blocked', 'blocked-at', 'paused', 'paused-at')
  local ends = {}
  for i, name in ipairs({ 'blocked', 'paused' }) do
    local until_ms, since = tonumber(f[2 * i - 1] or 0), tonumber(f[2 * i] or 0)
    if until_ms > 0 and since > now then
      until_ms = until_ms - (since - now)
      if writing then
        redis.call('HSET', key, name, int(until_ms), name .. '-at', int(now))
      end
    end
    ends[i] = until_ms
  end
  return ends[1], ends[2]
end

local function waitlist_load(key, now)
  local f, closed, generation, now_serving, last_issued, jobs, seen, room, widest, window, usual, kept = waitlist_read(key)
  local claimed_ahead = f[2] or ''
  kept = kept < now + NEEDED_MS and kept or now + NEEDED_MS
  local overrides, latest = nil, 0
  if f[5] then
    overrides, latest = learned_functions().overrides(f[5], now)
  end
  if closed > kept or latest > kept then
    kept = math.max(closed, latest)
  end
  -- 16 fields: with one more, Lua would double the table.
  local waitlist = {
    key = key,
    generation = generation,
    now_serving = now_serving,
    last_issued = last_issued,
    jobs = jobs,
    claimed_ahead = claimed_ahead,
    claimed = claimed_ahead == '' and 0 or #string.gsub(claimed_ahead, '0', ''),
    seen = seen > now and now or seen,
    room = room,
    widest = widest,
    window = window,
    usual = usual,
    closed = closed,
    overrides = overrides,
    kept = kept,
    changed = seen > now,
  }
  if f[6] then
    local BREAKER = breaker_functions()
    local breaker = BREAKER.parse(f[6], now)
    waitlist.breaker = breaker
    waitlist.closed = math.max(closed, BREAKER.closed(breaker, now))
    waitlist.kept = math.max(waitlist.kept, BREAKER.kept(breaker))
  end
  return waitlist
end

-- Returns the number of units that wait.
local function waitlist_waiting(waitlist)
  return waitlist.last_issued - waitlist.now_serving - waitlist.claimed
end

-- Estimates how many jobs have the first `units` units of the waitlist, if the last of these jobs
-- has `own` units. Jobs ahead are assumed to have the average cost; the square root is subtracted,
-- since a sum of many costs may differ from the average by that much.
local function waitlist_jobs(waitlist, units, own)
  if units <= own then
    return 1
  end
  -- Rounded alike by the specification if the product is not exact.
  local average = math.floor((units - own) * waitlist.jobs / math.max(waitlist.last_issued, 1))
  local doubt = waitlist.widest > 1 and math.floor(math.sqrt(average)) or 0
  return 1 + math.max(average - doubt, 1)
end

-- Replaces the waitlist with a new, empty one, because no job waits in it. The start that follows
-- sets `seen` and `room`.
local function waitlist_reset(waitlist, now)
  waitlist.generation = math.max(waitlist.generation + 1, now)
  waitlist.now_serving, waitlist.last_issued, waitlist.jobs, waitlist.claimed_ahead, waitlist.claimed = 0, 0, 0, '', 0
  waitlist.seen, waitlist.room, waitlist.widest = 0, 0, 0
  waitlist.changed = true
end

-- Issues the next `units` tickets and returns the last one, which is the job's. Begins a new
-- waitlist if the numbers are used up.
local function waitlist_issue(waitlist, now, units)
  if waitlist.last_issued + units > MAX_TICKET then
    waitlist_reset(waitlist, now)
  end
  if waitlist.generation == 0 then
    waitlist.generation = math.max(now, 1)
  end
  if waitlist_waiting(waitlist) == 0 then
    waitlist.widest = units
  else
    waitlist.widest = math.max(waitlist.widest, units)
  end
  waitlist.jobs = waitlist.jobs + 1
  waitlist.last_issued = waitlist.last_issued + units
  waitlist.changed = true
  return waitlist.last_issued
end

-- Records the start of a job of `units` with `ticket`. A ticket counts once, and tickets more than
-- reach(limits) behind are given up.
local function waitlist_claim(waitlist, ticket, units, reach, limits)
  if ticket <= waitlist.now_serving then
    return
  end
  waitlist.changed = true
  if waitlist.claimed_ahead == '' and ticket - units <= waitlist.now_serving then
    -- The usual job is the first.
    waitlist.now_serving = ticket
    return
  end
  local now_serving = math.max(waitlist.now_serving, ticket - reach(limits))
  local claimed_ahead = string.sub(waitlist.claimed_ahead, now_serving - waitlist.now_serving + 1)
  local first = math.max(ticket - units, now_serving) - now_serving
  local last = ticket - now_serving
  if #claimed_ahead < first then
    claimed_ahead = claimed_ahead .. string.rep('0', first - #claimed_ahead)
  end
  claimed_ahead = string.sub(claimed_ahead, 1, first) .. string.rep('1', last - first) .. string.sub(claimed_ahead, last + 1)
  local done = #string.match(claimed_ahead, '^1*')
  waitlist.now_serving = now_serving + done
  waitlist.claimed_ahead = string.sub(claimed_ahead, done + 1)
  waitlist.claimed = #string.gsub(waitlist.claimed_ahead, '0', '')
end

-- Records since when quota has been unclaimed, and from when on it is available.
local function waitlist_note(waitlist, seen, room)
  if waitlist.seen ~= seen or waitlist.room ~= room then
    waitlist.seen, waitlist.room = seen, room
    waitlist.changed = true
  end
end

-- Writes the waitlist and more fields of the HASH, which is needed until `ends`, or longer if an
-- earlier call said so (at most NEEDED_MS), and lives KEEP_MS longer than that. Returns when it
-- expires.
local function waitlist_write(waitlist, ends, ...)
  local kept = ends > waitlist.kept and ends or waitlist.kept
  local numbers = struct.pack(WAITLIST_FORMAT, waitlist.generation, waitlist.now_serving, waitlist.last_issued, waitlist.jobs,
    waitlist.seen, waitlist.room, waitlist.widest, waitlist.window, waitlist.usual, kept)
  redis.call('HSET', waitlist.key, 'line', numbers, 'past', waitlist.claimed_ahead, ...)
  redis.call('PEXPIREAT', waitlist.key, int(kept + KEEP_MS))
  return kept + KEEP_MS
end

-- Keeps the hash until `until_ms` and KEEP_MS longer. Its expiry is only ever postponed.
local function waitlist_keep(key, now, until_ms)
  if redis.call('PTTL', key) < until_ms - now + KEEP_MS then
    redis.call('PEXPIRE', key, int(until_ms - now + KEEP_MS))
  end
end
