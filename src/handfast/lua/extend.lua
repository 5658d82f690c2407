-- extend: give n names another ttl, if this owner holds all of them.
-- KEYS   1..n lock keys
-- ARGV   1 owner  2 ttl in ms
-- reply  1 extended, 0 not this owner's (nothing was changed)
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) ~= ARGV[1] then return 0 end
end
for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
return 1
