-- hand_over: part of the scripts `claim` and `pass`: give a lock that nobody holds any more to the first in its queue
-- who is still there. A waiter that has died listens no more; one that hangs lets its claim expire. Neither is given the
-- lock. What is done at every hand-over stands here without functions, and numbers that would have to be formatted are
-- avoided: that costs more than the commands do.
-- A claim is, without gaps: 10 digits, the second of server time until which the waiter vouches for it; 13 digits, the
-- ttl it wants in ms; 16 digits, how many tokens (0: none); 4 digits, the length of what follows: the channel it listens
-- on; and the owner.
-- The one after the new owner is told too, if that one's ttl ends long before the time at which it will look in again.
-- KEYS   1 lock key  2 queue (a list of claims)  3 fence counter
-- before `call`, `sub`, `time` (of the server), `me`: who need not be told; and `voice`: the channel of whoever asks, or
--        false. A server writes first to whom it has spoken last: an empty message there beforehand, and the new owner,
--        for whom others wait, hears of it before whoever asks is answered.
-- after  `heir`, the new owner (nil if nobody waits), its `ttl` in ms and its `token` ('0': none)
local heir, ttl, token
repeat
  local claim = call('LPOP', KEYS[2])
  if not claim then break end
  if sub(claim, 1, 10) >= time[1] then
    local name = 43 + sub(claim, 40, 43)
    local owner = sub(claim, name + 1)
    token = '0'
    if sub(claim, 24, 39) ~= '0000000000000000' then
--@ token
      token = token_of(tonumber(sub(claim, 24, 39)))
    end
    if voice then
      redis.pcall('PUBLISH', voice, '')
      voice = false
    end
    -- Not a mistake of ours if it fails: whoever lets go may lack the right to use channels.
    local heard = owner == me or redis.pcall('PUBLISH', sub(claim, 44, name),
      token .. ' ' .. time[1] .. ' ' .. time[2] .. ' ' .. owner)
    if heard == true or (type(heard) == 'number' and heard > 0) then
      heir, ttl = owner, tonumber(sub(claim, 11, 23))
      call('SET', KEYS[1], heir, 'PX', ttl)
    end
  end
until heir
if heir then
  local at, after = 0, call('LINDEX', KEYS[2], 0)
  while after and sub(after, 1, 10) - time[1] - 3 > (sub(after, 11, 23) + ttl) / 1000 do
    local name = 43 + sub(after, 40, 43)
    local heard = redis.pcall('PUBLISH', sub(after, 44, name), '- ' .. ttl .. ' 0 ' .. sub(after, name + 1))
    if type(heard) == 'number' and heard > 0 then break end
    at = at + 1
    after = call('LINDEX', KEYS[2], at)
  end
end
