-- The register of a partition that several waitlists share: who waits for it, and which turn each unit has. The specification is
-- src/rules/share.rs. Only in scripts for limits of such scopes, between limits.lua and share.lua, and in change.lua.
--
-- Its keys:
-- [1]  a HASH like that of a waitlist, of which it has only `window` and what closes the tenant, and with the field
--      register   the seven numbers below, packed
-- [2]  a ZSET of those who wait: score: behind which tag the units of one wait
-- [3]  a ZSET of the same members: score: the tag of the last of its units
-- [4]  a ZSET of those of them that have a job of more than an eighth of the quota: score: the largest cost
-- [5]  a ZSET of those who do not wait and started lately, of 1,024 at most: score: behind which tag their next unit is
--
-- tag        of the newest start
-- joined     the tag with which one came anew last
-- waiting    units that wait, of all
-- widest     the largest cost among them
-- seen       since when (ms) room has been seen unclaimed; 0: it has not
-- room       from when on (ms) there is room for the next unit
-- each       what a job costs on average, lately, in sixteenths; 0: none has waited yet
--
-- Constants that no file here sets are those of the same names in the specification: src/gate/scripts.rs sets them.
local REGISTER_FORMAT = '>I8I8I8I4I6I6I6'

-- Loads what waits for `partition`, and what the flow `flow` sees of the others.
local function register_load(partition, flow, first, now)
  local packed = redis.call('HGET', KEYS[first], 'register')
  local r = {
    fronts = KEYS[first + 1], ends = KEYS[first + 2], wides = KEYS[first + 3], idles = KEYS[first + 4],
    flow = flow, stored = packed,
    tag = 0, joined = 0, waiting = 0, widest = 0, seen = 0, room = 0, each = 0,
  }
  if packed then
    r.tag, r.joined, r.waiting, r.widest, r.seen, r.room, r.each = struct.unpack(REGISTER_FORMAT, packed)
    r.seen = math.min(r.seen, now)
  end
  r.known = r.waiting > 0
  partition.register = r
end

local function register_pack(r)
  return struct.pack(REGISTER_FORMAT, r.tag, r.joined, r.waiting, r.widest, r.seen, r.room, r.each)
end

-- Takes out some of those that let more than `reach` turns pass, and who would have them but does not wait.
local function register_purge(r, reach)
  local late = math.max(r.tag - reach * STEP, 0)
  if r.waiting == 0 or late == 0 then
    return
  end
  local passed = redis.call('ZRANGEBYSCORE', r.fronts, '-inf', '(' .. int(late), 'WITHSCORES', 'LIMIT', '0', PURGE)
  for i = 1, #passed, 2 do
    local last = tonumber(redis.call('ZSCORE', r.ends, passed[i]) or passed[i + 1])
    r.waiting = math.max(r.waiting - (last - tonumber(passed[i + 1])) / STEP, 0)
    redis.call('ZREM', r.fronts, passed[i])
    redis.call('ZREM', r.ends, passed[i])
    redis.call('ZREM', r.wides, passed[i])
  end
  redis.call('ZREMRANGEBYSCORE', r.idles, '-inf', '(' .. int(late))
end

-- The others' waitlists with the largest jobs: behind which tag their units wait, the last one's, and the largest cost.
local function register_wide(r)
  local wide = {}
  local largest = redis.call('ZREVRANGE', r.wides, '0', int(WIDE - 1), 'WITHSCORES')
  for i = 1, #largest, 2 do
    local front = largest[i] ~= r.flow and redis.call('ZSCORE', r.fronts, largest[i])
    if front then
      local last = redis.call('ZSCORE', r.ends, largest[i]) or front
      wide[#wide + 1] = { tonumber(front), tonumber(last), tonumber(largest[i + 1]) }
    end
  end
  return wide
end

-- What the flow sees of the others, from here on, where at most `most` units can start at one moment.
local function register_view(r, most)
  r.points, r.first, r.front, r.last, r.wide, r.idle, r.view_each = {}, nil, nil, nil, nil, nil, r.each
  if r.known then
    local front = redis.call('ZSCORE', r.fronts, r.flow)
    r.front = front and tonumber(front)
    r.last = front and tonumber(redis.call('ZSCORE', r.ends, r.flow) or front)
    if not front then
      r.idle = redis.call('ZSCORE', r.idles, r.flow)
      r.front = r.idle and tonumber(r.idle)
      r.last = r.front
    end
    local lowest = redis.call('ZRANGE', r.fronts, '0', '0', 'WITHSCORES')
    r.origin = r.front or math.max(r.tag, r.joined + JOIN)
    r.first = lowest[2] and math.floor((tonumber(lowest[2]) - r.origin) / STEP) + 1
    r.wide = r.widest > math.floor(most / EIGHTH) and register_wide(r) or nil
  end
end

-- How many of the others have a unit between the flow's unit `at`, from 0, and the one before it.
local function register_between(r, at)
  local tag = r.origin + at * STEP
  local below = '(' .. int(tag)
  local all = redis.call('ZCOUNT', r.fronts, '-inf', below) - redis.call('ZCOUNT', r.ends, '-inf', below)
  if r.front and r.front < tag and r.last >= tag then
    all = all - 1
  end
  return all
end

-- The others' units behind the flow's unit `from`, where `there` of them have one, up to its unit `to`, where `here` have:
-- between the two at least as many as at the lower end.
local function register_added(from, there, to, here)
  return (to - from - 1) * math.min(there, here) + here
end

-- How many of the others' units have turns before the flow's `nth` one, from 1, counted from what it had at the
-- beginning.
local function register_units(r, nth)
  local last = nth - 1
  if not r.first or r.first > last then
    return 0
  end
  local points = r.points
  if not points[1] then
    local between = register_between(r, r.first)
    points[1] = { r.first, between, between }
  end
  while true do
    local at, between, sum = unpack(points[#points])
    local next_at = at + math.max(1, math.floor((at - r.first) / 2))
    if at >= last or next_at > last then
      break
    end
    local there = register_between(r, next_at)
    points[#points + 1] = { next_at, there, sum + register_added(at, between, next_at, there) }
  end
  local n = #points
  while n > 1 and points[n][1] > last do
    n = n - 1
  end
  local at, between, sum = unpack(points[n])
  if at < last then
    sum = sum + register_added(at, between, last, register_between(r, last))
  end
  return math.max(sum, 0)
end

-- The same with all of a large job, as soon as its first unit is before.
local function register_before(r, nth)
  local units = register_units(r, nth)
  if units == 0 or not r.wide then
    return units
  end
  local tag = r.origin + nth * STEP
  for _, other in ipairs(r.wide) do
    local front, last, cost = other[1], other[2], other[3]
    local counted = math.floor(math.max(tag - 1 - front, 0) / STEP)
    if counted > 0 then
      units = units + math.max(math.min(cost, (last - front) / STEP) - counted, 0)
    end
  end
  return units
end

-- How many of the others' units, beyond those before it, come before the flow's next job when so many of its units have
-- `started`: a job whose first unit comes first starts as a whole.
local function register_whole(r, started)
  if r.view_each <= 16 or not r.first or r.first > started then
    return 0
  end
  local jobs = math.max(register_between(r, started), 0)
  return math.max(math.floor(jobs * r.view_each / 16) - register_before(r, started + 1), 0)
end

-- Nobody is known to wait.
local function register_clear(r)
  redis.call('DEL', r.fronts, r.ends, r.wides, r.idles)
  r.tag, r.joined, r.waiting, r.widest, r.seen, r.room, r.each = 0, 0, 0, 0, 0, 0, 0
  r.known, r.cleared = false, true
  register_view(r, 0)
end

-- Writes where the flow's units are: behind `front`, the last of them at `last`.
local function register_move(r, front, last)
  if last > front then
    if r.idle then
      redis.call('ZREM', r.idles, r.flow)
    end
    redis.call('ZADD', r.fronts, int(front), r.flow)
    redis.call('ZADD', r.ends, int(last), r.flow)
    return
  end
  -- Also one that started at once: its next unit has a later tag, and does not pass others again.
  if r.front and not r.idle then
    redis.call('ZREM', r.fronts, r.flow)
    redis.call('ZREM', r.ends, r.flow)
  end
  redis.call('ZADD', r.idles, int(front), r.flow)
  for _, least in ipairs(redis.call('ZRANGE', r.idles, '0', int(-IDLE - 1))) do
    redis.call('ZREM', r.idles, least)
  end
end

-- After the decisions: `started` units of the flow have started, and `waiting` wait, of jobs that cost `widest` at most, and
-- `each` on average, in sixteenths, where at most `most` can start at one moment. True when anything is to be written.
local function register_settle(r, started, waiting, widest, each, most)
  local fresh = math.max(r.tag, r.joined + JOIN)
  local front, last = r.front or fresh, r.last or fresh
  r.waiting = r.waiting - (last - front) / STEP + waiting
  if r.waiting <= 0 then
    if r.stored and not r.cleared then
      register_clear(r)
    end
    r.waiting = 0
    r.tag, r.joined, r.widest, r.seen, r.room, r.each = 0, 0, 0, 0, 0, 0
    return r.stored and r.stored ~= register_pack(r)
  end
  if started > 0 then
    r.tag = math.max(r.tag, front + (started - 1) * STEP)
  end
  if waiting > 0 then
    r.widest = math.max(r.widest, widest)
  end
  if not r.front and (waiting > 0 or started > 0) then
    r.joined = front
  end
  if not r.stored and not r.cleared then
    -- Its HASH is new: what these may hold is of before.
    redis.call('DEL', r.fronts, r.ends, r.wides, r.idles)
  end
  local moved = false
  if r.front or waiting > 0 or started > 0 then
    local new_front = front + started * STEP
    local new_last = new_front + waiting * STEP
    moved = new_front ~= r.front or new_last ~= r.last
    if moved then
      register_move(r, new_front, new_last)
      if waiting > 0 then
        r.each = r.each == 0 and each or math.floor((r.each * 7 + each) / 8)
      end
    end
  end
  if waiting > 0 and widest > math.floor(most / EIGHTH) then
    moved = redis.call('ZADD', r.wides, 'CH', int(widest), r.flow) == 1 or moved
  elseif r.widest > math.floor(most / EIGHTH) then
    redis.call('ZREM', r.wides, r.flow)
  end
  return moved or r.stored ~= register_pack(r)
end
