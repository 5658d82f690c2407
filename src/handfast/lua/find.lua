-- find: part of other scripts: the place in the queue of an owner that does not know its claim.
-- KEYS   2 queue
-- before `call`, `sub`
local function find(owner)
  for i, claim in ipairs(call('LRANGE', KEYS[2], 0, -1)) do
    if sub(claim, 44 + sub(claim, 40, 43)) == owner then return i - 1 end
  end
end
