-- The shortcut of sliding-window-algo, with the keys and entries that sliding_window.lua describes.
-- It requires a log with only our entries, without gaps and corrections, and a stored longest span.
--
-- Expired entries count as well: if they leave no room, acquire.lua checks more precisely.
local function shortcut(now, stamp, jobs)
  local log = KEYS[2]
  local noted = redis.call('HMGET', KEYS[3], 'spans', 'corrected')
  if not noted[1] or noted[2] then
    return nil
  end
  local since, span, before = struct.unpack(SPANS_FORMAT, noted[1])
  local longest = math.max(span, before)
  if since > now or now >= since + longest then
    return nil
  end
  local last = redis.call('ZRANGE', log, '-1', '-1', 'WITHSCORES')
  local sequence, total, units, calls, oldest = 0, 0, 0, 0, nil
  if last[1] then
    local first = redis.call('ZRANGE', log, '0', '0', 'WITHSCORES')
    if #last[1] ~= ENTRY_BYTES or #first[1] ~= ENTRY_BYTES then
      return nil
    end
    local kind, from, up_to, cost = struct.unpack(ENTRY_FORMAT, first[1])
    local ours
    ours, sequence, total = struct.unpack(ENTRY_FORMAT, last[1])
    units, calls, oldest = (total - up_to) % TOTALS + cost, sequence - from + 1, tonumber(first[2])
    local newest = tonumber(last[2])
    -- Numbering restarts if all entries have expired.
    if kind ~= 1 or ours ~= 1 or newest > stamp or newest <= now - longest or redis.call('ZCARD', log) ~= calls then
      return nil
    end
  end
  local text, at, _ = ARGV[1], 1, nil
  while at <= #text do
    local max, own, unit
    max, own, _, _, _, _, _, unit, _, _, _, _, _, _, at = struct.unpack(LIMIT_FORMAT, text, at)
    if own > span or (unit == 1 and calls or units) + jobs > max then
      return nil
    end
  end
  if oldest and oldest <= now - longest then
    redis.call('ZREMRANGEBYSCORE', log, '-inf', int(now - longest))
  end
  local score, entries = int(stamp), {}
  for n = 1, jobs do
    entries[2 * n - 1] = score
    entries[2 * n] = struct.pack(ENTRY_FORMAT, 1, sequence + n, (total + n) % TOTALS, 1)
  end
  redis.call('ZADD', log, unpack(entries))
  redis.call('PEXPIREAT', log, int(stamp + longest))
  return sequence + 1
end
