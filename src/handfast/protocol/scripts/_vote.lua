-- _vote: part of other scripts. Gives the vote of this node.
-- An explicit owner may hold the lock several times at once. Each acquisition has a generation of its own in the hash
-- KEYS[5], with the millisecond at which it ends. Field `t` is the token that they share. Field `*` and a generation is
-- the record of the claim by which that acquisition got the vote; see _give.
-- KEYS   1 lock  5 generations
-- needs  call, now_ms
local function take(owner, generation, ttl, token)
  call('SET', KEYS[1], owner, 'PX', ttl)
  call('DEL', KEYS[5])
  if generation ~= '-' then
    call('HSET', KEYS[5], generation, now_ms + ttl, 't', token)
    call('PEXPIRE', KEYS[5], ttl)
  end
end
-- End one acquisition of this owner: true if the owner has no other acquisition, nil if this one had ended before. The
-- second value is true if the lock ends earlier now.
local function leave(generation)
  if generation == '-' then return true end
  if call('HDEL', KEYS[5], generation) == 0 then return nil end
  call('HDEL', KEYS[5], '*' .. generation)
  local others, last = call('HGETALL', KEYS[5]), 0
  for i = 1, #others, 2 do
    if others[i] ~= 't' and string.sub(others[i], 1, 1) ~= '*' then
      local ends = tonumber(others[i + 1])
      if ends <= now_ms then call('HDEL', KEYS[5], others[i], '*' .. others[i]) end
      last = math.max(last, ends)
    end
  end
  if last > now_ms then
    -- The lock ends with the last of them. This acquisition may have made it longer.
    local shorter = call('PTTL', KEYS[1]) > last - now_ms
    if shorter then call('PEXPIRE', KEYS[1], last - now_ms) end
    if call('PTTL', KEYS[5]) > last - now_ms then call('PEXPIRE', KEYS[5], last - now_ms) end
    return false, shorter
  end
  call('DEL', KEYS[5])
  return true
end
