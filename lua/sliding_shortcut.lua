-- The shortcut of sliding-window-algo. It requires a log without corrections, whose newest entry is
-- ours and not in the future. Needs sliding_log.lua before it.
local function shortcut(now, stamp, jobs)
  local log = KEYS[2]
  log_known = redis.call('HMGET', KEYS[3], 'spans', 'corrected')
  if log_known[2] then
    return nil
  end
  local text, at, own, most_calls, most_units = ARGV[1], 1, 0, NEVER, NEVER
  while at <= #text do
    local size, unit, max, its_span = struct.unpack(LIMIT_SPAN_FORMAT, text, at)
    if unit == 1 then
      most_calls = max < most_calls and max or most_calls
    else
      most_units = max < most_units and max or most_units
    end
    at, own = at + size, its_span > own and its_span or own
  end
  if jobs > most_calls or jobs > most_units then
    return nil
  end
  local longest = log_note_span(KEYS[3], log_known[1], own, now)
  log_longest = longest
  log_prune(log, now, longest)
  local last = redis.call('ZRANGE', log, '-1', '-1', 'WITHSCORES')
  local sequence, total = 0, 0
  if last[1] then
    local calls = redis.call('ZCARD', log)
    sequence, total = log_parse(last[1])
    if not sequence or tonumber(last[2]) > stamp or calls + jobs > most_calls then
      return nil
    end
    -- Our entries cost at most `total`, and each entry of other writers costs 1. Usually that fits.
    if total + calls + jobs > most_units then
      local number, first, cost = log_parse(redis.call('ZRANGE', log, '0', '0')[1])
      if not number or sequence - number + 1 ~= calls or log_cost(total, first, cost) + jobs > most_units then
        return nil
      end
    end
  end
  log_write(log, stamp, sequence, total, jobs, nil, longest)
  return sequence + 1
end
