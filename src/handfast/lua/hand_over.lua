-- hand_over: part of the scripts `claim` and `pass`: give a lock that nobody holds any more to the first in its queue
-- who is still there. A claim is `expiry ttl step channel owner`: server time in µs until which the waiter vouches for it,
-- the ttl it wants in ms, how many tokens (0: none), where it listens. A waiter that has died listens no more; one that
-- hangs lets its claim expire. Neither is given the lock.
-- KEYS   1 lock key  2 queue (a list of claims)  3 fence counter
-- result the new owner, its ttl in ms and its token (0: none); nothing if nobody waits
local function token_of(step, now)
  if step == 0 then return 0 end
  local token, count = now, tonumber(redis.call('GET', KEYS[3]) or '0')
  if token < count + step then token = count + step end
  -- Lua numbers are doubles: 2^53 is the last that counts by ones.
  if token >= 9007199254740992 then error({err = 'EXHAUSTED the fence counter has reached 2^53'}) end
  redis.call('SET', KEYS[3], string.format('%.0f', token))
  return token
end
local function server_time()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
local function hand_over(now, me)
  while true do
    local claim = redis.call('LPOP', KEYS[2])
    if not claim then return nil end
    local expiry, ttl, step, channel, owner = string.match(claim, '^(%d+) (%d+) (%d+) (%S+) (.*)$')
    if tonumber(expiry) > now then
      local token = token_of(tonumber(step), now)
      local message = string.format('%.0f %.0f %s', token, now, owner)
      if owner == me or redis.call('PUBLISH', channel, message) > 0 then
        redis.call('SET', KEYS[1], owner, 'PX', ttl)
        return owner, tonumber(ttl), token
      end
    end
  end
end
