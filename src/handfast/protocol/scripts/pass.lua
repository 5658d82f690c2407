-- pass: an acquisition ends. It leaves the queue, and a vote that it holds goes to the next waiter. Repeatable.
-- KEYS   as claim
-- ARGV   1 owner  2 retention of the counter in s  3 its token, which the next one must exceed [0: none]
--        4 id of the acquisition  5 generation; as for claim
-- reply  2 it held this vote, and a waiter has it now; 1 it held this vote; 0 it did not
local call = redis.call
local owner, generation = ARGV[1], ARGV[5] or '-'
local id, first = ARGV[4] or owner, nil
-- The usual cases come first, and without functions: declaring those of the shared parts, and collecting them as garbage,
-- takes as long as many commands. Whatever is unusual goes on below.
if generation == '-' then
  local floor = ARGV[3]
  if call('EXISTS', KEYS[2]) == 0 then
    -- There are no waiters, and the counter is not behind. The claims have only the record of the vote.
    local count = floor and call('GET', KEYS[4])
    if count == floor or tonumber(count or '0') >= tonumber(floor) then
      if call('GET', KEYS[1]) ~= owner then return 0 end
      call('DEL', KEYS[1], KEYS[3])
      return 1
    end
  elseif call('GET', KEYS[1]) == owner then
    -- A waiter gets the vote, by the rules in _give and _token. It is no explicit owner, its ttl needs no hint, and its
    -- token is a proposal or the server's time. The counter expires one retention after now. That is late enough unless
    -- the token is more than a second ahead of the server's clock.
    first = call('ZPOPMIN', KEYS[2])
    local heir = first[1]
    local claim = call('HGET', KEYS[3], heir) or ''
    local ends, ttl, step, proposal, channel, new_owner =
      string.match(claim, '^(%d+) (%d+) (%d+) (%d+) %- (%S+) (.*)$')
    local record, time = call('HGET', KEYS[3], '*') or '', call('TIME')
    local now, stamp = time[1] * 1000000 + time[2], time[1] .. string.sub('00000' .. time[2], -6)
    local usual = heir ~= id and new_owner and tonumber(ends) >= tonumber(time[1]) and tonumber(ttl) >= 5000
      and tonumber(string.match(record, '^%d+') or '0') < now
    local marker, token = usual and KEYS[6] and call('GET', KEYS[6]) or '', '0'
    if usual and step ~= '0' then
      local number, count = tonumber(proposal), call('GET', KEYS[4])
      token = proposal
      if number == 0 then number, token = now, stamp end
      local least = math.max(tonumber(count or '0'), tonumber(floor or '0'))
      if KEYS[6] and string.sub(marker, -2) ~= ' 0' then
        least = math.max(least, tonumber(string.match(marker, ' (%d+)$') or '0'))
      end
      usual = count and number >= least + step and number <= now + 500000 and number < 9007199254740992
      if usual then
        call('SET', KEYS[4], token, 'EX', ARGV[2])
        local mark = KEYS[7] and tonumber(call('GET', KEYS[7]) or '0')
        if mark and number > mark then call('SET', KEYS[7], number + 100000) end -- AHEAD
      end
    elseif floor then
      usual = false -- the counter may be behind
    end
    local heard = usual and redis.pcall('PUBLISH', channel,
      'yours ' .. heir .. ' ' .. stamp .. ' ' .. token .. ' ' .. time[1] .. ' ' .. time[2] .. ' ' .. marker)
    if type(heard) == 'number' and heard > 0 then
      call('SET', KEYS[1], new_owner, 'PX', ttl)
      call('DEL', KEYS[5])
      call('HSET', KEYS[3], '*', stamp .. ' ' .. first[2] .. ' ' .. heir .. ' ' .. claim)
      -- This acquisition is in the queue as well if its vote was restored while it waited for it.
      if call('HDEL', KEYS[3], heir, id) == 2 then call('ZREM', KEYS[2], id) end
      return 2
    end
    if usual then -- the waiter is gone
      call('HDEL', KEYS[3], heir)
      first = nil
    end
  end
end
local retention, last = tonumber(ARGV[2]), tonumber(ARGV[3] or '0')
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
--@ _token
--@ _proof
--@ _vote
--@ _give
local own = first and first[1] == id
if own or call('ZREM', KEYS[2], id) == 1 then
  call('HDEL', KEYS[3], id)
  hint(call('PTTL', KEYS[1])) -- perhaps only this waiter would have looked in time
end
local free, shorter
if call('GET', KEYS[1]) == owner then free, shorter = leave(generation) end
if shorter then hint(call('PTTL', KEYS[1]), true) end
local heir, token, _
if free then
  id = ''
  heir, _, _, token = give(last, not own and first)
end
if last > 0 and (not token or token == '0') then -- the token of a new holder is larger
  if tonumber(call('GET', KEYS[4]) or '0') < last then set_counter(last) end
end
if heir then return 2 end
if free then call('DEL', KEYS[1], KEYS[3]) end
return free == nil and 0 or 1
