-- steer: reads or changes the operators' instructions for all workers, and records which workers
-- follow them. src/gate/instructions.rs uses it; src/rules/steering.rs describes the instructions.
-- Needs clock.lua before it.
--
-- KEYS[1]  the board (HASH): 'version' is a number that each change raises; "i:NAME" is an
--          instruction as "UNTIL:TEXT", UNTIL: when it ends (ms); "w:WORKER" is a worker's last
--          look, as "AT:VERSION:TEXT", AT: when (ms), VERSION: the version whose instructions it
--          follows
--
-- ARGV[1]  'look', 'put', 'drop' or 'end'
-- ARGV[2]  look: the known version, whose instructions are not returned again; put: the
--          instruction's name; drop: the first name; end: the name
-- ARGV[3]  look: the worker's name, '' for an observer, which writes nothing; put: for how long
--          (ms); drop: the second name, and so on; end: the instruction's text, without which it
--          stays
-- ARGV[4]  look: the version that the worker follows; put: the instruction's text
-- ARGV[5]  look: the worker's report on itself; put: the maximum number of instructions whose
--          names have a ':'; the others are always taken
-- ARGV[6]  look: after how long without a look a worker is omitted (ms); it is also deleted when a
--          worker receives new instructions
-- ARGV[7]  look, put: how long the board is kept (ms)
-- ARGV[8]  put: the name of an instruction that ends with this one; '' for none
-- ARGV[9]  put: end it only if it has this text; '' for any text
--
-- Reply:
-- [1]  1
-- [2]  the clock in milliseconds since the Unix epoch, rounded down
-- [3]  'ok', or 'full': there are too many instructions, and nothing was changed
-- [4]  the version
-- [5]  look: the number of instructions that follow; -1 if the known version is current
-- then three elements per instruction: its name, when it ends (ms), its text
-- then, for an observer, four elements per worker: its name, when it looked (ms), the version that
--      it follows, its report

local key, what = KEYS[1], ARGV[1]
local version = redis.call('HGET', key, 'version') or '0'

local function changed()
  -- The version is never behind the clock, so a version of a lost board is not reused.
  version = int(math.max(tonumber(version) + 1, now))
  redis.call('HSET', key, 'version', version)
end

if what == 'drop' then
  local dropped = 0
  for i = 2, #ARGV do
    dropped = dropped + redis.call('HDEL', key, 'i:' .. ARGV[i])
  end
  if dropped > 0 then
    changed()
  end
  return { 1, now, 'ok', tonumber(version) }
end

if what == 'end' then
  local field = 'i:' .. ARGV[2]
  if string.match(redis.call('HGET', key, field) or '', '^%d+:(.*)$') == ARGV[3] then
    redis.call('HDEL', key, field)
    changed()
  end
  return { 1, now, 'ok', tonumber(version) }
end

-- Returns whether the name that begins at `from` counts. Instructions for all tenants have names
-- without ':': pausing must always be possible.
local function is_bounded(text, from)
  return string.find(text, ':', from, true)
end

if what == 'put' then
  local ended = ARGV[8] ~= '' and 'i:' .. ARGV[8]
  if ended then
    local text = string.match(redis.call('HGET', key, ended) or '', '^%d+:(.*)$')
    ended = text and (ARGV[9] == '' or ARGV[9] == text) and ended
  end
  local number = 0
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local ends = string.sub(all[i], 1, 2) == 'i:' and string.match(all[i + 1], '^(%d+):')
    if ends and tonumber(ends) <= now then
      redis.call('HDEL', key, all[i])
    elseif ends and is_bounded(all[i], 3) and all[i] ~= 'i:' .. ARGV[2] and all[i] ~= ended then
      number = number + 1
    end
  end
  if number >= tonumber(ARGV[5]) and is_bounded(ARGV[2], 1) then
    return { 1, now, 'full', tonumber(version) }
  end
  if ended then
    redis.call('HDEL', key, ended)
  end
  redis.call('HSET', key, 'i:' .. ARGV[2], int(now + tonumber(ARGV[3])) .. ':' .. ARGV[4])
  changed()
  redis.call('PEXPIRE', key, ARGV[7])
  return { 1, now, 'ok', tonumber(version) }
end

local worker, silent = ARGV[3], tonumber(ARGV[6])
if worker ~= '' then
  redis.call('HSET', key, 'w:' .. worker, int(now) .. ':' .. ARGV[4] .. ':' .. ARGV[5])
  redis.call('PEXPIRE', key, ARGV[7])
  if version == '0' then
    -- Each worker that starts later has another version, so it deletes silent ones.
    changed()
  end
  if version == ARGV[2] then
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
