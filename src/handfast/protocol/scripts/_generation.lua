-- _generation: part of other scripts. Notes until when an acquisition of an explicit owner lasts.
-- A request never shortens it: a late one may have a shorter ttl than an extension that has overtaken it. An end that is
-- further away than the longest ttl was noted before this server's clock was set back.
-- needs  call, now_ms
local function lasts(hash, generation, ttl, longest)
  local noted = tonumber(call('HGET', hash, generation) or '0')
  call('HSET', hash, generation, math.max(now_ms + ttl, math.min(noted, now_ms + longest)))
  local left = call('PTTL', hash)
  if left > longest then call('PEXPIRE', hash, longest) elseif left < ttl then call('PEXPIRE', hash, ttl) end
end
