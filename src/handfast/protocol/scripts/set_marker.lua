-- set_marker: replace the guard's marker if it still equals the marker that the caller has seen (compare and set).
-- KEYS   1 guard marker
-- ARGV   1 marker as seen ('' absent)  2 new marker; in it @ stands for "server time in µs, plus ARGV[3]"  3 µs to add
-- reply  the present marker
local seen = redis.call('GET', KEYS[1]) or ''
if seen ~= ARGV[1] then return seen end
local time = redis.call('TIME')
local ready = string.format('%.0f', time[1] * 1000000 + time[2] + tonumber(ARGV[3]))
local marker = string.gsub(ARGV[2], '@', ready)
redis.call('SET', KEYS[1], marker)
return marker
