-- The shortcut of fixed-window-algo. It requires windows that the waitlist knows, and a clock that
-- was not stepped back before one of them. Needs fixed_usage.lua before it.
local function shortcut(now, _, jobs, window)
  local text, at = ARGV[1], 1
  -- The constructor sizes the table for one limit.
  local found, limits = { 0, 0, 0, 0 }, 0
  while at <= #text do
    local size, _, max, span, margin, key, index = struct.unpack(LIMIT_START_FORMAT, text, at)
    at = at + size
    local ahead, start, order = fixed_find(now, span, index, window)
    if ahead ~= 0 and ahead ~= 1 or order ~= 0 then
      return nil
    end
    local value, held = fixed_read(KEYS[key + ahead])
    if not held or jobs > fixed_room(now, start, span, margin, max, held) then
      return nil
    end
    found[limits + 1], found[limits + 2], found[limits + 3], found[limits + 4] = key + ahead, value, held + jobs, start + span
    limits = limits + 4
  end
  for limit = 1, limits, 4 do
    fixed_write(KEYS[found[limit]], found[limit + 1], found[limit + 2], found[limit + 3])
  end
  return 0
end
