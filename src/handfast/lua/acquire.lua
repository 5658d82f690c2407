-- acquire: take n names for one owner, all or none, and number the acquisition.
-- KEYS   1..n lock keys; n+1..2n fence counters (fenced only); then, guarded only, the guard marker and the high-water mark
-- ARGV   1 owner  2 ttl in ms  3 n  4 proposal: '' unfenced, '0' take server time, else the client's proposed token
--        5 marker that this node must hold ('' not guarded)  6 floor for counters this node may have forgotten  7 max_ttl in ms
-- reply  integer: granted, the token (1 when unfenced)
--        array of one: re-entered by the same owner, ttl refreshed, the token it already has
--        array of two: refused; holder, its remaining ttl in ms (-1: it has no end)
--        error UNREADY: this node may not vote
local owner, ttl, n, proposal, marker = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local fenced = proposal ~= ''
local last = fenced and 2 * n or n
if marker ~= '' and redis.call('GET', KEYS[last + 1]) ~= marker then
  return redis.error_reply('UNREADY the guard marker has changed')
end
local ours = 0
for i = 1, n do
  local holder = redis.call('GET', KEYS[i])
  if holder == owner then
    ours = ours + 1
  elseif holder then
    local left = redis.call('PTTL', KEYS[i])
    -- No lease is longer than max_ttl: more than that means that this server's clock was set back. Without
    -- this the key of a dead holder would stay until the clock has caught up.
    if left > tonumber(ARGV[7]) then
      left = tonumber(ARGV[7])
      redis.call('PEXPIRE', KEYS[i], left)
    end
    return {holder, left}
  end
end
if ours == n then
  local token = 1
  for i = 1, n do
    redis.call('PEXPIRE', KEYS[i], ttl)
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
  local floor = tonumber(ARGV[6])
  for i = 1, n do
    local count = math.max(floor, tonumber(redis.call('GET', KEYS[n + i]) or '0'))
    if count >= token then token = count + 1 end
  end
  -- Lua numbers are doubles: 2^53 is the last that counts by ones.
  if token >= 9007199254740992 then return redis.error_reply('EXHAUSTED the fence counter has reached 2^53') end
  local text = string.format('%.0f', token)
  for i = 1, n do redis.call('SET', KEYS[n + i], text) end
  if marker ~= '' and token > tonumber(redis.call('GET', KEYS[last + 2]) or '0') then
    redis.call('SET', KEYS[last + 2], text)
  end
end
for i = 1, n do redis.call('SET', KEYS[i], owner, 'PX', ttl) end
return token
