-- heal: put a vote back on a node that lost it, while a majority elsewhere confirms the owner. Never takes another's
-- key, never shortens what is there.
-- KEYS   1..n lock keys; n+1..2n fence counters (fenced only); then, guarded only, the high-water mark
-- ARGV   1 owner  2 ttl in ms  3 n  4 token ('' unfenced)
-- reply  1 held here now, 0 another owner is here
local n = tonumber(ARGV[3])
for i = 1, n do
  local holder = redis.call('GET', KEYS[i])
  if holder and holder ~= ARGV[1] then return 0 end
end
for i = 1, n do
  if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[2]) then redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end
end
if ARGV[4] ~= '' then
  local token = tonumber(ARGV[4])
  for i = n + 1, #KEYS do
    if tonumber(redis.call('GET', KEYS[i]) or '0') < token then redis.call('SET', KEYS[i], ARGV[4]) end
  end
end
return 1
