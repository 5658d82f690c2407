-- restore_vote: restore a vote on a node that has lost it, while a majority of other nodes confirms the acquisition. It
-- never takes another owner's key, and never shortens a ttl.
-- KEYS   1..n locks; then n fence counters, n generations; guarded: high-water mark
-- ARGV   1 owner  2 generation ('-': the owner is the acquisition's own)  3 ttl in ms  4 n  5 token (0: unfenced)
--        6 retention of the counters in s, as for claim
-- reply  1 restored, 0 another owner has the key
local call, n = redis.call, tonumber(ARGV[4])
local owner, generation, ttl, token = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
for i = 1, n do
  local holder = call('GET', KEYS[i])
  if holder and holder ~= owner then return 0 end
end
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _generation
for i = 1, n do
  if call('PTTL', KEYS[i]) < ttl then call('SET', KEYS[i], owner, 'PX', ttl) end
  if generation ~= '-' then
    local hash = KEYS[2 * n + i]
    lasts(hash, generation, ttl, math.huge)
    -- The next acquisition of this owner gets this token. If the counter is above the acquisition's own token, the owner
    -- may have had a larger one here in between.
    local shared = math.max(token, tonumber(call('HGET', hash, 't') or '0'))
    if token > 0 then shared = math.max(shared, tonumber(call('GET', KEYS[n + i]) or '0')) end
    call('HSET', hash, 't', string.format('%.0f', shared))
  end
  if token > 0 and tonumber(call('GET', KEYS[n + i]) or '0') < token then
    call('SET', KEYS[n + i], ARGV[5], 'EXAT', math.floor(token / 1000000) + ARGV[6])
  end
end
local mark = KEYS[3 * n + 1]
if mark and token > tonumber(call('GET', mark) or '0') then call('SET', mark, ARGV[5]) end
return 1
