-- _give: part of other scripts. Gives a free vote to the lowest ticket whose waiter is still there.
-- A dead waiter does not listen to its channel, and the claim of a waiter that hangs expires. Both are skipped.
-- The record of the vote is field `*` of the claims: `stamp ticket id claim`. A stamp is never given twice. Acquisitions of
-- an explicit owner share a vote, and each of them has a record of its own in the generations: each yields its own share.
-- KEYS   1 lock  2 queue (sorted set of ids by ticket)  3 claims (hash by id)  5 generations
-- needs  call, time, now_ms, id (the caller, which needs no push), take, next_token, proof
-- after  give(last, first) returns the claim's id, owner, ttl, token ('0': unfenced) and stamp; nil if there is no waiter.
--        first: a waiter with its ticket that is out of the queue already, or nothing
local CLAIM = '^(%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$'
-- `last`: the record of the last vote, or false.
local function new_stamp(last)
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  last = tonumber(string.match(last or '', '^%d+') or '0')
  return last < tonumber(now) and now or string.format('%.0f', last + 1)
end
local function record(generation)
  if generation == '-' then return call('HGET', KEYS[3], '*') or '' end
  return call('HGET', KEYS[5], '*' .. generation) or ''
end
local function set_record(generation, stamp, ticket, id, claim)
  local text = stamp .. ' ' .. ticket .. ' ' .. id .. ' ' .. claim
  call('HSET', KEYS[3], '*', text)
  if generation ~= '-' then call('HSET', KEYS[5], '*' .. generation, text) end
end
local function push(channel, text)
  -- A failure must not fail the caller, whose user may lack the right to publish. The waiter counts as gone.
  local heard = redis.pcall('PUBLISH', channel, text)
  return type(heard) == 'number' and heard > 0
end
-- If the new holder hangs, the next waiter must look again at the end of its ttl. That waiter may expect a later end, so
-- this pushes `look` to it. A waiter that does not listen any more is skipped, and so is a waiter of the new owner, which
-- holds the lock too. `always`: without asking what it expects.
local function hint(ttl, always, new_owner)
  if ttl < 0 or ttl >= 5000 then return end -- every waiter looks again after five seconds
  for _, waiter in ipairs(call('ZRANGE', KEYS[2], 0, 9)) do
    local ends, its_ttl, _, _, _, channel, owner = string.match(call('HGET', KEYS[3], waiter) or '', CLAIM)
    if ends and owner ~= new_owner then
      local late = always or ends - its_ttl / 1000 - 2 > time[1] + ttl / 1000
      if late and push(channel, 'look ' .. waiter) then return end
      local listeners = redis.pcall('PUBSUB', 'NUMSUB', channel) -- without the right to ask: no listeners
      if not late and type(listeners[2]) == 'number' and listeners[2] > 0 then return end
    end
  end
end
-- An explicit owner has got the vote. Its other waiters may have the lock together with this one, so they look again. Only
-- the first hundred waiters are examined, to bound the time that this takes.
local function tell_owner(owner)
  for _, waiter in ipairs(call('ZRANGE', KEYS[2], 0, 99)) do
    local _, _, _, _, _, channel, whose = string.match(call('HGET', KEYS[3], waiter) or '', CLAIM)
    if whose == owner then push(channel, 'look ' .. waiter) end
  end
end
local function give(last, first)
  first = first or call('ZPOPMIN', KEYS[2])
  while first[1] do
    local heir, claim = first[1], call('HGET', KEYS[3], first[1]) or ''
    local ends, ttl, step, proposal, generation, channel, owner = string.match(claim, CLAIM)
    if owner and tonumber(ends) >= tonumber(time[1]) then
      local stamp, token = new_stamp(call('HGET', KEYS[3], '*')), '0'
      if step ~= '0' then token = next_token(tonumber(step), proposal, last) end
      local yours = 'yours ' .. heir .. ' ' .. stamp .. ' ' .. token .. ' ' .. time[1] .. ' ' .. time[2] .. ' ' .. proof()
      if heir == id or push(channel, yours) then
        ttl = tonumber(ttl)
        take(owner, generation, ttl, token)
        set_record(generation, stamp, first[2], heir, claim)
        call('HDEL', KEYS[3], heir) -- after the record: a hash that becomes empty loses its ttl
        if generation ~= '-' then tell_owner(owner) end
        hint(ttl, false, owner)
        return heir, owner, ttl, token, stamp
      end
    end
    call('HDEL', KEYS[3], heir)
    first = call('ZPOPMIN', KEYS[2])
  end
end
