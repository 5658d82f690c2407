-- acquire_all: take the votes for n names at once, if all of them are free and have no waiters. A free name that has
-- waiters is given to the first of them.
-- KEYS   1..n locks; then n queues, n claims, n fence counters, n generations; guarded: marker, high-water mark
-- ARGV   1 owner  2 generation ('-': the owner is new)  3 ttl in ms  4 n  5 tokens wanted (0: unfenced)
--        6 proposed token (0: the server's time)  7 retention of the counters in s, as for claim
--        8 longest ttl in ms  9 1: overtake the queues
-- reply  {1, ttl, token, '0', s, µs, proof, 0}: granted
--        {0, remaining ttl in ms (-1: none), holder, 0, s, µs, proof}: refused; ttl and holder of the first held name
local call = redis.call
local names, owner, generation, ttl, n = KEYS, ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local step, retention = tonumber(ARGV[5]), tonumber(ARGV[7])
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- The shared parts work on one name.
local KEYS = {}
local function name(i)
  KEYS = {names[i], names[n + i], names[2 * n + i], names[3 * n + i], names[4 * n + i], names[5 * n + 1],
    names[5 * n + 2]}
end
name(1)
--@ _token
--@ _proof
--@ _vote
--@ _generation
local id = ''
--@ _give
local held, token, fenced = 0, 1, true
for i = 1, n do
  name(i)
  local holder = call('GET', KEYS[1])
  if holder == owner then
    local shared = tonumber(call('HGET', KEYS[5], 't') or '1')
    held, token, fenced = held + 1, math.max(token, shared), fenced and shared > 1
  elseif not holder and ARGV[9] ~= '1' and call('EXISTS', KEYS[2]) == 1 then
    local heir, new_owner, new_ttl = give(0)
    if heir then return {0, new_ttl, new_owner, 0, time[1], time[2], proof()} end
  elseif holder then
    local left = call('PTTL', KEYS[1])
    if left > tonumber(ARGV[8]) then
      left = tonumber(ARGV[8])
      call('PEXPIRE', KEYS[1], left)
    end
    return {0, left, holder, 0, time[1], time[2], proof()}
  end
end
local last, gone = 0, false -- the largest counter, and whether a name has none
for i = 1, step > 0 and n or 0 do
  name(i)
  local count = call('GET', KEYS[4])
  last, gone = math.max(last, tonumber(count or '0')), gone or not count
end
-- The owner keeps its token if it has all names with tokens, and if no name has counted beyond the largest of these.
if step > 0 and (held < n or not fenced or token < last) then
  local now = time[1] * 1000000 + time[2]
  local proposal, floor = tonumber(ARGV[6]), math.max(last, KEYS[6] and floor_in(call('GET', KEYS[6])) or 0)
  token = proposal == 0 and now or proposal
  if gone and token <= now - (retention - 1) * 1000000 then token = now end
  token = math.max(token, floor + step)
  if token >= 9007199254740992 then return redis.error_reply('EXHAUSTED the fence counter has reached 2^53') end
end
local text = string.format('%.0f', token)
for i = 1, n do
  name(i)
  -- Also if the owner has all names already: the token is the largest of theirs, and each name must count on from it.
  if step > 0 and tonumber(call('GET', KEYS[4]) or '0') < token then set_counter(token, text) end
  if call('GET', KEYS[1]) == owner then
    if call('PTTL', KEYS[1]) < ttl then call('PEXPIRE', KEYS[1], ttl) end
    if generation ~= '-' then lasts(KEYS[5], generation, ttl, tonumber(ARGV[8])) end
    if generation ~= '-' and step > 0 then call('HSET', KEYS[5], 't', text) end
  else
    take(owner, generation, ttl, step > 0 and text or '1')
  end
end
return {1, ttl, text, '0', time[1], time[2], proof(), 0}
