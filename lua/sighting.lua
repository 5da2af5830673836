-- sighting: stores a worker's answer about a job that an operator asked for, or reads it.
-- src/rules/steering.rs describes the answer.
--
-- KEYS[1]  the answer (STRING)
--
-- ARGV[1]  the clock in microseconds since the Unix epoch, for tests; ignored
-- ARGV[2]  the answer; '' to only read
-- ARGV[3]  how long it is kept (ms)
--
-- Reply: the last answer; '' if there is none.

if ARGV[2] ~= '' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return ARGV[2]
end
return redis.call('GET', KEYS[1]) or ''
