-- _proof: part of other scripts, behind _token. The marker that a guarded node shows with a vote.
-- KEYS   6 guard marker (guarded only)
-- needs  call, marker
local function proof()
  if not KEYS[6] then return '' end
  marker = marker or call('GET', KEYS[6]) or ''
  return marker
end
