-- The breaker: failures in a row stop calls that would fail too. The specification is src/rules/breaker.rs.
-- It is two fields of a HASH: a tenant's waitlist, or what concerns the API as a whole.
--
-- breaker    "FAILURES,SINCE,UNTIL,WAIT,BEGAN,LEASE,OF"; without failures there is no such field. SINCE: since when it is open (ms), 0: it
--            is closed; UNTIL: no probe before this (ms); WAIT: how long it was last open (ms); BEGAN: when the probe under way began
--            (ms), 0: there is none; LEASE: when that is given up (ms after BEGAN); OF: which job's or tenant's calls failed, '*' for several
-- breaker-by why the last one failed that counted

-- `text` as a table, as it is at `now`; nil: there are no failures.
local function breaker_parse(text, now)
  local failures, since, until_ms, wait, began, lease, of
    = string.match(text or '', '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(.*)$')
  if not failures then
    return nil
  end
  local breaker = {
    failures = tonumber(failures), since = tonumber(since), until_ms = tonumber(until_ms), wait = tonumber(wait),
    began = tonumber(began), lease = tonumber(lease), of = of,
  }
  -- The clock was stepped back: what lies too far ahead is brought back.
  if breaker.since > 0 then
    local until_now, began_now = math.min(breaker.until_ms, now + breaker.wait), math.min(breaker.began, now)
    breaker.changed = breaker.since > now or until_now ~= breaker.until_ms or began_now ~= breaker.began
    breaker.since, breaker.until_ms, breaker.began = math.min(breaker.since, now), until_now, began_now
  end
  return breaker
end

local function breaker_lease_end(breaker)
  return breaker.began > 0 and breaker.began + breaker.lease or 0
end

-- Until when nobody may start; 0: now, though of an open one a single call may.
local function breaker_closed(breaker, now)
  if not breaker or breaker.since == 0 then
    return 0
  elseif breaker.until_ms > now then
    return breaker.until_ms
  elseif breaker_lease_end(breaker) > now then
    return math.min(breaker_lease_end(breaker), now + breaker.wait)
  end
  return 0
end

-- Until when it has something to remember.
local function breaker_kept(breaker)
  if not breaker or breaker.since == 0 then
    return 0
  end
  return math.max(breaker.until_ms, breaker_lease_end(breaker))
end

-- Why it is open, in words; `by` is the other field.
local function breaker_words(breaker, by)
  return 'the breaker (' .. int(breaker.failures) .. ' failures in a row): ' .. (by or '')
end

local function breaker_save(key, breaker)
  redis.call('HSET', key, 'breaker', table.concat({
    int(breaker.failures), int(breaker.since), int(breaker.until_ms), int(breaker.wait), int(breaker.began),
    int(breaker.lease), breaker.of,
  }, ','))
end
