-- The line of waiting jobs: a HASH, the same for every algorithm. The specification is src/rules/waitlist.rs.
--
-- Its fields are
-- line       the nine numbers below, packed: they are read and written together, with one value in a sixth of the time
--            that nine texts take
-- past       a '1' or '0' for each place beyond front, up to the newest claimed one: claimed or not
-- blocked    until when (ms) nobody may start, since when, and by what: written by block.lua
-- blocked-at
-- by
-- paused     until when (ms) an operator lets nobody start, and since when: written by change.lua, as is what follows
-- paused-at
-- stepped    what fixed windows know of a clock that was stepped back: see fixed_window.lua
-- overrides  "NAME=MAX@UNTIL;" for each limit whose max an operator set
-- quota      "LIMIT/WINDOW_S,…@AT": what the downstream says of its own limits (window 0: it names none), and when (ms)
--            that was noted: written by quota.lua
-- breaker    failures in a row, and whether they stop calls: see breaker.lua; written by report.lua and by acquire.lua
-- breaker-by
--
-- gen        which line this is; 0: there was none yet
-- front      all places up to this one were claimed or given up
-- issued     the last place that was given out
-- jobs       jobs that were given places
-- seen       since when (ms) room has been seen unclaimed; 0: it has not
-- room       from when on (ms) the log has room for the first of the line
-- widest     the largest cost in the line
-- window     the start (ms) of the newest fixed window that was seen
-- usual      how long (ms) a call holds a place, on average lately; 0: none has ended yet
--
-- Together 58 bytes: beyond 64 Redis would keep the HASH in three times the memory.
--
-- Constants that no file here sets are those of the same names in the specification: src/gate/scripts.rs sets them.

-- What an operator set: { max, until } by the limit's name, without what is over; and the latest until.
local function overrides_parse(text, now)
  local overrides, latest = {}, 0
  for name, max, ends in string.gmatch(text, '([%w-]+)=(%d+)@(%d+);') do
    if tonumber(ends) > now then
      overrides[name] = { max = tonumber(max), ends = tonumber(ends) }
      latest = math.max(latest, tonumber(ends))
    end
  end
  return overrides, latest
end

-- Until when the tenant is closed, by the API and by an operator. What closes it since later than now, before the clock was stepped
-- back, does so for as long as it was to, from now on; that is written where `writing`.
local function line_closings(key, now, writing)
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

local function line_load(key, now)
  local f = redis.call('HMGET', key, 'line', 'past', 'blocked', 'paused', 'overrides', 'breaker')
  local gen, front, issued, jobs, seen, room, widest, window, usual = 0, 0, 0, 0, 0, 0, 0, 0, 0
  if f[1] then
    gen, front, issued, jobs, seen, room, widest, window, usual = struct.unpack(LINE_FORMAT, f[1])
  end
  local past, closed = f[2] or '', math.max(tonumber(f[3] or 0), tonumber(f[4] or 0))
  local overrides, latest = nil, 0
  if f[5] then
    overrides, latest = overrides_parse(f[5], now)
  end
  -- 16 fields: one more, and Lua makes a table of twice the size.
  local line = {
    key = key,
    gen = gen,
    front = front,
    issued = issued,
    jobs = jobs,
    past = past,
    claimed = past == '' and 0 or #string.gsub(past, '0', ''),
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
    line.breaker = breaker
    line.closed = math.max(closed, breaker_closed(breaker, now))
    line.kept = math.max(line.kept, breaker_kept(breaker))
  end
  return line
end

-- Units that wait.
local function line_waiting(line)
  return line.issued - line.front - line.claimed
end

-- How many jobs have the first `units` units of the line, where the last of them has `own`: those in front are taken to
-- cost what all of them do on average, with a root less for how far a sum of many costs may be from it.
local function line_jobs(line, units, own)
  if units <= own then
    return 1
  end
  local average = math.floor((units - own) * line.jobs / math.max(line.issued, 1))
  local doubt = line.widest > 1 and math.floor(math.sqrt(average)) or 0
  return 1 + math.max(average - doubt, 1)
end

-- Gives out the next `units` places; the last of them is the job's.
local function line_issue(line, now, units)
  if line.gen == 0 then
    line.gen = math.max(now, 1)
  end
  if line_waiting(line) == 0 then
    line.widest = units
  else
    line.widest = math.max(line.widest, units)
  end
  line.jobs = line.jobs + 1
  line.issued = line.issued + units
  line.changed = true
  return line.issued
end

-- A job of `units` at `place` started: a place counts once, and places more than `reach` behind are given up.
local function line_claim(line, place, units, reach)
  if place <= line.front then
    return
  end
  local front = math.max(line.front, place - reach)
  local past = string.sub(line.past, front - line.front + 1)
  local first = math.max(place - units, front) - front
  local last = place - front
  if #past < first then
    past = past .. string.rep('0', first - #past)
  end
  past = string.sub(past, 1, first) .. string.rep('1', last - first) .. string.sub(past, last + 1)
  local done = #string.match(past, '^1*')
  line.front = front + done
  line.past = string.sub(past, done + 1)
  line.claimed = #string.gsub(line.past, '0', '')
  line.changed = true
end

-- Whoever was waiting is gone: a new line, with nobody in it. `seen` and `room` are set by the start that follows.
local function line_reset(line, now)
  line.gen = math.max(line.gen + 1, now)
  line.front, line.issued, line.jobs, line.past, line.claimed = 0, 0, 0, '', 0
  line.seen, line.room, line.widest = 0, 0, 0
  line.changed = true
end

-- Notes since when room has been unclaimed, and from when on there is room.
local function line_note(line, seen, room)
  if line.seen ~= seen or line.room ~= room then
    line.seen, line.room = seen, room
    line.changed = true
  end
end

-- Writes the line, if anything changed, to live until `ends` and a while longer.
local function line_save(line, ends)
  if not line.changed then
    return
  end
  local numbers = struct.pack(LINE_FORMAT, line.gen, line.front, line.issued, line.jobs, line.seen, line.room,
    line.widest, line.window, line.usual)
  redis.call('HSET', line.key, 'line', numbers, 'past', line.past)
  redis.call('PEXPIREAT', line.key, int(math.max(ends, line.kept) + KEEP_MS))
end

-- Keeps the hash until `until_ms` and a while longer: its expiry is only ever put off.
local function line_keep(key, now, until_ms)
  if redis.call('PTTL', key) < until_ms - now + KEEP_MS then
    redis.call('PEXPIRE', key, int(until_ms - now + KEEP_MS))
  end
end
