-- raise_token: lift the counters of n names to an agreed token, while the acquisition still holds all of them.
-- A counter above the token shows that this vote was lost and won again. Another acquisition may have had the token in
-- between, so the reply is 0.
-- KEYS   1..n locks; then n fence counters, n generations; guarded: high-water mark
-- ARGV   1 owner  2 generation ('-': the owner is the acquisition's own)  3 n  4 token
--        5 retention of the counters in s, as for claim
-- reply  1 raised, 0 the acquisition does not hold all names or a counter is above the token
local call, n, token = redis.call, tonumber(ARGV[3]), tonumber(ARGV[4])
for i = 1, n do
  if call('GET', KEYS[i]) ~= ARGV[1] then return 0 end
  if ARGV[2] ~= '-' and call('HEXISTS', KEYS[2 * n + i], ARGV[2]) == 0 then return 0 end
end
local raised = 1
for i = 1, n do
  local count = tonumber(call('GET', KEYS[n + i]) or '0')
  if count > token then raised = 0 end
  if count < token then
    call('SET', KEYS[n + i], ARGV[4], 'EXAT', math.floor(token / 1000000) + ARGV[5])
  end
  if ARGV[2] ~= '-' and tonumber(call('HGET', KEYS[2 * n + i], 't') or '0') < token then
    call('HSET', KEYS[2 * n + i], 't', ARGV[4])
  end
end
local mark = KEYS[3 * n + 1]
if mark and token > tonumber(call('GET', mark) or '0') then call('SET', mark, ARGV[4]) end
return raised
