-- claim: take a fair lock if it is free and nobody is before us in its queue; else stand in the queue, or stay in it.
-- KEYS   1 lock key  2 queue  3 fence counter
-- ARGV   1 owner  2 ttl in ms  3 tokens wanted (0: none)  4 our claim but for its first 10 digits ('': do not queue)
--        5 the claim as it was last answered ('': not in the queue yet; '?': not known; '!': not in the queue yet, and will
--        look in soon)  6 max_ttl in ms, or 2^52
-- reply  {1, remaining ttl in ms, token ('0': none), server time in s, and µs}: it is ours
--        {0, remaining ttl of the holder in ms (-1: no end), holder, server time in s, and µs, claim}: it is not; in the
--        queue (claim '' if not asked for)
--        a second: somebody holds it, and who will look in soon is in the queue, with a claim that is good until then
local call, sub, me, rest, voice = redis.call, string.sub, ARGV[1], ARGV[4], false
local time = call('TIME')
local holder = call('GET', KEYS[1])
local left = 0
if holder == me then
  return {1, call('PTTL', KEYS[1]), ARGV[3] ~= '0' and call('GET', KEYS[3]) or '0', time[1], time[2]}
elseif holder and ARGV[5] == '!' then
  local ms = tonumber(ARGV[2])
  local second = time[1] + math.ceil(ms / 1000) + 2
  call('RPUSH', KEYS[2], second .. rest)
--@ keep
  return second
elseif holder then
  left = call('PTTL', KEYS[1])
  -- More than max_ttl means that this server's clock was set back; see acquire.
  if left > tonumber(ARGV[6]) then
    left = tonumber(ARGV[6])
    call('PEXPIRE', KEYS[1], left)
  end
end
local claim = ''
local queued = holder or call('EXISTS', KEYS[2]) == 1
if queued and rest ~= '' then
  local ms = (left > 0 and left or 0) + ARGV[2]
  -- Whoever waits looks in again when the present holder's time is over; its claim outlives that by a ttl of its own.
  claim = time[1] + math.ceil(ms / 1000) + 1 .. rest
  local place = false
  if ARGV[5] == '?' then
--@ find
    place = find(me)
  elseif ARGV[5] ~= '' and ARGV[5] ~= '!' then
    place = call('LPOS', KEYS[2], ARGV[5])
  end
  if place then call('LSET', KEYS[2], place, claim) else call('RPUSH', KEYS[2], claim) end
--@ keep
end
if holder then return {0, left, holder, time[1], time[2], claim} end
if queued then
--@ hand_over
  if heir == me then return {1, ttl, token, time[1], time[2]} end
  if heir then return {0, ttl, heir, time[1], time[2], claim} end
end
-- Nobody waits, or only dead claims were there: it is free.
--@ token
call('SET', KEYS[1], me, 'PX', ARGV[2])
return {1, tonumber(ARGV[2]), ARGV[3] ~= '0' and token_of(tonumber(ARGV[3])) or '0', time[1], time[2]}
