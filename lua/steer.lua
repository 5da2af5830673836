-- steer: what operators ask of all workers, and which workers follow it.
-- The specification is src/gate/fleet/board.rs; what the instructions mean is said in src/rules/steering.rs. Needs clock.lua before it.
--
-- KEYS[1]  the board (HASH): in 'version' a number that each change raises; in "i:NAME" an instruction as "UNTIL:TEXT", UNTIL: when it
--          ends (ms); in "w:WORKER" what a worker said last, as "AT:VERSION:TEXT", AT: when (ms), VERSION: whose instructions it follows
--
-- ARGV[1]  the clock in microseconds since the epoch, for tests; '' in production: Redis's own
-- ARGV[2]  'look', 'put' or 'drop'
-- ARGV[3]  look: the version that is known, whose instructions are not told again; put: the instruction's name; drop: the first name
-- ARGV[4]  look: the worker's name, '' for nobody, who writes nothing; put: for how long (ms); drop: the second name, and so on
-- ARGV[5]  look: the version that the worker follows; put: its text
-- ARGV[6]  look: what the worker says of itself; put: the most instructions that there may be
-- ARGV[7]  look: a worker that is silent for longer than this, in milliseconds, is not told of, and dropped where a worker is told what is new
-- ARGV[8]  look, put: the board is kept for so long (ms)
-- ARGV[9]  put: what has this name ends with it; '': nothing does
-- ARGV[10] put: only if this is its text; '': whatever it is
--
-- Reply:
-- [1]  1
-- [2]  the clock in milliseconds since the epoch, rounded down
-- [3]  'ok'; or 'full': there are too many instructions, and nothing was changed
-- [4]  the version
-- [5]  look: how many instructions follow; -1: those of the version that is known
-- then for each of these three: its name, when it ends (ms), its text
-- then, where nobody looks, for each worker four: its name, when it spoke (ms), the version that it follows, what it said

local now = read_clock(ARGV[1])
local key, what = KEYS[1], ARGV[2]
local version = redis.call('HGET', key, 'version') or '0'

local function changed()
  -- By the clock, so that one of a board that was lost does not come again.
  version = int(math.max(tonumber(version) + 1, now))
  redis.call('HSET', key, 'version', version)
end

if what == 'drop' then
  local dropped = 0
  for i = 3, #ARGV do
    dropped = dropped + redis.call('HDEL', key, 'i:' .. ARGV[i])
  end
  if dropped > 0 then
    changed()
  end
  return { 1, now, 'ok', tonumber(version) }
end

if what == 'put' then
  local ended = ARGV[9] ~= '' and 'i:' .. ARGV[9]
  if ended then
    local text = string.match(redis.call('HGET', key, ended) or '', '^%d+:(.*)$')
    ended = text and (ARGV[10] == '' or ARGV[10] == text) and ended
  end
  local number = 0
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local ends = string.sub(all[i], 1, 2) == 'i:' and string.match(all[i + 1], '^(%d+):')
    if ends and tonumber(ends) <= now then
      redis.call('HDEL', key, all[i])
    elseif ends and all[i] ~= 'i:' .. ARGV[3] and all[i] ~= ended then
      number = number + 1
    end
  end
  if number >= tonumber(ARGV[6]) then
    return { 1, now, 'full', tonumber(version) }
  end
  if ended then
    redis.call('HDEL', key, ended)
  end
  redis.call('HSET', key, 'i:' .. ARGV[3], int(now + tonumber(ARGV[4])) .. ':' .. ARGV[5])
  changed()
  redis.call('PEXPIRE', key, ARGV[8])
  return { 1, now, 'ok', tonumber(version) }
end

local worker, silent = ARGV[4], tonumber(ARGV[7])
if worker ~= '' then
  redis.call('HSET', key, 'w:' .. worker, int(now) .. ':' .. ARGV[5] .. ':' .. ARGV[6])
  redis.call('PEXPIRE', key, ARGV[8])
  if version == ARGV[3] then
    return { 1, now, 'ok', tonumber(version), -1 }
  end
end

local reply, workers, number = { 1, now, 'ok', tonumber(version), 0 }, {}, 0
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local kind, name = string.sub(all[i], 1, 2), string.sub(all[i], 3)
  if kind == 'i:' then
    local ends, text = string.match(all[i + 1], '^(%d+):(.*)$')
    if ends and tonumber(ends) > now then
      number = number + 1
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = name, tonumber(ends), text
    end
  elseif kind == 'w:' then
    local at, follows, text = string.match(all[i + 1], '^(%d+):(%d+):(.*)$')
    if not at or tonumber(at) < now - silent then
      if worker ~= '' then
        redis.call('HDEL', key, all[i])
      end
    elseif worker == '' then
      local n = #workers
      workers[n + 1], workers[n + 2], workers[n + 3], workers[n + 4] = name, tonumber(at), tonumber(follows), text
    end
  end
end
reply[5] = number
for i = 1, #workers do
  reply[#reply + 1] = workers[i]
end
return reply
