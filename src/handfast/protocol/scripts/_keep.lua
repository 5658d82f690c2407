-- _keep: part of claim. The queue must outlive every claim in it. Extending it rarely, but by more, saves commands. The
-- claims live as long as the queue or longer: a new queue has no ttl, and both get theirs together.
-- KEYS   2 queue  3 claims
-- needs  call, left, ttl, empty
local least = math.max(300000, left + ttl + 3000)
if empty or call('PTTL', KEYS[2]) < least then
  call('PEXPIRE', KEYS[2], 2 * least)
  call('PEXPIRE', KEYS[3], 2 * least)
end
