-- sighting: stores a worker's answer about a job that an operator asked for, or reads it.
-- src/rules/steering.rs describes the answer.
--
-- KEYS[1]  the answer (STRING)
--
-- ARGV[1]  the answer; '' to only read
-- ARGV[2]  how long it is kept (ms)
--
-- Reply: the last answer; '' if there is none.

if ARGV[1] ~= '' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return ARGV[1]
end
return redis.call('GET', KEYS[1]) or ''
