-- The shortcut of sliding-window-algo. It requires a log with only our entries, without gaps and
-- corrections. Needs sliding_log.lua before it.
--
-- Expired entries count as well: if they leave no room, acquire.lua checks more precisely.
local function shortcut(now, stamp, jobs)
  local log = KEYS[2]
  log_known = redis.call('HMGET', KEYS[3], 'spans', 'corrected')
  local begin, span, before, since = log_period(log_known[1], now)
  if log_known[2] then
    return nil
  end
  local last = redis.call('ZRANGE', log, '-1', '-1', 'WITHSCORES')
  local sequence, total, units, calls, oldest, newest = 0, 0, 0, 0, now, now
  if last[1] then
    local first = redis.call('ZRANGE', log, '0', '0', 'WITHSCORES')
    calls, oldest, newest = redis.call('ZCARD', log), tonumber(first[2]), tonumber(last[2])
    units, sequence, total = log_sum(first[1], last[1], calls)
    if not units or newest > stamp then
      return nil
    end
  end
  local text, at, own = ARGV[1], 1, 0
  while at <= #text do
    local size, unit, max, its_span = struct.unpack(LIMIT_START_FORMAT, text, at)
    if not log_fits(max, unit == 1 and calls or units, jobs) then
      return nil
    end
    at, own = at + size, math.max(own, its_span)
  end
  local longest = math.max(span, own, before)
  -- If all entries have expired, acquire.lua restarts the numbering.
  if now - newest >= longest then
    return nil
  end
  if begin ~= since or own > span then
    log_note_span(KEYS[3], log_known[1], own, now)
  end
  log_prune(log, oldest, now, longest)
  local costs = { 1 }
  for n = 2, jobs do
    costs[n] = 1
  end
  log_write(log, stamp, sequence, total, costs, longest)
  return sequence + 1
end
