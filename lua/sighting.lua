-- sighting: what a worker says of a job that an operator asked for, and what was said.
-- What it says is explained in src/rules/steering.rs.
--
-- KEYS[1]  what was said of the job (STRING)
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests: not looked at
-- ARGV[2]  what is said; '': it is only read
-- ARGV[3]  for how long it is kept (ms)
--
-- Reply: what was said last; '' where nothing was.

if ARGV[2] ~= '' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return ARGV[2]
end
return redis.call('GET', KEYS[1]) or ''
