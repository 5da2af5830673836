-- The usage in a fixed window: fixed_window.lua, which describes the keys, and fixed_shortcut.lua
-- find, read and charge a window with these functions. The specification is
-- src/rules/algorithms/fixed.rs.

-- Finds the window of `now`. Returns the distance of its index from `index`, its start, and its
-- order to the newest window seen, which begins at `newest`: 1 if it is newer, -1 if the clock was
-- stepped back before that window, else 0.
local function fixed_find(now, span, index, newest)
  local current = math.floor(now / span)
  local start = current * span
  return current - index, start, start > newest and 1 or start + span <= newest and -1 or 0
end

-- Returns the stored value of the window, if any, and its units; nil if the value is no count.
local function fixed_read(key)
  local value = redis.call('GET', key)
  if value then
    return value, tonumber(string.match(value, '^%d+$'))
  end
  return value, 0
end

-- Returns how many units may start at `at`, in the window that begins at `start` and has `held`.
local function fixed_room(at, start, span, margin, max, held)
  return at < start + span - margin and math.max(max - held, 0) or 0
end

-- Writes the units of the window that ends at `ends`. `value` is the stored value, if any.
local function fixed_write(key, value, units, ends)
  if value then
    -- The key has the right expiry already.
    redis.call('SET', key, int(units), 'KEEPTTL')
  else
    redis.call('SET', key, int(units), 'PXAT', int(ends))
  end
end
