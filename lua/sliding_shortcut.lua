-- The shortcut of sliding-window-algo. It requires a log with only our entries, without gaps and
-- corrections, and a period that includes all spans. Needs sliding_log.lua before it.
--
-- Expired entries count as well: if they leave no room, acquire.lua checks more precisely.
local function shortcut(now, stamp, jobs)
  local log = KEYS[2]
  log_known = redis.call('HMGET', KEYS[3], 'spans', 'corrected')
  local begin, span, before, since = log_period(log_known[1], now)
  if begin ~= since or log_known[2] then
    return nil
  end
  local longest = math.max(span, before)
  local last = redis.call('ZRANGE', log, '-1', '-1', 'WITHSCORES')
  local sequence, total, units, calls, oldest = 0, 0, 0, 0, now
  if last[1] then
    local first = redis.call('ZRANGE', log, '0', '0', 'WITHSCORES')
    local newest = tonumber(last[2])
    calls, oldest = redis.call('ZCARD', log), tonumber(first[2])
    units, sequence, total = log_sum(first[1], last[1], calls)
    -- If all entries have expired, acquire.lua restarts the numbering.
    if not units or newest > stamp or now - newest >= longest then
      return nil
    end
  end
  local text, at = ARGV[1], 1
  while at <= #text do
    local size, unit, max, own = struct.unpack(LIMIT_START_FORMAT, text, at)
    at = at + size
    if own > span or not log_fits(max, unit == 1 and calls or units, jobs) then
      return nil
    end
  end
  log_prune(log, oldest, now, longest)
  local costs = { 1 }
  for n = 2, jobs do
    costs[n] = 1
  end
  log_write(log, stamp, sequence, total, costs, longest)
  return sequence + 1
end
