-- Reads a waitlist, for waitlist.lua, which describes the fields, and for shortcut.lua.

-- The fields of KEYS[1], if the shortcut has read them. It has no effect if it does not decide.
local waitlist_known

-- Returns the fields of the HASH `key`, until when the tenant is suspended (perhaps in the past),
-- and the ten numbers in `line`. HMGET takes longer, even if the HASH is missing.
local function waitlist_read(key)
  local f = waitlist_known or {}
  if not waitlist_known then
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      f[all[i]] = all[i + 1]
    end
  end
  local closed = (f.blocked or f.paused) and math.max(tonumber(f.blocked or 0), tonumber(f.paused or 0)) or 0
  if f.line then
    return f, closed, struct.unpack(WAITLIST_FORMAT, f.line)
  end
  return f, closed, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
end
