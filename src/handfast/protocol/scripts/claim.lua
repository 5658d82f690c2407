-- claim: take the vote of this node if it is free and there are no waiters; otherwise enter the queue.
-- A claim is repeatable: it finds its own vote or its own place in the queue again.
-- KEYS   1 lock  2 queue  3 claims  4 fence counter  5 generations; guarded: 6 marker  7 high-water mark
-- ARGV   1 id of the acquisition  2 owner  3 generation ('-': the id is the owner)  4 ttl in ms
--        5 number of tokens, of which the last is the reply (0: unfenced)  6 proposed token (0: the server's time)
--        7 retention of the counter in s  8 longest ttl in ms  9 ticket ('': do not queue; '0': the time of arrival)
--        10 channel  11 1: overtake the queue if the lock is free
-- reply  an integer, the token (1 if unfenced): a new grant, if the claim has no ticket or the node no guard
--        {1, remaining ttl in ms, token, stamp, s, µs, proof, inquired}: any other grant; inquired: a lower ticket waits
--        {0, remaining ttl of the holder in ms (-1: none), holder, 1 if it is no explicit owner, s, µs, proof}: refused or
--        queued
local call = redis.call
local id, owner, generation, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local step, retention, ticket = tonumber(ARGV[5]), tonumber(ARGV[7]), ARGV[9]
local time
--@ _token
--@ _proof
local function granted(token)
  -- The client checks the node behind a claim without a ticket, and needs no proof in the reply.
  if ticket == '' or not KEYS[6] then return tonumber(token) end
  time = time or call('TIME')
  return {1, ttl, token, '0', time[1], time[2], proof(), 0}
end
-- The usual case: the lock is free and has no waiters, and the owner is not explicit.
local overtakes = ARGV[11] == '1'
if generation == '-' and (ticket == '' or ticket == '0')
    and (overtakes or call('EXISTS', KEYS[2]) == 0) and call('SET', KEYS[1], owner, 'NX', 'PX', ARGV[4]) then
  if step == 0 then return granted('1') end
  return granted(next_token(step, ARGV[6], 0))
end
time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _vote
--@ _generation
local holder = call('GET', KEYS[1])
local function grant()
  local token = '1'
  if step > 0 then token = next_token(step, ARGV[6], 0) end
  take(owner, generation, ttl, token)
  return granted(token)
end
if not holder and (ticket == '' or ticket == '0') and (overtakes or call('EXISTS', KEYS[2]) == 0) then
  return grant()
end
--@ _give
local left = 0
if holder then
  left = call('PTTL', KEYS[1])
  -- No lease is longer than the longest ttl, so this server's clock was set back. Without this, the key of a dead
  -- holder would stay until the clock has caught up.
  if left > tonumber(ARGV[8]) then
    left = tonumber(ARGV[8])
    call('PEXPIRE', KEYS[1], left)
  end
end
local claim = table.concat({
  time[1] + math.ceil((math.max(left, 0) + ttl) / 1000) + 1, ttl, step, ARGV[6], generation, ARGV[10], owner}, ' ')
local queues = ticket ~= ''
if ticket == '0' then
  -- Behind the last in the queue, also if this server's clock was set back meanwhile.
  local last = call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or '0'
  ticket = string.format('%.0f', math.max(time[1] * 1000000 + time[2], tonumber(last) + 1))
end
local function keep()
  -- The queue must outlive every claim in it. Extending it rarely, but by more, saves commands. The claims live as long
  -- as the queue or longer: a new queue has no ttl, and both get theirs together.
  local least = math.max(300000, left + ttl + 3000)
  if call('PTTL', KEYS[2]) < least then
    call('PEXPIRE', KEYS[2], 2 * least)
    call('PEXPIRE', KEYS[3], 2 * least)
  end
end
if holder == owner then
  -- This owner has the vote already: by an earlier claim, or by another acquisition of the same explicit owner.
  if left >= 0 and left < ttl then
    left = ttl
    call('PEXPIRE', KEYS[1], ttl)
  end
  local token = '0'
  if generation ~= '-' then
    lasts(KEYS[5], generation, ttl, tonumber(ARGV[8]))
    token = call('HGET', KEYS[5], 't') or '0'
    if step > 0 and tonumber(token) < 2 then
      token = next_token(step, ARGV[6], 0)
      call('HSET', KEYS[5], 't', token)
    end
  elseif step > 0 then
    token = call('GET', KEYS[4]) or '0'
  end
  local stamp, given, whose = string.match(record(generation), '^(%d+) (%d+) (%S+)')
  -- On a single node the time of arrival decides: a repeated claim keeps its ticket, and yields to no other claim.
  local single = ARGV[9] == '0'
  if whose ~= id then stamp = new_stamp(call('HGET', KEYS[3], '*')) end
  local inquired = 0
  if queues then
    -- A repeated claim keeps its first ticket. A vote without a record was given while the queue was empty.
    if single then ticket = whose == id and given or '0' end
    if call('ZREM', KEYS[2], id) == 1 then call('HDEL', KEYS[3], id) end
    set_record(generation, stamp, ticket, id, claim)
    keep()
    local first = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if first[1] and not single and tonumber(first[2]) < tonumber(ticket) then inquired = 1 end
  end
  return {1, left, token, stamp, time[1], time[2], proof(), inquired}
end
if queues then
  call('ZADD', KEYS[2], 'NX', ticket, id)
  call('HSET', KEYS[3], id, claim)
  keep()
end
if not holder then
  local heir, new_owner, new_ttl, token, stamp = give(0)
  if heir == id then return {1, new_ttl, token, stamp, time[1], time[2], proof(), 0} end
  if heir then return {0, new_ttl, new_owner, 0, time[1], time[2], proof()} end
  return grant() -- only dead claims were there
end
-- A waiter with a higher ticket must yield the vote. If the holder is an explicit owner, each of its acquisitions must.
local function inquire(text)
  local stamp, given, whose, channel = string.match(text or '', '^(%d+) (%d+) (%S+) %d+ %d+ %d+ %d+ %S+ (%S+) ')
  if stamp and tonumber(ticket) < tonumber(given) then push(channel, 'inquire ' .. whose .. ' ' .. stamp) end
end
local plain = 1 - call('EXISTS', KEYS[5])
local by_arrival = ARGV[9] == '0' -- no vote was given to a later arrival
if queues and plain == 1 and not by_arrival then
  inquire(call('HGET', KEYS[3], '*'))
elseif queues and not by_arrival then
  local shares = call('HGETALL', KEYS[5])
  for i = 1, #shares, 2 do
    if string.sub(shares[i], 1, 1) == '*' then inquire(shares[i + 1]) end
  end
end
return {0, left, holder, plain, time[1], time[2], proof()}
