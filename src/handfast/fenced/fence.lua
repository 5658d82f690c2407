-- fence: refuse a token that is smaller than one seen for any of the keys; otherwise record it and run the body.
-- KEYS   1..n the keys of the resource; n+1..2n the keys of their largest tokens
-- ARGV   1 token; then the arguments of the body
-- reply  {0, i, largest} refused for the i-th key and nothing changed; {1, reply of the body}; or the body's own error
-- The body replaces BODY, and has KEYS and ARGV of its own. Tokens are recorded first: an error in the middle of the
-- body does not undo its earlier writes.
local n, token, seen = #KEYS / 2, tonumber(ARGV[1]), {}
for i = 1, n do
  seen[i] = tonumber(redis.call('GET', KEYS[n + i]) or '0')
  if seen[i] > token then return {0, i, seen[i]} end
end
local keys, args = {}, {}
for i = 1, n do
  keys[i] = KEYS[i]
  if seen[i] < token then redis.call('SET', KEYS[n + i], ARGV[1]) end
end
for i = 2, #ARGV do args[i - 1] = ARGV[i] end
local body = function(KEYS, ARGV)
BODY
end
local reply = body(keys, args)
if type(reply) == 'table' and reply.err then return reply end
if reply == nil then reply = false end
return {1, reply}
