-- delete_owned: the published release, for keys that other programs share: delete a key if this owner holds it.
-- KEYS   1 lock
-- ARGV   1 owner
-- reply  1 deleted, 0 not this owner's
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
