-- hand_over: part of the scripts `claim` and `pass`: give a lock that nobody holds any more to the first in its queue
-- who is still there. A waiter that has died listens no more; one that hangs lets its claim expire. Neither is given the
-- lock. Numbers that would have to be formatted are avoided: that costs more than the commands do.
-- A claim is, without gaps: 10 digits, the second of server time until which the waiter vouches for it; 13 digits, the
-- ttl it wants in ms; 16 digits, how many tokens (0: none); 4 digits, the length of what follows: the channel it listens
-- on; and the owner.
-- The one after the new owner is told too, if that one's ttl ends long before the time at which it will look in again.
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
local function owner_of(claim) return sub(claim, 44 + sub(claim, 40, 43)) end
local function tell(claim, what)
  -- Not a mistake of ours if it fails: whoever lets go may lack the right to use channels.
  local heard = redis.pcall('PUBLISH', sub(claim, 44, 43 + sub(claim, 40, 43)), what .. owner_of(claim))
  return type(heard) == 'number' and heard > 0
end
local function find(owner)
  for i, claim in ipairs(call('LRANGE', KEYS[2], 0, -1)) do
    if owner_of(claim) == owner then return i - 1 end
  end
end
local function hand_over(me)
  while true do
    local claim = call('LPOP', KEYS[2])
    if not claim then return nil end
    if tonumber(sub(claim, 1, 10)) >= tonumber(time[1]) then
      local owner, ttl, step, token = owner_of(claim), tonumber(sub(claim, 11, 23)), tonumber(sub(claim, 24, 39)), '0'
      if step > 0 then token = token_of(step) end
      if owner == me or tell(claim, token .. ' ' .. time[1] .. ' ' .. time[2] .. ' ') then
        call('SET', KEYS[1], owner, 'PX', ttl)
        local at, after = 0, call('LINDEX', KEYS[2], 0)
        while after and sub(after, 1, 10) - time[1] - 3 > (sub(after, 11, 23) + ttl) / 1000 do
          if tell(after, '- ' .. ttl .. ' 0 ') then break end
          at = at + 1
          after = call('LINDEX', KEYS[2], at)
        end
        return owner, ttl, token
      end
    end
  end
end
