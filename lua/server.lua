-- server: reads the epoch, the clock and the server's identity, behind proxies that refuse
-- these commands outside of scripts.
--
-- KEYS[1]  the epoch (HASH), or a key whose server is to be known
--
-- ARGV[1], ARGV[2], ARGV[3], ARGV[4]  sections of INFO
--
-- Reply: the replies of HGETALL, of TIME, and of INFO for each section.

local key = KEYS[1]
return {
  redis.call('HGETALL', key),
  redis.call('TIME'),
  redis.call('INFO', ARGV[1]),
  redis.call('INFO', ARGV[2]),
  redis.call('INFO', ARGV[3]),
  redis.call('INFO', ARGV[4]),
}
