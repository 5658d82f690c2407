-- extend: give n names another ttl, if this owner holds all of them. Never shortens what is there: of two renewals
-- that pass each other on their way the longer one must stand. More than max_ttl is a clock that was set back.
-- KEYS   1..n lock keys
-- ARGV   1 owner  2 ttl in ms  3 max_ttl in ms, or 2^52 where nothing is too long
-- reply  1 extended, 0 not this owner's (nothing was changed)
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) ~= ARGV[1] then return 0 end
end
local ttl, most = tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 1, #KEYS do
  local left = redis.call('PTTL', KEYS[i])
  if left < ttl or left > most then redis.call('PEXPIRE', KEYS[i], ttl) end
end
return 1
