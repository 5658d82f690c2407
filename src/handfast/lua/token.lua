-- token: part of other scripts: the next fencing token of a lock, and as many reserved before it as a step has.
-- KEYS   3 fence counter
-- before `call`, `time` (of the server)
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
