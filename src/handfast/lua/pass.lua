-- pass: an owner of a fair lock is done with it, or wants it no more: it leaves the queue, and what it holds goes to the
-- next in the queue.
-- KEYS   1 lock key  2 queue  3 fence counter
-- ARGV   1 owner  2 its claim ('': it has none; '?': it may have one that it was not told of)  3 channel of whoever asks
--        ('': none)
-- reply  1 it was this owner's, 0 it was not
local call, sub, me, voice = redis.call, string.sub, '', ARGV[3] ~= '' and ARGV[3]
local time = call('TIME')
if ARGV[2] == '?' then
--@ find
  local place = find(ARGV[1])
  if place then call('LREM', KEYS[2], 1, call('LINDEX', KEYS[2], place)) end
elseif ARGV[2] ~= '' then
  call('LREM', KEYS[2], 1, ARGV[2])
end
if call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
--@ hand_over
if not heir then call('DEL', KEYS[1]) end
return 1
