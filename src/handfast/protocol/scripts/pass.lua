-- pass: an acquisition ends. It leaves the queue, and a vote that it holds goes to the next waiter. Repeatable.
-- KEYS   as claim
-- ARGV   1 owner  2 retention of the counter in s  3 its token, which the next one must exceed [0: none]
--        4 id of the acquisition  5 generation; as for claim
-- reply  2 it held this vote, and a waiter has it now; 1 it held this vote; 0 it did not
local call = redis.call
local owner, generation = ARGV[1], ARGV[5] or '-'
-- The usual case: there are no waiters, and the counter is not behind. The claims have only the record of the vote.
if generation == '-' and call('EXISTS', KEYS[2]) == 0 then
  local count = ARGV[3] and call('GET', KEYS[4])
  if count == ARGV[3] or tonumber(count or '0') >= tonumber(ARGV[3]) then
    if call('GET', KEYS[1]) ~= owner then return 0 end
    call('DEL', KEYS[1], KEYS[3])
    return 1
  end
end
local id, retention, last = ARGV[4] or owner, tonumber(ARGV[2]), tonumber(ARGV[3] or '0')
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _token
--@ _proof
--@ _vote
--@ _give
if call('ZREM', KEYS[2], id) == 1 then
  call('HDEL', KEYS[3], id)
  hint(call('PTTL', KEYS[1])) -- perhaps only this waiter would have looked in time
end
local free, shorter
if call('GET', KEYS[1]) == owner then free, shorter = leave(generation) end
if shorter then hint(call('PTTL', KEYS[1]), true) end
local heir, token, _
if free then
  id = ''
  heir, _, _, token = give(last)
end
if last > 0 and (not token or token == '0') then -- the token of a new holder is larger
  if tonumber(call('GET', KEYS[4]) or '0') < last then set_counter(last) end
end
if heir then return 2 end
if free then call('DEL', KEYS[1], KEYS[3]) end
return free == nil and 0 or 1
