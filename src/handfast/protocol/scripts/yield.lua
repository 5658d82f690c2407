-- yield: a waiter gives the vote with this stamp back to the queue, because a lower ticket waits there.
-- KEYS   as claim
-- ARGV   1 owner  2 retention of the counter in s  3 stamp  4 id of the acquisition  5 generation; as for claim
-- reply  as claim: {1, ...} if the vote came back with a new stamp, {0, ...} if not
local call = redis.call
local owner, retention, id, generation = ARGV[1], tonumber(ARGV[2]), ARGV[4] or ARGV[1], ARGV[5] or '-'
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _token
--@ _proof
--@ _vote
--@ _give
local holder = call('GET', KEYS[1])
local stamp, ticket, whose, claim = string.match(record(generation), '^(%d+) (%d+) (%S+) (.*)$')
local free
if holder == owner and whose == id and stamp == ARGV[3] then free = leave(generation) end
if free ~= nil then
  -- Also if another acquisition of an explicit owner keeps the vote: otherwise this waiter would be in no queue.
  call('ZADD', KEYS[2], ticket, id)
  call('HSET', KEYS[3], id, claim)
  if call('PTTL', KEYS[2]) < 0 then call('PEXPIRE', KEYS[2], math.max(1, call('PTTL', KEYS[3]))) end
end
if free then
  local heir, new_owner, new_ttl, token, given = give(0)
  if heir == id then return {1, new_ttl, token, given, time[1], time[2], proof(), 0} end
  if heir then return {0, new_ttl, new_owner, 0, time[1], time[2], proof()} end
  -- The waiter's own claim has expired too.
  call('DEL', KEYS[1])
  call('HDEL', KEYS[3], '*')
  holder = nil
end
return {0, holder and call('PTTL', KEYS[1]) or 0, holder or '', 0, time[1], time[2], proof()}
