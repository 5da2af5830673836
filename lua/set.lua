-- The configured max of limits, without learning. Part of scripts that show limits; comes before
-- them.

-- Returns the max of each of `limits`, in the order of ARGV[1]: the configuration's or an
-- operator's.
local function limits_set(limits, waitlist)
  local control = limits.partitions and limits.partitions.control or waitlist
  local all, text, at = {}, ARGV[1], 1
  for n = 1, #limits do
    local max, name, _
    max, _, _, _, _, _, _, _, _, _, _, name, _, _, at = struct.unpack(LIMIT_FORMAT, text, at)
    all[n] = limits[n].ends > 0 and control.overrides[name].max or max
  end
  return all
end
