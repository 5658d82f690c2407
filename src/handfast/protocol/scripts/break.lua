-- break: an operator takes this node's vote from its holder, whatever the holder says. The next waiter gets it.
-- The owner and the token must be as the operator has seen them: a lock that has changed hands is left alone.
-- KEYS   as claim
-- ARGV   1 owner  2 token as seen on this node ('' none)  3 retention of the counter in s, as for claim
-- reply  2 taken, and a waiter has it now; 1 taken; 0 another owner or token is here (nothing was changed)
local call = redis.call
local retention = tonumber(ARGV[3])
if call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local token = call('HGET', KEYS[5], 't') or call('GET', KEYS[4]) or ''
if token ~= ARGV[2] then return 0 end
local time, id = call('TIME'), ''
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _token
--@ _proof
--@ _vote
--@ _give
call('DEL', KEYS[5]) -- all acquisitions of an explicit owner
if give(tonumber(token ~= '' and token or '0')) then return 2 end
call('DEL', KEYS[1], KEYS[3])
return 1
