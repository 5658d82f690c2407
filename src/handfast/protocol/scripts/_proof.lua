-- _proof: part of other scripts. The proof that a guarded node shows with a hand-over: promotion and marker.
-- KEYS   6 guard marker (guarded only)
-- needs  call
-- The part of the node's incarnation that a script can see: 0, or the replication id that it took at its promotion.
local function promotion()
  local info = call('INFO', 'replication')
  if string.find(info, 'master_replid2:' .. string.rep('0', 40), 1, true) then return '0' end
  return string.match(info, 'master_replid:(%x+)') or '?'
end
local function proof()
  if not KEYS[6] then return '' end
  return promotion() .. ' ' .. (call('GET', KEYS[6]) or '')
end
