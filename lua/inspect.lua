-- inspect: the state of one tenant; writes nothing.
-- The specification is State::inspect in src/rules/model.rs. Needs clock.lua, line.lua and an algorithm before it.
--
-- KEYS[1]  the line (HASH)
-- KEYS[2]  the log: the ZSET of the sliding window, or the STRING of the fixed window with the index ARGV[5]
-- KEYS[3]  the STRING of the next fixed window; absent for the sliding window
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  max: units in a window
-- ARGV[3]  the window in milliseconds
-- ARGV[4]  the guard in milliseconds
-- ARGV[5]  the index of the window of KEYS[2]; 0 for the sliding window
--
-- Reply: integers, and one text.
-- [1]  1: here it is; 0: the clock is in a window that is not among KEYS, and [2] is all
-- [2]  the clock in milliseconds since the epoch, rounded down
-- [3]  units that the window holds
-- [4]  units that may start now, the line ignored
-- [5]  when the next unit may start, in milliseconds from now; 0: now
-- [6]  units that wait in the line
-- [7]  when the last of them may start, in milliseconds from now; 0 when nobody waits
-- [8]  until when the tenant is closed, in milliseconds since the epoch; 0: it is not
-- [9]  what closed it; empty: it is not closed

local now, stamp = read_clock(ARGV[1])
local limit = {
  max = tonumber(ARGV[2]), window = tonumber(ARGV[3]), guard = tonumber(ARGV[4]), index = tonumber(ARGV[5]),
  jobs = 1,
}
local line = line_load(KEYS[1], now)
local log = log_load(line, limit, now, stamp, false)
if not log then
  return { 0, now }
end

local closed = line.blocked > now
local base = math.max(now, line.blocked)
local waiting = line_waiting(line)
return {
  1, now, log.count,
  closed and 0 or log_free(log),
  log_nth(log, base, 1) - now,
  waiting,
  waiting > 0 and log_nth(log, base, waiting) - now or 0,
  closed and line.blocked or 0,
  closed and redis.call('HGET', KEYS[1], 'by') or '',
}
