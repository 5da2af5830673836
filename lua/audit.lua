-- audit: adds or reads entries of the audit log. src/operator/audit.rs describes the entries. Needs
-- clock.lua before it.
--
-- KEYS[1]  the entries (ZSET): each scored by its number, as "NUMBER:AT:TEXT", AT in milliseconds
--
-- ARGV[1]  'add' or 'read'
-- ARGV[2]  add: the text; read: return entries below this number, '' for the newest
-- ARGV[3]  add: maximum number of entries to keep; read: maximum number of entries to return
-- ARGV[4]  add: how long the log is kept after its last entry (ms)
--
-- Reply:
-- [1]  the number of the newest entry, 0 if there is none
-- then, for 'read', the entries, the newest first

local key = KEYS[1]
local last = tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or '0')

if ARGV[1] == 'add' then
  last = last + 1
  redis.call('ZADD', key, int(last), int(last) .. ':' .. int(now) .. ':' .. ARGV[2])
  redis.call('ZREMRANGEBYSCORE', key, '-inf', int(last - tonumber(ARGV[3])))
  redis.call('PEXPIRE', key, ARGV[4])
  return { last }
end

-- Numbers have no gaps, so a number gives an entry's rank.
local from = 0
if ARGV[2] ~= '' then
  from = math.max(last - tonumber(ARGV[2]) + 1, 0)
end
local found = redis.call('ZREVRANGE', key, int(from), int(from + tonumber(ARGV[3]) - 1))
table.insert(found, 1, last)
return found
