-- The fast path for the usual question. It runs before all other parts that acquire.lua needs,
-- which are then not created and make up three quarters of a decision's time. It admits jobs
-- without tickets that cost 1, if no job waits, the tenant is not suspended, no operator set a
-- limit, and every limit has room for all of them. In any other case acquire.lua decides; the
-- shortcut may then have recorded spans and pruned the log, as acquire.lua would. It has no rule of
-- its own: tests/quick/gate/shortcut.rs checks that acquire.lua calls the same functions, admits the
-- same jobs and writes the same bytes.
--
-- KEYS and ARGV are those of acquire.lua. Reply: all jobs start, packed as one text, which clients
-- read faster than three numbers: the clock in milliseconds since the Unix epoch, rounded down, and
-- the number of the first job in the sliding log, which the other jobs' numbers follow; 0 without a
-- log.
--
-- It needs a function of the algorithm that all limits have, which charges them, or returns nil:
-- shortcut(now, stamp, jobs, window)  returns the number of the first job; `window` is the
-- waitlist's
local STARTED_FORMAT = '>I6I6'

do
  local jobs = #ARGV[4] < JOB_BYTES and ARGV[4] + 0 or 0
  if jobs > 0 and jobs <= ARGV[2] + 0 then
    local f, closed, _, now_serving, last_issued, _, seen, _, _, window = waitlist_read(KEYS[1])
    waitlist_known = f
    if not f[5] and not f[6] and closed <= now and now_serving == last_issued and seen == 0 then
      local first = shortcut(now, stamp, jobs, window)
      if first then
        return struct.pack(STARTED_FORMAT, now, first)
      end
    end
  end
end
