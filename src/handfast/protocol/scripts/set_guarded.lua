-- set_guarded: the published acquisition, SET NX PX, on a guarded node: it shows the node's proof as well.
-- KEYS   1 lock  2 guard marker
-- ARGV   1 owner  2 ttl in ms
-- reply  as claim, without token and stamp
local call = redis.call
local time, lock, ttl = call('TIME'), KEYS[1], tonumber(ARGV[2])
local KEYS = {[6] = KEYS[2]}
--@ _proof
if call('SET', lock, ARGV[1], 'NX', 'PX', ttl) then return {1, ttl, '0', '0', time[1], time[2], proof(), 0} end
return {0, call('PTTL', lock), call('GET', lock) or '', 1, time[1], time[2], proof()}
