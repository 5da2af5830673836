-- inspect: the state of one tenant. Writes nothing. The specification is Scopes::inspect in
-- src/rules/gate/model/scopes.rs. Files that must come before it: clock.lua, waitlist.lua,
-- limits.lua, fair_queue.lua and shared_partitions.lua if a limit is shared, shadows.lua if there
-- are shadows, and the algorithms.
--
-- KEYS[1]  the waitlist (HASH); the others as in acquire.lua
-- ARGV     the limits, described in limits.lua
--
-- Reply: one text, then integers, and a text at the end.
-- [1]  the cause of the tenant's suspension; empty if it is open
-- [2]  1 for a state; 0: the clock is in a fixed window that is not among KEYS, and the reply ends
--      after [3]
-- [3]  the clock in milliseconds since the Unix epoch, rounded down
-- [4]  units in the waitlist
-- [5]  when the last of them may start, in milliseconds from now; 0 if no job waits
-- [6]  until when the tenant is suspended, in milliseconds since the Unix epoch; 0 if it is not
-- [7]  when a new job of one unit may start, in milliseconds from now; 0 for now, unless jobs wait
-- [8]  the largest cost in the waitlist; 0 if no job waits
-- [9 + 8n]   limit n (from 0, the shadows last): the effective max
-- [10 + 8n]  when an operator's max ends, in milliseconds since the Unix epoch; 0 if the max is the
--            configuration's
-- [11 + 8n]  units that count now
-- [12 + 8n]  units that may start now, apart from the waitlist
-- [13 + 8n]  when the next unit may start, in milliseconds from now; 0 for now
-- [14 + 8n]  units that wait in the limit's scope
-- [15 + 8n]  the largest cost among them; 0 if no job waits
-- [16 + 8n]  calls that count now, plus 1; 0 if that is unknown, since there is no log
-- then of each shadow, six numbers. (1) Since when it has counted, in milliseconds since the Unix
--      epoch; 0 if it has not. (2) Jobs that started. (3) Jobs of (2) that it would have denied.
--      (4) Jobs of (3) that it would never have admitted. (5) The longest wait of the other jobs of
--      (3), in milliseconds. (6) How long a new job would wait for the jobs ahead, in milliseconds
-- then of each enforced limit: the configured max or an operator's, without learning
-- [last - 1]  the learned state of each enforced limit, in the format of learned.lua, each followed
--             by ';'; empty if nothing was
-- [last]  the limits that the API advertises, in the format of waitlist.lua; empty if there are
--         none

-- Returns how many units may start at once now.
local function limit_free(limit)
  local free, most = 0, limit.algorithm.bucket and limit.burst or limit.max
  while free < most do
    local middle = math.ceil((free + most) / 2)
    if limit.algorithm.nth(limit, limit.now, middle) == limit.now then
      free = middle
    else
      most = middle - 1
    end
  end
  return free
end

-- Returns the calls that count now, or nil if the algorithm counts only units.
local function limit_calls(limit, limits)
  if limit.calls then
    return limit.algorithm.count(limit)
  elseif not limit.algorithm.shared then
    return nil
  end
  local by_calls = {}
  for name, value in pairs(limit) do
    by_calls[name] = value
  end
  by_calls.calls = true
  -- The log has been read already.
  limit.algorithm.load(by_calls, limits, nil, limit.partition and limits.partitions[limit.partition] or limits)
  return limit.algorithm.count(by_calls)
end

local waitlist = waitlist_load(KEYS[1], now)
local limits = limits_load(waitlist, now, stamp, 1, false)
if not limits then
  return { '', 0, now }
end

if SHADOWS then
  SHADOWS.part(limits)
end
if SHARED then
  SHARED.begin(limits)
end

local control = limits.partitions and limits.partitions.control or waitlist
local blocked, paused = waitlist_closings(control.key, now, false)
control.closed = math.max(blocked, paused, control.breaker and breaker_functions().closed(control.breaker, now) or 0)
local closed = control.closed > now
local base = math.max(now, control.closed)
local waiting = waitlist_waiting(waitlist)
local by = ''
if closed then
  if paused > now then
    by = 'an operator (tenant pause)'
  elseif blocked > now then
    by = redis.call('HGET', control.key, 'by') or ''
  else
    by = breaker_functions().words(control.breaker, redis.call('HGET', control.key, 'breaker-by'))
  end
end

local LEARNED = learned_functions()

-- Returns the learned state of the limits of one partition, by NAME/WINDOW.
local function learned_of(key)
  local all = {}
  for name, numbers in string.gmatch(redis.call('HGET', key, 'overrides') or '', '([%w-]+/%d+)~([%d,]+)') do
    all[name] = LEARNED.parse(numbers).ends > now and numbers or nil
  end
  return all
end

local reply = {
  by, 1, now, waiting,
  waiting > 0 and limits_turn(limits, waitlist, base, waiting, 1) - now or 0,
  closed and control.closed or 0,
  limits_turn(limits, waitlist, base, waiting + 1, 1) - now,
  waiting > 0 and waitlist.widest or 0,
}
local function show(limit)
  local n = #reply
  reply[n + 1] = limit.max
  reply[n + 2] = limit.ends
  reply[n + 3] = limit.algorithm.count(limit)
  reply[n + 4] = closed and 0 or limit_free(limit)
  reply[n + 5] = limit.algorithm.nth(limit, base, 1) - now
  local all, widest = waiting, waitlist.widest
  if limit.shadow then
    all = 0
  elseif limit.partition then
    local queue = limits.partitions[limit.partition].fair_queue
    all, widest = queue.waiting, queue.widest
  end
  reply[n + 6] = all
  reply[n + 7] = all > 0 and widest or 0
  reply[n + 8] = (limit_calls(limit, limits) or -1) + 1
end
for _, limit in ipairs(limits) do
  show(limit)
end
if SHADOWS then
  for _, limit in ipairs(limits.shadows) do
    show(limit)
  end
  SHADOWS.look(limits, reply)
end
for n = 1, #limits do
  reply[#reply + 1] = limits[n].set
end
local learned = {}
for n = 1, #limits do
  local limit = limits[n]
  local home = limit.partition and limits.partitions[limit.partition] or waitlist
  local record = limit.name .. '/' .. int(limit.length)
  learned[n] = (limit.floor < NEVER and home.overrides and learned_of(home.key)[record] or '') .. ';'
end
reply[#reply + 1] = table.concat(learned)
reply[#reply + 1] = redis.call('HGET', control.key, 'quota') or ''
return reply
