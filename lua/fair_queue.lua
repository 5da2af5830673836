-- The fair queue of a partition that several waitlists share: which waitlists (flows) wait, and the
-- turn of each unit. The specification is src/rules/gate/fair_queue.rs. Part of scripts for limits
-- with such scopes, between limits.lua and shared_partitions.lua, and of change.lua.
--
-- Its keys:
-- [1]  a HASH like a waitlist's, but only with `window`, the tenant's suspensions, and the field
--      register   the seven numbers below, packed
-- [2]  a ZSET of waiting flows; score: their front, the start tag of their next unit
-- [3]  a ZSET of the same flows; score: their end, one step above the tag of their last unit
-- [4]  a ZSET of waiting flows with a job above an eighth of the quota; score: their largest cost
-- [5]  a ZSET of up to 1,024 flows that started lately and don't wait; score: their front
--
-- tag        the start tag of the newest start
-- joined     the tag at which a flow last joined
-- waiting    waiting units of all flows
-- widest     the largest cost among them
-- seen       since when (ms) available quota has gone unclaimed; 0 if all of it is claimed
-- room       when (ms) quota becomes available for the next unit
-- each       the recent average cost of a job, in sixteenths; 0 if none has waited yet
--
-- Constants that no Lua file sets come from src/gate/scripts.rs, which takes their values from the
-- specification's constants.
local FAIR_QUEUE_FORMAT = '>I8I8I8I6I6I6I6'

-- Loads the fair queue of `partition` for the flow `flow`.
local function fair_queue_load(partition, flow, first, now)
  local f = redis.call('HMGET', KEYS[first], 'register', 'reset')
  local packed = f[1]
  local q = {
    fronts = KEYS[first + 1], ends = KEYS[first + 2], wides = KEYS[first + 3], idles = KEYS[first + 4],
    flow = flow, stored = packed, reset = tonumber(f[2] or 0),
    tag = 0, joined = 0, waiting = 0, widest = 0, seen = 0, room = 0, each = 0,
  }
  if packed then
    q.tag, q.joined, q.waiting, q.widest, q.seen, q.room, q.each = struct.unpack(FAIR_QUEUE_FORMAT, packed)
    q.seen = math.min(q.seen, now)
  end
  q.known = q.waiting > 0
  partition.fair_queue = q
end

local function fair_queue_pack(q)
  return struct.pack(FAIR_QUEUE_FORMAT, q.tag, q.joined, q.waiting, q.widest, q.seen, q.room, q.each)
end

-- Removes some flows that let more than `reach` turns pass, and idle flows that would have.
local function fair_queue_purge(q, reach)
  local late = math.max(q.tag - reach * STEP, 0)
  if q.waiting == 0 or late == 0 then
    return
  end
  local passed = redis.call('ZRANGEBYSCORE', q.fronts, '-inf', '(' .. int(late), 'WITHSCORES', 'LIMIT', '0', PURGE)
  for i = 1, #passed, 2 do
    local last = tonumber(redis.call('ZSCORE', q.ends, passed[i]) or passed[i + 1])
    q.waiting = math.max(q.waiting - (last - tonumber(passed[i + 1])) / STEP, 0)
    redis.call('ZREM', q.fronts, passed[i])
    redis.call('ZREM', q.ends, passed[i])
    redis.call('ZREM', q.wides, passed[i])
  end
  redis.call('ZREMRANGEBYSCORE', q.idles, '-inf', '(' .. int(late))
end

-- Returns the other flows with the largest jobs: front, end and largest cost of each.
local function fair_queue_wide(q)
  local wide = {}
  local largest = redis.call('ZREVRANGE', q.wides, '0', int(WIDE - 1), 'WITHSCORES')
  for i = 1, #largest, 2 do
    local front = largest[i] ~= q.flow and redis.call('ZSCORE', q.fronts, largest[i])
    if front then
      local last = redis.call('ZSCORE', q.ends, largest[i]) or front
      wide[#wide + 1] = { tonumber(front), tonumber(last), tonumber(largest[i + 1]) }
    end
  end
  return wide
end

-- Computes the flow's view of the others as they are now. At most `most` units can start at once.
-- New flows join `join` tags apart.
local function fair_queue_view(q, most, join)
  q.join = join
  q.points, q.first, q.front, q.last, q.wide, q.idle, q.view_each = {}, nil, nil, nil, nil, nil, q.each
  if q.known then
    local front = redis.call('ZSCORE', q.fronts, q.flow)
    q.front = front and tonumber(front)
    q.last = front and tonumber(redis.call('ZSCORE', q.ends, q.flow) or front)
    if not front then
      q.idle = redis.call('ZSCORE', q.idles, q.flow)
      q.front = q.idle and tonumber(q.idle)
      q.last = q.front
    end
    local lowest = redis.call('ZRANGE', q.fronts, '0', '0', 'WITHSCORES')
    q.origin = q.front or math.max(q.tag, q.joined + q.join)
    q.first = lowest[2] and math.floor((tonumber(lowest[2]) - q.origin) / STEP) + 1
    q.wide = q.widest > math.floor(most / EIGHTH) and fair_queue_wide(q) or nil
  end
end

-- Returns how many of the other flows have a unit between the flow's unit `at`, counted from 0, and
-- the one before it.
local function fair_queue_between(q, at)
  local tag = q.origin + at * STEP
  local below = '(' .. int(tag)
  local all = redis.call('ZCOUNT', q.fronts, '-inf', below) - redis.call('ZCOUNT', q.ends, '-inf', below)
  if q.front and q.front < tag and q.last >= tag then
    all = all - 1
  end
  return all
end

-- Estimates how many of the others' units lie between the flow's units `from` and `to`. `there` of
-- them have a unit just before `from`, and `here` of them just before `to`. In between it assumes
-- the smaller of the two numbers.
local function fair_queue_added(from, there, to, here)
  return (to - from - 1) * math.min(there, here) + here
end

-- Returns how many of the others' units have turns before the flow's `nth` one. `nth` is 1 for the
-- first unit that waits at the start of the call.
local function fair_queue_units(q, nth)
  local last = nth - 1
  if not q.first or q.first > last then
    return 0
  end
  local points = q.points
  if not points[1] then
    local between = fair_queue_between(q, q.first)
    points[1] = { q.first, between, between }
  end
  while true do
    local at, between, sum = unpack(points[#points])
    local next_at = at + math.max(1, math.floor((at - q.first) / 2))
    if at >= last or next_at > last then
      break
    end
    local there = fair_queue_between(q, next_at)
    points[#points + 1] = { next_at, there, sum + fair_queue_added(at, between, next_at, there) }
  end
  local n = #points
  while n > 1 and points[n][1] > last do
    n = n - 1
  end
  local at, between, sum = unpack(points[n])
  if at < last then
    sum = sum + fair_queue_added(at, between, last, fair_queue_between(q, last))
  end
  return math.max(sum, 0)
end

-- Like fair_queue_units, but counts all units of a large job as soon as its first unit counts.
local function fair_queue_before(q, nth)
  local units = fair_queue_units(q, nth)
  if units == 0 or not q.wide then
    return units
  end
  local tag = q.origin + nth * STEP
  for _, other in ipairs(q.wide) do
    local front, last, cost = other[1], other[2], other[3]
    local counted = math.max(math.ceil((tag - front) / STEP) - 1, 0)
    if counted > 0 then
      units = units + math.max(math.min(cost, (last - front) / STEP) - counted, 0)
    end
  end
  return units
end

-- Returns what to add to the others' units before the flow's next job, once `started` units of this
-- flow have started: a job of another flow starts as a whole once its first unit has the turn.
local function fair_queue_whole(q, started)
  if q.view_each <= 16 or not q.first or q.first > started then
    return 0
  end
  local jobs = math.max(fair_queue_between(q, started), 0)
  return math.max(math.floor(jobs * q.view_each / 16) - fair_queue_before(q, started + 1), 0)
end

-- Forgets what the register says, since no flow is known to wait.
local function fair_queue_forget(q)
  q.tag, q.joined, q.waiting, q.widest, q.seen, q.room, q.each = 0, 0, 0, 0, 0, 0, 0
  q.known = false
  fair_queue_view(q, 0, q.join)
end

local function fair_queue_clear(q)
  redis.call('DEL', q.fronts, q.ends, q.wides, q.idles)
  q.cleared = true
  fair_queue_forget(q)
end

-- Stores the flow's front and end (`last`).
local function fair_queue_move(q, front, last)
  if last > front then
    if q.idle then
      redis.call('ZREM', q.idles, q.flow)
    end
    redis.call('ZADD', q.fronts, int(front), q.flow)
    redis.call('ZADD', q.ends, int(last), q.flow)
    return
  end
  -- Includes a flow that started at once: its next unit has a later tag and can't overtake others
  -- again.
  if q.front and not q.idle then
    redis.call('ZREM', q.fronts, q.flow)
    redis.call('ZREM', q.ends, q.flow)
  end
  redis.call('ZADD', q.idles, int(front), q.flow)
  for _, least in ipairs(redis.call('ZRANGE', q.idles, '0', int(-IDLE - 1))) do
    redis.call('ZREM', q.idles, least)
  end
end

-- Updates the queue after the decisions: `started` units of the flow have started, and `waiting`
-- units wait. Their jobs cost at most `widest`, and on average `each` sixteenths. At most `most`
-- units can start at one moment. Returns true if the queue must be written.
local function fair_queue_settle(q, started, waiting, widest, each, most)
  local fresh = math.max(q.tag, q.joined + q.join)
  local front, last = q.front or fresh, q.last or fresh
  q.waiting = q.waiting - (last - front) / STEP + waiting
  if q.waiting <= 0 or front + (started + waiting) * STEP > MAX_TAG then
    if q.stored and not q.cleared then
      fair_queue_clear(q)
    end
    q.waiting = 0
    q.tag, q.joined, q.widest, q.seen, q.room, q.each = 0, 0, 0, 0, 0, 0
    return q.stored and q.stored ~= fair_queue_pack(q)
  end
  if started > 0 then
    q.tag = math.max(q.tag, front + (started - 1) * STEP)
  end
  if waiting > 0 then
    q.widest = math.max(q.widest, widest)
  end
  if not q.front and (waiting > 0 or started > 0) then
    q.joined = front
  end
  if not q.stored and not q.cleared then
    -- The HASH is new, so the other keys can only have old entries.
    redis.call('DEL', q.fronts, q.ends, q.wides, q.idles)
  end
  local moved = false
  if q.front or waiting > 0 or started > 0 then
    local new_front = front + started * STEP
    local new_last = new_front + waiting * STEP
    moved = new_front ~= q.front or new_last ~= q.last
    if moved then
      fair_queue_move(q, new_front, new_last)
      if waiting > 0 then
        q.each = q.each == 0 and each or math.floor((q.each * 7 + each) / 8)
      end
    end
  end
  if waiting > 0 and widest > math.floor(most / EIGHTH) then
    moved = redis.call('ZADD', q.wides, 'CH', int(widest), q.flow) == 1 or moved
  elseif q.widest > math.floor(most / EIGHTH) then
    redis.call('ZREM', q.wides, q.flow)
  end
  return moved or q.stored ~= fair_queue_pack(q)
end
