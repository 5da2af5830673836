-- The breaker: failures in a row stop calls that would fail as well. The specification is
-- src/rules/failures/breaker.rs. It consists of two fields of a HASH: a tenant's waitlist, or the
-- HASH of the whole API.
--
-- breaker    "FAILURES,SINCE,UNTIL,WAIT,BEGAN,LEASE,OF"; absent without failures. SINCE: since when
--            it is open (ms), 0 if it is closed; UNTIL: no probe before this (ms); WAIT: how long
--            it was last open (ms); BEGAN: when the current probe began (ms), 0 if there is none;
--            LEASE: when that probe is given up (ms after BEGAN); OF: the job or tenant whose calls
--            failed, '*' for several
-- breaker-by the cause of the last failure that counted

-- Returns the functions of the breaker. Only calls that need them create them.
local function breaker_functions()
  -- Parses the field into a table, adjusted to `now`, or returns nil if there are no failures.
  local function parse(text, now)
    local failures, since, until_ms, wait, began, lease, of
      = string.match(text or '', '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(.*)$')
    if not failures then
      return nil
    end
    local breaker = {
      failures = tonumber(failures), since = tonumber(since), until_ms = tonumber(until_ms), wait = tonumber(wait),
      began = tonumber(began), lease = tonumber(lease), of = of,
    }
    -- The clock was stepped back: times too far ahead are pulled back.
    if breaker.since > 0 then
      local until_now, began_now = math.min(breaker.until_ms, now + breaker.wait), math.min(breaker.began, now)
      breaker.changed = breaker.since > now or until_now ~= breaker.until_ms or began_now ~= breaker.began
      breaker.since, breaker.until_ms, breaker.began = math.min(breaker.since, now), until_now, began_now
    end
    return breaker
  end

  local function lease_end(breaker)
    return breaker.began > 0 and breaker.began + breaker.lease or 0
  end

  -- Returns until when no job may start, or 0 for now. An open breaker then still admits only one
  -- call.
  local function closed(breaker, now)
    if not breaker or breaker.since == 0 then
      return 0
    elseif breaker.until_ms > now then
      return breaker.until_ms
    elseif lease_end(breaker) > now then
      return math.min(lease_end(breaker), now + breaker.wait)
    end
    return 0
  end

  -- Returns until when the breaker has state to keep.
  local function kept(breaker)
    if not breaker or breaker.since == 0 then
      return 0
    end
    return math.max(breaker.until_ms, lease_end(breaker))
  end

  -- Returns why it is open, in words. `by` is the other field.
  local function words(breaker, by)
    return 'the breaker (' .. int(breaker.failures) .. ' failures in a row): ' .. (by or '')
  end

  local function save(key, breaker)
    redis.call('HSET', key, 'breaker', table.concat({
      int(breaker.failures), int(breaker.since), int(breaker.until_ms), int(breaker.wait), int(breaker.began),
      int(breaker.lease), breaker.of,
    }, ','))
  end

  return { parse = parse, closed = closed, kept = kept, words = words, save = save }
end
