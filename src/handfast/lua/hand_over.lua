-- hand_over: part of the scripts `claim` and `pass`: give a lock that nobody holds any more to the first in its queue
-- who is still there. A waiter that has died listens no more; one that hangs lets its claim expire. Neither is given the
-- lock. Numbers that would have to be formatted are avoided: that costs more than the commands do.
-- A claim is, without gaps: 10 digits, the second of server time until which the waiter vouches for it; 9 digits, the ttl
-- it wants in ms; 7 digits, how many tokens (0: none); 3 digits, the length of what follows: the channel it listens on;
-- and the owner.
-- KEYS   1 lock key  2 queue (a list of claims)  3 fence counter
-- result the new owner, its ttl in ms and its token ('0': none); nothing if nobody waits
local call, sub = redis.call, string.sub
local time = call('TIME')
local function token_of(step)
  local count = tonumber(call('GET', KEYS[3]) or '0')
  local token = time[1] * 1000000 + time[2]
  if token < count + step then token = count + step end
  -- Lua numbers are doubles: 2^53 is the last that counts by ones.
  if token >= 9007199254740992 then error({err = 'EXHAUSTED the fence counter has reached 2^53'}) end
  local text = string.format('%.0f', token)
  call('SET', KEYS[3], text)
  return text
end
local function find(owner)
  for i, claim in ipairs(call('LRANGE', KEYS[2], 0, -1)) do
    if sub(claim, 30 + sub(claim, 27, 29)) == owner then return i - 1 end
  end
end
local function hand_over(me)
  while true do
    local claim = call('LPOP', KEYS[2])
    if not claim then return nil end
    if tonumber(sub(claim, 1, 10)) >= tonumber(time[1]) then
      local ttl, step, name = tonumber(sub(claim, 11, 19)), tonumber(sub(claim, 20, 26)), 29 + sub(claim, 27, 29)
      local owner, token = sub(claim, name + 1), '0'
      if step > 0 then token = token_of(step) end
      if owner == me or call('PUBLISH', sub(claim, 30, name), token .. ' ' .. time[1] .. ' ' .. time[2] .. ' ' .. owner) > 0 then
        call('SET', KEYS[1], owner, 'PX', ttl)
        return owner, ttl, token
      end
    end
  end
end
