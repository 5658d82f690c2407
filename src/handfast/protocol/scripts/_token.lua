-- _token: part of other scripts. The next fencing token of a name, and its counter.
-- A counter expires one retention after the time of its token. So when it is gone, the server's clock is past every
-- token that it gave, and the server's time is a safe start. A proposal that is older than the retention may be older
-- than an expired counter: the server's time replaces it.
-- A guarded node's marker ends with a floor for all counters once the node may vote: it may have lost counters. Its
-- high-water mark is at least the largest token that it has voted for. It is set a tenth of a second ahead, so under load
-- most votes need not set it. A floor that comes from it may be larger than necessary.
-- KEYS   4 fence counter  guarded: 6 marker  7 high-water mark
-- needs  call, time (nil: not asked yet), retention (in s, with a second for the fractions)
local AHEAD = 100000 -- µs
local marker -- once it has been read
local function set_counter(token, text)
  text = text or string.format('%.0f', token)
  call('SET', KEYS[4], text, 'EXAT', math.floor(token / 1000000) + retention)
  if KEYS[7] and token > tonumber(call('GET', KEYS[7]) or '0') then call('SET', KEYS[7], token + AHEAD) end
  return text
end
local function floor_in(text)
  if not text or string.sub(text, -2) == ' 0' then return 0 end -- the usual case
  return tonumber(string.match(text, ' (%d+)$') or '0')
end
-- `last`: a token that the next one must exceed. `taken`: the lock was free before this script, and is free again if there
-- is no token: a repeated claim would find its own vote, and get the token of somebody else.
local function next_token(step, proposal, last, taken)
  local count = call('GET', KEYS[4])
  if KEYS[6] then
    marker = call('GET', KEYS[6]) or ''
    last = math.max(last, floor_in(marker))
  end
  local token, text = tonumber(proposal), proposal
  if token == 0 or not count then
    time = time or call('TIME')
    local now = time[1] * 1000000 + time[2]
    if token == 0 or token <= now - (retention - 1) * 1000000 then
      token, text = now, time[1] .. string.sub('00000' .. time[2], -6) -- faster than string.format
    end
  end
  local least = math.max(tonumber(count or '0'), last) + step
  if token < least then token, text = least, nil end
  -- Lua numbers are doubles: above 2^53 they do not count by ones.
  if token >= 9007199254740992 then
    if taken then call('DEL', KEYS[1]) end
    error('EXHAUSTED the fence counter has reached 2^53', 0)
  end
  return set_counter(token, text)
end
