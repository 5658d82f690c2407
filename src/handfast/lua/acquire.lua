-- acquire: take n names for one owner, all or none, and number the acquisition.
-- KEYS   1..n lock keys; fenced: n+1..2n fence counters; fenced and guarded: then the high-water mark
-- ARGV   1 owner  2 ttl in ms  3 n  4 proposal: '' unfenced, '0' take server time, else the client's proposed token
--        5 floor for counters that this node may have forgotten  6 max_ttl in ms, or 2^52 where nothing is too long
--        7 how many tokens are wanted, of which the last is answered (absent: one)
-- reply  integer: granted, the token (1 when unfenced)
--        array of one: re-entered by the same owner, ttl refreshed, the token it already has
--        array of two: refused; holder, its remaining ttl in ms (-1: it has no end)
local owner, ttl, n, proposal = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local fenced = proposal ~= ''
local ours = 0
for i = 1, n do
  local holder = redis.call('GET', KEYS[i])
  if holder == owner then
    ours = ours + 1
  elseif holder then
    local left = redis.call('PTTL', KEYS[i])
    -- No lease is longer than max_ttl: more than that means that this server's clock was set back. Without
    -- this the key of a dead holder would stay until the clock has caught up.
    if left > tonumber(ARGV[6]) then
      left = tonumber(ARGV[6])
      redis.call('PEXPIRE', KEYS[i], left)
    end
    return {holder, left}
  end
end
if ours == n then
  local token = 1
  for i = 1, n do
    -- Never shortens what is there: somebody may rely on it who has entered before. See extend.
    local left = redis.call('PTTL', KEYS[i])
    if left < tonumber(ttl) or left > tonumber(ARGV[6]) then redis.call('PEXPIRE', KEYS[i], ttl) end
    if fenced then token = math.max(token, tonumber(redis.call('GET', KEYS[n + i]) or '1')) end
  end
  return {token}
end
local token = 1
if fenced then
  token = tonumber(proposal)
  if token == 0 then
    local time = redis.call('TIME')
    token = time[1] * 1000000 + time[2]
  end
  local floor, step = tonumber(ARGV[5]), tonumber(ARGV[7] or '1')
  for i = 1, n do
    local count = math.max(floor, tonumber(redis.call('GET', KEYS[n + i]) or '0'))
    if token < count + step then token = count + step end
  end
  -- Lua numbers are doubles: 2^53 is the last that counts by ones.
  if token >= 9007199254740992 then return redis.error_reply('EXHAUSTED the fence counter has reached 2^53') end
  local text = string.format('%.0f', token)
  for i = 1, n do redis.call('SET', KEYS[n + i], text) end
  local mark = KEYS[2 * n + 1]
  if mark and token > tonumber(redis.call('GET', mark) or '0') then redis.call('SET', mark, text) end
end
for i = 1, n do redis.call('SET', KEYS[i], owner, 'PX', ttl) end
return token
