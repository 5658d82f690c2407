-- release: delete the names that this owner holds, and no others; the token goes along as a floor for the counters.
-- KEYS   1..n lock keys; n+1..2n fence counters (only with a token); then, guarded only, the high-water mark
-- ARGV   1 owner  2 n  3 token ('' none)
-- reply  1 all names were this owner's, 0 some were not (those that were are deleted all the same)
local n, released = tonumber(ARGV[2]), 0
for i = 1, n do
  if redis.call('GET', KEYS[i]) == ARGV[1] then
    redis.call('DEL', KEYS[i])
    released = released + 1
  end
end
if ARGV[3] ~= '' then
  local token = tonumber(ARGV[3])
  for i = n + 1, #KEYS do
    if tonumber(redis.call('GET', KEYS[i]) or '0') < token then redis.call('SET', KEYS[i], ARGV[3]) end
  end
end
return released == n and 1 or 0
