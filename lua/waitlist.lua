-- The waitlist, and what is kept next to it: a HASH, the same for every algorithm. The specification is src/rules/waitlist.rs.
--
-- Its fields, by the names that they have in Redis:
-- line       the nine numbers below, packed: they are read and written together, with one value in a sixth of the time
--            that nine texts take
-- past       claimed_ahead: a '1' or '0' for each ticket beyond now_serving, up to the newest claimed one: claimed or not
-- blocked    until when (ms) nobody may start, since when, and by what: written by block.lua
-- blocked-at
-- by
-- paused     until when (ms) an operator lets nobody start, and since when: written by change.lua, as is what follows
-- paused-at
-- stepped    what fixed windows know of a clock that was stepped back: see fixed_window.lua
-- overrides  "NAME=MAX@UNTIL;" for each limit whose max an operator set, and what was learned of limits: see learned.lua
-- quota      "LIMIT/WINDOW_S,…@AT": what the downstream says of its own limits (window 0: it names none), and when (ms)
--            that was noted: written by quota.lua
-- breaker    failures in a row, and whether they stop calls: see breaker.lua; written by report.lua and by acquire.lua
-- breaker-by
--
-- The numbers in `line`, in their order:
-- generation   which waitlist this is; 0: there was none yet
-- now_serving  all tickets up to this one were claimed or given up
-- last_issued  the last ticket that was given out
-- jobs         jobs that were given tickets
-- seen         since when (ms) room has been seen unclaimed; 0: it has not
-- room         from when on (ms) quota is available for the first of the waitlist
-- widest       the largest cost in the waitlist
-- window       the start (ms) of the newest fixed window that was seen
-- usual        how long (ms) a call holds a lease, on average lately; 0: none has ended yet
--
-- Together 58 bytes: beyond 64 Redis would keep the HASH in three times the memory.
--
-- Constants that no file here sets are those of the same names in the specification: src/gate/scripts.rs sets them.

-- Before the name of a limit, in overrides_parse: no name begins so.
local LEARNED_OF = '~'

-- What an operator set: { max, until } by the limit's name, and what learned limits are at most, by LEARNED_OF and their names, without
-- what is over; and the latest until.
local function overrides_parse(text, now)
  local overrides, latest = {}, 0
  for name, max, ends in string.gmatch(text, '([%w-]+)=(%d+)@(%d+);') do
    if tonumber(ends) > now then
      overrides[name] = { max = tonumber(max), ends = tonumber(ends) }
      latest = math.max(latest, tonumber(ends))
    end
  end
  for name, numbers in string.gmatch(text, '([%w-]+)~([%d,]+)') do
    local learned = learned_parse(numbers)
    if learned.ends > now then
      overrides[LEARNED_OF .. name] = learned_most(learned, now)
      latest = math.max(latest, learned.ends)
    end
  end
  return overrides, latest
end

-- Until when the tenant is closed, by the API and by an operator. What closes it since later than now, before the clock was stepped
-- back, does so for as long as it was to, from now on; that is written where `writing`.
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
  local f = redis.call('HMGET', key, 'line', 'past', 'blocked', 'paused', 'overrides', 'breaker')
  local generation, now_serving, last_issued, jobs, seen, room, widest, window, usual = 0, 0, 0, 0, 0, 0, 0, 0, 0
  if f[1] then
    generation, now_serving, last_issued, jobs, seen, room, widest, window, usual = struct.unpack(WAITLIST_FORMAT, f[1])
  end
  local claimed_ahead, closed = f[2] or '', math.max(tonumber(f[3] or 0), tonumber(f[4] or 0))
  local overrides, latest = nil, 0
  if f[5] then
    overrides, latest = overrides_parse(f[5], now)
  end
  -- 16 fields: one more, and Lua makes a table of twice the size.
  local waitlist = {
    key = key,
    generation = generation,
    now_serving = now_serving,
    last_issued = last_issued,
    jobs = jobs,
    claimed_ahead = claimed_ahead,
    claimed = claimed_ahead == '' and 0 or #string.gsub(claimed_ahead, '0', ''),
    seen = math.min(seen, now),
    room = room,
    widest = widest,
    window = window,
    usual = usual,
    closed = closed,
    overrides = overrides,
    kept = math.max(closed, latest),
    changed = seen > now,
  }
  if f[6] then
    local breaker = breaker_parse(f[6], now)
    waitlist.breaker = breaker
    waitlist.closed = math.max(closed, breaker_closed(breaker, now))
    waitlist.kept = math.max(waitlist.kept, breaker_kept(breaker))
  end
  return waitlist
end

-- Units that wait.
local function waitlist_waiting(waitlist)
  return waitlist.last_issued - waitlist.now_serving - waitlist.claimed
end

-- How many jobs have the first `units` units of the waitlist, where the last of them has `own`: those in front are taken to
-- cost what all of them do on average, with a root less for how far a sum of many costs may be from it.
local function waitlist_jobs(waitlist, units, own)
  if units <= own then
    return 1
  end
  local average = math.floor((units - own) * waitlist.jobs / math.max(waitlist.last_issued, 1))
  local doubt = waitlist.widest > 1 and math.floor(math.sqrt(average)) or 0
  return 1 + math.max(average - doubt, 1)
end

-- Gives out the next `units` tickets; the last of them is the job's.
local function waitlist_issue(waitlist, now, units)
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

-- A job of `units` with `ticket` started: a ticket counts once, and tickets more than `reach` behind are given up.
local function waitlist_claim(waitlist, ticket, units, reach)
  if ticket <= waitlist.now_serving then
    return
  end
  local now_serving = math.max(waitlist.now_serving, ticket - reach)
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
  waitlist.changed = true
end

-- Whoever was waiting is gone: a new waitlist, with nobody in it. `seen` and `room` are set by the start that follows.
local function waitlist_reset(waitlist, now)
  waitlist.generation = math.max(waitlist.generation + 1, now)
  waitlist.now_serving, waitlist.last_issued, waitlist.jobs, waitlist.claimed_ahead, waitlist.claimed = 0, 0, 0, '', 0
  waitlist.seen, waitlist.room, waitlist.widest = 0, 0, 0
  waitlist.changed = true
end

-- Notes since when room has been unclaimed, and from when on there is room.
local function waitlist_note(waitlist, seen, room)
  if waitlist.seen ~= seen or waitlist.room ~= room then
    waitlist.seen, waitlist.room = seen, room
    waitlist.changed = true
  end
end

-- Writes the waitlist, if anything changed, to live until `ends` and a while longer.
local function waitlist_save(waitlist, ends)
  if not waitlist.changed then
    return
  end
  local numbers = struct.pack(WAITLIST_FORMAT, waitlist.generation, waitlist.now_serving, waitlist.last_issued, waitlist.jobs,
    waitlist.seen, waitlist.room, waitlist.widest, waitlist.window, waitlist.usual)
  redis.call('HSET', waitlist.key, 'line', numbers, 'past', waitlist.claimed_ahead)
  redis.call('PEXPIREAT', waitlist.key, int(math.max(ends, waitlist.kept) + KEEP_MS))
end

-- Keeps the hash until `until_ms` and a while longer: its expiry is only ever put off.
local function waitlist_keep(key, now, until_ms)
  if redis.call('PTTL', key) < until_ms - now + KEEP_MS then
    redis.call('PEXPIRE', key, int(until_ms - now + KEEP_MS))
  end
end
