-- extend: give n names another ttl, if this acquisition holds all of them. It never shortens a ttl: if one renewal
-- overtakes another, the longer one must win. A ttl above the longest one shows a clock that was set back. It is cut to the
-- longest ttl, because another acquisition of the same owner may have a longer one than this.
-- KEYS   1..n locks; then n generations, if there is a generation
-- ARGV   1 owner  2 generation ('-': the owner is the acquisition's own)  3 ttl in ms  4 longest ttl in ms
-- reply  1 extended, 0 the acquisition does not hold all names (nothing was changed)
local call, n = redis.call, ARGV[2] == '-' and #KEYS or #KEYS / 2
local owner, generation, ttl, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
for i = 1, n do
  if call('GET', KEYS[i]) ~= owner then return 0 end
  if generation ~= '-' and call('HEXISTS', KEYS[n + i], generation) == 0 then return 0 end
end
local time = generation ~= '-' and call('TIME') or {0, 0}
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _generation
for i = 1, n do
  local left = call('PTTL', KEYS[i])
  if left > most then call('PEXPIRE', KEYS[i], most) elseif left < ttl then call('PEXPIRE', KEYS[i], ttl) end
  if generation ~= '-' then lasts(KEYS[n + i], generation, ttl, most) end
end
return 1
