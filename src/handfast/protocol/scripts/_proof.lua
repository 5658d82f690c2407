-- _proof: part of other scripts. The marker that a guarded node shows with a vote.
-- KEYS   6 guard marker (guarded only)
-- needs  call
local function proof()
  return KEYS[6] and call('GET', KEYS[6]) or ''
end
