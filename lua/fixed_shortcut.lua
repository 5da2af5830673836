-- The shortcut of fixed-window-algo, with the keys that fixed_window.lua describes. It requires
-- windows that the waitlist knows, and a clock that was not stepped back before one of them.
local function shortcut(now, _, jobs, window)
  local text, at = ARGV[1], 1
  local found, limits = {}, 0
  while at <= #text do
    local max, span, margin, key, index, _
    max, span, margin, _, _, _, _, _, key, index, _, _, _, _, at = struct.unpack(LIMIT_FORMAT, text, at)
    local current = math.floor(now / span)
    local start, ahead = current * span, current - index
    if ahead ~= 0 and ahead ~= 1 or start > window or start + span <= window or now >= start + span - margin then
      return nil
    end
    local held = redis.call('GET', KEYS[key + ahead])
    if held and not string.match(held, '^%d+$') or tonumber(held or 0) + jobs > max then
      return nil
    end
    found[limits + 1], found[limits + 2], found[limits + 3] = key + ahead, held, start + span
    limits = limits + 3
  end
  for limit = 1, limits, 3 do
    local key, held, ends = found[limit], found[limit + 1], found[limit + 2]
    if held then
      -- The key has the right expiry already.
      redis.call('SET', KEYS[key], int(tonumber(held) + jobs), 'KEEPTTL')
    else
      redis.call('SET', KEYS[key], int(jobs), 'PXAT', int(ends))
    end
  end
  return 0
end
