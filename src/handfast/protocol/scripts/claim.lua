-- claim: take the vote of this node if it is free and there are no waiters; otherwise enter the queue.
-- A claim is repeatable: it finds its own vote or its own place in the queue again.
-- Each argument costs the server time, so the last ones are left out if they have the values in brackets.
-- KEYS   1 lock  2 queue  3 claims  4 fence counter  5 generations; guarded: 6 marker  7 high-water mark
-- ARGV   1 owner  2 ttl in ms  3 number of tokens, of which the last is the reply (0: unfenced)
--        4 retention of the counter in s, with a second for the fractions
--        5 ticket ('': do not queue; '0': the time of arrival)  6 channel
--        7 proposed token [0: the server's time]  8 longest ttl in ms [none]
--        9 1: overtake the queue if the lock is free [0]
--        10 id of the acquisition [the owner]  11 generation [-: the owner is not explicit]
-- reply  an integer, the token (1 if unfenced): a new grant, if the claim has no ticket or the node no guard
--        {1, remaining ttl in ms, token, stamp, s, µs, proof, inquired}: any other grant; inquired: a lower ticket waits
--        {0, remaining ttl of the holder in ms (-1: none), holder, 1 if it is no explicit owner, s, µs, proof}: refused or
--        queued
local call = redis.call
local owner, ticket, generation, overtakes = ARGV[1], ARGV[5], ARGV[11] or '-', ARGV[9] == '1'
local queues = ticket ~= ''
local single = ticket == '0' -- a single node: the time of arrival decides
local empty = (single or not queues) and not overtakes and call('EXISTS', KEYS[2]) == 0
local heads = empty or overtakes and (single or not queues) -- if the vote is free, it is the claim's
-- The usual cases come first: declaring the functions of the shared parts takes as long as several commands.
local taken = heads and generation == '-' and call('SET', KEYS[1], owner, 'NX', 'PX', ARGV[2])
local time
if taken and not ARGV[7] and not KEYS[6] then
  -- A new owner gets a free lock without waiters. Its token is the server's time, by the rules in _token.
  if ARGV[3] == '0' then return 1 end
  local count = call('GET', KEYS[4])
  time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  if (not count or count + ARGV[3] <= now) and now < 9007199254740992 then
    call('SET', KEYS[4], now, 'EX', ARGV[4])
    return now
  end
end
local ttl, step, retention, proposal = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[7] or '0'
local id, holder, left = ARGV[10] or owner, false, 0
local longest, claim
if not taken then
  longest = tonumber(ARGV[8] or '4503599627370496')
  time = call('TIME')
  holder = call('GET', KEYS[1])
  if holder then
    left = call('PTTL', KEYS[1])
    -- No lease is longer than the longest ttl, so this server's clock was set back. Without this, the key of a dead
    -- holder would stay until the clock has caught up.
    if left > longest then
      left = longest
      call('PEXPIRE', KEYS[1], left)
    end
  end
  if queues then
    local ends = time[1] + math.ceil((math.max(left, 0) + ttl) / 1000) + 1
    claim = ends .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. proposal .. ' ' .. generation .. ' ' .. ARGV[6] .. ' '
      .. owner
  end
  if queues and holder ~= owner and (holder or not heads) then -- enter the queue
    if single then
      ticket = time[1] * 1000000 + time[2]
      -- Behind the last in the queue, also if this server's clock was set back meanwhile.
      local last = not empty and call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
      if last then ticket = math.max(ticket, last + 1) end
    end
    call('ZADD', KEYS[2], 'NX', ticket, id)
    call('HSET', KEYS[3], id, claim)
--@ _keep
  end
end
if holder and holder ~= owner then
  local plain
  if queues and not single then -- on a single node no vote was given to a later arrival
    -- A waiter with a higher ticket must yield the vote. If the holder is an explicit owner, each of its acquisitions
    -- must. The record of an explicit owner has the id of an acquisition, which is not the owner.
    local record = call('HGET', KEYS[3], '*') or ''
    local given, whose = string.match(record, '^%d+ (%d+) (%S+)')
    plain = whose == holder and 1 or 1 - call('EXISTS', KEYS[5])
    if plain == 0 or given and tonumber(ticket) < tonumber(given) then
      local records = plain == 1 and {'*', record} or call('HGETALL', KEYS[5])
      for i = 1, #records, 2 do
        local stamp, given, whose, channel =
          string.match(records[i + 1] or '', '^(%d+) (%d+) (%S+) %d+ %d+ %d+ %d+ %S+ (%S+) ')
        if stamp and string.sub(records[i], 1, 1) == '*' and tonumber(ticket) < tonumber(given) then
          redis.pcall('PUBLISH', channel, 'inquire ' .. whose .. ' ' .. stamp)
        end
      end
    end
  end
  plain = plain or 1 - call('EXISTS', KEYS[5])
  return {0, left, holder, plain, time[1], time[2], KEYS[6] and call('GET', KEYS[6]) or ''}
end
-- A claim that overtakes the queue may have a place in it.
if overtakes and single and call('ZREM', KEYS[2], id) == 1 then call('HDEL', KEYS[3], id) end
--@ _token
local token = taken and (step > 0 and next_token(step, proposal, 0, true) or '1')
-- The client checks the node behind a claim without a ticket, and needs no proof in the reply.
local proves = queues and KEYS[6]
if taken and not proves then return tonumber(token) end
time = time or call('TIME')
--@ _proof
local function granted(token)
  if not proves then return tonumber(token) end
  return {1, ttl, token, '0', time[1], time[2], proof(), 0}
end
if taken then return granted(token) end
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _vote
--@ _generation
--@ _give
if holder then
  -- This owner has the vote already: by an earlier claim, or by another acquisition of the same explicit owner.
  if left >= 0 and left < ttl then
    left = ttl
    call('PEXPIRE', KEYS[1], ttl)
  end
  local token = '0'
  if generation ~= '-' then
    lasts(KEYS[5], generation, ttl, longest)
    token = call('HGET', KEYS[5], 't') or '0'
    if step > 0 and tonumber(token) < 2 then
      token = next_token(step, proposal, 0)
      call('HSET', KEYS[5], 't', token)
    end
  elseif step > 0 then
    token = call('GET', KEYS[4]) or '0'
  end
  local stamp, given, whose = string.match(record(generation), '^(%d+) (%d+) (%S+)')
  if whose ~= id then stamp = new_stamp(call('HGET', KEYS[3], '*')) end
  local inquired = 0
  if queues then
    -- On a single node a repeated claim keeps its first ticket, and yields to no other claim. A vote without a record was
    -- given while the queue was empty.
    if single then ticket = whose == id and given or '0' end
    if call('ZREM', KEYS[2], id) == 1 then call('HDEL', KEYS[3], id) end
    set_record(generation, stamp, ticket, id, claim)
--@ _keep
    local lowest = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if lowest[1] and not single and tonumber(lowest[2]) < tonumber(ticket) then inquired = 1 end
  end
  return {1, left, token, stamp, time[1], time[2], proof(), inquired}
end
if not heads then
  local heir, new_owner, new_ttl, token, stamp = give(0)
  if heir == id then return {1, new_ttl, token, stamp, time[1], time[2], proof(), 0} end
  if heir then return {0, new_ttl, new_owner, 0, time[1], time[2], proof()} end
end
-- An explicit owner, or only dead claims were there.
token = step > 0 and next_token(step, proposal, 0) or '1'
take(owner, generation, ttl, token)
return granted(token)
