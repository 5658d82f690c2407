-- token: part of other scripts: the next fencing token of a lock, and as many reserved before it as a step has.
-- KEYS   3 fence counter
-- before `call`, `sub`, `time` (of the server)
local function token_of(step)
  local count = call('GET', KEYS[3]) or ''
  local text = time[1] .. sub('00000' .. time[2], -6)
  -- Mostly the time is the token. Texts of the same length compare as their numbers do, and no number is formatted.
  if step > 1 or #count ~= 16 or #text ~= 16 or text <= count or text >= '9007199254740992' then
    local token, least = tonumber(text), (tonumber(count) or 0) + step
    if token < least then token = least end
    -- Lua numbers are doubles: 2^53 is the last that counts by ones.
    if token >= 9007199254740992 then error({err = 'EXHAUSTED the fence counter has reached 2^53'}) end
    text = string.format('%.0f', token)
  end
  call('SET', KEYS[3], text)
  return text
end
