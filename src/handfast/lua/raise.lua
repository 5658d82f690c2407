-- raise: lift the counters of n names to an agreed token, while the owner still holds all of them.
-- KEYS   1..n lock keys; n+1..2n fence counters; then, guarded only, the high-water mark
-- ARGV   1 owner  2 n  3 token
-- reply  1 raised, 0 not this owner's
local n, token = tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 1, n do
  if redis.call('GET', KEYS[i]) ~= ARGV[1] then return 0 end
end
for i = n + 1, #KEYS do
  if tonumber(redis.call('GET', KEYS[i]) or '0') < token then redis.call('SET', KEYS[i], ARGV[3]) end
end
return 1
