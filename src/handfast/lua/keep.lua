-- keep: part of the script `claim`: the queue ends some day, so that nothing is left of one whose waiters have all died;
-- but after every claim in it. It is not told so each time, and never to end sooner.
-- KEYS   2 queue
-- before `call`, and `ms`: for how long the new claim is good, but for the roundings
local least = math.max(300000, ms + 3000)
if call('PTTL', KEYS[2]) < least then call('PEXPIRE', KEYS[2], 2 * least) end
