-- The fast path for the usual question. It runs before all other parts that acquire.lua needs,
-- which are then not created and make up three quarters of a decision's time. It admits jobs
-- without tickets that cost 1, if no job waits, the tenant is not suspended, no operator set a
-- limit, and every limit has room for all of them. In any other case it changes nothing, and
-- acquire.lua decides. Both decide alike: tests/it/gate/model.rs runs its histories with and
-- without it.
--
-- KEYS and ARGV are those of acquire.lua. Reply: all jobs start, packed as one text, which clients
-- read faster than three numbers: the clock in milliseconds since the Unix epoch, rounded down, and
-- the number of the first job in the sliding log, which the other jobs' numbers follow; 0 without a
-- log.
--
-- It needs a function of the algorithm that all limits have, which charges them, or changes nothing
-- and returns nil:
-- shortcut(now, stamp, jobs, window)  returns the number of the first job; `window` is the
-- waitlist's
local FRESH = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1'
local STARTED_FORMAT = '>I6I6'
-- Lua's stack takes two values per job.
local MOST_JOBS = 128

local function usual()
  local asked = ARGV[4]
  local jobs = #asked / JOB_BYTES
  if jobs == 0 or jobs > MOST_JOBS or jobs > tonumber(ARGV[2]) or asked ~= FRESH and asked ~= string.rep(FRESH, jobs) then
    return nil
  end
  local now, stamp = read_clock()
  local f = redis.call('HMGET', KEYS[1], 'line', 'blocked', 'paused', 'overrides', 'breaker')
  if f[4] or f[5] or f[2] and tonumber(f[2]) > now or f[3] and tonumber(f[3]) > now then
    return nil
  end
  local now_serving, last_issued, seen, window, _ = 0, 0, 0, 0, nil
  if f[1] then
    _, now_serving, last_issued, _, seen, _, _, window = struct.unpack(WAITLIST_FORMAT, f[1])
  end
  if now_serving ~= last_issued or seen ~= 0 then
    return nil
  end
  local first = shortcut(now, stamp, jobs, window)
  return first and struct.pack(STARTED_FORMAT, now, first)
end

local started = usual()
if started then
  return started
end
