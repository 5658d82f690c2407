-- pass: an acquisition ends. It leaves the queue, and a vote that it holds goes to the next waiter. Repeatable.
-- KEYS   as claim
-- ARGV   1 id of the acquisition  2 owner  3 generation ('-': the id is the owner)
--        4 its token, a floor for the next ones (0: none)  5 retention of the counter in s
-- reply  1 it held this vote, 0 it did not
local call = redis.call
local id, owner, generation, floor, retention = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _token
--@ _vote
--@ _give
if call('ZREM', KEYS[2], id) == 1 then
  call('HDEL', KEYS[3], id)
  hint(call('PTTL', KEYS[1])) -- perhaps nobody else would have looked in time
end
if floor > 0 and tonumber(call('GET', KEYS[4]) or '0') < floor then set_counter(floor) end
if call('GET', KEYS[1]) ~= owner then return 0 end
local free = leave(generation)
if not free then return free == nil and 0 or 1 end
id = ''
if call('EXISTS', KEYS[2]) == 0 or not give(floor) then
  call('DEL', KEYS[1])
  call('HDEL', KEYS[3], '*')
end
return 1
