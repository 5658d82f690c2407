-- claim: take a fair lock if it is free and nobody is before us in its queue; else stand in the queue, or stay in it.
-- KEYS   1 lock key  2 queue  3 fence counter
-- ARGV   1 owner  2 ttl in ms  3 tokens wanted (0: none)  4 channel that the owner listens on ('': do not queue)
--        5 the claim as it was last answered ('': not in the queue yet)  6 max_ttl in ms, or 2^52
-- reply  {1, remaining ttl in ms, token (0: none), server time in µs}: it is ours
--        {0, holder, its remaining ttl in ms (-1: no end), claim, server time}: in the queue (claim '' if not asked for)
local owner, ttl, step, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local now = server_time()
local holder = redis.call('GET', KEYS[1])
if holder == owner then
  local token = step > 0 and tonumber(redis.call('GET', KEYS[3]) or '0') or 0
  return {1, redis.call('PTTL', KEYS[1]), token, now}
end
local left = 0
if holder then
  left = redis.call('PTTL', KEYS[1])
  -- More than max_ttl means that this server's clock was set back; see acquire.
  if left > tonumber(ARGV[6]) then
    left = tonumber(ARGV[6])
    redis.call('PEXPIRE', KEYS[1], left)
  end
elseif redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('SET', KEYS[1], owner, 'PX', ttl)
  return {1, tonumber(ttl), token_of(step, now), now}
end
local claim = ''
if channel ~= '' then
  -- Whoever waits looks in again when the present holder's time is over; its claim outlives that by a ttl of its own.
  local expiry = now + (math.max(left, 0) + tonumber(ttl)) * 1000
  claim = string.format('%.0f %s %d %s %s', expiry, ttl, step, channel, owner)
  local place = ARGV[5] ~= '' and redis.call('LPOS', KEYS[2], ARGV[5])
  if place then redis.call('LSET', KEYS[2], place, claim) else redis.call('RPUSH', KEYS[2], claim) end
  -- Only so that nothing is left of a queue whose waiters have all died: longer than any claim in it.
  redis.call('PEXPIRE', KEYS[2], math.max(600000, left + 2 * ttl))
end
if not holder then
  local token
  holder, left, token = hand_over(now, owner)
  if not holder then
    -- Only dead claims were there, and we asked for no place: it is free after all.
    redis.call('SET', KEYS[1], owner, 'PX', ttl)
    return {1, tonumber(ttl), token_of(step, now), now}
  end
  if holder == owner then return {1, left, token, now} end
end
return {0, holder, left, claim, now}
