-- token-bucket-algo and leaky-bucket-algo: a STRING "SPAN:LEVEL:AT:FULL": tokens times SPAN at the time AT (ms), and
-- when the bucket is full. The specification is src/rules/log/bucket.rs.

-- The level of a full bucket: `burst` tokens, and what flows in during the lateness.
local function bucket_most(limit)
  return limit.burst * limit.span + limit.margin * limit.max
end

local function bucket_refilled(limit, level, millis)
  return math.min(level + millis * limit.max, bucket_most(limit))
end

ALGORITHMS['token-bucket-algo'] = {
  bucket = true,

  load = function(limit, limits)
    local now = limits.now
    local span, level, at, full =
      string.match(redis.call('GET', KEYS[limit.key]) or '0:0:0:0', '^(%d+):(-?%d+):(%d+):(%d+)$')
    if not span then
      error('WRONGTYPE the value is not a level')
    end
    span, level = tonumber(span), tonumber(level)
    if tonumber(full) <= now then
      level = bucket_most(limit)
    elseif span ~= limit.span then
      -- The fraction of a token is lost.
      level = math.floor(level / span) * limit.span
    end
    -- A level of later than now: the clock was stepped back.
    limit.level = bucket_refilled(limit, level, now - math.min(tonumber(at), now))
    return true
  end,

  count = function(limit)
    return math.max(limit.burst - math.floor(limit.level / limit.span), 0)
  end,

  nth = function(limit, base, k)
    local missing = k * limit.span - bucket_refilled(limit, limit.level, base - limit.now)
    return base + math.ceil(math.max(missing, 0) / limit.max)
  end,

  take = function(limit, _, units)
    limit.level = limit.level - units * limit.span
    limit.taken = true
  end,

  settle = function(limit, _, _, more)
    limit.level = math.min(limit.level - more * limit.span, bucket_most(limit))
    limit.taken = true
  end,

  save = function(limit)
    if limit.taken then
      local full = limit.now + math.ceil((bucket_most(limit) - limit.level) / limit.max)
      redis.call('SET', KEYS[limit.key], string.format('%.0f:%.0f:%.0f:%.0f', limit.span, limit.level, limit.now, full),
        'PXAT', int(full))
    end
  end,
}

ALGORITHMS['leaky-bucket-algo'] = { spaced = true }
for name, part in pairs(ALGORITHMS['token-bucket-algo']) do
  ALGORITHMS['leaky-bucket-algo'][name] = part
end
